// Tensor cores by the WMMA interface: f16 with f32 and with f16 accumulators, both storage orders, a tall shape.
//@ run wmma_f16_f32: wmma_f16_f32 grid=2,2 block=32
//@   in a: f16[1536] uniform(-1, 1)
//@   in b: f16[1536] uniform(-1, 1)
//@   in c: f32[1024] uniform(-1, 1)
//@   out d: f32[1024] bound loose
//@ run wmma_f16_f16: wmma_f16_f16 grid=1 block=32
//@   in a: f16[256] uniform(-1, 1)
//@   in b: f16[256] uniform(-1, 1)
//@   out d: f16[256] bound loose
//@ run wmma_tall: wmma_tall grid=1 block=32
//@   in a: f16[512] uniform(-1, 1)
//@   in b: f16[128] uniform(-1, 1)
//@   out d: f32[256] bound loose
#include <mma.h>
using namespace nvcuda;

// 32 x 32 from 32 x 48 (row major) and 48 x 32 (column major), one 16 x 16 tile a warp.
extern "C" __global__ void wmma_f16_f32(const half* a, const half* b, const float* c, float* d) {
    constexpr int K = 48, N = 32;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
    int row = blockIdx.y * 16, col = blockIdx.x * 16;
    wmma::load_matrix_sync(acc, c + row * N + col, N, wmma::mem_row_major);
    for (int k = 0; k < K; k += 16) {
        wmma::load_matrix_sync(fa, a + row * K + k, K);
        wmma::load_matrix_sync(fb, b + col * K + k, K);
        wmma::mma_sync(acc, fa, fb, acc);
    }
    for (int i = 0; i < acc.num_elements; ++i) acc.x[i] *= 2.0f;
    wmma::store_matrix_sync(d + row * N + col, acc, N, wmma::mem_row_major);
}

// Through shared memory; both inputs row major, the result column major.
extern "C" __global__ void wmma_f16_f16(const half* a, const half* b, half* d) {
    __shared__ __align__(32) half sa[16 * 24], sb[16 * 24];
    for (int i = threadIdx.x; i < 256; i += 32) {
        sa[i / 16 * 24 + i % 16] = a[i];
        sb[i / 16 * 24 + i % 16] = b[i];
    }
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, half> acc;
    wmma::fill_fragment(acc, __float2half(0.25f));
    wmma::load_matrix_sync(fa, sa, 24);
    wmma::load_matrix_sync(fb, sb, 24);
    wmma::mma_sync(acc, fa, fb, acc);
    wmma::store_matrix_sync(d, acc, 16, wmma::mem_col_major);
}

// 32 x 8 from 32 x 16 (column major) and 16 x 8 (row major).
extern "C" __global__ void wmma_tall(const half* a, const half* b, float* d) {
    wmma::fragment<wmma::matrix_a, 32, 8, 16, half, wmma::col_major> fa;
    wmma::fragment<wmma::matrix_b, 32, 8, 16, half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 32, 8, 16, float> acc;
    wmma::fill_fragment(acc, 0.0f);
    wmma::load_matrix_sync(fa, a, 32);
    wmma::load_matrix_sync(fb, b, 8);
    wmma::mma_sync(acc, fa, fb, acc);
    wmma::store_matrix_sync(d, acc, 8, wmma::mem_row_major);
}
