//! `libfercuda_hook.so`: stands where a program looks for the CUDA driver, and
//! lets every library in it share one governed pool for each device.
//!
//! Loaded before all others, under the driver's own name. Until the program
//! calls the driver nothing here runs.
//!
//! Invariant: what is not governed reaches the driver unchanged; with
//! `FERCUDA_DISABLE=1`, without a driver and in the child of a fork nothing is.

#![deny(unsafe_op_in_unsafe_fn)]

use std::io::Write as _;

mod bind;
#[cfg(feature = "broken-rules")]
mod broken;
mod caller;
mod doors;
mod exports;
mod linked;
mod loader;
mod nvml;
mod real;
mod recent;
mod regime;
mod settings;
mod trace;

/// Says something to who runs the program, if anybody can be told: a program
/// that does not care about its standard error is not to end of ours.
fn say(text: &str) {
    let lines = text.lines().map(|line| format!("feRcuda: {line}\n"));
    let lines: String = lines.collect();
    without_sigpipe(|| {
        let _nobody_hears_it = std::io::stderr().write_all(lines.as_bytes());
    });
}

/// Runs `work`, which may write where nobody reads. The signal for that ends a
/// program that has not said what it thinks of it.
fn without_sigpipe(work: impl FnOnce()) {
    let new = || core::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    let (mut one, mut pending, mut before) = (new(), new(), new());
    // SAFETY: each set is filled before it is read, and outlives the calls.
    let (masked, was_pending) = unsafe {
        libc::sigemptyset(one.as_mut_ptr());
        libc::sigaddset(one.as_mut_ptr(), libc::SIGPIPE);
        libc::sigpending(pending.as_mut_ptr());
        (
            libc::pthread_sigmask(libc::SIG_BLOCK, one.as_ptr(), before.as_mut_ptr()) == 0,
            libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1,
        )
    };
    work();
    if !masked {
        return;
    }
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: as above; what is taken is this thread's own, since a write's
    // signal goes to the thread that wrote.
    unsafe {
        if !was_pending {
            libc::sigtimedwait(one.as_ptr(), core::ptr::null_mut(), &now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut());
    }
}
