// Accesses of kernels to global memory that leave the allocation they mean.
//@ run bounds_straddles: straddles grid=1 block=1
//@   inout x: u8[30] bits raw
//@   out y: u32[4] raw
//@   finds out of bounds
//@ run bounds_negative: negative grid=1 block=32
//@   in x: f32[32] uniform(-1, 1)
//@   out y: f32[32] raw
//@   finds out of bounds
//@ run bounds_grid_tail: grid_tail grid=4 block=64
//@   in x: f32[250] uniform(-1, 1)
//@   inout y: f32[256] zero raw
//@   finds out of bounds
//@ run bounds_inclusive: inclusive grid=2 block=64
//@   inout x: i32[100] bits raw
//@   val n: i32 100
//@   finds out of bounds
//@ run bounds_wrapped: wrapped grid=1 block=32
//@   inout x: i32[1024] bits raw
//@   val rows: i32 65536
//@   val pitch: i32 65537
//@   finds out of bounds
//@ run bounds_unsigned: unsigned_below grid=1 block=32
//@   in x: i32[64] bits
//@   out y: i32[32] raw
//@   finds out of bounds
//@ run bounds_transposed: transposed grid=1 block=8,24
//@   in x: f32[192] uniform(-1, 1)
//@   inout y: f32[192] zero raw
//@   val width: i32 24
//@   val height: i32 8
//@   finds out of bounds
//@ run bounds_halo: halo grid=2 block=64
//@   in x: f32[128] uniform(-1, 1)
//@   out y: f32[128] raw
//@   finds out of bounds
//@ run bounds_indirect: indirect grid=1 block=64
//@   in at: i32[64] int(0, 70)
//@   in x: u16[64] bits
//@   out y: u16[64] raw
//@   finds out of bounds
//@ run bounds_chunks: chunks grid=1 block=16
//@   inout x: f32[62] uniform(-1, 1) raw
//@   finds out of bounds
//@ run bounds_bytes: bytes grid=1 block=64
//@   in text: u8[63] const(7)
//@   inout length: u32[1] zero raw
//@   finds out of bounds
//@ run bounds_strided: strided grid=2 block=32
//@   inout x: f64[100] uniform(-1, 1) raw
//@   val n: i32 100
//@   finds out of bounds
//@ run bounds_queue: queue grid=1 block=40
//@   inout tail: u32[1] zero raw
//@   inout items: u32[32] zero raw
//@   finds out of bounds
//@ run bounds_bins: bins grid=1 block=64
//@   in x: u32[64] const(17)
//@   inout counts: u32[16] zero raw
//@   finds out of bounds
//@ run bounds_search: search grid=1 block=32
//@   in sorted: u32[32] iota
//@   out at: u32[32] raw
//@   finds out of bounds
//@ run bounds_fields: fields grid=1 block=32
//@   inout points: f32[90] uniform(-1, 1) raw
//@   finds out of bounds

extern "C" __global__ void straddles(unsigned char* x, unsigned* y) {
    // The last word begins inside and ends two bytes behind.
    const unsigned* words = (const unsigned*)x;
    y[0] = words[7];
}

extern "C" __global__ void negative(const float* x, float* y) {
    int i = threadIdx.x;
    y[i] = x[i] - x[i - 1];
}

extern "C" __global__ void grid_tail(const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = 2.0f * x[i];
}

extern "C" __global__ void inclusive(int* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) x[i] = i;
}

extern "C" __global__ void wrapped(int* x, int rows, int pitch) {
    // 65536 * 65537 is 65536 in 32 bits; the row of the last thread lies far behind the end.
    int at = rows * pitch / 64 + (int)threadIdx.x;
    x[at] = at;
}

extern "C" __global__ void unsigned_below(const int* x, int* y) {
    unsigned i = threadIdx.x;
    unsigned before = i - 2;
    y[i] = x[(int)before];
}

extern "C" __global__ void transposed(const float* x, float* y, int width, int height) {
    int row = threadIdx.x, column = threadIdx.y;
    // Rows and columns are exchanged where the place is computed.
    y[column * width + row] = x[row * width + column];
}

extern "C" __global__ void halo(const float* x, float* y) {
    __shared__ float tile[66];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x + 1] = x[i];
    if (threadIdx.x == 0) tile[0] = i > 0 ? x[i - 1] : 0.0f;
    if (threadIdx.x == blockDim.x - 1) tile[65] = x[i + 1];
    __syncthreads();
    y[i] = tile[threadIdx.x] + tile[threadIdx.x + 2];
}

extern "C" __global__ void indirect(const int* at, const unsigned short* x, unsigned short* y) {
    int i = threadIdx.x;
    y[i] = x[at[i]];
}

extern "C" __global__ void chunks(float* x) {
    float4 v = ((float4*)x)[threadIdx.x];
    v.x += v.w;
    ((float4*)x)[threadIdx.x] = v;
}

extern "C" __global__ void bytes(const char* text, unsigned* length) {
    if (threadIdx.x != 0) return;
    unsigned n = 0;
    while (text[n] == 7 && n < 64) n++;
    *length = n;
}

extern "C" __global__ void strided(double* x, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i - 64 < n - 64 + 8; i += 64) x[i] *= 0.5;
}

extern "C" __global__ void queue(unsigned* tail, unsigned* items) {
    unsigned at = atomicAdd(tail, 1u);
    items[at] = threadIdx.x;
}

extern "C" __global__ void bins(const unsigned* x, unsigned* counts) {
    atomicAdd(&counts[x[threadIdx.x]], 1u);
}

extern "C" __global__ void search(const unsigned* sorted, unsigned* at) {
    unsigned want = threadIdx.x + 20, i = 0;
    while (sorted[i] < want && i < 40) i++;
    at[threadIdx.x] = i;
}

struct Point { float x, y, z; };

extern "C" __global__ void fields(Point* points) {
    Point p = points[threadIdx.x];
    points[threadIdx.x].z = p.x + p.y;
}
