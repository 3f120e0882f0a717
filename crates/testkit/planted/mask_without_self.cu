// All lanes shuffle, by a mask of the lower half.
//@ run mask_without_self: exchange grid=1 block=32
//@   inout x: i32[32] bits raw

extern "C" __global__ void exchange(int* x) {
    x[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, x[threadIdx.x], 1);
}
