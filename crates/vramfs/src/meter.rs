//! Latency histogram and byte count of requests.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Buckets by powers of two of microseconds; the last one counts all requests of 4 s and longer.
const POWERS: usize = 24;

/// Requests of one kind. Aligned to cache lines of its own, as all threads update the counters.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Meter {
    bytes: AtomicU64,
    /// Requests by duration: below 1 us, below 2 us, and so on.
    counts: [AtomicU64; POWERS],
}

impl Meter {
    /// Records a request of `bytes` bytes that began at `begin`.
    pub(crate) fn note(&self, bytes: usize, begin: Instant) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
        let micros = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.counts[power(micros)].fetch_add(1, Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// The histogram's counts, separated by spaces.
    pub(crate) fn times(&self) -> String {
        let counts = self.counts.iter().map(|it| it.load(Relaxed).to_string());
        counts.collect::<Vec<_>>().join(" ")
    }
}

/// Index of the bucket: the number of significant bits.
fn power(micros: u64) -> usize {
    (u64::BITS - micros.leading_zeros()).min(POWERS as u32 - 1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_below_its_power_of_two_and_not_below_the_one_before() {
        for micros in (0..5000).chain([1 << 22, (1 << 22) - 1]) {
            let power = power(micros);
            assert!(micros < 1 << power, "{micros}");
            assert!(power == 0 || micros >= 1 << (power - 1), "{micros}");
        }
        assert_eq!(power(u64::MAX), POWERS - 1);
        let meter = Meter::default();
        meter.note(5, Instant::now());
        meter.note(6, Instant::now());
        assert_eq!(meter.bytes(), 11);
        let all = meter.times();
        let all: Vec<u64> = all.split(' ').map(|it| it.parse().unwrap()).collect();
        assert_eq!((all.len(), all.iter().sum::<u64>()), (POWERS, 2));
    }
}
