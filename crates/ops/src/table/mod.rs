//! Table of ops: one row an op.
//!
//! Constants that a narrow type cannot represent stand in products only, where rounding them adds
//! no more than the product's own rounding: the bound of `oracle` relies on it.

mod activations;
mod algebra;
mod along;
mod approx;
mod arithmetic;
mod attention;
mod blocks;
mod bounds;
mod choices;
mod classes;
mod comparisons;
mod dense;
mod draws;
mod eigen;
mod experts;
mod indexing;
mod linear_losses;
mod losses;
mod maths;
mod movement;
mod norms;
mod optimisers;
mod pairs;
mod patches;
pub(crate) mod products;
mod quantisation;
mod random;
mod recurrences;
mod reductions;
mod rows;
mod sample_gradients;
mod samples;
mod scalar;
mod scans;
mod segments;
mod selection;
pub(crate) mod sequences;
mod slopes;
mod sorting;
mod sparse;
mod spectra;
mod spectral;
mod systems;
mod token_attentions;
pub(crate) mod token_products;
pub(crate) mod transforms;
mod window_gradients;
mod windows;

use crate::row::OpRow;

/// The parts of the table, in the order of the families.
pub(crate) const PARTS: [&[OpRow]; 43] = [
    arithmetic::ROWS,
    maths::ROWS,
    movement::ROWS,
    comparisons::ROWS,
    activations::ROWS,
    slopes::ROWS,
    reductions::ROWS,
    rows::ROWS,
    norms::ROWS,
    losses::ROWS,
    classes::ROWS,
    linear_losses::ROWS,
    optimisers::ROWS,
    quantisation::ROWS,
    blocks::ROWS,
    experts::ROWS,
    indexing::ROWS,
    segments::ROWS,
    random::ROWS,
    draws::ROWS,
    choices::ROWS,
    products::ROWS,
    token_products::ROWS,
    attention::ROWS,
    sequences::ROWS,
    token_attentions::ROWS,
    recurrences::ROWS,
    sparse::ROWS,
    windows::ROWS,
    window_gradients::ROWS,
    patches::ROWS,
    samples::ROWS,
    sample_gradients::ROWS,
    scans::ROWS,
    sorting::ROWS,
    selection::ROWS,
    transforms::ROWS,
    algebra::ROWS,
    systems::ROWS,
    pairs::ROWS,
    spectra::ROWS,
    spectral::ROWS,
    eigen::ROWS,
];
