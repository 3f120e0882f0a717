//! Graphs that are cached and replayed, on a device: the software device, or a GPU with
//! `FERCUDA_DEVICE=gpu`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test reports by panicking, and its seed is for people"
)]

#[path = "../../examples/decode/mod.rs"]
mod decode;

mod arenas;
mod captures;
mod replays;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use decode::Shape;
use decode::run::{Options, run};
use fercuda_cuda::{
    Context, Cuda, DeviceBuffer, Function, HostSlot, Image, Launch, MemoryPool, Module, Stream,
};
use fercuda_runtime::{
    ArgumentBlock, BlockLayout, GraphBudget, GraphCache, GraphError, Key, RecordOptions, Recording,
};

/// Gives one test at a time the device, so that its figures are the test's own; at its end the
/// checks have found nothing, and all memory is freed.
struct Bench {
    context: Context,
    stream: Stream,
    kernels: HashMap<&'static str, Function>,
    held_bytes: u64,
    _alone: MutexGuard<'static, ()>,
}

const PTX: &str = "
.version 8.0
.target sm_80
.address_size 64

// out[0] += value
.visible .entry add(.param .u64 out, .param .u32 value)
{
    .reg .b32 %r<3>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [out];
    ld.param.u32 %r1, [value];
    cvta.to.global.u64 %d1, %d1;
    ld.global.u32 %r2, [%d1];
    add.u32 %r2, %r2, %r1;
    st.global.u32 [%d1], %r2;
    ret;
}

// log[log[0]] = value[0]; log[0] += 1
.visible .entry note(.param .u64 log, .param .u64 value)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<5>;
    ld.param.u64 %d1, [log];
    ld.param.u64 %d2, [value];
    cvta.to.global.u64 %d1, %d1;
    cvta.to.global.u64 %d2, %d2;
    ld.global.u32 %r1, [%d1];
    ld.global.u32 %r2, [%d2];
    mul.wide.u32 %d3, %r1, 4;
    add.s64 %d3, %d1, %d3;
    st.global.u32 [%d3], %r2;
    add.u32 %r1, %r1, 1;
    st.global.u32 [%d1], %r1;
    ret;
}
";

impl Bench {
    fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let device = Cuda::from_env().unwrap().device(0).unwrap();
        let context = Context::primary(device).unwrap();
        let held_bytes = held(&context);
        let module = Module::load(&context, &Image::ptx(PTX)).unwrap();
        let kernels = ["add", "note"].map(|name| (name, module.function(name).unwrap()));
        Self {
            stream: Stream::new(&context).unwrap(),
            kernels: HashMap::from(kernels),
            context,
            held_bytes,
            _alone: alone,
        }
    }

    fn cache(&self, bytes: u64) -> GraphCache<Number> {
        let budget = GraphBudget {
            bytes,
            node_bytes: NODE_BYTES,
        };
        GraphCache::new(&self.context, budget).unwrap()
    }

    fn zeroed(&self, len: usize) -> DeviceBuffer<u32> {
        let buffer = DeviceBuffer::zeroed(&self.stream, len).unwrap();
        self.stream.synchronize().unwrap();
        buffer
    }

    fn add(&self, out: &DeviceBuffer<u32>, value: u32, stream: &Stream) {
        // SAFETY: the kernel reads and writes the first value, which is there.
        unsafe { Launch::new(1, 1).run(&self.kernels["add"], stream, (out, value)) }.unwrap();
    }

    fn note(&self, log: &DeviceBuffer<u32>, value: &DeviceBuffer<u32>) {
        let note = &self.kernels["note"];
        // SAFETY: the tests have room for as many values as they note.
        unsafe { Launch::new(1, 1).run(note, &self.stream, (log, value)) }.unwrap();
    }

    /// Records a graph that adds `values`, each by a kernel.
    fn record_adds(
        &self,
        cache: &GraphCache<Number>,
        key: Number,
        out: &DeviceBuffer<u32>,
        values: &[u32],
    ) -> fercuda_runtime::RecordedGraph {
        let recording = cache.begin(key, &self.stream, SMALL).unwrap();
        for value in values {
            self.add(out, *value, recording.stream());
        }
        recording.finish().unwrap()
    }
}

fn held(context: &Context) -> u64 {
    context.synchronize().unwrap();
    MemoryPool::of_device(context)
        .unwrap()
        .used_bytes()
        .unwrap()
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        assert_eq!(held(&self.context), self.held_bytes);
        if self.context.device().cuda().is_software() {
            let findings = fercuda_softgpu::control::take_findings();
            assert!(findings.is_empty(), "{}", findings[0]);
        }
    }
}

/// A key of these tests: its tens are the generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Number(u32);

impl Key for Number {
    fn generation(&self) -> u64 {
        u64::from(self.0 / 10)
    }
}

const NODE_BYTES: u64 = 1000;
const SMALL: RecordOptions = RecordOptions {
    mode: fercuda_cuda::CaptureMode::ThreadLocal,
    arena_bytes: 256,
};

/// Blocks `stream`, and reports afterwards whether it was released.
struct Held {
    go_on: Sender<()>,
    was_released: Receiver<bool>,
}

impl Held {
    fn hold(stream: &Stream) -> Self {
        let (go_on, wait) = channel();
        let (report, was_released) = channel();
        stream
            .host_callback(move || {
                let released = wait.recv_timeout(Duration::from_secs(20));
                report.send(released.is_ok()).unwrap();
            })
            .unwrap();
        Self {
            go_on,
            was_released,
        }
    }

    fn release(self) -> bool {
        self.go_on.send(()).ok();
        self.was_released.recv().unwrap()
    }
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        std::thread::yield_now();
    }
}

/// A random generator that prints its seed if the test fails.
struct Random {
    rng: fastrand::Rng,
    seed: u64,
}

impl Random {
    fn fresh() -> Self {
        let seed = match std::env::var("FERCUDA_SEED") {
            Ok(seed) => seed.parse().unwrap(),
            Err(_) => fastrand::u64(..),
        };
        let rng = fastrand::Rng::with_seed(seed);
        Self { rng, seed }
    }
}

impl Drop for Random {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("FERCUDA_SEED={}", self.seed);
        }
    }
}
