// Misaligned accesses, local arrays, and values that nothing wrote.
//@ run misuse_vector: vector grid=1 block=16
//@   in x: f32[66] uniform(-1, 1)
//@   out y: f32[64] raw
//@   finds misaligned
//@ run misuse_double: doubles grid=1 block=16
//@   inout x: u8[140] bits raw
//@   finds misaligned
//@ run misuse_shared_word: shared_word grid=1 block=16
//@   out y: u32[16] raw
//@   finds misaligned
//@ run misuse_atomic: atomics grid=1 block=4
//@   inout x: u8[24] zero raw
//@   finds misaligned
//@ run misuse_local_past_end: local_past_end grid=1 block=32
//@   in at: u32[32] int(0, 18)
//@   out y: u32[32] raw
//@   finds out of bounds
//@ run misuse_local_uninitialised: local_uninitialised grid=1 block=32
//@   in at: u32[32] iota
//@   out y: u32[32] raw
//@   finds uninitialised read
//@ run misuse_output_as_sum: output_as_sum grid=1 block=32
//@   in x: f32[32] uniform(-1, 1)
//@   out y: f32[32] raw
//@   finds uninitialised read
//@ run misuse_atomic_on_fresh: atomic_on_fresh grid=1 block=32
//@   in x: u32[32] int(0, 3)
//@   out y: u32[4] raw
//@   finds uninitialised read
//@ run misuse_every_second: every_second grid=2 block=32
//@   out y: u32[64] raw
//@   out z: u32[64] raw
//@   finds uninitialised read
//@ run misuse_struct_tail: struct_tail grid=1 block=8
//@   out y: u8[96] raw
//@   out z: u32[8] raw
//@   finds uninitialised read
//@ run misuse_null: null_field grid=1 block=32
//@   val base: u64 0
//@   out y: u32[32] raw
//@   finds illegal address, out of bounds
//@ run misuse_constant: constant_table grid=1 block=32
//@   set table: u32[16] iota
//@   out y: u32[32] raw
//@   finds out of bounds
//@ run misuse_wild: wild grid=1 block=1
//@   in x: u64[1] const(5)
//@   out y: u32[1] raw
//@   finds illegal address, out of bounds
//@ run misuse_heap: heap grid=1 block=4
//@   out y: u32[4] raw
//@   finds out of bounds
//@ run misuse_heap_freed: heap_freed grid=1 block=4
//@   out y: u32[4] raw
//@   finds use after free
//@ run misuse_heap_freed_again: heap_freed_again grid=1 block=4
//@   out y: u32[4] raw
//@   finds invalid free
//@ run misuse_heap_freed_inside: heap_freed_inside grid=1 block=4
//@   out y: u32[4] raw
//@   finds invalid free

__constant__ unsigned table[16];

extern "C" __global__ void vector(const float* x, float* y) {
    ((float4*)y)[threadIdx.x] = *(const float4*)(x + 4 * threadIdx.x + 1);
}

extern "C" __global__ void doubles(unsigned char* x) {
    *(double*)(x + 4 + 8 * threadIdx.x) = 1.0;
}

extern "C" __global__ void shared_word(unsigned* y) {
    __shared__ unsigned char s[80];
    for (int k = 0; k < 5; k++) s[5 * threadIdx.x + k] = k;
    __syncthreads();
    y[threadIdx.x] = *(unsigned*)(s + 5 * threadIdx.x);
}

extern "C" __global__ void atomics(unsigned char* x) {
    atomicAdd((unsigned*)(x + 2 + 4 * threadIdx.x), 1u);
}

extern "C" __global__ void local_past_end(const unsigned* at, unsigned* y) {
    unsigned a[16];
    for (unsigned k = 0; k < 16; k++) a[(k * 5 + at[0]) % 16] = k;
    y[threadIdx.x] = a[at[threadIdx.x]];
}

extern "C" __global__ void local_uninitialised(const unsigned* at, unsigned* y) {
    unsigned a[64];
    for (unsigned k = 0; k < 16; k++) a[at[k]] = k;
    y[threadIdx.x] = a[at[threadIdx.x]];
}

extern "C" __global__ void output_as_sum(const float* x, float* y) {
    y[threadIdx.x] += x[threadIdx.x];
}

extern "C" __global__ void atomic_on_fresh(const unsigned* x, unsigned* y) {
    atomicAdd(&y[x[threadIdx.x]], 1u);
}

extern "C" __global__ void every_second(unsigned* y, unsigned* z) {
    int i = threadIdx.x;
    if (blockIdx.x != 0) return;
    y[2 * i] = i;
    __syncthreads();
    z[i] = y[i];
}

struct Record { unsigned a; unsigned char b; unsigned c; };

extern "C" __global__ void struct_tail(Record* y, unsigned* z) {
    y[threadIdx.x].a = 1;
    y[threadIdx.x].b = 2;
    z[threadIdx.x] = y[threadIdx.x].a + y[threadIdx.x].c;
}

extern "C" __global__ void null_field(const unsigned* base, unsigned* y) {
    y[threadIdx.x] = base[threadIdx.x + 4];
}

extern "C" __global__ void constant_table(unsigned* y) {
    y[threadIdx.x] = table[threadIdx.x];
}

extern "C" __global__ void wild(const unsigned long long* x, unsigned* y) {
    *y = *(const unsigned*)(x[0] << 40);
}

extern "C" __global__ void heap(unsigned* y) {
    unsigned* mine = (unsigned*)malloc(16);
    for (int k = 0; k <= 4; k++) mine[k] = k;
    y[threadIdx.x] = mine[threadIdx.x];
    free(mine);
}

extern "C" __global__ void heap_freed(unsigned* y) {
    unsigned* mine = new unsigned[4];
    for (int k = 0; k < 4; k++) mine[k] = k;
    delete[] mine;
    y[threadIdx.x] = mine[threadIdx.x];
}

extern "C" __global__ void heap_freed_again(unsigned* y) {
    unsigned* word = (unsigned*)malloc(16);
    y[threadIdx.x] = 1;
    free(word);
    if (threadIdx.x == 2) free(word);
}

extern "C" __global__ void heap_freed_inside(unsigned* y) {
    unsigned* words = (unsigned*)malloc(64);
    y[threadIdx.x] = 1;
    free(words + 4 * threadIdx.x);
}
