// Merging two sorted arrays: each thread finds its diagonal's crossing by bisection, then merges its share.
//@ run merge_path: merge_path grid=3 block=32
//@   in a: u32[300] made
//@   in b: u32[500] made
//@   out merged: u32[800] exact
//@   val na: i32 300
//@   val nb: i32 500

extern "C" __global__ void merge_path(const unsigned* a, const unsigned* b, unsigned* merged, int na, int nb) {
    int threads = gridDim.x * blockDim.x, t = blockIdx.x * blockDim.x + threadIdx.x;
    int share = (na + nb + threads - 1) / threads;
    int first = min(t * share, na + nb), last = min(first + share, na + nb);
    int low = max(0, first - nb), high = min(first, na);
    while (low < high) {
        int middle = (low + high) / 2;
        if (a[middle] <= b[first - 1 - middle])
            low = middle + 1;
        else
            high = middle;
    }
    int i = low, j = first - low;
    for (int k = first; k < last; ++k) {
        bool from_a = j >= nb || (i < na && a[i] <= b[j]);
        merged[k] = from_a ? a[i++] : b[j++];
    }
}
