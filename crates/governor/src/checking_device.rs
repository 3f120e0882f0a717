//! Devices that check each allocation: the software device, under its checks.
//!
//! A pool would hide its blocks from them. `crates/softgpu/src/abi/extension.rs` describes the
//! function that is asked.

use core::ffi::{c_int, c_void};

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::CUdriverProcAddressQueryResult;

use crate::driver_call::is_done;

/// The driver's version in which functions are looked up.
const VERSION: c_int = 12000;

/// Whether this driver checks the accesses to each allocation. NVIDIA's lacks the function.
pub(crate) fn checks_allocations(driver: &'static Driver) -> bool {
    let mut address: *mut c_void = core::ptr::null_mut();
    let mut status = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
    let name = c"fercudaChecksAllocations";
    // SAFETY: the name is a C string, and both results outlive the call.
    let answer =
        unsafe { driver.cuGetProcAddress_v2(name.as_ptr(), &mut address, VERSION, 0, &mut status) };
    if !is_done(answer) || address.is_null() {
        return false;
    }
    // SAFETY: only the software device has a function of this name, and it has this type.
    let ask = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(address) };
    ask() != 0
}
