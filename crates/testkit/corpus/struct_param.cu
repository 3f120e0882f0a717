// Structures by value as parameters, indexed by the thread; more than 4 KiB of parameters; small odd-sized ones.
//@ run struct_param: struct_param grid=1 block=64
//@   val s: bytes[48] made
//@   out y: f64[64] exact
//@   val odd: bytes[3] made
//@ run large_param: large_param grid=1 block=256
//@   val table: bytes[4608] made
//@   out y: u32[256] exact
//@   val shift: u8 3

struct Mixed {
    char tag;
    double scale;
    short steps[6];
    float bias[2];
    unsigned long long seed;
};
struct Three {
    unsigned char b[3];
};
struct Table {
    unsigned v[1152];
};
static_assert(sizeof(Mixed) == 48 && sizeof(Table) == 4608, "as the header says");

extern "C" __global__ void struct_param(Mixed s, double* y, Three odd) {
    int t = threadIdx.x;
    double v = (double)s.steps[t % 6] * s.scale;
    v += (double)s.bias[t & 1];
    y[t] = v + (double)((s.seed >> (t & 31)) & 15u) + (double)s.tag + (double)odd.b[t % 3];
}

extern "C" __global__ void large_param(const __grid_constant__ Table table, unsigned* y, unsigned char shift) {
    unsigned t = threadIdx.x, sum = 0;
    for (unsigned i = t; i < 1152; i += 256) sum += table.v[i] >> shift;
    y[t] = sum ^ table.v[(t * 37u) % 1152u];
}
