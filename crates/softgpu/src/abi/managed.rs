//! Managed memory: advice and prefetch. Memory never migrates, so these only store values.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fercuda_cuda_sys::types::*;

use super::{per_thread, put, slice};
use crate::device::allocation::{Allocation, AllocationSource};
use crate::device::context::current;
use crate::device::launch::enqueue;
use crate::device::memory::{self, NOWHERE, advice_of};
use crate::device::objects::StreamAction;
use crate::device::stream::of_call;
use crate::device::{CuResult, Machine, err};

const CPU: i32 = -1;

/// A location as the older functions encode it: a device's ordinal, or -1 for the host.
fn device_of(m: &Machine, location: CUmemLocation) -> CuResult<i32> {
    match location.r#type.0 {
        1 => Ok(m.device(location.id)?.ordinal as i32),
        2..=4 => Ok(CPU),
        _ => Err(err::INVALID_VALUE),
    }
}

fn managed(m: &Machine, dptr: u64, count: usize) -> CuResult<Arc<Allocation>> {
    let a = m
        .memory
        .find(dptr)
        .filter(|a| matches!(a.source, AllocationSource::Managed))
        .ok_or(err::INVALID_VALUE)?;
    if count == 0 || count as u64 > a.end() - dptr {
        Err(err::INVALID_VALUE)
    } else {
        Ok(a)
    }
}

fn prefetch(dptr: u64, count: usize, to: i32, stream: CUstream, call: &'static str) -> CuResult {
    let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
    let a = managed(m, dptr, count)?;
    a.prefetched.store(to, Ordering::Release);
    enqueue(m, &ctx, &stream, StreamAction::Empty, call)
}

fn advise(m: &Machine, dptr: u64, count: usize, advice: CUmem_advise, device: i32) -> CuResult {
    let a = managed(m, dptr, count)?;
    let bit = if device == CPU {
        1 << 31
    } else {
        1u32 << device.clamp(0, 30)
    };
    match advice {
        CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY => a.read_mostly.store(true, Ordering::Release),
        CUmem_advise::CU_MEM_ADVISE_UNSET_READ_MOSTLY => {
            a.read_mostly.store(false, Ordering::Release)
        }
        CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION => {
            a.preferred.store(device, Ordering::Release)
        }
        CUmem_advise::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => {
            a.preferred.store(NOWHERE, Ordering::Release)
        }
        CUmem_advise::CU_MEM_ADVISE_SET_ACCESSED_BY => {
            a.accessed_by.fetch_or(bit, Ordering::AcqRel);
        }
        CUmem_advise::CU_MEM_ADVISE_UNSET_ACCESSED_BY => {
            a.accessed_by.fetch_and(!bit, Ordering::AcqRel);
        }
        _ => return Err(err::INVALID_VALUE),
    }
    Ok(())
}

unsafe fn answer(
    m: &Machine,
    data: *mut c_void,
    size: usize,
    which: CUmem_range_attribute,
    dptr: u64,
    count: usize,
) -> CuResult {
    use CUmem_range_attribute as R;
    let a = managed(m, dptr, count)?;
    let (read_mostly, preferred, accessed_by, prefetched) = advice_of(&a);
    let kind = |place: i32| match place {
        NOWHERE => 0,
        CPU => 2,
        _ => 1,
    };
    let value = match which {
        R::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY => i32::from(read_mostly),
        R::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION => preferred,
        R::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION => prefetched,
        R::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE => kind(preferred),
        R::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE => kind(prefetched),
        R::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID => preferred.max(0),
        R::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID => prefetched.max(0),
        R::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY => {
            if size == 0 || !size.is_multiple_of(4) || data.is_null() {
                return Err(err::INVALID_VALUE);
            }
            let mut devices: Vec<i32> = (0..31).filter(|d| accessed_by & (1 << d) != 0).collect();
            if accessed_by & (1 << 31) != 0 {
                devices.push(CPU);
            }
            devices.resize(size / 4, NOWHERE);
            // SAFETY: `size` bytes that the client promises.
            unsafe {
                std::ptr::copy_nonoverlapping(devices.as_ptr().cast::<u8>(), data.cast(), size)
            };
            return Ok(());
        }
        _ => return Err(err::INVALID_VALUE),
    };
    if size != 4 {
        return Err(err::INVALID_VALUE);
    }
    // SAFETY: four bytes that the client promises.
    unsafe { put(data.cast::<i32>(), value) }
}

driver_fns! {
    fn cuMemAllocManaged[](dptr: *mut CUdeviceptr, bytes: usize, flags: c_uint) {
        let (m, ctx) = current()?;
        m.captures.forbid_unsafe_call()?;
        if dptr.is_null() || !matches!(flags, 1 | 2) {
            return Err(err::INVALID_VALUE);
        }
        put(dptr, memory::alloc_managed(m, &ctx, bytes as u64)?)
    }

    fn cuMemPrefetchAsync[cuMemPrefetchAsync_ptsz](
        dptr: CUdeviceptr, count: usize, dst_device: CUdevice, stream: CUstream,
    ) {
        let (m, _) = current()?;
        if dst_device != CPU {
            m.device(dst_device)?;
        }
        prefetch(dptr, count, dst_device, stream, "cuMemPrefetchAsync")
    }

    fn cuMemPrefetchAsync_v2[cuMemPrefetchAsync_v2_ptsz](
        dptr: CUdeviceptr, count: usize, location: CUmemLocation, flags: c_uint, stream: CUstream,
    ) {
        let (m, _) = current()?;
        if flags != 0 {
            return Err(err::INVALID_VALUE);
        }
        prefetch(dptr, count, device_of(m, location)?, stream, "cuMemPrefetchAsync_v2")
    }

    fn cuMemAdvise[](dptr: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice) {
        let (m, _) = current()?;
        if device != CPU && !matches!(advice.0, 1 | 2 | 4) {
            m.device(device)?;
        }
        advise(m, dptr, count, advice, device)
    }

    fn cuMemAdvise_v2[](dptr: CUdeviceptr, count: usize, advice: CUmem_advise, location: CUmemLocation) {
        let (m, _) = current()?;
        let device = if matches!(advice.0, 1 | 2 | 4) { CPU } else { device_of(m, location)? };
        advise(m, dptr, count, advice, device)
    }

    fn cuMemRangeGetAttribute[](
        data: *mut c_void, data_size: usize, attribute: CUmem_range_attribute, dptr: CUdeviceptr, count: usize,
    ) {
        let (m, _) = current()?;
        answer(m, data, data_size, attribute, dptr, count)
    }

    fn cuMemRangeGetAttributes[](
        data: *mut *mut c_void, data_sizes: *mut usize, attributes: *mut CUmem_range_attribute, num_attributes: usize,
        dptr: CUdeviceptr, count: usize,
    ) {
        let (m, _) = current()?;
        let (data, sizes) = (slice(data, num_attributes)?, slice(data_sizes, num_attributes)?);
        for ((&out, &size), &which) in data.iter().zip(sizes).zip(slice(attributes, num_attributes)?) {
            answer(m, out, size, which, dptr, count)?;
        }
        Ok(())
    }

    fn cuStreamAttachMemAsync[cuStreamAttachMemAsync_ptsz](
        stream: CUstream, dptr: CUdeviceptr, length: usize, flags: c_uint,
    ) {
        let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
        let a = m.memory.find(dptr).ok_or(err::INVALID_VALUE)?;
        let whole = a.start == dptr && (length == 0 || length as u64 == a.len);
        if !whole || !matches!(flags, 1 | 2 | 4) || !(matches!(a.source, AllocationSource::Managed) || a.is_host()) {
            return Err(err::INVALID_VALUE);
        }
        enqueue(m, &ctx, &stream, StreamAction::Empty, "cuStreamAttachMemAsync")
    }
}
