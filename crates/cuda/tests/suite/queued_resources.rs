//! Objects of other libraries that queued work uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fercuda_cuda::{CaptureMode, DeviceBuffer, QueuedResource, Stream};

use crate::support::context;

/// Counts its drops, and notes how much of the work was done by the first.
struct Plan {
    work_done: Arc<AtomicUsize>,
    drops: Arc<AtomicUsize>,
    done_at_drop: Arc<AtomicUsize>,
}

impl Drop for Plan {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
        self.done_at_drop
            .store(self.work_done.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

/// A plan, and its counts of work done, of drops, and of work done at the drop.
fn plan() -> (Plan, [Arc<AtomicUsize>; 3]) {
    let counts: [Arc<AtomicUsize>; 3] = Default::default();
    let [work_done, drops, done_at_drop] = counts.clone();
    let plan = Plan {
        work_done,
        drops,
        done_at_drop,
    };
    (plan, counts)
}

fn values(counts: &[Arc<AtomicUsize>; 3]) -> [usize; 3] {
    counts.each_ref().map(|it| it.load(Ordering::SeqCst))
}

#[test]
fn a_resource_is_dropped_once_and_after_the_work_that_was_queued_with_it() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let (plan, counts) = plan();
    let resource = QueuedResource::new(&context, plan);
    let again = resource.clone();
    let raw = stream.queue_with(&resource, &(), |raw| raw).unwrap();
    assert_eq!(raw, stream.raw());
    let done = counts[0].clone();
    stream
        .host_callback(move || {
            std::thread::sleep(Duration::from_millis(50));
            done.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
    drop(resource);
    assert_eq!(counts[1].load(Ordering::SeqCst), 0);
    drop(again);
    assert_eq!(values(&counts), [1, 1, 1]);
}

#[test]
fn a_resource_dropped_in_a_callback_is_dropped_by_the_next_wait() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let (plan, counts) = plan();
    let resource = QueuedResource::new(&context, plan);
    stream.queue_with(&resource, &(), |_| ()).unwrap();
    stream.host_callback(move || drop(resource)).unwrap();
    stream.synchronize().unwrap();
    fercuda_cuda::destroy_deferred();
    assert_eq!(counts[1].load(Ordering::SeqCst), 1);
}

#[test]
fn a_graph_keeps_the_resource_and_the_memory_of_captured_work() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let (plan, counts) = plan();
    let resource = QueuedResource::new(&context, plan);
    let buffer = DeviceBuffer::<u8>::zeroed(&stream, 64).unwrap();
    let returned = Arc::new(());
    buffer.keep_until_returned(returned.clone());
    let capture = stream.begin_capture(CaptureMode::Global).unwrap();
    stream.queue_with(&resource, &(&buffer,), |_| ()).unwrap();
    let graph = capture.end().unwrap();
    drop((resource, buffer));
    assert_eq!(
        (
            counts[1].load(Ordering::SeqCst),
            Arc::strong_count(&returned)
        ),
        (0, 2)
    );
    drop(graph);
    assert_eq!(
        (
            counts[1].load(Ordering::SeqCst),
            Arc::strong_count(&returned)
        ),
        (1, 1)
    );
}
