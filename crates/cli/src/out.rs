//! Writing to standard output and standard error, whose readers may leave before the end.

use std::fmt;
use std::io::{ErrorKind, Write as _};

/// What a shell reports of a program that a closed pipe ended.
const PIPE_CLOSED: i32 = 141;

/// Writes `text` to standard error. That nobody reads it any more changes nothing of what was done, so it is no failure, where
/// `eprintln!` panics.
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

/// Writes `text`. Ends the program if that cannot be done: silently if nobody
/// reads any more, as in `fercuda demo | head -1`.
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
