//! Runtimes, sessions, reboots, and holders of memory.

use core::ffi::{c_char, c_void};
use std::sync::Arc;

use fercuda_cuda::Select;
use fercuda_cuda::sys::types::CUstream;
use fercuda_runtime::{MemoryAllocator, Reboot, Runtime, RuntimeConfig, SessionConfig};

use super::closing::end;
use super::requests::REQUESTS;
use super::types::{
    fer_holder, fer_memory_details, fer_reboot_details, fer_runtime, fer_session,
    fer_session_details, fit,
};
use crate::handles::{OpenSession, RUNTIMES, SESSIONS, check_process};
use crate::pointers::{OutArray, OutPointer, text};
use crate::status::{CallFailure, Result, catch_panics, fer_status};

/// Opens a device's runtime: `device` is a fer_device, `ordinal` the device's number there. The
/// first runtime of a process interposes the pool before the driver, unless the hook has done so.
/// Closed by fer_runtime_close.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_runtime_open(
    device: u32,
    ordinal: u32,
    runtime: *mut fer_runtime,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("runtime", runtime) }?;
        let select = match device {
            0 => None,
            1 => Some(Select::Auto),
            2 => Some(Select::Hardware),
            3 => Some(Select::Software),
            _ => {
                let what = format!("{device} is not a fer_device\ntry: 0 to 3");
                return Err(CallFailure::argument("device", what));
            }
        };
        // Before the driver, which fails in a forked child too, with a worse message.
        check_process()?;
        let device = ordinal;
        let opened = Runtime::open(RuntimeConfig { select, device })?;
        place.put(RUNTIMES.insert(opened)?);
        Ok(())
    })
}

/// Closes a runtime and all its sessions, as fer_session_close does; before that it stops accepting
/// requests, as by fer_requests_end. Returns the first error of the sessions' work; all are closed
/// nevertheless.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_runtime_close(runtime: fer_runtime) -> fer_status {
    catch_panics(|| {
        RUNTIMES.remove("runtime", runtime)?;
        drop(REQUESTS.take(|serving| serving.runtime == runtime));
        end(&SESSIONS.take(|open| open.runtime == runtime))
    })
}

/// Returns the driver's figures of the device's memory.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_memory_info(
    runtime: fer_runtime,
    details: *mut fer_memory_details,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("details", details) }?;
        let memory = RUNTIMES.get("runtime", runtime)?.memory()?;
        place.put(fer_memory_details {
            free_bytes: memory.free_bytes,
            total_bytes: memory.total_bytes,
        });
        Ok(())
    })
}

/// Returns the bytes in deferred frees: this process has freed them, but the driver would wait for
/// a dispatcher's running kernel: memory of FER_REGIME_DRIVER and FER_REGIME_MANAGED, and memory
/// that a capture keeps from being freed. They are freed when a thread allocates or waits while
/// there is neither; until then their sessions are charged for them.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_parked_bytes(runtime: fer_runtime, bytes: *mut u64) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("bytes", bytes) }?;
        place.put(RUNTIMES.get("runtime", runtime)?.memory()?.parked_bytes);
        Ok(())
    })
}

/// Lists the holders of the device's memory in this process, the largest first. `holders` has room
/// for `room` of them, and may be NULL for none; `count` is set to their number, which may be
/// larger.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_holders(
    runtime: fer_runtime,
    holders: *mut fer_holder,
    room: u64,
    count: *mut u64,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (into, count) = unsafe {
            (
                OutArray::new("holders", holders, room)?,
                OutPointer::new("count", count)?,
            )
        };
        let all = RUNTIMES.get("runtime", runtime)?.holders();
        let all: Vec<fer_holder> = all
            .iter()
            .map(|it| fer_holder {
                name: fit(&it.tenant),
                pooled_bytes: it.pooled_bytes,
                governed_bytes: it.governed_bytes,
            })
            .collect();
        into.put(&all);
        count.put(all.len() as u64);
        Ok(())
    })
}

/// Ends all sessions that the runtime has opened on its device, the last one first, returns all
/// memory to the driver, and begins a new epoch. Earlier sessions and buffers return
/// FER_ERROR_ENDED; their handles still have to be closed. `details` may be NULL.
/// FER_ERROR_CONTEXT_LOST if the context has failed: then try fer_reset. FER_ERROR_DISPATCHER_LOST,
/// or FER_ERROR_OCCUPIED, if a resident kernel does not exit.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_reboot(
    runtime: fer_runtime,
    details: *mut fer_reboot_details,
) -> fer_status {
    // SAFETY: the caller's promise.
    unsafe { reboot_or_reset(runtime, details, |runtime| Ok(runtime.reboot()?)) }
}

/// As fer_reboot; and if the context has failed, as after an illegal address, it is reset, unless
/// other tenants hold memory of the device (FER_ERROR_OCCUPIED). Objects of other libraries of this
/// process in the device's primary context, such as streams and modules, are destroyed with it and
/// must not be used any more. No other thread may be in a call for a session of the device, or
/// enter one, before this has returned.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_reset(
    runtime: fer_runtime,
    details: *mut fer_reboot_details,
) -> fer_status {
    // SAFETY: the caller's promises.
    unsafe {
        reboot_or_reset(runtime, details, |runtime| {
            // SAFETY: no object of others is used any more, as the caller promises.
            Ok(runtime.reset()?)
        })
    }
}

/// # Safety
/// `details` is null or has room.
unsafe fn reboot_or_reset(
    runtime: fer_runtime,
    details: *mut fer_reboot_details,
    work: impl FnOnce(&Runtime) -> Result<Reboot>,
) -> fer_status {
    catch_panics(|| {
        let place = match details.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { OutPointer::new("details", details) }?),
        };
        let runtime = RUNTIMES.get("runtime", runtime)?;
        let reboot = work(&runtime)?;
        if let Some(place) = place {
            place.put(fer_reboot_details {
                epoch: reboot.epoch,
                sessions: reboot.sessions as u64,
                returned_bytes: reboot.returned_bytes,
                was_reset: u32::from(reboot.was_reset),
                others: reboot.others.len() as u32,
            });
        }
        Ok(())
    })
}

/// Opens a session, which is a tenant of the device's pool under its name. It may hold up to
/// `limit_bytes` of the device; 0 for no limit. Closed by fer_session_close.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_session_open(
    runtime: fer_runtime,
    name: *const c_char,
    limit_bytes: u64,
    session: *mut fer_session,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (name, place) = unsafe { (text("name", name)?, OutPointer::new("session", session)?) };
        place.put(open_session(runtime, name, limit_bytes, None)?);
        Ok(())
    })
}

/// Opens a session of an open runtime.
pub(super) fn open_session(
    runtime: fer_runtime,
    name: &str,
    limit_bytes: u64,
    allocator: Option<Arc<dyn MemoryAllocator>>,
) -> Result<fer_session> {
    let of = RUNTIMES.get("runtime", runtime)?;
    let config = SessionConfig {
        limit_bytes: (limit_bytes > 0).then_some(limit_bytes),
    };
    let opened = match allocator {
        Some(allocator) => of.session_with_allocator(name, config, allocator)?,
        None => of.session(name, config)?,
    };
    let open = OpenSession::new(runtime, opened.clone());
    match SESSIONS.insert_of(&RUNTIMES, runtime, open) {
        Ok(number) => Ok(number),
        Err(gone) => {
            // This makes its name available again.
            opened.close()?;
            Err(gone)
        }
    }
}

/// Closes a session: waits for its work, and releases all its resources. Its buffers, jobs,
/// modules, kernels and arenas are closed with it. Returns the first error of its work; it is
/// closed nevertheless. Of two threads that close it one does, and the other gets
/// FER_ERROR_STALE_HANDLE, perhaps before the first is done. Where the teardown may wait for the
/// caller, in a host function or in an allocator's `free` or a deleter, this does not wait: the
/// session ends behind its work all the same.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_session_close(session: fer_session) -> fer_status {
    catch_panics(|| {
        let open = SESSIONS.remove("session", session)?;
        end(&[(session, open)])
    })
}

/// Returns what a session holds, and its limit.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_session_info(
    session: fer_session,
    details: *mut fer_session_details,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("details", details) }?;
        let open = SESSIONS.get("session", session)?;
        let it = &open.session;
        place.put(fer_session_details {
            held_bytes: it.held_bytes(),
            peak_bytes: it.peak_bytes(),
            limit_bytes: it.limit_bytes().unwrap_or(0),
            buffers: it.buffers()?.len() as u64,
        });
        Ok(())
    })
}

/// Waits for all work of the session. Returns its first error.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_stream_sync(session: fer_session) -> fer_status {
    catch_panics(|| {
        let open = SESSIONS.get("session", session)?;
        Ok(open.session.synchronize()?)
    })
}

/// Returns the session's stream, a CUstream, for work of other libraries. It is valid until the
/// session is closed. Work queued there directly is not ordered behind jobs that still wait on the
/// host.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_session_stream(
    session: fer_session,
    stream: *mut *mut c_void,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("stream", stream) }?;
        let open = SESSIONS.get("session", session)?;
        open.session.buffers()?;
        place.put(open.session.stream().raw().0.cast());
        Ok(())
    })
}

/// Makes the session wait for the work that a stream, a CUstream, has so far: for arrays that other
/// code has written there. 1 and 2 are the legacy and the per-thread default stream.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_session_wait_for_stream(
    session: fer_session,
    stream: *mut c_void,
) -> fer_status {
    catch_panics(|| {
        let open = SESSIONS.get("session", session)?;
        let stream = given_stream(stream)?;
        // SAFETY: that it is a stream is the caller's promise.
        Ok(unsafe { open.session.order_behind_stream(stream) }?)
    })
}

/// Makes a stream wait for the work that the session has so far. Waits only while jobs wait on the
/// host, which are in no stream yet.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_stream_wait_for_session(
    session: fer_session,
    stream: *mut c_void,
) -> fer_status {
    catch_panics(|| {
        let open = SESSIONS.get("session", session)?;
        let stream = given_stream(stream)?;
        // SAFETY: as above.
        Ok(unsafe { open.session.order_stream_behind(stream) }?)
    })
}

/// A stream that is not NULL, which each interface takes for another default stream.
fn given_stream(stream: *mut c_void) -> Result<CUstream> {
    match stream.is_null() {
        true => Err(CallFailure::argument(
            "stream",
            "it is NULL\ntry: 1 for the legacy default stream, 2 for that of the thread, or a CUstream",
        )),
        false => Ok(CUstream(stream.cast())),
    }
}
