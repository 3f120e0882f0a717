#!/usr/bin/env bash
# MLX's mxfp4 and mxfp8 turn a group of very small numbers into Inf or 1e37, one NaN in mxfp4 or
# nvfp4 makes its group 0, and to_fp8 of NaN is 448.
#
# Versions: mlx 0.32.4 with mlx-cpu 0.32.4, numpy 2.4.6; the CPU backend.
# Expected: a shared scale below the least power of two is clamped to it, so that small numbers
# become 0 or stay small; NaN becomes the scale's NaN, 0xff, and in FP8 the NaN code 0x7f.
# Seen: mx.quantize(..., mode="mxfp8") and back gives Inf for 2^-120 to 2^-128, which are normal
# numbers of float32, and 1e37 for 1e-40; mode="mxfp4" from 2^-126 on. 3e38 is Inf in mxfp4. In
# mxfp4 a NaN or an Inf makes all 32 numbers of its group 0, in nvfp4 all 16; in mxfp8 its group has
# neither NaN nor one right number. to_fp8 gives 448 for NaN, as for Inf.
# Why: the scale's exponent is stored in 8 bits without a look at its range, so -1 becomes 255 or
# 254; and a comparison with NaN picks the other number.
# For us: a group of zeros with one number near 0 spoils a matrix product in MLX, and a check for
# NaN after quantising finds none. In our MXFP4 (crates/tensor), as in llama.cpp, the exponent may
# wrap too, but codes are chosen by the stored scale: such a group is zeros.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'mlx==0.32.4' 'mlx-cpu==0.32.4' 'numpy==2.4.6'
"$work/venv/bin/python" -W ignore - <<'END'
import sys
import mlx.core as mx, numpy as np

inf, nan = float("inf"), float("nan")


def back(mode, *values):
    """What 64 numbers, of which all but these are 0, are after quantising."""
    x = np.zeros((1, 64), np.float32)
    x[0, :len(values)] = values
    return np.array(mx.dequantize(*mx.quantize(mx.array(x), mode=mode), mode=mode).astype(mx.float32))[0]


changed = []
rows = [("mxfp8", 2.0**-119, 2.0**-119), ("mxfp8", 2.0**-120, inf), ("mxfp8", 2.0**-128, inf),
        ("mxfp4", 2.0**-125, 2.0**-125), ("mxfp4", 2.0**-126, inf), ("mxfp4", 3e38, inf),
        ("mxfp8", 3e38, None), ("nvfp4", 2.0**-120, 0.0)]
for mode, value, wanted in rows:
    seen = float(back(mode, value)[0])
    print(f"{mode} of {value:.3g}: {seen:.3g}")
    if not (seen == wanted or wanted is None and 2.9e38 < seen < inf):
        changed.append((mode, value))
for mode in ("mxfp4", "mxfp8"):
    seen = float(back(mode, 1e-40)[0])
    print(f"{mode} of 1e-40: {seen:.3g}")
    if not 1e36 < seen < 1e38:
        changed.append((mode, 1e-40))
for mode in ("mxfp4", "nvfp4"):
    for bad in (nan, inf):
        seen = back(mode, bad, 1, 2)
        print(f"{mode} of {bad}, 1, 2: {seen[:3].tolist()}")
        if seen.any() or not back(mode, 0.5, 1, 2)[:3].all():
            changed.append((mode, bad))
seen = back("mxfp8", nan, 1, 2)
print(f"mxfp8 of nan, 1, 2: {seen[:3].tolist()}")
if np.isnan(seen).any() or (seen[:3] == (0, 1, 2))[1:].any():
    changed.append("mxfp8 of NaN")
codes = mx.to_fp8(mx.array([nan, inf, 448.0, 1e9])).tolist()
print("codes of to_fp8 of NaN, Inf, 448 and 1e9:", [hex(code) for code in codes])
if codes != [0x7E] * 4:
    changed.append("to_fp8")
if changed:
    sys.exit(f"changed: {changed}")
END
