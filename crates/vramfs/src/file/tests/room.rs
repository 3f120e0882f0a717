//! Space that is freed, and memory that cannot be allocated.

use super::*;
use crate::tools::ResizeError;

#[test]
fn truncation_or_punching_from_within_a_hole_frees_pages() {
    let (_, store) = memory(8);
    let file = File::default();
    let free = || store.space().free_pages();
    let chunk = DATA_BYTES as u64;
    let (first, second) = (chunk + 8192, 3 * chunk);
    // Truncated to two pages in two chunks.
    type Cut = fn(&Store<Arc<TestMemory>>, &File);
    let cuts: [(Cut, u64); 5] = [
        (|store, file| store.truncate(file, 100).unwrap(), 0),
        (
            |store, file| store.truncate(file, 2 * DATA_BYTES as u64 + 1).unwrap(),
            1,
        ),
        (|store, file| store.punch(file, 0..1 << 40).unwrap(), 0),
        (
            |store, file| store.punch(file, 7..3 * DATA_BYTES as u64).unwrap(),
            1,
        ),
        // The hole is in the same chunk.
        (
            |store, file| {
                let chunk = DATA_BYTES as u64;
                store.punch(file, chunk + 5000..chunk + 12_288).unwrap();
            },
            1,
        ),
    ];
    for (which, (cut, left)) in cuts.into_iter().enumerate() {
        for at in [first, second] {
            let page = [3; PAGE_BYTES];
            assert_eq!(store.write_file(&file, 1, at, &page), Ok(PAGE_BYTES));
        }
        assert_eq!((file.pages(), free()), (2, 8 * 32 - 2), "{which}");
        cut(&store, &file);
        assert_eq!((file.pages(), free()), (left, 8 * 32 - left), "{which}");
        store.free(&file);
    }
}

#[test]
fn a_failed_resize_changes_nothing_and_can_be_retried() {
    let (memory, store) = memory(8);
    let file = File::default();
    store.space().retire(4..8);
    store.extent_alone().capacity = 4;
    assert_eq!(store.trim(), 0);
    let page = [3; PAGE_BYTES];
    assert_eq!(store.write_file(&file, 1, 0, &page), Ok(PAGE_BYTES));
    let state = || {
        let space = store.space();
        let there = memory.there.load(Relaxed);
        let extent = *store.extent();
        let free = space.free_pages();
        (there, extent.backed, extent.capacity, free, space.pages())
    };
    memory.refuses_accesses.store(true, Relaxed);
    for blocks in [5, 8] {
        let refused = store.resize(blocks);
        assert!(
            matches!(refused, Err(ResizeError::Medium(_))),
            "{refused:?}"
        );
        assert_eq!(state(), (4, 4, 4, 4 * 32 - 1, 4 * 32));
    }
    // A run without memory is never allocated, or this test's memory would panic.
    let all = vec![9; 8 * DATA_BYTES];
    assert_eq!(
        store.write_file(&file, 1, PAGE_BYTES as u64, &all),
        Ok(4 * DATA_BYTES - PAGE_BYTES)
    );
    memory.refuses_accesses.store(false, Relaxed);
    store.resize(8).unwrap();
    assert_eq!(state(), (8, 8, 8, 4 * 32, 8 * 32));
    let end = 4 * DATA_BYTES as u64;
    assert_eq!(store.write_file(&file, 1, end, &all), Ok(4 * DATA_BYTES));
}

#[test]
fn a_caller_waits_for_an_access_and_fails_if_none_can_exist() {
    let (none, without) = memory(8);
    none.refuses_accesses.store(true, Relaxed);
    let (memory, store) = memory(8);
    assert!(store.acquire_access().is_ok());
    memory.refuses_accesses.store(true, Relaxed);
    // Holds the only access, while as many threads as there may be accesses wait for it.
    let only = store.acquire_access().unwrap();
    let had = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let waits = || {
            let way = store.acquire_access().unwrap();
            had.fetch_add(1, Relaxed);
            drop(way);
        };
        (0..4).for_each(|_| drop(scope.spawn(waits)));
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(50) {
            assert_eq!(had.load(Relaxed), 0);
        }
        drop(only);
    });
    assert_eq!(had.load(Relaxed), 4);
    std::thread::scope(|scope| {
        (0..8).for_each(|_| drop(scope.spawn(|| assert!(without.acquire_access().is_err()))));
    });
}
