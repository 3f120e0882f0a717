//! How a session ends.
//!
//! What it was given to do is done, then everything goes. Dispatchers go first: a job that
//! needs the whole device would wait for a kernel that stays.
//!
//! Invariants: one thread ends a session, and it has ended when all that it had is given
//! back, not before, also if somebody's code panics meanwhile. Who has a job to do, or
//! hears that lent memory is given back, waits for no session's end.

use std::ops::Deref;
use std::sync::{Arc, PoisonError};

use super::{Core, Names};
use crate::error::{Error, Result, Why};
use crate::jobs::is_clerk;
use crate::machine::lock;
use crate::within::{Leaving, is_within};

/// A session that is being ended: it has ended when this goes, also by a panic of what is
/// given back, and who waits for that hears of it.
struct Ending<C: Deref<Target = Core>> {
    core: C,
    why: Why,
}

impl<C: Deref<Target = Core>> Ending<C> {
    /// Gives everything back, behind the device's work.
    fn leave(self, worked: Result<()>) -> Result<()> {
        let core = &*self.core;
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

impl<C: Deref<Target = Core>> Drop for Ending<C> {
    fn drop(&mut self) {
        let left = std::mem::replace(&mut *lock(&self.core.table), Names::Ended(self.why));
        self.core.has_ended.notify_all();
        drop(left);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            if self.begins_to_end(Why::Closed) {
                let (core, why) = (&*self, Why::Closed);
                let ending = Ending { core, why };
                let stopped = core.stop_dispatchers();
                let clerk = lock(&core.clerk).clone();
                // Nobody is left to be told, nor to ask for what it has.
                drop(ending.leave(stopped.and(clerk.map_or(Ok(()), |it| it.finish()))));
            }
            return;
        }
        // In the child of a fork nothing of it is there, and who has lent memory hears
        // nothing from here.
        let names = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::replace(names, Names::Ended(Why::Closed)));
    }
}

impl Core {
    /// Ends it: what it was given to do is done, then everything goes. The first error
    /// of that work; it has ended all the same. Who comes meanwhile waits until it has;
    /// but no job waits, for which a session might wait: it ends behind its own jobs then.
    pub(crate) fn end(self: &Arc<Self>, why: Why) -> Result<()> {
        if self.process != std::process::id() || !self.begins_to_end(why) {
            return Ok(());
        }
        let core = self.clone();
        let ending = Ending { core, why };
        // First: a job that needs the whole device would wait for a kernel that stays.
        let stopped = self.stop_dispatchers();
        // It stays where it is, so that its jobs are known while they are done.
        let clerk = lock(&self.clerk).clone();
        match clerk {
            Some(clerk) if is_clerk() => {
                // Its jobs say themselves what became of them.
                clerk.finish_with(move |worked| drop(ending.leave(worked)));
                stopped
            }
            Some(clerk) => ending.leave(stopped.and(clerk.finish())),
            None => ending.leave(stopped),
        }
    }

    /// Whether the caller is who ends it. Else it waits until that is done.
    fn begins_to_end(&self, why: Why) -> bool {
        let mut names = lock(&self.table);
        match std::mem::replace(&mut *names, Names::Ended(why)) {
            Names::Open(table) => {
                *names = Names::Ending(table, why);
                true
            }
            other => {
                *names = other;
                // One of its jobs, for which who ends it waits, is not to wait for that; nor
                // is who hears there that memory it has lent is given back.
                while matches!(*names, Names::Ending(..) | Names::Leaving(_)) && !is_within() {
                    let ended = self.has_ended.wait(names);
                    names = ended.unwrap_or_else(PoisonError::into_inner);
                }
                false
            }
        }
    }

    /// Tells its dispatchers to run what they were given, and end.
    pub(crate) fn tell_dispatchers(&self) {
        if self.check_process().is_ok() {
            self.owned.tell();
        }
    }

    /// The same, and waits until they have: the first error.
    pub(crate) fn stop_dispatchers(&self) -> Result<()> {
        if self.check_process().is_err() {
            return Ok(());
        }
        // With them goes memory that may be lent.
        let _leaving = Leaving::enter();
        self.acting(|| self.owned.stop())
    }
}
