//! Linear memory that belongs to no stream: `cuMemAlloc` and its kin.
//!
//! A block may be used anywhere at once, and is freed behind all work queued so
//! far; neither waits, though the driver's own calls may.

use core::ffi::c_uint;

use fercuda_cuda_sys::types::{CUdeviceptr, CUdeviceptr_v1, CUresult};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_governor::{
    AllocationDenied, GovernedDevice, GovernedKey, GovernedPiece, Governor, PoolNumber,
    ThreadContext,
};
use fercuda_ledger::{Governed, Tenant};
use fercuda_pool::{Error, PoolPlace};

use super::asked;
use super::identity::NOWHERE;
use crate::caller;
use crate::process::{around, ask, governor, guarded, seated};
use crate::{say, trace};

/// Rows of pitched memory begin at multiples of so much; see `alloc_pitch`.
const PITCH_BYTES: usize = 512;

asked!(alloc_entry => alloc);
asked!(alloc_pitch_entry => alloc_pitch);
asked!(alloc_managed_entry => alloc_managed);
asked!(alloc_v1_entry => alloc_v1);
asked!(alloc_pitch_v1_entry => alloc_pitch_v1);

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
    let done = unsafe { pooled(into, bytes, frame) };
    done.unwrap_or_else(|| {
        // SAFETY: as above.
        let tenant = || unsafe { tenant_of(frame) };
        // SAFETY: the program's own arguments, of which the driver writes `into`.
        unsafe {
            fall_back(into, bytes as u64, tenant, |driver| {
                driver.cuMemAlloc_v2(into, bytes)
            })
        }
    })
}

/// The tenant who called.
///
/// # Safety
/// As for [`caller::tenant`].
pub(super) unsafe fn tenant_of(frame: *const usize) -> Tenant {
    // SAFETY: passed on.
    let tenant = guarded(|| Some(unsafe { caller::tenant(governor()?, frame) }));
    tenant.unwrap_or(Tenant::OTHERS)
}

/// Allocates from the pool of the current context's device; none if the driver
/// is to answer.
///
/// # Safety
/// `into` is null or may be written; `frame` as for [`caller::tenant`].
unsafe fn pooled(into: *mut CUdeviceptr, bytes: usize, frame: *const usize) -> Option<CUresult> {
    if into.is_null() || bytes == 0 {
        return None;
    }
    seated(|seat| {
        // The driver says what it makes of a call that a capture forbids.
        if seat.governor().may_not_wait() {
            return None;
        }
        let context = seat.current()?;
        // SAFETY: passed on.
        let tenant = unsafe { caller::tenant(seat.governor(), frame) };
        let got = seat.allocate(
            tenant,
            context,
            PoolPlace::Anywhere,
            PoolNumber::NONE,
            bytes as u64,
        );
        // SAFETY: not null; the program's own.
        unsafe { give(seat, context.1, into, got, bytes, PoolPlace::Anywhere) }
    })
}

/// Hands an allocation to the program.
///
/// # Safety
/// `into` may be written.
pub(super) unsafe fn give(
    seat: &mut ThreadContext<'static>,
    device: u32,
    into: *mut CUdeviceptr,
    got: Result<u64, AllocationDenied>,
    bytes: usize,
    place: PoolPlace,
) -> Option<CUresult> {
    match got {
        Ok(address) => {
            // SAFETY: the caller's promise.
            unsafe { into.write(address) };
            trace::allocated(address, bytes as u64, place);
            Some(CUresult::CUDA_SUCCESS)
        }
        Err(AllocationDenied::Driver) => None,
        Err(AllocationDenied::OutOfMemory(error)) => {
            if let Some(device) = seat.governor().device(device) {
                tell(seat, device, &error);
            }
            Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
        }
    }
}

/// Says who holds what, the first time that somebody is refused: frameworks
/// ask again and again, having freed something.
#[cold]
fn tell(seat: &ThreadContext<'static>, device: &GovernedDevice, error: &Error) {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Relaxed) {
        say(&seat.governor().report(device, error));
    }
}

/// Lets the driver allocate, and charges what it gives.
///
/// # Safety
/// `call` succeeds only if it has written `into`.
#[cold]
unsafe fn fall_back(
    into: *mut CUdeviceptr,
    bytes: u64,
    tenant: impl FnOnce() -> Tenant,
    call: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    governed(Governed::Linear, bytes, tenant, call, || {
        // SAFETY: the driver has just written it.
        GovernedKey::Address(unsafe { *into })
    })
}

/// Lets the driver make memory of `kind`, and charges it to the budget and to
/// who asked. `key` is asked for when it was made.
pub(super) fn governed(
    kind: Governed,
    bytes: u64,
    tenant: impl FnOnce() -> Tenant,
    call: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
    key: impl FnOnce() -> GovernedKey,
) -> CUresult {
    let piece = (bytes > 0).then(|| {
        seated(|seat| {
            let (context, device) = seat.current()?;
            // The driver's pools are no context's.
            let is_its = kind != Governed::DriverPool;
            Some(GovernedPiece {
                device,
                tenant: tenant(),
                kind,
                bytes,
                context: is_its.then_some(context),
            })
        })
    });
    let Some(piece) = piece.flatten() else {
        return ask(call);
    };
    admitted(&piece, call, |governor| governor.made(key(), piece))
}

/// Makes a piece if there is room for it; if the driver has none, the pool
/// gives it what it can do without.
pub(super) fn admitted(
    piece: &GovernedPiece,
    call: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
    made: impl FnOnce(&'static Governor),
) -> CUresult {
    around(call, |governor, call| {
        if !governor.admit(piece) {
            return CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        }
        let mut result = call();
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY
            && let Some(device) = governor.device(piece.device)
            && device.trim() > 0
        {
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
    let sound = !into.is_null() && !pitch.is_null() && matches!(element, 4 | 8 | 16);
    if let (true, Some(row), Some(bytes)) = (sound, row, size) {
        // SAFETY: as in `alloc`.
        if let Some(result) = unsafe { pooled(into, bytes, frame) } {
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
        fall_back(into, size.unwrap_or(0) as u64, tenant, |driver| {
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
    governed(
        Governed::Managed,
        bytes as u64,
        tenant,
        // SAFETY: the program's own arguments.
        |driver| unsafe { driver.cuMemAllocManaged(into, bytes, flags) },
        // SAFETY: the driver has just written it.
        || GovernedKey::Address(unsafe { *into }),
    )
}

/// Addresses of 32 bits: only the driver can find such.
unsafe extern "C" fn alloc_v1(
    into: *mut CUdeviceptr_v1,
    bytes: c_uint,
    _: usize,
    _: usize,
    _: usize,
    frame: *const usize,
) -> CUresult {
    governed(
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
    governed(
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
    released(GovernedKey::Address(u64::from(address)), |driver| unsafe {
        driver.cuMemFree(address)
    })
}

/// Frees a block of the pool, however it was allocated, or else lets the driver
/// free what it gave.
pub(super) unsafe extern "C" fn free(address: CUdeviceptr) -> CUresult {
    let freed = seated(|seat| {
        seat.touch(address);
        if seat.governor().may_not_wait() || seat.is_current_over() {
            return None;
        }
        let freed = seat.free(address, PoolPlace::Anywhere, |_| true)?;
        trace::freed(address, freed.requested_bytes, PoolPlace::Anywhere);
        Some(())
    });
    if freed.is_some() {
        return CUresult::CUDA_SUCCESS;
    }
    // SAFETY: the program's own argument.
    pass_free(address, |driver, address| unsafe {
        driver.cuMemFree_v2(address)
    })
}

/// Lets the driver free something, and gives back what was charged for it.
/// A slab of the pool, which it would free, is not shown to it.
pub(super) fn pass_free(
    address: u64,
    call: impl Fn(&'static Driver, u64) -> Result<CUresult, Missing>,
) -> CUresult {
    let is_slab = guarded(|| Some(governor()?.is_slab(address)));
    let asked = if is_slab == Some(true) {
        NOWHERE
    } else {
        address
    };
    released(GovernedKey::Address(address), |driver| call(driver, asked))
}

/// Lets the driver take back what stands under a key.
pub(super) fn released(
    key: GovernedKey,
    call: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    around(call, |governor, call| {
        // Taken out first: once the driver has it back another thread may be
        // given the same key.
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
