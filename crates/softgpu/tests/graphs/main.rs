//! Stream capture and graphs. Captures of one thread forbid calls of others, so these tests run one
//! at a time.
#![expect(
    clippy::macro_metavars_in_unsafe,
    reason = "the macros call the driver; their callers argue the pointers"
)]

#[allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "shared by several test programs, each of which uses a part"
)]
#[macro_use]
#[path = "../api/common.rs"]
mod common;
mod capture;
mod explicit;
mod memory;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Holds every other test of this process off.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
