#!/usr/bin/env bash
# llama.cpp's reference quantiser gives a block of zeros in IQ4_NL the codes of the block before it,
# and a first block of zeros whatever lay in memory: equal input, different bytes.
#
# Versions: libggml-base 0.23.0 of @node-llama-cpp/linux-x64 3.21.1 (npm), numpy 2.4.6.
# Expected: a quantiser is a function of the block; zeros have scale 0 and one pattern of codes, as
# in Q4_0 (all codes 8), IQ4_XS and MXFP4.
# Seen: quantize_row_iq4_nl_ref encodes 32 zeros as scale 0 and, byte for byte, the codes of the
# last block of the call that was not zero. Before any such block the codes differ from call to
# call. So for numbers all below 1e-15, which count as zeros. ggml_quantize_chunk, which is what
# files are made by, gives code 8 throughout. All decode to zeros, of both signs.
# Why: for such a block the function stores the scale and leaves the array of codes, which serves
# all blocks of a call, as it is.
# For us: the table of types names this function as the format's encoder, so what converts rows by
# that table has such bytes. They are compared by their values, not by hash, and a vector made so
# must not hold blocks of zeros, which pruned and padded rows are.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'numpy==2.4.6'
(cd "$work" && npm pack --silent --cache "$work/npm" '@node-llama-cpp/linux-x64@3.21.1' > name && tar xzf "$(cat name)")
"$work/venv/bin/python" - "$work/package/bins/linux-x64/libggml-base.so" <<'END'
import ctypes, sys
import numpy as np

library = ctypes.CDLL(sys.argv[1])
library.ggml_version.restype = ctypes.c_char_p
library.ggml_quantize_chunk.restype = ctypes.c_size_t
library.ggml_quantize_chunk.argtypes = (
    [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + 3 * [ctypes.c_int64] + [ctypes.c_void_p])
print("libggml-base", library.ggml_version().decode())


def reference(x, name="iq4_nl", elements=32, size=18):
    out = np.zeros((x.size // elements, size), np.uint8)
    function = getattr(library, f"quantize_row_{name}_ref")
    function(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(x.size))
    return out


def chunk(x):
    out = np.zeros((x.size // 32, 18), np.uint8)
    library.ggml_quantize_chunk(20, x.ctypes.data, out.ctypes.data, 0, 1, x.size, None)
    return out


class Traits(ctypes.Structure):
    """The beginning of ggml_type_traits."""
    _fields_ = [("name", ctypes.c_char_p), ("elements", ctypes.c_int64), ("interleaved", ctypes.c_int64),
                ("size", ctypes.c_size_t), ("quantised", ctypes.c_bool), ("decode", ctypes.c_void_p),
                ("encode", ctypes.c_void_p)]


library.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
traits = library.ggml_get_type_traits(20).contents
is_in_table = traits.encode == ctypes.cast(library.quantize_row_iq4_nl_ref, ctypes.c_void_p).value
print(f"the table of types names it as {traits.name.decode()}'s encoder: {is_in_table}")

rising = np.linspace(-1, 1, 32).astype(np.float32)
curved = rising ** 3 - np.float32(0.25)
zeros, tiny = np.zeros(32, np.float32), np.full(32, 1e-16, np.float32)
changed = []
for name, first in (("rising", rising), ("curved", curved)):
    for what, second in (("zeros", zeros), ("1e-16", tiny)):
        x = np.concatenate([first, second])
        ref, file = reference(x), chunk(x)
        print(f"{what} after {name:7}: reference {ref[1].tobytes().hex(' ', 2)}")
        print(f"{'of that block':19}: {'':9} {ref[0].tobytes().hex(' ', 2)}")
        if what == "zeros":
            print(f"{'by quantize_chunk':19}: {'':9} {file[1].tobytes().hex(' ', 2)}")
        if ref[1, :2].any() or not np.array_equal(ref[1, 2:], ref[0, 2:]):
            changed.append(f"{what} after {name}")
        if what == "zeros" and (file[1, :2].any() or (file[1, 2:] != 0x88).any()):
            changed.append("ggml_quantize_chunk")
alone = chunk(zeros)
if alone[0, :2].any() or (alone[0, 2:] != 0x88).any():
    changed.append("ggml_quantize_chunk of zeros alone")
for name, size in (("q4_0", 18), ("mxfp4", 17)):
    ref = reference(np.concatenate([rising, zeros, curved, zeros]), name, 32, size)
    print(f"{name}: zeros after rising and after curved are equal: {np.array_equal(ref[1], ref[3])}")
    if not np.array_equal(ref[1], ref[3]):
        changed.append(name)
if not is_in_table:
    changed.append("the table of types")
if changed:
    sys.exit(f"changed: {changed}")
END
