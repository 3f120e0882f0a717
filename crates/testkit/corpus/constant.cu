// Constant memory set by the host, initialised in the source, addressed by lane; device variables read back by the host.
//@ run constants: constants grid=1 block=128
//@   set taps: f32[16] uniform(-1, 1)
//@   in x: f32[128] uniform(-1, 1)
//@   out y: f32[128] exact
//@   out name: u8[128] exact
//@   get launches: u32[1] exact
//@   get seen: i64[4] exact

__constant__ float taps[16];
__constant__ char text[] = "feRcuda runs kernels with and without a GPU";
__constant__ struct { int a; double b; short c[3]; } mixed = {-7, 2.5, {1, -2, 300}};
__device__ unsigned launches = 41;
__device__ long long seen[4] = {1, 2, 3, 4};
__device__ int* pointer_to_four = (int*)&seen[3];

extern "C" __global__ void constants(const float* x, float* y, unsigned char* name) {
    int t = threadIdx.x;
    y[t] = __fadd_rn(__fmul_rn(x[t], taps[t & 15]), (float)(mixed.b * mixed.c[t % 3] + mixed.a));
    name[t] = (unsigned char)text[t % (sizeof text - 1)];
    if (t == 5) {
        launches += 1;
        seen[2] = -seen[2] - launches;
        *pointer_to_four = 9;
    }
}
