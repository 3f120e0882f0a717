#!/usr/bin/env bash
# gguf-py's MXFP4 rounds 0.75, 1.75 and 3.5 down, where E2M1's nearest value is the even one above,
# and gives a block of numbers up to 2^-126 the scale 0xff, which is NaN in MX formats.
#
# Versions: gguf 0.19.0, numpy 2.4.6, ml_dtypes 0.6.0.
# Expected: codes are E2M1's nearest, ties to even, as the instructions of a GPU and ml_dtypes
# round; the scale's exponent is held within 0 to 254.
# Seen: in a block of scale 1 the ties 0.75, 1.75 and 3.5 become 0.5, 1.5 and 3 (1, 2 and 4 in
# ml_dtypes), so do the negative ones; 0.25, 1.25, 2.5 and 5 are alike. -0.25 becomes +0. A block
# with the largest number 2^-126 has the scale byte 0xff, 2^-127 0xfe, 1e-40 0xf8, and codes of 0
# all: gguf-py decodes it to zeros, by E8M0 it is NaN, or zeros times 2^121. 2^-125 is right. No
# error.
# Why: the nearest of a table, the first of two; and an exponent of -1 is stored in 8 bits.
# For us: `model quantize` writes the same (crates/tensor, block/fp4.rs), since it has to be
# llama.cpp's; but a scale of 0xff is 2^127 to that file's reader and NaN to the one of safetensors
# (crates/modelfile, kinds.rs), so a checkpoint's NaN must not be copied into such blocks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'gguf==0.19.0' 'numpy==2.4.6' 'ml_dtypes==0.6.0' 'tqdm==4.70.1' 'PyYAML==6.0.4' 'requests==2.34.2'
"$work/venv/bin/python" -W ignore - <<'END'
import sys
import ml_dtypes, numpy as np
from gguf import GGMLQuantizationType, quants

kind = GGMLQuantizationType.MXFP4
changed = []


def row(what, seen, wanted):
    print(f"{what:50} {seen}")
    if seen != wanted:
        changed.append(what)


def encoded(values, largest):
    block = np.zeros((1, 32), np.float32)
    block[0, :len(values)], block[0, 31] = values, largest
    made = quants.quantize(block, kind)
    return int(made[0, 0]), quants.dequantize(made, kind)[0, :len(values)].tolist()


ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
for sign in (1, -1):
    values = [sign * it for it in ties]
    scale, seen = encoded(values, 6.0)
    row(f"scale and ties {values[0]} to {values[-1]}", (scale, seen), (127, [sign * it + 0.0 for it in (0, 0.5, 1, 1.5, 2, 3, 4)]))
    even = np.array(values, np.float32).astype(ml_dtypes.float4_e2m1fn).astype(np.float32).tolist()
    row("    in ml_dtypes", even, [sign * it for it in (0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0)])
scale, [seen] = encoded([-0.25], 6.0)
row("-0.25 has a sign", bool(np.signbit(np.float32(seen))), False)
for largest, wanted in [(2.0**-125, 0x00), (2.0**-126, 0xFF), (2.0**-127, 0xFE), (1e-40, 0xF8)]:
    scale, seen = encoded([largest], largest)
    power = float(np.uint8(scale).view(ml_dtypes.float8_e8m0fnu))
    row(f"scale of {largest:.3g}, the number that comes back", (hex(scale), seen), (hex(wanted), [largest if wanted == 0 else 0.0]))
    row("    that scale is NaN as E8M0", bool(np.isnan(power)), wanted == 0xFF)
if changed:
    sys.exit(f"changed: {changed}")
END
