// A bitonic network: keys with their values in shared memory, and one step of the network in global memory.
//@ run bitonic_block: bitonic_block grid=2 block=256
//@   in keys: u32[1024] bits
//@   out sorted: u32[1024] exact
//@   out order: u32[1024] exact
//@ run bitonic_step: bitonic_step grid=2 block=256
//@   inout keys: f32[512] uniform(-10, 10) exact
//@   val span: i32 64
//@   val apart: i32 16

extern "C" __global__ void bitonic_block(const unsigned* keys, unsigned* sorted, unsigned* order) {
    __shared__ unsigned long long s[512];
    int t = threadIdx.x, base = blockIdx.x * 512;
    for (int i = t; i < 512; i += 256) s[i] = ((unsigned long long)keys[base + i] << 32) | (unsigned)i;
    for (int span = 2; span <= 512; span *= 2) {
        for (int apart = span / 2; apart > 0; apart /= 2) {
            __syncthreads();
            int low = 2 * apart * (t / apart) + t % apart, high = low + apart;
            bool rising = (low & span) == 0;
            unsigned long long a = s[low], b = s[high];
            if ((a > b) == rising) {
                s[low] = b;
                s[high] = a;
            }
        }
    }
    __syncthreads();
    for (int i = t; i < 512; i += 256) {
        sorted[base + i] = (unsigned)(s[i] >> 32);
        order[base + i] = (unsigned)s[i];
    }
}

extern "C" __global__ void bitonic_step(float* keys, int span, int apart) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = i ^ apart;
    if (j > i) {
        float a = keys[i], b = keys[j];
        bool rising = (i & span) == 0;
        if (rising ? a > b : a < b) {
            keys[i] = b;
            keys[j] = a;
        }
    }
}
