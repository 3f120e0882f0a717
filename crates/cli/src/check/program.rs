//! `fercuda check -- PROGRAM`: any program on the software device, with all checks on.
//!
//! Invariant: the program has the standard streams, arguments and process group that it would have
//! without `fercuda`. Its processes append findings to a private file, which is read when it has
//! ended, however that came about.
//! Elsewhere: the file (`process_report`, `fercuda_softgpu`), supervision (`crate::run`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use fercuda_softgpu::check::CheckOptions;
use serde::Serialize;

use super::outputs::{ReportArgs, ReportOutputs};
use super::process_report::{CheckedProcess, ProcessFindings, ProgramFinding, ReportFolder};
use super::record::FindingRecord;
use super::sarif::{self, SarifInvocation};
use crate::out::{alert, note, step};
use crate::output::check_distinct;
use crate::run::frameworks::{self, PytorchAllocator};
use crate::run::program::{self, PreloadPurpose};
use crate::run::{self, DeviceKind, LibraryFolders, child};
use crate::status::{ExitStatus, bail_usage};
use crate::terminal::{Paint, count, plain, plain_text};

const CHECKING: PreloadPurpose = PreloadPurpose {
    verb: "check",
    library: "the software device",
    command: "fercuda check",
    hint: "",
};

/// What leaks do to the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LeakStatus {
    /// Nothing.
    Keep,
    /// What any finding does.
    Fail,
}

/// What is looked for in a program.
pub(crate) struct ProgramRequest {
    /// How long a kernel may run.
    pub(crate) timeout: Option<Duration>,
    /// What is reported besides.
    pub(crate) options: CheckOptions,
    /// Whether leaks are reported.
    pub(crate) leaks: Option<LeakStatus>,
}

/// Runs a program and reports what its kernels did.
///
/// # Errors
/// What prevents the start, or the reports.
pub(crate) fn run(
    command: &[OsString],
    request: &ProgramRequest,
    reports: &ReportArgs,
) -> Result<ExitCode> {
    let (name, arguments) = command.split_first().context("no program is given")?;
    let path = match program::find(name) {
        Ok(path) => path,
        Err(error) => return Ok(run::refused(&error.program, &error.why, error.status)),
    };
    program::examine(&path, &CHECKING).map_err(|error| anyhow!("{error}"))?;
    check_distinct(&reports.paths().collect::<Vec<_>>())?;
    let outputs = reports.open(&[&path])?;
    let folder = ReportFolder::create()?;
    let mut command = Command::new(&path);
    command.arg0(name).args(arguments);
    set_environment(&mut command, &folder.file(), request)?;
    step!("program {}", path.display());
    let status = match child::run(&mut command)? {
        Ok(status) => status,
        Err(error) => return Ok(run::not_started(&path, &error)),
    };
    let run = CheckedRun {
        path: &path,
        arguments,
        code: status.code(),
        signal: status.signal(),
        found: folder.take()?,
        leaks: request.leaks,
    };
    if !outputs.replaces_text() {
        run.print();
    }
    run.warn();
    let written = run.write(outputs);
    if let Err(error) = &written {
        crate::errors::report(error, ExitStatus::Usage);
    }
    Ok(match run.verdict() {
        Some(verdict) => verdict.into(),
        None if written.is_err() && status.success() => ExitStatus::Usage.into(),
        None => ExitCode::from(child::end_as(status)),
    })
}

/// Sets the software device in front of any driver, with checks on.
fn set_environment(command: &mut Command, report: &Path, request: &ProgramRequest) -> Result<()> {
    let places = LibraryFolders::of_this_program()?;
    let driver = places.ungoverned_driver(DeviceKind::Soft)?;
    let driver = driver.context("the software device is not installed beside fercuda")?;
    step!("driver {}", driver.display());
    // Programs that open libcuda.so.1 by name get the library of that name that is loaded.
    let runtime = places.cuda_runtime(&driver)?;
    let preloaded = [driver.clone()].into_iter().chain(runtime);
    command.env("LD_PRELOAD", run::preload(preloaded));
    // For the hook, and for programs over our own crates.
    command.env("FERCUDA_DRIVER", &driver);
    command.env("FERCUDA_DEVICE", "soft");
    command.env("FERCUDA_SOFT_CHECK", "1");
    command.env("FERCUDA_SOFT_CHECK_REPORT", report);
    for (name, is_on) in [
        (
            "FERCUDA_SOFT_CHECK_VOLATILE",
            request.options.volatile_races,
        ),
        ("FERCUDA_SOFT_CHECK_SAME_VALUE", request.options.same_values),
        ("FERCUDA_SOFT_CHECK_LEAKS", request.leaks.is_some()),
    ] {
        if is_on {
            command.env(name, "1");
        }
    }
    // The program's own status is passed on.
    command.env_remove("FERCUDA_SOFT_CHECK_EXIT");
    if let Some(timeout) = request.timeout {
        let milliseconds = timeout.as_millis();
        command.env("FERCUDA_SOFT_WATCHDOG", format!("{milliseconds}ms"));
    }
    // Blocks of a caching allocator would hide where one tensor ends.
    let is_set = |name: &str| std::env::var_os(name).is_some();
    command.envs(frameworks::missing(is_set, PytorchAllocator::Async));
    Ok(())
}

/// Fails with a hint if the words after `check` name a program, without `--` before it.
///
/// # Errors
/// A usage error.
pub(crate) fn refuse_program(words: &[OsString]) -> Result<()> {
    let mut words = words.iter().take_while(|word| *word != "--");
    let is_option = |word: &OsString| word.as_bytes().starts_with(b"-");
    let Some(name) = words.find(|word| !is_option(word)) else {
        return Ok(());
    };
    if !is_program(name) {
        return Ok(());
    }
    let shown = plain(Path::new(name));
    bail_usage!("{shown} is a program, not a kernel's source\ntry: fercuda check -- {shown} ...");
}

/// Whether a word names an ELF program or a script.
fn is_program(name: &OsStr) -> bool {
    let extension = Path::new(name).extension().unwrap_or_default();
    if extension == "cu" || extension == "ptx" {
        return false;
    }
    let Ok(path) = program::find(name) else {
        return false;
    };
    let start = std::fs::File::open(path).and_then(|mut file| {
        let mut start = [0; 4];
        std::io::Read::read_exact(&mut file, &mut start).map(|()| start)
    });
    start.is_ok_and(|start| start == *b"\x7fELF" || start.starts_with(b"#!"))
}

/// A program that has ended, and what was found.
struct CheckedRun<'a> {
    path: &'a Path,
    arguments: &'a [OsString],
    code: Option<i32>,
    signal: Option<i32>,
    found: ProcessFindings,
    leaks: Option<LeakStatus>,
}

impl CheckedRun<'_> {
    /// The status that replaces the program's own.
    fn verdict(&self) -> Option<ExitStatus> {
        let are_counted = self.leaks == Some(LeakStatus::Fail);
        let mut findings = self.found.findings.iter();
        let is_found = findings.any(|it| are_counted || !it.is_leak());
        if is_found || self.found.omitted > 0 {
            Some(ExitStatus::Failure)
        } else if self.is_incomplete() {
            Some(ExitStatus::Usage)
        } else {
            None
        }
    }

    /// Whether something was not checked or not reported.
    fn is_incomplete(&self) -> bool {
        let found = &self.found;
        !found.limits.is_empty() || found.omitted > 0 || found.unreadable > 0
    }

    /// Prints all findings and a summary on stderr: stdout is the program's.
    fn print(&self) {
        let paint = Paint::stderr();
        for finding in self.found.findings.iter().chain(&self.found.limits) {
            let mut text = shown(finding, self.found.processes.len());
            let mut findings = self.found.findings.iter().filter(|it| !it.is_fault);
            if finding.is_fault && findings.any(|it| finding.record.is_fault_of(&it.record)) {
                text = FindingRecord::brief(&text) + "\n";
            }
            let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
            alert!("{}\n{rest}", paint.bad(first));
        }
        let name = plain(self.path);
        let faults = self.found.findings.iter().filter(|it| it.is_fault).count();
        let leaks = self.found.findings.iter().filter(|it| it.is_leak()).count();
        let findings = self.found.findings.len() - faults - leaks;
        let mut parts = Vec::new();
        for (number, noun) in [(findings, "finding"), (faults, "fault"), (leaks, "leak")] {
            if number > 0 {
                parts.push(count(number, noun));
            }
        }
        let parts = match parts.is_empty() {
            true => "no findings".to_owned(),
            false => parts.join(" and "),
        };
        let launches = count(self.found.launches() as usize, "kernel launch");
        let over = format!("{parts} in {launches}");
        match self.verdict() {
            Some(ExitStatus::Failure) => {
                alert!("{} {name}: {over}{}", paint.bad("found:"), self.end());
            }
            Some(_) => {
                let what = paint.bad("incomplete:");
                alert!("{what} {name}: {over}, not all checked{}", self.end());
            }
            None if self.found.launches() == 0 => {
                let end = self.end();
                note!("note: {name}: no kernel ran, so nothing was checked{end}");
            }
            None if self.code == Some(0) => alert!("{} {name}: {over}", paint.good("ok:")),
            None => alert!("{} {name}: {over}{}", paint.strong("failed:"), self.end()),
        }
    }

    /// How the program ended, unless it succeeded.
    fn end(&self) -> String {
        match (self.code, self.signal) {
            (Some(0), _) => String::new(),
            (Some(code), _) => format!("; it ended with status {code}"),
            (None, Some(signal)) => format!("; it was ended by signal {signal}"),
            (None, None) => "; it was ended".to_owned(),
        }
    }

    /// Says what the report lacks.
    fn warn(&self) {
        let found = &self.found;
        if found.omitted > 0 {
            alert!("warning: {} further findings are not listed", found.omitted);
        }
        if found.unreadable > 0 {
            let lines = count(found.unreadable as usize, "line");
            alert!("warning: {lines} of the processes' reports cannot be read");
        }
        let running = found.processes.iter().filter(|process| is_running(process));
        let running: Vec<String> = running.map(|process| process.pid.to_string()).collect();
        if !running.is_empty() {
            alert!(
                "warning: processes of the program still run ({}); they print further findings",
                running.join(", ")
            );
        }
    }

    fn write(&self, outputs: ReportOutputs) -> Result<()> {
        let found = &self.found;
        let report = ProgramReport {
            program: self.path.display().to_string(),
            arguments: self
                .arguments
                .iter()
                .map(|it| it.to_string_lossy().into_owned())
                .collect(),
            status: self.code,
            signal: self.signal,
            passed: self.verdict().is_none() && self.code == Some(0),
            complete: !self.is_incomplete(),
            processes: &found.processes,
            findings: items(found.findings.iter().filter(|it| !it.is_fault)),
            faults: items(found.findings.iter().filter(|it| it.is_fault)),
            not_checked: items(found.limits.iter()),
        };
        let invocation = SarifInvocation {
            program: self.path,
            arguments: self.arguments,
            exit_code: self.code,
            signal: self.signal,
            ptx: None,
        };
        let limits: Vec<_> = found.limits.iter().map(|it| &it.record).collect();
        outputs.write(&report, || {
            let findings = found.findings.iter().map(|it| &it.record);
            sarif::log(&invocation, findings, &limits)
        })
    }
}

/// A finding's text with its count, and its processes if there are several.
fn shown(finding: &ProgramFinding, processes: usize) -> String {
    // Names come from the program.
    let lines = finding.record.text.lines().map(plain_text);
    let mut text = lines.collect::<Vec<_>>().join("\n");
    if finding.record.count > 1 {
        text.push_str(&format!("\n   seen {} times", finding.record.count));
    }
    if processes > 1 {
        let pids: Vec<String> = finding.pids.iter().map(u32::to_string).collect();
        let s = if pids.len() == 1 { "" } else { "es" };
        text.push_str(&format!("\n   process{s}: {}", pids.join(", ")));
    }
    text + "\n"
}

/// Whether a process that the program started is still there.
fn is_running(process: &CheckedProcess) -> bool {
    let folder = PathBuf::from(format!("/proc/{}", process.pid));
    // A zombie has no executable, and another process with its number has another one.
    let program = std::fs::read_link(folder.join("exe"));
    program.is_ok_and(|program| program.to_string_lossy() == process.program)
}

/// The output of `--json`.
#[derive(Serialize)]
struct ProgramReport<'a> {
    program: String,
    arguments: Vec<String>,
    /// Its exit status, if it exited.
    status: Option<i32>,
    /// The signal that ended it.
    signal: Option<i32>,
    /// Whether the program succeeded and nothing was found.
    passed: bool,
    /// Whether all kernels were checked and all findings are listed.
    complete: bool,
    processes: &'a [CheckedProcess],
    findings: Vec<ProgramItem<'a>>,
    faults: Vec<ProgramItem<'a>>,
    /// Kernels that the software device could not execute.
    not_checked: Vec<ProgramItem<'a>>,
}

/// With the names that the report of a single kernel has.
#[derive(Serialize)]
struct ProgramItem<'a> {
    kind: &'a str,
    kernel: Option<&'a str>,
    ptx_line: Option<u32>,
    source: Option<String>,
    block: Option<[u32; 3]>,
    thread: Option<[u32; 3]>,
    count: u64,
    processes: &'a [u32],
    text: &'a str,
}

fn items<'a>(findings: impl Iterator<Item = &'a ProgramFinding>) -> Vec<ProgramItem<'a>> {
    let item = |finding: &'a ProgramFinding| {
        let place = finding.record.place.as_ref();
        ProgramItem {
            kind: &finding.record.kind,
            kernel: place.map(|place| place.kernel.as_str()),
            ptx_line: place.and_then(|place| place.ptx_line),
            source: place.and_then(|place| {
                let (file, line) = (place.file.as_ref()?, place.line?);
                Some(format!("{file}:{line}"))
            }),
            block: place.map(|place| place.block),
            thread: place.map(|place| place.thread),
            count: finding.record.count,
            processes: &finding.pids,
            text: &finding.record.text,
        }
    };
    findings.map(item).collect()
}
