//! Control requests of other processes: `fercuda reboot --pid`.
//!
//! Invariants: consent is requested without a table's lock. A closed runtime receives no requests.

use core::ffi::{c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use fercuda_runtime::Requests;

use super::types::{fer_requests, fer_runtime};
use crate::handles::{Handles, RUNTIMES};
use crate::pointers::OutPointer;
use crate::status::{CallFailure, catch_panics, fer_status};

/// Returns whether the runtime may be rebooted now: not 0 for yes. Called with its `context` in a
/// thread of the library, one call at a time. It may call functions of this library, and does not
/// unwind.
pub type fer_consent = Option<unsafe extern "C" fn(context: *mut c_void) -> c_int>;

/// Registration of a runtime that accepts requests. Dropping it waits for the request in progress;
/// if the reboot may be waiting for the thread, for the consent only.
pub(crate) struct RequestServing {
    pub(crate) runtime: u64,
    requests: Option<Requests>,
    asking: Arc<ConsentCalls>,
    /// The child of a fork has no thread that serves requests.
    process: u32,
}

pub(crate) static REQUESTS: Handles<RequestServing> = Handles::new(8);

impl Drop for RequestServing {
    fn drop(&mut self) {
        drop(self.requests.take());
        if self.process == std::process::id() {
            self.asking.end();
        }
    }
}

/// Synchronises calls of a consent with its end. C's context may be freed when no call is in
/// progress and none will come, also if the thread that makes them is not joined.
#[derive(Default)]
struct ConsentCalls {
    state: Mutex<ConsentState>,
    changed: Condvar,
}

#[derive(Default)]
struct ConsentState {
    has_ended: bool,
    asks: Option<ThreadId>,
}

impl ConsentCalls {
    /// Calls the consent; false once it must not be called any more.
    fn ask(&self, consent: impl FnOnce() -> bool) -> bool {
        let lock = || self.state.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut state = lock();
            if state.has_ended {
                return false;
            }
            state.asks = Some(thread::current().id());
        }
        let agrees = consent();
        lock().asks = None;
        self.changed.notify_all();
        agrees
    }

    /// Ends the calls: none is in progress, except the caller's own, and none will come.
    fn end(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.has_ended = true;
        let own = thread::current().id();
        while state.asks.is_some_and(|asks| asks != own) {
            let changed = self.changed.wait(state);
            state = changed.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Context of a consent.
struct ConsentContext(*mut c_void);

// SAFETY: it is passed only to its consent, which is called in a thread of the library, by its
// contract.
unsafe impl Send for ConsentContext {}

/// Accepts reboot requests of this user's other processes (`fercuda reboot --pid`): for each,
/// `consent` is called, and fer_reboot is done if it returns yes. Sessions of the device return
/// FER_ERROR_ENDED from then on, so their users must expect that. The result, also a refusal, is
/// reported to the requester; a context that has failed is never reset by this.
///
/// Ended by fer_requests_end, or with its runtime; `context` must live until that has returned,
/// and, if that was called in `consent`, until `consent` has returned too. FER_ERROR_SERVED if the
/// device's requests are accepted in this process already, FER_ERROR_NOT_GOVERNED if there is no
/// ledger through which they arrive.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_runtime_serve_requests(
    runtime: fer_runtime,
    consent: fer_consent,
    context: *mut c_void,
    requests: *mut fer_requests,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("requests", requests) }?;
        let Some(consent) = consent else {
            return Err(CallFailure::argument(
                "consent",
                "it is NULL\ntry: a function",
            ));
        };
        let context = ConsentContext(context);
        let asking = Arc::new(ConsentCalls::default());
        let asks = asking.clone();
        let asked = move || {
            let context = &context;
            // SAFETY: the caller's function with its context, which lives until `ConsentCalls::end`
            // has returned.
            asks.ask(|| unsafe { consent(context.0) != 0 })
        };
        let of = RUNTIMES.get("runtime", runtime)?;
        let serving = RequestServing {
            runtime,
            requests: Some(of.serve_requests(asked)?),
            asking,
            process: std::process::id(),
        };
        place.put(REQUESTS.insert_of(&RUNTIMES, runtime, serving)?);
        Ok(())
    })
}

/// Stops accepting requests. Waits for a consent in progress, unless it is called in it; and for a
/// reboot in progress, unless that waits for the calling thread, as in a job or an allocator's
/// `free`. So a consent must not wait for a thread that calls this.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_requests_end(requests: fer_requests) -> fer_status {
    catch_panics(|| {
        drop(REQUESTS.remove("requests", requests)?);
        Ok(())
    })
}
