//! Parts of a step: tokens of requests, and their rows of logits.

use crate::exchange::PendingChoices;
use crate::request::RequestId;
use crate::step_inputs::StepKey;

/// Tokens of one request in a step.
pub(crate) struct StepPart {
    /// Number of the request among those that run.
    pub(crate) request: usize,
    /// Tokens that are known, or being chosen.
    pub(crate) count: usize,
    /// Guesses of those behind them.
    pub(crate) drafts: Vec<u32>,
    /// Whether it is the only one that its request has left.
    pub(crate) is_single: bool,
    /// The row of the step before by which it is being chosen.
    pub(crate) row: Option<usize>,
}

impl StepPart {
    pub(crate) fn tokens(&self) -> usize {
        self.count + self.drafts.len()
    }
}

/// Rows of logits of a request: behind its last token, and behind each guess of one.
#[derive(Debug)]
pub(crate) struct RequestRows {
    pub(crate) request: RequestId,
    pub(crate) drafts: Vec<u32>,
}

impl RequestRows {
    pub(crate) fn count(&self) -> usize {
        1 + self.drafts.len()
    }
}

/// A step that is queued.
#[derive(Debug)]
pub(crate) struct QueuedStep {
    pub(crate) key: StepKey,
    /// Its requests, and how many known tokens of each it computes.
    pub(crate) parts: Vec<(RequestId, usize)>,
    pub(crate) rows: Vec<RequestRows>,
    /// The most likely tokens, where these are what is chosen of all rows.
    pub(crate) choices: Option<PendingChoices>,
}
