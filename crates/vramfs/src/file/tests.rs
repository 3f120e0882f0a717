//! Random operations on files in host memory with injected failures, checked against a model.

mod corruption;
mod early_ack;
mod lending;
mod lost;
mod memory;
mod moving;
mod programs;
mod room;
mod several;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use fastrand::Rng;
use fercuda_trials as trials;
pub(crate) use fercuda_trials::seed;

use super::*;
use crate::engine::{BlockOutcome, BlockWork, Identity, RowLocation};
use crate::error::Error;
use crate::extents::Extent;
use crate::layout::{DATA_BYTES, DATA_ROWS, IDENTITY_WORDS, ROW_BYTES, ROWS};
use crate::medium::BlockAccess;
use corruption::Corruption;
pub(crate) use corruption::places;
pub(crate) use memory::{HostAccess, TestMemory, memory};

/// The expected content of a file.
#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
}

/// Programs over files, of 400 steps each.
const PROGRAMS: trials::Work = trials::Work {
    name: "vramfs-files",
    least: 20,
    ci_seconds: 10,
    soak: 2000,
};

/// Programs of tests that plan them ahead: 60, or what a soak asks for.
pub(crate) fn program_count() -> u64 {
    trials::Budget::begin(PROGRAMS).planned_steps().max(60)
}

/// Runs programs until the budget is spent, from each recorded seed and from a fresh one.
fn run_programs(mut program: impl FnMut(&mut Rng)) {
    for (name, seed) in trials::seeds(env!("CARGO_MANIFEST_DIR"), PROGRAMS) {
        println!("{name}: FERCUDA_SEED={seed}");
        let mut random = Rng::with_seed(seed);
        let (budget, mut done) = (trials::Budget::begin(PROGRAMS), 0);
        while budget.has_left(done) {
            program(&mut random);
            done += 1;
        }
    }
}

fn near_of(random: &mut Rng, longest: u64, size: usize) -> u64 {
    match random.u32(..3) {
        0 => random.u64(..longest),
        1 => random.u64(..longest / PAGE_BYTES as u64) * PAGE_BYTES as u64,
        _ => random.u64(..=size as u64),
    }
}

fn check(store: &Store<Arc<TestMemory>>, file: &File, model: &Model, from: u64, len: usize) {
    let mut seen = Vec::new();
    let mut at = from;
    while seen.len() < len {
        let part = store
            .read_file(file, at, len - seen.len(), <[u8]>::to_vec)
            .unwrap();
        if part.is_empty() {
            break;
        }
        at += part.len() as u64;
        seen.extend(part);
    }
    let end = model.bytes.len().min(from as usize + len);
    let expected = model.bytes.get(from as usize..end).unwrap_or(&[]);
    assert!(seen == expected, "bytes from {from} on, {len} of them");
}

fn read(store: &Store<Arc<TestMemory>>, file: &File, from: usize, len: usize) -> Vec<u8> {
    let mut seen = Vec::new();
    while seen.len() < len {
        let at = (from + seen.len()) as u64;
        let part = store.read_file(file, at, len - seen.len(), <[u8]>::to_vec);
        let part = part.unwrap();
        assert!(!part.is_empty());
        seen.extend(part);
    }
    seen
}

/// Updates the model after a failure: each byte from there on is unchanged or zero.
fn refresh(store: &Store<Arc<TestMemory>>, file: &File, model: &mut Model, from: usize) {
    if from < model.bytes.len() {
        let now = read(store, file, from, model.bytes.len() - from);
        for (byte, now) in model.bytes[from..].iter_mut().zip(now) {
            assert!(now == *byte || now == 0);
            *byte = now;
        }
    }
}

/// Checks that data covers all bytes that are not zero, and holes contain only zeros.
fn check_seeks(file: &File, model: &Model) {
    let size = model.bytes.len() as u64;
    let mut at = 0;
    while at < size {
        let data = match file.seek(at, Seek::Data) {
            Ok(data) => data,
            Err(error) => {
                assert_eq!(error, Errno::NXIO);
                size
            }
        };
        assert!((at..=size).contains(&data));
        assert!(
            model.bytes[at as usize..data as usize]
                .iter()
                .all(|it| *it == 0)
        );
        if data == size {
            break;
        }
        let hole = file.seek(data, Seek::Hole).unwrap();
        assert!(hole > data && hole <= size, "{hole} behind {data}");
        at = hole;
    }
    assert_eq!(file.seek(size, Seek::Data), Err(Errno::NXIO));
}

#[test]
fn out_of_range_offsets_are_rejected_before_any_allocation() {
    let (_, store) = memory(2);
    let file = File::default();
    assert_eq!(store.write_file(&file, 1, u64::MAX, b"x"), Err(Errno::FBIG));
    assert_eq!(store.write_file(&file, 1, SIZE_MAX, b"x"), Err(Errno::FBIG));
    assert_eq!(store.truncate(&file, SIZE_MAX + 1), Err(Errno::FBIG));
    assert_eq!(
        store.allocate(&file, 1, 0..SIZE_MAX + 1, false),
        Err(Errno::FBIG)
    );
    assert_eq!(
        store.allocate(&file, 1, 0..SIZE_MAX, false),
        Err(Errno::NOSPC)
    );
    assert_eq!(store.write_file(&file, 1, SIZE_MAX - 1, b"xy"), Ok(1));
    assert_eq!((file.size(), file.pages()), (SIZE_MAX, 1));
    assert_eq!(file.seek(0, Seek::Data), Ok(SIZE_MAX - PAGE_BYTES as u64));
    store.free(&file);
}

#[test]
fn concurrent_writers_of_one_block_and_readers_see_their_own_bytes() {
    // With space for all, and with so little that only gaps are left.
    for blocks in [40, 4] {
        let (_, store) = memory(blocks);
        write_and_read_beside_each_other(&store);
        assert_eq!(store.space().used_pages(), 0);
    }
}

fn write_and_read_beside_each_other(store: &Store<Arc<TestMemory>>) {
    std::thread::scope(|threads| {
        for inode in 1..5u32 {
            threads.spawn(move || {
                let mut random = Rng::new();
                let files: Vec<File> = (0..20).map(|_| File::default()).collect();
                let mut models = vec![Vec::new(); files.len()];
                for _ in 0..600 {
                    let which = random.usize(..files.len());
                    let (file, model) = (&files[which], &mut models[which]);
                    let (at, len) = (random.usize(..30_000), random.usize(1..9_000));
                    let byte = random.u8(1..);
                    let done = match store.write_file(file, inode, at as u64, &vec![byte; len]) {
                        Ok(done) => done,
                        Err(error) => {
                            assert_eq!(error, Errno::NOSPC);
                            store.free(file);
                            model.clear();
                            continue;
                        }
                    };
                    if model.len() < at + done {
                        model.resize(at + done, 0);
                    }
                    model[at..at + done].fill(byte);
                    let seen = store.read_file(file, 0, model.len(), <[u8]>::to_vec);
                    assert!(seen.unwrap() == *model);
                }
                files.iter().for_each(|file| assert!(store.free(file)));
            });
        }
    });
}

#[test]
fn bytes_of_a_failed_write_past_the_end_are_never_exposed() {
    const BOTH: u64 = 2 * DATA_BYTES as u64;
    type Grow = fn(&Store<Arc<TestMemory>>, &File);
    let grow: [(Grow, u64); 3] = [
        (|store, file| store.truncate(file, BOTH).unwrap(), 32),
        (
            |store, file| {
                assert_eq!(store.write_file(file, 1, BOTH - 1, &[0]), Ok(1));
            },
            32,
        ),
        (
            |store, file| store.allocate(file, 1, 0..BOTH, false).unwrap(),
            64,
        ),
    ];
    for (grow, pages) in grow {
        let (memory, store) = memory(4);
        let file = File::default();
        let second = DATA_BYTES as u64..BOTH;
        store.allocate(&file, 1, second, true).unwrap();
        // The first chunk's block cannot be formatted; the second's exists and is written all the
        // same.
        memory.formats_fail.store(true, Relaxed);
        let answer = store.write_file(&file, 1, 0, &[7; BOTH as usize]);
        memory.formats_fail.store(false, Relaxed);
        assert_eq!((answer, file.size()), (Err(Errno::IO), 0));
        grow(&store, &file);
        // The reserved pages stay reserved.
        assert_eq!((file.size(), file.pages()), (BOTH, pages));
        let seen = read(&store, &file, 0, BOTH as usize);
        assert!(seen.iter().all(|byte| *byte == 0));
        store.free(&file);
        assert_eq!(store.space().used_pages(), 0);
    }
}

#[test]
fn more_threads_than_accesses_wait_and_make_progress() {
    let (memory, _) = memory(8);
    let store = Store::new(memory, 8, 8, 1);
    let file = File::default();
    let begin = std::sync::Barrier::new(3);
    std::thread::scope(|threads| {
        for which in 0..3u64 {
            let (store, file, begin) = (&store, &file, &begin);
            threads.spawn(move || {
                begin.wait();
                for step in 0..20_000u64 {
                    let at = step * 997 % 90_000;
                    match which {
                        0 => store.truncate(file, at).unwrap(),
                        1 => {
                            assert_eq!(store.write_file(file, 1, at, &[1; 3000]), Ok(3000));
                        }
                        _ => {
                            store.read_file(file, at, 5000, |_| ()).unwrap();
                            store.punch(file, at..at + 5000).unwrap();
                        }
                    }
                }
            });
        }
    });
    store.free(&file);
}

#[test]
fn one_growing_file_can_fill_the_space() {
    let (_, store) = memory(3);
    let mut random = Rng::new();
    for _ in 0..20 {
        let file = File::default();
        let mut size = 0;
        let error = loop {
            let len = random.usize(1..9) * PAGE_BYTES;
            match store.write_file(&file, 1, size as u64, &vec![size as u8 | 1; len]) {
                Ok(done) => size += done,
                Err(error) => break error,
            }
        };
        assert_eq!((error, store.space().free_pages()), (Errno::NOSPC, 0));
        assert_eq!(size, 3 * DATA_BYTES);
        assert!(read(&store, &file, 0, size).iter().all(|byte| *byte != 0));
        store.free(&file);
    }
}

#[test]
fn truncated_or_punched_pages_are_freed_and_read_as_zeros() {
    let (_, store) = memory(1);
    let (file, other) = (File::default(), File::default());
    let page = PAGE_BYTES as u64;
    let all = vec![7; DATA_BYTES];
    let free = || store.space().free_pages();
    type Cut = fn(&Store<Arc<TestMemory>>, &File);
    // The range that is left, and the pages that hold it.
    let cuts: [(Cut, Range<u64>, u64); 5] = [
        (|store, file| store.truncate(file, 1).unwrap(), 0..1, 1),
        (
            |store, file| store.truncate(file, 5000).unwrap(),
            0..5000,
            2,
        ),
        (
            |store, file| store.punch(file, 4096..DATA_BYTES as u64).unwrap(),
            0..4096,
            1,
        ),
        (
            |store, file| store.punch(file, 0..DATA_BYTES as u64 - 8192).unwrap(),
            30 * page..32 * page,
            2,
        ),
        // Of an aligned part of four pages the middle is left, with some of the last: two separate
        // parts.
        (
            |store, file| {
                store.punch(file, 0..9 * 4096).unwrap();
                store.punch(file, 10 * 4096 + 7..DATA_BYTES as u64).unwrap();
            },
            9 * page..10 * page + 7,
            2,
        ),
    ];
    for (cut, left, pages) in cuts {
        assert_eq!(store.write_file(&file, 1, 0, &all), Ok(all.len()));
        assert_eq!(free(), 0);
        cut(&store, &file);
        assert_eq!((file.pages(), free()), (pages, 32 - pages));
        // Another file gets the rest, and none of its bytes are seen here.
        let begin = store.write_file(&other, 2, 0, &[9; 16 * PAGE_BYTES]);
        assert_eq!(begin, Ok(16 * PAGE_BYTES));
        store.free(&other);
        store.truncate(&file, DATA_BYTES as u64).unwrap();
        let far = match left.start {
            0 => DATA_BYTES as u64 - 1,
            _ => 0,
        };
        let merged = store.write_file(&file, 1, far, &[0]);
        assert_eq!((merged, file.pages() > pages), (Ok(1), true));
        let seen = read(&store, &file, 0, DATA_BYTES);
        for (at, byte) in seen.iter().enumerate() {
            assert_eq!(*byte == 7, left.contains(&(at as u64)), "{at}");
        }
        store.free(&file);
        assert_eq!(free(), 32);
    }
    // A truncation to the current size frees memory past the end.
    store.allocate(&file, 1, 0..all.len() as u64, true).unwrap();
    store.truncate(&file, 0).unwrap();
    assert_eq!((file.pages(), free()), (0, 32));
}

#[test]
fn a_failed_allocation_frees_its_pages() {
    let (memory, store) = memory(4);
    let (file, other) = (File::default(), File::default());
    let chunk = DATA_BYTES as u64;
    let two = vec![7; 2 * DATA_BYTES];
    assert_eq!(store.write_file(&file, 1, 0, &two), Ok(two.len()));
    let free = || (store.space().free_pages(), file.pages(), file.size());
    let before = (64, 64, 2 * chunk);
    assert_eq!(free(), before);
    // Pages that the file has elsewhere do not help.
    let answer = store.allocate(&file, 1, 16 * chunk..19 * chunk, false);
    assert_eq!((answer, free()), (Err(Errno::NOSPC), before));
    memory.formats_fail.store(true, Relaxed);
    let answer = store.allocate(&file, 1, 16 * chunk..18 * chunk, false);
    memory.formats_fail.store(false, Relaxed);
    assert_eq!((answer, free()), (Err(Errno::IO), before));
    assert_eq!(store.write_file(&other, 2, 0, b"x"), Ok(1));
    let end = 18 * chunk;
    let answer = store.allocate(&file, 1, 16 * chunk..end, false);
    assert_eq!((answer, free()), (Err(Errno::NOSPC), (63, 64, 2 * chunk)));
    // There are as many free pages as requested, but not contiguous.
    let end = end - PAGE_BYTES as u64;
    let answer = store.allocate(&file, 1, 16 * chunk..end, false);
    assert_eq!((answer, free()), (Ok(()), (0, 127, end)));
    assert_eq!(store.write_file(&file, 1, end, b"x"), Err(Errno::NOSPC));
    store.free(&other);
    assert_eq!(store.write_file(&file, 1, end, b"x"), Ok(1));
    assert!(read(&store, &file, 0, two.len()) == two);
    store.free(&file);
    assert_eq!(store.space().used_pages(), 0);
}

#[test]
fn reads_and_writes_do_not_wait_for_an_allocation_in_the_same_file() {
    const DEADLINE: Duration = Duration::from_secs(60);
    let (memory, store) = memory(8);
    let file = File::default();
    let chunk = DATA_BYTES as u64;
    assert_eq!(store.write_file(&file, 1, 0, b"text"), Ok(4));
    assert_eq!(store.write_file(&file, 1, 5 * chunk, b"text"), Ok(4));
    let gate = memory.gate.lock().unwrap();
    let begun = memory.at_gate.load(Relaxed);
    let (done, is_done) = mpsc::channel();
    std::thread::scope(|threads| {
        let maker = threads.spawn(|| store.allocate(&file, 1, 0..4 * chunk, false));
        let begin = Instant::now();
        while memory.at_gate.load(Relaxed) == begun && begin.elapsed() < DEADLINE {
            std::thread::yield_now();
        }
        let is_waiting = memory.at_gate.load(Relaxed) > begun;
        threads.spawn(|| {
            let seen = store.read_file(&file, 0, 4, <[u8]>::to_vec).unwrap();
            let written = store.write_file(&file, 1, 5 * chunk + 1, b"e").unwrap();
            done.send((seen, written)).unwrap();
        });
        let answer = is_done.recv_timeout(DEADLINE);
        drop(gate);
        assert_eq!((is_waiting, answer), (true, Ok((b"text".to_vec(), 1))));
        assert_eq!(maker.join().unwrap(), Ok(()));
    });
    assert_eq!(file.pages(), 4 * 32 + 1);
    // Bytes written while the range is being allocated are kept.
    let gate = memory.gate.lock().unwrap();
    let begun = memory.at_gate.load(Relaxed);
    std::thread::scope(|threads| {
        let maker = threads.spawn(|| store.allocate(&file, 1, 7 * chunk..9 * chunk, false));
        let begin = Instant::now();
        while memory.at_gate.load(Relaxed) == begun && begin.elapsed() < DEADLINE {
            std::thread::yield_now();
        }
        // A page of a block that is split already needs no format.
        let answer = store.write_file(&file, 1, 8 * chunk, b"mine");
        drop(gate);
        assert_eq!((answer, maker.join().unwrap()), (Ok(4), Ok(())));
    });
    assert_eq!(read(&store, &file, 8 * chunk as usize, 6), b"mine\0\0");
    assert_eq!(file.pages(), 6 * 32 + 1);
    store.free(&file);
    assert_eq!(store.space().used_pages(), 0);
}

#[test]
fn a_write_with_too_little_space_returns_a_short_count() {
    let (_, store) = memory(1);
    let page = vec![7; PAGE_BYTES];
    let small: Vec<File> = (0..32).map(|_| File::default()).collect();
    for file in &small {
        assert_eq!(store.write_file(file, 1, 0, &page), Ok(PAGE_BYTES));
    }
    // Three separate pages are free.
    for file in [&small[3], &small[4], &small[20]] {
        store.free(file);
    }
    let file = File::default();
    let bytes: Vec<u8> = (0..2 * DATA_BYTES).map(|at| at as u8 | 1).collect();
    for at in [0, PAGE_BYTES, 5000, DATA_BYTES - 5000] {
        let done = store.write_file(&file, 2, at as u64, &bytes[at..at + 4 * PAGE_BYTES]);
        let end = at / PAGE_BYTES * PAGE_BYTES + 3 * PAGE_BYTES;
        assert_eq!(done, Ok(end - at), "{at}");
        assert!(read(&store, &file, at, end - at) == bytes[at..end]);
        let none = store.write_file(&file, 2, end as u64, &bytes);
        assert_eq!((none, store.space().free_pages()), (Err(Errno::NOSPC), 0));
        store.free(&file);
    }
    small.iter().for_each(|file| assert!(store.free(file)));
    assert_eq!(store.space().used_pages(), 0);
}

#[test]
fn scattered_pages_take_no_more_than_their_own_space() {
    let (_, store) = memory(8);
    let file = File::default();
    let page = PAGE_BYTES as u64;
    // Two pages in each chunk: as many as the filesystem has.
    let place = |at: u64| (at / 2 * PAGES as u64 + at % 2 * 16) * page;
    for at in 0..8 * 32 {
        let byte = at as u8 | 1;
        let done = store.write_file(&file, 1, place(at), &[byte; PAGE_BYTES]);
        assert_eq!(done, Ok(PAGE_BYTES), "page {at}");
    }
    assert_eq!((file.pages(), store.space().free_pages()), (8 * 32, 0));
    assert_eq!(store.write_file(&file, 1, page, b"x"), Err(Errno::NOSPC));
    for at in 0..8 * 32 {
        let seen = read(&store, &file, place(at) as usize, PAGE_BYTES);
        assert!(seen.iter().all(|byte| *byte == at as u8 | 1), "page {at}");
    }
    store.free(&file);
    assert_eq!(store.space().used_pages(), 0);
}

#[test]
fn free_pages_between_other_files_are_usable() {
    let (_, store) = memory(8);
    let small: Vec<File> = (0..8 * 32).map(|_| File::default()).collect();
    for (at, file) in small.iter().enumerate() {
        let done = store.write_file(file, 1, 0, &[at as u8; PAGE_BYTES]);
        assert_eq!(done, Ok(PAGE_BYTES));
    }
    small
        .iter()
        .step_by(2)
        .for_each(|file| assert!(store.free(file)));
    assert_eq!(store.space().free_pages(), 4 * 32);
    let file = File::default();
    let bytes: Vec<u8> = (0..4 * DATA_BYTES).map(|at| (at / 3) as u8).collect();
    let (begin, rest) = bytes.split_at(2 * PAGE_BYTES);
    assert_eq!(store.write_file(&file, 2, 0, begin), Ok(begin.len()));
    let done = store.write_file(&file, 2, begin.len() as u64, rest);
    assert_eq!(done, Ok(rest.len()));
    assert_eq!(store.space().free_pages(), 0);
    assert!(read(&store, &file, 0, bytes.len()) == bytes);
    // The other files are unchanged; and the file can be written again completely.
    for (at, file) in small.iter().enumerate().skip(1).step_by(2) {
        assert_eq!(read(&store, file, 0, PAGE_BYTES), [at as u8; PAGE_BYTES]);
    }
    let again = vec![9; bytes.len()];
    assert_eq!(store.write_file(&file, 2, 0, &again), Ok(again.len()));
    assert!(read(&store, &file, 0, bytes.len()) == again);
    store.free(&file);
    small.iter().for_each(|file| assert!(store.free(file)));
    assert_eq!(store.space().used_pages(), 0);
}

/// The number of extents of each chunk.
fn extents(file: &File) -> Vec<usize> {
    let layout = file.layout_shared();
    let last = file.size().div_ceil(DATA_BYTES as u64) as u32;
    let all = (0..last).map(|chunk| layout.table.of(chunk).count());
    all.collect()
}

#[test]
fn dense_data_is_one_extent_and_takes_one_call() {
    let (memory, store) = memory(40);
    let page = [7; PAGE_BYTES];
    let (small, long) = (File::default(), File::default());
    for pages in 1..=PAGES {
        let end = store.write_file(&small, 1, small.size(), &page);
        assert_eq!(end, Ok(PAGE_BYTES));
        assert_eq!(small.pages(), (pages as u64).next_power_of_two());
        assert!(matches!(small.layout_shared().table, ExtentTable::First(_)));
    }
    let three = vec![8; 3 * DATA_BYTES];
    let calls = |work: &dyn Fn()| {
        let begin = memory.calls.load(Relaxed);
        work();
        memory.calls.load(Relaxed) - begin
    };
    let write = || assert_eq!(store.write_file(&long, 2, 0, &three), Ok(three.len()));
    assert_eq!((calls(&write), extents(&long)), (1, vec![1, 1, 1]));
    assert_eq!(calls(&write), 1);
    let look = || store.read_file(&long, 0, three.len(), |_| ()).unwrap();
    assert_eq!(calls(&look), 1);
    store.free(&long);
    // Page by page, also backwards, or in any order.
    let mut random = Rng::new();
    for chunk in 0..3 {
        let mut order: Vec<u64> = (0..PAGES as u64).collect();
        match chunk {
            0 => order.reverse(),
            1 => {}
            _ => random.shuffle(&mut order),
        }
        for at in order {
            let at = chunk * DATA_BYTES as u64 + at * PAGE_BYTES as u64;
            assert_eq!(store.write_file(&long, 2, at, &page), Ok(PAGE_BYTES));
        }
    }
    assert_eq!((extents(&long), long.pages()), (vec![1, 1, 1], 3 * 32));
    store.free(&small);
    store.free(&long);
    assert_eq!(store.space().used_pages(), 0);
}

#[test]
fn no_write_fails_while_enough_pages_are_free() {
    let (mut refused, mut crowded) = (0, 0);
    run_programs(|random| {
        let blocks = random.u32(1..5);
        let (_, store) = memory(blocks);
        let space = store.space();
        let mut all: Vec<(File, Vec<u8>)> = (0..50).map(|_| <_>::default()).collect();
        for step in 0..600 {
            let inode = random.usize(..all.len());
            let (file, model) = &mut all[inode];
            let longest = match random.u32(..4) {
                0 => 2 * DATA_BYTES,
                _ => 4 * PAGE_BYTES,
            };
            let at = match random.bool() {
                true => model.len().min(longest),
                false => random.usize(..longest),
            };
            let len = match random.u32(..8) {
                0 => random.usize(1..longest),
                1 => PAGE_BYTES,
                _ => random.usize(1..3 * PAGE_BYTES),
            };
            let page = PAGE_BYTES;
            let has = |at: &usize| {
                let at = (at * page) as u64;
                file.seek(at, Seek::Data)
                    .is_ok_and(|data| data < at + page as u64)
            };
            let missing = (at / page..(at + len).div_ceil(page)).filter(|at| !has(at));
            let (missing, free) = (missing.count() as u64, space.free_pages());
            match random.u32(..16) {
                0..=10 => {
                    let bytes: Vec<u8> = (0..len).map(|_| random.u8(1..)).collect();
                    let answer = store.write_file(file, inode as u32 + 1, at as u64, &bytes);
                    let done = answer.unwrap_or_else(|error| {
                        assert_eq!(error, Errno::NOSPC);
                        0
                    });
                    if done < len {
                        assert!(missing > free, "step {step}: {missing} of {free}");
                        assert_eq!(space.free_pages(), 0, "step {step}");
                        refused += 1;
                    }
                    if done > 0 {
                        model.resize(model.len().max(at + done), 0);
                        model[at..at + done].copy_from_slice(&bytes[..done]);
                    }
                }
                11 => {
                    let bytes = at as u64..(at + len) as u64;
                    match store.allocate(file, inode as u32 + 1, bytes, false) {
                        Ok(()) => model.resize(model.len().max(at + len), 0),
                        Err(error) => {
                            assert_eq!(error, Errno::NOSPC);
                            assert!(missing > free, "step {step}: {missing} of {free}");
                            assert_eq!(space.free_pages(), free, "step {step}");
                        }
                    }
                }
                12 => {
                    let bytes = at as u64..(at + len) as u64;
                    store.punch(file, bytes).unwrap();
                    let end = model.len().min(at + len);
                    model[at.min(end)..end].fill(0);
                }
                13 if random.bool() => {
                    store.truncate(file, at as u64).unwrap();
                    model.resize(at, 0);
                }
                _ => {
                    store.free(file);
                    model.clear();
                }
            }
            let (file, model) = &all[inode];
            assert!(read(&store, file, 0, model.len()) == *model, "step {step}");
            crowded += u64::from(extents(file).iter().any(|count| *count > 2));
            let used: u64 = all.iter().map(|it| it.0.pages()).sum();
            assert_eq!(space.used_pages(), used, "step {step}");
        }
        for (file, model) in &all {
            assert!(read(&store, file, 0, model.len()) == *model);
            store.free(file);
        }
        assert_eq!(space.used_pages(), 0);
    });
    // The space was full and fragmented, as intended.
    assert!(refused > 0 && crowded > 0, "{refused} {crowded}");
}

#[test]
fn a_caller_without_memory_for_an_access_gets_enomem_and_blocks_no_other() {
    let (memory, _) = memory(2);
    let store = Store::new(memory.clone(), 2, 2, 1);
    let file = File::default();
    for _ in 0..3 {
        memory.refuses_accesses.store(true, Relaxed);
        assert_eq!(store.write_file(&file, 1, 0, b"x"), Err(Errno::NOMEM));
    }
    // The only access that exists is available to the next caller.
    memory.refuses_accesses.store(false, Relaxed);
    assert_eq!(store.write_file(&file, 1, 0, b"x"), Ok(1));
    store.punch(&file, 1..u64::MAX).unwrap();
    assert_eq!((file.size(), file.pages()), (1, 1));
    store.free(&file);
}
