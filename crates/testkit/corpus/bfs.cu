// Breadth-first search by frontiers within one block: distances from node 0 of a random graph.
//@ run bfs: bfs grid=1 block=128
//@   in offsets: u32[201] made
//@   in edges: u32[600] made
//@   out distance: u32[200] exact
//@   val n: i32 200

extern "C" __global__ void bfs(const unsigned* offsets, const unsigned* edges, unsigned* distance, int n) {
    __shared__ unsigned frontier[2][200], count[2], level[200];
    int t = threadIdx.x;
    for (int i = t; i < n; i += blockDim.x) level[i] = i == 0 ? 0u : ~0u;
    if (t == 0) {
        frontier[0][0] = 0;
        count[0] = 1;
        count[1] = 0;
    }
    __syncthreads();
    unsigned depth = 0;
    int now = 0;
    while (count[now] > 0) {
        for (unsigned f = t; f < count[now]; f += blockDim.x) {
            unsigned node = frontier[now][f];
            for (unsigned e = offsets[node]; e < offsets[node + 1]; ++e)
                if (atomicCAS(&level[edges[e]], ~0u, depth + 1) == ~0u) frontier[1 - now][atomicAdd(&count[1 - now], 1u)] = edges[e];
        }
        __syncthreads();
        if (t == 0) count[now] = 0;
        now = 1 - now;
        ++depth;
        __syncthreads();
    }
    for (int i = t; i < n; i += blockDim.x) distance[i] = level[i];
}
