//! Three device memory allocators, compared on one device: our pool, the driver's
//! `cuMemAlloc`, the driver's stream-ordered `cuMemAllocAsync`.
//!
//! Elsewhere: the workloads (`replay`, `bench`).

#[expect(
    unsafe_code,
    reason = "calls through the driver's table with arguments that are built here"
)]
mod machine;

use std::time::Duration;

pub(crate) use machine::{
    AllocatedBlock, Allocator, AsyncAllocator, DeviceUnderTest, PoolAllocator, SyncAllocator,
};

use crate::terminal::duration;

/// Latency samples in nanoseconds, for percentiles.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    nanoseconds: Vec<f64>,
    sorted: bool,
}

impl Latencies {
    pub(crate) fn push(&mut self, took: Duration) {
        self.push_mean(took, 1);
    }

    /// Adds the mean of `count` operations that were timed together.
    pub(crate) fn push_mean(&mut self, took: Duration, count: usize) {
        self.nanoseconds
            .push(took.as_secs_f64() * 1e9 / count as f64);
        self.sorted = false;
    }

    pub(crate) fn append(&mut self, mut other: Latencies) {
        self.nanoseconds.append(&mut other.nanoseconds);
        self.sorted = false;
    }

    /// The percentile `part` (0 to 1); `None` without samples.
    pub(crate) fn at(&mut self, part: f64) -> Option<f64> {
        if !self.sorted {
            self.nanoseconds.sort_by(f64::total_cmp);
            self.sorted = true;
        }
        let last = self.nanoseconds.len().checked_sub(1)?;
        Some(self.nanoseconds[(part * last as f64).ceil() as usize])
    }
}

/// Nanoseconds with a unit that fits.
pub(crate) fn latency(nanoseconds: Option<f64>) -> String {
    match nanoseconds {
        None => "-".to_owned(),
        Some(ns) if ns < 1000.0 => format!("{ns:.0} ns"),
        Some(ns) => duration(ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_latency_that_this_part_of_samples_does_not_exceed() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.at(0.5), None);
        for number in (1..=1000).rev() {
            latencies.push(Duration::from_nanos(number));
        }
        let at = [0.0, 0.5, 0.999, 1.0].map(|part| latencies.at(part).unwrap().round());
        assert_eq!(at, [1.0, 501.0, 1000.0, 1000.0]);
        assert_eq!(latency(Some(51.2)), "51 ns");
        assert_eq!(latency(Some(90_000.0)), "90.0 us");
    }
}
