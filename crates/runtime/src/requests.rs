//! What others ask of the process: `fercuda reboot`, through its ledger.
//!
//! Invariant: nobody's sessions end unless the program has said that it may be asked, is asked,
//! and agrees. Only [`Runtime::reboot`] is done, never a reset: a context that has failed
//! stays so, and the answer says it.
//! Elsewhere: how a request gets here and who may make one (`fercuda-ledger`).

use std::fmt;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fercuda_regime::interface::{Interface, RebootFailure, RebootOutcome};

use crate::error::{Error, Result};
use crate::machine::{Runtime, lock};
use crate::within::is_within;

/// How often it is looked whether something is asked: a few loads.
const LOOK: Duration = Duration::from_millis(50);

/// As long as this is there, a runtime can be asked. Dropping it waits for what is being done,
/// but where a reboot waits for the thread, as in a session's job: there it only takes no more.
pub struct Requests {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    /// The child of a fork has no such thread to wait for.
    process: u32,
}

#[derive(Default)]
struct Stop {
    is_wanted: Mutex<bool>,
    changed: Condvar,
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").finish_non_exhaustive()
    }
}

impl Runtime {
    /// Lets this user's other processes ask for a reboot (`fercuda reboot --pid`), until what
    /// comes back is dropped, which also keeps the runtime open. A thread looks for requests;
    /// for each it calls `consent`, and does [`Runtime::reboot`] if that says yes. Sessions end
    /// then, so whoever has some is to expect [`Error::Ended`]. A panic of `consent` is a no.
    ///
    /// Of several runtimes for a device one is asked.
    ///
    /// # Errors
    /// [`Error::Ungoverned`]; [`Error::Served`] if another one of the process takes the device's
    /// requests; [`Error::NoThread`].
    pub fn serve_requests(
        &self,
        consent: impl FnMut() -> bool + Send + 'static,
    ) -> Result<Requests> {
        let device = self.device().ordinal();
        let doors = self.doors().ok_or(Error::Ungoverned)?;
        if !doors.accept_requests(device) {
            return Err(Error::Served { device });
        }
        let served = Served { doors, device };
        let stop = Arc::new(Stop::default());
        let (runtime, stopped) = (self.clone(), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("fercuda-requests".to_owned())
            .spawn(move || serve(&runtime, &served, &stopped, consent))
            .map_err(|error| Error::NoThread {
                why: error.to_string(),
            })?;
        Ok(Requests {
            stop,
            thread: Some(thread),
            process: std::process::id(),
        })
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        *lock(&self.stop.is_wanted) = true;
        self.stop.changed.notify_all();
        if let Some(thread) = self.thread.take()
            // Dropped by the consent that is asked: it ends when that returns. In a job it ends
            // when that, and the reboot that waits for it, is over.
            && thread.thread().id() != std::thread::current().id()
            && !is_within()
        {
            // Nothing in it unwinds.
            thread.join().ok();
        }
    }
}

/// That a device's requests are taken, said in the ledger until it is dropped.
struct Served {
    doors: &'static Interface,
    device: u32,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.doors.stop_accepting_requests(self.device);
    }
}

impl Stop {
    /// Whether it is time to end, after [`LOOK`] at most.
    fn comes(&self) -> bool {
        let wanted = lock(&self.is_wanted);
        let waited = self
            .changed
            .wait_timeout_while(wanted, LOOK, |wanted| !*wanted);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

fn serve(runtime: &Runtime, served: &Served, stop: &Stop, mut consent: impl FnMut() -> bool) {
    while !stop.comes() {
        let asked: Option<NonZeroU64> = served.doors.take_request(served.device);
        let Some(number) = asked else { continue };
        let agrees = catch_unwind(AssertUnwindSafe(&mut consent)).unwrap_or(false);
        let outcome = if agrees {
            catch_unwind(AssertUnwindSafe(|| reboot(runtime)))
                .unwrap_or(RebootOutcome::Failed(RebootFailure::Other))
        } else {
            RebootOutcome::Refused
        };
        served.doors.answer_request(served.device, number, outcome);
    }
}

fn reboot(runtime: &Runtime) -> RebootOutcome {
    match runtime.reboot() {
        Ok(reboot) => RebootOutcome::Rebooted {
            epoch: reboot.epoch,
            sessions: reboot.sessions as u64,
            returned_bytes: reboot.returned_bytes,
        },
        Err(Error::Failed { .. }) => RebootOutcome::Failed(RebootFailure::Context),
        Err(Error::Lost { .. }) => RebootOutcome::Failed(RebootFailure::Lost),
        Err(_) => RebootOutcome::Failed(RebootFailure::Other),
    }
}
