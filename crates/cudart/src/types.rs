//! Types of the runtime API as C lays them out.
//!
//! Where the runtime and the driver have the same structure under two names, the driver's type
//! stands for both. Enumerations are integers: a program may pass any value.
//!
//! Invariant: every type here is plain data for which all-zero bytes are a value. Elsewhere:
//! the driver's types (`fercuda_cuda_sys::types`), a comparison of all sizes with a C compiler's
//! (`tests/programs/layout.cu`).

#![expect(
    non_camel_case_types,
    non_snake_case,
    reason = "CUDA's own spelling, so that a reader finds the reference page"
)]

pub(crate) use fercuda_cuda_sys::types::*;

pub(crate) type cudaStream_t = CUstream;
pub(crate) type cudaEvent_t = CUevent;
pub(crate) type cudaGraph_t = CUgraph;
pub(crate) type cudaGraphNode_t = CUgraphNode;
pub(crate) type cudaGraphExec_t = CUgraphExec;
pub(crate) type cudaArray_t = CUarray;
pub(crate) type cudaMipmappedArray_t = CUmipmappedArray;
pub(crate) type cudaMemPool_t = CUmemoryPool;
pub(crate) type cudaFunction_t = CUfunction;
pub(crate) type cudaKernel_t = CUkernel;
pub(crate) type cudaLibrary_t = CUlibrary;
pub(crate) type cudaUserObject_t = CUuserObject;
pub(crate) type cudaMemLocation = CUmemLocation;
pub(crate) type cudaMemPoolProps = CUmemPoolProps;
pub(crate) type cudaMemAccessDesc = CUmemAccessDesc;
pub(crate) type cudaGraphEdgeData = CUgraphEdgeData;
pub(crate) type cudaExtent = CUextent3D;
pub(crate) type cudaPos = CUoffset3D;
pub(crate) type cudaMemsetParams = CUDA_MEMSET_NODE_PARAMS;
pub(crate) type cudaHostNodeParams = CUDA_HOST_NODE_PARAMS;
pub(crate) type cudaMemAllocNodeParams = CUDA_MEM_ALLOC_NODE_PARAMS;
pub(crate) type cudaResourceViewDesc = CUDA_RESOURCE_VIEW_DESC;
pub(crate) type cudaArraySparseProperties = CUDA_ARRAY_SPARSE_PROPERTIES;
pub(crate) type cudaArrayMemoryRequirements = CUDA_ARRAY_MEMORY_REQUIREMENTS;

/// A size of a grid or block.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct dim3 {
    pub(crate) x: c_uint,
    pub(crate) y: c_uint,
    pub(crate) z: c_uint,
}

/// Bits of each channel of a texel, and what they are.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct cudaChannelFormatDesc {
    pub(crate) x: c_int,
    pub(crate) y: c_int,
    pub(crate) z: c_int,
    pub(crate) w: c_int,
    pub(crate) f: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct cudaPitchedPtr {
    pub(crate) ptr: *mut c_void,
    pub(crate) pitch: usize,
    pub(crate) xsize: usize,
    pub(crate) ysize: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct cudaMemcpy3DParms {
    pub(crate) srcArray: cudaArray_t,
    pub(crate) srcPos: cudaPos,
    pub(crate) srcPtr: cudaPitchedPtr,
    pub(crate) dstArray: cudaArray_t,
    pub(crate) dstPos: cudaPos,
    pub(crate) dstPtr: cudaPitchedPtr,
    pub(crate) extent: cudaExtent,
    pub(crate) kind: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct cudaMemcpyNodeParams {
    pub(crate) flags: c_int,
    pub(crate) reserved: [c_int; 3],
    pub(crate) copyParams: cudaMemcpy3DParms,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct cudaMemcpy3DPeerParms {
    pub(crate) srcArray: cudaArray_t,
    pub(crate) srcPos: cudaPos,
    pub(crate) srcPtr: cudaPitchedPtr,
    pub(crate) srcDevice: c_int,
    pub(crate) dstArray: cudaArray_t,
    pub(crate) dstPos: cudaPos,
    pub(crate) dstPtr: cudaPitchedPtr,
    pub(crate) dstDevice: c_int,
    pub(crate) extent: cudaExtent,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct cudaLaunchConfig_t {
    pub(crate) gridDim: dim3,
    pub(crate) blockDim: dim3,
    pub(crate) dynamicSmemBytes: usize,
    pub(crate) stream: cudaStream_t,
    pub(crate) attrs: *mut CUlaunchAttribute,
    pub(crate) numAttrs: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct cudaKernelNodeParams {
    pub(crate) func: *mut c_void,
    pub(crate) gridDim: dim3,
    pub(crate) blockDim: dim3,
    pub(crate) sharedMemBytes: c_uint,
    pub(crate) kernelParams: *mut *mut c_void,
    pub(crate) extra: *mut *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct cudaConditionalNodeParams {
    pub(crate) handle: CUgraphConditionalHandle,
    pub(crate) r#type: c_uint,
    pub(crate) size: c_uint,
    pub(crate) phGraph_out: *mut cudaGraph_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union cudaGraphNodeParams_u {
    pub(crate) reserved1: [c_longlong; 29],
    pub(crate) kernel: cudaKernelNodeParams,
    pub(crate) memcpy: cudaMemcpyNodeParams,
    pub(crate) memset: cudaMemsetParams,
    pub(crate) host: cudaHostNodeParams,
    pub(crate) graph: CUDA_CHILD_GRAPH_NODE_PARAMS,
    pub(crate) eventWait: CUDA_EVENT_WAIT_NODE_PARAMS,
    pub(crate) eventRecord: CUDA_EVENT_RECORD_NODE_PARAMS,
    pub(crate) alloc: CUDA_MEM_ALLOC_NODE_PARAMS_v2,
    pub(crate) free: CUDA_MEM_FREE_NODE_PARAMS,
    pub(crate) conditional: cudaConditionalNodeParams,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct cudaGraphNodeParams {
    pub(crate) r#type: c_uint,
    pub(crate) reserved0: [c_int; 3],
    pub(crate) u: cudaGraphNodeParams_u,
    pub(crate) reserved2: c_longlong,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct cudaPointerAttributes {
    pub(crate) r#type: c_int,
    pub(crate) device: c_int,
    pub(crate) devicePointer: *mut c_void,
    pub(crate) hostPointer: *mut c_void,
    pub(crate) reserved: [core::ffi::c_long; 8],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct cudaFuncAttributes {
    pub(crate) sharedSizeBytes: usize,
    pub(crate) constSizeBytes: usize,
    pub(crate) localSizeBytes: usize,
    pub(crate) maxThreadsPerBlock: c_int,
    pub(crate) numRegs: c_int,
    pub(crate) ptxVersion: c_int,
    pub(crate) binaryVersion: c_int,
    pub(crate) cacheModeCA: c_int,
    pub(crate) maxDynamicSharedSizeBytes: c_int,
    pub(crate) preferredShmemCarveout: c_int,
    pub(crate) clusterDimMustBeSet: c_int,
    pub(crate) requiredClusterWidth: c_int,
    pub(crate) requiredClusterHeight: c_int,
    pub(crate) requiredClusterDepth: c_int,
    pub(crate) clusterSchedulingPolicyPreference: c_int,
    pub(crate) nonPortableClusterSizeAllowed: c_int,
    pub(crate) reserved: [c_int; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct cudaResourceDesc_linear {
    pub(crate) devPtr: *mut c_void,
    pub(crate) desc: cudaChannelFormatDesc,
    pub(crate) sizeInBytes: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct cudaResourceDesc_pitch2D {
    pub(crate) devPtr: *mut c_void,
    pub(crate) desc: cudaChannelFormatDesc,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) pitchInBytes: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union cudaResourceDesc_res {
    pub(crate) array: cudaArray_t,
    pub(crate) mipmap: cudaMipmappedArray_t,
    pub(crate) linear: cudaResourceDesc_linear,
    pub(crate) pitch2D: cudaResourceDesc_pitch2D,
    pub(crate) reserved: [c_int; 32],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct cudaResourceDesc {
    pub(crate) resType: c_uint,
    pub(crate) res: cudaResourceDesc_res,
    pub(crate) flags: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct cudaTextureDesc {
    pub(crate) addressMode: [c_uint; 3],
    pub(crate) filterMode: c_uint,
    pub(crate) readMode: c_uint,
    pub(crate) sRGB: c_int,
    pub(crate) borderColor: [f32; 4],
    pub(crate) normalizedCoords: c_int,
    pub(crate) maxAnisotropy: c_uint,
    pub(crate) mipmapFilterMode: c_uint,
    pub(crate) mipmapLevelBias: f32,
    pub(crate) minMipmapLevelClamp: f32,
    pub(crate) maxMipmapLevelClamp: f32,
    pub(crate) disableTrilinearOptimization: c_int,
    pub(crate) seamlessCubemap: c_int,
}

/// What a device is and can do.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct cudaDeviceProp {
    pub(crate) name: [c_char; 256],
    pub(crate) uuid: CUuuid,
    pub(crate) luid: [c_char; 8],
    pub(crate) luidDeviceNodeMask: c_uint,
    pub(crate) totalGlobalMem: usize,
    pub(crate) sharedMemPerBlock: usize,
    pub(crate) regsPerBlock: c_int,
    pub(crate) warpSize: c_int,
    pub(crate) memPitch: usize,
    pub(crate) maxThreadsPerBlock: c_int,
    pub(crate) maxThreadsDim: [c_int; 3],
    pub(crate) maxGridSize: [c_int; 3],
    pub(crate) totalConstMem: usize,
    pub(crate) major: c_int,
    pub(crate) minor: c_int,
    pub(crate) textureAlignment: usize,
    pub(crate) texturePitchAlignment: usize,
    pub(crate) multiProcessorCount: c_int,
    pub(crate) integrated: c_int,
    pub(crate) canMapHostMemory: c_int,
    pub(crate) maxTexture1D: c_int,
    pub(crate) maxTexture1DMipmap: c_int,
    pub(crate) maxTexture2D: [c_int; 2],
    pub(crate) maxTexture2DMipmap: [c_int; 2],
    pub(crate) maxTexture2DLinear: [c_int; 3],
    pub(crate) maxTexture2DGather: [c_int; 2],
    pub(crate) maxTexture3D: [c_int; 3],
    pub(crate) maxTexture3DAlt: [c_int; 3],
    pub(crate) maxTextureCubemap: c_int,
    pub(crate) maxTexture1DLayered: [c_int; 2],
    pub(crate) maxTexture2DLayered: [c_int; 3],
    pub(crate) maxTextureCubemapLayered: [c_int; 2],
    pub(crate) maxSurface1D: c_int,
    pub(crate) maxSurface2D: [c_int; 2],
    pub(crate) maxSurface3D: [c_int; 3],
    pub(crate) maxSurface1DLayered: [c_int; 2],
    pub(crate) maxSurface2DLayered: [c_int; 3],
    pub(crate) maxSurfaceCubemap: c_int,
    pub(crate) maxSurfaceCubemapLayered: [c_int; 2],
    pub(crate) surfaceAlignment: usize,
    pub(crate) concurrentKernels: c_int,
    pub(crate) ECCEnabled: c_int,
    pub(crate) pciBusID: c_int,
    pub(crate) pciDeviceID: c_int,
    pub(crate) pciDomainID: c_int,
    pub(crate) tccDriver: c_int,
    pub(crate) asyncEngineCount: c_int,
    pub(crate) unifiedAddressing: c_int,
    pub(crate) memoryBusWidth: c_int,
    pub(crate) l2CacheSize: c_int,
    pub(crate) persistingL2CacheMaxSize: c_int,
    pub(crate) maxThreadsPerMultiProcessor: c_int,
    pub(crate) streamPrioritiesSupported: c_int,
    pub(crate) globalL1CacheSupported: c_int,
    pub(crate) localL1CacheSupported: c_int,
    pub(crate) sharedMemPerMultiprocessor: usize,
    pub(crate) regsPerMultiprocessor: c_int,
    pub(crate) managedMemory: c_int,
    pub(crate) isMultiGpuBoard: c_int,
    pub(crate) multiGpuBoardGroupID: c_int,
    pub(crate) hostNativeAtomicSupported: c_int,
    pub(crate) pageableMemoryAccess: c_int,
    pub(crate) concurrentManagedAccess: c_int,
    pub(crate) computePreemptionSupported: c_int,
    pub(crate) canUseHostPointerForRegisteredMem: c_int,
    pub(crate) cooperativeLaunch: c_int,
    pub(crate) sharedMemPerBlockOptin: usize,
    pub(crate) pageableMemoryAccessUsesHostPageTables: c_int,
    pub(crate) directManagedMemAccessFromHost: c_int,
    pub(crate) maxBlocksPerMultiProcessor: c_int,
    pub(crate) accessPolicyMaxWindowSize: c_int,
    pub(crate) reservedSharedMemPerBlock: usize,
    pub(crate) hostRegisterSupported: c_int,
    pub(crate) sparseCudaArraySupported: c_int,
    pub(crate) hostRegisterReadOnlySupported: c_int,
    pub(crate) timelineSemaphoreInteropSupported: c_int,
    pub(crate) memoryPoolsSupported: c_int,
    pub(crate) gpuDirectRDMASupported: c_int,
    pub(crate) gpuDirectRDMAFlushWritesOptions: c_uint,
    pub(crate) gpuDirectRDMAWritesOrdering: c_int,
    pub(crate) memoryPoolSupportedHandleTypes: c_uint,
    pub(crate) deferredMappingCudaArraySupported: c_int,
    pub(crate) ipcEventSupported: c_int,
    pub(crate) clusterLaunch: c_int,
    pub(crate) unifiedFunctionPointers: c_int,
    pub(crate) deviceNumaConfig: c_int,
    pub(crate) deviceNumaId: c_int,
    pub(crate) mpsEnabled: c_int,
    pub(crate) hostNumaId: c_int,
    pub(crate) gpuPciDeviceID: c_uint,
    pub(crate) gpuPciSubsystemID: c_uint,
    pub(crate) hostNumaMultinodeIpcSupported: c_int,
    pub(crate) reserved: [c_int; 56],
}

/// A value of all-zero bytes, the API's convention for "nothing set".
pub(crate) trait Zero: Copy {
    /// All bytes zero.
    fn zero() -> Self;
}

macro_rules! zero {
    ($($name:ident)*) => {$(
        impl Zero for $name {
            fn zero() -> Self {
                // SAFETY: integers, floats, raw pointers and unions of these accept zero bytes.
                unsafe { core::mem::zeroed() }
            }
        }
    )*};
}

zero! {
    cudaDeviceProp cudaMemcpy3DParms cudaFuncAttributes cudaResourceDesc cudaTextureDesc
    cudaKernelNodeParams cudaGraphNodeParams
}
