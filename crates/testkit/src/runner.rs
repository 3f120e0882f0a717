//! Runner of corpus files: compiles, launches through the safe layer, and compares outputs.
//!
//! Invariant: the PTX that runs has been parsed, printed and parsed again, and was equal.
//! Elsewhere: expected outputs (`reference`), comparing two devices (`record`).
#![expect(
    unsafe_code,
    reason = "a launch is a promise about the kernel, which these files make"
)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fercuda_cuda::{Context, DeviceBuffer, Image, KernelArg, Launch, Module, Stream};
use fercuda_nvrtc::{CudaSource, GpuArch, Nvrtc};

use crate::data::{Buffer, Expected, Judge, LaunchInputs, Role, judge};
use crate::filetest::{FileTest, Run};
use crate::reference::{self, Reference};

/// The architectures for which every file is compiled.
pub const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90"];

/// Why a file did not get as far as being judged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The compiler, the driver, a launch or a fault of the kernel.
    #[error("{what}: {source}")]
    Cuda {
        /// What was being done.
        what: String,
        /// The cause.
        source: fercuda_cuda::Error,
    },
    /// NVRTC.
    #[error("{0}")]
    Compile(#[from] fercuda_nvrtc::NvrtcError),
    /// PTX that the parser does not read, or does not read again as it was.
    #[error("{0}")]
    Text(String),
}

fn during<T>(what: impl Into<String>, result: fercuda_cuda::Result<T>) -> Result<T, RunError> {
    result.map_err(|source| RunError::Cuda {
        what: what.into(),
        source,
    })
}

/// Compiles `file` to PTX for `arch`, such as `sm_90`, or for the one that it names.
///
/// # Errors
/// [`RunError::Compile`], with NVRTC's log.
pub fn compile(
    nvrtc: &Nvrtc,
    file: &FileTest,
    arch: &str,
    options: &[&str],
) -> Result<String, RunError> {
    let arch = file.arch.as_deref().unwrap_or(arch);
    let mut program = CudaSource::new(
        format!("{}.cu", file.name),
        &file.source,
        GpuArch::parse(arch)?,
    )
    .option("--std=c++17");
    for option in file
        .options
        .iter()
        .map(String::as_str)
        .chain(options.iter().copied())
    {
        program = program.option(option);
    }
    let compiled = nvrtc.compile(&program)?;
    compiled
        .ptx()
        .map(str::to_string)
        .ok_or_else(|| RunError::Text("the compiler gave no PTX".to_string()))
}

/// Reads `ptx`, prints it, reads that, and compares the two trees.
///
/// # Errors
/// [`RunError::Text`].
pub fn round_trip(ptx: &str) -> Result<(), RunError> {
    let tree =
        fercuda_ptx::parse(ptx).map_err(|e| RunError::Text(format!("cannot be read: {e}")))?;
    let printed = fercuda_ptx::print(&tree);
    let again = fercuda_ptx::parse(&printed)
        .map_err(|e| RunError::Text(format!("cannot be read after printing: {e}")))?;
    if tree == again {
        Ok(())
    } else {
        Err(RunError::Text(
            "reads differently after printing".to_string(),
        ))
    }
}

/// The outcome of one launch.
#[derive(Debug)]
pub struct LaunchOutcome {
    /// The run's name.
    pub run: String,
    /// Time of loading, copying, launching and waiting.
    pub took: Duration,
    /// Outputs by name.
    pub outputs: BTreeMap<String, Buffer>,
    /// How close each output was, in units of what is allowed; zero for exact ones.
    pub worst: BTreeMap<String, f64>,
    /// What is wrong, for a person; empty when all is well.
    pub wrong: Vec<String>,
}

/// Runs every launch of `file` from `ptx`, in a module of its own each.
pub fn execute(context: &Context, file: &FileTest, ptx: &str, seed: u64) -> Vec<LaunchOutcome> {
    file.runs
        .iter()
        .map(|run| execute_run(context, run, ptx, seed))
        .collect()
}

fn execute_run(context: &Context, run: &Run, ptx: &str, seed: u64) -> LaunchOutcome {
    let reference = reference::find(&run.name);
    let case = run.case(reference, seed);
    let start = Instant::now();
    let result = launch(context, run, &case, ptx);
    let mut outcome = LaunchOutcome {
        run: run.name.clone(),
        took: start.elapsed(),
        outputs: BTreeMap::new(),
        worst: BTreeMap::new(),
        wrong: Vec::new(),
    };
    match (result, reference) {
        (Err(error), _) => outcome.wrong.push(error.to_string()),
        (_, None) => outcome.wrong.push("no reference of this name".to_string()),
        (Ok(outputs), Some(reference)) => {
            (outcome.worst, outcome.wrong) = judged(run, reference, &case, &outputs);
            outcome.outputs = outputs;
        }
    }
    outcome
}

/// How close each output is, and what is wrong, for a person.
pub(crate) fn judged(
    run: &Run,
    reference: &Reference,
    case: &LaunchInputs,
    outputs: &BTreeMap<String, Buffer>,
) -> (BTreeMap<String, f64>, Vec<String>) {
    let (mut worst, mut wrong) = (BTreeMap::new(), Vec::new());
    let mut expected = Expected::default();
    (reference.expect)(case, &mut expected);
    for arg in run
        .args
        .iter()
        .filter(|a| a.is_output() && a.judge != Judge::Raw)
    {
        let verdict = match (outputs.get(&arg.name), expected.outputs.get(&arg.name)) {
            (Some(got), Some(wanted)) => judge(arg, got, wanted).map_err(|m| m.to_string()),
            _ => Err(format!(
                "`{}`: nothing came back, or nothing is said of it",
                arg.name
            )),
        };
        match verdict {
            Ok(close) => drop(worst.insert(arg.name.clone(), close.worst)),
            Err(text) => wrong.push(text),
        }
    }
    (worst, wrong)
}

enum PassedArgument {
    Memory(DeviceBuffer<u8>),
    Scalar(Vec<u8>),
}

fn launch(
    context: &Context,
    run: &Run,
    case: &LaunchInputs,
    ptx: &str,
) -> Result<BTreeMap<String, Buffer>, RunError> {
    let stream = during("make a stream", Stream::new(context))?;
    let module = during("load the module", Module::load(context, &Image::ptx(ptx)))?;
    let function = during(
        format!("find `{}`", run.kernel),
        module.function(&run.kernel),
    )?;
    let mut passed = Vec::new();
    let mut variables = Vec::new();
    for arg in &run.args {
        let what = || format!("prepare `{}`", arg.name);
        let bytes = &case.buffer(&arg.name).bytes;
        match arg.role {
            Role::Value => passed.push((arg, PassedArgument::Scalar(bytes.clone()))),
            Role::In | Role::InOut => passed.push((
                arg,
                PassedArgument::Memory(during(what(), DeviceBuffer::from_host(bytes, &stream))?),
            )),
            Role::Out => passed.push((
                arg,
                PassedArgument::Memory(during(what(), DeviceBuffer::alloc(context, bytes.len()))?),
            )),
            Role::Set | Role::Get => {
                let mut variable = during(what(), module.global::<u8>(&arg.name))?;
                if variable.len() != bytes.len() {
                    return Err(RunError::Text(format!(
                        "`{}` has {} bytes, the header says {}",
                        arg.name,
                        variable.len(),
                        bytes.len()
                    )));
                }
                if arg.role == Role::Set {
                    during(what(), variable.copy_from_host(bytes, &stream))?;
                }
                variables.push((arg, variable));
            }
        }
    }
    let values: Vec<KernelArg<'_>> = passed
        .iter()
        .map(|(_, p)| match p {
            PassedArgument::Memory(buffer) => KernelArg::buffer(buffer),
            PassedArgument::Scalar(bytes) => KernelArg::bytes(bytes),
        })
        .collect();
    let mut shape = Launch::new(
        <(u32, u32, u32)>::from(run.grid),
        <(u32, u32, u32)>::from(run.block),
    )
    .shared_bytes(run.shared_bytes);
    if run.cooperative {
        shape = shape.cooperative();
    }
    // SAFETY: the header beside the kernel names arguments of its types and lengths that cover all
    // it accesses; that this is so is what the test establishes, and every buffer lives until the
    // stream has been waited for below.
    during(format!("launch `{}`", run.kernel), unsafe {
        shape.run(&function, &stream, &values[..])
    })?;
    during(format!("run `{}`", run.kernel), stream.synchronize())?;

    let mut outputs = BTreeMap::new();
    let memory = passed.iter().filter_map(|(arg, p)| match p {
        PassedArgument::Memory(buffer) => Some((*arg, buffer)),
        PassedArgument::Scalar(_) => None,
    });
    for (arg, buffer) in memory
        .chain(variables.iter().map(|(arg, v)| (*arg, v)))
        .filter(|(arg, _)| arg.is_output())
    {
        let bytes = during(format!("read `{}`", arg.name), buffer.to_vec(&stream))?;
        outputs.insert(
            arg.name.clone(),
            Buffer {
                elem: arg.elem,
                is_struct: arg.is_struct,
                bytes,
            },
        );
    }
    Ok(outputs)
}
