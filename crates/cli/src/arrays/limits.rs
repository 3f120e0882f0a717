//! Limits of a run that is compared with a reference, and the device that it runs on.
//!
//! Invariant: on the software device, a run is checked for undefined behaviour.

use anyhow::{Result, bail};
use fercuda_cuda::{Cuda, Device};
use fercuda_softgpu::control;
use fercuda_tensor::Layout;

use crate::out::{note, step};
use crate::status::bail_usage;
use crate::terminal::bytes;

/// Opens the device that `FERCUDA_DEVICE` selects; the software device with its checks, whose
/// findings are kept for [`refuse_findings`].
///
/// # Errors
/// There is no such device, or the software device was in use before.
pub(crate) fn open_checked_device() -> Result<(Cuda, Device)> {
    // Configures the software device, if selected, before its first call.
    let mut config = control::config();
    config.checks = true;
    config.print_findings = false;
    config.exit_code = None;
    if !control::configure(config) {
        bail!("the software device was already in use before the run started");
    }
    let cuda = Cuda::from_env()?;
    let device = cuda.device(0)?;
    step!("device {device}");
    Ok((cuda, device))
}

/// Fails with the first finding of the software device's checks.
///
/// # Errors
/// The finding.
pub(crate) fn refuse_findings(cuda: Cuda) -> Result<()> {
    let findings = control::take_findings();
    match findings.first().filter(|_| cuda.is_software()) {
        Some(finding) => bail!("{finding}"),
        None => Ok(()),
    }
}

/// Size of the memory that a layout reaches.
pub(crate) fn reach_len(layout: &Layout) -> u64 {
    let reach = layout.reach_bytes();
    reach.end.abs_diff(reach.start)
}

/// Refuses a run that does not fit the device; `alternative` follows the hint.
///
/// # Errors
/// A usage error with the sizes.
pub(crate) fn check_device_memory(device: Device, needed: u64, alternative: &str) -> Result<()> {
    let has = device.memory_bytes()?;
    if needed > has {
        bail_usage!(
            "the run needs {} of device memory ({needed} bytes), and {device} has {}\n\
             try: smaller shapes{alternative}",
            bytes(needed),
            bytes(has)
        );
    }
    Ok(())
}

/// Refuses a reference that computes more than `most` values, or takes more of the host's memory
/// than there is. Notes that a long one begins.
///
/// # Errors
/// A usage error with the sizes.
pub(crate) fn check_reference(values: u64, host_bytes: u64, most: u64) -> Result<()> {
    if values > most {
        bail_usage!(
            "the reference would compute {values} values on the host, in {} of its memory; the \
             limit is {most}\ntry: smaller shapes, or --max-values {values}",
            bytes(host_bytes)
        );
    }
    if let Some(available) = available_host_bytes().filter(|it| *it < host_bytes) {
        bail_usage!(
            "the reference needs {} of host memory, and {} are available\ntry: smaller shapes",
            bytes(host_bytes),
            bytes(available)
        );
    }
    note_duration(values);
    Ok(())
}

/// Says that a long comparison has begun: it computes some million values a second.
fn note_duration(values: u64) {
    const LONG: u64 = 1 << 22;
    if values >= LONG {
        note!("comparing {values} values with the reference on the host ...");
    }
}

/// Memory that the host can give without swapping; `None` if it does not say.
pub(crate) fn available_host_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|it| it.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kib.checked_mul(1024)
}
