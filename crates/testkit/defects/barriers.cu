// Barriers that not all threads of a block reach, or not the same ones.
//@ run barriers_in_branch: in_branch grid=1 block=64
//@   inout x: u32[64] iota raw
//@   finds barrier divergence
//@ run barriers_loop_count: loop_count grid=1 block=64
//@   inout x: u32[64] iota raw
//@   finds barrier divergence
//@ run barriers_named_count: named_count grid=1 block=96
//@   inout x: u32[96] iota raw
//@   finds barrier divergence, deadlock
//@ run barriers_lanes_apart: lanes_apart grid=1 block=32
//@   inout x: u32[32] iota raw
//@   finds barrier divergence
//@ run barriers_two_names: two_names grid=1 block=64
//@   inout x: u32[64] iota raw
//@   finds barrier divergence, deadlock
//@ run barriers_switch: in_switch grid=1 block=128
//@   inout x: u32[128] iota raw
//@   finds barrier divergence

extern "C" __global__ void in_branch(unsigned* x) {
    __shared__ unsigned s[64];
    unsigned t = threadIdx.x;
    s[t] = x[t];
    if (s[t] % 2 == 0) {
        __syncthreads();
        x[t] = s[t] + 1;
    } else {
        x[t] = s[t] + 2;
    }
    __syncthreads();
    x[t] += 1;
}

extern "C" __global__ void loop_count(unsigned* x) {
    unsigned t = threadIdx.x, v = x[t];
    for (unsigned k = 0; k < 1 + t / 32; k++) {
        v += k;
        __syncthreads();
    }
    x[t] = v;
    __syncthreads();
    x[t] += 1;
}

extern "C" __global__ void named_count(unsigned* x) {
    unsigned t = threadIdx.x;
    // Two warps wait for three, and the third does not come.
    if (t < 64) asm volatile("bar.sync 1, 96;" ::: "memory");
    else asm volatile("bar.sync 2, 64;" ::: "memory");
    x[t] += 1;
}

extern "C" __global__ void lanes_apart(unsigned* x) {
    unsigned t = threadIdx.x;
    if (t & 1) {
        x[t] += 1;
        __syncthreads();
        x[t] += 2;
    } else {
        x[t] += 3;
        __syncthreads();
        x[t] += 4;
    }
}

extern "C" __global__ void two_names(unsigned* x) {
    if (threadIdx.x < 32) {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        asm volatile("bar.sync 2, 64;" ::: "memory");
    } else {
        asm volatile("bar.sync 2, 64;" ::: "memory");
        asm volatile("bar.sync 1, 64;" ::: "memory");
    }
    x[threadIdx.x] += 1;
}

extern "C" __global__ void in_switch(unsigned* x) {
    unsigned t = threadIdx.x;
    switch (x[t] / 32) {
    case 0: x[t] += 1; __syncthreads(); x[t] += 5; break;
    case 1: x[t] *= 3; __syncthreads(); x[t] += 6; break;
    default: x[t] -= 2; break;
    }
    __syncthreads();
    x[t] += 1;
}
