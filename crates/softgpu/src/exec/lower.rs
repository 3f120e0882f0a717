//! Lowering of a function's syntax tree to code with virtual registers.
//!
//! Each family of instructions has its lowering beside its handlers (`alu_int`, `memory`, ...);
//! scopes, guards and the choice of the family are here, names and blocks in `context`, operands in
//! `operands`. Registers are assigned by [`super::assign`].
//!
//! Invariants: a block's only terminator is its last thing. A predicated instruction that ends a
//! block becomes a branch around a block of its own. An instruction that this device lacks becomes
//! a terminator that faults.

use std::sync::Arc;

use fercuda_ptx::ast::{self, Stmt};
use fercuda_ptx::words::{Op, Space};
use rustc_hash::{FxHashMap, FxHashSet};

use super::assign::assign;
use super::ctx::KernelCode;
use super::lanes::Isa;
use super::layout::{ModuleInfo, element_of, var_bytes};
use super::program::VariableBounds;
use super::{
    alu_float, alu_int, control, convert, data, fetch, memory, multimem, parameters, propagate,
    register_pool, sync, wgmma_registers,
};
use crate::report::MemSpace;

mod code;
mod context;
mod forms;
mod operands;
mod positions;
mod uses;
pub(crate) use code::{
    Ext, InstRole, LBarrier, LCallee, LInst, LTerm, Opd, PredRef, RegisterClass, VirtualReg,
};
pub(crate) use context::{
    Entity, KernelLower, Lower, LowerError, Lowered, ModList, bad, class, operand,
};
pub(crate) use operands::{AddressOperand, pack_into};

impl<'m> Lower<'_, 'm> {
    /// Lowers a whole function.
    pub(crate) fn function(&mut self, f: &'m ast::PtxFunction) -> Result<(), String> {
        self.cur = self.new_block();
        if f.entry {
            let mut offset = 0u32;
            for p in &f.params {
                let (size, align) = var_bytes(p);
                offset = offset.next_multiple_of(align as u32);
                self.declare(p.name, Entity::KernelParam(offset));
                offset += size as u32;
            }
        } else {
            for (list, out) in [(&f.params, false), (&f.returns, true)] {
                for p in list {
                    let (size, _) = var_bytes(p);
                    let at = self.fixed(size as u32);
                    if out {
                        &mut self.rets
                    } else {
                        &mut self.params
                    }
                    .push((at, (size as u32).div_ceil(4)));
                    if p.space == Space::Reg {
                        let parts = (0..p.vector.max(1)).map(|_| self.reg(class(p.ty)));
                        let parts: Vec<VirtualReg> = parts.collect();
                        if !out {
                            for (n, &v) in parts.iter().enumerate() {
                                parameters::load(self, v, p.ty, at, n as u32);
                            }
                        }
                        self.declare(
                            p.name,
                            match parts.as_slice() {
                                [v] => Entity::Reg(*v, p.ty),
                                _ => Entity::Vector(parts, p.ty),
                            },
                        );
                    } else {
                        self.declare(p.name, Entity::Fixed(at, size as u32));
                    }
                }
            }
        }
        let body = f
            .body
            .as_ref()
            .ok_or("a function without a body is called")?;
        if self.k.checks {
            self.used_results = uses::used_results(body);
            self.verified_loads = uses::verified_loads(body);
            let shared = &self.k.shared;
            let mut locals = FxHashSet::default();
            locals_of(body, &mut locals);
            let is_variable = |s| shared.contains_key(&s) || locals.contains(&s);
            self.derived = uses::variables_of(body, is_variable);
        }
        self.stmts(body, f)?;
        if self.blocks[self.cur].term.is_none() {
            self.ret(f);
        }
        for b in &mut self.blocks {
            b.term.get_or_insert(LTerm::Ret);
        }
        Ok(())
    }

    fn ret(&mut self, f: &ast::PtxFunction) {
        for (n, p) in f.returns.iter().enumerate() {
            let parts = match self.lookup(p.name) {
                Some(Entity::Reg(v, _)) if p.space == Space::Reg => vec![v],
                Some(Entity::Vector(parts, _)) => parts,
                _ => continue,
            };
            let at = self.rets[n].0;
            for (k, v) in parts.into_iter().enumerate() {
                parameters::store(self, v, p.ty, at, k as u32);
            }
        }
        self.terminate(LTerm::Ret);
    }

    fn stmts(&mut self, list: &'m [Stmt], f: &'m ast::PtxFunction) -> Result<(), String> {
        self.scopes.push(FxHashMap::default());
        let (fixed, local) = (self.fixed_next, self.local_next);
        for s in list {
            match s {
                Stmt::Label(name) => {
                    let b = self.new_block();
                    self.declare(*name, Entity::Label(b));
                }
                Stmt::BranchTargets { name, targets } | Stmt::CallTargets { name, targets } => {
                    self.declare(*name, Entity::Targets(targets.clone()));
                }
                Stmt::CallPrototype { name, params, .. } => {
                    let types = params.iter().map(|p| p.ty).collect();
                    self.declare(*name, Entity::Prototype(types));
                }
                Stmt::Reg { vector, ty, names } => {
                    for &(name, count) in names {
                        let entity = if *vector > 1 {
                            Entity::Vector(
                                (0..*vector).map(|_| self.reg(class(*ty))).collect(),
                                *ty,
                            )
                        } else if let Some(n) = count {
                            Entity::Family(n, *ty)
                        } else {
                            Entity::Reg(self.reg(class(*ty)), *ty)
                        };
                        self.declare(name, entity);
                    }
                }
                Stmt::Var(v) => self.var(v)?,
                _ => {}
            }
        }
        for s in list {
            match s {
                Stmt::Label(name) => {
                    if let Some(Entity::Label(b)) = self.lookup(*name) {
                        if self.blocks[self.cur].term.is_none() {
                            self.terminate_to(LTerm::Jump(b), b);
                        }
                        self.cur = b;
                    }
                }
                Stmt::Inst(i) => self.inst(i, f)?,
                Stmt::Block(inner) => self.stmts(inner, f)?,
                Stmt::Loc(loc) => {
                    let info = self.k.info;
                    let (own, library) = self.inlined.resolve(loc, &info.files);
                    self.origin.file = own.0 + 1;
                    self.origin.source_line = own.1;
                    self.origin.library = library.unwrap_or_default();
                }
                _ => {}
            }
        }
        self.scopes.pop();
        self.fixed_next = fixed;
        self.local_next = local;
        Ok(())
    }

    fn var(&mut self, v: &ast::Var) -> Result<(), String> {
        let (size, align) = var_bytes(v);
        self.elements.insert(v.name, element_of(v));
        let entity = match v.space {
            Space::Param => Entity::Fixed(self.fixed(size as u32), size as u32),
            Space::Local => {
                let at = self.local_next.next_multiple_of((align as u32).max(4));
                self.local_next = at + size as u32;
                self.local_bytes = self.local_bytes.max(self.local_next);
                if self.k.checks {
                    let bounds = VariableBounds {
                        name: self.name(v.name).into(),
                        start: at,
                        len: size as u32,
                        space: MemSpace::Local,
                    };
                    self.k.bound(v.name, bounds);
                }
                Entity::Local(at)
            }
            Space::Shared => match self.k.shared.get(&v.name) {
                Some(&at) => Entity::Shared(at),
                None => {
                    return Err(format!(
                        "shared variable `{}` has no address",
                        self.name(v.name)
                    ));
                }
            },
            // Module-level places were given to variables of functions too.
            Space::Global | Space::Const => return Ok(()),
            _ => return Err(format!("a variable in .{} inside a function", v.space)),
        };
        self.declare(v.name, entity);
        Ok(())
    }

    fn inst(&mut self, i: &'m ast::Inst, f: &'m ast::PtxFunction) -> Result<(), String> {
        let mut text = i.op.text().to_owned();
        for m in &i.mods {
            text.push('.');
            text.push_str(m.text());
        }
        self.origin.line = i.line;
        self.origin.opcode = self.k.opcode(text.clone());
        if self.blocks[self.cur].term.is_some() {
            // Dead code behind a jump; it still may declare nothing, so it is dropped.
            self.cur = self.new_block();
        }
        let before = (self.cur, self.blocks[self.cur].insts.len());
        let done = match self.expand(i) {
            Ok(None) => self.guarded_inst(i, f),
            Ok(Some(expanded)) => self.guarded_inst(&expanded, f),
            Err(reason) => Err(reason),
        };
        self.guard = PredRef::True;
        match done {
            Ok(()) => Ok(()),
            Err(reason) => {
                if self.cur == before.0 {
                    self.blocks[self.cur].insts.truncate(before.1);
                }
                let term = match reason {
                    LowerError::Unsupported => LTerm::NotImplemented(text.into()),
                    LowerError::Bad(why) => LTerm::Bad(format!("{text}: {why}").into()),
                };
                if self.blocks[self.cur].term.is_some() {
                    self.cur = self.new_block();
                }
                self.terminate(term);
                Ok(())
            }
        }
    }

    fn guarded_inst(&mut self, i: &ast::Inst, f: &'m ast::PtxFunction) -> Lowered<()> {
        let guard = match &i.guard {
            Some(g) => self.pred_named(g.pred, g.negated)?,
            None => PredRef::True,
        };
        let m = ModList(&i.mods);
        // Branches use their guard themselves; other ends of blocks are branched around.
        if i.op == Op::Bra {
            return control::bra(self, i, guard);
        }
        if control::ends_block(i) && guard != PredRef::True {
            let (body, next) = (self.new_block(), self.new_block());
            self.terminate_to(
                LTerm::Branch {
                    pred: guard,
                    taken: body,
                    fall: next,
                },
                body,
            );
            let done = self.dispatch(i, &m, f);
            if self.blocks[self.cur].term.is_none() {
                self.terminate_to(LTerm::Jump(next), next);
            }
            self.cur = next;
            return match done {
                Err(LowerError::Unsupported) => {
                    let text: Arc<str> = self.k.opcodes[self.origin.opcode as usize].clone();
                    self.blocks[body].insts.clear();
                    self.blocks[body].term = Some(LTerm::NotImplemented(text));
                    Ok(())
                }
                other => other,
            };
        }
        self.guard = guard;
        self.dispatch(i, &m, f)
    }

    fn dispatch(&mut self, i: &ast::Inst, m: &ModList<'_>, f: &'m ast::PtxFunction) -> Lowered<()> {
        if matches!(i.op, Op::Ret) {
            if f.entry {
                self.terminate(LTerm::Exit);
            } else {
                self.ret(f);
            }
            return Ok(());
        }
        if i.op == Op::Multimem {
            return multimem::lower(self, i);
        }
        if let Some(done) = control::lower(self, i, m) {
            return done;
        }
        for family in [
            data::lower,
            memory::lower,
            convert::lower,
            sync::lower,
            fetch::lower,
            alu_int::lower,
            alu_float::lower,
        ] {
            if let Some(done) = family(self, i, m) {
                return done;
            }
        }
        Err(LowerError::Unsupported)
    }
}

/// The local variables of a body.
fn locals_of(body: &[Stmt], out: &mut FxHashSet<ast::Sym>) {
    for s in body {
        match s {
            Stmt::Var(v) if v.space == Space::Local => {
                out.insert(v.name);
            }
            Stmt::Block(inner) => locals_of(inner, out),
            _ => {}
        }
    }
}

/// Lowers a kernel and everything it may call.
pub(crate) fn kernel(
    module: &ast::PtxModule,
    info: &ModuleInfo,
    kernel: u32,
    isa: Isa,
    checks: bool,
) -> Result<KernelCode, String> {
    let reach = info.reachable(module, kernel);
    let (shared, shared_bytes) = info.shared_layout(&reach);
    let functions: FxHashMap<u32, u32> = reach
        .iter()
        .enumerate()
        .map(|(n, &f)| (f, n as u32))
        .collect();
    let mut by_index = vec![u32::MAX; info.functions.len()];
    for (&f, &n) in &functions {
        by_index[f as usize] = n;
    }
    let mut k = KernelLower {
        module,
        info,
        isa,
        checks,
        shared,
        opcodes: Vec::new(),
        opcode_index: FxHashMap::default(),
        functions,
        communicates: false,
        variables: Vec::new(),
        variable_index: FxHashMap::default(),
        reserves_shared: false,
    };
    if checks {
        for (name, start, len) in info.shared_extents(&reach, &k.shared) {
            let bounds = VariableBounds {
                name: module.symbols.name(name).into(),
                start,
                len,
                space: MemSpace::Shared,
            };
            k.bound(name, bounds);
        }
    }
    let mut codes = Vec::new();
    for &f in &reach {
        let tree = info.function(module, f);
        let mut l = Lower::new(&mut k);
        l.function(tree)?;
        let name = module.symbols.name(tree.name);
        propagate::constants(&mut l);
        if checks {
            wgmma_registers::watch(&mut l);
        } else {
            propagate::bases(&mut l);
        }
        codes.push(assign(l, name.into())?);
    }
    Ok(KernelCode {
        name: module
            .symbols
            .name(info.function(module, kernel).name)
            .into(),
        functions: codes,
        by_index,
        opcodes: k.opcodes,
        files: info.files.clone(),
        shared_bytes,
        communicates: k.communicates,
        variables: k.variables,
        reserves_shared: k.reserves_shared,
        registers_at_entry: register_pool::at_entry(info.function(module, kernel)),
    })
}
