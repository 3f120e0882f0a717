// Sizes and offsets of the structures that src/types.rs spells out, as CUDA's headers have them.
// The numbers are those that `layout.rs` compares with the Rust types.
#include "common.h"
#include <cstddef>
#define SIZE(type, bytes) static_assert(sizeof(type) == bytes, #type)
#define AT(type, field, bytes) static_assert(offsetof(type, field) == bytes, #type "." #field)
SIZE(dim3, 12);
SIZE(cudaChannelFormatDesc, 20);
SIZE(cudaPitchedPtr, 32);
SIZE(cudaMemcpy3DParms, 160);
AT(cudaMemcpy3DParms, dstArray, 64);
AT(cudaMemcpy3DParms, kind, 152);
SIZE(cudaMemcpyNodeParams, 176);
SIZE(cudaMemcpy3DPeerParms, 168);
AT(cudaMemcpy3DPeerParms, extent, 144);
SIZE(cudaLaunchConfig_t, 56);
AT(cudaLaunchConfig_t, attrs, 40);
SIZE(cudaLaunchAttribute, 72);
SIZE(cudaKernelNodeParams, 56);
AT(cudaKernelNodeParams, kernelParams, 40);
SIZE(cudaConditionalNodeParams, 24);
SIZE(cudaGraphNodeParams, 256);
SIZE(cudaPointerAttributes, 88);
SIZE(cudaFuncAttributes, 144);
AT(cudaFuncAttributes, requiredClusterWidth, 56);
SIZE(cudaResourceDesc, 144);
AT(cudaResourceDesc, flags, 136);
SIZE(cudaTextureDesc, 72);
AT(cudaTextureDesc, normalizedCoords, 40);
SIZE(cudaResourceViewDesc, 112);
SIZE(cudaDeviceProp, 1008);
AT(cudaDeviceProp, totalGlobalMem, 288);
AT(cudaDeviceProp, surfaceAlignment, 552);
AT(cudaDeviceProp, sharedMemPerBlockOptin, 672);
AT(cudaDeviceProp, hostNumaMultinodeIpcSupported, 780);
SIZE(cudaMemPoolProps, 88);
SIZE(cudaMemAllocNodeParams, 120);
SIZE(cudaMemsetParams, 40);
SIZE(cudaGraphInstantiateParams, 32);
SIZE(cudaGraphExecUpdateResultInfo, 24);
SIZE(cudaMemcpyAttributes, 24);
SIZE(cudaMemcpy3DBatchOp, 112);
int main() { std::puts("all right"); }
