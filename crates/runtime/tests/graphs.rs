//! Graphs that are cached and replayed, on a device: the software device, or a GPU with
//! `FERCUDA_DEVICE=gpu`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test reports by panicking, and its seed is for people"
)]

#[path = "../examples/decode/mod.rs"]
mod decode;

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
    ArgumentBlock, BlockLayout, Budget, GraphCache, GraphError, Key, RecordOptions, Recording,
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
        let budget = Budget {
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
    ) -> fercuda_runtime::Recorded {
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

#[test]
fn graph_is_captured_once_and_replayed_by_its_key() {
    let bench = Bench::new();
    let cache = bench.cache(10 * NODE_BYTES);
    let out = bench.zeroed(1);
    assert!(!cache.replay(&Number(1), &bench.stream).unwrap());
    let recorded = bench.record_adds(&cache, Number(1), &out, &[1, 10]);
    assert_eq!((recorded.nodes, recorded.bytes), (2, 2 * NODE_BYTES));
    assert!(!recorded.updated);
    assert_eq!(out.to_vec(&bench.stream).unwrap(), [0]);
    for _ in 0..20 {
        assert!(cache.replay(&Number(1), &bench.stream).unwrap());
    }
    assert!(!cache.replay(&Number(2), &bench.stream).unwrap());
    assert_eq!(out.to_vec(&bench.stream).unwrap(), [220]);
    let stats = cache.stats();
    assert_eq!((stats.replays, stats.absent, stats.entries), (20, 2, 1));
}

#[test]
fn failed_capture_leaves_the_stream_usable_and_the_earlier_graph() {
    let bench = Bench::new();
    let cache = bench.cache(10 * NODE_BYTES);
    let out = bench.zeroed(1);
    bench.record_adds(&cache, Number(1), &out, &[1]);
    let failing = |recording: &Recording<'_, Number>| -> Result<(), GraphError> {
        bench.add(&out, 100, recording.stream());
        let _scratch = recording.alloc::<u32>(1000)?;
        Err(GraphError::Field { why: "mine".into() })
    };
    for key in [Number(1), Number(2)] {
        let error = cache
            .record(key, &bench.stream, SMALL, failing)
            .unwrap_err();
        assert!(matches!(error, GraphError::Field { .. }), "{error}");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            cache.record(key, &bench.stream, SMALL, |recording| {
                failing(recording).unwrap_err();
                panic!("the body's");
                #[expect(unreachable_code, reason = "the type of what is never returned")]
                Ok::<(), GraphError>(())
            })
        }));
        let payload = panicked.unwrap_err();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"the body's"));
        drop(cache.begin(key, &bench.stream, SMALL).unwrap());
    }
    assert!(!bench.stream.is_capturing());
    bench.add(&out, 1000, &bench.stream);
    assert!(cache.replay(&Number(1), &bench.stream).unwrap());
    assert!(!cache.replay(&Number(2), &bench.stream).unwrap());
    assert_eq!(out.to_vec(&bench.stream).unwrap(), [1001]);
}

#[test]
fn equal_topology_is_updated_in_place_and_another_is_instantiated() {
    let bench = Bench::new();
    let cache = bench.cache(10 * NODE_BYTES);
    let (out, other) = (bench.zeroed(1), bench.zeroed(1));
    bench.record_adds(&cache, Number(1), &out, &[1]);
    cache.replay(&Number(1), &bench.stream).unwrap();
    // A launch of the replaced graph is still pending.
    let before = Held::hold(&bench.stream);
    cache.replay(&Number(1), &bench.stream).unwrap();
    // The upload is ordered behind the graph's launches, in this stream, which waits for that on
    // drop.
    let side = Stream::new(&bench.context).unwrap();
    let released = std::thread::scope(|threads| {
        let (bench, cache, other, side) = (&bench, &cache, &other, &side);
        threads
            .spawn(move || {
                let recording = cache.begin(Number(1), side, SMALL).unwrap();
                bench.add(other, 7, side);
                let recorded = recording.finish().unwrap();
                assert!(recorded.updated);
            })
            .join()
            .unwrap();
        before.release()
    });
    assert!(released, "the update waited for a launch");
    cache.replay(&Number(1), &bench.stream).unwrap();
    assert_eq!(out.to_vec(&bench.stream).unwrap(), [2]);
    assert_eq!(other.to_vec(&bench.stream).unwrap(), [7]);
    let recorded = bench.record_adds(&cache, Number(1), &out, &[1, 1]);
    assert!(!recorded.updated);
    cache.replay(&Number(1), &bench.stream).unwrap();
    assert_eq!(out.to_vec(&bench.stream).unwrap(), [4]);
    let stats = cache.stats();
    assert_eq!(
        (
            stats.entries,
            stats.instantiated,
            stats.updated,
            stats.bytes
        ),
        (1, 2, 1, 2 * NODE_BYTES)
    );
}

#[test]
fn resources_replaced_by_an_update_are_freed_by_later_calls() {
    let bench = Bench::new();
    let cache = bench.cache(10 * NODE_BYTES);
    let out = bench.zeroed(1);
    let token = Arc::new(());
    let side = Stream::new(&bench.context).unwrap();
    let record = || {
        let recording = cache.begin(Number(1), &bench.stream, SMALL).unwrap();
        bench.add(&out, 1, recording.stream());
        recording.keep(token.clone());
        recording.finish().unwrap();
    };
    record();
    let before = Held::hold(&side);
    cache.replay(&Number(1), &side).unwrap();
    record();
    assert_eq!(Arc::strong_count(&token), 3);
    assert!(before.release());
    side.synchronize().unwrap();
    for _ in 0..64 {
        cache.replay(&Number(1), &side).unwrap();
    }
    assert_eq!(Arc::strong_count(&token), 2);
    assert_eq!(out.to_vec(&side).unwrap(), [65]);
}

#[test]
fn graph_dropped_while_running_lives_until_it_is_done_and_no_longer() {
    let bench = Bench::new();
    let cache = bench.cache(2 * NODE_BYTES + (1 << 20));
    let out = bench.zeroed(1);
    let token = Arc::new(());
    type LetGo = fn(&Bench, &GraphCache<Number>, &DeviceBuffer<u32>);
    let ways: [LetGo; 4] = [
        |_, cache, _| assert!(cache.invalidate(&Number(11))),
        |_, cache, _| assert_eq!(cache.invalidate_all(), 1),
        |_, cache, _| {
            assert_eq!(cache.invalidate_generation(0), 0);
            assert_eq!(cache.invalidate_generation(1), 1);
        },
        |_, cache, _| {
            cache.set_budget_bytes(0);
            cache.set_budget_bytes(2 * NODE_BYTES + (1 << 20));
        },
    ];
    for (way, let_go) in ways.iter().enumerate() {
        let recording = cache.begin(Number(11), &bench.stream, SMALL).unwrap();
        let mut scratch = recording.alloc::<u32>(1 << 18).unwrap();
        scratch
            .as_slice_mut()
            .fill(5 + way as u32, &bench.stream)
            .unwrap();
        let value = scratch.slice(77..78).unwrap();
        let mut out = out.part::<u32>(0, 1).unwrap();
        out.copy_from(value, &bench.stream).unwrap();
        recording.keep(token.clone());
        drop(scratch);
        let recorded = recording.finish().unwrap();
        assert_eq!(recorded.arena_bytes, 1 << 20);
        let before = Held::hold(&bench.stream);
        cache.replay(&Number(11), &bench.stream).unwrap();
        let_go(&bench, &cache, &out);
        let after = Held::hold(&bench.stream);
        assert!(!cache.contains(&Number(11)));
        assert!(!cache.replay(&Number(11), &bench.stream).unwrap());
        cache.reap();
        assert_eq!((cache.stats().retired, Arc::strong_count(&token)), (1, 2));
        // Memory that was freed too early would have been reused by now.
        let side = Stream::new(&bench.context).unwrap();
        let others: Vec<_> = (0..8)
            .map(|_| {
                let mut other = DeviceBuffer::<u32>::alloc_ordered(&side, 1 << 18).unwrap();
                other.fill(1000, &side).unwrap();
                other
            })
            .collect();
        assert!(before.release());
        wait_until(|| {
            cache.reap();
            cache.stats().retired == 0
        });
        assert_eq!(Arc::strong_count(&token), 1);
        assert!(after.release(), "dropping waited for later work");
        drop(others);
        assert_eq!(out.to_vec(&bench.stream).unwrap(), [5 + way as u32]);
    }
}

#[test]
fn dropped_cache_waits_for_its_replays_only() {
    let bench = Bench::new();
    let cache = bench.cache(10 * NODE_BYTES);
    let out = bench.zeroed(1);
    let token = Arc::new(());
    for number in 0..3 {
        let recording = cache.begin(Number(number), &bench.stream, SMALL).unwrap();
        bench.add(&out, 1, recording.stream());
        recording.keep(token.clone());
        recording.finish().unwrap();
    }
    let before = Held::hold(&bench.stream);
    for number in 0..3 {
        cache.replay(&Number(number), &bench.stream).unwrap();
    }
    let dropped = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let dropping = threads.spawn(|| {
            drop(cache);
            dropped.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!dropped.load(Ordering::SeqCst));
        assert_eq!(Arc::strong_count(&token), 4);
        assert!(before.release());
        dropping.join().unwrap();
    });
    assert_eq!(Arc::strong_count(&token), 1);
    assert_eq!(out.to_vec(&bench.stream).unwrap(), [3]);
}

#[test]
fn graph_above_the_budget_is_an_error_with_numbers() {
    let bench = Bench::new();
    let cache = bench.cache(2 * NODE_BYTES);
    let out = bench.zeroed(1);
    bench.record_adds(&cache, Number(1), &out, &[1]);
    let recording = cache.begin(Number(1), &bench.stream, SMALL).unwrap();
    for _ in 0..3 {
        bench.add(&out, 1, recording.stream());
    }
    let error = recording.finish().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("a graph of 3 nodes with an arena of 0 bytes counts as 3000 bytes, but the budget is 2000"),
        "{error}"
    );
    assert!(cache.replay(&Number(1), &bench.stream).unwrap());
    assert_eq!(out.to_vec(&bench.stream).unwrap(), [1]);
}

#[test]
fn graph_captured_before_its_key_was_invalidated_is_not_kept() {
    let bench = Bench::new();
    let cache = bench.cache(10 * NODE_BYTES);
    let out = bench.zeroed(1);
    let ways: [fn(&GraphCache<Number>); 3] = [
        |cache| assert!(!cache.invalidate(&Number(25))),
        |cache| assert_eq!(cache.invalidate_all(), 0),
        |cache| assert_eq!(cache.invalidate_generation(2), 0),
    ];
    for invalidate in ways {
        let recording = cache.begin(Number(25), &bench.stream, SMALL).unwrap();
        bench.add(&out, 1, recording.stream());
        invalidate(&cache);
        let error = recording.finish().unwrap_err();
        assert!(matches!(error, GraphError::Invalidated), "{error}");
        assert!(!cache.contains(&Number(25)));
    }
    let recording = cache.begin(Number(25), &bench.stream, SMALL).unwrap();
    bench.add(&out, 1, recording.stream());
    cache.invalidate_generation(1);
    cache.invalidate(&Number(26));
    recording.finish().unwrap();
    assert!(cache.contains(&Number(25)));
}

/// A naive cache: a list, the least recently used first.
#[derive(Default)]
struct Model {
    entries: Vec<(Number, u64)>,
    evicted: u64,
}

impl Model {
    fn bytes(&self) -> u64 {
        self.entries.iter().map(|(_, bytes)| bytes).sum()
    }

    fn take(&mut self, key: Number) -> Option<(Number, u64)> {
        let at = self.entries.iter().position(|(other, _)| *other == key)?;
        Some(self.entries.remove(at))
    }

    fn let_go(&mut self, which: impl Fn(Number) -> bool) -> usize {
        let before = self.entries.len();
        self.entries.retain(|(key, _)| !which(*key));
        before - self.entries.len()
    }

    fn shrink(&mut self, budget: u64) {
        while self.bytes() > budget {
            self.entries.remove(0);
            self.evicted += 1;
        }
    }
}

#[test]
fn cache_matches_a_naive_one() {
    const KEYS: u32 = 24;
    let bench = Bench::new();
    let mut random = Random::fresh();
    let random = &mut random.rng;
    for _ in 0..4 {
        let mut budget = random.u64(10..60) << 10;
        let cache = bench.cache(budget);
        let mut model = Model::default();
        let out: Vec<_> = (0..KEYS).map(|_| bench.zeroed(1)).collect();
        let mut sums = [0_u32; KEYS as usize];
        let mut adds = [0_u32; KEYS as usize];
        for _ in 0..250 {
            let number = random.u32(..KEYS);
            let key = Number(number);
            match random.u8(..20) {
                0..8 => {
                    let found = model.take(key);
                    model.entries.extend(found);
                    assert_eq!(cache.replay(&key, &bench.stream).unwrap(), found.is_some());
                    if found.is_some() {
                        let sum = &mut sums[number as usize];
                        *sum = sum.wrapping_add(adds[number as usize]);
                    }
                }
                8..16 => {
                    let kernels = random.usize(1..4);
                    let arena = random.u64(0..32) << 10;
                    let values: Vec<u32> = (0..kernels).map(|_| random.u32(..100)).collect();
                    let options = RecordOptions {
                        arena_bytes: arena,
                        ..SMALL
                    };
                    let recording = cache.begin(key, &bench.stream, options).unwrap();
                    let scratch = recording.alloc::<u32>(arena as usize / 4).unwrap();
                    for value in &values {
                        bench.add(&out[number as usize], *value, recording.stream());
                    }
                    drop(scratch);
                    let bytes = arena + kernels as u64 * NODE_BYTES;
                    match recording.finish() {
                        Ok(recorded) => {
                            assert_eq!(recorded.bytes, bytes);
                            assert!(bytes <= budget);
                            adds[number as usize] = values.iter().sum();
                            model.take(key);
                            model.entries.push((key, bytes));
                            model.shrink(budget);
                        }
                        Err(error) => {
                            assert!(matches!(error, GraphError::TooLarge { .. }), "{error}");
                            assert!(bytes > budget);
                        }
                    }
                }
                16 => assert_eq!(cache.invalidate(&key), model.take(key).is_some()),
                17 => {
                    let generation = random.u64(..3);
                    assert_eq!(
                        cache.invalidate_generation(generation),
                        model.let_go(|key| key.generation() == generation)
                    );
                }
                18 if random.u8(..8) == 0 => {
                    assert_eq!(cache.invalidate_all(), model.let_go(|_| true));
                }
                19 => {
                    budget = random.u64(10..60) << 10;
                    cache.set_budget_bytes(budget);
                    model.shrink(budget);
                }
                _ => cache.reap(),
            }
            let stats = cache.stats();
            assert_eq!(
                (stats.entries, stats.bytes, stats.evicted),
                (model.entries.len(), model.bytes(), model.evicted)
            );
            assert!(model.entries.iter().all(|(key, _)| cache.contains(key)));
        }
        for (out, sum) in out.iter().zip(sums) {
            assert_eq!(out.to_vec(&bench.stream).unwrap(), [sum]);
        }
    }
}

#[test]
fn arena_reuses_dropped_memory_and_never_memory_in_use() {
    let bench = Bench::new();
    let mut random = Random::fresh();
    let random = &mut random.rng;
    let cache = bench.cache(1 << 30);
    let out = bench.zeroed(1);
    for round in 0..30 {
        let options = RecordOptions {
            arena_bytes: random.u64(0..2) * random.u64(0..200_000),
            ..SMALL
        };
        let recording = cache.begin(Number(1), &bench.stream, options).unwrap();
        let mut live: Vec<fercuda_runtime::Scratch<u8>> = Vec::new();
        let (mut most, mut sum) = (0, 0);
        for _ in 0..200 {
            if live.len() < 12 && random.bool() {
                let len = random.usize(0..30_000);
                let fresh = recording.alloc::<u8>(len).unwrap();
                assert_eq!((fresh.len(), fresh.address().0 % 256), (len, 0));
                let ends =
                    |it: &DeviceBuffer<u8>| (it.address().0, it.address().0 + it.len() as u64);
                let (begin, end) = ends(&fresh);
                for other in live.iter().filter(|other| !other.is_empty()) {
                    let (from, to) = ends(other);
                    assert!(end <= from || to <= begin, "round {round}");
                }
                sum += len.next_multiple_of(256) as u64;
                live.push(fresh);
            } else if !live.is_empty() {
                let gone = live.swap_remove(random.usize(..live.len()));
                sum -= gone.len().next_multiple_of(256) as u64;
            }
            most = most.max(sum);
        }
        bench.add(&out, 1, recording.stream());
        let recorded = recording.finish().unwrap();
        assert_eq!(recorded.arena_peak_bytes, most);
        // Never more than a few times the live bytes, of 200 that were allocated.
        assert!(
            recorded.arena_bytes <= (4 * most).max(200_000),
            "{recorded:?}"
        );
    }
    // With an arena of that size from the beginning, one chunk.
    let options = RecordOptions {
        arena_bytes: 3000,
        ..SMALL
    };
    let recording = cache.begin(Number(2), &bench.stream, options).unwrap();
    for _ in 0..100 {
        drop(recording.alloc::<u8>(3000).unwrap());
    }
    bench.add(&out, 1, recording.stream());
    assert_eq!(recording.finish().unwrap().arena_bytes, 3072);
}

#[test]
fn arena_belongs_to_the_graph_even_if_work_has_only_an_address() {
    let bench = Bench::new();
    let cache = bench.cache(1 << 30);
    let recording = cache.begin(Number(1), &bench.stream, SMALL).unwrap();
    let scratch = recording.alloc::<u32>(1 << 16).unwrap();
    let add = &bench.kernels["add"];
    let arguments = (scratch.address(), 1_u32);
    // SAFETY: the first value of `scratch` belongs to the graph as long as it is launched.
    unsafe { Launch::new(1, 1).run(add, recording.stream(), arguments) }.unwrap();
    drop(scratch);
    recording.finish().unwrap();
    let fresh = || {
        let mut buffer = DeviceBuffer::<u32>::alloc_ordered(&bench.stream, 1 << 16).unwrap();
        buffer.fill(5, &bench.stream).unwrap();
        buffer
    };
    let others: Vec<_> = (0..8).map(|_| fresh()).collect();
    // The initial content is undefined, and the kernel adds to it.
    cache.replay(&Number(1), &bench.stream).unwrap();
    for other in &others {
        assert_eq!(
            other.slice(..1).unwrap().to_vec(&bench.stream).unwrap(),
            [5]
        );
    }
    if bench.context.device().cuda().is_software() {
        let findings = fercuda_softgpu::control::take_findings();
        assert!(
            findings.iter().all(|it| it.to_string().contains("uninit")),
            "{findings:?}"
        );
    }
}

#[test]
fn memory_dropped_after_another_stream_joined_is_not_reused() {
    let bench = Bench::new();
    let cache = bench.cache(1 << 30);
    let side = Stream::new(&bench.context).unwrap();
    let recording = cache.begin(Number(1), &bench.stream, SMALL).unwrap();
    let first = recording.alloc::<u32>(64).unwrap();
    let place = first.address();
    drop(first);
    let again = recording.alloc::<u32>(64).unwrap();
    assert_eq!(again.address(), place);
    bench.add(&again, 1, recording.stream());
    side.wait_for(&bench.stream.record().unwrap()).unwrap();
    drop(again);
    let other = recording.alloc::<u32>(64).unwrap();
    assert_ne!(other.address(), place);
    bench.stream.wait_for(&side.record().unwrap()).unwrap();
    recording.finish().unwrap();
}

#[test]
fn captured_memory_keeps_its_address_and_can_outlive_its_entry() {
    let bench = Bench::new();
    let cache = bench.cache(1 << 30);
    let (result, _) = cache
        .record(Number(1), &bench.stream, SMALL, |recording| {
            let stream = recording.stream();
            let mut result = recording.alloc::<u32>(100)?;
            result.as_slice_mut().fill(3, stream)?;
            bench.add(&result, 4, stream);
            Ok::<_, GraphError>(result)
        })
        .unwrap();
    let address = result.address();
    for _ in 0..3 {
        cache.replay(&Number(1), &bench.stream).unwrap();
        assert_eq!(
            result.slice(..2).unwrap().to_vec(&bench.stream).unwrap(),
            [7, 3]
        );
    }
    cache.invalidate_all();
    bench.stream.synchronize().unwrap();
    let others: Vec<_> = (0..8)
        .map(|_| DeviceBuffer::<u32>::zeroed(&bench.stream, 64).unwrap())
        .collect();
    assert_eq!(result.address(), address);
    assert_eq!(
        result.slice(..2).unwrap().to_vec(&bench.stream).unwrap(),
        [7, 3]
    );
    drop((cache, others, result));
}

#[test]
fn replay_reads_the_push_before_it_however_far_the_host_is_ahead() {
    const STEPS: usize = 500;
    let bench = Bench::new();
    let cache = bench.cache(1 << 30);
    let log = bench.zeroed(STEPS * 2 + 2);
    // The first word is the number of words, including itself.
    bench.add(&log, 1, &bench.stream);
    let mut layout = BlockLayout::new();
    let fields = layout.decode();
    let mine = layout.array::<f32>("mine", 3);
    let wide = layout.field::<u64>("wide");
    assert_eq!(
        [
            fields.token.offset_bytes(),
            fields.position.offset_bytes(),
            fields.kv_len.offset_bytes()
        ],
        [0, 4, 8]
    );
    assert_eq!(
        (mine.offset_bytes(), wide.offset_bytes(), layout.bytes()),
        (12, 24, 32)
    );
    for pushes in [1, 5, 64] {
        let mut block = ArgumentBlock::new(&bench.stream, layout.clone(), pushes).unwrap();
        let recording = cache.begin(Number(1), &bench.stream, SMALL).unwrap();
        bench.note(&log, &block.field(fields.token).unwrap());
        bench.note(&log, &block.field(fields.kv_len).unwrap());
        recording.finish().unwrap();
        let first = log.slice(..1).unwrap().to_vec(&bench.stream).unwrap()[0] as usize;
        assert_eq!(first, 1);
        let mut held = (pushes == 64).then(|| Held::hold(&bench.stream));
        for step in 0..STEPS as u32 {
            if step == 64
                && let Some(held) = held.take()
            {
                assert!(held.release(), "a push waited for the device");
            }
            block.set(fields.token, step * 3).unwrap();
            block.set(fields.kv_len, step + 1).unwrap();
            block.push(&bench.stream).unwrap();
            block.set(fields.token, 0xdead).unwrap();
            cache.replay(&Number(1), &bench.stream).unwrap();
        }
        let noted = log.to_vec(&bench.stream).unwrap();
        for (step, pair) in (0_u32..).zip(noted[1..=2 * STEPS].chunks(2)) {
            assert_eq!(pair, [step * 3, step + 1], "{pushes} pushes");
        }
        let back = DeviceBuffer::from_host(&[1_u32], &bench.stream).unwrap();
        let mut count = log.part::<u32>(0, 1).unwrap();
        count.copy_from(back.as_slice(), &bench.stream).unwrap();
        bench.stream.synchronize().unwrap();
    }
}

#[test]
fn field_of_another_layout_is_refused() {
    let bench = Bench::new();
    let (mut layout, mut other) = (BlockLayout::new(), BlockLayout::new());
    let token = layout.field::<u32>("token");
    let pair = layout.array::<f32>("pair", 2);
    other.field::<u64>("pad");
    let far = other.field::<u32>("far");
    let float = BlockLayout::new().field::<f32>("float");
    let mut block = ArgumentBlock::new(&bench.stream, layout, 4).unwrap();
    block.set(token, 5).unwrap();
    block.set_at(pair, 1, 2.5).unwrap();
    let refused = [
        block.set(far, 1).unwrap_err(),
        block.set(float, 1.0).unwrap_err(),
        block.set_at(pair, 2, 1.0).unwrap_err(),
        block.field(far).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, GraphError::Field { .. }), "{error}");
    }
    block.push(&bench.stream).unwrap();
    let bytes = block.memory().to_vec(&bench.stream).unwrap();
    assert_eq!(bytes, [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 64]);
}

#[test]
fn two_threads_replay_record_and_invalidate_concurrently() {
    const KEYS: u32 = 4;
    let bench = Bench::new();
    let mut random = Random::fresh();
    let seeds = [random.rng.u64(..), random.rng.u64(..)];
    let cache = bench.cache(5 * NODE_BYTES);
    // A value for each thread and key, so that the additions on the device do not race.
    let outs: Vec<Vec<_>> = (0..2)
        .map(|_| (0..KEYS).map(|_| bench.zeroed(1)).collect())
        .collect();
    let shared = bench.zeroed(1);
    bench.record_adds(&cache, Number(99), &shared, &[0]);
    std::thread::scope(|threads| {
        for (thread, seed) in seeds.into_iter().enumerate() {
            let (bench, cache, outs) = (&bench, &cache, &outs[thread]);
            threads.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let stream = Stream::new(&bench.context).unwrap();
                let mut sums = [0_u32; KEYS as usize];
                for _ in 0..400 {
                    let number = random.u32(..KEYS);
                    let key = Number(10 * (thread as u32 + 1) + number);
                    match random.u8(..10) {
                        0 => {
                            cache.invalidate(&key);
                        }
                        // Each wants the entry that the other has checked out.
                        1 | 2 => {
                            cache.replay(&Number(99), &stream).unwrap();
                            stream.synchronize().unwrap();
                        }
                        _ => {
                            if !cache.replay(&key, &stream).unwrap() {
                                let recording = cache.begin(key, &stream, SMALL).unwrap();
                                bench.add(&outs[number as usize], 1, &stream);
                                recording.finish().unwrap();
                            } else {
                                sums[number as usize] += 1;
                            }
                        }
                    }
                }
                for (out, sum) in outs.iter().zip(sums) {
                    assert_eq!(out.to_vec(&stream).unwrap(), [sum]);
                }
            });
        }
    });
}

#[test]
fn timed_replay_reports_host_and_device_time() {
    let bench = Bench::new();
    let cache = bench.cache(1 << 30);
    let out = bench.zeroed(1);
    bench.record_adds(&cache, Number(1), &out, &[1; 50]);
    assert!(
        cache
            .replay_timed(&Number(2), &bench.stream)
            .unwrap()
            .is_none()
    );
    let timing = cache
        .replay_timed(&Number(1), &bench.stream)
        .unwrap()
        .unwrap();
    let times = timing.wait().unwrap();
    assert!(times.upload > Duration::ZERO && times.device > Duration::ZERO);
    assert!(times.launch <= times.completion, "{times:?}");
    assert_eq!(out.to_vec(&bench.stream).unwrap(), [50]);
}

#[test]
fn graph_retains_host_slots_and_callbacks() {
    let bench = Bench::new();
    let cache = bench.cache(1 << 30);
    let slot = HostSlot::<u32>::new(&bench.context, 1).unwrap();
    let calls = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counted = calls.clone();
    let recording = cache.begin(Number(1), &bench.stream, SMALL).unwrap();
    let mut scratch = recording.alloc::<u32>(1).unwrap();
    let capture = recording.capture();
    capture
        .upload(&mut scratch.as_slice_mut(), &slot, &bench.stream)
        .unwrap();
    bench.add(&scratch, 1, &bench.stream);
    capture
        .download(scratch.as_slice(), &slot, &bench.stream)
        .unwrap();
    capture
        .host_callback(&bench.stream, move || {
            counted.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
    drop(scratch);
    recording.finish().unwrap();
    for value in [10, 20] {
        slot.with(|values| values[0] = value).unwrap();
        cache.replay(&Number(1), &bench.stream).unwrap();
        assert_eq!(slot.with(|values| values[0]).unwrap(), value + 1);
    }
    let refused = slot
        .with(|_| cache.replay(&Number(1), &bench.stream))
        .unwrap();
    assert!(matches!(
        refused,
        Err(GraphError::Cuda(fercuda_cuda::Error::SlotHeld))
    ));
    bench.stream.synchronize().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[test]
fn replays_of_many_keys_equal_eager_steps_despite_evictions_and_pool_use() {
    let bench = Bench::new();
    let random = Random::fresh();
    let options = Options {
        seed: random.seed,
        replays: 400,
        keys: 16,
        // A worker's eight keys do not fit: one is evicted also if the other worker has ended
        // before this one began.
        fitting: 4,
        stay: 5,
        compare: 20,
        invalidate: 60,
        workers: 2,
        churners: 1,
        longest: Duration::from_secs(60),
        shape: Shape {
            kernels: 32,
            width: 64,
            rows: 4,
        },
    };
    let report = run(&bench.context, &options).unwrap();
    assert_eq!((report.replays, report.compared), (400, 20));
    assert_eq!(report.around[0].pool_bytes, report.around[1].pool_bytes);
    let made = report.stats.instantiated + report.stats.updated;
    // The first one measured the size of a graph; invalidated ones are not kept.
    assert!(made <= report.captures + 1, "{report:?}");
    assert!(report.graph_bytes > 0 && report.took > Duration::ZERO);
    // With checks, freed memory stays reserved for a while.
    let [early, late] = [report.early, report.late].map(|held| held.device_bytes);
    assert!(late < early + (256 << 20) && report.late.host_bytes > 0);
    assert!(
        report.stats.evicted > 10 && report.stats.retired == 0 && report.churned > 0,
        "{report:?}"
    );
}

#[test]
fn cache_is_send_and_sync() {
    fn is<T: Send + Sync>() {}
    is::<GraphCache<Number>>();
    fn may_go<T: Send>() {}
    may_go::<ArgumentBlock>();
    may_go::<fercuda_runtime::Scratch<f32>>();
}
