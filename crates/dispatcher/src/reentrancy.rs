//! Re-entrancy guard: threads that must not wait for a teardown, of a dispatcher or its owner.
//!
//! Invariant: a thread that a teardown may be waiting for never waits for another teardown.

use std::cell::Cell;

use fercuda_cuda::is_in_callback;

thread_local! {
    /// How many scopes the calling thread is in.
    static TEARDOWNS: Cell<u32> = const { Cell::new(0) };
}

/// Marks the calling thread, until dropped, as one that a teardown may be waiting for: it tears
/// something down, which may run deleters, or does work that a teardown completes.
#[derive(Debug)]
pub struct TeardownScope(());

impl TeardownScope {
    /// Enters the scope.
    #[must_use]
    pub fn enter() -> Self {
        TEARDOWNS.with(|count| count.set(count.get() + 1));
        Self(())
    }
}

impl Drop for TeardownScope {
    fn drop(&mut self) {
        TEARDOWNS.with(|count| count.set(count.get() - 1));
    }
}

/// Whether a teardown may be waiting for the calling thread: it is in a [`TeardownScope`], as a
/// deleter of lent memory is, or in a host callback.
pub fn blocks_teardown() -> bool {
    is_in_callback() || TEARDOWNS.with(Cell::get) > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_blocks_teardown_until_its_last_scope_is_left() {
        assert!(!blocks_teardown());
        let outer = TeardownScope::enter();
        drop(TeardownScope::enter());
        assert!(blocks_teardown());
        let other = std::thread::spawn(blocks_teardown).join();
        assert!(matches!(other, Ok(false)));
        drop(outer);
        assert!(!blocks_teardown());
    }
}
