// A radix-2 Fourier transform of 256 points in shared memory, forwards, and back to where it began.
//@ run fft: fft grid=3 block=128
//@   in x: f32[1536] uniform(-1, 1)
//@   out spectrum: f32[1536] bound loose
//@   out again: f32[1536] bound loose

__device__ void transform(float2* s, float sign) {
    int t = threadIdx.x;
    for (int half = 1; half < 256; half *= 2) {
        int j = t % half, low = t / half * 2 * half + j, high = low + half;
        float angle = sign * 3.14159265358979f * (float)j / (float)half, sn, cs;
        sincosf(angle, &sn, &cs);
        __syncthreads();
        float2 a = s[low], b = s[high];
        float2 w = make_float2(b.x * cs - b.y * sn, b.x * sn + b.y * cs);
        s[low] = make_float2(a.x + w.x, a.y + w.y);
        s[high] = make_float2(a.x - w.x, a.y - w.y);
    }
    __syncthreads();
}

extern "C" __global__ void fft(const float2* x, float2* spectrum, float2* again) {
    __shared__ float2 s[256];
    int t = threadIdx.x, base = blockIdx.x * 256;
    for (int i = t; i < 256; i += 128) s[__brev((unsigned)i) >> 24] = x[base + i];
    transform(s, -1.0f);
    float2 v[2] = {s[t], s[t + 128]};
    spectrum[base + t] = v[0];
    spectrum[base + t + 128] = v[1];
    __syncthreads();
    s[__brev((unsigned)t) >> 24] = v[0];
    s[__brev((unsigned)(t + 128)) >> 24] = v[1];
    transform(s, 1.0f);
    for (int i = t; i < 256; i += 128) again[base + i] = make_float2(s[i].x / 256.0f, s[i].y / 256.0f);
}
