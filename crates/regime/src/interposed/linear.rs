//! Linear memory outside any stream's order: `cuMemAlloc` and its variants.
//!
//! A block may be used on any stream at once, and is freed behind all work queued so far.
//! Neither call waits, though the driver's own may.

use core::cell::Cell;
use core::ffi::c_uint;

use fercuda_cuda_sys::types::{CUdeviceptr, CUdeviceptr_v1, CUresult};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_governor::{
    AllocationDenied, GovernedDevice, GovernedKey, GovernedPiece, Governor, PoolNumber,
    ThreadContext,
};
use fercuda_ledger::{Governed, Tenant};
use fercuda_pool::{Error, PoolPlace};

use super::entry_stub;
use super::queries::UNMAPPED_ADDRESS;
use crate::caller;
use crate::print_diagnostic;
use crate::process::{call_driver, catch_panic, govern_call, governor, with_thread_context};
use crate::reclaim;
use crate::trace::{self, TracedRequest};

/// The row alignment of pitched memory; see `alloc_pitch`.
const PITCH_BYTES: usize = 512;

entry_stub!(alloc_entry => alloc);
entry_stub!(alloc_pitch_entry => alloc_pitch);
entry_stub!(alloc_managed_entry => alloc_managed);
entry_stub!(alloc_v1_entry => alloc_v1);
entry_stub!(alloc_pitch_v1_entry => alloc_pitch_v1);

unsafe extern "C" fn alloc(
    into: *mut CUdeviceptr,
    bytes: usize,
    _: usize,
    _: usize,
    _: usize,
    frame: *const usize,
) -> CUresult {
    // SAFETY: the entry gave the frame of the call that is under way; `into` is
    // the program's.
    let done = attempted(|attempt| unsafe { allocate_pooled(into, bytes, frame, attempt) });
    done.unwrap_or_else(|| {
        // SAFETY: as above.
        let tenant = || unsafe { tenant_of(frame) };
        // SAFETY: the program's own arguments, of which the driver writes `into`.
        unsafe {
            allocate_with_driver(into, bytes as u64, tenant, |driver| {
                driver.cuMemAlloc_v2(into, bytes)
            })
        }
    })
}

/// The tenant that made the call.
///
/// # Safety
/// As for [`caller::tenant`].
pub(super) unsafe fn tenant_of(frame: *const usize) -> Tenant {
    // SAFETY: passed on.
    let tenant = catch_panic(|| Some(unsafe { caller::tenant(governor()?, frame) }));
    tenant.unwrap_or(Tenant::OTHERS)
}

/// Allocates from the pool of the current context's device; `None` if the driver has to
/// handle the call.
///
/// # Safety
/// `into` is null or may be written; `frame` as for [`caller::tenant`].
unsafe fn allocate_pooled(
    into: *mut CUdeviceptr,
    bytes: usize,
    frame: *const usize,
    attempt: &AllocationAttempt,
) -> Option<CUresult> {
    if into.is_null() || bytes == 0 {
        return None;
    }
    with_thread_context(|seat| {
        // During a capture that forbids the call the driver decides its result.
        if seat.governor().may_not_wait() {
            return None;
        }
        let context = seat.current()?;
        // SAFETY: passed on.
        let tenant = unsafe { caller::tenant(seat.governor(), frame) };
        let allocated = seat.allocate(
            tenant,
            context,
            PoolPlace::Anywhere,
            PoolNumber::NONE,
            bytes as u64,
        );
        // SAFETY: not null; the program's own.
        unsafe {
            let request = TracedRequest {
                device: context.1,
                tenant,
                bytes: bytes as u64,
                place: PoolPlace::Anywhere,
            };
            finish_allocation(seat, into, allocated, request, attempt)
        }
    })
}

/// An attempt to allocate from a pool. The first one that is denied says nothing: the caches of
/// other libraries are asked to release memory, and another attempt follows.
pub(super) struct AllocationAttempt {
    is_last: bool,
    denied: Cell<Option<TracedRequest>>,
}

/// Allocates by `allocate`; if memory is missing, asks the owners of caches to release some and
/// allocates once more.
#[inline]
pub(super) fn attempted(
    allocate: impl Fn(&AllocationAttempt) -> Option<CUresult>,
) -> Option<CUresult> {
    let first = AllocationAttempt {
        is_last: false,
        denied: Cell::new(None),
    };
    let result = allocate(&first);
    let Some(request) = first.denied.take() else {
        return result;
    };
    // Nothing of ours is borrowed or locked here.
    reclaim::ask(request.device, request.tenant);
    allocate(&AllocationAttempt {
        is_last: true,
        denied: Cell::new(None),
    })
}

/// Returns an allocation to the program and traces it; `None` if the driver has to handle
/// the call.
///
/// # Safety
/// `into` may be written.
pub(super) unsafe fn finish_allocation(
    seat: &mut ThreadContext<'static>,
    into: *mut CUdeviceptr,
    allocated: Result<u64, AllocationDenied>,
    request: TracedRequest,
    attempt: &AllocationAttempt,
) -> Option<CUresult> {
    match allocated {
        Ok(address) => {
            // SAFETY: the caller's promise.
            unsafe { into.write(address) };
            trace::record_allocation(seat.governor(), address, request);
            Some(CUresult::CUDA_SUCCESS)
        }
        Err(AllocationDenied::Driver) => None,
        // A tenant's own limit stays what it is, whatever others release.
        Err(AllocationDenied::OutOfMemory(Error::Exhausted { .. })) if !attempt.is_last => {
            attempt.denied.set(Some(request));
            Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
        }
        Err(AllocationDenied::OutOfMemory(error)) => {
            trace::record_failure(seat.governor(), request);
            if let Some(device) = seat.governor().device(request.device) {
                let TracedRequest {
                    tenant,
                    bytes,
                    place,
                    ..
                } = request;
                seat.record_denied(device, tenant, bytes, place, &error);
                report_denial(seat, device, &error);
            }
            Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
        }
    }
}

/// Reports which tenants hold how much at the first denied allocation of the process.
/// Frameworks free memory and retry, so later denials are not reported.
#[cold]
fn report_denial(seat: &ThreadContext<'static>, device: &GovernedDevice, error: &Error) {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Relaxed) {
        print_diagnostic(&seat.governor().report(device, error));
    }
}

/// Allocates linear memory with the driver and charges it.
///
/// # Safety
/// `call` succeeds only if it has written `into`.
#[cold]
unsafe fn allocate_with_driver(
    into: *mut CUdeviceptr,
    bytes: u64,
    tenant: impl FnOnce() -> Tenant,
    call: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    allocate_governed(Governed::Linear, bytes, tenant, call, || {
        // SAFETY: the driver has just written it.
        GovernedKey::Address(unsafe { *into })
    })
}

/// Allocates memory of `kind` with the driver, and charges it to the budget and to the
/// tenant. `key` is called once the driver has allocated.
pub(super) fn allocate_governed(
    kind: Governed,
    bytes: u64,
    tenant: impl FnOnce() -> Tenant,
    call: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
    key: impl FnOnce() -> GovernedKey,
) -> CUresult {
    let piece = (bytes > 0).then(|| {
        with_thread_context(|seat| {
            let (context, device) = seat.current()?;
            // The driver's pools belong to no context.
            let in_context = kind != Governed::DriverPool;
            Some(GovernedPiece {
                device,
                tenant: tenant(),
                kind,
                bytes,
                context: in_context.then_some(context),
            })
        })
    });
    let Some(piece) = piece.flatten() else {
        return call_driver(call);
    };
    admit_and_call(&piece, call, |governor| governor.made(key(), piece))
}

/// Calls the driver to allocate a piece if the budget admits it. If the driver is out of
/// memory, the pool is trimmed and the call retried.
pub(super) fn admit_and_call(
    piece: &GovernedPiece,
    call: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
    made: impl FnOnce(&'static Governor),
) -> CUresult {
    govern_call(call, |governor, call| {
        let mut may_ask = piece.is_on_device();
        let mut ask = || core::mem::take(&mut may_ask) && reclaim::ask(piece.device, piece.tenant);
        if let Err(refused) = governor.try_admit(piece)
            && !(refused.is_of_process() && ask() && governor.try_admit(piece).is_ok())
        {
            governor.record_refusal(piece, refused);
            return CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        }
        let is_out = |result| result == CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let trim = || {
            governor
                .device(piece.device)
                .is_some_and(|it| it.trim() > 0)
        };
        let mut result = call();
        if is_out(result) && trim() {
            result = call();
        }
        if is_out(result) && ask() {
            trim();
            result = call();
        }
        if result == CUresult::CUDA_SUCCESS {
            made(governor);
        } else {
            governor.cancel_admission(piece);
        }
        result
    })
}

/// Pitched memory: rows at multiples of 512 bytes, as the driver lays them out
/// on every device that can map memory.
unsafe extern "C" fn alloc_pitch(
    into: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: core::ffi::c_uint,
    frame: *const usize,
) -> CUresult {
    let row = width.checked_next_multiple_of(PITCH_BYTES);
    let size = row.and_then(|row| row.checked_mul(height));
    let is_valid = !into.is_null() && !pitch.is_null() && matches!(element, 4 | 8 | 16);
    if let (true, Some(row), Some(bytes)) = (is_valid, row, size) {
        // SAFETY: as in `alloc`.
        let done = attempted(|attempt| unsafe { allocate_pooled(into, bytes, frame, attempt) });
        if let Some(result) = done {
            if result == CUresult::CUDA_SUCCESS {
                // SAFETY: not null; the program's own.
                unsafe { pitch.write(row) };
            }
            return result;
        }
    }
    // SAFETY: as in `alloc`.
    let tenant = || unsafe { tenant_of(frame) };
    // SAFETY: the program's own arguments, of which the driver writes `into`.
    unsafe {
        allocate_with_driver(into, size.unwrap_or(0) as u64, tenant, |driver| {
            driver.cuMemAllocPitch_v2(into, pitch, width, height, element)
        })
    }
}

unsafe extern "C" fn alloc_managed(
    into: *mut CUdeviceptr,
    bytes: usize,
    flags: c_uint,
    _: usize,
    _: usize,
    frame: *const usize,
) -> CUresult {
    // SAFETY: as in `alloc`.
    let tenant = || unsafe { tenant_of(frame) };
    allocate_governed(
        Governed::Managed,
        bytes as u64,
        tenant,
        // SAFETY: the program's own arguments.
        |driver| unsafe { driver.cuMemAllocManaged(into, bytes, flags) },
        // SAFETY: the driver has just written it.
        || GovernedKey::Address(unsafe { *into }),
    )
}

/// Addresses of 32 bits, which only the driver can allocate.
unsafe extern "C" fn alloc_v1(
    into: *mut CUdeviceptr_v1,
    bytes: c_uint,
    _: usize,
    _: usize,
    _: usize,
    frame: *const usize,
) -> CUresult {
    allocate_governed(
        Governed::Linear,
        u64::from(bytes),
        // SAFETY: the call is under way.
        || unsafe { tenant_of(frame) },
        // SAFETY: the program's own arguments.
        |driver| unsafe { driver.cuMemAlloc(into, bytes) },
        // SAFETY: the driver has just written it.
        || GovernedKey::Address(u64::from(unsafe { *into })),
    )
}

unsafe extern "C" fn alloc_pitch_v1(
    into: *mut CUdeviceptr_v1,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    element: c_uint,
    frame: *const usize,
) -> CUresult {
    let row = u64::from(width).next_multiple_of(PITCH_BYTES as u64);
    allocate_governed(
        Governed::Linear,
        row.saturating_mul(u64::from(height)),
        // SAFETY: the call is under way.
        || unsafe { tenant_of(frame) },
        // SAFETY: the program's own arguments.
        |driver| unsafe { driver.cuMemAllocPitch(into, pitch, width, height, element) },
        // SAFETY: the driver has just written it.
        || GovernedKey::Address(u64::from(unsafe { *into })),
    )
}

pub(super) unsafe extern "C" fn free_v1(address: CUdeviceptr_v1) -> CUresult {
    // SAFETY: the program's own argument.
    release_governed(GovernedKey::Address(u64::from(address)), |driver| unsafe {
        driver.cuMemFree(address)
    })
}

/// Frees a block of the pool, however it was allocated, or else the driver's allocation.
pub(super) unsafe extern "C" fn free(address: CUdeviceptr) -> CUresult {
    let freed = with_thread_context(|seat| {
        seat.touch(address);
        if seat.governor().may_not_wait() || seat.query_current_over() {
            return None;
        }
        let freed = seat.free(address, PoolPlace::Anywhere, |_| true)?;
        trace::record_free(seat.governor(), &freed);
        Some(())
    });
    if freed.is_some() {
        return CUresult::CUDA_SUCCESS;
    }
    // SAFETY: the program's own argument.
    free_with_driver(address, |driver, address| unsafe {
        driver.cuMemFree_v2(address)
    })
}

/// Frees an allocation with the driver and releases its charge. A slab of the pool, which the
/// driver would free, is hidden from it.
pub(super) fn free_with_driver(
    address: u64,
    call: impl Fn(&'static Driver, u64) -> Result<CUresult, Missing>,
) -> CUresult {
    let is_slab = catch_panic(|| Some(governor()?.is_slab(address)));
    let passed = if is_slab == Some(true) {
        UNMAPPED_ADDRESS
    } else {
        address
    };
    release_governed(GovernedKey::Address(address), |driver| call(driver, passed))
}

/// Releases the memory with this key with the driver, and its charge.
pub(super) fn release_governed(
    key: GovernedKey,
    call: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    govern_call(call, |governor, call| {
        // Removed first: once the driver has released it, another thread may be given the
        // same key.
        let piece = governor.governed().remove(key);
        let result = call();
        match piece {
            Some(piece) if result == CUresult::CUDA_SUCCESS => governor.ended(&piece),
            Some(piece) => {
                governor.governed().insert(key, piece);
            }
            None => {}
        }
        result
    })
}
