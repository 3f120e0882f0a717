//! Peer access between devices.
//!
//! The driver is called first. Access that it grants to its own allocations is then
//! granted to the pool's.

use core::ffi::c_uint;

use fercuda_cuda_sys::types::{
    CUcontext, CUmemAccess_flags, CUmemAccessDesc, CUmemLocationType, CUmemoryPool, CUresult,
};
use fercuda_governor::{Governor, PoolProvider};

use crate::process::{call_driver, catch_panic, governor, with_thread_context};

const NO_ACCESS: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
const READ_WRITE: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

/// Lets the current context's device use all memory of a context.
pub(super) unsafe extern "C" fn enable(peer: CUcontext, flags: c_uint) -> CUresult {
    // SAFETY: the program's own arguments.
    let result = call_driver(|driver| unsafe { driver.cuCtxEnablePeerAccess(peer, flags) });
    let grant = || {
        let (_, to) = with_thread_context(|seat| seat.current())?;
        let governor = governor()?;
        let (_, owner) = governor.context(peer)?;
        governor.grant(owner, to.try_into().ok()?, READ_WRITE)
    };
    // Another thread may have just enabled it and not granted the pool's memory yet;
    // granting twice changes nothing.
    let was_before = CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    if result != CUresult::CUDA_SUCCESS && result != was_before {
        return result;
    }
    let is_granted = catch_panic(grant).is_none_or(|it| it == CUresult::CUDA_SUCCESS);
    if is_granted || result == was_before {
        return result;
    }
    // If the pool's mapped memory cannot be opened to the peer, peer access is disabled
    // again, so that the program copies instead.
    // SAFETY: the program's own argument.
    let _it_was_enabled = call_driver(|driver| unsafe { driver.cuCtxDisablePeerAccess(peer) });
    CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
}

/// Grants devices access to a memory pool, which ours may serve.
pub(super) unsafe extern "C" fn pool_set_access(
    pool: CUmemoryPool,
    map: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    // SAFETY: the program's own arguments.
    let result = call_driver(|driver| unsafe { driver.cuMemPoolSetAccess(pool, map, count) });
    if result != CUresult::CUDA_SUCCESS || count == 0 {
        return result;
    }
    // SAFETY: the driver has just read `count` of them.
    let all = unsafe { core::slice::from_raw_parts(map, count) };
    let refused = catch_panic(|| {
        let governor = governor()?;
        let PoolProvider::Here(owner, _) = governor.served(pool) else {
            return None;
        };
        let refused = grant_all(governor, owner, all);
        if refused == CUresult::CUDA_SUCCESS {
            return None;
        }
        let mut none = all.to_vec();
        none.retain(|to| to.location.id != owner as i32);
        none.iter_mut().for_each(|to| to.flags = NO_ACCESS);
        // SAFETY: `none` outlives the call.
        let _undoes_the_drivers_grant = call_driver(|driver| unsafe {
            driver.cuMemPoolSetAccess(pool, none.as_ptr(), none.len())
        });
        Some(refused)
    });
    refused.unwrap_or(result)
}

fn grant_all(governor: &Governor, owner: u32, all: &[CUmemAccessDesc]) -> CUresult {
    let device = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let others = all.iter().filter(|to| {
        let is_other = to.location.r#type == device && to.location.id != owner as i32;
        is_other && to.flags != NO_ACCESS
    });
    // The pool's device has no memory that can be granted like this.
    let refused = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    let mut answers = others.map(|to| {
        let granted = governor.grant(owner, to.location.id, to.flags);
        granted.unwrap_or(refused)
    });
    let refused = answers.find(|answer| *answer != CUresult::CUDA_SUCCESS);
    refused.unwrap_or(CUresult::CUDA_SUCCESS)
}
