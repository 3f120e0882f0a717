// Kernels of many blocks without a mistake: tails, strides, halos, atomics, structures, the heap.
//@ run grid_stride: grid_stride grid=3 block=64
//@   in x: f32[1000] uniform(-1, 1)
//@   inout y: f32[1000] zero raw
//@   val n: i32 1000
//@ run vector_with_tail: vector_with_tail grid=2 block=64
//@   in x: f32[403] uniform(-1, 1)
//@   inout y: f32[403] zero raw
//@   val n: i32 403
//@ run halo: halo grid=4 block=64
//@   in x: f32[250] uniform(-1, 1)
//@   inout y: f32[250] zero raw
//@   val n: i32 250
//@ run max_by_cas: max_by_cas grid=4 block=64
//@   in x: f32[256] uniform(0, 1)
//@   inout most: u32[1] zero raw
//@ run structures: structures grid=1 block=64
//@   inout y: u8[768] zero raw
//@ run compaction: compaction grid=4 block=64
//@   in x: u32[256] bits
//@   inout count: u32[1] zero raw
//@   inout out: u32[256] zero raw
//@ run own_heap: own_heap grid=2 block=32
//@   inout y: u32[64] zero raw
//@ run read_only: read_only grid=2 block=64
//@   in x: f32[128] uniform(-1, 1)
//@   inout y: f32[128] zero raw
//@ run private_slices: private_slices grid=4 block=32
//@   inout x: u32[512] zero raw
//@ run row_sums: row_sums grid=1 block=8,8
//@   in x: f32[64] uniform(-1, 1)
//@   inout sums: f32[8] zero raw
//@ run local_tables: local_tables grid=1 block=32
//@   in at: u32[32] int(0, 15)
//@   inout y: u32[32] zero raw
//@ run flags_set: flags_set grid=2 block=64
//@   in x: u32[128] bits
//@   inout found: u32[1] zero raw
//@ run bitmap: bitmap grid=2 block=64
//@   in x: u32[128] int(0, 255)
//@   inout bits: u32[8] zero raw
//@ run frontier: frontier grid=4 block=32
//@   inout distance: u32[128] const(-1) raw
//@   inout queue: u32[129] zero raw
//@ run double_sum: double_sum grid=4 block=64
//@   in x: f64[256] uniform(-1, 1)
//@   inout sum: f64[1] zero raw
//@ run padding: padding grid=1 block=32
//@   in x: u8[512] bits
//@   out y: u8[512] raw

extern "C" __global__ void grid_stride(const float* x, float* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = 2 * x[i];
}

extern "C" __global__ void vector_with_tail(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (4 * i + 3 < n) {
        float4 v = ((const float4*)x)[i];
        ((float4*)y)[i] = make_float4(v.w, v.z, v.y, v.x);
    } else {
        for (int k = 4 * i; k < n; k++) y[k] = x[k];
    }
}

extern "C" __global__ void halo(const float* x, float* y, int n) {
    __shared__ float tile[66];
    int i = blockIdx.x * 64 + threadIdx.x, t = threadIdx.x + 1;
    tile[t] = i < n ? x[i] : 0.0f;
    if (threadIdx.x == 0) tile[0] = i > 0 ? x[i - 1] : 0.0f;
    if (threadIdx.x == 63) tile[65] = i + 1 < n ? x[i + 1] : 0.0f;
    __syncthreads();
    if (i < n) y[i] = tile[t - 1] + tile[t + 1];
}

extern "C" __global__ void max_by_cas(const float* x, unsigned* most) {
    float v = x[blockIdx.x * 64 + threadIdx.x];
    unsigned old = *(volatile unsigned*)most;
    while (__uint_as_float(old) < v) {
        unsigned seen = atomicCAS(most, old, __float_as_uint(v));
        if (seen == old) break;
        old = seen;
    }
}

struct Record { unsigned short a; unsigned b; unsigned char c; };

extern "C" __global__ void structures(Record* y) {
    Record r;
    r.a = threadIdx.x;
    r.b = 2 * threadIdx.x;
    r.c = 3;
    y[threadIdx.x] = r;
    __syncthreads();
    Record other = y[63 - threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = other;
}

extern "C" __global__ void compaction(const unsigned* x, unsigned* count, unsigned* out) {
    __shared__ unsigned base, mine;
    if (threadIdx.x == 0) mine = 0;
    __syncthreads();
    unsigned v = x[blockIdx.x * 64 + threadIdx.x], at = 0;
    bool is_kept = v % 2 == 0;
    if (is_kept) at = atomicAdd(&mine, 1u);
    __syncthreads();
    if (threadIdx.x == 0) base = atomicAdd(count, mine);
    __syncthreads();
    if (is_kept) out[base + at] = v;
}

extern "C" __global__ void own_heap(unsigned* y) {
    unsigned n = threadIdx.x % 5 + 1;
    unsigned* list = new unsigned[n];
    for (unsigned k = 0; k < n; k++) list[k] = k + 1;
    unsigned sum = 0;
    for (unsigned k = 0; k < n; k++) sum += list[k];
    delete[] list;
    y[blockIdx.x * 32 + threadIdx.x] = sum;
}

extern "C" __global__ void read_only(const float* __restrict__ x, float* __restrict__ y) {
    int i = blockIdx.x * 64 + threadIdx.x;
    y[i] = __ldg(&x[i]) + __ldcs(&x[127 - i]);
}

extern "C" __global__ void private_slices(unsigned* x) {
    unsigned* own = x + (blockIdx.x * 32 + threadIdx.x) * 4;
    for (int k = 0; k < 4; k++) own[k] = k;
    for (int k = 3; k > 0; k--) own[k - 1] += own[k];
}

extern "C" __global__ void row_sums(const float* x, float* sums) {
    atomicAdd(&sums[threadIdx.y], x[threadIdx.y * 8 + threadIdx.x]);
}

extern "C" __global__ void local_tables(const unsigned* at, unsigned* y) {
    unsigned table[16];
    for (int k = 0; k < 16; k++) table[(k * 3 + 1) % 16] = k;
    y[threadIdx.x] = table[at[threadIdx.x]];
}

extern "C" __global__ void flags_set(const unsigned* x, unsigned* found) {
    if (x[blockIdx.x * 64 + threadIdx.x] % 7 == 0) atomicOr(found, 1u << threadIdx.x % 32);
}

extern "C" __global__ void bitmap(const unsigned* x, unsigned* bits) {
    unsigned v = x[blockIdx.x * 64 + threadIdx.x];
    unsigned mask = 1u << v % 32;
    if ((atomicOr(&bits[v / 32], mask) & mask) == 0) atomicAdd(&bits[0], 0u);
}

extern "C" __global__ void frontier(unsigned* distance, unsigned* queue) {
    // Whoever claims a node first writes it: a claim is an exchange.
    unsigned i = blockIdx.x * 32 + threadIdx.x;
    unsigned node = i * 5 % 128;
    if (atomicCAS(&distance[node], 0xffffffffu, 3u) == 0xffffffffu) {
        unsigned at = atomicAdd(&queue[128], 1u);
        queue[at] = node;
    }
}

extern "C" __global__ void double_sum(const double* x, double* sum) {
    double v = x[blockIdx.x * 64 + threadIdx.x];
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffffu, v, d);
    if (threadIdx.x % 32 == 0) atomicAdd(sum, v);
}

extern "C" __global__ void padding(const uint4* x, uint4* y) {
    y[threadIdx.x] = x[threadIdx.x];
}
