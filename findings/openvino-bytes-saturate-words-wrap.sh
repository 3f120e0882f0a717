#!/usr/bin/env bash
# In OpenVINO 200 + 100 of uint8 is 255 and 1 - 2 is 0, while uint16, cumsum and conversions wrap.
#
# Versions: openvino 2026.4.1, numpy 2.4.6; the CPU device.
# Expected: one rule for integers that overflow; ONNX, NumPy and the C++ types wrap.
# Seen: add, subtract and multiply of uint8 and int8 saturate: 255, 0, 127. uint16 65535 + 1 is 0,
# and int32 wraps. cum_sum of int8 (100, 100, 100) is (100, -56, 44). convert of int32 300 and -1 to
# uint8 is 44 and 255, and so is that of float32 300; float32 of 3e9, NaN or Inf to uint8 is 0.
# Why: elements of 8 bits are computed in float32 or int32, and saturated when they are stored; the
# others are not.
# For us: an image or a quantised tensor that is shifted by a constant differs between OpenVINO and
# every other runtime, ours included (ours wraps); widen before adding.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'openvino==2026.4.1' 'numpy==2.4.6'
"$work/venv/bin/python" -W ignore - <<'END'
import sys
import numpy as np, openvino
from openvino import opset13 as op

core = openvino.Core()


def run(build, *arrays):
    parameters = [op.parameter(list(a.shape), a.dtype) for a in arrays]
    options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    model = core.compile_model(openvino.Model([build(*parameters)], parameters), "CPU", options)
    result = model(list(arrays))[0]
    return str(result.dtype), result.tolist()


number = lambda kind, *values: np.array(values, kind)
rows = [
    ("uint8 200 + 100", run(op.add, number(np.uint8, 200), number(np.uint8, 100)), [255]),
    ("uint8 1 - 2", run(op.subtract, number(np.uint8, 1), number(np.uint8, 2)), [0]),
    ("int8 100 + 100", run(op.add, number(np.int8, 100), number(np.int8, 100)), [127]),
    ("int8 100 * 100", run(op.multiply, number(np.int8, 100), number(np.int8, 100)), [127]),
    ("uint16 65535 + 1", run(op.add, number(np.uint16, 65535), number(np.uint16, 1)), [0]),
    ("int32 2^31 - 1 + 1", run(op.add, number(np.int32, 2**31 - 1), number(np.int32, 1)), [-(2**31)]),
    ("cumsum of int8 100, 100, 100", run(lambda a: op.cum_sum(a, 0), number(np.int8, 100, 100, 100)), [100, -56, 44]),
    ("int32 300, -1 to uint8", run(lambda a: op.convert(a, "u8"), number(np.int32, 300, -1)), [44, 255]),
    ("float32 300, -1.5 to uint8", run(lambda a: op.convert(a, "u8"), number(np.float32, 300, -1.5)), [44, 255]),
]
changed = []
for name, seen, wanted in rows:
    print(f"{name:34} {seen}")
    if str(seen[1]) != str(wanted):
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
