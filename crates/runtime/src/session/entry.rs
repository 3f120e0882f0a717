//! Buffers as a session's handles refer to them: memory, and a layout over it.

use std::fmt;
use std::sync::Arc;

use fercuda_cuda::{DeviceAddr, DeviceBuffer, Stream};
use fercuda_tensor::Layout;

use crate::account::SessionCharge;
use crate::contiguous_runs::ContiguousRuns;
use crate::error::{Error, Result};
use crate::handles::HandleId;

/// Maximum number of copies of one call.
const MAX_COPIES: u64 = 1 << 16;

/// Handle of a buffer.
pub type BufferId = HandleId;

/// Kind of a buffer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Regime {
    /// A block of the process's pool.
    Pool,
    /// Physical memory that the driver allocated and mapped for this buffer: whole allocation
    /// granules, which can be shared with other processes.
    Driver,
    /// Managed memory: one address for the host and all devices.
    Managed,
    /// Page-locked host memory.
    Pinned,
    /// Imported memory of another owner.
    Foreign,
    /// Memory from the program's [`MemoryAllocator`](crate::MemoryAllocator).
    Callbacks,
}

impl fmt::Display for Regime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pool => "pool",
            Self::Driver => "driver",
            Self::Managed => "managed",
            Self::Pinned => "pinned",
            Self::Foreign => "foreign",
            Self::Callbacks => "callbacks",
        })
    }
}

/// Memory that one or several handles refer to.
#[derive(Debug)]
pub(crate) struct SessionMemory {
    pub(crate) buffer: DeviceBuffer<u8>,
    pub(crate) bytes: u64,
    pub(crate) regime: Regime,
    pub(crate) charge: Arc<SessionCharge>,
}

impl SessionMemory {
    /// The memory is charged until the driver has it back, even if it outlives its handles.
    pub(crate) fn new(
        buffer: DeviceBuffer<u8>,
        bytes: u64,
        regime: Regime,
        charge: SessionCharge,
    ) -> Arc<Self> {
        let charge = Arc::new(charge);
        buffer.keep_until_returned(charge.clone());
        Arc::new(Self {
            buffer,
            bytes,
            regime,
            charge,
        })
    }
}

impl Drop for SessionMemory {
    fn drop(&mut self) {
        self.charge.note_freed();
    }
}

/// What a handle refers to.
#[derive(Clone, Debug)]
pub(crate) struct BufferEntry {
    pub(crate) memory: Arc<SessionMemory>,
    pub(crate) layout: Layout,
    /// Offset of the first element in the memory, in bytes.
    pub(crate) first: u64,
    pub(crate) exported: bool,
}

/// A buffer's exported address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Address of the first element.
    pub address: DeviceAddr,
    /// Layout of the elements.
    pub layout: Layout,
    /// Kind of the memory.
    pub regime: Regime,
}

pub(super) fn overlap(doing: &'static str, layout: &Layout) -> Error {
    Error::Overlap {
        doing,
        shape: layout.shape().to_vec(),
        strides: layout.strides().to_vec(),
    }
}

/// The contiguous runs to copy between two layouts.
pub(super) fn copies(left: &Layout, right: &Layout) -> Result<ContiguousRuns> {
    let runs = ContiguousRuns::of(*left, *right);
    if runs.count() > MAX_COPIES {
        return Err(Error::Strewn {
            pieces: runs.count(),
            most: MAX_COPIES,
        });
    }
    Ok(runs)
}

/// A buffer's memory from its first element on.
pub(super) fn part(entry: &BufferEntry) -> Result<DeviceBuffer<u8>> {
    let (first, rest) = (entry.first, entry.memory.bytes - entry.first);
    Ok(entry.memory.buffer.part(first as usize, rest as usize)?)
}

pub(super) fn copy_runs(
    target: &BufferEntry,
    source: &BufferEntry,
    runs: &ContiguousRuns,
    stream: &Stream,
) -> Result<()> {
    for (to, from) in runs.begins() {
        let part = granule(source, from, runs.bytes)?;
        granule(target, to, runs.bytes)?.copy_from(part.as_slice(), stream)?;
    }
    Ok(())
}

/// The part of a buffer's memory at an offset from its first element.
pub(super) fn granule(entry: &BufferEntry, at: i64, bytes: u64) -> Result<DeviceBuffer<u8>> {
    let begin = entry.first.wrapping_add_signed(at) as usize;
    Ok(entry.memory.buffer.part(begin, bytes as usize)?)
}

/// The contiguous layout of the elements on the host.
pub(super) fn beside(layout: &Layout) -> Result<Layout> {
    Ok(Layout::contiguous(layout.dtype(), layout.shape())?)
}

pub(super) fn put(entry: &BufferEntry, bytes: &[u8], stream: &Stream) -> Result<()> {
    let runs = ContiguousRuns::of(entry.layout, beside(&entry.layout)?);
    for (to, from) in runs.begins() {
        let from = from as usize;
        let mut part = granule(entry, to, runs.bytes)?;
        part.copy_from_host(&bytes[from..from + runs.bytes as usize], stream)?;
    }
    Ok(())
}

pub(super) fn get(entry: &BufferEntry, stream: &Stream) -> Result<Vec<u8>> {
    let runs = ContiguousRuns::of(entry.layout, beside(&entry.layout)?);
    let mut bytes = vec![0; entry.layout.bytes() as usize];
    for (from, to) in runs.begins() {
        let to = to as usize;
        let part = granule(entry, from, runs.bytes)?;
        part.copy_to_host(&mut bytes[to..to + runs.bytes as usize], stream)?;
    }
    Ok(bytes)
}
