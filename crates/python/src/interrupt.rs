//! Waits for the device that a signal, such as Ctrl-C, interrupts.
//!
//! A driver's wait cannot be cancelled, and Python handles signals only in its main thread. So a
//! wait of that thread for unfinished work is made by a helper thread, while the main thread waits
//! for the helper in slices, without the GIL, and handles signals between them. An interrupted wait
//! goes on in its helper, which then drops the result.
//!
//! Invariant: a thread that a teardown may be waiting for makes its waits itself.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use fercuda_runtime::{Error, Result, Session};
use pyo3::prelude::*;

use crate::{alive, errors, exceptions};

/// The longest time for which a signal is not handled.
const SLICE: Duration = Duration::from_millis(50);

/// Whether the calling thread handles signals.
fn handles_signals(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    threading.call_method0("get_ident")?.eq(main)
}

/// Starts `work` in a helper thread; its result arrives in the channel.
///
/// # Errors
/// [`Error::NoThread`].
fn start<R: Send + 'static>(
    session: &Session,
    work: impl FnOnce(&Session) -> Result<R> + Send + 'static,
) -> Result<Receiver<Result<R>>> {
    let session = session.clone();
    let (sender, receiver) = channel();
    let helper = Builder::new().name("fercuda wait".to_owned());
    let spawned = helper.spawn(move || {
        let done = work(&session);
        // Without a receiver the wait was interrupted.
        if let Err(unsent) = sender.send(done) {
            alive::end_without_python(unsent);
        }
        alive::end_without_python(session);
    });
    match spawned {
        Ok(_) => Ok(receiver),
        Err(error) => Err(Error::NoThread {
            why: error.to_string(),
        }),
    }
}

/// Only a panic of the work ends the helper without a result.
fn panicked(py: Python<'_>) -> PyErr {
    exceptions::plain(py, "FercudaError", "a wait for the device panicked")
}

/// The result, if it arrives within `limit`; without a limit, when it arrives. `None` at the limit.
///
/// # Errors
/// The error of the work; the exception of a signal's handler.
fn receive<R: Send>(
    py: Python<'_>,
    mut receiver: Receiver<Result<R>>,
    limit: Option<Duration>,
) -> PyResult<Option<R>> {
    let begun = Instant::now();
    loop {
        let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        let results = &mut receiver;
        match py.detach(move || results.recv_timeout(slice)) {
            Ok(done) => return done.map(Some).map_err(|error| errors::raise(py, &error)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(panicked(py)),
        }
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
    }
}

/// Runs work that waits for the session's earlier work, without the GIL.
///
/// # Errors
/// `ForkedError`; the error of the work; `KeyboardInterrupt` and other exceptions of signals'
/// handlers, and the work goes on in another thread.
pub(crate) fn wait<R: Send + 'static>(
    py: Python<'_>,
    session: &Session,
    work: impl FnOnce(&Session) -> Result<R> + Send + 'static,
) -> PyResult<R> {
    alive::check_process(py)?;
    // Without unfinished work there is nothing to interrupt.
    if !py.detach(|| session.would_wait()) || !handles_signals(py)? {
        return errors::run(py, || work(session));
    }
    let receiver = py.detach(|| start(session, work));
    let receiver = receiver.map_err(|error| errors::raise(py, &error))?;
    receive(py, receiver, None)?.ok_or_else(|| panicked(py))
}

/// Runs work that waits, for at most `limit`; returns whether it has finished. It goes on in
/// another thread otherwise.
///
/// # Errors
/// As for [`wait`].
pub(crate) fn wait_at_most(
    py: Python<'_>,
    session: &Session,
    limit: Duration,
    work: impl FnOnce(&Session) -> Result<()> + Send + 'static,
) -> PyResult<bool> {
    alive::check_process(py)?;
    if !py.detach(|| session.would_wait()) {
        return errors::run(py, || work(session)).map(|()| true);
    }
    let receiver = py.detach(|| start(session, work));
    let receiver = receiver.map_err(|error| errors::raise(py, &error))?;
    Ok(receive(py, receiver, Some(limit))?.is_some())
}
