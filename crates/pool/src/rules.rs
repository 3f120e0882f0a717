//! Rules of reuse, as a type parameter of the pool.
//!
//! A pool for use has [`AllRules`], which costs nothing. A test takes [`BreakableRules`] and
//! breaks one, to show that its checks detect what follows.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A rule of reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ReuseRule {
    /// A stream takes another's blocks only after a wait.
    OthersWait,
    /// A wait covers what was freed before its fence, and no more.
    WaitsHaveAnEnd,
    /// A fence covers what was freed before it was begun, and no more.
    FencesHaveAnEnd,
    /// A block freed anywhere waits for all streams.
    AnywhereWaits,
    /// An arena's blocks that were freed elsewhere are not cut again.
    ElsewhereIsLost,
}

/// The set of rules that hold.
pub trait ReuseRules: Default + Debug + Send + Sync {
    /// Whether `rule` holds.
    fn is_kept(&self, rule: ReuseRule) -> bool;
}

/// All rules, always.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllRules;

impl ReuseRules for AllRules {
    #[inline(always)]
    fn is_kept(&self, _: ReuseRule) -> bool {
        true
    }
}

/// Rules that a test can break.
#[derive(Debug, Default)]
pub struct BreakableRules {
    /// A bit for each broken rule.
    broken: AtomicU32,
}

impl BreakableRules {
    /// Breaks `rule` from here on.
    pub fn break_rule(&self, rule: ReuseRule) {
        self.broken.fetch_or(1 << rule as u32, Relaxed);
    }
}

impl ReuseRules for BreakableRules {
    fn is_kept(&self, rule: ReuseRule) -> bool {
        self.broken.load(Relaxed) & (1 << rule as u32) == 0
    }
}
