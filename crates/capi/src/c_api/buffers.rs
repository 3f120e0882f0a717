//! Buffers: layouts, memory, views, copies, export and import of addresses.

use core::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::AcqRel, Ordering::Acquire};

use fercuda_cuda::DeviceAddr;
use fercuda_runtime::{BufferId, Error, Layout, Session};

use super::types::{
    self, fer_buffer, fer_buffer_details, fer_layout, fer_session, number_of_regime,
};
use crate::handles::{SESSIONS, buffer as known};
use crate::pointers::{OutPointer, list, read_pointer};
use crate::status::{CallFailure, Result, catch_panics, fer_status};

/// Releases something: called once with its `context`, from any thread. It calls no function of
/// this library that waits, and does not unwind.
pub type fer_deleter = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// Fills in a contiguous layout in row-major order. `shape` has `rank` numbers, and may be NULL for
/// none. `dtype` is a fer_dtype.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_layout_contiguous(
    dtype: u32,
    rank: u32,
    shape: *const u64,
    layout: *mut fer_layout,
) -> fer_status {
    catch_panics(|| {
        let dtype = types::dtype("dtype", dtype)?;
        let rank = types::rank("rank", rank)?;
        // SAFETY: the caller's promise.
        let (shape, place) = unsafe {
            (
                list("shape", shape, rank as u64)?,
                OutPointer::new("layout", layout)?,
            )
        };
        place.put(fer_layout::of(&Layout::contiguous(dtype, shape)?));
        Ok(())
    })
}

/// Returns the size of an element of a fer_dtype, in bytes.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_dtype_bytes(dtype: u32, bytes: *mut u64) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("bytes", bytes) }?;
        place.put(types::dtype("dtype", dtype)?.bytes());
        Ok(())
    })
}

/// Returns a fer_dtype's name, such as "bf16"; "unknown" for an invalid number. Valid for ever.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_dtype_name(dtype: u32) -> *const c_char {
    types::dtype_name(dtype).as_ptr()
}

/// Allocates a buffer for the elements of a layout, in memory of a fer_regime, initially
/// uninitialised. Freed by fer_free_buffer, or with its session.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_alloc_buffer(
    session: fer_session,
    layout: *const fer_layout,
    regime: u32,
    buffer: *mut fer_buffer,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (layout, place) = unsafe {
            (
                read_pointer("layout", layout)?,
                OutPointer::new("buffer", buffer)?,
            )
        };
        let regime = types::regime("regime", regime)?;
        let open = SESSIONS.get("session", session)?;
        let made = open.session.alloc(layout.read()?, regime);
        let buffer = made.map_err(|error| match error {
            Error::NoAllocator { .. } => CallFailure::argument(
                "regime",
                "the session has no allocator\ntry: fer_session_open_with_allocator",
            ),
            error => error.into(),
        })?;
        place.put(buffer.to_bits());
        Ok(())
    })
}

/// Invalidates a buffer's handle at once, and frees its memory behind the last work that was queued
/// with it, unless a view of it remains. Waits for that work, except for memory of the pool and of
/// an allocator; memory of FER_REGIME_DRIVER and FER_REGIME_MANAGED is freed when no dispatcher
/// runs on the device. The session is charged until then, and for memory of graphs until they
/// release it.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_free_buffer(session: fer_session, buffer: fer_buffer) -> fer_status {
    with(session, buffer, |session, id| Ok(session.free(id)?))
}

fn with(
    session: fer_session,
    buffer: fer_buffer,
    work: impl FnOnce(&Session, BufferId) -> Result<()>,
) -> fer_status {
    catch_panics(|| {
        let open = SESSIONS.get("session", session)?;
        work(&open.session, known("buffer", buffer)?)
    })
}

/// Creates another buffer in the same memory, with its first element `offset_bytes` from that of
/// `buffer`. The memory lives until the last buffer in it is freed.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_view_buffer(
    session: fer_session,
    buffer: fer_buffer,
    layout: *const fer_layout,
    offset_bytes: i64,
    view: *mut fer_buffer,
) -> fer_status {
    with(session, buffer, |session, id| {
        // SAFETY: the caller's promise.
        let (layout, place) = unsafe {
            (
                read_pointer("layout", layout)?,
                OutPointer::new("view", view)?,
            )
        };
        let layout = layout.read()?;
        let view = session.view(id, |_| Ok((layout, offset_bytes)))?;
        place.put(view.to_bits());
        Ok(())
    })
}

/// Returns properties of a buffer.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_buffer_info(
    session: fer_session,
    buffer: fer_buffer,
    details: *mut fer_buffer_details,
) -> fer_status {
    with(session, buffer, |session, id| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("details", details) }?;
        let layout = session.layout(id)?;
        place.put(fer_buffer_details {
            layout: fer_layout::of(&layout),
            bytes: layout.bytes(),
            regime: number_of_regime(session.regime(id)?),
            is_exported: u32::from(session.is_exported(id)?),
        });
        Ok(())
    })
}

/// Copies a buffer's elements from the host, in their order: `len_bytes` is the `bytes` of
/// fer_buffer_info. Waits for the copy.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_upload_bytes(
    session: fer_session,
    buffer: fer_buffer,
    bytes: *const c_void,
    len_bytes: u64,
) -> fer_status {
    with(session, buffer, |session, id| {
        // SAFETY: the caller's promise.
        let bytes = unsafe { list("bytes", bytes.cast::<u8>(), len_bytes) }?;
        Ok(session.upload_bytes(id, bytes)?)
    })
}

/// Copies a buffer's elements to the host, in their order: `len_bytes` is the `bytes` of
/// fer_buffer_info. Waits for the session's work.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_download_bytes(
    session: fer_session,
    buffer: fer_buffer,
    into: *mut c_void,
    len_bytes: u64,
) -> fer_status {
    with(session, buffer, |session, id| {
        // SAFETY: the caller's promise.
        let room = unsafe { crate::pointers::OutArray::new("into", into.cast::<u8>(), len_bytes) }?;
        check_len(session, id, len_bytes)?;
        room.put(&session.download_bytes(id)?);
        Ok(())
    })
}

/// Checks a length against a buffer's.
pub(crate) fn check_len(session: &Session, id: BufferId, len_bytes: u64) -> Result<()> {
    let layout = session.layout(id)?;
    if layout.bytes() == len_bytes {
        return Ok(());
    }
    Err(CallFailure::new(
        fer_status::FER_ERROR_LAYOUT,
        format!(
            "download {id} to {len_bytes} bytes: {:?} of {} takes {}\ntry: room for the `bytes` of fer_buffer_info",
            layout.shape(),
            layout.dtype(),
            layout.bytes()
        ),
    ))
}

/// Queues a copy of `source`, a buffer of the session `from`, which may be the same one or one of
/// another device. Both have the same type and shape. Does not wait for either session.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_copy_buffer(
    session: fer_session,
    buffer: fer_buffer,
    from: fer_session,
    source: fer_buffer,
) -> fer_status {
    with(session, buffer, |session, id| {
        let from = SESSIONS.get("from", from)?;
        let source = known("source", source)?;
        Ok(session.copy(id, &from.session, source)?)
    })
}

/// Queues a fill of each byte of a buffer's elements with `byte`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_fill_buffer(
    session: fer_session,
    buffer: fer_buffer,
    byte: u8,
) -> fer_status {
    with(session, buffer, |session, id| {
        Ok(session.fill_bytes(id, byte)?)
    })
}

/// Exports a buffer's address, that of its first element, for other libraries. It is valid until
/// the buffer is freed; ordering their work with the session's stream is up to the caller.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_export_buffer_device_ptr(
    session: fer_session,
    buffer: fer_buffer,
    address: *mut u64,
) -> fer_status {
    with(session, buffer, |session, id| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("address", address) }?;
        place.put(session.export(id)?.address.0);
        Ok(())
    })
}

/// State of an import that has not returned yet.
const ARRIVING: u8 = 0;
const HERE: u8 = 1;
const GONE: u8 = 2;

/// A deleter to be called once, when an object of the program is not used any more.
pub(crate) struct OnceDeleter {
    state: AtomicU8,
    deleter: fer_deleter,
    context: *mut c_void,
}

// SAFETY: `context` is passed only to `deleter`, which may be called from any thread, by its
// contract.
unsafe impl Send for OnceDeleter {}
// SAFETY: as above; the state is atomic.
unsafe impl Sync for OnceDeleter {}

impl OnceDeleter {
    pub(crate) fn new(deleter: fer_deleter, context: *mut c_void) -> Self {
        Self {
            state: AtomicU8::new(ARRIVING),
            deleter,
            context,
        }
    }

    fn call(&self) {
        if let Some(deleter) = self.deleter {
            // SAFETY: the deleter with its context, called once: only the thread that changes the
            // state to GONE from HERE, or finds GONE instead of ARRIVING, gets here.
            unsafe { deleter(self.context) }
        }
    }

    /// Marks the object as not used any more.
    pub(crate) fn end(&self) {
        // While the import has not returned, the importing thread makes the call.
        if self.state.swap(GONE, AcqRel) == HERE {
            self.call();
        }
    }

    /// Marks the import as successful.
    pub(crate) fn arrive(&self) {
        let arrived = self.state.compare_exchange(ARRIVING, HERE, AcqRel, Acquire);
        if arrived.is_err() {
            // The object is gone already: another thread has closed the session.
            self.call();
        }
    }
}

/// Imports memory of another owner as a buffer of the session; `address` is that of its first
/// element. `deleter` is called with `context` once, when the last buffer in the memory is freed
/// and all work that was queued with it is done; NULL for none. If this fails it is not called, and
/// the memory still belongs to the caller.
///
/// The device must be able to use everything that the layout reaches until then.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_import_device_ptr(
    session: fer_session,
    address: u64,
    layout: *const fer_layout,
    deleter: fer_deleter,
    context: *mut c_void,
    buffer: *mut fer_buffer,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (layout, place) = unsafe {
            (
                read_pointer("layout", layout)?,
                OutPointer::new("buffer", buffer)?,
            )
        };
        if address == 0 {
            return Err(CallFailure::argument(
                "address",
                "it is 0, which is not an address\ntry: an address of the device",
            ));
        }
        let open = SESSIONS.get("session", session)?;
        let deleter = Arc::new(OnceDeleter::new(deleter, context));
        let end = deleter.clone();
        // SAFETY: the caller's promise.
        let id = unsafe {
            open.session
                .import(DeviceAddr(address), layout.read()?, move || end.end())
        }?;
        place.put(id.to_bits());
        deleter.arrive();
        Ok(())
    })
}
