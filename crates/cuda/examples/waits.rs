//! Times which calls wait for work of other streams: each is timed beside a stream that waits for
//! the host for two seconds, with a graph launch queued after that or nothing. A call that takes
//! about as long has waited; `FERCUDA_DEVICE=gpu` measures NVIDIA's driver.
//!
//! `cargo run --release -p fercuda-cuda --example waits`
#![expect(
    unsafe_code,
    clippy::print_stdout,
    reason = "it launches a kernel and prints its measurements"
)]

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use fercuda_cuda::{
    CaptureMode, Context, Cuda, DeviceBuffer, Event, Function, Graph, GraphExec, Image, Launch,
    Module, PinnedBuffer, Result, Stream,
};

const HELD: Duration = Duration::from_secs(2);

/// `out[0] += 7`
const ADD: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [out];
    cvta.to.global.u64 %d1, %d1;
    ld.global.u32 %r1, [%d1];
    add.u32 %r1, %r1, 7;
    st.global.u32 [%d1], %r1;
    ret;
}
";

fn timed<R>(what: &str, call: impl FnOnce() -> Result<R>) -> Result<R> {
    let begun = Instant::now();
    let answer = call();
    let took = begun.elapsed();
    let waited = if took > HELD / 2 { "  waited" } else { "" };
    println!("{:>12.1} us  {what}{waited}", took.as_secs_f64() * 1e6);
    answer
}

/// Makes the stream wait until the returned value is dropped.
fn hold(stream: &Stream) -> Result<Sender<()>> {
    let (hold, held) = channel();
    stream.host_callback(move || {
        let _released_or_timed_out = held.recv_timeout(HELD);
    })?;
    // Time for the device to begin to wait.
    std::thread::sleep(Duration::from_millis(20));
    Ok(hold)
}

fn captured(stream: &Stream, add: &Function, out: &DeviceBuffer<u32>) -> Result<Graph> {
    let capture = stream.begin_capture(CaptureMode::Relaxed)?;
    // SAFETY: the kernel reads and writes the one value, which exists.
    unsafe { Launch::new(1, 1).run(add, stream, (out,)) }?;
    capture.end()
}

/// All calls that a cache of graphs makes when a graph is captured again, and others that are often
/// made beside them.
fn calls(
    context: &Context,
    made_before: Option<Stream>,
    add: &Function,
    exec: &mut GraphExec,
    out: &DeviceBuffer<u32>,
) -> Result<()> {
    let side = match made_before {
        Some(stream) => stream,
        None => timed("create a stream", || Stream::new(context))?,
    };
    let graph = timed("capture a launch", || captured(&side, add, out))?;
    timed("update the graph", || exec.update(&graph))?;
    timed("upload it to the device", || exec.upload(&side))?;
    let other = timed("instantiate it again", || graph.instantiate())?;
    let event = timed("create an event", || Event::timed(context))?;
    timed("record it", || event.record(&side))?;
    let buffer = timed("allocate in the stream's order", || {
        DeviceBuffer::<u8>::alloc_ordered(&side, 4096)
    })?;
    timed("free in the stream's order", || {
        drop(buffer);
        Ok(())
    })?;
    timed("copy from the host", || {
        DeviceBuffer::from_host(&[1u32], &side)
    })?;
    timed("launch the graph", || exec.launch(&side))?;
    timed("wait for the stream", || side.synchronize())?;
    timed("page-lock memory of the host", || {
        PinnedBuffer::<u32>::new(context, 1)
    })?;
    timed("destroy the other graph", || {
        drop(other);
        Ok(())
    })?;
    timed("destroy the stream", || {
        drop(side);
        Ok(())
    })
}

fn main() -> Result<()> {
    let context = Context::primary(Cuda::from_env()?.device(0)?)?;
    let add = Module::load(&context, &Image::ptx(ADD))?.function("add")?;
    let stream = Stream::new(&context)?;
    let out = DeviceBuffer::<u32>::zeroed(&stream, 1)?;
    let mut exec = captured(&stream, &add, &out)?.instantiate()?;
    exec.launch(&stream)?;
    stream.synchronize()?;
    for (pending, same_thread, is_made_before) in [
        (false, true, false),
        (true, true, false),
        (true, true, true),
        (true, false, false),
    ] {
        let behind = if pending { "a launch of it" } else { "nothing" };
        let thread = if same_thread {
            "the same thread"
        } else {
            "a new thread"
        };
        println!("\nqueued after the wait: {behind}; calls of {thread}");
        let before = is_made_before.then(|| Stream::new(&context)).transpose()?;
        let hold = hold(&stream)?;
        if pending {
            exec.launch(&stream)?;
        }
        let mut all = || calls(&context, before.clone(), &add, &mut exec, &out);
        if same_thread {
            all()?;
        } else {
            std::thread::scope(|threads| match threads.spawn(all).join() {
                Ok(done) => done,
                Err(panicked) => std::panic::resume_unwind(panicked),
            })?;
        }
        drop(hold);
        stream.synchronize()?;
    }
    Ok(())
}
