//! Traversal of a module: functions by name, instructions with their source lines, every symbol.
//!
//! Two modules are equal if they print the same text: the numbers behind their symbols, and names
//! that no directive uses, do not count.

use crate::ast::{
    AddrBase, Init, Inst, Item, Loc, Operand, PtxFunction, PtxModule, Stmt, Sym, Symbols, Var,
};

impl PtxModule {
    /// The kernel or device function called `name`; a definition before a declaration.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<&PtxFunction> {
        let name = self.symbols.get(name)?;
        let named = || self.functions().filter(|f| f.name == name);
        named()
            .find(|f| f.body.is_some())
            .or_else(|| named().next())
    }

    /// Kernels and device functions in order, declarations included.
    pub fn functions(&self) -> impl Iterator<Item = &PtxFunction> {
        self.items.iter().filter_map(|item| match item {
            Item::Function(function) => Some(function),
            _ => None,
        })
    }

    /// The text of `sym`, which must be of this module.
    #[must_use]
    pub fn name(&self, sym: Sym) -> &str {
        self.symbols.name(sym)
    }

    /// The path of `.file index`, what [`Loc::file`] refers to.
    #[must_use]
    pub fn file(&self, index: u32) -> Option<&str> {
        self.items.iter().find_map(|item| match item {
            Item::File { index: i, path, .. } if *i == index => Some(path.as_str()),
            _ => None,
        })
    }

    /// Calls `visit` with every symbol in the tree, in an order that depends on the tree alone.
    ///
    /// For renaming and linking: what `visit` leaves behind must be in the module's
    /// [`PtxModule::symbols`] when it is next printed.
    pub fn visit_symbols(&mut self, mut visit: impl FnMut(&mut Sym)) {
        for item in &mut self.items {
            walk_item(item, &mut visit);
        }
    }

    /// Numbers the symbols by first use and drops the names that nothing uses.
    pub fn renumber_symbols(&mut self) {
        let old = std::mem::take(&mut self.symbols);
        let mut new = Symbols::default();
        self.visit_symbols(|sym| *sym = new.intern(old.name(*sym)));
        self.symbols = new;
    }
}

impl PartialEq for PtxModule {
    fn eq(&self, other: &PtxModule) -> bool {
        let heads = |m: &PtxModule| (m.version, m.address_size);
        if heads(self) != heads(other)
            || self.target != other.target
            || self.items.len() != other.items.len()
        {
            return false;
        }
        if self.symbols == other.symbols {
            return self.items == other.items;
        }
        let (mut a, mut b) = (self.clone(), other.clone());
        a.renumber_symbols();
        b.renumber_symbols();
        a.symbols == b.symbols && a.items == b.items
    }
}

impl PtxFunction {
    /// The instructions in written order, those of nested blocks included, each with the `.loc`
    /// in force.
    #[must_use]
    pub fn instructions(&self) -> Instructions<'_> {
        Instructions {
            blocks: vec![self.body.as_deref().unwrap_or_default().iter()],
            loc: None,
        }
    }
}

/// Iterator of [`PtxFunction::instructions`].
#[derive(Debug, Clone)]
pub struct Instructions<'a> {
    blocks: Vec<std::slice::Iter<'a, Stmt>>,
    loc: Option<&'a Loc>,
}

impl<'a> Iterator for Instructions<'a> {
    type Item = (Option<&'a Loc>, &'a Inst);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.blocks.last_mut()?.next() {
                None => {
                    self.blocks.pop();
                }
                Some(Stmt::Inst(inst)) => return Some((self.loc, inst)),
                Some(Stmt::Block(block)) => self.blocks.push(block.iter()),
                Some(Stmt::Loc(loc)) => self.loc = Some(loc),
                Some(_) => {}
            }
        }
    }
}

fn walk_item(item: &mut Item, visit: &mut impl FnMut(&mut Sym)) {
    match item {
        Item::Var(var) => walk_var(var, visit),
        Item::Function(function) => {
            walk_vars(&mut function.returns, visit);
            visit(&mut function.name);
            walk_vars(&mut function.params, visit);
            walk_block(function.body.as_deref_mut().unwrap_or_default(), visit);
        }
        Item::Alias { name, target } => {
            visit(name);
            visit(target);
        }
        Item::File { .. } | Item::Section { .. } | Item::Pragma(_) => {}
    }
}

fn walk_vars(vars: &mut [Var], visit: &mut impl FnMut(&mut Sym)) {
    for var in vars {
        walk_var(var, visit);
    }
}

fn walk_var(var: &mut Var, visit: &mut impl FnMut(&mut Sym)) {
    visit(&mut var.name);
    if let Some(init) = &mut var.init {
        walk_init(init, visit);
    }
}

fn walk_init(init: &mut Init, visit: &mut impl FnMut(&mut Sym)) {
    match init {
        Init::Imm(_) => {}
        Init::Address { name, .. } => visit(name),
        Init::List(list) => list.iter_mut().for_each(|init| walk_init(init, visit)),
    }
}

fn walk_block(body: &mut [Stmt], visit: &mut impl FnMut(&mut Sym)) {
    for stmt in body {
        match stmt {
            Stmt::Reg { names, .. } => names.iter_mut().for_each(|(name, _)| visit(name)),
            Stmt::Var(var) => walk_var(var, visit),
            Stmt::Label(name) => visit(name),
            Stmt::Inst(inst) => {
                if let Some(guard) = &mut inst.guard {
                    visit(&mut guard.pred);
                }
                walk_operands(&mut inst.operands, visit);
            }
            Stmt::Block(body) => walk_block(body, visit),
            Stmt::Loc(loc) => {
                if let Some(inlined) = &mut loc.inlined {
                    visit(&mut inlined.function);
                }
            }
            Stmt::Pragma(_) => {}
            Stmt::BranchTargets { name, targets } | Stmt::CallTargets { name, targets } => {
                visit(name);
                targets.iter_mut().for_each(&mut *visit);
            }
            Stmt::CallPrototype {
                name,
                returns,
                params,
                ..
            } => {
                visit(name);
                walk_vars(returns, visit);
                walk_vars(params, visit);
            }
        }
    }
}

fn walk_operands(operands: &mut [Operand], visit: &mut impl FnMut(&mut Sym)) {
    for operand in operands {
        walk_operand(operand, visit);
    }
}

fn walk_operand(operand: &mut Operand, visit: &mut impl FnMut(&mut Sym)) {
    match operand {
        Operand::Name(name)
        | Operand::Not(name)
        | Operand::Offset(name, _)
        | Operand::Index(name, _)
        | Operand::Member(name, _) => visit(name),
        Operand::Negated(inner) => walk_operand(inner, visit),
        Operand::Select(name, selector) => {
            visit(name);
            visit(selector);
        }
        Operand::Imm(_)
        | Operand::Address {
            base: AddrBase::Imm(_),
            ..
        } => {}
        Operand::Address {
            base: AddrBase::Name(name),
            ..
        } => visit(name),
        Operand::Bracket(items) | Operand::Vector(items) | Operand::List(items) => {
            walk_operands(items, visit)
        }
        Operand::Pair(first, second) => {
            walk_operand(first, visit);
            walk_operand(second, visit);
        }
    }
}
