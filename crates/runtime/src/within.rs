//! Whether a thread is one for which who ends a session or a dispatcher waits.
//!
//! Invariant: such a thread waits for no other's ending, which may be waiting for it.

use std::cell::Cell;

use fercuda_cuda::is_in_callback;

use crate::jobs::is_clerk;

thread_local! {
    /// Of how many things the calling thread is giving back what they had.
    static LEAVING: Cell<u32> = const { Cell::new(0) };
}

/// While it lives the calling thread gives back what something had, and runs deleters.
pub(crate) struct Leaving(());

impl Leaving {
    pub(crate) fn enter() -> Self {
        LEAVING.with(|leaving| leaving.set(leaving.get() + 1));
        Self(())
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        LEAVING.with(|leaving| leaving.set(leaving.get() - 1));
    }
}

/// Whether this is a job, a host callback, or who hears that memory it has lent is given
/// back.
pub(crate) fn is_within() -> bool {
    is_clerk() || is_in_callback() || LEAVING.with(Cell::get) > 0
}
