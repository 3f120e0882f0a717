//! Deferred frees of device memory, counted in bytes.
//!
//! Invariant: bytes are counted from the drop of their last owner until the driver's free
//! function was called. Elsewhere: why a free may be deferred (`callback`).

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::context::Context;
use crate::uses::lock;

/// Bytes by context ([`Context::key`]).
static DEFERRED_BYTES: Mutex<BTreeMap<usize, u64>> = Mutex::new(BTreeMap::new());

/// Bytes that are counted as a deferred free until this is dropped
/// ([`Context::count_deferred_free`]).
#[derive(Debug)]
#[must_use]
pub struct DeferredFrees {
    context: usize,
    bytes: u64,
}

impl DeferredFrees {
    pub(crate) fn count(context: &Context, bytes: u64) -> Self {
        let context = context.key();
        *lock(&DEFERRED_BYTES).entry(context).or_default() += bytes;
        Self { context, bytes }
    }
}

impl Drop for DeferredFrees {
    fn drop(&mut self) {
        if let Some(bytes) = lock(&DEFERRED_BYTES).get_mut(&self.context) {
            *bytes -= self.bytes;
        }
    }
}

/// The deferred bytes of a context.
pub(crate) fn bytes_in(context: usize) -> u64 {
    lock(&DEFERRED_BYTES).get(&context).copied().unwrap_or(0)
}
