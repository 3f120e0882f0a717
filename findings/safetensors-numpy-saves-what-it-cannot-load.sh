#!/usr/bin/env bash
# safetensors.numpy saves FP8 and bfloat16 arrays and cannot load them: one FP8 tensor makes
# load_file() fail for the whole file, and load() fails for bfloat16 too.
#
# Versions: safetensors 0.8.0, ml_dtypes 0.6.0, numpy 2.4.6.
# Expected: what save() takes, load() returns, as arrays of ml_dtypes; or save() refuses it.
# Seen: save() and save_file() write BF16, F8_E4M3, F8_E5M2, F8_E8M0 and F8_E4M3FNUZ. load_file()
# and safe_open() return bfloat16, and raise AttributeError for each FP8 type; load() raises
# KeyError for bfloat16 as well, on the same bytes. The float32 tensor beside it is lost to load()
# and load_file() with it; safe_open() reads that one.
# Why: writing goes by the dtype's name; load() has a table of NumPy's own types, safe_open() asks
# NumPy for an attribute of the name.
# For us: fixtures with FP8 are written with this module and read back by ours (crates/modelfile)
# or as bytes, never by load(). Python examples that read checkpoints with scales use safe_open(),
# one tensor at a time.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'safetensors==0.8.0' 'ml_dtypes==0.6.0' 'numpy==2.4.6'
"$work/venv/bin/python" -W ignore - "$work/t.safetensors" <<'END'
import sys
import ml_dtypes, numpy as np
from safetensors import safe_open
from safetensors.numpy import load, load_file, save_file

path = sys.argv[1]


def outcome(function):
    try:
        return function().tolist()
    except (AttributeError, KeyError) as error:
        return type(error).__name__


ways = {
    "load_file": lambda name: load_file(path)[name], "load": lambda name: load(open(path, "rb").read())[name],
    "safe_open": lambda name: safe_open(path, "np").get_tensor(name),
}
fine = {way: ([1.0, 2.0], [1.0, 2.0]) for way in ways}
eight = {"load_file": ("AttributeError",) * 2, "load": ("KeyError",) * 2, "safe_open": ("AttributeError", [1.0, 2.0])}
wanted = {
    "float16": fine, "bfloat16": {**fine, "load": ("KeyError",) * 2},
    **{name: eight for name in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz")},
}
changed = []
for name, expected in wanted.items():
    element = getattr(ml_dtypes, name, None) or np.dtype(name)
    save_file({"it": np.array([1, 2], element), "other": np.array([1, 2], np.float32)}, path)
    for way, function in ways.items():
        seen = tuple(outcome(lambda: function(tensor)) for tensor in ("it", "other"))
        print(f"{name:16} {way:10} it {seen[0]!s:16} float32 beside it {seen[1]}")
        if seen != expected[way]:
            changed.append((name, way))
if changed:
    sys.exit(f"changed: {changed}")
END
