//! Heap of a context from which kernels take memory: `malloc` and `free` in device code.
//!
//! Invariant: the blocks that kernels have, those whose reuse is put off, and the free ranges are
//! apart, and inside the heap. With checks each block is an allocation of the address space, with a
//! gap behind it that belongs to none, and a freed one is reused as late as the heap's size allows.
//!
//! Elsewhere: the memory itself, which the context takes and gives back.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;

use crate::lock::lock;
use crate::mem::{AddressSpace, AllocKind, DriverCallSite, FreeRanges};

/// Alignment of every block, bytes.
const ALIGN: u64 = 16;
/// Bytes behind a block that belong to no block, with checks.
const GAP: u64 = 32;

#[derive(Debug, Default)]
struct HeapBlocks {
    free: FreeRanges,
    /// Bytes taken from `free` for each block that a kernel has.
    live: FxHashMap<u64, u64>,
    /// The same of freed blocks, the earliest first.
    waiting: VecDeque<(u64, u64)>,
    calls: u64,
}

/// The heap.
#[derive(Debug)]
pub struct KernelHeap {
    space: Arc<AddressSpace>,
    device: u32,
    start: u64,
    len: u64,
    blocks: Mutex<HeapBlocks>,
}

impl KernelHeap {
    /// Of `len` bytes from `start` on, which `device` may access and no other code uses.
    #[must_use]
    pub fn new(space: Arc<AddressSpace>, device: u32, start: u64, len: u64) -> Arc<Self> {
        let mut blocks = HeapBlocks::default();
        blocks.free.give(start, len);
        Arc::new(KernelHeap {
            space,
            device,
            start,
            len,
            blocks: Mutex::new(blocks),
        })
    }

    /// First address and bytes.
    #[must_use]
    pub fn range(&self) -> (u64, u64) {
        (self.start, self.len)
    }

    fn is_checked(&self) -> bool {
        self.space.shadow().is_some()
    }

    /// A block of `size` bytes for `caller`; `None` if there is no room, or nothing is asked for.
    pub(crate) fn malloc(&self, size: u64, caller: &dyn Fn() -> Arc<str>) -> Option<u64> {
        if size == 0 || size > self.len {
            return None;
        }
        let gap = if self.is_checked() { GAP } else { 0 };
        let need = (size + gap).next_multiple_of(ALIGN);
        let mut blocks = lock(&self.blocks);
        let at = loop {
            if let Some(at) = blocks.free.take(need, ALIGN) {
                break at;
            }
            let (start, len) = blocks.waiting.pop_front()?;
            blocks.free.give(start, len);
        };
        blocks.live.insert(at, need);
        blocks.calls += 1;
        if self.is_checked() {
            let made = site("malloc", blocks.calls, caller());
            let (kind, device) = (AllocKind::Heap, self.device);
            self.space
                .add(at, size, kind, device, None, made, false, None);
        }
        Some(at)
    }

    /// Takes a block back from `caller`; whether there was one at `at`.
    pub(crate) fn free(&self, at: u64, caller: &dyn Fn() -> Arc<str>) -> bool {
        let mut blocks = lock(&self.blocks);
        let Some(need) = blocks.live.remove(&at) else {
            return false;
        };
        blocks.calls += 1;
        if self.is_checked() {
            let freed = site("free", blocks.calls, caller());
            self.space.retire(at, freed, None);
            blocks.waiting.push_back((at, need));
        } else {
            blocks.free.give(at, need);
        }
        true
    }

    /// Ends every block, with the context.
    pub(crate) fn close(&self) {
        let mut blocks = lock(&self.blocks);
        for (at, _) in blocks.live.drain() {
            if self.is_checked() {
                let freed = site("cuCtxDestroy", 0, "the host".into());
                self.space.retire(at, freed, None);
            }
        }
    }
}

fn site(call: &'static str, ordinal: u64, thread: Arc<str>) -> DriverCallSite {
    DriverCallSite {
        call,
        ordinal,
        thread,
        caller: 0,
    }
}
