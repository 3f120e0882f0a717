// Finds a short pattern in a text: places appended by one atomic a warp, and edit distance of pairs of words.
//@ run find_all: find_all grid=8 block=128
//@   in text: u8[1000] made
//@   in pattern: u8[3] made
//@   inout places: u32[1000] const(4294967295) sorted
//@   inout count: u32[1] zero exact
//@   val n: i32 1000
//@   val m: i32 3
//@ run edit_distance: edit_distance grid=2 block=32
//@   in a: u8[768] int(97, 100)
//@   in b: u8[768] int(97, 100)
//@   out distance: u32[64] exact

extern "C" __global__ void find_all(const unsigned char* text, const unsigned char* pattern, unsigned* places, unsigned* count, int n, int m) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    bool found = i + m <= n;
    for (int k = 0; found && k < m; ++k) found = text[i + k] == pattern[k];
    unsigned who = __ballot_sync(0xffffffffu, found);
    unsigned base = 0;
    if (lane == 0 && who) base = atomicAdd(count, (unsigned)__popc(who));
    base = __shfl_sync(0xffffffffu, base, 0);
    if (found) places[base + __popc(who & ((1u << lane) - 1u))] = (unsigned)i;
}

extern "C" __global__ void edit_distance(const unsigned char* a, const unsigned char* b, unsigned* distance) {
    int t = blockIdx.x * 32 + threadIdx.x;
    unsigned char row[13];
    for (int j = 0; j <= 12; ++j) row[j] = (unsigned char)j;
    for (int i = 0; i < 12; ++i) {
        unsigned char corner = row[0];
        row[0] = (unsigned char)(i + 1);
        for (int j = 0; j < 12; ++j) {
            unsigned replace = corner + (a[t * 12 + i] != b[t * 12 + j]);
            corner = row[j + 1];
            row[j + 1] = (unsigned char)min(replace, min((unsigned)row[j], (unsigned)row[j + 1]) + 1u);
        }
    }
    distance[t] = row[12];
}
