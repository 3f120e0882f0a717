// Discrete Fourier transforms along one axis, computed in REAL. A complex number is two neighbours
// along the last dimension of a view, real and imaginary, `part` elements apart; the view's rows
// are along the axis. SOURCE is COMPLEX, REALS, or HALF, the first half of a spectrum whose other
// half follows by conjugation; RESULT is COMPLEX, REALS, the real parts, or HALF, the first half.
// FROM and TO are the types in memory.
//
// A pass is one step of Stockham's algorithm with a large radix, `length`, over the whole row: a
// transform of `length` elements that are `extent / length` apart, in shared memory, by passes with
// radices 2, 3, 4, 5 and 7. A row that fits in shared memory is one pass.
#include "rows.cuh"

#define COMPLEX 0
#define REALS 1
#define HALF 2

struct __align__(2 * sizeof(REAL)) Number {
    REAL re, im;
};

__device__ __forceinline__ Number operator+(Number a, Number b) {
    return Number{a.re + b.re, a.im + b.im};
}
__device__ __forceinline__ Number operator-(Number a, Number b) {
    return Number{a.re - b.re, a.im - b.im};
}
__device__ __forceinline__ Number operator*(Number a, Number b) {
    return Number{a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
__device__ __forceinline__ Number operator*(REAL a, Number b) { return Number{a * b.re, a * b.im}; }
// The product with i.
__device__ __forceinline__ Number turned(Number a) { return Number{-a.im, a.re}; }

// e^(2 pi i turns), for at most half a turn either way.
__device__ __forceinline__ Number root_at(double turns) {
    double re, im;
    sincospi(2.0 * turns, &im, &re);
    return Number{(REAL)re, (REAL)im};
}

// Rows of elements in memory.
struct Source {
    const FROM* x;
    const Shape& shape;
    i64 part;
    u64 extent;

    __device__ __forceinline__ Number load(u64 row, u64 at) const {
        const bool is_mirrored = SOURCE == HALF && at > extent / 2;
        if (is_mirrored) at = extent - at;
        const FROM* const from = x + row_offset(shape, row) + (i64)at * shape.strides[0];
        Number own;
        own.re = Computed<FROM>::load(from[0]);
        own.im = SOURCE == REALS ? (REAL)0 : Computed<FROM>::load(from[part]);
        if (is_mirrored) own.im = -own.im;
        return own;
    }
};

struct Result {
    TO* x;
    const Shape& shape;
    i64 part;
    u64 extent;
    REAL scale;

    __device__ __forceinline__ void store(u64 row, u64 at, Number value) const {
        if (RESULT == HALF && at > extent / 2) return;
        TO* const to = x + row_offset(shape, row) + (i64)at * shape.strides[0];
        to[0] = Computed<TO>::store(scale * value.re);
        if (RESULT != REALS) to[part] = Computed<TO>::store(scale * value.im);
    }
};

#ifdef KERNEL_roots_of_unity
// The roots of unity of order `extent`: roots[k] is e^(2 pi i k / extent).
extern "C" __global__ void roots_of_unity(Number* __restrict__ roots, u64 extent) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < extent; k += step) {
        const double near = 2 * k > extent ? -(double)(extent - k) : (double)k;
        roots[k] = root_at(near / (double)extent);
    }
}
#endif

// A root of unity, or its conjugate for a forward transform.
__device__ __forceinline__ Number directed(Number root, REAL sign) {
    return Number{root.re, sign * root.im};
}

// Transforms of few elements in registers, in place.
template <u32 R>
struct Small;

template <>
struct Small<2> {
    static __device__ __forceinline__ void transform(Number* x, REAL) {
        const Number a = x[0], b = x[1];
        x[0] = a + b;
        x[1] = a - b;
    }
};

template <>
struct Small<4> {
    static __device__ __forceinline__ void transform(Number* x, REAL sign) {
        const Number a = x[0] + x[2], b = x[0] - x[2], c = x[1] + x[3];
        const Number d = sign * turned(x[1] - x[3]);
        x[0] = a + c;
        x[1] = b + d;
        x[2] = a - c;
        x[3] = b - d;
    }
};

// Of odd lengths: elements in pairs k and R - k, whose sums meet cosines and whose differences meet
// sines, at each angle of 2 pi / R.
template <u32 R>
__device__ __forceinline__ void transform_odd(Number* x, REAL sign, const REAL (&cosines)[R],
                                              const REAL (&sines)[R]) {
    const u32 pairs = (R - 1) / 2;
    Number sums[pairs], differences[pairs], all = x[0];
    const Number first = x[0];
#pragma unroll
    for (u32 k = 0; k < pairs; k++) {
        sums[k] = x[k + 1] + x[R - 1 - k];
        differences[k] = x[k + 1] - x[R - 1 - k];
        all = all + sums[k];
    }
    x[0] = all;
#pragma unroll
    for (u32 j = 1; j <= pairs; j++) {
        Number even = first, odd = Number{0, 0};
#pragma unroll
        for (u32 k = 0; k < pairs; k++) {
            const u32 angle = j * (k + 1) % R;
            even = even + cosines[angle] * sums[k];
            odd = odd + sines[angle] * differences[k];
        }
        const Number side = sign * turned(odd);
        x[j] = even + side;
        x[R - j] = even - side;
    }
}

template <>
struct Small<3> {
    static __device__ __forceinline__ void transform(Number* x, REAL sign) {
        const REAL s = (REAL)0.86602540378443864676;
        const REAL cosines[3] = {1, (REAL)-0.5, (REAL)-0.5}, sines[3] = {0, s, -s};
        transform_odd<3>(x, sign, cosines, sines);
    }
};

template <>
struct Small<5> {
    static __device__ __forceinline__ void transform(Number* x, REAL sign) {
        const REAL c = (REAL)0.30901699437494742410, d = (REAL)-0.80901699437494742410;
        const REAL s = (REAL)0.95105651629515357212, t = (REAL)0.58778525229247312917;
        const REAL cosines[5] = {1, c, d, d, c}, sines[5] = {0, s, t, -t, -s};
        transform_odd<5>(x, sign, cosines, sines);
    }
};

template <>
struct Small<7> {
    static __device__ __forceinline__ void transform(Number* x, REAL sign) {
        const REAL c = (REAL)0.62348980185873353053, d = (REAL)-0.22252093395631440429;
        const REAL e = (REAL)-0.90096886790241912624, s = (REAL)0.78183148246802980871;
        const REAL t = (REAL)0.97492791218182360702, u = (REAL)0.43388373911755812048;
        const REAL cosines[7] = {1, c, d, e, e, d, c}, sines[7] = {0, s, t, u, -u, -t, -s};
        transform_odd<7>(x, sign, cosines, sines);
    }
};

// One pass over `count` transforms of `length` elements in shared memory: `done` elements of each
// are transformed already. `spread` is the order of the roots over `length`.
template <u32 R>
__device__ __forceinline__ void small_pass(Number* to, const Number* from, u32 count, u32 length,
                                           u32 done, const Number* __restrict__ roots, u64 spread,
                                           REAL sign) {
    const u32 each = length / R;
    const u64 apart = (u64)(each / done) * spread;
    for (u32 n = threadIdx.x; n < count * each; n += blockDim.x) {
        const u32 transform = n / each, at = n - transform * each;
        const u32 inside = at % done, begin = (at - inside) * R + inside;
        Number x[R];
#pragma unroll
        for (u32 k = 0; k < R; k++) {
            x[k] = from[transform * length + at + k * each];
            if (k > 0 && inside > 0) x[k] = x[k] * directed(roots[inside * k * apart], sign);
        }
        Small<R>::transform(x, sign);
#pragma unroll
        for (u32 k = 0; k < R; k++) to[transform * length + begin + k * done] = x[k];
    }
}

#ifdef KERNEL_transform_pass
// One pass over all rows. Transform number t is the one from place t % (extent / length) on, of row
// t / (extent / length); a block has `group` of them at a time. `done` elements of a row are
// transformed already; `radices` has those of the pass, four bits each, the first one lowest.
extern "C" __global__ void transform_pass(TO* __restrict__ to, const Shape to_shape, i64 to_part,
                                          const FROM* __restrict__ from, const Shape from_shape,
                                          i64 from_part, const Number* __restrict__ roots,
                                          u64 transforms, u64 extent, u64 done, u64 radices,
                                          u32 length, u32 group, double direction, double scale) {
    extern __shared__ double2 shared[];
    Number* one = reinterpret_cast<Number*>(shared);
    Number* other = one + group * length;
    const Source source{from, from_shape, from_part, extent};
    const Result result{to, to_shape, to_part, extent, (REAL)scale};
    const REAL sign = (REAL)direction;
    const u64 apart = extent / length, spread = extent / (done * length);
    const u64 groups = (transforms + group - 1) / group;
    for (u64 work = blockIdx.x; work < groups; work += gridDim.x) {
        const u64 first = work * group;
        const u32 count = (u32)(transforms - first < group ? transforms - first : group);
        for (u32 n = threadIdx.x; n < count * length; n += blockDim.x) {
            // Neighbouring threads have neighbours in a row, of one transform or of several.
            const u32 transform = apart == 1 ? n / length : n % count;
            const u32 k = apart == 1 ? n - transform * length : n / count;
            const u64 row = (first + transform) / apart, at = first + transform - row * apart;
            Number own = source.load(row, at + k * apart);
            const u64 inside = at % done;
            if (inside > 0) own = own * directed(roots[inside * k * spread], sign);
            one[transform * length + k] = own;
        }
        __syncthreads();
        u32 inner = 1;
        for (u64 left = radices; left > 0; left >>= 4) {
            const u32 radix = (u32)(left & 15);
            switch (radix) {
                case 2: small_pass<2>(other, one, count, length, inner, roots, apart, sign); break;
                case 3: small_pass<3>(other, one, count, length, inner, roots, apart, sign); break;
                case 4: small_pass<4>(other, one, count, length, inner, roots, apart, sign); break;
                case 5: small_pass<5>(other, one, count, length, inner, roots, apart, sign); break;
                default: small_pass<7>(other, one, count, length, inner, roots, apart, sign);
            }
            __syncthreads();
            Number* const last = one;
            one = other;
            other = last;
            inner *= radix;
        }
        for (u32 n = threadIdx.x; n < count * length; n += blockDim.x) {
            const u32 transform = done == 1 ? n / length : n % count;
            const u32 k = done == 1 ? n - transform * length : n / count;
            const u64 row = (first + transform) / apart, at = first + transform - row * apart;
            const u64 inside = at % done;
            result.store(row, (at - inside) * length + inside + k * done,
                         one[transform * length + k]);
        }
        __syncthreads();
    }
}
#endif

// Lengths with other prime factors are convolutions with a chirp (Bluestein): with c[k] the root
// e^(i pi k^2 / extent), the transform is conj(c) times the convolution of c and conj(c) x, where
// conj and not are exchanged for the inverse.

#ifdef KERNEL_chirp
// The chirp of `extent` elements, and around 0 in a circle of `padded` elements.
extern "C" __global__ void chirp(Number* __restrict__ chirp, Number* __restrict__ circle,
                                 u64 extent, u64 padded, double direction) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < padded; k += step) {
        const u64 from_zero = k < extent ? k : padded - k;
        Number own = {0, 0};
        if (from_zero < extent) {
            const u64 square = from_zero * from_zero % (2 * extent);
            const double near = square > extent ? -(double)(2 * extent - square) : (double)square;
            own = root_at(near / (double)(2 * extent));
            own.im *= (REAL)-direction;
        }
        circle[k] = own;
        if (k < extent) chirp[k] = Number{own.re, -own.im};
    }
}
#endif

#ifdef KERNEL_chirp_load
// Rows times the chirp, padded by 0.
extern "C" __global__ void chirp_load(Number* __restrict__ to, const FROM* __restrict__ from,
                                      const Shape from_shape, i64 from_part,
                                      const Number* __restrict__ chirp, u64 count, u64 extent,
                                      u64 padded) {
    const Source source{from, from_shape, from_part, extent};
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 n = (u64)blockIdx.x * blockDim.x + threadIdx.x; n < count; n += step) {
        const u64 row = n / padded, k = n - row * padded;
        to[n] = k < extent ? source.load(row, k) * chirp[k] : Number{0, 0};
    }
}
#endif

#ifdef KERNEL_chirp_multiply
// Rows of spectra times the spectrum of the circle.
extern "C" __global__ void chirp_multiply(Number* __restrict__ spectra,
                                          const Number* __restrict__ circle, u64 count,
                                          u64 padded) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 n = (u64)blockIdx.x * blockDim.x + threadIdx.x; n < count; n += step) {
        spectra[n] = spectra[n] * circle[n % padded];
    }
}
#endif

#ifdef KERNEL_chirp_store
// The first `extent` elements of padded rows times the chirp.
extern "C" __global__ void chirp_store(TO* __restrict__ to, const Shape to_shape, i64 to_part,
                                       const Number* __restrict__ from,
                                       const Number* __restrict__ chirp, u64 count, u64 extent,
                                       u64 padded, double scale) {
    const Result result{to, to_shape, to_part, extent, (REAL)scale};
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 n = (u64)blockIdx.x * blockDim.x + threadIdx.x; n < count; n += step) {
        const u64 row = n / extent, k = n - row * extent;
        result.store(row, k, from[row * padded + k] * chirp[k]);
    }
}
#endif
