//! Records of one device's outputs, small enough to copy to another machine.
//!
//! Outputs are kept as a hash and, up to [`KEPT_BYTES`], as they are. Outputs marked `loose` are
//! compared with the reference on each device; differences between devices are only counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::Digest;

use crate::data::Judge;
use crate::filetest::FileTest;
use crate::runner::LaunchOutcome;

/// Outputs up to this length are kept whole; of longer ones, so much of the beginning.
pub const KEPT_BYTES: usize = 256;

/// The outputs of a corpus on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// Inputs were made from this.
    pub seed: u64,
    /// The device that computed them.
    pub device: String,
    /// By `FILE.ARCH/RUN/OUTPUT`.
    pub outputs: BTreeMap<String, RecordedOutput>,
}

/// One output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedOutput {
    /// SHA-256 of all of it.
    pub sha256: String,
    /// Its first bytes, in hexadecimal.
    pub head: String,
}

impl DeviceRecord {
    /// What an H200 computed for `sm_90`; `h200.json` is made of `fercuda-filetest compare
    /// --record`.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn of_h200() -> serde_json::Result<DeviceRecord> {
        serde_json::from_str(include_str!("../h200.json"))
    }
}

impl RecordedOutput {
    fn of(bytes: &[u8]) -> RecordedOutput {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect();
        RecordedOutput {
            sha256: hex(&sha2::Sha256::digest(bytes)),
            head: hex(&bytes[..bytes.len().min(KEPT_BYTES)]),
        }
    }
}

/// How an output compares with its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordComparison {
    /// Bit for bit.
    Same,
    /// Different bits, which the header allows; each device is within the reference's bound.
    WithinBound,
    /// Different bits, which the header does not allow; the first byte that differs, if it was
    /// kept.
    Different(Option<usize>),
    /// The record has no such output.
    Unrecorded,
}

/// Adds the outcomes of `file` for `arch` to `record`.
pub fn add(record: &mut DeviceRecord, file: &FileTest, arch: &str, outcomes: &[LaunchOutcome]) {
    for (key, _, bytes) in comparable(file, arch, outcomes) {
        record.outputs.insert(key, RecordedOutput::of(bytes));
    }
}

/// Compares the outcomes of `file` for `arch` with `record`.
pub fn compare(
    record: &DeviceRecord,
    file: &FileTest,
    arch: &str,
    outcomes: &[LaunchOutcome],
) -> Vec<(String, RecordComparison)> {
    let like = |(key, loose, bytes): (String, bool, &[u8])| {
        let likeness = match record.outputs.get(&key) {
            None => RecordComparison::Unrecorded,
            Some(kept) => {
                let here = RecordedOutput::of(bytes);
                if here.sha256 == kept.sha256 {
                    RecordComparison::Same
                } else if loose {
                    RecordComparison::WithinBound
                } else {
                    let differs = here
                        .head
                        .bytes()
                        .zip(kept.head.bytes())
                        .position(|(a, b)| a != b);
                    RecordComparison::Different(differs.map(|digit| digit / 2))
                }
            }
        };
        (key, likeness)
    };
    comparable(file, arch, outcomes).map(like).collect()
}

/// Key, looseness and bytes of every output that does not depend on the order of atomics.
fn comparable<'a>(
    file: &'a FileTest,
    arch: &'a str,
    outcomes: &'a [LaunchOutcome],
) -> impl Iterator<Item = (String, bool, &'a [u8])> {
    file.runs
        .iter()
        .zip(outcomes)
        .flat_map(move |(run, outcome)| {
            run.args
                .iter()
                .filter(|a| a.is_output() && !matches!(a.judge, Judge::Raw | Judge::Sorted))
                .filter_map(move |arg| {
                    let bytes = &outcome.outputs.get(&arg.name)?.bytes;
                    Some((
                        format!("{}.{arch}/{}/{}", file.name, run.name, arg.name),
                        arg.loose,
                        bytes.as_slice(),
                    ))
                })
        })
}
