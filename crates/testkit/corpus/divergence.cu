// Lanes that part: loops of different lengths, switch, early return, breaks out of nested loops, barriers in uniform branches.
//@ run collatz: collatz grid=2 block=96
//@   in x: u32[192] int(1, 5000)
//@   out steps: u32[192] exact
//@ run tangled: tangled grid=3 block=64
//@   in x: u32[192] bits
//@   out y: u32[192] exact
//@ run early_exit: early_exit grid=2 block=128
//@   in x: i32[256] int(-10, 10)
//@   inout y: i32[256] bits exact
//@   val n: i32 200
//@ run barrier_loop: barrier_loop grid=3 block=64
//@   in rounds: u32[3] int(1, 9)
//@   out y: u32[192] exact

extern "C" __global__ void collatz(const unsigned* x, unsigned* steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned v = x[i], n = 0;
    while (v != 1) {
        if (v & 1)
            v = 3 * v + 1;
        else
            v >>= 1;
        ++n;
    }
    steps[i] = n;
}

extern "C" __global__ void tangled(const unsigned* x, unsigned* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned v = x[i], r = 1;
    for (unsigned a = 0; a < (v & 7); ++a) {
        for (unsigned b = 0; b < 20; ++b) {
            if (((v >> b) & 3) == 3) goto next;
            if (((v >> a) & 7) == 5) {
                r += 100;
                break;
            }
            switch ((v >> (a + b)) & 15) {
                case 0: r *= 3;
                case 1: r += b; break;
                case 2: r ^= 0x55u; continue;
                case 7: case 8: case 9: r = (r << 3) | (r >> 29); break;
                case 15: goto done;
                default: r += (v >> 16) & 0xff;
            }
            r += a;
        }
    next:
        r = r * 31u + a;
    }
done:
    y[i] = r;
}

extern "C" __global__ void early_exit(const int* x, int* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = x[i];
    if (v == 0) {
        y[i] = 1000;
        return;
    }
    if (v < 0) {
        if (v & 1) {
            y[i] = -1;
            return;
        }
        v = -v;
    }
    y[i] = 360360 / v;
}

// The branch is the same for a whole block, so the barriers inside are met by all or none.
extern "C" __global__ void barrier_loop(const unsigned* rounds, unsigned* y) {
    __shared__ unsigned s[64];
    unsigned t = threadIdx.x, n = rounds[blockIdx.x];
    s[t] = t;
    __syncthreads();
    for (unsigned r = 0; r < n; ++r) {
        unsigned v = s[(t + 1) & 63] + 3u * s[(t + r) & 63];
        if (r & 1) {
            __syncthreads();
            s[t] = v;
            __syncthreads();
        } else {
            unsigned odd = __syncthreads_count(v & 1);
            unsigned any = __syncthreads_or(v > 1000u), all = __syncthreads_and(v != 7u);
            s[t] = v + odd + any * 2 + all;
            __syncthreads();
        }
    }
    y[blockIdx.x * 64 + t] = s[t];
}
