//! The driver API as one table: every typed public function of CUDA 13.0.
//!
//! A line reads
//! `symbol "name passed to cuGetProcAddress" version-it-appeared-in
//! [per-thread twin and its version] (arguments);`
//! and every function returns a `CUresult`. Versions are CUDA's own numbers,
//! 1000 for each major and 10 for each minor. A per-thread twin takes the same
//! arguments and reads a null stream as the calling thread's default stream.
//!
//! Invariant: a symbol occurs once. Elsewhere: functions of the same library that need headers of
//! other libraries (`for_each_untyped_fn`).

/// Calls `$callback! { … }` with the whole table.
///
/// The callback takes the lines with
///
/// ```text
/// ($($name:ident $base:literal $since:literal [$($twin:ident $twin_since:literal)?] $args:tt;)*)
/// ```
///
/// where `$args` is a parenthesised `argument: Type, …` list, to be passed on to a second macro
/// that matches `($($arg:ident: $ty:ty),* $(,)?)`. Keeping it one token tree allows a line to be
/// expanded twice, once for the function and once for its twin.
///
/// Types are written without a path, so a module that expands the table has
/// `use fercuda_cuda_sys::types::*;`.
///
/// # Implementing the driver
/// Expand every line to a stub in a module of its own, glob-import that module and import the real
/// functions by name: an explicit import or definition shadows a glob. So the functions that are
/// written are implemented, and the list of stubs needs no upkeep. Coercing each name to its type
/// in [`signatures`](crate::signatures) checks the arguments.
///
/// ```
/// use fercuda_cuda_sys::types::*;
///
/// mod stubs {
///     use fercuda_cuda_sys::types::*;
///     macro_rules! stub {
///         ($name:ident ($($arg:ident: $ty:ty),* $(,)?)) => {
///             pub unsafe extern "C" fn $name($(_: $ty),*) -> CUresult {
///                 CUresult::CUDA_ERROR_NOT_SUPPORTED
///             }
///         };
///     }
///     macro_rules! stubs {
///         ($($name:ident $base:literal $since:literal [$($twin:ident $t:literal)?] $args:tt;)*) =>
///         {
///             $(stub! { $name $args } $(stub! { $twin $args })?)*
///         };
///     }
///     fercuda_cuda_sys::for_each_driver_fn!(stubs);
/// }
/// use stubs::*;
///
/// unsafe extern "C" fn cuInit(_flags: c_uint) -> CUresult {
///     CUresult::CUDA_SUCCESS
/// }
///
/// let init: fercuda_cuda_sys::signatures::cuInit = cuInit;
/// let alloc: fercuda_cuda_sys::signatures::cuMemAlloc_v2 = cuMemAlloc_v2;
/// # unsafe {
/// assert_eq!(init(0), CUresult::CUDA_SUCCESS);
/// assert_eq!(alloc(core::ptr::null_mut(), 1), CUresult::CUDA_ERROR_NOT_SUPPORTED);
/// # }
/// ```
#[macro_export]
macro_rules! for_each_driver_fn {
    ($($callback:ident)::+) => {
        $($callback)::+! {
            // Errors
            cuGetErrorString "cuGetErrorString" 6000 [] (error: CUresult, str: *mut *const c_char);
            cuGetErrorName "cuGetErrorName" 6000 [] (error: CUresult, str: *mut *const c_char);

            // Initialisation
            cuInit "cuInit" 2000 [] (flags: c_uint);

            // Version
            cuDriverGetVersion "cuDriverGetVersion" 2020 [] (driver_version: *mut c_int);

            // Devices
            cuDeviceGet "cuDeviceGet" 2000 [] (device: *mut CUdevice, ordinal: c_int);
            cuDeviceGetCount "cuDeviceGetCount" 2000 [] (count: *mut c_int);
            cuDeviceGetName "cuDeviceGetName" 2000 [] (
                name: *mut c_char, len: c_int, dev: CUdevice,
            );
            cuDeviceGetUuid "cuDeviceGetUuid" 9020 [] (uuid: *mut CUuuid, dev: CUdevice);
            cuDeviceGetUuid_v2 "cuDeviceGetUuid" 11040 [] (uuid: *mut CUuuid, dev: CUdevice);
            cuDeviceGetLuid "cuDeviceGetLuid" 10000 [] (
                luid: *mut c_char, device_node_mask: *mut c_uint, dev: CUdevice,
            );
            cuDeviceTotalMem "cuDeviceTotalMem" 2000 [] (bytes: *mut c_uint, dev: CUdevice);
            cuDeviceTotalMem_v2 "cuDeviceTotalMem" 3020 [] (bytes: *mut usize, dev: CUdevice);
            cuDeviceGetTexture1DLinearMaxWidth "cuDeviceGetTexture1DLinearMaxWidth" 11010 [] (
                max_width_in_elements: *mut usize, format: CUarray_format, num_channels: c_uint,
                dev: CUdevice,
            );
            cuDeviceGetAttribute "cuDeviceGetAttribute" 2000 [] (
                value: *mut c_int, attrib: CUdevice_attribute, dev: CUdevice,
            );
            cuDeviceGetHostAtomicCapabilities "cuDeviceGetHostAtomicCapabilities" 13000 [] (
                capabilities: *mut c_uint, operations: *const CUatomicOperation, count: c_uint,
                dev: CUdevice,
            );
            cuDeviceGetNvSciSyncAttributes "cuDeviceGetNvSciSyncAttributes" 10020 [] (
                nv_sci_sync_attr_list: *mut c_void, dev: CUdevice, flags: c_int,
            );
            cuDeviceSetMemPool "cuDeviceSetMemPool" 11020 [] (dev: CUdevice, pool: CUmemoryPool);
            cuDeviceGetMemPool "cuDeviceGetMemPool" 11020 [] (
                pool: *mut CUmemoryPool, dev: CUdevice,
            );
            cuDeviceGetDefaultMemPool "cuDeviceGetDefaultMemPool" 11020 [] (
                pool_out: *mut CUmemoryPool, dev: CUdevice,
            );
            cuDeviceGetExecAffinitySupport "cuDeviceGetExecAffinitySupport" 11040 [] (
                value: *mut c_int, kind: CUexecAffinityType, dev: CUdevice,
            );
            cuFlushGPUDirectRDMAWrites "cuFlushGPUDirectRDMAWrites" 11030 [] (
                target: CUflushGPUDirectRDMAWritesTarget, scope: CUflushGPUDirectRDMAWritesScope,
            );

            // Devices, superseded
            cuDeviceGetProperties "cuDeviceGetProperties" 2000 [] (
                prop: *mut CUdevprop, dev: CUdevice,
            );
            cuDeviceComputeCapability "cuDeviceComputeCapability" 2000 [] (
                major: *mut c_int, minor: *mut c_int, dev: CUdevice,
            );

            // Primary contexts
            cuDevicePrimaryCtxRetain "cuDevicePrimaryCtxRetain" 7000 [] (
                ctx: *mut CUcontext, dev: CUdevice,
            );
            cuDevicePrimaryCtxRelease "cuDevicePrimaryCtxRelease" 7000 [] (dev: CUdevice);
            cuDevicePrimaryCtxRelease_v2 "cuDevicePrimaryCtxRelease" 11000 [] (dev: CUdevice);
            cuDevicePrimaryCtxSetFlags "cuDevicePrimaryCtxSetFlags" 7000 [] (
                dev: CUdevice, flags: c_uint,
            );
            cuDevicePrimaryCtxSetFlags_v2 "cuDevicePrimaryCtxSetFlags" 11000 [] (
                dev: CUdevice, flags: c_uint,
            );
            cuDevicePrimaryCtxGetState "cuDevicePrimaryCtxGetState" 7000 [] (
                dev: CUdevice, flags: *mut c_uint, active: *mut c_int,
            );
            cuDevicePrimaryCtxReset "cuDevicePrimaryCtxReset" 7000 [] (dev: CUdevice);
            cuDevicePrimaryCtxReset_v2 "cuDevicePrimaryCtxReset" 11000 [] (dev: CUdevice);

            // Contexts
            cuCtxCreate "cuCtxCreate" 2000 [] (ctx: *mut CUcontext, flags: c_uint, dev: CUdevice);
            cuCtxCreate_v2 "cuCtxCreate" 3020 [] (
                ctx: *mut CUcontext, flags: c_uint, dev: CUdevice,
            );
            cuCtxCreate_v3 "cuCtxCreate" 11040 [] (
                ctx: *mut CUcontext, params_array: *mut CUexecAffinityParam, num_params: c_int,
                flags: c_uint, dev: CUdevice,
            );
            cuCtxCreate_v4 "cuCtxCreate" 12050 [] (
                ctx: *mut CUcontext, ctx_create_params: *mut CUctxCreateParams, flags: c_uint,
                dev: CUdevice,
            );
            cuCtxDestroy "cuCtxDestroy" 2000 [] (ctx: CUcontext);
            cuCtxDestroy_v2 "cuCtxDestroy" 4000 [] (ctx: CUcontext);
            cuCtxPushCurrent "cuCtxPushCurrent" 2000 [] (ctx: CUcontext);
            cuCtxPushCurrent_v2 "cuCtxPushCurrent" 4000 [] (ctx: CUcontext);
            cuCtxPopCurrent "cuCtxPopCurrent" 2000 [] (ctx: *mut CUcontext);
            cuCtxPopCurrent_v2 "cuCtxPopCurrent" 4000 [] (ctx: *mut CUcontext);
            cuCtxSetCurrent "cuCtxSetCurrent" 4000 [] (ctx: CUcontext);
            cuCtxGetCurrent "cuCtxGetCurrent" 4000 [] (ctx: *mut CUcontext);
            cuCtxGetDevice "cuCtxGetDevice" 2000 [] (device: *mut CUdevice);
            cuCtxGetDevice_v2 "cuCtxGetDevice" 13000 [] (device: *mut CUdevice, ctx: CUcontext);
            cuCtxGetFlags "cuCtxGetFlags" 7000 [] (flags: *mut c_uint);
            cuCtxSetFlags "cuCtxSetFlags" 12010 [] (flags: c_uint);
            cuCtxGetId "cuCtxGetId" 12000 [] (ctx: CUcontext, ctx_id: *mut c_ulonglong);
            cuCtxSynchronize "cuCtxSynchronize" 2000 [] ();
            cuCtxSynchronize_v2 "cuCtxSynchronize" 13000 [] (ctx: CUcontext);
            cuCtxSetLimit "cuCtxSetLimit" 3010 [] (limit: CUlimit, value: usize);
            cuCtxGetLimit "cuCtxGetLimit" 3010 [] (value: *mut usize, limit: CUlimit);
            cuCtxGetCacheConfig "cuCtxGetCacheConfig" 3020 [] (config: *mut CUfunc_cache);
            cuCtxSetCacheConfig "cuCtxSetCacheConfig" 3020 [] (config: CUfunc_cache);
            cuCtxGetApiVersion "cuCtxGetApiVersion" 3020 [] (ctx: CUcontext, version: *mut c_uint);
            cuCtxGetStreamPriorityRange "cuCtxGetStreamPriorityRange" 5050 [] (
                least_priority: *mut c_int, greatest_priority: *mut c_int,
            );
            cuCtxResetPersistingL2Cache "cuCtxResetPersistingL2Cache" 11000 [] ();
            cuCtxGetExecAffinity "cuCtxGetExecAffinity" 11040 [] (
                exec_affinity: *mut CUexecAffinityParam, kind: CUexecAffinityType,
            );
            cuCtxRecordEvent "cuCtxRecordEvent" 12050 [] (ctx: CUcontext, event: CUevent);
            cuCtxWaitEvent "cuCtxWaitEvent" 12050 [] (ctx: CUcontext, event: CUevent);

            // Contexts, superseded
            cuCtxAttach "cuCtxAttach" 2000 [] (ctx: *mut CUcontext, flags: c_uint);
            cuCtxDetach "cuCtxDetach" 2000 [] (ctx: CUcontext);
            cuCtxGetSharedMemConfig "cuCtxGetSharedMemConfig" 4020 [] (config: *mut CUsharedconfig);
            cuCtxSetSharedMemConfig "cuCtxSetSharedMemConfig" 4020 [] (config: CUsharedconfig);

            // Modules and the linker
            cuModuleLoad "cuModuleLoad" 2000 [] (module: *mut CUmodule, fname: *const c_char);
            cuModuleLoadData "cuModuleLoadData" 2000 [] (
                module: *mut CUmodule, image: *const c_void,
            );
            cuModuleLoadDataEx "cuModuleLoadDataEx" 2010 [] (
                module: *mut CUmodule, image: *const c_void, num_options: c_uint,
                options: *mut CUjit_option, option_values: *mut *mut c_void,
            );
            cuModuleLoadFatBinary "cuModuleLoadFatBinary" 2000 [] (
                module: *mut CUmodule, fat_cubin: *const c_void,
            );
            cuModuleUnload "cuModuleUnload" 2000 [] (module: CUmodule);
            cuModuleGetLoadingMode "cuModuleGetLoadingMode" 11070 [] (
                mode: *mut CUmoduleLoadingMode,
            );
            cuModuleGetFunction "cuModuleGetFunction" 2000 [] (
                func: *mut CUfunction, module: CUmodule, name: *const c_char,
            );
            cuModuleGetFunctionCount "cuModuleGetFunctionCount" 12040 [] (
                count: *mut c_uint, module: CUmodule,
            );
            cuModuleEnumerateFunctions "cuModuleEnumerateFunctions" 12040 [] (
                functions: *mut CUfunction, num_functions: c_uint, module: CUmodule,
            );
            cuModuleGetGlobal "cuModuleGetGlobal" 2000 [] (
                dptr: *mut CUdeviceptr_v1, bytes: *mut c_uint, module: CUmodule,
                name: *const c_char,
            );
            cuModuleGetGlobal_v2 "cuModuleGetGlobal" 3020 [] (
                dptr: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char,
            );
            cuLinkCreate "cuLinkCreate" 5050 [] (
                num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void,
                state_out: *mut CUlinkState,
            );
            cuLinkCreate_v2 "cuLinkCreate" 6050 [] (
                num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void,
                state_out: *mut CUlinkState,
            );
            cuLinkAddData "cuLinkAddData" 5050 [] (
                state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize,
                name: *const c_char, num_options: c_uint, options: *mut CUjit_option,
                option_values: *mut *mut c_void,
            );
            cuLinkAddData_v2 "cuLinkAddData" 6050 [] (
                state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize,
                name: *const c_char, num_options: c_uint, options: *mut CUjit_option,
                option_values: *mut *mut c_void,
            );
            cuLinkAddFile "cuLinkAddFile" 5050 [] (
                state: CUlinkState, kind: CUjitInputType, path: *const c_char, num_options: c_uint,
                options: *mut CUjit_option, option_values: *mut *mut c_void,
            );
            cuLinkAddFile_v2 "cuLinkAddFile" 6050 [] (
                state: CUlinkState, kind: CUjitInputType, path: *const c_char, num_options: c_uint,
                options: *mut CUjit_option, option_values: *mut *mut c_void,
            );
            cuLinkComplete "cuLinkComplete" 5050 [] (
                state: CUlinkState, cubin_out: *mut *mut c_void, size_out: *mut usize,
            );
            cuLinkDestroy "cuLinkDestroy" 5050 [] (state: CUlinkState);

            // Texture and surface references of modules
            cuModuleGetTexRef "cuModuleGetTexRef" 2000 [] (
                tex_ref: *mut CUtexref, module: CUmodule, name: *const c_char,
            );
            cuModuleGetSurfRef "cuModuleGetSurfRef" 3000 [] (
                surf_ref: *mut CUsurfref, module: CUmodule, name: *const c_char,
            );

            // Libraries and kernels
            cuLibraryLoadData "cuLibraryLoadData" 12000 [] (
                library: *mut CUlibrary, code: *const c_void, jit_options: *mut CUjit_option,
                jit_options_values: *mut *mut c_void, num_jit_options: c_uint,
                library_options: *mut CUlibraryOption, library_option_values: *mut *mut c_void,
                num_library_options: c_uint,
            );
            cuLibraryLoadFromFile "cuLibraryLoadFromFile" 12000 [] (
                library: *mut CUlibrary, file_name: *const c_char, jit_options: *mut CUjit_option,
                jit_options_values: *mut *mut c_void, num_jit_options: c_uint,
                library_options: *mut CUlibraryOption, library_option_values: *mut *mut c_void,
                num_library_options: c_uint,
            );
            cuLibraryUnload "cuLibraryUnload" 12000 [] (library: CUlibrary);
            cuLibraryGetKernel "cuLibraryGetKernel" 12000 [] (
                kernel: *mut CUkernel, library: CUlibrary, name: *const c_char,
            );
            cuLibraryGetKernelCount "cuLibraryGetKernelCount" 12040 [] (
                count: *mut c_uint, lib: CUlibrary,
            );
            cuLibraryEnumerateKernels "cuLibraryEnumerateKernels" 12040 [] (
                kernels: *mut CUkernel, num_kernels: c_uint, lib: CUlibrary,
            );
            cuLibraryGetModule "cuLibraryGetModule" 12000 [] (
                module: *mut CUmodule, library: CUlibrary,
            );
            cuKernelGetFunction "cuKernelGetFunction" 12000 [] (
                func: *mut CUfunction, kernel: CUkernel,
            );
            cuKernelGetLibrary "cuKernelGetLibrary" 12050 [] (
                lib: *mut CUlibrary, kernel: CUkernel,
            );
            cuLibraryGetGlobal "cuLibraryGetGlobal" 12000 [] (
                dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char,
            );
            cuLibraryGetManaged "cuLibraryGetManaged" 12000 [] (
                dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char,
            );
            cuLibraryGetUnifiedFunction "cuLibraryGetUnifiedFunction" 12000 [] (
                fptr: *mut *mut c_void, library: CUlibrary, symbol: *const c_char,
            );
            cuKernelGetAttribute "cuKernelGetAttribute" 12000 [] (
                value: *mut c_int, attrib: CUfunction_attribute, kernel: CUkernel, dev: CUdevice,
            );
            cuKernelSetAttribute "cuKernelSetAttribute" 12000 [] (
                attrib: CUfunction_attribute, val: c_int, kernel: CUkernel, dev: CUdevice,
            );
            cuKernelSetCacheConfig "cuKernelSetCacheConfig" 12000 [] (
                kernel: CUkernel, config: CUfunc_cache, dev: CUdevice,
            );
            cuKernelGetName "cuKernelGetName" 12030 [] (name: *mut *const c_char, func: CUkernel);
            cuKernelGetParamInfo "cuKernelGetParamInfo" 12040 [] (
                kernel: CUkernel, param_index: usize, param_offset: *mut usize,
                param_size: *mut usize,
            );

            // Memory
            cuMemGetInfo "cuMemGetInfo" 2000 [] (free: *mut c_uint, total: *mut c_uint);
            cuMemGetInfo_v2 "cuMemGetInfo" 3020 [] (free: *mut usize, total: *mut usize);
            cuMemAlloc "cuMemAlloc" 2000 [] (dptr: *mut CUdeviceptr_v1, bytes: c_uint);
            cuMemAlloc_v2 "cuMemAlloc" 3020 [] (dptr: *mut CUdeviceptr, bytes: usize);
            cuMemAllocPitch "cuMemAllocPitch" 2000 [] (
                dptr: *mut CUdeviceptr_v1, pitch: *mut c_uint, width_in_bytes: c_uint,
                height: c_uint, element_size_bytes: c_uint,
            );
            cuMemAllocPitch_v2 "cuMemAllocPitch" 3020 [] (
                dptr: *mut CUdeviceptr, pitch: *mut usize, width_in_bytes: usize, height: usize,
                element_size_bytes: c_uint,
            );
            cuMemFree "cuMemFree" 2000 [] (dptr: CUdeviceptr_v1);
            cuMemFree_v2 "cuMemFree" 3020 [] (dptr: CUdeviceptr);
            cuMemGetAddressRange "cuMemGetAddressRange" 2000 [] (
                base: *mut CUdeviceptr_v1, size: *mut c_uint, dptr: CUdeviceptr_v1,
            );
            cuMemGetAddressRange_v2 "cuMemGetAddressRange" 3020 [] (
                base: *mut CUdeviceptr, size: *mut usize, dptr: CUdeviceptr,
            );
            cuMemAllocHost "cuMemAllocHost" 2000 [] (ptr: *mut *mut c_void, bytes: c_uint);
            cuMemAllocHost_v2 "cuMemAllocHost" 3020 [] (ptr: *mut *mut c_void, bytes: usize);
            cuMemFreeHost "cuMemFreeHost" 2000 [] (p: *mut c_void);
            cuMemHostAlloc "cuMemHostAlloc" 2020 [] (
                ptr: *mut *mut c_void, bytes: usize, flags: c_uint,
            );
            cuMemHostGetDevicePointer "cuMemHostGetDevicePointer" 2020 [] (
                dptr: *mut CUdeviceptr_v1, p: *mut c_void, flags: c_uint,
            );
            cuMemHostGetDevicePointer_v2 "cuMemHostGetDevicePointer" 3020 [] (
                dptr: *mut CUdeviceptr, p: *mut c_void, flags: c_uint,
            );
            cuMemHostGetFlags "cuMemHostGetFlags" 2030 [] (flags: *mut c_uint, p: *mut c_void);
            cuMemAllocManaged "cuMemAllocManaged" 6000 [] (
                dptr: *mut CUdeviceptr, bytes: usize, flags: c_uint,
            );
            cuDeviceRegisterAsyncNotification "cuDeviceRegisterAsyncNotification" 12040 [] (
                device: CUdevice, callback_func: CUasyncCallback, user_data: *mut c_void,
                callback: *mut CUasyncCallbackHandle,
            );
            cuDeviceUnregisterAsyncNotification "cuDeviceUnregisterAsyncNotification" 12040 [] (
                device: CUdevice, callback: CUasyncCallbackHandle,
            );
            cuDeviceGetByPCIBusId "cuDeviceGetByPCIBusId" 4010 [] (
                dev: *mut CUdevice, pci_bus_id: *const c_char,
            );
            cuDeviceGetPCIBusId "cuDeviceGetPCIBusId" 4010 [] (
                pci_bus_id: *mut c_char, len: c_int, dev: CUdevice,
            );
            cuIpcGetEventHandle "cuIpcGetEventHandle" 4010 [] (
                handle: *mut CUipcEventHandle, event: CUevent,
            );
            cuIpcOpenEventHandle "cuIpcOpenEventHandle" 4010 [] (
                event: *mut CUevent, handle: CUipcEventHandle,
            );
            cuIpcGetMemHandle "cuIpcGetMemHandle" 4010 [] (
                handle: *mut CUipcMemHandle, dptr: CUdeviceptr,
            );
            cuIpcOpenMemHandle "cuIpcOpenMemHandle" 4010 [] (
                dptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint,
            );
            cuIpcOpenMemHandle_v2 "cuIpcOpenMemHandle" 11000 [] (
                dptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint,
            );
            cuIpcCloseMemHandle "cuIpcCloseMemHandle" 4010 [] (dptr: CUdeviceptr);
            cuMemHostRegister "cuMemHostRegister" 4000 [] (
                p: *mut c_void, bytes: usize, flags: c_uint,
            );
            cuMemHostRegister_v2 "cuMemHostRegister" 6050 [] (
                p: *mut c_void, bytes: usize, flags: c_uint,
            );
            cuMemHostUnregister "cuMemHostUnregister" 4000 [] (p: *mut c_void);
            cuMemcpy "cuMemcpy" 4000 [cuMemcpy_ptds 7000] (
                dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize,
            );
            cuMemcpyPeer "cuMemcpyPeer" 4000 [cuMemcpyPeer_ptds 7000] (
                dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr,
                src_context: CUcontext, byte_count: usize,
            );
            cuMemcpyHtoD "cuMemcpyHtoD" 2000 [] (
                dst_device: CUdeviceptr_v1, src_host: *const c_void, byte_count: c_uint,
            );
            cuMemcpyHtoD_v2 "cuMemcpyHtoD" 3020 [cuMemcpyHtoD_v2_ptds 7000] (
                dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize,
            );
            cuMemcpyDtoH "cuMemcpyDtoH" 2000 [] (
                dst_host: *mut c_void, src_device: CUdeviceptr_v1, byte_count: c_uint,
            );
            cuMemcpyDtoH_v2 "cuMemcpyDtoH" 3020 [cuMemcpyDtoH_v2_ptds 7000] (
                dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize,
            );
            cuMemcpyDtoD "cuMemcpyDtoD" 2000 [] (
                dst_device: CUdeviceptr_v1, src_device: CUdeviceptr_v1, byte_count: c_uint,
            );
            cuMemcpyDtoD_v2 "cuMemcpyDtoD" 3020 [cuMemcpyDtoD_v2_ptds 7000] (
                dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize,
            );
            cuMemcpyDtoA "cuMemcpyDtoA" 2000 [] (
                dst_array: CUarray, dst_offset: c_uint, src_device: CUdeviceptr_v1,
                byte_count: c_uint,
            );
            cuMemcpyDtoA_v2 "cuMemcpyDtoA" 3020 [cuMemcpyDtoA_v2_ptds 7000] (
                dst_array: CUarray, dst_offset: usize, src_device: CUdeviceptr, byte_count: usize,
            );
            cuMemcpyAtoD "cuMemcpyAtoD" 2000 [] (
                dst_device: CUdeviceptr_v1, src_array: CUarray, src_offset: c_uint,
                byte_count: c_uint,
            );
            cuMemcpyAtoD_v2 "cuMemcpyAtoD" 3020 [cuMemcpyAtoD_v2_ptds 7000] (
                dst_device: CUdeviceptr, src_array: CUarray, src_offset: usize, byte_count: usize,
            );
            cuMemcpyHtoA "cuMemcpyHtoA" 2000 [] (
                dst_array: CUarray, dst_offset: c_uint, src_host: *const c_void, byte_count: c_uint,
            );
            cuMemcpyHtoA_v2 "cuMemcpyHtoA" 3020 [cuMemcpyHtoA_v2_ptds 7000] (
                dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize,
            );
            cuMemcpyAtoH "cuMemcpyAtoH" 2000 [] (
                dst_host: *mut c_void, src_array: CUarray, src_offset: c_uint, byte_count: c_uint,
            );
            cuMemcpyAtoH_v2 "cuMemcpyAtoH" 3020 [cuMemcpyAtoH_v2_ptds 7000] (
                dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize,
            );
            cuMemcpyAtoA "cuMemcpyAtoA" 2000 [] (
                dst_array: CUarray, dst_offset: c_uint, src_array: CUarray, src_offset: c_uint,
                byte_count: c_uint,
            );
            cuMemcpyAtoA_v2 "cuMemcpyAtoA" 3020 [cuMemcpyAtoA_v2_ptds 7000] (
                dst_array: CUarray, dst_offset: usize, src_array: CUarray, src_offset: usize,
                byte_count: usize,
            );
            cuMemcpy2D "cuMemcpy2D" 2000 [] (copy: *const CUDA_MEMCPY2D_v1);
            cuMemcpy2D_v2 "cuMemcpy2D" 3020 [cuMemcpy2D_v2_ptds 7000] (copy: *const CUDA_MEMCPY2D);
            cuMemcpy2DUnaligned "cuMemcpy2DUnaligned" 2000 [] (copy: *const CUDA_MEMCPY2D_v1);
            cuMemcpy2DUnaligned_v2 "cuMemcpy2DUnaligned" 3020 [cuMemcpy2DUnaligned_v2_ptds 7000] (
                copy: *const CUDA_MEMCPY2D,
            );
            cuMemcpy3D "cuMemcpy3D" 2000 [] (copy: *const CUDA_MEMCPY3D_v1);
            cuMemcpy3D_v2 "cuMemcpy3D" 3020 [cuMemcpy3D_v2_ptds 7000] (copy: *const CUDA_MEMCPY3D);
            cuMemcpy3DPeer "cuMemcpy3DPeer" 4000 [cuMemcpy3DPeer_ptds 7000] (
                copy: *const CUDA_MEMCPY3D_PEER,
            );
            cuMemcpyAsync "cuMemcpyAsync" 4000 [cuMemcpyAsync_ptsz 7000] (
                dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, stream: CUstream,
            );
            cuMemcpyPeerAsync "cuMemcpyPeerAsync" 4000 [cuMemcpyPeerAsync_ptsz 7000] (
                dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr,
                src_context: CUcontext, byte_count: usize, stream: CUstream,
            );
            cuMemcpyHtoDAsync "cuMemcpyHtoDAsync" 2000 [] (
                dst_device: CUdeviceptr_v1, src_host: *const c_void, byte_count: c_uint,
                stream: CUstream,
            );
            cuMemcpyHtoDAsync_v2 "cuMemcpyHtoDAsync" 3020 [cuMemcpyHtoDAsync_v2_ptsz 7000] (
                dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize,
                stream: CUstream,
            );
            cuMemcpyDtoHAsync "cuMemcpyDtoHAsync" 2000 [] (
                dst_host: *mut c_void, src_device: CUdeviceptr_v1, byte_count: c_uint,
                stream: CUstream,
            );
            cuMemcpyDtoHAsync_v2 "cuMemcpyDtoHAsync" 3020 [cuMemcpyDtoHAsync_v2_ptsz 7000] (
                dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, stream: CUstream,
            );
            cuMemcpyDtoDAsync "cuMemcpyDtoDAsync" 3000 [] (
                dst_device: CUdeviceptr_v1, src_device: CUdeviceptr_v1, byte_count: c_uint,
                stream: CUstream,
            );
            cuMemcpyDtoDAsync_v2 "cuMemcpyDtoDAsync" 3020 [cuMemcpyDtoDAsync_v2_ptsz 7000] (
                dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize,
                stream: CUstream,
            );
            cuMemcpyHtoAAsync "cuMemcpyHtoAAsync" 2000 [] (
                dst_array: CUarray, dst_offset: c_uint, src_host: *const c_void, byte_count: c_uint,
                stream: CUstream,
            );
            cuMemcpyHtoAAsync_v2 "cuMemcpyHtoAAsync" 3020 [cuMemcpyHtoAAsync_v2_ptsz 7000] (
                dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize,
                stream: CUstream,
            );
            cuMemcpyAtoHAsync "cuMemcpyAtoHAsync" 2000 [] (
                dst_host: *mut c_void, src_array: CUarray, src_offset: c_uint, byte_count: c_uint,
                stream: CUstream,
            );
            cuMemcpyAtoHAsync_v2 "cuMemcpyAtoHAsync" 3020 [cuMemcpyAtoHAsync_v2_ptsz 7000] (
                dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize,
                stream: CUstream,
            );
            cuMemcpy2DAsync "cuMemcpy2DAsync" 2000 [] (
                copy: *const CUDA_MEMCPY2D_v1, stream: CUstream,
            );
            cuMemcpy2DAsync_v2 "cuMemcpy2DAsync" 3020 [cuMemcpy2DAsync_v2_ptsz 7000] (
                copy: *const CUDA_MEMCPY2D, stream: CUstream,
            );
            cuMemcpy3DAsync "cuMemcpy3DAsync" 2000 [] (
                copy: *const CUDA_MEMCPY3D_v1, stream: CUstream,
            );
            cuMemcpy3DAsync_v2 "cuMemcpy3DAsync" 3020 [cuMemcpy3DAsync_v2_ptsz 7000] (
                copy: *const CUDA_MEMCPY3D, stream: CUstream,
            );
            cuMemcpy3DPeerAsync "cuMemcpy3DPeerAsync" 4000 [cuMemcpy3DPeerAsync_ptsz 7000] (
                copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream,
            );
            cuMemcpyBatchAsync "cuMemcpyBatchAsync" 12080 [cuMemcpyBatchAsync_ptsz 12080] (
                dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
                attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize,
                fail_idx: *mut usize, stream: CUstream,
            );
            cuMemcpyBatchAsync_v2 "cuMemcpyBatchAsync" 13000 [cuMemcpyBatchAsync_v2_ptsz 13000] (
                dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
                attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize,
                stream: CUstream,
            );
            cuMemcpy3DBatchAsync "cuMemcpy3DBatchAsync" 12080 [cuMemcpy3DBatchAsync_ptsz 12080] (
                num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, fail_idx: *mut usize,
                flags: c_ulonglong, stream: CUstream,
            );
            cuMemcpy3DBatchAsync_v2 "cuMemcpy3DBatchAsync" 13000 [cuMemcpy3DBatchAsync_v2_ptsz 13000] (
                num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong,
                stream: CUstream,
            );
            cuMemsetD8 "cuMemsetD8" 2000 [] (dst_device: CUdeviceptr_v1, uc: c_uchar, n: c_uint);
            cuMemsetD8_v2 "cuMemsetD8" 3020 [cuMemsetD8_v2_ptds 7000] (
                dst_device: CUdeviceptr, uc: c_uchar, n: usize,
            );
            cuMemsetD16 "cuMemsetD16" 2000 [] (dst_device: CUdeviceptr_v1, us: c_ushort, n: c_uint);
            cuMemsetD16_v2 "cuMemsetD16" 3020 [cuMemsetD16_v2_ptds 7000] (
                dst_device: CUdeviceptr, us: c_ushort, n: usize,
            );
            cuMemsetD32 "cuMemsetD32" 2000 [] (dst_device: CUdeviceptr_v1, ui: c_uint, n: c_uint);
            cuMemsetD32_v2 "cuMemsetD32" 3020 [cuMemsetD32_v2_ptds 7000] (
                dst_device: CUdeviceptr, ui: c_uint, n: usize,
            );
            cuMemsetD2D8 "cuMemsetD2D8" 2000 [] (
                dst_device: CUdeviceptr_v1, dst_pitch: c_uint, uc: c_uchar, width: c_uint,
                height: c_uint,
            );
            cuMemsetD2D8_v2 "cuMemsetD2D8" 3020 [cuMemsetD2D8_v2_ptds 7000] (
                dst_device: CUdeviceptr, dst_pitch: usize, uc: c_uchar, width: usize, height: usize,
            );
            cuMemsetD2D16 "cuMemsetD2D16" 2000 [] (
                dst_device: CUdeviceptr_v1, dst_pitch: c_uint, us: c_ushort, width: c_uint,
                height: c_uint,
            );
            cuMemsetD2D16_v2 "cuMemsetD2D16" 3020 [cuMemsetD2D16_v2_ptds 7000] (
                dst_device: CUdeviceptr, dst_pitch: usize, us: c_ushort, width: usize,
                height: usize,
            );
            cuMemsetD2D32 "cuMemsetD2D32" 2000 [] (
                dst_device: CUdeviceptr_v1, dst_pitch: c_uint, ui: c_uint, width: c_uint,
                height: c_uint,
            );
            cuMemsetD2D32_v2 "cuMemsetD2D32" 3020 [cuMemsetD2D32_v2_ptds 7000] (
                dst_device: CUdeviceptr, dst_pitch: usize, ui: c_uint, width: usize, height: usize,
            );
            cuMemsetD8Async "cuMemsetD8Async" 3020 [cuMemsetD8Async_ptsz 7000] (
                dst_device: CUdeviceptr, uc: c_uchar, n: usize, stream: CUstream,
            );
            cuMemsetD16Async "cuMemsetD16Async" 3020 [cuMemsetD16Async_ptsz 7000] (
                dst_device: CUdeviceptr, us: c_ushort, n: usize, stream: CUstream,
            );
            cuMemsetD32Async "cuMemsetD32Async" 3020 [cuMemsetD32Async_ptsz 7000] (
                dst_device: CUdeviceptr, ui: c_uint, n: usize, stream: CUstream,
            );
            cuMemsetD2D8Async "cuMemsetD2D8Async" 3020 [cuMemsetD2D8Async_ptsz 7000] (
                dst_device: CUdeviceptr, dst_pitch: usize, uc: c_uchar, width: usize, height: usize,
                stream: CUstream,
            );
            cuMemsetD2D16Async "cuMemsetD2D16Async" 3020 [cuMemsetD2D16Async_ptsz 7000] (
                dst_device: CUdeviceptr, dst_pitch: usize, us: c_ushort, width: usize,
                height: usize, stream: CUstream,
            );
            cuMemsetD2D32Async "cuMemsetD2D32Async" 3020 [cuMemsetD2D32Async_ptsz 7000] (
                dst_device: CUdeviceptr, dst_pitch: usize, ui: c_uint, width: usize, height: usize,
                stream: CUstream,
            );
            cuArrayCreate "cuArrayCreate" 2000 [] (
                handle: *mut CUarray, allocate_array: *const CUDA_ARRAY_DESCRIPTOR_v1,
            );
            cuArrayCreate_v2 "cuArrayCreate" 3020 [] (
                handle: *mut CUarray, allocate_array: *const CUDA_ARRAY_DESCRIPTOR,
            );
            cuArrayGetDescriptor "cuArrayGetDescriptor" 2000 [] (
                array_descriptor: *mut CUDA_ARRAY_DESCRIPTOR_v1, array: CUarray,
            );
            cuArrayGetDescriptor_v2 "cuArrayGetDescriptor" 3020 [] (
                array_descriptor: *mut CUDA_ARRAY_DESCRIPTOR, array: CUarray,
            );
            cuArrayGetSparseProperties "cuArrayGetSparseProperties" 11010 [] (
                sparse_properties: *mut CUDA_ARRAY_SPARSE_PROPERTIES, array: CUarray,
            );
            cuMipmappedArrayGetSparseProperties "cuMipmappedArrayGetSparseProperties" 11010 [] (
                sparse_properties: *mut CUDA_ARRAY_SPARSE_PROPERTIES, mipmap: CUmipmappedArray,
            );
            cuArrayGetMemoryRequirements "cuArrayGetMemoryRequirements" 11060 [] (
                memory_requirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUarray,
                device: CUdevice,
            );
            cuMipmappedArrayGetMemoryRequirements "cuMipmappedArrayGetMemoryRequirements" 11060 [] (
                memory_requirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, mipmap: CUmipmappedArray,
                device: CUdevice,
            );
            cuArrayGetPlane "cuArrayGetPlane" 11020 [] (
                plane_array: *mut CUarray, array: CUarray, plane_idx: c_uint,
            );
            cuArrayDestroy "cuArrayDestroy" 2000 [] (array: CUarray);
            cuArray3DCreate "cuArray3DCreate" 2000 [] (
                handle: *mut CUarray, allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR_v1,
            );
            cuArray3DCreate_v2 "cuArray3DCreate" 3020 [] (
                handle: *mut CUarray, allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR,
            );
            cuArray3DGetDescriptor "cuArray3DGetDescriptor" 2000 [] (
                array_descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR_v1, array: CUarray,
            );
            cuArray3DGetDescriptor_v2 "cuArray3DGetDescriptor" 3020 [] (
                array_descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray,
            );
            cuMipmappedArrayCreate "cuMipmappedArrayCreate" 5000 [] (
                handle: *mut CUmipmappedArray, mipmapped_array_desc: *const CUDA_ARRAY3D_DESCRIPTOR,
                num_mipmap_levels: c_uint,
            );
            cuMipmappedArrayGetLevel "cuMipmappedArrayGetLevel" 5000 [] (
                level_array: *mut CUarray, mipmapped_array: CUmipmappedArray, level: c_uint,
            );
            cuMipmappedArrayDestroy "cuMipmappedArrayDestroy" 5000 [] (
                mipmapped_array: CUmipmappedArray,
            );
            cuMemGetHandleForAddressRange "cuMemGetHandleForAddressRange" 11070 [] (
                handle: *mut c_void, dptr: CUdeviceptr, size: usize,
                handle_type: CUmemRangeHandleType, flags: c_ulonglong,
            );
            cuMemBatchDecompressAsync "cuMemBatchDecompressAsync" 12060 [cuMemBatchDecompressAsync_ptsz 12060] (
                params_array: *mut CUmemDecompressParams, count: usize, flags: c_uint,
                error_index: *mut usize, stream: CUstream,
            );

            // Virtual memory
            cuMemAddressReserve "cuMemAddressReserve" 10020 [] (
                ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr,
                flags: c_ulonglong,
            );
            cuMemAddressFree "cuMemAddressFree" 10020 [] (ptr: CUdeviceptr, size: usize);
            cuMemCreate "cuMemCreate" 10020 [] (
                handle: *mut CUmemGenericAllocationHandle, size: usize,
                prop: *const CUmemAllocationProp, flags: c_ulonglong,
            );
            cuMemRelease "cuMemRelease" 10020 [] (handle: CUmemGenericAllocationHandle);
            cuMemMap "cuMemMap" 10020 [] (
                ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle,
                flags: c_ulonglong,
            );
            cuMemMapArrayAsync "cuMemMapArrayAsync" 11010 [cuMemMapArrayAsync_ptsz 11010] (
                map_info_list: *mut CUarrayMapInfo, count: c_uint, stream: CUstream,
            );
            cuMemUnmap "cuMemUnmap" 10020 [] (ptr: CUdeviceptr, size: usize);
            cuMemSetAccess "cuMemSetAccess" 10020 [] (
                ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize,
            );
            cuMemGetAccess "cuMemGetAccess" 10020 [] (
                flags: *mut c_ulonglong, location: *const CUmemLocation, ptr: CUdeviceptr,
            );
            cuMemExportToShareableHandle "cuMemExportToShareableHandle" 10020 [] (
                shareable_handle: *mut c_void, handle: CUmemGenericAllocationHandle,
                handle_type: CUmemAllocationHandleType, flags: c_ulonglong,
            );
            cuMemImportFromShareableHandle "cuMemImportFromShareableHandle" 10020 [] (
                handle: *mut CUmemGenericAllocationHandle, os_handle: *mut c_void,
                sh_handle_type: CUmemAllocationHandleType,
            );
            cuMemGetAllocationGranularity "cuMemGetAllocationGranularity" 10020 [] (
                granularity: *mut usize, prop: *const CUmemAllocationProp,
                option: CUmemAllocationGranularity_flags,
            );
            cuMemGetAllocationPropertiesFromHandle "cuMemGetAllocationPropertiesFromHandle" 10020 [] (
                prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle,
            );
            cuMemRetainAllocationHandle "cuMemRetainAllocationHandle" 11000 [] (
                handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void,
            );

            // Stream-ordered memory
            cuMemFreeAsync "cuMemFreeAsync" 11020 [cuMemFreeAsync_ptsz 11020] (
                dptr: CUdeviceptr, stream: CUstream,
            );
            cuMemAllocAsync "cuMemAllocAsync" 11020 [cuMemAllocAsync_ptsz 11020] (
                dptr: *mut CUdeviceptr, bytes: usize, stream: CUstream,
            );
            cuMemPoolTrimTo "cuMemPoolTrimTo" 11020 [] (
                pool: CUmemoryPool, min_bytes_to_keep: usize,
            );
            cuMemPoolSetAttribute "cuMemPoolSetAttribute" 11020 [] (
                pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void,
            );
            cuMemPoolGetAttribute "cuMemPoolGetAttribute" 11020 [] (
                pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void,
            );
            cuMemPoolSetAccess "cuMemPoolSetAccess" 11020 [] (
                pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize,
            );
            cuMemPoolGetAccess "cuMemPoolGetAccess" 11020 [] (
                flags: *mut CUmemAccess_flags, mem_pool: CUmemoryPool, location: *mut CUmemLocation,
            );
            cuMemPoolCreate "cuMemPoolCreate" 11020 [] (
                pool: *mut CUmemoryPool, pool_props: *const CUmemPoolProps,
            );
            cuMemPoolDestroy "cuMemPoolDestroy" 11020 [] (pool: CUmemoryPool);
            cuMemGetDefaultMemPool "cuMemGetDefaultMemPool" 13000 [] (
                pool_out: *mut CUmemoryPool, location: *mut CUmemLocation,
                kind: CUmemAllocationType,
            );
            cuMemGetMemPool "cuMemGetMemPool" 13000 [] (
                pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType,
            );
            cuMemSetMemPool "cuMemSetMemPool" 13000 [] (
                location: *mut CUmemLocation, kind: CUmemAllocationType, pool: CUmemoryPool,
            );
            cuMemAllocFromPoolAsync "cuMemAllocFromPoolAsync" 11020 [cuMemAllocFromPoolAsync_ptsz 11020] (
                dptr: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream,
            );
            cuMemPoolExportToShareableHandle "cuMemPoolExportToShareableHandle" 11020 [] (
                handle_out: *mut c_void, pool: CUmemoryPool, handle_type: CUmemAllocationHandleType,
                flags: c_ulonglong,
            );
            cuMemPoolImportFromShareableHandle "cuMemPoolImportFromShareableHandle" 11020 [] (
                pool_out: *mut CUmemoryPool, handle: *mut c_void,
                handle_type: CUmemAllocationHandleType, flags: c_ulonglong,
            );
            cuMemPoolExportPointer "cuMemPoolExportPointer" 11020 [] (
                share_data_out: *mut CUmemPoolPtrExportData, ptr: CUdeviceptr,
            );
            cuMemPoolImportPointer "cuMemPoolImportPointer" 11020 [] (
                ptr_out: *mut CUdeviceptr, pool: CUmemoryPool,
                share_data: *mut CUmemPoolPtrExportData,
            );

            // Multicast
            cuMulticastCreate "cuMulticastCreate" 12010 [] (
                mc_handle: *mut CUmemGenericAllocationHandle, prop: *const CUmulticastObjectProp,
            );
            cuMulticastAddDevice "cuMulticastAddDevice" 12010 [] (
                mc_handle: CUmemGenericAllocationHandle, dev: CUdevice,
            );
            cuMulticastBindMem "cuMulticastBindMem" 12010 [] (
                mc_handle: CUmemGenericAllocationHandle, mc_offset: usize,
                mem_handle: CUmemGenericAllocationHandle, mem_offset: usize, size: usize,
                flags: c_ulonglong,
            );
            cuMulticastBindAddr "cuMulticastBindAddr" 12010 [] (
                mc_handle: CUmemGenericAllocationHandle, mc_offset: usize, memptr: CUdeviceptr,
                size: usize, flags: c_ulonglong,
            );
            cuMulticastUnbind "cuMulticastUnbind" 12010 [] (
                mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize,
                size: usize,
            );
            cuMulticastGetGranularity "cuMulticastGetGranularity" 12010 [] (
                granularity: *mut usize, prop: *const CUmulticastObjectProp,
                option: CUmulticastGranularity_flags,
            );

            // Unified addressing
            cuPointerGetAttribute "cuPointerGetAttribute" 4000 [] (
                data: *mut c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr,
            );
            cuMemPrefetchAsync "cuMemPrefetchAsync" 8000 [cuMemPrefetchAsync_ptsz 8000] (
                dptr: CUdeviceptr, count: usize, dst_device: CUdevice, stream: CUstream,
            );
            cuMemPrefetchAsync_v2 "cuMemPrefetchAsync" 12020 [cuMemPrefetchAsync_v2_ptsz 12020] (
                dptr: CUdeviceptr, count: usize, location: CUmemLocation, flags: c_uint,
                stream: CUstream,
            );
            cuMemAdvise "cuMemAdvise" 8000 [] (
                dptr: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice,
            );
            cuMemAdvise_v2 "cuMemAdvise" 12020 [] (
                dptr: CUdeviceptr, count: usize, advice: CUmem_advise, location: CUmemLocation,
            );
            cuMemPrefetchBatchAsync "cuMemPrefetchBatchAsync" 13000 [cuMemPrefetchBatchAsync_ptsz 13000] (
                dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
                prefetch_locs: *mut CUmemLocation, prefetch_loc_idxs: *mut usize,
                num_prefetch_locs: usize, flags: c_ulonglong, stream: CUstream,
            );
            cuMemDiscardBatchAsync "cuMemDiscardBatchAsync" 13000 [cuMemDiscardBatchAsync_ptsz 13000] (
                dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, flags: c_ulonglong,
                stream: CUstream,
            );
            cuMemDiscardAndPrefetchBatchAsync "cuMemDiscardAndPrefetchBatchAsync" 13000 [cuMemDiscardAndPrefetchBatchAsync_ptsz 13000] (
                dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
                prefetch_locs: *mut CUmemLocation, prefetch_loc_idxs: *mut usize,
                num_prefetch_locs: usize, flags: c_ulonglong, stream: CUstream,
            );
            cuMemRangeGetAttribute "cuMemRangeGetAttribute" 8000 [] (
                data: *mut c_void, data_size: usize, attribute: CUmem_range_attribute,
                dptr: CUdeviceptr, count: usize,
            );
            cuMemRangeGetAttributes "cuMemRangeGetAttributes" 8000 [] (
                data: *mut *mut c_void, data_sizes: *mut usize,
                attributes: *mut CUmem_range_attribute, num_attributes: usize, dptr: CUdeviceptr,
                count: usize,
            );
            cuPointerSetAttribute "cuPointerSetAttribute" 6000 [] (
                value: *const c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr,
            );
            cuPointerGetAttributes "cuPointerGetAttributes" 7000 [] (
                num_attributes: c_uint, attributes: *mut CUpointer_attribute,
                data: *mut *mut c_void, ptr: CUdeviceptr,
            );

            // Streams
            cuStreamCreate "cuStreamCreate" 2000 [] (stream: *mut CUstream, flags: c_uint);
            cuStreamCreateWithPriority "cuStreamCreateWithPriority" 5050 [] (
                stream: *mut CUstream, flags: c_uint, priority: c_int,
            );
            cuStreamGetPriority "cuStreamGetPriority" 5050 [cuStreamGetPriority_ptsz 7000] (
                stream: CUstream, priority: *mut c_int,
            );
            cuStreamGetDevice "cuStreamGetDevice" 12080 [cuStreamGetDevice_ptsz 12080] (
                stream: CUstream, device: *mut CUdevice,
            );
            cuStreamGetFlags "cuStreamGetFlags" 5050 [cuStreamGetFlags_ptsz 7000] (
                stream: CUstream, flags: *mut c_uint,
            );
            cuStreamGetId "cuStreamGetId" 12000 [cuStreamGetId_ptsz 12000] (
                stream: CUstream, stream_id: *mut c_ulonglong,
            );
            cuStreamGetCtx "cuStreamGetCtx" 9020 [cuStreamGetCtx_ptsz 9020] (
                stream: CUstream, ctx: *mut CUcontext,
            );
            cuStreamGetCtx_v2 "cuStreamGetCtx" 12050 [cuStreamGetCtx_v2_ptsz 12050] (
                stream: CUstream, ctx: *mut CUcontext, green_ctx: *mut CUgreenCtx,
            );
            cuStreamWaitEvent "cuStreamWaitEvent" 3020 [cuStreamWaitEvent_ptsz 7000] (
                stream: CUstream, event: CUevent, flags: c_uint,
            );
            cuStreamAddCallback "cuStreamAddCallback" 5000 [cuStreamAddCallback_ptsz 7000] (
                stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: c_uint,
            );
            cuStreamBeginCapture "cuStreamBeginCapture" 10000 [cuStreamBeginCapture_ptsz 10000] (
                stream: CUstream,
            );
            cuStreamBeginCapture_v2 "cuStreamBeginCapture" 10010 [cuStreamBeginCapture_v2_ptsz 10010] (
                stream: CUstream, mode: CUstreamCaptureMode,
            );
            cuStreamBeginCaptureToGraph "cuStreamBeginCaptureToGraph" 12030 [cuStreamBeginCaptureToGraph_ptsz 12030] (
                stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode,
                dependency_data: *const CUgraphEdgeData, num_dependencies: usize,
                mode: CUstreamCaptureMode,
            );
            cuThreadExchangeStreamCaptureMode "cuThreadExchangeStreamCaptureMode" 10010 [] (
                mode: *mut CUstreamCaptureMode,
            );
            cuStreamEndCapture "cuStreamEndCapture" 10000 [cuStreamEndCapture_ptsz 10000] (
                stream: CUstream, graph: *mut CUgraph,
            );
            cuStreamIsCapturing "cuStreamIsCapturing" 10000 [cuStreamIsCapturing_ptsz 10000] (
                stream: CUstream, capture_status: *mut CUstreamCaptureStatus,
            );
            cuStreamGetCaptureInfo "cuStreamGetCaptureInfo" 10010 [cuStreamGetCaptureInfo_ptsz 10010] (
                stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut u64,
            );
            cuStreamGetCaptureInfo_v2 "cuStreamGetCaptureInfo" 11030 [cuStreamGetCaptureInfo_v2_ptsz 11030] (
                stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut u64,
                graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode,
                num_dependencies_out: *mut usize,
            );
            cuStreamGetCaptureInfo_v3 "cuStreamGetCaptureInfo" 12030 [cuStreamGetCaptureInfo_v3_ptsz 12030] (
                stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut u64,
                graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode,
                edge_data_out: *mut *const CUgraphEdgeData, num_dependencies_out: *mut usize,
            );
            cuStreamUpdateCaptureDependencies "cuStreamUpdateCaptureDependencies" 11030 [cuStreamUpdateCaptureDependencies_ptsz 11030] (
                stream: CUstream, dependencies: *mut CUgraphNode, num_dependencies: usize,
                flags: c_uint,
            );
            cuStreamUpdateCaptureDependencies_v2 "cuStreamUpdateCaptureDependencies" 12030 [cuStreamUpdateCaptureDependencies_v2_ptsz 12030] (
                stream: CUstream, dependencies: *mut CUgraphNode,
                dependency_data: *const CUgraphEdgeData, num_dependencies: usize, flags: c_uint,
            );
            cuStreamAttachMemAsync "cuStreamAttachMemAsync" 6000 [cuStreamAttachMemAsync_ptsz 7000] (
                stream: CUstream, dptr: CUdeviceptr, length: usize, flags: c_uint,
            );
            cuStreamQuery "cuStreamQuery" 2000 [cuStreamQuery_ptsz 7000] (stream: CUstream);
            cuStreamSynchronize "cuStreamSynchronize" 2000 [cuStreamSynchronize_ptsz 7000] (
                stream: CUstream,
            );
            cuStreamDestroy "cuStreamDestroy" 2000 [] (stream: CUstream);
            cuStreamDestroy_v2 "cuStreamDestroy" 4000 [] (stream: CUstream);
            cuStreamCopyAttributes "cuStreamCopyAttributes" 11000 [cuStreamCopyAttributes_ptsz 11000] (
                dst_stream: CUstream, src_stream: CUstream,
            );
            cuStreamGetAttribute "cuStreamGetAttribute" 11000 [cuStreamGetAttribute_ptsz 11000] (
                stream: CUstream, attr: CUstreamAttrID, value: *mut CUstreamAttrValue,
            );
            cuStreamSetAttribute "cuStreamSetAttribute" 11000 [cuStreamSetAttribute_ptsz 11000] (
                stream: CUstream, attr: CUstreamAttrID, param: *const CUstreamAttrValue,
            );

            // Events
            cuEventCreate "cuEventCreate" 2000 [] (event: *mut CUevent, flags: c_uint);
            cuEventRecord "cuEventRecord" 2000 [cuEventRecord_ptsz 7000] (
                event: CUevent, stream: CUstream,
            );
            cuEventRecordWithFlags "cuEventRecordWithFlags" 11010 [cuEventRecordWithFlags_ptsz 11010] (
                event: CUevent, stream: CUstream, flags: c_uint,
            );
            cuEventQuery "cuEventQuery" 2000 [] (event: CUevent);
            cuEventSynchronize "cuEventSynchronize" 2000 [] (event: CUevent);
            cuEventDestroy "cuEventDestroy" 2000 [] (event: CUevent);
            cuEventDestroy_v2 "cuEventDestroy" 4000 [] (event: CUevent);
            cuEventElapsedTime "cuEventElapsedTime" 2000 [] (
                milliseconds: *mut f32, start: CUevent, end: CUevent,
            );
            cuEventElapsedTime_v2 "cuEventElapsedTime" 12080 [] (
                milliseconds: *mut f32, start: CUevent, end: CUevent,
            );

            // External memory and semaphores
            cuImportExternalMemory "cuImportExternalMemory" 10000 [] (
                ext_mem_out: *mut CUexternalMemory,
                mem_handle_desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
            );
            cuExternalMemoryGetMappedBuffer "cuExternalMemoryGetMappedBuffer" 10000 [] (
                dptr: *mut CUdeviceptr, ext_mem: CUexternalMemory,
                buffer_desc: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
            );
            cuExternalMemoryGetMappedMipmappedArray "cuExternalMemoryGetMappedMipmappedArray" 10000 [] (
                mipmap: *mut CUmipmappedArray, ext_mem: CUexternalMemory,
                mipmap_desc: *const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC,
            );
            cuDestroyExternalMemory "cuDestroyExternalMemory" 10000 [] (ext_mem: CUexternalMemory);
            cuImportExternalSemaphore "cuImportExternalSemaphore" 10000 [] (
                ext_sem_out: *mut CUexternalSemaphore,
                sem_handle_desc: *const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC,
            );
            cuSignalExternalSemaphoresAsync "cuSignalExternalSemaphoresAsync" 10000 [cuSignalExternalSemaphoresAsync_ptsz 10000] (
                ext_sem_array: *const CUexternalSemaphore,
                params_array: *const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, num_ext_sems: c_uint,
                stream: CUstream,
            );
            cuWaitExternalSemaphoresAsync "cuWaitExternalSemaphoresAsync" 10000 [cuWaitExternalSemaphoresAsync_ptsz 10000] (
                ext_sem_array: *const CUexternalSemaphore,
                params_array: *const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, num_ext_sems: c_uint,
                stream: CUstream,
            );
            cuDestroyExternalSemaphore "cuDestroyExternalSemaphore" 10000 [] (
                ext_sem: CUexternalSemaphore,
            );

            // Memory operations in streams
            cuStreamWaitValue32 "cuStreamWaitValue32" 8000 [cuStreamWaitValue32_ptsz 8000] (
                stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint,
            );
            cuStreamWaitValue32_v2 "cuStreamWaitValue32" 11070 [cuStreamWaitValue32_v2_ptsz 11070] (
                stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint,
            );
            cuStreamWaitValue64 "cuStreamWaitValue64" 9000 [cuStreamWaitValue64_ptsz 9000] (
                stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint,
            );
            cuStreamWaitValue64_v2 "cuStreamWaitValue64" 11070 [cuStreamWaitValue64_v2_ptsz 11070] (
                stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint,
            );
            cuStreamWriteValue32 "cuStreamWriteValue32" 8000 [cuStreamWriteValue32_ptsz 8000] (
                stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint,
            );
            cuStreamWriteValue32_v2 "cuStreamWriteValue32" 11070 [cuStreamWriteValue32_v2_ptsz 11070] (
                stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint,
            );
            cuStreamWriteValue64 "cuStreamWriteValue64" 9000 [cuStreamWriteValue64_ptsz 9000] (
                stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint,
            );
            cuStreamWriteValue64_v2 "cuStreamWriteValue64" 11070 [cuStreamWriteValue64_v2_ptsz 11070] (
                stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint,
            );
            cuStreamBatchMemOp "cuStreamBatchMemOp" 8000 [cuStreamBatchMemOp_ptsz 8000] (
                stream: CUstream, count: c_uint, param_array: *mut CUstreamBatchMemOpParams,
                flags: c_uint,
            );
            cuStreamBatchMemOp_v2 "cuStreamBatchMemOp" 11070 [cuStreamBatchMemOp_v2_ptsz 11070] (
                stream: CUstream, count: c_uint, param_array: *mut CUstreamBatchMemOpParams,
                flags: c_uint,
            );

            // Execution
            cuFuncGetAttribute "cuFuncGetAttribute" 2020 [] (
                value: *mut c_int, attrib: CUfunction_attribute, func: CUfunction,
            );
            cuFuncSetAttribute "cuFuncSetAttribute" 9000 [] (
                func: CUfunction, attrib: CUfunction_attribute, value: c_int,
            );
            cuFuncSetCacheConfig "cuFuncSetCacheConfig" 3000 [] (
                func: CUfunction, config: CUfunc_cache,
            );
            cuFuncGetModule "cuFuncGetModule" 11000 [] (module: *mut CUmodule, func: CUfunction);
            cuFuncGetName "cuFuncGetName" 12030 [] (name: *mut *const c_char, func: CUfunction);
            cuFuncGetParamInfo "cuFuncGetParamInfo" 12040 [] (
                func: CUfunction, param_index: usize, param_offset: *mut usize,
                param_size: *mut usize,
            );
            cuFuncIsLoaded "cuFuncIsLoaded" 12040 [] (
                state: *mut CUfunctionLoadingState, function: CUfunction,
            );
            cuFuncLoad "cuFuncLoad" 12040 [] (function: CUfunction);
            cuLaunchKernel "cuLaunchKernel" 4000 [cuLaunchKernel_ptsz 7000] (
                f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint,
                block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint,
                shared_mem_bytes: c_uint, stream: CUstream, kernel_params: *mut *mut c_void,
                extra: *mut *mut c_void,
            );
            cuLaunchKernelEx "cuLaunchKernelEx" 11060 [cuLaunchKernelEx_ptsz 11060] (
                config: *const CUlaunchConfig, f: CUfunction, kernel_params: *mut *mut c_void,
                extra: *mut *mut c_void,
            );
            cuLaunchCooperativeKernel "cuLaunchCooperativeKernel" 9000 [cuLaunchCooperativeKernel_ptsz 9000] (
                f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint,
                block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint,
                shared_mem_bytes: c_uint, stream: CUstream, kernel_params: *mut *mut c_void,
            );
            cuLaunchCooperativeKernelMultiDevice "cuLaunchCooperativeKernelMultiDevice" 9000 [] (
                launch_params_list: *mut CUDA_LAUNCH_PARAMS, num_devices: c_uint, flags: c_uint,
            );
            cuLaunchHostFunc "cuLaunchHostFunc" 10000 [cuLaunchHostFunc_ptsz 10000] (
                stream: CUstream, func: CUhostFn, user_data: *mut c_void,
            );

            // Execution, superseded
            cuFuncSetBlockShape "cuFuncSetBlockShape" 2000 [] (
                func: CUfunction, x: c_int, y: c_int, z: c_int,
            );
            cuFuncSetSharedSize "cuFuncSetSharedSize" 2000 [] (func: CUfunction, bytes: c_uint);
            cuParamSetSize "cuParamSetSize" 2000 [] (func: CUfunction, numbytes: c_uint);
            cuParamSeti "cuParamSeti" 2000 [] (func: CUfunction, offset: c_int, value: c_uint);
            cuParamSetf "cuParamSetf" 2000 [] (func: CUfunction, offset: c_int, value: f32);
            cuParamSetv "cuParamSetv" 2000 [] (
                func: CUfunction, offset: c_int, ptr: *mut c_void, numbytes: c_uint,
            );
            cuLaunch "cuLaunch" 2000 [] (f: CUfunction);
            cuLaunchGrid "cuLaunchGrid" 2000 [] (
                f: CUfunction, grid_width: c_int, grid_height: c_int,
            );
            cuLaunchGridAsync "cuLaunchGridAsync" 2000 [] (
                f: CUfunction, grid_width: c_int, grid_height: c_int, stream: CUstream,
            );
            cuParamSetTexRef "cuParamSetTexRef" 2000 [] (
                func: CUfunction, texunit: c_int, tex_ref: CUtexref,
            );
            cuFuncSetSharedMemConfig "cuFuncSetSharedMemConfig" 4020 [] (
                func: CUfunction, config: CUsharedconfig,
            );

            // Graphs
            cuGraphCreate "cuGraphCreate" 10000 [] (graph: *mut CUgraph, flags: c_uint);
            cuGraphAddKernelNode "cuGraphAddKernelNode" 10000 [] (
                graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                num_dependencies: usize, node_params: *const CUDA_KERNEL_NODE_PARAMS_v1,
            );
            cuGraphAddKernelNode_v2 "cuGraphAddKernelNode" 12000 [] (
                graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                num_dependencies: usize, node_params: *const CUDA_KERNEL_NODE_PARAMS,
            );
            cuGraphKernelNodeGetParams "cuGraphKernelNodeGetParams" 10000 [] (
                node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS_v1,
            );
            cuGraphKernelNodeGetParams_v2 "cuGraphKernelNodeGetParams" 12000 [] (
                node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS,
            );
            cuGraphKernelNodeSetParams "cuGraphKernelNodeSetParams" 10000 [] (
                node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS_v1,
            );
            cuGraphKernelNodeSetParams_v2 "cuGraphKernelNodeSetParams" 12000 [] (
                node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS,
            );
            cuGraphAddMemcpyNode "cuGraphAddMemcpyNode" 10000 [] (
                graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                num_dependencies: usize, copy_params: *const CUDA_MEMCPY3D, ctx: CUcontext,
            );
            cuGraphMemcpyNodeGetParams "cuGraphMemcpyNodeGetParams" 10000 [] (
                node: CUgraphNode, node_params: *mut CUDA_MEMCPY3D,
            );
            cuGraphMemcpyNodeSetParams "cuGraphMemcpyNodeSetParams" 10000 [] (
                node: CUgraphNode, node_params: *const CUDA_MEMCPY3D,
            );
            cuGraphAddMemsetNode "cuGraphAddMemsetNode" 10000 [] (
                graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                num_dependencies: usize, memset_params: *const CUDA_MEMSET_NODE_PARAMS,
                ctx: CUcontext,
            );
            cuGraphMemsetNodeGetParams "cuGraphMemsetNodeGetParams" 10000 [] (
                node: CUgraphNode, node_params: *mut CUDA_MEMSET_NODE_PARAMS,
            );
            cuGraphMemsetNodeSetParams "cuGraphMemsetNodeSetParams" 10000 [] (
                node: CUgraphNode, node_params: *const CUDA_MEMSET_NODE_PARAMS,
            );
            cuGraphAddHostNode "cuGraphAddHostNode" 10000 [] (
                graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                num_dependencies: usize, node_params: *const CUDA_HOST_NODE_PARAMS,
            );
            cuGraphHostNodeGetParams "cuGraphHostNodeGetParams" 10000 [] (
                node: CUgraphNode, node_params: *mut CUDA_HOST_NODE_PARAMS,
            );
            cuGraphHostNodeSetParams "cuGraphHostNodeSetParams" 10000 [] (
                node: CUgraphNode, node_params: *const CUDA_HOST_NODE_PARAMS,
            );
            cuGraphAddChildGraphNode "cuGraphAddChildGraphNode" 10000 [] (
                graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                num_dependencies: usize, child_graph: CUgraph,
            );
            cuGraphChildGraphNodeGetGraph "cuGraphChildGraphNodeGetGraph" 10000 [] (
                node: CUgraphNode, graph: *mut CUgraph,
            );
            cuGraphAddEmptyNode "cuGraphAddEmptyNode" 10000 [] (
                graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                num_dependencies: usize,
            );
            cuGraphAddEventRecordNode "cuGraphAddEventRecordNode" 11010 [] (
                graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                num_dependencies: usize, event: CUevent,
            );
            cuGraphEventRecordNodeGetEvent "cuGraphEventRecordNodeGetEvent" 11010 [] (
                node: CUgraphNode, event_out: *mut CUevent,
            );
            cuGraphEventRecordNodeSetEvent "cuGraphEventRecordNodeSetEvent" 11010 [] (
                node: CUgraphNode, event: CUevent,
            );
            cuGraphAddEventWaitNode "cuGraphAddEventWaitNode" 11010 [] (
                graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                num_dependencies: usize, event: CUevent,
            );
            cuGraphEventWaitNodeGetEvent "cuGraphEventWaitNodeGetEvent" 11010 [] (
                node: CUgraphNode, event_out: *mut CUevent,
            );
            cuGraphEventWaitNodeSetEvent "cuGraphEventWaitNodeSetEvent" 11010 [] (
                node: CUgraphNode, event: CUevent,
            );
            cuGraphAddExternalSemaphoresSignalNode "cuGraphAddExternalSemaphoresSignalNode" 11020 [] (
                graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                num_dependencies: usize, node_params: *const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS,
            );
            cuGraphExternalSemaphoresSignalNodeGetParams "cuGraphExternalSemaphoresSignalNodeGetParams" 11020 [] (
                node: CUgraphNode, params_out: *mut CUDA_EXT_SEM_SIGNAL_NODE_PARAMS,
            );
            cuGraphExternalSemaphoresSignalNodeSetParams "cuGraphExternalSemaphoresSignalNodeSetParams" 11020 [] (
                node: CUgraphNode, node_params: *const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS,
            );
            cuGraphAddExternalSemaphoresWaitNode "cuGraphAddExternalSemaphoresWaitNode" 11020 [] (
                graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                num_dependencies: usize, node_params: *const CUDA_EXT_SEM_WAIT_NODE_PARAMS,
            );
            cuGraphExternalSemaphoresWaitNodeGetParams "cuGraphExternalSemaphoresWaitNodeGetParams" 11020 [] (
                node: CUgraphNode, params_out: *mut CUDA_EXT_SEM_WAIT_NODE_PARAMS,
            );
            cuGraphExternalSemaphoresWaitNodeSetParams "cuGraphExternalSemaphoresWaitNodeSetParams" 11020 [] (
                node: CUgraphNode, node_params: *const CUDA_EXT_SEM_WAIT_NODE_PARAMS,
            );
            cuGraphAddBatchMemOpNode "cuGraphAddBatchMemOpNode" 11070 [] (
                graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                num_dependencies: usize, node_params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
            );
            cuGraphBatchMemOpNodeGetParams "cuGraphBatchMemOpNodeGetParams" 11070 [] (
                node: CUgraphNode, node_params_out: *mut CUDA_BATCH_MEM_OP_NODE_PARAMS,
            );
            cuGraphBatchMemOpNodeSetParams "cuGraphBatchMemOpNodeSetParams" 11070 [] (
                node: CUgraphNode, node_params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
            );
            cuGraphExecBatchMemOpNodeSetParams "cuGraphExecBatchMemOpNodeSetParams" 11070 [] (
                graph_exec: CUgraphExec, node: CUgraphNode,
                node_params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
            );
            cuGraphAddMemAllocNode "cuGraphAddMemAllocNode" 11040 [] (
                graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                num_dependencies: usize, node_params: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
            );
            cuGraphMemAllocNodeGetParams "cuGraphMemAllocNodeGetParams" 11040 [] (
                node: CUgraphNode, params_out: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
            );
            cuGraphAddMemFreeNode "cuGraphAddMemFreeNode" 11040 [] (
                graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                num_dependencies: usize, dptr: CUdeviceptr,
            );
            cuGraphMemFreeNodeGetParams "cuGraphMemFreeNodeGetParams" 11040 [] (
                node: CUgraphNode, dptr_out: *mut CUdeviceptr,
            );
            cuDeviceGraphMemTrim "cuDeviceGraphMemTrim" 11040 [] (device: CUdevice);
            cuDeviceGetGraphMemAttribute "cuDeviceGetGraphMemAttribute" 11040 [] (
                device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void,
            );
            cuDeviceSetGraphMemAttribute "cuDeviceSetGraphMemAttribute" 11040 [] (
                device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void,
            );
            cuGraphClone "cuGraphClone" 10000 [] (
                graph_clone: *mut CUgraph, original_graph: CUgraph,
            );
            cuGraphNodeFindInClone "cuGraphNodeFindInClone" 10000 [] (
                node: *mut CUgraphNode, original_node: CUgraphNode, cloned_graph: CUgraph,
            );
            cuGraphNodeGetType "cuGraphNodeGetType" 10000 [] (
                node: CUgraphNode, kind: *mut CUgraphNodeType,
            );
            cuGraphGetNodes "cuGraphGetNodes" 10000 [] (
                graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize,
            );
            cuGraphGetRootNodes "cuGraphGetRootNodes" 10000 [] (
                graph: CUgraph, root_nodes: *mut CUgraphNode, num_root_nodes: *mut usize,
            );
            cuGraphGetEdges "cuGraphGetEdges" 10000 [] (
                graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, num_edges: *mut usize,
            );
            cuGraphGetEdges_v2 "cuGraphGetEdges" 12030 [] (
                graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode,
                edge_data: *mut CUgraphEdgeData, num_edges: *mut usize,
            );
            cuGraphNodeGetDependencies "cuGraphNodeGetDependencies" 10000 [] (
                node: CUgraphNode, dependencies: *mut CUgraphNode, num_dependencies: *mut usize,
            );
            cuGraphNodeGetDependencies_v2 "cuGraphNodeGetDependencies" 12030 [] (
                node: CUgraphNode, dependencies: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData,
                num_dependencies: *mut usize,
            );
            cuGraphNodeGetDependentNodes "cuGraphNodeGetDependentNodes" 10000 [] (
                node: CUgraphNode, dependent_nodes: *mut CUgraphNode,
                num_dependent_nodes: *mut usize,
            );
            cuGraphNodeGetDependentNodes_v2 "cuGraphNodeGetDependentNodes" 12030 [] (
                node: CUgraphNode, dependent_nodes: *mut CUgraphNode,
                edge_data: *mut CUgraphEdgeData, num_dependent_nodes: *mut usize,
            );
            cuGraphAddDependencies "cuGraphAddDependencies" 10000 [] (
                graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode,
                num_dependencies: usize,
            );
            cuGraphAddDependencies_v2 "cuGraphAddDependencies" 12030 [] (
                graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode,
                edge_data: *const CUgraphEdgeData, num_dependencies: usize,
            );
            cuGraphRemoveDependencies "cuGraphRemoveDependencies" 10000 [] (
                graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode,
                num_dependencies: usize,
            );
            cuGraphRemoveDependencies_v2 "cuGraphRemoveDependencies" 12030 [] (
                graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode,
                edge_data: *const CUgraphEdgeData, num_dependencies: usize,
            );
            cuGraphDestroyNode "cuGraphDestroyNode" 10000 [] (node: CUgraphNode);
            cuGraphInstantiate "cuGraphInstantiate" 10000 [] (
                graph_exec: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode,
                log_buffer: *mut c_char, buffer_size: usize,
            );
            cuGraphInstantiate_v2 "cuGraphInstantiate" 11000 [] (
                graph_exec: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode,
                log_buffer: *mut c_char, buffer_size: usize,
            );
            cuGraphInstantiateWithParams "cuGraphInstantiateWithParams" 12000 [cuGraphInstantiateWithParams_ptsz 12000] (
                graph_exec: *mut CUgraphExec, graph: CUgraph,
                instantiate_params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
            );
            cuGraphExecGetFlags "cuGraphExecGetFlags" 12000 [] (
                graph_exec: CUgraphExec, flags: *mut u64,
            );
            cuGraphExecKernelNodeSetParams "cuGraphExecKernelNodeSetParams" 10010 [] (
                graph_exec: CUgraphExec, node: CUgraphNode,
                node_params: *const CUDA_KERNEL_NODE_PARAMS_v1,
            );
            cuGraphExecKernelNodeSetParams_v2 "cuGraphExecKernelNodeSetParams" 12000 [] (
                graph_exec: CUgraphExec, node: CUgraphNode,
                node_params: *const CUDA_KERNEL_NODE_PARAMS,
            );
            cuGraphExecMemcpyNodeSetParams "cuGraphExecMemcpyNodeSetParams" 10020 [] (
                graph_exec: CUgraphExec, node: CUgraphNode, copy_params: *const CUDA_MEMCPY3D,
                ctx: CUcontext,
            );
            cuGraphExecMemsetNodeSetParams "cuGraphExecMemsetNodeSetParams" 10020 [] (
                graph_exec: CUgraphExec, node: CUgraphNode,
                memset_params: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext,
            );
            cuGraphExecHostNodeSetParams "cuGraphExecHostNodeSetParams" 10020 [] (
                graph_exec: CUgraphExec, node: CUgraphNode,
                node_params: *const CUDA_HOST_NODE_PARAMS,
            );
            cuGraphExecChildGraphNodeSetParams "cuGraphExecChildGraphNodeSetParams" 11010 [] (
                graph_exec: CUgraphExec, node: CUgraphNode, child_graph: CUgraph,
            );
            cuGraphExecEventRecordNodeSetEvent "cuGraphExecEventRecordNodeSetEvent" 11010 [] (
                graph_exec: CUgraphExec, node: CUgraphNode, event: CUevent,
            );
            cuGraphExecEventWaitNodeSetEvent "cuGraphExecEventWaitNodeSetEvent" 11010 [] (
                graph_exec: CUgraphExec, node: CUgraphNode, event: CUevent,
            );
            cuGraphExecExternalSemaphoresSignalNodeSetParams "cuGraphExecExternalSemaphoresSignalNodeSetParams" 11020 [] (
                graph_exec: CUgraphExec, node: CUgraphNode,
                node_params: *const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS,
            );
            cuGraphExecExternalSemaphoresWaitNodeSetParams "cuGraphExecExternalSemaphoresWaitNodeSetParams" 11020 [] (
                graph_exec: CUgraphExec, node: CUgraphNode,
                node_params: *const CUDA_EXT_SEM_WAIT_NODE_PARAMS,
            );
            cuGraphNodeSetEnabled "cuGraphNodeSetEnabled" 11060 [] (
                graph_exec: CUgraphExec, node: CUgraphNode, is_enabled: c_uint,
            );
            cuGraphNodeGetEnabled "cuGraphNodeGetEnabled" 11060 [] (
                graph_exec: CUgraphExec, node: CUgraphNode, is_enabled: *mut c_uint,
            );
            cuGraphUpload "cuGraphUpload" 11010 [cuGraphUpload_ptsz 11010] (
                graph: CUgraphExec, stream: CUstream,
            );
            cuGraphLaunch "cuGraphLaunch" 10000 [cuGraphLaunch_ptsz 10000] (
                graph: CUgraphExec, stream: CUstream,
            );
            cuGraphExecDestroy "cuGraphExecDestroy" 10000 [] (graph_exec: CUgraphExec);
            cuGraphDestroy "cuGraphDestroy" 10000 [] (graph: CUgraph);
            cuGraphExecUpdate "cuGraphExecUpdate" 10020 [] (
                graph_exec: CUgraphExec, graph: CUgraph, error_node_out: *mut CUgraphNode,
                update_result_out: *mut CUgraphExecUpdateResult,
            );
            cuGraphExecUpdate_v2 "cuGraphExecUpdate" 12000 [] (
                graph_exec: CUgraphExec, graph: CUgraph,
                result_info: *mut CUgraphExecUpdateResultInfo,
            );
            cuGraphKernelNodeCopyAttributes "cuGraphKernelNodeCopyAttributes" 11000 [] (
                dst: CUgraphNode, src: CUgraphNode,
            );
            cuGraphKernelNodeGetAttribute "cuGraphKernelNodeGetAttribute" 11000 [] (
                node: CUgraphNode, attr: CUkernelNodeAttrID, value_out: *mut CUkernelNodeAttrValue,
            );
            cuGraphKernelNodeSetAttribute "cuGraphKernelNodeSetAttribute" 11000 [] (
                node: CUgraphNode, attr: CUkernelNodeAttrID, value: *const CUkernelNodeAttrValue,
            );
            cuGraphDebugDotPrint "cuGraphDebugDotPrint" 11030 [] (
                graph: CUgraph, path: *const c_char, flags: c_uint,
            );
            cuUserObjectCreate "cuUserObjectCreate" 11030 [] (
                object_out: *mut CUuserObject, ptr: *mut c_void, destroy: CUhostFn,
                initial_refcount: c_uint, flags: c_uint,
            );
            cuUserObjectRetain "cuUserObjectRetain" 11030 [] (object: CUuserObject, count: c_uint);
            cuUserObjectRelease "cuUserObjectRelease" 11030 [] (
                object: CUuserObject, count: c_uint,
            );
            cuGraphRetainUserObject "cuGraphRetainUserObject" 11030 [] (
                graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint,
            );
            cuGraphReleaseUserObject "cuGraphReleaseUserObject" 11030 [] (
                graph: CUgraph, object: CUuserObject, count: c_uint,
            );
            cuGraphAddNode "cuGraphAddNode" 12020 [] (
                graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                num_dependencies: usize, node_params: *mut CUgraphNodeParams,
            );
            cuGraphAddNode_v2 "cuGraphAddNode" 12030 [] (
                graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                dependency_data: *const CUgraphEdgeData, num_dependencies: usize,
                node_params: *mut CUgraphNodeParams,
            );
            cuGraphNodeSetParams "cuGraphNodeSetParams" 12020 [] (
                node: CUgraphNode, node_params: *mut CUgraphNodeParams,
            );
            cuGraphExecNodeSetParams "cuGraphExecNodeSetParams" 12020 [] (
                graph_exec: CUgraphExec, node: CUgraphNode, node_params: *mut CUgraphNodeParams,
            );
            cuGraphConditionalHandleCreate "cuGraphConditionalHandleCreate" 12030 [] (
                handle_out: *mut CUgraphConditionalHandle, graph: CUgraph, ctx: CUcontext,
                default_launch_value: c_uint, flags: c_uint,
            );

            // Occupancy
            cuOccupancyMaxActiveBlocksPerMultiprocessor "cuOccupancyMaxActiveBlocksPerMultiprocessor" 6050 [] (
                num_blocks: *mut c_int, func: CUfunction, block_size: c_int,
                dynamic_smem_size: usize,
            );
            cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" 7000 [] (
                num_blocks: *mut c_int, func: CUfunction, block_size: c_int,
                dynamic_smem_size: usize, flags: c_uint,
            );
            cuOccupancyMaxPotentialBlockSize "cuOccupancyMaxPotentialBlockSize" 6050 [] (
                min_grid_size: *mut c_int, block_size: *mut c_int, func: CUfunction,
                dynamic_smem_of_block_size: CUoccupancyB2DSize, dynamic_smem_size: usize,
                block_size_limit: c_int,
            );
            cuOccupancyMaxPotentialBlockSizeWithFlags "cuOccupancyMaxPotentialBlockSizeWithFlags" 7000 [] (
                min_grid_size: *mut c_int, block_size: *mut c_int, func: CUfunction,
                dynamic_smem_of_block_size: CUoccupancyB2DSize, dynamic_smem_size: usize,
                block_size_limit: c_int, flags: c_uint,
            );
            cuOccupancyAvailableDynamicSMemPerBlock "cuOccupancyAvailableDynamicSMemPerBlock" 10020 [] (
                dynamic_smem_size: *mut usize, func: CUfunction, num_blocks: c_int,
                block_size: c_int,
            );
            cuOccupancyMaxPotentialClusterSize "cuOccupancyMaxPotentialClusterSize" 11070 [] (
                cluster_size: *mut c_int, func: CUfunction, config: *const CUlaunchConfig,
            );
            cuOccupancyMaxActiveClusters "cuOccupancyMaxActiveClusters" 11070 [] (
                num_clusters: *mut c_int, func: CUfunction, config: *const CUlaunchConfig,
            );

            // Texture references
            cuTexRefSetArray "cuTexRefSetArray" 2000 [] (
                tex_ref: CUtexref, array: CUarray, flags: c_uint,
            );
            cuTexRefSetMipmappedArray "cuTexRefSetMipmappedArray" 5000 [] (
                tex_ref: CUtexref, mipmapped_array: CUmipmappedArray, flags: c_uint,
            );
            cuTexRefSetAddress "cuTexRefSetAddress" 2000 [] (
                byte_offset: *mut c_uint, tex_ref: CUtexref, dptr: CUdeviceptr_v1, bytes: c_uint,
            );
            cuTexRefSetAddress_v2 "cuTexRefSetAddress" 3020 [] (
                byte_offset: *mut usize, tex_ref: CUtexref, dptr: CUdeviceptr, bytes: usize,
            );
            cuTexRefSetAddress2D "cuTexRefSetAddress2D" 2020 [] (
                tex_ref: CUtexref, desc: *const CUDA_ARRAY_DESCRIPTOR_v1, dptr: CUdeviceptr_v1,
                pitch: c_uint,
            );
            cuTexRefSetAddress2D_v2 "cuTexRefSetAddress2D" 3020 [] (
                tex_ref: CUtexref, desc: *const CUDA_ARRAY_DESCRIPTOR, dptr: CUdeviceptr,
                pitch: usize,
            );
            cuTexRefSetAddress2D_v3 "cuTexRefSetAddress2D" 4010 [] (
                tex_ref: CUtexref, desc: *const CUDA_ARRAY_DESCRIPTOR, dptr: CUdeviceptr,
                pitch: usize,
            );
            cuTexRefSetFormat "cuTexRefSetFormat" 2000 [] (
                tex_ref: CUtexref, fmt: CUarray_format, num_packed_components: c_int,
            );
            cuTexRefSetAddressMode "cuTexRefSetAddressMode" 2000 [] (
                tex_ref: CUtexref, dim: c_int, am: CUaddress_mode,
            );
            cuTexRefSetFilterMode "cuTexRefSetFilterMode" 2000 [] (
                tex_ref: CUtexref, fm: CUfilter_mode,
            );
            cuTexRefSetMipmapFilterMode "cuTexRefSetMipmapFilterMode" 5000 [] (
                tex_ref: CUtexref, fm: CUfilter_mode,
            );
            cuTexRefSetMipmapLevelBias "cuTexRefSetMipmapLevelBias" 5000 [] (
                tex_ref: CUtexref, bias: f32,
            );
            cuTexRefSetMipmapLevelClamp "cuTexRefSetMipmapLevelClamp" 5000 [] (
                tex_ref: CUtexref, min_mipmap_level_clamp: f32, max_mipmap_level_clamp: f32,
            );
            cuTexRefSetMaxAnisotropy "cuTexRefSetMaxAnisotropy" 5000 [] (
                tex_ref: CUtexref, max_aniso: c_uint,
            );
            cuTexRefSetBorderColor "cuTexRefSetBorderColor" 8000 [] (
                tex_ref: CUtexref, border_color: *mut f32,
            );
            cuTexRefSetFlags "cuTexRefSetFlags" 2000 [] (tex_ref: CUtexref, flags: c_uint);
            cuTexRefGetAddress "cuTexRefGetAddress" 2000 [] (
                dptr: *mut CUdeviceptr_v1, tex_ref: CUtexref,
            );
            cuTexRefGetAddress_v2 "cuTexRefGetAddress" 3020 [] (
                dptr: *mut CUdeviceptr, tex_ref: CUtexref,
            );
            cuTexRefGetArray "cuTexRefGetArray" 2000 [] (array: *mut CUarray, tex_ref: CUtexref);
            cuTexRefGetMipmappedArray "cuTexRefGetMipmappedArray" 5000 [] (
                mipmapped_array: *mut CUmipmappedArray, tex_ref: CUtexref,
            );
            cuTexRefGetAddressMode "cuTexRefGetAddressMode" 2000 [] (
                pam: *mut CUaddress_mode, tex_ref: CUtexref, dim: c_int,
            );
            cuTexRefGetFilterMode "cuTexRefGetFilterMode" 2000 [] (
                mode: *mut CUfilter_mode, tex_ref: CUtexref,
            );
            cuTexRefGetFormat "cuTexRefGetFormat" 2000 [] (
                format: *mut CUarray_format, num_channels: *mut c_int, tex_ref: CUtexref,
            );
            cuTexRefGetMipmapFilterMode "cuTexRefGetMipmapFilterMode" 5000 [] (
                mode: *mut CUfilter_mode, tex_ref: CUtexref,
            );
            cuTexRefGetMipmapLevelBias "cuTexRefGetMipmapLevelBias" 5000 [] (
                bias: *mut f32, tex_ref: CUtexref,
            );
            cuTexRefGetMipmapLevelClamp "cuTexRefGetMipmapLevelClamp" 5000 [] (
                min_mipmap_level_clamp: *mut f32, max_mipmap_level_clamp: *mut f32,
                tex_ref: CUtexref,
            );
            cuTexRefGetMaxAnisotropy "cuTexRefGetMaxAnisotropy" 5000 [] (
                max_aniso: *mut c_int, tex_ref: CUtexref,
            );
            cuTexRefGetBorderColor "cuTexRefGetBorderColor" 8000 [] (
                border_color: *mut f32, tex_ref: CUtexref,
            );
            cuTexRefGetFlags "cuTexRefGetFlags" 2000 [] (flags: *mut c_uint, tex_ref: CUtexref);
            cuTexRefCreate "cuTexRefCreate" 2000 [] (tex_ref: *mut CUtexref);
            cuTexRefDestroy "cuTexRefDestroy" 2000 [] (tex_ref: CUtexref);

            // Surface references
            cuSurfRefSetArray "cuSurfRefSetArray" 3000 [] (
                surf_ref: CUsurfref, array: CUarray, flags: c_uint,
            );
            cuSurfRefGetArray "cuSurfRefGetArray" 3000 [] (
                array: *mut CUarray, surf_ref: CUsurfref,
            );

            // Texture objects
            cuTexObjectCreate "cuTexObjectCreate" 5000 [] (
                tex_object: *mut CUtexObject, res_desc: *const CUDA_RESOURCE_DESC,
                tex_desc: *const CUDA_TEXTURE_DESC, res_view_desc: *const CUDA_RESOURCE_VIEW_DESC,
            );
            cuTexObjectDestroy "cuTexObjectDestroy" 5000 [] (tex_object: CUtexObject);
            cuTexObjectGetResourceDesc "cuTexObjectGetResourceDesc" 5000 [] (
                res_desc: *mut CUDA_RESOURCE_DESC, tex_object: CUtexObject,
            );
            cuTexObjectGetTextureDesc "cuTexObjectGetTextureDesc" 5000 [] (
                tex_desc: *mut CUDA_TEXTURE_DESC, tex_object: CUtexObject,
            );
            cuTexObjectGetResourceViewDesc "cuTexObjectGetResourceViewDesc" 5000 [] (
                res_view_desc: *mut CUDA_RESOURCE_VIEW_DESC, tex_object: CUtexObject,
            );

            // Surface objects
            cuSurfObjectCreate "cuSurfObjectCreate" 5000 [] (
                surf_object: *mut CUsurfObject, res_desc: *const CUDA_RESOURCE_DESC,
            );
            cuSurfObjectDestroy "cuSurfObjectDestroy" 5000 [] (surf_object: CUsurfObject);
            cuSurfObjectGetResourceDesc "cuSurfObjectGetResourceDesc" 5000 [] (
                res_desc: *mut CUDA_RESOURCE_DESC, surf_object: CUsurfObject,
            );

            // Tensor maps
            cuTensorMapEncodeTiled "cuTensorMapEncodeTiled" 12000 [] (
                tensor_map: *mut CUtensorMap, tensor_data_type: CUtensorMapDataType,
                tensor_rank: u32, global_address: *mut c_void, global_dim: *const u64,
                global_strides: *const u64, box_dim: *const u32, element_strides: *const u32,
                interleave: CUtensorMapInterleave, swizzle: CUtensorMapSwizzle,
                l2_promotion: CUtensorMapL2promotion, oob_fill: CUtensorMapFloatOOBfill,
            );
            cuTensorMapEncodeIm2col "cuTensorMapEncodeIm2col" 12000 [] (
                tensor_map: *mut CUtensorMap, tensor_data_type: CUtensorMapDataType,
                tensor_rank: u32, global_address: *mut c_void, global_dim: *const u64,
                global_strides: *const u64, pixel_box_lower_corner: *const c_int,
                pixel_box_upper_corner: *const c_int, channels_per_pixel: u32,
                pixels_per_column: u32, element_strides: *const u32,
                interleave: CUtensorMapInterleave, swizzle: CUtensorMapSwizzle,
                l2_promotion: CUtensorMapL2promotion, oob_fill: CUtensorMapFloatOOBfill,
            );
            cuTensorMapEncodeIm2colWide "cuTensorMapEncodeIm2colWide" 12080 [] (
                tensor_map: *mut CUtensorMap, tensor_data_type: CUtensorMapDataType,
                tensor_rank: u32, global_address: *mut c_void, global_dim: *const u64,
                global_strides: *const u64, pixel_box_lower_corner_width: c_int,
                pixel_box_upper_corner_width: c_int, channels_per_pixel: u32,
                pixels_per_column: u32, element_strides: *const u32,
                interleave: CUtensorMapInterleave, mode: CUtensorMapIm2ColWideMode,
                swizzle: CUtensorMapSwizzle, l2_promotion: CUtensorMapL2promotion,
                oob_fill: CUtensorMapFloatOOBfill,
            );
            cuTensorMapReplaceAddress "cuTensorMapReplaceAddress" 12000 [] (
                tensor_map: *mut CUtensorMap, global_address: *mut c_void,
            );

            // Peer access
            cuDeviceCanAccessPeer "cuDeviceCanAccessPeer" 4000 [] (
                can_access_peer: *mut c_int, dev: CUdevice, peer_dev: CUdevice,
            );
            cuCtxEnablePeerAccess "cuCtxEnablePeerAccess" 4000 [] (
                peer_context: CUcontext, flags: c_uint,
            );
            cuCtxDisablePeerAccess "cuCtxDisablePeerAccess" 4000 [] (peer_context: CUcontext);
            cuDeviceGetP2PAttribute "cuDeviceGetP2PAttribute" 8000 [] (
                value: *mut c_int, attrib: CUdevice_P2PAttribute, src_device: CUdevice,
                dst_device: CUdevice,
            );
            cuDeviceGetP2PAtomicCapabilities "cuDeviceGetP2PAtomicCapabilities" 13000 [] (
                capabilities: *mut c_uint, operations: *const CUatomicOperation, count: c_uint,
                src_device: CUdevice, dst_device: CUdevice,
            );

            // Graphics interoperability
            cuGraphicsUnregisterResource "cuGraphicsUnregisterResource" 3000 [] (
                resource: CUgraphicsResource,
            );
            cuGraphicsSubResourceGetMappedArray "cuGraphicsSubResourceGetMappedArray" 3000 [] (
                array: *mut CUarray, resource: CUgraphicsResource, array_index: c_uint,
                mip_level: c_uint,
            );
            cuGraphicsResourceGetMappedMipmappedArray "cuGraphicsResourceGetMappedMipmappedArray" 5000 [] (
                mipmapped_array: *mut CUmipmappedArray, resource: CUgraphicsResource,
            );
            cuGraphicsResourceGetMappedPointer "cuGraphicsResourceGetMappedPointer" 3000 [] (
                dptr: *mut CUdeviceptr_v1, size: *mut c_uint, resource: CUgraphicsResource,
            );
            cuGraphicsResourceGetMappedPointer_v2 "cuGraphicsResourceGetMappedPointer" 3020 [] (
                dptr: *mut CUdeviceptr, size: *mut usize, resource: CUgraphicsResource,
            );
            cuGraphicsResourceSetMapFlags "cuGraphicsResourceSetMapFlags" 3000 [] (
                resource: CUgraphicsResource, flags: c_uint,
            );
            cuGraphicsResourceSetMapFlags_v2 "cuGraphicsResourceSetMapFlags" 6050 [] (
                resource: CUgraphicsResource, flags: c_uint,
            );
            cuGraphicsMapResources "cuGraphicsMapResources" 3000 [cuGraphicsMapResources_ptsz 7000] (
                count: c_uint, resources: *mut CUgraphicsResource, stream: CUstream,
            );
            cuGraphicsUnmapResources "cuGraphicsUnmapResources" 3000 [cuGraphicsUnmapResources_ptsz 7000] (
                count: c_uint, resources: *mut CUgraphicsResource, stream: CUstream,
            );

            // Entry points
            cuGetProcAddress "cuGetProcAddress" 11030 [] (
                symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: c_int, flags: u64,
            );
            cuGetProcAddress_v2 "cuGetProcAddress" 12000 [] (
                symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: c_int, flags: u64,
                symbol_status: *mut CUdriverProcAddressQueryResult,
            );
            cuGetExportTable "cuGetExportTable" 3000 [] (
                export_table: *mut *const c_void, export_table_id: *const CUuuid,
            );

            // Core dumps
            cuCoredumpGetAttribute "cuCoredumpGetAttribute" 12010 [] (
                attrib: CUcoredumpSettings, value: *mut c_void, size: *mut usize,
            );
            cuCoredumpGetAttributeGlobal "cuCoredumpGetAttributeGlobal" 12010 [] (
                attrib: CUcoredumpSettings, value: *mut c_void, size: *mut usize,
            );
            cuCoredumpSetAttribute "cuCoredumpSetAttribute" 12010 [] (
                attrib: CUcoredumpSettings, value: *mut c_void, size: *mut usize,
            );
            cuCoredumpSetAttributeGlobal "cuCoredumpSetAttributeGlobal" 12010 [] (
                attrib: CUcoredumpSettings, value: *mut c_void, size: *mut usize,
            );

            // Green contexts
            cuGreenCtxCreate "cuGreenCtxCreate" 12040 [] (
                ctx: *mut CUgreenCtx, desc: CUdevResourceDesc, dev: CUdevice, flags: c_uint,
            );
            cuGreenCtxDestroy "cuGreenCtxDestroy" 12040 [] (ctx: CUgreenCtx);
            cuCtxFromGreenCtx "cuCtxFromGreenCtx" 12040 [] (
                context: *mut CUcontext, ctx: CUgreenCtx,
            );
            cuDeviceGetDevResource "cuDeviceGetDevResource" 12040 [] (
                device: CUdevice, resource: *mut CUdevResource, kind: CUdevResourceType,
            );
            cuCtxGetDevResource "cuCtxGetDevResource" 12040 [] (
                ctx: CUcontext, resource: *mut CUdevResource, kind: CUdevResourceType,
            );
            cuGreenCtxGetDevResource "cuGreenCtxGetDevResource" 12040 [] (
                ctx: CUgreenCtx, resource: *mut CUdevResource, kind: CUdevResourceType,
            );
            cuDevSmResourceSplitByCount "cuDevSmResourceSplitByCount" 12040 [] (
                result: *mut CUdevResource, nb_groups: *mut c_uint, input: *const CUdevResource,
                remaining: *mut CUdevResource, use_flags: c_uint, min_count: c_uint,
            );
            cuDevResourceGenerateDesc "cuDevResourceGenerateDesc" 12040 [] (
                desc: *mut CUdevResourceDesc, resources: *mut CUdevResource, nb_resources: c_uint,
            );
            cuGreenCtxRecordEvent "cuGreenCtxRecordEvent" 12040 [] (
                ctx: CUgreenCtx, event: CUevent,
            );
            cuGreenCtxWaitEvent "cuGreenCtxWaitEvent" 12040 [] (ctx: CUgreenCtx, event: CUevent);
            cuStreamGetGreenCtx "cuStreamGetGreenCtx" 12040 [] (
                stream: CUstream, ctx: *mut CUgreenCtx,
            );
            cuGreenCtxStreamCreate "cuGreenCtxStreamCreate" 12050 [] (
                stream: *mut CUstream, green_ctx: CUgreenCtx, flags: c_uint, priority: c_int,
            );
            cuGreenCtxGetId "cuGreenCtxGetId" 12090 [] (
                green_ctx: CUgreenCtx, green_ctx_id: *mut c_ulonglong,
            );

            // Error log
            cuLogsRegisterCallback "cuLogsRegisterCallback" 12090 [] (
                callback_func: CUlogsCallback, user_data: *mut c_void,
                callback_out: *mut CUlogsCallbackHandle,
            );
            cuLogsUnregisterCallback "cuLogsUnregisterCallback" 12090 [] (
                callback: CUlogsCallbackHandle,
            );
            cuLogsCurrent "cuLogsCurrent" 12090 [] (
                iterator_out: *mut CUlogIterator, flags: c_uint,
            );
            cuLogsDumpToFile "cuLogsDumpToFile" 12090 [] (
                iterator: *mut CUlogIterator, path_to_file: *const c_char, flags: c_uint,
            );
            cuLogsDumpToMemory "cuLogsDumpToMemory" 12090 [] (
                iterator: *mut CUlogIterator, buffer: *mut c_char, size: *mut usize, flags: c_uint,
            );

            // Checkpoints
            cuCheckpointProcessGetRestoreThreadId "cuCheckpointProcessGetRestoreThreadId" 12080 [] (
                pid: c_int, tid: *mut c_int,
            );
            cuCheckpointProcessGetState "cuCheckpointProcessGetState" 12080 [] (
                pid: c_int, state: *mut CUprocessState,
            );
            cuCheckpointProcessLock "cuCheckpointProcessLock" 12080 [] (
                pid: c_int, args: *mut CUcheckpointLockArgs,
            );
            cuCheckpointProcessCheckpoint "cuCheckpointProcessCheckpoint" 12080 [] (
                pid: c_int, args: *mut CUcheckpointCheckpointArgs,
            );
            cuCheckpointProcessRestore "cuCheckpointProcessRestore" 12080 [] (
                pid: c_int, args: *mut CUcheckpointRestoreArgs,
            );
            cuCheckpointProcessUnlock "cuCheckpointProcessUnlock" 12080 [] (
                pid: c_int, args: *mut CUcheckpointUnlockArgs,
            );
            cuGraphInstantiateWithFlags "cuGraphInstantiateWithFlags" 11040 [] (
                graph_exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong,
            );

            // Profiler
            cuProfilerInitialize "cuProfilerInitialize" 4000 [] (
                config_file: *const c_char, output_file: *const c_char, output_mode: CUoutput_mode,
            );
            cuProfilerStart "cuProfilerStart" 4000 [] ();
            cuProfilerStop "cuProfilerStop" 4000 [] ();
        }
    };
}
