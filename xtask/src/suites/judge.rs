//! Parsers of the suites' output, and the lists of accepted skips.
//!
//! Invariant: a test counts as passed only if the suite reports it by name; a skipped test without
//! a reason listed here counts as failed, as does a suite with fewer passes than expected.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::ExitStatus;

use anyhow::{Context as _, Result};

/// Steps of the unprivileged user's script.
const USER_STEPS: u64 = 17;
/// Tests of pjdfstest 0.2.2 that pass, as on tmpfs: all but one.
const PJDFSTEST_MIN_PASSED: u64 = 397;
const PJDFSTEST_ACCEPTED_SKIPS: [(&str, &str); 1] = [(
    "link::link_count_max",
    "a file may have more links than a test can create: pathconf reports no limit, on tmpfs neither",
)];

/// Stressors of stress-ng 0.15.06 that run here; later versions have more.
const STRESS_MIN_PASSED: u64 = 44;
const STRESS_ACCEPTED_SKIPS: [(&str, &str); 4] = [
    (
        "bind-mount",
        "stress-ng disables it, as it may hang the machine; it tests mounts, not files",
    ),
    (
        "binderfs",
        "it tests another filesystem, which the kernel lacks",
    ),
    ("fiemap", "FUSE has no FIEMAP, nor has tmpfs"),
    ("verity", "FUSE has no fs-verity, nor has tmpfs"),
];

/// Result of one suite.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SuiteVerdict {
    /// Number of tests, stressors or operations.
    pub passed: u64,
    /// Failures, with their causes.
    pub failed: Vec<String>,
    /// Accepted skips, with their reasons.
    pub skipped: Vec<(String, String)>,
}

impl SuiteVerdict {
    /// Records a daemon that did not exit cleanly as a failure, whatever its clients saw.
    pub(super) fn record_exit(&mut self, ended: Result<()>) {
        if let Err(error) = ended {
            self.failed.push(format!("the mount: {error:#}"));
        }
    }

    /// Records a skipped test: as accepted if it is listed, else as a failure.
    fn record_skip(&mut self, what: &str, output: &str, accepted: &[(&str, &str)]) {
        match accepted.iter().find(|(name, _)| *name == what) {
            Some((_, why)) => self.skipped.push((what.to_owned(), (*why).to_owned())),
            None => self.failed.push(format!("{what} was skipped: {output}")),
        }
    }

    fn require_passed(&mut self, count: u64) {
        if self.passed < count {
            let passed = self.passed;
            self.failed
                .push(format!("{passed} passed, expected at least {count}"));
        }
    }
}

/// Configuration with all features of Linux; `remounts` allows tests that remount read-only.
pub(super) fn pjdfstest_config(remounts: bool) -> Result<String> {
    let read = |path| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
    let unprivileged_users = unprivileged_users(&read("/etc/passwd")?, &read("/etc/group")?);
    let [one, other] = unprivileged_users.context(
        "pjdfstest needs two unprivileged users with different groups, and the system has fewer",
    )?;
    Ok(format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nstat_st_birthtime = {{}}\nutime_now = {{}}\nutimensat = {{}}\n\
         [settings]\nnaptime = 0.05\nallow_remount = {remounts}\n\
         [dummy_auth]\nentries = [{one:?}, {other:?}]\n"
    ))
}

/// Two unprivileged users with different groups, by the names of both.
fn unprivileged_users(passwd: &str, group: &str) -> Option<[[String; 2]; 2]> {
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let groups: BTreeMap<String, String> = group
        .lines()
        .map(fields)
        .filter(|it| it.len() > 2)
        .map(|it| (it[2].clone(), it[0].clone()))
        .collect();
    let mut found: Vec<[String; 2]> = Vec::new();
    for it in passwd.lines().map(fields).filter(|it| it.len() > 3) {
        if let Some(group) = groups.get(&it[3])
            && it[2] != "0"
            && it[3] != "0"
            && found.iter().all(|other| other[1] != *group)
        {
            found.push([it[0].clone(), group.clone()]);
        }
    }
    found.truncate(2);
    found.try_into().ok()
}

/// Joins the logs of several runs: a test that one skipped may have passed in another.
pub(super) fn pjdfstest(logs: &[String]) -> SuiteVerdict {
    let mut verdict = SuiteVerdict::default();
    let mut passed = BTreeSet::new();
    let mut over = BTreeMap::new();
    for log in logs {
        let mut is_whole = false;
        let mut lines = log.lines().peekable();
        while let Some(line) = lines.next() {
            is_whole |= line.starts_with("Summary: ");
            if line.starts_with(char::is_whitespace) {
                continue;
            }
            let Some((name, state)) = line.split_once(' ') else {
                continue;
            };
            let mut why = || lines.peek().map_or("", |line| line.trim()).to_owned();
            match state.trim() {
                "ok" => _ = passed.insert(name.to_owned()),
                "skipped" => _ = over.insert(name.to_owned(), why()),
                "FAILED" => verdict.failed.push(format!("{name}: {}", why())),
                _ => {}
            }
        }
        if !is_whole {
            let last = log.lines().last().unwrap_or("nothing");
            verdict
                .failed
                .push(format!("it did not complete; its last line: {last}"));
        }
    }
    verdict.passed = passed.len() as u64;
    for (name, output) in over.iter().filter(|it| !passed.contains(it.0)) {
        verdict.record_skip(name, output, &PJDFSTEST_ACCEPTED_SKIPS);
    }
    verdict.require_passed(PJDFSTEST_MIN_PASSED);
    verdict
}

pub(super) fn fsx(operations: u64, status: ExitStatus, log: &str) -> SuiteVerdict {
    let mut verdict = SuiteVerdict::default();
    if status.success() && log.contains("All operations completed A-OK!") {
        verdict.passed = operations;
    } else {
        let from = log.len().saturating_sub(2000);
        let last = log.get(from..).unwrap_or(log);
        verdict
            .failed
            .push(format!("{status}; the end of its log:\n{last}"));
    }
    verdict
}

/// Parses the log of the unprivileged user's script, which has a line for each step.
pub(super) fn steps(status: ExitStatus, log: &str) -> SuiteVerdict {
    let done = log.lines().filter(|line| line.starts_with("ok "));
    let mut verdict = SuiteVerdict {
        passed: done.count() as u64,
        ..SuiteVerdict::default()
    };
    let output: Vec<&str> = log
        .lines()
        .skip_while(|line| line.starts_with("ok "))
        .collect();
    if !status.success() || !output.is_empty() {
        verdict
            .failed
            .push(format!("{status}\n{}", output.join("\n")));
    }
    verdict.require_passed(USER_STEPS);
    verdict
}

/// Judges one stressor by its log: it exits with status 0 also if it skips itself.
pub(super) fn stressor(verdict: &mut SuiteVerdict, name: &str, status: ExitStatus, log: &str) {
    let line = |words: &[&str]| {
        let mut lines = log.lines();
        lines.find(|line| words.iter().any(|word| line.contains(word)))
    };
    if let Some(output) = line(&[" fail: "]) {
        verdict.failed.push(format!("{name}: {output}"));
    } else if let Some(output) = line(&["skipping", "disabled '", "not implemented"]) {
        verdict.record_skip(name, output, &STRESS_ACCEPTED_SKIPS);
    } else if status.success() {
        verdict.passed += 1;
    } else {
        let last = log.lines().last().unwrap_or("nothing");
        verdict
            .failed
            .push(format!("{name}: {status}; its last line: {last}"));
    }
}

/// Fails if fewer stressors passed than expected.
pub(super) fn require_stressors(verdict: &mut SuiteVerdict) {
    verdict.require_passed(STRESS_MIN_PASSED);
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    const OK: i32 = 0;

    fn status(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    /// Log of pjdfstest with a number of passed tests and further lines.
    fn output(good: u64, more: &str) -> String {
        let mut log: String = (0..good).map(|at| format!("t::n{at}   ok\n")).collect();
        log.push_str(more);
        log + "\nSummary: 0 failed, 0 skipped\n"
    }

    #[test]
    fn test_skipped_in_one_run_and_passed_in_another_counts_as_passed() {
        let first = "open::erofs     skipped\n\tRemounts (allow_remount) are not allowed\n";
        let first = output(
            PJDFSTEST_MIN_PASSED - 1,
            &format!("{first}link::link_count_max   skipped\n\tCannot get value\n"),
        );
        let verdict = pjdfstest(&[first.clone(), output(0, "open::erofs      ok\n")]);
        assert_eq!(
            (verdict.passed, &*verdict.failed),
            (PJDFSTEST_MIN_PASSED, &[][..])
        );
        assert_eq!(verdict.skipped.len(), 1);
        // Without the other run there are two failures: the skipped test, and the number of passes.
        let verdict = pjdfstest(&[first]);
        assert_eq!(verdict.failed.len(), 2, "{verdict:?}");
        assert!(verdict.failed[0].contains("open::erofs was skipped: Remounts"));
        assert!(verdict.failed[1].contains("396 passed, expected at least 397"));
    }

    #[test]
    fn failed_test_and_incomplete_run_are_failures() {
        let log = output(
            PJDFSTEST_MIN_PASSED,
            "chmod::x    FAILED\n\tassertion failed\n",
        );
        assert_eq!(pjdfstest(&[log]).failed, ["chmod::x: assertion failed"]);
        let log = output(PJDFSTEST_MIN_PASSED, "").replace("Summary", "");
        let failed = pjdfstest(&[log]).failed;
        assert!(
            failed.len() == 1 && failed[0].contains("did not complete"),
            "{failed:?}"
        );
    }

    #[test]
    fn fsx_needs_status_0_and_its_success_line() {
        let log = "All operations completed A-OK!\n";
        assert_eq!(fsx(7, status(OK), log).passed, 7);
        for (code, log) in [(1, log), (OK, "Using seed 3"), (1, "Size error")] {
            let verdict = fsx(7, status(code), log);
            assert_eq!((verdict.passed, verdict.failed.len()), (0, 1));
        }
    }

    #[test]
    fn failing_and_unlisted_skipping_stressors_are_failures() {
        let skips = "stress-ng: info: [1] x: not supported, skipping stressor\n";
        let fails = "stress-ng: fail: [1] x: data differs\n";
        let both = format!("{skips}{fails}");
        let judged = |name, code, log: &str| {
            let mut verdict = SuiteVerdict::default();
            stressor(&mut verdict, name, status(code), log);
            (verdict.passed, verdict.failed.len(), verdict.skipped.len())
        };
        assert_eq!(judged("chmod", OK, "successful run completed"), (1, 0, 0));
        assert_eq!(judged("chmod", OK, skips), (0, 1, 0));
        assert_eq!(judged("fiemap", OK, skips), (0, 0, 1));
        assert_eq!(judged("fiemap", OK, &both), (0, 1, 0));
        assert_eq!(judged("chmod", 2, ""), (0, 1, 0));
        assert_eq!(judged("chmod", OK, fails), (0, 1, 0));
        let mut few = SuiteVerdict::default();
        require_stressors(&mut few);
        assert_eq!(few.failed.len(), 1);
    }

    #[test]
    fn two_users_have_different_named_groups() {
        let passwd = "root:x:0:0::/:\nsync:x:4:65534::/:\nno:x:5:77::/:\ndaemon:x:1:1::/:\nnobody:x:65534:65534::/:\n";
        let group = "root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n";
        let found = unprivileged_users(passwd, group).unwrap();
        assert_eq!(found, [["sync", "nogroup"], ["daemon", "daemon"]]);
        assert_eq!(unprivileged_users(passwd, "root:x:0:\ndaemon:x:1:\n"), None);
    }
}
