//! Host references: the expected outputs of each launch of the corpus, written from the algorithm.
//!
//! Invariant: nothing here reads a kernel or runs one. Sums that the device rounds in its own order
//! are computed in f64 and compared with a bound from the sizes; everything else is exact.
//! Elsewhere: comparing (`data`), arithmetic with a chosen rounding ([`exact`]).

mod algorithms;
mod arithmetic;
mod atomics;
mod bounds;
mod control;
mod convert;
mod entry;
mod exact;
mod galois;
mod integers;
mod maths;
mod memory;
mod quantised;
mod reductions;
mod tensor;

pub use entry::Reference;

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
