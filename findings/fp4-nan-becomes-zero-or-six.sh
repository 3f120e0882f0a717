#!/usr/bin/env bash
# A NaN converted to FP4 is 6.0 in CUDA's header and a zero of the OPPOSITE sign in ml_dtypes; a
# NaN converted to FP6 is the largest number there, a zero here.
#
# Versions: nvidia-cuda-runtime 13.5.37 (cuda_fp4.h, cuda_fp6.h), nvidia-cuda-cccl 13.3.5.0.6,
# ml_dtypes 0.6.0, numpy 2.4.6. A C++ compiler.
# Expected: E2M1 has no NaN, so a conversion saturates it or makes it zero, and since all finite
# values and infinities agree bit for bit in both tools, so does this.
# Seen: cuda_fp4.h makes any NaN 0x7 (6.0, the largest number), as PTX documents for its cvt. In
# ml_dtypes +NaN is 0x8 (-0.0) and -NaN is 0x0 (+0.0). E2M3 and E3M2 are 0x1f in CUDA and 0x20 or
# 0x00 in ml_dtypes.
# For us: a NaN does not survive quantisation to 4 bits, and what it becomes is no convention but
# a choice: a wrong weight of 6 x scale on the device, nothing on the host. Follow PTX in the
# software device, count NaNs before quantising, and keep them out of comparisons with ml_dtypes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'nvidia-cuda-runtime==13.5.37' 'nvidia-cuda-crt==13.5.37' \
    'nvidia-cuda-cccl==13.3.5.0.6' 'ml_dtypes==0.6.0' 'numpy==2.4.6'
packages=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
cat > "$work/convert.cpp" <<'END'
#include "cuda_fp4.h"
#include "cuda_fp6.h"
extern "C" int e2m1(float x) { return __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest); }
extern "C" int e2m3(float x) { return __nv_cvt_float_to_fp6(x, __NV_E2M3, cudaRoundNearest); }
extern "C" int e3m2(float x) { return __nv_cvt_float_to_fp6(x, __NV_E3M2, cudaRoundNearest); }
END
c++ -std=c++17 -shared -fPIC -w -I "$packages/nvidia/cu13/include" -I "$packages/nvidia/cu13/include/cccl" \
    -o "$work/convert.so" "$work/convert.cpp"
"$work/venv/bin/python" -W ignore - "$work/convert.so" <<'END'
import ctypes, sys
import ml_dtypes, numpy as np

cuda = ctypes.CDLL(sys.argv[1])
inputs = {"+NaN": 0x7FC00000, "-NaN": 0xFFC00000, "+Inf": 0x7F800000, "-Inf": 0xFF800000,
          "-0.0": 0x80000000, "2.5": 0x40200000, "5.0": 0x40A00000, "-100": 0xC2C80000}
bits = np.array(list(inputs.values()), np.uint32)
x = bits.view(np.float32)


def by_cuda(name):
    function = getattr(cuda, name)
    function.argtypes = [ctypes.c_float]
    return [function(v) for v in x]


def by_ml_dtypes(element):
    return x.astype(element).view(np.uint8).tolist()


table = {
    ("E2M1", "cuda_fp4.h"): by_cuda("e2m1"),
    ("E2M1", "ml_dtypes"): by_ml_dtypes(ml_dtypes.float4_e2m1fn),
    ("E2M3", "cuda_fp6.h"): by_cuda("e2m3"),
    ("E2M3", "ml_dtypes"): by_ml_dtypes(ml_dtypes.float6_e2m3fn),
    ("E3M2", "cuda_fp6.h"): by_cuda("e3m2"),
    ("E3M2", "ml_dtypes"): by_ml_dtypes(ml_dtypes.float6_e3m2fn),
}
print(f"{'':17}", *(f"{name:>5}" for name in inputs))
for (element, tool), codes in table.items():
    print(f"{element} {tool:12}", *(f"{code:#5x}" for code in codes))
nan = {key: codes[:2] for key, codes in table.items()}
wanted = {("E2M1", "cuda_fp4.h"): [7, 7], ("E2M1", "ml_dtypes"): [8, 0],
          ("E2M3", "cuda_fp6.h"): [0x1F, 0x1F], ("E2M3", "ml_dtypes"): [0x20, 0],
          ("E3M2", "cuda_fp6.h"): [0x1F, 0x1F], ("E3M2", "ml_dtypes"): [0x20, 0]}
if nan != wanted:
    sys.exit(f"changed: {nan}")
for element in ("E2M1", "E2M3", "E3M2"):
    rest = [codes[2:] for (e, _), codes in table.items() if e == element]
    if any(codes != rest[0] for codes in rest):
        sys.exit(f"changed: {element} differs in more than NaN")
END
