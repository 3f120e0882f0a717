//! Runs of one file under the software device's checks, with the report as text.
//!
//! Invariant: the text is the same in every run: addresses are left out, all else counts from one
//! in a fresh process. So each file runs in a process of its own, with `FERCUDA_SOFT_CHECK=1`.

use std::collections::BTreeSet;
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
    for program in &file.programs {
        failed = failed.or(machine.program(&program.steps).err());
    }
    texts.extend(control::take_findings().iter().map(ToString::to_string));
    texts.extend(control::take_faults().iter().map(ToString::to_string));
    texts.extend(failed.map(|e| format!("the program ended: {e}")));
    Ok(texts
        .iter()
        .map(|t| without_addresses(t) + "\n")
        .collect::<Vec<_>>()
        .join("\n"))
}

/// Launches each run and executes each program of `file`, compiled to `ptx`, in a context of its
/// own; returns those whose findings are not of the kinds that its header says, with both.
///
/// # Errors
/// The driver refusing to start; a program that makes no sense.
pub fn misjudged(file: &FileTest, ptx: &str) -> Result<String, RawError> {
    let driver = driver(Select::Software).map_err(|e| RawError::Missing(e.to_string()))?;
    control::set_printf(Some(Arc::new(|_| {})));
    let mut wrong = String::new();
    for run in &file.runs {
        let case = run.case(None, 1);
        let machine = RawMachine::new(driver, ptx)?;
        let ended = machine.run(run, &case).map(drop);
        machine.end()?;
        wrong += &misjudgement(&run.name, &run.finds, ended)?;
    }
    for program in &file.programs {
        let machine = RawMachine::new(driver, ptx)?;
        let ended = machine.program(&program.steps);
        machine.end()?;
        wrong += &misjudgement(&program.name, &program.finds, ended)?;
    }
    Ok(wrong)
}

/// Compares the kinds of all findings and faults since the last call with those wanted. A call that
/// fails is no finding, and is no failure where something is to be found.
fn misjudgement(
    name: &str,
    finds: &[String],
    ended: Result<(), RawError>,
) -> Result<String, RawError> {
    let (findings, faults) = (control::take_findings(), control::take_faults());
    let kinds = findings.iter().map(|finding| finding.kind.to_string());
    let faulted = faults.iter().map(|fault| fault.kind.name().to_owned());
    let got: BTreeSet<String> = kinds.chain(faulted).collect();
    let wanted: BTreeSet<String> = finds.iter().cloned().collect();
    let ended = match ended {
        Ok(()) => String::new(),
        Err(RawError::Driver { .. }) if !wanted.is_empty() => String::new(),
        Err(error @ RawError::Driver { .. }) => format!("the program ended: {error}\n"),
        Err(error) => return Err(error),
    };
    if got == wanted && ended.is_empty() {
        return Ok(String::new());
    }
    let mut text = format!("{name}: found {got:?}, should find {wanted:?}\n{ended}");
    for finding in findings.iter().map(ToString::to_string) {
        text += &(without_addresses(&finding) + "\n");
    }
    for fault in faults.iter().map(ToString::to_string) {
        text += &(without_addresses(&fault) + "\n");
    }
    Ok(text)
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
