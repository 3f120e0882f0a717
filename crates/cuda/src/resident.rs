//! Resident kernels of a context, and the frees that they defer.
//!
//! Elsewhere: what is deferred, and until when (`deferred`).

use std::time::{Duration, Instant};

use crate::context::Context;
use crate::deferred::{self, DeferredFrees};

impl Context {
    /// Counts `bytes` of device memory as a deferred free ([`Context::deferred_free_bytes`]) until
    /// the returned value is dropped. For a caller that keeps memory which the program has
    /// released.
    pub fn count_deferred_free(&self, bytes: u64) -> DeferredFrees {
        DeferredFrees::count(self.key(), bytes)
    }

    /// Registers a resident kernel: one that runs in this context until the host asks it to stop.
    /// Until the guard is dropped or the context reset, objects that the driver destroys by waiting
    /// for the whole device (modules, page-locked memory, device memory that is not stream-ordered
    /// or was used in the per-thread stream of another thread) are destroyed later; so no drop
    /// waits for the kernel.
    ///
    /// To be called before the kernel is launched: waits, for a second at most, until no other
    /// thread is destroying such an object.
    pub fn guard_resident_kernel(&self) -> ResidentKernelGuard {
        ResidentKernelGuard {
            id: deferred::begin_resident_kernel(self.key()),
            _context: self.clone(),
        }
    }

    /// Whether a kernel is resident in it ([`Context::guard_resident_kernel`]), so that
    /// [`Context::synchronize`] would wait for that.
    pub fn has_resident_kernel(&self) -> bool {
        deferred::has_resident_kernel_in(self.key())
    }

    /// The time by which the resident kernels that were asked to stop
    /// ([`ResidentKernelGuard::note_stop_requested`]) will have stopped; `None` if none was.
    pub fn resident_kernels_stop_by(&self) -> Option<Instant> {
        deferred::resident_kernels_stop_by(self.key())
    }

    /// Bytes of device memory that this process has released and the driver has not freed yet: the
    /// free would wait for a resident kernel ([`Context::guard_resident_kernel`]), or be refused
    /// because of a capture. They are freed when a thread allocates or waits after that, and those
    /// of [`Context::count_deferred_free`] when its value is dropped. Until then they are not
    /// available.
    pub fn deferred_free_bytes(&self) -> u64 {
        deferred::deferred_bytes_in(self.key())
    }
}

/// Guard of a resident kernel; see [`Context::guard_resident_kernel`]. To be dropped when the
/// kernel has ended.
#[derive(Debug)]
#[must_use]
pub struct ResidentKernelGuard {
    id: u64,
    _context: Context,
}

impl ResidentKernelGuard {
    /// Notes that the kernel was asked to stop and may take as long as `timeout` from now on; a
    /// later call replaces an earlier one. For threads that wait for that without having asked it
    /// themselves ([`Context::resident_kernels_stop_by`]).
    pub fn note_stop_requested(&self, timeout: Duration) {
        deferred::note_stop_requested(self.id, timeout);
    }
}

impl Drop for ResidentKernelGuard {
    fn drop(&mut self) {
        deferred::end_resident_kernel(self.id);
    }
}
