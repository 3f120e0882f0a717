//! Dispatcher that a session owns, over buffers of the session.
//!
//! Invariants: a buffer that tasks may access stays allocated, and charged to the session, until
//! the kernel has exited, whatever happens to its handle. When a session is torn down, its
//! dispatchers are first: they run the tasks already submitted, and refuse new ones.
//!
//! Elsewhere: the queue and the kernel (`dispatcher`).

use std::sync::Arc;
use std::time::Duration;

use fercuda_dispatcher::{
    DispatchError, DispatchOptions, DispatchStats, TaskArgs, TaskBuffers, TaskId, TaskJob,
    TaskQueue, TaskSet,
};

use crate::error::Result;
use crate::session::{BufferId, Session};

/// Alignment of a registered buffer's address.
const ALIGN_BYTES: u64 = 16;

/// A dispatcher of a session ([`Session::dispatcher`]). Dropping it ends it after the tasks that
/// are running, as for [`Dispatcher`](crate::Dispatcher); those not begun get
/// [`TaskError::Stopped`](crate::TaskError::Stopped), except that they are run while the session
/// is being torn down.
///
/// All calls may be made from any thread.
#[derive(Debug)]
pub struct Resident {
    session: Session,
    queue: Arc<TaskQueue>,
}

impl Resident {
    /// As [`Dispatcher::submit`](crate::Dispatcher::submit).
    ///
    /// # Errors
    /// As there; [`DispatchError::Stopped`] also when the session has ended.
    pub fn submit(
        &self,
        priority: u32,
        task: TaskId,
        arguments: &TaskArgs,
    ) -> std::result::Result<TaskJob, DispatchError> {
        self.queue.submit(priority, task, arguments)
    }

    /// Counters of the queue.
    pub fn stats(&self) -> DispatchStats {
        self.queue.stats()
    }

    /// Refuses new tasks, lets the kernel run those already submitted, and waits up to `longest`
    /// for it to exit. Its buffers are released then. May be called again.
    ///
    /// # Errors
    /// [`DispatchError::Running`] if it has not ended yet; [`DispatchError::Lost`];
    /// [`DispatchError::Forked`]; [`DispatchError::Cuda`], the kernel's error, each time.
    pub fn stop(&self, longest: Duration) -> std::result::Result<(), DispatchError> {
        let core = &self.session.core;
        core.as_tenant(|| self.queue.drain(longest))
    }

    /// Does what dropping does, for an owner that shares the dispatcher: nothing in the child of a
    /// fork. May be called again.
    ///
    /// # Errors
    /// As for [`Resident::stop`].
    pub fn abandon(&self) -> std::result::Result<(), DispatchError> {
        self.session.core.as_tenant(|| self.queue.abandon())
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        let is_here = self.queue.check_process().is_ok();
        if is_here && !self.session.core.is_open() {
            // It runs the tasks already submitted. The teardown may have missed this dispatcher if
            // the session's teardown began while it was started.
            self.queue.request_drain();
            return self.queue.release_later();
        }
        // Errors have been reported to the waiters of the tasks.
        drop(self.abandon());
    }
}

impl Session {
    /// Starts a dispatcher for these tasks over these buffers; [`TaskArgs::span`] names a buffer by
    /// its index in `buffers`. The kernel starts behind the session's work. Later work of the
    /// session that uses the buffers must be ordered by the host: the host waits for tasks before
    /// such work, and for that work before tasks.
    ///
    /// While it runs, any wait for the whole device also waits for it, as for each
    /// [`Dispatcher`](crate::Dispatcher).
    ///
    /// # Errors
    /// [`Error::Dispatch`](crate::Error::Dispatch) with [`DispatchError::Buffer`] for one that is
    /// not contiguous, or not aligned to 16 bytes, [`DispatchError::Value`] or
    /// [`DispatchError::Build`]; [`Error::Cuda`](crate::Error::Cuda); those of a session that has
    /// ended, also in a job that runs during its teardown.
    pub fn dispatcher(
        &self,
        set: &TaskSet,
        buffers: &[BufferId],
        options: DispatchOptions,
    ) -> Result<Resident> {
        // A session in teardown has stopped its dispatchers before its last jobs are done.
        self.core.while_open(|_| ())?;
        let mut registered = TaskBuffers::new();
        for id in buffers {
            let entry = self.core.entry(*id)?;
            let refused = |why: String| DispatchError::Buffer {
                id: id.to_string(),
                why: format!("{why}\ntry: the buffer that it is a view of"),
            };
            if !entry.layout.is_contiguous() {
                let layout = &entry.layout;
                return Err(refused(format!("{layout} is not contiguous")).into());
            }
            let (first, bytes) = (entry.first as usize, entry.layout.bytes() as usize);
            let memory = entry.memory.buffer.part::<u8>(first, bytes)?;
            let address = memory.address().0;
            if !address.is_multiple_of(ALIGN_BYTES) {
                let why = format!(
                    "it begins at {address:#x}, which is no multiple of {ALIGN_BYTES} bytes"
                );
                return Err(refused(why).into());
            }
            registered.device_of(memory, entry);
        }
        let core = &self.core;
        // The function is not the session's: other sessions may share it.
        let function = core.task_kernel(set, &options)?;
        let (behind, context) = (self.record()?, core.context());
        let started = core
            .as_tenant(|| TaskQueue::start(Some(&behind), context, function, registered, options));
        let resident = Resident {
            session: self.clone(),
            queue: started?,
        };
        // The session's teardown has not collected its dispatchers yet.
        core.while_open(|owned| owned.keep(&resident.queue))?;
        Ok(resident)
    }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "a task is a test's own")]
mod tests {
    use super::*;
    use crate::{Runtime, RuntimeConfig, SessionConfig};

    #[test]
    fn the_kernel_of_the_standard_tasks_is_loaded_once_for_all_sessions() {
        let runtime = Runtime::open(RuntimeConfig::default()).unwrap();
        let [one, other] =
            ["one", "other"].map(|name| runtime.session(name, SessionConfig::default()).unwrap());
        let options = DispatchOptions::default();
        let kernel = |session: &Session, set: &TaskSet, options: &DispatchOptions| {
            let kernel = session.core.task_kernel(set, options).unwrap();
            kernel.function().clone()
        };
        let standard = || TaskSet::standard();
        let first = kernel(&one, &standard(), &options);
        assert_eq!(first.raw(), kernel(&other, &standard(), &options).raw());
        let wider = DispatchOptions {
            threads: 256,
            ..options
        };
        assert_ne!(first.raw(), kernel(&one, &standard(), &wider).raw());
        let mut more = standard();
        // SAFETY: it touches nothing.
        unsafe { more.add("nothing", |_| {}) };
        let own = kernel(&one, &more, &options);
        assert_ne!(first.raw(), own.raw());
        assert_eq!(own.raw(), kernel(&other, &more, &options).raw());
        // A set that was loaded before keeps its own function.
        let before = standard();
        before.load(one.core.context(), &options).unwrap();
        assert_ne!(first.raw(), kernel(&one, &before, &options).raw());
        drop((one, other));
        runtime.reboot().unwrap();
        let after = runtime.session("after", SessionConfig::default()).unwrap();
        let reloaded = kernel(&after, &standard(), &options);
        assert_ne!(first.raw(), reloaded.raw());
    }
}
