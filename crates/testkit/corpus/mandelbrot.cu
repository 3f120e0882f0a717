// Escape times of the Mandelbrot set: every lane of a warp leaves its loop when it likes.
//@ options: --fmad=false
//@ run mandelbrot: mandelbrot grid=4,8 block=16,4
//@   out counts: u16[2048] exact
//@   val width: i32 64
//@   val height: i32 32
//@   val limit: i32 200

extern "C" __global__ void mandelbrot(unsigned short* counts, int width, int height, int limit) {
    int px = blockIdx.x * blockDim.x + threadIdx.x, py = blockIdx.y * blockDim.y + threadIdx.y;
    if (px >= width || py >= height) return;
    float cx = -2.0f + 3.0f * (float)px / (float)width, cy = -1.0f + 2.0f * (float)py / (float)height;
    float x = 0.0f, y = 0.0f;
    int n = 0;
    while (n < limit && x * x + y * y <= 4.0f) {
        float next = x * x - y * y + cx;
        y = 2.0f * x * y + cy;
        x = next;
        ++n;
    }
    counts[py * width + px] = (unsigned short)n;
}
