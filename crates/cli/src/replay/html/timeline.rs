//! Timelines by device, collected from the rows of a trace in order.
//!
//! Invariant: memory is proportional to the number of live blocks and distinct addresses, not to
//! the number of rows.

use std::collections::BTreeMap;

use super::super::live::{FreeTarget, LiveBlocks};
use super::super::row::{TraceAction, TraceRow};
use super::columns::{ColumnStep, TimeColumns};
use super::rectangles::{BlockLife, LargestBlocks};

/// Columns of a device; the first devices of a trace with many are not more important.
const COLUMNS: usize = 2048;
/// Blocks of a device that are shown.
const BLOCKS: usize = 3000;
const DAY_US: u64 = 24 * 3600 * 1_000_000;
/// How late a line may be in the order of times.
const LATE_US: u64 = 60 * 1_000_000;

/// One tenant's figures on one device.
#[derive(Debug, Default, Clone)]
pub(super) struct TenantCurve {
    pub(super) peak_bytes: i128,
    pub(super) live_bytes: i128,
    /// Bytes that were live before the trace began.
    pub(super) held_bytes: i128,
    pub(super) live_blocks: u64,
    pub(super) allocations: u64,
    pub(super) frees: u64,
    pub(super) failures: u64,
}

/// One device's timeline.
#[derive(Debug)]
pub(super) struct DeviceTimeline {
    pub(super) columns: TimeColumns,
    /// By the tenant's index.
    pub(super) tenants: Vec<TenantCurve>,
    pub(super) largest: LargestBlocks,
    pub(super) held_blocks: u64,
    clock: TraceClock,
}

/// A clock that starts at 0 and never goes back.
#[derive(Debug, Default)]
struct TraceClock {
    origin_us: Option<u64>,
    days_us: u64,
    pub(super) now_us: u64,
}

/// The timelines of all devices of a trace.
#[derive(Debug, Default)]
pub(in super::super) struct Timeline {
    pub(super) devices: BTreeMap<u32, DeviceTimeline>,
    live: LiveBlocks<BlockLife>,
    /// Frees of addresses that were not allocated.
    pub(super) unmatched: u64,
}

impl Timeline {
    /// Adds a row.
    pub(in super::super) fn add(&mut self, row: &TraceRow) {
        let device = self.devices.entry(row.device).or_default();
        if row.action != TraceAction::Hold {
            device.clock.set(row.time_us);
        }
        match row.action {
            TraceAction::Allocate => {
                let block = device.block(row, row.tenant, false);
                self.live.allocate(row.device, row.address, block);
                device.tenant(row.tenant).allocations += 1;
                device.change(row.tenant, i128::from(row.bytes));
            }
            TraceAction::Hold => {
                let block = device.block(row, row.tenant, true);
                self.live.allocate(row.device, row.address, block);
                device.hold(row.tenant, row.bytes);
            }
            TraceAction::Fail => {
                device.tenant(row.tenant).failures += 1;
                let now = device.clock.now_us;
                device.columns.add(ColumnStep::Failure(row.bytes), now);
            }
            TraceAction::Free => {
                let block = match self.live.free(row.device, row.address, row.bytes) {
                    FreeTarget::Live(block) => block,
                    FreeTarget::Earlier => {
                        device.hold(row.tenant, row.bytes);
                        device.block(row, row.tenant, true)
                    }
                    FreeTarget::Unknown => {
                        self.unmatched += 1;
                        return;
                    }
                };
                device.tenant(block.tenant).frees += 1;
                device.change(block.tenant, -i128::from(block.bytes));
                device.end(block, false);
            }
        }
    }

    /// Ends the blocks that are still live.
    pub(super) fn finish(&mut self) {
        for block in std::mem::take(&mut self.live).into_live() {
            let ((device, _), block) = block;
            if let Some(device) = self.devices.get_mut(&device) {
                device.tenant(block.tenant).live_blocks += 1;
                device.end(block, true);
            }
        }
        for device in self.devices.values_mut() {
            for tenant in &mut device.tenants {
                // The peak and the live bytes were counted from 0.
                tenant.peak_bytes += tenant.held_bytes;
                tenant.live_bytes += tenant.held_bytes;
            }
        }
    }
}

impl Default for DeviceTimeline {
    fn default() -> Self {
        Self {
            columns: TimeColumns::new(COLUMNS),
            tenants: Vec::new(),
            largest: LargestBlocks::new(BLOCKS),
            held_blocks: 0,
            clock: TraceClock::default(),
        }
    }
}

impl DeviceTimeline {
    /// Microseconds from the first step to the last; 0 if the trace has no times.
    pub(super) fn span_us(&self) -> u64 {
        self.clock.now_us
    }

    /// Bytes that were live before the first step.
    pub(super) fn held_bytes(&self) -> i128 {
        self.tenants.iter().map(|it| it.held_bytes).sum()
    }

    fn tenant(&mut self, tenant: u32) -> &mut TenantCurve {
        let at = tenant as usize;
        if at >= self.tenants.len() {
            self.tenants.resize(at + 1, TenantCurve::default());
        }
        &mut self.tenants[at]
    }

    fn hold(&mut self, tenant: u32, bytes: u64) {
        self.held_blocks += 1;
        self.tenant(tenant).held_bytes += i128::from(bytes);
    }

    fn change(&mut self, tenant: u32, bytes: i128) {
        let figures = self.tenant(tenant);
        figures.live_bytes += bytes;
        figures.peak_bytes = figures.peak_bytes.max(figures.live_bytes);
        let step = ColumnStep::Change(tenant as usize, bytes);
        self.columns.add(step, self.clock.now_us);
    }

    /// The block that a row allocates, or that was live before the first step.
    fn block(&self, row: &TraceRow, tenant: u32, is_held: bool) -> BlockLife {
        let (step, time_us) = match is_held {
            true => (0, 0),
            false => (self.columns.steps, self.clock.now_us),
        };
        BlockLife {
            bytes: row.bytes,
            steps: (step, step),
            times_us: (time_us, time_us),
            address: row.address,
            stream: row.stream,
            thread: row.thread,
            tenant,
            stack: row.stack,
            is_held,
            is_live: true,
        }
    }

    /// Ends a block at the last step, or behind it if the block is still live.
    fn end(&mut self, mut block: BlockLife, is_live: bool) {
        block.is_live = is_live;
        block.steps.1 = match is_live {
            true => self.columns.steps,
            false => self.columns.steps - 1,
        };
        block.times_us.1 = self.clock.now_us;
        self.largest.add(block);
    }
}

impl TraceClock {
    /// Sets it to a time of a trace. Times of the day start again at midnight.
    fn set(&mut self, time_us: u64) {
        let origin_us = *self.origin_us.get_or_insert(time_us);
        let last_us = origin_us.saturating_add(self.now_us);
        let mut at_us = time_us.saturating_add(self.days_us);
        if time_us < DAY_US && at_us.saturating_add(DAY_US / 2) < last_us {
            self.days_us += DAY_US;
            at_us += DAY_US;
        }
        // A line from just before midnight may come after it.
        let is_late = at_us.saturating_sub(DAY_US).saturating_add(LATE_US) > last_us;
        if self.days_us > 0 && is_late && at_us > last_us {
            return;
        }
        self.now_us = self.now_us.max(at_us.saturating_sub(origin_us));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_goes_on_over_midnight_and_never_back() {
        let mut clock = TraceClock::default();
        let hour = DAY_US / 24;
        for (time_us, now_us) in [
            (23 * hour, 0),
            (23 * hour + 10, 10),
            (23 * hour + 5, 10),
            (5, hour + 5),
            // Written late.
            (24 * hour - 1, hour + 5),
            (hour, 2 * hour),
            (23 * hour, 24 * hour),
            (hour, 26 * hour),
        ] {
            clock.set(time_us);
            assert_eq!(clock.now_us, now_us, "{time_us}");
        }
    }

    #[test]
    fn blocks_from_before_raise_the_whole_timeline() {
        let row = |action, address, bytes| TraceRow {
            action,
            device: 0,
            address,
            bytes,
            stream: 0,
            thread: 0,
            time_us: 0,
            tenant: 0,
            stack: None,
        };
        let mut timeline = Timeline::default();
        timeline.add(&row(TraceAction::Allocate, 16, 100));
        timeline.add(&row(TraceAction::Free, 32, 1000));
        timeline.add(&row(TraceAction::Free, 32, 1000));
        timeline.add(&row(TraceAction::Hold, 64, 5000));
        timeline.finish();
        let device = &timeline.devices[&0];
        let figures = &device.tenants[0];
        assert_eq!((figures.held_bytes, figures.live_bytes), (6000, 5100));
        assert_eq!((figures.peak_bytes, figures.live_blocks), (6100, 2));
        assert_eq!((timeline.unmatched, device.held_blocks), (1, 2));
        assert_eq!((device.columns.steps, device.columns.peak.0), (2, 100));
    }
}
