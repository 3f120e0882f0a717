//! Headers of the host's C and C++ library, as far as kernels use them.
//!
//! NVRTC has none of them. What they declare it knows by itself (`printf`, `assert`, mathematics,
//! `malloc`), or CUDA's own library has it as `cuda::std`, which then is `std` too. Where that
//! library is not installed, integers and limits are declared here.

use fercuda_nvrtc::CudaSource;

/// Names, and the text before [`AS_STD`].
const HEADERS: [(&[&str], &str); 15] = [
    (
        &["stdint.h", "inttypes.h", "cstdint", "cinttypes"],
        INTEGERS,
    ),
    (&["limits.h", "climits"], LIMITS),
    (&["float.h", "cfloat"], FLOATS),
    (&["stddef.h", "cstddef"], SIZES),
    (&["math.h", "cmath"], MATHEMATICS),
    (
        &["stdio.h", "cstdio"],
        "#ifndef FERCUDA_STDIO\n#define FERCUDA_STDIO\nnamespace std { using ::printf; }\n#endif\n",
    ),
    (
        &["stdlib.h", "cstdlib"],
        "#include <stddef.h>\n#ifndef FERCUDA_STDLIB\n#define FERCUDA_STDLIB\n\
         namespace std { using ::malloc; using ::free; using ::abs; using ::labs; using ::llabs; }\n\
         #endif\n",
    ),
    (
        &["string.h", "cstring"],
        "#include <stddef.h>\n#ifndef FERCUDA_STRING\n#define FERCUDA_STRING\n\
         namespace std { using ::memcpy; using ::memset; }\n#endif\n",
    ),
    (
        &["time.h", "ctime"],
        "#ifndef FERCUDA_TIME\n#define FERCUDA_TIME\nnamespace std { using ::clock; }\n#endif\n",
    ),
    (&["assert.h", "cassert", "stdbool.h"], ""),
    (
        &["limits"],
        "#include <cuda/std/limits>\n#include <climits>\n#include <cfloat>\n",
    ),
    (
        &["algorithm", "utility"],
        "#include <cuda/std/utility>\n\
         #if __has_include(<cuda/std/__algorithm/min.h>)\n\
         #include <cuda/std/__algorithm/min.h>\n#include <cuda/std/__algorithm/max.h>\n#endif\n\
         #if __has_include(<cuda/std/__algorithm/clamp.h>)\n\
         #include <cuda/std/__algorithm/clamp.h>\n#endif\n",
    ),
    (&["complex"], "#include <cuda/std/complex>\n"),
    (&["thrust/complex.h"], THRUST_COMPLEX),
    (&["cub/cub.cuh"], CUB),
];

/// Headers that are `cuda/std/NAME`.
const SAME_NAME: [&str; 9] = [
    "array",
    "bit",
    "functional",
    "initializer_list",
    "iterator",
    "optional",
    "ratio",
    "tuple",
    "type_traits",
];

/// `cuda::std` as `std`, behind an include of it.
const AS_STD: &str = "#if __has_include(<cuda/std/version>)\n#include <cuda/std/version>\n\
    namespace cuda { namespace std {} }\nnamespace std { using namespace cuda::std; }\n#endif\n";

const INTEGERS: &str = r#"#if __has_include(<cuda/std/cstdint>)
#include <cuda/std/cstdint>
#elif !defined FERCUDA_STDINT
#define FERCUDA_STDINT
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef long long intptr_t;
typedef unsigned long long uintptr_t;
typedef long long intmax_t;
typedef unsigned long long uintmax_t;
#define INT8_MAX 127
#define INT16_MAX 32767
#define INT32_MAX 2147483647
#define INT64_MAX 9223372036854775807LL
#define INT8_MIN (-INT8_MAX - 1)
#define INT16_MIN (-INT16_MAX - 1)
#define INT32_MIN (-INT32_MAX - 1)
#define INT64_MIN (-INT64_MAX - 1)
#define UINT8_MAX 255
#define UINT16_MAX 65535
#define UINT32_MAX 4294967295U
#define UINT64_MAX 18446744073709551615ULL
#define SIZE_MAX UINT64_MAX
#endif
"#;

const LIMITS: &str = r#"#if __has_include(<cuda/std/climits>)
#include <cuda/std/climits>
#elif !defined CHAR_BIT
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define SCHAR_MIN (-SCHAR_MAX - 1)
#define UCHAR_MAX 255
#define CHAR_MAX SCHAR_MAX
#define CHAR_MIN SCHAR_MIN
#define SHRT_MAX 32767
#define SHRT_MIN (-SHRT_MAX - 1)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295U
#define LLONG_MAX 9223372036854775807LL
#define LLONG_MIN (-LLONG_MAX - 1)
#define ULLONG_MAX 18446744073709551615ULL
#define LONG_MAX 9223372036854775807L
#define LONG_MIN (-LONG_MAX - 1)
#define ULONG_MAX 18446744073709551615UL
#endif
"#;

const FLOATS: &str = r#"#ifndef FLT_MAX
#define FLT_RADIX 2
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_MAX_EXP 128
#define FLT_MIN_EXP (-125)
#define FLT_MAX 0x1.fffffep127f
#define FLT_MIN 0x1p-126f
#define FLT_EPSILON 0x1p-23f
#define DBL_DIG 15
#define DBL_MANT_DIG 53
#define DBL_MAX_EXP 1024
#define DBL_MIN_EXP (-1021)
#define DBL_MAX 0x1.fffffffffffffp1023
#define DBL_MIN 0x1p-1022
#define DBL_EPSILON 0x1p-52
#endif
"#;

const SIZES: &str = r#"#if __has_include(<cuda/std/cstddef>)
#include <cuda/std/cstddef>
#elif !defined FERCUDA_STDDEF
#define FERCUDA_STDDEF
typedef decltype((char*)0 - (char*)0) ptrdiff_t;
namespace std { using ::size_t; using ::ptrdiff_t; typedef decltype(nullptr) nullptr_t; }
#endif
#ifndef NULL
#define NULL 0
#endif
#ifndef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif
"#;

const MATHEMATICS: &str = r#"#if __has_include(<cuda/std/cmath>)
#include <cuda/std/cmath>
#endif
namespace std { using ::fma; }
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fc00000)
#endif
#ifndef HUGE_VAL
#define HUGE_VAL __longlong_as_double(0x7ff0000000000000LL)
#endif
#ifndef HUGE_VALF
#define HUGE_VALF INFINITY
#endif
#ifndef M_PI
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#endif
"#;

/// Complex numbers of Thrust, without their operators for streams of the host.
const THRUST_COMPLEX: &str = r#"#include <cuda/std/complex>
#ifndef FERCUDA_THRUST_COMPLEX
#define FERCUDA_THRUST_COMPLEX
namespace thrust {
template <class T> using complex = ::cuda::std::complex<T>;
using ::cuda::std::abs;
using ::cuda::std::arg;
using ::cuda::std::norm;
using ::cuda::std::conj;
using ::cuda::std::polar;
using ::cuda::std::exp;
using ::cuda::std::log;
using ::cuda::std::pow;
using ::cuda::std::sqrt;
using ::cuda::std::sin;
using ::cuda::std::cos;
}
#endif
"#;

/// The parts of CUB for blocks and warps; those for the host cannot be compiled here.
const CUB: &str = r#"#include <cub/block/block_adjacent_difference.cuh>
#include <cub/block/block_discontinuity.cuh>
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_histogram.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_merge_sort.cuh>
#include <cub/block/block_radix_rank.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_run_length_decode.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_shuffle.cuh>
#include <cub/block/block_store.cuh>
#include <cub/thread/thread_load.cuh>
#include <cub/thread/thread_operators.cuh>
#include <cub/thread/thread_reduce.cuh>
#include <cub/thread/thread_scan.cuh>
#include <cub/thread/thread_search.cuh>
#include <cub/thread/thread_store.cuh>
#include <cub/warp/warp_exchange.cuh>
#include <cub/warp/warp_load.cuh>
#include <cub/warp/warp_merge_sort.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
#include <cub/warp/warp_store.cuh>
"#;

/// `program` with these headers, before those of any directory.
pub(super) fn given(mut program: CudaSource) -> CudaSource {
    for (names, text) in HEADERS {
        for name in names {
            program = program.header(*name, format!("{text}{AS_STD}"));
        }
    }
    for name in SAME_NAME {
        program = program.header(name, format!("#include <cuda/std/{name}>\n{AS_STD}"));
    }
    program
}
