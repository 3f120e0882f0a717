// Accelerations of bodies that attract each other, the others passing through shared memory in tiles.
//@ run nbody: nbody grid=4 block=64
//@   in position: f32[1000] uniform(-1, 1)
//@   out acceleration: f32[750] bound loose
//@   val n: i32 250
//@   val softening: f32 0.01

extern "C" __global__ void nbody(const float4* position, float* acceleration, int n, float softening) {
    __shared__ float4 tile[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    float4 me = i < n ? position[i] : make_float4(0, 0, 0, 0);
    float ax = 0, ay = 0, az = 0;
    for (int first = 0; first < n; first += 64) {
        int j = first + threadIdx.x;
        tile[threadIdx.x] = j < n ? position[j] : make_float4(0, 0, 0, 0);
        __syncthreads();
        for (int k = 0; k < 64; ++k) {
            float4 o = tile[k];
            float dx = o.x - me.x, dy = o.y - me.y, dz = o.z - me.z;
            float r = rsqrtf(dx * dx + dy * dy + dz * dz + softening);
            float f = o.w * r * r * r;
            ax += f * dx, ay += f * dy, az += f * dz;
        }
        __syncthreads();
    }
    if (i < n) acceleration[3 * i] = ax, acceleration[3 * i + 1] = ay, acceleration[3 * i + 2] = az;
}
