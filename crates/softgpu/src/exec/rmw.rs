//! New values that atomics give a word in memory.

use super::scalar::RoundMode;
use super::scalar::float::{self, Extremum};
use super::scalar::half::{self, BF16, F16, HalfFormat};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Rmw {
    Add,
    Exch,
    Cas,
    Inc,
    Dec,
    Min,
    Max,
    And,
    Or,
    Xor,
}

pub(crate) const RMW: [Rmw; 10] = [
    Rmw::Add,
    Rmw::Exch,
    Rmw::Cas,
    Rmw::Inc,
    Rmw::Dec,
    Rmw::Min,
    Rmw::Max,
    Rmw::And,
    Rmw::Or,
    Rmw::Xor,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum AtomicKind {
    B16,
    B32,
    B64,
    B128,
    S32,
    S64,
    F32,
    F64,
    F16,
    Bf16,
    F16x2,
    Bf16x2,
}

pub(crate) const KINDS: [AtomicKind; 12] = [
    AtomicKind::B16,
    AtomicKind::B32,
    AtomicKind::B64,
    AtomicKind::B128,
    AtomicKind::S32,
    AtomicKind::S64,
    AtomicKind::F32,
    AtomicKind::F64,
    AtomicKind::F16,
    AtomicKind::Bf16,
    AtomicKind::F16x2,
    AtomicKind::Bf16x2,
];

impl AtomicKind {
    pub(crate) fn size(self) -> u32 {
        match self {
            AtomicKind::B16 | AtomicKind::F16 | AtomicKind::Bf16 => 2,
            AtomicKind::B64 | AtomicKind::S64 | AtomicKind::F64 => 8,
            AtomicKind::B128 => 16,
            _ => 4,
        }
    }
}

fn add_half(format: HalfFormat, a: u64, b: u64) -> u64 {
    let finish = half::HalfFinish {
        ftz: false,
        sat: false,
        relu: false,
    };
    u64::from(half::add(format, a as u16, b as u16, finish))
}

/// The new value of a location of global memory, where the card adds in other units than in shared
/// memory: f32 sums flush subnormals on the way in and out, and f64 sums pass a NaN on as it is,
/// the operand's before the location's.
pub(crate) fn apply_global(op: Rmw, kind: AtomicKind, old: u64, b: u64, c: u64) -> u64 {
    match (op, kind) {
        (Rmw::Add, AtomicKind::F32) => {
            let flush = float::FloatFinish {
                ftz: true,
                sat: false,
            };
            let (x, y) = (f32::from_bits(old as u32), f32::from_bits(b as u32));
            u64::from(float::add(x, y, RoundMode::Nearest, flush).to_bits())
        }
        (Rmw::Add, AtomicKind::F64) if f64::from_bits(b).is_nan() => b,
        (Rmw::Add, AtomicKind::F64) if f64::from_bits(old).is_nan() => old,
        _ => apply(op, kind, old, b, c),
    }
}

/// The new value of one location.
pub(crate) fn apply(op: Rmw, kind: AtomicKind, old: u64, b: u64, c: u64) -> u64 {
    let half2 = |f: fn(u64, u64) -> u64| {
        f(old & 0xffff, b & 0xffff) | (f(old >> 16 & 0xffff, b >> 16 & 0xffff) << 16)
    };
    match (op, kind) {
        (Rmw::Exch, _) => b,
        (Rmw::Cas, _) => {
            if old == b {
                c
            } else {
                old
            }
        }
        (Rmw::And, _) => old & b,
        (Rmw::Or, _) => old | b,
        (Rmw::Xor, _) => old ^ b,
        (Rmw::Inc, _) => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        (Rmw::Dec, _) => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
        (Rmw::Add, AtomicKind::F32) => {
            let r = f32::from_bits(old as u32) + f32::from_bits(b as u32);
            u64::from(if r.is_nan() { 0x7fff_ffff } else { r.to_bits() })
        }
        (Rmw::Add, AtomicKind::F64) => {
            float::add_f64(f64::from_bits(b), f64::from_bits(old), RoundMode::Nearest).to_bits()
        }
        (Rmw::Add, AtomicKind::F16) => add_half(F16, old, b),
        (Rmw::Add, AtomicKind::Bf16) => add_half(BF16, old, b),
        (Rmw::Add, AtomicKind::F16x2) => half2(|x, y| add_half(F16, x, y)),
        (Rmw::Add, AtomicKind::Bf16x2) => half2(|x, y| add_half(BF16, x, y)),
        (Rmw::Add, AtomicKind::B64 | AtomicKind::S64) => old.wrapping_add(b),
        (Rmw::Add, _) => u64::from((old as u32).wrapping_add(b as u32)),
        (Rmw::Min, AtomicKind::S32) => u64::from((old as i32).min(b as i32) as u32),
        (Rmw::Max, AtomicKind::S32) => u64::from((old as i32).max(b as i32) as u32),
        (Rmw::Min, AtomicKind::S64) => (old as i64).min(b as i64) as u64,
        (Rmw::Max, AtomicKind::S64) => (old as i64).max(b as i64) as u64,
        (
            Rmw::Min | Rmw::Max,
            AtomicKind::F16 | AtomicKind::Bf16 | AtomicKind::F16x2 | AtomicKind::Bf16x2,
        ) => {
            let brain = matches!(kind, AtomicKind::Bf16 | AtomicKind::Bf16x2);
            let format = if brain { BF16 } else { F16 };
            let rule = Extremum {
                max: op == Rmw::Max,
                nan: false,
                xorsign: false,
                ftz: false,
            };
            let one = |x: u64, y: u64| u64::from(half::extremum(format, x as u16, y as u16, rule));
            let low = one(old & 0xffff, b & 0xffff);
            if kind.size() == 2 {
                low
            } else {
                low | (one(old >> 16 & 0xffff, b >> 16 & 0xffff) << 16)
            }
        }
        (Rmw::Min, _) => old.min(b),
        (Rmw::Max, _) => old.max(b),
    }
}
