//! Runs of one file under the software device's checks, with the report as text.
//!
//! Invariant: the text is the same in every run: addresses are left out, all else counts from one
//! in a fresh process. So each file runs in a process of its own, with `FERCUDA_SOFT_CHECK=1`.

use std::sync::Arc;

use fercuda_cuda::{Select, driver};
use fercuda_softgpu::control;

use crate::filetest::FileTest;
use crate::raw::{RawError, RawMachine};
use crate::{reference, runner};

/// Launches everything in `file`, compiled to `ptx`, and returns every wrong result, finding and
/// error; empty if there are none.
///
/// # Errors
/// The driver refusing to start.
pub fn report(file: &FileTest, ptx: &str) -> Result<String, RawError> {
    let driver = driver(Select::Software).map_err(|e| RawError::Missing(e.to_string()))?;
    // Only the report is returned, not the kernels' output.
    control::set_printf(Some(Arc::new(|_| {})));
    let machine = RawMachine::new(driver, ptx)?;
    let mut failed = None;
    let mut texts = Vec::new();
    for run in &file.runs {
        let reference = reference::find(&run.name);
        let case = run.case(reference, 1);
        match machine.run(run, &case) {
            Ok(outputs) => texts.extend(
                reference
                    .into_iter()
                    .flat_map(|r| runner::judged(run, r, &case, &outputs).1),
            ),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed = failed.or(machine.program(&file.program).err());
    texts.extend(control::take_findings().iter().map(ToString::to_string));
    texts.extend(control::take_faults().iter().map(ToString::to_string));
    texts.extend(failed.map(|e| format!("the program ended: {e}")));
    Ok(texts
        .iter()
        .map(|t| without_addresses(t) + "\n")
        .collect::<Vec<_>>()
        .join("\n"))
}

/// Numbers of nine and more hexadecimal digits are places in this process; shorter ones are offsets
/// and masks of lanes.
fn without_addresses(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("0x") {
        let digits = rest[at + 2..]
            .bytes()
            .take_while(u8::is_ascii_hexdigit)
            .count();
        out.push_str(&rest[..at + 2]);
        let number = &rest[at + 2..][..digits];
        out.push_str(if digits >= 9 { "..." } else { number });
        rest = &rest[at + 2 + digits..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::without_addresses;

    #[test]
    fn addresses_are_left_out_and_offsets_kept() {
        assert_eq!(
            without_addresses("read at 0x7f00deadbeef, 0x84 of 0x10"),
            "read at 0x..., 0x84 of 0x10"
        );
    }
}
