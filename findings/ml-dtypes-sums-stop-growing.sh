#!/usr/bin/env bash
# The sum of a thousand bfloat16 ones is 256 in NumPy with ml_dtypes and their mean is 0.256; in
# float16 both are right, and so is the product of the same arrays.
#
# Versions: ml_dtypes 0.6.0, numpy 2.4.6.
# Expected: as for float16, where numpy adds in pairs and takes the mean in float32; bfloat16 rounds
# the result, and the mean of ones is 1. For int4, as for int8, which numpy sums as int64.
# Seen: sum() adds one by one and rounds to the type after each: 256 for bfloat16, 16 for E4M3FN, 8
# for E5M2, however long the array is. mean() divides that by the count: 0.2559, 0.0156, 0.0078, and
# the mean of 4096 random numbers from 0 to 1 is 0.0625. std() and cumsum() follow. x @ x
# accumulates in float32 and gives 1000. int4 wraps within itself: 20 ones sum to 4, and the mean of
# a thousand sevens is 0. With dtype=np.float32 all of these are right.
# Why: the types bring an addition to numpy, and no rule to accumulate in a wider one.
# For us: a reference for reductions in bfloat16 or FP8 is x.astype(float32) first, or sum(dtype=);
# checked against x.sum() a right kernel looks wrong by a factor of 4, and means used to scale or to
# calibrate come out too small without an error. A short array shows nothing.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'ml_dtypes==0.6.0' 'numpy==2.4.6'
"$work/venv/bin/python" - <<'END'
import sys
import ml_dtypes, numpy as np

changed = []


def row(name, wanted, **seen):
    seen = {what: float(value) for what, value in seen.items()}
    print(f"{name:26}", "  ".join(f"{what} {value:.6g}" for what, value in seen.items()))
    if list(seen.values()) != list(wanted):
        changed.append(name)


for element, wanted in (
        (np.float16, (1000, 1, 1000, 1000)),
        (ml_dtypes.bfloat16, (256, 0.255859375, 1000, 1000)),
        (ml_dtypes.float8_e4m3fn, (16, 0.015625, 1000, 1000)),
        (ml_dtypes.float8_e5m2, (8, 0.0078125, 1000, 1000))):
    ones = np.ones(1000, element)
    row(f"1000 ones, {np.dtype(element).name}", wanted, sum=ones.sum(), mean=ones.mean(),
        product=ones @ ones, float32_sum=ones.sum(dtype=np.float32))
row("60000 ones", (60000, 256), float16=np.ones(60000, np.float16).sum(),
    bfloat16=np.ones(60000, ml_dtypes.bfloat16).sum())
x = np.random.default_rng(0).random(4096).astype(np.float32)
near = x.astype(ml_dtypes.bfloat16)
row("4096 random, bfloat16", (0.0625, True), mean=near.mean(),
    float32_mean_is_near_half=abs(near.mean(dtype=np.float32) - 0.5) < 0.02)
few = np.ones(20, ml_dtypes.int4)
row("20 ones", (20, 4), int8=few.astype(np.int8).sum(), int4=few.sum())
sevens = np.full(1000, 7, ml_dtypes.int4)
row("1000 sevens, int4", (0, 7), mean=sevens.mean(), float32_mean=sevens.mean(dtype=np.float32))
if changed:
    sys.exit(f"changed: {changed}")
END
