//! Constants in place of registers that only ever hold a copy of one, or a sum with one.
//!
//! A kernel's parameters and the sizes of its launch are constants while it runs, and compilers
//! copy them to registers, and those to others, in every thread. A register that one instruction
//! writes, a copy of a constant in all lanes, is that constant wherever it is read: reading it
//! before it is written has no defined outcome. A copy that nothing reads any more is left out.

use super::access::BASED;
use super::assign::RegisterUse;
use super::lower::{Ext, InstRole, LInst, Lower, Opd, PredRef, RegisterClass, VirtualReg};

/// Copies of copies that are followed.
const ROUNDS: usize = 8;
/// How far before an access its sum is looked for, in instructions.
const NEAR: usize = 64;

/// Puts constants in the place of registers wherever an instruction only reads them.
pub(crate) fn constants(l: &mut Lower<'_, '_>) {
    for _ in 0..ROUNDS {
        let found = copied_constants(l);
        let mut changed = false;
        for i in l.blocks.iter_mut().flat_map(|b| &mut b.insts) {
            // `d` of a store is a source, but never a constant.
            let further = i.ext.iter_mut().filter_map(|e| match e {
                Ext::Row(o) => Some(o),
                Ext::Raw(_) => None,
            });
            for o in [&mut i.a, &mut i.b, &mut i.c].into_iter().chain(further) {
                if let Opd::Use(v) = *o
                    && let Some(c) = found[v as usize]
                {
                    *o = Opd::Const(c);
                    changed = true;
                }
            }
        }
        if !changed {
            break;
        }
    }
    let (uses, defs) = counts(l);
    for b in &mut l.blocks {
        b.insts.retain(|i| {
            copy_of(i).is_none_or(|(v, _)| uses[v as usize] > 0 || defs[v as usize] != 1)
        });
    }
}

/// Has accesses of global memory add the constant to an offset that a sum before them does, such as
/// a parameter that points to an array. Sums that nothing else reads are left out.
pub(crate) fn bases(l: &mut Lower<'_, '_>) {
    let (_, defs) = counts(l);
    for b in &mut l.blocks {
        for at in 0..b.insts.len() {
            let access = &b.insts[at];
            let Opd::Use(address) = access.a else {
                continue;
            };
            if access.role != InstRole::Access || defs[address as usize] != 1 {
                continue;
            }
            let from = at.saturating_sub(NEAR);
            let found = b.insts[from..at]
                .iter()
                .rposition(|i| i.d == Opd::Def(address));
            if let Some(sum) = found.map(|n| from + n)
                && let Some((offset, base)) = based_sum(&b.insts[sum])
                && offset != address
                && !is_written(&b.insts[sum + 1..at], offset)
            {
                let access = &mut b.insts[at];
                access.a = Opd::Use(offset);
                access.b = Opd::Const(base);
                access.imm |= BASED;
            }
        }
    }
    let (uses, defs) = counts(l);
    for b in &mut l.blocks {
        b.insts.retain(|i| match (based_sum(i), i.d) {
            (Some(_), Opd::Def(v)) => uses[v as usize] > 0 || defs[v as usize] != 1,
            _ => true,
        });
    }
}

/// The register and the constant that a sum adds in all lanes.
fn based_sum(i: &LInst) -> Option<(VirtualReg, u32)> {
    match (
        i.role == InstRole::Sum && i.guard == PredRef::True,
        i.a,
        i.b,
    ) {
        (true, Opd::Use(v), Opd::Const(c)) | (true, Opd::Const(c), Opd::Use(v)) => Some((v, c)),
        _ => None,
    }
}

fn is_written(insts: &[LInst], v: VirtualReg) -> bool {
    let mut touch = RegisterUse::default();
    insts.iter().for_each(|i| touch.inst(i));
    touch.defs.contains(&v)
}

/// The register that a copy of a constant writes, and the constant.
fn copy_of(i: &LInst) -> Option<(VirtualReg, u32)> {
    match (
        i.role == InstRole::Copy && i.guard == PredRef::True,
        i.d,
        i.a,
    ) {
        (true, Opd::Def(v), Opd::Const(c)) => Some((v, c)),
        _ => None,
    }
}

/// How often each register is read, and how often written.
fn counts(l: &Lower<'_, '_>) -> (Vec<u32>, Vec<u32>) {
    let mut touch = RegisterUse::default();
    for b in &l.blocks {
        for i in &b.insts {
            touch.inst(i);
        }
        if let Some(t) = &b.term {
            touch.term(t);
        }
        if let Some(o) = b.sync {
            touch.opd(o);
        }
    }
    let count = |list: &[VirtualReg]| {
        let mut n = vec![0; l.classes.len()];
        for &v in list {
            n[v as usize] += 1;
        }
        n
    };
    (count(&touch.uses), count(&touch.defs))
}

/// The constant that each register is, of those that are one.
fn copied_constants(l: &Lower<'_, '_>) -> Vec<Option<u32>> {
    let (_, defs) = counts(l);
    let mut found = vec![None; l.classes.len()];
    for (v, c) in l.blocks.iter().flat_map(|b| &b.insts).filter_map(copy_of) {
        let class = RegisterClass::Rows(l.consts[c as usize].rows() as u8);
        if defs[v as usize] == 1 && l.classes[v as usize] == class {
            found[v as usize] = Some(c);
        }
    }
    found
}
