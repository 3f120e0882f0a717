//! Register allocation from virtual registers to rows: liveness, linear scan, final code.
//!
//! Invariants: two registers that live at the same time never share a row, and a destination never
//! shares a row with a source of the same instruction, so handlers may write while they read. Every
//! operand created here lies inside the frame that it sizes; no other module creates operands.

use std::cell::Cell;
use std::sync::Arc;

use super::ctx::{DecodedInst, FunctionCode};
use super::lanes::guarded;
use super::lower::{Ext, LCallee, LInst, LTerm, Lower, Opd, PredRef, RegisterClass, VirtualReg};
use super::program::{BarrierSite, CallTerminator, Callee, CodeBlock, Terminator};
use super::registers::{PredOperand, RowOperand};

/// Most rows a frame may have: 16 MiB.
const MAX_ROWS: u32 = 1 << 17;

/// Registers that are read, and those that are written.
#[derive(Default)]
pub(super) struct RegisterUse {
    pub(super) uses: Vec<VirtualReg>,
    pub(super) defs: Vec<VirtualReg>,
}

impl RegisterUse {
    pub(super) fn opd(&mut self, o: Opd) {
        match o {
            Opd::Use(v) | Opd::UseHigh(v) => self.uses.push(v),
            Opd::Def(v) => self.defs.push(v),
            // Half a register written leaves the other half alive.
            Opd::Both(v) | Opd::DefHigh(v) => {
                self.uses.push(v);
                self.defs.push(v);
            }
            Opd::None | Opd::Const(_) | Opd::Fixed(_) => {}
        }
    }
    fn pred(&mut self, p: PredRef) {
        match p {
            PredRef::Use(v, _) => self.uses.push(v),
            PredRef::Def(v) => self.defs.push(v),
            PredRef::Both(v) => {
                self.uses.push(v);
                self.defs.push(v);
            }
            PredRef::True | PredRef::False => {}
        }
    }
    fn clear(&mut self) {
        self.uses.clear();
        self.defs.clear();
    }
    pub(super) fn inst(&mut self, i: &LInst) {
        for o in [i.d, i.a, i.b, i.c] {
            self.opd(o);
        }
        for p in [Some(i.guard), i.x_pred, i.imm_lo, i.imm_hi]
            .into_iter()
            .flatten()
        {
            self.pred(p);
        }
        for e in &i.ext {
            if let Ext::Row(o) = e {
                self.opd(*o);
            }
        }
    }
    pub(super) fn term(&mut self, t: &LTerm) {
        match t {
            LTerm::Branch { pred, .. } => self.pred(*pred),
            LTerm::Switch { index, .. } => self.opd(*index),
            LTerm::Call {
                callee: LCallee::Indirect(o),
                ..
            } => self.opd(*o),
            LTerm::Barrier(b) => {
                self.opd(b.id);
                self.opd(b.count.unwrap_or_default());
                self.pred(b.pred);
                // The result is written when the barrier opens, with the block's end long past:
                // both.
                match b.dest {
                    Opd::Def(v) => self.opd(Opd::Both(v)),
                    o => self.opd(o),
                }
                match b.dest_pred {
                    PredRef::Def(v) => self.pred(PredRef::Both(v)),
                    p => self.pred(p),
                }
            }
            _ => {}
        }
    }
}

pub(super) fn successors(t: &LTerm) -> Vec<usize> {
    match t {
        LTerm::Jump(b)
        | LTerm::WarpSync(b)
        | LTerm::Yield(b)
        | LTerm::Nap(b)
        | LTerm::AwaitProducts(_, b)
        | LTerm::TakeRegisters(_, b) => vec![*b],
        LTerm::Branch { taken, fall, .. } => vec![*taken, *fall],
        LTerm::Switch { targets, .. } => targets.clone(),
        LTerm::Call { next, .. } => vec![*next],
        LTerm::Barrier(b) => vec![b.next],
        _ => vec![],
    }
}

/// Assigns registers and makes the final code.
pub(crate) fn assign(mut l: Lower<'_, '_>, name: Arc<str>) -> Result<FunctionCode, String> {
    thread_jumps(&mut l);
    let succ: Vec<Vec<usize>> = l
        .blocks
        .iter()
        .map(|b| b.term.as_ref().map(successors).unwrap_or_default())
        .collect();
    let order = super::cfg::order(&succ);
    let mut index = vec![u32::MAX; l.blocks.len()];
    for (i, &b) in order.iter().enumerate() {
        index[b] = i as u32;
    }

    let ranges = live_ranges(&l, &order, &succ);
    let plan = scan(&l.classes, &ranges.0)?;
    let fixed_at = plan.rows;
    let frame_rows = plan.rows + l.fixed_rows;
    if frame_rows > MAX_ROWS {
        return Err(format!("{name} needs {frame_rows} rows of registers"));
    }

    let mut const_rows = 0;
    let mut consts = Vec::new();
    let mut const_at = Vec::new();
    for c in &l.consts {
        const_at.push(const_rows);
        consts.push((const_rows, c.clone()));
        const_rows += c.rows();
    }

    if const_rows > MAX_ROWS {
        return Err(format!("{name} needs {const_rows} rows of constants"));
    }

    // Every operand of every instruction and block is made here, so here it is seen that each stays
    // inside its bank.
    let stray = Cell::new(false);
    let opd = |o: Opd| {
        let o = match o {
            Opd::None => RowOperand::reg(0),
            Opd::Use(v) | Opd::Def(v) | Opd::Both(v) => RowOperand::reg(plan.at[v as usize]),
            Opd::UseHigh(v) | Opd::DefHigh(v) => RowOperand::reg(plan.at[v as usize]).plus(2),
            Opd::Const(c) => RowOperand::constant(const_at[c as usize]),
            Opd::Fixed(r) => RowOperand::reg(fixed_at + r),
        };
        let end = if o.is_const() {
            const_rows
        } else {
            frame_rows.max(1)
        };
        stray.set(stray.get() | (o.row() >= end));
        o
    };
    let pred = |p: PredRef| {
        let p = match p {
            PredRef::True => PredOperand::TRUE,
            PredRef::False => PredOperand::FALSE,
            PredRef::Use(v, n) => PredOperand::new(plan.at[v as usize], n),
            PredRef::Def(v) | PredRef::Both(v) => PredOperand::new(plan.at[v as usize], false),
        };
        stray.set(stray.get() | (p.slot() >= plan.preds));
        p
    };
    let fixed = |list: &[(u32, u32)]| {
        let placed = list.iter().map(|&(r, n)| (fixed_at + r, n));
        stray.set(stray.get() | placed.clone().any(|(r, n)| r + n > frame_rows));
        placed.collect::<Vec<_>>()
    };

    let guard_f = guarded().pick(l.k.isa);
    let mut insts = Vec::new();
    let mut origins = Vec::new();
    let mut ext = Vec::new();
    let mut blocks = Vec::new();
    for &b in &order {
        let block = &l.blocks[b];
        let start = insts.len() as u32;
        for i in &block.insts {
            let f = i.handlers.pick(l.k.isa);
            let guard = pred(i.guard);
            let mut x = i.x;
            if let Some(p) = i.x_pred {
                x = pred(p).bits();
            }
            if !i.ext.is_empty() {
                x = ext.len() as u32;
                ext.extend(i.ext.iter().map(|e| match e {
                    Ext::Row(o) => opd(*o).bits(),
                    Ext::Raw(n) => *n,
                }));
            }
            let mut imm = i.imm;
            if let Some(p) = i.imm_lo {
                imm = (imm & !0xffff_ffff) | u64::from(pred(p).bits());
            }
            if let Some(p) = i.imm_hi {
                imm = (imm & 0xffff_ffff) | (u64::from(pred(p).bits()) << 32);
            }
            insts.push(DecodedInst {
                f: if i.guard == PredRef::True { f } else { guard_f },
                inner: f,
                d: opd(i.d),
                a: opd(i.a),
                b: opd(i.b),
                c: opd(i.c),
                guard,
                x,
                imm,
            });
            origins.push(i.origin);
        }
        let next = |b: usize| index[b];
        let end = insts.len() as u32;
        let term = match block.term.as_ref().ok_or("a block without an end")? {
            LTerm::Jump(b) => Terminator::Jump(next(*b)),
            LTerm::Branch {
                pred: p,
                taken,
                fall,
            } => Terminator::Branch {
                pred: pred(*p),
                taken: next(*taken),
                fall: next(*fall),
            },
            LTerm::Switch { index: i, targets } => Terminator::Switch {
                index: opd(*i),
                targets: targets.iter().map(|b| next(*b)).collect(),
            },
            LTerm::Call {
                callee,
                args,
                rets,
                next: n,
            } => Terminator::Call(Box::new(CallTerminator {
                callee: match callee {
                    LCallee::Direct(f) => Callee::Direct(*f),
                    LCallee::Indirect(o) => Callee::Indirect(opd(*o)),
                    LCallee::Printf => Callee::Printf,
                    LCallee::AssertFail => Callee::AssertFail,
                    LCallee::Malloc => Callee::Malloc,
                    LCallee::Free => Callee::Free,
                },
                args: fixed(args).into(),
                rets: fixed(rets).into(),
                next: next(*n),
            })),
            LTerm::Ret => Terminator::Ret,
            LTerm::Exit => Terminator::Exit,
            LTerm::Barrier(b) => Terminator::Barrier(Box::new(BarrierSite {
                op: b.op,
                aligned: b.aligned,
                id: opd(b.id),
                count: b.count.map(opd),
                pred: pred(b.pred),
                dest: opd(b.dest),
                dest_pred: pred(b.dest_pred),
                next: next(b.next),
            })),
            LTerm::WarpSync(b) => Terminator::WarpSync(next(*b)),
            LTerm::Yield(b) => Terminator::Yield(next(*b)),
            LTerm::Nap(b) => Terminator::Nap(next(*b)),
            LTerm::TakeRegisters(wanted, b) => Terminator::TakeRegisters {
                wanted: *wanted,
                next: next(*b),
            },
            LTerm::AwaitProducts(keep, b) => Terminator::AwaitProducts {
                keep: *keep,
                next: next(*b),
            },
            LTerm::Trap => Terminator::Trap,
            LTerm::NotImplemented(t) => Terminator::NotImplemented(t.clone()),
            LTerm::Bad(t) => Terminator::Bad(t.clone()),
        };
        // Ends of blocks have origins of their own, behind the instructions.
        blocks.push(CodeBlock {
            start,
            end,
            sync: block.sync.map(opd),
            whole: block.whole,
            term,
            term_pc: b as u32,
        });
    }
    let base = origins.len() as u32;
    for (n, &b) in order.iter().enumerate() {
        blocks[n].term_pc = base + n as u32;
        origins.push(l.blocks[b].origin);
    }

    let (params, rets) = (fixed(&l.params), fixed(&l.rets));
    if stray.get() {
        return Err(format!("an operand of {name} lies outside its frame"));
    }
    let code = FunctionCode {
        name,
        insts,
        origins,
        blocks,
        ext,
        lane_fns: l.lane_fns,
        products: l.products,
        group_products: l.group_products,
        consts,
        const_rows,
        rows: frame_rows.max(1),
        preds: plan.preds,
        params,
        rets,
        local_bytes: l.local_bytes.next_multiple_of(16),
        zeroed: ranges.1,
    };
    code.verify()?;
    Ok(code)
}

/// Jumps to empty blocks that only jump go where those go.
fn thread_jumps(l: &mut Lower<'_, '_>) {
    let target = |l: &Lower<'_, '_>, mut b: usize| {
        for _ in 0..16 {
            match &l.blocks[b] {
                x if x.insts.is_empty() && x.sync.is_none() => match x.term {
                    Some(LTerm::Jump(n)) if n != b => b = n,
                    _ => break,
                },
                _ => break,
            }
        }
        b
    };
    for n in 0..l.blocks.len() {
        let Some(mut t) = l.blocks[n].term.take() else {
            continue;
        };
        match &mut t {
            LTerm::Jump(b) => *b = target(l, *b),
            LTerm::Branch { taken, fall, .. } => {
                *taken = target(l, *taken);
                *fall = target(l, *fall);
            }
            LTerm::Switch { targets, .. } => targets.iter_mut().for_each(|b| *b = target(l, *b)),
            _ => {}
        }
        l.blocks[n].term = Some(t);
    }
    // A block with one predecessor that only jumps to it is the rest of that predecessor.
    let mut count = vec![0u32; l.blocks.len()];
    count[0] = 1;
    for b in &l.blocks {
        for s in b.term.as_ref().map(successors).unwrap_or_default() {
            count[s] += 1;
        }
    }
    let mut reached = vec![false; l.blocks.len()];
    let mut work = vec![0];
    while let Some(b) = work.pop() {
        if std::mem::replace(&mut reached[b], true) {
            continue;
        }
        while let Some(LTerm::Jump(n)) = l.blocks[b].term {
            // Dead predecessors are counted too, which only loses a merge.
            if n == b || count[n] != 1 || l.blocks[n].sync.is_some() || reached[n] {
                break;
            }
            let mut tail = std::mem::take(&mut l.blocks[n].insts);
            l.blocks[b].insts.append(&mut tail);
            l.blocks[b].term = l.blocks[n].term.take();
            l.blocks[b].origin = l.blocks[n].origin;
            l.blocks[n].term = Some(LTerm::Jump(n));
        }
        work.extend(
            l.blocks[b]
                .term
                .as_ref()
                .map(successors)
                .unwrap_or_default(),
        );
    }
}

/// First and last position of each register (inclusive), and whether any is alive on entry.
fn live_ranges(
    l: &Lower<'_, '_>,
    order: &[usize],
    succ: &[Vec<usize>],
) -> (Vec<Option<(u32, u32)>>, bool) {
    let words = l.classes.len().div_ceil(64);
    let n = l.blocks.len();
    let mut gen_ = vec![vec![0u64; words]; n];
    let mut kill = vec![vec![0u64; words]; n];
    let mut touch = RegisterUse::default();
    for &b in order {
        let block = &l.blocks[b];
        if let Some(o) = block.sync {
            touch.clear();
            touch.opd(o);
            for &v in &touch.uses {
                gen_[b][v as usize / 64] |= 1 << (v % 64);
            }
        }
        for step in 0..=block.insts.len() {
            touch.clear();
            match block.insts.get(step) {
                Some(i) => touch.inst(i),
                None => {
                    if let Some(t) = &block.term {
                        touch.term(t);
                    }
                }
            }
            for &v in &touch.uses {
                let (w, m) = (v as usize / 64, 1u64 << (v % 64));
                if kill[b][w] & m == 0 {
                    gen_[b][w] |= m;
                }
            }
            for &v in &touch.defs {
                kill[b][v as usize / 64] |= 1 << (v % 64);
            }
        }
    }
    let mut live_in = gen_.clone();
    let mut changed = true;
    while changed {
        changed = false;
        for &b in order.iter().rev() {
            for w in 0..words {
                let out = succ[b].iter().fold(0, |x, &s| x | live_in[s][w]);
                let new = gen_[b][w] | (out & !kill[b][w]);
                if new != live_in[b][w] {
                    live_in[b][w] = new;
                    changed = true;
                }
            }
        }
    }
    let mut range: Vec<Option<(u32, u32)>> = vec![None; l.classes.len()];
    let mut extend = |v: usize, p: u32| {
        let r = range[v].get_or_insert((p, p));
        r.0 = r.0.min(p);
        r.1 = r.1.max(p);
    };
    let each = |set: &[u64], f: &mut dyn FnMut(usize)| {
        for (w, &bits) in set.iter().enumerate() {
            let mut m = bits;
            while m != 0 {
                f(w * 64 + m.trailing_zeros() as usize);
                m &= m - 1;
            }
        }
    };
    let mut at = 0u32;
    for &b in order {
        each(&live_in[b], &mut |v| extend(v, at));
        for step in 0..=l.blocks[b].insts.len() {
            touch.clear();
            match l.blocks[b].insts.get(step) {
                Some(i) => touch.inst(i),
                None => {
                    if let Some(t) = &l.blocks[b].term {
                        touch.term(t);
                    }
                }
            }
            for &v in touch.uses.iter().chain(&touch.defs) {
                extend(v as usize, at);
            }
            at += 1;
        }
        let end = at;
        for &s in &succ[b] {
            each(&live_in[s], &mut |v| extend(v, end));
        }
        at += 1;
    }
    let entry = order
        .first()
        .is_some_and(|&b| live_in[b].iter().any(|&w| w != 0));
    (range, entry)
}

struct RowAssignment {
    /// Row or predicate slot of each register.
    at: Vec<u32>,
    rows: u32,
    preds: u32,
}

/// Free places of one width.
#[derive(Default)]
struct FreeRows(Vec<bool>);

impl FreeRows {
    fn take(&mut self, n: usize) -> u32 {
        let free = &mut self.0;
        let mut run = 0;
        let mut at = None;
        for (i, &is_free) in free.iter().enumerate() {
            run = if is_free { run + 1 } else { 0 };
            if run == n {
                at = Some(i + 1 - n);
                break;
            }
        }
        let at = at.unwrap_or_else(|| {
            let tail = free.iter().rev().take_while(|&&f| f).count().min(n);
            let at = free.len() - tail;
            free.resize(at + n, true);
            at
        });
        free[at..at + n].fill(false);
        at as u32
    }

    fn give(&mut self, at: u32, n: usize) {
        self.0[at as usize..at as usize + n].fill(true);
    }
}

/// Linear scan. Rows of 32-bit and of 64-bit lanes have places of their own: a lane's bytes differ
/// between the two, so lanes that have diverged would write over each other's if a place were one
/// today and the other tomorrow.
fn scan(classes: &[RegisterClass], ranges: &[Option<(u32, u32)>]) -> Result<RowAssignment, String> {
    let mut by_start: Vec<usize> = (0..classes.len())
        .filter(|&v| ranges[v].is_some())
        .collect();
    by_start.sort_by_key(|&v| ranges[v]);
    let mut plan = RowAssignment {
        at: vec![0; classes.len()],
        rows: 0,
        preds: 1,
    };
    let (mut narrow, mut wide) = (FreeRows::default(), FreeRows::default());
    let mut pred_free: Vec<u32> = Vec::new();
    let mut active: std::collections::BinaryHeap<std::cmp::Reverse<(u32, usize)>> =
        Default::default();
    for v in by_start {
        let Some((start, end)) = ranges[v] else {
            continue;
        };
        while let Some(&std::cmp::Reverse((e, old))) = active.peek() {
            if e >= start {
                break;
            }
            active.pop();
            match classes[old] {
                RegisterClass::Pred => pred_free.push(plan.at[old]),
                RegisterClass::Rows(1) => narrow.give(plan.at[old], 1),
                RegisterClass::Rows(n) => wide.give(plan.at[old], usize::from(n) / 2),
            }
        }
        plan.at[v] = match classes[v] {
            RegisterClass::Pred => pred_free.pop().unwrap_or_else(|| {
                plan.preds += 1;
                plan.preds - 1
            }),
            RegisterClass::Rows(1) => narrow.take(1),
            RegisterClass::Rows(n) => wide.take(usize::from(n) / 2),
        };
        active.push(std::cmp::Reverse((end, v)));
        if narrow.0.len() + 2 * wide.0.len() > MAX_ROWS as usize {
            return Err("too many registers live at once".to_owned());
        }
    }
    // Wide ones stand behind the narrow ones.
    let base = narrow.0.len() as u32;
    for (v, class) in classes.iter().enumerate() {
        if matches!(class, RegisterClass::Rows(2..)) {
            plan.at[v] = base + 2 * plan.at[v];
        }
    }
    plan.rows = base + 2 * wide.0.len() as u32;
    Ok(plan)
}
