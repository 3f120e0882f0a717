// An index from data runs off a thread's own array.
//@ run oob_local: pick grid=1 block=32
//@   in which: u32[32] const(40)
//@   out y: u32[32] raw

extern "C" __global__ void pick(const unsigned* which, unsigned* y) {
    unsigned a[16];
    for (int i = 0; i < 16; ++i) a[i] = i * threadIdx.x;
    a[which[threadIdx.x] & 15] = 1;
    y[threadIdx.x] = a[which[threadIdx.x]];
}
