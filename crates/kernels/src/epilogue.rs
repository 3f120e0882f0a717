//! Epilogue of a matrix product: what `epilogue.cuh` does to each element.

use crate::view::MemoryView;

/// Function of each element of a product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// None.
    #[default]
    None,
    /// max(x, 0).
    Relu,
    /// x by the normal distribution's function.
    Gelu,
    /// x by its sigmoid.
    Silu,
}

/// What is done to each element of a product.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProductEpilogue<'a> {
    /// A factor of the product; 1 without one.
    pub scale: Option<f64>,
    /// One number for each column, added to it.
    pub bias: Option<&'a MemoryView>,
    /// A function of the sum.
    pub activation: Activation,
    /// Elements of the result's shape, added at the end.
    pub residual: Option<&'a MemoryView>,
}
