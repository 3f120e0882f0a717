#!/usr/bin/env bash
# OpenVINO's CPU device keeps int64 tensors in 32 bits: reshaping 2^40 gives 0, and 2^40 equals
# 2^42; reductions of int32 go through float32.
#
# Versions: openvino 2026.4.1, numpy 2.4.6.
# Expected: a result of type int64 has 64 bits, and so has float64; at least moving data keeps them.
# Seen: results are declared int64 and are the low 32 bits, sign-extended: reshape of (2^40, 2^31)
# is (0, -2147483648), 2^40 + 1 is 1, the sum of three 2^30 is -2147483648, equal(2^40, 2^42) is
# true. float64 is float32: 1e300 becomes 3.4e38, and 1 + 1e-10 is 1. In int32 an addition is exact,
# but reduce_max of (2^24 + 1, 2^24) is 2^24, reduce_sum of (2^24, 1, 1) is 2^24; sqrt(8) is 3.
# reduce_sum of 2^25 float32 ones is 2^24. No warnings.
# Why: inputs of 64 bits are converted when they come in, and back when they go out.
# For us: hashes, ids and offsets in an OpenVINO model are wrong beyond 2^31 without a trace.
# Integer ops are compared with ours in int32, reductions below 2^24.
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


int64 = lambda *values: np.array(values, np.int64)
int32 = lambda *values: np.array(values, np.int32)
first = np.array([0])
rows = [
    ("reshape of int64 2^40, 2^31", run(lambda a: op.reshape(a, [2, 1], False), int64(2**40, 2**31)), [[0], [-(2**31)]]),
    ("int64 2^40 + 1", run(op.add, int64(2**40), int64(1)), [1]),
    ("sum of three int64 2^30", run(lambda a: op.reduce_sum(a, first), int64(2**30, 2**30, 2**30)), -(2**31)),
    ("int64 2^40 == 2^42", run(op.equal, int64(2**40), int64(2**42)), [True]),
    ("float64 1e300 * 1", run(op.multiply, np.array([1e300]), np.array([1.0])), [float(np.finfo(np.float32).max)]),
    ("float64 1 + 1e-10", run(op.add, np.array([1.0]), np.array([1e-10])), [1.0]),
    ("int32 2^24 + 1", run(op.add, int32(2**24), int32(1)), [2**24 + 1]),
    ("max of int32 2^24 + 1, 2^24", run(lambda a: op.reduce_max(a, first), int32(2**24 + 1, 2**24)), 2**24),
    ("sum of int32 2^24, 1, 1", run(lambda a: op.reduce_sum(a, first), int32(2**24, 1, 1)), 2**24),
    ("square root of int32 8", run(op.sqrt, int32(8)), [3]),
    ("sum of 2^25 float32 ones", run(lambda a: op.reduce_sum(a, first), np.ones(2**25, np.float32)), 2.0**24),
]
changed = []
for name, seen, wanted in rows:
    print(f"{name:34} {seen}")
    if str(seen[1]) != str(wanted):
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
