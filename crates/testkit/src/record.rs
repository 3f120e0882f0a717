//! What one device computed, kept small enough to carry to another.
//!
//! Outputs are kept as a hash and, up to [`KEPT_BYTES`], as they are. Those that a header calls `loose` are
//! judged against the reference on each device, and between devices only counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::Digest;

use crate::data::Judge;
use crate::filetest::FileTest;
use crate::runner::Outcome;

/// Outputs up to this length are kept whole; of longer ones, so much of the beginning.
pub const KEPT_BYTES: usize = 256;

/// The outputs of a corpus on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Inputs were made from this.
    pub seed: u64,
    /// The device that computed them.
    pub device: String,
    /// By `FILE.ARCH/RUN/OUTPUT`.
    pub outputs: BTreeMap<String, Kept>,
}

/// One output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// SHA-256 of all of it.
    pub sha256: String,
    /// Its first bytes, in hexadecimal.
    pub head: String,
}

impl Record {
    /// What an H200 computed for `sm_90`; `h200.json` is made of `fercuda-filetest compare --record`.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn of_h200() -> serde_json::Result<Record> {
        serde_json::from_str(include_str!("../h200.json"))
    }
}

impl Kept {
    fn of(bytes: &[u8]) -> Kept {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect();
        Kept {
            sha256: hex(&sha2::Sha256::digest(bytes)),
            head: hex(&bytes[..bytes.len().min(KEPT_BYTES)]),
        }
    }
}

/// How an output compares with its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Likeness {
    /// Bit for bit.
    Same,
    /// Different bits, which the header allows; each device is within the reference's bound.
    WithinBound,
    /// Different bits, which the header does not allow; the first byte that differs, if it was kept.
    Different(Option<usize>),
    /// The record has no such output.
    Unrecorded,
}

/// Adds the outcomes of `file` for `arch` to `record`.
pub fn add(record: &mut Record, file: &FileTest, arch: &str, outcomes: &[Outcome]) {
    for (key, _, bytes) in comparable(file, arch, outcomes) {
        record.outputs.insert(key, Kept::of(bytes));
    }
}

/// Compares the outcomes of `file` for `arch` with `record`.
pub fn compare(
    record: &Record,
    file: &FileTest,
    arch: &str,
    outcomes: &[Outcome],
) -> Vec<(String, Likeness)> {
    let like = |(key, loose, bytes): (String, bool, &[u8])| {
        let likeness = match record.outputs.get(&key) {
            None => Likeness::Unrecorded,
            Some(kept) => {
                let here = Kept::of(bytes);
                if here.sha256 == kept.sha256 {
                    Likeness::Same
                } else if loose {
                    Likeness::WithinBound
                } else {
                    let differs = here
                        .head
                        .bytes()
                        .zip(kept.head.bytes())
                        .position(|(a, b)| a != b);
                    Likeness::Different(differs.map(|digit| digit / 2))
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
    outcomes: &'a [Outcome],
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
