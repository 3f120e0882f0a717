//! Matrix products by cuBLASLt.
//!
//! [`CublasLtLibrary`] is the library, [`CublasLt`] its handle in a context, [`ProductSpec`] what
//! is multiplied, [`MatrixProduct`] that with its descriptors made, [`ProductAlgorithm`] one way to
//! compute it, [`ProductOperands`] the memory of one run.
//!
//! Every call of the library is in column-major order: a row-major matrix is its transpose there,
//! and a product with a row-major output is computed as the transposed product of the swapped
//! factors.

#[expect(unsafe_code, reason = "calls cuBLASLt through pointers")]
mod ffi;
mod form;
mod handle;
mod operands;
mod product;
mod spec;

pub use handle::{CublasLt, CublasLtLibrary};
pub use operands::{ProductOperands, ProductScaleFactors};
pub use product::{AlgorithmRequest, MatrixProduct, ProductAlgorithm, SplitSums};
pub use spec::{
    Addend, Epilogue, MatrixLayout, MatrixOrder, ProductActivation, ProductMath, ProductSpec,
    ScaledParts,
};
