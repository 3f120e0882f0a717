//! Libraries that a program loads itself, entry points of the driver, its logs.
//!
//! Invariant: a kernel that was handed out may stand where a host function does (`registry`).
//! Elsewhere: device code that programs are compiled with (`registry`).

use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::call::{self, is_per_thread, pointer, put, put_if, wanted};
use crate::device::VERSION;
use crate::error::CudaResult;
use crate::registry::hand_out;
use crate::types::*;

/// Finds a driver function of a version.
///
/// # Safety
/// `symbol` is a C string; the outputs are null or may be written.
unsafe fn entry_point(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
    status: *mut CUdriverProcAddressQueryResult,
) -> CudaResult {
    wanted(symbol)?;
    wanted(function)?;
    // A twin's default is the thread's own stream.
    let flags = match (flags, is_per_thread()) {
        (0, true) => fercuda_cuda_sys::PER_THREAD,
        (flags, _) => flags,
    };
    let (mut address, mut found) = (core::ptr::null_mut(), Default::default());
    // SAFETY: the caller's promise; the outputs outlive the call.
    let result = unsafe {
        drv!(cuGetProcAddress_v2(
            symbol,
            &mut address,
            version,
            flags,
            &mut found
        ))
    };
    // SAFETY: the caller's promise.
    unsafe {
        put(function, address)?;
        put_if(status, found);
    }
    // With a place for the status, a name that is not found is no error.
    match status.is_null() {
        true => result,
        false => result.or_else(|code| match code {
            crate::error::cudaError_t::SYMBOL_NOT_FOUND => Ok(()),
            other => Err(other),
        }),
    }
}

runtime_fns! {
    fn cudaGetDriverEntryPoint[cudaGetDriverEntryPoint_ptsz](
        symbol: *const c_char, function: *mut *mut c_void, flags: c_ulonglong,
        status: *mut CUdriverProcAddressQueryResult,
    ) {
        entry_point(symbol, function, VERSION, flags, status)
    }

    fn cudaGetDriverEntryPointByVersion[cudaGetDriverEntryPointByVersion_ptsz](
        symbol: *const c_char, function: *mut *mut c_void, version: c_uint, flags: c_ulonglong,
        status: *mut CUdriverProcAddressQueryResult,
    ) {
        let version = c_int::try_from(version)
            .map_err(|_| crate::error::cudaError_t::INVALID_VALUE)?;
        entry_point(symbol, function, version, flags, status)
    }

    fn cudaLibraryLoadData[](
        library: *mut cudaLibrary_t, code: *const c_void, jit_options: *mut CUjit_option,
        jit_values: *mut *mut c_void, num_jit: c_uint, options: *mut CUlibraryOption,
        values: *mut *mut c_void, n: c_uint,
    ) {
        wanted(library)?;
        drv!(cuLibraryLoadData(library, code, jit_options, jit_values, num_jit, options, values, n))
    }

    fn cudaLibraryLoadFromFile[](
        library: *mut cudaLibrary_t, file: *const c_char, jit_options: *mut CUjit_option,
        jit_values: *mut *mut c_void, num_jit: c_uint, options: *mut CUlibraryOption,
        values: *mut *mut c_void, n: c_uint,
    ) {
        wanted(library)?;
        drv!(cuLibraryLoadFromFile(
            library, file, jit_options, jit_values, num_jit, options, values, n
        ))
    }

    fn cudaLibraryUnload[](library: cudaLibrary_t) {
        drv!(cuLibraryUnload(library))
    }

    fn cudaLibraryGetKernel[](
        kernel: *mut cudaKernel_t, library: cudaLibrary_t, name: *const c_char,
    ) {
        wanted(kernel)?;
        drv!(cuLibraryGetKernel(kernel, library, name))?;
        hand_out(kernel.read());
        Ok(())
    }

    fn cudaLibraryGetGlobal[](
        out: *mut *mut c_void, bytes: *mut usize, library: cudaLibrary_t, name: *const c_char,
    ) {
        call::context()?;
        let (mut at, mut size) = (0, 0);
        drv!(cuLibraryGetGlobal(&mut at, &mut size, library, name))?;
        put_if(out, pointer(at));
        put_if(bytes, size);
        Ok(())
    }

    fn cudaLibraryGetManaged[](
        out: *mut *mut c_void, bytes: *mut usize, library: cudaLibrary_t, name: *const c_char,
    ) {
        call::context()?;
        let (mut at, mut size) = (0, 0);
        drv!(cuLibraryGetManaged(&mut at, &mut size, library, name))?;
        put_if(out, pointer(at));
        put_if(bytes, size);
        Ok(())
    }

    fn cudaLibraryGetUnifiedFunction[](
        function: *mut *mut c_void, library: cudaLibrary_t, name: *const c_char,
    ) {
        drv!(cuLibraryGetUnifiedFunction(function, library, name))
    }

    fn cudaLibraryGetKernelCount[](count: *mut c_uint, library: cudaLibrary_t) {
        drv!(cuLibraryGetKernelCount(count, library))
    }

    fn cudaLibraryEnumerateKernels[](
        kernels: *mut cudaKernel_t, n: c_uint, library: cudaLibrary_t,
    ) {
        let mut there = 0;
        drv!(cuLibraryGetKernelCount(&mut there, library))?;
        drv!(cuLibraryEnumerateKernels(kernels, n, library))?;
        for index in 0..there.min(n) {
            hand_out(kernels.add(index as usize).read());
        }
        Ok(())
    }

    fn cudaLogsRegisterCallback[](
        callback: CUlogsCallback, user_data: *mut c_void, out: *mut CUlogsCallbackHandle,
    ) {
        drv!(cuLogsRegisterCallback(callback, user_data, out))
    }

    fn cudaLogsUnregisterCallback[](callback: CUlogsCallbackHandle) {
        drv!(cuLogsUnregisterCallback(callback))
    }

    fn cudaLogsCurrent[](out: *mut CUlogIterator, flags: c_uint) {
        drv!(cuLogsCurrent(out, flags))
    }

    fn cudaLogsDumpToFile[](at: *mut CUlogIterator, path: *const c_char, flags: c_uint) {
        drv!(cuLogsDumpToFile(at, path, flags))
    }

    fn cudaLogsDumpToMemory[](
        at: *mut CUlogIterator, buffer: *mut c_char, size: *mut usize, flags: c_uint,
    ) {
        drv!(cuLogsDumpToMemory(at, buffer, size, flags))
    }
}
