//! The software device's other face: settings, findings and faults, for Rust callers.
//!
//! What is done here has no counterpart in the driver API.

pub use crate::device::config::Config;
use crate::device::{configure as set, lock, machine};
use crate::exec::PrintSink;
use crate::report::{Fault, Finding};

/// Uses `config` instead of the environment's settings. False, and without effect, once `cuInit` has been called.
#[must_use]
pub fn configure(config: Config) -> bool {
    set(config)
}

/// The settings in force; those of the environment before `cuInit`.
#[must_use]
pub fn config() -> Config {
    machine().map_or_else(|_| Config::from_env(), |m| m.config.clone())
}

/// What the checks have found since the last call, sorted; empty with checks off.
/// Findings of work that is still running come later, so synchronise first.
#[must_use]
pub fn take_findings() -> Vec<Finding> {
    let Ok(m) = machine() else { return Vec::new() };
    let mut all = std::mem::take(&mut *lock(&m.printed));
    all.extend(m.sink.take());
    all
}

/// Takes a device away, as a card that falls off its bus: whatever is asked of a context there answers
/// `CUDA_ERROR_UNKNOWN` from now on, a code that alone says nothing of a context, and what runs there ends. There is no way back.
/// False, and without effect, if there is no such device, or none yet.
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

/// Sends what kernels print to `sink` instead of standard output; `None` puts that back.
/// Holds for kernels launched from now on.
pub fn set_printf(sink: Option<PrintSink>) {
    crate::device::set_print(sink);
}

/// The functions of the driver's table that answer `CUDA_ERROR_NOT_SUPPORTED`.
#[must_use]
pub fn unimplemented() -> Vec<&'static str> {
    crate::abi::unimplemented_names()
}

/// The PTX that the device would load from a fat binary, or why it would not. For tests of hostile containers.
///
/// # Errors
/// What is wrong with the container, in words.
pub fn ptx_of_fatbin(container: &[u8]) -> Result<String, String> {
    crate::device::fatbin::ptx(container, 90).map_err(|e| e.to_string())
}
