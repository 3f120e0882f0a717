// Kernels that may be launched while the one before them in the stream still runs, from sm_90 on.
//
// Their parameters are not `__restrict__`: what is read through it counts as constant, and the
// compiler may then read it before the wait.
#pragma once

// Waits until the kernel before has ended, and what it wrote is seen. What comes earlier neither
// reads what that one writes nor writes anything.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the kernel behind be launched once all blocks came here: it waits itself for this one.
__device__ __forceinline__ void allow_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// The beginning of a kernel that overlaps its neighbours in its launch alone.
__device__ __forceinline__ void overlap_launches() {
    allow_next();
    wait_for_previous();
}
