// bf16 to f32 and integers for all 65536 inputs, f32 to bf16 singly and in pairs, with and without relu.
//@ run bf16_to_all: bf16_to_all grid=256 block=256
//@   out f: f32[65536] exact
//@   out i: i32[65536] exact
//@   out u: u32[65536] exact
//@ run f32_to_bf16: f32_to_bf16 grid=64 block=256
//@   in f: f32[16384] mix
//@   out near: bf16[16384] exact
//@   out zero: bf16[16384] exact
//@   out pair: bf16[16384] exact
//@   out relu: bf16[16384] exact
#include <cuda_bf16.h>

extern "C" __global__ void bf16_to_all(float* f, int* i, unsigned* u) {
    unsigned t = blockIdx.x * 256 + threadIdx.x;
    __nv_bfloat16 b = __ushort_as_bfloat16((unsigned short)t);
    f[t] = __bfloat162float(b);
    i[t] = __bfloat162int_rz(b);
    u[t] = __bfloat162uint_rz(b);
}

extern "C" __global__ void f32_to_bf16(const float* f, __nv_bfloat16* near, __nv_bfloat16* zero, __nv_bfloat162* pair, unsigned short* relu) {
    unsigned t = blockIdx.x * 256 + threadIdx.x;
    near[t] = __float2bfloat16_rn(f[t]);
    zero[t] = __float2bfloat16_rz(f[t]);
    if (t < 8192) pair[t] = __floats2bfloat162_rn(f[2 * t], f[2 * t + 1]);
    asm("cvt.rn.relu.bf16.f32 %0, %1;" : "=h"(relu[t]) : "f"(f[t]));
}
