//! Places where freed blocks may be reused, call by call.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use fercuda_pool::{AllocLayout, PoolPlace, ReuseOrder, Span, StreamId};

const STREAM: StreamId = StreamId(7);
const PLACE: PoolPlace = PoolPlace::Stream(STREAM);

fn want(mib: u64) -> AllocLayout {
    AllocLayout::new(mib << 20, 512)
}

/// An order with this much memory, all of it ready.
fn order(mib: u64) -> ReuseOrder<()> {
    let mut order = ReuseOrder::default();
    let (address, bytes) = (1 << 30, mib << 20);
    order.blocks_mut().add(Span { address, bytes }).unwrap();
    order
}

/// A thread may free in a stream that another destroys, and a third may still hold a fence of it.
#[test]
fn a_fence_of_a_removed_queue_does_not_count_for_the_next_one() {
    let (place, want, mut order) = (PLACE, want(1), order(1));
    // Many fences, so that the last one's epoch is far along.
    for _ in 0..10 {
        let id = order.take(place, want).unwrap();
        order.give(id, place).unwrap();
        let epoch = order.begin_fence(place).unwrap();
        order.end_fence(place, epoch, ());
    }
    let begun: Vec<_> = order.oldest_fences();
    let fence = begun.into_iter().next().unwrap();
    let last = {
        let id = order.take(place, want).unwrap();
        order.give(id, place).unwrap();
        order.begin_fence(place).unwrap()
    };
    order.end_fence(place, last, ());
    order.retire(STREAM, None);
    order.passed(place, last);
    assert_eq!(order.queues(), 0, "the queue is gone");
    let id = order.take(PoolPlace::Anywhere, want).unwrap();
    order.give(id, place).unwrap();
    for epoch in [fence.epoch, last] {
        order.passed(place, epoch);
        assert_eq!(
            order.take(PoolPlace::Anywhere, want),
            None,
            "{epoch:?} is an old epoch"
        );
    }
    let epoch = order.begin_fence(place).unwrap();
    order.passed(place, epoch);
    assert!(order.take(PoolPlace::Anywhere, want).is_some());
}

/// Blocks freed by a lone stream are merged with adjacent ready memory, as no other stream needs
/// the two apart; once another stream takes a block they are not.
#[test]
fn a_stream_that_is_alone_merges_ready_memory_with_its_own() {
    let (lone, part, whole) = (PLACE, want(1), want(3));
    let freed_in_the_middle = |alone: bool| {
        let mut order = order(3);
        let blocks = [0, 1, 2].map(|_| order.take(lone, part).unwrap());
        for block in [blocks[0], blocks[2]] {
            order.give(block, lone).unwrap();
        }
        let epoch = order.begin_fence(lone).unwrap();
        order.end_fence(lone, epoch, ());
        order.passed(lone, epoch);
        if alone {
            order.assume_alone(lone);
        }
        order.give(blocks[1], lone).unwrap();
        order
    };
    assert!(freed_in_the_middle(true).take(lone, whole).is_some());
    let mut order = freed_in_the_middle(true);
    assert_eq!(
        order.take(PoolPlace::Anywhere, part),
        None,
        "all is the stream's"
    );
    assert!(freed_in_the_middle(false).take(lone, whole).is_none());
    assert!(
        freed_in_the_middle(false)
            .take(PoolPlace::Anywhere, part)
            .is_some()
    );
}

/// Large ready memory may be all that is left for the next stream: taking it from the lone stream
/// would need a fence, which may be refused.
#[test]
fn a_stream_that_is_alone_leaves_large_memory_ready() {
    let (lone, mut order) = (PLACE, order(64));
    let small = order.take(lone, want(4)).unwrap();
    order.assume_alone(lone);
    order.give(small, lone).unwrap();
    assert!(order.take(PoolPlace::Anywhere, want(60)).is_some());
}

/// A fence is due for all bytes that wait for one, even if they were ready before.
#[test]
fn ready_memory_merged_by_a_free_counts_towards_a_fence() {
    for (watched, first) in [(false, 15), (true, 3)] {
        let (lone, mut order) = (PLACE, order(18 * 31));
        order.watch(watched);
        let mut take = |mib| order.take(lone, want(mib)).unwrap();
        let blocks = [0; 18].map(|_| (take(30), take(1)));
        for (large, _) in blocks {
            order.give(large, lone).unwrap();
        }
        let epoch = order.begin_fence(lone).unwrap();
        order.passed(lone, epoch);
        order.assume_alone(lone);
        let due = blocks.map(|(_, small)| order.give(small, lone).unwrap().1.is_some());
        // The first takes 61 MiB along, each other one 31 MiB; 512 MiB are enough, or 128 MiB.
        assert_eq!(due.iter().position(|due| *due), Some(first));
        assert!(due[first..].iter().all(|due| *due));
    }
}

/// Of large blocks the best fit is taken, be it ready or the stream's.
#[test]
fn a_ready_block_that_fits_better_is_taken_before_one_of_the_streams_own() {
    let (place, mut order) = (PLACE, order(8));
    let (address, bytes) = (2 << 30, 4 << 20);
    order.blocks_mut().add(Span { address, bytes }).unwrap();
    let large = order.take(place, want(8)).unwrap();
    order.give(large, place).unwrap();
    let taken = order.take(place, want(4)).unwrap();
    assert_eq!(order.blocks().span(taken).unwrap().address, address);
    assert!(order.take(place, want(8)).is_some());
}
