// Reads a word from a record of five bytes.
//@ run misaligned_global: decode grid=1 block=8
//@   in records: u8[40] bits
//@   out y: u32[8] raw

extern "C" __global__ void decode(const unsigned char* records, unsigned* y) {
    y[threadIdx.x] = *reinterpret_cast<const unsigned*>(records + 5 * threadIdx.x + 1);
}
