// Producers give back fewer registers than consumers ask for.
//@ arch: sm_90a
//@ run setmaxnreg_too_many: more_registers_than_there_are grid=1 block=384
//@   inout y: f32[1024] zero raw

extern "C" __global__ void __launch_bounds__(384, 1) more_registers_than_there_are(float* y) {
    if (threadIdx.x < 128)
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    else
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    y[threadIdx.x] = 1;
}
