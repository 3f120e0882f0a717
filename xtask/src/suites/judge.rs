//! What the suites' output means, and what may be passed over.
//!
//! Invariant: a test counts as passed only where the suite says so by its name; what is passed over without a reason
//! that is listed here has failed, and so has a suite of which fewer tests pass than are known to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::ExitStatus;

use anyhow::{Context as _, Result};

/// What a user does who is not root.
const USER_STEPS: u64 = 17;
/// Tests of pjdfstest 0.2.2 that pass, as on tmpfs: all but one.
const PJDFSTEST_PASS: u64 = 397;
const PJDFSTEST_OVER: [(&str, &str); 1] = [(
    "link::link_count_max",
    "a file may have more links than a test can make: pathconf knows no limit, on tmpfs neither",
)];

/// Stressors of stress-ng 0.15.06 that run here; later versions have more.
const STRESS_PASS: u64 = 44;
const STRESS_OVER: [(&str, &str); 4] = [
    (
        "bind-mount",
        "stress-ng itself keeps it back, as it may hang the machine; it is about mounts, not about files",
    ),
    (
        "binderfs",
        "a filesystem of its own, which the kernel has not",
    ),
    (
        "fiemap",
        "where a file's extents lie is nothing that FUSE can be asked, nor tmpfs",
    ),
    ("verity", "FUSE has no fs-verity, nor has tmpfs"),
];

/// What one suite came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Tests, stressors or operations.
    pub passed: u64,
    /// And why.
    pub failed: Vec<String>,
    /// And why.
    pub passed_over: Vec<(String, String)>,
}

impl Verdict {
    /// A daemon that did not end well has failed, whatever its clients saw.
    pub(super) fn end(&mut self, ended: Result<()>) {
        if let Err(error) = ended {
            self.failed.push(format!("the mount: {error:#}"));
        }
    }

    /// Passes over what may be, and fails what may not.
    fn pass_over(&mut self, what: &str, said: &str, may: &[(&str, &str)]) {
        match may.iter().find(|(name, _)| *name == what) {
            Some((_, why)) => self.passed_over.push((what.to_owned(), (*why).to_owned())),
            None => self.failed.push(format!("{what} was passed over: {said}")),
        }
    }

    fn at_least(&mut self, count: u64) {
        if self.passed < count {
            let passed = self.passed;
            self.failed
                .push(format!("{passed} passed, and {count} are known to"));
        }
    }
}

/// The configuration with all that Linux has, and whether the mount may become one that can only be read.
pub(super) fn pjdfstest_config(remounts: bool) -> Result<String> {
    let read = |path| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
    let others = others(&read("/etc/passwd")?, &read("/etc/group")?);
    let [one, other] = others.context(
        "pjdfstest becomes two users with groups of their own, and the system has not as many beside root",
    )?;
    Ok(format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nstat_st_birthtime = {{}}\nutime_now = {{}}\nutimensat = {{}}\n\
         [settings]\nnaptime = 0.05\nallow_remount = {remounts}\n\
         [dummy_auth]\nentries = [{one:?}, {other:?}]\n"
    ))
}

/// Two users and the names of their groups, none of them root's.
fn others(passwd: &str, group: &str) -> Option<[[String; 2]; 2]> {
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

/// Joins what several runs said: a test that one passed over another may have run.
pub(super) fn pjdfstest(logs: &[String]) -> Verdict {
    let mut verdict = Verdict::default();
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
                .push(format!("it did not come to its end; it said last: {last}"));
        }
    }
    verdict.passed = passed.len() as u64;
    for (name, said) in over.iter().filter(|it| !passed.contains(it.0)) {
        verdict.pass_over(name, said, &PJDFSTEST_OVER);
    }
    verdict.at_least(PJDFSTEST_PASS);
    verdict
}

pub(super) fn fsx(operations: u64, status: ExitStatus, log: &str) -> Verdict {
    let mut verdict = Verdict::default();
    if status.success() && log.contains("All operations completed A-OK!") {
        verdict.passed = operations;
    } else {
        let from = log.len().saturating_sub(2000);
        let last = log.get(from..).unwrap_or(log);
        verdict.failed.push(format!("{status}; it said\n{last}"));
    }
    verdict
}

/// Steps of a script, each of which says what came of it.
pub(super) fn steps(status: ExitStatus, log: &str) -> Verdict {
    let done = log.lines().filter(|line| line.starts_with("ok "));
    let mut verdict = Verdict {
        passed: done.count() as u64,
        ..Verdict::default()
    };
    let said: Vec<&str> = log
        .lines()
        .skip_while(|line| line.starts_with("ok "))
        .collect();
    if !status.success() || !said.is_empty() {
        verdict
            .failed
            .push(format!("{status}\n{}", said.join("\n")));
    }
    verdict.at_least(USER_STEPS);
    verdict
}

/// What one stressor said: it ends with status 0 even where it passes itself over.
pub(super) fn stressor(verdict: &mut Verdict, name: &str, status: ExitStatus, log: &str) {
    let line = |words: &[&str]| {
        let mut lines = log.lines();
        lines.find(|line| words.iter().any(|word| line.contains(word)))
    };
    if let Some(said) = line(&[" fail: "]) {
        verdict.failed.push(format!("{name}: {said}"));
    } else if let Some(said) = line(&["skipping", "disabled '", "not implemented"]) {
        verdict.pass_over(name, said, &STRESS_OVER);
    } else if status.success() {
        verdict.passed += 1;
    } else {
        let last = log.lines().last().unwrap_or("nothing");
        verdict
            .failed
            .push(format!("{name}: {status}; it said last: {last}"));
    }
}

/// Whether as many stressors passed as are known to.
pub(super) fn stress_floor(verdict: &mut Verdict) {
    verdict.at_least(STRESS_PASS);
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    const OK: i32 = 0;

    fn status(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    /// A run of pjdfstest with so many good tests and some lines more.
    fn said(good: u64, more: &str) -> String {
        let mut log: String = (0..good).map(|at| format!("t::n{at}   ok\n")).collect();
        log.push_str(more);
        log + "\nSummary: 0 failed, 0 skipped\n"
    }

    #[test]
    fn what_one_run_passes_over_and_another_passes_has_passed() {
        let first = "open::erofs     skipped\n\tRemounts (allow_remount) are not allowed\n";
        let first = said(
            PJDFSTEST_PASS - 1,
            &format!("{first}link::link_count_max   skipped\n\tCannot get value\n"),
        );
        let verdict = pjdfstest(&[first.clone(), said(0, "open::erofs      ok\n")]);
        assert_eq!(
            (verdict.passed, &*verdict.failed),
            (PJDFSTEST_PASS, &[][..])
        );
        assert_eq!(verdict.passed_over.len(), 1);
        // Without the other run it is missed, for both reasons.
        let verdict = pjdfstest(&[first]);
        assert_eq!(verdict.failed.len(), 2, "{verdict:?}");
        assert!(verdict.failed[0].contains("open::erofs was passed over: Remounts"));
        assert!(verdict.failed[1].contains("396 passed, and 397"));
    }

    #[test]
    fn a_failed_test_and_a_run_without_an_end_are_failures() {
        let log = said(PJDFSTEST_PASS, "chmod::x    FAILED\n\tassertion failed\n");
        assert_eq!(pjdfstest(&[log]).failed, ["chmod::x: assertion failed"]);
        let log = said(PJDFSTEST_PASS, "").replace("Summary", "");
        let failed = pjdfstest(&[log]).failed;
        assert!(
            failed.len() == 1 && failed[0].contains("its end"),
            "{failed:?}"
        );
    }

    #[test]
    fn fsx_has_to_end_well_and_to_say_so() {
        let log = "All operations completed A-OK!\n";
        assert_eq!(fsx(7, status(OK), log).passed, 7);
        for (code, log) in [(1, log), (OK, "Using seed 3"), (1, "Size error")] {
            let verdict = fsx(7, status(code), log);
            assert_eq!((verdict.passed, verdict.failed.len()), (0, 1));
        }
    }

    #[test]
    fn a_stressor_that_fails_or_passes_itself_over_without_a_reason_is_a_failure() {
        let skips = "stress-ng: info: [1] x: not supported, skipping stressor\n";
        let fails = "stress-ng: fail: [1] x: data differs\n";
        let both = format!("{skips}{fails}");
        let judged = |name, code, log: &str| {
            let mut verdict = Verdict::default();
            stressor(&mut verdict, name, status(code), log);
            (
                verdict.passed,
                verdict.failed.len(),
                verdict.passed_over.len(),
            )
        };
        assert_eq!(judged("chmod", OK, "successful run completed"), (1, 0, 0));
        assert_eq!(judged("chmod", OK, skips), (0, 1, 0));
        assert_eq!(judged("fiemap", OK, skips), (0, 0, 1));
        assert_eq!(judged("fiemap", OK, &both), (0, 1, 0));
        assert_eq!(judged("chmod", 2, ""), (0, 1, 0));
        assert_eq!(judged("chmod", OK, fails), (0, 1, 0));
        let mut few = Verdict::default();
        stress_floor(&mut few);
        assert_eq!(few.failed.len(), 1);
    }

    #[test]
    fn others_are_two_users_whose_groups_have_names() {
        let passwd = "root:x:0:0::/:\nsync:x:4:65534::/:\nno:x:5:77::/:\ndaemon:x:1:1::/:\nnobody:x:65534:65534::/:\n";
        let group = "root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n";
        let found = others(passwd, group).unwrap();
        assert_eq!(found, [["sync", "nogroup"], ["daemon", "daemon"]]);
        assert_eq!(others(passwd, "root:x:0:\ndaemon:x:1:\n"), None);
    }
}
