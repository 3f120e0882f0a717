//! Checks of one launch: its segments in the shadow, and the clocks of its atomics.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::super::launch::LaunchSpec;
use crate::check::known::LocationClocks;
use crate::check::{LaunchNaming, SegmentOwner};

/// The shared state of one launch's checks.
#[derive(Debug)]
pub(crate) struct LaunchCheck {
    pub(super) first_segment: u32,
    pub(super) locations: LocationClocks,
    pub(super) identity: Arc<dyn LaunchNaming>,
    /// The host's version when a thread of this launch last acquired from it.
    pub(super) host_version: AtomicU64,
}

impl LaunchCheck {
    /// Begins segments for `total` blocks, whose accesses `identity` names; `None` with checks off.
    pub(super) fn new(
        spec: &LaunchSpec,
        identity: Arc<dyn LaunchNaming>,
        total: u64,
    ) -> Option<Self> {
        let checks = spec.checks.as_ref()?;
        let shadow = spec.space.shadow()?;
        let owner = SegmentOwner {
            op: checks.op,
            launch: Some(identity.clone()),
            block: 0,
            spread: true,
            from: 0,
        };
        let count = total.min(1 << 28) as u32;
        Some(LaunchCheck {
            first_segment: shadow.begin(owner, count),
            locations: LocationClocks::default(),
            identity,
            host_version: AtomicU64::new(0),
        })
    }
}
