#!/usr/bin/env bash
# Four tools convert a float to the MX scale type E8M0 in four ways: zero is 2^-127 or NaN, -1 is 1,
# 2^-127 or NaN, and 1.25 is 1 or 2.
#
# Versions: nvidia-cuda-runtime 13.5.37 (cuda_fp8.h), nvidia-cuda-cccl 13.3.5.0.6, ml_dtypes 0.6.0,
# onnx 1.23.2, onnxruntime 1.32.0, numpy 2.4.6. A C++ compiler.
# Expected: E8M0 is an exponent and a NaN; a conversion rounds to the nearest power of two and makes
# NaN of what has none.
# Seen: the constructor __nv_fp8_e8m0(x) takes the magnitude, rounds UP and saturates: 0 -> 2^-127,
# -1 -> 1, 1.25 -> 2, Inf -> 2^127. ml_dtypes rounds to nearest and makes 0, negatives and Inf NaN.
# onnx's reference evaluator rounds up by default, takes the magnitude, and makes Inf NaN; ONNX
# Runtime makes Inf 2^127 and every negative 2^-127. Positive powers of two agree in all four.
# For us: an MX quantiser must compute the exponent itself (the MX specification floors the
# logarithm of the largest magnitude), never by a conversion to E8M0; a block of zeros must not
# reach ml_dtypes, whose scale NaN makes the block NaN. Conversions from E8M0 agree everywhere.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'nvidia-cuda-runtime==13.5.37' 'nvidia-cuda-crt==13.5.37' \
    'nvidia-cuda-cccl==13.3.5.0.6' \
    'onnxruntime==1.32.0' 'onnx==1.23.2' 'numpy==2.4.6' 'ml_dtypes==0.6.0' \
    'protobuf==7.36.2' 'typing_extensions==4.16.0' 'flatbuffers==25.12.19' 'packaging==26.4'
packages=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
cat > "$work/convert.cpp" <<'END'
#include "cuda_fp8.h"
extern "C" int e8m0(float x) { return __nv_fp8_e8m0(x).__x; }
END
c++ -std=c++17 -shared -fPIC -w -I "$packages/nvidia/cu13/include" -I "$packages/nvidia/cu13/include/cccl" \
    -o "$work/convert.so" "$work/convert.cpp"
"$work/venv/bin/python" -W ignore - "$work/convert.so" <<'END'
import ctypes, math, sys
import ml_dtypes, numpy as np, onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

x = np.array([0, -1, 1.25, 1.5, 3, 4, np.inf, -np.inf], np.float32)
cuda = ctypes.CDLL(sys.argv[1])
cuda.e8m0.argtypes = [ctypes.c_float]


def cast(back):
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E8M0)]
    if back:
        nodes.append(helper.make_node("Cast", ["y"], ["z"], to=TensorProto.FLOAT))
    result = ("z", TensorProto.FLOAT) if back else ("y", TensorProto.FLOAT8E8M0)
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
                              [helper.make_tensor_value_info(*result, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


def exponent(value):
    value = float(value)
    return "NaN" if math.isnan(value) else int(math.log2(value))


session = onnxruntime.InferenceSession(cast(True).SerializeToString(), providers=["CPUExecutionProvider"])
decode = lambda codes: np.array(codes, np.uint8).view(ml_dtypes.float8_e8m0fnu)
table = {
    "cuda_fp8.h": decode([cuda.e8m0(v) for v in x]),
    "ml_dtypes": x.astype(ml_dtypes.float8_e8m0fnu),
    "onnx reference": ReferenceEvaluator(cast(False)).run(None, {"x": x})[0],
    "ONNX Runtime": session.run(None, {"x": x})[0],
}
seen = {tool: [exponent(v) for v in np.asarray(values).astype(np.float32)] for tool, values in table.items()}
print(f"{'exponent of':15}", *(f"{v:>6g}" for v in x))
for tool, exponents in seen.items():
    print(f"{tool:15}", *(f"{e:>6}" for e in exponents))
wanted = {
    "cuda_fp8.h": [-127, 0, 1, 1, 2, 2, 127, 127],
    "ml_dtypes": ["NaN", "NaN", 0, 1, 2, 2, "NaN", "NaN"],
    "onnx reference": [-127, 0, 1, 1, 2, 2, "NaN", "NaN"],
    "ONNX Runtime": [-127, -127, 1, 1, 2, 2, 127, -127],
}
if seen != wanted:
    sys.exit("changed: " + ", ".join(tool for tool in seen if seen[tool] != wanted[tool]))
END
