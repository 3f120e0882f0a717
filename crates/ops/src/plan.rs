//! Plan of an op: the kernel chosen for given layouts, compiled, ready to run many times.
//!
//! Invariant: a plan exists only if the op accepts its layouts; `run` allocates no device memory,
//! compiles nothing and waits for nothing. Elsewhere: the candidates (`kernels`), the checks of
//! bound memory (`fercuda-jit`).

use std::fmt;

use fercuda_cuda::Stream;
use fercuda_jit::{BoundArg, CompiledExpr, Compiler};
use fercuda_tensor::Layout;

use crate::descriptor::OpDescriptor;
use crate::error::OpError;
use crate::kernels::{KERNELS, KernelRow, OpRequest};

/// How a plan chooses a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelPolicy<'a> {
    /// The first kernel that supports the op and its layouts.
    Auto,
    /// The kernel of this name, or an error that says why it cannot.
    Force(&'a str),
}

/// A kernel that was not chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedKernel {
    /// Its name.
    pub id: &'static str,
    /// Why it was not chosen.
    pub reason: String,
}

/// Which kernel a plan uses, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sku {
    /// The chosen kernel.
    pub id: &'static str,
    /// Why it was chosen.
    pub reason: String,
    /// The others, each with its reason.
    pub rejected: Vec<RejectedKernel>,
    /// Number of launches of a run.
    pub launches: usize,
}

impl fmt::Display for Sku {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}; {} launches",
            self.id, self.reason, self.launches
        )?;
        for RejectedKernel { id, reason } in &self.rejected {
            write!(f, "\nnot {id}: {reason}")?;
        }
        Ok(())
    }
}

/// An op, ready to run on operands and an output of fixed layouts.
#[derive(Debug)]
pub struct OpPlan {
    op: &'static str,
    compiled: CompiledExpr,
    sku: Sku,
    output: Layout,
}

impl OpPlan {
    /// Chooses and compiles a kernel for an op on operands of these layouts. Without a layout the
    /// output is contiguous.
    ///
    /// # Errors
    /// As for [`OpDescriptor::graph`]; [`OpError::Output`], [`OpError::Kernel`],
    /// [`OpError::Run`] if the driver refuses the code.
    pub fn new(
        compiler: &Compiler,
        op: &OpDescriptor,
        operands: &[Layout],
        output: Option<Layout>,
        policy: KernelPolicy<'_>,
    ) -> Result<Self, OpError> {
        let mut graph = op.graph(operands)?;
        let (name, own) = op.result(&graph)?;
        let output = output.unwrap_or(own);
        let laid_out = graph.lay_out(&name, output);
        laid_out.map_err(|error| OpError::Output {
            op: op.name(),
            wanted: own.to_string(),
            given: output.to_string(),
            error: Box::new(error),
        })?;
        let request = OpRequest {
            row: op.row(),
            operands,
            output: &output,
            arch: compiler.arch().number(),
        };
        let (kernel, mut sku) = choose(&request, policy)?;
        let op = op.name();
        let compiled = (kernel.prepare)(compiler, &graph);
        let compiled = compiled.map_err(|error| refused(op, error))?;
        sku.launches = compiled.program().launches.len();
        Ok(Self {
            op,
            compiled,
            sku,
            output,
        })
    }

    /// Which kernel was chosen and why, and why the others were not.
    pub fn sku(&self) -> &Sku {
        &self.sku
    }

    /// Layout of the output.
    pub fn output(&self) -> &Layout {
        &self.output
    }

    /// Size of the workspace that a run needs, which is aligned to 16.
    pub fn workspace_bytes(&self) -> u64 {
        self.compiled.program().scratch_bytes
    }

    /// Queues the op in `stream`, behind work that is queued there. The output may be an
    /// operand's memory, exactly, if each element is computed from the one at the same place
    /// alone. The workspace may be used again by later work in the stream.
    ///
    /// # Errors
    /// [`OpError::Workspace`] if it is needed and absent; [`OpError::Run`].
    pub fn run(
        &self,
        stream: &Stream,
        operands: &[BoundArg<'_>],
        output: BoundArg<'_>,
        workspace: Option<BoundArg<'_>>,
    ) -> Result<(), OpError> {
        let (op, outputs) = (self.op, [output]);
        let queued = match (self.workspace_bytes(), workspace) {
            (0, _) => self.compiled.run(stream, operands, &outputs),
            (bytes, None) => return Err(OpError::Workspace { op, bytes }),
            (_, Some(workspace)) => self
                .compiled
                .run_with(stream, operands, &outputs, workspace),
        };
        queued.map_err(|error| refused(op, error))
    }
}

fn refused(op: &'static str, error: fercuda_jit::Error) -> OpError {
    let error = Box::new(error);
    OpError::Run { op, error }
}

/// The first kernel that supports the request and the policy, with the reasons for all.
fn choose(
    request: &OpRequest<'_>,
    policy: KernelPolicy<'_>,
) -> Result<(&'static KernelRow, Sku), OpError> {
    let op = request.row.name;
    let known = || {
        KERNELS
            .iter()
            .map(|kernel| kernel.id)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut chosen = None;
    let mut rejected = Vec::new();
    for kernel in KERNELS {
        let reason = match ((kernel.supports)(request), policy, chosen) {
            (Err(reason), ..) => reason,
            (_, KernelPolicy::Force(id), _) if id != kernel.id => format!("{id} was demanded"),
            (_, _, Some(_)) => "one before it in the table supports it".to_owned(),
            _ => {
                chosen = Some(kernel);
                continue;
            }
        };
        let id = kernel.id;
        rejected.push(RejectedKernel { id, reason });
    }
    let Some(kernel) = chosen else {
        let is_known = |id: &str| KERNELS.iter().any(|kernel| kernel.id == id);
        let hint = match policy {
            KernelPolicy::Force(id) if !is_known(id) => format!("there is no {id:?}; {}", known()),
            KernelPolicy::Force(_) => "KernelPolicy::Auto".to_owned(),
            KernelPolicy::Auto => "another type, by the op `cast`".to_owned(),
        };
        let reasons = rejected
            .iter()
            .map(|it| format!("{}: {}", it.id, it.reason));
        let reasons = reasons.collect::<Vec<_>>().join("; ");
        return Err(OpError::Kernel { op, reasons, hint });
    };
    let reason = match policy {
        KernelPolicy::Force(_) => "it was demanded, and supports the op and its layouts",
        KernelPolicy::Auto => "the first in the table that supports the op and its layouts",
    };
    let sku = Sku {
        id: kernel.id,
        reason: reason.to_owned(),
        rejected,
        launches: 0,
    };
    Ok((kernel, sku))
}
