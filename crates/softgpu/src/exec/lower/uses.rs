//! Shuffles and atomics whose result is used, loads that a compare-and-swap verifies, and the
//! variables that addresses are derived from.
//!
//! All look at a function's text alone, without regard to what it computes. A result counts as
//! used if it reaches memory, or another shuffle, along the code that follows, through no guard, no
//! selection and no branch; of an atomic, if any instruction reads it. A load is verified if a
//! compare-and-swap of the function names the same address and as many bytes. An address belongs to
//! a variable if every instruction that writes its register takes it from that one: by moves,
//! conversions, sums and differences with other numbers.

use fercuda_ptx::ast::{AddrBase, Inst, Operand, Stmt, Sym};
use fercuda_ptx::words::{Mod, Op, Word};
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::width::bits;

/// The statements of a body, those of inner blocks in their places.
fn flat<'m>(body: &'m [Stmt], out: &mut Vec<&'m Stmt>) {
    for s in body {
        match s {
            Stmt::Block(inner) => flat(inner, out),
            s => out.push(s),
        }
    }
}

fn each_name(o: &Operand, f: &mut impl FnMut(Sym)) {
    match o {
        Operand::Name(s)
        | Operand::Not(s)
        | Operand::Offset(s, _)
        | Operand::Index(s, _)
        | Operand::Member(s, _)
        | Operand::Select(s, _) => f(*s),
        Operand::Negated(o) => each_name(o, f),
        Operand::Address {
            base: AddrBase::Name(s),
            ..
        } => f(*s),
        Operand::Bracket(v) | Operand::Vector(v) | Operand::List(v) => {
            v.iter().for_each(|o| each_name(o, f));
        }
        Operand::Pair(a, b) => {
            each_name(a, f);
            each_name(b, f);
        }
        Operand::Address { .. } | Operand::Imm(_) => {}
    }
}

fn names_any(o: &Operand, of: &FxHashSet<Sym>) -> bool {
    let mut any = false;
    each_name(o, &mut |s| any |= of.contains(&s));
    any
}

/// The shuffles of a body, by their lines, whose result is used whatever it is, and the atomics of
/// which anything reads it.
pub(super) fn used_results(body: &[Stmt]) -> FxHashSet<u32> {
    let mut all = Vec::new();
    flat(body, &mut all);
    let mut out = used_atomics(&all);
    for (n, s) in all.iter().enumerate() {
        if let Stmt::Inst(i) = s
            && i.op == Op::Shfl
            && i.line != 0
            && is_used(&all, n, i)
        {
            out.insert(i.line);
        }
    }
    out
}

/// The plain loads of a body, by their lines, of what a compare-and-swap of it verifies: the first
/// guess of a loop that swaps until the value is still there.
pub(super) fn verified_loads(body: &[Stmt]) -> FxHashSet<u32> {
    let mut all = Vec::new();
    flat(body, &mut all);
    let insts = || {
        all.iter().filter_map(|s| match s {
            Stmt::Inst(i) => Some(i),
            _ => None,
        })
    };
    let size = |i: &Inst| {
        i.mods.iter().rev().find_map(|m| match m {
            Mod::Type(ty) => Some(bits(*ty)),
            Mod::Word(_) => None,
        })
    };
    let swaps: Vec<&Inst> = insts()
        .filter(|i| i.op == Op::Atom && i.mods.contains(&Mod::Word(Word::Cas)))
        .collect();
    let is_verified = |load: &&Inst| {
        let is_same =
            |swap: &&Inst| swap.operands.get(1) == load.operands.get(1) && size(swap) == size(load);
        load.op == Op::Ld && load.line != 0 && swaps.iter().any(is_same)
    };
    insts().filter(is_verified).map(|i| i.line).collect()
}

fn used_atomics(all: &[&Stmt]) -> FxHashSet<u32> {
    let insts = all.iter().filter_map(|s| match s {
        Stmt::Inst(i) => Some(i),
        _ => None,
    });
    let is_atomic = |i: &&Inst| i.op == Op::Atom && i.line != 0;
    let atomics: Vec<_> = insts.clone().filter(is_atomic).collect();
    if atomics.is_empty() {
        return FxHashSet::default();
    }
    let mut read = FxHashSet::default();
    for i in insts {
        let written = defined(i);
        for (n, o) in i.operands.iter().enumerate() {
            each_name(o, &mut |s| {
                if n != 0 || !written.contains(&s) {
                    read.insert(s);
                }
            });
        }
    }
    let is_read = |i: &&&Inst| defined(i).iter().any(|s| read.contains(s));
    atomics
        .iter()
        .filter(|i| is_read(i))
        .map(|i| i.line)
        .collect()
}

fn is_used(all: &[&Stmt], at: usize, shuffle: &Inst) -> bool {
    let mut reached = FxHashSet::default();
    let mut reach = |s| {
        reached.insert(s);
    };
    match shuffle.operands.first() {
        Some(Operand::Pair(d, _)) => each_name(d, &mut reach),
        Some(d) => each_name(d, &mut reach),
        None => {}
    }
    for s in &all[at + 1..] {
        let Stmt::Inst(i) = s else { continue };
        if i.op == Op::Bra {
            let back = i.operands.first().is_some_and(|target| {
                let is_target =
                    |s: &&Stmt| matches!((s, target), (Stmt::Label(l), Operand::Name(t)) if l == t);
                all[..at].iter().any(is_target)
            });
            // Around a loop the shuffle reads what it has made.
            return back
                && shuffle
                    .operands
                    .get(1)
                    .is_some_and(|o| names_any(o, &reached));
        }
        let ends = matches!(i.op, Op::Ret | Op::Exit | Op::Brx | Op::Call | Op::Trap);
        if ends || reached.is_empty() {
            return false;
        }
        if i.guard.is_some() {
            continue;
        }
        let mut operands = i.operands.iter();
        let uses = match i.op {
            Op::St | Op::Red => operands.any(|o| names_any(o, &reached)),
            Op::Shfl => i.operands.get(1).is_some_and(|o| names_any(o, &reached)),
            _ => operands.skip(1).any(|o| names_any(o, &reached)),
        };
        if uses && matches!(i.op, Op::St | Op::Red | Op::Atom | Op::Shfl | Op::Redux) {
            return true;
        }
        let passes = uses && !matches!(i.op, Op::Selp | Op::Setp | Op::Slct);
        if let (false, Some(d)) = (matches!(i.op, Op::St | Op::Red), i.operands.first()) {
            each_name(d, &mut |s| {
                if passes {
                    reached.insert(s);
                } else {
                    reached.remove(&s);
                }
            });
        }
    }
    false
}

/// Passes over a body after which nothing is taken for known.
const MOST_ROUNDS: u32 = 64;

/// What a register holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Derived {
    /// Nothing yet.
    Nothing,
    /// A number.
    Number,
    /// An address in a variable.
    Inside(Sym),
    Mixed,
}

impl Derived {
    /// Of a register that is one or the other.
    fn or(self, other: Derived) -> Derived {
        match (self, other) {
            (Derived::Nothing, x) | (x, Derived::Nothing) => x,
            (a, b) if a == b => a,
            _ => Derived::Mixed,
        }
    }

    /// Of a sum.
    fn plus(self, other: Derived) -> Derived {
        match (self, other) {
            (Derived::Nothing, _) | (_, Derived::Nothing) => Derived::Nothing,
            (Derived::Number, x) | (x, Derived::Number) => x,
            _ => Derived::Mixed,
        }
    }

    /// Of what is computed from it otherwise.
    fn other(self) -> Derived {
        match self {
            Derived::Inside(_) => Derived::Mixed,
            x => x,
        }
    }
}

/// The variable in which the address in a register lies, for those where it is known. `is_variable`
/// says which names are variables.
pub(super) fn variables_of(
    body: &[Stmt],
    is_variable: impl Fn(Sym) -> bool,
) -> FxHashMap<Sym, Sym> {
    let mut all = Vec::new();
    flat(body, &mut all);
    let insts: Vec<&Inst> = all
        .iter()
        .filter_map(|s| if let Stmt::Inst(i) = s { Some(i) } else { None })
        .collect();
    let mut known: FxHashMap<Sym, Derived> = FxHashMap::default();
    for i in &insts {
        known.extend(defined(i).into_iter().map(|d| (d, Derived::Nothing)));
    }
    let mut rounds = 0;
    loop {
        let mut changed = false;
        for i in &insts {
            changed |= derive(i, &mut known, &is_variable);
        }
        if !changed {
            break;
        }
        rounds += 1;
        if rounds == MOST_ROUNDS {
            return FxHashMap::default();
        }
    }
    let found = known.into_iter().filter_map(|(register, d)| match d {
        Derived::Inside(variable) => Some((register, variable)),
        _ => None,
    });
    found.collect()
}

/// The registers that an instruction writes.
fn defined(i: &Inst) -> FxHashSet<Sym> {
    let mut out = FxHashSet::default();
    let writes = !matches!(
        i.op,
        Op::St | Op::Red | Op::Bra | Op::Call | Op::Bar | Op::Barrier
    );
    // An address that comes first, as of `cp.async`, is read.
    let first = i.operands.first();
    let first = first.filter(|o| writes && !matches!(o, Operand::Address { .. }));
    if let Some(d) = first {
        each_name(d, &mut |s| {
            out.insert(s);
        });
    }
    out
}

/// Whether that adds to what is known.
fn derive(
    i: &Inst,
    known: &mut FxHashMap<Sym, Derived>,
    is_variable: &impl Fn(Sym) -> bool,
) -> bool {
    // A name that no instruction writes is a number, as special registers are.
    let of = |n: usize| match i.operands.get(n) {
        Some(Operand::Name(s) | Operand::Offset(s, _)) if is_variable(*s) => Derived::Inside(*s),
        Some(Operand::Name(s) | Operand::Offset(s, _)) => {
            known.get(s).copied().unwrap_or(Derived::Number)
        }
        Some(Operand::Imm(_)) => Derived::Number,
        Some(Operand::Vector(_)) => Derived::Mixed,
        _ => Derived::Number,
    };
    let value = match i.op {
        Op::Mov | Op::Cvta | Op::Cvt => of(1),
        Op::Add | Op::Or | Op::And => of(1).plus(of(2)),
        Op::Sub => of(1).plus(of(2).other()),
        Op::Mad | Op::Mad24 => of(1).other().plus(of(2).other()).plus(of(3)),
        Op::Selp => of(1).or(of(2)),
        Op::Ld | Op::Ldu | Op::Atom => Derived::Number,
        _ => (1..i.operands.len()).fold(Derived::Number, |d, n| d.plus(of(n).other())),
    };
    let mut changed = false;
    for d in defined(i) {
        let entry = known.entry(d).or_insert(Derived::Nothing);
        let new = entry.or(value);
        changed |= *entry != new;
        *entry = new;
    }
    changed
}
