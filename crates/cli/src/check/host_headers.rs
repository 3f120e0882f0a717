//! Headers of the host's C and C++ library, as far as kernels use them.
//!
//! NVRTC has none of them. What they declare it knows by itself (`printf`, `assert`, mathematics,
//! `malloc`), or CUDA's own library has it as `cuda::std`, which then is `std` too.
//!
//! Invariant: headers of C give `std` the global names themselves, never others of `cuda::std`, so
//! that `using namespace std` makes no call ambiguous.

use std::path::PathBuf;

use fercuda_nvrtc::CudaSource;

/// Headers by what they declare: the names of a group, and the text.
const OF_C: [(&[&str], &str); 9] = [
    (&["stdint.h", "cstdint"], INTEGERS),
    (&["inttypes.h", "cinttypes"], FORMATS),
    (&["limits.h", "climits"], LIMITS),
    (&["stddef.h", "cstddef"], SIZES),
    (
        &["stdio.h", "cstdio"],
        "#include <stddef.h>\nnamespace std { using ::printf; }\n",
    ),
    (
        &["stdlib.h", "cstdlib"],
        "#include <stddef.h>\n\
         namespace std { using ::malloc; using ::free; using ::abs; using ::labs; using ::llabs; }\n",
    ),
    (
        &["string.h", "cstring"],
        "#include <stddef.h>\nnamespace std { using ::memcpy; using ::memset; }\n",
    ),
    (
        &["time.h", "ctime"],
        "namespace std { using ::clock_t; using ::clock; }\n",
    ),
    // NVRTC's own: `assert`, the words of C++, placement new.
    (&["assert.h", "cassert", "stdbool.h", "cstdbool", "new"], ""),
];

/// Headers of C++ that are `cuda/std/NAME`.
const OF_CXX: [&str; 23] = [
    "array",
    "bit",
    "bitset",
    "chrono",
    "complex",
    "concepts",
    "expected",
    "functional",
    "initializer_list",
    "iterator",
    "limits",
    "memory",
    "numbers",
    "numeric",
    "optional",
    "ranges",
    "ratio",
    "source_location",
    "span",
    "tuple",
    "type_traits",
    "utility",
    "variant",
];

/// Where `cuda::std` can be used, which newer versions of CUDA's library refuse before C++17.
const HAS_LIBRARY: &str = "#if __has_include(<cuda/std/version>) && __cplusplus >= 201703L";

/// `cuda::std` as `std`.
const AS_STD: &str = "#include <cuda/std/version>\nnamespace cuda { namespace std {} }\n\
    namespace std { using namespace ::cuda::std; }\n";

/// 64-bit types are `long long` as in CUDA's library, though `long` in that of the host.
const INTEGERS: &str = r#"#include <cuda/std/cstdint>
#else
#ifndef fercuda_has_stdint
#define fercuda_has_stdint
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int64_t intptr_t;
typedef uint64_t uintptr_t;
typedef int64_t intmax_t;
typedef uint64_t uintmax_t;
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
#define INT32_C(n) n
#define INT64_C(n) n##LL
#define UINT32_C(n) n##U
#define UINT64_C(n) n##ULL
#endif
#endif
namespace std {
using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t;
using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t;
using ::intptr_t; using ::uintptr_t; using ::intmax_t; using ::uintmax_t;
}
"#;

const FORMATS: &str = r#"#include <stdint.h>
#ifndef PRId64
#define PRId8 "d"
#define PRId16 "d"
#define PRId32 "d"
#define PRId64 "lld"
#define PRIi32 "i"
#define PRIi64 "lli"
#define PRIu8 "u"
#define PRIu16 "u"
#define PRIu32 "u"
#define PRIu64 "llu"
#define PRIx8 "x"
#define PRIx16 "x"
#define PRIx32 "x"
#define PRIx64 "llx"
#define PRIX32 "X"
#define PRIX64 "llX"
#define PRIo32 "o"
#define PRIo64 "llo"
#define PRIdPTR "lld"
#define PRIuPTR "llu"
#define PRIxPTR "llx"
#define PRIdMAX "lld"
#define PRIuMAX "llu"
#endif
"#;

const LIMITS: &str = r#"#include <cuda/std/climits>
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
#define LONG_MAX 9223372036854775807L
#define LONG_MIN (-LONG_MAX - 1)
#define ULONG_MAX 18446744073709551615UL
#define LLONG_MAX 9223372036854775807LL
#define LLONG_MIN (-LLONG_MAX - 1)
#define ULLONG_MAX 18446744073709551615ULL
#endif
"#;

const SIZES: &str = r#"#include <cuda/std/cstddef>
namespace std { using ::cuda::std::byte; using ::cuda::std::max_align_t; }
#endif
namespace std { using ::size_t; using ::ptrdiff_t; typedef decltype(nullptr) nullptr_t; }
#ifndef NULL
#define NULL 0
#endif
#ifndef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif
"#;

/// Macros of `<float.h>`.
const FLOATS: [(&str, &str); 29] = [
    ("FLT_RADIX", "2"),
    ("FLT_EVAL_METHOD", "0"),
    ("DECIMAL_DIG", "17"),
    ("FLT_DECIMAL_DIG", "9"),
    ("DBL_DECIMAL_DIG", "17"),
    ("FLT_DIG", "6"),
    ("FLT_MANT_DIG", "24"),
    ("FLT_MAX_EXP", "128"),
    ("FLT_MIN_EXP", "(-125)"),
    ("FLT_MAX_10_EXP", "38"),
    ("FLT_MIN_10_EXP", "(-37)"),
    ("FLT_MAX", "3.402823466385288598e+38F"),
    ("FLT_MIN", "1.175494350822287508e-38F"),
    ("FLT_TRUE_MIN", "1.401298464324817071e-45F"),
    ("FLT_EPSILON", "1.192092895507812500e-7F"),
    ("FLT_HAS_SUBNORM", "1"),
    ("DBL_DIG", "15"),
    ("DBL_MANT_DIG", "53"),
    ("DBL_MAX_EXP", "1024"),
    ("DBL_MIN_EXP", "(-1021)"),
    ("DBL_MAX_10_EXP", "308"),
    ("DBL_MIN_10_EXP", "(-307)"),
    ("DBL_MAX", "1.7976931348623157081e+308"),
    ("DBL_MIN", "2.2250738585072013831e-308"),
    ("DBL_TRUE_MIN", "4.9406564584124654418e-324"),
    ("DBL_EPSILON", "2.2204460492503130808e-16"),
    ("DBL_HAS_SUBNORM", "1"),
    ("LDBL_MAX", "DBL_MAX"),
    ("LDBL_MIN", "DBL_MIN"),
];

/// Macros of `<math.h>`.
const MATHEMATICS: [(&str, &str); 15] = [
    ("HUGE_VALF", "INFINITY"),
    ("HUGE_VAL", "((double)INFINITY)"),
    ("M_E", "2.7182818284590452354"),
    ("M_LOG2E", "1.4426950408889634074"),
    ("M_LOG10E", "0.43429448190325182765"),
    ("M_LN2", "0.69314718055994530942"),
    ("M_LN10", "2.30258509299404568402"),
    ("M_PI", "3.14159265358979323846"),
    ("M_PI_2", "1.57079632679489661923"),
    ("M_PI_4", "0.78539816339744830962"),
    ("M_1_PI", "0.31830988618379067154"),
    ("M_2_PI", "0.63661977236758134308"),
    ("M_2_SQRTPI", "1.12837916709551257390"),
    ("M_SQRT2", "1.41421356237309504880"),
    ("M_SQRT1_2", "0.70710678118654752440"),
];

/// Constants that initial values may have, in the very words of CUDA's library, which defines them
/// again.
const SPECIAL_VALUES: &str = r#"#include <cuda/std/limits>
#ifndef INFINITY
#ifdef _CUDA_VSTD
#define INFINITY _CUDA_VSTD::numeric_limits<float>::infinity()
#define NAN      _CUDA_VSTD::numeric_limits<float>::quiet_NaN()
#else
#define INFINITY ::cuda::std::numeric_limits<float>::infinity()
#define NAN      ::cuda::std::numeric_limits<float>::quiet_NaN()
#endif
#endif
#elif !defined INFINITY
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)
#endif
"#;

/// Functions of `<math.h>` of which there is one more for floats, with an f behind the name.
const FUNCTIONS: &str = "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf \
    erfc exp exp2 expm1 fabs fdim floor fma fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint \
    llround log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter pow remainder \
    remquo rint round scalbln scalbn sin sinh sqrt tan tanh tgamma trunc";

/// Those of one value and of two that take integers too, and floats and doubles mixed, as doubles.
const OF_ONE: &str = "acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erfc exp exp2 expm1 \
    fabs floor lgamma log log10 log1p log2 nearbyint rint round sin sinh sqrt tan tanh tgamma trunc";
const OF_TWO: &str = "atan2 copysign fdim fmax fmin fmod hypot pow remainder";

/// Which types those are.
const NUMBERS: &str = r#"template <class T> struct fercuda_integer {};
template <class T> struct fercuda_number {};
#define fercuda_set_number(T) template <> struct fercuda_number<T> { typedef double type; };
#define fercuda_set_integer(T) template <> struct fercuda_integer<T> { typedef double type; }; \
    fercuda_set_number(T)
fercuda_set_number(float) fercuda_set_number(double)
fercuda_set_integer(bool) fercuda_set_integer(char) fercuda_set_integer(signed char)
fercuda_set_integer(unsigned char) fercuda_set_integer(short) fercuda_set_integer(unsigned short)
fercuda_set_integer(int) fercuda_set_integer(unsigned) fercuda_set_integer(long)
fercuda_set_integer(unsigned long) fercuda_set_integer(long long) fercuda_set_integer(unsigned long long)
#undef fercuda_set_integer
#undef fercuda_set_number
"#;

/// The others.
const SINGLE_FUNCTIONS: &str = "abs isfinite isinf isnan signbit";

/// Complex numbers of Thrust, without their operators for streams of the host.
const THRUST_COMPLEX: &str = r#"#include <cuda/std/complex>
#ifndef fercuda_has_thrust_complex
#define fercuda_has_thrust_complex
namespace thrust {
template <class T> using complex = ::cuda::std::complex<T>;
using ::cuda::std::abs;
using ::cuda::std::arg;
using ::cuda::std::norm;
using ::cuda::std::conj;
using ::cuda::std::proj;
using ::cuda::std::polar;
using ::cuda::std::exp;
using ::cuda::std::log;
using ::cuda::std::log10;
using ::cuda::std::pow;
using ::cuda::std::sqrt;
using ::cuda::std::sin;
using ::cuda::std::cos;
using ::cuda::std::tan;
using ::cuda::std::sinh;
using ::cuda::std::cosh;
using ::cuda::std::tanh;
}
#endif
"#;

/// Headers of CUB in `cub/`, without the parts for the host, which NVRTC cannot compile.
const CUB: [&str; 29] = [
    "block/block_adjacent_difference",
    "block/block_discontinuity",
    "block/block_exchange",
    "block/block_histogram",
    "block/block_load",
    "block/block_merge_sort",
    "block/block_radix_rank",
    "block/block_radix_sort",
    "block/block_reduce",
    "block/block_run_length_decode",
    "block/block_scan",
    "block/block_shuffle",
    "block/block_store",
    "grid/grid_even_share",
    "thread/thread_load",
    "thread/thread_operators",
    "thread/thread_reduce",
    "thread/thread_scan",
    "thread/thread_search",
    "thread/thread_sort",
    "thread/thread_store",
    "util_ptx",
    "util_type",
    "warp/warp_exchange",
    "warp/warp_load",
    "warp/warp_merge_sort",
    "warp/warp_reduce",
    "warp/warp_scan",
    "warp/warp_store",
];

/// Definitions of those macros that there are none of.
fn macros(list: &[(&str, &str)]) -> String {
    list.iter()
        .map(|(name, value)| format!("#ifndef {name}\n#define {name} {value}\n#endif\n"))
        .collect()
}

/// `<math.h>`: global functions that NVRTC has.
fn mathematics() -> String {
    let both = FUNCTIONS
        .split(' ')
        .map(|name| format!("using ::{name}; using ::{name}f;"));
    let single = SINGLE_FUNCTIONS
        .split(' ')
        .map(|name| format!("using ::{name};"));
    let list: Vec<String> = both.chain(single).collect();
    let one = OF_ONE.split(' ').map(|name| {
        format!(
            "template <class T> __device__ inline typename fercuda_integer<T>::type {name}(T x) \
             {{ return {name}((double)x); }}\n"
        )
    });
    let two = OF_TWO.split(' ').map(|name| {
        format!(
            "template <class T, class U, class D = typename fercuda_number<T>::type> __device__ \
             inline typename fercuda_number<U>::type {name}(T x, U y) \
             {{ return {name}((D)x, (D)y); }}\n"
        )
    });
    let wider: String = one.chain(two).collect();
    let (list, macros) = (list.join("\n"), macros(&MATHEMATICS));
    format!(
        "#ifndef fercuda_has_math\n#define fercuda_has_math\n{NUMBERS}{wider}namespace std {{\n{list}\n}}\n\
         #endif\n{HAS_LIBRARY}\n{SPECIAL_VALUES}{macros}"
    )
}

/// All headers, by name.
fn all() -> Vec<(String, String)> {
    let mut headers = Vec::new();
    for (names, text) in OF_C {
        let text = match text.starts_with("#include <cuda/") {
            true => format!("{HAS_LIBRARY}\n{text}"),
            false => text.to_owned(),
        };
        headers.extend(names.iter().map(|name| (name.to_string(), text.clone())));
    }
    let floats = macros(&FLOATS);
    headers.extend(["float.h", "cfloat"].map(|name| (name.to_owned(), floats.clone())));
    let mathematics = mathematics();
    headers.extend(["math.h", "cmath"].map(|name| (name.to_owned(), mathematics.clone())));
    let of_cxx = |name: &str| format!("#include <cuda/std/{name}>\n{AS_STD}");
    headers.extend(OF_CXX.map(|name| (name.to_owned(), of_cxx(name))));
    // The library has algorithms one by one, the smallest in `utility`'s company.
    let algorithms = [
        "min",
        "max",
        "minmax",
        "clamp",
        "swap_ranges",
        "fill",
        "copy",
        "lower_bound",
    ]
    .map(|name| if_there(&format!("cuda/std/__algorithm/{name}.h")));
    let algorithms = format!("{}{}", algorithms.concat(), of_cxx("utility"));
    headers.push(("algorithm".to_owned(), algorithms));
    headers.push(("thrust/complex.h".to_owned(), THRUST_COMPLEX.to_owned()));
    let cub = CUB.map(|name| if_there(&format!("cub/{name}.cuh")));
    headers.push(("cub/cub.cuh".to_owned(), cub.concat()));
    headers
}

/// An include of a header that some versions of CUDA do not have.
fn if_there(header: &str) -> String {
    format!("#if __has_include(<{header}>)\n#include <{header}>\n#endif\n")
}

/// `program` with these headers, except those that a directory of the program's own has.
pub(super) fn given(mut program: CudaSource, directories: &[PathBuf]) -> CudaSource {
    for (name, text) in all() {
        if !directories.iter().any(|it| it.join(&name).is_file()) {
            program = program.header(name, text);
        }
    }
    program
}
