#!/usr/bin/env bash
# ONNX Runtime's ReduceMax and ReduceMin return NaN only if the FIRST element is NaN and skip it
# anywhere else; Max, TopK and Unique each treat it in yet another way.
#
# Versions: onnxruntime 1.32.0, onnx 1.23.2, numpy 2.4.6, CPU execution provider.
# Expected: one rule, whichever: NaN wins (NumPy, PyTorch, JAX and onnx's reference evaluator) or
# numbers win (fmax, PTX's max without .NaN).
# Seen: ReduceMax [NaN, 1, 2] = NaN, [1, NaN, 2] = 2, [1, 2, NaN] = 2, and so for 41 elements.
# ArgMax likewise gives 0 only for a NaN in front. The two-operand Max returns NaN for either
# operand, and TopK takes NaN as the largest, so TopK with k = 1 and ArgMax name different elements.
# Unique [1, 2, NaN] returns [1, 2]: the NaN is gone and counted as a 1; [NaN, 1, NaN] returns
# [NaN] alone.
# Why: comparisons with NaN are false, so the first element stays, or counts as equal to any.
# For us: no reduction of ours can agree with this library on NaN for all inputs, so compare without
# NaN, state our rule (NaN wins) in the op's description, and test it by NaN at the first, a middle
# and the last place.
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


nan = float("nan")


def run(op, *inputs, outputs=("float32",), **attributes):
    """What the reference evaluator and ONNX Runtime return, NaN as text."""
    names = [f"i{k}" for k in range(len(inputs))]
    results = [f"o{k}" for k in range(len(outputs))]
    value = lambda name, element, shape: helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(element)), shape)
    graph = helper.make_graph(
        [helper.make_node(op, names, results, **attributes)], "g",
        [value(n, v.dtype, v.shape) for n, v in zip(names, inputs)],
        [value(n, element, None) for n, element in zip(results, outputs)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    feed = dict(zip(names, inputs))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    text = lambda r: str([None if v != v else v for v in np.asarray(r).reshape(-1).tolist()]).replace("None", "nan")
    return text(ReferenceEvaluator(model).run(None, feed)[0]), text(session.run(None, feed)[0])


f32 = lambda *v: np.array(v, np.float32)
i64 = ("int64",)
rows = {}
for values, largest, where in (((nan, 1, 2), "nan", 0), ((1, nan, 2), "2.0", 2), ((1, 2, nan), "2.0", 1)):
    rows[f"ReduceMax {values}"] = (run("ReduceMax", f32(*values), keepdims=0), "[nan]", f"[{largest}]")
    rows[f"ArgMax {values}"] = (
        run("ArgMax", f32(*values), outputs=i64, keepdims=0), f"[{values.index(nan)}]", f"[{where}]")
    rows[f"TopK 1 {values}"] = (
        run("TopK", f32(*values), np.array([1], np.int64), outputs=("float32", "int64")), "[nan]", "[nan]")
for name, values, largest in (("front", [nan] + 40 * [5], "nan"), ("back", 40 * [5] + [nan], "5.0")):
    rows[f"ReduceMax of 41, NaN in {name}"] = (run("ReduceMax", f32(*values), keepdims=0), "[nan]", f"[{largest}]")
rows["Max (1, nan) (nan, 1)"] = (run("Max", f32(1, nan), f32(nan, 1)), "[nan, nan]", "[nan, nan]")
rows["Unique (1, 2, nan)"] = (run("Unique", f32(1, 2, nan)), "[1.0, 2.0, nan]", "[1.0, 2.0]")
rows["Unique (nan, 1, nan)"] = (run("Unique", f32(nan, 1, nan)), "[1.0, nan]", "[nan]")
changed = []
for name, (seen, *wanted) in rows.items():
    print(f"{name:30} reference {seen[0]:18} ONNX Runtime {seen[1]}")
    if list(seen) != wanted:
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
