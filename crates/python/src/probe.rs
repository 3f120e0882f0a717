//! Detection of drivers, devices and compilers.

use fercuda_cuda::{Cuda, Device, Result, Select};
use fercuda_nvrtc::Nvrtc;
use fercuda_regime::interface;
use pyo3::prelude::*;

use crate::errors;

/// (ordinal, name, compute capability, memory in bytes, multiprocessors)
type ProbedDevice = (u32, String, (u32, u32), u64, u32);
/// (name, version, path, error, devices)
type ProbedDriver = (
    &'static str,
    Option<String>,
    Option<String>,
    Option<String>,
    Vec<ProbedDevice>,
);

fn device(device: &Device) -> Result<ProbedDevice> {
    Ok((
        device.ordinal(),
        device.name()?,
        device.compute_capability()?,
        device.memory_bytes()?,
        device.multiprocessors()?,
    ))
}

/// Opens each driver.
#[pyfunction]
pub(crate) fn drivers(py: Python<'_>) -> PyResult<Vec<ProbedDriver>> {
    errors::run(py, || {
        let both = [("gpu", Select::Hardware), ("soft", Select::Software)];
        Ok(both
            .into_iter()
            .map(|(name, select)| match Cuda::select(select) {
                Ok(cuda) => {
                    let version = cuda.version().ok();
                    let version = version.map(|(major, minor)| format!("{major}.{minor}"));
                    let place = Some(cuda.driver().origin().to_string());
                    let found = cuda.devices();
                    let found = found.and_then(|all| all.iter().map(device).collect());
                    match found {
                        Ok(devices) => (name, version, place, None, devices),
                        Err(error) => (name, version, place, Some(error.to_string()), Vec::new()),
                    }
                }
                Err(error) => (name, None, None, Some(error.to_string()), Vec::new()),
            })
            .collect())
    })
}

/// The CUDA C++ compiler: version and path, or why there is none.
#[pyfunction]
pub(crate) fn nvrtc(py: Python<'_>) -> PyResult<(Option<String>, Option<String>, Option<String>)> {
    errors::run(py, || {
        Ok(match Nvrtc::find() {
            Ok(nvrtc) => {
                let (major, minor) = nvrtc.version();
                let file = nvrtc.file().display().to_string();
                (Some(format!("{major}.{minor}")), Some(file), None)
            }
            Err(error) => (None, None, Some(error.to_string())),
        })
    })
}

/// Whether another library intercepts the driver of this process: the hook, under
/// `fercuda run`.
#[pyfunction]
pub(crate) fn is_hooked(py: Python<'_>) -> PyResult<bool> {
    errors::run(py, || {
        Ok(interface::own().is_none() && interface::find().is_some())
    })
}

/// (allocations, frees, fallbacks, live, peak, governed and overhead bytes, whether they raced)
type InterceptedCalls = (u64, u64, u64, u64, u64, u64, u64, bool);

/// Counters of intercepted driver calls in this process, if any memory is governed here.
#[pyfunction]
pub(crate) fn intercepted(py: Python<'_>) -> PyResult<Option<InterceptedCalls>> {
    errors::run(py, || {
        let figures = interface::find().and_then(|interface| interface.figures());
        Ok(figures.map(|it| {
            (
                it.allocs,
                it.frees,
                it.fallbacks,
                it.live,
                it.peak,
                it.governed,
                it.overhead,
                it.racing != 0,
            )
        }))
    })
}

/// Version of the interface through which libraries of one process share its pool.
#[pyfunction]
pub(crate) fn interface_version() -> u32 {
    interface::VERSION
}
