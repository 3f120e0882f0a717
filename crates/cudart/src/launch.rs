//! Launches, attributes of kernels, occupancy.
//!
//! A launch passes the kernel's handle to the driver, so it belongs to whichever context is
//! current. The configuration of `<<<...>>>` is kept by the calling thread between the two calls
//! that nvcc makes of it.
//!
//! Invariant: a launch that the driver refuses for its grid or block is an invalid configuration,
//! as the runtime's reference has it, and not an invalid value.

use core::cell::RefCell;
use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::call::{self, put, stream, wanted};
use crate::error::{CudaResult, cudaError_t};
use crate::registry::{self, function, hand_out, kernel};
use crate::types::*;

/// A configuration between `<<<` and `>>>`.
#[derive(Clone, Copy)]
struct Configuration {
    grid: dim3,
    block: dim3,
    shared: usize,
    stream: cudaStream_t,
}

thread_local! {
    static PUSHED: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

/// Keeps a configuration for the launch that follows; returns 0.
// SAFETY: see `runtime_fns`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __cudaPushCallConfiguration(
    grid: dim3,
    block: dim3,
    shared: usize,
    stream: cudaStream_t,
) -> c_uint {
    let configuration = Configuration {
        grid,
        block,
        shared,
        stream,
    };
    let pushed = PUSHED.try_with(|it| {
        it.try_borrow_mut()
            .map(|mut stack| stack.push(configuration))
            .is_ok()
    });
    c_uint::from(pushed != Ok(true))
}

/// The driver's code for a launch, as the runtime's.
fn launch_code(code: cudaError_t, grid: dim3, block: dim3) -> cudaError_t {
    let threads = u64::from(block.x) * u64::from(block.y) * u64::from(block.z);
    let is_empty = [grid.x, grid.y, grid.z, block.x, block.y, block.z].contains(&0);
    let is_large = threads > 1024 || block.z > 64 || grid.y > 65_535 || grid.z > 65_535;
    let is_large = is_large || grid.x > i32::MAX as u32;
    match code {
        cudaError_t::INVALID_VALUE if is_empty || is_large => cudaError_t::INVALID_CONFIGURATION,
        other => other,
    }
}

/// Launches a kernel.
///
/// # Safety
/// `arguments` has a pointer for each of the kernel's parameters.
unsafe fn launch(
    kernel: CUkernel,
    it: Configuration,
    arguments: *mut *mut c_void,
    attributes: &mut [CUlaunchAttribute],
) -> CudaResult {
    if kernel.is_null() {
        return Err(registry::missing_kernel());
    }
    call::context()?;
    let shared = c_uint::try_from(it.shared).map_err(|_| cudaError_t::INVALID_VALUE)?;
    let function = CUfunction(kernel.0);
    let (grid, block) = (it.grid, it.block);
    let launched = if attributes.is_empty() {
        // SAFETY: the caller's promise; the driver looks the handles up.
        unsafe {
            drv2!(cuLaunchKernel cuLaunchKernel_ptsz(
                function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared,
                it.stream, arguments, core::ptr::null_mut(),
            ))
        }
    } else {
        let config = CUlaunchConfig {
            gridDimX: grid.x,
            gridDimY: grid.y,
            gridDimZ: grid.z,
            blockDimX: block.x,
            blockDimY: block.y,
            blockDimZ: block.z,
            sharedMemBytes: shared,
            hStream: it.stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as c_uint,
        };
        // SAFETY: as above; the attributes outlive the call.
        unsafe {
            drv2!(cuLaunchKernelEx cuLaunchKernelEx_ptsz(
                &config, function, arguments, core::ptr::null_mut(),
            ))
        }
    };
    launched.map_err(|code| launch_code(code, grid, block))
}

fn cooperative() -> CUlaunchAttribute {
    CUlaunchAttribute {
        id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
        value: CUlaunchAttributeValue { cooperative: 1 },
        ..Default::default()
    }
}

/// The driver's configuration of the runtime's, for questions of occupancy.
fn driver_config(it: &cudaLaunchConfig_t) -> CudaResult<CUlaunchConfig> {
    Ok(CUlaunchConfig {
        gridDimX: it.gridDim.x,
        gridDimY: it.gridDim.y,
        gridDimZ: it.gridDim.z,
        blockDimX: it.blockDim.x,
        blockDimY: it.blockDim.y,
        blockDimZ: it.blockDim.z,
        sharedMemBytes: c_uint::try_from(it.dynamicSmemBytes)
            .map_err(|_| cudaError_t::INVALID_VALUE)?,
        hStream: stream(it.stream),
        attrs: it.attrs,
        numAttrs: it.numAttrs,
    })
}

/// An attribute of a kernel on the thread's device.
fn attribute(kernel: CUkernel, which: CUfunction_attribute) -> CudaResult<c_int> {
    let mut value = 0;
    let device = call::device()?;
    // SAFETY: the output outlives the call.
    unsafe { drv!(cuKernelGetAttribute(&mut value, which, kernel, device)) }?;
    Ok(value)
}

fn attributes(kernel: CUkernel) -> CudaResult<cudaFuncAttributes> {
    use CUfunction_attribute as A;
    let get = |which| attribute(kernel, which);
    let size = |which| Ok::<_, cudaError_t>(attribute(kernel, which)?.max(0) as usize);
    let or_0 = |which| get(which).unwrap_or(0);
    Ok(cudaFuncAttributes {
        sharedSizeBytes: size(A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
        constSizeBytes: size(A::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES)?,
        localSizeBytes: size(A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        maxThreadsPerBlock: get(A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        numRegs: get(A::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
        ptxVersion: get(A::CU_FUNC_ATTRIBUTE_PTX_VERSION)?,
        binaryVersion: get(A::CU_FUNC_ATTRIBUTE_BINARY_VERSION)?,
        cacheModeCA: get(A::CU_FUNC_ATTRIBUTE_CACHE_MODE_CA)?,
        maxDynamicSharedSizeBytes: get(A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)?,
        preferredShmemCarveout: get(A::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)?,
        clusterDimMustBeSet: or_0(A::CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET),
        requiredClusterWidth: or_0(A::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH),
        requiredClusterHeight: or_0(A::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT),
        requiredClusterDepth: or_0(A::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH),
        clusterSchedulingPolicyPreference: or_0(
            A::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
        ),
        nonPortableClusterSizeAllowed: or_0(A::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED),
        reserved: [0; 16],
    })
}

runtime_fns! {
    fn __cudaPopCallConfiguration[](
        grid: *mut dim3, block: *mut dim3, shared: *mut usize, stream: *mut c_void,
    ) {
        let popped = PUSHED.try_with(|it| it.try_borrow_mut().ok().and_then(|mut all| all.pop()));
        let it = popped.ok().flatten().ok_or(cudaError_t::MISSING_CONFIGURATION)?;
        put(grid, it.grid)?;
        put(block, it.block)?;
        put(shared, it.shared)?;
        put(stream.cast::<cudaStream_t>(), it.stream)
    }

    fn __cudaGetKernel[](out: *mut cudaKernel_t, entry: *const c_void) {
        wanted(out)?;
        let found = kernel(entry)?;
        hand_out(found);
        put(out, found)
    }

    fn cudaGetKernel[](kernel_ptr: *mut cudaKernel_t, entry: *const c_void) {
        wanted(kernel_ptr)?;
        let found = kernel(entry)?;
        hand_out(found);
        put(kernel_ptr, found)
    }

    fn __cudaLaunchKernel[__cudaLaunchKernel_ptsz](
        kernel: cudaKernel_t, grid: dim3, block: dim3, args: *mut *mut c_void, shared: usize,
        stream_: cudaStream_t,
    ) {
        launch(kernel, Configuration { grid, block, shared, stream: stream_ }, args, &mut [])
    }

    fn cudaLaunchKernel[cudaLaunchKernel_ptsz](
        func: *const c_void, grid: dim3, block: dim3, args: *mut *mut c_void, shared: usize,
        stream_: cudaStream_t,
    ) {
        let it = Configuration { grid, block, shared, stream: stream_ };
        launch(kernel(func)?, it, args, &mut [])
    }

    fn cudaLaunchCooperativeKernel[cudaLaunchCooperativeKernel_ptsz](
        func: *const c_void, grid: dim3, block: dim3, args: *mut *mut c_void, shared: usize,
        stream_: cudaStream_t,
    ) {
        let it = Configuration { grid, block, shared, stream: stream_ };
        launch(kernel(func)?, it, args, &mut [cooperative()])
    }

    fn cudaLaunchKernelExC[cudaLaunchKernelExC_ptsz](
        config: *const cudaLaunchConfig_t, func: *const c_void, args: *mut *mut c_void,
    ) {
        let config = call::get(config)?;
        let it = Configuration {
            grid: config.gridDim,
            block: config.blockDim,
            shared: config.dynamicSmemBytes,
            stream: config.stream,
        };
        let mut attributes = match config.attrs.is_null() || config.numAttrs == 0 {
            true => Vec::new(),
            false => core::slice::from_raw_parts(config.attrs, config.numAttrs as usize).to_vec(),
        };
        let done = launch(kernel(func)?, it, args, &mut attributes);
        // A device-updatable node's handle is an output of its attribute.
        if done.is_ok() && !attributes.is_empty() {
            core::ptr::copy_nonoverlapping(attributes.as_ptr(), config.attrs, attributes.len());
        }
        done
    }

    fn cudaLaunchHostFunc[cudaLaunchHostFunc_ptsz](
        stream_: cudaStream_t, function: CUhostFn, user_data: *mut c_void,
    ) {
        call::context()?;
        drv2!(cuLaunchHostFunc cuLaunchHostFunc_ptsz(stream_, function, user_data))
    }

    fn cudaFuncGetAttributes[](attr: *mut cudaFuncAttributes, func: *const c_void) {
        wanted(attr)?;
        put(attr, attributes(kernel(func)?)?)
    }

    fn cudaFuncSetAttribute[](func: *const c_void, attr: c_int, value: c_int) {
        if !(8..=15).contains(&attr) {
            return Err(cudaError_t::INVALID_VALUE);
        }
        let kernel = kernel(func)?;
        let device = call::device()?;
        drv!(cuKernelSetAttribute(CUfunction_attribute(attr as _), value, kernel, device))
    }

    fn cudaKernelSetAttributeForDevice[](
        kernel_: cudaKernel_t, attr: c_int, value: c_int, device: c_int,
    ) {
        call::driver()?;
        drv!(cuKernelSetAttribute(CUfunction_attribute(attr as _), value, kernel_, device))
    }

    fn cudaFuncSetCacheConfig[](func: *const c_void, config: c_uint) {
        let kernel = kernel(func)?;
        let device = call::device()?;
        drv!(cuKernelSetCacheConfig(kernel, CUfunc_cache(config), device))
    }

    fn cudaFuncSetSharedMemConfig[](func: *const c_void, config: c_uint) {
        // Banks have had one size since compute capability 5.0; the call changes nothing.
        kernel(func)?;
        match config <= 2 {
            true => Ok(()),
            false => Err(cudaError_t::INVALID_VALUE),
        }
    }

    fn cudaFuncGetName[](name: *mut *const c_char, func: *const c_void) {
        wanted(name)?;
        let kernel = kernel(func)?;
        drv!(cuKernelGetName(name, kernel))
    }

    fn cudaFuncGetParamInfo[](
        func: *const c_void, index: usize, offset: *mut usize, size: *mut usize,
    ) {
        wanted(offset)?;
        let kernel = kernel(func)?;
        drv!(cuKernelGetParamInfo(kernel, index, offset, size))
    }

    fn cudaGetFuncBySymbol[](function_ptr: *mut cudaFunction_t, symbol: *const c_void) {
        wanted(function_ptr)?;
        put(function_ptr, function(symbol)?)
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor[](
        num_blocks: *mut c_int, func: *const c_void, block_size: c_int, shared: usize,
    ) {
        wanted(num_blocks)?;
        let function = function(func)?;
        drv!(cuOccupancyMaxActiveBlocksPerMultiprocessor(num_blocks, function, block_size, shared))
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags[](
        num_blocks: *mut c_int, func: *const c_void, block_size: c_int, shared: usize,
        flags: c_uint,
    ) {
        wanted(num_blocks)?;
        let function = function(func)?;
        drv!(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            num_blocks, function, block_size, shared, flags
        ))
    }

    fn cudaOccupancyAvailableDynamicSMemPerBlock[](
        shared: *mut usize, func: *const c_void, num_blocks: c_int, block_size: c_int,
    ) {
        wanted(shared)?;
        let function = function(func)?;
        drv!(cuOccupancyAvailableDynamicSMemPerBlock(shared, function, num_blocks, block_size))
    }

    fn cudaOccupancyMaxPotentialClusterSize[](
        size: *mut c_int, func: *const c_void, config: *const cudaLaunchConfig_t,
    ) {
        wanted(size)?;
        let config = driver_config(&call::get(config)?)?;
        let function = function(func)?;
        drv!(cuOccupancyMaxPotentialClusterSize(size, function, &config))
    }

    fn cudaOccupancyMaxActiveClusters[](
        clusters: *mut c_int, func: *const c_void, config: *const cudaLaunchConfig_t,
    ) {
        wanted(clusters)?;
        let config = driver_config(&call::get(config)?)?;
        let function = function(func)?;
        drv!(cuOccupancyMaxActiveClusters(clusters, function, &config))
    }
}

/// The driver's parameters of a kernel node; the kernel is named by the host's function.
pub(crate) fn kernel_node(it: &cudaKernelNodeParams) -> CudaResult<CUDA_KERNEL_NODE_PARAMS> {
    Ok(CUDA_KERNEL_NODE_PARAMS {
        func: function(it.func)?,
        gridDimX: it.gridDim.x,
        gridDimY: it.gridDim.y,
        gridDimZ: it.gridDim.z,
        blockDimX: it.blockDim.x,
        blockDimY: it.blockDim.y,
        blockDimZ: it.blockDim.z,
        sharedMemBytes: it.sharedMemBytes,
        kernelParams: it.kernelParams,
        extra: it.extra,
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    })
}

/// The runtime's parameters of the driver's.
pub(crate) fn runtime_kernel_node(it: &CUDA_KERNEL_NODE_PARAMS) -> cudaKernelNodeParams {
    let handle = match it.func.is_null() {
        true => it.kern.0,
        false => it.func.0,
    };
    cudaKernelNodeParams {
        func: registry::host_function(handle),
        gridDim: dim3 {
            x: it.gridDimX,
            y: it.gridDimY,
            z: it.gridDimZ,
        },
        blockDim: dim3 {
            x: it.blockDimX,
            y: it.blockDimY,
            z: it.blockDimZ,
        },
        sharedMemBytes: it.sharedMemBytes,
        kernelParams: it.kernelParams,
        extra: it.extra,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn size(x: u32, y: u32, z: u32) -> dim3 {
        dim3 { x, y, z }
    }

    #[test]
    fn a_grid_that_no_device_has_is_an_invalid_configuration() {
        let value = cudaError_t::INVALID_VALUE;
        let fine = size(1, 1, 1);
        for (grid, block) in [
            (size(0, 1, 1), fine),
            (fine, size(1025, 1, 1)),
            (fine, size(64, 64, 1)),
            (size(1, 65_536, 1), fine),
        ] {
            assert_eq!(
                launch_code(value, grid, block),
                cudaError_t::INVALID_CONFIGURATION
            );
        }
        assert_eq!(launch_code(value, fine, fine), value);
    }
}
