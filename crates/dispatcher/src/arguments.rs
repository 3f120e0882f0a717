//! Arguments of a task: words, and spans of registered buffers.

use std::ops::Range;

use crate::buffers::TaskBuffer;
use crate::words::{TASK_SPANS, TASK_WORDS};

/// Arguments of a task.
#[derive(Clone, Debug)]
pub struct TaskArgs {
    pub(crate) words: [u64; TASK_WORDS],
    pub(crate) spans: [(u32, u64, u64); TASK_SPANS],
    pub(crate) used: (usize, usize),
    pub(crate) steps: Option<u32>,
}

impl Default for TaskArgs {
    fn default() -> Self {
        Self {
            words: [0; TASK_WORDS],
            spans: [(u32::MAX, 0, 0); TASK_SPANS],
            used: (0, 0),
            steps: None,
        }
    }
}

impl TaskArgs {
    /// No arguments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a word.
    #[must_use]
    pub fn word(mut self, value: u64) -> Self {
        if let Some(word) = self.words.get_mut(self.used.0) {
            *word = value;
        }
        self.used.0 += 1;
        self
    }

    /// Adds a span: these bytes of a registered buffer.
    #[must_use]
    pub fn span(mut self, buffer: TaskBuffer, bytes: Range<u64>) -> Self {
        if let Some(span) = self.spans.get_mut(self.used.1) {
            // An end before the beginning becomes a length that is outside any buffer.
            let len = bytes.end.checked_sub(bytes.start).unwrap_or(u64::MAX);
            *span = (buffer.0, bytes.start, len);
        }
        self.used.1 += 1;
        self
    }

    /// Limits the steps of each thread.
    #[must_use]
    pub fn steps(mut self, steps: u32) -> Self {
        self.steps = Some(steps);
        self
    }
}
