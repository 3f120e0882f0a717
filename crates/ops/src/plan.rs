//! Plan of an op: the kernel chosen for given layouts, compiled, ready to run many times.
//!
//! Invariant: a plan exists only if the op accepts its layouts; `run` allocates no device memory,
//! compiles nothing and waits for nothing. Elsewhere: the candidates (`kernels`), the checks of
//! bound memory (`fercuda-jit`).

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use fercuda_cuda::{Context, Stream};
use fercuda_jit::{BoundArg, BoundNames, CompiledExpr, Compiler};
use fercuda_kernels::{KernelError, LoadedProgram, NativeLoader, NativeProgram, index};
use fercuda_tensor::{Layout, LayoutError};
use fercuda_vendor::cublaslt::{CublasLt, CublasLtLibrary};

use crate::cublaslt::{self, LibraryProduct};
use crate::descriptor::OpDescriptor;
use crate::error::OpError;
use crate::kernels::{Backend, KERNELS, KernelRow};
use crate::request::OpRequest;
use crate::row::{NativeRule, OpFamily, OpRow};

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

/// A device on which plans are made: compilers for one context, with their caches.
#[derive(Debug)]
pub struct OpDevice {
    context: Context,
    compiler: Compiler,
    kernels: NativeLoader,
    cublaslt: OnceLock<Result<CublasLt, String>>,
}

impl OpDevice {
    /// Plans for that context, with the user's cache on disk.
    ///
    /// # Errors
    /// [`OpError::Device`] if the device's properties cannot be read.
    pub fn new(context: &Context) -> Result<Self, OpError> {
        let compiler = Compiler::new(context).map_err(|error| OpError::Device(error.into()))?;
        Self::with_compiler(context, compiler)
    }

    /// As [`OpDevice::new`], with that compiler of expressions.
    ///
    /// # Errors
    /// As for [`OpDevice::new`].
    pub fn with_compiler(context: &Context, compiler: Compiler) -> Result<Self, OpError> {
        let kernels = NativeLoader::new(context).map_err(OpError::Device)?;
        Ok(Self {
            context: context.clone(),
            compiler,
            kernels,
            cublaslt: OnceLock::new(),
        })
    }

    /// cuBLASLt, opened when it is first asked for; else why there is none.
    fn cublaslt(&self) -> Result<&CublasLt, &str> {
        let found = self.cublaslt.get_or_init(|| {
            if self.context.device().cuda().is_software() {
                return Err("the software device runs no library of NVIDIA's".to_owned());
            }
            let library = CublasLtLibrary::find().map_err(|error| error.to_string())?;
            CublasLt::new(&library, &self.context).map_err(|error| error.to_string())
        });
        found.as_ref().map_err(String::as_str)
    }

    /// The compiler of expressions.
    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// The loader of CUDA C++.
    pub fn kernels(&self) -> &NativeLoader {
        &self.kernels
    }
}

/// What a plan runs.
#[derive(Debug)]
enum PreparedKernels {
    Expression(CompiledExpr),
    Native(Box<LoadedProgram>),
    /// A product of the library's, and the portable form for what it refuses when it is run; none
    /// without NVRTC.
    Library(Box<LibraryProduct>, Option<Box<LoadedProgram>>),
}

/// An op, ready to run on operands and outputs of fixed layouts.
#[derive(Debug)]
pub struct OpPlan {
    row: &'static OpRow,
    prepared: PreparedKernels,
    sku: Sku,
    outputs: Vec<Layout>,
    is_checked: bool,
    refused_runs: AtomicU64,
}

/// Names of an op's operands and results.
struct RowNames(&'static OpRow);

impl BoundNames for RowNames {
    fn input(&self, at: usize) -> String {
        let (name, row) = (self.0.operand(at), self.0);
        // Of one of many the number too.
        match at.checked_sub(row.singles()) {
            Some(beyond) if row.repeated > 1 => format!("{name} {}", beyond / row.repeated),
            _ => name.to_owned(),
        }
    }

    fn output(&self, at: usize) -> String {
        self.0.result(at).to_owned()
    }
}

impl OpPlan {
    /// Chooses and compiles a kernel for an op on operands of these layouts. Without layouts the
    /// outputs are contiguous.
    ///
    /// # Errors
    /// As for [`OpDescriptor::graph`]; [`OpError::Output`], [`OpError::Kernel`],
    /// [`OpError::Run`] if the driver refuses the code.
    pub fn new(
        device: &OpDevice,
        op: &OpDescriptor,
        operands: &[Layout],
        outputs: &[Layout],
        policy: KernelPolicy<'_>,
    ) -> Result<Self, OpError> {
        let row = op.row();
        let mut graph = match row.is_expression() {
            true => Some(op.graph(operands)?),
            false => None,
        };
        let own = op.results(operands, graph.as_ref())?;
        let outputs = match outputs {
            [] => own,
            given => checked_outputs(op, &own, given)?,
        };
        if let (Some(graph), [output]) = (&mut graph, outputs.as_slice()) {
            let (name, own) = op.result(graph)?;
            let laid_out = graph.lay_out(&name, *output);
            laid_out.map_err(|error| OpError::Output {
                op: row.name,
                wanted: own.to_string(),
                given: output.to_string(),
                problem: error.to_string(),
            })?;
        }
        let no_compiler = row
            .native
            .as_ref()
            .and_then(|_| device.kernels.compiler().err())
            .map(|error| error.to_string());
        let cublaslt = (row.family == OpFamily::Product).then(|| device.cublaslt());
        let request = OpRequest {
            op,
            operands,
            outputs: &outputs,
            arch: device.compiler.arch().number(),
            no_compiler: no_compiler.as_deref(),
            no_cublaslt: match cublaslt {
                Some(Err(reason)) => Some(reason),
                _ => None,
            },
        };
        let (kernel, mut sku) = choose(&request, policy)?;
        let native = |rule: &NativeRule| {
            let loaded = device.kernels.load(|is_aligned| {
                let mut program = NativeProgram::new(operands, &outputs, is_aligned);
                if op.is_checked() {
                    index::record_faults(&mut program)?;
                }
                (rule.lower)(op, &mut program)?;
                Ok(program)
            });
            loaded.map(Box::new).map_err(|error| match error {
                // The dimensions are ours: repeating, shuffling and tables take one or two more.
                KernelError::Layout(LayoutError::Rank { rank }) => {
                    let what = format!("it goes through {rank} dimensions, at most 8 are possible");
                    let hint = "operands of fewer dimensions".to_owned();
                    op.misfit(operands, what, hint)
                }
                error => refused(row.name, error),
            })
        };
        let prepared = match (kernel.backend, graph, &row.native) {
            (Backend::CublasLt, ..) => {
                let lt = cublaslt.transpose().ok().flatten();
                let lt = lt.ok_or_else(|| "the library is not open".to_owned());
                let made = lt.and_then(|lt| cublaslt::prepare(lt, &request));
                match (made, policy) {
                    (Ok(product), _) => {
                        let portable = row.native.as_ref().filter(|_| no_compiler.is_none());
                        let portable = portable.map(native).transpose()?;
                        PreparedKernels::Library(Box::new(product), portable)
                    }
                    // The library itself refuses: the next candidate computes it.
                    (Err(reason), KernelPolicy::Auto) => {
                        let other = OpPlan::without_library(device, op, operands, &outputs, reason);
                        return other;
                    }
                    (Err(reasons), _) => {
                        let hint = "KernelPolicy::Auto".to_owned();
                        let op = row.name;
                        return Err(OpError::Kernel { op, reasons, hint });
                    }
                }
            }
            (Backend::Jit, Some(graph), _) => {
                let compiled = device.compiler.compile(&graph);
                let compiled = compiled.map_err(|error| refused(row.name, error))?;
                let ready = compiled.prepare_unaligned();
                ready.map_err(|error| refused(row.name, error))?;
                PreparedKernels::Expression(compiled)
            }
            (_, _, Some(rule)) => PreparedKernels::Native(native(rule)?),
            _ => {
                let what = "it has neither an expression nor a kernel".to_owned();
                return Err(op.misfit(operands, what, String::new()));
            }
        };
        sku.launches = match &prepared {
            PreparedKernels::Expression(compiled) => compiled.program().launches.len(),
            PreparedKernels::Native(program) => program.launches(),
            PreparedKernels::Library(..) => 1,
        };
        Ok(Self {
            row,
            prepared,
            sku,
            outputs,
            is_checked: op.is_checked(),
            refused_runs: AtomicU64::new(0),
        })
    }

    /// A plan by the portable kernel, where the library refuses what its rules accept.
    fn without_library(
        device: &OpDevice,
        op: &OpDescriptor,
        operands: &[Layout],
        outputs: &[Layout],
        reason: String,
    ) -> Result<Self, OpError> {
        let other = KernelPolicy::Force("cuda.multiply");
        let mut plan = Self::new(device, op, operands, outputs, other)?;
        plan.sku.reason = "the first in the table that the library did not refuse".to_owned();
        for rejected in &mut plan.sku.rejected {
            if rejected.id == "cublaslt" {
                rejected.reason.clone_from(&reason);
            }
        }
        Ok(plan)
    }

    /// Which kernel was chosen and why, and why the others were not.
    pub fn sku(&self) -> &Sku {
        &self.sku
    }

    /// Layouts of the outputs.
    pub fn outputs(&self) -> &[Layout] {
        &self.outputs
    }

    /// Size of the workspace that a run needs, which is aligned to 16.
    pub fn workspace_bytes(&self) -> u64 {
        match &self.prepared {
            PreparedKernels::Expression(compiled) => compiled.program().scratch_bytes,
            PreparedKernels::Native(program) => program.workspace_bytes(),
            PreparedKernels::Library(product, portable) => {
                let portable = portable.as_ref().map_or(0, |it| it.workspace_bytes());
                product.workspace_bytes().max(portable)
            }
        }
    }

    /// Queues the op in `stream`, behind work that is queued there. An output may be an operand's
    /// memory, exactly, if each element is computed from the one at the same place alone. The
    /// workspace may be used again by later work in the stream.
    ///
    /// # Errors
    /// [`OpError::Workspace`] if it is needed and absent; [`OpError::Run`].
    pub fn run(
        &self,
        stream: &Stream,
        operands: &[BoundArg<'_>],
        outputs: &[BoundArg<'_>],
        workspace: Option<BoundArg<'_>>,
    ) -> Result<(), OpError> {
        let op = self.row.name;
        let bytes = self.workspace_bytes();
        if bytes > 0 && workspace.is_none() {
            return Err(OpError::Workspace { op, bytes });
        }
        match &self.prepared {
            PreparedKernels::Expression(compiled) => {
                let queued = match workspace {
                    Some(workspace) if bytes > 0 => {
                        compiled.run_with(stream, operands, outputs, workspace)
                    }
                    _ => compiled.run(stream, operands, outputs),
                };
                queued.map_err(|error| refused(op, error))
            }
            PreparedKernels::Native(program) => {
                self.run_native(program, stream, operands, outputs, workspace)
            }
            PreparedKernels::Library(product, portable) => {
                if product.run(stream, operands, outputs, workspace)? {
                    return Ok(());
                }
                self.refused_runs.fetch_add(1, Ordering::Relaxed);
                match portable {
                    Some(program) => self.run_native(program, stream, operands, outputs, workspace),
                    None => Err(OpError::Kernel {
                        op,
                        reasons: "cuBLASLt refuses each algorithm that it offered".to_owned(),
                        hint: "NVRTC, by which another kernel is compiled".to_owned(),
                    }),
                }
            }
        }
    }
}

impl OpPlan {
    fn run_native(
        &self,
        program: &LoadedProgram,
        stream: &Stream,
        operands: &[BoundArg<'_>],
        outputs: &[BoundArg<'_>],
        workspace: Option<BoundArg<'_>>,
    ) -> Result<(), OpError> {
        let (names, op) = (RowNames(self.row), self.row.name);
        let queued = program.run(&names, stream, operands, outputs, workspace);
        queued.map_err(|error| refused(op, error))
    }

    /// Number of runs that the portable kernel computed, as the library refused, when it was run,
    /// each algorithm that it had offered.
    pub fn refused_runs(&self) -> u64 {
        self.refused_runs.load(Ordering::Relaxed)
    }

    /// Waits for the stream, and reads what a run of a checked plan recorded in its workspace.
    ///
    /// # Errors
    /// [`OpError::Index`] if an index was outside of its axis; the result has 0 there, or what it
    /// had before. [`OpError::Run`] if the memory cannot be read.
    pub fn check(&self, stream: &Stream, workspace: &BoundArg<'_>) -> Result<(), OpError> {
        if !self.is_checked {
            return Ok(());
        }
        let op = self.row.name;
        let words = workspace.read(0, 16, stream);
        let words = words.map_err(|error| refused(op, error))?;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&words[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        match word(0) {
            0 => Ok(()),
            place => Err(OpError::Index {
                op,
                index: word(8).cast_signed(),
                place: place - 1,
            }),
        }
    }
}

/// The given outputs, if they have the results' types and shapes and no elements that overlap.
fn checked_outputs(
    op: &OpDescriptor,
    own: &[Layout],
    given: &[Layout],
) -> Result<Vec<Layout>, OpError> {
    let all = |layouts: &[Layout]| {
        let shown = layouts.iter().map(Layout::to_string);
        shown.collect::<Vec<_>>().join(" and ")
    };
    let error = |problem: &str| OpError::Output {
        op: op.name(),
        wanted: all(own),
        given: all(given),
        problem: problem.to_owned(),
    };
    if own.len() != given.len() {
        return Err(error("another number of outputs\ntry: one layout each"));
    }
    for (own, given) in own.iter().zip(given) {
        if own.dtype() != given.dtype() || own.shape() != given.shape() {
            return Err(error("another type or shape\ntry: the result's"));
        }
        if given.may_overlap() {
            return Err(error(
                "its elements may overlap\ntry: strides without overlap",
            ));
        }
    }
    Ok(given.to_vec())
}

fn refused(op: &'static str, error: impl Into<KernelError>) -> OpError {
    let error = Box::new(error.into());
    OpError::Run { op, error }
}

/// The first kernel that supports the request and the policy, with the reasons for all.
fn choose(
    request: &OpRequest<'_>,
    policy: KernelPolicy<'_>,
) -> Result<(&'static KernelRow, Sku), OpError> {
    let op = request.op.name();
    let known = || {
        KERNELS
            .iter()
            .map(|kernel| kernel.id)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut chosen = None;
    let mut rejected = Vec::new();
    // Kernels of other ops are no candidates, unless one is demanded.
    let row = request.op.row();
    let is_candidate = |kernel: &&KernelRow| {
        (kernel.computes)(row) || matches!(policy, KernelPolicy::Force(id) if id == kernel.id)
    };
    for kernel in KERNELS.iter().filter(is_candidate) {
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
            KernelPolicy::Auto
                if request.no_compiler.is_some() && !request.op.row().is_expression() =>
            {
                "fercuda setup nvrtc".to_owned()
            }
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
