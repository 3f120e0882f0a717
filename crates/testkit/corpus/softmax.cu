// Softmax of rows of any length by one block each, with exp2f and expf.
//@ run softmax_rows: softmax_rows grid=7 block=128
//@   in x: f32[7007] uniform(-8, 8)
//@   out y: f32[7007] bound loose
//@   val cols: i32 1001
//@ run softmax_online: softmax_online grid=9 block=32
//@   in x: f32[693] uniform(-20, 20)
//@   out y: f32[693] bound loose
//@   val cols: i32 77

__device__ float across(float v, bool high, float* s) {
    for (int m = 16; m > 0; m >>= 1) {
        float o = __shfl_xor_sync(0xffffffffu, v, m);
        v = high ? fmaxf(v, o) : v + o;
    }
    if ((threadIdx.x & 31) == 0) s[threadIdx.x >> 5] = v;
    __syncthreads();
    v = s[0];
    for (unsigned w = 1; w < blockDim.x / 32; ++w) v = high ? fmaxf(v, s[w]) : v + s[w];
    __syncthreads();
    return v;
}

extern "C" __global__ void softmax_rows(const float* x, float* y, int cols) {
    __shared__ float s[4];
    const float* row = x + (long long)blockIdx.x * cols;
    float* out = y + (long long)blockIdx.x * cols;
    float high = __int_as_float(0xff800000);
    for (int c = threadIdx.x; c < cols; c += blockDim.x) high = fmaxf(high, row[c]);
    high = across(high, true, s);
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        float e = exp2f((row[c] - high) * 1.44269504088896340736f);
        out[c] = e;
        sum += e;
    }
    sum = across(sum, false, s);
    for (int c = threadIdx.x; c < cols; c += blockDim.x) out[c] = out[c] / sum;
}

// One warp a row; maximum and sum are carried together, so the row is read twice and not three times.
extern "C" __global__ void softmax_online(const float* x, float* y, int cols) {
    const float* row = x + blockIdx.x * cols;
    float high = -1e30f, sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += 32) {
        float v = row[c], top = fmaxf(high, v);
        sum = sum * expf(high - top) + expf(v - top);
        high = top;
    }
    for (int m = 16; m > 0; m >>= 1) {
        float h = __shfl_xor_sync(0xffffffffu, high, m), s = __shfl_xor_sync(0xffffffffu, sum, m);
        float top = fmaxf(high, h);
        sum = sum * expf(high - top) + s * expf(h - top);
        high = top;
    }
    for (int c = threadIdx.x; c < cols; c += 32) y[blockIdx.x * cols + c] = expf(row[c] - high) / sum;
}
