//! Fourier transforms by cuFFT.
//!
//! [`CufftLibrary`] is the library, [`TransformSpec`] what is transformed, [`TransformPlan`] that
//! with its plan made in a context.
//!
//! No transform is scaled: an inverse after a forward one multiplies by the number of elements.

#[expect(unsafe_code, reason = "calls cuFFT through pointers")]
mod ffi;
mod library;
mod plan;
mod spec;

pub use library::CufftLibrary;
pub use plan::TransformPlan;
pub use spec::{
    SignalLayout, TransformDirection, TransformKind, TransformPrecision, TransformSpec,
};
