#!/usr/bin/env bash
# Triton's interpreter cuts float32 to bfloat16 instead of rounding, and its FP8 casts halve
# numbers, turn Inf into 256 and NaN into 384.
#
# Versions: triton 3.9.0, numpy 2.4.6, ml_dtypes 0.6.0; sm_90 as target, no GPU.
# Expected: TRITON_INTERPRET=1 casts as the compiled kernel does, cvt.rn.bf16.f32 and
# cvt.rn.satfinite: to the nearest, ties to even, NaN to NaN.
# Seen: bfloat16 of 1.998 is 1.9921875, and of random numbers half differ; float32 of subnormal
# bfloat16 is wrong, of 0x0001 it is 0. float8e4nv of 1.95 is 1, of -7.9 it is -4, of 0.0155 it is
# 0.0078; of 1000 and Inf it is 256, of NaN 384, and float32 of the NaN 0x7f is 480. In float8e5
# 31327 becomes 16384, and float32 of Inf is 65536. Ties go up: 1.0625 becomes 1.125. float16 is
# right, and so are FP8 values that need no rounding.
# Why: the interpreter's own routine adds the rounding bit but has no carry into the exponent, no
# rule for ties, Inf and NaN; for bfloat16 it is called with no rounding at all.
# For us: never check a kernel with bfloat16 or FP8 by this interpreter; `fercuda check` runs the
# compiled PTX. Our own tables (crates/tensor's Dtype, softgpu's convert.rs) carry and are tested
# over all codes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'triton==3.9.0' 'numpy==2.4.6' 'ml_dtypes==0.6.0'
cat > "$work/interpret.py" <<'END'
import sys
import ml_dtypes, numpy as np, triton, triton.language as tl


@triton.jit
def cast(source, result, N: tl.constexpr, FROM: tl.constexpr, TO: tl.constexpr, STORED: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(source.to(tl.pointer_type(FROM), bitcast=True) + i)
    tl.store(result.to(tl.pointer_type(STORED), bitcast=True) + i, x.to(TO).to(STORED, bitcast=True))


TYPES = {"float32": (tl.float32, tl.int32, np.float32), "float16": (tl.float16, tl.int16, np.float16),
         "bfloat16": (tl.bfloat16, tl.int16, ml_dtypes.bfloat16),
         "float8e4nv": (tl.float8e4nv, tl.int8, ml_dtypes.float8_e4m3fn),
         "float8e5": (tl.float8e5, tl.int8, ml_dtypes.float8_e5m2)}


def interpreted(values, source, target):
    from_type, _, element = TYPES[source]
    to_type, stored, to_element = TYPES[target]
    x = np.zeros(4096, element)
    x[:len(values)] = values
    result = np.zeros(4096, to_element)
    cast[(1,)](x.ctypes.data, result.ctypes.data, 4096, from_type, to_type, stored)
    return result[:len(values)].astype(np.float64), x[:len(values)].astype(to_element).astype(np.float64)


def code(name, bits):
    element = TYPES[name][2]
    return np.array([bits], f"uint{np.dtype(element).itemsize * 8}").view(element)


inf, nan = float("inf"), float("nan")
rows = [  # values, from, to, interpreter
    ([1.998, 1.00390625, -1.9999], "float32", "bfloat16", [1.9921875, 1.0, -1.9921875]),
    ([1.95, -7.9, 0.0155, 1.0625, 448], "float32", "float8e4nv", [1.0, -4.0, 0.0078125, 1.125, 448.0]),
    ([1000, inf, nan], "float32", "float8e4nv", [256.0, 256.0, 384.0]),
    ([31327, -7.9, 57344], "float32", "float8e5", [16384.0, -4.0, 57344.0]),
    ([1.998, 65504, 1e-7], "float32", "float16", [1.998046875, 65504.0, float(np.float16(1e-7))]),
    (code("float8e4nv", 0x7F), "float8e4nv", "float32", [480.0]), (code("float8e5", 0x7C), "float8e5", "float32", [65536.0]),
    (code("float8e4nv", 0x7E), "float8e4nv", "float32", [448.0]), (code("bfloat16", 1), "bfloat16", "float32", [0.0]),
]
changed = []
for values, source, target, wanted in rows:
    seen, nearest = interpreted(values, source, target)
    print(f"{source} to {target}: {[float(v) for v in values]} interpreter {seen.tolist()} nearest {nearest.tolist()}")
    if seen.tolist() != wanted:
        changed.append((source, target))
random = np.random.default_rng(0).normal(size=4096).astype(np.float32)
share = float(np.mean(np.not_equal(*interpreted(random, "float32", "bfloat16"))))
print(f"random numbers in bfloat16: {share:.0%} are not the nearest")
if changed or not 0.4 < share < 0.6:
    sys.exit(f"changed: {changed} {share}")
END
cat > "$work/compiled.py" <<'END'
import re, sys
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def cast(source, result, N: tl.constexpr, TO: tl.constexpr, STORED: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(result + i, tl.load(source + i).to(TO).to(STORED, bitcast=True))


changed = []
for to, stored, pointer, instruction in (
        (tl.bfloat16, tl.int16, "*i16", "cvt.rn.bf16.f32"),
        (tl.float8e4nv, tl.int8, "*i8", "cvt.rn.satfinite.e4m3x2.f32"),
        (tl.float8e5, tl.int8, "*i8", "cvt.rn.satfinite.e5m2x2.f32")):
    names = {"N": "constexpr", "TO": "constexpr", "STORED": "constexpr"}
    kernel = ASTSource(cast, {"source": "*fp32", "result": pointer, **names},
                       constexprs={"N": 128, "TO": to, "STORED": stored})
    ptx = triton.compile(kernel, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    seen = re.findall(r"cvt\.rn\S*", ptx)
    print(f"compiled cast to {to}: {seen}")
    if seen != [instruction]:
        changed.append(str(to))
if changed:
    sys.exit(f"changed: {changed}")
END
export TRITON_CACHE_DIR="$work/cache"
TRITON_INTERPRET=1 "$work/venv/bin/python" -W ignore "$work/interpret.py"
"$work/venv/bin/python" -W ignore "$work/compiled.py"
