//! Host references: the expected outputs of each launch of the corpus, written from the algorithm.
//!
//! Invariant: nothing here reads a kernel or runs one. Sums that the device rounds in its own order
//! are computed in f64 and compared with a bound from the sizes; everything else is exact.
//! Elsewhere: comparing (`data`), arithmetic with a chosen rounding ([`exact`]).

use crate::data::{Case, Expected};
use crate::rng::Rng;

mod algorithms;
mod arithmetic;
mod atomics;
mod control;
mod convert;
mod exact;
mod galois;
mod integers;
mod maths;
mod memory;
mod quantised;
mod reductions;
mod tensor;

/// Computes the expected outputs of one `run` of a header.
pub struct Reference {
    /// The run's name.
    pub run: &'static str,
    /// Fills the inputs that the header calls `made`.
    pub make: Option<fn(&mut Case, &mut Rng)>,
    /// From inputs to outputs.
    pub expect: fn(&Case, &mut Expected),
}

impl Reference {
    const fn new(run: &'static str, expect: fn(&Case, &mut Expected)) -> Reference {
        Reference {
            run,
            make: None,
            expect,
        }
    }

    const fn made(
        run: &'static str,
        make: fn(&mut Case, &mut Rng),
        expect: fn(&Case, &mut Expected),
    ) -> Reference {
        Reference {
            run,
            make: Some(make),
            expect,
        }
    }
}

/// The reference of the run called `name`.
pub fn find(name: &str) -> Option<&'static Reference> {
    all().find(|r| r.run == name)
}

/// Every reference.
pub fn all() -> impl Iterator<Item = &'static Reference> {
    [
        algorithms::TABLE,
        arithmetic::TABLE,
        atomics::TABLE,
        control::TABLE,
        convert::TABLE,
        galois::TABLE,
        integers::TABLE,
        maths::TABLE,
        memory::TABLE,
        quantised::TABLE,
        reductions::TABLE,
        tensor::TABLE,
    ]
    .into_iter()
    .flatten()
}

/// Half an ulp of one in f32: the largest relative error of one rounding.
const UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// How far a sum of `terms` rounded f32 operations can be from the truth, the magnitudes adding up
/// to `size`.
fn rounded(terms: usize, size: f64) -> f64 {
    let nu = terms as f64 * UNIT;
    nu / (1.0 - nu) * size + f64::from(f32::MIN_POSITIVE)
}

/// A sum and its bound, from the values and the longest chain of roundings any of them meets.
fn summed(values: impl Iterator<Item = f64>, chain: usize) -> (f64, f64) {
    let (sum, size) = values.fold((0.0, 0.0), |(s, a), v| (s + v, a + f64::abs(v)));
    (sum, rounded(chain, size))
}
