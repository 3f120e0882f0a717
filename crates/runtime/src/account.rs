//! What a session holds of its device, and may.
//!
//! Invariant: what is charged together is within the limit, and is counted until its
//! [`Charge`] is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::error::{Error, Result};

/// See the module.
#[derive(Debug)]
pub(crate) struct Account {
    session: String,
    limit_bytes: Option<u64>,
    held_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    /// Of those held, the ones that no handle leads to any more.
    freed_bytes: AtomicU64,
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Arc<Account>,
    bytes: u64,
    is_freed: AtomicBool,
}

impl Charge {
    /// The last handle has gone. It is counted on, as somebody else may have the memory,
    /// or the driver not yet.
    pub(crate) fn note_freed(&self) {
        if !self.is_freed.swap(true, Relaxed) {
            self.account.freed_bytes.fetch_add(self.bytes, Relaxed);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if *self.is_freed.get_mut() {
            self.account.freed_bytes.fetch_sub(self.bytes, Relaxed);
        }
        self.account.held_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

impl Account {
    pub(crate) fn new(session: &str, limit_bytes: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            session: session.to_owned(),
            limit_bytes,
            held_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            freed_bytes: AtomicU64::new(0),
        })
    }

    /// Counts bytes that are about to be taken.
    ///
    /// # Errors
    /// [`Error::Limit`].
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge> {
        let limit_bytes = self.limit_bytes.unwrap_or(u64::MAX);
        let within = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= limit_bytes);
        let held = self.held_bytes.fetch_update(Relaxed, Relaxed, within);
        held.map_err(|held_bytes| Error::Limit {
            session: self.session.clone(),
            limit_bytes,
            held_bytes,
            freed_bytes: self.freed_bytes.load(Relaxed),
            asked_bytes: bytes,
        })?;
        Ok(Charge {
            account: self.clone(),
            bytes,
            is_freed: AtomicBool::new(false),
        })
    }

    /// What was charged has been got.
    pub(crate) fn lift_peak(&self) {
        self.peak_bytes.fetch_max(self.held_bytes(), Relaxed);
    }

    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Relaxed)
    }

    pub(crate) fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Relaxed)
    }
}
