//! Whether this process may still use the device through us, and whether it may still
//! use Python.
//!
//! Invariants: after a fork the child drops nothing and calls nothing; after Python's
//! `atexit` no thread of ours takes the interpreter, and what is left is the process's
//! to give back. What is dropped while both live is dropped without the interpreter's
//! lock, since an end may wait for the device, and the device for Python.
//!
//! Libraries in C call deleters from where they have released that lock themselves, beneath a
//! call of ours; what keeps count of our own calls does not know. So whoever comes from
//! there asks the interpreter ([`Locked`]).

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::ffi::{
    PyGILState_Ensure, PyGILState_GetThisThreadState, PyGILState_Release, PyGILState_STATE,
};
use pyo3::prelude::*;

use crate::errors;

/// So long an exit waits for Python code that threads of ours have called.
const PATIENCE: Duration = Duration::from_secs(5);

/// The process that loaded the module.
static OWNER: AtomicU32 = AtomicU32::new(0);
static ENDING: AtomicBool = AtomicBool::new(false);
/// How many threads of ours are in Python, or wait to be.
static INSIDE: Mutex<usize> = Mutex::new(0);
static LEFT: Condvar = Condvar::new();

/// Locks what no panic can leave half done.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn begin() {
    OWNER.store(std::process::id(), Relaxed);
}

fn is_owner() -> bool {
    OWNER.load(Relaxed) == std::process::id()
}

fn is_live() -> bool {
    is_owner() && !ENDING.load(Relaxed)
}

/// To be asked before anything of the device is used.
///
/// # Errors
/// `ForkedError` in the child of a fork.
pub(crate) fn check_process(py: Python<'_>) -> PyResult<()> {
    match is_owner() {
        true => Ok(()),
        false => Err(errors::forked(py, OWNER.load(Relaxed))),
    }
}

/// For `atexit`: from now on nothing of ours goes into Python.
pub(crate) fn end(py: Python<'_>) {
    py.detach(|| {
        let inside = lock(&INSIDE);
        ENDING.store(true, Relaxed);
        // Who does not come back by then is left behind.
        drop(LEFT.wait_timeout_while(inside, PATIENCE, |inside| *inside > 0));
    });
}

/// The interpreter's lock, truly: also where a library has released it beneath us.
struct Locked<'py> {
    state: PyGILState_STATE,
    _python: Python<'py>,
}

impl<'py> Locked<'py> {
    fn new(python: Python<'py>) -> Self {
        // SAFETY: there is an interpreter, and it is not ending for us: `python` says so. Whether this
        // thread has the lock at the moment is what is asked.
        let state = unsafe { PyGILState_Ensure() };
        Self {
            state,
            _python: python,
        }
    }

    /// Whether the thread had it already.
    fn was_held(&self) -> bool {
        matches!(self.state, PyGILState_STATE::PyGILState_LOCKED)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: of this thread, and released in the opposite order.
        unsafe { PyGILState_Release(self.state) };
    }
}

/// While it lives the interpreter does not end, but for [`PATIENCE`].
struct Inside(());

impl Inside {
    /// None if there is no Python for this thread.
    fn enter() -> Option<Self> {
        if !is_owner() {
            return None;
        }
        let mut inside = lock(&INSIDE);
        if ENDING.load(Relaxed) {
            return None;
        }
        *inside += 1;
        Some(Self(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        *lock(&INSIDE) -= 1;
        LEFT.notify_all();
    }
}

/// Calls Python from a thread of ours; not at all if there is no Python for it.
pub(crate) fn with_python(work: impl FnOnce(Python<'_>)) {
    let Some(_inside) = Inside::enter() else {
        return;
    };
    Python::try_attach(|py| {
        let _locked = Locked::new(py);
        work(py);
    });
}

/// An object of Python's that a thread of ours holds.
pub(crate) struct Keeper(Option<Py<PyAny>>);

impl Keeper {
    pub(crate) fn new(kept: Py<PyAny>) -> Self {
        Self(Some(kept))
    }

    /// It, until this is dropped.
    pub(crate) fn get(&self) -> Option<&Py<PyAny>> {
        self.0.as_ref()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Without an interpreter nobody can be told, and nothing is.
        if let Some(kept) = self.0.take() {
            with_python(move |_| drop(kept));
        }
    }
}

/// Ends what needs no interpreter, in a thread that has none; unless the process is ending, or another.
pub(crate) fn end_without_python<T: Send>(value: T) {
    let value = ManuallyDrop::new(value);
    if is_live() {
        drop(ManuallyDrop::into_inner(value));
    }
}

/// What a Python object holds of the device.
pub(crate) struct Kept<T: Send>(ManuallyDrop<T>);

impl<T: Send> Kept<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }

    /// It, whose end is the caller's care from now on.
    pub(crate) fn into_inner(self) -> T {
        let mut kept = ManuallyDrop::new(self);
        // SAFETY: `self` is not dropped, and nothing uses it any more.
        unsafe { ManuallyDrop::take(&mut kept.0) }
    }
}

impl<T: Send> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Send> Drop for Kept<T> {
    fn drop(&mut self) {
        let kept = &mut self.0;
        // SAFETY: nothing uses it after this, and it is done at most once. Without an
        // interpreter, which is ending then, it is not done at all.
        let mut end = || unsafe { ManuallyDrop::drop(kept) };
        // SAFETY: it may be asked at any time, of the calling thread.
        if unsafe { PyGILState_GetThisThreadState() }.is_null() {
            // Python does not know this thread, which so has nothing to let go of.
            if is_live() {
                end();
            }
            return;
        }
        let Some(inside) = Inside::enter() else {
            return;
        };
        Python::try_attach(|py| {
            let had_lock = Locked::new(py).was_held();
            // For what the device does no exit waits.
            drop(inside);
            // Who has released the lock cannot release it again.
            if had_lock { py.detach(end) } else { end() }
        });
    }
}
