//! Re-entrancy guard: threads that must not wait for a session's or a dispatcher's teardown.
//!
//! Invariant: a thread that a teardown may be waiting for never waits for another teardown.

use std::cell::Cell;

use fercuda_cuda::is_in_callback;

use crate::jobs::is_submission_thread;

thread_local! {
    /// How many teardowns are running on the calling thread.
    static TEARDOWNS: Cell<u32> = const { Cell::new(0) };
}

/// Marks the calling thread as tearing something down, which may run deleters, until dropped.
pub(crate) struct TeardownScope(());

impl TeardownScope {
    pub(crate) fn enter() -> Self {
        TEARDOWNS.with(|count| count.set(count.get() + 1));
        Self(())
    }
}

impl Drop for TeardownScope {
    fn drop(&mut self) {
        TEARDOWNS.with(|count| count.set(count.get() - 1));
    }
}

/// Whether the calling thread is a job, a host callback, or a deleter of lent memory: a teardown
/// may be waiting for it.
pub(crate) fn blocks_teardown() -> bool {
    is_submission_thread() || is_in_callback() || TEARDOWNS.with(Cell::get) > 0
}
