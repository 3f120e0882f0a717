//! Outcome of a wait, and of the destruction that comes after it.

use crate::deferred::{DestroyOutcome, NoResidentKernels};
use crate::error::Result;

/// Outcome of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[must_use]
pub(crate) enum WaitOutcome {
    /// The work is done.
    Done,
    /// The context is lost. The device does no more work in it; a callback of another stream may
    /// still be running.
    Lost,
    /// The driver did not wait, because of a capture.
    Refused,
    /// The driver was not called: it would have waited for a resident kernel.
    KernelResident,
}

impl WaitOutcome {
    pub(crate) fn of(answer: &Result<()>) -> Self {
        match answer {
            Ok(()) => Self::Done,
            Err(error) if error.is_refusal() => Self::Refused,
            // Other errors are of the work or of the context; either way the work is not running
            // any more.
            Err(_) => Self::Lost,
        }
    }

    /// The outcome for an object that was to be destroyed after the wait.
    pub(crate) fn destroy_outcome(self) -> DestroyOutcome {
        match self {
            Self::Done | Self::Lost => DestroyOutcome::Done,
            Self::Refused => DestroyOutcome::Retry,
            Self::KernelResident => DestroyOutcome::RetryWhenNoneResident,
        }
    }

    /// The same before a call that waits for the whole device: no kernel is resident while the
    /// guard lives.
    pub(crate) fn and_none_resident(
        self,
    ) -> std::result::Result<NoResidentKernels, DestroyOutcome> {
        match self.destroy_outcome() {
            DestroyOutcome::Done => NoResidentKernels::acquire(),
            retry => Err(retry),
        }
    }
}
