//! Element types of matrix products, and the values of their bits.

use super::scalar::half::{E4M3, E5M2, F16};

/// Element type of A or B.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum MmaElement {
    F16,
    Bf16,
    Tf32,
    F64,
    E4m3,
    E5m2,
    S8,
    U8,
    S4,
    U4,
    B1,
}

impl MmaElement {
    /// Width in a register.
    pub(crate) const fn bits(self) -> u32 {
        match self {
            MmaElement::F64 => 64,
            MmaElement::Tf32 => 32,
            MmaElement::F16 | MmaElement::Bf16 => 16,
            MmaElement::E4m3 | MmaElement::E5m2 | MmaElement::S8 | MmaElement::U8 => 8,
            MmaElement::S4 | MmaElement::U4 => 4,
            MmaElement::B1 => 1,
        }
    }

    pub(crate) const fn is_float(self) -> bool {
        matches!(
            self,
            MmaElement::F16
                | MmaElement::Bf16
                | MmaElement::Tf32
                | MmaElement::F64
                | MmaElement::E4m3
                | MmaElement::E5m2
        )
    }

    #[inline]
    pub(crate) fn float(self, raw: u64) -> f64 {
        match self {
            MmaElement::F16 => F16.value(raw as u32),
            MmaElement::Bf16 => f64::from(f32::from_bits((raw as u32) << 16)),
            // The multiplier reads 19 of the 32 bits.
            MmaElement::Tf32 => f64::from(f32::from_bits(raw as u32 & 0xffff_e000)),
            MmaElement::F64 => f64::from_bits(raw),
            MmaElement::E4m3 => E4M3.value(raw as u32),
            MmaElement::E5m2 => E5M2.value(raw as u32),
            _ => self.integer(raw) as f64,
        }
    }

    #[inline]
    pub(crate) fn integer(self, raw: u64) -> i64 {
        match self {
            MmaElement::S8 => i64::from(raw as i8),
            MmaElement::S4 => i64::from((raw as i8) << 4 >> 4),
            _ => raw as i64,
        }
    }
}

/// Element type of C and D.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Accumulator {
    F16,
    F32,
    F64,
    S32,
}

/// Largest m and n of any shape.
pub(crate) const MAX_MN: usize = 32;
