#!/usr/bin/env bash
# One NaN in a block of Q8_0 flips the signs of larger elements before it in llama.cpp's quantiser
# and makes the whole block NaN in gguf-py's; in MXFP4 gguf-py makes the whole block 0.
#
# Versions: gguf 0.19.0 (PyPI), libggml-base 0.23.0 of @node-llama-cpp/linux-x64 3.21.1 (npm),
# numpy 2.4.6.
# Expected: both write the same bytes, as gguf-py's source says of Q8_0 and as they do for finite
# numbers; a NaN spoils its own element, or its block by becoming the scale.
# Seen: libggml takes the largest number from what follows the last NaN. Of -1, -0.99, -0.98, NaN
# and 0.9 the first three come back as +0.815, +0.822, +0.836; with 0.5 behind the NaN as +0.008,
# +0.020, +0.028. With the NaN in front all others are right; at the end the scale is NaN. In
# Q4_0, Q4_1, Q5_0, Q5_1 and MXFP4 it passes over the NaN, and the other 31 are as without it.
# gguf-py: 32 NaN in Q4_0 to Q8_0, wherever the NaN is, 256 (a super-block) in TQ1_0 and TQ2_0, and
# in MXFP4 32 zeros. No errors. F16 and BF16 keep the one NaN in both.
# Why: the maximum is kept as "a > b ? a : b", which a NaN enters and the next number replaces;
# codes beyond 127 then wrap.
# For us: checking quantised weights for NaN finds none in libggml's Q8_0 or gguf-py's MXFP4, so the
# check belongs before; byte-equality of the two tools holds for finite input only.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'gguf==0.19.0' 'numpy==2.4.6' 'PyYAML==6.0.4' 'requests==2.34.2' 'tqdm==4.70.1'
(cd "$work" && npm pack --silent --cache "$work/npm" '@node-llama-cpp/linux-x64@3.21.1' > name && tar xzf "$(cat name)")
"$work/venv/bin/python" -W ignore - "$work/package/bins/linux-x64/libggml-base.so" <<'END'
import ctypes, sys
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

library = ctypes.CDLL(sys.argv[1])
library.ggml_version.restype = ctypes.c_char_p
library.ggml_quantize_chunk.restype = ctypes.c_size_t
library.ggml_quantize_chunk.argtypes = (
    [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + 3 * [ctypes.c_int64] + [ctypes.c_void_p])
print("libggml-base", library.ggml_version().decode())


def by_ggml(x, kind):
    elements, size = GGML_QUANT_SIZES[kind]
    out = np.zeros(x.size // elements * size, np.uint8)
    library.ggml_quantize_chunk(kind, x.ctypes.data, out.ctypes.data, 0, 1, x.size, None)
    return out


def both(x, name):
    """What the bytes of libggml and of gguf-py mean."""
    kind = GGMLQuantizationType[name]
    values = [quants.dequantize(b.view(np.float16) if name == "F16" else b, kind)
              for b in (by_ggml(x, kind), quants.quantize(x, kind))]
    return [v.astype(np.float32) for v in values]


changed = []
nan = float("nan")
for start, rest, flipped in (
        ([-1, -0.99, -0.98, nan], 0.9, [0.815, 0.822, 0.836]),
        ([-1, -0.99, -0.98, nan], 0.5, [0.008, 0.020, 0.028]),
        ([1, 0.99, 0.75, nan], 0.75, [-0.514, -0.520, 0.750]),
        ([nan, -1, -0.99, -0.98], 0.5, None)):
    x = np.array(start + 28 * [rest], np.float32)
    ggml, python = both(x, "Q8_0")
    print(f"Q8_0 of {start} and {rest}: libggml "
          f"{' '.join(f'{v:.3f}' for v in ggml[:4])} and {ggml[-1]:.3f}, "
          f"gguf-py {int(np.isnan(python).sum())} NaN")
    right = np.abs(ggml[1:] - x[1:]).max() < 0.005 if flipped is None else \
        np.allclose(ggml[:3], flipped, atol=0.0006) and np.abs(ggml[4:] - rest).max() < 0.005
    if not right or not np.isnan(python).all():
        changed.append((start, rest))
last = np.array(31 * [0.5] + [nan], np.float32)
print("Q8_0, NaN at the end: NaN in", *(f"{int(np.isnan(v).sum())}" for v in both(last, "Q8_0")))
if not all(np.isnan(v).all() for v in both(last, "Q8_0")):
    changed.append("at the end")

clean = np.linspace(-1, 1, 256).astype(np.float32)
x = clean.copy()
x[3] = nan
for name, elements, wanted in (
        ("Q4_0", 32, "nan"), ("Q4_1", 32, "nan"), ("Q5_0", 32, "nan"), ("Q5_1", 32, "nan"),
        ("Q8_0", 32, "nan"), ("TQ1_0", 256, "nan"), ("TQ2_0", 256, "nan"), ("MXFP4", 32, "zero"),
        ("BF16", 1, "one"), ("F16", 1, "one")):
    if any(not np.array_equal(a, b) for a, b in [both(clean, name)]):
        changed.append(f"{name} of finite numbers")
    ggml, python = both(x, name)
    others = np.arange(256) != 3
    as_without = int((ggml[others] == both(clean, name)[0][others]).sum())
    nans, zeros = int(np.isnan(python).sum()), int((python[:32] == 0).sum())
    print(f"{name:5} libggml: {as_without} of 255 others as without NaN; gguf-py: {nans} NaN, {zeros} zeros in the first 32")
    seen = {"nan": nans == elements, "zero": nans == 0 and zeros == 32, "one": nans == 1}[wanted]
    skips = as_without == 255 or name == "Q8_0"
    if not seen or not skips:
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
