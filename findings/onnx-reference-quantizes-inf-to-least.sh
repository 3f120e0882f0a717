#!/usr/bin/env bash
# onnx's reference evaluator quantises numbers beyond int32, Inf among them, to the LEAST value of
# the type: +Inf is -128 in int8 and 0 in uint8.
#
# Versions: onnx 1.23.2, onnxruntime 1.32.0, numpy 2.4.6, ml_dtypes 0.6.0.
# Expected: QuantizeLinear saturates, so a large number becomes 127 or 255; this evaluator defines
# what the operators mean.
# Seen: 2147483520 (the last float32 below 2^31) is 127; 2^31, 1e10 and Inf are -128 in int8, 0 in
# uint8 and -32768 in int16; with a zero point of 1 too. ONNX Runtime gives the largest. Negative
# ones are right in both, NaN is the least in both, ties go to even in both.
# Why: the quotient becomes int32 before it is clipped, and that conversion is -2^31 for all that
# does not fit, on x86-64.
# For us: do not take its results as expected ones where a scale can be 0 or tiny; our quantisers
# clamp as floats before they convert (Rust's `as` saturates; a cvt without .sat would, too, in
# PTX).
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'onnxruntime==1.32.0' 'onnx==1.23.2' 'numpy==2.4.6' 'ml_dtypes==0.6.0' \
    'protobuf==7.36.2' 'typing_extensions==4.16.0' 'flatbuffers==25.12.19' 'packaging==26.4'
"$work/venv/bin/python" -W ignore - <<'END'
import sys
import numpy as np, onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

inf, nan = float("inf"), float("nan")
values = [0.5, 1.5, 300, 2147483520, 2.0**31, 1e10, inf, -1e10, -inf, nan]


def run(element, zero):
    x, kind = np.array(values, np.float32), helper.np_dtype_to_tensor_dtype(np.dtype(element))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])], "g",
        [info("x", TensorProto.FLOAT, x.shape), info("s", TensorProto.FLOAT, []), info("z", kind, [])],
        [info("y", kind, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {"x": x, "s": np.array(1, np.float32), "z": np.array(zero, element)}
    return ReferenceEvaluator(model).run(None, feed)[0].tolist(), session.run(None, feed)[0].tolist()


changed = []
print("values               ", values)
for element in ("int8", "uint8", "int16"):
    least, most = np.iinfo(element).min, np.iinfo(element).max
    for zero in (0, 1):
        reference, seen = run(element, zero)
        print(f"{element:6} zero point {zero}: reference {reference}\n{'':21}ONNX Runtime {seen}")
        first = [zero, 2 + zero, min(300 + zero, most), most]
        if reference != first + [least] * 6 or seen != first + [most] * 3 + [least] * 3:
            changed.append((element, zero))
if changed:
    sys.exit(f"changed: {changed}")
END
