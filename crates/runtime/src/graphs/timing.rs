//! Durations of a replay.

use std::time::{Duration, Instant};

use fercuda_cuda::Event;

use super::error::GraphError;

/// A timed replay, which may still be running.
#[derive(Debug)]
pub struct Timing {
    pub(super) events: [Event; 2],
    pub(super) upload: Duration,
    pub(super) began: Instant,
    pub(super) launch: Duration,
}

/// Durations of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayTimes {
    /// Host time to upload the graph to the device; once, when it was captured.
    pub upload: Duration,
    /// Host time of the launch.
    pub launch: Duration,
    /// Device time, from the start of the launch in its stream to its end.
    pub device: Duration,
    /// Host time from before the launch until completion was observed.
    pub completion: Duration,
}

impl Timing {
    /// Waits until the replay is done.
    ///
    /// # Errors
    /// The first error of the stream's work.
    pub fn wait(self) -> Result<ReplayTimes, GraphError> {
        self.events[1].synchronize()?;
        Ok(ReplayTimes {
            upload: self.upload,
            launch: self.launch,
            device: self.events[1].since(&self.events[0])?,
            completion: self.began.elapsed(),
        })
    }
}
