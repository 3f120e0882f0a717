//! Findings of a program's processes, from the file to which each appends them.
//!
//! Invariant: the file may hold anything, since the checked program can write to it: memory is
//! bounded, and what is no event is counted. Elsewhere: writing (`fercuda_softgpu`).

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::record::{FindingRecord, PlaceRecord};
use super::symbols::with_demangled;

/// The kind of a finding of memory that was not freed.
pub(super) const LEAK: &str = "leaked memory";
/// Longest line that is read.
const LINE_BYTES: u64 = 64 << 10;
/// Distinct findings and processes that are kept; more are only counted.
const MAX_KEPT: usize = 2000;

/// A private folder with a report file, removed with the value.
#[derive(Debug)]
pub(crate) struct ReportFolder {
    folder: tempfile::TempDir,
}

/// Findings of all processes of a program.
#[derive(Debug, Default)]
pub(crate) struct ProcessFindings {
    /// In the order of their first driver call.
    pub(crate) processes: Vec<CheckedProcess>,
    /// Findings and faults, equal ones once, sorted by kernel, kind and line.
    pub(crate) findings: Vec<ProgramFinding>,
    /// Kernels that the device could not execute; nothing is known about the rest of them.
    pub(crate) limits: Vec<ProgramFinding>,
    /// Occurrences of further findings.
    pub(crate) omitted: u64,
    /// Lines that are no event.
    pub(crate) unreadable: u64,
}

/// A process that used the software device.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CheckedProcess {
    pub(crate) pid: u32,
    pub(crate) program: String,
    /// Kernels launched; of a process that was killed, at least half of them.
    pub(crate) launches: u64,
}

/// Equal findings of any of the processes.
#[derive(Debug)]
pub(crate) struct ProgramFinding {
    pub(crate) record: FindingRecord,
    pub(crate) is_fault: bool,
    /// Processes that had it, ascending.
    pub(crate) pids: Vec<u32>,
}

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum ReportEvent {
    Start {
        process: String,
        pid: u32,
        program: String,
    },
    Launches {
        process: String,
        count: u64,
    },
    Finding(FindingEvent),
    Fault(FindingEvent),
    Count {
        process: String,
        id: u64,
        count: u64,
    },
    Omitted {
        process: String,
        count: u64,
    },
}

#[derive(Deserialize)]
struct FindingEvent {
    process: String,
    id: u64,
    kind: String,
    place: Option<PlaceRecord>,
    other: Option<PlaceRecord>,
    count: u64,
    text: String,
    by: String,
}

impl ProgramFinding {
    /// Whether it is memory that was not freed.
    pub(crate) fn is_leak(&self) -> bool {
        self.record.kind == LEAK
    }
}

impl ReportFolder {
    /// Creates the folder and an empty file.
    ///
    /// # Errors
    /// The folder for temporary files is not writable.
    pub(crate) fn create() -> Result<ReportFolder> {
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix("fercuda-check-");
        let folder = builder.permissions(Permissions::from_mode(0o700)).tempdir();
        let folder = ReportFolder {
            folder: folder.context("cannot create a folder for the report")?,
        };
        let file = folder.file();
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&file)
            .and_then(|file| file.set_permissions(Permissions::from_mode(0o600)))
            .with_context(|| format!("cannot create {}", file.display()))?;
        Ok(folder)
    }

    /// The file for `FERCUDA_SOFT_CHECK_REPORT`, an absolute path.
    pub(crate) fn file(&self) -> PathBuf {
        let folder = self.folder.path();
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        folder.join("findings.jsonl")
    }

    /// Reads the file and removes it with its folder. A process that still runs prints later
    /// findings on standard error.
    ///
    /// # Errors
    /// The file cannot be read: the program has removed it, for instance.
    pub(crate) fn take(self) -> Result<ProcessFindings> {
        let file = self.file();
        let what = || format!("cannot read the report {}", file.display());
        let open = || {
            let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
            let file = OpenOptions::new()
                .read(true)
                .custom_flags(flags)
                .open(&file)?;
            match file.metadata()?.is_file() {
                true => Ok(file),
                false => Err(io::Error::other("it is not a regular file")),
            }
        };
        let opened: io::Result<File> = open();
        let opened = opened.with_context(what)?;
        // What is appended from now on would be lost: the writers fail, and print.
        let removed = self.folder.close();
        let read = read(BufReader::new(opened)).with_context(what)?;
        removed.context("cannot remove the report")?;
        Ok(read)
    }
}

/// Reads all events.
fn read(mut lines: impl BufRead) -> io::Result<ProcessFindings> {
    let mut found = Occurrences::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut lines).take(LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
            return Ok(found.into_findings());
        }
        if line == b"\n" {
            continue;
        }
        match serde_json::from_slice(&line) {
            Ok(event) if line.ends_with(b"\n") => found.add(event),
            _ => found.unreadable += 1,
        }
    }
}

/// Events by process.
#[derive(Default)]
struct Occurrences {
    processes: Vec<CheckedProcess>,
    /// Indices in `processes`.
    by_process: BTreeMap<String, usize>,
    /// By index of the process and number in it; whether it is a fault.
    findings: BTreeMap<(usize, u64), (FindingRecord, bool)>,
    /// Of each process.
    omitted: BTreeMap<usize, u64>,
    beyond: u64,
    /// Processes that are not kept.
    beyond_processes: u64,
    unreadable: u64,
}

impl Occurrences {
    fn add(&mut self, event: ReportEvent) {
        match event {
            ReportEvent::Start {
                process,
                pid,
                program,
            } => {
                if self.processes.len() < MAX_KEPT {
                    self.by_process.insert(process, self.processes.len());
                    self.processes.push(CheckedProcess {
                        pid,
                        program,
                        launches: 0,
                    });
                } else {
                    self.beyond_processes += 1;
                }
            }
            ReportEvent::Launches { process, count } => {
                if let Some(process) = self.index(&process) {
                    let launches = &mut self.processes[process].launches;
                    *launches = count.max(*launches);
                }
            }
            ReportEvent::Finding(event) => self.add_finding(event, false),
            ReportEvent::Fault(event) => self.add_finding(event, true),
            ReportEvent::Count { process, id, count } => {
                let index = self.index(&process);
                let known = index.and_then(|index| self.findings.get_mut(&(index, id)));
                if let Some((record, _)) = known {
                    record.count = count.max(record.count);
                }
            }
            ReportEvent::Omitted { process, count } => {
                if let Some(process) = self.index(&process) {
                    self.omitted.insert(process, count);
                }
            }
        }
    }

    fn index(&self, process: &str) -> Option<usize> {
        self.by_process.get(process).copied()
    }

    fn add_finding(&mut self, event: FindingEvent, is_fault: bool) {
        let Some(process) = self.index(&event.process) else {
            // One of the processes that are only counted, if there are such.
            match self.beyond_processes {
                0 => self.unreadable += 1,
                _ => self.beyond = self.beyond.saturating_add(event.count.max(1)),
            }
            return;
        };
        let key = (process, event.id);
        if self.findings.len() >= MAX_KEPT && !self.findings.contains_key(&key) {
            self.beyond += 1;
            return;
        }
        let record = FindingRecord {
            kind: event.kind,
            place: event.place,
            other: event.other,
            count: event.count,
            text: with_demangled(&event.text),
            by: event.by,
        };
        self.findings.insert(key, (record, is_fault));
    }

    fn into_findings(self) -> ProcessFindings {
        let mut merged: Vec<ProgramFinding> = Vec::new();
        for ((process, _), (record, is_fault)) in self.findings {
            let pid = self.processes[process].pid;
            let is_equal = |other: &&mut ProgramFinding| {
                other.is_fault == is_fault && other.record.key() == record.key()
            };
            match merged.iter_mut().find(is_equal) {
                Some(first) => {
                    first.record.count = first.record.count.saturating_add(record.count);
                    if !first.pids.contains(&pid) {
                        first.pids.push(pid);
                    }
                }
                None => merged.push(ProgramFinding {
                    record,
                    is_fault,
                    pids: vec![pid],
                }),
            }
        }
        for finding in &mut merged {
            finding.pids.sort_unstable();
        }
        merged.sort_by(|a, b| (a.is_fault, a.record.key()).cmp(&(b.is_fault, b.record.key())));
        let (limits, findings) = merged.into_iter().partition(|it| it.record.is_limit());
        ProcessFindings {
            processes: self.processes,
            findings,
            limits,
            omitted: self
                .omitted
                .values()
                .fold(self.beyond, |sum, more| sum.saturating_add(*more)),
            unreadable: self.unreadable,
        }
    }
}

impl ProcessFindings {
    /// Kernels launched by all processes.
    pub(crate) fn launches(&self) -> u64 {
        let all = self.processes.iter().map(|process| process.launches);
        all.fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = r#"{"event":"start","process":"7-1","pid":7,"program":"/p"}"#;

    fn finding(process: &str, id: u32, thread: u32, count: u32) -> String {
        format!(
            r#"{{"event":"finding","process":"{process}","kind":"out of bounds","place":{{"kernel":"k","ptx_line":4,"block":[0,0,0],"thread":[{thread},0,0]}},"id":{id},"count":{count},"text":"text of {thread}","by":"k"}}"#
        )
    }

    fn of(lines: &[&str]) -> ProcessFindings {
        read(lines.join("\n\n").as_bytes()).unwrap()
    }

    #[test]
    fn a_later_line_replaces_that_of_the_running_kernel_and_counts_are_added() {
        let found = of(&[
            START,
            r#"{"event":"start","process":"7-2","pid":7,"program":"/p"}"#,
            r#"{"event":"start","process":"9-2","pid":9,"program":"/q"}"#,
            r#"{"event":"launches","process":"7-1","count":3}"#,
            &finding("7-1", 0, 9, 1),
            &finding("7-1", 0, 2, 5),
            r#"{"event":"count","process":"7-1","id":0,"count":11}"#,
            &finding("9-2", 3, 8, 4),
            r#"{"event":"omitted","process":"9-2","count":2}"#,
            r#"{"event":"omitted","process":"9-2","count":4}"#,
            "",
        ]);
        let [one] = &found.findings[..] else {
            panic!("{found:#?}");
        };
        assert_eq!(one.record.text, "text of 2");
        assert_eq!((one.record.count, &one.pids[..]), (15, &[7, 9][..]));
        assert_eq!(
            (found.launches(), found.omitted, found.unreadable),
            (3, 4, 0)
        );
        assert_eq!(found.processes.len(), 3);
    }

    #[test]
    fn what_is_no_event_is_counted_and_takes_no_memory() {
        let long = "x".repeat(3 * LINE_BYTES as usize);
        let found = of(&[
            "not JSON",
            &long,
            r#"{"event":"finding","process":"7-1"}"#,
            START,
            &finding("8-8", 0, 1, 1),
            &finding("7-1", 0, 1, 1),
            "{\"event\":\"start\",\"process\":\"7-1\",\"pid\":7",
        ]);
        assert_eq!(found.findings.len(), 1);
        // The long line is three pieces, and a line feed.
        assert_eq!(found.unreadable, 1 + 3 + 1 + 1 + 1);
        let many: Vec<String> = (0..MAX_KEPT as u32 + 5)
            .map(|id| finding("7-1", id, id, 1).replace("\"k\"", &format!("\"k{id}\"")))
            .collect();
        let mut lines = vec![START];
        lines.extend(many.iter().map(String::as_str));
        lines.push("");
        let found = of(&lines);
        assert_eq!((found.findings.len(), found.omitted), (MAX_KEPT, 5));
    }

    #[test]
    fn names_of_kernels_are_demangled_in_texts() {
        let line = finding("7-1", 0, 1, 1).replace("text of 1", "kernel: _Z5scaleIfEvPT_i line 3");
        let found = of(&[START, &line, ""]);
        let text = &found.findings[0].record.text;
        assert_eq!(text, "kernel: scale<float>(float*, int) line 3");
    }

    #[test]
    fn what_the_device_cannot_execute_is_no_finding() {
        let fault = finding("7-1", 0, 1, 1)
            .replace("\"event\":\"finding\"", "\"event\":\"fault\"")
            .replace("out of bounds", "not implemented");
        let found = of(&[START, &fault, ""]);
        assert_eq!((found.findings.len(), found.limits.len()), (0, 1));
    }

    #[test]
    fn the_folder_is_private_and_removed() {
        let folder = ReportFolder::create().unwrap();
        let file = folder.file();
        let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&file), 0o600);
        assert_eq!(mode(file.parent().unwrap()), 0o700);
        std::fs::write(&file, format!("{START}\n")).unwrap();
        assert_eq!(folder.take().unwrap().processes.len(), 1);
        assert!(!file.parent().unwrap().exists());
        let folder = ReportFolder::create().unwrap();
        let file = folder.file();
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        assert!(folder.take().is_err());
        assert!(!file.parent().unwrap().exists());
    }
}
