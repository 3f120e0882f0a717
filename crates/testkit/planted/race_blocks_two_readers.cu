// Two blocks read a word, then the one that read it last writes it.
//@ run race_blocks_two_readers: claim grid=2 block=32
//@   inout owner: u32[1] zero raw
//@   out seen: u32[2] raw

extern "C" __global__ void claim(unsigned* owner, unsigned* seen) {
    if (threadIdx.x != 0) return;
    seen[blockIdx.x] = *owner;
    if (blockIdx.x == 1) *owner = 7;
}
