//! Copies and moves within the memory, checked against a model.

use super::*;

/// The offsets where data and holes begin.
fn places(file: &File) -> Vec<u64> {
    let mut all = Vec::new();
    let mut at = 0;
    while let Ok(data) = file.seek(at, Seek::Data) {
        at = file.seek(data, Seek::Hole).unwrap();
        all.extend([data, at]);
    }
    all
}

#[test]
fn a_copy_has_the_same_bytes_and_holes() {
    let (_, store) = memory(40);
    let mut random = Rng::new();
    for _ in 0..40 {
        let (source, target) = (File::default(), File::default());
        let mut model = vec![0; random.usize(1..DATA_BYTES * 4)];
        store.truncate(&source, model.len() as u64).unwrap();
        for _ in 0..random.usize(..6) {
            let at = random.usize(..model.len());
            let end = model.len().min(at + random.usize(1..40_000));
            let byte = random.u8(1..);
            model[at..end].fill(byte);
            let done = store.write_file(&source, 1, at as u64, &model[at..end]);
            assert_eq!(done, Ok(end - at));
        }
        let mut copied = vec![9; random.usize(1..DATA_BYTES * 4)];
        let done = store.write_file(&target, 2, 0, &copied);
        assert_eq!(done, Ok(copied.len()));
        let (from, to) = (random.usize(..model.len()), random.usize(..copied.len()));
        let len = random.usize(..model.len());
        let done = store.copy((&source, from as u64), (&target, 2, to as u64), len as u64);
        let expected = len.min(model.len() - from);
        assert_eq!(done, Ok(expected as u64));
        copied.resize(copied.len().max(to + expected), 0);
        copied[to..to + expected].copy_from_slice(&model[from..from + expected]);
        assert_eq!(target.size(), copied.len() as u64);
        assert!(read(&store, &target, 0, copied.len()) == copied);
        store.free(&target);
        let whole = model.len() as u64;
        assert_eq!(store.copy((&source, 0), (&target, 2, 0), whole), Ok(whole));
        assert_eq!(places(&target), places(&source));
        store.free(&source);
        store.free(&target);
    }
}

#[test]
fn whole_rows_are_copied_without_the_host() {
    let (memory, store) = memory(40);
    let (source, target) = (File::default(), File::default());
    let bytes: Vec<u8> = (0..3 * DATA_BYTES + 300).map(|at| (at / 5) as u8).collect();
    assert_eq!(store.write_file(&source, 1, 0, &bytes), Ok(bytes.len()));
    let rows = || [&memory.staged_rows, &memory.moved_rows].map(|it| it.swap(0, Relaxed));
    let copy = |file: &File, from: usize, to: usize, len: usize| {
        let done = store.copy((&source, from as u64), (file, 2, to as u64), len as u64);
        assert_eq!(done, Ok(len as u64));
    };
    rows();
    // Chunks to chunks, new and existing; and a different offset in a page but the same in a row.
    let all = 3 * (DATA_BYTES / ROW_BYTES) as u32;
    for _ in 0..2 {
        copy(&target, 0, 0, 3 * DATA_BYTES);
        assert_eq!(rows(), [0, all]);
    }
    assert!(read(&store, &target, 0, 3 * DATA_BYTES) == bytes[..3 * DATA_BYTES]);
    rows();
    copy(&target, 5 * ROW_BYTES, 2 * ROW_BYTES, DATA_BYTES);
    assert_eq!(rows(), [0, all / 3]);
    // The file's end lies within a row: those bytes go through the host.
    copy(&target, DATA_BYTES, 3 * DATA_BYTES, 2 * DATA_BYTES + 300);
    let [staged, moved] = rows();
    assert_eq!(moved, all / 3 * 2);
    assert_eq!(staged, 5);
    // Within the same file.
    copy(&source, 0, 4 * DATA_BYTES, DATA_BYTES);
    copy(&source, 0, 4 * DATA_BYTES + DATA_BYTES / 2, 1 << 10);
    assert_eq!(rows(), [0, all / 3 + 1]);
    let seen = read(&store, &target, 2 * ROW_BYTES, DATA_BYTES);
    assert!(seen == bytes[5 * ROW_BYTES..][..DATA_BYTES]);
    let seen = read(&store, &target, 3 * DATA_BYTES, 2 * DATA_BYTES + 300);
    assert!(seen == bytes[DATA_BYTES..]);
    let seen = read(&store, &source, 4 * DATA_BYTES, DATA_BYTES);
    let (first, second) = seen.split_at(DATA_BYTES / 2);
    assert!(*first == bytes[..first.len()] && second[..1024] == bytes[..1024]);
    assert!(second[1024..] == bytes[first.len() + 1024..DATA_BYTES]);
    rows();
    // A different offset in a row: the bytes have to go through the host.
    copy(&target, 1, 0, 1 << 10);
    assert!(rows()[0] > 0);
    store.free(&source);
    store.free(&target);
    assert_eq!(store.space().used_pages(), 0);
}

#[test]
fn corrupt_rows_are_copied_through_the_host() {
    let (memory, store) = memory(8);
    let bytes: Vec<u8> = (0..2 * DATA_BYTES).map(|at| (at / 3) as u8).collect();
    for wrong in [&memory.corrupt_at_verify, &memory.corrupt_at_copy] {
        let (source, target) = (File::default(), File::default());
        assert_eq!(store.write_file(&source, 1, 0, &bytes), Ok(bytes.len()));
        let second = source
            .layout_shared()
            .table
            .of(1)
            .next()
            .unwrap()
            .run()
            .block;
        wrong.store(second, Relaxed);
        for _ in 0..2 {
            let staged = memory.staged_rows.load(Relaxed);
            let done = store.copy((&source, 0), (&target, 2, 0), bytes.len() as u64);
            assert_eq!(done, Ok(bytes.len() as u64));
            assert!(memory.staged_rows.load(Relaxed) > staged);
            assert!(read(&store, &target, 0, bytes.len()) == bytes);
        }
        wrong.store(u32::MAX, Relaxed);
        store.free(&source);
        store.free(&target);
        assert_eq!(store.space().used_pages(), 0);
    }
}

#[test]
fn a_truncated_source_ends_its_copy() {
    const DEADLINE: Duration = Duration::from_secs(60);
    let (memory, store) = memory(40);
    let (source, target) = (File::default(), File::default());
    let (all, left) = (12 * DATA_BYTES as u64, 8 * DATA_BYTES as u64);
    let bytes = vec![7; all as usize];
    assert_eq!(store.write_file(&source, 1, 0, &bytes), Ok(bytes.len()));
    let gate = memory.gate.lock().unwrap();
    let begun = memory.at_gate.load(Relaxed);
    let wait = |is_there: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !is_there() && begin.elapsed() < DEADLINE {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|threads| {
        let copy = threads.spawn(|| store.copy((&source, 0), (&target, 2, 0), all));
        wait(&|| memory.at_gate.load(Relaxed) > begun);
        // The source is truncated as soon as the part that is being copied is done.
        let cut = threads.spawn(|| store.truncate(&source, left));
        wait(&|| source.layout.try_read().is_err());
        drop(gate);
        let copied = copy.join().unwrap().unwrap();
        assert_eq!(cut.join().unwrap(), Ok(()));
        assert!(copied == left || copied == all, "{copied}");
        assert_eq!(target.size(), copied);
        let seen = read(&store, &target, 0, copied as usize);
        assert!(seen.iter().all(|byte| *byte == 7));
    });
    store.free(&source);
    store.free(&target);
    assert_eq!(store.space().used_pages(), 0);
}

#[test]
fn opposite_copies_between_two_files_do_not_deadlock() {
    let (_, store) = memory(20);
    let files = [File::default(), File::default()];
    // Each page is filled with one byte, whichever thread wrote it.
    let page = |byte| [byte; PAGE_BYTES];
    for file in &files {
        let bytes = vec![7; 3 * DATA_BYTES];
        assert_eq!(store.write_file(file, 1, 0, &bytes), Ok(bytes.len()));
    }
    std::thread::scope(|threads| {
        for which in 0..3u8 {
            let (store, files, page) = (&store, &files, &page);
            threads.spawn(move || {
                let mut random = Rng::new();
                for _ in 0..4000 {
                    let place = |random: &mut Rng| random.u64(..3 * PAGES as u64) * 4096;
                    let (from, to) = (place(&mut random), place(&mut random));
                    let (source, target) = match which {
                        2 => (&files[0], &files[0]),
                        _ => (&files[usize::from(which)], &files[usize::from(1 - which)]),
                    };
                    let far = match which {
                        2 => from.abs_diff(to),
                        _ => random.u64(1..40) * 4096,
                    };
                    store.copy((source, from), (target, 1, to), far).unwrap();
                    let at = place(&mut random);
                    let bytes = page(random.u8(1..));
                    let written = store.write_file(target, 1, at, &bytes);
                    assert_eq!(written, Ok(PAGE_BYTES));
                }
            });
        }
    });
    for file in &files {
        for bytes in read(&store, file, 0, file.size() as usize).chunks(PAGE_BYTES) {
            assert!(bytes[0] != 0 && bytes.iter().all(|byte| *byte == bytes[0]));
        }
        store.free(file);
    }
    assert_eq!(store.space().used_pages(), 0);
}

/// Retires blocks from `first` on, moves all files out of them and frees them.
fn shrink(store: &Store<Arc<TestMemory>>, files: &[&File], first: u32) -> u64 {
    let space = store.space();
    space.retire(first..store.blocks());
    let mut moved = 0;
    while space.count_undrained(first..store.blocks()) > 0 {
        for (inode, file) in files.iter().enumerate() {
            match store.evacuate(file, inode as u32 + 1, first) {
                Ok(pages) => moved += pages,
                // A thread holds both the old and the new runs for a moment.
                Err(error) => assert_eq!(error, Errno::NOSPC),
            }
        }
    }
    store.extent_alone().capacity = first;
    assert_eq!(store.trim(), 0);
    moved
}

fn grow(store: &Store<Arc<TestMemory>>) {
    store.resize(u64::from(store.blocks())).unwrap();
}

#[test]
fn evacuated_files_are_unchanged() {
    let mut random = Rng::with_seed(seed());
    let (mut in_vain, mut divided) = (0, 0);
    for _ in 0..program_count() {
        let blocks = random.u32(4..12);
        let (memory, store) = memory(blocks);
        let space = store.space();
        let mut all: Vec<(File, Vec<u8>)> = (0..30).map(|_| <_>::default()).collect();
        for _ in 0..6 {
            for _ in 0..random.u32(..80) {
                let inode = random.usize(..all.len());
                let (file, model) = &mut all[inode];
                let at = random.usize(..40_000);
                let len = match random.u32(..4) {
                    0 => random.usize(1..2 * DATA_BYTES),
                    _ => random.usize(1..9_000),
                };
                match random.u32(..8) {
                    0 => {
                        store.free(file);
                        model.clear();
                    }
                    1 => {
                        store.truncate(file, at as u64).unwrap();
                        model.resize(at, 0);
                    }
                    _ => {
                        let byte = random.u8(1..);
                        let bytes = vec![byte; len];
                        let done = store.write_file(file, inode as u32 + 1, at as u64, &bytes);
                        let done = done.unwrap_or(0);
                        if done > 0 {
                            model.resize(model.len().max(at + done), 0);
                            model[at..at + done].fill(byte);
                        }
                    }
                }
            }
            let before: usize = all
                .iter()
                .map(|it| extents(&it.0).iter().sum::<usize>())
                .sum();
            let first = random.u32(1..blocks);
            space.retire(first..blocks);
            assert_eq!(space.pages(), u64::from(first) * PAGES as u64);
            let has_room = space.used_pages() <= space.pages();
            memory.fails.store(random.u32(..2) * 20, Relaxed);
            // If the memory fails, the extents stay in place.
            let mut is_refused = false;
            for _ in 0..40 {
                for (inode, (file, _)) in all.iter().enumerate() {
                    match store.evacuate(file, inode as u32 + 1, first) {
                        Ok(_) => {}
                        Err(Errno::IO) => assert!(memory.fails.load(Relaxed) > 0),
                        Err(error) => {
                            assert_eq!(error, Errno::NOSPC);
                            is_refused = true;
                        }
                    }
                }
            }
            memory.fails.store(0, Relaxed);
            let left = space.count_undrained(first..blocks);
            if left > 0 {
                assert!(
                    is_refused && !has_room,
                    "{left} of {blocks} from {first} on"
                );
                store.extent_alone().capacity = first;
                assert_eq!(store.trim(), left);
                in_vain += 1;
            } else {
                store.extent_alone().capacity = first;
                assert_eq!(store.trim(), 0);
            }
            let after: usize = all
                .iter()
                .map(|it| extents(&it.0).iter().sum::<usize>())
                .sum();
            divided += u32::from(after > before);
            let used: u64 = all.iter().map(|it| it.0.pages()).sum();
            assert_eq!(space.used_pages(), used);
            for (file, model) in &all {
                assert!(read(&store, file, 0, model.len()) == *model);
            }
            if left == 0 && random.bool() {
                // With less space everything works as before.
                let (file, model) = &mut all[0];
                let done = store.write_file(file, 1, 0, &[1; 5000]).unwrap_or(0);
                model.resize(model.len().max(done), 0);
                model[..done].fill(1);
            }
            grow(&store);
        }
        all.iter().for_each(|(file, _)| assert!(store.free(file)));
        assert_eq!(
            (space.used_pages(), space.free_pages()),
            (0, u64::from(blocks) * 32)
        );
    }
    assert!(in_vain > 0 && divided > 0, "{in_vain} {divided}");
}

#[test]
fn runs_move_without_the_host_unless_they_are_corrupt() {
    let (memory, store) = memory(12);
    let files = [File::default(), File::default()];
    let bytes: Vec<u8> = (0..6 * DATA_BYTES).map(|at| (at / 7) as u8).collect();
    for (file, len) in files.iter().zip([5 * DATA_BYTES, DATA_BYTES / 2]) {
        assert_eq!(store.write_file(file, 1, 0, &bytes[..len]), Ok(len));
    }
    let lower = store.space();
    // Extents in the first six blocks move to the others, and back.
    lower.retire(0..6);
    let at = |file: &File| file.layout_shared().table.of(0).next().unwrap().run().block;
    let rows = || [&memory.staged_rows, &memory.moved_rows].map(|it| it.swap(0, Relaxed));
    rows();
    for file in &files {
        store.evacuate(file, 1, 0).unwrap();
    }
    let all = (5 * DATA_BYTES + DATA_BYTES / 2) / ROW_BYTES;
    assert_eq!(rows(), [0, all as u32]);
    assert!(at(&files[0]) >= 6 && at(&files[1]) >= 6);
    lower.add(0..6);
    memory.corrupt_at_copy.store(at(&files[0]), Relaxed);
    memory.corrupt_at_verify.store(at(&files[1]), Relaxed);
    assert!(shrink(&store, &files.each_ref(), 6) > 0);
    let [staged, moved] = rows();
    assert!(staged > 0 && moved > 0);
    for (file, len) in files.iter().zip([5 * DATA_BYTES, DATA_BYTES / 2]) {
        assert!(at(file) < 6);
        assert!(read(&store, file, 0, len) == bytes[..len]);
        store.free(file);
    }
    assert_eq!(store.space().used_pages(), 0);
}

/// Stops the other threads, even if this one panics.
struct StopOnDrop<'e>(&'e AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn reads_and_writes_during_a_move_see_consistent_files() {
    const DEADLINE: Duration = Duration::from_secs(120);
    let (_, store) = memory(24);
    let files: Vec<File> = (0..12).map(|_| File::default()).collect();
    let stopped = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for which in 0..3usize {
            let (store, files, stopped) = (&store, &files, &stopped);
            threads.spawn(move || {
                let mut random = Rng::new();
                let mut models = vec![Vec::new(); 4];
                while !stopped.load(Relaxed) {
                    let of = random.usize(..4);
                    let (file, model) = (&files[which * 4 + of], &mut models[of]);
                    let inode = (which * 4 + of) as u32 + 1;
                    let (at, len) = (random.usize(..100_000), random.usize(1..20_000));
                    let byte = random.u8(1..);
                    // A file that is written anew takes runs again, in blocks that were just added.
                    if random.u32(..4) == 0 {
                        store.free(file);
                        model.clear();
                    }
                    let done = store.write_file(file, inode, at as u64, &vec![byte; len]);
                    match done {
                        Ok(done) => {
                            model.resize(model.len().max(at + done), 0);
                            model[at..at + done].fill(byte);
                        }
                        Err(error) => {
                            assert_eq!(error, Errno::NOSPC);
                            store.free(file);
                            model.clear();
                        }
                    }
                    let seen = store.read_file(file, 0, model.len(), <[u8]>::to_vec);
                    assert!(seen.unwrap() == *model);
                }
            });
        }
        let all: Vec<&File> = files.iter().collect();
        let _stop = StopOnDrop(&stopped);
        let (mut moved, mut turns) = (0, 0);
        let begin = Instant::now();
        while (moved < 300 || turns < 20) && begin.elapsed() < DEADLINE {
            let first = [12, 18][turns % 2];
            moved += shrink(&store, &all, first);
            assert_eq!(store.scrub(23, Duration::ZERO, 1).unwrap().corrected, 0);
            grow(&store);
            turns += 1;
        }
        assert!(
            moved >= 300 && turns >= 20,
            "{moved} pages in {turns} turns"
        );
    });
    files.iter().for_each(|file| assert!(store.free(file)));
    assert_eq!(
        (store.space().used_pages(), store.space().free_pages()),
        (0, 24 * 32)
    );
}
