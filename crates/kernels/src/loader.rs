//! Loading of programs: texts compiled by NVRTC, once a context, and launches.
//!
//! Invariant: a program is launched only over memory that covers its layouts and workspace, is
//! aligned to what it was made for, and where no output overlaps anything but an operand that it
//! may overwrite.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use fercuda_cuda::{
    BoundTensorMap, Context, Function, Image, KernelArg, Launch, Module, Stream, TensorMapElement,
    TensorMapSpec,
};
use fercuda_jit::{ALIGN, Bindings, BoundArg, BoundNames};
use fercuda_nvrtc::{CodeFormat, CudaSource, GpuArch, Nvrtc, NvrtcError};
use fercuda_tensor::Dtype;

use crate::error::KernelError;
use crate::program::{
    MapDimensions, MapParameter, NativeProgram, NativeStep, Parameter, ProgramForm,
};
use crate::text::{HEADERS, KernelText};
use crate::view::{BoundPlace, MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Largest number of modules that are kept.
const MAX_MODULES: usize = 512;

/// Compiles texts for one context, and keeps the code.
pub struct NativeLoader {
    context: Context,
    arch: GpuArch,
    /// Whether a kernel can wait by itself for the one before.
    has_overlap: bool,
    /// Dynamic shared memory that a block may have beside 1 KiB of its kernel's own.
    most_shared_bytes: u32,
    multiprocessors: u32,
    format: CodeFormat,
    nvrtc: OnceLock<std::result::Result<Nvrtc, Arc<NvrtcError>>>,
    modules: Mutex<HashMap<KernelText, Module>>,
}

impl NativeLoader {
    /// A loader for that context. NVRTC is looked for when a kernel is first needed.
    ///
    /// # Errors
    /// [`KernelError::Cuda`] if the device's properties cannot be read.
    pub fn new(context: &Context) -> Result<Self> {
        let device = context.device();
        let (major, minor) = device.compute_capability()?;
        // Also behind its drop-in library, which runs no machine code either.
        let format = match device.is_software()? {
            true => CodeFormat::Ptx,
            false => CodeFormat::Cubin,
        };
        Ok(Self {
            context: context.clone(),
            arch: GpuArch::new(major, minor),
            has_overlap: major >= 9,
            most_shared_bytes: device.max_shared_bytes()?.saturating_sub(1 << 10),
            multiprocessors: device.multiprocessors()?,
            format,
            nvrtc: OnceLock::new(),
            modules: Mutex::new(HashMap::new()),
        })
    }

    /// Compiles a program's kernels, or finds them: `make` gives its forms for memory at multiples
    /// of 16 bytes, and for any.
    ///
    /// # Errors
    /// As `make`; [`KernelError::Views`] of views of another program, or that may not be written,
    /// or of forms with other layouts; [`KernelError::Compile`] without NVRTC,
    /// [`KernelError::Cuda`] if the driver refuses the code.
    pub fn load(
        &self,
        make: impl Fn(ProgramForm) -> Result<NativeProgram>,
    ) -> Result<LoadedProgram> {
        let form = |is_aligned| -> Result<(NativeProgram, Vec<KernelText>)> {
            let mut program = make(ProgramForm {
                is_aligned,
                shared_bytes: self.most_shared_bytes,
                multiprocessors: self.multiprocessors,
            })?;
            program.check()?;
            for step in &mut program.steps {
                step.overlaps_previous &= self.has_overlap;
                let wanted = step.wanted_shared_bytes.min(self.most_shared_bytes);
                step.shared_bytes = step.shared_bytes.max(wanted);
            }
            check(program.is_aligned == is_aligned, || {
                "the other form".to_owned()
            })?;
            let text =
                |step: &NativeStep| step.text.clone().of_kernels(program.kernels_of(&step.text));
            let texts = program.steps.iter().map(text).collect();
            Ok((program, texts))
        };
        let (aligned, any) = (form(true)?, form(false)?);
        let same = aligned.0.inputs == any.0.inputs
            && aligned.0.outputs == any.0.outputs
            && aligned.0.in_place == any.0.in_place;
        check(same, || "both forms have layouts of their own".to_owned())?;
        self.compile_all(aligned.1.iter().chain(&any.1))?;
        let loaded = |(program, texts): (NativeProgram, Vec<KernelText>)| -> Result<LoadedForm> {
            let steps = program.steps.iter().zip(texts);
            let functions = steps.map(|(step, text)| self.function(&text, step.function));
            let functions = functions.collect::<Result<Vec<_>>>()?;
            Ok(LoadedForm { program, functions })
        };
        Ok(LoadedProgram {
            aligned: loaded(aligned)?,
            any: loaded(any)?,
        })
    }

    /// Compiles texts that are not known, each in a thread.
    fn compile_all<'a>(&self, texts: impl Iterator<Item = &'a KernelText>) -> Result<()> {
        let mut missing: Vec<&KernelText> = Vec::new();
        for text in texts {
            if !missing.contains(&text) && !self.lock().contains_key(text) {
                missing.push(text);
            }
        }
        // What is left after the others is compiled here, and a single one with them.
        let Some(last) = missing.pop() else {
            return Ok(());
        };
        std::thread::scope(|scope| {
            let (mut all, mut others) = (Ok(()), Vec::new());
            for text in missing {
                let compile = move || self.module(text).map(drop);
                // Where no thread can be had, here.
                match std::thread::Builder::new().spawn_scoped(scope, compile) {
                    Ok(other) => others.push(other),
                    Err(_) => all = all.and(self.module(text).map(drop)),
                }
            }
            all = all.and(self.module(last).map(drop));
            for other in others {
                let compiled = other.join().unwrap_or_else(|panic| resume_unwind(panic));
                all = all.and(compiled);
            }
            all
        })
    }

    /// Whether NVRTC was found; else why not.
    ///
    /// # Errors
    /// What was tried, and what to install.
    pub fn compiler(&self) -> std::result::Result<&Nvrtc, Arc<NvrtcError>> {
        let found = self.nvrtc.get_or_init(|| Nvrtc::find().map_err(Arc::new));
        found.as_ref().map_err(Arc::clone)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<KernelText, Module>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn function(&self, text: &KernelText, name: &str) -> Result<Function> {
        Ok(self.module(text)?.function(name)?)
    }

    fn module(&self, text: &KernelText) -> Result<Module> {
        if let Some(known) = self.lock().get(text) {
            return Ok(known.clone());
        }
        // Outside the lock: two threads may both compile it, one in vain.
        let module = self.compile(text)?;
        let mut modules = self.lock();
        if modules.len() >= MAX_MODULES {
            modules.clear();
        }
        Ok(modules.entry(text.clone()).or_insert(module).clone())
    }

    fn compile(&self, text: &KernelText) -> Result<Module> {
        let kernel = text.file;
        let failed = |error| KernelError::Compile { kernel, error };
        let nvrtc = self.compiler().map_err(failed)?;
        let arch = match text.is_specific {
            true => self.arch.specific(),
            false => self.arch,
        };
        let mut source = CudaSource::new(kernel, text.source, arch)
            .output(self.format)
            .option("--std=c++17")
            .option("--device-as-default-execution-space");
        for (name, header) in HEADERS {
            source = source.header(name, header);
        }
        for (name, value) in &text.macros {
            source = source.option(format!("-D{name}={value}"));
        }
        for name in &text.kernels {
            source = source.option(format!("-DKERNEL_{name}"));
        }
        let compiled = nvrtc
            .compile(&source)
            .map_err(|error| failed(Arc::new(error)))?;
        Ok(Module::load(&self.context, &Image::from(&compiled))?)
    }
}

/// A form of a program with its kernels.
#[derive(Debug)]
struct LoadedForm {
    program: NativeProgram,
    functions: Vec<Function>,
}

/// A program with its kernels, in two forms of the same layouts.
#[derive(Debug)]
pub struct LoadedProgram {
    /// For memory at multiples of 16 bytes.
    aligned: LoadedForm,
    /// For any.
    any: LoadedForm,
}

impl LoadedProgram {
    /// Number of launches over memory at multiples of 16 bytes.
    pub fn launches(&self) -> usize {
        self.aligned.program.launches()
    }

    /// Size of the workspace of either form, which is aligned to 16.
    pub fn workspace_bytes(&self) -> u64 {
        let forms = [&self.aligned, &self.any].map(|form| form.program.scratch_bytes);
        forms[0].max(forms[1])
    }

    /// Queues the program in `stream`, behind work that is queued there. `workspace` has
    /// [`LoadedProgram::workspace_bytes`], and is not needed for none.
    ///
    /// # Errors
    /// [`KernelError::Bound`]: nothing is queued. [`KernelError::Cuda`] as the driver refuses;
    /// earlier kernels are queued then.
    pub fn run(
        &self,
        names: &dyn BoundNames,
        stream: &Stream,
        inputs: &[BoundArg<'_>],
        outputs: &[BoundArg<'_>],
        workspace: Option<BoundArg<'_>>,
    ) -> Result<()> {
        let layouts = &self.any.program;
        let bindings = Bindings {
            inputs: &layouts.inputs,
            outputs: &layouts.outputs,
            in_place: &layouts.in_place,
            names,
        };
        let bits = bindings.check(inputs, outputs)?;
        let form = match bits.is_multiple_of(ALIGN) {
            true => &self.aligned,
            false => &self.any,
        };
        if form.program.scratch_bytes > 0 {
            let Some(workspace) = workspace else {
                return Err(KernelError::Bound(fercuda_jit::Error::Count {
                    what: "workspace",
                    wanted: 1,
                    given: 0,
                }));
            };
            bindings.check_scratch(inputs, outputs, workspace, form.program.scratch_bytes)?;
        }
        let is_same = |(output, input): (usize, usize)| {
            let memory: &BoundArg<'_> = &outputs[output];
            memory.address() == inputs[input].address()
        };
        for (step, function) in form.program.steps.iter().zip(&form.functions) {
            if step.unless_same.is_some_and(is_same) {
                continue;
            }
            launch(step, function, stream, inputs, outputs, workspace)?;
        }
        Ok(())
    }
}

fn launch(
    step: &NativeStep,
    function: &Function,
    stream: &Stream,
    inputs: &[BoundArg<'_>],
    outputs: &[BoundArg<'_>],
    workspace: Option<BoundArg<'_>>,
) -> Result<()> {
    let memory_of = |view: &MemoryView| match view.place {
        BoundPlace::Input(at) => Some(inputs[at]),
        BoundPlace::Output(at) => Some(outputs[at]),
        BoundPlace::Scratch => workspace,
    };
    // Those of other parameters are none, so that each parameter has its own.
    let map_of = |parameter: &Parameter| match parameter {
        Parameter::Map(map) => memory_of(&map.view)
            .map(|memory| tensor_map(map, memory))
            .transpose(),
        _ => Ok(None),
    };
    let maps: Vec<_> = step.parameters.iter().map(map_of).collect::<Result<_>>()?;
    let mut values = Vec::with_capacity(step.parameters.len());
    for (parameter, map) in step.parameters.iter().zip(&maps) {
        values.push(match parameter {
            Parameter::Shape(shape) => KernelArg::bytes(bytemuck::bytes_of(shape)),
            Parameter::Map(_) => match map {
                Some(map) => KernelArg::map(map),
                None => continue,
            },
            Parameter::Address(view) | Parameter::Written(view) if view.layout.is_empty() => {
                KernelArg::number(0u64)
            }
            Parameter::Address(view) | Parameter::Written(view) => match memory_of(view) {
                Some(memory) => memory.argument(view.offset_bytes)?,
                None => continue,
            },
            Parameter::U32(value) => KernelArg::number(*value),
            Parameter::U64(value) => KernelArg::number(*value),
            Parameter::F64(value) => KernelArg::number(*value),
        });
    }
    let [x, y, z] = step.grid;
    let launch = Launch::new((x, y, z), step.block).shared_bytes(step.shared_bytes);
    let launch = match step.cluster {
        1 => launch,
        blocks => launch.cluster(blocks),
    };
    let launch = match step.overlaps_previous {
        true => launch.overlaps_previous(),
        false => launch,
    };
    // SAFETY: the parameters are those that the family's module lists for its text, which accesses
    // only elements of the views among them. These are parts of the program's layouts and
    // workspace; the caller compared them with what is bound: reach, alignment, overlap. The launch
    // retains what is bound, and streams order the work.
    #[expect(unsafe_code, reason = "a kernel of this crate with a checked reach")]
    unsafe {
        launch.run(function, stream, values.as_slice())?;
    }
    Ok(())
}

/// The map of a view in bound memory.
fn tensor_map(map: &MapParameter, memory: BoundArg<'_>) -> Result<BoundTensorMap> {
    let element = match map.view.dtype() {
        Dtype::F16 => TensorMapElement::F16,
        _ => TensorMapElement::Bf16,
    };
    let memory = memory.part(map.view.offset_bytes)?;
    Ok(match map.dimensions {
        MapDimensions::Three(extents, strides, boxed) => {
            let spec = TensorMapSpec {
                element,
                extents,
                strides,
                boxed,
            };
            BoundTensorMap::tiled(memory, &spec)?
        }
        MapDimensions::Four(extents, strides, boxed) => {
            let spec = TensorMapSpec {
                element,
                extents,
                strides,
                boxed,
            };
            BoundTensorMap::tiled(memory, &spec)?
        }
    })
}

impl std::fmt::Debug for NativeLoader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NativeLoader(sm_{})", self.arch)
    }
}
