// Ninety-eight floats read as twenty-five quadruples: the last one hangs over the end.
//@ run oob_vector: sums grid=1 block=25
//@   in x: f32[98] uniform(-1, 1)
//@   out y: f32[25] raw

extern "C" __global__ void sums(const float4* x, float* y) {
    float4 v = x[threadIdx.x];
    y[threadIdx.x] = v.x + v.y + v.z + v.w;
}
