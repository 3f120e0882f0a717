//! Copies within the memory, beside the plainest ones.

use super::*;

/// Where data and holes begin.
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
fn a_copy_has_the_bytes_and_the_holes() {
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
fn whole_rows_are_copied_without_a_way_through_the_host() {
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
    // Chunks to chunks, new and old; and what lies otherwise in its pages, but not in its rows.
    let all = 3 * (DATA_BYTES / ROW_BYTES) as u32;
    for _ in 0..2 {
        copy(&target, 0, 0, 3 * DATA_BYTES);
        assert_eq!(rows(), [0, all]);
    }
    assert!(read(&store, &target, 0, 3 * DATA_BYTES) == bytes[..3 * DATA_BYTES]);
    rows();
    copy(&target, 5 * ROW_BYTES, 2 * ROW_BYTES, DATA_BYTES);
    assert_eq!(rows(), [0, all / 3]);
    // The end of a file lies within a row: that is read, and written with its page.
    copy(&target, DATA_BYTES, 3 * DATA_BYTES, 2 * DATA_BYTES + 300);
    let [staged, moved] = rows();
    assert_eq!(moved, all / 3 * 2);
    assert_eq!(staged, 5);
    // Within the file itself.
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
    // Not in the same place of a row: there is no other way.
    copy(&target, 1, 0, 1 << 10);
    assert!(rows()[0] > 0);
    store.free(&source);
    store.free(&target);
    assert_eq!(store.space().used_pages(), 0);
}

#[test]
fn what_is_found_wrong_is_not_copied_but_read_and_written() {
    let (memory, store) = memory(8);
    let bytes: Vec<u8> = (0..2 * DATA_BYTES).map(|at| (at / 3) as u8).collect();
    for wrong in [&memory.wrong_when_looked_at, &memory.wrong_when_taken] {
        let (source, target) = (File::default(), File::default());
        assert_eq!(store.write_file(&source, 1, 0, &bytes), Ok(bytes.len()));
        let second = source.reading().table.of(1).next().unwrap().run().block;
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
fn a_source_that_becomes_shorter_ends_its_copy() {
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
        // It is cut as soon as the part that is being copied has been.
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
fn who_copies_to_each_other_waits_for_nobody_for_ever() {
    let (_, store) = memory(20);
    let files = [File::default(), File::default()];
    // Every page has one byte, whoever wrote it.
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
