#!/usr/bin/env bash
# In the safetensors files that MLX writes tensors begin at odd addresses and metadata are null, and
# MLX reads FP8 as bytes.
#
# Versions: mlx 0.32.4 with mlx-cpu 0.32.4, safetensors 0.8.0, numpy 2.4.6.
# Expected: a header that is padded with blanks to a multiple of 8, as the format's own library
# writes, so that a mapped file has aligned numbers; F8_E4M3 either as numbers or refused.
# Seen: mx.save_safetensors of one float32 array has a header of 77 bytes, so data begin at byte 85;
# numpy.frombuffer gives an array that is not aligned. "__metadata__" is null if none is given. The
# safetensors library reads both. F8_E4M3 and F8_E8M0 are loaded as uint8, so 1 is 56, without a
# word; F8_E5M2 and F64 are errors. A transposed array is written row by row, as it should be.
# For us: a reader that casts the mapped bytes to f32 in place fails for such files; ours reads
# bytes (crates/modelfile) and takes null, and its tests have both.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'mlx==0.32.4' 'mlx-cpu==0.32.4' 'safetensors==0.8.0' 'numpy==2.4.6'
"$work/venv/bin/python" -W ignore - "$work/a.safetensors" <<'END'
import json, struct, sys
import mlx.core as mx, numpy as np
from safetensors.numpy import load_file, save_file

path = sys.argv[1]


def header():
    """Length of the header, what it says, and the tensor's bytes as they lie."""
    data = open(path, "rb").read()
    length, = struct.unpack("<Q", data[:8])
    return length, json.loads(data[8:8 + length]), np.memmap(path, np.uint8)[8 + length:]


changed = []
x = np.arange(6, dtype=np.float32).reshape(2, 3)
save_file({"a": x}, path)
length, _, _ = header()
print(f"safetensors: header of {length} bytes")
if length % 8:
    changed.append("safetensors")
mx.save_safetensors(path, {"a": mx.array(x)})
length, said, data = header()
aligned = np.frombuffer(data, np.float32).flags.aligned
print(f"MLX: header of {length} bytes, {said}, aligned {aligned}; read {load_file(path)['a'].tolist()}")
if length % 4 == 0 or aligned or said["__metadata__"] is not None or not np.array_equal(load_file(path)["a"], x):
    changed.append("MLX")
mx.save_safetensors(path, {"a": mx.array(x).T})
if not np.array_equal(load_file(path)["a"], x.T):
    changed.append("transposed")
for dtype, size, wanted in (("F8_E4M3", 1, "mlx.core.uint8"), ("F8_E8M0", 1, "mlx.core.uint8"), ("F8_E5M2", 1, "error"),
                            ("F64", 8, "error"), ("BF16", 2, "mlx.core.bfloat16")):
    text = json.dumps({"a": {"dtype": dtype, "shape": [4], "data_offsets": [0, 4 * size]}}).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + bytes(4 * size * [0x38]))
    try:
        seen = mx.load(path)["a"]
        print(dtype, "loaded as", seen.dtype, seen.tolist())
        seen = str(seen.dtype)
    except RuntimeError as error:
        print(dtype, error)
        seen = "error"
    if seen != wanted:
        changed.append(dtype)
if changed:
    sys.exit(f"changed: {changed}")
END
