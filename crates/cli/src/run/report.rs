//! End-of-run report: one screen of 80 columns and 24 lines, from the ledgers of the run's
//! processes, however they ended.

use std::num::NonZeroU64;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use fercuda_ledger::{EventKind, Folder, LedgerSnapshot};
use serde::Serialize;

use crate::ledgers;
use crate::terminal::{Paint, bytes, clipped, count, duration, wrapped};

/// Rows of the two tables. With their headers and the eight lines around them they fill a
/// screen of 24 lines.
const DEVICE_ROWS: usize = 4;
const TENANT_ROWS: usize = 8;
const WIDTH: usize = 80;

/// The result of a run that has ended.
#[derive(Debug, Serialize)]
pub(crate) struct RunReport {
    program: String,
    run: NonZeroU64,
    /// Its exit status, if it exited.
    status: Option<i32>,
    /// The signal that ended it.
    signal: Option<i32>,
    seconds: f64,
    processes: Vec<LedgerSnapshot>,
    /// Why some ledgers of the folder could not be read.
    unreadable: Vec<String>,
}

impl RunReport {
    pub(crate) fn of(
        folder: &Folder,
        run: NonZeroU64,
        program: &Path,
        status: ExitStatus,
        took: Duration,
    ) -> RunReport {
        let of_run = |snapshot: &LedgerSnapshot| snapshot.run == Some(run);
        let (processes, unreadable) = ledgers::gather(folder, of_run)
            .unwrap_or_else(|error| (Vec::new(), vec![error.to_string()]));
        RunReport {
            program: program.display().to_string(),
            run,
            status: status.code(),
            signal: status.signal(),
            seconds: took.as_secs_f64(),
            processes,
            unreadable,
        }
    }

    pub(crate) fn print(&self) {
        let paint = Paint::stderr();
        for (place, line) in self.lines().iter().enumerate() {
            if place == 0 {
                eprintln!("{}", paint.strong(line));
            } else {
                eprintln!("{line}");
            }
        }
    }

    fn lines(&self) -> Vec<String> {
        let ended = match (self.status, self.signal) {
            (Some(status), _) => format!("ended with status {status}"),
            (None, Some(signal)) => format!("was ended by signal {signal}"),
            (None, None) => "ended".to_owned(),
        };
        let took = duration(self.seconds);
        let name = self.program.rsplit('/').next().unwrap_or_default();
        let mut lines = vec![clipped(
            &format!("fercuda: {} {ended} after {took}", clipped(name, 32)),
            WIDTH,
        )];
        for error in self.unreadable.iter().take(1) {
            let line = error.lines().next().unwrap_or_default();
            lines.push(clipped(&format!("not counted: {line}"), WIDTH));
        }
        if self.processes.is_empty() {
            lines.push("No process of this run used device memory.".to_owned());
            return lines;
        }
        lines.extend(ledgers::devices(&self.processes, DEVICE_ROWS));
        lines.push(String::new());
        lines.extend(ledgers::tenants(&self.processes, TENANT_ROWS));
        lines.push(String::new());
        if let Some(kinds) = ledgers::kinds(&self.processes) {
            lines.extend(first_two(&format!("governed: {kinds}")));
        }
        if let Some(events) = ledgers::events(&self.processes) {
            lines.extend(first_two(&format!("events: {events}")));
        }
        if let Some(trouble) = self.trouble() {
            lines.push(clipped(&format!("last: {trouble}"), WIDTH));
        }
        lines.push(format!(
            "ungoverned = {}, fallback = {}",
            bytes(ledgers::ungoverned_bytes(&self.processes)),
            count(ledgers::fallbacks(&self.processes) as usize, "allocation"),
        ));
        lines
    }

    /// The last memory request that was refused or could not be served.
    fn trouble(&self) -> Option<String> {
        let is_trouble = |kind| {
            matches!(
                kind,
                EventKind::OutOfMemory | EventKind::Refused | EventKind::TenantLimit
            )
        };
        let events = self.processes.iter().flat_map(|process| {
            let began = process.begun_at_unix_ns;
            let events = process.events.iter().filter(move |it| is_trouble(it.kind));
            events.map(move |event| (began.saturating_add(event.at_ns), event))
        });
        let (_, last) = events.max_by_key(|(at, _)| *at)?;
        Some(ledgers::event(last))
    }
}

/// A text in at most two lines.
fn first_two(text: &str) -> Vec<String> {
    let mut lines = wrapped(text, WIDTH - 2);
    if lines.len() > 2 {
        lines.truncate(2);
        lines[1] = clipped(&format!("{} ...", lines[1]), WIDTH - 2);
    }
    if let Some(second) = lines.get_mut(1) {
        second.insert_str(0, "  ");
    }
    lines
}

#[cfg(test)]
mod tests {
    use fercuda_ledger::{Gauge, Governed, Ledger, LedgerDevice, LedgerEvent};

    use super::*;

    fn report(tenants: usize) -> RunReport {
        let ledger = Ledger::in_memory();
        for ordinal in 0..8 {
            let device = LedgerDevice::new(ordinal);
            for number in 0..tenants {
                let name = format!("tenant-with-a-rather-long-name-{number}");
                let tenant = ledger.tenant(&name);
                ledger.charge(device, tenant, (1 << 40) + number as u64);
                ledger.set_tenant_limit(device, tenant, 2 << 40);
            }
            for kind in Governed::ALL {
                ledger.govern(device, ledger.tenant("torch"), kind, 1023 << 20);
            }
            for kind in EventKind::ALL {
                ledger.record(LedgerEvent {
                    kind,
                    device,
                    tenant: ledger.tenant("torch"),
                    bytes: 6 << 30,
                    address: 0x7000,
                    detail: 5 << 29,
                    stream: 7,
                    thread: 1,
                });
            }
            ledger.set(device, Gauge::Pooled, 3 << 40);
        }
        RunReport {
            program: "/opt/a/".to_owned() + &"name".repeat(40),
            run: NonZeroU64::MIN,
            status: None,
            signal: Some(9),
            seconds: 12.3,
            processes: vec![ledger.snapshot().unwrap()],
            unreadable: vec!["cannot read it, and say so at great length ".repeat(4)],
        }
    }

    #[test]
    fn a_report_fits_a_screen_whatever_happened() {
        let lines = report(40).lines();
        let text = lines.join("\n");
        assert!(lines.len() <= 24, "{text}");
        let widest = lines.iter().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{text}");
        for part in [
            "was ended by signal 9 after 12.3 s",
            "and 5 smaller devices",
            "tenant-with-a-r~",
            "governed: linear 8.0 GiB, array",
            "out of memory 8",
            "last: refused: torch asked for 6.0 GiB, its own limit is 2.5 GiB",
            "ungoverned = 0 B, fallback = 8 allocations",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn a_run_without_device_memory_is_reported_as_one() {
        let report = RunReport {
            processes: Vec::new(),
            unreadable: Vec::new(),
            ..report(0)
        };
        assert_eq!(report.lines().len(), 2);
        assert!(report.lines()[1].starts_with("No process of this run"));
    }
}
