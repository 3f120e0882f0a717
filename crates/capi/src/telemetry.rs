//! What `intercept_telemetry.h` declares: what the doors before the driver have
//! counted in this process.
//!
//! Invariant: the ledger is never reset; a reset is a baseline that is kept here and
//! taken off what is counted.

use std::sync::{Mutex, MutexGuard, PoisonError};

use fercuda_regime::interface::{self, ProcessFigures};

use crate::pointers::Place;
use crate::status::{Failure, Result, fer_status, guarded};

/// What was intercepted, on all devices together.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct fer_intercept_telemetry {
    /// Allocations from the pools since the last reset, by all libraries.
    pub allocations: u64,
    /// Frees since the last reset, also of what was allocated before it.
    pub frees: u64,
    /// Allocations since the last reset that were for a pool, and that the driver did
    /// instead. 0 is what a governed process has.
    pub fallbacks: u64,
    /// Live blocks of the pools now, in bytes. A reset does not change it.
    pub live_bytes: u64,
    /// The most that was live since the process began, each device's added up; up to 256
    /// KiB of each thread may be missing. A reset does not change it.
    pub peak_bytes: u64,
    /// What the driver gave by itself and was not given back, also of the host, in bytes.
    /// A reset does not change it.
    pub governed_bytes: u64,
    /// What the driver takes for contexts and code, in bytes, by its figures when they
    /// were last looked at. A reset does not change it.
    pub overhead_bytes: u64,
    /// 1 if the figures changed while they were read: then each is of a moment, but not
    /// all of one.
    pub is_racing: u64,
}

/// What was counted at the last reset.
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
        Failure::new(
            fer_status::FER_ERROR_NOT_GOVERNED,
            "no memory is governed in this process\n\
             try: to open a runtime first, or `fercuda run`; and FERCUDA_DISABLE is not to be 1",
        )
    })
}

/// What was intercepted since the last reset. Reads the whole ledger: for who watches, not
/// for each allocation.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_intercept_telemetry_get(
    telemetry: *mut fer_intercept_telemetry,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new("telemetry", telemetry) }?;
        // Counts only grow, so what is read behind the baseline is not below it.
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

/// From now on allocations, frees and fallbacks are counted from 0. What others read of
/// the ledger (`fercuda top`) goes on as before.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_intercept_telemetry_reset() -> fer_status {
    guarded(|| {
        let mut before = baseline();
        *before = figures()?;
        Ok(())
    })
}

/// Whether anything is intercepted in this process: `enabled` gets 1 or 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_intercept_telemetry_enabled(enabled: *mut u32) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new("enabled", enabled) }?;
        place.put(u32::from(figures().is_ok()));
        Ok(())
    })
}
