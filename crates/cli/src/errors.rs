//! Printing of errors: what failed, its causes, what to try.

use std::process::ExitCode;

use crate::out::alert;
use crate::status::ExitStatus;
use crate::terminal::{Paint, plain_text};

/// Prints an error, its causes and what to try, each on a line of its own; returns `status`.
pub(crate) fn report(error: &anyhow::Error, status: ExitStatus) -> ExitCode {
    let paint = Paint::stderr();
    let mut lines: Vec<String> = Vec::new();
    for cause in error.chain() {
        for line in cause.to_string().lines() {
            // The text may contain names that come from other processes.
            let parts: Vec<String> = line.split('\t').map(plain_text).collect();
            let line = parts.join("\t");
            // An error may already contain the text of its cause.
            let is_said = |said: &String| {
                said.strip_suffix(&*line)
                    .is_some_and(|before| before.is_empty() || before.ends_with(": "))
            };
            if !lines.iter().any(is_said) {
                lines.push(line);
            }
        }
    }
    // Hints (`try: `) come last, whichever cause they belong to.
    let (hints, what): (Vec<String>, Vec<String>) = lines
        .into_iter()
        .partition(|line| line.starts_with("try: "));
    let mut what = what.into_iter();
    alert!(
        "{} {}",
        paint.bad("error:"),
        what.next().unwrap_or_else(|| "unknown".to_owned())
    );
    for line in what {
        alert!("  {line}");
    }
    for hint in hints {
        alert!("{hint}");
    }
    status.into()
}
