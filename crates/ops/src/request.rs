//! Request of a plan to a kernel: an op, layouts, and what the device has.

use fercuda_tensor::Layout;

use crate::descriptor::OpDescriptor;

/// What a kernel is asked for.
#[derive(Clone, Copy, Debug)]
pub struct OpRequest<'a> {
    /// The op.
    pub op: &'a OpDescriptor,
    /// Layouts of the operands.
    pub operands: &'a [Layout],
    /// Layouts of the outputs.
    pub outputs: &'a [Layout],
    /// Architecture of the device: 90 for `sm_90`.
    pub arch: u32,
    /// Why CUDA C++ cannot be compiled, if it cannot.
    pub no_compiler: Option<&'a str>,
    /// Why cuBLASLt cannot be used, if it cannot.
    pub no_cublaslt: Option<&'a str>,
    /// Why cuFFT cannot be used, if it cannot.
    pub no_cufft: Option<&'a str>,
}
