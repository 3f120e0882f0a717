//! Arena of device memory that is allocated while a graph is captured, and owned by the graph.
//!
//! An arena is a few chunks of device memory, allocated and freed in the order of a stream that is
//! never captured. Allocations are multiples of [`ALIGN_BYTES`], best fit, else in a new chunk.
//! Memory dropped during the capture leaves a hole: captured work that comes later in the stream
//! may reuse it, since it runs later in every replay too.
//!
//! Invariant: allocations of an arena that are live at the same time never overlap; each keeps its
//! address as long as it has an owner, since it retains its chunk. Elsewhere: when a chunk is
//! freed (`fercuda_cuda`: behind its last use), plans for needs known in advance
//! ([`crate::Plan`]).

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use bytemuck::Pod;
use fercuda_cuda::{Capture, DeviceBuffer, DeviceSliceMut, Stream};

use super::error::GraphError;
use crate::account::{SessionAccount, SessionCharge};
use crate::lock::lock;

/// Alignment of allocations.
const ALIGN_BYTES: u64 = 256;
/// Minimum size of a chunk, except one of a requested size.
const SMALLEST_CHUNK_BYTES: u64 = 64 << 10;

/// Device memory of a graph's arena. Dropped before the capture ends, its space is reused by later
/// allocations; kept, it is an ordinary buffer with the values of the last replay.
#[derive(Debug)]
pub struct Scratch<T> {
    buffer: DeviceBuffer<T>,
    arena: Arc<Mutex<GraphArena>>,
    chunk: usize,
    offset_bytes: u64,
    bytes: u64,
    _charge: Option<Arc<SessionCharge>>,
}

impl<T> Deref for Scratch<T> {
    type Target = DeviceBuffer<T>;

    fn deref(&self) -> &DeviceBuffer<T> {
        &self.buffer
    }
}

impl<T: Pod> Scratch<T> {
    /// The whole buffer, for writing.
    pub fn as_slice_mut(&mut self) -> DeviceSliceMut<'_, T> {
        self.buffer.as_slice_mut()
    }
}

impl<T> Drop for Scratch<T> {
    fn drop(&mut self) {
        lock(&self.arena).free(self.chunk, self.offset_bytes, self.bytes);
    }
}

/// A chunk during the capture.
#[derive(Debug)]
struct ArenaChunk {
    memory: DeviceBuffer<u8>,
    /// Shared with every owner of the memory.
    charge: Option<Arc<SessionCharge>>,
    /// Holes, from begin to end; none touches another.
    holes: BTreeMap<u64, u64>,
    /// Nothing from this offset on has been allocated yet.
    fresh: u64,
}

impl ArenaChunk {
    fn new(memory: DeviceBuffer<u8>, charge: Option<Arc<SessionCharge>>) -> Self {
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

    /// The same for memory that has never been allocated.
    fn never_used(&self, bytes: u64) -> Option<(u64, u64)> {
        let size = self.memory.len() as u64 - self.fresh;
        (size >= bytes).then_some((size, self.fresh))
    }

    /// Allocates `bytes` from `begin` on, which are in one hole.
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
pub(super) struct GraphArena {
    /// Stream that orders the allocation and freeing of chunks.
    home: Stream,
    account: Option<Arc<SessionAccount>>,
    /// Size of the first chunk.
    first_bytes: u64,
    /// Empty once the capture is over.
    chunks: Vec<ArenaChunk>,
    bytes: u64,
    used_bytes: u64,
    peak_bytes: u64,
}

impl GraphArena {
    pub(super) fn new(
        home: &Stream,
        account: Option<Arc<SessionAccount>>,
        first_bytes: u64,
    ) -> Self {
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

    /// Total size of the chunks.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Peak of the allocated bytes: an arena that begins with this size has one chunk, unless holes
    /// are too small.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Releases the chunks; nothing is allocated any more.
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

    /// Finds a place for `bytes`.
    fn find(&self, bytes: u64, capture: &Capture) -> Option<(usize, u64)> {
        // Dropped memory was used in the captured stream alone only as long as no other stream has
        // joined; work of another stream may not be ordered behind that use.
        let place = match capture.has_forked() {
            false => ArenaChunk::hole,
            true => ArenaChunk::never_used,
        };
        let chunks = (0..).zip(&self.chunks);
        let fitting = |(at, chunk): (usize, &ArenaChunk)| place(chunk, bytes).map(|it| (it, at));
        let ((_, begin), chunk) = chunks.filter_map(fitting).min()?;
        Some((chunk, begin))
    }

    /// Size of the next chunk, which must fit `bytes`.
    fn next_bytes(&self, bytes: u64) -> u64 {
        let grown = match self.bytes {
            0 if self.first_bytes > 0 => self.first_bytes,
            bytes => bytes.max(SMALLEST_CHUNK_BYTES),
        };
        grown.max(bytes)
    }
}

/// Adds a chunk, which `capture`'s graph retains. Called without the arena's lock: an allocation
/// runs deferred frees, which may run user code, and drop memory of this arena.
fn grow(arena: &Mutex<GraphArena>, bytes: u64, capture: &Capture) -> Result<(), GraphError> {
    let (bytes, home, account) = {
        let arena = lock(arena);
        let bytes = arena.next_bytes(bytes);
        (bytes, arena.home.clone(), arena.account.clone())
    };
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    let charge = account.as_ref().map(|it| it.charge(bytes));
    let charge = charge.transpose()?.map(Arc::new);
    let memory = DeviceBuffer::<u8>::alloc_ordered(&home, size)?;
    account.iter().for_each(|it| it.update_peak());
    // A graph's launch is not ordered behind work of `home`. The graph retains the chunk also
    // where captured work knows nothing but an address.
    home.synchronize()?;
    capture.keep((memory.part::<u8>(0, size)?, charge.clone()));
    let mut arena = lock(arena);
    arena.bytes += bytes;
    arena.chunks.push(ArenaChunk::new(memory, charge));
    Ok(())
}

/// Allocates `len` values.
///
/// # Errors
/// [`GraphError::Size`]; those of the driver.
pub(super) fn allocate<T: Pod>(
    arena: &Arc<Mutex<GraphArena>>,
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
