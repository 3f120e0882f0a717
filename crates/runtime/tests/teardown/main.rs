//! Concurrent shutdown of dispatchers, sessions and runtimes: on the software device, or a GPU with
//! `FERCUDA_DEVICE=gpu`. A deadlock becomes a failure here.
#![expect(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test reports by panicking, one task is its own, and it lends memory"
)]

#[path = "../bench/mod.rs"]
mod bench;
#[path = "../gate/mod.rs"]
mod gate;

mod callers;
mod concurrent;
mod kernels;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bench::Bench;
use fercuda_cuda::sys::types::CUresult;
use fercuda_cuda::{DeviceBuffer, SharedWords, Stream, destroy_later};
use fercuda_runtime::jit::{Binary, ExprGraph as Expression};
use fercuda_runtime::{
    BufferId, DispatchError, DispatchOptions, Dispatcher, Dtype, EndReason, Error, GraphBudget,
    Key, Layout, RecordOptions, Regime, Resident, Session, StandardTask, TaskArgs, TaskBuffer,
    TaskBuffers, TaskError, TaskId, TaskJob, TaskSet,
};

const LONG: Duration = Duration::from_secs(120);
const LEN: u64 = 1024;

/// Runs work, and fails if that takes too long.
fn soon<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (give, take) = channel();
    let thread = std::thread::spawn(move || give.send(work()).unwrap());
    let done = take.recv_timeout(LONG);
    if thread.is_finished() {
        thread.join().unwrap();
    }
    done.expect("it takes too long")
}

fn small() -> DispatchOptions {
    DispatchOptions {
        capacity: 8,
        threads: 64,
        // A loaded machine may run a kernel once in seconds.
        watchdog: Duration::from_secs(30),
        ..DispatchOptions::default()
    }
}

fn layout() -> Layout {
    Layout::contiguous(Dtype::U32, &[LEN]).unwrap()
}

fn words(session: &Session) -> BufferId {
    session.buffer(&[LEN], &[0u32; LEN as usize]).unwrap()
}

/// A dispatcher over one buffer, with the standard tasks and one that waits until the buffer's
/// first word is not 0, which it never is.
fn serve(session: &Session, id: BufferId, options: DispatchOptions) -> (Resident, TaskId) {
    SET.with(|(set, gate)| (session.dispatcher(set, &[id], options).unwrap(), *gate))
}

/// Loads the kernel before a wait or a resident kernel.
fn load(bench: &Bench, options: &DispatchOptions) {
    SET.with(|(set, _)| set.load(&bench.runtime.context(), options))
        .unwrap();
}

thread_local! {
    /// The test's own set, loaded once: loading code waits for the device.
    static SET: (TaskSet, TaskId) = gate::gated();
}

fn span(words: std::ops::Range<u64>) -> TaskArgs {
    TaskArgs::new().span(TaskBuffer(0), words.start * 4..words.end * 4)
}

fn fill(resident: &Resident) -> TaskJob {
    let arguments = span(1..LEN);
    resident
        .submit(0, StandardTask::Fill.id(), &arguments)
        .unwrap()
}

/// The gate, once begun: it runs until it is cancelled, or has exhausted its steps.
fn shut(resident: &Resident, gate: TaskId) -> TaskJob {
    let arguments = span(0..1).steps(u32::MAX);
    let shut = resident.submit(0, gate, &arguments).unwrap();
    while !shut.has_begun() {
        std::thread::yield_now();
    }
    shut
}
