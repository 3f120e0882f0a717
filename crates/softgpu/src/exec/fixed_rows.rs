//! Parameters of calls in fixed rows, and those of the kernel at constant offsets.

use super::basics;
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, Handlers, handlers, lane_ops, map1, map2};
use super::lower::{Lower, Opd};
use super::registers::{ALL, LANES};

/// Eight bytes of the kernel's parameters at a constant offset: the same in all lanes.
struct LoadParameter;
impl Exec for LoadParameter {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let v = ctx.run.spec.parameter(i.imm as u32, 8);
        let mask = if FULL { ALL } else { ctx.mask };
        ctx.rows.set_row(i.d, &[v; LANES], mask);
    }
}

/// Reads eight bytes of the kernel's parameters from `imm` on.
pub(crate) fn load_parameter64() -> Handlers {
    handlers::<LoadParameter>()
}

lane_ops! {
    WordToLow = map1(u64, u32) |a| a as u32;
    WordToHigh = map1(u64, u32) |a| (a >> 32) as u32;
    WordsToLong = map2(u32, u32, u64) |a, b| u64::from(a) | (u64::from(b) << 32);
}

/// `d = (a >> imm[0..8]) & imm[32..]`.
struct Extract;
impl Exec for Extract {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let (s, m) = (i.imm as u32 & 31, (i.imm >> 32) as u32);
        map1::<u32, u32, FULL>(ctx, i, |a| (a >> s) & m);
    }
}

/// `d = (b & !(m << s)) | ((a & m) << s)`.
struct BitInsert;
impl Exec for BitInsert {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let (s, m) = (i.imm as u32 & 31, (i.imm >> 32) as u32);
        map2::<u32, u32, u32, FULL>(ctx, i, |a, b| (b & !(m << s)) | ((a & m) << s));
    }
}

/// Reads a parameter of a call from fixed rows: `bytes` (1, 2, 4, 8) from byte `at` of `row` on.
pub(crate) fn load_fixed_at(l: &mut Lower<'_, '_>, d: Opd, row: u32, at: u32, bytes: u32) {
    let r = row + at / 4;
    match bytes {
        8 => {
            l.emit(
                handlers::<WordsToLong>(),
                d,
                Opd::Fixed(r),
                Opd::Fixed(r + 1),
                Opd::None,
            );
        }
        4 => {
            l.emit(basics::copy32(), d, Opd::Fixed(r), Opd::None, Opd::None);
        }
        n => {
            l.emit(
                handlers::<Extract>(),
                d,
                Opd::Fixed(r),
                Opd::None,
                Opd::None,
            )
            .imm = u64::from(8 * (at % 4)) | (((1 << (8 * n)) - 1) << 32);
        }
    }
}

/// Writes a parameter of a call to fixed rows.
pub(crate) fn store_fixed_at(l: &mut Lower<'_, '_>, a: Opd, row: u32, at: u32, bytes: u32) {
    let r = row + at / 4;
    match bytes {
        8 => {
            l.emit(
                handlers::<WordToLow>(),
                Opd::Fixed(r),
                a,
                Opd::None,
                Opd::None,
            );
            l.emit(
                handlers::<WordToHigh>(),
                Opd::Fixed(r + 1),
                a,
                Opd::None,
                Opd::None,
            );
        }
        4 => {
            l.emit(basics::copy32(), Opd::Fixed(r), a, Opd::None, Opd::None);
        }
        n => {
            l.emit(
                handlers::<BitInsert>(),
                Opd::Fixed(r),
                a,
                Opd::Fixed(r),
                Opd::None,
            )
            .imm = u64::from(8 * (at % 4)) | (((1 << (8 * n)) - 1) << 32);
        }
    }
}
