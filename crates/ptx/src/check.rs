//! Name checking of a module, and of instructions for missing operands.
//!
//! Finds registers, labels, functions and variables that are used and not declared, and names
//! declared twice in one scope. As in ptxas: scopes nest as braces do and a function's parameters
//! are in its body's; a label is known throughout its block and the blocks within, everything else
//! behind its declaration only.
//!
//! Elsewhere: the grammar ([`crate::parse()`]); types and valid combinations of operands,
//! which the compiler of the module checks.

use crate::ast::{AddrBase, Init, Inst, Item, Linkage, Operand, PtxFunction, PtxModule, Stmt, Sym};
use crate::parse::is_special_vector;
use crate::words::Op;
use rustc_hash::FxHashMap;
use std::fmt;

/// Something wrong in a module that is grammatical.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// 1-based line of the instruction at fault; for a declaration, of the next instruction after
    /// it; 0 if there is none or the module was built.
    pub line: u32,
    /// What is wrong, with the names concerned.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line != 0 {
            write!(f, "line {}; ", self.line)?;
        }
        write!(f, "error   : {}", self.message)
    }
}

/// The limit of diagnostics.
pub const MAX_DIAGNOSTICS: usize = 64;

/// What is wrong with the names of `module`, each name once in a function, in order; the first
/// [`MAX_DIAGNOSTICS`] of it.
#[must_use]
pub fn check(module: &PtxModule) -> Vec<Diagnostic> {
    let mut checker = Checker {
        module,
        globals: FxHashMap::default(),
        scopes: Vec::new(),
        found: Vec::new(),
    };
    checker.module();
    checker.found
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameKind {
    Register,
    Variable,
    Label,
    Function,
    Prototype,
    Targets,
    /// Reported missing; not to be reported again.
    Missing,
}

impl NameKind {
    fn text(self) -> &'static str {
        match self {
            NameKind::Register => "a register",
            NameKind::Variable => "a variable",
            NameKind::Label => "a label",
            NameKind::Function => "a function",
            NameKind::Prototype => "a call prototype",
            NameKind::Targets => "a list of targets",
            NameKind::Missing => "not declared",
        }
    }
}

#[derive(Default)]
struct Scope {
    names: FxHashMap<Sym, NameKind>,
    /// For `%r`, the name with the least number among those declared alone, such as `%r3`.
    numbered: FxHashMap<Sym, (u32, Sym)>,
    /// `%r<10>` as (`%r`, 10).
    ranges: FxHashMap<Sym, u32>,
}

/// Where a diagnostic points.
#[derive(Clone, Copy)]
enum DiagnosticPosition<'a> {
    Line(u32),
    /// The first instruction among these, looked up only if there is something to report.
    Before(&'a [Stmt]),
}

struct Checker<'a> {
    module: &'a PtxModule,
    /// Kind, and whether defined rather than declared.
    globals: FxHashMap<Sym, (NameKind, bool)>,
    scopes: Vec<Scope>,
    found: Vec<Diagnostic>,
}

impl<'a> Checker<'a> {
    fn module(&mut self) {
        for item in &self.module.items {
            match item {
                Item::Var(var) => {
                    if let Some(init) = &var.init {
                        self.init(init, DiagnosticPosition::Line(0));
                    }
                    let defined = !matches!(
                        var.linkage,
                        Linkage::Extern | Linkage::Weak | Linkage::Common
                    );
                    self.declare_global(
                        var.name,
                        NameKind::Variable,
                        defined,
                        DiagnosticPosition::Line(0),
                    );
                }
                Item::Function(function) => {
                    let line = function
                        .instructions()
                        .next()
                        .map_or(0, |(_, inst)| inst.line);
                    self.declare_global(
                        function.name,
                        NameKind::Function,
                        function.body.is_some(),
                        DiagnosticPosition::Line(line),
                    );
                    self.function(function);
                }
                Item::Alias { name, target } => {
                    if !self.globals.contains_key(target) {
                        let message = format!(
                            "undeclared function `{}` as the target of an alias",
                            self.name(*target)
                        );
                        self.report(DiagnosticPosition::Line(0), message);
                    }
                    // The alias itself is declared before, as a function.
                    self.declare_global(
                        *name,
                        NameKind::Function,
                        true,
                        DiagnosticPosition::Line(0),
                    );
                }
                Item::File { .. } | Item::Section { .. } | Item::Pragma(_) => {}
            }
        }
    }

    fn declare_global(
        &mut self,
        name: Sym,
        kind: NameKind,
        defined: bool,
        at: DiagnosticPosition<'a>,
    ) {
        let message = match self.globals.get(&name) {
            Some(&(before, true)) if defined && before == kind => {
                format!("`{}` is defined twice", self.name(name))
            }
            Some(&(before, _)) if before != kind => {
                format!(
                    "`{}` is declared as {} and as {}",
                    self.name(name),
                    before.text(),
                    kind.text()
                )
            }
            before => {
                let defined = defined || before.is_some_and(|b| b.1);
                self.globals.insert(name, (kind, defined));
                return;
            }
        };
        self.report(at, message);
    }

    fn function(&mut self, function: &'a PtxFunction) {
        let Some(body) = &function.body else { return };
        let mut scope = Scope::default();
        for var in function.returns.iter().chain(&function.params) {
            let kind = if var.space == crate::words::Space::Reg {
                NameKind::Register
            } else {
                NameKind::Variable
            };
            scope.names.insert(var.name, kind);
        }
        self.block(scope, body);
    }

    /// `scope`: what the block has from its function's header.
    fn block(&mut self, scope: Scope, body: &'a [Stmt]) {
        self.scopes.push(scope);
        // Labels may be used before they stand; everything else after.
        for (i, stmt) in body.iter().enumerate() {
            match stmt {
                Stmt::Label(name) => self.declare(
                    *name,
                    NameKind::Label,
                    DiagnosticPosition::Before(&body[i..]),
                ),
                Stmt::CallPrototype { name, .. } => self.declare(
                    *name,
                    NameKind::Prototype,
                    DiagnosticPosition::Before(&body[i..]),
                ),
                Stmt::BranchTargets { name, .. } | Stmt::CallTargets { name, .. } => {
                    self.declare(
                        *name,
                        NameKind::Targets,
                        DiagnosticPosition::Before(&body[i..]),
                    );
                }
                _ => {}
            }
        }
        for (i, stmt) in body.iter().enumerate() {
            match stmt {
                Stmt::Inst(inst) => self.inst(inst),
                Stmt::Reg { names, .. } => {
                    for &(name, count) in names {
                        match count {
                            None => self.declare(
                                name,
                                NameKind::Register,
                                DiagnosticPosition::Before(&body[i..]),
                            ),
                            Some(count) => self.declare_range(
                                name,
                                count,
                                DiagnosticPosition::Before(&body[i..]),
                            ),
                        }
                    }
                }
                Stmt::Var(var) => {
                    self.declare(
                        var.name,
                        NameKind::Variable,
                        DiagnosticPosition::Before(&body[i..]),
                    );
                    if let Some(init) = &var.init {
                        self.init(init, DiagnosticPosition::Before(&body[i..]));
                    }
                }
                Stmt::Block(body) => self.block(Scope::default(), body),
                Stmt::BranchTargets { targets, .. } => {
                    for &target in targets {
                        self.label(target, DiagnosticPosition::Before(&body[i..]));
                    }
                }
                Stmt::CallTargets { targets, .. } => {
                    for &target in targets {
                        self.callee(target, DiagnosticPosition::Before(&body[i..]));
                    }
                }
                Stmt::Label(_) | Stmt::Loc(_) | Stmt::Pragma(_) | Stmt::CallPrototype { .. } => {}
            }
        }
        self.scopes.pop();
    }

    fn declare(&mut self, name: Sym, kind: NameKind, at: DiagnosticPosition<'a>) {
        let text = self.name(name);
        let prefix = split_index(text).and_then(|(p, i)| Some((self.module.symbols.get(p)?, i)));
        let Some(scope) = self.scopes.last_mut() else {
            return;
        };
        if let Some((prefix, index)) = prefix {
            let least = scope.numbered.entry(prefix).or_insert((index, name));
            *least = (*least).min((index, name));
        }
        let in_range = prefix.is_some_and(|(p, i)| scope.ranges.get(&p).is_some_and(|&n| i < n));
        let before = match scope.names.insert(name, kind) {
            Some(NameKind::Missing) => return,
            Some(before) => before,
            None if in_range => NameKind::Register,
            None => return,
        };
        let also = if before == kind {
            String::new()
        } else {
            format!(" and as {}", kind.text())
        };
        let message = format!(
            "`{text}` is declared twice in one block, as {}{also}",
            before.text()
        );
        self.report(at, message);
    }

    fn declare_range(&mut self, name: Sym, count: u32, at: DiagnosticPosition<'a>) {
        let text = self.name(name);
        let Some(scope) = self.scopes.last_mut() else {
            return;
        };
        let alone = scope
            .numbered
            .get(&name)
            .filter(|(least, _)| *least < count)
            .copied();
        let twice = match (scope.ranges.insert(name, count), alone) {
            (Some(_), _) => Some(format!("`{text}<...>`")),
            (None, Some((_, sym))) => {
                Some(format!("`{}`, one of `{text}<{count}>`,", self.name(sym)))
            }
            (None, None) => None,
        };
        if let Some(what) = twice {
            self.report(
                at,
                format!("{what} is declared twice in one block, as a register"),
            );
        }
    }

    fn init(&mut self, init: &Init, at: DiagnosticPosition<'a>) {
        match init {
            Init::Imm(_) => {}
            Init::Address { name, .. } => {
                if self
                    .globals
                    .get(name)
                    .is_none_or(|g| g.0 == NameKind::Missing)
                    && self.local(*name).is_none()
                {
                    let message =
                        format!("undeclared name `{}` in an initialiser", self.name(*name));
                    self.report(at, message);
                }
            }
            Init::List(list) => list.iter().for_each(|init| self.init(init, at)),
        }
    }

    fn inst(&mut self, inst: &Inst) {
        if let Some(guard) = inst.guard {
            self.value(guard.pred, DiagnosticPosition::Line(inst.line));
        }
        let (least, most) = operand_count(inst.op);
        let count = inst.operands.len();
        if !(least..=most).contains(&count) {
            let takes = match (least, most) {
                (0, 0) => "no operands".to_owned(),
                (1, 1) => "1 operand".to_owned(),
                _ if least == most => format!("{least} operands"),
                _ => format!("{least} to {most} operands"),
            };
            self.report(
                DiagnosticPosition::Line(inst.line),
                format!("`{}` takes {takes}, here are {count}", inst.op),
            );
        }
        match inst.op {
            Op::Bra | Op::Brx => {
                let last = inst.operands.len().saturating_sub(1);
                for (i, operand) in inst.operands.iter().enumerate() {
                    match operand {
                        Operand::Name(target) if i == last => {
                            self.label(*target, DiagnosticPosition::Line(inst.line))
                        }
                        other => self.operand(other, DiagnosticPosition::Line(inst.line)),
                    }
                }
            }
            Op::Call => {
                let callee = inst
                    .operands
                    .iter()
                    .position(|o| !matches!(o, Operand::List(_)));
                for (i, operand) in inst.operands.iter().enumerate() {
                    match operand {
                        Operand::Name(name) if Some(i) == callee => {
                            self.callee(*name, DiagnosticPosition::Line(inst.line))
                        }
                        Operand::Name(name) => {
                            self.prototype(*name, DiagnosticPosition::Line(inst.line))
                        }
                        other => self.operand(other, DiagnosticPosition::Line(inst.line)),
                    }
                }
            }
            _ => {
                for operand in &inst.operands {
                    self.operand(operand, DiagnosticPosition::Line(inst.line));
                }
            }
        }
    }

    fn operand(&mut self, operand: &Operand, at: DiagnosticPosition<'a>) {
        match operand {
            Operand::Name(name)
            | Operand::Not(name)
            | Operand::Offset(name, _)
            | Operand::Index(name, _)
            | Operand::Member(name, _)
            | Operand::Select(name, _)
            | Operand::Address {
                base: AddrBase::Name(name),
                ..
            } => self.value(*name, at),
            Operand::Imm(_)
            | Operand::Address {
                base: AddrBase::Imm(_),
                ..
            } => {}
            Operand::Bracket(items) | Operand::Vector(items) | Operand::List(items) => {
                for item in items {
                    self.operand(item, at);
                }
            }
            Operand::Negated(inner) => self.operand(inner, at),
            Operand::Pair(first, second) => {
                self.operand(first, at);
                self.operand(second, at);
            }
        }
    }

    /// The kind of `name` in the scopes of this function.
    fn local(&mut self, name: Sym) -> Option<NameKind> {
        if let Some(kind) = self
            .scopes
            .iter()
            .rev()
            .find_map(|scope| scope.names.get(&name))
        {
            return Some(*kind);
        }
        let (prefix, index) = split_index(self.module.symbols.name(name))?;
        let prefix = self.module.symbols.get(prefix)?;
        let scope = self
            .scopes
            .iter_mut()
            .rev()
            .find(|s| s.ranges.get(&prefix).is_some_and(|&n| index < n))?;
        // Found once, it is found at once.
        scope.names.insert(name, NameKind::Register);
        Some(NameKind::Register)
    }

    /// A register, variable, label or function that is used by value or address.
    fn value(&mut self, name: Sym, at: DiagnosticPosition<'a>) {
        if self.local(name).is_some() || self.globals.contains_key(&name) {
            return;
        }
        let text = self.name(name);
        if text == "_" || is_special_register(text) {
            return;
        }
        let hint = match split_index(text) {
            Some((prefix, _)) => {
                match self.module.symbols.get(prefix).and_then(|p| self.range(p)) {
                    Some(0) => format!(": `{prefix}<0>` declares none"),
                    Some(n) => format!(": `{prefix}<{n}>` declares up to `{prefix}{}`", n - 1),
                    None => String::new(),
                }
            }
            None => String::new(),
        };
        let kind = if text.starts_with('%') {
            "register"
        } else {
            "name"
        };
        self.missing(name, at, format!("undeclared {kind} `{text}`{hint}"));
    }

    fn range(&self, prefix: Sym) -> Option<u32> {
        self.scopes
            .iter()
            .rev()
            .find_map(|scope| scope.ranges.get(&prefix))
            .copied()
    }

    fn label(&mut self, name: Sym, at: DiagnosticPosition<'a>) {
        match self.local(name) {
            Some(NameKind::Label | NameKind::Targets | NameKind::Missing) => {}
            Some(kind) => {
                let message = format!(
                    "a branch needs a label, but `{}` is {}",
                    self.name(name),
                    kind.text()
                );
                self.report(at, message);
            }
            None => {
                let message = format!("undeclared label `{}`", self.name(name));
                self.missing(name, at, message);
            }
        }
    }

    fn callee(&mut self, name: Sym, at: DiagnosticPosition<'a>) {
        match self.local(name) {
            Some(NameKind::Register | NameKind::Missing) => {}
            Some(kind) => {
                let message = format!(
                    "a call needs a function, but `{}` is {}",
                    self.name(name),
                    kind.text()
                );
                self.report(at, message);
            }
            None => match self.globals.get(&name) {
                Some((NameKind::Function, _)) => {}
                Some((kind, _)) => {
                    let message = format!(
                        "a call needs a function, but `{}` is {}",
                        self.name(name),
                        kind.text()
                    );
                    self.report(at, message);
                }
                None => {
                    let message = format!("call of undeclared function `{}`", self.name(name));
                    self.missing(name, at, message);
                }
            },
        }
    }

    /// The last operand of an indirect call.
    fn prototype(&mut self, name: Sym, at: DiagnosticPosition<'a>) {
        match self.local(name) {
            Some(NameKind::Prototype | NameKind::Targets | NameKind::Missing) => {}
            Some(kind) => {
                let message = format!(
                    "an indirect call needs a prototype or targets, but `{}` is {}",
                    self.name(name),
                    kind.text()
                );
                self.report(at, message);
            }
            None => {
                let message = format!("undeclared call prototype `{}`", self.name(name));
                self.missing(name, at, message);
            }
        }
    }

    fn missing(&mut self, name: Sym, at: DiagnosticPosition<'a>, message: String) {
        if let Some(scope) = self.scopes.first_mut() {
            scope.names.insert(name, NameKind::Missing);
        }
        self.report(at, message);
    }

    fn report(&mut self, at: DiagnosticPosition<'a>, message: String) {
        if self.found.len() < MAX_DIAGNOSTICS {
            let line = match at {
                DiagnosticPosition::Line(line) => line,
                DiagnosticPosition::Before(rest) => next_line(rest),
            };
            self.found.push(Diagnostic { line, message });
        }
    }

    fn name(&self, name: Sym) -> &'a str {
        self.module.symbols.name(name)
    }
}

/// The least and the most operands of any form of `op`; a vector, a pair or a bracket is one.
fn operand_count(op: Op) -> (usize, usize) {
    use Op::*;
    match op {
        Brkpt | Exit | Griddepcontrol | Ret | Trap => (0, 0),
        Fence | Membar => (0, 2),
        Bar | Barrier => (0, 4),
        Cp => (0, 7),
        Tcgen05 | Wgmma => (0, 12),
        Activemask | Bra | Nanosleep | Pmevent | Prefetch | Prefetchu | Setmaxnreg
        | Stackrestore | Stacksave => (1, 1),
        Call | Createpolicy => (1, 4),
        Mbarrier => (1, 5),
        Abs | Applypriority | Bfind | Brev | Brx | Clusterlaunchcontrol | Clz | Cnot | Cos
        | Cvta | Discard | Elect | Ex2 | Getctarank | Isspacep | Istypep | Ldmatrix | Ldu | Lg2
        | Mov | Movmatrix | Neg | Not | Popc | Rcp | Rsqrt | Sin | Sqrt | Stmatrix | Suld | Suq
        | Sured | Sust | Tanh | Testp => (2, 2),
        Alloca | Ld | St | Tensormap | Txq | Vote => (2, 3),
        Cvt | Red | Tld4 => (2, 4),
        Tex | Wmma => (2, 5),
        Multimem => (2, 7),
        Add | Addc | And | Bmsk | Copysign | Div | Mapa | Match | Mul | Mul24 | Or | Redux
        | Rem | Shl | Shr | Sub | Subc | Szext | Xor => (3, 3),
        Max | Min | Set | Setp | Vabsdiff | Vadd | Vmax | Vmin | Vset | Vshl | Vshr | Vsub => {
            (3, 4)
        }
        Vabsdiff2 | Vabsdiff4 | Vadd2 | Vadd4 | Vavrg2 | Vavrg4 | Vmax2 | Vmax4 | Vmin2 | Vmin4
        | Vset2 | Vset4 | Vsub2 | Vsub4 => (3, 4),
        Atom => (3, 5),
        Bfe | Dp2a | Dp4a | Fma | Fns | Mad | Mad24 | Madc | Prmt | Sad | Selp | Shf | Slct
        | Vmad => (4, 4),
        Shfl => (4, 5),
        Mma => (4, 10),
        Bfi => (5, 5),
        Lop3 => (5, 6),
    }
}

/// The line of the first instruction in `body`.
fn next_line(body: &[Stmt]) -> u32 {
    body.iter()
        .find_map(|stmt| match stmt {
            Stmt::Inst(inst) => Some(inst.line),
            Stmt::Block(body) => Some(next_line(body)).filter(|&line| line != 0),
            _ => None,
        })
        .unwrap_or(0)
}

/// `%r12` as (`%r`, 12), if that is how `%r<...>` spells it.
#[must_use]
pub fn split_index(name: &str) -> Option<(&str, u32)> {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (prefix, index) = name.split_at(name.len() - digits);
    if index.is_empty() || prefix.is_empty() || (index.len() > 1 && index.starts_with('0')) {
        return None;
    }
    Some((prefix, index.parse().ok()?))
}

/// Whether `name` is a register that the ISA declares: `%tid.x`, `%clock64`, `%envreg3`.
#[must_use]
pub fn is_special_register(name: &str) -> bool {
    if let Some((vector, "x" | "y" | "z" | "w")) = name.split_once('.') {
        return is_special_vector(vector);
    }
    if is_special_vector(name) {
        return true;
    }
    if matches!(
        name,
        "%laneid"
            | "%warpid"
            | "%nwarpid"
            | "%smid"
            | "%nsmid"
            | "%gridid"
            | "%is_explicit_cluster"
            | "%cluster_ctarank"
            | "%cluster_nctarank"
            | "%lanemask_eq"
            | "%lanemask_le"
            | "%lanemask_lt"
            | "%lanemask_ge"
            | "%lanemask_gt"
            | "%clock"
            | "%clock_hi"
            | "%clock64"
            | "%globaltimer"
            | "%globaltimer_lo"
            | "%globaltimer_hi"
            | "%reserved_smem_offset_begin"
            | "%reserved_smem_offset_end"
            | "%reserved_smem_offset_cap"
            | "%reserved_smem_offset_0"
            | "%reserved_smem_offset_1"
            | "%total_smem_size"
            | "%aggr_smem_size"
            | "%dynamic_smem_size"
            | "%current_graph_exec"
    ) {
        return true;
    }
    match split_index(name.strip_suffix("_64").unwrap_or(name)) {
        Some(("%pm", n)) => n < 8,
        Some(("%envreg", n)) => n < 32 && !name.ends_with("_64"),
        _ => false,
    }
}
