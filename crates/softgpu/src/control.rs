//! Control interface of the software device for Rust callers: settings, findings, faults.
//!
//! Nothing here has a counterpart in the driver API.

pub use crate::device::config::{Config, LeakPolicy};
use crate::device::{configure as set, lock, machine};
use crate::exec::PrintSink;
use crate::report::{Fault, Finding};

/// Uses `config` instead of the environment's settings. Returns false, without effect, once
/// `cuInit` has been called.
#[must_use]
pub fn configure(config: Config) -> bool {
    set(config)
}

/// The current settings; before `cuInit` those of the environment.
#[must_use]
pub fn config() -> Config {
    machine().map_or_else(|_| Config::from_env(), |m| m.config.clone())
}

/// The findings since the last call, sorted; empty with checks off. Work that is still running
/// may add findings, so synchronise first.
#[must_use]
pub fn take_findings() -> Vec<Finding> {
    let Ok(m) = machine() else { return Vec::new() };
    let mut all = std::mem::take(&mut *lock(&m.printed));
    all.extend(m.sink.take());
    all
}

/// Simulates a lost device, as a card that falls off its bus: calls on its contexts return
/// `CUDA_ERROR_UNKNOWN` from now on, a code that by itself does not mean a lost context, and
/// running work ends. It cannot be undone. Returns false, without effect, if the device does not
/// exist or before `cuInit`.
#[must_use]
pub fn lose(device: u32) -> bool {
    let Ok(m) = machine() else { return false };
    let found = m.devices.get(device as usize);
    found.map(|device| m.lose(device)).is_some()
}

/// The faults that ended kernels since the last call, oldest first, at most the last 64.
#[must_use]
pub fn take_faults() -> Vec<Fault> {
    let Ok(m) = machine() else { return Vec::new() };
    std::mem::take(&mut *lock(&m.faults))
}

/// Sends the output of kernels to `sink` instead of standard output; `None` restores that.
/// Applies to kernels launched from now on.
pub fn set_printf(sink: Option<PrintSink>) {
    crate::device::set_print(sink);
}

/// The functions of the driver's table that return `CUDA_ERROR_NOT_SUPPORTED`.
#[must_use]
pub fn unimplemented() -> Vec<&'static str> {
    crate::abi::unimplemented_names()
}

/// The PTX that the device would load from a fat binary. For tests of malformed containers.
///
/// # Errors
/// A description of the container's defect.
pub fn ptx_of_fatbin(container: &[u8]) -> Result<String, String> {
    crate::device::fatbin::ptx(container, 90).map_err(|e| e.to_string())
}

/// Compiles PTX as loading a module does, without a device. For tests of invalid texts.
///
/// # Errors
/// What would be in the log of the client.
pub fn compile_ptx(text: &str) -> Result<(), String> {
    crate::device::image::refusal(text).map_or(Ok(()), Err)
}
