//! Memory that an allocator of the program's own gives.
//!
//! Invariants: what an allocator gave it is given back once, behind the last work with it,
//! unless it lies over what is in use. No lock is held while it is called.
//!
//! Elsewhere: how memory is lent in the order of a stream (`fercuda_cuda`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use fercuda_cuda::{DeviceAddr, DeviceBuffer, Stream};

use crate::error::{Error, Result};
use crate::jobs::said;
use crate::machine::{Machine, lock};

/// Memory of an allocator begins at a multiple of this, as the driver's does.
const ALIGNMENT_BYTES: u64 = 256;

/// Gives a session the memory of its buffers of [`Regime::Callbacks`](crate::Regime), and
/// takes it back: from [`Runtime::session_with_allocator`](crate::Runtime) on, until the
/// session has ended and its last memory was taken back.
///
/// Calls come from several threads, also at the same time. In them the driver and sessions
/// may be used, its own too; but [`Allocator::allocate`] is not asked within itself.
///
/// # Safety
/// Work that is queued in `stream` after [`Allocator::allocate`] has returned an address can
/// use `bytes` from there on, and nobody else does, until [`Allocator::free`] is called with
/// it and the work is done that `stream` had then.
#[expect(unsafe_code, reason = "only who gives memory knows that it is there")]
pub unsafe trait Allocator: Send + Sync {
    /// Memory of so many bytes, at least 1, at a multiple of `alignment`, a power of two.
    /// `stream` is the session's. What is taken from the driver meanwhile is charged to the
    /// session's tenant, until the driver has it back.
    ///
    /// # Errors
    /// Why there is none, which [`Error::Allocator`] says; a panic does the same.
    fn allocate(
        &self,
        bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> std::result::Result<DeviceAddr, Box<dyn std::error::Error + Send + Sync>>;

    /// Takes memory back that [`Allocator::allocate`] gave, once: all work with it is before
    /// what `stream` is given from now on, but the device need not have done it. With no
    /// stream the context has failed or was reset, and nothing runs there: what the driver
    /// gave is given back to it without one. A panic ends there.
    fn free(&self, address: DeviceAddr, bytes: u64, stream: Option<&Stream>);
}

/// The ranges that the allocators of a machine's sessions have given, by where they begin,
/// with where they end.
pub(crate) type Given = Mutex<BTreeMap<u64, u64>>;

/// A session's allocator.
pub(crate) struct Lender {
    session: String,
    machine: Arc<Machine>,
    allocator: Arc<dyn Allocator>,
}

impl fmt::Debug for Lender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lender").finish_non_exhaustive()
    }
}

thread_local! {
    /// The allocators that the calling thread is asking, by their addresses.
    static ASKED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl Lender {
    pub(crate) fn new(
        session: &str,
        machine: &Arc<Machine>,
        allocator: Arc<dyn Allocator>,
    ) -> Arc<Self> {
        Arc::new(Self {
            session: session.to_owned(),
            machine: machine.clone(),
            allocator,
        })
    }

    /// Memory for so many bytes, at least 1, in the order of `stream`.
    ///
    /// # Errors
    /// [`Error::Allocator`]; [`Error::Cuda`] while the stream is captured.
    #[expect(unsafe_code, reason = "an allocator is one by an unsafe promise")]
    pub(crate) fn lend(self: &Arc<Self>, stream: &Stream, bytes: u64) -> Result<DeviceBuffer<u8>> {
        if stream.is_capturing() {
            let error = fercuda_cuda::Error::Capturing {
                operation: "ask an allocator",
                advice: "allocate before the capture begins",
            };
            return Err(error.into());
        }
        let address = self.ask(stream, bytes)?;
        let lender = self.clone();
        // SAFETY: an allocator's promise, whose address was looked at; the range is within
        // the address space, and is the buffer's alone as long as it is among those given.
        let lent = unsafe {
            DeviceBuffer::lent(stream, address, bytes as usize, move |stream| {
                lender.end(address, bytes, stream);
            })
        };
        Ok(lent?)
    }

    /// An address that nothing is wrong with, among those given.
    fn ask(&self, stream: &Stream, bytes: u64) -> Result<DeviceAddr> {
        let refused = |why: String, advice: &'static str| Error::Allocator {
            session: self.session.clone(),
            asked_bytes: bytes,
            why,
            advice,
        };
        let _asking = Asking::of(self).ok_or_else(|| {
            refused(
                "it was asked by itself".into(),
                "memory of another regime, or of another session, in the allocator",
            )
        })?;
        let ask = || self.allocator.allocate(bytes, ALIGNMENT_BYTES, stream);
        let answer = catch_unwind(AssertUnwindSafe(ask));
        let address = match answer {
            Ok(Ok(address)) => address,
            Ok(Err(why)) => return Err(refused(why.to_string(), "to free some of its memory")),
            Err(panic) => {
                let why = format!("it panicked: {}", said(panic.as_ref()));
                // What was thrown may throw again when it is dropped.
                std::mem::forget(panic);
                return Err(refused(why, "to have it return an error"));
            }
        };
        if address.0 == 0 {
            let advice = "to have it return an error where it has no memory";
            return Err(refused("it gave address 0".into(), advice));
        }
        let end = address.0.checked_add(bytes);
        let given = &self.machine.given;
        if let Some((from, until)) = add(given, address.0, end.unwrap_or(u64::MAX)) {
            let why = format!(
                "it gave {address}, and from {from:#x} to {until:#x} memory of it is in use; it was not given back"
            );
            let advice = "to have it give what it has taken back, or never gave";
            return Err(refused(why, advice));
        }
        if end.is_none() || !address.0.is_multiple_of(ALIGNMENT_BYTES) {
            self.end(address, bytes, Some(stream));
            let why = format!(
                "it gave {address}, which is no multiple of {ALIGNMENT_BYTES} with as many bytes behind it; it was given back"
            );
            return Err(refused(why, "to have it give addresses that are"));
        }
        Ok(address)
    }

    fn end(&self, address: DeviceAddr, bytes: u64, stream: Option<&Stream>) {
        // Before, since from then on it may be given again.
        lock(&self.machine.given).remove(&address.0);
        let free = || self.allocator.free(address, bytes, stream);
        let taken = catch_unwind(AssertUnwindSafe(free));
        // What was thrown may throw again when it is dropped.
        std::mem::forget(taken);
    }
}

/// While this is there the calling thread asks an allocator.
struct Asking;

impl Asking {
    /// None if it does already.
    fn of(lender: &Lender) -> Option<Self> {
        let this = std::ptr::from_ref(lender).addr();
        ASKED.with_borrow_mut(|asked| {
            let is_new = !asked.contains(&this);
            is_new.then(|| asked.push(this))
        })?;
        Some(Self)
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        ASKED.with_borrow_mut(Vec::pop);
    }
}

/// Adds a range, or says which one there is that it would lie over.
pub(crate) fn add(given: &Given, from: u64, until: u64) -> Option<(u64, u64)> {
    let mut given = lock(given);
    let below = given.range(..until).next_back();
    let over = below.filter(|(_, end)| **end > from);
    let over = over.map(|(from, until)| (*from, *until));
    if over.is_none() {
        given.insert(from, until);
    }
    over
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_lies_over_no_other() {
        let given = Given::default();
        let mut random = fastrand::Rng::new();
        let seed = random.get_seed();
        let mut kept: Vec<(u64, u64)> = Vec::new();
        for _ in 0..2000 {
            let from = random.u64(1..300);
            let until = from + random.u64(1..20);
            let over = add(&given, from, until);
            let is_over = |it: &&(u64, u64)| it.0 < until && from < it.1;
            match over {
                Some(other) => assert!(kept.iter().filter(is_over).any(|it| *it == other)),
                None => {
                    assert!(!kept.iter().any(|it| is_over(&it)), "seed {seed}");
                    kept.push((from, until));
                }
            }
            if kept.len() > 8 {
                let (from, _) = kept.swap_remove(random.usize(0..kept.len()));
                lock(&given).remove(&from);
            }
        }
    }
}
