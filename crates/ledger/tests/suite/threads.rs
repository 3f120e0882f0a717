//! Many threads charging at random: sums are exact once they are done, and
//! consistent or marked while they are at it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use fercuda_ledger::{
    Charge, DEVICES, Device, EVENTS, Event, EventKind, Governed, Ledger, Reader, STREAMS, Snapshot,
    TENANTS, THREADS,
};

use crate::support::{Random, folder, live_bytes, open, rows};

const WRITERS: u64 = 16;

/// What should be in the ledger.
#[derive(Debug, Default, PartialEq, Eq)]
struct Model {
    by_tenant: BTreeMap<(u32, String), u64>,
    by_stream: BTreeMap<u64, u64>,
    by_thread: BTreeMap<u64, u64>,
    allocs: u64,
    frees: u64,
}

impl Model {
    fn of(snapshot: &Snapshot) -> Model {
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

/// One block: whom it is charged to, by row and by name.
struct Block {
    charge: Charge,
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
    // Blocks wander: who frees one is seldom who allocated it.
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
                for _ in 0..20_000 {
                    if random.below(5) < 3 {
                        let device = random.below(3) as u32;
                        // A stream is of one device.
                        let stream = random.below(40) * 3 + u64::from(device);
                        let tenant = format!("tenant {}", random.below(8));
                        let block = Block {
                            charge: Charge {
                                device: Device::new(device),
                                tenant: ledger.tenant(&tenant),
                                stream: ledger.stream(Device::new(device), stream),
                                thread: ledger.thread(thread),
                            },
                            bytes: random.below(1 << 20),
                            device,
                            tenant,
                            stream,
                            thread,
                        };
                        ledger.charge(block.charge, block.bytes);
                        wandering.lock().unwrap().push(block);
                        allocated += 1;
                    } else {
                        let mut blocks = wandering.lock().unwrap();
                        if blocks.is_empty() {
                            continue;
                        }
                        let place = random.below(blocks.len() as u64) as usize;
                        let block = blocks.swap_remove(place);
                        drop(blocks);
                        ledger.discharge(block.charge, block.bytes);
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

    // The same in this memory and in the file.
    let reader = Reader::open(ledger.path().unwrap()).unwrap();
    for snapshot in [ledger.snapshot().unwrap(), reader.snapshot().unwrap()] {
        assert!(!snapshot.racing);
        assert_eq!(Model::of(&snapshot).without_zeros(), expected);
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

#[test]
fn a_snapshot_taken_while_threads_charge_adds_up_or_says_that_it_races() {
    let (_root, folder) = folder();
    let ledger = open(&folder);
    let reader = Reader::open(ledger.path().unwrap()).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..3 {
            let (ledger, done) = (&ledger, &done);
            scope.spawn(move || {
                let charge = rows(ledger, &format!("tenant {number}"));
                while !done.load(Ordering::Relaxed) {
                    ledger.charge(charge, 1 << 20);
                    ledger.govern(charge.device, charge.tenant, Governed::Array, 64);
                    ledger.release(charge.device, charge.tenant, Governed::Array, 64);
                    ledger.discharge(charge, 1 << 20);
                    if number == 0 {
                        // Pauses long enough for a reading to settle.
                        thread::yield_now();
                    }
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
            }
            for device in &snapshot.devices {
                assert!(device.live_bytes <= 3 << 20, "{device:?}");
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
    let reader = Reader::open(ledger.path().unwrap()).unwrap();
    let event = |number: u64, thread: u64| Event {
        kind: EventKind::Growth,
        device: Device::new(thread as u32),
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
    // The counts miss nothing, whatever the ring dropped.
    let counted: u64 = last
        .devices
        .iter()
        .map(|device| device.event_counts[&EventKind::Growth])
        .sum();
    assert_eq!(counted, 4 * EACH);
}

#[test]
fn who_finds_no_row_is_charged_to_the_others_and_no_byte_is_lost() {
    let ledger = Ledger::in_memory();
    let mut charges = Vec::new();
    for number in 0..2000_u64 {
        let device = Device::new(number as u32 % 20);
        let charge = Charge {
            device,
            tenant: ledger.tenant(&format!("tenant {number}")),
            stream: ledger.stream(device, number),
            thread: ledger.thread(number),
        };
        ledger.charge(charge, number);
        charges.push(charge);
    }
    let snapshot = ledger.snapshot().unwrap();
    let expected: u64 = (0..2000).sum();
    assert!(!snapshot.racing);
    assert_eq!(live_bytes(&snapshot), expected);
    assert_eq!(snapshot.devices.len(), DEVICES);
    assert_eq!(snapshot.tenants.len(), TENANTS);
    assert_eq!(snapshot.streams.len(), STREAMS);
    assert_eq!(snapshot.threads.len(), THREADS);
    assert_eq!(snapshot.tenants[0].name, "others");
    let others: u64 = (TENANTS as u64 - 1..2000).sum();
    assert_eq!(snapshot.tenants[0].live_bytes(), others);
    assert_eq!(snapshot.streams[0].stream, None);
    assert_eq!(snapshot.threads[0].thread, None);
    assert_eq!(snapshot.threads[0].allocs, 2000 - (THREADS as u64 - 1));
    for (number, charge) in (0..).zip(charges) {
        ledger.discharge(charge, number);
    }
    assert_eq!(live_bytes(&ledger.snapshot().unwrap()), 0);
}

#[test]
fn rows_of_ten_thousand_threads_that_come_and_go_are_used_again() {
    let ledger = Arc::new(Ledger::in_memory());
    let device = Device::new(0);
    let tenant = ledger.tenant("storm");
    let mut kept = Vec::new();
    for number in 0..10_000_u64 {
        let charge = Charge {
            device,
            tenant,
            stream: ledger.stream(device, number),
            thread: ledger.thread(number),
        };
        ledger.charge(charge, 3);
        if number % 100 == 0 {
            kept.push((number, charge));
        } else {
            ledger.discharge(charge, 3);
        }
        ledger.end_stream(charge.stream);
        ledger.end_thread(charge.thread);
    }
    let snapshot = ledger.snapshot().unwrap();
    // What is live is still with those who allocated it, although they ended.
    let numbers: Vec<u64> = kept.iter().map(|(number, _)| *number).collect();
    let threads = &snapshot.threads;
    assert!(
        threads
            .iter()
            .all(|row| row.ended && row.live_bytes == 3 && row.allocs == 1)
    );
    let found: Vec<u64> = threads.iter().filter_map(|row| row.thread).collect();
    assert_eq!(found, numbers);
    let found: Vec<u64> = snapshot
        .streams
        .iter()
        .filter_map(|row| row.stream)
        .collect();
    assert_eq!(found, numbers);
    for (_, charge) in kept {
        ledger.discharge(charge, 3);
    }
    let snapshot = ledger.snapshot().unwrap();
    assert!(snapshot.streams.is_empty() && snapshot.threads.is_empty());
    assert!(!snapshot.racing);
}

#[test]
fn peaks_are_the_most_that_was_live() {
    let ledger = Ledger::in_memory();
    let (torch, jax) = (rows(&ledger, "torch"), rows(&ledger, "jax"));
    ledger.charge(torch, 100);
    ledger.charge(jax, 50);
    ledger.discharge(torch, 100);
    ledger.charge(jax, 30);
    let snapshot = ledger.snapshot().unwrap();
    assert_eq!(snapshot.devices[0].live_bytes, 80);
    assert_eq!(snapshot.devices[0].peak_bytes, 150);
    let peaks: Vec<(&str, u64)> = snapshot
        .tenants
        .iter()
        .map(|tenant| (tenant.name.as_str(), tenant.accounts[0].peak_bytes))
        .collect();
    assert_eq!(peaks, [("torch", 100), ("jax", 80)]);
}

#[test]
fn a_free_without_its_allocation_reads_as_nothing_and_is_marked() {
    let ledger = Ledger::in_memory();
    let torch = rows(&ledger, "torch");
    ledger.charge(torch, 100);
    ledger.discharge(torch, 101);
    let snapshot = ledger.snapshot().unwrap();
    assert!(snapshot.racing);
    assert_eq!(live_bytes(&snapshot), 0);
}
