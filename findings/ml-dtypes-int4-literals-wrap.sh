#!/usr/bin/env bash
# np.array([8], int4) is -8 and np.array([300], int4) is -4, in silence, while [8.0] and [7.6] are
# an OverflowError; of ONNX's make_tensor the same.
#
# Versions: ml_dtypes 0.6.0, numpy 2.4.6, onnx 1.23.2.
# Expected: a literal that does not fit raises, as np.array([128], int8) does; 7.6 becomes 7, as in
# int8; an array, a scalar and an assignment treat one number alike.
# Seen: Python's integers wrap for int2, uint2, int4 and uint4, up to 2^63: -1 is 15 in uint4 and
# 2^40 is 0. Floats that are no integers of the range raise, also 7.6 and -0.5. NumPy's integers
# wrap in an array and raise as int4(np.int64(8)). np.full takes 8 for -8 and raises at 300, beyond
# int8. arange(10, dtype=int4) ends in 7, -8, -7. astype() wraps integers and floats alike and drops
# fractions. onnx.helper.make_tensor of INT4 is the array's constructor, so a zero point of 8 in
# INT4 is -8, where one of 128 in INT8 raises.
# Why: an integer is cut to its low bits, a float is compared with its conversion.
# For us: fixtures of packed codes (crates/modelfile, crates/tensor) check the range of their
# literals by themselves. Codes without a sign in a signed type pass unseen.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'ml_dtypes==0.6.0' 'numpy==2.4.6' 'onnx==1.23.2' 'protobuf==7.36.2' 'typing_extensions==4.16.0'
"$work/venv/bin/python" -W ignore - <<'END'
import sys
import ml_dtypes, numpy as np
from onnx import TensorProto, helper, numpy_helper

changed = []
raised = "OverflowError"


def row(what, make, wanted):
    try:
        made = np.asarray(make())
        seen = made.tolist()
    except OverflowError:
        seen = raised
    print(f"{what:44} {seen}")
    if seen != wanted:
        changed.append(what)


def tensor(kind, *values):
    return numpy_helper.to_array(helper.make_tensor("x", kind, [len(values)], values))


int4, uint4, int2, uint2 = (np.dtype(getattr(ml_dtypes, it)) for it in ("int4", "uint4", "int2", "uint2"))
for dtype, value, wanted in [(int4, 7, 7), (int4, 8, -8), (int4, -9, 7), (int4, 300, -4), (uint4, -1, 15), (uint4, 16, 0),
                             (int4, 2**40, 0), (int2, 2, -2), (uint2, 4, 0), (np.dtype(np.int8), 128, None),
                             (int4, 7.0, 7), (int4, 8.0, None), (int4, 7.6, None), (uint4, -0.5, None),
                             (np.dtype(np.int8), 7.6, 7), (int4, np.int64(8), -8)]:
    row(f"np.array([{value!r}], {dtype})", lambda: np.array([value], dtype), raised if wanted is None else [wanted])
row("int4(8)", lambda: int4.type(8), -8)
row("int4(np.int64(8))", lambda: int4.type(np.int64(8)), raised)
row("np.full(1, 8, int4)", lambda: np.full(1, 8, int4), [-8])
row("np.full(1, 300, int4)", lambda: np.full(1, 300, int4), raised)
row("np.arange(10, dtype=int4)[7:]", lambda: np.arange(10, dtype=int4)[7:], [7, -8, -7])
row("np.array([8, 7.6]).astype(int4)", lambda: np.array([8, 7.6]).astype(int4), [-8, 7])
row("make_tensor of INT4, 8", lambda: tensor(TensorProto.INT4, 8), [-8])
row("make_tensor of INT4, 7.6", lambda: tensor(TensorProto.INT4, 7.6), raised)
row("make_tensor of INT8, 128", lambda: tensor(TensorProto.INT8, 128), raised)
row("make_tensor of INT8, 7.6", lambda: tensor(TensorProto.INT8, 7.6), [7])
if changed:
    sys.exit(f"changed: {changed}")
END
