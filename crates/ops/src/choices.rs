//! Measured choices of kernels, kept in memory and in the user's cache on disk.
//!
//! They are found by op, layouts, device, driver, library and the texts of the kernels. Invariant:
//! a choice decides only among kernels that support a request; one that is wrong or lost costs
//! time, never a result. Elsewhere: measuring (`tune`).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use fercuda_cache::{CacheKey, CacheLookup, ProgramCache};

/// Choices that were made, in memory and in the user's cache on disk.
#[derive(Debug)]
pub(crate) struct KeptChoices {
    known: Mutex<HashMap<String, String>>,
    disk: Option<ProgramCache>,
}

impl KeptChoices {
    pub(crate) fn of_user() -> Self {
        Self {
            known: Mutex::default(),
            disk: ProgramCache::of_user_for("choice"),
        }
    }

    pub(crate) fn in_memory() -> Self {
        Self {
            known: Mutex::default(),
            disk: None,
        }
    }

    fn disk_key(request: &str) -> CacheKey {
        let mut key = CacheKey::new();
        key.add("request", request);
        key
    }

    /// The kernel that was the fastest for a request. A file that cannot be read is none.
    pub(crate) fn get(&self, request: &str) -> Option<String> {
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(request) {
            return Some(known.clone());
        }
        let disk = self.disk.as_ref()?;
        let CacheLookup::Found(entry) = disk.look_up(&Self::disk_key(request)) else {
            return None;
        };
        let kernel = String::from_utf8(entry.code).ok()?;
        lock().insert(request.to_owned(), kernel.clone());
        Some(kernel)
    }

    /// Keeps a choice; where the disk refuses, in memory alone.
    pub(crate) fn keep(&self, request: String, kernel: &str) {
        if let Some(disk) = &self.disk {
            let key = Self::disk_key(&request);
            // The choice is measured again in the next process.
            drop(disk.store(&key, kernel.as_bytes(), "", &[]));
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(request, kernel.to_owned());
    }
}
