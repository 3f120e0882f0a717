//! Allocators of the program, for sessions' buffers.
//!
//! Invariant: an allocator's functions are called without a table's lock, and `ended` once, when
//! neither of the others will be called any more; not at all if the session was not opened.

use core::ffi::{c_char, c_void};
use std::sync::Arc;

use fercuda_cuda::{DeviceAddr, Stream};
use fercuda_runtime::MemoryAllocator;

use super::buffers::{OnceDeleter, fer_deleter};
use super::runtimes::open_session;
use super::types::{fer_runtime, fer_session};
use crate::pointers::{OutPointer, read_pointer, text};
use crate::status::{CallFailure, Result, catch_panics, fer_status};

/// Allocates device memory: returns the address of `bytes`, at least 1, a multiple of `alignment`;
/// or 0 if there is none. From then on the session has exclusive use of it, by work that is queued
/// in `stream`, a CUstream, the session's. It does not unwind.
pub type fer_allocator_allocate = Option<
    unsafe extern "C" fn(user: *mut c_void, bytes: u64, alignment: u64, stream: *mut c_void) -> u64,
>;

/// Frees memory, once. All work with it precedes what is queued in `stream` from now on, but need
/// not be complete. `stream` is NULL if the context has failed or was reset: nothing runs there,
/// and memory of the driver is freed without a stream (cuMemFree), now or once the driver accepts
/// it again. It does not unwind.
pub type fer_allocator_free =
    Option<unsafe extern "C" fn(user: *mut c_void, address: u64, bytes: u64, stream: *mut c_void)>;

/// Allocator of a session's buffers of FER_REGIME_CALLBACKS. Its functions are called from any
/// thread, also concurrently, and may call functions of this library; but `allocate` is not called
/// recursively (FER_ERROR_ALLOCATOR).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fer_allocator {
    /// Called by fer_alloc_buffer.
    pub allocate: fer_allocator_allocate,
    /// Called when the last buffer in the memory is freed, or torn down with its session.
    pub free: fer_allocator_free,
    /// Called once with `user`, when the session is closed, all memory was freed, and neither of
    /// the others will be called any more. May be NULL.
    pub ended: fer_deleter,
    /// Passed to each call.
    pub user: *mut c_void,
}

/// The allocator as the runtime calls it.
struct ProgramAllocator {
    allocate: unsafe extern "C" fn(*mut c_void, u64, u64, *mut c_void) -> u64,
    free: unsafe extern "C" fn(*mut c_void, u64, u64, *mut c_void),
    user: *mut c_void,
    ended: Arc<OnceDeleter>,
}

// SAFETY: `user` is passed only to its functions, which may be called from any thread, by their
// contract.
unsafe impl Send for ProgramAllocator {}
// SAFETY: as above; also concurrently.
unsafe impl Sync for ProgramAllocator {}

impl Drop for ProgramAllocator {
    fn drop(&mut self) {
        self.ended.end();
    }
}

// SAFETY: the contract of the functions, which the caller has promised.
unsafe impl MemoryAllocator for ProgramAllocator {
    fn allocate(
        &self,
        bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> core::result::Result<DeviceAddr, Box<dyn std::error::Error + Send + Sync>> {
        let stream = stream.raw().0.cast();
        // SAFETY: the caller's function with its `user`; the stream is alive during the call.
        match unsafe { (self.allocate)(self.user, bytes, alignment, stream) } {
            0 => Err("it has none: it returned 0".into()),
            address => Ok(DeviceAddr(address)),
        }
    }

    fn free(&self, address: DeviceAddr, bytes: u64, stream: Option<&Stream>) {
        let stream = stream.map_or(core::ptr::null_mut(), |it| it.raw().0.cast());
        // SAFETY: as above; once for each address that it returned.
        unsafe { (self.free)(self.user, address.0, bytes, stream) }
    }
}

impl ProgramAllocator {
    fn read(it: &fer_allocator) -> Result<Self> {
        let absent = |field: &str| CallFailure::argument(field, "it is NULL\ntry: a function");
        Ok(Self {
            allocate: it.allocate.ok_or_else(|| absent("allocator->allocate"))?,
            free: it.free.ok_or_else(|| absent("allocator->free"))?,
            user: it.user,
            ended: Arc::new(OnceDeleter::new(it.ended, it.user)),
        })
    }
}

/// As fer_session_open, with an allocator for buffers of FER_REGIME_CALLBACKS, which is copied. If
/// this fails none of its functions is called.
///
/// Its memory counts against `limit_bytes` as long as a buffer has it. An address that is 0, not
/// aligned, or in use already is FER_ERROR_ALLOCATOR; a misaligned one is freed before that, one in
/// use is not. Driver memory that it allocates during a call is charged to the session in the
/// ledger.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_session_open_with_allocator(
    runtime: fer_runtime,
    name: *const c_char,
    limit_bytes: u64,
    allocator: *const fer_allocator,
    session: *mut fer_session,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (name, allocator, place) = unsafe {
            (
                text("name", name)?,
                read_pointer("allocator", allocator)?,
                OutPointer::new("session", session)?,
            )
        };
        let callbacks = ProgramAllocator::read(&allocator)?;
        let ended = callbacks.ended.clone();
        let allocator = Some(Arc::new(callbacks) as Arc<dyn MemoryAllocator>);
        place.put(open_session(runtime, name, limit_bytes, allocator)?);
        ended.arrive();
        Ok(())
    })
}
