//! Table of ops: one row an op.
//!
//! Constants that a narrow type cannot represent stand in products only, where rounding them adds
//! no more than the product's own rounding: the bound of `oracle` relies on it.

mod activations;
mod algebra;
mod along;
mod arithmetic;
mod bounds;
mod comparisons;
mod dense;
mod indexing;
mod losses;
mod movement;
pub(crate) mod products;
mod random;
mod reductions;
mod rows;
mod scalar;
mod scans;
mod selection;
mod sorting;
mod spectra;
pub(crate) mod transforms;
mod windows;

use crate::row::OpRow;

/// The parts of the table, in the order of the families.
pub(crate) const PARTS: [&[OpRow]; 17] = [
    arithmetic::ROWS,
    movement::ROWS,
    comparisons::ROWS,
    activations::ROWS,
    reductions::ROWS,
    rows::ROWS,
    losses::ROWS,
    indexing::ROWS,
    random::ROWS,
    products::ROWS,
    windows::ROWS,
    scans::ROWS,
    sorting::ROWS,
    selection::ROWS,
    transforms::ROWS,
    algebra::ROWS,
    spectra::ROWS,
];
