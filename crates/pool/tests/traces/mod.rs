//! Allocation traces made from the shapes of real models, and a device with mapped memory to replay
//! them on.
//!
//! Only a trace's seed is random. Sizes are those of the tensors that a framework without a caching
//! allocator would request, in that order.
#![allow(
    dead_code,
    reason = "each program that includes this uses a part of it"
)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use fercuda_pool::{
    AllocationRequest, DeviceClock, DevicePool, GrowthRefused, MemoryBacking, MemoryBudget,
    PoolPlace, RetentionPolicy, Span, StreamId, TenantId,
};

const GIB: u64 = 1 << 30;

/// One call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Allocate {
        name: u32,
        bytes: u64,
    },
    Free {
        name: u32,
    },
    /// Waits for all queued work.
    Wait,
}

/// Calls in a stream, or (`plain`) as by `cudaMalloc` and `cudaFree`.
pub(crate) struct Trace {
    pub(crate) name: &'static str,
    pub(crate) seed: u64,
    pub(crate) plain: bool,
    pub(crate) events: Vec<Event>,
}

/// Builds a trace.
struct Writer {
    events: Vec<Event>,
    next: u32,
}

impl Writer {
    fn new() -> Self {
        Self {
            events: Vec::new(),
            next: 0,
        }
    }

    fn allocate(&mut self, bytes: u64) -> u32 {
        let name = self.next;
        self.next += 1;
        self.events.push(Event::Allocate { name, bytes });
        name
    }

    fn all(&mut self, sizes: &[u64]) -> Vec<u32> {
        sizes.iter().map(|bytes| self.allocate(*bytes)).collect()
    }

    fn free(&mut self, name: u32) {
        self.events.push(Event::Free { name });
    }

    /// A short-lived allocation.
    fn briefly(&mut self, bytes: u64) {
        let name = self.allocate(bytes);
        self.free(name);
    }
}

/// A decoder: sizes of hidden states, of the feed-forward net, of keys and values of a token and
/// layer; layers; vocabulary.
#[derive(Clone, Copy)]
struct Model {
    hidden: u64,
    inner: u64,
    key_values: u64,
    layers: u64,
    words: u64,
}

/// As Qwen 2.5 with 1.5 billion parameters.
const SMALL: Model = Model {
    hidden: 1536,
    inner: 8960,
    key_values: 256,
    layers: 28,
    words: 151_936,
};

/// As Llama 3 with 8 billion parameters.
const MIDDLE: Model = Model {
    hidden: 4096,
    inner: 14_336,
    key_values: 1024,
    layers: 32,
    words: 128_256,
};

impl Model {
    /// Elements of the weights of one layer.
    fn weights(self) -> [u64; 9] {
        let Self {
            hidden,
            inner,
            key_values,
            ..
        } = self;
        [
            hidden * hidden,
            hidden * key_values,
            hidden * key_values,
            hidden * hidden,
            hidden * inner,
            hidden * inner,
            inner * hidden,
            hidden,
            hidden,
        ]
    }

    /// Bytes that a layer's forward pass keeps for the backward pass.
    fn kept(self, tokens: u64) -> [u64; 12] {
        let wide = tokens * self.hidden * 2;
        let narrow = tokens * self.key_values * 2;
        let inner = tokens * self.inner * 2;
        let scale = tokens * 4;
        [
            wide,
            scale,
            wide,
            narrow,
            narrow,
            wide,
            tokens * 64,
            wide,
            scale,
            inner,
            inner,
            inner,
        ]
    }
}

/// Training in 16 bits with AdamW in 32, sequences of any length; with
/// `recompute` a layer keeps its input alone.
fn train(name: &'static str, seed: u64, recompute: bool, plain: bool) -> Trace {
    let (mut random, mut w, m) = (Rng::with_seed(seed), Writer::new(), SMALL);
    let mut weights = vec![m.words * m.hidden];
    for _ in 0..m.layers {
        weights.extend(m.weights());
    }
    for elements in &weights {
        w.allocate(elements * 2);
    }
    let (mut moments, batch) = (false, if recompute { 8 } else { 4 });
    for _ in 0..12 {
        let tokens = batch * random.u64(24..=256) * 8;
        let wide = tokens * m.hidden * 2;
        let input = [w.allocate(tokens * 8), w.allocate(tokens * 8)];
        let mut layers = Vec::new();
        let mut state = w.allocate(wide);
        for _ in 0..m.layers {
            let kept = w.all(&m.kept(tokens));
            w.briefly(wide);
            let next = w.allocate(wide);
            if recompute {
                kept.iter().for_each(|name| w.free(*name));
                layers.push((state, Vec::new()));
            } else {
                layers.push((state, kept));
            }
            state = next;
        }
        // The logits, in 32 bits and in eighths, as frameworks do to save memory.
        let part = tokens.div_ceil(8) * m.words;
        for _ in 0..8 {
            let words = w.all(&[part * 2, part * 4]);
            w.briefly(part * 4);
            words.iter().for_each(|name| w.free(*name));
        }
        let mut gradients = vec![w.allocate(weights[0] * 2)];
        let mut gradient = w.allocate(wide);
        w.free(state);
        for (input, kept) in layers.into_iter().rev() {
            let kept = match recompute {
                true => w.all(&m.kept(tokens)),
                false => kept,
            };
            let sizes = m.kept(tokens);
            let mut of_weights = m.weights().into_iter();
            for (name, bytes) in kept.iter().zip(sizes).rev() {
                let own = w.allocate(bytes);
                if let Some(elements) = of_weights.next() {
                    gradients.push(w.allocate(elements * 2));
                }
                w.free(*name);
                w.free(own);
            }
            let next = w.allocate(wide);
            w.free(gradient);
            w.free(input);
            gradient = next;
        }
        w.free(gradient);
        if !moments {
            moments = true;
            for elements in &weights {
                w.all(&[elements * 4, elements * 4, 4]);
            }
        }
        for elements in &weights {
            let temporary = w.all(&[elements * 4, elements * 4]);
            w.briefly(4);
            temporary.iter().for_each(|name| w.free(*name));
        }
        gradients
            .iter()
            .chain(&input)
            .for_each(|name| w.free(*name));
    }
    Trace {
        name,
        seed,
        plain,
        events: w.events,
    }
}

/// 24 square layers of 1024 to 4096, AdamW, 16 bits: little memory, identical steps.
fn perceptron(seed: u64, plain: bool) -> Trace {
    let (mut random, mut w) = (Rng::with_seed(seed), Writer::new());
    let widths: Vec<u64> = (0..25).map(|_| 1024 * random.u64(1..=4)).collect();
    let layers: Vec<u64> = widths.windows(2).map(|pair| pair[0] * pair[1]).collect();
    for elements in &layers {
        w.allocate(elements * 2);
    }
    for step in 0..20 {
        let rows = 2048;
        let kept: Vec<u32> = widths
            .iter()
            .map(|width| w.allocate(rows * width * 2))
            .collect();
        let mut gradients = Vec::new();
        let mut gradient = w.allocate(rows * widths[24] * 2);
        for layer in (0..24).rev() {
            gradients.push(w.allocate(layers[layer] * 2));
            let next = w.allocate(rows * widths[layer] * 2);
            w.free(gradient);
            w.free(kept[layer + 1]);
            gradient = next;
        }
        w.free(gradient);
        w.free(kept[0]);
        for elements in &layers {
            if step == 0 {
                w.all(&[elements * 2, elements * 2, 4]);
            }
            w.briefly(elements * 2);
        }
        gradients.into_iter().for_each(|name| w.free(name));
    }
    Trace {
        name: "perceptron, AdamW",
        seed,
        plain,
        events: w.events,
    }
}

/// 24 layers that are wide and narrow in turn, AdamW, 16 bits, 512 rows: PyTorch's step that is
/// timed on GPUs (`tests/gpu/regime`), except its small blocks, which the governor has elsewhere. A
/// step ends with a wait for the device.
pub(crate) fn step(steps: usize) -> Trace {
    let (mut w, rows, layers) = (Writer::new(), 512, 24);
    let width = |layer: usize| if layer.is_multiple_of(2) { 1024 } else { 4096 };
    let weight = |layer: usize| width(layer) * width(layer + 1) * 2;
    let weights: Vec<u64> = (0..layers).map(weight).collect();
    w.all(&weights);
    let output = |layer: usize| rows * width(layer + 1) * 2;
    w.all(&[rows * width(0) * 2, rows * width(layers) * 2]);
    let mut gradients: Vec<u32> = Vec::new();
    for step in 0..steps {
        gradients.drain(..).for_each(|name| w.free(name));
        // Each layer's output, before and after its activation function.
        let made: Vec<[u32; 2]> = (0..layers)
            .map(|layer| [w.allocate(output(layer)), w.allocate(output(layer))])
            .collect();
        let mut gradient = w.allocate(output(layers - 1));
        for layer in (0..layers).rev() {
            let [before, after] = made[layer];
            w.free(after);
            let through = w.allocate(output(layer));
            w.free(gradient);
            w.free(before);
            gradient = w.allocate(rows * width(layer) * 2);
            gradients.push(w.allocate(weights[layer]));
            w.free(through);
        }
        w.free(gradient);
        if step == 0 {
            let moments: Vec<u64> = weights.iter().flat_map(|bytes| [*bytes; 2]).collect();
            w.all(&moments);
        }
        let roots = w.all(&weights);
        roots.into_iter().rev().for_each(|name| w.free(name));
        w.events.push(Event::Wait);
    }
    Trace {
        name: "wide and narrow, AdamW",
        seed: 0,
        plain: false,
        events: w.events,
    }
}

/// How a request's keys and values are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cache {
    /// In one tensor of maximum length per layer.
    Contiguous,
    /// In tensors that are copied to longer ones with every token.
    Growing,
    /// In pages of 16 tokens, one tensor per layer.
    Paged,
}

/// Continuous batching: requests come and go, and each advances by one token per step.
fn serve(name: &'static str, seed: u64, cache: Cache) -> Trace {
    struct Served {
        tokens: u64,
        last: u64,
        cache: Vec<u32>,
    }
    let (mut random, mut w, m) = (Rng::with_seed(seed), Writer::new(), MIDDLE);
    w.all(&[m.words * m.hidden * 2, m.words * m.hidden * 2]);
    for _ in 0..m.layers {
        w.all(&m.weights().map(|elements| elements * 2));
    }
    // Of one layer, keys and values together.
    let token = m.key_values * 2 * 2;
    let (most, steps) = match cache {
        Cache::Contiguous => (24 * GIB, 6000),
        Cache::Growing => (4 * GIB, 500),
        Cache::Paged => (8 * GIB, 3000),
    };
    let (mut batch, mut held) = (Vec::<Served>::new(), 0);
    let mut waiting: Option<(u64, u64)> = None;
    for _ in 0..steps {
        // From short questions to long documents.
        let (prompt, answer) = waiting.take().unwrap_or_else(|| {
            let prompt = 16 << random.u32(0..9);
            let answer = 16 << random.u32(0..6);
            (
                random.u64(prompt..2 * prompt),
                random.u64(answer..2 * answer),
            )
        });
        let need = (prompt + answer) * token * m.layers;
        let mut tokens = batch.len() as u64;
        if held + need <= most {
            held += need;
            tokens += prompt;
            let first = match cache {
                Cache::Contiguous => vec![(prompt + answer) * token; m.layers as usize],
                Cache::Growing => vec![prompt * token; m.layers as usize],
                Cache::Paged => {
                    vec![16 * token; (prompt.div_ceil(16) * m.layers) as usize]
                }
            };
            batch.push(Served {
                tokens: prompt,
                last: prompt + answer,
                cache: w.all(&first),
            });
        } else {
            waiting = Some((prompt, answer));
        }
        // Temporaries of all layers in turn.
        for _ in 0..2 {
            let state = w.all(&m.kept(tokens)[2..10]);
            state.iter().for_each(|name| w.free(*name));
        }
        w.briefly(batch.len() as u64 * m.words * 4);
        for served in &mut batch {
            served.tokens += 1;
            match cache {
                Cache::Contiguous => {}
                Cache::Growing => {
                    for name in &mut served.cache {
                        let longer = w.allocate(served.tokens * token);
                        w.free(std::mem::replace(name, longer));
                    }
                }
                Cache::Paged => {
                    if served.tokens.is_multiple_of(16) {
                        let more = w.all(&vec![16 * token; m.layers as usize]);
                        served.cache.extend(more);
                    }
                }
            }
        }
        batch.retain(|served| {
            let done = served.tokens == served.last;
            if done {
                served.cache.iter().for_each(|name| w.free(*name));
                // The memory requested on arrival.
                held -= served.last * token * m.layers;
            }
            !done
        });
    }
    Trace {
        name,
        seed,
        plain: false,
        events: w.events,
    }
}

/// All traces.
pub(crate) fn traces() -> Vec<Trace> {
    vec![
        train("training, all kept", 1, false, false),
        train("training, recomputed", 2, true, false),
        train("training, recomputed", 2, true, true),
        perceptron(3, false),
        perceptron(3, true),
        serve("serving, contiguous", 4, Cache::Contiguous),
        serve("serving, growing", 5, Cache::Growing),
        serve("serving, paged", 6, Cache::Paged),
    ]
}

/// A device that is this many calls behind the host, unless the host waits for it.
#[derive(Clone, Default)]
pub(crate) struct Behind(Arc<Work>);

#[derive(Default)]
struct Work {
    queued: AtomicU64,
    done: AtomicU64,
    calls: AtomicU64,
    waits: AtomicU64,
}

const BEHIND: u64 = 1000;

impl Behind {
    pub(crate) fn queue(&self) {
        let queued = self.0.queued.fetch_add(1, Relaxed);
        self.0
            .done
            .fetch_max(queued.saturating_sub(BEHIND), Relaxed);
    }

    pub(crate) fn finish(&self) {
        let queued = self.0.queued.load(Relaxed);
        self.0.done.fetch_max(queued, Relaxed);
    }
}

impl DeviceClock for Behind {
    type Point = u64;

    fn record_fence(&self, _: PoolPlace) -> Option<u64> {
        self.0.calls.fetch_add(1, Relaxed);
        Some(self.0.queued.load(Relaxed))
    }

    fn passed(&self, point: &u64) -> bool {
        self.0.calls.fetch_add(1, Relaxed);
        *point <= self.0.done.load(Relaxed)
    }

    fn wait(&self, _: StreamId, _: &u64) -> bool {
        self.0.calls.fetch_add(1, Relaxed);
        true
    }

    fn join(&self, point: &u64, _: Duration) -> bool {
        let before = self.0.done.fetch_max(*point, Relaxed);
        self.0.waits.fetch_add(u64::from(before < *point), Relaxed);
        true
    }
}

#[derive(Default)]
struct Mapped {
    /// Each growth is one allocation, which is returned as a whole.
    slabs: bool,
    /// By address.
    chunks: BTreeMap<u64, u64>,
    spare: Vec<u64>,
    top: u64,
    mapped: u64,
    created: u64,
    peak: u64,
    made: u64,
    moved: u64,
}

const PIECE: u64 = 2 << 20;
/// The start of the address range.
const RESERVED: u64 = 1 << 40;

/// Sizes of handles and growths, as in the governor: handles per growth as long as no memory moves,
/// and afterwards.
const HANDLES_A_GROWTH: [u64; 2] = [16, 1024];
const LARGEST_HANDLE: u64 = 32 << 20;
const LEAST_GROWTH_PART: u64 = 256;
const LARGEST_LEAST_GROWTH: u64 = 32 << 20;
/// The same for slabs, and the memory retained beyond the live bytes.
const LEAST_SLAB_PART: u64 = 1024;
const LARGEST_LEAST_SLAB: u64 = 32 << 20;
const SLAB_THRIFT: RetentionPolicy = RetentionPolicy {
    slack_bytes: 32 << 20,
    slack_divisor: 16,
    ..RetentionPolicy::DEFAULT
};

/// Memory in handles, as a driver maps it; or in slabs.
#[derive(Clone)]
pub(crate) struct Handles(Arc<Mutex<Mapped>>);

impl Handles {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Mapped {
            top: RESERVED,
            ..Mapped::default()
        })))
    }

    pub(crate) fn slabs() -> Self {
        let memory = Self::new();
        memory.lock().slabs = true;
        memory
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Mapped> {
        self.0.lock().expect("no thread panics while it holds this")
    }

    /// Whether all of a block is mapped.
    pub(crate) fn is_mapped(&self, span: Span) -> bool {
        let mapped = self.lock();
        let chunks = mapped.chunks.range(..span.end()).rev();
        let mut inside = chunks.take_while(|(at, bytes)| *at + **bytes > span.address);
        let here =
            |(at, bytes): (&u64, &u64)| (*at + *bytes).min(span.end()) - (*at).max(span.address);
        inside.by_ref().map(here).sum::<u64>() == span.bytes
    }

    /// Spare handles of at most `bytes` in total, and the others.
    fn usable(spare: &[u64], bytes: u64) -> (Vec<u64>, Vec<u64>) {
        let mut all = spare.to_vec();
        all.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
        let mut left = bytes;
        all.into_iter().partition(|handle| {
            let fits = *handle <= left;
            left -= if fits { *handle } else { 0 };
            fits
        })
    }
}

impl MemoryBacking for Handles {
    fn piece_bytes(&self) -> u64 {
        PIECE
    }

    fn is_apart(&self) -> bool {
        self.lock().slabs
    }

    fn rounded(&self, bytes: u64) -> u64 {
        let mapped = self.lock();
        let least = match mapped.slabs {
            true => (mapped.mapped / LEAST_SLAB_PART).min(LARGEST_LEAST_SLAB),
            false => (mapped.mapped / LEAST_GROWTH_PART).min(LARGEST_LEAST_GROWTH),
        };
        bytes.max(least).next_multiple_of(PIECE)
    }

    fn new_bytes(&self, bytes: u64) -> u64 {
        let mapped = self.lock();
        if mapped.slabs {
            return bytes.saturating_sub(mapped.spare.iter().sum());
        }
        drop(mapped);
        bytes
            - Self::usable(&self.lock().spare, bytes)
                .0
                .iter()
                .sum::<u64>()
    }

    fn site(&self, _: u64) -> Option<u64> {
        let mapped = self.lock();
        (!mapped.slabs).then_some(mapped.top)
    }

    fn grow(&mut self, bytes: u64) -> Result<Span, GrowthRefused> {
        let mut mapped = self.lock();
        if mapped.slabs {
            let address = mapped.top;
            mapped.chunks.insert(address, bytes);
            mapped.top += bytes;
            mapped.mapped += bytes;
            mapped.created += bytes;
            mapped.made += 1;
            mapped.peak = mapped.peak.max(mapped.created);
            return Ok(Span { address, bytes });
        }
        let (mut used, left) = Self::usable(&mapped.spare, bytes);
        mapped.spare = left;
        mapped.moved += used.len() as u64;
        let mut left = bytes - used.iter().sum::<u64>();
        let handles = HANDLES_A_GROWTH[usize::from(mapped.moved > 0)];
        let mut size = (left / handles).clamp(PIECE, LARGEST_HANDLE) / PIECE * PIECE;
        while left > 0 {
            size = size.min(left);
            used.push(size);
            left -= size;
            mapped.created += size;
            mapped.made += 1;
        }
        let address = mapped.top;
        for handle in used {
            let top = mapped.top;
            mapped.chunks.insert(top, handle);
            mapped.top += handle;
        }
        mapped.mapped += bytes;
        mapped.peak = mapped.peak.max(mapped.created);
        Ok(Span { address, bytes })
    }

    fn separable(&self, span: Span) -> Option<Span> {
        let mapped = self.lock();
        let inside = mapped.chunks.range(span.address..span.end());
        let mut inside = inside.filter(|(at, bytes)| **at + **bytes <= span.end());
        let (first, bytes) = inside.next()?;
        let end = inside
            .next_back()
            .map_or(first + bytes, |(at, bytes)| at + bytes);
        Some(Span {
            address: *first,
            bytes: end - first,
        })
    }

    fn shrink(&mut self, span: Span) {
        let mut mapped = self.lock();
        let chunks = mapped.chunks.range(span.address..span.end());
        let chunks: Vec<(u64, u64)> = chunks.map(|(at, bytes)| (*at, *bytes)).collect();
        for (at, bytes) in chunks {
            mapped.chunks.remove(&at);
            mapped.spare.push(bytes);
            mapped.mapped -= bytes;
        }
    }

    fn release(&mut self, but_for: u64) -> u64 {
        let mut mapped = self.lock();
        let usable = if mapped.slabs { 0 } else { but_for };
        let (kept, gone) = Self::usable(&mapped.spare, usable);
        mapped.spare = kept;
        let gone: u64 = gone.iter().sum();
        mapped.created -= gone;
        gone
    }
}

/// The result of a trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) peak_live: u64,
    pub(crate) peak_physical: u64,
    /// Stranded bytes at the peak of live bytes.
    pub(crate) stranded: u64,
    /// Handles created, and handles remapped.
    pub(crate) made: u64,
    pub(crate) moved: u64,
    /// How often the host waited.
    pub(crate) waits: u64,
    /// Calls of the clock.
    pub(crate) calls: u64,
    /// The host's bookkeeping time per allocation or free.
    pub(crate) mean_ns: f64,
}

impl Outcome {
    pub(crate) fn ratio(&self) -> f64 {
        self.peak_physical as f64 / self.peak_live as f64
    }
}

/// Replays a trace on mapped memory.
pub(crate) fn replay(trace: &Trace) -> Outcome {
    replay_on(trace, &Handles::new())
}

/// Replays a trace on `memory`.
pub(crate) fn replay_on(trace: &Trace, memory: &Handles) -> Outcome {
    let device = Behind::default();
    let pool: DevicePool<_, _> =
        DevicePool::new(memory.clone(), device.clone(), MemoryBudget::new(u64::MAX));
    if memory.lock().slabs {
        pool.set_retention(SLAB_THRIFT);
    }
    let place = match trace.plain {
        true => PoolPlace::Anywhere,
        false => PoolPlace::Stream(StreamId(1)),
    };
    let mut blocks: Vec<Span> = Vec::new();
    let (mut live, mut peak_live, mut stranded, mut looked) = (0, 0, 0, 0);
    let begun = std::time::Instant::now();
    for event in &trace.events {
        device.queue();
        match *event {
            Event::Allocate { name, bytes } => {
                let request = AllocationRequest {
                    bytes,
                    align_bytes: 512,
                    place,
                    tenant: TenantId(0),
                    note: (),
                };
                let span = pool.allocate(&request).expect("there is no limit");
                live += span.bytes;
                if live > peak_live {
                    peak_live = live;
                    // Expensive, so not at every new peak.
                    if live > looked + looked / 64 {
                        looked = live;
                        stranded = pool.stranded_bytes();
                    }
                }
                assert_eq!(blocks.len(), name as usize);
                blocks.push(span);
            }
            Event::Free { name } => {
                let span = blocks[name as usize];
                live -= span.bytes;
                pool.free(span.address, place).expect("it is live");
            }
            Event::Wait => {
                let begun = pool.begin_host_wait(None);
                device.finish();
                pool.end_host_wait(&begun);
            }
        }
    }
    let mean_ns = begun.elapsed().as_secs_f64() * 1e9 / trace.events.len() as f64;
    let mapped = memory.lock();
    Outcome {
        peak_live,
        peak_physical: mapped.peak,
        stranded,
        made: mapped.made,
        moved: mapped.moved,
        waits: device.0.waits.load(Relaxed),
        calls: device.0.calls.load(Relaxed),
        mean_ns,
    }
}
