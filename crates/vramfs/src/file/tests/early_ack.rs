//! Writes that are acknowledged before the memory has them, as on a device.

use std::thread;

use super::*;

/// A block's work with the identity that it refers to.
pub(super) type OwnedWork = (BlockWork<'static>, Option<Identity>);

/// Starts an update of slow memory: it is committed first, and made when it is finished, if nothing
/// prevents it; otherwise it is made at once.
pub(super) fn start(host: &mut HostAccess, work: &[BlockWork<'_>]) -> crate::Result<()> {
    let is_refused = |it: &BlockWork<'_>| host.memory.refused(it, false).is_some();
    if !host.memory.yields.load(Relaxed) || work.iter().any(is_refused) {
        return host.put(work, false).map(drop);
    }
    let owned = |it: &BlockWork<'_>| {
        let work = BlockWork {
            block: it.block,
            rows: it.rows.clone(),
            place: it.place,
            identity: None,
        };
        (work, it.identity.copied())
    };
    host.started = Some(work.iter().map(owned).collect());
    Ok(())
}

/// Makes the update that was started.
pub(super) fn finish(host: &mut HostAccess) -> crate::Result<&[BlockOutcome]> {
    let Some(started) = host.started.take() else {
        return Ok(&host.outcomes);
    };
    let works: Vec<BlockWork<'_>> = started
        .iter()
        .map(|(it, identity)| BlockWork {
            identity: identity.as_ref(),
            ..it.clone()
        })
        .collect();
    host.put(&works, false)
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
            let mut pending = store.start_write_file(file, 1, at as u64, bytes).unwrap();
            acked.extend(pending.committed());
            scope.spawn(move || {
                let is_there = |it: &[u8]| it == bytes.as_slice();
                assert_eq!(store.read_file(file, at as u64, page, is_there), Ok(true));
            });
            assert_eq!(pending.finish(), Ok(page));
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
        let mut pending = store.start_write_file(&file, 1, 0, &bytes).unwrap();
        let acked = match is_first {
            true => Ok(PAGE_BYTES),
            false => Err(Errno::IO),
        };
        assert_eq!(pending.committed(), acked);
        assert_eq!(pending.finish(), Err(Errno::IO));
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
    let mut pending = store.start_write_file(&file, 1, 0, &bytes).unwrap();
    assert_eq!(pending.committed(), Ok(PAGE_BYTES));
    assert_eq!(memory.state(block), (false, false));
    assert_eq!(pending.finish(), Ok(PAGE_BYTES));
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
        let mut pending = store.start_write_file(file, 1, 0, &bytes).unwrap();
        assert_eq!(pending.committed(), Ok(PAGE_BYTES));
        let syncing = scope.spawn(|| store.sync_file(file));
        thread::sleep(Duration::from_millis(20));
        assert_eq!(pending.finish(), Err(Errno::IO));
        assert_eq!(syncing.join().unwrap(), Err(Errno::IO));
    });
}

#[test]
fn a_dropped_write_is_finished_or_its_failure_is_recorded() {
    for (fails, commits) in [(false, false), (false, true), (true, false), (true, true)] {
        let (memory, store) = memory(4);
        let (file, bytes) = (File::default(), vec![7; PAGE_BYTES]);
        assert_eq!(
            store.write_file(&file, 1, 0, &[0; PAGE_BYTES]),
            Ok(PAGE_BYTES)
        );
        memory.yields.store(true, Relaxed);
        memory.fails_then.store(u32::from(fails), Relaxed);
        let mut pending = store.start_write_file(&file, 1, 0, &bytes).unwrap();
        if commits {
            assert_eq!(pending.committed(), Ok(PAGE_BYTES));
        }
        drop(pending);
        let synced = match fails {
            true => Err(Errno::IO),
            false => Ok(()),
        };
        assert_eq!(store.sync_file(&file), synced);
        assert_eq!(
            store.counters().unkept_writes.load(Relaxed),
            u64::from(fails)
        );
        assert_eq!(read(&store, &file, 0, PAGE_BYTES) == bytes, !fails);
    }
}
