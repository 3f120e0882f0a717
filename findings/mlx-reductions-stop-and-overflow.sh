#!/usr/bin/env bash
# On a CPU MLX's mean of 2^25 ones is 0.5 and its mean of 4096 times 100 in float16 is Inf; a sum of
# int8 widens, a cumulative sum wraps.
#
# Versions: mlx 0.32.4 with mlx-cpu 0.32.4, numpy 2.4.6.
# Expected: as NumPy: sums in float32 are added in pairs, a mean in float16 is computed in float32,
# sum and cumsum of a type agree.
# Seen: sum of 2^25 float32 ones is 16777216, from where adding 1 changes nothing, along either
# axis, and mean is 0.5; NumPy has 33554432 and 1. mean of float16 rounds the sum to float16 before
# it divides: 4096 times 100 has the mean Inf, a bfloat16 mean is right. sum of int8 is int32,
# cumsum is int8: three times 100 are 300 and 44. sum of int32 stays int32 and wraps. cumsum of 4096
# bfloat16 ones ends at 256, sum is 4096. int64 divided by int64 is float32.
# For us: reference numbers from MLX (perplexity, norms, losses) need casts to float32 and sums of
# parts. Ours (crates/ops) come with a bound that is tested against sums in f64.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'mlx==0.32.4' 'mlx-cpu==0.32.4' 'numpy==2.4.6'
"$work/venv/bin/python" -W ignore - <<'END'
import sys
import mlx.core as mx, numpy as np

inf = float("inf")
count = 2**25
ones = mx.ones((count,))
columns = mx.ones((count, 2))
bfloat = mx.ones((4096,), dtype=mx.bfloat16)
half = mx.full((4096,), 100, dtype=mx.float16)
hundreds = mx.array([100, 100, 100], dtype=mx.int8)
rows = [
    ("sum of 2^25 ones", mx.sum(ones), 2.0**24, np.ones(count, np.float32).sum()),
    ("mean of 2^25 ones", mx.mean(ones), 0.5, np.ones(count, np.float32).mean()),
    ("mean of columns of 2^25 ones", mx.mean(columns, axis=0), [0.5, 0.5], None),
    ("mean of 4096 times 100, float16", mx.mean(half), inf, np.full(4096, 100, np.float16).mean()),
    ("mean of 4096 ones, bfloat16", mx.mean(bfloat), 1.0, None),
    ("sum of 4096 ones, bfloat16", mx.sum(bfloat), 4096.0, None),
    ("end of their cumsum", mx.cumsum(bfloat)[-1], 256.0, None),
    ("sum of 3 times 100, int8", mx.sum(hundreds), 300, np.array(hundreds).sum()),
    ("end of their cumsum", mx.cumsum(hundreds)[-1], 44, np.array(hundreds).cumsum()[-1]),
    ("sum of 2^31 - 1 and 1, int32", mx.sum(mx.array([2**31 - 1, 1])), -(2**31), np.array([2**31 - 1, 1], np.int32).sum()),
    ("(2^53 + 1) / 1, int64", mx.array([2**53 + 1]) / mx.array([1], dtype=mx.int64), [2.0**53], None),
    ("(2^24 + 1) / 1, int64", mx.array([2**24 + 1], dtype=mx.int64) / mx.array([1], dtype=mx.int64), [2.0**24], None),
]
changed = []
for name, seen, wanted, by_numpy in rows:
    print(f"{name:32} MLX {seen.tolist()} ({seen.dtype}){'' if by_numpy is None else f', NumPy {by_numpy}'}")
    if seen.tolist() != wanted:
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
