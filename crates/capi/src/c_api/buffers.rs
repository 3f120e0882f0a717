//! Buffers: layouts, memory, views, copies, and addresses that come and go.

use core::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::AcqRel, Ordering::Acquire};

use fercuda_cuda::DeviceAddr;
use fercuda_runtime::{BufferId, Error, Layout, Session};

use super::types::{
    self, fer_buffer, fer_buffer_details, fer_layout, fer_session, number_of_regime,
};
use crate::handles::{SESSIONS, buffer as known};
use crate::pointers::{Place, given, list};
use crate::status::{Failure, Result, fer_status, guarded};

/// What gives something back: called once with the `context` that came with it, in
/// whatever thread. It calls nothing of this library that waits, and does not unwind.
pub type fer_deleter = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// A layout of elements side by side, those of the last dimension first. `shape` has
/// `rank` numbers, and may be NULL for none. `dtype` is a fer_dtype.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_layout_contiguous(
    dtype: u32,
    rank: u32,
    shape: *const u64,
    layout: *mut fer_layout,
) -> fer_status {
    guarded(|| {
        let dtype = types::dtype("dtype", dtype)?;
        let rank = types::rank("rank", rank)?;
        // SAFETY: the caller's promise.
        let (shape, place) = unsafe {
            (
                list("shape", shape, rank as u64)?,
                Place::new("layout", layout)?,
            )
        };
        place.put(fer_layout::of(&Layout::contiguous(dtype, shape)?));
        Ok(())
    })
}

/// What an element of a fer_dtype takes, in bytes.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_dtype_bytes(dtype: u32, bytes: *mut u64) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new("bytes", bytes) }?;
        place.put(types::dtype("dtype", dtype)?.bytes());
        Ok(())
    })
}

/// A fer_dtype's name, as "bf16"; "unknown" for a number that is none. Good for ever.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_dtype_name(dtype: u32) -> *const c_char {
    types::dtype_name(dtype).as_ptr()
}

/// A buffer for the elements of a layout, of memory of a fer_regime; what is in it at
/// first is unspecified. Freed by fer_free_buffer, or with its session.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_alloc_buffer(
    session: fer_session,
    layout: *const fer_layout,
    regime: u32,
    buffer: *mut fer_buffer,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (layout, place) = unsafe { (given("layout", layout)?, Place::new("buffer", buffer)?) };
        let regime = types::regime("regime", regime)?;
        let open = SESSIONS.get("session", session)?;
        let made = open.session.alloc(layout.read()?, regime);
        let buffer = made.map_err(|error| match error {
            Error::NoAllocator { .. } => Failure::argument(
                "regime",
                "the session has no allocator\ntry: fer_session_open_with_allocator",
            ),
            error => error.into(),
        })?;
        place.put(buffer.to_bits());
        Ok(())
    })
}

/// Ends a buffer's handle at once, and its memory behind the last work that was queued
/// with it, unless a view of it is still there. Waits for that work, but for memory of the
/// pool and of an allocator; that of FER_REGIME_DRIVER and FER_REGIME_MANAGED goes back when no
/// dispatcher runs on the device. The session is charged until then, and for what graphs have
/// of it, until they let it go.
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
    guarded(|| {
        let open = SESSIONS.get("session", session)?;
        work(&open.session, known("buffer", buffer)?)
    })
}

/// Another buffer in the same memory, whose first element lies `offset_bytes` from the
/// first one of `buffer`. The memory lives until the last buffer in it is freed.
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
        let (layout, place) = unsafe { (given("layout", layout)?, Place::new("view", view)?) };
        let layout = layout.read()?;
        let view = session.view(id, |_| Ok((layout, offset_bytes)))?;
        place.put(view.to_bits());
        Ok(())
    })
}

/// What a buffer is.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_buffer_info(
    session: fer_session,
    buffer: fer_buffer,
    details: *mut fer_buffer_details,
) -> fer_status {
    with(session, buffer, |session, id| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new("details", details) }?;
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

/// Copies a buffer's elements from the host, in their order: `len_bytes` is what
/// fer_buffer_info says. Waits for the copy.
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

/// Copies a buffer's elements to the host, in their order: `len_bytes` is what
/// fer_buffer_info says. Waits for the session's work.
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
        let room = unsafe { crate::pointers::Room::new("into", into.cast::<u8>(), len_bytes) }?;
        check_len(session, id, len_bytes)?;
        room.put(&session.download_bytes(id)?);
        Ok(())
    })
}

/// Whether so many bytes are a buffer's.
pub(crate) fn check_len(session: &Session, id: BufferId, len_bytes: u64) -> Result<()> {
    let layout = session.layout(id)?;
    if layout.bytes() == len_bytes {
        return Ok(());
    }
    Err(Failure::new(
        fer_status::FER_ERROR_LAYOUT,
        format!(
            "download {id} to {len_bytes} bytes: {:?} of {} are {}\ntry: room for as many, as fer_buffer_info says",
            layout.shape(),
            layout.dtype(),
            layout.bytes()
        ),
    ))
}

/// Queues a copy of `source`, a buffer of the session `from`, which may be the same one
/// or one of another device. Both have one type and shape. Neither session is waited
/// for.
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

/// Queues that each byte of a buffer's elements becomes `byte`.
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

/// A buffer's address, for other libraries: that of its first element. It is good until
/// the buffer is freed; what orders their work with the session's stream is theirs.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_export_buffer_device_ptr(
    session: fer_session,
    buffer: fer_buffer,
    address: *mut u64,
) -> fer_status {
    with(session, buffer, |session, id| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new("address", address) }?;
        place.put(session.export(id)?.address.0);
        Ok(())
    })
}

/// Where it is between coming and going.
const ARRIVING: u8 = 0;
const HERE: u8 = 1;
const GONE: u8 = 2;

/// What is to be called once, when something of the program's is used no more.
pub(crate) struct Deleter {
    state: AtomicU8,
    deleter: fer_deleter,
    context: *mut c_void,
}

// SAFETY: `context` is only handed to `deleter`, which may be called in whatever
// thread, as its type says.
unsafe impl Send for Deleter {}
// SAFETY: as above; the state is atomic.
unsafe impl Sync for Deleter {}

impl Deleter {
    pub(crate) fn new(deleter: fer_deleter, context: *mut c_void) -> Self {
        Self {
            state: AtomicU8::new(ARRIVING),
            deleter,
            context,
        }
    }

    fn call(&self) {
        if let Some(deleter) = self.deleter {
            // SAFETY: what came with it, called once: only who makes the state
            // GONE from HERE, or HERE from GONE, comes here.
            unsafe { deleter(self.context) }
        }
    }

    /// It is used no more.
    pub(crate) fn end(&self) {
        // As long as it is arriving the caller is not done, and calls by itself.
        if self.state.swap(GONE, AcqRel) == HERE {
            self.call();
        }
    }

    /// The caller is told that it is there.
    pub(crate) fn arrive(&self) {
        let arrived = self.state.compare_exchange(ARRIVING, HERE, AcqRel, Acquire);
        if arrived.is_err() {
            // It went before that: another thread has closed the session.
            self.call();
        }
    }
}

/// Somebody else's memory as a buffer of the session; `address` is where its first
/// element lies. `deleter` is called with `context` once, when the last buffer there is
/// freed and no work that was queued with it runs any more; NULL for none. If this fails
/// it is not called, and the memory is the caller's as before.
///
/// The device can use all that the layout reaches until then.
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
    guarded(|| {
        // SAFETY: the caller's promise.
        let (layout, place) = unsafe { (given("layout", layout)?, Place::new("buffer", buffer)?) };
        if address == 0 {
            return Err(Failure::argument(
                "address",
                "it is 0, where no memory is\ntry: an address of the device",
            ));
        }
        let open = SESSIONS.get("session", session)?;
        let deleter = Arc::new(Deleter::new(deleter, context));
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
