//! `fercuda top`: who holds how much device memory now.
//!
//! Invariant: processes are only looked at. Elsewhere: what is drawn (`view`),
//! the terminal (`screen`), plain tables (`ledgers`).

mod screen;
mod view;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::{Result, bail};
use fercuda_ledger::{Folder, LedgerSnapshot, OwnerState};

use crate::ledgers;
use crate::out::{say, write};
use crate::terminal::{Paint, wrapped};

/// What a process's memory is shown by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum By {
    /// By the library that allocated it.
    #[default]
    Tenant,
    /// By the stream that it was allocated in.
    Stream,
    /// By the thread that allocated it, at all devices together.
    Thread,
}

impl By {
    fn next(self) -> By {
        match self {
            Self::Tenant => Self::Stream,
            Self::Stream => Self::Thread,
            Self::Thread => Self::Tenant,
        }
    }
}

/// Shows every process whose device memory is governed, as it changes.
#[derive(clap::Args)]
#[command(after_help = "\
A process is governed if `fercuda run` started it, or if the hook was preloaded
into it by hand. Shown are your own, also those in a container that has the same
folder of ledgers.

Keys: up and down, or k and j, choose a process; v shows its memory by tenant,
by stream or by thread; p pauses; q, Escape or Ctrl-C ends. Where stdout is no
terminal, the table is printed once.

  LIVE      allocated from the pool and not freed
  POOL      physical memory that the pool has taken from the driver
  FREE      of it, what is in no live block
  GOVERNED  what the driver gave by itself, charged: contexts, code, arrays
A stream has the driver's number, or is a default stream; a thread is numbered
as it first allocated. ALLOCS are those of who has something live or runs.

Exit status: 0; 1 if there is no process with this number; 2 if ledgers cannot
be read at all.

Examples:
  fercuda top
  fercuda top 4711
  fercuda top --once | sort -k4
  fercuda top 4711 --by stream
  fercuda top --json | python3 -m json.tool
  fercuda top --prometheus > /var/lib/node_exporter/fercuda.prom")]
pub(crate) struct Args {
    /// Only this process; also if it has ended.
    pid: Option<u64>,
    /// Show what each process holds by this.
    #[arg(long, value_enum, default_value = "tenant", conflicts_with_all = ["json", "prometheus"])]
    by: By,
    /// Print one plain table and end.
    #[arg(long)]
    once: bool,
    /// Print the ledgers as a JSON array and end.
    #[arg(long, conflicts_with_all = ["once", "prometheus"])]
    json: bool,
    /// Print the figures as Prometheus reads them and end.
    #[arg(long, conflicts_with = "once")]
    prometheus: bool,
}

/// What to do where nothing is governed.
const NOBODY: &str = "No process is governed now.\ntry: fercuda run -- PROGRAM";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let folder = Folder::from_env()?;
    // A series goes on when its process ends: `fercuda_up` then says 0.
    let gone_too = args.pid.is_some() || args.prometheus;
    let keep = |process: &LedgerSnapshot| {
        let asked_for = args.pid.is_none_or(|pid| process.pid == pid);
        asked_for && (gone_too || process.owner != OwnerState::Gone)
    };
    let (processes, unreadable) = ledgers::gather(&folder, keep)?;
    if let Some(pid) = args.pid
        && processes.is_empty()
    {
        bail!(
            "process {pid} is not governed: it has no ledger in {}\n\
             try: fercuda top --once, which lists those that are",
            folder.path().display()
        );
    }
    if args.json {
        say!("{}", serde_json::to_string(&processes)?);
    } else if args.prometheus {
        write(format_args!("{}", fercuda_ledger::prometheus(&processes)));
    } else if args.once || !std::io::stdout().is_terminal() {
        once(&processes, &unreadable, args.by);
    } else {
        return screen::show(&folder, &keep, args.by);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints all rows, whatever the height.
fn once(processes: &[LedgerSnapshot], unreadable: &[String], by: By) {
    let paint = Paint::stdout();
    for error in unreadable {
        eprintln!("{error}");
    }
    if processes.iter().all(|process| process.devices.is_empty()) {
        say!("{NOBODY}");
        return;
    }
    let tables = [
        ledgers::devices(processes, usize::MAX),
        match by {
            By::Tenant => ledgers::tenants(processes, usize::MAX),
            By::Stream => ledgers::streams(processes),
            By::Thread => ledgers::threads(processes),
        },
    ];
    for table in &tables {
        for (place, line) in table.iter().enumerate() {
            match place {
                0 => say!("{}", paint.strong(line)),
                _ => say!("{line}"),
            }
        }
        say!("");
    }
    if let Some(kinds) = ledgers::kinds(processes) {
        wrapped(&format!("governed: {kinds}"), 80)
            .iter()
            .for_each(|line| say!("{line}"));
    }
    if let Some(events) = ledgers::events(processes) {
        wrapped(&format!("events: {events}"), 80)
            .iter()
            .for_each(|line| say!("{line}"));
    }
}
