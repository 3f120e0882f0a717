//! With checks: which instructions may touch registers of a product that is under way, and which
//! products may read registers that were written behind the last `wgmma.fence`.
//!
//! A product of four warps reads and writes registers while its thread goes on. Both questions are
//! answered along all paths of a function, when it is decoded; where the answer is yes, an
//! instruction is put in that asks whether it is so in this run. Code that does it right has none.
//!
//! Compilers copy registers, also those of products under way, in the order that their loops ask
//! for; an assembler makes one register of the two. So a copy is no access: it passes on what is
//! known of its source.

use rustc_hash::{FxHashMap, FxHashSet};

use super::assign::RegisterUse;
use super::checks::{self, FragmentUse};
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, Handlers, handlers_plain};
use super::lower::{Ext, InstRole, LInst, LTerm, Lower, Opd, PredRef, VirtualReg};

/// Groups of products that are distinguished by their age.
const OLDEST: u8 = 9;

/// A register of a product that may be under way.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PendingRegister {
    /// Groups committed since, the product's own among them; the least of all paths.
    age: u8,
    kind: FragmentUse,
    /// The products that it may be of.
    products: Vec<u32>,
}

/// What holds at a point of the code on some path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct PathState {
    pending: FxHashMap<VirtualReg, PendingRegister>,
    /// The writes behind the last fence that a register has its value from, by their numbers.
    unfenced: FxHashMap<VirtualReg, Vec<u32>>,
}

fn merge_sorted(into: &mut Vec<u32>, from: &[u32]) -> bool {
    let before = into.len();
    into.extend(from);
    into.sort_unstable();
    into.dedup();
    into.len() != before
}

impl PathState {
    /// Adds what holds on another path; whether that is more.
    fn join(&mut self, other: &PathState) -> bool {
        let mut more = false;
        for (&v, theirs) in &other.pending {
            let ours = self.pending.entry(v).or_insert_with(|| {
                more = true;
                theirs.clone()
            });
            if theirs.age < ours.age || theirs.kind < ours.kind {
                ours.age = ours.age.min(theirs.age);
                ours.kind = ours.kind.min(theirs.kind);
                more = true;
            }
            more |= merge_sorted(&mut ours.products, &theirs.products);
        }
        for (&v, theirs) in &other.unfenced {
            more |= merge_sorted(self.unfenced.entry(v).or_default(), theirs);
        }
        more
    }
}

/// What may be wrong with an instruction.
#[derive(Debug, Default)]
struct SuspectInst {
    /// Products under way of which it may touch a register: whether it writes, and what that is.
    touched: Vec<(u32, bool, FragmentUse)>,
    /// Writes behind the last fence that its operands may have their values from.
    unfenced: Vec<u32>,
}

/// The walk through a function.
struct Walk<'a> {
    /// Number of the first instruction of each block.
    numbers: Vec<u32>,
    /// Registers that a write behind a fence matters of.
    tracked: &'a FxHashSet<VirtualReg>,
    suspects: FxHashMap<(usize, usize), SuspectInst>,
    /// Whether suspects are taken down.
    records: bool,
}

/// The registers of sums, and of A, of a product.
fn fragments(i: &LInst) -> (Vec<VirtualReg>, Vec<VirtualReg>) {
    let (mut sums, mut factor) = (Vec::new(), Vec::new());
    for e in &i.ext {
        match e {
            Ext::Row(Opd::Both(v)) => sums.push(*v),
            Ext::Row(Opd::Use(v)) => factor.push(*v),
            _ => {}
        }
    }
    (sums, factor)
}

fn product_of(i: &LInst) -> u32 {
    (i.imm >> 32) as u32
}

impl Walk<'_> {
    fn suspect(&mut self, at: (usize, usize)) -> &mut SuspectInst {
        self.suspects.entry(at).or_default()
    }

    fn touches(&mut self, at: (usize, usize), pending: &PendingRegister, writes: bool) {
        if self.records {
            let found = &mut self.suspect(at).touched;
            for &p in &pending.products {
                if !found.contains(&(p, writes, pending.kind)) {
                    found.push((p, writes, pending.kind));
                }
            }
        }
    }

    fn product(&mut self, at: (usize, usize), i: &LInst, state: &mut PathState) {
        let (sums, factor) = fragments(i);
        // The sums of a product may be those of another: both have the same layout.
        for v in &factor {
            if let Some(p) = state.pending.get(v).filter(|p| p.kind == FragmentUse::Sums) {
                self.touches(at, &p.clone(), false);
            }
        }
        for v in &sums {
            if let Some(p) = state
                .pending
                .get(v)
                .filter(|p| p.kind == FragmentUse::Factor)
            {
                self.touches(at, &p.clone(), true);
            }
        }
        for v in sums.iter().chain(&factor) {
            if let Some(writes) = state.unfenced.get(v)
                && self.records
            {
                merge_sorted(&mut self.suspects.entry(at).or_default().unfenced, writes);
            }
        }
        let mut pend = |v: VirtualReg, kind| {
            let entry = PendingRegister {
                age: 0,
                kind,
                products: vec![product_of(i)],
            };
            state.pending.insert(v, entry);
        };
        for v in sums.iter().chain(&factor) {
            state.unfenced.remove(v);
        }
        factor.iter().for_each(|&v| pend(v, FragmentUse::Factor));
        sums.iter().for_each(|&v| pend(v, FragmentUse::Sums));
    }

    fn inst(&mut self, at: (usize, usize), i: &LInst, state: &mut PathState) {
        match i.role {
            InstRole::GroupProduct => return self.product(at, i, state),
            InstRole::GroupFence => return state.unfenced.clear(),
            InstRole::GroupCommit => {
                let ages = state.pending.values_mut();
                ages.for_each(|p| p.age = (p.age + 1).min(OLDEST));
                return;
            }
            InstRole::Copy => return self.copy(at, i, state),
            _ => {}
        }
        let mut touch = RegisterUse::default();
        touch.inst(i);
        for v in &touch.uses {
            if let Some(p) = state.pending.get(v).cloned() {
                self.touches(at, &p, false);
            }
        }
        for v in touch.defs {
            if let Some(p) = state.pending.remove(&v) {
                self.touches(at, &p, true);
            }
            if self.tracked.contains(&v) {
                let number = self.numbers[at.0] + at.1 as u32;
                state.unfenced.insert(v, vec![number]);
            }
        }
    }

    fn copy(&mut self, at: (usize, usize), i: &LInst, state: &mut PathState) {
        let (Opd::Def(d) | Opd::Both(d)) = i.d else {
            return;
        };
        let source = match i.a {
            Opd::Use(s) => Some(s),
            _ => None,
        };
        let of_source = source.and_then(|s| state.pending.get(&s).cloned());
        if let Some(p) = state.pending.get(&d).cloned()
            && of_source.is_none()
        {
            self.touches(at, &p, true);
        }
        match of_source {
            Some(p) => state.pending.insert(d, p),
            None => state.pending.remove(&d),
        };
        match source.and_then(|s| state.unfenced.get(&s).cloned()) {
            Some(writes) => state.unfenced.insert(d, writes),
            None => state.unfenced.remove(&d),
        };
    }

    fn block(&mut self, l: &Lower<'_, '_>, b: usize, state: &mut PathState) {
        for (n, i) in l.blocks[b].insts.iter().enumerate() {
            self.inst((b, n), i, state);
        }
        if let Some(LTerm::AwaitProducts(keep, _)) = &l.blocks[b].term {
            state
                .pending
                .retain(|_, p| p.age == 0 || u32::from(p.age) <= *keep);
        }
    }
}

/// Registers of products, and those that are copied to one.
fn tracked(l: &Lower<'_, '_>) -> FxHashSet<VirtualReg> {
    let mut found = FxHashSet::default();
    let insts = || l.blocks.iter().flat_map(|b| &b.insts);
    for i in insts().filter(|i| i.role == InstRole::GroupProduct) {
        let (sums, factor) = fragments(i);
        found.extend(sums);
        found.extend(factor);
    }
    loop {
        let before = found.len();
        for i in insts().filter(|i| i.role == InstRole::Copy) {
            if let (Opd::Def(d) | Opd::Both(d), Opd::Use(s)) = (i.d, i.a)
                && found.contains(&d)
            {
                found.insert(s);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Has the function's instructions ask at run time where the code alone does not answer.
pub(crate) fn watch(l: &mut Lower<'_, '_>) {
    if l.group_products.is_empty() {
        return;
    }
    let tracked = tracked(l);
    let count = l.blocks.len();
    let mut numbers = Vec::new();
    let mut at = 0;
    for b in &l.blocks {
        numbers.push(at);
        at += b.insts.len() as u32;
    }
    let mut walk = Walk {
        numbers,
        tracked: &tracked,
        suspects: FxHashMap::default(),
        records: false,
    };
    let mut before: Vec<Option<PathState>> = vec![None; count];
    before[0] = Some(PathState::default());
    let mut work = vec![0];
    while let Some(b) = work.pop() {
        let Some(mut state) = before[b].clone() else {
            continue;
        };
        walk.block(l, b, &mut state);
        let next = l.blocks[b].term.as_ref().map(super::assign::successors);
        for s in next.unwrap_or_default() {
            let more = match &mut before[s] {
                Some(known) => known.join(&state),
                none => {
                    *none = Some(state.clone());
                    true
                }
            };
            if more && !work.contains(&s) {
                work.push(s);
            }
        }
    }
    walk.records = true;
    for (b, state) in before.into_iter().enumerate() {
        if let Some(mut state) = state {
            walk.block(l, b, &mut state);
        }
    }
    let numbers = std::mem::take(&mut walk.numbers);
    put_in(l, &numbers, walk.suspects);
}

fn put_in(
    l: &mut Lower<'_, '_>,
    numbers: &[u32],
    mut suspects: FxHashMap<(usize, usize), SuspectInst>,
) {
    let noted: FxHashSet<u32> = suspects.values().flat_map(|s| s.unfenced.clone()).collect();
    for (b, block) in l.blocks.iter_mut().enumerate() {
        let old = std::mem::take(&mut block.insts);
        for (n, i) in old.into_iter().enumerate() {
            let (origin, guard) = (i.origin, i.guard);
            let mut ask = |handlers: Handlers, x: u32, ext: Vec<Ext>| {
                block.insts.push(LInst {
                    handlers,
                    d: Opd::None,
                    a: Opd::None,
                    b: Opd::None,
                    c: Opd::None,
                    guard: if guard == PredRef::True {
                        guard
                    } else {
                        as_use(guard)
                    },
                    x,
                    x_pred: None,
                    imm: ext.len() as u64,
                    imm_lo: None,
                    imm_hi: None,
                    role: InstRole::Other,
                    ext,
                    origin,
                });
            };
            if let Some(mut suspect) = suspects.remove(&(b, n)) {
                // Of a register that is read and written, that it is written is said.
                suspect.touched.sort_by_key(|t| !t.1);
                let touched = suspect.touched.iter().map(|&(p, writes, kind)| {
                    let kind = u32::from(kind == FragmentUse::Factor);
                    Ext::Raw(p << 2 | u32::from(writes) << 1 | kind)
                });
                let touched: Vec<Ext> = touched.collect();
                if !touched.is_empty() {
                    ask(handlers_plain::<TouchesProduct>(), 0, touched);
                }
                let unfenced: Vec<Ext> = suspect.unfenced.into_iter().map(Ext::Raw).collect();
                if !unfenced.is_empty() {
                    ask(handlers_plain::<ReadsUnfenced>(), 0, unfenced);
                }
            }
            let number = numbers[b] + n as u32;
            if noted.contains(&number) {
                ask(handlers_plain::<NoteWrite>(), number, Vec::new());
            }
            block.insts.push(i);
        }
    }
}

fn as_use(guard: PredRef) -> PredRef {
    match guard {
        PredRef::Def(v) | PredRef::Both(v) => PredRef::Use(v, false),
        p => p,
    }
}

/// Whether a product under way has a register that the next instruction touches: in `ext` its
/// number, whether that one writes (bit 1), and whether the register is of A (bit 0).
struct TouchesProduct;
impl Exec for TouchesProduct {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let code = ctx.code;
        for &word in &code.ext[i.x as usize..][..i.imm as usize] {
            let kind = match word & 1 {
                0 => FragmentUse::Sums,
                _ => FragmentUse::Factor,
            };
            checks::touches_product(ctx, i, word >> 2, word & 2 != 0, kind);
        }
    }
}

/// The write with number `x` is done next.
struct NoteWrite;
impl Exec for NoteWrite {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let pc = ctx.pc_of(i);
        let writes = &mut ctx.w().products.unfenced;
        writes.retain(|w| w.0 != i.x);
        writes.push((i.x, pc));
    }
}

/// Whether a write in `ext` was done since the last fence.
struct ReadsUnfenced;
impl Exec for ReadsUnfenced {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let code = ctx.code;
        let numbers = &code.ext[i.x as usize..][..i.imm as usize];
        let writes = &ctx.w().products.unfenced;
        let found = writes.iter().find(|w| numbers.contains(&w.0)).copied();
        if let Some((_, pc)) = found {
            checks::reads_unfenced(ctx, i, pc);
        }
    }
}
