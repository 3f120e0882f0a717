// A sum, then every element divided by it, with a barrier of the whole grid between the steps.
//@ run coop_normalise: coop_normalise grid=6 block=128 cooperative
//@   in x: f32[3000] uniform(0.5, 1.5)
//@   out partial: f32[6] bound
//@   out y: f32[3000] bound
//@   val n: i32 3000
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void coop_normalise(const float* x, float* partial, float* y, int n) {
    cg::grid_group grid = cg::this_grid();
    cg::thread_block block = cg::this_thread_block();
    __shared__ float s[128];
    float v = 0.0f;
    for (int i = (int)grid.thread_rank(); i < n; i += (int)grid.size()) v += x[i];
    s[block.thread_rank()] = v;
    block.sync();
    for (unsigned half = block.size() / 2; half > 0; half /= 2) {
        if (block.thread_rank() < half) s[block.thread_rank()] += s[block.thread_rank() + half];
        block.sync();
    }
    if (block.thread_rank() == 0) partial[blockIdx.x] = s[0];
    grid.sync();
    float total = 0.0f;
    for (unsigned b = 0; b < gridDim.x; ++b) total += partial[b];
    for (int i = (int)grid.thread_rank(); i < n; i += (int)grid.size()) y[i] = x[i] / total;
}
