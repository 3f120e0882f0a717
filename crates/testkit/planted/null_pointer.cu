// Writes through a pointer that the host never set.
//@ run null_pointer: store grid=1 block=1
//@   val to: u64 0

extern "C" __global__ void store(int* to) { *to = 1; }
