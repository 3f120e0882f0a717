//! A dispatcher that a session owns, over buffers of the session's.
//!
//! Invariants: a buffer that tasks may touch stays, and is charged to the session, until
//! the kernel has ended, whatever becomes of its handle. When the session ends its
//! dispatchers do first: they run what they were given, and take no more.
//!
//! Elsewhere: the queue and the kernel (`dispatcher`).

use std::sync::Arc;
use std::time::Duration;

use crate::dispatcher::{
    DispatchError, DispatchOptions, DispatchStats, Queue, TaskArgs, TaskBuffers, TaskId, TaskJob,
    TaskSet,
};
use crate::session::{BufferId, Session};

/// What a registered buffer's address is a multiple of.
const ALIGN_BYTES: u64 = 16;

/// A dispatcher of a session's ([`Session::dispatcher`]). Dropping it ends it after the
/// tasks that run, as for [`Dispatcher`](crate::Dispatcher); those that it has not begun are
/// [`TaskError::Stopped`](crate::TaskError::Stopped); but where the session is being ended
/// they are run.
///
/// All calls may be made from any thread.
#[derive(Debug)]
pub struct Resident {
    session: Session,
    queue: Arc<Queue>,
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
    ) -> Result<TaskJob, DispatchError> {
        self.queue.submit(priority, task, arguments)
    }

    /// How much there was to do, and is.
    pub fn stats(&self) -> DispatchStats {
        self.queue.stats()
    }

    /// Takes no more tasks, lets the kernel run those that it was given, and waits until
    /// it has ended, at most so long. Its buffers are free then. May be asked again.
    ///
    /// # Errors
    /// [`DispatchError::Running`] if it has not ended yet; [`DispatchError::Lost`];
    /// [`DispatchError::Forked`]; [`DispatchError::Cuda`], the kernel's error, each time.
    pub fn stop(&self, longest: Duration) -> Result<(), DispatchError> {
        let core = &self.session.core;
        core.acting(|| self.queue.drain(longest))
    }

    /// Does what dropping it does, for who shares it: nothing in the child of a fork. May be
    /// asked again.
    ///
    /// # Errors
    /// As for [`Resident::stop`].
    pub fn abandon(&self) -> Result<(), DispatchError> {
        self.session.core.acting(|| self.queue.abandon())
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        let is_here = self.queue.check_process().is_ok();
        if is_here && !self.session.core.is_open() {
            // It runs what it was given. Who ends the session may never have heard of it, if that
            // began while it was started.
            self.queue.tell_to_drain();
            return self.queue.leave();
        }
        // What went wrong has been told to who waits for tasks.
        drop(self.abandon());
    }
}

impl Session {
    /// A dispatcher for these tasks over these buffers, which [`TaskArgs::span`] names by
    /// their place in `buffers`. The kernel begins behind the session's work; work of the
    /// session's that comes later and uses the buffers is ordered by the host alone: it
    /// waits for tasks before such work, and for that work before tasks.
    ///
    /// While it runs, what waits for the whole device waits for it, as for each
    /// [`Dispatcher`](crate::Dispatcher).
    ///
    /// # Errors
    /// [`DispatchError::Buffer`] for one whose elements do not lie side by side from a
    /// multiple of 16 bytes on; [`DispatchError::Value`]; [`DispatchError::Build`];
    /// [`DispatchError::Cuda`]; [`DispatchError::Session`], also in a job that is done while
    /// the session ends.
    pub fn dispatcher(
        &self,
        set: &TaskSet,
        buffers: &[BufferId],
        options: DispatchOptions,
    ) -> Result<Resident, DispatchError> {
        // A session that ends has stopped its dispatchers when its last jobs are done.
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
                return Err(refused(format!("{layout} does not lie side by side")));
            }
            let (first, bytes) = (entry.first as usize, entry.layout.bytes() as usize);
            let memory = entry.memory.buffer.part::<u8>(first, bytes)?;
            let address = memory.address().0;
            if !address.is_multiple_of(ALIGN_BYTES) {
                return Err(refused(format!(
                    "it begins at {address:#x}, which is no multiple of {ALIGN_BYTES} bytes"
                )));
            }
            registered.owned(memory, entry);
        }
        let core = &self.core;
        // Not the session's: it may serve others.
        let function = core.task_kernel(set, &options)?;
        let (behind, context) = (self.record()?, core.context());
        let started =
            core.acting(|| Queue::start(Some(&behind), context, function, registered, options));
        let resident = Resident {
            session: self.clone(),
            queue: started?,
        };
        // Who ends the session has not looked yet for what there is to stop.
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
            session.core.task_kernel(set, options).unwrap()
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
        // What a set was loaded with is its own.
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
