//! A simulated device: streams at their own pace, and physical memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fercuda_pool::{DeviceClock, GrowthRefused, MemoryBacking, PoolPlace, Span, StreamId};

/// The number of streams that exist, or have ended with pending work.
pub(super) const SLOTS: usize = 16;
/// The size of a piece of physical memory.
pub(super) const PIECE: u64 = 64 << 10;
/// All physical memory of the device.
pub(super) const DEVICE_BYTES: u64 = 24 << 20;

/// How much of each stream's work is known to be done.
pub(super) type Clocks = [u32; SLOTS];

pub(super) fn join(a: &mut Clocks, b: &Clocks) {
    for (a, b) in a.iter_mut().zip(b) {
        *a = (*a).max(*b);
    }
}

pub(super) fn follows(a: &Clocks, b: &Clocks) -> bool {
    a.iter().zip(b).all(|(a, b)| a >= b)
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    /// The work that newly queued work follows, itself included.
    pub(super) clocks: Clocks,
    /// Pending waits: from which work on, and for what.
    pub(super) waits: VecDeque<(u32, Clocks)>,
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

/// The smallest slab; slabs begin anywhere in a piece.
const LEAST_SLAB: u64 = 4 * PIECE;
const SLAB_ALIGN: u64 = 512;

#[derive(Debug, Default)]
pub(super) struct Device {
    pub(super) kind: Kind,
    pub(super) streams: [Stream; SLOTS],
    /// Completed work, by stream.
    pub(super) done: Clocks,
    /// The work the host knows to be done.
    pub(super) host: Clocks,
    /// The slot of each existing stream.
    pub(super) slots: BTreeMap<StreamId, usize>,
    pub(super) capturing: bool,
    pub(super) fail: u32,
    /// Pieces of memory, by address; or slabs, which differ in length.
    pub(super) mapped: BTreeMap<u64, u64>,
    pub(super) spare: u64,
    pub(super) top: u64,
    /// A call that was made while a stream captured, or another violation.
    pub(super) wrong: Option<String>,
}

impl Device {
    /// Queues one piece of work.
    pub(super) fn queue(&mut self, slot: usize) -> u32 {
        let host = self.host;
        let stream = &mut self.streams[slot];
        join(&mut stream.clocks, &host);
        stream.clocks[slot] += 1;
        stream.clocks[slot]
    }

    pub(super) fn wait(&mut self, slot: usize, clocks: &Clocks) {
        let stream = &mut self.streams[slot];
        let mut others = *clocks;
        others[slot] = 0;
        stream.waits.push_back((stream.clocks[slot] + 1, others));
        join(&mut stream.clocks, clocks);
    }

    pub(super) fn advance(&mut self, slot: usize, steps: u32) {
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
    pub(super) fn finish(&mut self, clocks: &Clocks) {
        join(&mut self.done, clocks);
        join(&mut self.host, clocks);
        for (slot, stream) in self.streams.iter_mut().enumerate() {
            let next = self.done[slot] + 1;
            while stream.waits.front().is_some_and(|(from, _)| *from < next) {
                stream.waits.pop_front();
            }
        }
    }

    pub(super) fn all(&self) -> Clocks {
        let mut all = Clocks::default();
        for stream in &self.streams {
            join(&mut all, &stream.clocks);
        }
        all
    }

    pub(super) fn mapped_bytes(&self) -> u64 {
        self.mapped.values().sum()
    }

    pub(super) fn physical(&self) -> u64 {
        self.mapped_bytes() + self.spare
    }

    /// Whether all of a span is mapped; with slabs, in one slab.
    pub(super) fn is_memory(&self, span: Span) -> bool {
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
    pub(super) fn slab_site(&self, bytes: u64) -> u64 {
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
    pub(super) fn lock(&self) -> MutexGuard<'_, Device> {
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
