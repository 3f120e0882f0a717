// One step of k-means: each point to its nearest centre, sums by shared atomics in fixed point, new centres.
//@ options: --fmad=false
//@ run kmeans_assign: kmeans_assign grid=4 block=128
//@   in points: f32[1500] uniform(-1, 1)
//@   in centres: f32[24] uniform(-1, 1)
//@   out nearest: u32[500] exact
//@   inout sums: i64[24] zero exact
//@   inout counts: u32[8] zero exact
//@   val n: i32 500

extern "C" __global__ void kmeans_assign(const float* points, const float* centres, unsigned* nearest, unsigned long long* sums,
                                         unsigned* counts, int n) {
    __shared__ float c[24];
    __shared__ unsigned long long s[24];
    __shared__ unsigned k[8];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    if (t < 24) {
        c[t] = centres[t];
        s[t] = 0;
    }
    if (t < 8) k[t] = 0;
    __syncthreads();
    if (i < n) {
        float x = points[3 * i], y = points[3 * i + 1], z = points[3 * i + 2], best = 1e30f;
        unsigned which = 0;
        for (unsigned j = 0; j < 8; ++j) {
            float dx = x - c[3 * j], dy = y - c[3 * j + 1], dz = z - c[3 * j + 2];
            float d = dx * dx + dy * dy + dz * dz;
            if (d < best) best = d, which = j;
        }
        nearest[i] = which;
        atomicAdd(&s[3 * which], (unsigned long long)__float2ll_rn(x * 1048576.0f));
        atomicAdd(&s[3 * which + 1], (unsigned long long)__float2ll_rn(y * 1048576.0f));
        atomicAdd(&s[3 * which + 2], (unsigned long long)__float2ll_rn(z * 1048576.0f));
        atomicAdd(&k[which], 1u);
    }
    __syncthreads();
    if (t < 24) atomicAdd(&sums[t], s[t]);
    if (t < 8) atomicAdd(&counts[t], k[t]);
}
