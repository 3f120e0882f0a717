//! Sizes and offsets of the structures, compared at compile time.
//!
//! `tests/programs/layout.cu` has the same numbers, which nvcc compares with CUDA's headers.

use core::mem::offset_of;

use crate::types::*;

macro_rules! sizes {
    ($($name:ident $bytes:literal)*) => { $(const _: () = assert!(size_of::<$name>() == $bytes);)* };
}

macro_rules! offsets {
    ($($name:ident $field:ident $bytes:literal)*) => {
        $(const _: () = assert!(offset_of!($name, $field) == $bytes);)*
    };
}

sizes! {
    dim3 12
    cudaChannelFormatDesc 20
    cudaPitchedPtr 32
    cudaMemcpy3DParms 160
    cudaMemcpyNodeParams 176
    cudaMemcpy3DPeerParms 168
    cudaLaunchConfig_t 56
    CUlaunchAttribute 72
    cudaKernelNodeParams 56
    cudaConditionalNodeParams 24
    cudaGraphNodeParams 256
    cudaPointerAttributes 88
    cudaFuncAttributes 144
    cudaResourceDesc 144
    cudaTextureDesc 72
    cudaResourceViewDesc 112
    cudaDeviceProp 1008
    cudaMemPoolProps 88
    cudaMemAllocNodeParams 120
    cudaMemsetParams 40
    CUDA_GRAPH_INSTANTIATE_PARAMS 32
    CUgraphExecUpdateResultInfo 24
    CUmemcpyAttributes 24
    CUDA_MEMCPY3D_BATCH_OP 112
}

offsets! {
    cudaMemcpy3DParms dstArray 64
    cudaMemcpy3DParms kind 152
    cudaMemcpy3DPeerParms extent 144
    cudaLaunchConfig_t attrs 40
    cudaKernelNodeParams kernelParams 40
    cudaFuncAttributes requiredClusterWidth 56
    cudaResourceDesc flags 136
    cudaTextureDesc normalizedCoords 40
    cudaDeviceProp totalGlobalMem 288
    cudaDeviceProp surfaceAlignment 552
    cudaDeviceProp sharedMemPerBlockOptin 672
    cudaDeviceProp hostNumaMultinodeIpcSupported 780
}
