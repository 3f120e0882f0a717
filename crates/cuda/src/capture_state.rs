//! State of a capture in progress, shared by the streams that take part.
//!
//! Knows of streams only that it holds them: `S` is a handle that keeps one alive.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::callback::PanicMessage;
use crate::error::{Error, Result};
use crate::keep_alive::{KeepAlive, KeptResources};
use crate::lock::lock;

pub(crate) const CAPTURE_ENDING: Error = Error::Capturing {
    operation: "queue work",
    advice: "wait until the thread that ends the capture has done so",
};

/// A capture in progress.
#[derive(Debug)]
pub(crate) struct CaptureState<S> {
    /// Set when no more streams may join.
    ended: AtomicBool,
    over: AtomicBool,
    kept: Mutex<KeptResources>,
    /// Resources that could not be destroyed while the capture ran, and are no part of it.
    until_over: Mutex<Vec<Box<dyn KeepAlive>>>,
    streams: Mutex<Vec<S>>,
}

impl<S> Default for CaptureState<S> {
    fn default() -> Self {
        Self {
            ended: AtomicBool::default(),
            over: AtomicBool::default(),
            kept: Mutex::default(),
            until_over: Mutex::default(),
            streams: Mutex::default(),
        }
    }
}

impl<S> CaptureState<S> {
    /// Whether the driver has ended it too. Until then, waiting for an event recorded in it makes
    /// other streams join.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Keeps `thing`, of which `key` is the address, once; returns whether it is new.
    pub(crate) fn keep(&self, key: usize, thing: impl Send + Sync + 'static) -> bool {
        lock(&self.kept).add(key, thing)
    }

    /// Keeps a resource that has no address of its own.
    pub(crate) fn keep_anonymous(&self, thing: impl Send + Sync + 'static) {
        lock(&self.kept).add_anonymous(thing);
    }

    /// Keeps a resource that the graph does not use until the streams are not captured any more.
    pub(crate) fn keep_until_over(&self, thing: impl Send + Sync + 'static) {
        let mut until_over = lock(&self.until_over);
        // The thread that ends the capture empties the list once, after setting `over`.
        if !self.is_over() {
            until_over.push(Box::new(thing));
        } else {
            drop(until_over);
            drop(thing);
        }
    }

    /// Adds a stream to the driver's capture by `join` and to the list, unless the capture is
    /// ending.
    ///
    /// # Errors
    /// [`Error::Capturing`]; those of `join`.
    pub(crate) fn join(&self, stream: &S, join: impl FnOnce() -> Result<()>) -> Result<()>
    where
        S: Clone,
    {
        // Held over both, so that the thread that ends the capture waits for this.
        let mut streams = lock(&self.streams);
        if self.ended.load(Ordering::Acquire) {
            return Err(CAPTURE_ENDING);
        }
        join()?;
        streams.push(stream.clone());
        Ok(())
    }

    /// How many streams have joined.
    pub(crate) fn stream_count(&self) -> usize {
        lock(&self.streams).len()
    }

    /// The message of the first callback of its work that panicked.
    pub(crate) fn panicked(&self) -> PanicMessage {
        lock(&self.kept).panicked().clone()
    }

    /// Lets no more streams join, and returns those that take part.
    pub(crate) fn close(&self) -> Vec<S> {
        let mut streams = lock(&self.streams);
        self.ended.store(true, Ordering::Release);
        std::mem::take(&mut *streams)
    }

    /// Notes that the driver has ended it too.
    pub(crate) fn mark_over(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Drops what was kept until now only because of the capture.
    pub(crate) fn release_until_over(&self) {
        let until_over = std::mem::take(&mut *lock(&self.until_over));
        drop(until_over);
    }

    /// Takes the resources kept for the graph.
    pub(crate) fn take_kept(&self) -> KeptResources {
        std::mem::take(&mut *lock(&self.kept))
    }
}
