//! Control requests from other processes: `fercuda reboot`, through the process's ledger.
//!
//! Invariant: a request ends sessions only if the program has enabled requests and consents. Only
//! [`Runtime::reboot`] is done, never a reset: a context that has failed stays failed, and the
//! answer reports it. Elsewhere: how a request arrives and which users may make one
//! (`fercuda-ledger`).

use std::fmt;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fercuda_dispatcher::blocks_teardown;
use fercuda_regime::interface::{Interface, RebootFailure, RebootOutcome};

use crate::error::{Error, Result};
use crate::lock::lock;
use crate::runtime::Runtime;

/// Polling interval for requests; a poll is a few loads.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Guard while a runtime accepts control requests. Dropping it waits for the request in progress,
/// unless that request's reboot may be waiting for the thread, as in a session's job: there it
/// only stops accepting.
pub struct Requests {
    stop: Arc<StopSignal>,
    thread: Option<JoinHandle<()>>,
    /// Process that started the thread: the child of a fork has no such thread to join.
    process: u32,
}

#[derive(Default)]
struct StopSignal {
    is_wanted: Mutex<bool>,
    changed: Condvar,
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").finish_non_exhaustive()
    }
}

impl Runtime {
    /// Accepts reboot requests from this user's other processes (`fercuda reboot --pid`) until the
    /// returned guard is dropped; the guard also keeps the runtime open. A thread polls for
    /// requests; for each it calls `consent`, and does [`Runtime::reboot`] if that returns true.
    /// The reboot ends sessions, so their users must expect [`Error::Ended`]. A panic of `consent`
    /// counts as false.
    ///
    /// Of several runtimes for a device, one receives a request.
    ///
    /// # Errors
    /// [`Error::Ungoverned`]; [`Error::Served`] if another runtime of the process accepts the
    /// device's requests; [`Error::NoThread`].
    pub fn serve_requests(
        &self,
        consent: impl FnMut() -> bool + Send + 'static,
    ) -> Result<Requests> {
        let device = self.device().ordinal();
        let interposer = self.interposer().ok_or(Error::Ungoverned)?;
        if !interposer.accept_requests(device) {
            return Err(Error::Served { device });
        }
        let registration = RequestRegistration { interposer, device };
        let stop = Arc::new(StopSignal::default());
        let (runtime, stopped) = (self.clone(), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("fercuda-requests".to_owned())
            .spawn(move || serve(&runtime, &registration, &stopped, consent))
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
            // The consent callback may drop the guard: the thread exits when the callback returns.
            // A job may drop it: the thread exits once the job, and the reboot that waits for it,
            // is over.
            && thread.thread().id() != std::thread::current().id()
            && !blocks_teardown()
        {
            // The thread function never unwinds.
            thread.join().ok();
        }
    }
}

/// Registration in the ledger that a device's requests are accepted, until dropped.
struct RequestRegistration {
    interposer: &'static Interface,
    device: u32,
}

impl Drop for RequestRegistration {
    fn drop(&mut self) {
        self.interposer.stop_accepting_requests(self.device);
    }
}

impl StopSignal {
    /// Waits up to [`POLL_INTERVAL`]; returns whether the thread must stop.
    fn wait_for_stop(&self) -> bool {
        let wanted = lock(&self.is_wanted);
        let waited = self
            .changed
            .wait_timeout_while(wanted, POLL_INTERVAL, |wanted| !*wanted);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

fn serve(
    runtime: &Runtime,
    registration: &RequestRegistration,
    stop: &StopSignal,
    mut consent: impl FnMut() -> bool,
) {
    while !stop.wait_for_stop() {
        let asked: Option<NonZeroU64> = registration.interposer.take_request(registration.device);
        let Some(number) = asked else { continue };
        let agrees = catch_unwind(AssertUnwindSafe(&mut consent)).unwrap_or(false);
        let outcome = if agrees {
            catch_unwind(AssertUnwindSafe(|| reboot(runtime)))
                .unwrap_or(RebootOutcome::Failed(RebootFailure::Other))
        } else {
            RebootOutcome::Refused
        };
        registration
            .interposer
            .answer_request(registration.device, number, outcome);
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
