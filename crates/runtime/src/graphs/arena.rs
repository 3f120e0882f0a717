//! Memory that is allocated while a graph is captured, and is the graph's.
//!
//! An arena is a few chunks of device memory, taken in the order of a stream that is
//! never captured. What is allocated lies at multiples of [`ALIGN_BYTES`], in the
//! smallest hole that fits, else in a new chunk. What is dropped during the capture
//! leaves a hole: captured work that comes later in the stream may have it, since it
//! runs later in every replay too.
//!
//! Invariant: two of an arena's allocations that live at one time have no byte in
//! common; and every one lies where it does for as long as anybody has it, since it
//! holds its chunk. Elsewhere: when a chunk goes (`fercuda_cuda`: behind its last
//! use), plans for needs that are known before ([`crate::Plan`]).

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use bytemuck::Pod;
use fercuda_cuda::{Capture, DeviceBuffer, DeviceSliceMut, Stream};

use super::{GraphError, lock};
use crate::account::{Account, Charge};

/// Allocations begin at multiples of so much.
const ALIGN_BYTES: u64 = 256;
/// No chunk is smaller, but one whose size was asked for.
const SMALLEST_CHUNK_BYTES: u64 = 64 << 10;

/// Device memory of a graph's arena. Dropped before the capture ends, its place is
/// for what is allocated after it; kept, it is a buffer as any other, whose values
/// are those of the last replay.
#[derive(Debug)]
pub struct Scratch<T> {
    buffer: DeviceBuffer<T>,
    arena: Arc<Mutex<Arena>>,
    chunk: usize,
    offset_bytes: u64,
    bytes: u64,
    _charge: Option<Arc<Charge>>,
}

impl<T> Deref for Scratch<T> {
    type Target = DeviceBuffer<T>;

    fn deref(&self) -> &DeviceBuffer<T> {
        &self.buffer
    }
}

impl<T: Pod> Scratch<T> {
    /// The whole of it, for writing.
    pub fn as_slice_mut(&mut self) -> DeviceSliceMut<'_, T> {
        self.buffer.as_slice_mut()
    }
}

impl<T> Drop for Scratch<T> {
    fn drop(&mut self) {
        lock(&self.arena).free(self.chunk, self.offset_bytes, self.bytes);
    }
}

/// A chunk while the capture runs.
#[derive(Debug)]
struct Chunk {
    memory: DeviceBuffer<u8>,
    /// Held by whoever holds the memory.
    charge: Option<Arc<Charge>>,
    /// Holes by their beginnings; none touches another.
    holes: BTreeMap<u64, u64>,
    /// From here on nothing has been handed out yet.
    fresh: u64,
}

impl Chunk {
    fn new(memory: DeviceBuffer<u8>, charge: Option<Arc<Charge>>) -> Self {
        let all = memory.len() as u64;
        Self {
            memory,
            charge,
            holes: BTreeMap::from([(0, all)]),
            fresh: 0,
        }
    }

    /// The smallest hole of at least `bytes`, as its size and beginning.
    fn hole(&self, bytes: u64) -> Option<(u64, u64)> {
        let holes = self.holes.iter().map(|(begin, end)| (end - begin, *begin));
        holes.filter(|(size, _)| *size >= bytes).min()
    }

    /// The same of what nobody has had.
    fn never_used(&self, bytes: u64) -> Option<(u64, u64)> {
        let size = self.memory.len() as u64 - self.fresh;
        (size >= bytes).then_some((size, self.fresh))
    }

    /// Takes `bytes` from `begin` on, which are in one hole.
    fn take(&mut self, begin: u64, bytes: u64) {
        let end = begin + bytes;
        if let Some((from, to)) = self
            .holes
            .range(..=begin)
            .next_back()
            .map(|(a, b)| (*a, *b))
        {
            self.holes.remove(&from);
            let rest = [(from, begin), (end, to)].into_iter();
            self.holes.extend(rest.filter(|(from, to)| from < to));
        }
        self.fresh = self.fresh.max(end);
    }

    fn free(&mut self, mut begin: u64, bytes: u64) {
        let mut end = begin + bytes;
        if let Some((below, below_end)) =
            self.holes.range(..begin).next_back().map(|(a, b)| (*a, *b))
            && below_end == begin
        {
            begin = below;
        }
        if let Some(above_end) = self.holes.remove(&end) {
            end = above_end;
        }
        self.holes.insert(begin, end);
    }
}

#[derive(Debug)]
pub(super) struct Arena {
    /// In whose order chunks are taken and given back.
    home: Stream,
    account: Option<Arc<Account>>,
    /// What the first chunk is to have.
    first_bytes: u64,
    /// None any more once the capture is over.
    chunks: Vec<Chunk>,
    bytes: u64,
    used_bytes: u64,
    peak_bytes: u64,
}

impl Arena {
    pub(super) fn new(home: &Stream, account: Option<Arc<Account>>, first_bytes: u64) -> Self {
        Self {
            home: home.clone(),
            account,
            first_bytes: first_bytes.next_multiple_of(ALIGN_BYTES),
            chunks: Vec::new(),
            bytes: 0,
            used_bytes: 0,
            peak_bytes: 0,
        }
    }

    /// What its chunks take.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The most that was allocated at one time: with an arena of so many bytes from
    /// the beginning there is one chunk, unless holes are too small.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Hands out no more.
    pub(super) fn close(&mut self) {
        self.chunks.clear();
    }

    fn free(&mut self, chunk: usize, offset_bytes: u64, bytes: u64) {
        if bytes > 0
            && let Some(chunk) = self.chunks.get_mut(chunk)
        {
            chunk.free(offset_bytes, bytes);
            self.used_bytes -= bytes;
        }
    }

    /// Where `bytes` are free.
    fn find(&self, bytes: u64, capture: &Capture) -> Option<(usize, u64)> {
        // What was dropped has been used in the captured stream alone only as long as
        // no other took part; work of another may not be behind that.
        let place = match capture.has_forked() {
            false => Chunk::hole,
            true => Chunk::never_used,
        };
        let chunks = (0..).zip(&self.chunks);
        let fitting = |(at, chunk): (usize, &Chunk)| place(chunk, bytes).map(|it| (it, at));
        let ((_, begin), chunk) = chunks.filter_map(fitting).min()?;
        Some((chunk, begin))
    }

    /// What a chunk is to have in which `bytes` find a place.
    fn next_bytes(&self, bytes: u64) -> u64 {
        let grown = match self.bytes {
            0 if self.first_bytes > 0 => self.first_bytes,
            bytes => bytes.max(SMALLEST_CHUNK_BYTES),
        };
        grown.max(bytes)
    }
}

/// One more chunk, which `capture`'s graph holds. Not in the arena's lock: who asks for
/// memory destroys what was left for later, which may be the user's, and of this arena.
fn grow(arena: &Mutex<Arena>, bytes: u64, capture: &Capture) -> Result<(), GraphError> {
    let (bytes, home, account) = {
        let arena = lock(arena);
        let bytes = arena.next_bytes(bytes);
        (bytes, arena.home.clone(), arena.account.clone())
    };
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    let charge = account.as_ref().map(|it| it.charge(bytes));
    let charge = charge.transpose();
    let charge = charge.map_err(|error| GraphError::Limit(Box::new(error)))?;
    let charge = charge.map(Arc::new);
    let memory = DeviceBuffer::<u8>::alloc_ordered(&home, size)?;
    account.iter().for_each(|it| it.lift_peak());
    // A graph is not behind work of `home`; and it is the graph's also where
    // captured work knows nothing but an address.
    home.synchronize()?;
    capture.keep((memory.part::<u8>(0, size)?, charge.clone()));
    let mut arena = lock(arena);
    arena.bytes += bytes;
    arena.chunks.push(Chunk::new(memory, charge));
    Ok(())
}

/// Memory for `len` values.
///
/// # Errors
/// [`GraphError::Size`]; those of the driver.
pub(super) fn allocate<T: Pod>(
    arena: &Arc<Mutex<Arena>>,
    capture: &Capture,
    len: usize,
) -> Result<Scratch<T>, GraphError> {
    let each = size_of::<T>();
    let bytes = len
        .checked_mul(each)
        .and_then(|bytes| u64::try_from(bytes).ok())
        .and_then(|bytes| bytes.checked_next_multiple_of(ALIGN_BYTES));
    let bytes = bytes.ok_or(GraphError::Size { len, each })?;
    let mut inner = lock(arena);
    let (chunk, offset_bytes, buffer, charge) = match bytes {
        0 => (0, 0, DeviceBuffer::alloc(inner.home.context(), len)?, None),
        _ => {
            let (chunk, begin) = loop {
                if let Some(place) = inner.find(bytes, capture) {
                    break place;
                }
                drop(inner);
                grow(arena, bytes, capture)?;
                inner = lock(arena);
            };
            let it = &mut inner.chunks[chunk];
            let buffer = it.memory.part::<T>(begin as usize, len)?;
            it.take(begin, bytes);
            (chunk, begin, buffer, it.charge.clone())
        }
    };
    inner.used_bytes += bytes;
    inner.peak_bytes = inner.peak_bytes.max(inner.used_bytes);
    drop(inner);
    Ok(Scratch {
        buffer,
        arena: arena.clone(),
        chunk,
        offset_bytes,
        bytes,
        _charge: charge,
    })
}
