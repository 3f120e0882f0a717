//! Operand checking of a whole module: what a driver refuses when it loads one whose names
//! [`crate::check()`] has found sound.
//!
//! Finds registers and constants of the wrong size or type, forms that an instruction or a target
//! does not have, variables of another state space, calls that do not fit the function,
//! declarations that differ, and functions and variables that the module uses and does not have. An
//! instruction or a form that is not described is not refused.
//!
//! Elsewhere: names and numbers of operands ([`crate::check`]), the rules of operands
//! ([`crate::operand_types`]), of forms ([`crate::form_rules`]), of declarations
//! ([`crate::declaration_rules`]).

use rustc_hash::{FxHashMap, FxHashSet};

use crate::ast::{
    AddrBase, Init, Inst, Item, Linkage, Operand, PtxFunction, PtxModule, Stmt, Sym, Var,
};
use crate::bulk_rules::refuse_bulk;
use crate::check::{Diagnostic, MAX_DIAGNOSTICS, is_special_register, split_index};
use crate::declaration_rules::{refuse_constants, refuse_declaration};
use crate::form_rules::{PtxTarget, refuse_form, special_bits, takes_space};
use crate::image_rules::{ImageRules, image_rules};
use crate::operand_types::{
    OperandRule, bits, least_capability, refuse_modifiers, rules, vector_length,
};
use crate::words::{Mod, Op, ScalarType as Ty, Space, Word};

/// Functions that every driver has.
const BUILTIN: [&str; 4] = ["vprintf", "malloc", "free", "__assertfail"];

/// What a driver refuses in `module`, in order; the first [`MAX_DIAGNOSTICS`] of it.
#[must_use]
pub fn check_operands(module: &PtxModule) -> Vec<Diagnostic> {
    let mut checker = OperandChecker {
        module,
        target: PtxTarget::of(module),
        functions: FxHashMap::default(),
        scopes: Vec::new(),
        used: Vec::new(),
        variables: FxHashMap::default(),
        found: Vec::new(),
    };
    for item in &module.items {
        match item {
            Item::Function(f) => checker.declare_function(f),
            Item::Var(var) => checker.declare_variable(var),
            Item::Alias { name, target } => {
                if let Some(&f) = checker.functions.get(target) {
                    checker.functions.insert(*name, f);
                }
            }
            _ => {}
        }
    }
    for item in &module.items {
        match item {
            Item::Function(f) => checker.function(f),
            Item::Var(var) => checker.initial_names(var),
            _ => {}
        }
    }
    checker.unresolved();
    if let Some(message) = refuse_constants(module) {
        checker.report(0, message);
    }
    checker.found
}

/// What a name stands for in a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperandEntity {
    /// A register: its type, and the length of a vector.
    Register(Ty, u32),
    /// A parameter or variable of that many bytes, in that state space.
    Variable(u64, Space),
    /// A label, a list of targets, a prototype.
    Other,
}

#[derive(Default)]
struct OperandScope {
    names: FxHashMap<Sym, OperandEntity>,
    /// `%r<10>`.
    ranges: FxHashMap<Sym, (u32, Ty, u32)>,
}

struct OperandChecker<'a> {
    module: &'a PtxModule,
    target: PtxTarget,
    /// Definitions before declarations.
    functions: FxHashMap<Sym, &'a PtxFunction>,
    scopes: Vec<OperandScope>,
    /// Names that are no locals, with the line that uses each.
    used: Vec<(Sym, u32)>,
    /// Types and state spaces of the module's variables.
    variables: FxHashMap<Sym, (Ty, Space)>,
    found: Vec<Diagnostic>,
}

/// Bytes of a parameter; `None` for an array without a size.
fn parameter_bytes(var: &Var) -> Option<u64> {
    let element = u64::from(bits(var.ty)?.div_ceil(8)) * u64::from(var.vector.max(1));
    var.dims
        .iter()
        .try_fold(element, |n, d| n.checked_mul((*d)?))
}

/// The elements of a vector, or a single one.
fn elements(o: &Operand) -> &[Operand] {
    match o {
        Operand::Vector(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    }
}

impl<'a> OperandChecker<'a> {
    fn report(&mut self, line: u32, message: String) {
        if self.found.len() < MAX_DIAGNOSTICS {
            self.found.push(Diagnostic { line, message });
        }
    }

    fn name(&self, name: Sym) -> &'a str {
        self.module.symbols.name(name)
    }

    fn declare_function(&mut self, f: &'a PtxFunction) {
        let Some(&before) = self.functions.get(&f.name) else {
            self.functions.insert(f.name, f);
            return;
        };
        let sizes = |vars: &[Var]| vars.iter().map(parameter_bytes).collect::<Vec<_>>();
        if sizes(&before.params) != sizes(&f.params) || sizes(&before.returns) != sizes(&f.returns)
        {
            let line = f.instructions().next().map_or(0, |(_, i)| i.line);
            let message = format!("inconsistent prototypes of `{}`", self.name(f.name));
            self.report(line, message);
        }
        if f.body.is_some() {
            self.functions.insert(f.name, f);
        }
    }

    fn declare_variable(&mut self, var: &Var) {
        let ty = match var.space {
            // The old name of `.global .texref`.
            Space::Tex => Ty::Texref,
            _ => var.ty,
        };
        self.variables.insert(var.name, (ty, var.space));
        self.declaration(var, 0);
        let is_independent = self
            .module
            .target
            .iter()
            .any(|t| t == "texmode_independent");
        if ty == Ty::Samplerref && !is_independent {
            let name = self.name(var.name);
            let message =
                format!("`{name}` is .samplerref, which needs .target texmode_independent");
            self.report(0, message);
        }
    }

    fn declaration(&mut self, var: &Var, line: u32) {
        if let Some(message) = refuse_declaration(var, self.name(var.name)) {
            self.report(line, message);
        }
    }

    fn initial_names(&mut self, var: &Var) {
        let mut lists: Vec<&Init> = var.init.iter().collect();
        while let Some(init) = lists.pop() {
            match init {
                Init::Imm(_) => {}
                Init::Address { name, .. } => self.used.push((*name, 0)),
                Init::List(list) => lists.extend(list),
            }
        }
    }

    /// Functions and variables that are used and that no directive defines.
    fn unresolved(&mut self) {
        let mut open = FxHashSet::default();
        for item in &self.module.items {
            if let Item::Var(var) = item {
                if var.linkage == Linkage::Extern
                    && var.dims.contains(&None)
                    && matches!(var.space, Space::Global | Space::Const)
                {
                    open.insert(var.name);
                } else {
                    open.remove(&var.name);
                }
            }
        }
        for (&name, f) in &self.functions {
            if f.entry && f.body.is_none() {
                self.used.push((name, 0));
            }
        }
        let mut reported = FxHashSet::default();
        for (name, line) in std::mem::take(&mut self.used) {
            let text = self.name(name);
            let bodiless = self
                .functions
                .get(&name)
                .is_some_and(|f| f.body.is_none() && !BUILTIN.contains(&text));
            let what = match (bodiless, open.contains(&name)) {
                (true, _) => "function",
                (_, true) => "variable",
                _ => continue,
            };
            if reported.insert(name) {
                self.report(line, format!("unresolved extern {what} `{text}`"));
            }
        }
    }

    fn function(&mut self, f: &'a PtxFunction) {
        let Some(body) = &f.body else { return };
        let mut scope = OperandScope::default();
        for var in f.returns.iter().chain(&f.params) {
            let entity = match var.space {
                Space::Reg => OperandEntity::Register(var.ty, var.vector.max(1)),
                _ => OperandEntity::Variable(parameter_bytes(var).unwrap_or(0), var.space),
            };
            scope.names.insert(var.name, entity);
        }
        self.block(scope, body);
    }

    fn block(&mut self, mut scope: OperandScope, body: &'a [Stmt]) {
        for stmt in body {
            if let Stmt::Label(name)
            | Stmt::CallPrototype { name, .. }
            | Stmt::BranchTargets { name, .. }
            | Stmt::CallTargets { name, .. } = stmt
            {
                scope.names.insert(*name, OperandEntity::Other);
            }
        }
        self.scopes.push(scope);
        for stmt in body {
            match stmt {
                Stmt::Reg { vector, ty, names } => {
                    let Some(scope) = self.scopes.last_mut() else {
                        continue;
                    };
                    for &(name, count) in names {
                        match count {
                            Some(n) => {
                                scope.ranges.insert(name, (n, *ty, *vector));
                            }
                            None => {
                                let entity = OperandEntity::Register(*ty, *vector);
                                scope.names.insert(name, entity);
                            }
                        }
                    }
                }
                Stmt::Var(var) => {
                    self.initial_names(var);
                    self.declaration(var, 0);
                    let entity =
                        OperandEntity::Variable(parameter_bytes(var).unwrap_or(0), var.space);
                    if let Some(scope) = self.scopes.last_mut() {
                        scope.names.insert(var.name, entity);
                    }
                }
                Stmt::Inst(inst) => self.inst(inst),
                Stmt::Block(inner) => self.block(OperandScope::default(), inner),
                Stmt::CallTargets { targets, .. } => {
                    self.used.extend(targets.iter().map(|&t| (t, 0)));
                }
                _ => {}
            }
        }
        self.scopes.pop();
    }

    fn lookup(&mut self, name: Sym) -> Option<OperandEntity> {
        for scope in self.scopes.iter().rev() {
            if let Some(entity) = scope.names.get(&name) {
                return Some(*entity);
            }
        }
        let (prefix, index) = split_index(self.name(name))?;
        let prefix = self.module.symbols.get(prefix)?;
        let (scope, (_, ty, vector)) = self.scopes.iter_mut().rev().find_map(|s| {
            let range = *s.ranges.get(&prefix)?;
            (index < range.0).then_some((s, range))
        })?;
        let entity = OperandEntity::Register(ty, vector);
        scope.names.insert(name, entity);
        Some(entity)
    }

    fn inst(&mut self, inst: &Inst) {
        if let Some(guard) = inst.guard
            && let Some(OperandEntity::Register(ty, _)) = self.lookup(guard.pred)
            && ty != Ty::Pred
        {
            let message = format!(
                "predicate expected, but `{}` is .{ty}",
                self.name(guard.pred)
            );
            self.report(inst.line, message);
        }
        let least = least_capability(inst);
        if self.target.capability.is_some_and(|have| have < least) {
            let message = format!("`{}` requires .target sm_{least} or higher", inst.op);
            self.report(inst.line, message);
            return;
        }
        if let Some(message) = refuse_modifiers(inst)
            .or_else(|| refuse_form(inst, self.target))
            .or_else(|| refuse_bulk(inst, self.target))
        {
            self.report(inst.line, message);
            return;
        }
        if inst.op == Op::Call {
            self.call(inst);
            return;
        }
        if let Some(rules) = image_rules(inst) {
            let problem = match rules {
                Ok(rules) => self.image(inst, &rules).map(|problem| {
                    format!(
                        "arguments mismatch for instruction `{}`: {problem}",
                        inst.op
                    )
                }),
                Err(message) => Some(message),
            };
            if let Some(message) = problem {
                self.report(inst.line, message);
            }
            return;
        }
        let rules = rules(inst);
        let vector = match inst.op {
            Op::Ld | Op::Ldu | Op::St => vector_length(inst),
            _ => 1,
        };
        let first_is_result = !matches!(inst.op, Op::St | Op::Red | Op::Bra | Op::Brx);
        for (n, operand) in inst.operands.iter().enumerate() {
            let rule = rules.get(n).copied().unwrap_or(OperandRule::Any);
            let problem = match operand {
                Operand::Vector(items) if rule != OperandRule::Any && inst.op != Op::Mov => {
                    self.vector(inst, items, vector, rule)
                }
                _ if n == 0 && first_is_result && matches!(operand, Operand::Imm(_)) => {
                    (rules.len() > 1).then(|| "a register is needed for the result".to_owned())
                }
                Operand::Name(name)
                    if n == 0 && rules.len() > 1 && is_special_register(self.name(*name)) =>
                {
                    let name = self.name(*name);
                    Some(format!("the special register `{name}` can only be read"))
                }
                _ => self.operand(inst, operand, rule, vector),
            };
            if let Some(problem) = problem {
                let message = format!(
                    "arguments mismatch for instruction `{}`: {problem}",
                    inst.op
                );
                self.report(inst.line, message);
                return;
            }
        }
    }

    /// What is wrong with the operands of an access to an image, if anything is.
    fn image(&mut self, inst: &Inst, rules: &ImageRules) -> Option<String> {
        let operands = &inst.operands;
        let (Some(image), Some(data)) = (operands.get(rules.image), operands.get(rules.data))
        else {
            return Some("an operand is missing".to_owned());
        };
        if operands.len() < 2 + rules.further {
            return Some("an operand is missing".to_owned());
        }
        let Operand::Bracket(items) = image else {
            return Some("an image and coordinates in brackets are needed".to_owned());
        };
        let data = match data {
            Operand::Pair(data, _) => data,
            data => data,
        };
        if let Operand::Vector(items) = data {
            if items.len() != rules.data_length {
                let length = rules.data_length;
                return Some(format!("a vector of {} of {length} elements", items.len()));
            }
            let problem = items
                .iter()
                .find_map(|item| self.operand(inst, item, rules.data_rule, 1));
            if problem.is_some() {
                return problem;
            }
        } else if let Some(problem) = self.operand(inst, data, rules.data_rule, rules.data_length) {
            return Some(problem);
        }
        if let Some(Operand::Name(name)) = items.first()
            && let Some(problem) = self.image_name(*name, rules.reference)
        {
            return Some(problem);
        }
        for further in operands[2..].iter().take(rules.further) {
            let level = OperandRule::Exact(Ty::F32);
            let is_register = |o: &&Operand| !matches!(o, Operand::Imm(_));
            let mut items = elements(further).iter().filter(is_register);
            if let Some(problem) = items.find_map(|item| self.operand(inst, item, level, 1)) {
                return Some(problem);
            }
        }
        let coordinates = elements(items.last()?);
        let count = coordinates.len();
        if count < rules.coordinates || count == 3 || count > 4 {
            return Some(format!("{count} coordinates do not fit the geometry"));
        }
        coordinates.iter().enumerate().find_map(|(n, item)| {
            let is_layer = n == 0 && rules.has_layer;
            let rule = match is_layer {
                true => rules.layer_rule,
                false => rules.coordinate_rule,
            };
            match item {
                Operand::Imm(_) => None,
                item => self.operand(inst, item, rule, 1),
            }
        })
    }

    /// What is wrong with the name of an image, if anything is.
    fn image_name(&mut self, name: Sym, reference: Ty) -> Option<String> {
        let text = self.name(name);
        match self.lookup(name) {
            Some(OperandEntity::Register(ty, _)) => {
                let fits = bits(ty) == Some(64) && ty != Ty::F64;
                (!fits).then(|| format!("`{text}` of .{ty}; .{reference} or .u64 is expected"))
            }
            Some(_) => None,
            None => {
                let ty = self.variables.get(&name).map(|v| v.0);
                ty.filter(|&ty| ty != reference)
                    .map(|ty| format!("`{text}` is .{ty}; .{reference} or .u64 is expected"))
            }
        }
    }

    fn vector(
        &mut self,
        inst: &Inst,
        items: &[Operand],
        length: usize,
        rule: OperandRule,
    ) -> Option<String> {
        if items.len() != length {
            return Some(format!("a vector of {} of {length} elements", items.len()));
        }
        // Of vectors, integers and bits go with floating-point types.
        let rule = match rule {
            OperandRule::Wide(Ty::F32) if length > 1 => OperandRule::Wide(Ty::B32),
            OperandRule::Wide(Ty::F64) if length > 1 => OperandRule::Wide(Ty::B64),
            rule => rule,
        };
        items
            .iter()
            .filter(|item| !matches!(item, Operand::Imm(_)))
            .find_map(|item| self.operand(inst, item, rule, 1))
    }

    /// What is wrong with an operand, if anything is.
    fn operand(
        &mut self,
        inst: &Inst,
        operand: &Operand,
        rule: OperandRule,
        vector: usize,
    ) -> Option<String> {
        match operand {
            Operand::Name(name) => self.named(inst, *name, rule, vector),
            Operand::Offset(name, _) | Operand::Index(name, _) => {
                match self.lookup(*name) {
                    None => self.used.push((*name, inst.line)),
                    Some(OperandEntity::Register(ty, _)) if !rule.takes_register(ty) => {
                        return Some(format!("`{}` is .{ty}", self.name(*name)));
                    }
                    Some(_) => {}
                }
                None
            }
            Operand::Member(name, _) => match self.lookup(*name) {
                Some(OperandEntity::Register(ty, _)) if !rule.takes_register(ty) => {
                    Some(format!("`{}` has elements of .{ty}", self.name(*name)))
                }
                _ => None,
            },
            Operand::Not(name) => match self.lookup(*name) {
                Some(OperandEntity::Register(ty, _)) if ty != Ty::Pred => {
                    Some(format!("`{}` is .{ty} and no predicate", self.name(*name)))
                }
                _ => None,
            },
            Operand::Imm(imm) => (!rule.takes_constant(*imm))
                .then(|| "a constant of another type stands there".to_owned()),
            Operand::Pair(first, second) => self
                .operand(inst, first, rule, 1)
                .or_else(|| self.operand(inst, second, OperandRule::Pred, 1)),
            Operand::Address {
                base: AddrBase::Name(name),
                ..
            } => self.address(inst, *name),
            Operand::Bracket(items) | Operand::List(items) => items
                .iter()
                .find_map(|o| self.operand(inst, o, OperandRule::Any, 1)),
            Operand::Vector(items) => {
                let any = OperandRule::Any;
                items.iter().find_map(|o| self.operand(inst, o, any, 1))
            }
            _ => None,
        }
    }

    fn named(
        &mut self,
        inst: &Inst,
        name: Sym,
        rule: OperandRule,
        vector: usize,
    ) -> Option<String> {
        let text = self.name(name);
        match self.lookup(name) {
            Some(OperandEntity::Register(ty, 1)) => {
                (!rule.takes_register(ty)).then(|| format!("`{text}` is .{ty}"))
            }
            Some(OperandEntity::Register(ty, n)) => {
                let fits = n as usize == vector && rule.takes_register(ty);
                let checked = matches!(inst.op, Op::Ld | Op::St) && rule != OperandRule::Any;
                (checked && !fits).then(|| format!("`{text}` is a vector of {n} .{ty}"))
            }
            Some(_) => None,
            None if is_special_register(text) => {
                let sizes = special_bits(text);
                match (inst.op, rule) {
                    // The one that is a predicate.
                    (Op::Mov, OperandRule::Exact(ty)) if text == "%is_explicit_cluster" => {
                        (ty != Ty::Pred).then(|| format!("the special register `{text}` as .{ty}"))
                    }
                    (Op::Mov, OperandRule::Exact(ty)) => {
                        let fits = bits(ty).is_some_and(|n| sizes.contains(&n))
                            && !matches!(ty, Ty::F16 | Ty::F16x2 | Ty::F32 | Ty::F64 | Ty::Pred);
                        (!fits).then(|| format!("the special register `{text}` as .{ty}"))
                    }
                    (Op::Mov | Op::Cvt, _) | (_, OperandRule::Any) => None,
                    _ => Some(format!("the special register `{text}` can only be moved")),
                }
            }
            None => {
                self.used.push((name, inst.line));
                None
            }
        }
    }

    fn address(&mut self, inst: &Inst, name: Sym) -> Option<String> {
        let entity = self.lookup(name);
        let text = self.name(name);
        let space = match entity {
            Some(OperandEntity::Variable(_, space)) => Some(space),
            Some(_) => None,
            None => self.variables.get(&name).map(|v| v.1),
        };
        if let Some(space) = space.filter(|&space| !takes_space(inst, space)) {
            return Some(format!("`{text}` in state space .{space} as an address"));
        }
        let ty = match entity {
            Some(OperandEntity::Register(ty, _)) => ty,
            Some(_) => return None,
            None => {
                self.used.push((name, inst.line));
                return None;
            }
        };
        if matches!(ty, Ty::Pred | Ty::F16 | Ty::F16x2 | Ty::F32 | Ty::F64) {
            return Some(format!("`{text}` of .{ty} as an address"));
        }
        let windows = [
            Word::Shared,
            Word::SharedCta,
            Word::SharedCluster,
            Word::Local,
            Word::Const,
            Word::Param,
            Word::ParamEntry,
            Word::ParamFunc,
        ];
        let flat = !inst
            .mods
            .iter()
            .any(|m| matches!(m, Mod::Word(w) if windows.contains(w)));
        let accesses = matches!(inst.op, Op::Ld | Op::St | Op::Atom | Op::Red);
        (accesses && flat && self.module.address_size == 64 && bits(ty).is_some_and(|n| n < 64))
            .then(|| format!("`{text}` of .{ty} as an address of 64 bits"))
    }

    /// The bytes of an argument or result, if it is a register or variable.
    fn argument_bytes(&mut self, operand: &Operand) -> Option<u64> {
        match operand {
            Operand::Name(name) => match self.lookup(*name)? {
                OperandEntity::Register(ty, n) => {
                    Some(u64::from(bits(ty)?.div_ceil(8)) * u64::from(n))
                }
                OperandEntity::Variable(bytes, _) => Some(bytes),
                OperandEntity::Other => None,
            },
            _ => None,
        }
    }

    fn call(&mut self, inst: &Inst) {
        let mut results: &[Operand] = &[];
        let mut rest = inst.operands.as_slice();
        if let [Operand::List(list), tail @ ..] = rest {
            (results, rest) = (list, tail);
        }
        let [Operand::Name(target), tail @ ..] = rest else {
            return;
        };
        let arguments: &[Operand] = match tail.first() {
            Some(Operand::List(list)) => list,
            _ => &[],
        };
        if self.lookup(*target).is_some() {
            return;
        }
        self.used.push((*target, inst.line));
        let Some(&f) = self.functions.get(target) else {
            return;
        };
        let text = self.name(*target);
        if f.entry {
            let message = format!("illegal call target: `{text}` is a kernel");
            self.report(inst.line, message);
            return;
        }
        for (list, formal, what) in [
            (arguments, &f.params, "parameters"),
            (results, &f.returns, "results"),
        ] {
            if list.len() != formal.len() {
                let message = format!(
                    "call of `{text}` with {} {what}, which has {}",
                    list.len(),
                    formal.len()
                );
                self.report(inst.line, message);
                return;
            }
            for (operand, formal) in list.iter().zip(formal) {
                let (have, want) = (self.argument_bytes(operand), parameter_bytes(formal));
                if let (Some(have), Some(want)) = (have, want)
                    && have != want
                {
                    let message = format!(
                        "type of argument does not match formal parameter `{}` of `{text}`: \
                         {have} bytes of {want}",
                        self.name(formal.name)
                    );
                    self.report(inst.line, message);
                    return;
                }
            }
        }
    }
}
