//! Bounds on the memory that the pool retains beyond its live bytes.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod traces;

use fercuda_pool::{
    AllocationRequest, DevicePool, MemoryBudget, PoolPlace, RetentionPolicy, Span, StreamId,
    TenantId,
};
use traces::{Behind, Handles, replay, replay_on, step, traces};

type Small = DevicePool<Handles, Behind>;

fn pool(limit: u64) -> (Small, Handles) {
    let memory = Handles::new();
    let pool = DevicePool::new(memory.clone(), Behind::default(), MemoryBudget::new(limit));
    (pool, memory)
}

fn allocate(pool: &Small, mib: u64, place: PoolPlace) -> Span {
    let request = AllocationRequest {
        bytes: mib << 20,
        align_bytes: 512,
        place,
        tenant: TenantId(0),
        note: (),
    };
    pool.allocate(&request).unwrap()
}

const STREAM: PoolPlace = PoolPlace::Stream(StreamId(1));

#[test]
fn training_and_serving_leave_little_memory_unused() {
    for trace in traces() {
        let most = match trace.name {
            "serving, contiguous" => 1.05,
            // Similar, and longer.
            name if name.starts_with("serving") => continue,
            _ => 1.02,
        };
        let outcome = replay(&trace);
        assert!(outcome.ratio() <= most, "{}: {outcome:?}", trace.name);
    }
}

#[test]
fn a_repeated_step_eventually_moves_no_memory() {
    let (few, many) = (replay(&step(4)), replay(&step(40)));
    assert!(many.ratio() <= 1.02, "{many:?}");
    let costs = |outcome: traces::Outcome| (outcome.made, outcome.moved, outcome.waits);
    assert_eq!(costs(few), costs(many));
    // Polling costs time too.
    let calls = (many.calls - few.calls) / 36;
    assert!(calls <= 20, "{calls} calls of the clock per step");
}

#[test]
fn memory_in_slabs_is_less_than_twice_the_live_bytes() {
    for trace in traces() {
        // The others are similar, and longer.
        if trace.name != "serving, growing" && trace.name != "serving, paged" {
            let outcome = replay_on(&trace, &Handles::slabs());
            assert!(outcome.ratio() <= 1.75, "{}: {outcome:?}", trace.name);
            assert_eq!(outcome.moved, 0);
        }
    }
}

#[test]
fn a_loop_of_one_large_block_adds_no_second_one() {
    let (pool, _) = pool(u64::MAX);
    for _ in 0..200 {
        pool.clock().queue();
        let span = allocate(&pool, 1 << 10, PoolPlace::Anywhere);
        pool.clock().queue();
        pool.free(span.address, PoolPlace::Anywhere).unwrap();
    }
    assert_eq!(pool.budget().used_bytes(), 1 << 30);
}

#[test]
fn memory_around_a_pin_is_used_elsewhere() {
    let (pool, memory) = pool(64 << 20);
    let blocks: Vec<Span> = (0..16).map(|_| allocate(&pool, 4, STREAM)).collect();
    pool.pin(blocks[7].address).unwrap();
    for block in (0..16).filter(|n| ![3, 15].contains(n)) {
        pool.free(blocks[block].address, STREAM).unwrap();
    }
    // 52 MiB are neither live nor pinned, 24 of them before the pin.
    let large = allocate(&pool, 50, PoolPlace::Anywhere);
    assert!(large.address >= blocks[15].end());
    assert!(memory.is_mapped(blocks[7]));
    assert_eq!(pool.budget().used_bytes(), 64 << 20);
    for address in [large.address, blocks[3].address, blocks[15].address] {
        pool.free(address, STREAM).unwrap();
    }
    pool.trim();
    assert_eq!(pool.usage().bytes, 4 << 20);
    pool.unpin(blocks[7].address);
    // A range of its own, in which no block is live.
    let range = Span {
        address: blocks[7].address + (1 << 20),
        bytes: 1 << 20,
    };
    pool.pin_range(range);
    pool.trim();
    assert_eq!(pool.usage().bytes, 2 << 20);
    assert!(memory.is_mapped(range));
    pool.unpin(range.address);
    pool.trim();
    assert_eq!((pool.usage().bytes, pool.budget().used_bytes()), (0, 0));
}

#[test]
fn a_fence_without_blocks_hides_no_later_fence() {
    let (pool, _) = pool(u64::MAX);
    // Each is a batch by itself.
    for _ in 0..3 {
        let block = allocate(&pool, 40, STREAM);
        pool.clock().queue();
        pool.free(block.address, STREAM).unwrap();
    }
    pool.clock().finish();
    assert_eq!(pool.trim(), 40 << 20);
    assert_eq!(pool.usage().bytes, 0);
}

#[test]
fn a_thread_caches_little_of_many_blocks_freed_together() {
    for (kib, most_kept) in [(4, 8), (256, 8), (512, 4), (1024, 2)] {
        let (pool, _) = pool(u64::MAX);
        let request = AllocationRequest {
            bytes: kib << 10,
            align_bytes: 512,
            place: STREAM,
            tenant: TenantId(0),
            note: (),
        };
        let burst = || {
            let blocks: Vec<Span> = (0..24).map(|_| pool.allocate(&request).unwrap()).collect();
            for block in blocks {
                pool.free(block.address, STREAM).unwrap();
            }
        };
        (0..4).for_each(|_| burst());
        assert_eq!(pool.usage().cached_bytes, most_kept * (kib << 10));
        // Stale hints do not keep memory from others.
        pool.trim();
        assert_eq!(pool.usage().cached_bytes, 0);
        burst();
        assert_eq!(pool.usage().cached_bytes, most_kept * (kib << 10));
    }
}

#[test]
fn after_a_wait_for_the_device_all_freed_memory_is_ready() {
    let (pool, _) = pool(u64::MAX);
    let block = allocate(&pool, 256, STREAM);
    pool.clock().queue();
    // This much gets a fence at once, and no block waits for one any more.
    pool.free(block.address, STREAM).unwrap();
    let begun = pool.begin_host_wait(None);
    pool.clock().finish();
    pool.end_host_wait(&begun);
    assert_eq!(pool.usage().ready_bytes, 256 << 20);
}

#[test]
fn after_a_burst_the_low_water_mark_stays() {
    let (pool, _) = pool(u64::MAX);
    let burst = |pool: &Small| {
        let blocks: Vec<Span> = (0..64).map(|_| allocate(pool, 4, STREAM)).collect();
        for block in &blocks {
            pool.free(block.address, STREAM).unwrap();
        }
        let begun = pool.begin_host_wait(None);
        pool.end_host_wait(&begun);
    };
    burst(&pool);
    assert_eq!(pool.usage().ready_bytes, 256 << 20);
    assert_eq!(pool.trim_to(100 << 20), 156 << 20);
    assert_eq!(pool.usage().ready_bytes, 100 << 20);
    pool.set_retention(RetentionPolicy {
        high_bytes: 128 << 20,
        low_bytes: 32 << 20,
        ..RetentionPolicy::default()
    });
    burst(&pool);
    assert!(pool.budget().used_bytes() <= 128 << 20);
    // One block is a batch, and the device is idle.
    let large = allocate(&pool, 200, STREAM);
    pool.free(large.address, STREAM).unwrap();
    let usage = pool.usage();
    assert_eq!((usage.ready_bytes, usage.bytes), (32 << 20, 32 << 20));
    assert_eq!(pool.budget().used_bytes(), 32 << 20);
    // Also for a stream that is alone.
    pool.assume_alone(StreamId(1));
    let large = allocate(&pool, 200, STREAM);
    pool.free(large.address, STREAM).unwrap();
    let usage = pool.usage();
    assert!(usage.bytes <= 32 << 20, "{usage:?}");
}
