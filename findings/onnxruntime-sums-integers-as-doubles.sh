#!/usr/bin/env bash
# ONNX Runtime's ReduceSum, ReduceProd, Einsum and Pow of int64 compute in double: 2^53 + 1 loses
# its 1, and an int32 sum that overflows saturates.
#
# Versions: onnxruntime 1.32.0, onnx 1.23.2, numpy 2.4.6, CPU execution provider.
# Expected: the ops take int64 and return int64, so results that fit are exact (as in onnx's own
# reference evaluator, which is shown beside it), and what overflows wraps as Add does.
# Seen: ReduceSum of [2^53, 1], with and without an axis, is 2^53; Einsum "i->", ReduceProd of
# [2^53 + 1, 1] and 3 ** 35 are rounded to 53 bits as well. CumSum, MatMul and ReduceMax of the same
# int64 values are exact. Of int32 [2^31 - 1, 1] the ReduceSum is 2^31 - 1 and the CumSum ends at
# -2^31.
# For us: an integer reduction of ours that is exact, and wraps as the device does, differs from
# this library and is right. Keep reference values for integers in integers; hashes, offsets and
# token counts must not pass through an int64 ReduceSum of an exported model.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'onnxruntime==1.32.0' 'onnx==1.23.2' 'numpy==2.4.6' 'ml_dtypes==0.6.0' \
    'protobuf==7.36.2' 'typing_extensions==4.16.0' 'flatbuffers==25.12.19' 'packaging==26.4'
"$work/venv/bin/python" - <<'END'
import sys
import numpy as np, onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator


def both(op, *inputs, **attributes):
    names = [f"i{k}" for k in range(len(inputs))]
    element = helper.np_dtype_to_tensor_dtype(inputs[0].dtype)
    graph = helper.make_graph(
        [helper.make_node(op, names, ["o"], **attributes)], "g",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
         for n, v in zip(names, inputs)],
        [helper.make_tensor_value_info("o", element, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    feed = dict(zip(names, inputs))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = ReferenceEvaluator(model).run(None, feed)[0], session.run(None, feed)[0]
    return [np.asarray(r).reshape(-1).tolist() for r in results]


i64 = lambda *v: np.array(v, np.int64)
i32 = lambda *v: np.array(v, np.int32)
big = 2**53
rows = {
    "ReduceSum [2^53, 1]": (both("ReduceSum", i64(big, 1), keepdims=0), [big + 1], [big]),
    "ReduceSum [[2^53, 1]], axis 1": (
        both("ReduceSum", i64(big, 1).reshape(1, 2), i64(1), keepdims=0), [big + 1], [big]),
    "ReduceProd [2^53 + 1, 1]": (both("ReduceProd", i64(big + 1, 1), keepdims=0), [big + 1], [big]),
    "Einsum i-> [2^53, 1]": (both("Einsum", i64(big, 1), equation="i->"), [big + 1], [big]),
    "Pow 3, 35": (both("Pow", i64(3), i64(35)), [3**35], [3**35 - 3]),
    "CumSum [2^53, 1]": (both("CumSum", i64(big, 1), np.array(0, np.int64)), [big, big + 1], [big, big + 1]),
    "MatMul [2^53, 1] [1, 1]": (
        both("MatMul", i64(big, 1).reshape(1, 2), i64(1, 1).reshape(2, 1)), [big + 1], [big + 1]),
    "ReduceMax [2^53 + 1, 0]": (both("ReduceMax", i64(big + 1, 0), keepdims=0), [big + 1], [big + 1]),
    "ReduceSum int32 [2^31-1, 1]": (both("ReduceSum", i32(2**31 - 1, 1), keepdims=0), [-2**31], [2**31 - 1]),
    "CumSum int32 [2^31-1, 1]": (
        both("CumSum", i32(2**31 - 1, 1), np.array(0, np.int64)), [2**31 - 1, -2**31], [2**31 - 1, -2**31]),
}
changed = []
for name, ((reference, runtime), *wanted) in rows.items():
    print(f"{name:30} reference {str(reference):38} ONNX Runtime {runtime}")
    if [reference, runtime] != wanted:
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
