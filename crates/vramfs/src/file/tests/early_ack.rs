//! Writes that are acknowledged before the memory has them, as on a device.

use std::thread;

use super::*;

/// An update of slow memory: acknowledged first and then done, if nothing prevents it.
pub(super) fn update<'h>(
    host: &'h mut HostAccess,
    work: &[BlockWork<'_>],
    taken: &mut dyn FnMut(),
) -> crate::Result<&'h [BlockOutcome]> {
    let is_refused = |it: &BlockWork<'_>| host.memory.refused(it, false).is_some();
    let is_first = host.memory.yields.load(Relaxed) && !work.iter().any(is_refused);
    if is_first {
        taken();
    }
    let outcomes = host.put(work, false)?;
    if !is_first && outcomes.iter().all(BlockOutcome::is_clean) {
        taken();
    }
    Ok(outcomes)
}

#[test]
fn a_read_after_an_early_ack_sees_the_written_bytes() {
    let (memory, store) = memory(4);
    let (file, page) = (File::default(), PAGE_BYTES);
    assert_eq!(
        store.write_file(&file, 1, 0, &vec![0; 8 * page]),
        Ok(8 * page)
    );
    memory.yields.store(true, Relaxed);
    for round in 1..=200_u8 {
        let (at, bytes) = (usize::from(round) % 8 * page, vec![round; page]);
        let mut acked = Vec::new();
        let (store, file, bytes) = (&store, &file, &bytes);
        thread::scope(|scope| {
            let mut ack = |count| {
                acked.push(count);
                scope.spawn(move || {
                    let is_there = |it: &[u8]| it == bytes.as_slice();
                    assert_eq!(store.read_file(file, at as u64, page, is_there), Ok(true));
                });
            };
            let written = store.write_file_with_ack(file, 1, at as u64, bytes, &mut ack);
            assert_eq!(written, Ok(()));
        });
        assert_eq!(acked, [page], "round {round}");
    }
}

#[test]
fn a_failure_after_an_early_ack_is_counted_once_and_reported() {
    let (memory, store) = memory(4);
    let (file, bytes) = (File::default(), vec![7; PAGE_BYTES]);
    assert_eq!(store.write_file(&file, 1, 0, &bytes), Ok(PAGE_BYTES));
    for is_first in [true, false] {
        memory.yields.store(is_first, Relaxed);
        memory.fails_then.store(1, Relaxed);
        let mut acked = Vec::new();
        let written = store.write_file_with_ack(&file, 1, 0, &bytes, &mut |it| acked.push(it));
        assert_eq!(written, Err(Errno::IO));
        assert_eq!(acked, vec![PAGE_BYTES; usize::from(is_first)]);
        // Counted once, and reported to all callers from then on.
        assert_eq!(store.counters().unkept_writes.load(Relaxed), 1);
        assert_eq!(store.sync_file(&File::default()), Err(Errno::IO));
    }
}

#[test]
fn corruption_is_corrected_before_a_write_is_acknowledged() {
    let (memory, store) = memory(4);
    memory.has_code.store(true, Relaxed);
    memory.yields.store(true, Relaxed);
    let (file, bytes) = (File::default(), vec![7; PAGE_BYTES]);
    assert_eq!(store.write_file(&file, 1, 0, &bytes), Ok(PAGE_BYTES));
    let block = places(&file)[0].1.run().block;
    memory
        .access()
        .unwrap()
        .flip_bits(block as usize, 0, &[1])
        .unwrap();
    let mut acked = Vec::new();
    let mut ack = |count| acked.push((count, memory.state(block)));
    let written = store.write_file_with_ack(&file, 1, 0, &bytes, &mut ack);
    assert_eq!(
        (written, acked),
        (Ok(()), vec![(PAGE_BYTES, (false, false))])
    );
    assert_eq!(store.counters().corrected_blocks.load(Relaxed), 1);
    assert_eq!(store.sync_file(&file), Ok(()));
}

#[test]
fn sync_waits_for_the_files_writers() {
    let (memory, store) = memory(4);
    let (file, bytes) = (File::default(), vec![7; PAGE_BYTES]);
    assert_eq!(store.write_file(&file, 1, 0, &bytes), Ok(PAGE_BYTES));
    memory.yields.store(true, Relaxed);
    memory.fails_then.store(1, Relaxed);
    let (store, file) = (&store, &file);
    thread::scope(|scope| {
        let mut syncing = None;
        let mut ack = |_| {
            syncing = Some(scope.spawn(|| store.sync_file(file)));
            thread::sleep(Duration::from_millis(20));
        };
        let written = store.write_file_with_ack(file, 1, 0, &bytes, &mut ack);
        assert_eq!(written, Err(Errno::IO));
        assert_eq!(syncing.unwrap().join().unwrap(), Err(Errno::IO));
    });
}
