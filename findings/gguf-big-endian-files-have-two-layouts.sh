#!/usr/bin/env bash
# gguf-py's writer and its converter make different big-endian files: the scales of blocks and
# bfloat16 stay little-endian in one; and its dequantize misreads both without an error.
#
# Versions: gguf 0.19.0, numpy 2.4.6, on a little-endian processor.
# Expected: GGUFWriter with endianess BIG writes the bytes that gguf-convert-endian makes of the
# little-endian file, converting back gives the first file, and GGUFReader with dequantize gives the
# same numbers for all.
# Seen: F32, F16 and the metadata are swapped by both. Bytes given with raw_dtype, so BF16 and Q8_0,
# are written as they are by GGUFWriter, and swapped by the converter: 1, 2, 3 in BF16 are 0x803f,
# 0x0040, 0x4040 in one file and 0x3f80, 0x4000, 0x4040 in the other. The writer's file, converted
# to little, has BF16 of -5.8e-39 for 1 and -134.4 in Q8_0. GGUFReader's own data of F32 are right,
# but dequantize(data) of F32 and F16 of any big-endian file is 4.6e-41 for 1, and of BF16 and Q8_0
# it is right for the writer's file alone.
# For us: of a big-endian file nothing says which layout its blocks have. Our reader refuses such
# files (crates/modelfile), and should go on doing so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'gguf==0.19.0' 'numpy==2.4.6' 'PyYAML==6.0.3' 'tqdm==4.70.1' 'requests==2.34.2'
cd "$work"
cat > write.py <<'END'
import sys
import numpy as np
from gguf import GGMLQuantizationType, GGUFEndian, GGUFWriter, quants

for name, order in (("little", GGUFEndian.LITTLE), ("written", GGUFEndian.BIG)):
    writer = GGUFWriter(f"{name}.gguf", "llama", endianess=order)
    for kind in ("F32", "F16", "BF16", "Q8_0"):
        kind = GGMLQuantizationType[kind]
        data = quants.quantize(np.arange(32, dtype=np.float32), kind)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
END
venv/bin/python -W ignore write.py
cp little.gguf converted.gguf
cp written.gguf back.gguf
echo YES | venv/bin/gguf-convert-endian converted.gguf big > log 2>&1
echo YES | venv/bin/gguf-convert-endian back.gguf little >> log 2>&1
venv/bin/python -W ignore - <<'END'
import sys
from gguf import GGUFReader, quants

rows = {  # file: F32, F16, BF16 and Q8_0 of 1; the element 1 of the reader's own F32; BF16's bytes 2 to 5
    "little": ([1.0, 1.0, 1.0, 0.9766], 1.0, "803f0040"), "written": ([4.6e-41, 3.576e-06, 1.0, 0.9766], 1.0, "803f0040"),
    "converted": ([4.6e-41, 3.576e-06, -5.786e-39, -134.4], 1.0, "3f804000"),
    "back": ([1.0, 1.0, -5.786e-39, -134.4], 1.0, "3f804000")}
changed = []
for name, wanted in rows.items():
    tensors = {tensor.name: tensor for tensor in GGUFReader(f"{name}.gguf").tensors}
    numbers = [float(f"{quants.dequantize(tensors[kind].data, tensors[kind].tensor_type).ravel()[1]:.4g}")
               for kind in ("F32", "F16", "BF16", "Q8_0")]
    seen = numbers, float(tensors["F32"].data[1]), tensors["BF16"].data.tobytes()[2:6].hex()
    print(f"{name:10} dequantized F32 {numbers[0]}, F16 {numbers[1]}, BF16 {numbers[2]}, Q8_0 {numbers[3]}; "
          f"data of F32 {seen[1]}; bytes of BF16 {seen[2]}")
    if seen[1:] != wanted[1:] or any(abs(a - b) > abs(b) / 100 for a, b in zip(numbers, wanted[0])):
        changed.append(name)
if open("back.gguf", "rb").read() == open("little.gguf", "rb").read():
    changed.append("converting back")
if changed:
    sys.exit(f"changed: {changed}")
END
