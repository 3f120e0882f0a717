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
