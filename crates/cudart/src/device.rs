//! Devices: which one a thread has set, properties, attributes, limits, access to each other.
//!
//! Invariant: the number of a device is the driver's. Elsewhere: contexts (`call`).

use core::cell::RefCell;
use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::call::{self, put, put_if, wanted};
use crate::error::{self, CudaResult, cudaError_t};
use crate::types::*;

/// The version of the runtime API that this library has.
pub(crate) const VERSION: c_int = 13000;
/// A device flag that is always set: pinned host memory is mapped.
const MAP_HOST: c_uint = 8;
/// Flags of a device that the runtime knows.
const DEVICE_FLAGS: c_uint = 0x1 | 0x2 | 0x4 | MAP_HOST | 0x10 | 0x80;

thread_local! {
    static VALID: RefCell<Vec<c_int>> = const { RefCell::new(Vec::new()) };
}

fn count() -> CudaResult<c_int> {
    let mut count = 0;
    // SAFETY: the output outlives the call.
    unsafe { drv!(cuDeviceGetCount(&mut count)) }?;
    match count {
        0 => Err(cudaError_t::NO_DEVICE),
        count => Ok(count),
    }
}

/// The driver's device of a number.
pub(crate) fn existing(device: c_int) -> CudaResult<CUdevice> {
    match (0..count()?).contains(&device) {
        true => Ok(device),
        false => Err(cudaError_t::INVALID_DEVICE),
    }
}

fn attribute(which: CUdevice_attribute, device: CUdevice) -> c_int {
    let mut value = 0;
    // SAFETY: the output outlives the call. What a driver does not know is 0.
    let known = call::driver()
        .and_then(|it| call::check(unsafe { it.cuDeviceGetAttribute(&mut value, which, device) }));
    known.map_or(0, |()| value)
}

/// The first `N` of the attributes from `first` on.
fn attributes<const N: usize>(first: i32, device: CUdevice) -> [c_int; N] {
    core::array::from_fn(|at| attribute(CUdevice_attribute((first + at as i32) as _), device))
}

fn properties(device: CUdevice) -> CudaResult<cudaDeviceProp> {
    let at = |number: i32| attribute(CUdevice_attribute(number as _), device);
    let size = |number: i32| at(number).max(0) as usize;
    let mut it = cudaDeviceProp::zero();
    // SAFETY: the outputs are fields of `it`.
    unsafe {
        drv!(cuDeviceGetName(it.name.as_mut_ptr(), 256, device))?;
        drv!(cuDeviceGetUuid_v2(&mut it.uuid, device))?;
        drv!(cuDeviceTotalMem_v2(&mut it.totalGlobalMem, device))?;
    }
    it.sharedMemPerBlock = size(8);
    it.regsPerBlock = at(12);
    it.warpSize = at(10);
    it.memPitch = size(11);
    it.maxThreadsPerBlock = at(1);
    it.maxThreadsDim = attributes(2, device);
    it.maxGridSize = attributes(5, device);
    it.totalConstMem = size(9);
    [it.major, it.minor] = attributes(75, device);
    it.textureAlignment = size(14);
    it.texturePitchAlignment = size(51);
    it.multiProcessorCount = at(16);
    it.integrated = at(18);
    it.canMapHostMemory = at(19);
    texture_properties(&mut it, device);
    it.surfaceAlignment = size(30);
    it.concurrentKernels = at(31);
    it.ECCEnabled = at(32);
    [it.pciBusID, it.pciDeviceID] = attributes(33, device);
    it.pciDomainID = at(50);
    it.tccDriver = at(35);
    it.asyncEngineCount = at(40);
    it.unifiedAddressing = at(41);
    it.memoryBusWidth = at(37);
    it.l2CacheSize = at(38);
    it.persistingL2CacheMaxSize = at(108);
    it.maxThreadsPerMultiProcessor = at(39);
    it.streamPrioritiesSupported = at(78);
    it.globalL1CacheSupported = at(79);
    it.localL1CacheSupported = at(80);
    it.sharedMemPerMultiprocessor = size(81);
    it.regsPerMultiprocessor = at(82);
    it.managedMemory = at(83);
    it.isMultiGpuBoard = at(84);
    it.multiGpuBoardGroupID = at(85);
    it.hostNativeAtomicSupported = at(86);
    it.pageableMemoryAccess = at(88);
    it.concurrentManagedAccess = at(89);
    it.computePreemptionSupported = at(90);
    it.canUseHostPointerForRegisteredMem = at(91);
    it.cooperativeLaunch = at(95);
    it.sharedMemPerBlockOptin = size(97);
    it.pageableMemoryAccessUsesHostPageTables = at(100);
    it.directManagedMemAccessFromHost = at(101);
    it.maxBlocksPerMultiProcessor = at(106);
    it.accessPolicyMaxWindowSize = at(109);
    it.reservedSharedMemPerBlock = size(111);
    it.hostRegisterSupported = at(99);
    it.sparseCudaArraySupported = at(112);
    it.hostRegisterReadOnlySupported = at(113);
    it.timelineSemaphoreInteropSupported = at(114);
    it.memoryPoolsSupported = at(115);
    it.gpuDirectRDMASupported = at(116);
    it.gpuDirectRDMAFlushWritesOptions = at(117).max(0) as c_uint;
    it.gpuDirectRDMAWritesOrdering = at(118);
    it.memoryPoolSupportedHandleTypes = at(119).max(0) as c_uint;
    it.deferredMappingCudaArraySupported = at(121);
    it.ipcEventSupported = at(125);
    it.clusterLaunch = at(120);
    it.unifiedFunctionPointers = at(129);
    it.deviceNumaConfig = at(130);
    it.deviceNumaId = at(131);
    it.mpsEnabled = at(133);
    it.hostNumaId = at(134);
    it.gpuPciDeviceID = at(139).max(0) as c_uint;
    it.gpuPciSubsystemID = at(140).max(0) as c_uint;
    it.hostNumaMultinodeIpcSupported = at(143);
    Ok(it)
}

fn texture_properties(it: &mut cudaDeviceProp, device: CUdevice) {
    let at = |number: i32| attribute(CUdevice_attribute(number as _), device);
    it.maxTexture1D = at(21);
    it.maxTexture1DMipmap = at(77);
    it.maxTexture2D = attributes(22, device);
    it.maxTexture2DMipmap = attributes(73, device);
    it.maxTexture2DLinear = attributes(70, device);
    it.maxTexture2DGather = attributes(45, device);
    it.maxTexture3D = attributes(24, device);
    it.maxTexture3DAlt = attributes(47, device);
    it.maxTextureCubemap = at(52);
    it.maxTexture1DLayered = attributes(42, device);
    it.maxTexture2DLayered = attributes(27, device);
    it.maxTextureCubemapLayered = attributes(53, device);
    it.maxSurface1D = at(55);
    it.maxSurface2D = attributes(56, device);
    it.maxSurface3D = attributes(58, device);
    it.maxSurface1DLayered = attributes(61, device);
    it.maxSurface2DLayered = attributes(63, device);
    it.maxSurfaceCubemap = at(66);
    it.maxSurfaceCubemapLayered = attributes(67, device);
}

/// How well a device has what a program wants: each satisfied wish counts.
fn fitness(wanted: &cudaDeviceProp, device: CUdevice) -> CudaResult<u32> {
    let it = properties(device)?;
    let wishes = [
        (it.major, it.minor) >= (wanted.major, wanted.minor),
        it.totalGlobalMem >= wanted.totalGlobalMem,
        it.sharedMemPerBlock >= wanted.sharedMemPerBlock,
        it.multiProcessorCount >= wanted.multiProcessorCount,
        it.maxThreadsPerBlock >= wanted.maxThreadsPerBlock,
    ];
    Ok(wishes.iter().filter(|&&wish| wish).count() as u32)
}

/// The context of a peer, of which the driver wants the handle.
pub(crate) fn peer(device: c_int) -> CudaResult<CUcontext> {
    call::primary(existing(device)?)
}

/// Destroys the current device's primary context with everything in it.
fn reset() -> CudaResult {
    let device = match call::current()?.is_null() {
        true => call::chosen_device(),
        false => call::current_device().unwrap_or_else(|_| call::chosen_device()),
    };
    if !call::is_retained(device) {
        error::forget();
        return Ok(());
    }
    // SAFETY: the driver checks the device; the program asked for the reset.
    unsafe { drv!(cuDevicePrimaryCtxReset_v2(device)) }?;
    call::forget_primary(device);
    error::forget();
    Ok(())
}

runtime_fns! {
    fn cudaGetDeviceCount[](out: *mut c_int) {
        wanted(out)?;
        out.write(0);
        put(out, count()?)
    }

    fn cudaGetDevice[](out: *mut c_int) {
        wanted(out)?;
        let device = match call::current()?.is_null() {
            true => call::chosen_device(),
            false => call::current_device().unwrap_or_else(|_| call::chosen_device()),
        };
        put(out, device)
    }

    fn cudaSetDevice[](device: c_int) {
        call::set_device(existing(device)?)
    }

    fn cudaInitDevice[](device: c_int, device_flags: c_uint, flags: c_uint) {
        // Flag 1: the device flags are to be set.
        if flags & !1 != 0 || device_flags & !DEVICE_FLAGS != 0 {
            return Err(cudaError_t::INVALID_VALUE);
        }
        let device = existing(device)?;
        if flags & 1 != 0 {
            drv!(cuDevicePrimaryCtxSetFlags_v2(device, device_flags & !MAP_HOST))?;
        }
        call::primary(device).map(drop)
    }

    fn cudaSetValidDevices[](devices: *mut c_int, len: c_int) {
        let listed = match (devices.is_null(), len) {
            (_, 0) => &[],
            (true, _) => return Err(cudaError_t::INVALID_VALUE),
            (false, len) => {
                let len = call::unsigned(len)? as usize;
                core::slice::from_raw_parts(devices, len)
            }
        };
        for &device in listed {
            existing(device)?;
        }
        VALID.try_with(|it| *it.borrow_mut() = listed.to_vec()).ok();
        match listed.first() {
            Some(&first) if call::current()?.is_null() => call::set_device(first),
            _ => Ok(()),
        }
    }

    fn cudaChooseDevice[](out: *mut c_int, prop: *const cudaDeviceProp) {
        wanted(out)?;
        let wishes = call::get(prop)?;
        let mut best = (0, 0);
        for device in (0..count()?).rev() {
            best = best.max((fitness(&wishes, device)?, -device));
        }
        put(out, -best.1)
    }

    fn cudaGetDeviceProperties[](prop: *mut cudaDeviceProp, device: c_int) {
        wanted(prop)?;
        put(prop, properties(existing(device)?)?)
    }

    fn cudaDeviceGetAttribute[](value: *mut c_int, attr: c_int, device: c_int) {
        wanted(value)?;
        let device = existing(device)?;
        drv!(cuDeviceGetAttribute(value, CUdevice_attribute(attr as _), device))
    }

    fn cudaDeviceGetP2PAttribute[](value: *mut c_int, attr: c_uint, from: c_int, to: c_int) {
        wanted(value)?;
        let (from, to) = (existing(from)?, existing(to)?);
        drv!(cuDeviceGetP2PAttribute(value, CUdevice_P2PAttribute(attr as _), from, to))
    }

    fn cudaDeviceGetHostAtomicCapabilities[](
        capabilities: *mut c_uint, operations: *const CUatomicOperation, n: c_uint, device: c_int,
    ) {
        let device = existing(device)?;
        drv!(cuDeviceGetHostAtomicCapabilities(capabilities, operations, n, device))
    }

    fn cudaDeviceGetP2PAtomicCapabilities[](
        capabilities: *mut c_uint, operations: *const CUatomicOperation, n: c_uint, from: c_int,
        to: c_int,
    ) {
        let (from, to) = (existing(from)?, existing(to)?);
        drv!(cuDeviceGetP2PAtomicCapabilities(capabilities, operations, n, from, to))
    }

    fn cudaDeviceGetByPCIBusId[](device: *mut c_int, id: *const c_char) {
        wanted(device)?;
        drv!(cuDeviceGetByPCIBusId(device, id))
    }

    fn cudaDeviceGetPCIBusId[](id: *mut c_char, len: c_int, device: c_int) {
        let device = existing(device)?;
        drv!(cuDeviceGetPCIBusId(id, len, device))
    }

    fn cudaSetDeviceFlags[](flags: c_uint) {
        if flags & !DEVICE_FLAGS != 0 || (flags & 7).count_ones() > 1 {
            return Err(cudaError_t::INVALID_VALUE);
        }
        let device = match call::current()?.is_null() {
            true => call::chosen_device(),
            false => call::current_device()?,
        };
        drv!(cuDevicePrimaryCtxSetFlags_v2(device, flags & !MAP_HOST))
    }

    fn cudaGetDeviceFlags[](flags: *mut c_uint) {
        wanted(flags)?;
        let (mut set, mut active) = (0, 0);
        if call::current()?.is_null() {
            drv!(cuDevicePrimaryCtxGetState(call::chosen_device(), &mut set, &mut active))?;
        } else {
            drv!(cuCtxGetFlags(&mut set))?;
        }
        put(flags, set | MAP_HOST)
    }

    fn cudaDeviceReset[]() {
        reset()
    }

    fn cudaDeviceSynchronize[]() {
        call::context()?;
        drv!(cuCtxSynchronize())
    }

    fn cudaDeviceSetLimit[](limit: c_uint, value: usize) {
        call::context()?;
        drv!(cuCtxSetLimit(CUlimit(limit as _), value))
    }

    fn cudaDeviceGetLimit[](value: *mut usize, limit: c_uint) {
        wanted(value)?;
        call::context()?;
        drv!(cuCtxGetLimit(value, CUlimit(limit as _)))
    }

    fn cudaDeviceGetCacheConfig[](config: *mut CUfunc_cache) {
        wanted(config)?;
        call::context()?;
        drv!(cuCtxGetCacheConfig(config))
    }

    fn cudaDeviceSetCacheConfig[](config: c_uint) {
        call::context()?;
        drv!(cuCtxSetCacheConfig(CUfunc_cache(config)))
    }

    fn cudaDeviceGetSharedMemConfig[](config: *mut CUsharedconfig) {
        wanted(config)?;
        call::context()?;
        drv!(cuCtxGetSharedMemConfig(config))
    }

    fn cudaDeviceSetSharedMemConfig[](config: c_uint) {
        call::context()?;
        drv!(cuCtxSetSharedMemConfig(CUsharedconfig(config)))
    }

    fn cudaDeviceGetStreamPriorityRange[](least: *mut c_int, greatest: *mut c_int) {
        call::context()?;
        drv!(cuCtxGetStreamPriorityRange(least, greatest))
    }

    fn cudaCtxResetPersistingL2Cache[]() {
        call::context()?;
        drv!(cuCtxResetPersistingL2Cache())
    }

    fn cudaDeviceFlushGPUDirectRDMAWrites[](target: c_uint, scope: c_uint) {
        call::context()?;
        drv!(cuFlushGPUDirectRDMAWrites(
            CUflushGPUDirectRDMAWritesTarget(target as _),
            CUflushGPUDirectRDMAWritesScope(scope as _)
        ))
    }

    fn cudaDeviceRegisterAsyncNotification[](
        device: c_int, callback: CUasyncCallback, user_data: *mut c_void,
        out: *mut CUasyncCallbackHandle,
    ) {
        let device = existing(device)?;
        drv!(cuDeviceRegisterAsyncNotification(device, callback, user_data, out))
    }

    fn cudaDeviceUnregisterAsyncNotification[](device: c_int, callback: CUasyncCallbackHandle) {
        let device = existing(device)?;
        drv!(cuDeviceUnregisterAsyncNotification(device, callback))
    }

    fn cudaDeviceCanAccessPeer[](out: *mut c_int, device: c_int, peer_device: c_int) {
        wanted(out)?;
        let (device, peer_device) = (existing(device)?, existing(peer_device)?);
        drv!(cuDeviceCanAccessPeer(out, device, peer_device))
    }

    fn cudaDeviceEnablePeerAccess[](peer_device: c_int, flags: c_uint) {
        call::context()?;
        let context = peer(peer_device)?;
        drv!(cuCtxEnablePeerAccess(context, flags))
    }

    fn cudaDeviceDisablePeerAccess[](peer_device: c_int) {
        call::context()?;
        let context = peer(peer_device)?;
        drv!(cuCtxDisablePeerAccess(context))
    }

    fn cudaDriverGetVersion[](version: *mut c_int) {
        wanted(version)?;
        // Without a driver the version is 0, and that is no error.
        version.write(0);
        match call::driver() {
            Ok(driver) => call::check(driver.cuDriverGetVersion(version)),
            Err(_) => Ok(()),
        }
    }

    fn cudaRuntimeGetVersion[](version: *mut c_int) {
        put(version, VERSION)
    }

    fn cudaProfilerStart[]() {
        call::context().map(drop)
    }

    fn cudaProfilerStop[]() {
        call::context().map(drop)
    }

    fn cudaMemGetInfo[](free: *mut usize, total: *mut usize) {
        call::context()?;
        let (mut is_free, mut is_there) = (0, 0);
        drv!(cuMemGetInfo_v2(&mut is_free, &mut is_there))?;
        put_if(free, is_free);
        put_if(total, is_there);
        Ok(())
    }
}

/// The thread's last error, which it then forgets.
// SAFETY: see `runtime_fns`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cudaGetLastError() -> cudaError_t {
    error::take()
}

/// The thread's last error.
// SAFETY: see `runtime_fns`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cudaPeekAtLastError() -> cudaError_t {
    error::peek()
}

/// The name of a code.
// SAFETY: see `runtime_fns`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cudaGetErrorName(code: cudaError_t) -> *const c_char {
    error::name(code.0)
}

/// A sentence for a code.
// SAFETY: see `runtime_fns`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cudaGetErrorString(code: cudaError_t) -> *const c_char {
    error::sentence(code.0)
}
