//! The user's ledgers as text: who holds how much device memory.
//!
//! Invariant: no line is wider than 80 columns, whatever names are; rows that
//! are left out are counted.
//! Elsewhere: reading ledgers (`fercuda-ledger`), drawing them as they change
//! (`top`).

use fercuda_ledger::{
    DeviceSnapshot, EventKind, EventSnapshot, Folder, Owner, Snapshot, TenantAccount,
};

use crate::terminal::{bytes, clipped, count};

/// Snapshots of the ledgers that `keep` wants, and why others cannot be read.
pub(crate) fn gather(
    folder: &Folder,
    keep: impl Fn(&Snapshot) -> bool,
) -> fercuda_ledger::Result<(Vec<Snapshot>, Vec<String>)> {
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

/// A process's name in at most `width` characters: its program, and that it is
/// gone if it is.
pub(crate) fn name(process: &Snapshot, width: usize) -> String {
    let mark = match process.owner {
        Owner::Gone => " (gone)",
        Owner::Alive | Owner::Unknown => "",
    };
    clipped(&process.program, width.saturating_sub(mark.len())) + mark
}

/// A row for each device of each process, those with the highest peak first.
pub(crate) fn devices(processes: &[Snapshot], limit: usize) -> Vec<String> {
    let mut rows: Vec<(&Snapshot, &DeviceSnapshot)> = processes
        .iter()
        .flat_map(|process| process.devices.iter().map(move |device| (process, device)))
        .collect();
    rows.sort_by_key(|(_, device)| std::cmp::Reverse(device.peak_bytes));
    let head = format!(
        "{:<17}{:>9} {:>3}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "PROCESS", "PID", "DEV", "LIVE", "PEAK", "POOL", "FREE", "GOVERNED"
    );
    let line = |(process, device): &(&Snapshot, &DeviceSnapshot)| {
        format!(
            "{:<17}{:>9} {:>3}{:>10}{:>10}{:>10}{:>10}{:>10}",
            name(process, 16),
            process.pid,
            device.device,
            bytes(device.live_bytes),
            bytes(device.peak_bytes),
            bytes(device.mapped_bytes),
            bytes(device.ready_bytes.saturating_add(device.waiting_bytes)),
            bytes(device.governed_bytes()),
        )
    };
    table(head, rows.iter().map(line).collect(), limit, "device")
}

/// A row for each tenant of each process at each device, largest peak first.
pub(crate) fn tenants(processes: &[Snapshot], limit: usize) -> Vec<String> {
    let mut rows: Vec<(&Snapshot, &str, &TenantAccount)> = processes
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
        "{:<17}{:>9} {:>3}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "TENANT", "PID", "DEV", "LIVE", "PEAK", "GOVERNED", "ALLOCS", "LIMIT"
    );
    let line = |(process, name, account): &(&Snapshot, &str, &TenantAccount)| {
        format!(
            "{:<17}{:>9} {:>3}{:>10}{:>10}{:>10}{:>10}{:>10}",
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

fn table(head: String, mut lines: Vec<String>, limit: usize, noun: &str) -> Vec<String> {
    if lines.len() > limit {
        // The line that counts the others takes the place of one.
        let more = lines.len() - limit.saturating_sub(1);
        lines.truncate(limit.saturating_sub(1));
        lines.push(format!("and {}", count(more, &format!("smaller {noun}"))));
    }
    lines.insert(0, head);
    lines
}

/// Governed bytes by kind, at all devices: `context 512.0 MiB, vmm 3.0 GiB`.
pub(crate) fn kinds(processes: &[Snapshot]) -> Option<String> {
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

/// How often each kind of event was, at all devices.
pub(crate) fn events(processes: &[Snapshot]) -> Option<String> {
    let count = |kind: EventKind| -> u64 {
        let devices = processes.iter().flat_map(|process| &process.devices);
        devices
            .filter_map(|device| device.event_counts.get(&kind))
            .sum()
    };
    let parts: Vec<String> = EventKind::ALL
        .into_iter()
        // The pool's own clock concerns nobody else.
        .filter(|kind| *kind != EventKind::Epoch && count(*kind) > 0)
        .map(|kind| format!("{} {}", kind.name().replace('_', " "), count(kind)))
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// What happened, in one line.
pub(crate) fn event(event: &EventSnapshot) -> String {
    let who = clipped(&event.tenant, 24);
    let (size, detail) = (bytes(event.bytes), bytes(event.detail));
    match event.kind {
        EventKind::Growth => format!("the pool grew by {size} to {detail}"),
        EventKind::Trim => format!("the pool gave back {size}, it has {detail}"),
        EventKind::OutOfMemory => {
            format!("out of memory: {who} asked for {size}, largest block {detail}")
        }
        EventKind::Fallback => format!("fallback: {who} got {size} from the driver"),
        EventKind::ForeignFree => format!("{who} freed {:#x}, not ours", event.address),
        EventKind::Refused => format!("refused: {who} asked for {size}, the limit is {detail}"),
        EventKind::TenantLimit => {
            format!("refused: {who} asked for {size}, its own limit is {detail}")
        }
        other => other.name().replace('_', " "),
    }
}

/// Used by what nothing accounts for, at all devices.
pub(crate) fn ungoverned_bytes(processes: &[Snapshot]) -> u64 {
    let devices = processes.iter().flat_map(|process| &process.devices);
    devices.fold(0, |sum, device| sum.saturating_add(device.ungoverned_bytes))
}

/// Allocations that the driver served in the pool's stead.
pub(crate) fn fallbacks(processes: &[Snapshot]) -> u64 {
    let devices = processes.iter().flat_map(|process| &process.devices);
    devices
        .filter_map(|device| device.event_counts.get(&EventKind::Fallback))
        .sum()
}
