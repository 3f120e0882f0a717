#!/usr/bin/env bash
# Q8_0 stores blocks of weights below 3.7e-6 as zeros, which Q4_0 and Q5_0 keep to a few per cent;
# and a block of ones is exact in four bits, not in eight.
#
# Versions: gguf 0.19.0, numpy 2.4.6.
# Expected: more bits are never worse: for any block Q8_0 is nearer than Q5_0 and Q4_0.
# Seen: of blocks of 32 equal numbers, 1e-6 is 0 in Q8_0 and 9.5e-7 in Q4_0 and Q5_0, 3e-6 is 0
# and 2.9e-6; the largest power of two that is lost is 2^-19 in Q8_0, 2^-21 in Q5_0 and 2^-22 in
# Q4_0. Ones are 0.99994 in Q8_0, 1 in the others. At 1e6 Q4_0 is infinite, Q5_0 and Q8_0 are not.
# Why: the scale is a float16 in all: a block's largest number divided by 127, by 8 or by 16.
# Below 2^-25 it rounds to 0; and 1/127 is no float16, where 1/8 is.
# For us: `model quantize` writes the same blocks, since it has to. Adapters (the B of a LoRA that
# was little trained) and norms have such numbers: keep them in F16 or F32, and scale before, not
# after. Tests that compare formats by their error must use numbers near 1 that are no powers of
# two.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'gguf==0.19.0' 'numpy==2.4.6' 'PyYAML==6.0.3' 'tqdm==4.70.1' 'requests==2.34.2'
"$work/venv/bin/python" -W ignore - <<'END'
import sys
import numpy as np
from gguf import GGMLQuantizationType as Type, quants

FORMATS = ("Q8_0", "Q5_0", "Q4_0")


def stored(value, name):
    block = np.full((1, 32), value, np.float32)
    return float(quants.dequantize(quants.quantize(block, Type[name]), Type[name])[0, 0])


inf = float("inf")
rows = [  # value, stored as Q8_0, Q5_0, Q4_0 with four digits
    (1e-6, ("0", "9.537e-07", "9.537e-07")), (3e-6, ("0", "2.861e-06", "2.861e-06")),
    (5e-6, ("7.57e-06", "4.768e-06", "4.768e-06")), (1.0, ("0.9999", "1", "1")),
    (1e6, ("1e+06", "9.999e+05", "inf")),
]
changed = []
for value, wanted in rows:
    seen = tuple(f"{stored(value, name):.4g}" for name in FORMATS)
    print(f"{value:7g} " + "  ".join(f"{name} {text:10}" for name, text in zip(FORMATS, seen)))
    if seen != wanted:
        changed.append(value)
lost = tuple(max(e for e in range(-40, 0) if stored(2.0**e, name) == 0) for name in FORMATS)
print("largest power of two that is stored as zero: " + ", ".join(f"{n} 2^{e}" for n, e in zip(FORMATS, lost)))
if changed or lost != (-19, -21, -22):
    sys.exit(f"changed: {changed} {lost}")
END
