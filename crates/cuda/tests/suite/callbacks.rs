//! Host callbacks: order, panics, and the rule not to call CUDA.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use fercuda_cuda::{CaptureMode, Context, DeviceBuffer, Error, PinnedBuffer, Stream};

use crate::support::{context, write_late};

#[test]
fn a_callback_runs_after_the_work_before_it_and_before_the_work_after_it() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let order = Arc::new(AtomicU32::new(0));
    let (sender, receiver) = mpsc::channel();
    for turn in 0..10 {
        let (order, sender) = (order.clone(), sender.clone());
        stream
            .host_callback(move || {
                sender
                    .send((turn, order.fetch_add(1, Ordering::SeqCst)))
                    .unwrap();
            })
            .unwrap();
    }
    write_late(&mut out, 1, &stream);
    stream.synchronize().unwrap();
    for turn in 0..10 {
        assert_eq!(receiver.recv().unwrap(), (turn, turn));
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
    let (sender, receiver) = mpsc::channel();
    let (inside, other) = (context.clone(), stream.clone());
    stream
        .host_callback(move || {
            sender
                .send(DeviceBuffer::<u32>::alloc(&inside, 1).is_err())
                .unwrap();
            sender
                .send(matches!(other.synchronize(), Err(Error::InCallback)))
                .unwrap();
        })
        .unwrap();
    stream.synchronize().unwrap();
    assert_eq!((receiver.recv(), receiver.recv()), (Ok(true), Ok(true)));
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

#[test]
fn a_callback_may_query_a_stream_of_which_a_capture_begins() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    // Sleeps in a callback rather than under a lock of this thread, which may have to wait for the
    // callback: a driver blocks all other threads while one waits for all work.
    stream
        .host_callback(|| std::thread::sleep(Duration::from_millis(50)))
        .unwrap();
    let (sender, receiver) = mpsc::channel();
    let inside = stream.clone();
    stream
        .host_callback(move || {
            inside.is_capturing();
            sender
                .send(matches!(buffer.fill(1, &inside), Err(Error::InCallback)))
                .unwrap();
        })
        .unwrap();
    drop(stream.begin_capture(CaptureMode::Relaxed).unwrap());
    assert!(receiver.recv().unwrap(), "CUDA is refused in a callback");
}

#[test]
fn a_panic_in_a_default_stream_is_reported_by_any_handle_of_it() {
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
    let (sender, receiver) = mpsc::channel();
    stream
        .host_callback(move || {
            let refused = [
                Context::primary(device).map(drop),
                device.name().map(drop),
                device.cuda().device_count().map(drop),
            ];
            sender
                .send(refused.map(|answer| matches!(answer, Err(Error::InCallback))))
                .unwrap();
        })
        .unwrap();
    stream.synchronize().unwrap();
    assert_eq!(receiver.recv(), Ok([true; 3]));
}
