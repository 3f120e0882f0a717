// A table passed by value, read past its last entry.
//@ run oob_param: look_up grid=1 block=16
//@   val table: bytes[32] bits
//@   out y: u32[16] raw

struct Table {
    unsigned v[8];
};

extern "C" __global__ void look_up(const __grid_constant__ Table table, unsigned* y) {
    const unsigned* p = table.v;
    y[threadIdx.x] = p[threadIdx.x];
}
