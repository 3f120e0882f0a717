#!/usr/bin/env bash
# Of two arrays of FP8, FP4 or int4, a @ b and np.dot(a, b) are different numbers: 1000 and NaN for
# a thousand ones of E4M3, 1000 and 6 for FP4, -24 and -8 for int4.
#
# Versions: ml_dtypes 0.6.0, numpy 2.4.6.
# Expected: two names of one product, as they are for NumPy's own types; int4 gives int32, or at
# least what int8 gives.
# Seen: @, matmul and vecdot have the result type float32 (int8 for int4, uint4 and int2), dot,
# inner, vdot, tensordot, multi_dot, convolve and correlate that of the elements. A thousand ones by
# dot are NaN in E4M3, 1024 in E5M2, 7.5 in E2M3, 6 in E2M1, 1000 in bfloat16; the int8 of @ wraps
# beyond 127. einsum raises. In int4, x * x, x + x and x - x wrap within 4 bits, -x and abs(x) are
# int8, so that -x of -8 is 8 where 0 - x is -8; -x of uint4 1 is -1. trace of 300 ones is 256 in
# bfloat16.
# Why: matmul is looked up among the ufuncs, which ml_dtypes lacks for its types, so NumPy goes to
# the type that they can be cast to; dot is a function of the type, with a float32 sum at the end
# rounded to it.
# For us: references for quantised products are made of x.astype(float32) or int32 before any
# product. Our matmul (crates/ops) has its own result type, and its tests widen first.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'ml_dtypes==0.6.0' 'numpy==2.4.6'
"$work/venv/bin/python" - <<'END'
import math, sys
import ml_dtypes, numpy as np

changed = []


def row(what, seen, wanted):
    print(f"{what:46} {seen}")
    if str(seen) != str(wanted):
        changed.append(what)


def shown(value):
    value = np.asarray(value)
    number = float(value.ravel()[0])
    return ("NaN" if math.isnan(number) else number, str(value.dtype))


products = {"matmul": np.matmul, "vecdot": np.vecdot, "dot": np.dot, "inner": np.inner, "vdot": np.vdot,
            "tensordot": lambda x, y: np.tensordot(x, y, 1), "correlate": np.correlate}
for name, wide, by_dot in [("bfloat16", (1000.0, "float32"), 1000.0), ("float8_e4m3fn", (1000.0, "float32"), "NaN"),
                           ("float8_e5m2", (1000.0, "float32"), 1024.0), ("float6_e2m3fn", (1000.0, "float32"), 7.5),
                           ("float4_e2m1fn", (1000.0, "float32"), 6.0), ("int4", (-24.0, "int8"), -8.0),
                           ("uint4", (-24.0, "int8"), 8.0), ("int2", (-24.0, "int8"), 0.0)]:
    ones = np.ones(1000, getattr(ml_dtypes, name))
    for product, function in products.items():
        wanted = wide if product in ("matmul", "vecdot") else (by_dot, name)
        row(f"{product} of 1000 ones of {name}", shown(function(ones, ones)), wanted)
    try:
        np.einsum("i,i->", ones, ones)
        changed.append("einsum")
    except TypeError:
        pass
x, u = np.array([7, -8], ml_dtypes.int4), np.array([1, 2], ml_dtypes.uint4)
zero = np.zeros(2, ml_dtypes.int4)
for what, value, wanted in [("x = [7, -8] of int4: x * x", x * x, ([1, 0], "int4")), ("x + x", x + x, ([-2, 0], "int4")),
                            ("-x", -x, ([-7, 8], "int8")), ("zeros - x", zero - x, ([-7, -8], "int4")),
                            ("x + 1", x + 1, ([8, -7], "int8")), ("abs(x)", abs(x), ([7, 8], "int8")),
                            ("np.dot(x, x)", np.dot(x, x), (1, "int4")), ("x @ x", x @ x, (113, "int8")),
                            ("-u of uint4 [1, 2]", -u, ([-1, -2], "int8"))]:
    row(what, (np.asarray(value).tolist(), str(np.asarray(value).dtype)), wanted)
row("trace of 300 ones of bfloat16", shown(np.trace(np.eye(300, dtype=ml_dtypes.bfloat16))), (256.0, "bfloat16"))
if changed:
    sys.exit(f"changed: {changed}")
END
