//! Snapshot of a ledger as plain data.
//!
//! Invariant: created from any words without panicking; every string is free of control characters;
//! inconsistent sums set `racing`.

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use std::num::NonZeroU64;
use std::sync::atomic::AtomicU64;

use serde::Serialize;

use crate::cells::{AccountKey, is_folding, is_left};
use crate::collect::{RawLedger, collect_bytes};
use crate::error::FormatError;
use crate::format::{
    AccountRow, CELLS, CellRow, DEVICES, DeviceRow, EVENT_WORDS, EVENTS, EventKind, FILE_BYTES,
    Governed, Header, LedgerLayout, LedgerRecord, MAGIC, OTHERS, SHARED, TENANTS, TenantRow,
    VERSION, name_from,
};

/// The state of the process that owns a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnerState {
    /// The process lives.
    Alive,
    /// The process ended, in whatever way. The figures are its last ones.
    Gone,
    /// Unknown: bytes alone carry no liveness information.
    Unknown,
}

/// A ledger's content at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LedgerSnapshot {
    /// The format's version.
    pub version: u64,
    /// The state of the owning process.
    pub owner: OwnerState,
    /// The process id, in the process's own namespace.
    pub pid: u64,
    /// The program's name.
    pub program: String,
    /// The run that the process belongs to; `None` if no launcher started it.
    pub run: Option<NonZeroU64>,
    /// When the ledger was opened, in nanoseconds since 1970.
    pub begun_at_unix_ns: u64,
    /// The figures were written while they were read, or do not add up: each is of some moment, but
    /// not all of the same one. For a process that was killed in the middle of a charge this stays
    /// set.
    pub racing: bool,
    /// Devices that the process has used, by ordinal.
    pub devices: Vec<DeviceSnapshot>,
    /// Tenants, in the order in which they first allocated; `others` first.
    pub tenants: Vec<TenantSnapshot>,
    /// Streams in which running threads allocated or allocations are live, by number; charges
    /// without a stream first.
    pub streams: Vec<StreamSnapshot>,
    /// Running threads that allocated, and ended ones with live allocations, by number; charges
    /// without a thread first.
    pub threads: Vec<ThreadSnapshot>,
    /// The last events, oldest first; at most as many as the ring holds.
    pub events: Vec<EventSnapshot>,
    /// The number of events since the ledger was opened.
    pub events_written: u64,
    /// Events that were dropped because their entry in the ring was not available.
    pub events_dropped: u64,
}

/// One device in one process. All figures in bytes unless named otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceSnapshot {
    /// Its ordinal.
    pub device: u32,
    /// Allocated from the pool and not freed.
    pub live_bytes: u64,
    /// The peak of live bytes; up to 256 KiB per thread may be missing.
    pub peak_bytes: u64,
    /// Physical memory that the pool has taken from the driver.
    pub pooled_bytes: u64,
    /// The mapped part of it; the rest is spare.
    pub mapped_bytes: u64,
    /// Free and reusable at once, when the driver's usage was last queried.
    pub ready_bytes: u64,
    /// Free, but pending work may still access it, at that time.
    pub waiting_bytes: u64,
    /// The limit; `None` if there is none.
    pub limit_bytes: Option<u64>,
    /// The driver's own allocations that are charged, by kind; kinds without any are left out.
    pub governed: Vec<GovernedBytes>,
    /// Used according to the driver, but accounted for by nothing here.
    pub ungoverned_bytes: u64,
    /// The device's total memory, as last reported by the driver.
    pub driver_total_bytes: u64,
    /// The device's free memory at that time.
    pub driver_free_bytes: u64,
    /// That time, in nanoseconds since the ledger was opened.
    pub reconciled_at_ns: u64,
    /// The pool's epoch.
    pub epoch: u64,
    /// Allocated from the pool in total.
    pub allocated_bytes: u64,
    /// The number of allocations.
    pub allocs: u64,
    /// The number of frees.
    pub frees: u64,
    /// Events in total, by kind; kinds without any are left out.
    pub event_counts: BTreeMap<EventKind, u64>,
    /// Runtimes open for the device in the process.
    pub runtimes: u64,
    /// Whether one of them accepts reboot requests.
    pub takes_requests: bool,
}

/// Governed bytes of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct GovernedBytes {
    /// The origin of the bytes.
    pub kind: Governed,
    /// The number of bytes.
    pub bytes: u64,
}

/// One tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TenantSnapshot {
    /// Its name.
    pub name: String,
    /// Its accounts, on the devices where it has one.
    pub accounts: Vec<TenantAccount>,
}

/// A tenant's figures on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TenantAccount {
    /// The device's ordinal.
    pub device: u32,
    /// Allocated and not freed, in bytes.
    pub live_bytes: u64,
    /// The peak of live bytes, at most the limit; up to 256 KiB per thread may be missing.
    pub peak_bytes: u64,
    /// The number of live allocations.
    pub blocks: u64,
    /// Allocated in total, in bytes.
    pub allocated_bytes: u64,
    /// The number of allocations.
    pub allocs: u64,
    /// The number of frees.
    pub frees: u64,
    /// The limit in bytes; `None` if there is none.
    pub limit_bytes: Option<u64>,
    /// Its share of the device's governed bytes.
    pub governed_bytes: u64,
}

/// One stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StreamSnapshot {
    /// Its number; `None` for charges without a stream.
    pub stream: Option<u64>,
    /// The device's ordinal; `None` for charges without a stream.
    pub device: Option<u32>,
    /// Allocated in it and not freed.
    pub live_bytes: u64,
    /// Allocations in it according to its present cells: allocations of ended threads that have
    /// nothing live in it are not included.
    pub allocs: u64,
}

/// One thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ThreadSnapshot {
    /// Its number; `None` for charges without a thread.
    pub thread: Option<u64>,
    /// Allocated by it and not freed by any thread.
    pub live_bytes: u64,
    /// Its allocations according to its present cells.
    pub allocs: u64,
    /// Whether it ended while allocations of it are live.
    pub ended: bool,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EventSnapshot {
    /// Its number, from 0.
    pub number: u64,
    /// When it happened, in nanoseconds since the ledger was opened.
    pub at_ns: u64,
    /// The kind; the other fields are documented at [`EventKind`].
    pub kind: EventKind,
    /// The device's ordinal.
    pub device: u32,
    /// The tenant that caused it.
    pub tenant: String,
    /// Bytes.
    pub bytes: u64,
    /// A device address.
    pub address: u64,
    /// See [`EventKind`].
    pub detail: u64,
    /// The stream's number.
    pub stream: u64,
    /// The thread's number.
    pub thread: u64,
}

impl LedgerSnapshot {
    /// Decodes a ledger's bytes; any bytes are accepted.
    ///
    /// # Errors
    /// The reason why they are not a ledger that this version reads.
    pub fn from_bytes(bytes: &[u8]) -> Result<LedgerSnapshot, FormatError> {
        assemble(
            &collect_bytes(bytes),
            bytes.len() as u64,
            OwnerState::Unknown,
        )
    }

    /// The snapshot as JSON. Numbers may exceed 2^53.
    ///
    /// # Errors
    /// Never for snapshots made by this crate; the signature is `serde_json`'s.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

impl DeviceSnapshot {
    /// The pool's memory that is in no live block.
    pub fn free_bytes(&self) -> u64 {
        self.pooled_bytes.saturating_sub(self.live_bytes)
    }

    /// Governed bytes of all kinds.
    pub fn governed_bytes(&self) -> u64 {
        sum(self.governed.iter().map(|part| part.bytes))
    }

    /// All of the device's memory that the ledger accounts for.
    pub fn accounted_bytes(&self) -> u64 {
        let parts = self.governed.iter();
        let on_device = parts.filter(|part| part.kind.is_on_device());
        sum(on_device.map(|part| part.bytes)).saturating_add(self.pooled_bytes)
    }

    /// The device's used memory as last reported by the driver; `None` if it was never queried.
    pub fn driver_used_bytes(&self) -> Option<u64> {
        let used = self
            .driver_total_bytes
            .saturating_sub(self.driver_free_bytes);
        (self.driver_total_bytes > 0).then_some(used)
    }
}

impl TenantSnapshot {
    /// Live bytes on all devices.
    pub fn live_bytes(&self) -> u64 {
        sum(self.accounts.iter().map(|account| account.live_bytes))
    }
}

/// Adds up with saturation.
fn sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::saturating_add)
}

/// Reads counters, and records implausible values.
#[derive(Debug, Default)]
struct CheckedCounters {
    doubtful: bool,
}

impl CheckedCounters {
    /// A counter below zero is being changed, or false: it reads as 0.
    fn read(&mut self, word: u64) -> u64 {
        if word > i64::MAX as u64 {
            self.doubtful = true;
            return 0;
        }
        word
    }
}

/// Builds a snapshot from words that were read from `len_bytes` bytes.
pub(crate) fn assemble(
    collected: &RawLedger,
    len_bytes: u64,
    owner: OwnerState,
) -> Result<LedgerSnapshot, FormatError> {
    let words = &collected.tables[..];
    let header = Header::read(words);
    check(&header, len_bytes)?;

    let mut counters = CheckedCounters::default();
    let sums = CellSums::of(words, &mut counters);
    let accounts: Vec<Vec<TenantAccount>> = (0..TENANTS)
        .map(|tenant| {
            let base = offset_of!(LedgerLayout<AtomicU64>, accounts)
                + tenant * size_of::<[AccountRow<u64>; DEVICES]>();
            rows::<AccountRow<u64>, DEVICES>(words, base)
                .enumerate()
                .map(|(device, row)| {
                    account(device, &row, &sums.places[tenant][device], &mut counters)
                })
                .collect()
        })
        .collect();
    let devices: Vec<DeviceSnapshot> =
        rows::<DeviceRow<u64>, DEVICES>(words, offset_of!(LedgerLayout<AtomicU64>, devices))
            .enumerate()
            .map(|(ordinal, row)| {
                let theirs = || accounts.iter().map(|tenant| &tenant[ordinal]);
                let mut device = device(ordinal, &row, &mut counters);
                device.live_bytes = sum(theirs().map(|account| account.live_bytes));
                device.peak_bytes = peak(device.peak_bytes, row.limit_bytes, device.live_bytes);
                device.allocated_bytes = sum(theirs().map(|account| account.allocated_bytes));
                device.allocs = sum(theirs().map(|account| account.allocs));
                device.frees = sum(theirs().map(|account| account.frees));
                let governed_bytes = sum(theirs().map(|account| account.governed_bytes));
                counters.doubtful |= governed_bytes != device.governed_bytes();
                device
            })
            .collect();

    let names: Vec<Option<String>> =
        rows::<TenantRow<u64>, TENANTS>(words, offset_of!(LedgerLayout<AtomicU64>, tenants))
            .enumerate()
            .map(|(place, row)| tenant_name(place, &row))
            .collect();
    Ok(LedgerSnapshot {
        version: header.version,
        owner,
        pid: header.pid,
        program: name_from(&header.program, header.program_len),
        run: NonZeroU64::new(header.run),
        begun_at_unix_ns: header.begun_at_unix_ns,
        racing: !collected.settled || counters.doubtful,
        devices: devices.into_iter().filter(is_used).collect(),
        events: events(collected, &names),
        tenants: names
            .into_iter()
            .zip(accounts)
            .map(|(name, accounts)| TenantSnapshot {
                accounts: accounts.into_iter().filter(is_open).collect(),
                name: name.unwrap_or_default(),
            })
            // A named tenant is included even before its first allocation.
            .enumerate()
            .filter(|(place, tenant)| {
                let unnamed = *place == OTHERS || tenant.name.is_empty();
                !unnamed || !tenant.accounts.is_empty()
            })
            .map(|(_, tenant)| tenant)
            .collect(),
        streams: sums.streams.into_values().collect(),
        threads: sums.threads.into_values().collect(),
        events_written: collected.events.written,
        events_dropped: collected.events.dropped,
    })
}

pub(crate) fn check(header: &Header<u64>, len_bytes: u64) -> Result<(), FormatError> {
    if header.magic != MAGIC {
        return Err(FormatError::NotALedger);
    }
    if header.version != VERSION {
        return Err(FormatError::Version {
            found: header.version,
        });
    }
    let file_bytes = FILE_BYTES as u64;
    for found in [header.file_bytes, len_bytes] {
        if found != file_bytes {
            return Err(FormatError::Damaged { found });
        }
    }
    let rows = [
        (header.device_rows, DEVICES),
        (header.tenant_rows, TENANTS),
        (header.cell_rows, CELLS),
        (header.shared_cells, SHARED),
        (header.event_rows, EVENTS),
    ];
    if rows
        .iter()
        .any(|(found, expected)| *found != *expected as u64)
    {
        return Err(FormatError::Rows);
    }
    Ok(())
}

/// `N` records from the byte `base` on.
fn rows<R: LedgerRecord, const N: usize>(words: &[u64], base: usize) -> impl Iterator<Item = R> {
    let stride = size_of::<R>() / size_of::<u64>();
    let first = base / size_of::<u64>();
    (0..N).map(move |row| {
        let at = first + row * stride;
        R::read(words.get(at..at + stride).unwrap_or_default())
    })
}

/// A peak as it can have been. What was freed may be published later than what was allocated in its
/// place, so a peak of the levels may be above a limit that live bytes have never passed.
fn peak(of_levels: u64, limit_bytes: u64, live_bytes: u64) -> u64 {
    let most = match limit_bytes {
        0 => u64::MAX,
        limit => limit,
    };
    of_levels.min(most).max(live_bytes)
}

fn account(
    device: usize,
    row: &AccountRow<u64>,
    cells: &CellSum,
    counters: &mut CheckedCounters,
) -> TenantAccount {
    TenantAccount {
        device: device as u32,
        live_bytes: cells.live_bytes,
        peak_bytes: peak(
            counters.read(row.peak_bytes),
            row.limit_bytes,
            cells.live_bytes,
        ),
        // Negative only while a free is being read without its allocation.
        blocks: counters.read(cells.allocs.wrapping_sub(cells.frees)),
        allocated_bytes: cells.allocated_bytes,
        allocs: cells.allocs,
        frees: cells.frees,
        limit_bytes: Some(row.limit_bytes).filter(|limit| *limit != 0),
        governed_bytes: counters.read(row.governed_bytes),
    }
}

/// The sum of the counters of cells.
#[derive(Debug, Clone, Copy, Default)]
struct CellSum {
    live_bytes: u64,
    allocated_bytes: u64,
    allocs: u64,
    frees: u64,
}

impl CellSum {
    fn of(cell: &CellRow<u64>, counters: &mut CheckedCounters) -> CellSum {
        let freed_bytes = cell.freed_bytes.wrapping_add(cell.foreign_freed_bytes);
        let frees = cell.frees.wrapping_add(cell.foreign_frees);
        CellSum {
            live_bytes: counters.read(cell.allocated_bytes.wrapping_sub(freed_bytes)),
            allocated_bytes: counters.read(cell.allocated_bytes),
            allocs: counters.read(cell.allocs),
            frees: counters.read(frees),
        }
    }

    fn add(&mut self, other: &CellSum) {
        self.live_bytes = self.live_bytes.saturating_add(other.live_bytes);
        self.allocated_bytes = self.allocated_bytes.saturating_add(other.allocated_bytes);
        self.allocs = self.allocs.saturating_add(other.allocs);
        self.frees = self.frees.saturating_add(other.frees);
    }
}

/// The cells' counters, summed in each way.
#[derive(Debug)]
struct CellSums {
    /// By tenant and device.
    places: Vec<[CellSum; DEVICES]>,
    /// By device and number; shared cells, which have no stream, first.
    streams: BTreeMap<Option<(u64, u32)>, StreamSnapshot>,
    /// By number; shared cells, which have no thread, first.
    threads: BTreeMap<Option<u64>, ThreadSnapshot>,
}

impl CellSums {
    fn of(words: &[u64], counters: &mut CheckedCounters) -> CellSums {
        let mut sums = CellSums {
            places: vec![[CellSum::default(); DEVICES]; TENANTS],
            streams: BTreeMap::new(),
            threads: BTreeMap::new(),
        };
        let base = offset_of!(LedgerLayout<AtomicU64>, cells);
        for (place, cell) in rows::<CellRow<u64>, CELLS>(words, base).enumerate() {
            let sum = CellSum::of(&cell, counters);
            let (tenant, device, names) = if place < SHARED {
                (place / DEVICES, place % DEVICES, None)
            } else if cell.state == 0 {
                continue;
            } else {
                let key = AccountKey {
                    packed: cell.account_key,
                    stream: cell.stream,
                };
                counters.doubtful |= is_folding(cell.state);
                // Only a false key is out of range.
                counters.doubtful |= key.tenant() >= TENANTS || key.device() >= DEVICES;
                (key.tenant() % TENANTS, key.device() % DEVICES, Some(key))
            };
            sums.places[tenant][device].add(&sum);
            sums.name(names, device as u32, is_left(cell.state), &sum);
        }
        sums
    }

    /// Adds a cell to its stream and thread.
    fn name(&mut self, names: Option<AccountKey>, device: u32, left: bool, sum: &CellSum) {
        // Ended threads and charges without a cell are listed only while they have live bytes.
        if (left || names.is_none()) && sum.live_bytes == 0 {
            return;
        }
        let stream = self
            .streams
            .entry(names.map(|key| (key.stream, device)))
            .or_insert(StreamSnapshot {
                stream: names.map(|key| key.stream),
                device: names.map(|_| device),
                live_bytes: 0,
                allocs: 0,
            });
        stream.live_bytes = stream.live_bytes.saturating_add(sum.live_bytes);
        stream.allocs = stream.allocs.saturating_add(sum.allocs);
        let number = names.map(AccountKey::thread);
        let thread = self.threads.entry(number).or_insert(ThreadSnapshot {
            thread: number,
            live_bytes: 0,
            allocs: 0,
            ended: left,
        });
        thread.live_bytes = thread.live_bytes.saturating_add(sum.live_bytes);
        thread.allocs = thread.allocs.saturating_add(sum.allocs);
        thread.ended &= left;
    }
}

/// A device's figures, except the sums over its tenants' cells.
fn device(ordinal: usize, row: &DeviceRow<u64>, counters: &mut CheckedCounters) -> DeviceSnapshot {
    let governed = Governed::ALL
        .into_iter()
        .zip(row.governed_bytes)
        .map(|(kind, bytes)| GovernedBytes {
            kind,
            bytes: counters.read(bytes),
        })
        .filter(|part| part.bytes != 0)
        .collect();
    let event_counts = EventKind::ALL
        .into_iter()
        .zip(row.events)
        .filter(|(_, count)| *count != 0)
        .collect();
    DeviceSnapshot {
        device: ordinal as u32,
        live_bytes: 0,
        peak_bytes: counters.read(row.peak_bytes),
        pooled_bytes: counters.read(row.pooled_bytes),
        mapped_bytes: counters.read(row.mapped_bytes),
        ready_bytes: counters.read(row.ready_bytes),
        waiting_bytes: counters.read(row.waiting_bytes),
        limit_bytes: Some(row.limit_bytes).filter(|limit| *limit != 0),
        governed,
        ungoverned_bytes: counters.read(row.ungoverned_bytes),
        driver_total_bytes: row.driver_total_bytes,
        driver_free_bytes: row.driver_free_bytes,
        reconciled_at_ns: row.reconciled_at_ns,
        epoch: row.epoch,
        allocated_bytes: 0,
        allocs: 0,
        frees: 0,
        event_counts,
        runtimes: counters.read(row.runtimes),
        takes_requests: row.takes_requests == 1,
    }
}

/// A tenant's name; `None` if the row is free.
fn tenant_name(place: usize, row: &TenantRow<u64>) -> Option<String> {
    match (place, row.key, row.name_len) {
        (OTHERS, _, _) => Some("others".to_owned()),
        (_, 0, _) => None,
        // The row was taken a moment ago.
        (_, _, 0) => Some("unnamed".to_owned()),
        (_, _, len_bytes) => Some(name_from(&row.name, len_bytes)),
    }
}

fn events(collected: &RawLedger, names: &[Option<String>]) -> Vec<EventSnapshot> {
    let event = |(number, data): &(u64, [u64; EVENT_WORDS])| {
        let [at_ns, what, bytes, address, detail, stream, thread] = *data;
        let [kind, device, tenant, ..] = what.to_le_bytes();
        Some(EventSnapshot {
            number: *number,
            at_ns,
            kind: *EventKind::ALL.get(usize::from(kind))?,
            device: u32::from(device),
            tenant: names.get(usize::from(tenant))?.clone().unwrap_or_default(),
            bytes,
            address,
            detail,
            stream,
            thread,
        })
    };
    collected.events.events.iter().filter_map(event).collect()
}

/// Whether the process has ever used the device.
fn is_used(device: &DeviceSnapshot) -> bool {
    let DeviceSnapshot {
        peak_bytes,
        pooled_bytes,
        limit_bytes,
        ungoverned_bytes,
        driver_total_bytes,
        allocs,
        runtimes,
        ..
    } = device;
    [
        peak_bytes,
        pooled_bytes,
        ungoverned_bytes,
        driver_total_bytes,
        allocs,
        runtimes,
    ]
    .iter()
    .any(|figure| **figure != 0)
        || limit_bytes.is_some()
        || !device.governed.is_empty()
        || !device.event_counts.is_empty()
}

/// Whether the tenant has ever used the device.
fn is_open(account: &TenantAccount) -> bool {
    account.allocs != 0
        || account.live_bytes != 0
        || account.governed_bytes != 0
        || account.limit_bytes.is_some()
}
