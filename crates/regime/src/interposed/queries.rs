//! Queries about memory: sizes, address ranges, pointer attributes.
//!
//! To the driver a block is part of a large mapping. Programs get the block's own start,
//! length, buffer ID and context. Attributes of the mapping stay the driver's answer.

use core::ffi::{c_uint, c_void};

use fercuda_cuda_sys::types::{
    CUcontext, CUdeviceptr, CUmemAllocationHandleType, CUmemoryPool, CUpointer_attribute, CUresult,
};
use fercuda_governor::{ContextId, Governor, PoolNumber};

use crate::process::{answer, call_driver, catch_panic, governor, with_thread_context};
use crate::real_driver;

/// An address that no driver allocates.
pub(super) const UNMAPPED_ADDRESS: CUdeviceptr = 0x1000;

/// Returns free and total memory within the limit; the pool's free blocks count as free.
pub(super) unsafe extern "C" fn info(free: *mut usize, total: *mut usize) -> CUresult {
    let Some(driver) = real_driver::table() else {
        return CUresult::CUDA_ERROR_STUB_LIBRARY;
    };
    let (mut driver_free, mut driver_total) = (0, 0);
    // SAFETY: both outlive the call.
    let queried = unsafe { driver.cuMemGetInfo_v2(&mut driver_free, &mut driver_total) };
    let result = answer(queried);
    if result != CUresult::CUDA_SUCCESS || free.is_null() || total.is_null() {
        // SAFETY: the program's own arguments.
        return answer(unsafe { driver.cuMemGetInfo_v2(free, total) });
    }
    let governed = with_thread_context(|seat| {
        let (_, ordinal) = seat.current()?;
        let governor = seat.governor();
        let device = governor.device(ordinal)?;
        governor.reconcile(device);
        Some(governor.reported_memory(device, driver_free as u64))
    });
    let (shown_free, shown_total) = governed.unwrap_or((driver_free as u64, driver_total as u64));
    // SAFETY: not null; the program's own.
    unsafe {
        free.write(shown_free as usize);
        total.write(shown_total as usize);
    }
    result
}

/// What kind of memory a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockKind {
    /// Of `cuMemAlloc`.
    Plain,
    /// Stream-ordered.
    Ordered,
    /// Of another process.
    Imported,
}

/// A block as programs see it: one of the pool, or an imported one of another process.
struct VisibleBlock {
    address: u64,
    kind: BlockKind,
    /// The requested size.
    bytes: u64,
    /// The buffer ID.
    buffer: u64,
    /// `None` for stream-ordered memory.
    context: Option<ContextId>,
    device: u32,
    /// The memory pool that it was requested from.
    pool: PoolNumber,
}

/// The block that contains an address.
fn find_block(address: u64) -> Option<VisibleBlock> {
    catch_panic(|| find_block_in(governor()?, address))
}

fn find_block_in(governor: &Governor, address: u64) -> Option<VisibleBlock> {
    let Some((device, live)) = governor.find(address) else {
        let imported = governor.imported(address)?;
        return Some(VisibleBlock {
            address: imported.address,
            kind: BlockKind::Imported,
            bytes: imported.bytes,
            buffer: imported.buffer,
            context: Some(imported.context),
            device: 0,
            pool: PoolNumber::NONE,
        });
    };
    let is_inside = address - live.span.address < live.requested_bytes;
    is_inside.then_some(VisibleBlock {
        address: live.span.address,
        kind: match live.note.is_ordered() {
            true => BlockKind::Ordered,
            false => BlockKind::Plain,
        },
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
    // The driver is called first, since it refuses some callers.
    // SAFETY: the program's own arguments.
    let result =
        call_driver(|driver| unsafe { driver.cuMemGetAddressRange_v2(base, bytes, address) });
    if result != CUresult::CUDA_SUCCESS {
        return result;
    }
    if let Some(block) = find_block(address) {
        // SAFETY: the program may leave either out.
        unsafe {
            if let Some(base) = base.as_mut() {
                *base = block.address;
            }
            if let Some(bytes) = bytes.as_mut() {
                *bytes = block.bytes as usize;
            }
        }
    } else if is_unallocated(address) {
        // As for freed memory.
        return CUresult::CUDA_ERROR_NOT_FOUND;
    }
    result
}

/// Whether an address lies in the pool or in imported memory, but in no block.
pub(super) fn is_unallocated(address: u64) -> bool {
    let is_inside = |governor: &Governor| {
        governor.is_pooled(address) || governor.is_in_imported_memory(address)
    };
    let is_ours = catch_panic(|| Some(is_inside(governor()?)));
    is_ours == Some(true) && find_block(address).is_none()
}

/// Writes a block's own value of an attribute. Returns whether it has one; else the driver's
/// value applies.
///
/// # Safety
/// `data` may be written with a value of the attribute's type.
unsafe fn write_attribute(
    data: *mut c_void,
    attribute: CUpointer_attribute,
    block: &VisibleBlock,
) -> bool {
    // SAFETY: the caller's promise.
    let written = catch_panic(|| unsafe {
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
                // As for allocated memory, whatever devices have access; for mapped
                // memory a driver returns those that do.
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
    written.is_some()
}

/// Corrects the driver's value of an attribute for a block.
///
/// # Safety
/// `data` holds the driver's answer.
unsafe fn correct_attribute(
    data: *mut c_void,
    attribute: CUpointer_attribute,
    block: &VisibleBlock,
) {
    let value = match attribute {
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => match block.kind {
            // It has no IPC handle, though its slab has.
            BlockKind::Ordered => false,
            BlockKind::Plain if is_exportable(block.address) => true,
            BlockKind::Plain | BlockKind::Imported => return,
        },
        // Its mapping can be exported, but not by the program.
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => false,
        _ => return,
    };
    // The values are small, in one byte, in four or in eight.
    // SAFETY: the caller's promise.
    unsafe { data.cast::<u8>().write(u8::from(value)) };
}

/// Whether mapped memory can be exported; false for other memory.
fn is_exportable(address: u64) -> bool {
    let mut kinds = 0u64;
    let which = CUpointer_attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES;
    // SAFETY: `kinds` outlives the call.
    let asked = call_driver(|driver| unsafe {
        driver.cuPointerGetAttribute((&raw mut kinds).cast(), which, address)
    });
    let by_descriptor = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    asked == CUresult::CUDA_SUCCESS && kinds & u64::from(by_descriptor.0) != 0
}

pub(super) unsafe extern "C" fn attribute(
    data: *mut c_void,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> CUresult {
    if !data.is_null()
        && let Some(block) = find_block(address)
    {
        // SAFETY: not null; the program's own.
        if unsafe { write_attribute(data, attribute, &block) } {
            return CUresult::CUDA_SUCCESS;
        }
        // SAFETY: the program's own arguments.
        let result =
            call_driver(|driver| unsafe { driver.cuPointerGetAttribute(data, attribute, address) });
        if result == CUresult::CUDA_SUCCESS {
            // SAFETY: the driver has just written it.
            unsafe { correct_attribute(data, attribute, &block) };
        }
        return result;
    }
    if is_unallocated(address) {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the program's own arguments.
    call_driver(|driver| unsafe { driver.cuPointerGetAttribute(data, attribute, address) })
}

pub(super) unsafe extern "C" fn attributes(
    count: c_uint,
    which: *mut CUpointer_attribute,
    data: *mut *mut c_void,
    address: CUdeviceptr,
) -> CUresult {
    let Some(driver) = real_driver::table() else {
        return CUresult::CUDA_ERROR_STUB_LIBRARY;
    };
    // Free memory of the pool looks unmapped to the program.
    let queried = if is_unallocated(address) {
        UNMAPPED_ADDRESS
    } else {
        address
    };
    // SAFETY: the program's own arguments.
    let result = answer(unsafe { driver.cuPointerGetAttributes(count, which, data, queried) });
    if result != CUresult::CUDA_SUCCESS {
        return result;
    }
    let Some(block) = find_block(address) else {
        return result;
    };
    for n in 0..count as usize {
        // SAFETY: the driver has just read and written `count` of both, and refuses null
        // places.
        unsafe {
            let (attribute, data) = (*which.add(n), *data.add(n));
            if !data.is_null() {
                write_attribute(data, attribute, &block);
                correct_attribute(data, attribute, &block);
            }
        }
    }
    result
}
