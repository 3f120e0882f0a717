//! Writing to standard output and standard error, either of which may be closed early, and how
//! much is written to the latter.
//!
//! `say!` is for results. On stderr, `alert!` is for errors and warnings, `note!` for what
//! `--quiet` suppresses, and `step!` for what `--verbose` adds.

use std::fmt;
use std::io::{ErrorKind, Write as _};
use std::sync::atomic::{AtomicI8, Ordering};

use crate::status::ExitStatus;

/// The process's verbosity: -1 with `--quiet`, else the number of `--verbose`.
static VERBOSITY: AtomicI8 = AtomicI8::new(0);

/// Options of every command that set the verbosity.
#[derive(clap::Args)]
pub(crate) struct VerbosityArgs {
    /// Show steps on stderr: what is found, opened and compiled (-vv: more).
    #[arg(short, long, global = true, action = clap::ArgAction::Count, display_order = 900)]
    verbose: u8,
    /// Suppress progress and notes on stderr.
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "verbose",
        display_order = 901
    )]
    quiet: bool,
}

impl VerbosityArgs {
    /// Makes it the process's verbosity.
    pub(crate) fn apply(&self) {
        let level = match self.quiet {
            true => -1,
            false => self.verbose.min(9) as i8,
        };
        VERBOSITY.store(level, Ordering::Relaxed);
    }
}

/// Whether progress and notes are suppressed.
pub(crate) fn is_quiet() -> bool {
    VERBOSITY.load(Ordering::Relaxed) < 0
}

/// Whether steps of this level, 1 or 2, are shown.
pub(crate) fn is_verbose(level: i8) -> bool {
    VERBOSITY.load(Ordering::Relaxed) >= level
}

/// Writes `text` to standard error. A closed stderr is ignored, since it changes nothing of the
/// work done; `eprintln!` would panic.
pub(crate) fn write_warning(text: fmt::Arguments<'_>) {
    std::io::stderr().write_fmt(text).unwrap_or_default();
}

/// As `eprintln!`, by [`write_warning`].
macro_rules! alert {
    ($($arguments:tt)*) => {
        $crate::out::write_warning(format_args!("{}\n", format_args!($($arguments)*)))
    };
}
pub(crate) use alert;

/// As [`alert!`], unless `--quiet`.
macro_rules! note {
    ($($arguments:tt)*) => {
        if !$crate::out::is_quiet() {
            $crate::out::alert!($($arguments)*);
        }
    };
}
pub(crate) use note;

/// A step of the work, shown with `--verbose`.
macro_rules! step {
    ($($arguments:tt)*) => {
        if $crate::out::is_verbose(1) {
            $crate::out::alert!("fercuda: {}", format_args!($($arguments)*));
        }
    };
}
pub(crate) use step;

/// Writes `text`. Exits if that fails: silently if the reader has closed the pipe, as in
/// `fercuda demo | head -1`.
pub(crate) fn write(text: fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) else {
        return;
    };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(ExitStatus::PipeClosed as i32);
    }
    alert!("error: cannot write to standard output\n  {error}");
    std::process::exit(ExitStatus::Usage as i32);
}

/// As `println!`, by [`write`].
macro_rules! say {
    ($($arguments:tt)*) => {
        $crate::out::write(format_args!("{}\n", format_args!($($arguments)*)))
    };
}
pub(crate) use say;
