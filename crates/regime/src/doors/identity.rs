//! What the driver says of memory, made true of blocks.
//!
//! To the driver a block is some bytes of a large mapping. Programs are told of
//! the block: where it begins, how long it is, a number of its own, whose it
//! is. What is about the mapping stays the driver's answer.

use core::ffi::{c_uint, c_void};

use fercuda_cuda_sys::types::{
    CUcontext, CUdeviceptr, CUmemoryPool, CUpointer_attribute, CUresult,
};
use fercuda_governor::{ContextId, Governor, PoolNumber};

use crate::below;
use crate::process::{answer, ask, governor, guarded, seated};

/// An address that no driver gives.
pub(super) const NOWHERE: CUdeviceptr = 0x1000;

/// What is free and there in all: less what is granted, more what the pool has
/// to give.
pub(super) unsafe extern "C" fn info(free: *mut usize, total: *mut usize) -> CUresult {
    let Some(driver) = below::driver() else {
        return CUresult::CUDA_ERROR_STUB_LIBRARY;
    };
    let (mut driver_free, mut driver_total) = (0, 0);
    // SAFETY: both outlive the call.
    let asked = unsafe { driver.cuMemGetInfo_v2(&mut driver_free, &mut driver_total) };
    let result = answer(asked);
    if result != CUresult::CUDA_SUCCESS || free.is_null() || total.is_null() {
        // SAFETY: the program's own arguments.
        return answer(unsafe { driver.cuMemGetInfo_v2(free, total) });
    }
    let told = seated(|seat| {
        let (_, ordinal) = seat.current()?;
        let governor = seat.governor();
        let device = governor.device(ordinal)?;
        governor.reconcile(device);
        Some(governor.reported_memory(device, driver_free as u64))
    });
    let (shown, all) = told.unwrap_or((driver_free as u64, driver_total as u64));
    // SAFETY: not null; the program's own.
    unsafe {
        free.write(shown as usize);
        total.write(all as usize);
    }
    result
}

/// A block as programs see it: one of the pool, or another process's that is
/// open here.
struct Block {
    address: u64,
    /// What was asked for.
    bytes: u64,
    buffer: u64,
    /// None of what is in a stream's order.
    context: Option<ContextId>,
    device: u32,
    /// The pool that it was asked of.
    pool: PoolNumber,
}

/// The block that an address is in.
fn block(address: u64) -> Option<Block> {
    guarded(|| block_of(governor()?, address))
}

fn block_of(governor: &Governor, address: u64) -> Option<Block> {
    let Some((device, live)) = governor.find(address) else {
        let imported = governor.imported(address)?;
        return Some(Block {
            address: imported.address,
            bytes: imported.bytes,
            buffer: imported.buffer,
            context: Some(imported.context),
            device: 0,
            pool: PoolNumber::NONE,
        });
    };
    let is_its = address - live.span.address < live.requested_bytes;
    is_its.then_some(Block {
        address: live.span.address,
        bytes: live.requested_bytes,
        buffer: live.note.buffer,
        context: (!live.note.is_ordered()).then_some(live.note.context),
        device: device.ordinal(),
        pool: live.note.pool,
    })
}

pub(super) unsafe extern "C" fn range(
    base: *mut CUdeviceptr,
    bytes: *mut usize,
    address: CUdeviceptr,
) -> CUresult {
    // Asked first: it does not tell everybody.
    // SAFETY: the program's own arguments.
    let result = ask(|driver| unsafe { driver.cuMemGetAddressRange_v2(base, bytes, address) });
    if result != CUresult::CUDA_SUCCESS {
        return result;
    }
    if let Some(block) = block(address) {
        // SAFETY: the program may leave either out.
        unsafe {
            if let Some(base) = base.as_mut() {
                *base = block.address;
            }
            if let Some(bytes) = bytes.as_mut() {
                *bytes = block.bytes as usize;
            }
        }
    } else if is_nobodys(address) {
        // As for memory that was freed.
        return CUresult::CUDA_ERROR_NOT_FOUND;
    }
    result
}

/// Whether an address is the pool's, or in another process's slab, and in no
/// block.
pub(super) fn is_nobodys(address: u64) -> bool {
    let within =
        |governor: &Governor| governor.is_pooled(address) || governor.is_in_imported_slab(address);
    let is_ours = guarded(|| Some(within(governor()?)));
    is_ours == Some(true) && block(address).is_none()
}

/// Writes what is true of a block; whether there is anything else to say than
/// the driver has.
///
/// # Safety
/// `data` may be written with what the attribute is.
unsafe fn say(data: *mut c_void, attribute: CUpointer_attribute, block: &Block) -> bool {
    // SAFETY: the caller's promise.
    let said = guarded(|| unsafe {
        match attribute {
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => {
                data.cast::<CUdeviceptr>().write(block.address);
            }
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE => {
                data.cast::<usize>().write(block.bytes as usize);
            }
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID => {
                data.cast::<u64>().write(block.buffer);
            }
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
                // As of allocated memory, whoever may use it; a driver tells of
                // mapped memory which devices do.
                const READ_AND_WRITE: u32 = 3;
                data.cast::<u32>().write(READ_AND_WRITE);
            }
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT => {
                let governor = governor()?;
                let context = block.context.and_then(|context| governor.raw(context));
                let context = context.unwrap_or(CUcontext::NULL);
                data.cast::<CUcontext>().write(context);
            }
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => {
                let pool = governor()?.pool_handle(block.device, block.pool);
                data.cast::<CUmemoryPool>().write(pool);
            }
            _ => return None,
        }
        Some(())
    });
    said.is_some()
}

/// Mends what the driver said of a block.
///
/// # Safety
/// `data` holds the driver's answer.
unsafe fn correct(data: *mut c_void, attribute: CUpointer_attribute, block: &Block) {
    let capable = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
    if attribute == capable && block.pool != PoolNumber::NONE {
        // Ordered memory has no handle, though its slab has. The answer is 0 or
        // 1, in one byte or in four.
        // SAFETY: the caller's promise.
        unsafe { data.cast::<u8>().write(0) };
    }
}

pub(super) unsafe extern "C" fn attribute(
    data: *mut c_void,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> CUresult {
    if !data.is_null()
        && let Some(block) = block(address)
    {
        // SAFETY: not null; the program's own.
        if unsafe { say(data, attribute, &block) } {
            return CUresult::CUDA_SUCCESS;
        }
        // SAFETY: the program's own arguments.
        let result =
            ask(|driver| unsafe { driver.cuPointerGetAttribute(data, attribute, address) });
        if result == CUresult::CUDA_SUCCESS {
            // SAFETY: the driver has just written it.
            unsafe { correct(data, attribute, &block) };
        }
        return result;
    }
    if is_nobodys(address) {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the program's own arguments.
    ask(|driver| unsafe { driver.cuPointerGetAttribute(data, attribute, address) })
}

pub(super) unsafe extern "C" fn attributes(
    count: c_uint,
    which: *mut CUpointer_attribute,
    data: *mut *mut c_void,
    address: CUdeviceptr,
) -> CUresult {
    let Some(driver) = below::driver() else {
        return CUresult::CUDA_ERROR_STUB_LIBRARY;
    };
    // Free memory of the pool is nothing to the program, as that address is.
    let asked = if is_nobodys(address) {
        NOWHERE
    } else {
        address
    };
    // SAFETY: the program's own arguments.
    let result = answer(unsafe { driver.cuPointerGetAttributes(count, which, data, asked) });
    if result != CUresult::CUDA_SUCCESS {
        return result;
    }
    let Some(block) = block(address) else {
        return result;
    };
    for n in 0..count as usize {
        // SAFETY: the driver has just read and written as many of both; null
        // among the places is refused by it.
        unsafe {
            let (attribute, data) = (*which.add(n), *data.add(n));
            if !data.is_null() {
                say(data, attribute, &block);
                correct(data, attribute, &block);
            }
        }
    }
    result
}
