//! Allocators of the program's own, for sessions' buffers.
//!
//! Invariant: an allocator's functions are called without a lock of a table, and `ended`
//! once, when neither of the others will be any more; not at all if the session was not
//! opened.

use core::ffi::{c_char, c_void};
use std::sync::Arc;

use fercuda_cuda::{DeviceAddr, Stream};
use fercuda_runtime::Allocator;

use super::buffers::{Deleter, fer_deleter};
use super::runtimes::open_session;
use super::types::{fer_runtime, fer_session};
use crate::pointers::{Place, given, text};
use crate::status::{Failure, Result, fer_status, guarded};

/// Gives memory of the device: the address of `bytes`, at least 1, a multiple of
/// `alignment`; or 0 if there is none. From then on nobody else uses it, and what is queued
/// in `stream` can, a CUstream, the session's. It does not unwind.
pub type fer_allocator_allocate = Option<
    unsafe extern "C" fn(user: *mut c_void, bytes: u64, alignment: u64, stream: *mut c_void) -> u64,
>;

/// Takes back, once, what was given. All work with it is before what `stream` is given from
/// now on, but the device need not have done it. `stream` is NULL if the context has failed or
/// was reset: nothing runs there, and what is the driver's is given back without a stream
/// (cuMemFree), now or once the driver takes it again. It does not unwind.
pub type fer_allocator_free =
    Option<unsafe extern "C" fn(user: *mut c_void, address: u64, bytes: u64, stream: *mut c_void)>;

/// What gives a session the memory of its buffers of FER_REGIME_CALLBACKS. Its functions
/// are called in whatever threads, also several at a time, and may call those of this
/// library; but `allocate` is not asked within itself (FER_ERROR_ALLOCATOR).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fer_allocator {
    /// Called by fer_alloc_buffer.
    pub allocate: fer_allocator_allocate,
    /// Called when the last buffer in the memory is freed, or goes with its session.
    pub free: fer_allocator_free,
    /// Called once with `user`, when the session is closed, all memory was taken back, and
    /// neither of the others will be called any more. NULL for none.
    pub ended: fer_deleter,
    /// What comes with each call.
    pub user: *mut c_void,
}

/// One as the runtime calls it.
struct Callbacks {
    allocate: unsafe extern "C" fn(*mut c_void, u64, u64, *mut c_void) -> u64,
    free: unsafe extern "C" fn(*mut c_void, u64, u64, *mut c_void),
    user: *mut c_void,
    ended: Arc<Deleter>,
}

// SAFETY: `user` is only handed to the functions that it came with, which may be called in
// whatever thread, as their types say.
unsafe impl Send for Callbacks {}
// SAFETY: as above; also by several at a time.
unsafe impl Sync for Callbacks {}

impl Drop for Callbacks {
    fn drop(&mut self) {
        self.ended.end();
    }
}

// SAFETY: what its functions are to do, which who gave them has promised.
unsafe impl Allocator for Callbacks {
    fn allocate(
        &self,
        bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> core::result::Result<DeviceAddr, Box<dyn std::error::Error + Send + Sync>> {
        let stream = stream.raw().0.cast();
        // SAFETY: the caller's function, with what came with it; the stream is there
        // meanwhile.
        match unsafe { (self.allocate)(self.user, bytes, alignment, stream) } {
            0 => Err("it has none, as it answered 0".into()),
            address => Ok(DeviceAddr(address)),
        }
    }

    fn free(&self, address: DeviceAddr, bytes: u64, stream: Option<&Stream>) {
        let stream = stream.map_or(core::ptr::null_mut(), |it| it.raw().0.cast());
        // SAFETY: as above; once for each address that was given.
        unsafe { (self.free)(self.user, address.0, bytes, stream) }
    }
}

impl Callbacks {
    fn read(it: &fer_allocator) -> Result<Self> {
        let absent = |field: &str| Failure::argument(field, "it is NULL\ntry: a function");
        Ok(Self {
            allocate: it.allocate.ok_or_else(|| absent("allocator->allocate"))?,
            free: it.free.ok_or_else(|| absent("allocator->free"))?,
            user: it.user,
            ended: Arc::new(Deleter::new(it.ended, it.user)),
        })
    }
}

/// What fer_session_open does, with an allocator for buffers of FER_REGIME_CALLBACKS, which
/// is copied. If this fails none of its functions is called.
///
/// What it gives counts against `limit_bytes` as long as a buffer has it. An address that is 0,
/// not aligned, or in use already is FER_ERROR_ALLOCATOR; one that is not aligned is given
/// back before that, one in use is not. What it takes from the driver when it is called is
/// the session's in the ledger.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_session_open_with_allocator(
    runtime: fer_runtime,
    name: *const c_char,
    limit_bytes: u64,
    allocator: *const fer_allocator,
    session: *mut fer_session,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (name, allocator, place) = unsafe {
            (
                text("name", name)?,
                given("allocator", allocator)?,
                Place::new("session", session)?,
            )
        };
        let callbacks = Callbacks::read(&allocator)?;
        let ended = callbacks.ended.clone();
        let allocator = Some(Arc::new(callbacks) as Arc<dyn Allocator>);
        place.put(open_session(runtime, name, limit_bytes, allocator)?);
        ended.arrive();
        Ok(())
    })
}
