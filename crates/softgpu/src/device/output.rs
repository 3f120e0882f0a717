//! Output of the device: its own lines on standard error, and what kernels print.

use std::io::Write;
use std::sync::{Arc, Mutex};

use crate::exec::PrintSink;
use crate::lock::lock;

static PRINT: Mutex<Option<PrintSink>> = Mutex::new(None);

pub(crate) fn set_print(sink: Option<PrintSink>) {
    *lock(&PRINT) = sink;
}

/// Where kernels' `printf` goes now.
pub(crate) fn print_sink() -> PrintSink {
    lock(&PRINT)
        .clone()
        .unwrap_or_else(|| Arc::new(print_to_stdout))
}

/// A kernel's output goes where the program's own `printf` output goes.
fn print_to_stdout(text: &str) {
    let mut out = std::io::stdout().lock();
    // A closed standard output cannot be reported.
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

/// Prints one line on standard error, the driver's only means of reporting.
pub(crate) fn say(text: &str) {
    // A closed standard error cannot be reported.
    drop(writeln!(std::io::stderr().lock(), "feRcuda: {text}"));
}
