//! What is said to who runs the program.

use std::io::Write as _;

/// Says something to who runs the program, if anybody can be told: a program
/// that does not care about its standard error is not to end of ours.
pub fn say(text: &str) {
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
