//! Kernels of the code: compiled by NVRTC, and loaded into a context.

use std::sync::Arc;

use fercuda_cuda::{Context, Function, Image, Module};
use fercuda_nvrtc::{CodeFormat, CudaSource, GpuArch, Nvrtc};

use super::verifiers::HostVerifiers;
use crate::error::{Error, Result};
use crate::layout::{SHARED_BYTES, SHARED_WITH_JOBS_BYTES, SHARED_WITH_TABLES_BYTES};
use crate::source;

/// Threads of a thread block.
pub(super) const THREADS: u32 = 256;
pub(super) const WARPS: usize = THREADS as usize / 32;
/// The lowest compute capability with the instructions that the kernels use.
const OLDEST: (u32, u32) = (8, 0);

/// A kernel that executes jobs.
#[derive(Clone, Debug)]
pub(super) struct JobKernel {
    pub(super) function: Function,
    pub(super) shared_bytes: usize,
    pub(super) threads: JobThreads,
    /// The variant for one job, passed in the launch's parameters; then `function` takes up to
    /// [`INLINE_JOBS_MAX`] that way. Otherwise jobs are in page-locked memory.
    pub(super) single: Option<Function>,
}

/// Distribution of jobs over thread blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobThreads {
    /// A thread block for each job.
    Block,
    /// Thread blocks for parts of a job's rows; their outcomes are merged.
    Parts,
    /// A thread block executes one job after another, and prefetches the next one to shared memory.
    Persistent,
}

/// The code's kernels, loaded into a context.
#[derive(Clone, Debug)]
pub struct Kernels {
    pub(super) encode: JobKernel,
    pub(super) verify: JobKernel,
    pub(super) check: JobKernel,
    pub(super) update: JobKernel,
    pub(super) correct: JobKernel,
    pub(super) scan: Function,
    pub(super) refresh: Function,
    /// Thread blocks that are resident at once, of kernels that loop over blocks of memory.
    pub(super) at_once: u32,
    /// The device is the software one. Its race detector compares accesses with orderings that go
    /// through the driver, and does not see a host that polls.
    pub(super) is_software: bool,
    pub(super) host_verifiers: Arc<HostVerifiers>,
    pub(super) context: Context,
}

impl Kernels {
    /// Compiles the kernels for the context's device, or loads them from a cache.
    ///
    /// # Errors
    /// [`Error::Compile`] without NVRTC; [`Error::Device`] for one before compute capability 8.0.
    pub fn load(context: &Context) -> Result<Self> {
        let code = Self::compile(KernelTarget::of(context)?)?;
        // SAFETY: it was compiled here, for this context's device.
        unsafe { Self::of(context, &code) }
    }

    /// Compiles the kernels. Needs no device, so another process can do it, which keeps the
    /// compiler's memory out of this one.
    ///
    /// # Errors
    /// [`Error::Compile`].
    pub fn compile(target: KernelTarget) -> Result<Vec<u8>> {
        let nvrtc = Nvrtc::find()?;
        let known = nvrtc.architectures()?;
        let (major, minor) = target.capability;
        let wanted = major * 10 + minor;
        let output = match !target.is_text && known.contains(&wanted) {
            // The driver's own compiler would leave as much memory behind as NVRTC does.
            true => CodeFormat::Cubin,
            false => CodeFormat::Ptx,
        };
        // PTX for an older architecture runs on a newer one.
        let number = known
            .into_iter()
            .filter(|it| *it <= wanted)
            .max()
            .unwrap_or(wanted);
        let arch = GpuArch::new(number / 10, number % 10);
        let program = CudaSource::new("vramfs.cu", source::KERNELS, arch)
            .output(output)
            .option("--std=c++17")
            .option("--device-int128")
            .option("--generate-line-info")
            .header(source::HEADER_NAME, source::header());
        let compiled = nvrtc.compile(&program)?;
        match compiled.code() {
            [] => Err(Error::NoCode),
            code => Ok(code.to_vec()),
        }
    }

    /// Loads compiled kernels.
    ///
    /// # Errors
    /// [`Error::Cuda`] if `code` is no module; those of the driver.
    ///
    /// # Safety
    /// `code` is what [`Kernels::compile`] of this very version has returned for this context's
    /// device: the kernels' memory accesses are sound only then.
    pub unsafe fn of(context: &Context, code: &[u8]) -> Result<Self> {
        // SAFETY: the caller guarantees that NVRTC has made it.
        let image = unsafe { Image::binary(code) }.map_err(fercuda_cuda::Error::from)?;
        let module = Module::load(context, &image)?;
        let kernel = |name: &str, shared_bytes, threads| {
            Ok::<_, Error>(JobKernel {
                function: module.function(name)?,
                shared_bytes,
                threads,
                single: None,
            })
        };
        let with_single = |name: &str, threads| {
            let single = Some(module.function(&format!("{name}_one"))?);
            let kernel = kernel(name, 0, threads)?;
            Ok::<_, Error>(JobKernel { single, ..kernel })
        };
        Ok(Self {
            encode: kernel(
                "vramfs_encode",
                SHARED_WITH_TABLES_BYTES,
                JobThreads::Persistent,
            )?,
            verify: kernel(
                "vramfs_verify",
                SHARED_WITH_JOBS_BYTES,
                JobThreads::Persistent,
            )?,
            check: with_single("vramfs_check", JobThreads::Parts)?,
            update: with_single("vramfs_update", JobThreads::Block)?,
            correct: kernel("vramfs_correct", SHARED_BYTES, JobThreads::Block)?,
            scan: module.function("vramfs_scan")?,
            refresh: module.function("vramfs_refresh")?,
            at_once: 2 * context.device().multiprocessors()?,
            is_software: context.device().is_software()?,
            host_verifiers: Arc::default(),
            context: context.clone(),
        })
    }
}

/// Target of the kernels' compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelTarget {
    /// Compute capability of the device.
    pub capability: (u32, u32),
    /// Whether to compile to PTX, as for the software device; else to machine code if the compiler
    /// supports the device.
    pub is_text: bool,
}

impl KernelTarget {
    /// Returns the target of a context's device, if it supports the kernels.
    ///
    /// # Errors
    /// [`Error::Device`]; those of the driver.
    pub fn of(context: &Context) -> Result<Self> {
        let device = context.device();
        let capability = device.compute_capability()?;
        match capability < OLDEST {
            true => Err(Error::Device {
                capability,
                oldest: OLDEST,
            }),
            false => Ok(Self {
                capability,
                is_text: device.is_software()?,
            }),
        }
    }
}
