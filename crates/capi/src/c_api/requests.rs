//! What others ask of the process: `fercuda reboot --pid`.
//!
//! Invariants: consent is asked for without a lock of a table. A runtime that is closed is
//! asked no more.

use core::ffi::{c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use fercuda_runtime::Requests;

use super::types::{fer_requests, fer_runtime};
use crate::handles::{REQUESTS, RUNTIMES};
use crate::pointers::Place;
use crate::status::{Failure, fer_status, guarded};

/// Whether the runtime may be rebooted now: not 0 for yes. Called with the `context` that
/// came with it in a thread of the library's, one call at a time. It may call functions of
/// this library, and does not unwind.
pub type fer_consent = Option<unsafe extern "C" fn(context: *mut c_void) -> c_int>;

/// Whom C lets be asked, as C holds it. Dropped, it waits for what is being done; where that
/// cannot be, as a reboot waits for the thread, for the consent alone.
pub(crate) struct Serving {
    pub(crate) runtime: u64,
    requests: Option<Requests>,
    asking: Arc<Asking>,
    /// In the child of a fork nobody asks.
    process: u32,
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.requests.take());
        if self.process == std::process::id() {
            self.asking.end();
        }
    }
}

/// Who calls a consent now. C's context goes when no call comes and none is under way, also
/// where the thread that makes them is not waited for.
#[derive(Default)]
struct Asking {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    has_ended: bool,
    asks: Option<ThreadId>,
}

impl Asking {
    /// What the consent says; no when it must not be called any more.
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

    /// No call comes from here on, and none is under way but the caller's own.
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

/// What comes with a consent.
struct Context(*mut c_void);

// SAFETY: it is only handed to the consent that it came with, which is called in a thread
// of the library's, as its type says.
unsafe impl Send for Context {}

/// Lets this user's other processes ask for a reboot (`fercuda reboot --pid`): for each that
/// asks `consent` is called, and fer_reboot is done if it says yes. Sessions of the device
/// answer FER_ERROR_ENDED from then on, so whoever has some is to expect that. What it came to,
/// also a no, is told to who has asked; a context that has failed is never reset by this.
///
/// Ended by fer_requests_end, or with its runtime; `context` is there until that has
/// returned, and `consent` too, if that was called in it. FER_ERROR_SERVED if the device's
/// requests are taken in this process, FER_ERROR_NOT_GOVERNED if there is no ledger by which it
/// could be asked.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_runtime_serve_requests(
    runtime: fer_runtime,
    consent: fer_consent,
    context: *mut c_void,
    requests: *mut fer_requests,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new("requests", requests) }?;
        let Some(consent) = consent else {
            return Err(Failure::argument("consent", "it is NULL\ntry: a function"));
        };
        let context = Context(context);
        let asking = Arc::new(Asking::default());
        let asks = asking.clone();
        let asked = move || {
            let context = &context;
            // SAFETY: the caller's function, with what came with it, which is there until
            // `Asking::end` has returned.
            asks.ask(|| unsafe { consent(context.0) != 0 })
        };
        let of = RUNTIMES.get("runtime", runtime)?;
        let serving = Serving {
            runtime,
            requests: Some(of.serve_requests(asked)?),
            asking,
            process: std::process::id(),
        };
        place.put(REQUESTS.insert_of(&RUNTIMES, runtime, serving)?);
        Ok(())
    })
}

/// From now on nobody can ask. Waits for a consent that is being asked for, unless this is
/// called in it; and for a reboot that is being done, unless that waits for the calling thread,
/// as in a job or an allocator's `free`. So a consent does not wait for a thread that calls this.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_requests_end(requests: fer_requests) -> fer_status {
    guarded(|| {
        drop(REQUESTS.remove("requests", requests)?);
        Ok(())
    })
}
