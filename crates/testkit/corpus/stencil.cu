// Neighbourhood sums: a line with a halo in shared memory, a five-point plane, a seven-point volume.
//@ options: --fmad=false
//@ run stencil_1d: stencil_1d grid=5 block=128
//@   in x: f32[600] uniform(-1, 1)
//@   out y: f32[600] exact
//@   val n: i32 600
//@ run stencil_2d: stencil_2d grid=4,5 block=16,8
//@   in x: f32[2368] uniform(-1, 1)
//@   out y: f32[2368] exact
//@   val width: i32 64
//@   val height: i32 37
//@ run stencil_3d: stencil_3d grid=2,3 block=8,4
//@   in x: f64[1920] uniform(-1, 1)
//@   out y: f64[1920] exact
//@   val nx: i32 16
//@   val ny: i32 12
//@   val nz: i32 10

extern "C" __global__ void stencil_1d(const float* x, float* y, int n) {
    constexpr int R = 3;
    __shared__ float s[128 + 2 * R];
    int first = blockIdx.x * 128 - R;
    for (int k = threadIdx.x; k < 128 + 2 * R; k += 128) {
        int i = first + k;
        s[k] = (i >= 0 && i < n) ? x[i] : 0.0f;
    }
    __syncthreads();
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) {
        float sum = 0.0f;
        for (int k = 0; k <= 2 * R; ++k) sum += s[threadIdx.x + k] * (float)(k + 1);
        y[i] = sum;
    }
}

extern "C" __global__ void stencil_2d(const float* x, float* y, int width, int height) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (c >= width || r >= height) return;
    auto at = [&](int rr, int cc) {
        rr = min(max(rr, 0), height - 1);
        cc = min(max(cc, 0), width - 1);
        return x[rr * width + cc];
    };
    y[r * width + c] = 0.5f * at(r, c) + 0.125f * (at(r - 1, c) + at(r + 1, c) + at(r, c - 1) + at(r, c + 1));
}

// Marches along z keeping three planes' values in registers.
extern "C" __global__ void stencil_3d(const double* x, double* y, int nx, int ny, int nz) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= nx || j >= ny) return;
    int plane = nx * ny, p = j * nx + i;
    double below = 0.0, here = x[p];
    for (int k = 0; k < nz; ++k) {
        double above = k + 1 < nz ? x[p + plane] : 0.0;
        double sides = (i > 0 ? x[p - 1] : 0.0) + (i + 1 < nx ? x[p + 1] : 0.0);
        sides += (j > 0 ? x[p - nx] : 0.0) + (j + 1 < ny ? x[p + nx] : 0.0);
        y[p] = (below + above) + sides - 6.0 * here;
        below = here;
        here = above;
        p += plane;
    }
}
