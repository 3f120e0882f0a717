//! Who is told of a write before the memory has it, as a device does.

use std::thread;

use super::*;

/// In memory that takes its time: first told, then done, if nothing is in the way.
pub(super) fn update<'h>(
    host: &'h mut Host,
    work: &[Work<'_>],
    taken: &mut dyn FnMut(),
) -> crate::Result<&'h [Outcome]> {
    let is_refused = |it: &Work<'_>| host.memory.refused(it, false).is_some();
    let is_first = host.memory.yields.load(Relaxed) && !work.iter().any(is_refused);
    if is_first {
        taken();
    }
    let outcomes = host.put(work, false)?;
    if !is_first && outcomes.iter().all(Outcome::is_clean) {
        taken();
    }
    Ok(outcomes)
}

#[test]
fn who_reads_when_a_write_is_told_meets_what_was_written() {
    let (memory, store) = memory(4);
    let (file, page) = (File::default(), PAGE_BYTES);
    assert_eq!(
        store.write_file(&file, 1, 0, &vec![0; 8 * page]),
        Ok(8 * page)
    );
    memory.yields.store(true, Relaxed);
    for round in 1..=200_u8 {
        let (at, bytes) = (usize::from(round) % 8 * page, vec![round; page]);
        let mut told = Vec::new();
        let (store, file, bytes) = (&store, &file, &bytes);
        thread::scope(|scope| {
            let mut tell = |count| {
                told.push(count);
                scope.spawn(move || {
                    let is_there = |it: &[u8]| it == bytes.as_slice();
                    assert_eq!(store.read_file(file, at as u64, page, is_there), Ok(true));
                });
            };
            let written = store.write_file_telling(file, 1, at as u64, bytes, &mut tell);
            assert_eq!(written, Ok(()));
        });
        assert_eq!(told, [page], "round {round}");
    }
}

#[test]
fn memory_that_fails_behind_the_word_is_told_once() {
    let (memory, store) = memory(4);
    let (file, bytes) = (File::default(), vec![7; PAGE_BYTES]);
    assert_eq!(store.write_file(&file, 1, 0, &bytes), Ok(PAGE_BYTES));
    for is_first in [true, false] {
        memory.yields.store(is_first, Relaxed);
        memory.fails_then.store(1, Relaxed);
        let mut told = Vec::new();
        let written = store.write_file_telling(&file, 1, 0, &bytes, &mut |it| told.push(it));
        assert_eq!(written, Err(Errno::IO));
        assert_eq!(told, vec![PAGE_BYTES; usize::from(is_first)]);
        // Once, which all hear who ask from then on.
        assert_eq!(store.counters().unkept_writes.load(Relaxed), 1);
        assert_eq!(store.sync_file(&File::default()), Err(Errno::IO));
    }
}

#[test]
fn what_is_wrong_is_made_right_before_a_write_is_told() {
    let (memory, store) = memory(4);
    memory.has_code.store(true, Relaxed);
    memory.yields.store(true, Relaxed);
    let (file, bytes) = (File::default(), vec![7; PAGE_BYTES]);
    assert_eq!(store.write_file(&file, 1, 0, &bytes), Ok(PAGE_BYTES));
    let block = places(&file)[0].1.run().block;
    memory
        .access()
        .unwrap()
        .spoil(block as usize, 0, &[1])
        .unwrap();
    let mut told = Vec::new();
    let mut tell = |count| told.push((count, memory.state(block)));
    let written = store.write_file_telling(&file, 1, 0, &bytes, &mut tell);
    assert_eq!(
        (written, told),
        (Ok(()), vec![(PAGE_BYTES, (false, false))])
    );
    assert_eq!(store.counters().corrected_blocks.load(Relaxed), 1);
    assert_eq!(store.sync_file(&file), Ok(()));
}

#[test]
fn who_asks_whether_a_file_is_written_waits_for_who_writes_it() {
    let (memory, store) = memory(4);
    let (file, bytes) = (File::default(), vec![7; PAGE_BYTES]);
    assert_eq!(store.write_file(&file, 1, 0, &bytes), Ok(PAGE_BYTES));
    memory.yields.store(true, Relaxed);
    memory.fails_then.store(1, Relaxed);
    let (store, file) = (&store, &file);
    thread::scope(|scope| {
        let mut asked = None;
        let mut tell = |_| {
            asked = Some(scope.spawn(|| store.sync_file(file)));
            thread::sleep(Duration::from_millis(20));
        };
        let written = store.write_file_telling(file, 1, 0, &bytes, &mut tell);
        assert_eq!(written, Err(Errno::IO));
        assert_eq!(asked.unwrap().join().unwrap(), Err(Errno::IO));
    });
}
