//! Text tables of the user's ledgers: device memory by process, tenant, stream and thread.
//!
//! Invariant: no line is wider than 80 columns, whatever the names are; omitted rows are
//! counted.
//! Elsewhere: reading ledgers (`fercuda-ledger`), the live display (`top`).

use fercuda_governor::UNNAMED;
use fercuda_ledger::{
    DeviceSnapshot, EventKind, EventSnapshot, Folder, LedgerSnapshot, OwnerState, TenantAccount,
    ThreadSnapshot,
};

use crate::terminal::{bytes, clipped, count};

/// Snapshots of the ledgers that `keep` selects, and why others cannot be read.
pub(crate) fn gather(
    folder: &Folder,
    keep: impl Fn(&LedgerSnapshot) -> bool,
) -> fercuda_ledger::Result<(Vec<LedgerSnapshot>, Vec<String>)> {
    let mut snapshots = Vec::new();
    let mut unreadable = Vec::new();
    for reader in folder.ledgers()? {
        match reader.and_then(|reader| reader.snapshot()) {
            Ok(snapshot) if keep(&snapshot) => snapshots.push(snapshot),
            Ok(_) => {}
            Err(error) => unreadable.push(error.to_string()),
        }
    }
    Ok((snapshots, unreadable))
}

/// A process's program name in at most `width` characters, marked if the process has ended.
pub(crate) fn name(process: &LedgerSnapshot, width: usize) -> String {
    let mark = match process.owner {
        OwnerState::Gone => " (gone)",
        OwnerState::Alive | OwnerState::Unknown => "",
    };
    clipped(&process.program, width.saturating_sub(mark.len())) + mark
}

/// One row per device of each process, highest peak first.
pub(crate) fn devices(processes: &[LedgerSnapshot], limit: usize) -> Vec<String> {
    let mut rows = devices_of(processes);
    rows.sort_by_key(|(_, device)| std::cmp::Reverse(device.peak_bytes));
    device_table(&rows, limit)
}

/// The devices of all processes.
pub(crate) fn devices_of(processes: &[LedgerSnapshot]) -> Vec<(&LedgerSnapshot, &DeviceSnapshot)> {
    let devices = |process| {
        let process: &LedgerSnapshot = process;
        process.devices.iter().map(move |device| (process, device))
    };
    processes.iter().flat_map(devices).collect()
}

/// One row per device of a process.
pub(crate) fn device_table(
    rows: &[(&LedgerSnapshot, &DeviceSnapshot)],
    limit: usize,
) -> Vec<String> {
    let head = format!(
        "{:<16} {:>9} {:>3} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "PROCESS", "PID", "DEV", "LIVE", "PEAK", "POOL", "FREE", "GOVERNED"
    );
    let line = |(process, device): &(&LedgerSnapshot, &DeviceSnapshot)| {
        format!(
            "{:<16} {:>9} {:>3} {:>9} {:>9} {:>9} {:>9} {:>9}",
            name(process, 16),
            process.pid,
            device.device,
            bytes(device.live_bytes),
            bytes(device.peak_bytes),
            bytes(device.pooled_bytes),
            bytes(device.free_bytes()),
            bytes(device.governed_bytes()),
        )
    };
    table(head, rows.iter().map(line).collect(), limit, "device")
}

/// One row per tenant of each process and device, highest peak first.
pub(crate) fn tenants(processes: &[LedgerSnapshot], limit: usize) -> Vec<String> {
    let mut rows: Vec<(&LedgerSnapshot, &str, &TenantAccount)> = processes
        .iter()
        .flat_map(|process| {
            process.tenants.iter().flat_map(move |tenant| {
                let accounts = tenant.accounts.iter();
                accounts.map(move |account| (process, tenant.name.as_str(), account))
            })
        })
        .collect();
    rows.sort_by_key(|(_, _, account)| {
        std::cmp::Reverse(account.peak_bytes.saturating_add(account.governed_bytes))
    });
    let head = format!(
        "{:<16} {:>9} {:>3} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "TENANT", "PID", "DEV", "LIVE", "PEAK", "GOVERNED", "ALLOCS", "LIMIT"
    );
    let line = |(process, name, account): &(&LedgerSnapshot, &str, &TenantAccount)| {
        format!(
            "{:<16} {:>9} {:>3} {:>9} {:>9} {:>9} {:>9} {:>9}",
            clipped(name, 16),
            process.pid,
            account.device,
            bytes(account.live_bytes),
            bytes(account.peak_bytes),
            bytes(account.governed_bytes),
            account.allocs,
            account.limit_bytes.map_or_else(|| "none".to_owned(), bytes),
        )
    };
    table(head, rows.iter().map(line).collect(), limit, "tenant")
}

/// A stream's label: the driver's number, or the number of a default stream.
pub(crate) fn stream(number: Option<u64>) -> String {
    match number {
        None => "none".to_owned(),
        Some(number) => match number.checked_sub(UNNAMED) {
            Some(number) => format!("default {number}"),
            None => number.to_string(),
        },
    }
}

/// A thread's label: its number.
pub(crate) fn thread(thread: &ThreadSnapshot) -> String {
    let mark = if thread.ended { " (ended)" } else { "" };
    match thread.thread {
        None => "none".to_owned(),
        Some(number) => format!("{number}{mark}"),
    }
}

/// One row per stream of each process, most live memory first.
pub(crate) fn streams(processes: &[LedgerSnapshot]) -> Vec<String> {
    let rows = processes.iter().flat_map(|process| {
        let streams = process.streams.iter();
        streams.map(move |it| {
            let device = it
                .device
                .map_or_else(|| "-".to_owned(), |it| it.to_string());
            (process, stream(it.stream), device, it.live_bytes, it.allocs)
        })
    });
    holders("STREAM", rows.collect())
}

/// One row per thread of each process, most live memory first.
pub(crate) fn threads(processes: &[LedgerSnapshot]) -> Vec<String> {
    let rows = processes.iter().flat_map(|process| {
        let threads = process.threads.iter();
        threads.map(move |it| {
            (
                process,
                thread(it),
                "-".to_owned(),
                it.live_bytes,
                it.allocs,
            )
        })
    });
    holders("THREAD", rows.collect())
}

/// A table of streams or threads: name, process, device if it has one, live bytes and number of
/// allocations.
fn holders(noun: &str, mut rows: Vec<(&LedgerSnapshot, String, String, u64, u64)>) -> Vec<String> {
    rows.sort_by_key(|(_, _, _, live_bytes, _)| std::cmp::Reverse(*live_bytes));
    let head = format!(
        "{noun:<23} {:<16} {:>9} {:>3} {:>9} {:>9}",
        "PROCESS", "PID", "DEV", "LIVE", "ALLOCS"
    );
    let line = |(process, holder, device, live_bytes, allocs): &(
        &LedgerSnapshot,
        String,
        String,
        u64,
        u64,
    )| {
        format!(
            "{:<23} {:<16} {:>9} {device:>3} {:>9} {allocs:>9}",
            clipped(holder, 23),
            name(process, 16),
            process.pid,
            bytes(*live_bytes),
        )
    };
    let lines = rows.iter().map(line).collect();
    table(head, lines, usize::MAX, &noun.to_lowercase())
}

fn table(head: String, mut lines: Vec<String>, limit: usize, noun: &str) -> Vec<String> {
    if lines.len() > limit {
        // The line that counts the omitted rows replaces one row.
        let more = lines.len() - limit.saturating_sub(1);
        lines.truncate(limit.saturating_sub(1));
        lines.push(format!("and {}", count(more, &format!("smaller {noun}"))));
    }
    lines.insert(0, head);
    lines
}

/// Governed bytes by kind, summed over devices: `context 512.0 MiB, vmm 3.0 GiB`.
pub(crate) fn kinds(processes: &[LedgerSnapshot]) -> Option<String> {
    let mut sums = std::collections::BTreeMap::new();
    for device in processes.iter().flat_map(|process| &process.devices) {
        for part in &device.governed {
            let sum: &mut u64 = sums.entry(part.kind).or_default();
            *sum = sum.saturating_add(part.bytes);
        }
    }
    let parts: Vec<String> = sums
        .into_iter()
        .map(|(kind, sum)| format!("{} {}", kind.name(), bytes(sum)))
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Event counts by kind, summed over devices.
pub(crate) fn events(processes: &[LedgerSnapshot]) -> Option<String> {
    let count = |kind: EventKind| -> u64 {
        let devices = processes.iter().flat_map(|process| &process.devices);
        let counts = devices.filter_map(|device| device.event_counts.get(&kind));
        counts.fold(0, |sum, count| sum.saturating_add(*count))
    };
    let parts: Vec<String> = EventKind::ALL
        .into_iter()
        // Clock events are internal to the pool.
        .filter(|kind| *kind != EventKind::Epoch && count(*kind) > 0)
        .map(|kind| format!("{} {}", kind.name().replace('_', " "), count(kind)))
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// One event as a line of text.
pub(crate) fn event(event: &EventSnapshot) -> String {
    let tenant = clipped(&event.tenant, 24);
    let (size, detail) = (bytes(event.bytes), bytes(event.detail));
    match event.kind {
        EventKind::Growth => format!("the pool grew by {size} to {detail}"),
        EventKind::Trim => format!("the pool gave back {size}, it has {detail}"),
        EventKind::OutOfMemory => {
            format!("out of memory: {tenant} asked for {size}, largest block {detail}")
        }
        EventKind::Fallback => format!("fallback: {tenant} got {size} from the driver"),
        EventKind::ForeignFree => format!(
            "{tenant} freed {:#x}, which the pool did not allocate",
            event.address
        ),
        EventKind::Refused => format!("refused: {tenant} asked for {size}, the limit is {detail}"),
        EventKind::TenantLimit => {
            format!("refused: {tenant} asked for {size}, its own limit is {detail}")
        }
        other => other.name().replace('_', " "),
    }
}

/// Used device memory that no account explains, summed over devices.
pub(crate) fn ungoverned_bytes(processes: &[LedgerSnapshot]) -> u64 {
    let devices = processes.iter().flat_map(|process| &process.devices);
    devices.fold(0, |sum, device| sum.saturating_add(device.ungoverned_bytes))
}

/// Allocations that the driver served because the pool could not.
pub(crate) fn fallbacks(processes: &[LedgerSnapshot]) -> u64 {
    let devices = processes.iter().flat_map(|process| &process.devices);
    let counts = devices.filter_map(|device| device.event_counts.get(&EventKind::Fallback));
    counts.fold(0, |sum, count| sum.saturating_add(*count))
}

#[cfg(test)]
mod tests {
    use fercuda_ledger::{Ledger, LedgerDevice};

    use super::*;

    #[test]
    fn columns_are_apart_at_every_size() {
        for size in [1000 << 20, 1023 << 20, (1 << 40) - 1, u64::MAX >> 1] {
            let ledger = Ledger::in_memory();
            let (device, tenant) = (LedgerDevice::new(0), ledger.tenant("torch"));
            ledger.charge(device, tenant, size);
            ledger.set_tenant_limit(device, tenant, size);
            let processes = [ledger.snapshot().unwrap()];
            let wide = [16, 26, 30, 40, 50, 60, 70];
            for (lines, gaps) in [
                (devices(&processes, 9), &wide[..]),
                (tenants(&processes, 9), &wide),
                (streams(&processes), &[23, 40, 50, 54, 64]),
            ] {
                let row: Vec<char> = lines[1].chars().collect();
                assert!(gaps.iter().all(|at| row[*at] == ' '), "{}", lines[1]);
                assert!(row.len() <= 80, "{}", lines[1]);
            }
        }
    }

    #[test]
    fn streams_and_threads_are_labelled_and_sorted_by_live_memory() {
        let ledger = Ledger::in_memory();
        let (device, torch) = (LedgerDevice::new(3), ledger.tenant("torch"));
        let (mut one, mut other) = (ledger.local(1), ledger.local(2));
        one.charge(device, torch, 7, 1 << 20);
        other.charge(device, torch, UNNAMED + 2, 5 << 20);
        drop(other);
        ledger.charge(device, torch, 2 << 20);
        let snapshot = ledger.snapshot().unwrap();
        let processes = [snapshot];
        let first = |lines: Vec<String>| -> Vec<String> {
            assert!(
                lines.iter().all(|line| line.chars().count() <= 80),
                "{lines:?}"
            );
            let cells = lines.iter().map(|line| line[..24].trim().to_owned());
            cells.collect()
        };
        assert_eq!(
            first(streams(&processes)),
            ["STREAM", "default 2", "none", "7"]
        );
        assert_eq!(
            first(threads(&processes)),
            ["THREAD", "2 (ended)", "none", "1"]
        );
        let lines = streams(&processes);
        assert!(lines[1].contains("  3   5.0 MiB         1"), "{lines:?}");
    }
}
