//! Cache of executable graphs, captured once and replayed by key; a session owns it.
//!
//! The cache owns the instantiated graphs; a graph owns what its work refers to, including its
//! arena. A replay checks an entry out, launches it and checks it in, so a thread waits for another
//! thread's launch only if both want the same graph; a graph dropped while it runs is retired
//! behind an event.
//!
//! Invariants: there is no process-wide state; a graph is not kept if its key was invalidated
//! during its capture; a dropped graph is destroyed behind its last launch, and no call except
//! dropping the cache waits for that. Elsewhere: the cache itself (`cache`), eviction (`lru`),
//! memory allocated by a capture (`arena`), values that change from replay to replay (`block`),
//! captures and executable graphs (`fercuda_cuda`).

mod arena;
mod block;
mod cache;
mod error;
mod key;
mod lru;
mod recorded;
mod recording;
mod timing;

pub use arena::Scratch;
pub use block::{ArgumentBlock, BlockLayout, Field, FieldType};
pub use cache::{GraphBudget, GraphCache, GraphStats};
pub use error::GraphError;
pub use key::{GraphKey, Key};
pub use recorded::{RecordOptions, RecordedGraph};
pub use recording::Recording;
pub use timing::{ReplayTimes, Timing};

#[cfg(test)]
mod tests {
    use fercuda_cuda::{Cuda, DeviceBuffer};

    use std::time::Duration;

    use fercuda_cuda::{Context, Stream};

    use super::*;

    impl Key for u32 {
        fn generation(&self) -> u64 {
            0
        }
    }

    /// A recording that waits to replace an entry, and is invalidated meanwhile, keeps a newer
    /// entry.
    #[test]
    fn outdated_recording_replaces_nothing() {
        let device = Cuda::from_env().unwrap().device(0).unwrap();
        let context = Context::primary(device).unwrap();
        let streams = [(); 2].map(|()| Stream::new(&context).unwrap());
        let [mut old, mut new] = [(); 2].map(|()| DeviceBuffer::zeroed(&streams[0], 4).unwrap());
        streams[0].synchronize().unwrap();
        let cache = GraphCache::<u32>::new(&context, GraphBudget::default()).unwrap();
        let record = |buffer: &mut DeviceBuffer<u32>, stream: &Stream, value| {
            let recording = cache.begin(7, stream, RecordOptions::default()).unwrap();
            buffer.fill(value, stream).unwrap();
            recording
        };
        record(&mut old, &streams[0], 1).finish().unwrap();
        let out = cache.lru.check_out(&7).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let finished = scope.spawn(|| {
                let recording = record(&mut old, &streams[0], 2);
                sender.send(()).unwrap();
                recording.finish()
            });
            receiver.recv().unwrap();
            // It is waiting for the entry that is checked out, or will.
            std::thread::sleep(Duration::from_millis(50));
            assert!(cache.invalidate(&7));
            record(&mut new, &streams[1], 3).finish().unwrap();
            cache.check_in(out);
            let refused = finished.join().unwrap().unwrap_err();
            assert!(matches!(refused, GraphError::Invalidated), "{refused}");
        });
        assert!(cache.replay(&7, &streams[1]).unwrap());
        assert_eq!(new.to_vec(&streams[1]).unwrap(), [3; 4]);
    }
}
