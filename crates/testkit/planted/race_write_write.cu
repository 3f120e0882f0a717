// Two warps both announce themselves in one word, with different values.
//@ run race_write_write: announce grid=1 block=64
//@   out who: u32[1] raw

extern "C" __global__ void announce(unsigned* who) {
    __shared__ unsigned first;
    if (threadIdx.x % 32 == 0) first = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) *who = first;
}
