#!/usr/bin/env bash
# MLX loads bfloat16 tensors of a GGUF file as float16: 1e5 becomes Inf and 1e-8 becomes 0; and its
# Q8_0 and Q4_0 tensors are not the numbers that gguf-py reads.
#
# Versions: mlx 0.32.4 with mlx-cpu 0.32.4, gguf 0.19.0, numpy 2.4.6.
# Expected: MLX has bfloat16, so a BF16 tensor keeps its type and its numbers, as it does when MLX
# reads it from a safetensors file; Q8_0 is loaded with its scales, and means what it meant.
# Seen: BF16 becomes float16 without a word, with 65536 and more as Inf, and numbers below 2^-25 as
# 0; save_gguf refuses bfloat16. Q8_0 is loaded as codes of 0 to 255, a scale and a bias of -128
# scales, which are added in float16: of normally distributed weights nine of ten differ from
# gguf-py's, by up to 2^-9, and 40000 is Inf, as 255 scales are more than 65504. Q4_0 differs in
# more than half.
# For us: numbers of a model under MLX from GGUF are no reference for ours; `fercuda model convert`
# to BF16 safetensors is the way that keeps them. Our reader decodes BF16 and blocks to f32.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'mlx==0.32.4' 'mlx-cpu==0.32.4' 'gguf==0.19.0' 'numpy==2.4.6' 'PyYAML==6.0.3' 'tqdm==4.70.1' 'requests==2.34.2'
"$work/venv/bin/python" -W ignore - "$work" <<'END'
import sys
import mlx.core as mx, numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants

path = sys.argv[1] + "/a.gguf"


def loaded(x, name):
    """MLX's arrays of a file with x in this type, and what gguf-py makes of the same bytes."""
    kind = GGMLQuantizationType[name]
    data = quants.quantize(x, kind)
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("w.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return mx.load(path), quants.dequantize(data, kind)


def by_mlx(arrays, bits):
    parts = (arrays["w." + part] for part in ("weight", "scales", "biases"))
    return np.array(mx.dequantize(*parts, group_size=32, bits=bits).astype(mx.float32))


changed = []
x = np.array([[1, 65536, 1e5, -1e30, 1e-6, 1e-8] + 26 * [0]], np.float32)
arrays, meant = loaded(x, "BF16")
seen = arrays["w.weight"]
print("BF16", meant[0, :6].tolist(), "loaded as", seen.dtype, seen[0, :6].tolist())
inf = float("inf")
if seen.dtype != mx.float16 or seen[0, 1:4].tolist() != [inf, inf, -inf] or seen[0, 5].item() != 0 or meant[0, 5] == 0:
    changed.append("BF16")
mx.save_safetensors(sys.argv[1] + "/a.safetensors", {"w": mx.array(x).astype(mx.bfloat16)})
kept = mx.load(sys.argv[1] + "/a.safetensors")["w"]
print("from safetensors", kept.dtype, kept[0, :6].tolist())
if kept.dtype != mx.bfloat16:
    changed.append("safetensors")
try:
    mx.save_gguf(path, {"w": kept})
    changed.append("save_gguf")
except RuntimeError as error:
    print("save_gguf:", error)
random = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
for name, bits, least in (("Q8_0", 8, 0.8), ("Q4_0", 4, 0.5)):
    arrays, meant = loaded(random, name)
    seen = by_mlx(arrays, bits)
    share, most = float(np.mean(seen != meant)), float(np.abs(seen - meant).max())
    print(f"{name}: {share:.0%} differ, by up to {most}; scales of {arrays['w.scales'].dtype}")
    if share < least or not 2**-11 <= most <= 2**-8:
        changed.append(name)
arrays, meant = loaded(np.array([[4e4, -4e4] + 30 * [0]], np.float32), "Q8_0")
seen = by_mlx(arrays, 8)
print("Q8_0 of large numbers", meant[0, :3].tolist(), "loaded as", seen[0, :3].tolist())
if seen[0, 0] != inf or not np.isfinite(meant).all():
    changed.append("large")
if changed:
    sys.exit(f"changed: {changed}")
END
