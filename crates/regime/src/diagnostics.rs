//! Diagnostics on standard error.

use std::io::Write as _;

/// Prints `text` to standard error, each line prefixed with `feRcuda: `. Errors are
/// ignored, and a closed pipe does not end the program.
pub fn print_diagnostic(text: &str) {
    let lines = text.lines().map(|line| format!("feRcuda: {line}\n"));
    let lines: String = lines.collect();
    with_sigpipe_blocked(|| {
        let _stderr_may_be_closed = std::io::stderr().write_all(lines.as_bytes());
    });
}

/// Runs `work`, which may write to a pipe without a reader. SIGPIPE would end a
/// program that has no handler for it, so it is blocked meanwhile and a pending
/// one of `work` is consumed.
fn with_sigpipe_blocked(work: impl FnOnce()) {
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
    // SAFETY: as above. The signal that is consumed is this thread's own: the kernel
    // sends SIGPIPE to the thread that wrote.
    unsafe {
        if !was_pending {
            libc::sigtimedwait(one.as_ptr(), core::ptr::null_mut(), &now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut());
    }
}
