//! Teardown of sessions.
//!
//! A teardown completes the session's submitted work, then releases everything. Dispatchers stop
//! first: a job that needs the whole device would wait for a resident kernel.
//!
//! Invariants: exactly one thread tears a session down, and the session has ended only when all
//! that it had is released, also if user code panics meanwhile. A thread that the teardown may
//! wait for (a job, a host callback, a deleter of lent memory) never waits for a session's
//! teardown: a separate thread does it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use fercuda_dispatcher::{TaskQueue, TeardownScope, blocks_teardown};

use super::core::{SessionCore, SessionPhase};
use crate::error::{EndReason, Error, Result};
use crate::lock::lock;
use crate::shared_device::TeardownCount;

/// A session in teardown. Dropping this marks the session as ended and notifies the waiters, also
/// on a panic of user code.
struct SessionTeardown {
    core: Arc<SessionCore>,
    why: EndReason,
    /// Dropped after the rest of the session, which may be its last reference.
    _count: TeardownCount,
}

impl SessionTeardown {
    /// Returns `None` if another thread tears it down, or has.
    fn begin(core: &Arc<SessionCore>, why: EndReason) -> Option<Self> {
        core.check_process().ok()?;
        let mut phase = lock(&core.phase);
        match std::mem::replace(&mut *phase, SessionPhase::Ended(why)) {
            SessionPhase::Open(table) => *phase = SessionPhase::Draining(table, why),
            other => {
                *phase = other;
                return None;
            }
        }
        drop(phase);
        Some(Self {
            core: core.clone(),
            why,
            _count: TeardownCount::begin(&core.device),
        })
    }

    /// Waits for the submitted work, and releases everything.
    fn finish(self, stopped: Result<()>) -> Result<()> {
        let core = &*self.core;
        // The submission thread stays in its field, so that its jobs are recognised while they run.
        let submission = lock(&core.submission).clone();
        let worked = stopped.and(submission.map_or(Ok(()), |it| it.finish()));
        let phase = std::mem::replace(&mut *lock(&core.phase), SessionPhase::Releasing(self.why));
        let _scope = TeardownScope::enter();
        core.as_tenant(|| {
            let done = core.stream.synchronize().map_err(Error::from);
            core.owned.tear_down();
            drop(phase);
            // Wait for the frees queued just above.
            let settled = core.stream.synchronize().map_err(Error::from);
            worked.and(done).and(settled)
        })
    }
}

impl Drop for SessionTeardown {
    fn drop(&mut self) {
        let previous =
            std::mem::replace(&mut *lock(&self.core.phase), SessionPhase::Ended(self.why));
        self.core.has_ended.notify_all();
        drop(previous);
    }
}

/// Tears down the sessions that are still open, the last one first; returns the result of each,
/// unless another thread does the work. Resident kernels exit before any session ends, since
/// another session's work may wait for the whole device.
fn tear_down_open(sessions: &[Arc<SessionCore>], why: EndReason) -> Vec<Result<()>> {
    let last_first = sessions.iter().rev();
    let begun: Vec<SessionTeardown> = last_first
        .filter_map(|it| SessionTeardown::begin(it, why))
        .collect();
    begun.iter().for_each(|it| it.core.owned.request_drain());
    if !begun.iter().any(|it| it.core.blocks_teardown()) {
        return finish(begun);
    }
    let thread = Builder::new().name("fercuda teardown".to_owned());
    // The jobs report their own results. If no thread can be spawned, the closure is dropped,
    // which releases everything behind the session's work all the same.
    let spawned = thread.spawn(move || drop(finish(begun)));
    let spawned = spawned.map(drop).map_err(|error| Error::NoThread {
        why: error.to_string(),
    });
    vec![spawned]
}

fn finish(begun: Vec<SessionTeardown>) -> Vec<Result<()>> {
    let mut panicked = None;
    let mut stopped = Vec::new();
    for it in &begun {
        stopped.push(it.core.stop_dispatchers(&mut panicked));
    }
    let mut done = Vec::new();
    for (it, stopped) in begun.into_iter().zip(stopped) {
        done.push(catch_first_panic(&mut panicked, || it.finish(stopped)));
    }
    match panicked {
        // All sessions have ended all the same.
        Some(panic) => resume_unwind(panic),
        None => done,
    }
}

/// Payload of a panic in user code.
type PanicPayload = Box<dyn Any + Send>;

/// Runs `work`; the first panic of user code is kept until everything is done.
fn catch_first_panic(
    panicked: &mut Option<PanicPayload>,
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        match panicked {
            None => *panicked = Some(panic),
            // A payload's destructor may panic too.
            Some(_) => std::mem::forget(panic),
        }
        Ok(())
    })
}

/// Tears sessions down together, the last one first; returns the results of those that were open.
/// All have ended on return, whichever thread did it; but a thread that the teardown may wait for
/// does not wait.
pub(crate) fn tear_down_all(sessions: &[Arc<SessionCore>], why: EndReason) -> Vec<Result<()>> {
    let done = tear_down_open(sessions, why);
    sessions.iter().for_each(|it| it.wait_until_ended());
    done
}

/// Tears a session down when its last handle is dropped.
#[derive(Debug)]
pub(super) struct LastHandle(pub(super) Arc<SessionCore>);

impl Drop for LastHandle {
    fn drop(&mut self) {
        // No caller is left to report an error to.
        drop(tear_down_open(
            std::slice::from_ref(&self.0),
            EndReason::Closed,
        ));
    }
}

impl Drop for SessionCore {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            return;
        }
        // In the child of a fork the resources do not exist, and deleters of lent memory must not
        // be called from here.
        let phase = self.phase.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::replace(
            phase,
            SessionPhase::Ended(EndReason::Closed),
        ));
    }
}

impl SessionCore {
    /// Whether the teardown of this session may be waiting for the calling thread.
    pub(crate) fn blocks_teardown(&self) -> bool {
        // Only the driver knows of other libraries' host callbacks.
        let refuses = || self.stream.is_idle().is_err_and(|it| it.is_in_callback());
        blocks_teardown() || (self.check_process().is_ok() && refuses())
    }

    fn wait_until_ended(&self) {
        if self.check_process().is_err() || self.has_ended() || self.blocks_teardown() {
            return;
        }
        let mut phase = lock(&self.phase);
        while !matches!(*phase, SessionPhase::Ended(_)) {
            let ended = self.has_ended.wait(phase);
            phase = ended.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the session's dispatchers have run the submitted tasks and exited; returns the
    /// first error.
    fn stop_dispatchers(&self, panicked: &mut Option<PanicPayload>) -> Result<()> {
        let all = self.owned.take_dispatchers();
        // Without a `TeardownScope` guard: this waits for threads that hold one, and frees their
        // resources.
        self.as_tenant(|| {
            let drain = |it: &Arc<TaskQueue>| Ok(it.drain(Duration::MAX)?);
            let each = all
                .iter()
                .map(|it| catch_first_panic(panicked, || drain(it)));
            each.fold(Ok(()), Result::and)
        })
    }
}
