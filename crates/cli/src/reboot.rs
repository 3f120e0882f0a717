//! `fercuda reboot`: asks another process to reboot its runtime.
//!
//! Invariant: the process does it or nothing happens; it is sent no signal, and of its file
//! only the words of a request are written. Who may be asked, and how, is `fercuda-ledger`'s.

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
use crate::terminal::{bytes, clipped, count, duration};

/// How often it is looked for an answer.
const LOOK: Duration = Duration::from_millis(20);
/// How long a process may take to let go of what it took as it was withdrawn.
const GRACE: Duration = Duration::from_secs(1);

/// Asks a governed process to reboot its runtime of feRcuda's.
#[derive(clap::Args)]
#[command(after_help = "\
A reboot ends the runtime's sessions, each when its work is done, gives their
memory back to the driver and begins anew; the process goes on. Asked can be a
process of your own, in which the program has called Runtime::serve_requests;
it may refuse. Nobody else's runtime is touched, no signal is sent, and a
context that has failed is not reset: only the program itself may do that.

A process that is only hooked (fercuda run) has no runtime to reboot: the
memory of its libraries is theirs. End it instead.

Ctrl-C, or another signal to end, withdraws the request before it ends this.

Exit status: 0 if it was rebooted; 1 if it refused, failed, ended or did not
answer in time; 2 if it could not be asked.

Examples:
  fercuda top --once
  fercuda reboot --pid 4711
  fercuda reboot --pid 4711 --device 1 --wait 120
  fercuda reboot --pid 4711 --json | python3 -m json.tool")]
pub(crate) struct Args {
    /// The process, by its number.
    #[arg(long, value_name = "N")]
    pid: u64,
    /// The device whose runtime is meant [default: the one that can be asked].
    #[arg(long, value_name = "D")]
    device: Option<u32>,
    /// How long to wait for the answer; what was not begun by then is withdrawn.
    #[arg(long, value_name = "SECONDS", default_value = "30",
          value_parser = clap::value_parser!(u64).range(1..=86400))]
    wait: u64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// What came of it, when the process was asked.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum End {
    Rebooted,
    Refused,
    ContextFailed,
    DeviceLost,
    Failed,
    /// Taken, and not over in time.
    Running,
    /// Not taken in time, and withdrawn.
    NotTaken,
    /// Withdrawn before it was taken, as a signal came.
    Interrupted,
    /// Somebody else's request took its place before it was taken.
    Overtaken,
    /// Somebody else's request was taken since, and whether this one was before is not known.
    Unknown,
    ProcessEnded,
}

#[derive(Serialize)]
struct Report<'a> {
    pid: u64,
    program: &'a str,
    device: u32,
    outcome: End,
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
        None => the_device(&process)?,
    };
    // Before it is asked, so that none leaves the request where it is.
    let signal = listen()?;
    let begun = Instant::now();
    let wait = Duration::from_secs(args.wait);
    let asked = reader.request_reboot(device, wait)?;
    let (outcome, came) = wait_for(&reader, &asked, (begun, wait), &signal)?;
    let mut report = Report {
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
    } else if outcome == End::Rebooted {
        tell(&report);
    } else {
        crate::report(&anyhow::anyhow!("{}", failed(&report)), 1);
    }
    let number = signal.load(Ordering::Relaxed);
    if number != 0 && outcome != End::Rebooted {
        // Whoever waits for this process is to see what ended it.
        signal_hook::low_level::emulate_default_handler(number as c_int)?;
    }
    Ok(ExitCode::from(u8::from(outcome != End::Rebooted)))
}

/// The last signal that asks to end, 0 until one comes. What was ignored at the start stays so,
/// as under `nohup`.
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

/// The ledger of a process: of several one of the process that has the number here, and by which
/// it can be asked.
fn find(folder: &Folder, pid: u64) -> Result<(LedgerReader, LedgerSnapshot)> {
    let mut found: Vec<(LedgerReader, LedgerSnapshot, bool)> = Vec::new();
    for reader in folder.ledgers()? {
        let reader = match reader {
            Ok(reader) => reader,
            // What cannot be opened is told by its name.
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

/// Whether an error is of a file that a process's ledger would have: `PID-START-NUMBER.ledger`.
fn is_of(error: &fercuda_ledger::Error, pid: u64) -> bool {
    use fercuda_ledger::Error::{Format, NotPrivate, System};
    let (NotPrivate { path, .. } | System { path, .. } | Format { path, .. }) = error else {
        return false;
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('-').next() == Some(&pid.to_string())
}

/// The only device of a process whose runtime can be asked; else the one that has a runtime.
fn the_device(process: &LedgerSnapshot) -> Result<u32> {
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

/// Waits for an answer; when the time is up, or a signal comes, the request is withdrawn.
fn wait_for(
    reader: &LedgerReader,
    asked: &PendingRequest,
    (begun, wait): (Instant, Duration),
    signal: &AtomicUsize,
) -> Result<(End, Option<RebootOutcome>)> {
    let mut withdrawn_at: Option<Instant> = None;
    let mut not_taken = End::NotTaken;
    loop {
        let is_interrupted = signal.load(Ordering::Relaxed) != 0;
        let progress = match withdrawn_at {
            None if is_interrupted || begun.elapsed() >= wait => {
                if is_interrupted {
                    not_taken = End::Interrupted;
                }
                withdrawn_at = Some(Instant::now());
                asked.withdraw()?
            }
            _ => asked.progress()?,
        };
        let is_last = withdrawn_at.is_some_and(|at| at.elapsed() >= GRACE);
        match progress {
            Progress::Over(outcome) => return Ok((end_of(outcome), Some(outcome))),
            Progress::Withdrawn => return Ok((not_taken, None)),
            Progress::Overtaken if withdrawn_at.is_some() => return Ok((not_taken, None)),
            Progress::Overtaken => return Ok((End::Overtaken, None)),
            Progress::Unknown => return Ok((End::Unknown, None)),
            Progress::Taken if is_last => return Ok((End::Running, None)),
            Progress::Waiting if is_last => return Ok((not_taken, None)),
            Progress::Taken | Progress::Waiting => {}
        }
        if reader.owner()? == OwnerState::Gone {
            // It may have answered as its last act.
            return Ok(match asked.progress()? {
                Progress::Over(outcome) => (end_of(outcome), Some(outcome)),
                _ => (End::ProcessEnded, None),
            });
        }
        sleep(LOOK);
    }
}

fn end_of(outcome: RebootOutcome) -> End {
    match outcome {
        RebootOutcome::Rebooted { .. } => End::Rebooted,
        RebootOutcome::Refused => End::Refused,
        RebootOutcome::Failed(RebootFailure::Context) => End::ContextFailed,
        RebootOutcome::Failed(RebootFailure::Lost) => End::DeviceLost,
        RebootOutcome::Failed(RebootFailure::Other) => End::Failed,
    }
}

fn tell(report: &Report<'_>) {
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

/// What is said of an outcome that is none of a reboot's.
fn failed(report: &Report<'_>) -> String {
    let who = format!("{} ({})", clipped(report.program, 30), report.pid);
    let (device, pid) = (report.device, report.pid);
    let after = duration(report.seconds);
    match report.outcome {
        End::Rebooted => format!("{who} was rebooted"),
        End::Refused => format!(
            "{who} does not agree to reboot now;\nnothing was ended\n\
             try: again later; that program decides (what it gave to serve_requests)"
        ),
        End::ContextFailed => format!(
            "the context of device {device} in {who} has failed:\n\
             sessions have ended, and only the program itself may reset it\n\
             try: to end it, or Runtime::reset in it"
        ),
        End::DeviceLost => format!(
            "device {device} is lost to {who}:\nits driver does not recover in that process\n\
             try: to end it and start it again"
        ),
        End::Failed => format!(
            "{who} tried and could not reboot device {device}\n\
             try: what that program says, or fercuda top {pid}"
        ),
        End::Running => format!(
            "{who} is at it, and not done after {after}:\n\
             sessions end when their work has, and it goes on by itself\n\
             try: fercuda top {pid}, or a longer --wait"
        ),
        End::NotTaken => format!(
            "{who} did not take the request in {after};\n\
             it is withdrawn, and nothing was done\n\
             try: a longer --wait, and whether the process is stopped"
        ),
        End::Interrupted => format!(
            "interrupted before {who}\n\
             took the request: it is withdrawn, and nothing was done\n\
             try: again, and whether the process is stopped"
        ),
        End::Overtaken => format!(
            "somebody else asked {who} at the same time,\n\
             in place of this request, which was not taken\n\
             try: fercuda top {pid}, whether it was rebooted; else again"
        ),
        End::Unknown => format!(
            "somebody else has asked {who} since,\n\
             and was heard: whether this request was before is not known\n\
             try: fercuda top {pid}, which says what it holds now"
        ),
        End::ProcessEnded => format!(
            "{who} ended while it was asked\ntry: fercuda top {pid}, which has its last figures"
        ),
    }
}
