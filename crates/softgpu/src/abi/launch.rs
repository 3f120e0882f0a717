//! Launches, functions' attributes, occupancy.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fercuda_cuda_sys::types::*;

use super::{get, per_thread, put, slice};
use crate::device::attributes as facts;
use crate::device::context::current;
use crate::device::launch::{enqueue, stack_bytes};
use crate::device::module::{attribute, param_info, resolve, set_attribute};
use crate::device::objects::{
    KernelLaunch, LegacyLaunch, SoftContext, SoftEvent, SoftFunction, StreamAction,
};
use crate::device::stream::of_call;
use crate::device::texture_reference::bindings;
use crate::device::{CuResult, Machine, err, lock, machine};
use crate::exec::KernelInfo;

/// Packs a kernel's arguments, from pointers to each or from a buffer that is packed already.
///
/// # Safety
/// `params` points at one readable value for each parameter, or `extra` is a list of pairs that
/// ends.
pub(super) unsafe fn pack(
    kernel: &KernelInfo,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult<Vec<u8>> {
    let mut bytes = vec![0u8; kernel.param_bytes as usize];
    if !params.is_null() {
        if !extra.is_null() {
            return Err(err::INVALID_VALUE);
        }
        for (i, p) in kernel.params.iter().enumerate() {
            // SAFETY: one pointer for each parameter, by this function's contract.
            let from = unsafe { *params.add(i) }.cast::<u8>();
            if from.is_null() {
                return Err(err::INVALID_VALUE);
            }
            let to = bytes
                .get_mut(p.offset as usize..(p.offset + p.size) as usize)
                .ok_or(err::UNKNOWN)?;
            // SAFETY: `p.size` readable bytes, by this function's contract.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        }
        return Ok(bytes);
    }
    if !extra.is_null() {
        let (mut buffer, mut size) = (std::ptr::null::<u8>(), None);
        for i in (0..16).step_by(2) {
            // SAFETY: the list goes on until its end mark, by this function's contract.
            let key = unsafe { *extra.add(i) };
            if key == CU_LAUNCH_PARAM_END {
                break;
            }
            // SAFETY: likewise; every key but the end has a value.
            let value = unsafe { *extra.add(i + 1) };
            if key == CU_LAUNCH_PARAM_BUFFER_POINTER {
                buffer = value.cast();
            } else if key == CU_LAUNCH_PARAM_BUFFER_SIZE {
                // SAFETY: the value points at the buffer's size.
                size = Some(unsafe { *get(value.cast::<usize>())? });
            } else {
                return Err(err::INVALID_VALUE);
            }
        }
        let size = size.ok_or(err::INVALID_VALUE)?;
        if size < bytes.len() || (buffer.is_null() && !bytes.is_empty()) {
            return Err(err::INVALID_VALUE);
        }
        // SAFETY: `size` readable bytes, by this function's contract, and no more are taken.
        unsafe { std::ptr::copy_nonoverlapping(buffer, bytes.as_mut_ptr(), bytes.len()) };
        return Ok(bytes);
    }
    if bytes.is_empty() {
        Ok(bytes)
    } else {
        Err(err::INVALID_VALUE)
    }
}

/// A launch with nothing but a geometry.
pub(super) fn plain(
    ctx: &SoftContext,
    function: Arc<SoftFunction>,
    named: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
) -> KernelLaunch {
    let references = match crate::device::machine() {
        Ok(m) => bindings(m, &function.module),
        Err(_) => Arc::default(),
    };
    KernelLaunch {
        function,
        named,
        grid,
        block,
        shared_bytes,
        cooperative: false,
        cluster: None,
        preferred_cluster: [0; 3],
        cluster_policy: CUclusterSchedulingPolicy::CU_CLUSTER_SCHEDULING_POLICY_DEFAULT,
        priority: 0,
        params: Vec::new(),
        stack_bytes: stack_bytes(ctx),
        references,
        pointers: std::sync::OnceLock::new(),
    }
}

#[expect(clippy::too_many_arguments, reason = "a launch has these parts")]
pub(super) unsafe fn launch(
    f: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: CUstream,
    attrs: &[CUlaunchAttribute],
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
    cooperative: bool,
    call: &'static str,
) -> CuResult {
    let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
    let function = resolve(m, &ctx, f.0 as usize)?;
    if function.module.ctx_id != ctx.id {
        return Err(err::INVALID_HANDLE);
    }
    let mut launch = plain(&ctx, function, f.0 as usize, grid, block, shared_bytes);
    launch.cooperative = cooperative;
    let mut completion = None;
    for attr in attrs {
        // SAFETY: the identity says which member is in use.
        unsafe { apply(m, &mut launch, attr, &mut completion)? };
    }
    // SAFETY: by this function's caller.
    launch.params = unsafe { pack(launch.function.kernel(), params, extra)? };
    launch.check()?;
    if launch.function.module.loaded.image().uses_heap() {
        ctx.heap(m)?;
    }
    enqueue(
        m,
        &ctx,
        &stream,
        StreamAction::Kernel(Arc::new(launch)),
        call,
    )?;
    if let Some(event) = completion {
        event.record(m, &ctx, &stream)?;
    }
    Ok(())
}

/// A policy that exists. All clusters run in the same way here.
pub(super) fn scheduling_policy(
    policy: CUclusterSchedulingPolicy,
) -> CuResult<CUclusterSchedulingPolicy> {
    match policy.0 {
        0..=2 => Ok(policy),
        _ => Err(err::INVALID_VALUE),
    }
}

/// Applies one launch attribute.
///
/// # Safety
/// The value's member named by the attribute's identity is in use.
unsafe fn apply(
    m: &Machine,
    launch: &mut KernelLaunch,
    attr: &CUlaunchAttribute,
    completion: &mut Option<Arc<SoftEvent>>,
) -> CuResult {
    use CUlaunchAttributeID as A;
    // SAFETY: by this function's contract.
    unsafe {
        match attr.id {
            A::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => launch.cooperative = attr.value.cooperative != 0,
            A::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                let c = attr.value.clusterDim;
                launch.cluster = Some([c.x, c.y, c.z]);
            }
            A::CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION => {
                // Clusters of the other size are always allowed, and are what there is.
                let c = attr.value.preferredClusterDim;
                launch.preferred_cluster = [c.x, c.y, c.z];
            }
            A::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => {
                launch.cluster_policy = scheduling_policy(attr.value.clusterSchedulingPolicyPreference)?;
            }
            A::CU_LAUNCH_ATTRIBUTE_PRIORITY => launch.priority = attr.value.priority,
            A::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT | A::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT => {
                // Both begin with the event. It is complete with the kernel, which is later than
                // need be.
                let event = attr.value.launchCompletionEvent.event;
                *completion = Some(m.events.get(event.0 as usize).ok_or(err::INVALID_HANDLE)?);
            }
            // A dependent kernel may start early, which starting it in turn is a case of.
            A::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            // Hints about caches, scheduling and links that are not there.
            | A::CU_LAUNCH_ATTRIBUTE_IGNORE
            | A::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
            | A::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY
            | A::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
            | A::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
            | A::CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            | A::CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING => {}
            A::CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE => return Err(err::NOT_SUPPORTED),
            _ => return Err(err::INVALID_VALUE),
        }
    }
    Ok(())
}

/// A function's inside, for questions that need no launch.
pub(super) fn asked(func: CUfunction) -> CuResult<Arc<SoftFunction>> {
    let m = machine()?;
    match m.functions.get(func.0 as usize) {
        Some(function) => Ok(function),
        None => {
            let (m, ctx) = current()?;
            resolve(m, &ctx, func.0 as usize)
        }
    }
}

fn occupancy(func: CUfunction, block_size: c_int, dynamic: usize) -> CuResult<u32> {
    let function = asked(func)?;
    let threads = u32::try_from(block_size)
        .ok()
        .filter(|&n| n > 0)
        .ok_or(err::INVALID_VALUE)?;
    let dynamic = u32::try_from(dynamic).map_err(|_| err::INVALID_VALUE)?;
    Ok(facts::blocks_per_multiprocessor(
        function.kernel(),
        threads,
        dynamic,
    ))
}

/// Threads of a block of a launch that is only asked about.
fn threads_of(config: &CUlaunchConfig) -> CuResult<u32> {
    let sides = [config.blockDimX, config.blockDimY, config.blockDimZ];
    let threads = sides.iter().map(|&n| u64::from(n)).product::<u64>();
    let threads = u32::try_from(threads).ok().filter(|&n| n > 0);
    threads.ok_or(err::INVALID_VALUE)
}

unsafe fn best_block(
    min_grid_size: *mut c_int,
    block_size: *mut c_int,
    func: CUfunction,
    shared_of: CUoccupancyB2DSize,
    dynamic: usize,
    limit: c_int,
) -> CuResult {
    let function = asked(func)?;
    let kernel = function.kernel();
    let most = attribute(
        kernel,
        &function.settings,
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
    )?;
    let most = if limit > 0 { most.min(limit) } else { most };
    let mut best = (0u32, 0i32, 0u32);
    let mut size = (most + 31) / 32 * 32;
    while size > 0 {
        let threads = size.min(most);
        let shared = match shared_of {
            // SAFETY: the client's own function of a block's size.
            Some(of) => unsafe { of(threads) },
            None => dynamic,
        };
        let blocks = facts::blocks_per_multiprocessor(
            kernel,
            threads as u32,
            u32::try_from(shared).unwrap_or(u32::MAX),
        );
        if blocks * threads as u32 > best.0 {
            best = (blocks * threads as u32, threads, blocks);
        }
        size -= 32;
    }
    // SAFETY: the client promises room for both.
    unsafe {
        put(block_size, best.1)?;
        put(min_grid_size, (best.2 * facts::MULTIPROCESSORS) as c_int)
    }
}

driver_fns! {
    fn cuLaunchKernel[cuLaunchKernel_ptsz](
        f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint,
        block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, stream: CUstream,
        kernel_params: *mut *mut c_void, extra: *mut *mut c_void,
    ) {
        let grid = [grid_dim_x, grid_dim_y, grid_dim_z];
        let block = [block_dim_x, block_dim_y, block_dim_z];
        launch(f, grid, block, shared_mem_bytes, stream, &[], kernel_params, extra, false, "cuLaunchKernel")?;
        // What the older functions have set is forgotten.
        *lock(&asked(f)?.legacy) = LegacyLaunch::default();
        Ok(())
    }

    fn cuLaunchKernelEx[cuLaunchKernelEx_ptsz](
        config: *const CUlaunchConfig, f: CUfunction, kernel_params: *mut *mut c_void, extra: *mut *mut c_void,
    ) {
        let c = get(config)?;
        let grid = [c.gridDimX, c.gridDimY, c.gridDimZ];
        let block = [c.blockDimX, c.blockDimY, c.blockDimZ];
        let attrs = slice(c.attrs.cast_const(), c.numAttrs as usize)?;
        launch(f, grid, block, c.sharedMemBytes, c.hStream, attrs, kernel_params, extra, false, "cuLaunchKernelEx")
    }

    fn cuLaunchCooperativeKernel[cuLaunchCooperativeKernel_ptsz](
        f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint,
        block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, stream: CUstream,
        kernel_params: *mut *mut c_void,
    ) {
        let grid = [grid_dim_x, grid_dim_y, grid_dim_z];
        let block = [block_dim_x, block_dim_y, block_dim_z];
        let none = std::ptr::null_mut();
        launch(f, grid, block, shared_mem_bytes, stream, &[], kernel_params, none, true, "cuLaunchCooperativeKernel")
    }

    fn cuFuncGetAttribute[](value: *mut c_int, attrib: CUfunction_attribute, func: CUfunction) {
        let function = asked(func)?;
        put(value, attribute(function.kernel(), &function.settings, attrib)?)
    }

    fn cuFuncSetAttribute[](func: CUfunction, attrib: CUfunction_attribute, value: c_int) {
        let function = asked(func)?;
        set_attribute(function.kernel(), &function.settings, attrib, value)?;
        // A kernel keeps its own settings, which every launch takes over.
        if let Some(kernel) = machine()?.kernels.get(func.0 as usize) {
            set_attribute(kernel.info(), &kernel.settings, attrib, value)?;
        }
        Ok(())
    }

    fn cuFuncSetCacheConfig[](func: CUfunction, config: CUfunc_cache) {
        if config.0 > 3 {
            return Err(err::INVALID_VALUE);
        }
        asked(func)?.settings.cache_config.store(config.0, Ordering::Release);
        Ok(())
    }

    fn cuFuncSetSharedMemConfig[](func: CUfunction, config: CUsharedconfig) {
        if config.0 > 2 {
            return Err(err::INVALID_VALUE);
        }
        // The width of banks changes speed alone, here not even that.
        asked(func).map(|_| ())
    }

    fn cuFuncGetModule[](module: *mut CUmodule, func: CUfunction) {
        put(module, CUmodule(asked(func)?.module.handle as *mut _))
    }

    fn cuFuncGetName[](name: *mut *const c_char, func: CUfunction) {
        let m = machine()?;
        // From the table, which keeps the text as long as the handle lives.
        if let Some(kernel) = m.kernels.get(func.0 as usize) {
            return put(name, kernel.c_name.as_ptr());
        }
        put(name, m.functions.get(func.0 as usize).ok_or(err::INVALID_HANDLE)?.c_name.as_ptr())
    }

    fn cuFuncGetParamInfo[](func: CUfunction, param_index: usize, param_offset: *mut usize, param_size: *mut usize) {
        let function = asked(func)?;
        let (offset, size) = param_info(function.kernel(), param_index)?;
        put(param_offset, offset)?;
        super::put_if(param_size, size);
        Ok(())
    }

    fn cuFuncIsLoaded[](state: *mut CUfunctionLoadingState, function: CUfunction) {
        asked(function)?;
        put(state, CUfunctionLoadingState(1))
    }

    fn cuFuncLoad[](function: CUfunction) {
        asked(function).map(|_| ())
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor[](
        num_blocks: *mut c_int, func: CUfunction, block_size: c_int, dynamic_smem_size: usize,
    ) {
        put(num_blocks, occupancy(func, block_size, dynamic_smem_size)? as c_int)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags[](
        num_blocks: *mut c_int, func: CUfunction, block_size: c_int, dynamic_smem_size: usize, flags: c_uint,
    ) {
        if flags > 1 {
            return Err(err::INVALID_VALUE);
        }
        put(num_blocks, occupancy(func, block_size, dynamic_smem_size)? as c_int)
    }

    fn cuOccupancyMaxPotentialBlockSize[](
        min_grid_size: *mut c_int, block_size: *mut c_int, func: CUfunction,
        dynamic_smem_of_block_size: CUoccupancyB2DSize, dynamic_smem_size: usize, block_size_limit: c_int,
    ) {
        best_block(min_grid_size, block_size, func, dynamic_smem_of_block_size, dynamic_smem_size, block_size_limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags[](
        min_grid_size: *mut c_int, block_size: *mut c_int, func: CUfunction,
        dynamic_smem_of_block_size: CUoccupancyB2DSize, dynamic_smem_size: usize, block_size_limit: c_int,
        flags: c_uint,
    ) {
        if flags > 1 {
            return Err(err::INVALID_VALUE);
        }
        best_block(min_grid_size, block_size, func, dynamic_smem_of_block_size, dynamic_smem_size, block_size_limit)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock[](
        dynamic_smem_size: *mut usize, func: CUfunction, num_blocks: c_int, block_size: c_int,
    ) {
        let function = asked(func)?;
        let blocks = u32::try_from(num_blocks).ok().filter(|&n| n > 0).ok_or(err::INVALID_VALUE)?;
        if occupancy(func, block_size, 0)? < blocks {
            return Err(err::INVALID_VALUE);
        }
        put(dynamic_smem_size, facts::available_shared(function.kernel(), blocks) as usize)
    }

    fn cuOccupancyMaxPotentialClusterSize[](cluster_size: *mut c_int, func: CUfunction, config: *const CUlaunchConfig) {
        let c = get(config)?;
        let function = asked(func)?;
        let threads = threads_of(c)?;
        // The least power of two that does not fit is twice the largest that does.
        let fits = |&size: &u32| facts::active_clusters(function.kernel(), threads, c.sharedMemBytes, size) > 0;
        let sizes = (0..=4).map(|n| 1 << n).filter(|&size| size <= function.largest_cluster());
        put(cluster_size, sizes.take_while(fits).last().unwrap_or(0) as c_int)
    }

    fn cuOccupancyMaxActiveClusters[](num_clusters: *mut c_int, func: CUfunction, config: *const CUlaunchConfig) {
        let c = get(config)?;
        let function = asked(func)?;
        let threads = threads_of(c)?;
        let attrs = slice(c.attrs.cast_const(), c.numAttrs as usize)?;
        let asked = attrs.iter().rev().find(|a| a.id == CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
        // The identity says which member is in use.
        let asked = asked.map(|a| a.value.clusterDim).map(|c| [c.x, c.y, c.z]);
        let cluster = asked.or(function.kernel().required_cluster).or_else(|| function.cluster_setting()).unwrap_or([1; 3]);
        let size = cluster.iter().map(|&n| u64::from(n)).product::<u64>();
        if size == 0 || size > u64::from(function.largest_cluster()) {
            return Err(err::INVALID_CLUSTER);
        }
        put(num_clusters, facts::active_clusters(function.kernel(), threads, c.sharedMemBytes, size as u32) as c_int)
    }
}
