//! The device's progress, as the pool sees it.
//!
//! Elsewhere: when fences are recorded and polled ([`crate::pool`]).

use std::sync::Arc;
use std::time::Duration;

use crate::place::{PoolPlace, StreamId};

/// The device's progress. Every call may be refused (`None`, `false`), as during a stream capture;
/// a refusal is always safe.
pub trait DeviceClock: Send + Sync {
    /// A point in the device's work.
    type Point: Send + Sync;

    /// Records a point behind all work queued at `place` so far.
    fn record_fence(&self, place: PoolPlace) -> Option<Self::Point>;

    /// Whether the device has passed a point.
    fn passed(&self, point: &Self::Point) -> bool;

    /// Makes later work in `stream` wait for a point.
    fn wait(&self, stream: StreamId, point: &Self::Point) -> bool;

    /// Blocks the host until the device has passed a point, for at most about `timeout`.
    fn join(&self, point: &Self::Point, timeout: Duration) -> bool;
}

impl<C: DeviceClock> DeviceClock for Arc<C> {
    type Point = C::Point;

    fn record_fence(&self, place: PoolPlace) -> Option<C::Point> {
        C::record_fence(self, place)
    }

    fn passed(&self, point: &C::Point) -> bool {
        C::passed(self, point)
    }

    fn wait(&self, stream: StreamId, point: &C::Point) -> bool {
        C::wait(self, stream, point)
    }

    fn join(&self, point: &C::Point, timeout: Duration) -> bool {
        C::join(self, point, timeout)
    }
}
