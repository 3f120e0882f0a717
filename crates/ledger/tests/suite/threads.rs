//! Many threads charging at random: sums are exact once they are done, and consistent or marked as
//! racing meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

use fercuda_ledger::{
    CELLS, CellId, DEVICES, EVENTS, EventKind, Gauge, Governed, Ledger, LedgerDevice, LedgerEvent,
    LedgerReader, LedgerSnapshot, SHARED, STEP_BYTES, TENANTS,
};

use crate::support::{Random, folder, live_bytes, open};

const WRITERS: u64 = 16;

/// The expected content of the ledger.
#[derive(Debug, Default, PartialEq, Eq)]
struct Model {
    by_tenant: BTreeMap<(u32, String), u64>,
    by_stream: BTreeMap<u64, u64>,
    by_thread: BTreeMap<u64, u64>,
    allocs: u64,
    frees: u64,
}

impl Model {
    fn of(snapshot: &LedgerSnapshot) -> Model {
        let mut model = Model {
            allocs: snapshot.devices.iter().map(|row| row.allocs).sum(),
            frees: snapshot.devices.iter().map(|row| row.frees).sum(),
            ..Model::default()
        };
        for tenant in &snapshot.tenants {
            for account in &tenant.accounts {
                let key = (account.device, tenant.name.clone());
                model.by_tenant.insert(key, account.live_bytes);
            }
        }
        for stream in &snapshot.streams {
            if let Some(number) = stream.stream {
                model.by_stream.insert(number, stream.live_bytes);
            }
        }
        for thread in &snapshot.threads {
            if let Some(number) = thread.thread {
                model.by_thread.insert(number, thread.live_bytes);
            }
        }
        model
    }

    fn without_zeros(mut self) -> Model {
        self.by_tenant.retain(|_, bytes| *bytes != 0);
        self.by_stream.retain(|_, bytes| *bytes != 0);
        self.by_thread.retain(|_, bytes| *bytes != 0);
        self
    }
}

/// One block: where it was charged, and its account by name.
struct Block {
    charge: CellId,
    bytes: u64,
    device: u32,
    tenant: String,
    stream: u64,
    thread: u64,
}

#[test]
fn sixteen_threads_that_charge_at_random_end_with_exact_sums() {
    let (_root, folder) = folder();
    let ledger = open(&folder);
    let mut random = Random::new();
    // Blocks wander: the thread that frees one is seldom the one that allocated it.
    let wandering: Mutex<Vec<Block>> = Mutex::default();
    let (allocs, frees) = (Mutex::new(0), Mutex::new(0));
    let begin = Barrier::new(WRITERS as usize);
    thread::scope(|scope| {
        for thread in 0..WRITERS {
            let mut random = random.split();
            let (ledger, wandering, begin) = (&ledger, &wandering, &begin);
            let (allocs, frees) = (&allocs, &frees);
            scope.spawn(move || {
                begin.wait();
                let (mut allocated, mut freed) = (0, 0);
                let mut local = ledger.local(thread);
                for _ in 0..20_000 {
                    if random.below(500) == 0 {
                        // Another handle with the same number: the old one's cells can be taken by
                        // any thread.
                        local = ledger.local(thread);
                    }
                    if random.below(5) < 3 {
                        let device = random.below(3) as u32;
                        // A stream belongs to one device.
                        let stream = random.below(40) * 3 + u64::from(device);
                        let tenant = format!("tenant {}", random.below(8));
                        let bytes = random.below(1 << 20);
                        let row = ledger.tenant(&tenant);
                        let charge = local.charge(LedgerDevice::new(device), row, stream, bytes);
                        wandering.lock().unwrap().push(Block {
                            charge,
                            bytes,
                            device,
                            tenant,
                            stream,
                            thread,
                        });
                        allocated += 1;
                    } else {
                        let mut blocks = wandering.lock().unwrap();
                        if blocks.is_empty() {
                            continue;
                        }
                        let place = random.below(blocks.len() as u64) as usize;
                        let block = blocks.swap_remove(place);
                        drop(blocks);
                        local.discharge(block.charge, block.bytes);
                        freed += 1;
                    }
                }
                *allocs.lock().unwrap() += allocated;
                *frees.lock().unwrap() += freed;
            });
        }
    });
    let blocks = wandering.into_inner().unwrap();
    let mut expected = Model {
        allocs: allocs.into_inner().unwrap(),
        frees: frees.into_inner().unwrap(),
        ..Model::default()
    };
    for block in &blocks {
        let tenant = (block.device, block.tenant.clone());
        *expected.by_tenant.entry(tenant).or_default() += block.bytes;
        *expected.by_stream.entry(block.stream).or_default() += block.bytes;
        *expected.by_thread.entry(block.thread).or_default() += block.bytes;
    }
    let expected = expected.without_zeros();

    // The same in this process's memory and in the file.
    let reader = LedgerReader::open(ledger.path().unwrap()).unwrap();
    for snapshot in [ledger.snapshot().unwrap(), reader.snapshot().unwrap()] {
        assert!(!snapshot.racing);
        assert_agrees(&Model::of(&snapshot).without_zeros(), &expected);
        let streams: u64 = snapshot.streams.iter().map(|row| row.live_bytes).sum();
        let threads: u64 = snapshot.threads.iter().map(|row| row.live_bytes).sum();
        assert_eq!(
            (streams, threads),
            (live_bytes(&snapshot), live_bytes(&snapshot))
        );
        for device in &snapshot.devices {
            let theirs = blocks.iter().filter(|block| block.device == device.device);
            let sum: u64 = theirs.map(|block| block.bytes).sum();
            assert_eq!(device.live_bytes, sum);
            assert!(device.peak_bytes >= sum);
        }
    }
    for block in &blocks {
        ledger.discharge(block.charge, block.bytes);
    }
    let empty = reader.snapshot().unwrap();
    assert_eq!(live_bytes(&empty), 0);
    assert!(!empty.racing);
    let blocks: u64 = empty
        .tenants
        .iter()
        .flat_map(|tenant| &tenant.accounts)
        .map(|account| account.blocks)
        .sum();
    assert_eq!(blocks, 0);
}

/// Devices and tenants account for every byte; streams and threads do too, except that charges
/// without a cell of their own have no number.
fn assert_agrees(found: &Model, expected: &Model) {
    assert_eq!(found.by_tenant, expected.by_tenant);
    assert_eq!(
        (found.allocs, found.frees),
        (expected.allocs, expected.frees)
    );
    for (found, expected) in [
        (&found.by_stream, &expected.by_stream),
        (&found.by_thread, &expected.by_thread),
    ] {
        for (number, bytes) in found {
            let most = expected.get(number).copied().unwrap_or(0);
            assert!(*bytes <= most, "{number}: {bytes} of {most}");
        }
    }
}

#[test]
fn a_snapshot_taken_while_threads_charge_adds_up_or_is_marked_as_racing() {
    let (_root, folder) = folder();
    let ledger = open(&folder);
    let reader = LedgerReader::open(ledger.path().unwrap()).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..3 {
            let (ledger, done) = (&ledger, &done);
            scope.spawn(move || {
                let device = LedgerDevice::new(0);
                let tenant = ledger.tenant(&format!("tenant {number}"));
                while !done.load(Ordering::Relaxed) {
                    let mut local = ledger.local(number);
                    let block = local.charge(device, tenant, number, 1 << 20);
                    ledger.govern(device, tenant, Governed::Array, 64);
                    ledger.release(device, tenant, Governed::Array, 64);
                    local.discharge(block, 1 << 20);
                }
            });
        }
        for _ in 0..200 {
            let snapshot = reader.snapshot().unwrap();
            if !snapshot.racing {
                let tenants: u64 = snapshot.tenants.iter().map(|row| row.live_bytes()).sum();
                let threads: u64 = snapshot.threads.iter().map(|row| row.live_bytes).sum();
                assert_eq!(tenants, live_bytes(&snapshot));
                assert_eq!(threads, live_bytes(&snapshot));
                for device in &snapshot.devices {
                    assert!(device.live_bytes <= 3 << 20, "{device:?}");
                }
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(!reader.snapshot().unwrap().racing);
}

#[test]
fn events_read_while_threads_write_them_are_whole() {
    let (_root, folder) = folder();
    let ledger = open(&folder);
    let reader = LedgerReader::open(ledger.path().unwrap()).unwrap();
    let event = |number: u64, thread: u64| LedgerEvent {
        kind: EventKind::Growth,
        device: LedgerDevice::new(thread as u32),
        tenant: Default::default(),
        bytes: number,
        address: number.wrapping_mul(3),
        detail: number.wrapping_mul(5),
        stream: number.wrapping_mul(7),
        thread,
    };
    let is_whole = |seen: &fercuda_ledger::EventSnapshot| {
        seen.kind == EventKind::Growth
            && u64::from(seen.device) == seen.thread
            && seen.address == seen.bytes.wrapping_mul(3)
            && seen.detail == seen.bytes.wrapping_mul(5)
            && seen.stream == seen.bytes.wrapping_mul(7)
    };
    const EACH: u64 = 5 * EVENTS as u64;
    thread::scope(|scope| {
        for writer in 0..4 {
            let ledger = &ledger;
            scope.spawn(move || {
                for number in 1..=EACH {
                    ledger.record(event(number, writer));
                }
            });
        }
        for _ in 0..50 {
            let snapshot = reader.snapshot().unwrap();
            assert!(snapshot.events.iter().all(is_whole));
            let numbers: Vec<u64> = snapshot.events.iter().map(|seen| seen.number).collect();
            assert!(numbers.is_sorted());
        }
    });
    let last = reader.snapshot().unwrap();
    assert_eq!(last.events_written, 4 * EACH);
    assert!(last.events.iter().all(is_whole));
    assert!(last.events.len() as u64 + last.events_dropped >= EVENTS as u64);
    // The counts are complete, whatever the ring dropped.
    let counted: u64 = last
        .devices
        .iter()
        .map(|device| device.event_counts[&EventKind::Growth])
        .sum();
    assert_eq!(counted, 4 * EACH);
}

#[test]
fn charges_without_a_row_or_cell_go_to_the_others_and_no_byte_is_lost() {
    let ledger = Ledger::in_memory();
    let device = |number: u64| LedgerDevice::new(number as u32 % 20);
    let mut locals = Vec::new();
    let mut charges = Vec::new();
    const THREADS: u64 = 5000;
    for number in 0..THREADS {
        let tenant = ledger.tenant(&format!("tenant {number}"));
        let mut local = ledger.local(number);
        charges.push(local.charge(device(number), tenant, number, number));
        locals.push(local);
    }
    let snapshot = ledger.snapshot().unwrap();
    assert!(!snapshot.racing);
    assert_eq!(live_bytes(&snapshot), (0..THREADS).sum::<u64>());
    assert_eq!(snapshot.devices.len(), DEVICES);
    assert_eq!(snapshot.tenants.len(), TENANTS);
    assert_eq!(snapshot.tenants[0].name, "others");
    let others: u64 = (TENANTS as u64 - 1..THREADS).sum();
    assert_eq!(snapshot.tenants[0].live_bytes(), others);
    // Most cells are taken; the remaining charges have no number, and none is missing.
    for (numbers, bytes) in [
        (
            snapshot
                .streams
                .iter()
                .map(|row| row.stream)
                .collect::<Vec<_>>(),
            snapshot
                .streams
                .iter()
                .map(|row| row.live_bytes)
                .sum::<u64>(),
        ),
        (
            snapshot.threads.iter().map(|row| row.thread).collect(),
            snapshot.threads.iter().map(|row| row.live_bytes).sum(),
        ),
    ] {
        assert_eq!(numbers[0], None);
        assert!(
            numbers.len() > (CELLS - SHARED) * 9 / 10,
            "{}",
            numbers.len()
        );
        assert_eq!(bytes, (0..THREADS).sum::<u64>());
    }
    // Half are freed by their own thread, half by another.
    let mut other = ledger.local(THREADS);
    for ((number, charge), local) in (0..).zip(charges).zip(&mut locals) {
        let by = if number % 2 == 0 { &mut other } else { local };
        by.discharge(charge, number);
    }
    let snapshot = ledger.snapshot().unwrap();
    assert_eq!(live_bytes(&snapshot), 0);
    assert!(!snapshot.racing);
    let frees: u64 = snapshot.devices.iter().map(|row| row.frees).sum();
    assert_eq!(frees, THREADS);
}

#[test]
fn cells_of_ten_thousand_threads_that_come_and_go_are_used_again() {
    let ledger = Ledger::in_memory();
    let device = LedgerDevice::new(0);
    let tenant = ledger.tenant("storm");
    let mut kept = Vec::new();
    for number in 0..10_000_u64 {
        let mut local = ledger.local(number);
        let charge = local.charge(device, tenant, number, 3);
        if number % 100 == 0 {
            kept.push((number, charge));
        } else {
            local.discharge(charge, 3);
        }
    }
    let snapshot = ledger.snapshot().unwrap();
    // Live bytes stay with the threads that allocated them, although they ended.
    let numbers: Vec<u64> = kept.iter().map(|(number, _)| *number).collect();
    let threads = &snapshot.threads;
    assert!(
        threads
            .iter()
            .all(|row| row.ended && row.live_bytes == 3 && row.allocs == 1)
    );
    let found: Vec<u64> = threads.iter().filter_map(|row| row.thread).collect();
    assert_eq!(found, numbers);
    let streams = snapshot.streams.iter();
    let found: Vec<u64> = streams.filter_map(|row| row.stream).collect();
    assert_eq!(found, numbers);
    for (_, charge) in kept {
        ledger.discharge(charge, 3);
    }
    let snapshot = ledger.snapshot().unwrap();
    assert!(snapshot.streams.is_empty() && snapshot.threads.is_empty());
    assert!(!snapshot.racing);
    // Nothing that cells counted before they were reused is lost.
    let device = &snapshot.devices[0];
    assert_eq!((device.allocs, device.frees), (10_000, 10_000));
    assert_eq!(device.live_bytes, 0);
}

#[test]
fn a_thread_that_creates_many_streams_reuses_its_cells() {
    let ledger = Ledger::in_memory();
    let device = LedgerDevice::new(0);
    let tenant = ledger.tenant("torch");
    let mut local = ledger.local(1);
    for stream in 0..20_000 {
        let charge = local.charge(device, tenant, stream, 100);
        local.discharge(charge, 100);
    }
    let last = local.charge(device, tenant, 20_000, 100);
    let snapshot = ledger.snapshot().unwrap();
    // If all cells were in use, the last would be charged to no stream.
    let mine = snapshot.streams.iter().find(|row| row.live_bytes > 0);
    assert_eq!(mine.unwrap().stream, Some(20_000));
    assert_eq!(snapshot.devices[0].allocs, 20_001);
    local.discharge(last, 100);
}

/// A thread's frees are published in steps; another allocates in their place meanwhile.
#[test]
fn no_peak_is_above_a_limit_that_was_never_passed() {
    let ledger = Ledger::in_memory();
    let (device, limit) = (LedgerDevice::new(0), 1 << 20);
    let tenant = ledger.tenant("limited");
    ledger.set_tenant_limit(device, tenant, limit);
    ledger.set(device, Gauge::Limit, limit);
    let (mut first, mut second) = (ledger.local(1), ledger.local(2));
    let all = first.charge(device, tenant, 1, limit - 200_000);
    let some = first.charge(device, tenant, 1, 200_000);
    first.discharge(some, 200_000);
    let other = second.charge(device, tenant, 2, 199_000);
    second.discharge(other, 199_000);
    first.discharge(all, limit - 200_000);
    let other = second.charge(device, tenant, 2, limit);
    let snapshot = ledger.snapshot().unwrap();
    assert_eq!(snapshot.tenants[0].accounts[0].peak_bytes, limit);
    assert_eq!(snapshot.devices[0].peak_bytes, limit);
    // A limit that was lowered later hides nothing that is live.
    ledger.set_tenant_limit(device, tenant, 1000);
    let snapshot = ledger.snapshot().unwrap();
    assert_eq!(snapshot.tenants[0].accounts[0].peak_bytes, limit);
    second.discharge(other, limit);
}

#[test]
fn peaks_are_exact_up_to_one_step_per_thread() {
    let ledger = Ledger::in_memory();
    let device = LedgerDevice::new(0);
    let (torch, jax) = (ledger.tenant("torch"), ledger.tenant("jax"));
    let mut local = ledger.local(1);
    let first = local.charge(device, torch, 1, 100 << 20);
    local.charge(device, jax, 1, 50 << 20);
    local.discharge(first, 100 << 20);
    local.charge(device, jax, 1, 30 << 20);
    let snapshot = ledger.snapshot().unwrap();
    assert_eq!(snapshot.devices[0].live_bytes, 80 << 20);
    assert_eq!(snapshot.devices[0].peak_bytes, 150 << 20);
    let peak = |tenant: &fercuda_ledger::TenantSnapshot| tenant.accounts[0].peak_bytes;
    assert_eq!(peak(&snapshot.tenants[0]), 100 << 20);
    assert_eq!(peak(&snapshot.tenants[1]), 80 << 20);

    // Small changes are published in steps: less than one step is missing.
    let small = Ledger::in_memory();
    let mut local = small.local(1);
    let blocks: Vec<CellId> = (0..1000)
        .map(|_| local.charge(device, torch, 1, 1000))
        .collect();
    let live = small.snapshot().unwrap();
    assert_eq!(live.devices[0].peak_bytes, 1_000_000);
    for block in blocks {
        local.discharge(block, 1000);
    }
    let peak_bytes = small.snapshot().unwrap().devices[0].peak_bytes;
    assert!(
        peak_bytes <= 1_000_000 && peak_bytes > 1_000_000 - STEP_BYTES,
        "{peak_bytes}"
    );
}

#[test]
fn a_cell_counts_nothing_before_the_allocation_is_made() {
    let ledger = Ledger::in_memory();
    let (device, torch) = (LedgerDevice::new(0), ledger.tenant("torch"));
    let mut local = ledger.local(1);
    let (own, shared) = (local.cell(device, torch, 7), ledger.cell(device, torch));
    assert!(ledger.snapshot().unwrap().devices.is_empty());
    local.count(own, 3 << 20);
    // Through a `ThreadLedger` too, as for a thread that found no cell.
    ledger.count(shared, 1 << 20);
    local.count(shared, 1 << 20);
    let snapshot = ledger.snapshot().unwrap();
    let row = &snapshot.devices[0];
    assert_eq!((row.allocs, row.live_bytes), (3, 5 << 20));
    assert_eq!(row.peak_bytes, 5 << 20);
    let mut streams = snapshot.streams.iter();
    let seventh = streams.find(|row| row.stream == Some(7)).unwrap();
    assert_eq!(seventh.live_bytes, 3 << 20);
}

#[test]
fn a_free_without_its_allocation_reads_as_nothing_and_is_marked() {
    let ledger = Ledger::in_memory();
    let torch = ledger.tenant("torch");
    let charge = ledger.charge(LedgerDevice::new(0), torch, 100);
    ledger.discharge(charge, 101);
    let snapshot = ledger.snapshot().unwrap();
    assert!(snapshot.racing);
    assert_eq!(live_bytes(&snapshot), 0);
}
