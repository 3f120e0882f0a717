//! Allocations of a replay besides the driver's launch.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fercuda_cuda::{CaptureMode, Context, Cuda, DeviceBuffer, Stream};
use fercuda_runtime::{GraphBudget, GraphCache, GraphKey, RecordOptions};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: forwards to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn replay_allocates_no_more_than_the_drivers_launch() {
    let device = Cuda::from_env().unwrap().device(0).unwrap();
    let context = Context::primary(device).unwrap();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 64).unwrap();
    let cache = GraphCache::new(&context, GraphBudget::default()).unwrap();
    let key = |batch| GraphKey {
        generation: 1,
        kind: 1,
        bucket: batch,
        words: [128, 0],
    };
    for batch in 0..20 {
        let record = RecordOptions::default();
        let recording = cache.begin(key(batch), &stream, record).unwrap();
        out.fill(batch, &stream).unwrap();
        recording.finish().unwrap();
    }
    let mut bare: Vec<_> = (0..20)
        .map(|batch| {
            let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
            out.fill(batch, &stream).unwrap();
            capture.end().unwrap().instantiate().unwrap()
        })
        .collect();

    let fewest = |launch: &mut dyn FnMut(u32)| {
        // The software device allocates in this thread; how often depends on the fill of its
        // queues.
        let rounds = (0..30).map(|_| {
            let before = ALLOCATIONS.get();
            (0..20).for_each(&mut *launch);
            let count = ALLOCATIONS.get() - before;
            stream.synchronize().unwrap();
            count
        });
        rounds.min().unwrap()
    };
    let bare = fewest(&mut |at| bare[at as usize].launch(&stream).unwrap());
    let replays = fewest(&mut |batch| assert!(cache.replay(&key(batch), &stream).unwrap()));
    assert_eq!(replays, bare);
}
