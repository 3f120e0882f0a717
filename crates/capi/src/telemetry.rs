//! Declarations of `intercept_telemetry.h`: counters of the functions interposed before the driver
//! in this process.
//!
//! Invariant: the ledger is never reset; a reset stores a baseline here, which is subtracted from
//! the counters.

use std::sync::{Mutex, MutexGuard, PoisonError};

use fercuda_regime::interface::{self, ProcessFigures};

use crate::pointers::OutPointer;
use crate::status::{CallFailure, Result, catch_panics, fer_status};

/// Counters of intercepted calls, on all devices together.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct fer_intercept_telemetry {
    /// Allocations from the pools since the last reset, by all libraries.
    pub allocations: u64,
    /// Frees since the last reset, also of memory allocated before it.
    pub frees: u64,
    /// Allocations since the last reset that should have come from a pool, but were made by the
    /// driver. 0 in a governed process.
    pub fallbacks: u64,
    /// Live blocks of the pools, in bytes. Not affected by a reset.
    pub live_bytes: u64,
    /// Peak of the live bytes since the process began, each device's added up; up to 256 KiB of
    /// each thread may be missing. Not affected by a reset.
    pub peak_bytes: u64,
    /// Memory that the driver allocated itself and that is not freed, also of the host, in bytes.
    /// Not affected by a reset.
    pub governed_bytes: u64,
    /// Memory that the driver uses for contexts and code, in bytes, by its figures when they were
    /// last read. Not affected by a reset.
    pub overhead_bytes: u64,
    /// 1 if the counters changed while they were read: each is a value of some moment, but not all
    /// of the same one.
    pub is_racing: u64,
}

/// Counters at the last reset.
static BASELINE: Mutex<ProcessFigures> = Mutex::new(ProcessFigures {
    allocs: 0,
    frees: 0,
    live: 0,
    peak: 0,
    governed: 0,
    overhead: 0,
    fallbacks: 0,
    racing: 0,
});

fn baseline() -> MutexGuard<'static, ProcessFigures> {
    BASELINE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn figures() -> Result<ProcessFigures> {
    let figures = interface::find().and_then(|doors| doors.figures());
    figures.ok_or_else(|| {
        CallFailure::new(
            fer_status::FER_ERROR_NOT_GOVERNED,
            "no memory is governed in this process\n\
             try: to open a runtime first, or `fercuda run`; and FERCUDA_DISABLE is not to be 1",
        )
    })
}
/// Reads the counters since the last reset. Scans the whole ledger: for monitoring, not for each
/// allocation.
/// for each allocation.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_intercept_telemetry_get(
    telemetry: *mut fer_intercept_telemetry,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("telemetry", telemetry) }?;
        // Counters only grow, so values read after the baseline are not below it.
        let before = baseline();
        let now = figures()?;
        place.put(fer_intercept_telemetry {
            allocations: now.allocs.saturating_sub(before.allocs),
            frees: now.frees.saturating_sub(before.frees),
            fallbacks: now.fallbacks.saturating_sub(before.fallbacks),
            live_bytes: now.live,
            peak_bytes: now.peak,
            governed_bytes: now.governed,
            overhead_bytes: now.overhead,
            is_racing: now.racing,
        });
        Ok(())
    })
}

/// Resets allocations, frees and fallbacks to 0. Other readers of the ledger (`fercuda top`) are
/// not affected.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_intercept_telemetry_reset() -> fer_status {
    catch_panics(|| {
        let mut before = baseline();
        *before = figures()?;
        Ok(())
    })
}

/// Returns whether calls are intercepted in this process: `enabled` is set to 1 or 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_intercept_telemetry_enabled(enabled: *mut u32) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("enabled", enabled) }?;
        place.put(u32::from(figures().is_ok()));
        Ok(())
    })
}
