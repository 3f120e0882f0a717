// WMMA on signed and unsigned bytes with i32 accumulators: exact.
//@ run wmma_s8: wmma_s8 grid=1 block=32
//@   in a: i8[512] bits
//@   in b: i8[512] bits
//@   out d: i32[256] exact
//@ run wmma_u8_wide: wmma_u8_wide grid=1 block=32
//@   in a: u8[128] bits
//@   in b: u8[512] bits
//@   in c: i32[256] int(-100000, 100000)
//@   out d: i32[256] exact
#include <mma.h>
using namespace nvcuda;

// 16 x 32 and 32 x 16, each kept as two square tiles one after the other.
extern "C" __global__ void wmma_s8(const signed char* a, const signed char* b, int* d) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, int> acc;
    wmma::fill_fragment(acc, 7);
    for (int k = 0; k < 32; k += 16) {
        wmma::load_matrix_sync(fa, a + k * 16, 16);
        wmma::load_matrix_sync(fb, b + k * 16, 16);
        wmma::mma_sync(acc, fa, fb, acc);
    }
    wmma::store_matrix_sync(d, acc, 16, wmma::mem_row_major);
}

// 8 x 32 from 8 x 16 and 16 x 32, both row major.
extern "C" __global__ void wmma_u8_wide(const unsigned char* a, const unsigned char* b, const int* c, int* d) {
    wmma::fragment<wmma::matrix_a, 8, 32, 16, unsigned char, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 8, 32, 16, unsigned char, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 8, 32, 16, int> acc;
    wmma::load_matrix_sync(acc, c, 32, wmma::mem_row_major);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, 32);
    wmma::mma_sync(acc, fa, fb, acc);
    wmma::store_matrix_sync(d, acc, 32, wmma::mem_row_major);
}
