//! `fercuda reboot`: requests that another process reboot its runtime.
//!
//! Invariant: the process itself does the reboot, or nothing happens; it gets no signal, and
//! only the request words of its ledger file are written. Permissions and protocol are
//! `fercuda-ledger`'s.
use std::ffi::c_int;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fercuda_ledger::{
    Folder, LedgerReader, LedgerSnapshot, OwnerState, PendingRequest, Progress, RebootFailure,
    RebootOutcome, RequestError,
};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::out::say;
use crate::run::child::is_ignored;
use crate::status::ExitStatus;
use crate::terminal::{bytes, clipped, count, duration};

/// Interval between polls for the answer.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long a process may take to release a request that it took while it was withdrawn.
const GRACE: Duration = Duration::from_secs(1);

/// Reboots the runtime of another process: frees its device memory.
#[derive(clap::Args)]
#[command(after_help = "\
A reboot ends the runtime's sessions, each when its work is done, returns their
memory to the driver and starts the runtime again; the process keeps running.
It works for your own processes if the program has called
Runtime::serve_requests; the program may refuse. Runtimes of other users are
never touched, no signal is sent, and a failed context is not reset: only the
program itself may do that.

A process that is only hooked (fercuda run) has no runtime to reboot: its
libraries own their memory. End the process instead.

Ctrl-C, or another signal that ends fercuda, withdraws the request first.

Exit status: 0 if it was rebooted; 1 if it refused, failed, ended or did not
answer in time; 2 if the request could not be sent.

Examples:
  fercuda top --once
  fercuda reboot --pid 4711
  fercuda reboot --pid 4711 --device 1 --wait 120
  fercuda reboot --pid 4711 --json | python3 -m json.tool")]
pub(crate) struct Args {
    /// PID of the process to reboot.
    #[arg(long, value_name = "N")]
    pid: u64,
    /// Device of the runtime to reboot [default: the only one that takes requests].
    #[arg(long, value_name = "D")]
    device: Option<u32>,
    /// Seconds to wait for the answer; a request not started by then is withdrawn.
    #[arg(long, value_name = "SECONDS", default_value = "30",
          value_parser = clap::value_parser!(u64).range(1..=86400))]
    wait: u64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Result of a request that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum RebootResult {
    Rebooted,
    Refused,
    ContextFailed,
    DeviceLost,
    Failed,
    /// Started, and not finished in time.
    Running,
    /// Not started in time, and withdrawn.
    NotTaken,
    /// Withdrawn before it was started, because a signal arrived.
    Interrupted,
    /// Another process's request replaced it before it was started.
    Overtaken,
    /// Another process's request was started since; whether this one ran before is unknown.
    Unknown,
    ProcessEnded,
}

#[derive(Serialize)]
struct RebootReport<'a> {
    pid: u64,
    program: &'a str,
    device: u32,
    outcome: RebootResult,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    returned_bytes: Option<u64>,
    seconds: f64,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let folder = Folder::from_env()?;
    let (reader, process) = find(&folder, args.pid)?;
    let device = match args.device {
        Some(device) => device,
        None => select_device(&process)?,
    };
    // Installed before the request is sent, so that no signal leaves it behind.
    let signal = listen()?;
    let begun = Instant::now();
    let wait = Duration::from_secs(args.wait);
    let asked = reader.request_reboot(device, wait)?;
    let (outcome, came) = wait_for(&reader, &asked, (begun, wait), &signal)?;
    let mut report = RebootReport {
        pid: args.pid,
        program: &process.program,
        device,
        outcome,
        epoch: None,
        sessions: None,
        returned_bytes: None,
        seconds: begun.elapsed().as_secs_f64(),
    };
    if let Some(RebootOutcome::Rebooted {
        epoch,
        sessions,
        returned_bytes,
    }) = came
    {
        report.epoch = Some(epoch);
        report.sessions = Some(sessions);
        report.returned_bytes = Some(returned_bytes);
    }
    if args.json {
        say!("{}", serde_json::to_string(&report)?);
    } else if outcome == RebootResult::Rebooted {
        print_rebooted(&report);
    } else {
        crate::errors::report(
            &anyhow::anyhow!("{}", describe_failure(&report)),
            ExitStatus::Failure,
        );
    }
    let number = signal.load(Ordering::Relaxed);
    if number != 0 && outcome != RebootResult::Rebooted {
        // The parent process sees which signal ended this one.
        signal_hook::low_level::emulate_default_handler(number as c_int)?;
    }
    Ok(ExitStatus::of_findings(outcome != RebootResult::Rebooted).into())
}

/// The last termination signal, 0 until one arrives. Signals ignored at the start stay
/// ignored, as under `nohup`.
fn listen() -> Result<Arc<AtomicUsize>> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGTERM, SIGHUP, SIGINT, SIGQUIT] {
        if !is_ignored(number) {
            let flag = Arc::clone(&signal);
            signal_hook::flag::register_usize(number, flag, number as usize)
                .context("cannot listen for signals")?;
        }
    }
    Ok(signal)
}

/// The ledger of a process. Of several with this PID (in other PID namespaces), the one of the
/// process that has the PID in this namespace, and through which requests can be sent.
fn find(folder: &Folder, pid: u64) -> Result<(LedgerReader, LedgerSnapshot)> {
    let mut found: Vec<(LedgerReader, LedgerSnapshot, bool)> = Vec::new();
    for reader in folder.ledgers()? {
        let reader = match reader {
            Ok(reader) => reader,
            // A ledger that cannot be opened is reported by its file name.
            Err(error) if is_of(&error, pid) => return Err(error.into()),
            Err(_) => continue,
        };
        match reader.snapshot() {
            Ok(snapshot) if snapshot.pid == pid => {
                let is_here = reader.is_here()?;
                found.push((reader, snapshot, is_here));
            }
            Err(error) if is_of(&error, pid) => return Err(error.into()),
            Ok(_) | Err(_) => {}
        }
    }
    let takes = |it: &LedgerSnapshot| it.devices.iter().any(|device| device.takes_requests);
    found.sort_by_key(|(_, it, is_here)| (*is_here, it.owner == OwnerState::Alive, takes(it)));
    match found.pop() {
        Some((_, it, _)) if it.owner == OwnerState::Gone => Err(RequestError::Gone { pid }.into()),
        Some((reader, it, _)) => Ok((reader, it)),
        None => bail!(
            "process {pid} is not governed: it has no ledger in {}\n\
             try: fercuda top --once, which lists those that are",
            folder.path().display()
        ),
    }
}

/// Whether an error is about a ledger file of this process: `PID-START-NUMBER.ledger`.
fn is_of(error: &fercuda_ledger::Error, pid: u64) -> bool {
    use fercuda_ledger::Error::{Format, NotPrivate, System};
    let (NotPrivate { path, .. } | System { path, .. } | Format { path, .. }) = error else {
        return false;
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('-').next() == Some(&pid.to_string())
}

/// The only device of a process with a runtime that takes requests; else the one with a runtime.
fn select_device(process: &LedgerSnapshot) -> Result<u32> {
    let of = |takes: bool| -> Vec<u32> {
        let devices = process.devices.iter();
        let those = devices.filter(|it| it.runtimes > 0 && (it.takes_requests || !takes));
        those.map(|it| it.device).collect()
    };
    match of(true)[..] {
        [device] => Ok(device),
        [] => Ok(of(false).first().copied().unwrap_or(0)),
        [..] => bail!(
            "process {} has runtimes for devices {}\ntry: --device with one of them",
            process.pid,
            of(true)
                .iter()
                .map(u32::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        ),
    }
}

/// Waits for an answer; on timeout or a signal, withdraws the request.
fn wait_for(
    reader: &LedgerReader,
    asked: &PendingRequest,
    (begun, wait): (Instant, Duration),
    signal: &AtomicUsize,
) -> Result<(RebootResult, Option<RebootOutcome>)> {
    let mut withdrawn_at: Option<Instant> = None;
    let mut not_taken = RebootResult::NotTaken;
    loop {
        let is_interrupted = signal.load(Ordering::Relaxed) != 0;
        let progress = match withdrawn_at {
            None if is_interrupted || begun.elapsed() >= wait => {
                if is_interrupted {
                    not_taken = RebootResult::Interrupted;
                }
                withdrawn_at = Some(Instant::now());
                asked.withdraw()?
            }
            _ => asked.progress()?,
        };
        let is_last = withdrawn_at.is_some_and(|at| at.elapsed() >= GRACE);
        match progress {
            Progress::Over(outcome) => return Ok((result_of(outcome), Some(outcome))),
            Progress::Withdrawn => return Ok((not_taken, None)),
            Progress::Overtaken if withdrawn_at.is_some() => return Ok((not_taken, None)),
            Progress::Overtaken => return Ok((RebootResult::Overtaken, None)),
            Progress::Unknown => return Ok((RebootResult::Unknown, None)),
            Progress::Taken if is_last => return Ok((RebootResult::Running, None)),
            Progress::Waiting if is_last => return Ok((not_taken, None)),
            Progress::Taken | Progress::Waiting => {}
        }
        if reader.owner()? == OwnerState::Gone {
            // The process may have answered just before it ended.
            return Ok(match asked.progress()? {
                Progress::Over(outcome) => (result_of(outcome), Some(outcome)),
                _ => (RebootResult::ProcessEnded, None),
            });
        }
        sleep(POLL_INTERVAL);
    }
}

fn result_of(outcome: RebootOutcome) -> RebootResult {
    match outcome {
        RebootOutcome::Rebooted { .. } => RebootResult::Rebooted,
        RebootOutcome::Refused => RebootResult::Refused,
        RebootOutcome::Failed(RebootFailure::Context) => RebootResult::ContextFailed,
        RebootOutcome::Failed(RebootFailure::Lost) => RebootResult::DeviceLost,
        RebootOutcome::Failed(RebootFailure::Other) => RebootResult::Failed,
    }
}

fn print_rebooted(report: &RebootReport<'_>) {
    say!(
        "rebooted device {} of {} ({}) in {}",
        report.device,
        clipped(report.program, 30),
        report.pid,
        duration(report.seconds)
    );
    let sessions = usize::try_from(report.sessions.unwrap_or(0)).unwrap_or(usize::MAX);
    say!(
        "  {} ended, {} given back to the driver; epoch {}",
        count(sessions, "session"),
        bytes(report.returned_bytes.unwrap_or(0)),
        report.epoch.unwrap_or(0)
    );
}

/// Text for every result other than success.
fn describe_failure(report: &RebootReport<'_>) -> String {
    let process = format!("{} ({})", clipped(report.program, 30), report.pid);
    let (device, pid) = (report.device, report.pid);
    let after = duration(report.seconds);
    match report.outcome {
        RebootResult::Rebooted => format!("{process} was rebooted"),
        RebootResult::Refused => format!(
            "{process} refused to reboot now;\nno session was ended\n\
             try: again later; the program decides (its callback for serve_requests)"
        ),
        RebootResult::ContextFailed => format!(
            "the context of device {device} in {process} has describe_failure:\n\
             sessions have ended, and only the program itself may reset it\n\
             try: end the process, or call Runtime::reset in it"
        ),
        RebootResult::DeviceLost => format!(
            "device {device} is lost to {process}:\nthe driver cannot recover in that process\n\
             try: end the process and start it again"
        ),
        RebootResult::Failed => format!(
            "{process} failed to reboot device {device}\n\
             try: the output of that program, or fercuda top {pid}"
        ),
        RebootResult::Running => format!(
            "{process} is still rebooting after {after}:\n\
             sessions end when their work is done; the reboot continues\n\
             try: fercuda top {pid}, or a longer --wait"
        ),
        RebootResult::NotTaken => format!(
            "{process} did not start the request within {after};\n\
             it is withdrawn, and nothing was changed\n\
             try: a longer --wait; check that the process is not stopped"
        ),
        RebootResult::Interrupted => format!(
            "interrupted before {process}\n\
             started the request: it is withdrawn, and nothing was changed\n\
             try: again; check that the process is not stopped"
        ),
        RebootResult::Overtaken => format!(
            "another process sent {process} a request at the same time,\n\
             which replaced this one; this one was not started\n\
             try: fercuda top {pid}, to see whether it was rebooted; else again"
        ),
        RebootResult::Unknown => format!(
            "another process has sent {process} a request since,\n\
             which was started: whether this one ran before is unknown\n\
             try: fercuda top {pid}, which shows what it holds now"
        ),
        RebootResult::ProcessEnded => format!(
            "{process} ended before it answered\ntry: fercuda top {pid}, which has its last counters"
        ),
    }
}
