//! Many replays over many keys, concurrent with evictions, invalidations and pool use; a sample of
//! the replays is compared with the same step done eagerly.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fercuda_cuda::{Context, DeviceBuffer, MemoryPool, Stream, destroy_deferred};
use fercuda_runtime::{
    ArgumentBlock, GraphBudget, GraphCache, GraphError, GraphKey, GraphStats, RecordOptions,
};

use super::{Model, Output, POSITIONS, Result, Shape};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub seed: u64,
    pub replays: u64,
    pub keys: u32,
    /// Approximate number of keys that fit the budget.
    pub fitting: u32,
    /// Approximate number of steps with one key.
    pub stay: u64,
    /// Interval in replays of the comparisons with the eager step.
    pub compare: u64,
    /// Interval in replays of the invalidations of a generation.
    pub invalidate: u64,
    /// Threads that replay, each a share of the keys in its own stream.
    pub workers: u32,
    /// Threads that allocate and free concurrently.
    pub churners: u32,
    /// Time after which no more replays begin.
    pub longest: Duration,
    pub shape: Shape,
}

/// Memory in use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    pub device_bytes: u64,
    /// Bytes of the device's pool, after a trim.
    pub pool_bytes: u64,
    pub host_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub replays: u64,
    pub compared: u64,
    pub captures: u64,
    pub churned: u64,
    pub stats: GraphStats,
    pub took: Duration,
    /// When a tenth of the replays were done, with all streams idle.
    pub early: Held,
    /// When all replays were done.
    pub late: Held,
    /// Before anything was created, and after everything was dropped.
    pub around: [Held; 2],
    /// Size of one graph.
    pub graph_bytes: u64,
}

fn key(number: u32, options: &Options) -> GraphKey {
    let rows = options.shape.rows;
    GraphKey {
        // Generations of four keys.
        generation: u64::from(number / 4),
        kind: 1,
        bucket: 1 + number % rows,
        words: [u64::from(1 + number / rows), 0],
    }
}

fn held(context: &Context) -> Result<Held> {
    // Runs deferred frees, in the order of their streams.
    context.synchronize()?;
    destroy_deferred();
    context.synchronize()?;
    let pool = MemoryPool::of_device(context)?;
    pool.trim(0)?;
    let (free, total) = context.memory_info()?;
    let host_pages: u64 = std::fs::read_to_string("/proc/self/statm")?
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .unwrap_or(0);
    Ok(Held {
        device_bytes: total - free,
        // Not the driver's used bytes: these were seen at 32 KiB with nothing reserved, where no
        // allocation can be.
        pool_bytes: pool.reserved_bytes()?,
        host_bytes: host_pages * 4096,
    })
}

/// Allocates, writes, reads and frees in its own stream until `stop`.
fn churn(context: &Context, seed: u64, stop: &AtomicBool, done: &AtomicU64) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let stream = Stream::new(context)?;
    let mut live: Vec<(DeviceBuffer<u32>, u32)> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if live.len() < 16 && random.bool() {
            let value = random.u32(..);
            let mut buffer = DeviceBuffer::alloc_ordered(&stream, random.usize(1..20_000))?;
            buffer.fill(value, &stream)?;
            live.push((buffer, value));
        } else if !live.is_empty() {
            let (buffer, value) = live.swap_remove(random.usize(..live.len()));
            let at = random.usize(..buffer.len());
            if buffer.slice(at..=at)?.to_vec(&stream)? != [value] {
                return Err(format!("another's value at {at} of {}", buffer.len()).into());
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
        std::thread::yield_now();
    }
    Ok(())
}

/// # Errors
/// Those of the device; a result that differs from the eager one.
pub(crate) fn run(context: &Context, options: &Options) -> Result<Report> {
    // As a pool does that keeps memory when a stream is synchronised.
    MemoryPool::of_device(context)?.set_release_threshold(u64::MAX)?;
    let before = held(context)?;
    let stop = AtomicBool::new(false);
    let churned = AtomicU64::new(0);
    let report = std::thread::scope(|threads| {
        let churners: Vec<_> = (0..options.churners)
            .map(|number| {
                let seed = options.seed ^ (u64::from(number) + 1);
                let (stop, churned) = (&stop, &churned);
                threads.spawn(move || churn(context, seed, stop, churned))
            })
            .collect();
        let report = replay_all(context, options);
        stop.store(true, Ordering::Relaxed);
        for churner in churners {
            churner.join().map_err(|_| "a churner panicked")??;
        }
        report
    })?;
    Ok(Report {
        around: [before, held(context)?],
        churned: churned.load(Ordering::Relaxed),
        ..report
    })
}

fn replay_all(context: &Context, options: &Options) -> Result<Report> {
    let cache = GraphCache::new(context, GraphBudget::default())?;
    let capturing = RwLock::new(());
    cache.set_budget_bytes(u64::MAX);
    // The largest of them determines the budget of the others.
    let each = {
        let mut work = Work::new(&cache, options, 0, &capturing)?;
        work.set(0)?;
        work.capture(options.shape.rows - 1)?;
        cache.stats().bytes
    };
    cache.invalidate_all();
    cache.set_budget_bytes(each * u64::from(options.fitting));
    let began = Instant::now();
    let done = std::thread::scope(|threads| {
        let workers: Vec<_> = (0..options.workers)
            .map(|worker| {
                let (cache, capturing) = (&cache, &capturing);
                threads.spawn(move || Work::new(cache, options, worker, capturing)?.replay_share())
            })
            .collect();
        let mut all = Done::default();
        for worker in workers {
            let done = worker.join().map_err(|_| "a worker panicked")??;
            all.replays += done.replays;
            all.compared += done.compared;
            all.captures += done.captures;
            all.early = done.early.or(all.early);
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(all)
    })?;
    let took = began.elapsed();
    let late = held(context)?;
    cache.reap();
    Ok(Report {
        replays: done.replays,
        compared: done.compared,
        captures: done.captures,
        churned: 0,
        stats: cache.stats(),
        took,
        early: done.early.unwrap_or_default(),
        late,
        around: [Held::default(); 2],
        graph_bytes: each,
    })
}

/// Result of a worker.
#[derive(Default)]
struct Done {
    replays: u64,
    compared: u64,
    captures: u64,
    early: Option<Held>,
}

/// A worker: a model, its steps' keys, and their results.
struct Work<'o> {
    options: &'o Options,
    cache: &'o GraphCache<GraphKey>,
    /// Read-locked by captures: meanwhile no thread may wait for the context.
    capturing: &'o RwLock<()>,
    random: fastrand::Rng,
    worker: u32,
    /// The first of its keys.
    first: u32,
    stream: Stream,
    model: Model,
    block: ArgumentBlock,
    outputs: Vec<Output>,
    captures: u64,
    /// Peak of the arenas, by rows.
    arena_bytes: Vec<u64>,
}

impl<'o> Work<'o> {
    fn new(
        cache: &'o GraphCache<GraphKey>,
        options: &'o Options,
        worker: u32,
        capturing: &'o RwLock<()>,
    ) -> Result<Self> {
        let seed = options.seed ^ (u64::from(worker) << 32);
        let mut random = fastrand::Rng::with_seed(seed);
        let stream = Stream::new(cache.context())?;
        let model = Model::new(&stream, options.shape, &mut random)?;
        let keys = options.keys / options.workers;
        let outputs: Result<Vec<_>> = (0..keys)
            .map(|_| Output::new(&stream, options.shape))
            .collect();
        Ok(Self {
            options,
            cache,
            capturing,
            random,
            worker,
            first: worker * keys,
            block: ArgumentBlock::new(&stream, model.layout.clone(), 64)?,
            stream,
            model,
            outputs: outputs?,
            captures: 0,
            arena_bytes: vec![0; options.shape.rows as usize + 1],
        })
    }

    fn key(&self, number: u32) -> GraphKey {
        key(self.first + number, self.options)
    }

    fn capture(&mut self, number: u32) -> Result<()> {
        let key = self.key(number);
        let (size, out) = (
            (key.bucket, key.words[0] as u32),
            &self.outputs[number as usize],
        );
        let arena_bytes = &mut self.arena_bytes[key.bucket as usize];
        let options = RecordOptions {
            arena_bytes: *arena_bytes,
            ..RecordOptions::default()
        };
        let _captures = self.capturing.read();
        let recording = self.cache.begin(key, &self.stream, options)?;
        let (model, stream) = (&self.model, &self.stream);
        let it = Some(&recording);
        model.step(stream, it, &self.block, &model.cache, size, out)?;
        match recording.finish() {
            Ok(recorded) => *arena_bytes = recorded.arena_peak_bytes,
            // Invalidated by another worker; it is captured again.
            Err(GraphError::Invalidated) => {}
            Err(error) => return Err(error.into()),
        }
        self.captures += 1;
        Ok(())
    }

    fn set(&mut self, step: u64) -> Result<()> {
        let fields = self.model.fields;
        let position = (step % u64::from(POSITIONS)) as u32;
        self.block.set(fields.token, (step % 0xffff) as u32)?;
        self.block.set(fields.position, position)?;
        self.block.set(fields.kv_len, position + 1)?;
        Ok(self.block.push(&self.stream)?)
    }

    fn replay(&mut self, number: u32) -> Result<()> {
        let key = self.key(number);
        // Another worker may invalidate the captured graph, but not time after time.
        for _ in 0..20 {
            if self.cache.replay(&key, &self.stream)? {
                return Ok(());
            }
            self.capture(number)?;
        }
        Err("what was captured is not there".into())
    }

    /// Replays a step and does it eagerly with the same cache, and compares the bits.
    fn compare(&mut self, number: u32) -> Result<()> {
        let (stream, key) = (self.stream.clone(), self.key(number));
        let size = (key.bucket, key.words[0] as u32);
        let before = self.model.cache.to_vec(&stream)?;
        let copy = DeviceBuffer::from_host(&before, &stream)?;
        let eager = Output::new(&stream, self.options.shape)?;
        self.model
            .step::<GraphKey>(&stream, None, &self.block, &copy, size, &eager)?;
        self.replay(number)?;
        let out = &self.outputs[number as usize];
        let bits = |buffer: &DeviceBuffer<f32>| -> Result<Vec<u32>> {
            let values = buffer.to_vec(&stream)?;
            Ok(values.into_iter().map(f32::to_bits).collect())
        };
        let used = (size.0 * self.options.shape.width) as usize;
        let (ours, wanted) = (bits(&out.values)?, bits(&eager.values)?);
        if ours[..used] != wanted[..used] || bits(&self.model.cache)? != bits(&copy)? {
            return Err(format!("the replay of {key:?} differs from the eager step").into());
        }
        if ours[..used].iter().all(|bits| *bits == ours[0]) {
            return Err("a step that computes nothing shows nothing".into());
        }
        Ok(())
    }

    fn replay_share(&mut self) -> Result<Done> {
        let options = self.options;
        let replays = options.replays / u64::from(options.workers);
        let began = Instant::now();
        let mut counts = vec![0_u32; self.outputs.len()];
        let mut number = 0;
        let mut done = Done::default();
        while done.replays < replays && began.elapsed() < options.longest {
            if self.random.u64(..options.stay) == 0 {
                number = self.random.u32(..counts.len() as u32);
            }
            self.set(done.replays)?;
            if done.replays % options.compare == options.compare - 1 {
                self.compare(number)?;
                done.compared += 1;
            } else {
                self.replay(number)?;
            }
            counts[number as usize] += 1;
            done.replays += 1;
            if done.replays % options.invalidate == 0 {
                let generations = u64::from(options.keys).div_ceil(4);
                let generation = self.random.u64(..generations);
                self.cache.invalidate_generation(generation);
            }
            if self.worker == 0 && done.replays == replays.div_ceil(10) {
                let _no_capture = self.capturing.write();
                done.early = Some(held(self.cache.context())?);
            }
        }
        for (number, (count, out)) in (0..).zip(counts.iter().zip(&self.outputs)) {
            let steps = out.steps.to_vec(&self.stream)?;
            if steps != [*count] {
                let key = self.key(number);
                return Err(format!("{key:?} was replayed {count} times and ran {steps:?}").into());
            }
        }
        done.captures = self.captures;
        Ok(done)
    }
}
