// Two bytes written, four read.
//@ run uninit_half: widen grid=1 block=16
//@   out pairs: u32[16] raw
//@   out y: u32[16] raw

extern "C" __global__ void widen(unsigned* pairs, unsigned* y) {
    reinterpret_cast<volatile unsigned short*>(pairs)[2 * threadIdx.x] = (unsigned short)threadIdx.x;
    y[threadIdx.x] = reinterpret_cast<volatile unsigned*>(pairs)[threadIdx.x];
}
