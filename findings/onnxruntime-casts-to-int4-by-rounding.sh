#!/usr/bin/env bash
# ONNX Runtime's Cast rounds floats to INT4 and UINT4, ties away from zero, and truncates them to
# INT8.
#
# Versions: onnxruntime 1.32.0, onnx 1.23.2, numpy 2.4.6, ml_dtypes 0.6.0, CPU execution provider.
# Expected: Cast from a float to any integer drops the fraction, as the specification says, as
# INT8 does, and as onnx's reference evaluator does for all; or, if it rounds, ties go to even as
# in QuantizeLinear.
# Seen: to INT4, 0.5 is 1, 2.5 is 3, -0.6 is -1 and 6.5 is 7; to INT8 these are 0, 2, 0 and 6. 7.5
# becomes 8 and so -8 in INT4, -8.5 is 7, 15.5 is 0 in UINT4: numbers wrap half a step before
# their range ends. The same for float16 and float64. The reference evaluator truncates all of
# them. QuantizeLinear with scale 1 gives 0, 2, -1, 6, 7, 7 and -8: ties to even, saturated.
# Why: the INT4 conversion calls round() before it keeps four bits, that of INT8 is C++'s.
# For us: weights cast to INT4 in a graph differ by one step from ours, and wrap at the ends. Our
# quantisers (crates/modelfile) state rounding and saturate; compare with QuantizeLinear, never
# with Cast.
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

values = [0.5, 2.5, -0.6, 6.5, 7.5, 15.5, -8.5]


def run(nodes, source, more=()):
    info = lambda name, element, shape: helper.make_tensor_value_info(name, element, shape)
    x = np.array(values, source)
    graph = helper.make_graph(
        [*nodes, helper.make_node("Cast", ["m"], ["y"], to=TensorProto.FLOAT)], "g",
        [info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)], [info("y", TensorProto.FLOAT, None)], more)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = ReferenceEvaluator(model).run(None, {"x": x}), session.run(None, {"x": x})
    return [[int(v) for v in result[0]] for result in results]


cut = {"INT4": [0, 2, 0, 6, 7, -1, -8], "UINT4": [0, 2, 0, 6, 7, 15, 8], "INT8": [0, 2, 0, 6, 7, 15, -8]}
wanted = {"INT4": [1, 3, -1, 7, -8, 0, 7], "UINT4": [1, 3, 15, 7, 8, 0, 7], "INT8": cut["INT8"]}
changed = []
print("values                ", values)
for source in ("float32", "float16", "float64"):
    for target, expected in wanted.items():
        reference, seen = run([helper.make_node("Cast", ["x"], ["m"], to=getattr(TensorProto, target))], source)
        print(f"{source} to {target:5}: reference {reference}, ONNX Runtime {seen}")
        if seen != expected or reference != cut[target]:
            changed.append((source, target))
quantize = helper.make_node("QuantizeLinear", ["x", "s"], ["m"], output_dtype=TensorProto.INT4)
_, seen = run([quantize], "float32", [helper.make_tensor("s", TensorProto.FLOAT, [], [1.0])])
print(f"QuantizeLinear to INT4: ONNX Runtime {seen}")
if changed or seen != [0, 2, -1, 6, 7, 7, -8]:
    sys.exit(f"changed: {changed} {seen}")
END
