//! Accounting of the device memory that a session holds, and its limit.
//!
//! It is separate from the account of the session's tenant, which the pool charges: it also has
//! memory that no pool made, exists where nothing is governed, and sessions of one tenant have one
//! each.
//!
//! Invariant: the sum of all charges is within the limit. A charge counts until its
//! [`SessionCharge`] is dropped.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use fercuda_pool::{ChargeRefused, MemoryAccount};

use crate::human_bytes::HumanBytes;

/// An allocation that would exceed a session's limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "session {session:?} is limited to {}, holds {}{}, and {} were requested\ntry: {}free some, or a larger limit",
    HumanBytes(*limit_bytes), HumanBytes(*held_bytes), FreedNote(*freed_bytes), HumanBytes(*asked_bytes),
    if *freed_bytes == 0 { "" } else { "release graphs that have it, stop dispatchers, " }
)]
pub struct LimitExceeded {
    /// The session's name.
    pub session: String,
    /// Its limit.
    pub limit_bytes: u64,
    /// Bytes it holds.
    pub held_bytes: u64,
    /// The part of these that was freed and is still held: by graphs, by other owners, or in a
    /// deferred free until no resident kernel runs on the device.
    pub freed_bytes: u64,
    /// Bytes that were requested.
    pub asked_bytes: u64,
}

/// The part of the held bytes that was freed.
struct FreedNote(u64);

impl fmt::Display for FreedNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            bytes => write!(f, " ({} of it freed, but still in use)", HumanBytes(bytes)),
        }
    }
}

/// Account of one session. See the module.
#[derive(Debug)]
pub(crate) struct SessionAccount {
    session: String,
    memory: MemoryAccount,
    peak_bytes: AtomicU64,
    /// The part of the charged bytes that no handle refers to any more.
    freed_bytes: AtomicU64,
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub(crate) struct SessionCharge {
    account: Arc<SessionAccount>,
    bytes: u64,
    is_freed: AtomicBool,
}

impl SessionCharge {
    /// Records that the last handle is gone. The bytes still count, because another owner or the
    /// driver may still have the memory.
    pub(crate) fn note_freed(&self) {
        if !self.is_freed.swap(true, Relaxed) {
            self.account.freed_bytes.fetch_add(self.bytes, Relaxed);
        }
    }
}

impl Drop for SessionCharge {
    fn drop(&mut self) {
        if *self.is_freed.get_mut() {
            self.account.freed_bytes.fetch_sub(self.bytes, Relaxed);
        }
        self.account.memory.refund(self.bytes);
    }
}

impl SessionAccount {
    pub(crate) fn new(session: &str, limit_bytes: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            session: session.to_owned(),
            memory: MemoryAccount::new(limit_bytes.unwrap_or(u64::MAX)),
            peak_bytes: AtomicU64::new(0),
            freed_bytes: AtomicU64::new(0),
        })
    }

    /// Charges bytes before they are allocated.
    ///
    /// # Errors
    /// [`LimitExceeded`].
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> Result<SessionCharge, LimitExceeded> {
        let exceeded = |refused: ChargeRefused| LimitExceeded {
            session: self.session.clone(),
            limit_bytes: refused.limit_bytes,
            held_bytes: refused.used_bytes,
            freed_bytes: self.freed_bytes.load(Relaxed),
            asked_bytes: bytes,
        };
        self.memory.charge(bytes).map_err(exceeded)?;
        Ok(SessionCharge {
            account: self.clone(),
            bytes,
            is_freed: AtomicBool::new(false),
        })
    }

    /// Updates the peak after an allocation has succeeded.
    pub(crate) fn update_peak(&self) {
        self.peak_bytes.fetch_max(self.held_bytes(), Relaxed);
    }

    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        let limit_bytes = self.memory.limit_bytes();
        (limit_bytes < u64::MAX).then_some(limit_bytes)
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.memory.used_bytes()
    }

    pub(crate) fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Relaxed)
    }
}
