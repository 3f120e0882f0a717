// Prefix sums of one block: Hillis and Steele's in two buffers, and Blelloch's up-sweep and down-sweep.
//@ run scan_inclusive: scan_inclusive grid=4 block=256
//@   in x: u32[1024] bits
//@   out y: u32[1024] exact
//@ run scan_exclusive: scan_exclusive grid=3 block=128
//@   in x: i32[768] int(-100, 100)
//@   out y: i32[768] exact
//@   out totals: i32[3] exact

extern "C" __global__ void scan_inclusive(const unsigned* x, unsigned* y) {
    __shared__ unsigned s[2][256];
    int t = threadIdx.x, from = 0;
    s[0][t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    for (int d = 1; d < 256; d *= 2) {
        s[1 - from][t] = s[from][t] + (t >= d ? s[from][t - d] : 0u);
        from = 1 - from;
        __syncthreads();
    }
    y[blockIdx.x * 256 + t] = s[from][t];
}

extern "C" __global__ void scan_exclusive(const int* x, int* y, int* totals) {
    __shared__ int s[256];
    int t = threadIdx.x, base = blockIdx.x * 256;
    s[2 * t] = x[base + 2 * t];
    s[2 * t + 1] = x[base + 2 * t + 1];
    int step = 1;
    for (int d = 128; d > 0; d >>= 1) {
        __syncthreads();
        if (t < d) s[step * (2 * t + 2) - 1] += s[step * (2 * t + 1) - 1];
        step *= 2;
    }
    __syncthreads();
    if (t == 0) {
        totals[blockIdx.x] = s[255];
        s[255] = 0;
    }
    for (int d = 1; d < 256; d *= 2) {
        step >>= 1;
        __syncthreads();
        if (t < d) {
            int a = step * (2 * t + 1) - 1, b = step * (2 * t + 2) - 1;
            int left = s[a];
            s[a] = s[b];
            s[b] += left;
        }
    }
    __syncthreads();
    y[base + 2 * t] = s[2 * t];
    y[base + 2 * t + 1] = s[2 * t + 1];
}
