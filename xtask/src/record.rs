//! Results of cases that only a GPU machine can run, as the last run of
//! `tests/gpu/regime/conformance.py` there recorded it.
//!
//! Invariant: only what the record says passed is said to have passed, with the
//! device; and if the code has changed since, that is said too.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::process::Stdio;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::shell;

/// Where the record is kept.
const FILE: &str = "docs/conformance-gpu.json";

/// The code that the cases judge.
const JUDGED: [&str; 7] = [
    "crates/cuda-sys/src",
    "crates/pool/src",
    "crates/ledger/src",
    "crates/governor/src",
    "crates/regime/src",
    "crates/hook/src",
    "tests/gpu/regime",
];

/// How the code has changed since a record was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    /// Not at all.
    Current,
    /// The code that is judged has changed.
    Older,
    /// The commit is none of this repository's, or was changed before it ran.
    Unknown,
}

/// See the module.
pub(crate) struct Record {
    device: String,
    devices: u64,
    driver: String,
    commit: String,
    age: Age,
    /// By name: what came of it, or why it did not run.
    cases: BTreeMap<String, Case>,
}

#[derive(Debug, PartialEq, Eq)]
enum Case {
    Passed,
    Failed,
    Skipped(String),
}

/// The record; none if there is none.
pub(crate) fn read() -> Result<Option<Record>> {
    let path = shell::root().join(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {FILE}"))?;
    let value = serde_json::from_str(&text).with_context(|| format!("{FILE} is no record"))?;
    let mut record = parse(&value).with_context(|| format!("{FILE} is no record"))?;
    record.age = age(&record.commit);
    Ok(Some(record))
}

fn parse(value: &Value) -> Option<Record> {
    let text = |value: &Value, name: &str| Some(value.get(name)?.as_str()?.to_owned());
    let cases = value.get("cases")?.as_object()?.iter();
    let cases = cases.map(|(name, case)| {
        let case = match text(case, "result")?.as_str() {
            "passed" => Case::Passed,
            "skipped" => Case::Skipped(text(case, "why")?),
            _ => Case::Failed,
        };
        Some((name.clone(), case))
    });
    Some(Record {
        device: text(value, "device")?,
        devices: value.get("devices")?.as_u64()?,
        driver: text(value, "driver")?,
        commit: text(value, "commit")?,
        age: Age::Unknown,
        cases: cases.collect::<Option<_>>()?,
    })
}

/// Compares the code here with a commit's.
fn age(commit: &str) -> Age {
    // No name of a commit; git is not asked what else it may mean.
    if commit.is_empty() || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Age::Unknown;
    }
    let mut git = shell::command("git");
    git.args(["diff", "--quiet", commit, "--"])
        .args(JUDGED)
        .stderr(Stdio::null());
    match git.status().ok().and_then(|status| status.code()) {
        Some(0) => Age::Current,
        Some(1) => Age::Older,
        _ => Age::Unknown,
    }
}

impl Record {
    /// What came of a case.
    pub(crate) fn result(&self, name: &str) -> String {
        let device = &self.device;
        let since = match self.age {
            Age::Current => "",
            Age::Older => ", before the last changes",
            Age::Unknown => ", of other code",
        };
        match self.cases.get(name) {
            Some(Case::Passed) => format!("passed on {device}{since}"),
            Some(Case::Failed) => format!("**failed** on {device}{since}"),
            Some(Case::Skipped(why)) => format!("not run on a GPU: {why}"),
            None => "not run on a GPU".to_owned(),
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "What a GPU shows was recorded on {}, driver {}, commit `{}`, by\n\
             `tests/gpu/regime/conformance.py`: [conformance-gpu.json](conformance-gpu.json).",
            match self.devices {
                1 => self.device.clone(),
                count => format!("{count} {}", self.device),
            },
            self.driver,
            self.commit
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(age: Age) -> Record {
        let value = serde_json::json!({
            "device": "NVIDIA H200", "devices": 2, "driver": "580.159", "commit": "abc",
            "cases": {
                "a": {"result": "passed", "problems": []},
                "b": {"result": "failed", "problems": ["it was not"]},
                "c": {"result": "skipped", "why": "one GPU"},
                "d": {"result": "whatever"},
            },
        });
        let record = parse(&value).expect("a record");
        Record { age, ..record }
    }

    #[test]
    fn only_what_passed_on_this_code_has_simply_passed() {
        let current = record(Age::Current);
        assert_eq!(current.result("a"), "passed on NVIDIA H200");
        assert_eq!(current.result("b"), "**failed** on NVIDIA H200");
        assert_eq!(current.result("c"), "not run on a GPU: one GPU");
        assert_eq!(current.result("d"), "**failed** on NVIDIA H200");
        assert_eq!(current.result("e"), "not run on a GPU");
        let older = record(Age::Older).result("a");
        assert_eq!(older, "passed on NVIDIA H200, before the last changes");
        let other = record(Age::Unknown).result("a");
        assert_eq!(other, "passed on NVIDIA H200, of other code");
    }

    #[test]
    fn a_commit_that_is_none_is_unknown() {
        assert_eq!(age(""), Age::Unknown);
        assert_eq!(age("--output=x"), Age::Unknown);
        assert_eq!(age("HEAD"), Age::Unknown);
        assert_eq!(
            age("0123456789012345678901234567890123456789"),
            Age::Unknown
        );
        assert_eq!(age("abc and changes"), Age::Unknown);
    }

    #[test]
    fn what_lacks_a_part_is_no_record() {
        assert!(parse(&serde_json::json!({"device": "x", "cases": {}})).is_none());
    }
}
