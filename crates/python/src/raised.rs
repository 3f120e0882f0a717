//! The exception that an allocator has raised, on its way to the caller of `alloc`.

use std::cell::RefCell;

use pyo3::PyErr;

thread_local! {
    /// The last exception of an allocator called by this thread, until it is taken.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Takes the exception raised in the calling thread.
pub(crate) fn take_raised() -> Option<PyErr> {
    RAISED.take()
}

/// Keeps the exception of an allocator that the calling thread has called.
pub(crate) fn keep_raised(error: PyErr) {
    RAISED.set(Some(error));
}
