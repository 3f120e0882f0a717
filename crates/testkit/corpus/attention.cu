// Attention of one head without keeping the scores: running maximum, running sum, causal or not.
//@ run attention: attention grid=6 block=32,4
//@   in q: f32[1472] uniform(-1, 1)
//@   in k: f32[1472] uniform(-1, 1)
//@   in v: f32[1472] uniform(-1, 1)
//@   out o: f32[1472] bound loose
//@   val length: i32 23
//@   val causal: i32 0
//@ run attention_causal: attention grid=6 block=32,4
//@   in q: f32[1472] uniform(-1, 1)
//@   in k: f32[1472] uniform(-1, 1)
//@   in v: f32[1472] uniform(-1, 1)
//@   out o: f32[1472] bound loose
//@   val length: i32 23
//@   val causal: i32 1

// A head of 64; a warp makes one row of the result, a lane two of its columns.
extern "C" __global__ void attention(const float* q, const float* k, const float* v, float* o, int length, int causal) {
    int row = blockIdx.x * 4 + threadIdx.y, lane = threadIdx.x;
    if (row >= length) return;
    float2 mine = reinterpret_cast<const float2*>(q)[row * 32 + lane];
    float high = -1e30f, sum = 0.0f;
    float2 acc = make_float2(0.0f, 0.0f);
    int last = causal ? row + 1 : length;
    for (int j = 0; j < last; ++j) {
        float2 key = reinterpret_cast<const float2*>(k)[j * 32 + lane];
        float score = mine.x * key.x + mine.y * key.y;
        for (int m = 16; m > 0; m >>= 1) score += __shfl_xor_sync(0xffffffffu, score, m);
        score *= 0.125f;
        float top = fmaxf(high, score), shrink = __expf(high - top), weight = __expf(score - top);
        float2 value = reinterpret_cast<const float2*>(v)[j * 32 + lane];
        sum = sum * shrink + weight;
        acc.x = acc.x * shrink + weight * value.x;
        acc.y = acc.y * shrink + weight * value.y;
        high = top;
    }
    reinterpret_cast<float2*>(o)[row * 32 + lane] = make_float2(acc.x / sum, acc.y / sum);
}
