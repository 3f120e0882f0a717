//! Fast paths for CUDA runtime calls: `cudaMallocAsync`, `cudaFreeAsync`, `cudaGetDevice`.
//!
//! A framework that allocates for each operation calls through the runtime library, which
//! takes as large a share of a call as ours. Around each of these calls, and each launch,
//! it queries the current device, some two thousand times in a training step. A caller that
//! is linked to the runtime library and finds these names here gets what the pool can
//! serve at once, and the device that its thread's context has cached. Every other call
//! goes to the runtime library, which then calls the interposed driver function.
//!
//! Invariants: a call handled here has the side effects that it would have in the runtime
//! library: on success none, not even on the last error. A thread without a context of
//! ours goes to the runtime library, and so does any call for which that library would
//! make a CUDA context current or reject the arguments. The device that the program has
//! set is assumed to be the current context's, where there is one: documented since
//! CUDA 12, which initialises a device when it is set. If an earlier runtime library has
//! opened the driver, every call goes to the runtime library.
//!
//! Elsewhere: which runtime library a caller is linked to (`linked`).

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fercuda_cuda_sys::types::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUdeviceptr, CUstream};
use fercuda_governor::{ResolvedStream, ThreadContext};
use fercuda_pool::PoolPlace;

use fercuda_regime::trace::{self, TracedRequest};
use fercuda_regime::{tenant, with_existing_thread_context};

use crate::linked;

/// The runtime library's code for success.
const SUCCESS: c_int = 0;
/// Its code for a missing symbol.
const SYMBOL_NOT_FOUND: c_int = 500;

/// The first version that initialises a device when it is set.
const FIRST_EAGER_VERSION: u32 = 12;
/// Whether an earlier version has opened the driver.
static IS_LAZY_VERSION_PRESENT: AtomicBool = AtomicBool::new(false);

/// Notes the version of a runtime library that opens the driver, which each does before
/// anything else.
pub(crate) fn driver_opened_by(caller: usize) {
    let name = linked::soname(caller);
    let version = name.and_then(|name| version(name.to_bytes()));
    if version.is_some_and(|version| version < FIRST_EAGER_VERSION) {
        IS_LAZY_VERSION_PRESENT.store(true, Relaxed);
    }
}

/// The version in the name of a runtime library, as in `libcudart-1a2b3c.so.11.0`; 0 if
/// the name has none; `None` for any other library.
fn version(name: &[u8]) -> Option<u32> {
    let rest = name.strip_prefix(b"libcudart")?;
    let at = rest.windows(4).position(|part| part == b".so.");
    let digits = at.map_or(&b""[..], |at| &rest[at + 4..]);
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, |number: u32, digit| {
        number
            .saturating_mul(10)
            .saturating_add(u32::from(digit - b'0'))
    }))
}

/// Defines the entry stub of an interposed runtime function: it passes the address of the
/// return address in the sixth argument register.
macro_rules! entry {
    ($name:ident => $function:ident) => {
        // SAFETY: interposes the runtime library's function of this name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!("mov r9, rsp", "jmp {function}", function = sym $function)
        }
    };
}

entry!(cudaMallocAsync => alloc);
entry!(cudaFreeAsync => free);
entry!(cudaGetDevice => get_device);

unsafe extern "C" fn alloc(
    into: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    _: usize,
    _: usize,
    frame: *const usize,
) -> c_int {
    // SAFETY: the entry gave the frame of the call that is under way; the rest is
    // the program's.
    match unsafe { allocate_pooled(into, bytes, stream, frame) } {
        Some(()) => SUCCESS,
        // SAFETY: as above.
        None => unsafe { pass_alloc(into, bytes, stream, *frame) },
    }
}

unsafe extern "C" fn free(
    address: CUdeviceptr,
    stream: CUstream,
    _: usize,
    _: usize,
    _: usize,
    frame: *const usize,
) -> c_int {
    match free_pooled(address, stream) {
        Some(()) => SUCCESS,
        // SAFETY: as above.
        None => unsafe { pass_free(address, stream, *frame) },
    }
}

unsafe extern "C" fn get_device(
    into: *mut c_int,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    frame: *const usize,
) -> c_int {
    match current_device().filter(|_| !into.is_null()) {
        Some(device) => {
            // SAFETY: not null; the program's own.
            unsafe { into.write(device) };
            SUCCESS
        }
        // SAFETY: as for `alloc`.
        None => unsafe { pass_get_device(into, *frame) },
    }
}

/// Runs `work` with the calling thread's context, if it has one, unless an earlier runtime
/// library is present.
#[inline]
fn with_context<R>(work: impl FnOnce(&mut ThreadContext<'static>) -> Option<R>) -> Option<R> {
    match IS_LAZY_VERSION_PRESENT.load(Relaxed) {
        true => None,
        false => with_existing_thread_context(work),
    }
}

/// The current context's device; the runtime library numbers devices as the driver does.
#[inline]
fn current_device() -> Option<c_int> {
    with_context(|seat| c_int::try_from(seat.current_device()?).ok())
}

/// Allocates in a stream's order; `None` if the runtime library has to handle the call.
///
/// # Safety
/// As for [`fercuda_regime::tenant`]; `into` is null or may be written.
#[inline]
unsafe fn allocate_pooled(
    into: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    frame: *const usize,
) -> Option<()> {
    if into.is_null() || bytes == 0 {
        return None;
    }
    with_context(|seat| {
        let ordered = ordered(seat, stream)?;
        let of = ordered.pool?;
        // During a capture that forbids the call the driver decides its result.
        if seat.governor().may_not_wait() {
            return None;
        }
        // SAFETY: passed on.
        let tenant = unsafe { tenant(seat.governor(), frame) };
        // A denied allocation is denied again, and reported, by the interposed driver function.
        let address = seat.try_allocate_ordered(&ordered, tenant, of, bytes as u64)?;
        // SAFETY: not null; the program's own.
        unsafe { into.write(address) };
        let request = TracedRequest {
            device: of.0.ordinal(),
            tenant,
            bytes: bytes as u64,
            place: PoolPlace::Stream(ordered.stream.id),
        };
        trace::record_allocation(seat.governor(), address, request);
        Some(())
    })
}

/// Frees a block behind the queued work of a stream; `None` if the runtime library has to
/// handle the call.
#[inline]
fn free_pooled(address: CUdeviceptr, stream: CUstream) -> Option<()> {
    with_context(|seat| {
        seat.touch(address);
        let ordered = ordered(seat, stream)?;
        let freed = seat.free_ordered(&ordered, address)?;
        trace::record_free(seat.governor(), &freed);
        Some(())
    })
}

/// The stream's order and pool, if the call needs nothing of the runtime library, which makes
/// a context current where none is, whatever the stream's context.
#[inline]
fn ordered(seat: &mut ThreadContext<'static>, stream: CUstream) -> Option<ResolvedStream<'static>> {
    let is_default = [CUstream::NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD].contains(&stream);
    // A default stream belongs to the current context, so there has to be one.
    if !is_default && !seat.has_current() {
        return None;
    }
    seat.ordered(stream, false)
}

/// Defines the call of a function of the runtime library that the caller is linked to.
macro_rules! pass {
    ($pass:ident => $name:literal($($argument:ident: $type:ty),*)) => {
        /// # Safety
        /// The program's own arguments, and its return address.
        #[cold]
        unsafe fn $pass($($argument: $type,)* caller: usize) -> c_int {
            type Function = unsafe extern "C" fn($($type),*) -> c_int;
            let Some(function) = linked::function($name, caller) else {
                return SYMBOL_NOT_FOUND;
            };
            // SAFETY: the runtime library's function of this name has this type; the
            // rest is the program's.
            unsafe {
                let function = core::mem::transmute::<NonNull<c_void>, Function>(function);
                function($($argument),*)
            }
        }
    };
}

pass!(pass_alloc => c"cudaMallocAsync"(into: *mut CUdeviceptr, bytes: usize, stream: CUstream));
pass!(pass_free => c"cudaFreeAsync"(address: CUdeviceptr, stream: CUstream));
pass!(pass_get_device => c"cudaGetDevice"(into: *mut c_int));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_librarys_name_contains_its_version() {
        for (name, is) in [
            ("libcudart.so.13", Some(13)),
            ("libcudart.so.12.4.127", Some(12)),
            ("libcudart-9d1f3a.so.11.0", Some(11)),
            ("libcudart.so.10.2", Some(10)),
            ("libcudart.so", Some(0)),
            ("libcudart.so.", Some(0)),
            ("libcudart.so.99999999999", Some(u32::MAX)),
            ("libcuda.so.1", None),
            ("libcublas.so.12", None),
            ("", None),
        ] {
            assert_eq!(version(name.as_bytes()), is, "{name}");
        }
    }
}
