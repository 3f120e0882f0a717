//! Devices that use each other's memory.
//!
//! The driver is asked first. What it allows of memory that it allocated is
//! then allowed of the pool's.

use core::ffi::c_uint;

use fercuda_cuda_sys::types::{
    CUcontext, CUmemAccess_flags, CUmemAccessDesc, CUmemLocationType, CUmemoryPool, CUresult,
};
use fercuda_governor::{Governor, PoolProvider};

use crate::process::{ask, governor, guarded, seated};

const NONE: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
const BOTH: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

/// Lets the current context's device use all memory of a context.
pub(super) unsafe extern "C" fn enable(peer: CUcontext, flags: c_uint) -> CUresult {
    // SAFETY: the program's own arguments.
    let result = ask(|driver| unsafe { driver.cuCtxEnablePeerAccess(peer, flags) });
    let known = || {
        let (_, to) = seated(|seat| seat.current())?;
        let governor = governor()?;
        let (_, owner) = governor.context(peer)?;
        governor.grant(owner, to.try_into().ok()?, BOTH)
    };
    // Of another thread that has just been allowed it the grant may be yet to
    // come; a second one changes nothing.
    let was_before = CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    if result != CUresult::CUDA_SUCCESS && result != was_before {
        return result;
    }
    let is_granted = guarded(known).is_none_or(|it| it == CUresult::CUDA_SUCCESS);
    if is_granted || result == was_before {
        return result;
    }
    // Mapped memory cannot be opened to it: then none is, and the program copies.
    // SAFETY: the program's own argument.
    let _it_was_enabled = ask(|driver| unsafe { driver.cuCtxDisablePeerAccess(peer) });
    CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
}

/// Lets devices use the memory of a pool, which may be ours.
pub(super) unsafe extern "C" fn pool_set_access(
    pool: CUmemoryPool,
    map: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    // SAFETY: the program's own arguments.
    let result = ask(|driver| unsafe { driver.cuMemPoolSetAccess(pool, map, count) });
    if result != CUresult::CUDA_SUCCESS || count == 0 {
        return result;
    }
    // SAFETY: the driver has just read as many.
    let all = unsafe { core::slice::from_raw_parts(map, count) };
    let refused = guarded(|| {
        let governor = governor()?;
        let PoolProvider::Here(owner, _) = governor.served(pool) else {
            return None;
        };
        let refused = granted(governor, owner, all);
        if refused == CUresult::CUDA_SUCCESS {
            return None;
        }
        let mut none = all.to_vec();
        none.retain(|to| to.location.id != owner as i32);
        none.iter_mut().for_each(|to| to.flags = NONE);
        // SAFETY: `none` outlives the call.
        let _what_it_had_allowed =
            ask(|driver| unsafe { driver.cuMemPoolSetAccess(pool, none.as_ptr(), none.len()) });
        Some(refused)
    });
    refused.unwrap_or(result)
}

fn granted(governor: &Governor, owner: u32, all: &[CUmemAccessDesc]) -> CUresult {
    let device = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let others = all.iter().filter(|to| {
        let is_other = to.location.r#type == device && to.location.id != owner as i32;
        is_other && to.flags != NONE
    });
    // What the driver allocated cannot be opened like this.
    let refused = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    let mut answers = others.map(|to| {
        let granted = governor.grant(owner, to.location.id, to.flags);
        granted.unwrap_or(refused)
    });
    let refused = answers.find(|answer| *answer != CUresult::CUDA_SUCCESS);
    refused.unwrap_or(CUresult::CUDA_SUCCESS)
}
