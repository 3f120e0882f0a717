//! Errors of describing, planning and running an op.

use fercuda_jit::TypeClass;
use fercuda_kernels::KernelError;
use fercuda_tensor::Dtype;

/// Error of an op. Nothing was written to the output, except as [`OpError::Run`] says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// The device's properties cannot be read.
    #[error("the device: {0}")]
    Device(#[source] KernelError),
    /// No op has this name.
    #[error("there is no op {name:?}\ntry: {hint}")]
    Unknown {
        /// The name.
        name: String,
        /// Names that resemble it, or where all are listed.
        hint: String,
    },
    /// A wrong number of operands.
    #[error("{op} of {given} operands\ntry: {wanted}")]
    Operands {
        /// The op.
        op: &'static str,
        /// Number of layouts given.
        given: usize,
        /// The operands that it takes.
        wanted: String,
    },
    /// A type that the op does not accept.
    #[error("{op}: operand {operand} is {dtype}, it takes {wants}\ntry: the op `cast` first")]
    Dtype {
        /// The op.
        op: &'static str,
        /// The operand.
        operand: &'static str,
        /// Its type.
        dtype: Dtype,
        /// The accepted types.
        wants: TypeClass,
    },
    /// Operands that differ in type.
    #[error(
        "{op}: operand {operand} is {dtype}, the one before it {first}\ntry: one type for both, by the op `cast`"
    )]
    Mixed {
        /// The op.
        op: &'static str,
        /// The operand.
        operand: &'static str,
        /// Its type.
        dtype: Dtype,
        /// The type of the operand before it.
        first: Dtype,
    },
    /// A parameter that the op lacks, or one that it needs.
    #[error("{op}: {what}\ntry: {hint}")]
    Parameter {
        /// The op.
        op: &'static str,
        /// The problem.
        what: String,
        /// What to try.
        hint: String,
    },
    /// The operands' shapes, or their values of parameters, do not go together.
    #[error("{op} of {operands}: {what}\ntry: {hint}")]
    Shape {
        /// The op.
        op: &'static str,
        /// The operands' layouts.
        operands: String,
        /// The problem.
        what: String,
        /// What to try.
        hint: String,
    },
    /// The output's layout has another type or shape, or overlaps itself.
    #[error("{op}: the result is {wanted}, the output was given as {given}: {problem}")]
    Output {
        /// The op.
        op: &'static str,
        /// The result's type and shape.
        wanted: String,
        /// The output's layout.
        given: String,
        /// The problem.
        problem: String,
    },
    /// No kernel, or not the demanded one, can compute it.
    #[error("{op}: no kernel for it: {reasons}\ntry: {hint}")]
    Kernel {
        /// The op.
        op: &'static str,
        /// For each candidate its name and why it was not chosen.
        reasons: String,
        /// What to try.
        hint: String,
    },
    /// The plan's workspace was not given.
    #[error("{op} needs {bytes} bytes of workspace\ntry: a buffer of that size, aligned to 16")]
    Workspace {
        /// The op.
        op: &'static str,
        /// Its size.
        bytes: u64,
    },
    /// An index that a checked plan found outside of its axis.
    #[error(
        "{op}: index {index}, number {place} of those that are gone through, is outside of its axis\ntry: indices from 0 to below the extent"
    )]
    Index {
        /// The op.
        op: &'static str,
        /// The index.
        index: i64,
        /// Its number, in row-major order of the elements that the kernel goes through, extents of
        /// 1 and neighbours that are moved together left out.
        place: u64,
    },
    /// A library of NVIDIA's refused. Nothing is queued then.
    #[error("{op}: {error}")]
    Library {
        /// The op.
        op: &'static str,
        /// The cause.
        #[source]
        error: Box<fercuda_vendor::Error>,
    },
    /// The compiler or the driver refused. Of bindings that do not fit nothing is queued; if the
    /// driver refuses a launch, earlier kernels of the plan may have been queued.
    #[error("{op}: {error}")]
    Run {
        /// The op.
        op: &'static str,
        /// The cause.
        #[source]
        error: Box<KernelError>,
    },
}
