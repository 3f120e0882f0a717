//! Which freed block may be taken where, call by call.

use fercuda_pool::{Order, Place, Span, StreamId, Want};

/// A thread may free in a stream that another destroys, and a third may still
/// have a mark of it.
#[test]
fn a_mark_of_a_queue_that_is_gone_is_none_of_the_next() {
    let place = Place::Stream(StreamId(7));
    let all = Span {
        address: 1 << 30,
        bytes: 1 << 20,
    };
    let want = Want::new(all.bytes, 512);
    let mut order = Order::default();
    order.blocks_mut().add(all).unwrap();
    // Many marks, so that the last one's epoch is far on.
    for _ in 0..10 {
        let id = order.take(place, want).unwrap();
        order.give(id, place).unwrap();
        let epoch = order.begin_mark(place).unwrap();
        order.end_mark(place, epoch, ());
    }
    let begun: Vec<_> = order.oldest_marks();
    let mark = begun.into_iter().next().unwrap();
    let last = {
        let id = order.take(place, want).unwrap();
        order.give(id, place).unwrap();
        order.begin_mark(place).unwrap()
    };
    order.end_mark(place, last, ());
    order.retire(StreamId(7), None);
    order.passed(place, last);
    assert_eq!(order.queues(), 0, "the queue is gone");
    let id = order.take(Place::Anywhere, want).unwrap();
    order.give(id, place).unwrap();
    for epoch in [mark.epoch, last] {
        order.passed(place, epoch);
        assert_eq!(
            order.take(Place::Anywhere, want),
            None,
            "{epoch:?} is of before"
        );
    }
    let epoch = order.begin_mark(place).unwrap();
    order.passed(place, epoch);
    assert!(order.take(Place::Anywhere, want).is_some());
}

/// What a lone stream frees is one with what is ready beside it, as nobody else
/// would have the two apart; once somebody else takes a block it is not.
#[test]
fn a_stream_that_is_alone_has_ready_memory_with_its_own() {
    let lone = Place::Stream(StreamId(7));
    let all = Span {
        address: 1 << 30,
        bytes: 3 << 20,
    };
    let (part, whole) = (Want::new(1 << 20, 512), Want::new(3 << 20, 512));
    let freed_in_the_middle = |alone: bool| {
        let mut order = Order::<()>::default();
        order.blocks_mut().add(all).unwrap();
        let blocks = [0, 1, 2].map(|_| order.take(lone, part).unwrap());
        for block in [blocks[0], blocks[2]] {
            order.give(block, lone).unwrap();
        }
        let epoch = order.begin_mark(lone).unwrap();
        order.end_mark(lone, epoch, ());
        order.passed(lone, epoch);
        if alone {
            order.leave_alone(lone);
        }
        order.give(blocks[1], lone).unwrap();
        order
    };
    assert!(freed_in_the_middle(true).take(lone, whole).is_some());
    let mut order = freed_in_the_middle(true);
    assert_eq!(
        order.take(Place::Anywhere, part),
        None,
        "all is the stream's"
    );
    assert!(freed_in_the_middle(false).take(lone, whole).is_none());
    assert!(
        freed_in_the_middle(false)
            .take(Place::Anywhere, part)
            .is_some()
    );
}

/// What is ready and large may be all that there is for who comes next: to have it
/// from the stream would take a mark, which may be refused.
#[test]
fn a_stream_that_is_alone_leaves_large_memory_ready() {
    let lone = Place::Stream(StreamId(7));
    let mut order = Order::<()>::default();
    let all = Span {
        address: 1 << 30,
        bytes: 64 << 20,
    };
    order.blocks_mut().add(all).unwrap();
    let small = order.take(lone, Want::new(4 << 20, 512)).unwrap();
    order.leave_alone(lone);
    order.give(small, lone).unwrap();
    let large = Want::new(60 << 20, 512);
    assert!(order.take(Place::Anywhere, large).is_some());
}

/// A mark is due for as much as waits for one, also if it was ready before.
#[test]
fn what_a_free_takes_along_counts_for_a_mark() {
    let lone = Place::Stream(StreamId(7));
    let mut order = Order::<()>::default();
    let all = Span {
        address: 1 << 30,
        bytes: 155 << 20,
    };
    order.blocks_mut().add(all).unwrap();
    let mut take = |mib: u64| order.take(lone, Want::new(mib << 20, 512)).unwrap();
    let blocks = [0; 5].map(|_| (take(30), take(1)));
    for (large, _) in blocks {
        order.give(large, lone).unwrap();
    }
    let epoch = order.begin_mark(lone).unwrap();
    order.passed(lone, epoch);
    order.leave_alone(lone);
    let due = blocks.map(|(_, small)| order.give(small, lone).unwrap().1.is_some());
    assert_eq!(due, [false, false, false, true, true]);
}

/// Of large blocks the one that fits best is taken, be it ready or the stream's.
#[test]
fn a_ready_block_that_fits_better_is_taken_before_one_of_the_streams_own() {
    let place = Place::Stream(StreamId(7));
    let mut order = Order::<()>::default();
    for (address, mib) in [(1 << 30, 8), (2 << 30, 4)] {
        let bytes = mib << 20;
        order.blocks_mut().add(Span { address, bytes }).unwrap();
    }
    let large = order.take(place, Want::new(8 << 20, 512)).unwrap();
    order.give(large, place).unwrap();
    let taken = order.take(place, Want::new(4 << 20, 512)).unwrap();
    assert_eq!(order.blocks().span(taken).unwrap().address, 2 << 30);
    assert!(order.take(place, Want::new(8 << 20, 512)).is_some());
}
