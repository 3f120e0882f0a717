//! Host callbacks: order, panics, and the rule not to call CUDA.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use fercuda_cuda::{CaptureMode, Context, DeviceBuffer, Error, Launch, PinnedBuffer, Stream};

use crate::support::{context, kernel, many_turns, write_late};

#[test]
fn a_callback_runs_after_the_work_before_it_and_before_the_work_behind_it() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let order = Arc::new(AtomicU32::new(0));
    let (tell, told) = mpsc::channel();
    for turn in 0..10 {
        let (order, tell) = (order.clone(), tell.clone());
        stream
            .host_callback(move || {
                tell.send((turn, order.fetch_add(1, Ordering::SeqCst)))
                    .unwrap();
            })
            .unwrap();
    }
    write_late(&mut out, 1, &stream);
    stream.synchronize().unwrap();
    for turn in 0..10 {
        assert_eq!(told.recv().unwrap(), (turn, turn));
    }
}

#[test]
fn a_panic_in_a_callback_is_an_error_of_the_next_wait_and_the_stream_goes_on() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    stream.host_callback(|| panic!("one {}", 1)).unwrap();
    stream.host_callback(|| panic!("two")).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(
        matches!(&error, Error::CallbackPanicked { message } if message == "one 1"),
        "{error}"
    );
    stream.synchronize().unwrap();
    let buffer = DeviceBuffer::from_host(&[1u32], &stream).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1]);
}

#[test]
fn cuda_is_refused_inside_a_callback() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let (tell, told) = mpsc::channel();
    let (inside, other) = (context.clone(), stream.clone());
    stream
        .host_callback(move || {
            tell.send(DeviceBuffer::<u32>::alloc(&inside, 1).is_err())
                .unwrap();
            tell.send(matches!(other.synchronize(), Err(Error::InCallback)))
                .unwrap();
        })
        .unwrap();
    stream.synchronize().unwrap();
    assert_eq!((told.recv(), told.recv()), (Ok(true), Ok(true)));
}

#[test]
fn what_a_callback_drops_is_destroyed_by_the_next_wait() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let buffer = DeviceBuffer::<u8>::alloc(&context, 1 << 20).unwrap();
    let ordered = DeviceBuffer::<u8>::alloc_ordered(&stream, 1 << 20).unwrap();
    let pinned = PinnedBuffer::<u8>::new(&context, 1 << 20).unwrap();
    let (own, event) = (Stream::new(&context).unwrap(), stream.record().unwrap());
    stream
        .host_callback(move || drop((buffer, ordered, pinned, own, event)))
        .unwrap();
    stream.synchronize().unwrap();
    stream.synchronize().unwrap();
}

/// Queues a callback in `stream` that ends when what is returned is dropped.
fn hold(stream: &Stream) -> mpsc::Sender<()> {
    let (hold, held) = mpsc::channel::<()>();
    stream
        .host_callback(move || assert!(held.recv().is_err(), "nothing is sent"))
        .unwrap();
    hold
}

/// Uses memory of one stream in another, lets `drop_stream` drop that one
/// while its kernel runs, and gives the memory back: that is to be ordered
/// behind the kernel all the same.
fn memory_outlives_work_of(drop_stream: impl FnOnce(Stream)) {
    let context = context();
    let late = kernel(&context, "late");
    let (home, stream) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    let mut out = DeviceBuffer::<u32>::alloc_ordered(&home, 1).unwrap();
    let turns = 20 * many_turns(&context);
    // SAFETY: `late` touches the first value only.
    unsafe { Launch::new(1, 1).run(&late, &stream, (&mut out, 1u32, turns)) }.unwrap();
    let done = stream.record().unwrap();
    drop_stream(stream);
    drop(out);
    let given_back = home.record().unwrap();
    assert!(!done.is_done().unwrap(), "the kernel is too short to tell");
    given_back.synchronize().unwrap();
    assert!(done.is_done().unwrap(), "given back under the kernel");
}

#[test]
fn memory_waits_for_a_stream_that_another_thread_is_dropping() {
    memory_outlives_work_of(|stream| {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            tell.send(()).unwrap();
            drop(stream);
        });
        told.recv().unwrap();
        // Until that thread is inside the drop; if it is not yet, the test
        // sees a stream that is alive, which must do as well.
        std::thread::sleep(Duration::from_millis(2));
    });
}

#[test]
fn memory_waits_for_a_stream_that_a_callback_dropped() {
    memory_outlives_work_of(|stream| {
        let other = Stream::new(stream.context()).unwrap();
        let (tell, told) = mpsc::channel();
        other
            .host_callback(move || {
                drop(stream);
                tell.send(()).unwrap();
            })
            .unwrap();
        told.recv().unwrap();
        // Dropping `other` waits for it alone.
    });
}

#[test]
fn a_callback_may_ask_about_a_stream_whose_capture_begins() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let held = hold(&stream);
    let (tell, told) = mpsc::channel();
    let inside = stream.clone();
    stream
        .host_callback(move || {
            inside.is_capturing();
            tell.send(matches!(buffer.fill(1, &inside), Err(Error::InCallback)))
                .unwrap();
        })
        .unwrap();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        drop(held);
    });
    drop(stream.begin_capture(CaptureMode::Relaxed).unwrap());
    assert!(told.recv().unwrap(), "CUDA is refused in a callback");
    release.join().unwrap();
}

#[test]
fn a_panic_in_a_default_stream_is_told_by_any_handle_of_it() {
    let context = context();
    let streams = [Context::legacy_stream, Context::per_thread_stream];
    for stream in streams {
        stream(&context)
            .host_callback(|| panic!("in a default stream"))
            .unwrap();
        let error = stream(&context).synchronize().unwrap_err();
        assert!(
            matches!(&error, Error::CallbackPanicked { message } if message == "in a default stream"),
            "{error}"
        );
        stream(&context).synchronize().unwrap();
    }
}

#[test]
fn devices_and_contexts_are_not_opened_inside_a_callback() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let device = context.device();
    let (tell, told) = mpsc::channel();
    stream
        .host_callback(move || {
            let refused = [
                Context::primary(device).map(drop),
                device.name().map(drop),
                device.cuda().device_count().map(drop),
            ];
            tell.send(refused.map(|answer| matches!(answer, Err(Error::InCallback))))
                .unwrap();
        })
        .unwrap();
    stream.synchronize().unwrap();
    assert_eq!(told.recv(), Ok([true; 3]));
}
