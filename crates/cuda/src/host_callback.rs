//! Host callbacks: code of the host in the order of a stream.
//!
//! Elsewhere: detecting that a thread runs one (`callback`), callbacks of a graph (`graph`).

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use crate::callback::run_catching_panic;
use crate::error::{Error, Result, call};
use crate::stream::Stream;

impl Stream {
    /// Runs `body` on a thread of the driver's when the work so far is done; later work waits for
    /// it. A panic is caught and reported by the next [`Stream::synchronize`]. If the context is
    /// lost before that, `body` is neither run nor dropped.
    ///
    /// `body` must not call CUDA: through this crate that returns [`Error::InCallback`], and what
    /// it drops is destroyed later.
    ///
    /// # Errors
    /// [`Error::Capturing`]: a graph runs its callbacks many times, see
    /// [`Capture::host_callback`](crate::Capture::host_callback).
    pub fn host_callback(&self, body: impl FnOnce() + Send + 'static) -> Result<()> {
        struct OnceCallback<F> {
            body: F,
            panicked: Arc<Mutex<Option<String>>>,
        }
        unsafe extern "C" fn run<F: FnOnce()>(data: *mut c_void) {
            // SAFETY: `data` is the box leaked below, given to the driver for
            // exactly one call.
            let once = unsafe { Box::from_raw(data.cast::<OnceCallback<F>>()) };
            let OnceCallback { body, panicked } = *once;
            run_catching_panic(body, &panicked);
        }
        fn pointer_to<F: FnOnce()>(_: &OnceCallback<F>) -> unsafe extern "C" fn(*mut c_void) {
            run::<F>
        }

        let entered = self.enter_uncaptured(Error::Capturing {
            operation: "run a callback once",
            advice: "a graph runs its callbacks in every launch: Capture::host_callback",
        })?;
        let driver = self.context().bind()?;
        let once = Box::new(OnceCallback {
            body,
            panicked: self.panicked().clone(),
        });
        let function = pointer_to(&once);
        let data = Box::into_raw(once);
        // SAFETY: `function` takes `data` back, once; both stay valid until
        // then whatever happens to `self`.
        let launched = unsafe {
            call!(
                driver,
                cuLaunchHostFunc(self.raw(), Some(function), data.cast()),
                "queue a host callback"
            )
        };
        // What the body drops may enter the stream itself.
        drop(entered);
        if launched.is_err() {
            // SAFETY: the driver refused it, so it will not call `function`.
            drop(unsafe { Box::from_raw(data) });
        }
        launched
    }
}
