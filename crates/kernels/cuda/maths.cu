// Functions of elements by CUDA's mathematical ones: CALL is an expression of the values x and y, of
// what EXPRESSION says: the function itself, or one of those here by their macros.
#include "blocks.cuh"

typedef Computed<ELEMENT> As;
typedef As::type Real;
typedef Computed<RESULT> To;

#if IS_FLOAT
// The remainder with the sign of x, and with that of y.
__device__ __forceinline__ Real remainder_to_zero(Real x, Real y) {
    return sizeof(Real) == 4 ? (Real)fmodf((float)x, (float)y) : (Real)fmod((double)x, (double)y);
}

__device__ __forceinline__ Real remainder_of(Real x, Real y) {
    const Real rest = remainder_to_zero(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

// The quotient down to an integer: that of the multiple of y below x.
__device__ __forceinline__ Real floor_quotient(Real x, Real y) {
    if (y == 0) return x / y;
    const Real rest = remainder_to_zero(x, y);
    Real quotient = (x - rest) / y;
    if (rest != 0 && (rest < 0) != (y < 0)) quotient -= 1;
    return sizeof(Real) == 4 ? (Real)rintf((float)quotient) : (Real)rint((double)quotient);
}

// The derivative of ln of the gamma function, in f64: reflected to above 0, moved up to 10 by its
// recurrence, and by the asymptotic series there.
__device__ __forceinline__ double digamma(double x) {
    if (x != x || x == (double)as_float(0xff800000)) return (double)as_float(0x7fc00000);
    double sum = 0;
    if (x <= 0) {
        if (x == 0) return copysign((double)as_float(0x7f800000), -x);
        const double beyond = x - rint(x);
        if (beyond == 0) return (double)as_float(0x7fc00000);
        sum = -3.14159265358979323846 * cospi(beyond) / sinpi(beyond);
        x = 1 - x;
    }
    while (x < 10) {
        sum -= 1 / x;
        x += 1;
    }
    const double square = 1 / (x * x);
    const double series =
        square *
        (1.0 / 12 -
         square * (1.0 / 120 -
                   square * (1.0 / 252 -
                             square * (1.0 / 240 -
                                       square * (1.0 / 132 -
                                                 square * (691.0 / 32760 - square / 12))))));
    return sum + log(x) - 0.5 / x - series;
}

__device__ __forceinline__ Real sinc_of(Real x) {
    if (x == 0) return 1;
    const Real pi = (Real)3.14159265358979323846;
    return (sizeof(Real) == 4 ? (Real)sinpif((float)x) : (Real)sinpi((double)x)) / (pi * x);
}

__device__ __forceinline__ bool sign_of(float x) { return __float_as_uint(x) >> 31 != 0; }
__device__ __forceinline__ bool sign_of(double x) { return __double_as_longlong(x) < 0; }

__device__ __forceinline__ int limited(i64 exponent) {
    return exponent > 10000 ? 10000 : exponent < -10000 ? -10000 : (int)exponent;
}
#else
// 0 by zero. The quotient of the least number by -1 wraps.
__device__ __forceinline__ ELEMENT quotient_of(ELEMENT x, ELEMENT y) {
    if (y == 0) return 0;
    if (IS_SIGNED && y == (ELEMENT)-1) return (ELEMENT)(0 - (u64)x);
    return (ELEMENT)(x / y);
}

__device__ __forceinline__ ELEMENT floor_quotient(ELEMENT x, ELEMENT y) {
    const ELEMENT quotient = quotient_of(x, y);
    const ELEMENT rest = (ELEMENT)((u64)x - (u64)quotient * (u64)y);
    return y != 0 && rest != 0 && (rest < 0) != (y < 0) ? (ELEMENT)(quotient - 1) : quotient;
}

__device__ __forceinline__ ELEMENT remainder_of(ELEMENT x, ELEMENT y) {
    if (y == 0) return 0;
    return (ELEMENT)((u64)x - (u64)floor_quotient(x, y) * (u64)y);
}

__device__ __forceinline__ u64 size_of(ELEMENT x) { return x < 0 ? 0 - (u64)(i64)x : (u64)x; }

__device__ __forceinline__ u64 common_divisor(u64 a, u64 b) {
    while (b != 0) {
        const u64 rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

__device__ __forceinline__ u64 common_multiple(u64 a, u64 b) {
    return a == 0 || b == 0 ? 0 : a / common_divisor(a, b) * b;
}
#endif

#ifdef STEPS
// The next element from x towards y, by the bits of its magnitude.
__device__ __forceinline__ BITS next_towards(BITS x, BITS y, Real from, Real to) {
    if (from != from) return x;
    if (to != to || from == to) return y;
    const BITS sign = (BITS)((BITS)1 << (8 * sizeof(BITS) - 1));
    if (from == 0) return (BITS)((y & sign) | 1);
    return (BITS)((to > from) == (from > 0) ? x + 1 : x - 1);
}

#ifdef KERNEL_step_elements
extern "C" __global__ void step_elements(BITS* to, const Shape to_shape, const BITS* x,
                                         const Shape x_shape, const BITS* y, const Shape y_shape,
                                         u64 count) {
    EACH_ELEMENT(number, count) {
        const Shape* const shapes[3] = {&to_shape, &x_shape, &y_shape};
        i64 at[3];
        all_offsets<DIMS, 3>(shapes, number, at);
        const BITS a = x[at[1]], b = y[at[2]];
        to[at[0]] = next_towards(a, b, As::load(*reinterpret_cast<const ELEMENT*>(&a)),
                                 As::load(*reinterpret_cast<const ELEMENT*>(&b)));
    }
}
#endif
#endif

#ifdef PARTS
#ifdef KERNEL_part_elements
// x as a number from a half to below 1, and a power of two; of 0 and what is not finite itself and 0.
extern "C" __global__ void part_elements(ELEMENT* to, const Shape to_shape, int* exponents,
                                         const Shape exponents_shape, const ELEMENT* x,
                                         const Shape x_shape, u64 count) {
    EACH_ELEMENT(number, count) {
        const Shape* const shapes[3] = {&to_shape, &exponents_shape, &x_shape};
        i64 at[3];
        all_offsets<DIMS, 3>(shapes, number, at);
        const Real value = As::load(x[at[2]]);
        int exponent = 0;
        Real part = value;
        if (value - value == 0) part = (Real)frexp((double)value, &exponent);
        to[at[0]] = As::store(part);
        exponents[at[1]] = exponent;
    }
}
#endif
#endif

#ifdef CALL
#ifdef KERNEL_apply
extern "C" __global__ void apply(RESULT* to, const Shape to_shape, const ELEMENT* first,
                                 const Shape first_shape, const SECOND* second,
                                 const Shape second_shape, u64 count) {
    EACH_ELEMENT(number, count) {
        const Shape* const shapes[3] = {&to_shape, &first_shape, &second_shape};
        i64 at[3];
        all_offsets<DIMS, 3>(shapes, number, at);
        const Real x = As::load(first[at[1]]);
        const Computed<SECOND>::type y = Computed<SECOND>::load(second[at[2]]);
        to[at[0]] = To::store((To::type)(CALL));
    }
}
#endif
#endif
