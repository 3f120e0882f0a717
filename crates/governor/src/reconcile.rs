//! Reconciliation of the driver's memory figures with our own.
//!
//! The driver's used figure for a device is compared with all that is accounted for: the pool's
//! physical memory, governed memory, the sizes of its own pools and graphs, and the memory that
//! contexts took when they were created. The remainder was allocated without a call that could be
//! charged: code that is loaded when a kernel first runs, stacks that grow with it. It is charged
//! as code up to the size of the images that the program gave the driver (plus a fixed amount for
//! stacks); anything above is `ungoverned`, and the claim that it is 0 can be falsified.
//!
//! Figures are of the whole device. Memory in use by other processes before the first context
//! counts as that context's; memory they take later shows as ungoverned.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fercuda_cuda_sys::types::{CUcontext, CUdevice, CUmemPool_attribute, CUmemoryPool};
use fercuda_ledger::{Gauge, Governed, Tenant};

use crate::device::GovernedDevice;
use crate::driver_call::{RelaxedCapture, is_done};
use crate::governor::Governor;

/// The most that stacks, heaps and queues of one process may take besides code.
const STACKS_BYTES: u64 = 256 << 20;
/// How often figures are read until two readings agree.
const ATTEMPTS: usize = 3;

/// The figures of one reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFigures {
    /// The device's memory.
    pub total_bytes: u64,
    /// Its used memory according to the driver.
    pub used_bytes: u64,
    /// Physical memory of the pool.
    pub pooled_bytes: u64,
    /// Everything else that is accounted for.
    pub governed_bytes: u64,
    /// Used memory that is not accounted for.
    pub ungoverned_bytes: u64,
}

impl Governor {
    /// Charges the memory that the driver took for the current context, which it has just created
    /// on a device.
    fn charge_context(&self, device: &GovernedDevice) {
        let Some((_, used)) = self.memory_info() else {
            return;
        };
        let new = used.saturating_sub(self.explained(device));
        device.account.contexts.fetch_add(new, Relaxed);
        self.ledger
            .govern(device.row, Tenant::OTHERS, Governed::Context, new);
    }

    /// For each device with contexts, the used memory that only contexts account for; input of
    /// [`Governor::refund_contexts`], taken before some are destroyed, under the same lifecycle
    /// lock.
    pub(crate) fn taken_by_contexts(&self) -> Vec<(u32, u64)> {
        if self.anything_captures() {
            return Vec::new();
        }
        let taken = |device: &GovernedDevice| {
            let raw = self.context_of(device.ordinal)?;
            let used = self.with_current(raw, || {
                self.sample(device);
                self.memory_info()
            });
            let (_, used) = used.flatten()?;
            let contexts = device.account.contexts.load(Relaxed);
            let others = self.explained(device).saturating_sub(contexts);
            Some((device.ordinal, used.saturating_sub(others)))
        };
        self.devices().filter_map(taken).collect()
    }

    /// Refunds the memory that the driver returned when contexts were destroyed. Memory it retains
    /// for others, and memory of other processes, stays charged as before; after the last context
    /// nothing stays, and the next one is charged anew.
    pub(crate) fn refund_contexts(&self, before: &[(u32, u64)]) {
        let after = self.taken_by_contexts();
        let of = |all: &[(u32, u64)], ordinal| {
            let found = all.iter().find(|(of, _)| *of == ordinal);
            found.map(|(_, bytes)| *bytes)
        };
        for device in self.devices() {
            let contexts = &device.account.contexts;
            let charged = contexts.load(Relaxed);
            let given_back = match self.context_of(device.ordinal) {
                None => charged,
                Some(_) => match (of(before, device.ordinal), of(&after, device.ordinal)) {
                    (Some(before), Some(after)) => before.saturating_sub(after).min(charged),
                    _ => 0,
                },
            };
            contexts.fetch_sub(given_back, Relaxed);
            let (row, tenant) = (device.row, Tenant::OTHERS);
            self.ledger
                .release(row, tenant, Governed::Context, given_back);
        }
    }

    /// Compares the driver's figures for a device, which must be the current context's, with all
    /// that is accounted for; `None` while they keep changing or anything captures.
    pub fn reconcile(&self, device: &GovernedDevice) -> Option<MemoryFigures> {
        if self.anything_captures() {
            return None;
        }
        self.end_lingering();
        for _ in 0..ATTEMPTS {
            self.sample(device);
            let before = self.explained(device);
            let (free, used) = self.memory_info()?;
            if self.explained(device) == before {
                return Some(self.compare(device, used, free));
            }
        }
        None
    }

    fn compare(&self, device: &GovernedDevice, used: u64, free: u64) -> MemoryFigures {
        let account = &device.account;
        let was = account.code.load(Relaxed);
        // Other threads compare too, and may have charged less since.
        let explained = self.explained(device).saturating_sub(was);
        let rest = used.saturating_sub(explained);
        let code = rest.min(self.governed.code_bytes() + STACKS_BYTES);
        self.charge(device, Governed::Module, &account.code, code);
        let ungoverned = rest - code;
        self.ledger
            .reconcile(device.row, device.total_bytes, free, ungoverned);
        let usage = device.usage();
        self.ledger.set(device.row, Gauge::Ready, usage.ready_bytes);
        let waiting = usage.waiting_bytes + usage.cached_bytes;
        self.ledger.set(device.row, Gauge::Waiting, waiting);
        let pooled = device.physical.bytes();
        MemoryFigures {
            total_bytes: device.total_bytes,
            used_bytes: used,
            pooled_bytes: pooled,
            governed_bytes: (explained + code).saturating_sub(pooled),
            ungoverned_bytes: ungoverned,
        }
    }

    /// All memory that is accounted for.
    fn explained(&self, device: &GovernedDevice) -> u64 {
        let account = &device.account;
        device.physical.bytes()
            + self.governed.on_device_bytes(device.ordinal)
            + account.contexts.load(Relaxed)
            + account.code.load(Relaxed)
            + account.graphs.bytes()
            + account.pools.load(Relaxed)
    }

    /// Queries the sizes of the driver's reserve of graphs, and of what its own pool holds beside
    /// its allocations, which are charged one by one.
    fn sample(&self, device: &GovernedDevice) {
        self.read_reserve(device, Tenant::OTHERS, 0);
        let pools = self.unused_of_default_pool(device.ordinal).unwrap_or(0);
        let account = &device.account;
        self.charge(device, Governed::DriverPool, &account.pools, pools);
    }

    fn unused_of_default_pool(&self, ordinal: u32) -> Option<u64> {
        let mut pool = CUmemoryPool::NULL;
        // SAFETY: the result outlives the call.
        let found = unsafe {
            self.driver
                .cuDeviceGetDefaultMemPool(&mut pool, ordinal as CUdevice)
        };
        if !is_done(found) {
            return None;
        }
        let bytes = |attribute| {
            let mut bytes = 0u64;
            let into = (&raw mut bytes).cast();
            // SAFETY: the result outlives the call and is as large as these attributes are; the
            // pool is the device's.
            let asked = unsafe { self.driver.cuMemPoolGetAttribute(pool, attribute, into) };
            is_done(asked).then_some(bytes)
        };
        let reserved = bytes(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let used = bytes(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        Some(reserved.saturating_sub(used))
    }

    /// Sets a charge, in the ledger too.
    fn charge(&self, device: &GovernedDevice, kind: Governed, figure: &AtomicU64, bytes: u64) {
        let was = figure.swap(bytes, Relaxed);
        let (row, tenant) = (device.row, Tenant::OTHERS);
        self.ledger.govern(row, tenant, kind, bytes);
        self.ledger.release(row, tenant, kind, was);
    }

    /// The free and total memory of the current context's device, according to the driver.
    fn memory_info(&self) -> Option<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both outlive the call.
        let asked = unsafe { self.driver.cuMemGetInfo_v2(&mut free, &mut total) };
        is_done(asked).then(|| (free as u64, total.saturating_sub(free) as u64))
    }

    /// The free and total memory to report to a program, given the driver's free figure for the
    /// device.
    pub fn reported_memory(&self, device: &GovernedDevice, driver_free_bytes: u64) -> (u64, u64) {
        let usage = device.usage();
        let spare = device.physical.bytes().saturating_sub(usage.live_bytes);
        let budget = device.budget();
        let total = budget.limit_bytes().min(device.total_bytes);
        let granted = total.saturating_sub(budget.used_bytes());
        (driver_free_bytes.min(granted) + spare, total)
    }

    /// The same for a caller without a context: by some context of the device if one may be used,
    /// else by the given free bytes.
    pub fn reported_memory_without_context(
        &self,
        device: &GovernedDevice,
        free_bytes: u64,
    ) -> (u64, u64) {
        // A caller of NVML does not wait for contexts, since their work may take long.
        let turn = self.try_lock_lifecycle();
        let may_ask = turn.is_some() && !self.anything_captures();
        let raw = self.context_of(device.ordinal).filter(|_| may_ask);
        let asked = raw.and_then(|raw| {
            self.with_current(raw, || {
                self.reconcile(device);
                self.memory_info()
            })
        });
        let free_bytes = asked.flatten().map_or(free_bytes, |(free, _)| free);
        self.reported_memory(device, free_bytes)
    }

    /// Charges the memory that the driver took for a context that it has just created, under the
    /// same lifecycle lock.
    pub(crate) fn charge_new_context(&self, raw: CUcontext) {
        let Some((_, device)) = self.context(raw) else {
            return self.may_have_other_contexts();
        };
        if let Some(device) = self.device(device) {
            self.with_current(raw, || self.charge_context(device));
        }
    }

    /// Reconciles all devices in use, unless a thread is destroying contexts, which may take
    /// arbitrarily long.
    pub fn reconcile_all(&self) {
        let Some(_turn) = self.try_lock_lifecycle() else {
            return;
        };
        for device in self.devices() {
            if let Some(raw) = self.context_of(device.ordinal) {
                self.with_current(raw, || self.reconcile(device));
            }
        }
    }

    /// Waits for a context's work, whatever else captures.
    pub fn finish(&self, raw: CUcontext) {
        let _relaxed = RelaxedCapture::enter(self.driver);
        // SAFETY: takes no arguments.
        let wait = || is_done(unsafe { self.driver.cuCtxSynchronize() });
        // A faulted context has nothing to wait for.
        let _it_may_have_failed = self.with_current(raw, wait);
    }

    /// Runs `work` with a context made current.
    fn with_current<R>(&self, raw: CUcontext, work: impl FnOnce() -> R) -> Option<R> {
        let mut popped = CUcontext::NULL;
        // SAFETY: a context that the driver created or returned; `popped` outlives the call.
        unsafe {
            if !is_done(self.driver.cuCtxPushCurrent_v2(raw)) {
                return None;
            }
            let result = work();
            let _it_was_pushed = self.driver.cuCtxPopCurrent_v2(&mut popped);
            Some(result)
        }
    }
}
