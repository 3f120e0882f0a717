//! Writing to standard output and standard error, either of which may be closed early.

use std::fmt;
use std::io::{ErrorKind, Write as _};

/// The exit status that a shell reports for a program ended by SIGPIPE.
const PIPE_CLOSED: i32 = 141;

/// Writes `text` to standard error. A closed stderr is ignored, since it changes nothing of the
/// work done; `eprintln!` would panic.
pub(crate) fn write_note(text: fmt::Arguments<'_>) {
    std::io::stderr().write_fmt(text).unwrap_or_default();
}

/// As `eprintln!`, by [`write_note`].
macro_rules! note {
    ($($arguments:tt)*) => {
        $crate::out::write_note(format_args!("{}\n", format_args!($($arguments)*)))
    };
}
pub(crate) use note;

/// Writes `text`. Exits if that fails: silently if the reader has closed the pipe, as in
/// `fercuda demo | head -1`.
pub(crate) fn write(text: fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) else {
        return;
    };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(PIPE_CLOSED);
    }
    note!("error: cannot write to standard output\n  {error}");
    std::process::exit(2);
}

/// As `println!`, by [`write`].
macro_rules! say {
    ($($arguments:tt)*) => {
        $crate::out::write(format_args!("{}\n", format_args!($($arguments)*)))
    };
}
pub(crate) use say;
