//! Process supervision for `fercuda run`: forwards signals to the program and passes its exit
//! status on.
//!
//! The program stays in the launcher's process group, so the terminal sends it Ctrl-C, Ctrl-Z
//! and resizes itself; only signals that a process sent to the launcher alone are forwarded. A
//! pipeline stays one job of the shell, which a separate process group would break.
//!
//! Invariant: the signal handler only writes a byte to a non-blocking pipe; nothing here polls.
//! A signal that was ignored at the start stays ignored for the program too.

use std::ffi::{c_int, c_void};
use std::fs;
use std::io::{self, PipeReader, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, IntoRawFd as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::{Context as _, Result};
use rustix::fs::OFlags;
use rustix::process::{Resource, Rlimit, Signal};

/// Signals that are forwarded to the program.
const FORWARDED: [c_int; 8] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
];
/// Signals that are handled but not forwarded: stop, and the end of the program.
const WATCHED: [c_int; 2] = [libc::SIGTSTP, libc::SIGCHLD];
/// Marks a byte of the pipe: the signal came from a process, not from the terminal.
const SENT: u8 = 0x80;

/// The write end of the pipe, for the signal handler; never closed.
static WRITER: AtomicI32 = AtomicI32::new(-1);

/// Starts `command` and waits until it ends.
pub(crate) fn run(command: &mut Command) -> Result<io::Result<ExitStatus>> {
    // Installed before the program starts, so that no signal is missed.
    let mut signals = install_handlers().context("cannot listen for signals")?;
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(Err(error)),
    };
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the program")? {
            return Ok(Ok(status));
        }
        let mut byte = [0];
        signals
            .read_exact(&mut byte)
            .context("cannot read which signal came")?;
        forward(&child, byte[0]);
    }
}

/// Forwards one signal, and stops when the program stops.
fn forward(child: &Child, byte: u8) {
    let number = i32::from(byte & !SENT);
    if byte & SENT != 0
        && number != libc::SIGCHLD
        && let Some(signal) = Signal::from_named_raw(number)
        && let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32)
    {
        // The child is not reaped yet, so its PID is still valid. Its user may have changed
        // by now; then the system decides which signals reach it.
        rustix::process::kill_process(pid, signal).ok();
    }
    if number == libc::SIGTSTP {
        let this = rustix::process::getpid();
        rustix::process::kill_process(this, Signal::STOP).ok();
    }
}

/// A pipe that delivers the signals relevant to the program.
fn install_handlers() -> io::Result<PipeReader> {
    let (reader, writer) = io::pipe()?;
    let flags = rustix::fs::fcntl_getfl(&writer)?;
    rustix::fs::fcntl_setfl(&writer, flags | OFlags::NONBLOCK)?;
    WRITER.store(writer.into_raw_fd(), Ordering::Relaxed);
    for number in FORWARDED.into_iter().chain(WATCHED) {
        // SIGCHLD must not stay ignored: the launcher waits for its child.
        if number != libc::SIGCHLD && is_ignored(number) {
            continue;
        }
        // SAFETY: all zeros is a valid `sigaction`: no flags and an empty mask.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle_signal;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        // SAFETY: `action` outlives the call; `handle_signal` has the signature that
        // SA_SIGINFO requires, and is async-signal-safe.
        if unsafe { libc::sigaction(number, &action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(reader)
}

/// The signal handler. Its one system call bypasses the C library, so that the interrupted code
/// keeps its `errno`.
extern "C" fn handle_signal(number: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a record that is valid while the handler
    // runs.
    let code = unsafe { info.as_ref() }.map_or(0, |info| info.si_code);
    // Codes of 0 and below mean that a process sent the signal.
    let origin = if code <= 0 { SENT } else { 0 };
    // SAFETY: set before the handler was installed, and never closed.
    let writer = unsafe { BorrowedFd::borrow_raw(WRITER.load(Ordering::Relaxed)) };
    // A full pipe already holds enough bytes to wake the reader.
    rustix::io::write(writer, &[number as u8 | origin]).ok();
}

/// Whether this process ignores a signal, as inherited from its parent.
pub(crate) fn is_ignored(number: c_int) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) >> (number - 1) & 1 != 0
}

/// Ends the way the program did: with its exit status, or by the same signal.
pub(crate) fn end_as(status: ExitStatus) -> u8 {
    if let Some(code) = status.code() {
        return code as u8;
    }
    let number = status.signal().unwrap_or(0);
    // The program has already written a core dump.
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(Resource::Core, none).ok();
    // SAFETY: the default action runs no code of ours; `number` came from the kernel.
    unsafe {
        libc::signal(number, libc::SIG_DFL);
        libc::raise(number);
    }
    128_u8.wrapping_add(number as u8)
}
