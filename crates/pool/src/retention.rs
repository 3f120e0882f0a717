//! Retention policy of a pool, and the state of its growth.
//!
//! Elsewhere: growing and trimming ([`crate::growth`]).

use std::time::Duration;

/// How long a request waits to stay within the slack. The device may wait for what the host does
/// after the request, so the wait is bounded.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// How much memory a pool may retain beyond its live bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Beyond the peak of live bytes plus this, or plus the peak divided by `slack_divisor` if that
    /// is more, ready memory is reused and pending memory is waited for before memory is added.
    pub slack_bytes: u64,
    /// The divisor of the peak; see `slack_bytes`.
    pub slack_divisor: u64,
    /// The additional slack for each stream, or each thread that caches freed blocks, after the
    /// first: without it they would take memory from each other constantly.
    pub others_bytes: u64,
    /// The high-water mark: if more than this is ready, memory is returned to the driver.
    pub high_bytes: u64,
    /// The low-water mark: how much stays ready then.
    pub low_bytes: u64,
}

impl Default for RetentionPolicy {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl RetentionPolicy {
    /// 8 MiB or 1/64, and 2 MiB for each further stream or thread; memory is returned only by
    /// explicit trimming.
    pub const DEFAULT: Self = Self {
        slack_bytes: 8 << 20,
        slack_divisor: 64,
        others_bytes: 2 << 20,
        high_bytes: u64::MAX,
        low_bytes: u64::MAX,
    };

    pub(crate) fn slack(&self, live: u64) -> u64 {
        self.slack_bytes.max(live / self.slack_divisor.max(1))
    }
}

/// The state locked while memory is added or removed.
pub(crate) struct PoolGrowth<B> {
    pub(crate) backing: B,
    pub(crate) retention: RetentionPolicy,
    /// The peak of live bytes as seen when memory was added, since the last trim.
    pub(crate) peak_live: u64,
    /// How long the next request waits to stay within the slack.
    pub(crate) timeout: Duration,
}

impl<B> PoolGrowth<B> {
    pub(crate) fn new(backing: B) -> Self {
        Self {
            backing,
            retention: RetentionPolicy::default(),
            peak_live: 0,
            timeout: TIMEOUT,
        }
    }
}
