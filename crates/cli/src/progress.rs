//! Progress bars of long work.

use indicatif::{ProgressBar, ProgressStyle};

use crate::out::is_quiet;

/// Creates a progress bar on standard error, visible if that is a terminal, unless `--quiet`.
pub(crate) fn progress_bar(what: &'static str, length: u64, is_bytes: bool) -> ProgressBar {
    let how = match is_bytes {
        true => "{msg} {wide_bar} {binary_bytes} of {binary_total_bytes}, {eta} left",
        false => "{msg} {wide_bar} {pos} of {len}",
    };
    if is_quiet() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length).with_message(what);
    match ProgressStyle::with_template(how) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
