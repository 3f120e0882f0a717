//! Lifetime checks: whether this process may still use the device, and whether a thread may
//! still enter Python.
//!
//! Invariants: after a fork the child drops nothing and calls nothing; after Python's `atexit`
//! none of our threads takes the interpreter's lock (GIL), and remaining resources are freed by
//! the end of the process. Otherwise resources are dropped without the GIL, since a teardown may
//! wait for the device, and the device for a Python callback.
//!
//! C libraries may call deleters after they have released the GIL themselves, inside one of our
//! calls; PyO3's count of its own calls does not notice that. So code reached from there asks
//! the interpreter ([`GilGuard`]).

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::ffi::{
    PyGILState_Ensure, PyGILState_GetThisThreadState, PyGILState_Release, PyGILState_STATE,
};
use pyo3::prelude::*;

use crate::exceptions;

/// How long the interpreter's exit waits for Python code called by our threads.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The process that loaded the module.
static OWNER: AtomicU32 = AtomicU32::new(0);
static ENDING: AtomicBool = AtomicBool::new(false);
/// Number of our threads that are in Python, or wait to enter it.
static THREADS_IN_PYTHON: Mutex<usize> = Mutex::new(0);
static THREAD_LEFT_PYTHON: Condvar = Condvar::new();

/// Locks data that a panic cannot leave inconsistent.
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

/// Checked before each use of the device.
///
/// # Errors
/// `ForkedError` in the child of a fork.
pub(crate) fn check_process(py: Python<'_>) -> PyResult<()> {
    match is_owner() {
        true => Ok(()),
        false => Err(exceptions::forked(py, OWNER.load(Relaxed))),
    }
}

/// For `atexit`: from now on none of our threads enters Python.
pub(crate) fn end(py: Python<'_>) {
    py.detach(|| {
        let inside = lock(&THREADS_IN_PYTHON);
        ENDING.store(true, Relaxed);
        // Threads that have not left Python by then are abandoned.
        drop(THREAD_LEFT_PYTHON.wait_timeout_while(inside, EXIT_TIMEOUT, |inside| *inside > 0));
    });
}

/// The GIL, verified: also where a library has released it inside our call.
struct GilGuard<'py> {
    state: PyGILState_STATE,
    _python: Python<'py>,
}

impl<'py> GilGuard<'py> {
    fn new(python: Python<'py>) -> Self {
        // SAFETY: there is an interpreter, and it is not finalising: `python` proves it. The
        // call itself determines whether this thread holds the GIL.
        let state = unsafe { PyGILState_Ensure() };
        Self {
            state,
            _python: python,
        }
    }

    /// Whether the thread already held the GIL.
    fn was_held(&self) -> bool {
        matches!(self.state, PyGILState_STATE::PyGILState_LOCKED)
    }
}

impl Drop for GilGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: acquired by this thread, and released in the opposite order.
        unsafe { PyGILState_Release(self.state) };
    }
}

/// While it lives the interpreter does not exit, for at most [`EXIT_TIMEOUT`].
struct InterpreterGuard(());

impl InterpreterGuard {
    /// `None` if this thread may no longer enter Python.
    fn enter() -> Option<Self> {
        if !is_owner() {
            return None;
        }
        let mut inside = lock(&THREADS_IN_PYTHON);
        if ENDING.load(Relaxed) {
            return None;
        }
        *inside += 1;
        Some(Self(()))
    }
}

impl Drop for InterpreterGuard {
    fn drop(&mut self) {
        *lock(&THREADS_IN_PYTHON) -= 1;
        THREAD_LEFT_PYTHON.notify_all();
    }
}

/// Calls Python from one of our threads; does nothing if it may no longer enter Python.
pub(crate) fn with_python(work: impl FnOnce(Python<'_>)) {
    let Some(_inside) = InterpreterGuard::enter() else {
        return;
    };
    Python::try_attach(|py| {
        let _locked = GilGuard::new(py);
        work(py);
    });
}

/// A Python object owned by one of our threads.
pub(crate) struct SharedPyObject(Option<Py<PyAny>>);

impl SharedPyObject {
    pub(crate) fn new(kept: Py<PyAny>) -> Self {
        Self(Some(kept))
    }

    /// The object, until this is dropped.
    pub(crate) fn get(&self) -> Option<&Py<PyAny>> {
        self.0.as_ref()
    }
}

impl Drop for SharedPyObject {
    fn drop(&mut self) {
        // Without an interpreter the object is leaked.
        if let Some(kept) = self.0.take() {
            with_python(move |_| drop(kept));
        }
    }
}

/// Drops a value that needs no interpreter, in a thread that has none; leaks it if the process is
/// exiting or is a fork.
pub(crate) fn end_without_python<T: Send>(value: T) {
    let value = ManuallyDrop::new(value);
    if is_live() {
        drop(ManuallyDrop::into_inner(value));
    }
}

/// A device resource owned by a Python object; dropped without the GIL.
pub(crate) struct DetachedDrop<T: Send>(ManuallyDrop<T>);

impl<T: Send> DetachedDrop<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }

    /// The value; the caller is now responsible for dropping it.
    pub(crate) fn into_inner(self) -> T {
        let mut kept = ManuallyDrop::new(self);
        // SAFETY: `self` is not dropped, and nothing uses it afterwards.
        unsafe { ManuallyDrop::take(&mut kept.0) }
    }
}

impl<T: Send> Deref for DetachedDrop<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Send> Drop for DetachedDrop<T> {
    fn drop(&mut self) {
        let kept = &mut self.0;
        // SAFETY: nothing uses it after this, and it is dropped at most once. Without an
        // interpreter, which is finalising then, it is leaked.
        let mut end = || unsafe { ManuallyDrop::drop(kept) };
        // SAFETY: may be called at any time; it concerns the calling thread.
        if unsafe { PyGILState_GetThisThreadState() }.is_null() {
            // Python does not know this thread, so it holds no GIL to release.
            if is_live() {
                end();
            }
            return;
        }
        let Some(inside) = InterpreterGuard::enter() else {
            return;
        };
        Python::try_attach(|py| {
            let had_lock = GilGuard::new(py).was_held();
            // The interpreter's exit does not wait for the device.
            drop(inside);
            // The GIL cannot be released twice.
            if had_lock { py.detach(end) } else { end() }
        });
    }
}
