//! `cudaMallocAsync`, `cudaFreeAsync` and `cudaGetDevice` of CUDA's runtime library,
//! where they are called.
//!
//! A framework that allocates for each operation comes through the runtime
//! library, whose own share of a call is as large as ours; and around each of these
//! calls, and each launch, it asks which device is current, some two thousand times in
//! a training step. Whoever is linked to the runtime library and finds the names here
//! gets from the pool what that can give at once, and the device from what its
//! thread's seat knows. All else is the runtime library's to answer, which then comes
//! by the driver's door.
//!
//! Invariants: what is done here leaves behind what the runtime library would
//! have left: with a success nothing, not even another last error. A thread that
//! has no seat yet goes to the runtime library, and so does any call for which that
//! would make a context current or refuse what the program gave. It is
//! relied upon that the device which the program has chosen is the current context's,
//! where there is one: documented since CUDA 12, which begins with a device when that
//! is chosen. Where an earlier runtime library has come to the driver, all is its own.
//!
//! Elsewhere: who is linked to which (`linked`).

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fercuda_cuda_sys::types::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUdeviceptr, CUstream};
use fercuda_governor::{ResolvedStream, ThreadContext};
use fercuda_pool::PoolPlace;

use fercuda_regime::{already_seated, tenant, trace};

use crate::linked;

/// The runtime library's answer of a function that did what it should.
const SUCCESS: c_int = 0;
/// Its answer where something has no function of a name.
const SYMBOL_NOT_FOUND: c_int = 500;

/// The first version that begins with a device when that is chosen.
const PROMPT: u32 = 12;
/// Whether an earlier one has come to the driver.
static IS_LATE: AtomicBool = AtomicBool::new(false);

/// Notes who opens the driver: a runtime library does before it does anything else.
pub(crate) fn driver_opened_by(caller: usize) {
    let name = linked::soname(caller);
    let version = name.and_then(|name| version(name.to_bytes()));
    if version.is_some_and(|version| version < PROMPT) {
        IS_LATE.store(true, Relaxed);
    }
}

/// The version in the name of a runtime library, as in `libcudart-1a2b3c.so.11.0`; 0 if
/// there is none; nothing of any other library's.
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

/// A function of the runtime library's that has a door here, entered as those
/// of the driver's are that want to know their caller.
macro_rules! entry {
    ($name:ident => $door:ident) => {
        // SAFETY: stands before the runtime library's function of this name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!("mov r9, rsp", "jmp {door}", door = sym $door)
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
    match unsafe { allocated(into, bytes, stream, frame) } {
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
    match freed(address, stream) {
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
    match device().filter(|_| !into.is_null()) {
        Some(device) => {
            // SAFETY: not null; the program's own.
            unsafe { into.write(device) };
            SUCCESS
        }
        // SAFETY: as for `alloc`.
        None => unsafe { pass_get_device(into, *frame) },
    }
}

/// With the calling thread's seat, if it has one that knows what is current.
#[inline]
fn seated<R>(work: impl FnOnce(&mut ThreadContext<'static>) -> Option<R>) -> Option<R> {
    match IS_LATE.load(Relaxed) {
        true => None,
        false => already_seated(work),
    }
}

/// The current context's device, which the runtime library numbers as the driver does.
#[inline]
fn device() -> Option<c_int> {
    seated(|seat| c_int::try_from(seat.current_device()?).ok())
}

/// Allocates in a stream's order; none if the runtime library is to answer.
///
/// # Safety
/// As for [`fercuda_regime::tenant`]; `into` is null or may be written.
#[inline]
unsafe fn allocated(
    into: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    frame: *const usize,
) -> Option<()> {
    if into.is_null() || bytes == 0 {
        return None;
    }
    seated(|seat| {
        let ordered = ordered(seat, stream)?;
        let of = ordered.pool?;
        // SAFETY: passed on.
        let tenant = unsafe { tenant(seat.governor(), frame) };
        // What is refused the driver's door refuses again, and tells.
        let address = seat.try_allocate_ordered(&ordered, tenant, of, bytes as u64)?;
        // SAFETY: not null; the program's own.
        unsafe { into.write(address) };
        trace::allocated(address, bytes as u64, PoolPlace::Stream(ordered.stream.id));
        Some(())
    })
}

/// Frees a block behind the work of a stream; none if the runtime library is to
/// answer.
#[inline]
fn freed(address: CUdeviceptr, stream: CUstream) -> Option<()> {
    seated(|seat| {
        seat.touch(address);
        let ordered = ordered(seat, stream)?;
        let (freed, place) = seat.free_ordered(&ordered, address)?;
        trace::freed(address, freed.requested_bytes, place);
        Some(())
    })
}

/// What a call comes to that needs nothing of the runtime library's. That makes
/// a context current where none is, whatever the stream's is.
#[inline]
fn ordered(seat: &mut ThreadContext<'static>, stream: CUstream) -> Option<ResolvedStream<'static>> {
    let is_default = [CUstream::NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD].contains(&stream);
    // A default stream is the current context's.
    if !is_default && !seat.has_current() {
        return None;
    }
    seat.ordered(stream, false)
}

/// Defines the call of the runtime library's function of a name, of the one that the
/// caller is linked to.
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
    fn a_runtime_librarys_name_has_its_version() {
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
