//! Plans of ops, as the command runs them.
//!
//! Invariant: this is the one place here that depends on how plans are made and run.

use anyhow::Result;
use fercuda_cuda::Stream;
use fercuda_jit::BoundArg;
use fercuda_ops::{KERNELS, KernelPolicy, OpDescriptor, OpDevice, OpError, OpPlan};
use fercuda_tensor::Layout;
use serde::Serialize;

use crate::status::{UsageError, bail_usage};

/// Queues an op on operands, outputs and a workspace.
type QueueOp =
    dyn for<'a> Fn(&Stream, &[BoundArg<'a>], &[BoundArg<'a>], Option<BoundArg<'a>>) -> Result<()>;

/// A plan that can be run many times.
pub(super) struct PreparedOp {
    /// Layouts of the outputs, which are contiguous.
    pub outputs: Vec<Layout>,
    /// Size of the workspace that a run needs.
    pub workspace_bytes: u64,
    pub chosen: ChosenKernel,
    /// Queues a run.
    pub queue: Box<QueueOp>,
}

/// The kernel of a plan, and why.
#[derive(Debug, Serialize)]
pub(super) struct ChosenKernel {
    pub kernel: &'static str,
    pub reason: String,
    pub launches: usize,
    pub rejected: Vec<PassedKernel>,
}

/// A kernel that a plan does not use, and why.
#[derive(Debug, Serialize)]
pub(super) struct PassedKernel {
    pub kernel: &'static str,
    pub reason: String,
}

/// Chooses a kernel, or takes the one of that name, and compiles it.
///
/// # Errors
/// A usage error if the operands, parameters or the kernel do not fit.
pub(super) fn prepare(
    device: &OpDevice,
    op: &OpDescriptor,
    operands: &[Layout],
    kernel: Option<&str>,
) -> Result<PreparedOp> {
    // `cublaslt:2` is an algorithm of a library.
    let is_known = |id: &str| {
        let name = id.split(':').next();
        id == "measured" || KERNELS.iter().any(|kernel| Some(kernel.id) == name)
    };
    if let Some(id) = kernel.filter(|id| !is_known(id)) {
        let known = KERNELS.iter().filter(|kernel| (kernel.computes)(op.row()));
        let known: Vec<&str> = known.map(|kernel| kernel.id).collect();
        bail_usage!("there is no kernel {id:?}\ntry: {}", known.join(", "));
    }
    let policy = match kernel {
        None => KernelPolicy::Auto,
        Some("measured") => KernelPolicy::Measured,
        Some(id) => KernelPolicy::Force(id),
    };
    let plan = OpPlan::new(device, op, operands, &[], policy).map_err(refusal)?;
    let sku = plan.sku();
    let rejected = sku.rejected.iter().map(|other| PassedKernel {
        kernel: other.id,
        reason: other.reason.clone(),
    });
    Ok(PreparedOp {
        outputs: plan.outputs().to_vec(),
        workspace_bytes: plan.workspace_bytes(),
        chosen: ChosenKernel {
            kernel: sku.id,
            reason: sku.reason.clone(),
            launches: sku.launches,
            rejected: rejected.collect(),
        },
        queue: Box::new(move |stream, operands, outputs, workspace| {
            let queued = plan.run(stream, operands, outputs, workspace);
            queued.map_err(refusal)?;
            // Waits and reports an index outside of its axis, of a checked op alone.
            match &workspace {
                Some(workspace) => plan.check(stream, workspace).map_err(refusal),
                None => Ok(()),
            }
        }),
    })
}

/// An error of an op as one of the command: a usage error, unless the device failed.
pub(super) fn refusal(error: OpError) -> anyhow::Error {
    match error {
        OpError::Run { .. }
        | OpError::Library { .. }
        | OpError::Device(_)
        | OpError::Index { .. } => error.into(),
        OpError::Kernel { op, reasons, hint } => {
            let hint = match &*hint {
                "KernelPolicy::Auto" => "without --kernel".to_owned(),
                _ => hint,
            };
            UsageError(format!("{op}: no kernel for it: {reasons}\ntry: {hint}")).into()
        }
        _ => UsageError(error.to_string()).into(),
    }
}
