//! Plan of an op: the kernel chosen for given layouts, compiled, ready to run many times.
//!
//! Invariant: a plan exists only if the op accepts its layouts; `run` allocates no device memory,
//! compiles nothing and waits for nothing. Elsewhere: the candidates (`kernels`), the checks of
//! bound memory (`fercuda-jit`).

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use fercuda_cuda::{Context, Stream};
use fercuda_jit::{Bindings, BoundArg, CompiledExpr, Compiler, ExprGraph, text};
use fercuda_kernels::{KernelError, LoadedProgram, NativeLoader, NativeProgram, index};
use fercuda_tensor::{Layout, LayoutError};
use fercuda_vendor::cublaslt::{CublasLt, CublasLtLibrary};
use fercuda_vendor::cufft::CufftLibrary;

use crate::bound_names::{FollowingNames, RowNames};
use crate::choices::KeptChoices;
use crate::cublaslt::{self, LibraryProduct};
use crate::cufft::{self, LibraryTransform};
use crate::descriptor::OpDescriptor;
use crate::error::OpError;
use crate::kernels::{Backend, KERNELS, KernelRow, has_library};
use crate::request::OpRequest;
use crate::row::{NativeRule, OpFamily, OpRow};

/// How a plan chooses a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelPolicy<'a> {
    /// The first kernel that supports the op and its layouts, but for one that a library is faster
    /// than.
    Auto,
    /// The kernel of this name, or an error that says why it cannot. `cublaslt:2` begins with that
    /// library's third algorithm.
    Force(&'a str),
    /// The kernel that [`crate::OpTuner::measure`] has found the fastest, on this device, for this
    /// op and layouts; [`KernelPolicy::Auto`] where none was measured.
    Measured,
}

/// Why a kernel was not chosen that supports a request as another does.
pub(crate) const PRECEDED: &str = "one before it in the table supports it";

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
    cufft: OnceLock<Result<CufftLibrary, String>>,
    choices: KeptChoices,
    /// The device, its driver and the texts of the kernels.
    name: String,
}

impl OpDevice {
    /// Plans for that context, with the user's cache on disk.
    ///
    /// # Errors
    /// [`OpError::Device`] if the device's properties cannot be read.
    pub fn new(context: &Context) -> Result<Self, OpError> {
        let compiler = Compiler::new(context).map_err(|error| OpError::Device(error.into()))?;
        let device = Self::with_compiler(context, compiler)?;
        Ok(Self {
            choices: KeptChoices::of_user(),
            ..device
        })
    }

    /// As [`OpDevice::new`], with that compiler of expressions, and measured choices kept in memory
    /// alone.
    ///
    /// # Errors
    /// As for [`OpDevice::new`].
    pub fn with_compiler(context: &Context, compiler: Compiler) -> Result<Self, OpError> {
        let kernels = NativeLoader::new(context).map_err(OpError::Device)?;
        let named = |error: fercuda_cuda::Error| OpError::Device(error.into());
        let device = context.device();
        let name = format!(
            "{} driver {:?} sm_{} kernels {:x}",
            device.name().map_err(named)?,
            device.cuda().version().map_err(named)?,
            compiler.arch().number(),
            fercuda_kernels::fingerprint(),
        );
        Ok(Self {
            context: context.clone(),
            compiler,
            kernels,
            cublaslt: OnceLock::new(),
            cufft: OnceLock::new(),
            choices: KeptChoices::in_memory(),
            name,
        })
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn choices(&self) -> &KeptChoices {
        &self.choices
    }

    /// Everything on which a measured choice depends.
    pub(crate) fn request(
        &self,
        op: &OpDescriptor,
        operands: &[Layout],
        outputs: &[Layout],
    ) -> String {
        let family = op.row().family;
        let lt = (family == OpFamily::Product).then(|| self.cublaslt().ok());
        let lt = lt.flatten().map(|lt| lt.library().version());
        let fft = (family == OpFamily::Transform).then(|| self.cufft().ok());
        let library = lt.or(fft.flatten().map(CufftLibrary::version));
        format!(
            "{}, library {library:?}: {op:?} of {operands:?} to {outputs:?}",
            self.name
        )
    }

    /// cuBLASLt, opened when it is first asked for; else why there is none.
    fn cublaslt(&self) -> Result<&CublasLt, &str> {
        let found = self.cublaslt.get_or_init(|| {
            self.check_runs_libraries()?;
            let library = CublasLtLibrary::find().map_err(|error| error.to_string())?;
            CublasLt::new(&library, &self.context).map_err(|error| error.to_string())
        });
        found.as_ref().map_err(String::as_str)
    }

    /// cuFFT, opened when it is first asked for; else why there is none.
    fn cufft(&self) -> Result<&CufftLibrary, &str> {
        let found = self.cufft.get_or_init(|| {
            self.check_runs_libraries()?;
            CufftLibrary::find().map_err(|error| error.to_string())
        });
        found.as_ref().map_err(String::as_str)
    }

    fn check_runs_libraries(&self) -> Result<(), String> {
        match self.context.device().is_software() {
            Ok(false) => Ok(()),
            Ok(true) => Err("the software device runs no library of NVIDIA's".to_owned()),
            Err(error) => Err(error.to_string()),
        }
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
    /// A product of the library's.
    Library(Box<PreparedProduct>),
    /// A transform of the library's, with the form for memory that the library cannot read.
    Transform(Box<(LibraryTransform, Option<Box<LoadedProgram>>)>),
}

/// A product of the library's, with what stands beside it.
#[derive(Debug)]
struct PreparedProduct {
    product: LibraryProduct,
    /// Done to its result in place: activations and the residual.
    following: Option<CompiledExpr>,
    /// The form for what the library refuses when it is run; none without NVRTC.
    portable: Option<Box<LoadedProgram>>,
    residual: Option<Layout>,
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
            no_cufft: match row.family {
                OpFamily::Transform => device.cufft().err(),
                _ => None,
            },
        };
        let measured = match policy {
            KernelPolicy::Measured => {
                Some(device.choices.get(&device.request(op, operands, &outputs)))
            }
            _ => None,
        };
        if let Some(Some(id)) = &measured {
            let forced = KernelPolicy::Force(id);
            // A choice of another version may be of a kernel that is not there.
            if let Ok(mut plan) = Self::new(device, op, operands, &outputs, forced) {
                plan.sku.reason = format!("{id} was the fastest when all were measured");
                let demanded = format!("{} was demanded", without_algorithm(id));
                for other in &mut plan.sku.rejected {
                    if other.reason == demanded {
                        other.reason = "it was slower, or was not measured".to_owned();
                    }
                }
                return Ok(plan);
            }
        }
        let (kernel, mut sku) = choose(&request, policy)?;
        if measured.is_some() {
            sku.reason.push_str("; none was measured that can be used");
        }
        let native = |kernel: &KernelRow, rule: &NativeRule| {
            let lower = kernel.lower.unwrap_or(rule.lower);
            let loaded = device.kernels.load(|form| {
                let mut program = NativeProgram::new(operands, &outputs, form);
                if op.is_checked() {
                    index::record_faults(&mut program)?;
                }
                lower(op, &mut program)?;
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
        // What computes the requests that a library refuses when they are run.
        let beside_library = || {
            let own = portable(&request).zip(row.native.as_ref());
            own.map(|(kernel, rule)| native(kernel, rule)).transpose()
        };
        let prepared = match (kernel.backend, graph, &row.native) {
            (Backend::CublasLt, ..) => {
                let lt = cublaslt.transpose().ok().flatten();
                let lt = lt.ok_or_else(|| "the library is not open".to_owned());
                let number = match policy {
                    KernelPolicy::Force(id) => algorithm_of(id),
                    _ => 0,
                };
                let made = lt.and_then(|lt| cublaslt::prepare(lt, &request, number));
                match (made, policy) {
                    (Ok(product), _) => {
                        let portable = beside_library()?;
                        let following = follow(device, &request)?;
                        PreparedKernels::Library(Box::new(PreparedProduct {
                            product,
                            following,
                            portable,
                            residual: operands.get(3).copied(),
                        }))
                    }
                    (Err(reason), _) => {
                        return Self::refused_by_library(device, &request, policy, kernel, reason);
                    }
                }
            }
            (Backend::Cufft, ..) => {
                let library = device.cufft().map_err(str::to_owned);
                let (context, compiler) = (&device.context, &device.compiler);
                let made = library.and_then(|it| cufft::prepare(it, context, compiler, &request));
                match made {
                    Ok(transform) => {
                        let portable = beside_library()?;
                        PreparedKernels::Transform(Box::new((transform, portable)))
                    }
                    Err(reason) => {
                        return Self::refused_by_library(device, &request, policy, kernel, reason);
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
            (_, _, Some(rule)) => PreparedKernels::Native(native(kernel, rule)?),
            _ => {
                let what = "it has neither an expression nor a kernel".to_owned();
                return Err(op.misfit(operands, what, String::new()));
            }
        };
        sku.launches = match &prepared {
            PreparedKernels::Expression(compiled) => compiled.program().launches.len(),
            PreparedKernels::Native(program) => program.launches(),
            PreparedKernels::Library(all) => 1 + usize::from(all.following.is_some()),
            PreparedKernels::Transform(all) => all.0.launches(),
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

    /// A plan by another kernel, where the library refuses what its rules accept; an error if the
    /// library was demanded.
    fn refused_by_library(
        device: &OpDevice,
        request: &OpRequest<'_>,
        policy: KernelPolicy<'_>,
        library: &KernelRow,
        reason: String,
    ) -> Result<Self, OpError> {
        if matches!(policy, KernelPolicy::Force(_)) {
            return Err(OpError::Kernel {
                op: request.op.name(),
                reasons: reason,
                hint: "KernelPolicy::Auto".to_owned(),
            });
        }
        let OpRequest {
            op,
            operands,
            outputs,
            ..
        } = *request;
        let rule = op.row().native.as_ref().map(|rule| rule.kernel);
        let other = portable(request).map(|kernel| kernel.id).or(rule);
        let other = KernelPolicy::Force(other.unwrap_or_default());
        let mut plan = Self::new(device, op, operands, outputs, other)?;
        plan.sku.reason = "the first in the table that the library did not refuse".to_owned();
        for rejected in &mut plan.sku.rejected {
            if rejected.id == library.id {
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
            PreparedKernels::Library(all) => {
                let portable = all.portable.as_ref();
                let portable = portable.map_or(0, |it| it.workspace_bytes());
                all.product.workspace_bytes().max(portable)
            }
            PreparedKernels::Transform(all) => {
                let portable = all.1.as_ref().map_or(0, |it| it.workspace_bytes());
                all.0.workspace_bytes().max(portable)
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
            PreparedKernels::Library(all) => {
                self.check_residual(all, operands, outputs)?;
                if all.product.run(stream, operands, outputs, workspace)? {
                    return match (&all.following, outputs) {
                        (Some(following), [out]) => {
                            let inputs = [*out].into_iter().chain(operands.get(3).copied());
                            let inputs: Vec<BoundArg<'_>> = inputs.collect();
                            let queued = following.run(stream, &inputs, outputs);
                            queued.map_err(|error| refused(op, error))
                        }
                        _ => Ok(()),
                    };
                }
                let reason = "cuBLASLt refuses each algorithm that it offered";
                let portable = self.portable(all.portable.as_deref(), reason)?;
                self.run_native(portable, stream, operands, outputs, workspace)
            }
            PreparedKernels::Transform(all) => {
                let names = RowNames(self.row);
                if (all.0).run(&names, stream, operands, outputs, workspace)? {
                    return Ok(());
                }
                let reason = "cuFFT needs complex numbers at multiples of their size";
                let portable = self.portable(all.1.as_deref(), reason)?;
                self.run_native(portable, stream, operands, outputs, workspace)
            }
        }
    }
}

impl OpPlan {
    /// The kernel of our own for a run that a library does not do, which is counted.
    fn portable<'a>(
        &self,
        program: Option<&'a LoadedProgram>,
        reason: &str,
    ) -> Result<&'a LoadedProgram, OpError> {
        self.refused_runs.fetch_add(1, Ordering::Relaxed);
        program.ok_or_else(|| OpError::Kernel {
            op: self.row.name,
            reasons: reason.to_owned(),
            hint: "NVRTC, by which another kernel is compiled".to_owned(),
        })
    }

    /// Checks the memory that the library does not see, before anything is queued.
    fn check_residual(
        &self,
        all: &PreparedProduct,
        operands: &[BoundArg<'_>],
        outputs: &[BoundArg<'_>],
    ) -> Result<(), OpError> {
        let (Some(layout), Some(residual)) = (&all.residual, operands.get(3)) else {
            return Ok(());
        };
        let bindings = Bindings {
            inputs: &[*layout],
            outputs: &self.outputs,
            in_place: &[vec![false]],
            names: &FollowingNames,
        };
        let checked = bindings.check(&[*residual], outputs);
        checked
            .map(drop)
            .map_err(|error| refused(self.row.name, error))
    }

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

    /// Number of algorithms that the library offers for it; 1 for other kernels.
    pub fn algorithms(&self) -> usize {
        match &self.prepared {
            PreparedKernels::Library(all) => all.product.algorithms(),
            _ => 1,
        }
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

/// A kernel's name without the number of an algorithm: `cublaslt` of `cublaslt:2`.
fn without_algorithm(id: &str) -> &str {
    match id.split_once(':') {
        Some((library @ "cublaslt", number)) if number.parse::<usize>().is_ok() => library,
        _ => id,
    }
}

/// The number of an algorithm in a kernel's name; else 0.
fn algorithm_of(id: &str) -> usize {
    let number = id.split_once(':').map(|(_, number)| number.parse());
    number.and_then(Result::ok).unwrap_or_default()
}

/// Compiles what is done to the result of a library's product, in place.
fn follow(device: &OpDevice, request: &OpRequest<'_>) -> Result<Option<CompiledExpr>, OpError> {
    let Some(text) = cublaslt::following(request) else {
        return Ok(None);
    };
    let [out] = request.outputs else {
        return Ok(None);
    };
    let op = request.op;
    let misfit = |error: String| op.misfit(request.operands, error, String::new());
    let mut graph = ExprGraph::new();
    let residual = request.operands.get(3).map(|layout| ("residual", *layout));
    for (name, layout) in [("y", *out)].into_iter().chain(residual) {
        let added = graph.input(name, layout);
        added.map_err(|error| misfit(error.to_string()))?;
    }
    text::parse(&mut graph, &text).map_err(|error| misfit(error.what))?;
    let laid_out = graph.lay_out("out", *out);
    laid_out.map_err(|error| misfit(error.to_string()))?;
    let compiled = device.compiler.compile(&graph);
    let compiled = compiled.map_err(|error| refused(op.name(), error))?;
    let ready = compiled.prepare_unaligned();
    ready.map_err(|error| refused(op.name(), error))?;
    Ok(Some(compiled))
}

/// The first kernel in CUDA C++ that supports the request.
fn portable(request: &OpRequest<'_>) -> Option<&'static KernelRow> {
    let row = request.op.row();
    let mut own = KERNELS
        .iter()
        .filter(|kernel| kernel.backend == Backend::Cuda && (kernel.computes)(row));
    own.find(|kernel| (kernel.supports)(request).is_ok())
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
    // Of a library's algorithm, the library.
    let policy = match policy {
        KernelPolicy::Force(id) => KernelPolicy::Force(without_algorithm(id)),
        policy => policy,
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
            (_, _, Some(_)) => PRECEDED.to_owned(),
            (_, KernelPolicy::Auto | KernelPolicy::Measured, None)
                if (kernel.yields)(request) && has_library(request) =>
            {
                "a library is faster for it".to_owned()
            }
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
        let reasons = rejected
            .iter()
            .map(|it| format!("{}: {}", it.id, it.reason));
        let mut reasons = reasons.collect::<Vec<_>>().join("; ");
        let hint = match (policy, request.no_compiler) {
            (KernelPolicy::Force(id), _) if !is_known(id) => {
                format!("there is no {id:?}; {}", known())
            }
            // What was tried, once for all kernels, and what to install.
            (_, Some(problem)) if !request.op.row().is_expression() => {
                let (problem, hint) = problem.split_once("\ntry: ").unwrap_or((problem, ""));
                reasons = format!("{reasons}\nNVRTC: {problem}");
                match hint {
                    "" => "fercuda setup nvrtc".to_owned(),
                    hint => hint.to_owned(),
                }
            }
            (KernelPolicy::Force(_), _) => "KernelPolicy::Auto".to_owned(),
            _ => "another type, by the op `cast`".to_owned(),
        };
        return Err(OpError::Kernel { op, reasons, hint });
    };
    let reason = match policy {
        KernelPolicy::Force(_) => "it was demanded, and supports the op and its layouts",
        _ => "the first in the table that supports the op and its layouts",
    };
    let sku = Sku {
        id: kernel.id,
        reason: reason.to_owned(),
        rejected,
        launches: 0,
    };
    Ok((kernel, sku))
}
