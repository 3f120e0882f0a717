// Every integer atomic, global and shared, 32 and 64 bits, and what each returns where that is the same in any order.
//@ run atomics_global: atomics_global grid=4 block=96
//@   in x: u32[384] bits
//@   in wide: u64[384] bits
//@   inout r: u32[9] made exact
//@   inout w: u64[7] made exact
//@ run atomics_shared: atomics_shared grid=3 block=64
//@   in x: i32[192] bits
//@   out r: i32[24] exact
//@ run atomics_returned: atomics_returned grid=2 block=64
//@   inout counter: u32[3] zero exact
//@   inout seen: u32[384] zero exact

extern "C" __global__ void atomics_global(const unsigned* x, const unsigned long long* wide, unsigned* r, unsigned long long* w) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned v = x[i];
    atomicAdd(&r[0], v);
    atomicSub(&r[1], v);
    atomicMin(&r[2], v);
    atomicMax(&r[3], v);
    atomicAnd(&r[4], v | 0xfffe0000u);
    atomicOr(&r[5], v & 0x0001ffffu);
    atomicXor(&r[6], v);
    atomicMin((int*)&r[7], (int)v);
    atomicMax((int*)&r[8], (int)v);
    unsigned long long u = wide[i];
    atomicAdd(&w[0], u);
    atomicMin(&w[1], u);
    atomicMax(&w[2], u);
    atomicMin((long long*)&w[3], (long long)u);
    atomicAnd(&w[4], u | 0xffffffff00000000ull);
    atomicOr(&w[5], u & 0xffffull);
    atomicXor(&w[6], u);
}

extern "C" __global__ void atomics_shared(const int* x, int* r) {
    __shared__ int s[8];
    if (threadIdx.x < 8) s[threadIdx.x] = threadIdx.x == 3 ? 0x7fffffff : threadIdx.x == 5 ? -1 : 0;
    __syncthreads();
    int v = x[blockIdx.x * 64 + threadIdx.x];
    atomicAdd(&s[0], v);
    atomicSub(&s[1], v);
    atomicMax((unsigned*)&s[2], (unsigned)v);
    atomicMin(&s[3], v);
    atomicOr(&s[4], v & 0x01010101);
    atomicAnd(&s[5], v | 0x7ffffff0);
    atomicXor(&s[6], v);
    atomicAdd_block(&s[7], 3);
    __syncthreads();
    if (threadIdx.x < 8) r[blockIdx.x * 8 + threadIdx.x] = s[threadIdx.x];
}

// Each ticket is handed out once, whoever gets it: increments, wrapping increments, wrapping decrements.
extern "C" __global__ void atomics_returned(unsigned* counter, unsigned* seen) {
    unsigned a = atomicAdd(&counter[0], 1u);
    atomicAdd(&seen[a], 1u);
    unsigned b = atomicInc(&counter[1], 15u);
    atomicAdd(&seen[128 + b], 1u);
    unsigned c = atomicDec(&counter[2], 9u);
    atomicAdd(&seen[256 + c], 1u);
}
