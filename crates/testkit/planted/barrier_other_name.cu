// Two halves of a block wait for everybody at two different named barriers.
//@ run barrier_other_name: named grid=1 block=64
//@   out y: i32[64] raw

extern "C" __global__ void named(int* y) {
    if (threadIdx.x < 32)
        asm volatile("bar.sync 1, 64;" ::: "memory");
    else
        asm volatile("bar.sync 2, 64;" ::: "memory");
    y[threadIdx.x] = 1;
}
