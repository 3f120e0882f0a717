//! Devices, contexts, streams and events.

use fercuda_cuda::sys::types::{CUdevice_attribute, CUlimit};
use fercuda_cuda::{Context, Cuda, DeviceBuffer, Error, Event, Stream};

use crate::support::{context, increment, write_late};

#[test]
fn a_device_reports_its_properties() {
    let device = context().device();
    assert!(!device.name().unwrap().is_empty());
    let (major, _) = device.compute_capability().unwrap();
    assert!(major >= 7);
    assert_eq!(device.warp_size().unwrap(), 32);
    assert_eq!(device.max_threads_per_block().unwrap(), 1024);
    assert!(device.max_shared_bytes().unwrap() >= 48 << 10);
    assert!(device.multiprocessors().unwrap() >= 1);
    assert!(device.memory_bytes().unwrap() >= 1 << 20);
    assert!(device.has_virtual_memory().unwrap());
    assert!(device.has_memory_pools().unwrap());
    assert!(device.has_cooperative_launch().unwrap());
    assert_eq!(device.uuid().unwrap(), device.uuid().unwrap());
    assert!(device.pci_bus_id().unwrap().contains(':'));
    let unknown = device.attribute(CUdevice_attribute(1 << 20)).unwrap_err();
    assert_eq!(
        unknown.code().and_then(|code| code.name()),
        Some("CUDA_ERROR_INVALID_VALUE")
    );
}

#[test]
fn an_unknown_ordinal_is_an_error_with_the_number_of_devices() {
    let cuda = Cuda::from_env().unwrap();
    let count = cuda.device_count().unwrap();
    assert_eq!(cuda.devices().unwrap().len(), count as usize);
    let error = cuda.device(count + 7).unwrap_err();
    assert!(matches!(error, Error::NoDevice { count: reported, .. } if reported == count));
    assert!(error.to_string().contains("\ntry: "), "{error}");
}

#[test]
fn the_primary_context_is_shared_by_all_callers_and_threads() {
    let context = context();
    let again = Context::primary(context.device()).unwrap();
    assert_eq!(context, again);
    let (free, total) = context.memory_info().unwrap();
    assert!(free <= total && total == context.device().memory_bytes().unwrap());
    std::thread::scope(|threads| {
        for value in 0..4u32 {
            let context = &context;
            threads.spawn(move || {
                let stream = Stream::new(context).unwrap();
                let buffer = DeviceBuffer::from_host(&[value; 100], &stream).unwrap();
                assert_eq!(buffer.to_vec(&stream).unwrap(), [value; 100]);
            });
        }
    });
}

#[test]
fn a_limit_that_is_set_is_the_limit_that_is_read() {
    let context = context();
    let limit = CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE;
    context.set_limit(limit, 4 << 20).unwrap();
    assert!(context.limit(limit).unwrap() >= 4 << 20);
}

#[test]
fn priorities_are_clamped_to_the_range_of_the_device() {
    let context = context();
    let (lowest, highest) = context.stream_priorities().unwrap();
    assert!(highest <= lowest);
    assert_eq!(
        Stream::with_priority(&context, highest)
            .unwrap()
            .priority()
            .unwrap(),
        highest
    );
    assert_eq!(
        Stream::with_priority(&context, i32::MIN)
            .unwrap()
            .priority()
            .unwrap(),
        highest
    );
}

#[test]
fn a_stream_is_idle_when_its_work_is_done() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    assert!(stream.is_idle().unwrap());
    let mut out = DeviceBuffer::zeroed(&stream, 1).unwrap();
    write_late(&mut out, 5, &stream);
    stream.synchronize().unwrap();
    assert!(stream.is_idle().unwrap());
    assert_eq!(out.to_vec(&stream).unwrap(), [5]);
}

#[test]
fn work_of_a_stream_that_waits_for_an_event_runs_after_it() {
    let context = context();
    let (first, second) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    for turn in 0..5 {
        let mut out = DeviceBuffer::zeroed(&first, 1).unwrap();
        write_late(&mut out, 40 + turn, &first);
        second.wait_for(&first.record().unwrap()).unwrap();
        increment(&mut out, &second);
        assert_eq!(out.to_vec(&second).unwrap(), [41 + turn]);
    }
}

#[test]
fn the_default_streams_do_work_too() {
    let context = context();
    for stream in [
        context.legacy_stream(),
        context.per_thread_stream(),
        Stream::blocking(&context).unwrap(),
    ] {
        let mut out = DeviceBuffer::zeroed(&stream, 1).unwrap();
        write_late(&mut out, 9, &stream);
        assert_eq!(out.to_vec(&stream).unwrap(), [9]);
    }
}

#[test]
fn memory_used_in_the_per_thread_stream_may_be_freed_by_another_thread() {
    let context = context();
    let stream = context.per_thread_stream();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    write_late(&mut out, 1, &stream);
    std::thread::scope(|threads| {
        threads.spawn(|| drop(out));
        threads.spawn(|| {
            let error = stream.synchronize().unwrap_err();
            assert!(matches!(error, Error::Value { .. }), "{error}");
            assert!(DeviceBuffer::<u32>::zeroed(&stream, 1).is_err());
            context.per_thread_stream().synchronize().unwrap();
        });
    });
    stream.synchronize().unwrap();
}

#[test]
fn timed_events_measure_the_time_between_them() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let (before, after) = (
        Event::timed(&context).unwrap(),
        Event::timed(&context).unwrap(),
    );
    let mut out = DeviceBuffer::zeroed(&stream, 1).unwrap();
    before.record(&stream).unwrap();
    write_late(&mut out, 1, &stream);
    after.record(&stream).unwrap();
    after.synchronize().unwrap();
    assert!(after.is_done().unwrap());
    let time = after.since(&before).unwrap();
    assert!(time.as_nanos() > 0, "{time:?}");
    let untimed = stream.record().unwrap();
    untimed.synchronize().unwrap();
    assert!(untimed.since(&before).is_err());
}

#[test]
fn peers_copy_to_each_other_where_there_are_two() {
    let cuda = Cuda::from_env().unwrap();
    let devices = cuda.devices().unwrap();
    let [first, second, ..] = devices[..] else {
        assert_eq!(devices.len(), 1);
        return;
    };
    let (here, there) = (
        Context::primary(first).unwrap(),
        Context::primary(second).unwrap(),
    );
    assert_ne!(here, there);
    if first.can_access_peer(&second).unwrap() {
        here.enable_peer_access(&there).unwrap();
        here.enable_peer_access(&there).unwrap();
    }
    let (stream, other) = (Stream::new(&here).unwrap(), Stream::new(&there).unwrap());
    let source = DeviceBuffer::from_host(&[1u32, 2, 3], &other).unwrap();
    let mut target = DeviceBuffer::alloc(&here, 3).unwrap();
    target.copy_from(source.as_slice(), &stream).unwrap();
    assert_eq!(target.to_vec(&stream).unwrap(), [1, 2, 3]);
    if first.can_access_peer(&second).unwrap() {
        here.disable_peer_access(&there).unwrap();
    }
}
