// Every other entry of a thread's table is never set.
//@ run uninit_local: table grid=1 block=8
//@   in which: u32[8] iota
//@   out y: u32[8] raw

extern "C" __global__ void table(const unsigned* which, unsigned* y) {
    unsigned a[16];
    for (unsigned i = 0; i < 16; i += 2) a[i + (which[0] & 1)] = i + which[threadIdx.x];
    y[threadIdx.x] = a[which[threadIdx.x]];
}
