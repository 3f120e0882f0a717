// Kernels, variables, templates, two files, launches of every kind, attributes, occupancy.
#include "common.h"
#include <cooperative_groups.h>
#include <cstring>
#include <vector>

__device__ int counter;
__device__ int table[256];
__constant__ float scale[4];
__managed__ int shared_with_host = 5;
static __device__ double hidden = 1.5;
extern __device__ int elsewhere;
void fill_elsewhere(int* out, int n);

__global__ void count(int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] += table[i % 256] + shared_with_host;
    atomicAdd(&counter, 1);
}
template <typename T> __global__ void scaled(T* out, int n, T by) {
    extern __shared__ unsigned char raw[];
    T* rows = reinterpret_cast<T*>(raw);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    rows[threadIdx.x] = T(scale[i % 4]) * by + T(hidden);
    __syncthreads();
    if (i < n) out[i] = rows[threadIdx.x];
}
__global__ void __launch_bounds__(128) whole(int* sum, const int* in, int n) {
    auto grid = cooperative_groups::this_grid();
    for (int i = grid.thread_rank(); i < n; i += grid.size()) atomicAdd(sum, in[i]);
    grid.sync();
    if (grid.thread_rank() == 0) *sum *= 2;
}
struct Wide { int a[100]; double b; };
__global__ void wide(Wide it, double* out) { *out = it.a[99] + it.b; }

int main() {
    const int n = 1000;
    int host[256];
    for (int i = 0; i < 256; i++) host[i] = i;
    OK(cudaMemcpyToSymbol(table, host, sizeof host));
    float factors[4] = {1, 2, 3, 4};
    OK(cudaMemcpyToSymbol(scale, factors, sizeof factors));
    int* out;
    OK(cudaMalloc(&out, n * sizeof(int)));
    OK(cudaMemset(out, 0, n * sizeof(int)));
    shared_with_host = 7;
    count<<<4, 256>>>(out, n);
    OK(cudaGetLastError());
    std::vector<int> got(n);
    OK(cudaMemcpy(got.data(), out, n * sizeof(int), cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) EXPECT(got[i] == i % 256 + 7);
    int counted = 0;
    OK(cudaMemcpyFromSymbol(&counted, counter, sizeof counted));
    EXPECT(counted == 1024);

    float* floats;
    OK(cudaMalloc(&floats, n * sizeof(float)));
    scaled<float><<<8, 128, 128 * sizeof(float)>>>(floats, n, 2.0f);
    std::vector<float> f(n);
    OK(cudaMemcpy(f.data(), floats, n * sizeof(float), cudaMemcpyDefault));
    for (int i = 0; i < n; i++) EXPECT(f[i] == factors[i % 4] * 2 + 1.5f);
    double* doubles;
    OK(cudaMallocManaged(&doubles, n * sizeof(double)));
    double by = 0.5;
    int size = n;
    void* arguments[] = {&doubles, &size, &by};
    OK(cudaLaunchKernel((const void*)scaled<double>, dim3(8), dim3(128), arguments, 1024, 0));
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < n; i++) EXPECT(doubles[i] == factors[i % 4] * 0.5 + 1.5);

    // A cooperative launch, by its own function and by an attribute.
    int* sum;
    OK(cudaMallocManaged(&sum, sizeof(int)));
    *sum = 0;
    const int* in = out;
    void* cooperative[] = {&sum, &in, &size};
    OK(cudaLaunchCooperativeKernel((const void*)whole, dim3(4), dim3(128), cooperative, 0, 0));
    OK(cudaDeviceSynchronize());
    int expected = 0;
    for (int i = 0; i < n; i++) expected += got[i];
    EXPECT(*sum == expected * 2);
    *sum = 0;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(4);
    config.blockDim = dim3(128);
    config.attrs = &attribute;
    config.numAttrs = 1;
    OK(cudaLaunchKernelEx(&config, whole, sum, in, size));
    OK(cudaDeviceSynchronize());
    EXPECT(*sum == expected * 2);

    Wide it = {};
    it.a[99] = 41;
    it.b = 0.25;
    wide<<<1, 1>>>(it, doubles);
    OK(cudaDeviceSynchronize());
    EXPECT(doubles[0] == 41.25);

    // What a kernel is.
    cudaFuncAttributes attributes;
    OK(cudaFuncGetAttributes(&attributes, whole));
    EXPECT(attributes.maxThreadsPerBlock == 128 && attributes.ptxVersion == 90);
    OK(cudaFuncSetAttribute(scaled<float>, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000));
    OK(cudaFuncGetAttributes(&attributes, scaled<float>));
    EXPECT(attributes.maxDynamicSharedSizeBytes == 100000);
    scaled<float><<<1, 128, 100000>>>(floats, 128, 2.0f);
    OK(cudaDeviceSynchronize());
    int blocks = 0, least = 0, best = 0;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, whole, 128, 0));
    EXPECT(blocks >= 1 && blocks <= 32);
    OK(cudaOccupancyMaxPotentialBlockSize(&least, &best, count));
    EXPECT(best >= 32 && best <= 1024 && least >= 1);
    const char* name;
    OK(cudaFuncGetName(&name, (const void*)count));
    EXPECT(std::strstr(name, "count"));
    cudaKernel_t kernel;
    OK(cudaGetKernel(&kernel, (const void*)count));
    int* another = out;
    void* by_handle[] = {&another, &size};
    OK(cudaLaunchKernel((const void*)kernel, dim3(4), dim3(256), by_handle, 0, 0));
    OK(cudaDeviceSynchronize());

    // Symbols.
    void* at;
    size_t bytes;
    OK(cudaGetSymbolAddress(&at, table));
    OK(cudaGetSymbolSize(&bytes, table));
    EXPECT(bytes == sizeof host);
    int fifth = 0;
    OK(cudaMemcpy(&fifth, (int*)at + 5, sizeof(int), cudaMemcpyDeviceToHost));
    EXPECT(fifth == 5);
    OK(cudaMemcpyToSymbol(table, &counted, sizeof(int), 8));
    OK(cudaMemcpyFromSymbol(&fifth, table, sizeof(int), 8));
    EXPECT(fifth == 1024);
    OK(cudaGetSymbolAddress(&at, shared_with_host));
    EXPECT(at == &shared_with_host);
    CODE(cudaErrorInvalidSymbol, cudaGetSymbolAddress(&at, (const void*)host));
    CODE(cudaErrorInvalidValue, cudaMemcpyToSymbol(table, host, sizeof host, 4));
    cudaGetLastError();

    fill_elsewhere(out, n);
    OK(cudaMemcpy(got.data(), out, n * sizeof(int), cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) EXPECT(got[i] == 77 + i);
    OK(cudaFree(out));
    OK(cudaFree(floats));
    OK(cudaFree(doubles));
    OK(cudaFree(sum));
    std::puts("all right");
}
