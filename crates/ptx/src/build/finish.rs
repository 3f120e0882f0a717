//! Finishing of a module: merging of moves, choice of names.
//!
//! Invariant: names are interned in the order in which the printed text shows them, so that
//! parsing that text gives an equal module.

use std::collections::{HashMap, HashSet};

use super::error::Arch;
use super::state::{EmittedLine, KernelDraft, Name, names_in};
use crate::ast::{
    self, AddrBase, Inst, Item, Linkage, Operand, PtxFunction, PtxModule, Stmt, Sym, Symbols,
};
use crate::words::{Op, ScalarType};

/// Words that ptxas takes amiss as names of variables.
const SPECIAL_REGISTERS: &[&str] = &[
    "tid",
    "ntid",
    "laneid",
    "warpid",
    "nwarpid",
    "ctaid",
    "nctaid",
    "smid",
    "nsmid",
    "gridid",
    "clock",
    "clock_hi",
    "clock64",
    "globaltimer",
    "globaltimer_lo",
    "globaltimer_hi",
    "lanemask_eq",
    "lanemask_le",
    "lanemask_lt",
    "lanemask_ge",
    "lanemask_gt",
    "dynamic_smem_size",
    "total_smem_size",
    "aggr_smem_size",
    "current_graph_exec",
    "clusterid",
    "nclusterid",
    "cluster_ctaid",
    "cluster_nctaid",
    "cluster_ctarank",
    "cluster_nctarank",
    "is_explicit_cluster",
];

/// Prefixes of numbered names that are taken: performance counters and such, and the prefixes
/// of unnamed registers.
const NUMBERED: &[&str] = &[
    "pm",
    "envreg",
    "reserved_smem_offset_",
    "us",
    "is",
    "u",
    "i",
    "ul",
    "il",
    "f",
    "d",
    "h",
    "bf",
    "hh",
    "bb",
    "tf",
    "p",
    "",
];

/// At most this many registers in one declaration.
const NAMES_PER_LINE: usize = 8;

pub(crate) fn module(version: (u32, u32), arch: Arch, mut kernels: Vec<KernelDraft>) -> PtxModule {
    let mut symbols = Symbols::default();
    let mut items = Vec::new();
    let mut drafts: Vec<NamedKernel> = kernels.drain(..).map(NamedKernel::new).collect();
    for draft in &mut drafts {
        for var in std::mem::take(&mut draft.state.globals) {
            items.push(Item::Var(draft.var(var, &mut symbols)));
        }
    }
    for draft in drafts {
        items.push(Item::Function(draft.function(&mut symbols)));
    }
    PtxModule {
        version,
        target: vec![arch.to_string()],
        address_size: 64,
        items,
        symbols,
    }
}

/// A declaration of registers: their type; each name and the count in its `<count>`.
type Declaration = (ScalarType, Vec<(String, Option<u32>)>);

/// A kernel with chosen names.
struct NamedKernel {
    state: KernelDraft,
    /// Text of each local name.
    texts: Vec<String>,
    registers: Vec<Declaration>,
}

impl NamedKernel {
    fn new(mut state: KernelDraft) -> Self {
        merge_sets(&mut state);
        let mut draft = NamedKernel {
            texts: vec![String::new(); state.names.len()],
            state,
            registers: Vec::new(),
        };
        draft.choose_names();
        draft
    }

    fn choose_names(&mut self) {
        let state = &self.state;
        let texts = &mut self.texts;
        let mut taken: HashSet<String> = HashSet::new();
        for (text, name) in texts.iter_mut().zip(&state.names) {
            match name {
                Name::Fixed(t) => t.clone_into(text),
                Name::Object(t) => {
                    t.clone_into(text);
                    taken.insert(t.clone());
                }
                Name::Reg { .. } | Name::Label(_) => {}
            }
        }

        // In order of first appearance, so that numbers rise down the listing.
        let mut order = Vec::new();
        let mut seen = vec![false; state.names.len()];
        for line in &state.body {
            each_name(line, &mut |sym| {
                let i = sym.0 as usize;
                if !std::mem::replace(&mut seen[i], true) {
                    order.push(i);
                }
            });
        }
        let mut counts: HashMap<&'static str, u32> = HashMap::new();
        let mut numbered: Vec<(ScalarType, &'static str)> = Vec::new();
        let mut named: Vec<(ScalarType, Vec<String>)> = Vec::new();
        for &i in &order {
            match &state.names[i] {
                Name::Reg {
                    ty,
                    prefix,
                    wanted: None,
                    ..
                } => {
                    let n = counts.entry(prefix).or_insert_with(|| {
                        numbered.push((*ty, prefix));
                        0
                    });
                    texts[i] = format!("%{prefix}{n}");
                    *n += 1;
                }
                Name::Reg {
                    ty,
                    wanted: Some(wanted),
                    ..
                } => {
                    let base = register_name(wanted);
                    texts[i] = unique(&mut taken, format!("%{base}"));
                    match named.iter_mut().find(|(t, _)| t == ty) {
                        Some((_, names)) => names.push(texts[i].clone()),
                        None => named.push((*ty, vec![texts[i].clone()])),
                    }
                }
                Name::Label(label) => {
                    let base = format!("${}", identifier(label));
                    texts[i] = unique(&mut taken, base);
                }
                Name::Fixed(_) | Name::Object(_) => {}
            }
        }
        self.registers = named
            .into_iter()
            .flat_map(|(ty, names)| {
                let lines: Vec<_> = names
                    .chunks(NAMES_PER_LINE)
                    .map(|c| (ty, c.iter().map(|n| (n.clone(), None)).collect()))
                    .collect();
                lines
            })
            .chain(
                numbered
                    .into_iter()
                    .map(|(ty, p)| (ty, vec![(format!("%{p}"), Some(counts[p]))])),
            )
            .collect();
    }

    fn sym(&self, local: Sym, symbols: &mut Symbols) -> Sym {
        symbols.intern(&self.texts[local.0 as usize])
    }

    fn function(self, symbols: &mut Symbols) -> PtxFunction {
        let name = symbols.intern(&self.state.entry);
        let params = self
            .state
            .params
            .iter()
            .map(|p| self.var(p.clone(), symbols))
            .collect();
        let mut body = Vec::with_capacity(self.state.body.len() + self.registers.len());
        for (ty, names) in &self.registers {
            let names = names
                .iter()
                .map(|(n, count)| (symbols.intern(n), *count))
                .collect();
            body.push(Stmt::Reg {
                vector: 1,
                ty: *ty,
                names,
            });
        }
        let (variables, code): (Vec<_>, Vec<_>) = self
            .state
            .body
            .iter()
            .map(|l| &l.stmt)
            .partition(|s| matches!(s, Stmt::Var(_)));
        for stmt in variables.into_iter().chain(code) {
            body.push(self.stmt(stmt, symbols));
        }
        if !ends(&body) {
            let ret = Inst {
                guard: None,
                op: Op::Ret,
                mods: Vec::new(),
                operands: Vec::new(),
                line: 0,
            };
            body.push(Stmt::Inst(ret));
        }
        PtxFunction {
            linkage: Linkage::Visible,
            entry: true,
            name,
            returns: Vec::new(),
            params,
            directives: self.state.directives.clone(),
            body: Some(body),
        }
    }

    fn var(&self, mut var: ast::Var, symbols: &mut Symbols) -> ast::Var {
        var.name = self.sym(var.name, symbols);
        var
    }

    fn stmt(&self, stmt: &Stmt, symbols: &mut Symbols) -> Stmt {
        match stmt {
            Stmt::Var(v) => Stmt::Var(self.var(v.clone(), symbols)),
            Stmt::Label(l) => Stmt::Label(self.sym(*l, symbols)),
            Stmt::Inst(i) => {
                let guard = i.guard.map(|g| ast::Guard {
                    pred: self.sym(g.pred, symbols),
                    ..g
                });
                let operands = i
                    .operands
                    .iter()
                    .map(|o| self.operand(o, symbols))
                    .collect();
                Stmt::Inst(Inst {
                    guard,
                    op: i.op,
                    mods: i.mods.clone(),
                    operands,
                    line: 0,
                })
            }
            other => other.clone(),
        }
    }

    fn operand(&self, operand: &Operand, symbols: &mut Symbols) -> Operand {
        let mut all = |v: &[Operand]| v.iter().map(|o| self.operand(o, symbols)).collect();
        match operand {
            Operand::Name(s) => Operand::Name(self.sym(*s, symbols)),
            Operand::Not(s) => Operand::Not(self.sym(*s, symbols)),
            Operand::Offset(s, o) => Operand::Offset(self.sym(*s, symbols), *o),
            Operand::Index(s, n) => Operand::Index(self.sym(*s, symbols), *n),
            Operand::Negated(o) => Operand::Negated(Box::new(self.operand(o, symbols))),
            Operand::Member(s, m) => Operand::Member(self.sym(*s, symbols), *m),
            Operand::Address {
                base: AddrBase::Name(s),
                offset,
            } => Operand::Address {
                base: AddrBase::Name(self.sym(*s, symbols)),
                offset: *offset,
            },
            Operand::Address {
                base: AddrBase::Imm(_),
                ..
            }
            | Operand::Imm(_) => operand.clone(),
            Operand::Select(a, b) => Operand::Select(self.sym(*a, symbols), self.sym(*b, symbols)),
            Operand::Bracket(v) => Operand::Bracket(all(v)),
            Operand::Vector(v) => Operand::Vector(all(v)),
            Operand::List(v) => Operand::List(all(v)),
            Operand::Pair(a, b) => {
                let a = self.operand(a, symbols);
                Operand::Pair(Box::new(a), Box::new(self.operand(b, symbols)))
            }
        }
    }
}

/// Whether control cannot run off the end.
fn ends(body: &[Stmt]) -> bool {
    matches!(
        body.last(),
        Some(Stmt::Inst(Inst {
            guard: None,
            op: Op::Ret | Op::Bra | Op::Exit | Op::Trap,
            ..
        }))
    )
}

/// `name`, or with `_2`, `_3`, ... if it is taken.
fn unique(taken: &mut HashSet<String>, name: String) -> String {
    if taken.insert(name.clone()) {
        return name;
    }
    let free = (2u64..)
        .map(|n| format!("{name}_{n}"))
        .find(|n| !taken.contains(n))
        .unwrap_or(name);
    taken.insert(free.clone());
    free
}

/// Letters, digits and `_` only.
fn identifier(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect()
}

/// A name for a register that is neither a special one nor a numbered one.
fn register_name(wanted: &str) -> String {
    let mut name = identifier(wanted);
    if name.is_empty() {
        name.push('v');
    }
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_numbered = stem.len() < name.len() && NUMBERED.contains(&stem);
    if SPECIAL_REGISTERS.contains(&name.as_str()) || is_numbered {
        name.push('_');
    }
    name
}

fn each_name(line: &EmittedLine, f: &mut impl FnMut(Sym)) {
    match &line.stmt {
        Stmt::Inst(i) => {
            if let Some(g) = i.guard {
                f(g.pred);
            }
            i.operands.iter().for_each(|o| names_in(o, f));
        }
        Stmt::Label(l) => f(*l),
        _ => {}
    }
}

/// `op %t, ...; mov %v, %t;` becomes `op %v, ...;` where nothing else reads `%t`.
fn merge_sets(state: &mut KernelDraft) {
    let mut reads = vec![0u32; state.names.len()];
    let mut writes = vec![0u32; state.names.len()];
    for line in &state.body {
        let Stmt::Inst(i) = &line.stmt else { continue };
        if let Some(g) = i.guard {
            reads[g.pred.0 as usize] += 1;
        }
        for (n, operand) in i.operands.iter().enumerate() {
            let counts = if n < line.dsts {
                &mut writes
            } else {
                &mut reads
            };
            names_in(operand, &mut |s| counts[s.0 as usize] += 1);
        }
    }
    let single = |s: Sym| {
        let i = s.0 as usize;
        reads[i] == 1 && writes[i] == 1 && matches!(state.names[i], Name::Reg { wanted: None, .. })
    };
    let mut merged: Vec<EmittedLine> = Vec::with_capacity(state.body.len());
    for line in std::mem::take(&mut state.body) {
        if let (true, Stmt::Inst(mov)) = (line.sets, &line.stmt)
            && let [Operand::Name(to), Operand::Name(from)] = mov.operands[..]
            && single(from)
            && let Some(EmittedLine {
                stmt: Stmt::Inst(before),
                dsts: 1,
                ..
            }) = merged.last_mut()
            && before.guard.is_none()
            && before.operands.first() == Some(&Operand::Name(from))
        {
            before.operands[0] = Operand::Name(to);
            continue;
        }
        merged.push(line);
    }
    state.body = merged;
}
