//! Launch of the checked kernel on the software device, and its results.
//!
//! Invariant: the device is configured before its first call and used for this one launch, so
//! every finding belongs to it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use fercuda_cuda::{
    Context, Cuda, Device, DeviceBuffer, Function, Image, KernelArg, Launch, Module, Select, Stream,
};
use fercuda_softgpu::check::CheckOptions;
use fercuda_softgpu::control;
use fercuda_softgpu::report::{Fault, FaultKind, Finding};

use super::params::KernelSignature;
use super::spec::{ArgSpec, BufferSpec};
use super::symbols;
use crate::status::ExitStatus;

/// The launch to run.
pub(crate) struct CheckRequest<'a> {
    pub ptx: &'a str,
    pub kernel: &'a KernelSignature,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    /// Whether all blocks run at once, so that they may wait for each other.
    pub cooperative: bool,
    pub timeout: Duration,
    /// What is reported besides.
    pub options: CheckOptions,
    pub specs: &'a [ArgSpec],
}

/// Results of the launch.
#[derive(Debug)]
pub(crate) struct CheckOutcome {
    pub findings: Vec<Finding>,
    /// Why the kernel ended early.
    pub fault: Option<Fault>,
    /// The kernel's `printf` output.
    pub printed: String,
    /// Final contents of the output buffers, in order; empty after a fault.
    pub outputs: Vec<Vec<u8>>,
    /// Location of each buffer: argument, first address, bytes.
    pub places: Vec<(usize, u64, usize)>,
    /// What to try against the fault.
    pub hint: Option<&'static str>,
}

impl CheckOutcome {
    /// 2 if the device could not run the kernel to its end and found nothing before.
    pub(crate) fn status(&self) -> ExitStatus {
        match &self.fault {
            Some(fault) if self.findings.is_empty() && is_of_device(fault) => ExitStatus::Usage,
            fault => ExitStatus::of_findings(fault.is_some() || !self.findings.is_empty()),
        }
    }

    /// The report, with buffers named by their argument and C++ names demangled.
    pub(crate) fn named(&self, report: &str) -> String {
        let mut text = report.to_owned();
        for (argument, start, bytes) in &self.places {
            let plain = format!("({bytes} bytes at {start:#x}");
            text = text.replace(&plain, &format!("(argument {argument}: {}", &plain[1..]));
        }
        symbols::with_demangled(&text)
    }
}

/// Whether a fault says something of the software device, nothing of the kernel.
pub(crate) fn is_of_device(fault: &Fault) -> bool {
    matches!(
        fault.kind,
        FaultKind::NotImplemented { .. } | FaultKind::Internal
    )
}

/// What to try against `fault`: the grid barrier of cooperative groups finds its memory through a
/// register that only a cooperative launch sets, and traps without.
fn hint(fault: &Fault, request: &CheckRequest<'_>) -> Option<&'static str> {
    let is_grid_barrier = !request.cooperative
        && fault.kind == FaultKind::Trap
        && ["%envreg1", "%envreg2"]
            .iter()
            .any(|it| request.ptx.contains(it));
    is_grid_barrier
        .then_some("try: --cooperative, which a kernel that synchronises its grid requires")
}

/// Runs the kernel once.
///
/// # Errors
/// Whatever prevents the launch: limits, memory, files. Errors of the kernel itself are part of
/// the [`CheckOutcome`].
pub(crate) fn run(request: &CheckRequest<'_>) -> Result<CheckOutcome> {
    let mut config = control::config();
    config.checks = true;
    config.check_options = request.options;
    config.late_copies = true;
    // The caller reports both.
    config.print_findings = false;
    config.print_faults = false;
    config.report_file = None;
    config.exit_code = None;
    config.watchdog = Some(request.timeout);
    if !control::configure(config) {
        bail!("the software device was already in use before the check started");
    }
    let printed = Arc::new(Mutex::new(String::new()));
    let sink = printed.clone();
    control::set_printf(Some(Arc::new(move |text: &str| {
        sink.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_str(text);
    })));
    let device = Cuda::select(Select::Software)?.device(0)?;
    let context = Context::primary(device)?;
    let stream = Stream::new(&context)?;
    let module = Module::load(&context, &Image::ptx(request.ptx))?;
    let function = module.function(&request.kernel.symbol)?;
    within_limits(request, &device, function.static_shared_bytes())?;
    if request.cooperative {
        fits_at_once(request, &device, &function)?;
    }

    let mut buffers = Vec::new();
    for (at, spec) in request.specs.iter().enumerate() {
        if let ArgSpec::Buffer(buffer) = spec {
            let made = device_buffer(buffer, &context, &stream);
            buffers.push(made.with_context(|| format!("argument {} is {spec}", at + 1))?);
        }
    }
    let arguments = values(request.specs, &buffers)?;
    stream.synchronize()?;

    let [grid_x, grid_y, grid_z] = request.grid;
    let [block_x, block_y, block_z] = request.block;
    let mut launch = Launch::new((grid_x, grid_y, grid_z), (block_x, block_y, block_z))
        .shared_bytes(request.shared_bytes);
    if request.cooperative {
        launch = launch.cooperative();
    }
    // SAFETY: this is the software device, by `Select::Software` above. There a kernel
    // can reach only its own address space: any other access is a fault or a finding,
    // which is what this program reports.
    #[expect(unsafe_code, reason = "the launch is the subject of this module")]
    let launched = unsafe { launch.run(&function, &stream, arguments.as_slice()) };
    launched?;
    let ended = stream.synchronize();
    let fault = control::take_faults().into_iter().next();
    if let Err(error) = ended
        && fault.is_none()
    {
        return Err(error.into());
    }
    let findings = control::take_findings();
    let printed = std::mem::take(&mut *printed.lock().unwrap_or_else(PoisonError::into_inner));

    let mut outputs = Vec::new();
    let mut places = Vec::new();
    let specs = request.specs.iter().enumerate();
    let with_buffers = specs.filter_map(|(at, spec)| match spec {
        ArgSpec::Buffer(buffer) => Some((at + 1, buffer)),
        _ => None,
    });
    for ((argument, buffer), memory) in with_buffers.zip(&buffers) {
        places.push((argument, memory.address().0, buffer.size()));
        // After a fault the context serves no further calls, as on a GPU.
        if fault.is_none() && buffer.output.is_some() {
            outputs.push(memory.to_vec(&stream)?);
        }
    }
    Ok(CheckOutcome {
        hint: fault.as_ref().and_then(|fault| hint(fault, request)),
        findings,
        fault,
        printed,
        outputs,
        places,
    })
}

fn device_buffer(
    buffer: &BufferSpec,
    context: &Context,
    stream: &Stream,
) -> Result<DeviceBuffer<u8>> {
    // Allocate first: a buffer that does not fit need not be filled.
    let mut memory = DeviceBuffer::alloc(context, buffer.size())?;
    if let Some(bytes) = buffer.bytes()? {
        memory.copy_from_host(&bytes, stream)?;
    }
    Ok(memory)
}

/// The arguments in the form of the launch.
fn values<'b>(specs: &'b [ArgSpec], buffers: &'b [DeviceBuffer<u8>]) -> Result<Vec<KernelArg<'b>>> {
    let mut buffers = buffers.iter();
    let mut values = Vec::new();
    for spec in specs {
        values.push(match spec {
            ArgSpec::Buffer(_) => KernelArg::buffer(buffers.next().context("a buffer for each")?),
            ArgSpec::Scalar { bytes, .. } | ArgSpec::Bytes(bytes) => KernelArg::bytes(bytes),
        });
    }
    Ok(values)
}

/// Maximum blocks and threads along each dimension, the same on every device.
const MOST_BLOCKS: [u32; 3] = [(1 << 31) - 1, 65_535, 65_535];
const MOST_THREADS: [u32; 3] = [1024, 1024, 64];

fn within_limits(request: &CheckRequest<'_>, device: &Device, static_shared: u32) -> Result<()> {
    let name = &request.kernel.name;
    for (what, asked, most) in [
        ("--grid", request.grid, MOST_BLOCKS),
        ("--block", request.block, MOST_THREADS),
    ] {
        for (axis, (asked, most)) in ["x", "y", "z"].iter().zip(asked.into_iter().zip(most)) {
            if asked == 0 {
                bail!("{what} is 0 along {axis}; the minimum is 1\ntry: {what} 1");
            }
            // A block with too many threads in total is reported below, with its size.
            if asked > most && what == "--grid" {
                bail!(
                    "{what} is {asked} along {axis}; the maximum is {most}\n\
                     try: a larger grid along x, which allows {}",
                    MOST_BLOCKS[0]
                );
            }
        }
    }
    let threads: u64 = request.block.iter().map(|&n| u64::from(n)).product();
    let device_most = u64::from(device.max_threads_per_block()?);
    let most = request
        .kernel
        .most_threads
        .unwrap_or(device_most)
        .min(device_most);
    if threads > most {
        let why = if most < device_most {
            format!("`{name}` declares at most")
        } else {
            "a block has at most".to_owned()
        };
        bail!(
            "--block has {threads} threads, but {why} {most}\n\
             try: --block {most}, and --grid larger by the same factor"
        );
    }
    if request.block[2] > MOST_THREADS[2] {
        bail!(
            "--block is {} along z; the maximum is {}\ntry: more threads along x or y",
            request.block[2],
            MOST_THREADS[2]
        );
    }
    let most = device.max_shared_bytes()?.saturating_sub(static_shared);
    if request.shared_bytes > most {
        bail!(
            "--shared is {} bytes; the maximum is {most}, beside the {static_shared} bytes \
             that `{name}` declares\ntry: --shared {most}",
            request.shared_bytes
        );
    }
    Ok(())
}

/// Refuses a cooperative launch with more blocks than the device can run at once.
fn fits_at_once(request: &CheckRequest<'_>, device: &Device, function: &Function) -> Result<()> {
    let blocks: u64 = request.grid.iter().map(|&n| u64::from(n)).product();
    let threads: u32 = request.block.iter().product();
    let of_each = function.blocks_per_multiprocessor(threads, request.shared_bytes)?;
    let most = u64::from(of_each) * u64::from(device.multiprocessors()?);
    if blocks > most {
        bail!(
            "--grid has {blocks} blocks; a cooperative launch of `{}` with blocks of {threads} \
             threads has at most {most}, which run at once\ntry: --grid {most}",
            request.kernel.name
        );
    }
    Ok(())
}
