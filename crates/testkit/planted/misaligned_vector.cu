// A window of four floats that starts anywhere, read in one go.
//@ run misaligned_vector: window grid=1 block=4
//@   in x: f32[16] uniform(-1, 1)
//@   out y: f32[4] raw

extern "C" __global__ void window(const float* x, float* y) {
    float4 v = *reinterpret_cast<const float4*>(x + threadIdx.x);
    y[threadIdx.x] = v.x * v.y * v.z * v.w;
}
