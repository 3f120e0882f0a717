#!/usr/bin/env bash
# ml_dtypes converts float64 and int32 to bfloat16, FP8, FP6 and FP4 by way of float32, so that
# values just beside a midpoint are rounded twice; JAX does so for bfloat16 and float16, not for
# FP8.
#
# Versions: ml_dtypes 0.6.0, numpy 2.4.6, jax 0.10.2 (CPU).
# Expected: the nearest value, as for numpy's float16; FP8 of a value above the midpoint of two
# neighbours is the upper one.
# Seen: 1.0625 + 2^-40 (midpoint of 1 and 1.125, and a little) is 1 in float8_e4m3fn; JAX gives
# 1.125. All midpoints of the finite values, moved by one part in 2^40 away from their even
# neighbour, go to the wrong side in ml_dtypes, in each of five formats; moved by one part in 2^22
# none does, as float32 has those. JAX with x64 has none wrong in FP8. bfloat16 of 1 + 2^-8 +
# 2^-40 is 1 in both, and the int32 2^25 + 2^17 + 1 is 2^25 in both, not 2^25 + 2^18. float16 of 1
# + 2^-11 + 2^-40 is right in NumPy and 1 in JAX.
# Why: ml_dtypes converts from float32 alone; XLA has FP8 from double, and narrows to 16 bits in
# steps.
# For us: references that quantise float64 results with ml_dtypes are off by one code at
# midpoints: convert to float32 first on both sides, or round by own integers. PTX's
# cvt.rn.bf16.f64 and from s32 round once; softgpu does (exec/scalar/convert.rs), so tests of
# these must not use ml_dtypes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'jax==0.10.2' 'jaxlib==0.10.2' 'ml_dtypes==0.6.0' 'numpy==2.4.6' 'opt_einsum==3.4.0' 'scipy==1.17.1'
JAX_PLATFORMS=cpu JAX_ENABLE_X64=1 "$work/venv/bin/python" - <<'END'
import sys
import jax.numpy as jnp, ml_dtypes, numpy as np


def midpoints(element):
    """Midpoints of the finite values of a type, with the neighbour that a tie goes to."""
    bits = np.arange(2 ** ml_dtypes.finfo(element).bits, dtype=np.uint8)
    values = bits.view(element).astype(np.float64)
    finite = np.unique(values[np.isfinite(values)])
    middle = (finite[:-1] + finite[1:]) / 2
    tie = middle.astype(np.float32).astype(element).astype(np.float64)
    return middle, tie, finite[:-1], finite[1:]


def wrong(element, source, shift, convert):
    middle, tie, low, high = midpoints(element)
    moved = np.where(tie == low, middle + abs(middle) * shift, middle - abs(middle) * shift).astype(source)
    nearest = np.where(tie == low, high, low)
    keep = moved != middle
    return int(np.sum(convert(moved[keep], element) != nearest[keep])), int(np.sum(keep))


by_numpy = lambda x, element: x.astype(element).astype(np.float64)
by_jax = lambda x, element: np.asarray(jnp.asarray(x).astype(element)).astype(np.float64)
changed = []
for name in ("float8_e4m3fn", "float8_e5m2", "float8_e3m4", "float6_e2m3fn", "float4_e2m1fn"):
    element = getattr(ml_dtypes, name)
    double, all_doubles = wrong(element, np.float64, 2.0**-40, by_numpy)
    single, _ = wrong(element, np.float32, 2.0**-22, by_numpy)
    in_jax = wrong(element, np.float64, 2.0**-40, by_jax)[0] if name.startswith("float8") else "not tried"
    print(f"{name:14} wrong of {all_doubles} doubles: ml_dtypes {double}, JAX {in_jax}; of floats: ml_dtypes {single}")
    if double != all_doubles or single or in_jax not in (0, "not tried"):
        changed.append(name)
integer, double = 2**25 + 2**17 + 1, 1 + 2.0**-8 + 2.0**-40
rows = [
    ("float8_e4m3fn of 1.0625 + 2^-40", np.float64(1.0625 + 2.0**-40), ml_dtypes.float8_e4m3fn, (1.0, 1.125)),
    ("bfloat16 of 1 + 2^-8 + 2^-40", np.float64(double), ml_dtypes.bfloat16, (1.0, 1.0)),
    ("bfloat16 of the int32", np.int32(integer), ml_dtypes.bfloat16, (2.0**25, 2.0**25)),
    ("float16 of 1 + 2^-11 + 2^-40", np.float64(1 + 2.0**-11 + 2.0**-40), np.float16, (1 + 2.0**-10, 1.0)),
]
for name, value, element, wanted in rows:
    array = np.array([value])
    seen = (float(by_numpy(array, element)[0]), float(by_jax(array, element)[0]))
    print(f"{name:32} NumPy {seen[0]!r:20} JAX {seen[1]!r}")
    if seen != wanted:
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
