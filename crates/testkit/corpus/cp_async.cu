// Copies to shared memory that run behind the arithmetic: two and three stages, sizes 4 to 16, zero fill, commit groups.
//@ run double_buffered: double_buffered grid=3 block=64
//@   in x: f32[3072] uniform(-1, 1)
//@   out sums: f32[192] bound
//@   val tiles: i32 16
//@ run three_stages: three_stages grid=2 block=32
//@   in x: u32[4096] bits
//@   out y: u32[256] exact
//@ run zero_fill: zero_fill grid=1 block=32
//@   in x: u32[100] bits
//@   out y: u32[128] exact
//@   val n: i32 100
#include <cuda_pipeline.h>

extern "C" __global__ void double_buffered(const float* x, float* sums, int tiles) {
    __shared__ float s[2][64];
    int t = threadIdx.x;
    const float* mine = x + blockIdx.x * tiles * 64;
    float sum = 0.0f;
    __pipeline_memcpy_async(&s[0][t], &mine[t], 4);
    __pipeline_commit();
    for (int i = 0; i < tiles; ++i) {
        if (i + 1 < tiles) __pipeline_memcpy_async(&s[(i + 1) & 1][t], &mine[(i + 1) * 64 + t], 4);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        sum += s[i & 1][t] * s[i & 1][63 - t];
        __syncthreads();
    }
    sums[blockIdx.x * 64 + t] = sum;
}

extern "C" __global__ void three_stages(const unsigned* x, unsigned* y) {
    __shared__ __align__(16) unsigned s[3][128];
    int t = threadIdx.x;
    const unsigned* mine = x + blockIdx.x * 2048;
    auto fetch = [&](int tile) {
        if (tile < 16) {
            unsigned to = (unsigned)__cvta_generic_to_shared(&s[tile % 3][t * 4]);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(mine + tile * 128 + t * 4) : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    fetch(0);
    fetch(1);
    unsigned r[4] = {0, 0, 0, 0};
    for (int tile = 0; tile < 16; ++tile) {
        fetch(tile + 2);
        asm volatile("cp.async.wait_group 2;" ::: "memory");
        __syncwarp();
        for (int k = 0; k < 4; ++k) r[k] = r[k] * 3u + s[tile % 3][k * 32 + (t ^ 1)];
        __syncwarp();
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    for (int k = 0; k < 4; ++k) y[blockIdx.x * 128 + k * 32 + t] = r[k];
}

extern "C" __global__ void zero_fill(const unsigned* x, unsigned* y, int n) {
    __shared__ __align__(16) unsigned s[128];
    int t = threadIdx.x;
    for (int k = t; k < 64; k += 32) {
        int left = (n - k * 2) * 4;
        int bytes = left >= 8 ? 8 : left > 0 ? left : 0;
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[k * 2]);
        const unsigned* from = bytes ? x + k * 2 : x;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
    }
    asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    for (int k = t; k < 128; k += 32) y[k] = s[k];
}
