//! Launches as they were before `cuLaunchKernel`: a function's block, shared memory and parameters
//! are set one after another, then it is launched.

use std::ffi::{c_int, c_uint, c_void};

use fercuda_cuda_sys::types::*;

use super::launch::{asked, launch};
use super::slice;
use crate::device::attributes as facts;
use crate::device::{CuResult, err, lock};

/// Most bytes of parameters that can be set.
const MAX_PARAM_BYTES: usize = 32_764;

/// Writes part of a function's parameter block.
fn set_param(func: CUfunction, offset: c_int, bytes: &[u8]) -> CuResult {
    let function = asked(func)?;
    let at = usize::try_from(offset).map_err(|_| err::INVALID_VALUE)?;
    let end = at.checked_add(bytes.len()).ok_or(err::INVALID_VALUE)?;
    if end > MAX_PARAM_BYTES {
        return Err(err::INVALID_VALUE);
    }
    let mut state = lock(&function.legacy);
    if state.params.len() < end {
        state.params.resize(end, 0);
    }
    state.params[at..end].copy_from_slice(bytes);
    Ok(())
}

/// Launches with what was set.
fn launch_as_set(
    f: CUfunction,
    width: c_int,
    height: c_int,
    stream: CUstream,
    call: &'static str,
) -> CuResult {
    let state = lock(&asked(f)?.legacy).clone();
    let extent = |n: c_int| u32::try_from(n).ok().filter(|&n| n > 0);
    let (Some(x), Some(y), Some(block)) = (extent(width), extent(height), state.block) else {
        return Err(err::INVALID_VALUE);
    };
    let mut params = state.params;
    params.resize(state.param_bytes, 0);
    let mut size = params.len();
    let mut extra: [*mut c_void; 5] = [
        CU_LAUNCH_PARAM_BUFFER_POINTER,
        params.as_mut_ptr().cast(),
        CU_LAUNCH_PARAM_BUFFER_SIZE,
        (&raw mut size).cast(),
        CU_LAUNCH_PARAM_END,
    ];
    let none = std::ptr::null_mut();
    let (grid, shared) = ([x, y, 1], state.shared_bytes);
    // SAFETY: `extra` is a list that ends, of a buffer and its size, which outlive the call: the
    // parameters are packed before it returns.
    unsafe {
        launch(
            f,
            grid,
            block,
            shared,
            stream,
            &[],
            none,
            extra.as_mut_ptr(),
            false,
            call,
        )
    }
}

driver_fns! {
    fn cuFuncSetBlockShape[](func: CUfunction, x: c_int, y: c_int, z: c_int) {
        let function = asked(func)?;
        let extent = |n: c_int| u32::try_from(n).ok().filter(|&n| n > 0).ok_or(err::INVALID_VALUE);
        let block = [extent(x)?, extent(y)?, extent(z)?];
        let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
        if threads > u64::from(facts::MAX_THREADS) || block[2] > 64 {
            return Err(err::INVALID_VALUE);
        }
        lock(&function.legacy).block = Some(block);
        Ok(())
    }

    fn cuFuncSetSharedSize[](func: CUfunction, bytes: c_uint) {
        let function = asked(func)?;
        if bytes > function.dynamic_shared_limit() {
            return Err(err::INVALID_VALUE);
        }
        lock(&function.legacy).shared_bytes = bytes;
        Ok(())
    }

    fn cuParamSetSize[](func: CUfunction, numbytes: c_uint) {
        let function = asked(func)?;
        if numbytes as usize > MAX_PARAM_BYTES {
            return Err(err::INVALID_VALUE);
        }
        lock(&function.legacy).param_bytes = numbytes as usize;
        Ok(())
    }

    fn cuParamSeti[](func: CUfunction, offset: c_int, value: c_uint) {
        set_param(func, offset, &value.to_ne_bytes())
    }

    fn cuParamSetf[](func: CUfunction, offset: c_int, value: f32) {
        set_param(func, offset, &value.to_ne_bytes())
    }

    fn cuParamSetv[](func: CUfunction, offset: c_int, ptr: *mut c_void, numbytes: c_uint) {
        if numbytes as usize > MAX_PARAM_BYTES {
            return Err(err::INVALID_VALUE);
        }
        set_param(func, offset, slice(ptr.cast::<u8>().cast_const(), numbytes as usize)?)
    }

    // A module's references are known to its kernels without being parameters.
    fn cuParamSetTexRef[](func: CUfunction, texunit: c_int, tex_ref: CUtexref) {
        asked(func)?;
        if texunit != CU_PARAM_TR_DEFAULT {
            return Err(err::INVALID_VALUE);
        }
        let found = crate::device::machine()?.texture_references.get(tex_ref.0 as usize);
        found.map(|_| ()).ok_or(err::INVALID_HANDLE)
    }

    fn cuLaunch[](f: CUfunction) {
        launch_as_set(f, 1, 1, CUstream::NULL, "cuLaunch")
    }

    fn cuLaunchGrid[](f: CUfunction, grid_width: c_int, grid_height: c_int) {
        launch_as_set(f, grid_width, grid_height, CUstream::NULL, "cuLaunchGrid")
    }

    fn cuLaunchGridAsync[](f: CUfunction, grid_width: c_int, grid_height: c_int, stream: CUstream) {
        launch_as_set(f, grid_width, grid_height, stream, "cuLaunchGridAsync")
    }
}
