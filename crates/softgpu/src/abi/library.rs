//! Libraries and kernels, which belong to no context.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fercuda_cuda_sys::types::*;

use super::{put, put_if, text};
use crate::device::context::current;
use crate::device::module;
use crate::device::objects::{Library, SoftKernel};
use crate::device::{CuResult, err, machine};

fn find(handle: CUlibrary) -> CuResult<Arc<Library>> {
    machine()?
        .libraries
        .get(handle.0 as usize)
        .ok_or(err::INVALID_HANDLE)
}

fn kernel(handle: CUkernel) -> CuResult<Arc<SoftKernel>> {
    machine()?
        .kernels
        .get(handle.0 as usize)
        .ok_or(err::INVALID_HANDLE)
}

unsafe fn global(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
    managed: bool,
) -> CuResult {
    let library = find(library)?;
    let (m, ctx) = current()?;
    // SAFETY: the client promises a terminated name, and room where it does not pass null.
    unsafe {
        let name = text(name)?;
        let is_managed = library
            .image
            .variables()
            .iter()
            .any(|v| &*v.name == name && v.managed);
        if managed != is_managed {
            return Err(err::NOT_FOUND);
        }
        let (at, len) = library.module(m, &ctx)?.global(name)?;
        put_if(dptr, at);
        put_if(bytes, len as usize);
    }
    Ok(())
}

driver_fns! {
    fn cuLibraryLoadData[](
        library: *mut CUlibrary, code: *const c_void, jit_options: *mut CUjit_option,
        jit_options_values: *mut *mut c_void, num_jit_options: c_uint, library_options: *mut CUlibraryOption,
        library_option_values: *mut *mut c_void, num_library_options: c_uint,
    ) {
        let _ = (library_options, library_option_values, num_library_options);
        let m = machine()?;
        if library.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let image = super::module::image(code, num_jit_options, jit_options, jit_options_values)?;
        put(library, CUlibrary(module::load_library(m, image).handle as *mut _))
    }

    fn cuLibraryLoadFromFile[](
        library: *mut CUlibrary, file_name: *const c_char, jit_options: *mut CUjit_option,
        jit_options_values: *mut *mut c_void, num_jit_options: c_uint, library_options: *mut CUlibraryOption,
        library_option_values: *mut *mut c_void, num_library_options: c_uint,
    ) {
        let _ = (library_options, library_option_values, num_library_options);
        let m = machine()?;
        if library.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let image = super::module::file(file_name, num_jit_options, jit_options, jit_options_values)?;
        put(library, CUlibrary(module::load_library(m, image).handle as *mut _))
    }

    fn cuLibraryUnload[](library: CUlibrary) {
        module::unload_library(machine()?, library.0 as usize)
    }

    fn cuLibraryGetKernel[](kernel: *mut CUkernel, library: CUlibrary, name: *const c_char) {
        let library = find(library)?;
        let index = library.image.kernel(text(name)?).ok_or(err::NOT_FOUND)?;
        put(kernel, CUkernel(library.kernels(machine()?)[index] as *mut _))
    }

    fn cuLibraryGetKernelCount[](count: *mut c_uint, lib: CUlibrary) {
        put(count, find(lib)?.image.kernels().len() as c_uint)
    }

    fn cuLibraryEnumerateKernels[](kernels: *mut CUkernel, num_kernels: c_uint, lib: CUlibrary) {
        let library = find(lib)?;
        if kernels.is_null() || num_kernels == 0 {
            return Err(err::INVALID_VALUE);
        }
        for (i, &handle) in library.kernels(machine()?).iter().take(num_kernels as usize).enumerate() {
            *kernels.add(i) = CUkernel(handle as *mut _);
        }
        Ok(())
    }

    fn cuLibraryGetModule[](module: *mut CUmodule, library: CUlibrary) {
        let library = find(library)?;
        let (m, ctx) = current()?;
        put(module, CUmodule(library.module(m, &ctx)?.handle as *mut _))
    }

    fn cuLibraryGetGlobal[](dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char) {
        global(dptr, bytes, library, name, false)
    }

    fn cuLibraryGetManaged[](dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char) {
        global(dptr, bytes, library, name, true)
    }

    fn cuKernelGetFunction[](func: *mut CUfunction, kernel_: CUkernel) {
        kernel(kernel_)?;
        let (m, ctx) = current()?;
        put(func, CUfunction(module::resolve(m, &ctx, kernel_.0 as usize)?.handle as *mut _))
    }

    fn cuKernelGetLibrary[](lib: *mut CUlibrary, kernel_: CUkernel) {
        put(lib, CUlibrary(kernel(kernel_)?.library as *mut _))
    }

    fn cuKernelGetName[](name: *mut *const c_char, func: CUkernel) {
        // The table keeps the text as long as the handle lives.
        put(name, kernel(func)?.c_name.as_ptr())
    }

    fn cuKernelGetParamInfo[](kernel_: CUkernel, param_index: usize, param_offset: *mut usize, param_size: *mut usize) {
        let (offset, size) = module::param_info(kernel(kernel_)?.info(), param_index)?;
        put(param_offset, offset)?;
        put_if(param_size, size);
        Ok(())
    }

    fn cuKernelGetAttribute[](value: *mut c_int, attrib: CUfunction_attribute, kernel_: CUkernel, dev: CUdevice) {
        machine()?.device(dev)?;
        let kernel = kernel(kernel_)?;
        put(value, module::attribute(kernel.info(), &kernel.settings, attrib)?)
    }

    fn cuKernelSetAttribute[](attrib: CUfunction_attribute, val: c_int, kernel_: CUkernel, dev: CUdevice) {
        machine()?.device(dev)?;
        let kernel = kernel(kernel_)?;
        module::set_attribute(kernel.info(), &kernel.settings, attrib, val)
    }

    fn cuKernelSetCacheConfig[](kernel_: CUkernel, config: CUfunc_cache, dev: CUdevice) {
        machine()?.device(dev)?;
        if config.0 > 3 {
            return Err(err::INVALID_VALUE);
        }
        kernel(kernel_)?.settings.cache_config.store(config.0, Ordering::Release);
        Ok(())
    }
}
