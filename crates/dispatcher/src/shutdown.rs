//! Shutdown of a resident kernel, and release of its resources.
//!
//! The host requests the shutdown through a word that only increases. The kernel has exited
//! when its stream is complete; an answer of the driver that is not about the stream says nothing
//! of the kernel.
//!
//! Invariants: the kernel's resources stay allocated as long as it may run, if need be for ever.
//! They are released once, by one thread, outside all locks: a deleter of lent memory may run
//! there, which may call anything. While the kernel may run, dropping an unrelated resource never
//! waits for it (the resident-kernel guard of `fercuda_cuda`).

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use fercuda_cuda::destroy_later;

use crate::backoff::Backoff;
use crate::error::DispatchError;
#[cfg(doc)]
use crate::error::TaskError;
use crate::kernel_state::ResidentKernelState;
use crate::lock::lock;
use crate::queue::{ResourceState, TaskQueue};
use crate::reentrancy::{TeardownScope, blocks_teardown};
use crate::watchdog::StragglerWatchdog;
use crate::words::{DRAIN, END};

/// Upper bound of the time for a kernel's remaining work after a shutdown request: that is unknown,
/// so the kernel gets as long as its watchdog allows a task, but no longer.
const MAX_SHUTDOWN: Duration = Duration::from_secs(60);
/// Time that is added for the kernel's exit itself.
const GRACE: Duration = Duration::from_secs(1);

impl TaskQueue {
    /// Refuses new tasks, and requests the kernel to exit once it has run the submitted ones.
    pub fn request_drain(&self) {
        self.request_stop(DRAIN);
    }

    fn request_stop(&self, order: u32) {
        for ring in &self.rings {
            // A submission holds this lock: it is complete, or will see the flag.
            let _ring = lock(ring);
            self.stopped.store(true, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        self.memory.control.words()[0].fetch_max(order, Ordering::Release);
        if let ResourceState::Held(used) = &*lock(&self.resources) {
            used.stay
                .note_stop_requested(twice(self.options.watchdog).min(MAX_SHUTDOWN) + GRACE);
        }
    }

    /// Lets the kernel run the submitted tasks, and waits until it has exited and its resources are
    /// released; but a job, or a deleter of lent memory, does not wait for another thread that
    /// releases them. May be called again.
    ///
    /// # Errors
    /// [`DispatchError::Running`]; [`DispatchError::Forked`]; the others of
    /// [`Dispatcher::stop`](crate::Dispatcher::stop).
    pub fn drain(&self, longest: Duration) -> Result<(), DispatchError> {
        self.end(DRAIN, longest)
    }

    /// Shuts the kernel down after the tasks that are running; those not begun get
    /// [`TaskError::Stopped`]. If it has not exited within twice the watchdog, because it is
    /// queued, or if this is a host callback, it exits later by itself, and its resources are
    /// released after that.
    ///
    /// # Errors
    /// [`DispatchError::Lost`]; [`DispatchError::Cuda`], the kernel's error.
    pub fn abandon(self: &Arc<Self>) -> Result<(), DispatchError> {
        if self.check_process().is_err() {
            std::mem::forget(self.clone());
            return Ok(());
        }
        let ended = self.end(END, twice(self.options.watchdog));
        let goes_on = match &ended {
            Err(DispatchError::Running { .. }) => true,
            Err(DispatchError::Cuda(error)) => error.is_refusal(),
            _ => false,
        };
        if !goes_on {
            return ended;
        }
        self.release_later();
        Ok(())
    }

    /// Defers the release to a later allocation or wait of any thread, unless it can be done now.
    pub fn release_later(self: &Arc<Self>) {
        let (queue, mut watch) = (self.clone(), StragglerWatchdog::default());
        if !queue.try_release(&mut watch) {
            destroy_later(move || queue.try_release(&mut watch));
        }
    }

    /// Releases the resources of a kernel that has exited, unless another thread does; returns
    /// whether it has exited. Never waits for a running kernel; after the exit it waits for other
    /// work that uses the resources, and for deleters of lent memory.
    fn try_release(&self, watch: &mut StragglerWatchdog) -> bool {
        match self.query_kernel() {
            ResidentKernelState::Ended { is_well } => self.release(is_well),
            ResidentKernelState::Lost => self.leak(),
            ResidentKernelState::Runs | ResidentKernelState::Unknown(_) => {
                watch.check(self);
                return false;
            }
        }
        true
    }

    fn end(&self, order: u32, longest: Duration) -> Result<(), DispatchError> {
        self.check_process()
            .map_err(|process| DispatchError::Forked { process })?;
        self.request_stop(order);
        let released_state = match *lock(&self.resources) {
            ResourceState::Released { is_well } => Some(is_well),
            _ => None,
        };
        if let Some(is_well) = released_state.filter(|_| !self.lost.load(Ordering::Acquire)) {
            // The context returns the kernel's error until it is reset.
            return match is_well {
                true => Ok(()),
                false => Ok(self.stream.synchronize()?),
            };
        }
        let began = Instant::now();
        let mut backoff = Backoff(0);
        let mut watch = StragglerWatchdog::default();
        let is_well = loop {
            match self.query_kernel() {
                ResidentKernelState::Ended { is_well } => break is_well,
                ResidentKernelState::Lost => {
                    self.leak();
                    return Err(DispatchError::Lost);
                }
                // A host callback cannot wait for this.
                ResidentKernelState::Unknown(error) if error.is_in_callback() => {
                    return Err(error.into());
                }
                ResidentKernelState::Runs | ResidentKernelState::Unknown(_) => {}
            }
            backoff.wait();
            if backoff.is_long() {
                watch.check(self);
            }
            if began.elapsed() > longest {
                let waiting = self.stats().waiting;
                return Err(DispatchError::Running { waiting });
            }
        };
        self.release(is_well);
        self.wait_until_released();
        Ok(self.stream.synchronize()?)
    }

    /// Waits while another thread releases the resources.
    fn wait_until_released(&self) {
        let mut resources = lock(&self.resources);
        while matches!(*resources, ResourceState::Releasing) && !blocks_teardown() {
            let released = self.released.wait(resources);
            resources = released.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Releases the resources, unless another thread does or has.
    fn release(&self, is_well: bool) {
        let mut resources = lock(&self.resources);
        let used = match std::mem::replace(&mut *resources, ResourceState::Releasing) {
            ResourceState::Held(used) => used,
            other => {
                *resources = other;
                return;
            }
        };
        drop(resources);
        let _gone = OnDrop(|| {
            *lock(&self.resources) = ResourceState::Released { is_well };
            self.released.notify_all();
        });
        let _scope = TeardownScope::enter();
        drop(used);
    }

    /// The kernel may run for ever: its resources and the queue are leaked.
    fn leak(&self) {
        self.mark_lost();
        let released_state = ResourceState::Released { is_well: false };
        let used = std::mem::replace(&mut *lock(&self.resources), released_state);
        if let ResourceState::Held(it) = &used {
            it.stay.note_stop_requested(Duration::ZERO);
            std::mem::forget((used, self.memory.clone(), self.stream.clone()));
        }
    }
}

/// Runs a closure when dropped, also on a panic.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// How long a task may run: the watchdog, and as long again to notice its cancellation.
fn twice(watchdog: Duration) -> Duration {
    watchdog.saturating_mul(2)
}
