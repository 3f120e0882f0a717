//! Standing between whoever started `fercuda run` and the program: signals go
//! in, the exit status comes out.
//!
//! The program is in the launcher's process group, so the terminal sends it
//! Ctrl-C, Ctrl-Z and changes of size itself; only what a process sent to the
//! launcher alone is passed on. A pipeline stays one job of the shell, which a
//! group of the program's own would break.
//!
//! Invariant: the handler does nothing but write a byte to a pipe that never
//! blocks; nothing here polls. A signal that was ignored at the start stays so
//! for the program too.

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

/// What is passed on.
const PASSED: [c_int; 8] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
];
/// Also heard of: to stop, and to see that the program has ended.
const HEARD: [c_int; 2] = [libc::SIGTSTP, libc::SIGCHLD];
/// Marks a byte of the pipe: a process sent it, and not the terminal.
const SENT: u8 = 0x80;

/// The pipe's end that the handler writes to; open for as long as it lives.
static WRITER: AtomicI32 = AtomicI32::new(-1);

/// Starts `command` and stays until it ends.
pub(crate) fn run(command: &mut Command) -> Result<io::Result<ExitStatus>> {
    // Before the program is there, so that none is missed.
    let mut signals = listen().context("cannot listen for signals")?;
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
        pass(&child, byte[0]);
    }
}

/// Passes one signal on, and stops where the program stops.
fn pass(child: &Child, byte: u8) {
    let number = i32::from(byte & !SENT);
    if byte & SENT != 0
        && number != libc::SIGCHLD
        && let Some(signal) = Signal::from_named_raw(number)
        && let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32)
    {
        // It is not waited for yet, so the number is still its own. It may be
        // another user's by now, and then hears what the system lets it.
        rustix::process::kill_process(pid, signal).ok();
    }
    if number == libc::SIGTSTP {
        let this = rustix::process::getpid();
        rustix::process::kill_process(this, Signal::STOP).ok();
    }
}

/// A pipe from which the signals come that concern the program.
fn listen() -> io::Result<PipeReader> {
    let (reader, writer) = io::pipe()?;
    let flags = rustix::fs::fcntl_getfl(&writer)?;
    rustix::fs::fcntl_setfl(&writer, flags | OFlags::NONBLOCK)?;
    WRITER.store(writer.into_raw_fd(), Ordering::Relaxed);
    for number in PASSED.into_iter().chain(HEARD) {
        // One that says that children end is ignored by nobody who waits.
        if number != libc::SIGCHLD && is_ignored(number) {
            continue;
        }
        // SAFETY: all zeros is a `sigaction`: no flags and an empty mask.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = hear;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        // SAFETY: `action` outlives the call; `hear` has the signature that
        // SA_SIGINFO asks for, and does what a handler may.
        if unsafe { libc::sigaction(number, &action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(reader)
}

/// The handler. Its one system call is made without the C library, so that the
/// interrupted code keeps its `errno`.
extern "C" fn hear(number: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the system passes a record that lives as long as
    // the handler runs.
    let code = unsafe { info.as_ref() }.map_or(0, |info| info.si_code);
    // Codes of 0 and less are those of processes.
    let origin = if code <= 0 { SENT } else { 0 };
    // SAFETY: set before the handler was, and never closed.
    let writer = unsafe { BorrowedFd::borrow_raw(WRITER.load(Ordering::Relaxed)) };
    // A pipe that is full holds signals enough to wake the reader.
    rustix::io::write(writer, &[number as u8 | origin]).ok();
}

/// Whether this process ignores a signal, as its parent left it.
pub(crate) fn is_ignored(number: c_int) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) >> (number - 1) & 1 != 0
}

/// Ends as the program did: with its status, or by its signal.
pub(crate) fn end_as(status: ExitStatus) -> u8 {
    if let Some(code) = status.code() {
        return code as u8;
    }
    let number = status.signal().unwrap_or(0);
    // The program has left a core already.
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(Resource::Core, none).ok();
    // SAFETY: the default is no code of ours; `number` is what the system said.
    unsafe {
        libc::signal(number, libc::SIG_DFL);
        libc::raise(number);
    }
    128_u8.wrapping_add(number as u8)
}
