//! A pool on a simulated device, and a shadow model that knows what may be reused.
//!
//! The device has streams that run at their own pace. The shadow model keeps, for every span of
//! memory, how far each stream had used it when it was freed, and for every stream and for the host
//! how far they follow the others (vector clocks). A block may be allocated only if its new user
//! follows all its uses. The model knows no queues, epochs or fences.
#![allow(dead_code, reason = "each test that includes this uses a part of it")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fercuda_pool::{
    AllocationRequest, BreakableRules, DeviceClock, DevicePool, Error, GrowthRefused,
    MemoryBacking, MemoryBudget, PoolPlace, RetentionPolicy, ReuseRule, Span, StreamId, TenantId,
};

/// The number of streams at a time, and of slots including ended streams with pending work.
const STREAMS: usize = 8;
const SLOTS: usize = 16;
/// The size of a piece of physical memory.
const PIECE: u64 = 64 << 10;
/// All physical memory of the device.
const DEVICE_BYTES: u64 = 24 << 20;
const TENANTS: u16 = 3;

/// How much of each stream's work is known to be done.
type Clocks = [u32; SLOTS];

fn join(a: &mut Clocks, b: &Clocks) {
    for (a, b) in a.iter_mut().zip(b) {
        *a = (*a).max(*b);
    }
}

fn follows(a: &Clocks, b: &Clocks) -> bool {
    a.iter().zip(b).all(|(a, b)| a >= b)
}

/// An operation of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Allocates memory, in a stream or anywhere.
    Allocate {
        stream: Option<usize>,
        bytes: u64,
        align: u64,
        tenant: u16,
    },
    /// Work in a stream uses a block, after waiting for what it must follow.
    Use {
        which: usize,
        stream: usize,
    },
    /// Frees a block, in a stream that waits for its uses, or anywhere.
    Free {
        which: usize,
        stream: Option<usize>,
    },
    /// Frees an address that is not a block's.
    FreeWrong {
        address: u64,
    },
    /// Frees a block on a condition on its note.
    FreeIf {
        which: usize,
        stream: Option<usize>,
        odd: bool,
    },
    /// Frees the blocks with one of 256 numbers in their notes.
    FreeAll {
        note: u8,
    },
    /// Looks up the block at an address.
    Look {
        which: usize,
        offset: u64,
    },
    /// The device completes some of a stream's work.
    Advance {
        stream: usize,
        steps: u32,
    },
    /// The host waits for a stream, or for all.
    Synchronise {
        stream: Option<usize>,
    },
    /// Starts or ends a capture, during which the clock refuses.
    Capture,
    /// A stream is destroyed, and another created.
    Retire {
        stream: usize,
    },
    /// As `Retire`, when all of the stream's work is done.
    Finish {
        stream: usize,
    },
    /// The context ends: all blocks with it, and all memory.
    End,
    /// The thread finds the pool's lock held, and gets an arena.
    Meet,
    /// For a while one stream alone allocates and frees, as if for long.
    Alone {
        stream: usize,
    },
    /// Trims ready memory, except some of it.
    Trim {
        sixteenths: u64,
    },
    /// Sets how much memory may be retained beyond the live bytes, and how much may be ready, in
    /// sixteenths of the device's memory; sixteen mean no bound.
    Retention {
        slack: u64,
        high: u64,
    },
    Pin {
        which: usize,
    },
    Unpin,
    /// Sets the budget, in fractions of the device's memory.
    Limit {
        sixteenths: u64,
    },
    TenantLimit {
        tenant: u16,
        sixteenths: u64,
    },
    /// The driver refuses this many growths.
    Fail {
        times: u32,
    },
}

impl Op {
    /// Decodes an operation; any bits are one.
    pub(crate) fn from_bits(bits: u64) -> Self {
        let (kind, a, b, c) = (
            bits % 256,
            (bits >> 8) as usize & 0xffff,
            (bits >> 24) as usize & 0xffff,
            bits >> 40,
        );
        let stream = b % STREAMS;
        let place = (b % 16 < 12).then_some(stream);
        match kind {
            0..=79 => {
                let bytes = match c % 16 {
                    0..=8 => c % 4096,
                    9..=13 => c % (256 << 10),
                    14 => c % (1 << 20),
                    _ => c % (6 << 20),
                };
                let align = 1 << (if a.is_multiple_of(8) { a / 8 % 18 } else { 9 });
                Op::Allocate {
                    stream: place,
                    bytes,
                    align,
                    tenant: (a % 5).min(2) as u16,
                }
            }
            80..=155 => Op::Free {
                which: a,
                stream: place,
            },
            156..=195 => Op::Use { which: a, stream },
            196..=235 => Op::Advance {
                stream,
                steps: c as u32 % 8 + 1,
            },
            236..=240 => Op::Synchronise {
                stream: Some(stream),
            },
            241 => Op::Synchronise { stream: None },
            242..=243 => Op::Capture,
            244 if c % 1024 == 0 => Op::End,
            244 if c % 2 == 0 => Op::Retire { stream },
            244 => Op::Finish { stream },
            245 if c % 64 == 0 => Op::Trim {
                sixteenths: b as u64 % 4,
            },
            245 if c % 64 == 1 => Op::Retention {
                slack: a as u64 % 17,
                high: b as u64 % 17,
            },
            246 => Op::Pin { which: a },
            247 => Op::Unpin,
            248 if c % 64 == 0 => Op::Limit {
                sixteenths: a as u64 % 16 + 1,
            },
            249 if c % 64 == 0 => Op::TenantLimit {
                tenant: a as u16 % TENANTS,
                sixteenths: b as u64 % 24 + 1,
            },
            249 if c % 2 == 1 => Op::Meet,
            249 => Op::Alone { stream },
            250 => Op::Fail {
                times: a as u32 % 4,
            },
            251 => Op::FreeWrong { address: c << 8 },
            252 => Op::FreeIf {
                which: a,
                stream: place,
                odd: c % 2 == 1,
            },
            253 => Op::FreeAll { note: c as u8 },
            254 if c % 4 == 0 => Op::Look {
                which: a,
                offset: c % (128 << 10),
            },
            _ => Op::Advance { stream, steps: 64 },
        }
    }
}

#[derive(Debug, Default)]
struct Stream {
    /// The work that newly queued work follows, itself included.
    clocks: Clocks,
    /// Pending waits: from which work on, and for what.
    waits: VecDeque<(u32, Clocks)>,
}

/// How memory is added and removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// In pieces that may be mapped anywhere.
    #[default]
    Pieces,
    /// In allocations, which are returned as a whole, and may be adjacent.
    Slabs,
}

/// Allocations and frees of a stream that is alone.
const ALONE: u32 = 100;

/// The smallest slab; slabs begin anywhere in a piece.
const LEAST_SLAB: u64 = 4 * PIECE;
const SLAB_ALIGN: u64 = 512;

#[derive(Debug, Default)]
struct Device {
    kind: Kind,
    streams: [Stream; SLOTS],
    /// Completed work, by stream.
    done: Clocks,
    /// The work the host knows to be done.
    host: Clocks,
    /// The slot of each existing stream.
    slots: BTreeMap<StreamId, usize>,
    capturing: bool,
    fail: u32,
    /// Pieces of memory, by address; or slabs, which differ in length.
    mapped: BTreeMap<u64, u64>,
    spare: u64,
    top: u64,
    /// A call that was made while a stream captured, or another violation.
    wrong: Option<String>,
}

impl Device {
    /// Queues one piece of work.
    fn queue(&mut self, slot: usize) -> u32 {
        let host = self.host;
        let stream = &mut self.streams[slot];
        join(&mut stream.clocks, &host);
        stream.clocks[slot] += 1;
        stream.clocks[slot]
    }

    fn wait(&mut self, slot: usize, clocks: &Clocks) {
        let stream = &mut self.streams[slot];
        let mut others = *clocks;
        others[slot] = 0;
        stream.waits.push_back((stream.clocks[slot] + 1, others));
        join(&mut stream.clocks, clocks);
    }

    fn advance(&mut self, slot: usize, steps: u32) {
        for _ in 0..steps {
            let next = self.done[slot] + 1;
            let stream = &mut self.streams[slot];
            while let Some((from, clocks)) = stream.waits.front()
                && *from <= next
            {
                if !follows(&self.done, clocks) {
                    return;
                }
                stream.waits.pop_front();
            }
            if self.done[slot] >= stream.clocks[slot] {
                return;
            }
            self.done[slot] = next;
        }
    }

    /// Completes everything up to there, known to the host.
    fn finish(&mut self, clocks: &Clocks) {
        join(&mut self.done, clocks);
        join(&mut self.host, clocks);
        for (slot, stream) in self.streams.iter_mut().enumerate() {
            let next = self.done[slot] + 1;
            while stream.waits.front().is_some_and(|(from, _)| *from < next) {
                stream.waits.pop_front();
            }
        }
    }

    fn all(&self) -> Clocks {
        let mut all = Clocks::default();
        for stream in &self.streams {
            join(&mut all, &stream.clocks);
        }
        all
    }

    fn mapped_bytes(&self) -> u64 {
        self.mapped.values().sum()
    }

    fn physical(&self) -> u64 {
        self.mapped_bytes() + self.spare
    }

    /// Whether all of a span is mapped; with slabs, in one slab.
    fn is_memory(&self, span: Span) -> bool {
        let inside = |(at, bytes): (&u64, &u64)| *at + bytes >= span.end();
        match self.kind {
            Kind::Slabs => {
                let slab = self.mapped.range(..=span.address).next_back();
                slab.is_some_and(inside)
            }
            Kind::Pieces => {
                let first = span.address / PIECE * PIECE;
                let pieces = self.mapped.range(first..span.end()).count() as u64;
                pieces == (span.end() - first).div_ceil(PIECE)
            }
        }
    }

    /// The address for a slab of a size: the first gap that fits, usually adjacent to another slab.
    fn slab_site(&self, bytes: u64) -> u64 {
        let mut at = PIECE + SLAB_ALIGN;
        for (start, len) in &self.mapped {
            if *start >= at + bytes {
                break;
            }
            at = start + len;
        }
        at + if self.mapped.len() % 4 == 3 { PIECE } else { 0 }
    }
}

/// The device, as the pool sees it.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<Device>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Device> {
        self.0.lock().expect("no test panics while it holds this")
    }
}

impl DeviceClock for Shared {
    type Point = Clocks;

    fn record_fence(&self, place: PoolPlace) -> Option<Clocks> {
        let device = self.lock();
        if device.capturing {
            return None;
        }
        Some(match place {
            PoolPlace::Anywhere => device.all(),
            PoolPlace::Stream(stream) => {
                let mut clocks = device.streams[*device.slots.get(&stream)?].clocks;
                join(&mut clocks, &device.host);
                clocks
            }
        })
    }

    fn passed(&self, point: &Clocks) -> bool {
        let mut device = self.lock();
        let passed = !device.capturing && follows(&device.done, point);
        if passed {
            join(&mut device.host, point);
        }
        passed
    }

    fn wait(&self, stream: StreamId, point: &Clocks) -> bool {
        let mut device = self.lock();
        let slot = device.slots.get(&stream).copied();
        let Some(slot) = slot.filter(|_| !device.capturing) else {
            return false;
        };
        device.wait(slot, point);
        true
    }

    fn join(&self, point: &Clocks, _: Duration) -> bool {
        let mut device = self.lock();
        if !device.capturing {
            device.finish(point);
        }
        !device.capturing
    }
}

impl MemoryBacking for Shared {
    fn piece_bytes(&self) -> u64 {
        match self.lock().kind {
            Kind::Pieces => PIECE,
            Kind::Slabs => LEAST_SLAB,
        }
    }

    fn align_bytes(&self) -> u64 {
        match self.lock().kind {
            Kind::Pieces => PIECE,
            Kind::Slabs => SLAB_ALIGN,
        }
    }

    fn is_apart(&self) -> bool {
        self.lock().kind == Kind::Slabs
    }

    fn rounded(&self, bytes: u64) -> u64 {
        match self.lock().kind {
            Kind::Pieces => bytes.next_multiple_of(PIECE),
            Kind::Slabs => bytes.max(LEAST_SLAB).next_multiple_of(PIECE),
        }
    }

    fn new_bytes(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.lock().spare)
    }

    fn site(&self, _: u64) -> Option<u64> {
        let device = self.lock();
        (device.kind == Kind::Pieces).then_some(device.top)
    }

    fn grow(&mut self, bytes: u64) -> Result<Span, GrowthRefused> {
        let mut device = self.lock();
        if device.fail > 0 {
            device.fail -= 1;
            return Err(GrowthRefused("as the test wants".to_owned()));
        }
        let new = bytes.saturating_sub(device.spare);
        if device.physical() + new > DEVICE_BYTES {
            return Err(GrowthRefused("the device is full".to_owned()));
        }
        if device.kind == Kind::Slabs {
            if device.spare > 0 {
                device.wrong = Some(format!("{} bytes were not released", device.spare));
            }
            let address = device.slab_site(bytes);
            device.mapped.insert(address, bytes);
            return Ok(Span { address, bytes });
        }
        device.spare -= bytes - new;
        let address = device.top;
        device.top += bytes;
        let pieces = (0..bytes / PIECE).map(|n| (address + n * PIECE, PIECE));
        device.mapped.extend(pieces);
        Ok(Span { address, bytes })
    }

    fn separable(&self, span: Span) -> Option<Span> {
        let device = self.lock();
        if device.kind == Kind::Slabs {
            let mut inside = device.mapped.range(span.address..span.end());
            let (address, bytes) = inside.find(|(at, bytes)| **at + **bytes <= span.end())?;
            return Some(Span {
                address: *address,
                bytes: *bytes,
            });
        }
        let address = span.address.next_multiple_of(PIECE);
        let end = span.end() / PIECE * PIECE;
        (address < end).then(|| Span {
            address,
            bytes: end - address,
        })
    }

    fn shrink(&mut self, span: Span) {
        let mut device = self.lock();
        let mut at = span.address;
        while at < span.end() {
            let Some(bytes) = device.mapped.remove(&at) else {
                device.wrong = Some(format!("{at:#x} was not mapped"));
                return;
            };
            device.spare += bytes;
            at += bytes;
        }
        if at != span.end() {
            device.wrong = Some(format!("{span:?} is not all of what was mapped there"));
        }
    }

    fn release(&mut self, but_for: u64) -> u64 {
        let mut device = self.lock();
        let kept = match device.kind {
            Kind::Pieces => device.spare.min(but_for / PIECE * PIECE),
            Kind::Slabs => 0,
        };
        std::mem::replace(&mut device.spare, kept) - kept
    }
}

/// A live block, as the program knows it.
#[derive(Clone, Copy, Debug)]
struct LiveBlock {
    span: Span,
    /// The work that any work using it must follow.
    made: Clocks,
    /// How far streams have used it.
    uses: Clocks,
    tenant: u16,
    requested_bytes: u64,
    note: u64,
}

impl LiveBlock {
    fn known(&self) -> fercuda_pool::LiveBlock<u64> {
        fercuda_pool::LiveBlock {
            span: self.span,
            tenant: TenantId(self.tenant),
            note: self.note,
            requested_bytes: self.requested_bytes,
        }
    }
}

/// The program, the pool and the shadow model.
pub(crate) struct World {
    pool: DevicePool<Shared, Shared, u64, BreakableRules>,
    device: Shared,
    live: Vec<LiveBlock>,
    /// The start and end of each live block.
    taken: BTreeMap<u64, u64>,
    /// Freed memory: its end, and how far streams had used it.
    freed: BTreeMap<u64, (u64, Clocks)>,
    streams: [StreamId; STREAMS],
    next_stream: u64,
    pinned: Vec<Span>,
    tenant_bytes: [u64; TENANTS as usize],
    /// The tenants' limits.
    shares: [u64; TENANTS as usize],
    /// No two requests have the same note.
    next_note: u64,
    steps: u64,
    /// The only stream that allocates and frees, for this many more operations.
    alone: (usize, u32),
    /// The results, for tests that check that something happens.
    pub(crate) counts: Counts,
}

/// Counts of results.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Successful allocations.
    pub(crate) allocated: u64,
    /// Blocks previously used by work that is not known to be done.
    pub(crate) reused_early: u64,
    /// Allocations that failed for lack of memory.
    pub(crate) exhausted: u64,
    /// Allocations that failed at the tenant's limit.
    pub(crate) refused: u64,
    /// Frees.
    pub(crate) freed: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        self.allocated += other.allocated;
        self.reused_early += other.reused_early;
        self.exhausted += other.exhausted;
        self.refused += other.refused;
        self.freed += other.freed;
    }
}

type Answer = Result<(), String>;

impl World {
    pub(crate) fn new(kind: Kind) -> Self {
        let device = Shared::default();
        device.lock().top = PIECE;
        device.lock().kind = kind;
        let mut world = World {
            pool: DevicePool::with_rules(
                device.clone(),
                device.clone(),
                MemoryBudget::new(DEVICE_BYTES),
            ),
            device,
            live: Vec::new(),
            taken: BTreeMap::new(),
            freed: BTreeMap::new(),
            streams: [StreamId(0); STREAMS],
            next_stream: 1,
            pinned: Vec::new(),
            tenant_bytes: [0; TENANTS as usize],
            shares: [u64::MAX; TENANTS as usize],
            next_note: 0,
            alone: (0, 0),
            steps: 0,
            counts: Counts::default(),
        };
        for stream in 0..STREAMS {
            world.open(stream);
        }
        world
    }

    pub(crate) fn break_rule(&self, rule: ReuseRule) {
        self.pool.break_rule(rule);
    }

    /// Creates a stream, in a slot for which the host knows all work to be done.
    fn open(&mut self, stream: usize) {
        let id = StreamId(self.next_stream);
        self.next_stream += 1;
        let mut device = self.device.lock();
        let free = |device: &Device, slot: usize| {
            device.slots.values().all(|other| *other != slot)
                && device.host[slot] == device.streams[slot].clocks[slot]
        };
        let slot = (0..SLOTS).find(|slot| free(&device, *slot));
        let slot = slot.unwrap_or_else(|| {
            let all = device.all();
            device.finish(&all);
            (0..SLOTS)
                .find(|slot| free(&device, *slot))
                .expect("fewer streams than slots")
        });
        let known = device.host;
        device.streams[slot].clocks = known;
        device.slots.insert(id, slot);
        self.streams[stream] = id;
    }

    fn slot(&self, stream: usize) -> usize {
        self.device.lock().slots[&self.streams[stream]]
    }

    fn place(&self, stream: Option<usize>) -> PoolPlace {
        stream.map_or(PoolPlace::Anywhere, |stream| {
            PoolPlace::Stream(self.streams[stream])
        })
    }

    /// Runs one operation; an error describes the violation.
    pub(crate) fn step(&mut self, mut op: Op) -> Answer {
        if let (Op::Allocate { stream, .. } | Op::Free { stream, .. }, (alone, 1..)) =
            (&mut op, self.alone)
        {
            *stream = Some(alone);
            self.alone.1 -= 1;
        }
        match op {
            Op::Allocate {
                stream,
                bytes,
                align,
                tenant,
            } => {
                self.allocate(stream, bytes, align, tenant)?;
            }
            Op::Use { which, stream } => {
                let slot = self.slot(stream);
                let at = which % self.live.len().max(1);
                let mut device = self.device.lock();
                if let Some(live) = self.live.get_mut(at)
                    && !device.capturing
                {
                    // The program waits for the work that the block was allocated for.
                    device.wait(slot, &live.made);
                    live.uses[slot] = device.queue(slot);
                }
            }
            Op::Free { which, stream } => {
                if let Some(live) = self.last_use(which, stream) {
                    self.free(live, stream)?;
                }
            }
            Op::FreeIf { which, stream, odd } => {
                if let Some(live) = self.last_use(which, stream) {
                    let (address, place) = (live.span.address, self.place(stream));
                    let is_such = live.note % 2 == u64::from(odd);
                    let freed = self
                        .pool
                        .free_if(address, place, |note| *note % 2 == u64::from(odd));
                    match freed {
                        Ok(freed) if is_such && freed == live.known() => self.freed(&live),
                        Err(Error::NotPermitted { .. }) if !is_such => self.live.push(live),
                        _ => return Err(format!("{freed:?} for {live:?}, with condition {odd}")),
                    }
                }
            }
            Op::FreeAll { note } => {
                let is_such = |other: &u64| *other as u8 == note;
                let freed = self.pool.free_all(PoolPlace::Anywhere, is_such);
                let mut freed: Vec<u64> = freed.iter().map(|freed| freed.note).collect();
                let such = self.live.extract_if(.., |live| is_such(&live.note));
                let such: Vec<LiveBlock> = such.collect();
                let mut expected: Vec<u64> = such.iter().map(|live| live.note).collect();
                freed.sort_unstable();
                expected.sort_unstable();
                if freed != expected {
                    return Err(format!("{freed:?} were freed, not {expected:?}"));
                }
                such.iter().for_each(|live| self.freed(live));
            }
            Op::Look { which, offset } => {
                if let Some(live) = self.live.get(which % self.live.len().max(1)) {
                    let address = live.span.address + offset;
                    let around = self.taken.range(..=address).next_back();
                    let around = around.filter(|(_, end)| **end > address);
                    let found = self.pool.containing(address);
                    if found.map(|live| live.span.address) != around.map(|(at, _)| *at)
                        || self.pool.live(live.span.address) != Some(live.known())
                    {
                        return Err(format!("{found:?} is at {address:#x}, not {around:x?}"));
                    }
                }
            }
            Op::FreeWrong { address } => {
                if !self.taken.contains_key(&address)
                    && self.pool.free(address, PoolPlace::Anywhere)
                        != Err(Error::Unknown { address })
                {
                    return Err(format!("{address:#x} was freed, but is not a block"));
                }
            }
            Op::Advance { stream, steps } => {
                let slot = self.slot(stream);
                self.device.lock().advance(slot, steps);
            }
            Op::Synchronise { stream } => {
                if !self.device.lock().capturing {
                    let begun = self
                        .pool
                        .begin_host_wait(stream.map(|s| self.place(Some(s))));
                    let slot = stream.map(|stream| self.slot(stream));
                    let mut device = self.device.lock();
                    let until = slot.map_or_else(|| device.all(), |s| device.streams[s].clocks);
                    device.finish(&until);
                    drop(device);
                    self.pool.end_host_wait(&begun);
                    let usage = self.pool.usage();
                    if stream.is_none() && usage.waiting_bytes > 0 {
                        return Err(format!("nothing is left to wait for: {usage:?}"));
                    }
                }
            }
            Op::Capture => {
                let mut device = self.device.lock();
                device.capturing = !device.capturing;
            }
            Op::Retire { stream } => {
                let id = self.streams[stream];
                self.pool.retire(id);
                self.device.lock().slots.remove(&id);
                self.open(stream);
            }
            Op::Finish { stream } => {
                let (id, slot) = (self.streams[stream], self.slot(stream));
                let mut device = self.device.lock();
                let until = device.streams[slot].clocks;
                device.finish(&until);
                drop(device);
                self.pool.end(id);
                self.device.lock().slots.remove(&id);
                self.open(stream);
            }
            Op::End => {
                // All queued work is done, whether or not the host knows.
                let freed = self.pool.free_all(PoolPlace::Anywhere, |_| true);
                if freed.len() != self.live.len() {
                    return Err(format!("{} of {}", freed.len(), self.live.len()));
                }
                for live in std::mem::take(&mut self.live) {
                    self.freed(&live);
                }
                self.pinned.clear();
                self.pool.abandon();
                let mut device = self.device.lock();
                let all = device.all();
                device.finish(&all);
                if device.physical() != 0 {
                    return Err(format!("{} bytes are left", device.physical()));
                }
            }
            Op::Meet => self.pool.assume_contention(),
            Op::Alone { stream } => {
                self.alone = (stream, ALONE);
                self.pool.assume_alone(self.streams[stream]);
            }
            Op::Trim { sixteenths } => {
                let keep = DEVICE_BYTES / 16 * sixteenths;
                let before = self.pool.usage().bytes;
                let gone = self.pool.trim_to(keep);
                let usage = self.pool.usage();
                if usage.bytes + gone < before
                    || usage.ready_bytes > keep + self.pool.stranded_bytes() + PIECE
                {
                    return Err(format!("{gone} bytes are gone, to keep {keep}: {usage:?}"));
                }
            }
            Op::Retention { slack, high } => self.pool.set_retention(RetentionPolicy {
                slack_bytes: DEVICE_BYTES / 16 * slack,
                slack_divisor: if slack < 16 { 64 } else { 1 },
                others_bytes: PIECE * (slack % 3),
                high_bytes: if high < 16 {
                    DEVICE_BYTES / 16 * high
                } else {
                    u64::MAX
                },
                low_bytes: DEVICE_BYTES / 32 * high,
            }),
            Op::Pin { which } => {
                if let Some(live) = self.live.get(which % self.live.len().max(1))
                    && self.pinned.len() < 8
                {
                    let pinned = self
                        .pool
                        .pin(live.span.address)
                        .map_err(|e| e.to_string())?;
                    self.pinned.push(pinned);
                }
            }
            Op::Unpin => {
                if let Some(span) = self.pinned.pop() {
                    self.pool.unpin(span.address);
                }
            }
            Op::Limit { sixteenths } => {
                self.pool.budget().set_limit(DEVICE_BYTES / 16 * sixteenths);
            }
            Op::TenantLimit { tenant, sixteenths } => {
                let share = DEVICE_BYTES / 16 * sixteenths;
                self.shares[usize::from(tenant)] = share;
                self.pool.set_tenant_limit(TenantId(tenant), share);
            }
            Op::Fail { times } => self.device.lock().fail = times,
        }
        self.settled()
    }

    fn allocate(&mut self, stream: Option<usize>, bytes: u64, align: u64, tenant: u16) -> Answer {
        let request = AllocationRequest {
            bytes,
            align_bytes: align,
            place: self.place(stream),
            tenant: TenantId(tenant),
            note: self.next_note,
        };
        self.next_note += 1;
        let before = self.device.lock().physical();
        let answer = self.pool.allocate(&request);
        self.forget_unmapped()?;
        let limit = self.pool.budget().limit_bytes();
        let physical = self.device.lock().physical();
        if physical > limit && physical > before {
            return Err(format!("{physical} bytes of {limit}"));
        }
        let rounded = bytes.max(1).next_multiple_of(align.clamp(256, 512));
        let share = self.shares[usize::from(tenant)];
        let held = &mut self.tenant_bytes[usize::from(tenant)];
        let span = match answer {
            Ok(span) => span,
            Err(Error::Exhausted { usage, .. }) => {
                self.counts.exhausted += 1;
                // Before it fails, all pending memory must have been waited for.
                if usage.waiting_bytes > 0 && !self.device.lock().capturing {
                    return Err(format!("nothing was waited for: {usage:?}"));
                }
                return Ok(());
            }
            Err(Error::Tenant { .. }) if *held + rounded > share => {
                self.counts.refused += 1;
                return Ok(());
            }
            Err(other) => return Err(other.to_string()),
        };
        *held += rounded;
        if *held > share {
            return Err(format!("tenant {tenant} uses {held} of {share}"));
        }
        if span.bytes != rounded || !span.address.is_multiple_of(align.max(256)) {
            return Err(format!("{span:?} for {bytes} bytes at {align}"));
        }
        self.counts.allocated += 1;
        // It overlaps no other live block.
        let below = self.taken.range(..span.end()).next_back();
        if below.is_some_and(|(_, end)| *end > span.address) {
            return Err(format!("{span:?} overlaps {below:x?}"));
        }
        self.taken.insert(span.address, span.end());
        let device = self.device.lock();
        if !device.is_memory(span) {
            return Err(format!("{span:?} is not all memory"));
        }
        // Its user follows all earlier work on it.
        let mut follows_now = device.host;
        if let Some(stream) = stream {
            join(
                &mut follows_now,
                &device.streams[device.slots[&self.streams[stream]]].clocks,
            );
        }
        let host = device.host;
        drop(device);
        let (mut early, mut wrong) = (false, None);
        self.cut_freed(span, |uses| {
            early |= !follows(&host, uses);
            if !follows(&follows_now, uses) {
                wrong = Some(*uses);
            }
        });
        self.counts.reused_early += u64::from(early);
        if let Some(uses) = wrong {
            return Err(format!(
                "{span:?} is reused by {stream:?} too early: used until {uses:?}, known {follows_now:?}"
            ));
        }
        self.live.push(LiveBlock {
            span,
            made: follows_now,
            uses: Clocks::default(),
            tenant,
            requested_bytes: bytes,
            note: request.note,
        });
        Ok(())
    }

    /// A live block, after making a stream follow its uses.
    fn last_use(&mut self, which: usize, stream: Option<usize>) -> Option<LiveBlock> {
        let at = which.checked_rem(self.live.len())?;
        let live = self.live.swap_remove(at);
        if let Some(stream) = stream {
            let slot = self.slot(stream);
            let mut device = self.device.lock();
            device.wait(slot, &live.uses);
            device.wait(slot, &live.made);
        }
        Some(live)
    }

    fn free(&mut self, live: LiveBlock, stream: Option<usize>) -> Answer {
        let freed = self.pool.free(live.span.address, self.place(stream));
        if freed != Ok(live.known()) {
            return Err(format!("{freed:?} for {live:?}"));
        }
        self.freed(&live);
        Ok(())
    }

    /// Removes a block from the live ones.
    fn freed(&mut self, live: &LiveBlock) {
        self.taken.remove(&live.span.address);
        self.tenant_bytes[usize::from(live.tenant)] -= live.span.bytes;
        self.counts.freed += 1;
        let mut uses = live.uses;
        join(&mut uses, &live.made);
        self.freed
            .insert(live.span.address, (live.span.end(), uses));
    }

    /// Removes a span from the freed memory; `f` is called with the uses of each part.
    fn cut_freed(&mut self, span: Span, mut f: impl FnMut(&Clocks)) {
        while let Some((&at, &(end, uses))) = self.freed.range(..span.end()).next_back() {
            if end <= span.address {
                break;
            }
            f(&uses);
            self.freed.remove(&at);
            if end > span.end() {
                self.freed.insert(span.end(), (end, uses));
            }
            if at < span.address {
                self.freed.insert(at, (span.address, uses));
            }
        }
    }

    /// Forgets unmapped memory; nothing may use it any more.
    fn forget_unmapped(&mut self) -> Answer {
        let device = self.device.lock();
        let bytes = device.mapped_bytes();
        let wrong = device.wrong.clone();
        drop(device);
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        // Summing up takes longer than most operations.
        if !self.steps.is_multiple_of(16) {
            return Ok(());
        }
        let pool = self.pool.usage().bytes;
        if pool != bytes {
            return Err(format!("the pool has {pool} bytes, {bytes} are mapped"));
        }
        Ok(())
    }

    /// Checks what holds after every operation.
    fn settled(&mut self) -> Answer {
        self.forget_unmapped()?;
        self.steps += 1;
        if self.steps.is_multiple_of(16) {
            self.adds_up()?;
        }
        let physical = self.device.lock().physical();
        if self.pool.budget().used_bytes() != physical {
            return Err(format!(
                "{physical} bytes, charged {}",
                self.pool.budget().used_bytes()
            ));
        }
        Ok(())
    }

    /// The pool's live bytes are those of the program.
    fn adds_up(&self) -> Answer {
        let usage = self.pool.usage();
        let live: u64 = self.tenant_bytes.iter().sum();
        if usage.live_bytes != live || usage.blocks != self.live.len() as u64 {
            return Err(format!("{live} bytes are live: {usage:?}"));
        }
        Ok(())
    }

    /// Checks all invariants; expensive.
    pub(crate) fn audit(&self) -> Answer {
        self.pool.audit()?;
        self.adds_up()?;
        let (mut blocks, mut notes) = (0, 0u64);
        self.pool.for_each_live(|live| {
            blocks += 1;
            notes += live.note;
        });
        let expected: u64 = self.live.iter().map(|live| live.note).sum();
        if (blocks, notes) != (self.live.len(), expected) {
            return Err(format!(
                "{blocks} blocks are shown instead of {}",
                self.live.len()
            ));
        }
        let device = self.device.lock();
        for span in &self.pinned {
            if !device.is_memory(*span) {
                return Err(format!("{span:?} is pinned and gone"));
            }
        }
        Ok(())
    }

    /// Ends the program: everything is freed, and nothing must remain.
    pub(crate) fn end(mut self) -> Answer {
        self.device.lock().capturing = false;
        for span in std::mem::take(&mut self.pinned) {
            self.pool.unpin(span.address);
        }
        while let Some(live) = self.live.pop() {
            self.free(live, None)?;
        }
        self.step(Op::Synchronise { stream: None })?;
        self.pool.trim();
        self.audit()?;
        let (usage, used) = (self.pool.usage(), self.pool.budget().used_bytes());
        match (usage.bytes, used, self.device.lock().physical()) {
            (0, 0, 0) => Ok(()),
            _ => Err(format!("{used} bytes are left: {usage:?}")),
        }
    }
}
