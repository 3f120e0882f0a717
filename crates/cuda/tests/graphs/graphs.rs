//! Capturing, and the resources that a graph keeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fercuda_cuda::{CaptureMode, Context, DeviceBuffer, Error, Graph, HostSlot, Launch, Stream};

use crate::support::{context, increment, kernel, write_late};

#[test]
fn captured_work_runs_in_each_launch_and_not_before() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    for mode in [
        CaptureMode::Global,
        CaptureMode::ThreadLocal,
        CaptureMode::Relaxed,
    ] {
        out.fill(0, &stream).unwrap();
        let capture = stream.begin_capture(mode).unwrap();
        assert!(stream.is_capturing());
        increment(&mut out, &stream);
        increment(&mut out, &stream);
        let graph = capture.end().unwrap();
        assert!(!stream.is_capturing());
        assert_eq!(graph.node_count().unwrap(), 2);
        assert_eq!(out.to_vec(&stream).unwrap(), [0]);
        let mut exec = graph.instantiate().unwrap();
        exec.upload(&stream).unwrap();
        for _ in 0..10 {
            exec.launch(&stream).unwrap();
        }
        assert_eq!(out.to_vec(&stream).unwrap(), [20]);
    }
}

#[test]
fn a_capture_that_is_dropped_is_discarded_and_the_stream_usable() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let capture = stream.begin_capture(CaptureMode::default()).unwrap();
    increment(&mut out, &stream);
    drop(capture);
    assert!(!stream.is_capturing());
    increment(&mut out, &stream);
    assert_eq!(out.to_vec(&stream).unwrap(), [1]);
}

#[test]
fn a_graph_keeps_the_memory_and_the_module_it_uses() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let mut scratch = DeviceBuffer::<u32>::zeroed(&stream, 256).unwrap();
    let mut ordered = DeviceBuffer::<u32>::alloc_ordered(&stream, 256).unwrap();
    let capture = stream.begin_capture(CaptureMode::Global).unwrap();
    scratch.fill(1, &stream).unwrap();
    ordered.fill(2, &stream).unwrap();
    increment(&mut scratch, &stream);
    out.copy_from(scratch.slice(..1).unwrap(), &stream).unwrap();
    drop((scratch, ordered));
    let graph = capture.end().unwrap();
    let mut exec = graph.instantiate().unwrap();
    drop(graph);
    let others: Vec<_> = (0..8)
        .map(|_| DeviceBuffer::<u32>::zeroed(&stream, 256).unwrap())
        .collect();
    exec.launch(&stream).unwrap();
    assert_eq!(out.to_vec(&stream).unwrap(), [2]);
    for other in &others {
        assert_eq!(other.to_vec(&stream).unwrap(), [0; 256]);
    }
}

#[test]
fn a_graph_keeps_resources_that_were_used_before_the_capture_too() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let increment = kernel(&context, "increment");
    let mut scratch = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let launch = Launch::new(1, 1);
    for _ in 0..2 {
        // SAFETY: `increment` touches the first value of `scratch`.
        unsafe { launch.run(&increment, &stream, (&mut scratch,)) }.unwrap();
    }
    let capture = stream.begin_capture(CaptureMode::Global).unwrap();
    // SAFETY: as above.
    unsafe { launch.run(&increment, &stream, (&mut scratch,)) }.unwrap();
    let graph = capture.end().unwrap();
    assert_eq!(graph.node_count().unwrap(), 1);
    drop((increment, scratch));
    let others: Vec<_> = (0..8)
        .map(|_| DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap())
        .collect();
    let mut exec = graph.instantiate().unwrap();
    exec.launch(&stream).unwrap();
    stream.synchronize().unwrap();
    for other in &others {
        assert_eq!(other.to_vec(&stream).unwrap(), [0]);
    }
}

#[test]
fn memory_dropped_while_its_home_is_captured_is_not_part_of_the_graph() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let unrelated = DeviceBuffer::<u32>::alloc_ordered(&stream, 256).unwrap();
    let capture = stream.begin_capture(CaptureMode::Global).unwrap();
    drop(unrelated);
    increment(&mut out, &stream);
    let graph = capture.end().unwrap();
    assert_eq!(graph.node_count().unwrap(), 1);
    let mut exec = graph.instantiate().unwrap();
    for _ in 0..3 {
        exec.launch(&stream).unwrap();
    }
    assert_eq!(out.to_vec(&stream).unwrap(), [3]);
}

#[test]
fn allocating_and_loading_work_in_the_thread_that_captures() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let other = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let capture = stream.begin_capture(CaptureMode::Global).unwrap();
    increment(&mut out, &stream);
    let fresh = DeviceBuffer::from_host(&[4u32], &other).unwrap();
    assert_eq!(fresh.to_vec(&other).unwrap(), [4]);
    drop(fresh);
    let graph = capture.end().unwrap();
    graph.instantiate().unwrap().launch(&stream).unwrap();
    assert_eq!(out.to_vec(&stream).unwrap(), [1]);
}

#[test]
fn calls_that_cannot_be_captured_are_refused_and_the_capture_continues() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let capture = stream.begin_capture(CaptureMode::Global).unwrap();
    let refused = |error: Error| assert!(matches!(error, Error::Capturing { .. }), "{error}");
    refused(out.copy_from_host(&[1], &stream).unwrap_err());
    refused(out.to_vec(&stream).unwrap_err());
    refused(out.as_slice_mut().upload(vec![1], &stream).unwrap_err());
    refused(stream.synchronize().unwrap_err());
    refused(stream.is_idle().unwrap_err());
    refused(stream.host_callback(|| ()).unwrap_err());
    refused(stream.begin_capture(CaptureMode::Global).unwrap_err());
    refused(DeviceBuffer::<u32>::alloc_ordered(&stream, 1).unwrap_err());
    refused(
        context
            .legacy_stream()
            .begin_capture(CaptureMode::Global)
            .unwrap_err(),
    );
    let event = stream.record().unwrap();
    refused(event.synchronize().unwrap_err());
    refused(event.is_done().unwrap_err());
    increment(&mut out, &stream);
    capture
        .end()
        .unwrap()
        .instantiate()
        .unwrap()
        .launch(&stream)
        .unwrap();
    assert_eq!(out.to_vec(&stream).unwrap(), [1]);
}

#[test]
fn streams_that_fork_and_join_are_captured_together() {
    let context = context();
    let (stream, side) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let mut other = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    stream.synchronize().unwrap();
    let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
    increment(&mut out, &stream);
    side.wait_for(&stream.record().unwrap()).unwrap();
    assert!(side.is_capturing());
    increment(&mut other, &side);
    increment(&mut out, &stream);
    stream.wait_for(&side.record().unwrap()).unwrap();
    let graph = capture.end().unwrap();
    assert!(!side.is_capturing());
    let mut exec = graph.instantiate().unwrap();
    exec.launch(&side).unwrap();
    exec.launch(&side).unwrap();
    side.synchronize().unwrap();
    assert_eq!(
        (out.to_vec(&stream).unwrap(), other.to_vec(&stream).unwrap()),
        (vec![4], vec![2])
    );
}

#[test]
fn a_fork_that_never_joins_is_an_error_and_both_streams_are_usable() {
    let context = context();
    let (stream, side) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    stream.synchronize().unwrap();
    let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
    side.wait_for(&stream.record().unwrap()).unwrap();
    increment(&mut out, &side);
    let error = capture.end().unwrap_err();
    assert_eq!(
        error.code().and_then(|code| code.name()),
        Some("CUDA_ERROR_STREAM_CAPTURE_UNJOINED")
    );
    for stream in [&stream, &side] {
        assert!(!stream.is_capturing());
        increment(&mut out, stream);
        stream.synchronize().unwrap();
    }
    assert_eq!(out.to_vec(&stream).unwrap(), [2]);
}

#[test]
fn a_default_stream_does_not_join() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
    let event = stream.record().unwrap();
    let error = context.per_thread_stream().wait_for(&event).unwrap_err();
    assert!(matches!(error, Error::Capturing { .. }), "{error}");
    capture.end().unwrap();
}

#[test]
fn host_slots_carry_values_in_and_out_of_each_launch() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let (input, output) = (
        HostSlot::new(&context, 1).unwrap(),
        HostSlot::new(&context, 1).unwrap(),
    );
    let capture = stream.begin_capture(CaptureMode::default()).unwrap();
    capture
        .upload(&mut buffer.as_slice_mut(), &input, &stream)
        .unwrap();
    increment(&mut buffer, &stream);
    capture
        .download(buffer.as_slice(), &output, &stream)
        .unwrap();
    let too_long = HostSlot::<u32>::new(&context, 2).unwrap();
    assert!(
        capture
            .upload(&mut buffer.as_slice_mut(), &too_long, &stream)
            .is_err()
    );
    let uncaptured = Stream::new(&context).unwrap();
    assert!(
        capture
            .download(buffer.as_slice(), &output, &uncaptured)
            .is_err()
    );
    let mut exec = capture.end().unwrap().instantiate().unwrap();
    drop(buffer);
    for value in [10, 20, 30] {
        input.with(|values| values[0] = value).unwrap();
        exec.launch(&stream).unwrap();
        assert_eq!(output.with(|values| values[0]).unwrap(), value + 1);
    }
    let held = input.with(|_| exec.launch(&stream)).unwrap();
    assert!(matches!(held, Err(Error::SlotHeld)));
    let nested = input.with(|_| input.with(|_| ())).unwrap();
    assert!(matches!(nested, Err(Error::SlotHeld)));
    drop((input, output));
    exec.launch(&stream).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn callbacks_of_a_graph_run_in_every_launch() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    let capture = stream.begin_capture(CaptureMode::default()).unwrap();
    increment(&mut out, &stream);
    let counted = calls.clone();
    capture
        .host_callback(&stream, move || {
            assert!(counted.fetch_add(1, Ordering::SeqCst) < 3, "the fourth");
        })
        .unwrap();
    let mut exec = capture.end().unwrap().instantiate().unwrap();
    for _ in 0..3 {
        exec.launch(&stream).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    assert_eq!(exec.take_callback_panic(), None);
    exec.launch(&stream).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(exec.take_callback_panic().as_deref(), Some("the fourth"));
    assert_eq!(exec.take_callback_panic(), None);
    drop(exec);
    assert_eq!(Arc::strong_count(&calls), 1);
}

#[test]
fn an_instantiated_graph_is_updated_to_another_of_the_same_topology() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let scale = kernel(&context, "scale");
    let mut buffer = DeviceBuffer::from_host(&[1.0f32], &stream).unwrap();
    let mut captured = |factor: f32, times: usize| {
        let capture = stream.begin_capture(CaptureMode::default()).unwrap();
        for _ in 0..times {
            // SAFETY: `scale` touches the one value.
            unsafe { Launch::new(1, 1).run(&scale, &stream, (&mut buffer, factor, 1u32)) }.unwrap();
        }
        capture.end().unwrap()
    };
    let graphs: Vec<_> = (0..20).map(|_| captured(2.0, 1)).collect();
    let (tripled, longer) = (captured(3.0, 1), captured(2.0, 2));
    let mut exec = graphs[0].instantiate().unwrap();
    exec.launch(&stream).unwrap();
    exec.update(&tripled).unwrap();
    drop(tripled);
    exec.launch(&stream).unwrap();
    let error = exec.update(&longer).unwrap_err();
    assert!(error.to_string().contains("TOPOLOGY_CHANGED"), "{error}");
    for graph in &graphs {
        exec.update(graph).unwrap();
    }
    exec.launch(&stream).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [12.0]);
}

#[test]
fn a_graph_dropped_while_it_runs_is_destroyed_after_it() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let capture = stream.begin_capture(CaptureMode::default()).unwrap();
    write_late(&mut out, 6, &stream);
    let mut exec = capture.end().unwrap().instantiate().unwrap();
    exec.launch(&stream).unwrap();
    drop(exec);
    assert_eq!(out.to_vec(&stream).unwrap(), [6]);
}

#[test]
fn a_launch_into_a_capture_is_refused_and_the_capture_continues() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let capture = stream.begin_capture(CaptureMode::default()).unwrap();
    increment(&mut out, &stream);
    let mut inner = capture.end().unwrap().instantiate().unwrap();
    let capture = stream.begin_capture(CaptureMode::default()).unwrap();
    increment(&mut out, &stream);
    for refused in [inner.launch(&stream), inner.upload(&stream)] {
        assert!(matches!(refused, Err(Error::Capturing { .. })));
    }
    let mut outer = capture.end().unwrap().instantiate().unwrap();
    outer.launch(&stream).unwrap();
    inner.launch(&stream).unwrap();
    assert_eq!(out.to_vec(&stream).unwrap(), [2]);
}

#[test]
fn memory_of_another_threads_stream_is_freed_after_the_captures_it_would_break() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let foreign = std::thread::scope(|threads| {
        let thread = threads.spawn(|| {
            let own = context.per_thread_stream();
            let mut foreign = DeviceBuffer::<u32>::zeroed(&own, 1).unwrap();
            write_late(&mut foreign, 1, &own);
            foreign
        });
        thread.join().unwrap()
    });
    let capture = stream.begin_capture(CaptureMode::Global).unwrap();
    increment(&mut out, &stream);
    drop(foreign);
    increment(&mut out, &stream);
    capture
        .end()
        .unwrap()
        .instantiate()
        .unwrap()
        .launch(&stream)
        .unwrap();
    assert_eq!(out.to_vec(&stream).unwrap(), [2]);
}

#[test]
fn a_graph_is_not_updated_to_one_of_another_device() {
    let cuda = context().device().cuda();
    let contexts: Vec<Context> = cuda
        .devices()
        .unwrap()
        .into_iter()
        .map(|device| Context::primary(device).unwrap())
        .collect();
    let graphs: Vec<Graph> = contexts
        .iter()
        .map(|context| {
            let stream = Stream::new(context).unwrap();
            let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
            let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
            increment(&mut out, &stream);
            capture.end().unwrap()
        })
        .collect();
    for (index, graph) in graphs.iter().enumerate() {
        let mut exec = graph.instantiate().unwrap();
        for (other, graph) in graphs.iter().enumerate() {
            let answer = exec.update(graph);
            if index == other {
                answer.unwrap();
            } else {
                assert!(matches!(answer, Err(Error::OtherContext { .. })));
            }
        }
    }
}

/// Holds up `stream`, and reports afterwards whether it was released before a timeout.
struct HeldStream {
    go_on: std::sync::mpsc::Sender<()>,
    was_released: std::sync::mpsc::Receiver<bool>,
}

impl HeldStream {
    fn hold(stream: &Stream) -> Self {
        let (go_on, wait) = std::sync::mpsc::channel();
        let (report, was_released) = std::sync::mpsc::channel();
        stream
            .host_callback(move || {
                let released = wait.recv_timeout(std::time::Duration::from_secs(20));
                report.send(released.is_ok()).unwrap();
            })
            .unwrap();
        Self {
            go_on,
            was_released,
        }
    }

    fn release(self) -> bool {
        // The receiver is gone after the timeout.
        self.go_on.send(()).ok();
        self.was_released.recv().unwrap()
    }
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        std::thread::yield_now();
    }
}

#[test]
fn a_retired_graph_waits_for_its_launches_and_for_no_later_work() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let token = Arc::new(());
    // Kept, since a module that only the graph holds waits by itself.
    let increment = kernel(&context, "increment");
    let capture = stream.begin_capture(CaptureMode::default()).unwrap();
    // SAFETY: `increment` touches the one value.
    unsafe { Launch::new(1, 1).run(&increment, &stream, (&mut out,)) }.unwrap();
    capture.keep(token.clone());
    let mut exec = capture.end().unwrap().instantiate().unwrap();
    let before = HeldStream::hold(&stream);
    exec.launch(&stream).unwrap();
    let retired = exec.retire();
    let after = HeldStream::hold(&stream);
    assert!(!retired.is_done());
    assert_eq!(Arc::strong_count(&token), 2);
    assert!(before.release());
    wait_until(|| retired.is_done());
    drop(retired);
    assert_eq!(Arc::strong_count(&token), 1);
    assert!(after.release(), "dropping waited for later work");
    assert_eq!(out.to_vec(&stream).unwrap(), [1]);
}

#[test]
fn resources_replaced_by_an_update_are_released_after_the_launches_before_it() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let increment = kernel(&context, "increment");
    let mut captured = |token: &Arc<()>| {
        let capture = stream.begin_capture(CaptureMode::default()).unwrap();
        // SAFETY: `increment` touches the one value.
        unsafe { Launch::new(1, 1).run(&increment, &stream, (&mut out,)) }.unwrap();
        capture.keep(token.clone());
        capture.end().unwrap()
    };
    let tokens = [Arc::new(()), Arc::new(())];
    let graphs = tokens.each_ref().map(&mut captured);
    let mut exec = graphs[0].instantiate().unwrap();
    let before = HeldStream::hold(&stream);
    exec.launch(&stream).unwrap();
    exec.update(&graphs[1]).unwrap();
    let after = HeldStream::hold(&stream);
    drop(graphs);
    let counts = || tokens.each_ref().map(Arc::strong_count);
    exec.release_finished();
    assert_eq!(counts(), [2, 2]);
    assert!(before.release());
    wait_until(|| {
        exec.release_finished();
        counts() == [1, 2]
    });
    assert!(after.release(), "it waited for later work");
    exec.launch(&stream).unwrap();
    drop(exec);
    assert_eq!(counts(), [1, 1]);
    assert_eq!(out.to_vec(&stream).unwrap(), [2]);
}

#[test]
fn memory_dropped_during_a_capture_is_freed_at_its_end_and_not_with_its_graph() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let pool = fercuda_cuda::MemoryPool::new(&context, 0).unwrap();
    let mut part = DeviceBuffer::<u32>::alloc_from(&pool, &stream, 256).unwrap();
    let unused = DeviceBuffer::<u32>::alloc_from(&pool, &stream, 1 << 20).unwrap();
    part.fill(1, &stream).unwrap();
    let all = pool.used_bytes().unwrap();
    let capture = stream.begin_capture(CaptureMode::default()).unwrap();
    out.copy_from(part.slice(..1).unwrap(), &stream).unwrap();
    drop((part, unused));
    assert_eq!(pool.used_bytes().unwrap(), all);
    let graph = capture.end().unwrap();
    stream.synchronize().unwrap();
    let used = pool.used_bytes().unwrap();
    assert!((256 * 4..1 << 20).contains(&used), "{used} of {all}");
    let mut exec = graph.instantiate().unwrap();
    exec.launch(&stream).unwrap();
    assert_eq!(out.to_vec(&stream).unwrap(), [1]);
    drop((graph, exec));
    stream.synchronize().unwrap();
    assert_eq!(pool.used_bytes().unwrap(), 0);
}

#[test]
fn a_capture_reports_whether_other_streams_take_part() {
    let context = context();
    let (stream, side) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let capture = stream.begin_capture(CaptureMode::default()).unwrap();
    increment(&mut out, &stream);
    assert!(!capture.has_forked());
    side.wait_for(&stream.record().unwrap()).unwrap();
    stream.wait_for(&side.record().unwrap()).unwrap();
    assert!(capture.has_forked());
    capture.end().unwrap();
}
