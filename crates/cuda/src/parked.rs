//! How much device memory was let go of that the driver does not have back yet.
//!
//! Invariant: bytes are counted from the drop of their last owner until the driver was
//! told. Elsewhere: why that may be later (`callback`).

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::context::Context;
use crate::uses::lock;

/// By contexts.
static PARKED: Mutex<BTreeMap<usize, u64>> = Mutex::new(BTreeMap::new());

/// Bytes that are counted until this is dropped ([`Context::park`]).
#[derive(Debug)]
#[must_use]
pub struct ParkedBytes {
    place: usize,
    bytes: u64,
}

impl ParkedBytes {
    pub(crate) fn count(context: &Context, bytes: u64) -> Self {
        let place = context.place();
        *lock(&PARKED).entry(place).or_default() += bytes;
        Self { place, bytes }
    }
}

impl Drop for ParkedBytes {
    fn drop(&mut self) {
        if let Some(bytes) = lock(&PARKED).get_mut(&self.place) {
            *bytes -= self.bytes;
        }
    }
}

/// Those of a context.
pub(crate) fn bytes_in(place: usize) -> u64 {
    lock(&PARKED).get(&place).copied().unwrap_or(0)
}
