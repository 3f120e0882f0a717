#!/usr/bin/env bash
# MLX's affine quantisation has negative scales for half of all groups, errors of up to a whole step
# where half a step is possible, and gives NaN the group's largest number.
#
# Versions: mlx 0.32.4 with mlx-cpu 0.32.4, numpy 2.4.6; the CPU backend.
# Expected: as the documentation's formula has it: the bias is the group's minimum, the scale its
# range divided by 15, so scales are positive and errors at most half a scale.
# Seen: of normally distributed weights in 4 bits 49 % of the scales are negative: then the bias is
# the maximum, and codes count downwards. The element that is furthest from 0 is exact, and so is 0;
# what lies at the other end is cut off: 1 and -0.45 come back as 1 and -0.4, 1 and -0.97 as 1 and
# -0.875. The largest error of 65536 weights is 1.00 steps, in 8 bits 0.96. A group of equal
# numbers has the scale -1e-7. A NaN becomes the group's extreme number, without an error; an Inf
# makes its group NaN.
# Why: the step is made to divide the extreme number, so that 0 has a code, and is not made larger
# for the other end.
# For us: a reader of MLX files must take scales with their signs; an importer that stores them
# unsigned, or takes biases for minima, is wrong for half of the groups. A
# test that compares with MLX's weights cannot ask for half a step.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'mlx==0.32.4' 'mlx-cpu==0.32.4' 'numpy==2.4.6'
"$work/venv/bin/python" -W ignore - <<'END'
import sys
import mlx.core as mx, numpy as np


def quantised(x, bits):
    """Numbers after quantising, scales and biases, as groups of 64."""
    codes, scales, biases = mx.quantize(mx.array(x), group_size=64, bits=bits)
    y = mx.dequantize(codes, scales, biases, group_size=64, bits=bits)
    return np.array(y).reshape(-1, 64), np.array(scales).ravel(), np.array(biases).ravel()


changed = []
x = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
groups = x.reshape(-1, 64)
extreme = np.take_along_axis(groups, np.abs(groups).argmax(1)[:, None], 1)[:, 0]
for bits, least in ((4, 0.95), (8, 0.8)):
    y, scales, biases = quantised(x, bits)
    negative, steps = float((scales < 0).mean()), float((np.abs(y - groups) / np.abs(scales)[:, None]).max())
    exact = float((biases == extreme).mean())
    print(f"{bits} bits: {negative:.0%} negative scales, largest error {steps:.2f} steps, "
          f"bias is the extreme number in {exact:.0%}")
    is_maximum = (biases == groups.max(1))[scales < 0]
    if not 0.4 < negative < 0.6 or not least < steps < 1.0 or not is_maximum.all() or exact != 1:
        changed.append(bits)
for pair, wanted in (([1, -0.45], [1, -0.4]), ([1, -0.97], [1, -0.875]), ([-1, 0.45], [-1, 0.4])):
    group = np.zeros((1, 64), np.float32)
    group[0, :2] = pair
    y, scales, _ = quantised(group, 4)
    print(f"{pair} and zeros: {y[0, :3].tolist()}, scale {scales[0]:.4f}")
    if not np.allclose(y[0, :2], wanted, atol=1e-6) or y[0, 2] != 0:
        changed.append(pair)
_, scales, _ = quantised(np.ones((1, 64), np.float32), 4)
print("scale of ones", scales.tolist())
if not np.allclose(scales, -1e-7):
    changed.append("ones")
for bad, wanted in ((np.nan, [2, 1.0666666, 2]), (np.inf, [np.nan] * 3)):
    group = np.zeros((1, 64), np.float32)
    group[0, :3] = bad, 1, 2
    seen = quantised(group, 4)[0][0, :3]
    print(f"{bad}, 1, 2 and zeros: {seen.tolist()}")
    if not np.allclose(seen, wanted, equal_nan=True):
        changed.append(str(bad))
if changed:
    sys.exit(f"changed: {changed}")
END
