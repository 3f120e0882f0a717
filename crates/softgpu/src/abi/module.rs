//! Modules and the linker.

use std::ffi::{c_char, c_uint, c_void};
use std::sync::{Arc, Mutex};

use fercuda_cuda_sys::types::*;

use super::files::{MAX_MODULE_BYTES, contents};
use super::{put, put_if, slice, text};
use crate::device::context::current;
use crate::device::image::{compile, text_of, text_of_bytes};
use crate::device::module;
use crate::device::objects::{Jit, Link, LinkState, SoftModule};
use crate::device::{CuResult, err, lock, machine};
use crate::exec::CompiledModule;

/// Compiles what a client calls an image.
pub(super) unsafe fn image(
    image: *const c_void,
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> CuResult<Arc<CompiledModule>> {
    // SAFETY: the client promises `count` options and values.
    let mut jit = unsafe { Jit::read(count, options, values)? };
    // SAFETY: the client promises an image.
    let done = unsafe { text_of(image, &mut jit) }.and_then(|text| compile(&text, &mut jit));
    jit.finish();
    done
}

/// The same from a file.
pub(super) unsafe fn file(
    path: *const c_char,
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> CuResult<Arc<CompiledModule>> {
    // SAFETY: the client promises a terminated path.
    let path = unsafe { text(path)? };
    // SAFETY: the client promises `count` options and values.
    let mut jit = unsafe { Jit::read(count, options, values)? };
    let bytes = contents(path, MAX_MODULE_BYTES)?;
    let done = text_of_bytes(&bytes, &mut jit).and_then(|text| compile(&text, &mut jit));
    jit.finish();
    done
}

unsafe fn load(
    out: *mut CUmodule,
    what: *const c_void,
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> CuResult {
    let (m, ctx) = current()?;
    if out.is_null() {
        return Err(err::INVALID_VALUE);
    }
    // SAFETY: the client's promises are `image`'s; `out` has room.
    unsafe {
        let image = image(what, count, options, values)?;
        put(
            out,
            CUmodule(module::load(m, &ctx, image, 0)?.handle as *mut _),
        )
    }
}

fn find(handle: CUmodule) -> CuResult<Arc<SoftModule>> {
    machine()?
        .modules
        .get(handle.0 as usize)
        .ok_or(err::INVALID_HANDLE)
}

fn link(state: CUlinkState) -> CuResult<Arc<Link>> {
    machine()?
        .links
        .get(state.0 as usize)
        .ok_or(err::INVALID_HANDLE)
}

unsafe fn link_create(
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
    out: *mut CUlinkState,
) -> CuResult {
    let (m, _) = current()?;
    if out.is_null() {
        return Err(err::INVALID_VALUE);
    }
    // SAFETY: the client promises `count` options and values, which live as long as the link.
    let jit = unsafe { Jit::read(count, options, values)? };
    let state = LinkState {
        jit,
        inputs: Vec::new(),
        output: None,
    };
    let (handle, _) = m.links.insert_with(|_| {
        Arc::new(Link {
            state: Mutex::new(state),
        })
    });
    // SAFETY: checked for null above.
    unsafe { put(out, CUlinkState(handle as *mut _)) }
}

unsafe fn link_data(
    state: CUlinkState,
    kind: CUjitInputType,
    data: *const c_void,
    size: usize,
    name: *const c_char,
) -> CuResult {
    let link = link(state)?;
    // SAFETY: the client promises `size` bytes.
    let bytes = unsafe { slice(data.cast::<u8>(), size)? };
    let name = if name.is_null() {
        "input"
    } else {
        // SAFETY: the client promises a terminated name.
        unsafe { text(name)? }
    };
    lock(&link.state).add(kind.0, bytes, name)
}

unsafe fn link_file(state: CUlinkState, kind: CUjitInputType, path: *const c_char) -> CuResult {
    let link = link(state)?;
    // SAFETY: the client promises a terminated path.
    let path = unsafe { text(path)? };
    let bytes = contents(path, MAX_MODULE_BYTES)?;
    lock(&link.state).add(kind.0, &bytes, path)
}

driver_fns! {
    fn cuModuleLoadData[](module: *mut CUmodule, image: *const c_void) {
        load(module, image, 0, std::ptr::null_mut(), std::ptr::null_mut())
    }

    fn cuModuleLoadDataEx[](
        module: *mut CUmodule, image: *const c_void, num_options: c_uint, options: *mut CUjit_option,
        option_values: *mut *mut c_void,
    ) {
        load(module, image, num_options, options, option_values)
    }

    fn cuModuleLoadFatBinary[](module: *mut CUmodule, fat_cubin: *const c_void) {
        load(module, fat_cubin, 0, std::ptr::null_mut(), std::ptr::null_mut())
    }

    fn cuModuleLoad[](module: *mut CUmodule, fname: *const c_char) {
        let (m, ctx) = current()?;
        if module.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let image = file(fname, 0, std::ptr::null_mut(), std::ptr::null_mut())?;
        put(module, CUmodule(module::load(m, &ctx, image, 0)?.handle as *mut _))
    }

    fn cuModuleUnload[](module: CUmodule) {
        let m = machine()?;
        m.captures.forbid_unsafe_call()?;
        module::unload(m, module.0 as usize)
    }

    fn cuModuleGetLoadingMode[](mode: *mut CUmoduleLoadingMode) {
        machine()?;
        put(mode, CUmoduleLoadingMode(2))
    }

    fn cuModuleGetFunction[](func: *mut CUfunction, module: CUmodule, name: *const c_char) {
        let module = find(module)?;
        let name = text(name)?;
        if func.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let index = module.loaded.image().kernel(name).ok_or(err::NOT_FOUND)?;
        put(func, CUfunction(module.function(machine()?, index).handle as *mut _))
    }

    fn cuModuleGetFunctionCount[](count: *mut c_uint, module: CUmodule) {
        put(count, find(module)?.loaded.image().kernels().len() as c_uint)
    }

    fn cuModuleEnumerateFunctions[](functions: *mut CUfunction, num_functions: c_uint, module: CUmodule) {
        let module = find(module)?;
        if functions.is_null() || num_functions == 0 {
            return Err(err::INVALID_VALUE);
        }
        for index in 0..module.loaded.image().kernels().len().min(num_functions as usize) {
            *functions.add(index) = CUfunction(module.function(machine()?, index).handle as *mut _);
        }
        Ok(())
    }

    fn cuModuleGetGlobal_v2[](dptr: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char) {
        let (at, len) = find(module)?.global(text(name)?)?;
        if dptr.is_null() && bytes.is_null() {
            return Err(err::INVALID_VALUE);
        }
        put_if(dptr, at);
        put_if(bytes, len as usize);
        Ok(())
    }

    fn cuLinkCreate_v2[](
        num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void, state_out: *mut CUlinkState,
    ) {
        link_create(num_options, options, option_values, state_out)
    }

    fn cuLinkCreate[](
        num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void, state_out: *mut CUlinkState,
    ) {
        link_create(num_options, options, option_values, state_out)
    }

    fn cuLinkAddData_v2[](
        state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize, name: *const c_char,
        num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void,
    ) {
        let _ = (num_options, options, option_values);
        link_data(state, kind, data, size, name)
    }

    fn cuLinkAddData[](
        state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize, name: *const c_char,
        num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void,
    ) {
        let _ = (num_options, options, option_values);
        link_data(state, kind, data, size, name)
    }

    fn cuLinkAddFile_v2[](
        state: CUlinkState, kind: CUjitInputType, path: *const c_char, num_options: c_uint,
        options: *mut CUjit_option, option_values: *mut *mut c_void,
    ) {
        let _ = (num_options, options, option_values);
        link_file(state, kind, path)
    }

    fn cuLinkAddFile[](
        state: CUlinkState, kind: CUjitInputType, path: *const c_char, num_options: c_uint,
        options: *mut CUjit_option, option_values: *mut *mut c_void,
    ) {
        let _ = (num_options, options, option_values);
        link_file(state, kind, path)
    }

    fn cuLinkComplete[](state: CUlinkState, cubin_out: *mut *mut c_void, size_out: *mut usize) {
        let link = link(state)?;
        if cubin_out.is_null() {
            return Err(err::INVALID_VALUE);
        }
        let (at, len) = lock(&link.state).complete()?;
        put(cubin_out, at.cast_mut().cast())?;
        put_if(size_out, len);
        Ok(())
    }

    fn cuLinkDestroy[](state: CUlinkState) {
        machine()?.links.remove(state.0 as usize).map(|_| ()).ok_or(err::INVALID_HANDLE)
    }
}
