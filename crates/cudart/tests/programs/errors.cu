// Codes, the last error, faults, resets, refusals.
#include "common.h"
#include <cstring>

__global__ void store(int* at) { *at = 1; }
__global__ void nothing() {}

int main() {
    int devices = 0, version = 0;
    OK(cudaGetDeviceCount(&devices));
    EXPECT(devices >= 1);
    OK(cudaRuntimeGetVersion(&version));
    EXPECT(version == CUDART_VERSION);
    OK(cudaDriverGetVersion(&version));
    EXPECT(version >= 13000);
    cudaDeviceProp properties;
    OK(cudaGetDeviceProperties(&properties, 0));
    EXPECT(properties.major == 9 && properties.warpSize == 32);
    EXPECT(properties.maxThreadsPerBlock == 1024 && properties.totalGlobalMem > (1 << 20));
    int value = 0;
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    EXPECT(value == properties.multiProcessorCount);
    CODE(cudaErrorInvalidDevice, cudaSetDevice(devices));
    CODE(cudaErrorInvalidDevice, cudaGetLastError());
    CODE(cudaSuccess, cudaGetLastError());

    // Configurations.
    nothing<<<0, 32>>>();
    CODE(cudaErrorInvalidConfiguration, cudaPeekAtLastError());
    CODE(cudaErrorInvalidConfiguration, cudaGetLastError());
    nothing<<<1, 2048>>>();
    CODE(cudaErrorInvalidConfiguration, cudaGetLastError());
    nothing<<<1, 32, 1 << 20>>>();
    CODE(cudaErrorInvalidValue, cudaGetLastError());
    nothing<<<1, 32>>>();
    OK(cudaGetLastError());
    CODE(cudaErrorInvalidDeviceFunction, cudaLaunchKernel((const void*)main, 1, 1, nullptr, 0, 0));

    // Memory.
    int *a = nullptr, local = 0;
    CODE(cudaErrorMemoryAllocation, cudaMalloc(&a, size_t(1) << 60));
    CODE(cudaErrorInvalidValue, cudaMalloc((void**)nullptr, 16));
    OK(cudaMalloc(&a, 0));
    EXPECT(a == nullptr);
    OK(cudaFree(nullptr));
    CODE(cudaErrorInvalidValue, cudaFree(&local));
    OK(cudaMalloc(&a, 64));
    CODE(cudaErrorInvalidMemcpyDirection, cudaMemcpy(a, &local, 4, (cudaMemcpyKind)9));
    CODE(cudaErrorInvalidValue, cudaMemcpy(a, &local, 4, cudaMemcpyDeviceToHost));
    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, a));
    EXPECT(attributes.type == cudaMemoryTypeDevice && attributes.devicePointer == a);
    OK(cudaPointerGetAttributes(&attributes, &local));
    EXPECT(attributes.type == cudaMemoryTypeUnregistered);
    int* pinned;
    OK(cudaMallocHost(&pinned, 64));
    OK(cudaPointerGetAttributes(&attributes, pinned));
    EXPECT(attributes.type == cudaMemoryTypeHost && attributes.hostPointer == pinned);
    OK(cudaFreeHost(pinned));
    CODE(cudaErrorInvalidResourceHandle, cudaEventRecord((cudaEvent_t)1234, 0));
    cudaGetLastError();

    // Names and sentences.
    EXPECT(!std::strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress"));
    EXPECT(!std::strcmp(cudaGetErrorString(cudaSuccess), "no error"));
    EXPECT(std::strlen(cudaGetErrorString(cudaErrorMemoryAllocation)) > 5);
    EXPECT(cudaGetErrorName((cudaError_t)4321) != nullptr);

    // Refused by name.
    cudaExternalMemory_t memory;
    cudaExternalMemoryHandleDesc handle = {};
    CODE(cudaErrorNotSupported, cudaImportExternalMemory(&memory, &handle));
    CODE(cudaErrorNotSupported, cudaGetLastError());

    // An entry point of the driver.
    int (*get_count)(int*) = nullptr;
    cudaDriverEntryPointQueryResult found;
    OK(cudaGetDriverEntryPointByVersion("cuDeviceGetCount", (void**)&get_count, 13000,
                                        cudaEnableDefault, &found));
    EXPECT(found == cudaDriverEntryPointSuccess && get_count(&value) == 0 && value == devices);
    OK(cudaGetDriverEntryPointByVersion("cuMakeCoffee", (void**)&get_count, 13000,
                                        cudaEnableDefault, &found));
    EXPECT(found == cudaDriverEntryPointSymbolNotFound && get_count == nullptr);

    // A fault stays until the device is reset.
    store<<<1, 1>>>((int*)16);
    CODE(cudaErrorIllegalAddress, cudaDeviceSynchronize());
    CODE(cudaErrorIllegalAddress, cudaMalloc(&a, 64));
    CODE(cudaErrorIllegalAddress, cudaGetLastError());
    CODE(cudaErrorIllegalAddress, cudaGetLastError());
    OK(cudaDeviceReset());
    OK(cudaGetLastError());
    OK(cudaMalloc(&a, 64));
    store<<<1, 1>>>(a);
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(&local, a, 4, cudaMemcpyDeviceToHost));
    EXPECT(local == 1);
    OK(cudaDeviceReset());
    std::puts("all right");
}
