//! Words of slots and results in the memory that host and device share.

/// Words of a slot, which the host writes.
pub(crate) const SLOT_WORDS: usize = 32;
/// Ticket of the task in the slot, written last.
pub(crate) const READY: usize = 0;
pub(crate) const NUMBER: usize = 1;
/// Maximum number of steps of each thread.
pub(crate) const BUDGET: usize = 2;
/// Not 0: the task is cancelled.
pub(crate) const CANCEL: usize = 3;
/// Arguments, two words each, the low one first.
pub(crate) const ARGUMENTS: usize = 4;
/// Spans, six words each: buffer, padding, first byte, bytes.
pub(crate) const SPANS: usize = 12;
/// Argument words of a task.
pub const TASK_WORDS: usize = 4;
/// Spans of a task.
pub const TASK_SPANS: usize = 3;

/// Words of a result, which the device writes.
pub(crate) const RESULT_WORDS: usize = 8;
/// Ticket of the completed task, written last.
pub(crate) const DONE: usize = 0;
pub(crate) const STATUS: usize = 1;
/// Two words.
pub(crate) const VALUE: usize = 2;
/// Steps of the first thread.
pub(crate) const STEPS: usize = 4;
/// Ticket of the running task.
pub(crate) const BEGUN: usize = 5;

/// Command of the host to all blocks, a stricter one by a larger number: go on, exit when the rings
/// are empty, exit now.
pub(crate) const GO_ON: u32 = 0;
pub(crate) const DRAIN: u32 = 1;
pub(crate) const END: u32 = 2;

/// Result of a task: the largest value that any of its threads reports.
pub(crate) const GOOD: u32 = 0;
pub(crate) const FAILED: u32 = 1;
pub(crate) const OUTSIDE: u32 = 2;
pub(crate) const OVER_BUDGET: u32 = 3;
pub(crate) const CANCELLED: u32 = 4;
pub(crate) const UNKNOWN: u32 = 5;
