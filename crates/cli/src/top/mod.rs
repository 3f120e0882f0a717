//! `fercuda top`: live display of device memory by process.
//!
//! Invariant: processes are only observed. Elsewhere: layout (`view`), the terminal
//! (`screen`), plain tables (`ledgers`), the GPUs' own figures (`gpus`).

mod breakdown;
mod columns;
mod gpus;
mod order;
mod screen;
mod view;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::{Result, bail};
use fercuda_ledger::{Folder, LedgerSnapshot, OwnerState};

use crate::ledgers;
use crate::out::{say, write};
use crate::terminal::{Paint, wrapped};
use breakdown::Breakdown;
use gpus::Gpus;
use order::ProcessOrder;
use view::{NO_PROCESS, View, no_match};

/// Monitors the device memory of every governed process.
#[derive(clap::Args)]
#[command(after_help = "\
A process is governed if `fercuda run` started it, or if the hook was preloaded
into it by hand. Your own processes are shown, including those in a container
that shares the folder of ledgers.

Keys: up and down, or k and j, select a process; v switches between tenants,
streams and threads; s switches the order; / filters by a text, which Enter
ends and Escape removes; p pauses; q, Escape or Ctrl-C quits. If stdout is not
a terminal, the table is printed once.

  LIVE      allocated from the pool and not freed
  POOL      physical memory that the pool has taken from the driver
  FREE      the part of POOL that is in no live block
  GOVERNED  allocated by the driver itself and charged: contexts, code, arrays
GPUs are listed by PCI place, with the part of the time in which a kernel ran,
temperature and power, if NVIDIA's management library (NVML) is installed.
Streams have the driver's number, or are default streams; threads are numbered
by their first allocation. ALLOCS counts streams and threads that are running or
still hold memory.

In JSON, the number of a default stream is 2^63 plus its label: read it as an
integer of 64 bits, since a double would round it.

Exit status: 0; 1 if no governed process has this PID; 2 if no ledger can be
read.

Examples:
  fercuda top
  fercuda top 4711
  fercuda top --once | sort -k4
  fercuda top 4711 --by stream
  fercuda top --sort live --filter torch
  fercuda top --json | python3 -m json.tool
  fercuda top --prometheus > /var/lib/node_exporter/fercuda.prom")]
pub(crate) struct Args {
    /// Show only this process, also if it has ended.
    pid: Option<u64>,
    /// Break the memory of each process down by this.
    #[arg(long, value_enum, default_value = "tenant", conflicts_with_all = ["json", "prometheus"])]
    by: Breakdown,
    /// Sort processes by this [default: start; once: peak].
    #[arg(long, value_enum, conflicts_with_all = ["json", "prometheus"])]
    sort: Option<ProcessOrder>,
    /// Show only processes with this text in their name or a tenant's.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Print one plain table and exit.
    #[arg(long)]
    once: bool,
    /// Print the ledgers as a JSON array and exit.
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Print the counters in Prometheus's text format and exit.
    #[arg(long)]
    prometheus: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let folder = Folder::from_env()?;
    // A time series outlives its process: `fercuda_up` is 0 then.
    let gone_too = args.pid.is_some() || args.prometheus;
    let keep = |process: &LedgerSnapshot| {
        let asked_for = args.pid.is_none_or(|pid| process.pid == pid);
        let is_meant = args
            .filter
            .as_ref()
            .is_none_or(|it| order::matches(process, it));
        asked_for && is_meant && (gone_too || process.owner != OwnerState::Gone)
    };
    let (processes, unreadable) = ledgers::gather(&folder, keep)?;
    if let Some(pid) = args.pid
        && processes.is_empty()
        && args.filter.is_none()
    {
        bail!(
            "process {pid} is not governed: it has no ledger in {}\n\
             try: fercuda top --once, which lists governed processes",
            folder.path().display()
        );
    }
    if args.json {
        say!("{}", serde_json::to_string(&processes)?);
    } else if args.prometheus {
        write(format_args!("{}", fercuda_ledger::prometheus(&processes)));
    } else if args.once || !std::io::stdout().is_terminal() {
        let order = args.sort.unwrap_or(ProcessOrder::Peak);
        once(
            &processes,
            &unreadable,
            (args.by, order, args.filter.as_deref()),
        );
    } else {
        let asked_for = |process: &LedgerSnapshot| {
            let is_it = args.pid.is_none_or(|pid| process.pid == pid);
            is_it && (gone_too || process.owner != OwnerState::Gone)
        };
        let mut view = View::new(Paint::stdout().has_colour());
        view.by = args.by;
        view.order = args.sort.unwrap_or(ProcessOrder::Start);
        view.filter = args.filter.clone().unwrap_or_default();
        return screen::show(&folder, &asked_for, view);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints all rows, whatever the height of the terminal.
fn once(
    processes: &[LedgerSnapshot],
    unreadable: &[String],
    (by, order, filter): (Breakdown, ProcessOrder, Option<&str>),
) {
    let paint = Paint::stdout();
    for error in unreadable {
        eprintln!("{error}");
    }
    if processes.iter().all(|process| process.devices.is_empty()) {
        match filter {
            None => say!("{NO_PROCESS}"),
            Some(text) => say!("{}", no_match(text)),
        }
        return;
    }
    let gpus = Gpus::open().read();
    let mut rows = ledgers::devices_of(processes);
    order.sort(&mut rows);
    let mut tables = vec![
        ledgers::device_table(&rows, usize::MAX),
        match by {
            Breakdown::Tenant => ledgers::tenants(processes, usize::MAX),
            Breakdown::Stream => ledgers::streams(processes),
            Breakdown::Thread => ledgers::threads(processes),
        },
    ];
    if !gpus.is_empty() {
        tables.insert(0, gpus::table(&gpus));
    }
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
