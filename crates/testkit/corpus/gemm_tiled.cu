// f32 matrix product from shared tiles, for sizes no tile divides; and four results a thread.
//@ run gemm_tiled: gemm_tiled grid=4,3 block=16,16
//@   in a: f32[2585] uniform(-1, 1)
//@   in b: f32[3355] uniform(-1, 1)
//@   out c: f32[2867] bound
//@   val m: i32 47
//@   val n: i32 61
//@   val k: i32 55
//@ run gemm_registers: gemm_registers grid=2,2 block=16,16
//@   in a: f32[4096] uniform(-1, 1)
//@   in b: f32[4096] uniform(-1, 1)
//@   out c: f32[4096] bound

extern "C" __global__ void gemm_tiled(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float ta[16][16], tb[16][17];
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0.0f;
    for (int first = 0; first < k; first += 16) {
        int ka = first + threadIdx.x, kb = first + threadIdx.y;
        ta[threadIdx.y][threadIdx.x] = row < m && ka < k ? a[row * k + ka] : 0.0f;
        tb[threadIdx.y][threadIdx.x] = kb < k && col < n ? b[kb * n + col] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; ++i) sum += ta[threadIdx.y][i] * tb[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && col < n) c[row * n + col] = sum;
}

// 64 x 64 x 64; a block makes 32 x 32, a thread 2 x 2, reading rows of b as float2.
extern "C" __global__ void gemm_registers(const float* a, const float* b, float* c) {
    constexpr int N = 64, T = 32;
    __shared__ float ta[T][T + 1];
    __shared__ __align__(8) float tb[T][T];
    int t = threadIdx.y * 16 + threadIdx.x;
    int row = blockIdx.y * T, col = blockIdx.x * T;
    float sum[2][2] = {};
    for (int first = 0; first < N; first += T) {
        for (int i = t; i < T * T; i += 256) {
            ta[i / T][i % T] = a[(row + i / T) * N + first + i % T];
            tb[i / T][i % T] = b[(first + i / T) * N + col + i % T];
        }
        __syncthreads();
        for (int i = 0; i < T; ++i) {
            float2 v = *reinterpret_cast<float2*>(&tb[i][2 * threadIdx.x]);
            for (int r = 0; r < 2; ++r) {
                float u = ta[2 * threadIdx.y + r][i];
                sum[r][0] = fmaf(u, v.x, sum[r][0]);
                sum[r][1] = fmaf(u, v.y, sum[r][1]);
            }
        }
        __syncthreads();
    }
    for (int r = 0; r < 2; ++r)
        *reinterpret_cast<float2*>(&c[(row + 2 * threadIdx.y + r) * N + col + 2 * threadIdx.x]) = make_float2(sum[r][0], sum[r][1]);
}
