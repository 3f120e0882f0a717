#!/usr/bin/env bash
# OpenVINO's top 2 of 3, NaN, 1 and 5 are 3 and NaN; its maximum depends on where a NaN stands, and
# a conversion to float16 and back does nothing.
#
# Versions: openvino 2026.4.1, numpy 2.4.6; the CPU device.
# Expected: NaN ranks first or last in TopK, and the other numbers among themselves; Convert to
# float16 rounds, as ONNX's Cast does.
# Seen: topk of (3, NaN, 1, 5) is 3 and NaN, of (3, 1, 5) it is 5 and 3. reduce_max of (1, NaN, 2)
# and of (NaN, 1, 2) is 2, of (1, 2, NaN) NaN; maximum(1, NaN) is NaN where maximum(NaN, 1) is 1.
# relu(NaN) is 0. convert to f16 and then to f32 leaves 3e9 and 2049 as they were, also to bf16; to
# f8e4m3 rounds, and gives NaN for 3e9 and 465.
# Why: NaN fails each comparison of the sorting network; and the pair of conversions is removed as
# one that changes nothing.
# For us: a model that emulates float16 by casts is not emulated there, and a NaN in logits makes
# sampling prefer what stood first. Our top_k (crates/kernels) has NaN first and the rest in order.
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


nan, inf = float("nan"), float("inf")
number = lambda *values: np.array(values, np.float32)
largest = lambda a: op.reduce_max(a, np.array([0]))
top = lambda a: op.topk(a, 2, 0, "max", "value").output(0)
through = lambda kind: lambda a: op.convert(op.convert(a, kind), "f32")
rows = [
    ("top 2 of 3, 1, 5", run(top, number(3, 1, 5)), [5.0, 3.0]),
    ("top 2 of 3, NaN, 1, 5", run(top, number(3, nan, 1, 5)), [3.0, nan]),
    ("max of 1, NaN, 2", run(largest, number(1, nan, 2)), 2.0),
    ("max of NaN, 1, 2", run(largest, number(nan, 1, 2)), 2.0),
    ("max of 1, 2, NaN", run(largest, number(1, 2, nan)), nan),
    ("maximum of 1, NaN and NaN, 1", run(op.maximum, number(1, nan), number(nan, 1)), [nan, 1.0]),
    ("relu of NaN", run(op.relu, number(nan)), [0.0]),
    ("3e9 and 2049 by float16", run(through("f16"), number(3e9, 2049)), [3e9, 2049.0]),
    ("3e9 and 257 by bfloat16", run(through("bf16"), number(3e9, 257)), [3e9, 257.0]),
    ("3e9, 465 and 1.0625 by f8e4m3", run(through("f8e4m3"), number(3e9, 465, 1.0625)), [nan, nan, 1.0]),
    ("2049 to float16", run(lambda a: op.convert(a, "f16"), number(2049)), [2048.0]),
]
changed = []
for name, seen, wanted in rows:
    print(f"{name:34} {seen}")
    if str(seen[1]) != str(wanted):
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
