//! How many requests there were, of how many bytes, and how long they took.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Powers of two of microseconds: the last has all that took 4 s and longer.
const POWERS: usize = 24;

/// Requests of one kind. A cache line of its own for the counts that all threads change.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Meter {
    bytes: AtomicU64,
    /// By time: below 1 us, below 2 us, and so on.
    counts: [AtomicU64; POWERS],
}

impl Meter {
    /// One that began then has moved so many bytes.
    pub(crate) fn note(&self, bytes: usize, begin: Instant) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
        let micros = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.counts[power(micros)].fetch_add(1, Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// The counts, with blanks between.
    pub(crate) fn times(&self) -> String {
        let counts = self.counts.iter().map(|it| it.load(Relaxed).to_string());
        counts.collect::<Vec<_>>().join(" ")
    }
}

/// Which of the counts: the number of bits.
fn power(micros: u64) -> usize {
    (u64::BITS - micros.leading_zeros()).min(POWERS as u32 - 1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_below_its_power_and_not_below_the_one_before() {
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
