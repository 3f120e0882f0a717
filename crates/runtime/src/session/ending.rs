//! How sessions end.
//!
//! What a session was given to do is done, then everything goes. Dispatchers go first: a
//! job that needs the whole device would wait for a kernel that stays.
//!
//! Invariants: one thread ends a session, and it has ended when all that it had is given
//! back, not before, also if somebody's code panics meanwhile. Who may be waited for by
//! that (a job, a host callback, who hears that lent memory is given back) waits for no
//! session's end: a thread of its own ends it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use super::{Core, Names};
use crate::dispatcher::Queue;
use crate::error::{Error, Result, Why};
use crate::machine::{UnderWay, lock};
use crate::within::{Leaving, is_within};

/// A session that is being ended: it has ended when this goes, also by a panic of what is
/// given back, and who waits for that hears of it.
struct Ending {
    core: Arc<Core>,
    why: Why,
    /// After what is left of the session, which may be the last of it.
    _under_way: UnderWay,
}

impl Ending {
    /// None if somebody else ends it, or has.
    fn begin(core: &Arc<Core>, why: Why) -> Option<Self> {
        core.check_process().ok()?;
        let mut names = lock(&core.table);
        match std::mem::replace(&mut *names, Names::Ended(why)) {
            Names::Open(table) => *names = Names::Ending(table, why),
            other => {
                *names = other;
                return None;
            }
        }
        drop(names);
        Some(Self {
            core: core.clone(),
            why,
            _under_way: UnderWay::begin(&core.machine),
        })
    }

    /// Waits for what it was given to do, and gives everything back.
    fn finish(self, stopped: Result<()>) -> Result<()> {
        let core = &*self.core;
        // It stays where it is, so that its jobs are known while they are done.
        let clerk = lock(&core.clerk).clone();
        let worked = stopped.and(clerk.map_or(Ok(()), |it| it.finish()));
        let names = std::mem::replace(&mut *lock(&core.table), Names::Leaving(self.why));
        let _leaving = Leaving::enter();
        core.acting(|| {
            let done = core.stream.synchronize().map_err(Error::from);
            core.owned.end();
            drop(names);
            // What was given back is now behind nothing.
            let settled = core.stream.synchronize().map_err(Error::from);
            worked.and(done).and(settled)
        })
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let left = std::mem::replace(&mut *lock(&self.core.table), Names::Ended(self.why));
        self.core.has_ended.notify_all();
        drop(left);
    }
}

/// Ends sessions, the last one first, which nobody ends yet: what each has come to, unless
/// that is left to another thread. Kernels that stay end before any session does, since
/// what another has may wait for the whole device.
fn end_what_is_open(sessions: &[Arc<Core>], why: Why) -> Vec<Result<()>> {
    let last_first = sessions.iter().rev();
    let begun: Vec<Ending> = last_first.filter_map(|it| Ending::begin(it, why)).collect();
    begun.iter().for_each(|it| it.core.owned.tell());
    if !begun.iter().any(|it| it.core.is_within()) {
        return finish(begun);
    }
    let thread = Builder::new().name("fercuda ends".to_owned());
    // Its jobs say themselves what became of them. Without a thread it goes with the
    // closure: what it had goes behind its work all the same, by itself.
    let ends = thread.spawn(move || drop(finish(begun)));
    let ends = ends.map(drop).map_err(|error| Error::NoThread {
        why: error.to_string(),
    });
    vec![ends]
}

fn finish(begun: Vec<Ending>) -> Vec<Result<()>> {
    let mut panicked = None;
    let mut stopped = Vec::new();
    for it in &begun {
        stopped.push(it.core.stop_dispatchers(&mut panicked));
    }
    let mut done = Vec::new();
    for (it, stopped) in begun.into_iter().zip(stopped) {
        done.push(kept(&mut panicked, || it.finish(stopped)));
    }
    match panicked {
        // All have ended all the same.
        Some(panic) => resume_unwind(panic),
        None => done,
    }
}

/// What somebody's code has thrown.
type Panic = Box<dyn Any + Send>;

/// Does it, and keeps the first panic of somebody's code for when all is done.
fn kept(panicked: &mut Option<Panic>, work: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        match panicked {
            None => *panicked = Some(panic),
            // What was thrown may throw again when it is dropped.
            Some(_) => std::mem::forget(panic),
        }
        Ok(())
    })
}

/// Ends sessions together, the last one first; what those have come to that were open. They
/// have ended then, whoever did it; but who may be waited for by that does not wait.
pub(crate) fn end_all(sessions: &[Arc<Core>], why: Why) -> Vec<Result<()>> {
    let done = end_what_is_open(sessions, why);
    sessions.iter().for_each(|it| it.wait_until_ended());
    done
}

/// Ends a session when its last name goes.
#[derive(Debug)]
pub(super) struct LastName(pub(super) Arc<Core>);

impl Drop for LastName {
    fn drop(&mut self) {
        // Nobody is left to be told.
        drop(end_what_is_open(std::slice::from_ref(&self.0), Why::Closed));
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            return;
        }
        // In the child of a fork nothing of it is there, and who has lent memory hears
        // nothing from here.
        let names = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::replace(names, Names::Ended(Why::Closed)));
    }
}

impl Core {
    /// Whether who ends it may be waiting for the calling thread.
    pub(crate) fn is_within(&self) -> bool {
        // Of other libraries' host callbacks only the driver knows.
        let refuses = || self.stream.is_idle().is_err_and(|it| it.is_in_callback());
        is_within() || (self.check_process().is_ok() && refuses())
    }

    fn wait_until_ended(&self) {
        if self.check_process().is_err() || self.has_ended() || self.is_within() {
            return;
        }
        let mut names = lock(&self.table);
        while !matches!(*names, Names::Ended(_)) {
            let ended = self.has_ended.wait(names);
            names = ended.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until its dispatchers have run what they were given, and ended, each of them:
    /// the first error.
    fn stop_dispatchers(&self, panicked: &mut Option<Panic>) -> Result<()> {
        let all = self.owned.take_dispatchers();
        // Not `Leaving` itself: it waits for a thread that is, and lets go of what one has used.
        self.acting(|| {
            let drain = |it: &Arc<Queue>| Ok(it.drain(Duration::MAX)?);
            let each = all.iter().map(|it| kept(panicked, || drain(it)));
            each.fold(Ok(()), Result::and)
        })
    }
}
