//! Arithmetic of one lane.
//!
//! Everything here is a pure function of values, so each rule of the ISA (rounding, flushing,
//! saturation, NaN) is written once, and handlers only loop over lanes. The bits agree with an H200
//! (`testkit/isa`), those of `.approx` functions too.
//!
//! Elsewhere: lanes and masks (`lanes`), memory (`memory`), matrix operations (`mma`).

pub(crate) mod approx;
pub(crate) mod convert;
pub(crate) mod float;
pub(crate) mod half;
pub(crate) mod int;

/// IEEE 754 rounding directions of the ISA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RoundMode {
    /// To nearest, ties to even: `.rn`, `.rni`.
    Nearest,
    /// To nearest, ties away from zero: `.rna`.
    NearestAway,
    /// Toward zero: `.rz`, `.rzi`.
    Zero,
    /// Toward minus infinity: `.rm`, `.rmi`.
    Down,
    /// Toward plus infinity: `.rp`, `.rpi`.
    Up,
}

impl RoundMode {
    /// Whether a magnitude with the kept part `kept` (only its last bit matters) and a cut part
    /// that compares to half a unit as `cut` (`None`: nothing was cut) goes up in magnitude.
    #[inline(always)]
    fn increments(self, negative: bool, kept: u64, cut: Option<std::cmp::Ordering>) -> bool {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let Some(cut) = cut else { return false };
        match self {
            RoundMode::Nearest => match cut {
                Greater => true,
                Equal => kept & 1 == 1,
                Less => false,
            },
            RoundMode::NearestAway => cut != Less,
            RoundMode::Zero => false,
            RoundMode::Down => negative,
            RoundMode::Up => !negative,
        }
    }
}
