//! Memory from an allocator that the program provides.
//!
//! Invariants: memory from an allocator is freed once, behind the last work with it, unless it
//! overlaps memory in use. No lock is held while an allocator is called.
//!
//! Elsewhere: stream-ordered lending of memory (`fercuda_cuda`).

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fercuda_cuda::{DeviceAddr, DeviceBuffer, Stream};

use crate::error::{Error, Result};
use crate::jobs::panic_message;
use crate::lent_ranges::add;
use crate::lock::lock;
use crate::shared_device::SharedDevice;

/// Required alignment of an allocator's memory; the driver's own alignment.
const ALIGNMENT_BYTES: u64 = 256;

/// Allocator of the buffers of [`Regime::Callbacks`](crate::Regime) of a session, from
/// [`Runtime::session_with_allocator`](crate::Runtime) on, until the session has ended and its
/// last memory was freed.
///
/// Calls come from several threads, also concurrently. They may use the driver and sessions, the
/// allocator's own too; but [`MemoryAllocator::allocate`] is not called recursively.
///
/// # Safety
/// Work that is queued in `stream` after [`MemoryAllocator::allocate`] has returned an address has
/// exclusive use of `bytes` from there on, until [`MemoryAllocator::free`] is called with it and
/// the work that `stream` had then is done.
#[expect(
    unsafe_code,
    reason = "only the allocator knows that its memory exists"
)]
pub unsafe trait MemoryAllocator: Send + Sync {
    /// Allocates at least 1 byte, at a multiple of `alignment`, a power of two. `stream` is the
    /// session's. Driver memory allocated meanwhile is charged to the session's tenant until the
    /// driver has it back.
    ///
    /// # Errors
    /// The reason, which [`Error::Allocator`] reports; a panic is reported the same way.
    fn allocate(
        &self,
        bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> std::result::Result<DeviceAddr, Box<dyn std::error::Error + Send + Sync>>;

    /// Frees memory from [`MemoryAllocator::allocate`], once: all work with it precedes whatever is
    /// queued in `stream` from now on, but need not be complete. Without a stream the context has
    /// failed or was reset, and nothing runs there: memory of the driver is freed without a stream.
    /// A panic is caught.
    fn free(&self, address: DeviceAddr, bytes: u64, stream: Option<&Stream>);
}

/// A session's allocator.
pub(crate) struct SessionAllocator {
    session: String,
    device: Arc<SharedDevice>,
    allocator: Arc<dyn MemoryAllocator>,
}

impl fmt::Debug for SessionAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionAllocator").finish_non_exhaustive()
    }
}

thread_local! {
    /// The allocators that the calling thread is calling, by their addresses.
    static CALLING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl SessionAllocator {
    pub(crate) fn new(
        session: &str,
        device: &Arc<SharedDevice>,
        allocator: Arc<dyn MemoryAllocator>,
    ) -> Arc<Self> {
        Arc::new(Self {
            session: session.to_owned(),
            device: device.clone(),
            allocator,
        })
    }

    /// Allocates so many bytes, at least 1, ordered in `stream`.
    ///
    /// # Errors
    /// [`Error::Allocator`]; [`Error::Cuda`] while the stream is captured.
    #[expect(unsafe_code, reason = "implementing an allocator is an unsafe promise")]
    pub(crate) fn lend(self: &Arc<Self>, stream: &Stream, bytes: u64) -> Result<DeviceBuffer<u8>> {
        if stream.is_capturing() {
            let error = fercuda_cuda::Error::Capturing {
                operation: "ask an allocator",
                advice: "allocate before the capture begins",
            };
            return Err(error.into());
        }
        let address = self.ask(stream, bytes)?;
        let allocator = self.clone();
        // SAFETY: the allocator's promise, and `ask` has validated the address; the range is within
        // the address space, and exclusive to the buffer as long as it is among the lent ones.
        let lent = unsafe {
            DeviceBuffer::lent(stream, address, bytes as usize, move |stream| {
                allocator.end(address, bytes, stream);
            })
        };
        Ok(lent?)
    }

    /// Returns a validated address, which is now among the lent ones.
    fn ask(&self, stream: &Stream, bytes: u64) -> Result<DeviceAddr> {
        let refused = |why: String, advice: &'static str| Error::Allocator {
            session: self.session.clone(),
            asked_bytes: bytes,
            why,
            advice,
        };
        let _call = AllocatorCall::of(self).ok_or_else(|| {
            refused(
                "it was called recursively".into(),
                "to use memory of another regime, or of another session, in the allocator",
            )
        })?;
        let ask = || self.allocator.allocate(bytes, ALIGNMENT_BYTES, stream);
        let answer = catch_unwind(AssertUnwindSafe(ask));
        let address = match answer {
            Ok(Ok(address)) => address,
            Ok(Err(why)) => return Err(refused(why.to_string(), "to free some of its memory")),
            Err(panic) => {
                let why = format!("it panicked: {}", panic_message(panic.as_ref()));
                // A payload's destructor may panic too.
                std::mem::forget(panic);
                return Err(refused(why, "to have it return an error"));
            }
        };
        if address.0 == 0 {
            let advice = "to return an error from it when it has no memory";
            return Err(refused("it returned address 0".into(), advice));
        }
        let end = address.0.checked_add(bytes);
        let lent_ranges = &self.device.lent_ranges;
        if let Some((from, until)) = add(lent_ranges, address.0, end.unwrap_or(u64::MAX)) {
            let why = format!(
                "it returned {address}, which overlaps memory in use from {from:#x} to {until:#x}; it was not freed"
            );
            let advice = "to return only memory that is free";
            return Err(refused(why, advice));
        }
        if end.is_none() || !address.0.is_multiple_of(ALIGNMENT_BYTES) {
            self.end(address, bytes, Some(stream));
            let why = format!(
                "it returned {address}, which is no multiple of {ALIGNMENT_BYTES}, or too near the end of the address space; it was freed"
            );
            return Err(refused(why, "to return aligned addresses"));
        }
        Ok(address)
    }

    fn end(&self, address: DeviceAddr, bytes: u64, stream: Option<&Stream>) {
        // Before the call, since from then on the allocator may return the range again.
        lock(&self.device.lent_ranges).remove(&address.0);
        let free = || self.allocator.free(address, bytes, stream);
        let taken = catch_unwind(AssertUnwindSafe(free));
        // A payload's destructor may panic too.
        std::mem::forget(taken);
    }
}

/// Guard while the calling thread calls an allocator.
struct AllocatorCall;

impl AllocatorCall {
    /// Returns `None` for a recursive call.
    fn of(allocator: &SessionAllocator) -> Option<Self> {
        let this = std::ptr::from_ref(allocator).addr();
        CALLING.with_borrow_mut(|calling| {
            let is_new = !calling.contains(&this);
            is_new.then(|| calling.push(this))
        })?;
        Some(Self)
    }
}

impl Drop for AllocatorCall {
    fn drop(&mut self) {
        CALLING.with_borrow_mut(Vec::pop);
    }
}
