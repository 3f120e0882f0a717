//! Physical memory of a device's graphs.
//!
//! An allocation node has an address from the start, and physical memory from a launch on. It comes
//! from one reserve of the device, which grows in strides and shrinks only when it is trimmed: what
//! a graph does not need any more serves the next one.
//!
//! Elsewhere: addresses, and when the memory of a node is live ([`super::graph_memory`]).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use fercuda_cuda_sys::types::CUgraphMem_attribute as A;

use super::heap::{POOL_STRIDE, PhysicalBudget};
use super::objects::{GraphMemory, QueueTicket};
use super::status::{CuResult, err};
use crate::lock::lock;
use crate::mem::round_up;

/// What an executable graph holds of the reserve.
struct GraphHolding {
    /// The executable graph's handle; another one may have it later.
    exec: usize,
    bytes: u64,
    /// Launches that are being submitted.
    begun: usize,
    last: Option<QueueTicket>,
    /// The memory that its last launch left allocated.
    left: Vec<Arc<GraphMemory>>,
}

#[derive(Default)]
struct GraphReserve {
    reserved: u64,
    reserved_high: u64,
    used_high: u64,
    holdings: Vec<GraphHolding>,
}

/// The reserve; see the module.
#[derive(Default)]
pub(crate) struct GraphPool {
    reserve: Mutex<GraphReserve>,
}

impl GraphHolding {
    /// Whether nothing runs or is allocated in it.
    fn is_idle(&self) -> bool {
        let is_done = self.last.as_ref().is_none_or(QueueTicket::is_done);
        let mut left = self.left.iter();
        self.begun == 0 && is_done && !left.any(|memory| memory.taken.load(Ordering::Acquire))
    }
}

impl GraphReserve {
    fn held(&self) -> u64 {
        self.holdings.iter().map(|it| it.bytes).sum()
    }

    fn used(&self) -> u64 {
        let used = self.holdings.iter().filter(|it| !it.is_idle());
        used.map(|it| it.bytes).sum()
    }

    /// Forgets memory that was freed, which may have been the last of its graph.
    fn forget_freed(&mut self) {
        for holding in &mut self.holdings {
            let left = &mut holding.left;
            left.retain(|memory| memory.taken.load(Ordering::Acquire));
        }
    }

    /// Grows until `bytes` more are there than are held; returns whether that succeeded.
    fn grow(&mut self, bytes: u64, phys: &PhysicalBudget) -> bool {
        let free = self.reserved - self.held();
        let Some(short) = bytes.checked_sub(free).filter(|short| *short > 0) else {
            return true;
        };
        let stride = short.checked_next_multiple_of(POOL_STRIDE);
        let sizes = [stride.unwrap_or(short), round_up(short)];
        let taken = sizes.into_iter().find(|size| phys.take(*size));
        self.reserved += taken.unwrap_or(0);
        self.reserved_high = self.reserved_high.max(self.reserved);
        taken.is_some()
    }
}

impl GraphPool {
    /// Takes `bytes` for a launch of an executable graph, which ends with [`GraphPool::launched`].
    /// Memory of idle graphs is taken from them before the reserve grows; if that fails, `reclaim`
    /// is called once.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`; the graph holds what it held before.
    pub(crate) fn hold(
        &self,
        phys: &PhysicalBudget,
        exec: usize,
        bytes: u64,
        reclaim: impl FnOnce(),
    ) -> CuResult {
        if !self.try_hold(phys, exec, bytes) {
            reclaim();
            if !self.try_hold(phys, exec, bytes) {
                return Err(err::OUT_OF_MEMORY);
            }
        }
        Ok(())
    }

    fn try_hold(&self, phys: &PhysicalBudget, exec: usize, bytes: u64) -> bool {
        let mut reserve = lock(&self.reserve);
        reserve.forget_freed();
        let has = reserve.holdings.iter().find(|it| it.exec == exec);
        let more = bytes.saturating_sub(has.map_or(0, |it| it.bytes));
        let mut free = reserve.reserved - reserve.held();
        reserve.holdings.retain(|it| {
            let stays = free >= more || it.exec == exec || !it.is_idle();
            free += if stays { 0 } else { it.bytes };
            stays
        });
        if !reserve.grow(more, phys) {
            return false;
        }
        match reserve.holdings.iter_mut().find(|it| it.exec == exec) {
            Some(it) => {
                it.bytes += more;
                it.begun += 1;
            }
            None => reserve.holdings.push(GraphHolding {
                exec,
                bytes,
                begun: 1,
                last: None,
                left: Vec::new(),
            }),
        }
        let used = reserve.used();
        reserve.used_high = reserve.used_high.max(used);
        true
    }

    /// The launch was submitted, or not. `left`: the memory that is allocated after it.
    pub(crate) fn launched(
        &self,
        exec: usize,
        ticket: Option<QueueTicket>,
        left: Vec<Arc<GraphMemory>>,
    ) {
        let mut reserve = lock(&self.reserve);
        if let Some(it) = reserve.holdings.iter_mut().find(|it| it.exec == exec) {
            it.begun -= 1;
            if ticket.is_some() {
                (it.last, it.left) = (ticket, left);
            }
        }
    }

    /// Returns what no graph needs to the device.
    pub(crate) fn trim(&self, phys: &PhysicalBudget) {
        let mut reserve = lock(&self.reserve);
        reserve.forget_freed();
        reserve.holdings.retain(|it| !it.is_idle());
        let needed = reserve.held().checked_next_multiple_of(POOL_STRIDE);
        let kept = needed.map_or(reserve.reserved, |it| it.min(reserve.reserved));
        phys.give(reserve.reserved - kept);
        reserve.reserved = kept;
    }

    pub(crate) fn attribute(&self, attribute: A) -> CuResult<u64> {
        let reserve = lock(&self.reserve);
        Ok(match attribute {
            A::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT => reserve.used(),
            A::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => reserve.used_high,
            A::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT => reserve.reserved,
            A::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => reserve.reserved_high,
            _ => return Err(err::INVALID_VALUE),
        })
    }

    /// Resets a high-water mark, which takes no other value than 0.
    pub(crate) fn reset(&self, attribute: A, value: u64) -> CuResult {
        let mut reserve = lock(&self.reserve);
        match attribute {
            A::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH if value == 0 => {
                reserve.used_high = reserve.used();
            }
            A::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH if value == 0 => {
                reserve.reserved_high = reserve.reserved;
            }
            _ => return Err(err::INVALID_VALUE),
        }
        Ok(())
    }
}
