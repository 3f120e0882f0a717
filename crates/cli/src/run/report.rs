//! End-of-run report: one screen of 80 columns and 24 lines, from the ledgers of the run's
//! processes, however they ended.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use fercuda_ledger::{EventKind, Folder, LedgerSnapshot, OwnerState};
use serde::Serialize;

use crate::ledgers;
use crate::terminal::{Paint, bytes, clipped, count, duration, wrapped};

/// Rows of the two tables. With their headers and the ten lines around them they fill a
/// screen of 24 lines.
const DEVICE_ROWS: usize = 4;
const TENANT_ROWS: usize = 6;
const WIDTH: usize = 80;
/// Tenants that the line about leaks names.
const LEAK_ROWS: usize = 3;

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
    /// Blocks of ended processes that were never freed, by tenant, most bytes first. Memory of a
    /// context that was destroyed is freed.
    live_at_exit: Vec<LeakedBlocks>,
    /// Why some ledgers of the folder could not be read.
    unreadable: Vec<String>,
}

/// A tenant's blocks that were live when their processes ended.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct LeakedBlocks {
    tenant: String,
    blocks: u64,
    bytes: u64,
}

impl LeakedBlocks {
    /// Those of all processes that have ended.
    fn of(processes: &[LedgerSnapshot]) -> Vec<LeakedBlocks> {
        let mut tenants: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        let ended = processes.iter().filter(|it| it.owner != OwnerState::Alive);
        for tenant in ended.flat_map(|process| &process.tenants) {
            let (blocks, bytes) = tenants.entry(&tenant.name).or_default();
            for account in &tenant.accounts {
                *blocks = blocks.saturating_add(account.blocks);
                *bytes = bytes.saturating_add(account.live_bytes);
            }
        }
        let mut leaked: Vec<LeakedBlocks> = tenants
            .into_iter()
            .filter(|(_, (blocks, bytes))| (*blocks, *bytes) != (0, 0))
            .map(|(tenant, (blocks, bytes))| LeakedBlocks {
                tenant: tenant.to_owned(),
                blocks,
                bytes,
            })
            .collect();
        // Equal ones stay in the names' order.
        leaked.sort_by_key(|it| Reverse((it.bytes, it.blocks)));
        leaked
    }
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
            live_at_exit: LeakedBlocks::of(&processes),
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
        let devices = self.processes.iter().flat_map(|it| &it.devices);
        if let Some(limit) = devices.filter_map(|it| it.limit_bytes).max() {
            lines.push(format!("limit of a process on a device: {}", bytes(limit)));
        }
        if let Some(kinds) = ledgers::kinds(&self.processes) {
            lines.extend(first_two(&format!("governed: {kinds}")));
        }
        if let Some(events) = ledgers::events(&self.processes) {
            lines.extend(first_two(&format!("events: {events}")));
        }
        if let Some(leaked) = self.leaked() {
            lines.extend(first_two(&format!("live at exit: {leaked}")));
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

    /// The largest tenants of the blocks that were live at exit.
    fn leaked(&self) -> Option<String> {
        let shown = self.live_at_exit.iter().take(LEAK_ROWS);
        let mut parts: Vec<String> = shown
            .map(|it| {
                let blocks = count(it.blocks as usize, "block");
                format!(
                    "{} {} in {blocks}",
                    clipped(&it.tenant, 16),
                    bytes(it.bytes)
                )
            })
            .collect();
        let left = self.live_at_exit.len().saturating_sub(LEAK_ROWS);
        if left > 0 {
            parts.push(format!("and {}", count(left, "smaller tenant")));
        }
        (!parts.is_empty()).then(|| parts.join(", "))
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
        let mut process = ledger.snapshot().unwrap();
        process.owner = OwnerState::Gone;
        let processes = vec![process];
        RunReport {
            program: "/opt/a/".to_owned() + &"name".repeat(40),
            run: NonZeroU64::MIN,
            status: None,
            signal: Some(9),
            seconds: 12.3,
            live_at_exit: LeakedBlocks::of(&processes),
            processes,
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
            "live at exit: tenant-with-a-r~ 8.0 TiB in 8 blocks, ",
            "and 37 smaller tenants",
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
            live_at_exit: Vec::new(),
            unreadable: Vec::new(),
            ..report(0)
        };
        assert_eq!(report.lines().len(), 2);
        assert!(report.lines()[1].starts_with("No process of this run"));
    }

    #[test]
    fn blocks_never_freed_are_named_by_tenant_the_largest_first() {
        let ledger = Ledger::in_memory();
        let (small, large, freed) = ("small", "large", "freed");
        for ordinal in 0..2 {
            let device = LedgerDevice::new(ordinal);
            ledger.charge(device, ledger.tenant(large), 2 << 30);
            let kept = ledger.charge(device, ledger.tenant(freed), 3 << 30);
            ledger.discharge(kept, 3 << 30);
        }
        let device = LedgerDevice::new(0);
        ledger.charge(device, ledger.tenant(small), 512);
        ledger.charge(device, ledger.tenant(small), 512);
        // The driver's own allocations are no blocks.
        ledger.govern(device, ledger.tenant("context"), Governed::Context, 1 << 30);
        let mut snapshot = ledger.snapshot().unwrap();
        let leaked = |tenant: &str, blocks, bytes| LeakedBlocks {
            tenant: tenant.to_owned(),
            blocks,
            bytes,
        };
        snapshot.owner = OwnerState::Gone;
        // Of two processes.
        let both = LeakedBlocks::of(&[snapshot.clone(), snapshot.clone()]);
        assert_eq!(both, [leaked(large, 4, 8 << 30), leaked(small, 4, 2048)]);
        let report = RunReport {
            live_at_exit: both,
            ..report(0)
        };
        let text = report.lines().join("\n");
        assert!(
            text.contains("\nlive at exit: large 8.0 GiB in 4 blocks, small 2.0 KiB in 4 blocks\n"),
            "{text}"
        );
        // A process that goes on may free them yet.
        snapshot.owner = OwnerState::Alive;
        assert_eq!(LeakedBlocks::of(&[snapshot]), []);
    }
}
