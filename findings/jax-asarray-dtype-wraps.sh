#!/usr/bin/env bash
# jnp.asarray(x, dtype=int8) of a NumPy array wraps 300 to 44; the same call inside jit, and
# .astype(int8), give 127.
#
# Versions: jax and jaxlib 0.10.2, ml_dtypes 0.6.0, numpy 2.4.6, on the CPU backend.
# Expected: asarray(x, dtype) and asarray(x).astype(dtype) are two spellings of one conversion, and
# jit changes no value.
# Seen: outside jit the first converts by NumPy before JAX sees the data (wrap modulo 2^n, for int4
# by ml_dtypes: 8.0 becomes -8); the other two convert by XLA, which saturates and makes NaN zero.
# Integers narrow by wrapping in all three: int32 8 becomes int4 -8, so int4 saturates from
# float and wraps from int.
# For us: a float-to-integer conversion has no meaning that all tools share. PTX's cvt saturates as
# XLA does. A comparison with JAX must convert inside jit, and quantised weights in 4 bits must be
# clamped before they are narrowed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'jax==0.10.2' 'jaxlib==0.10.2' 'ml_dtypes==0.6.0' \
    'numpy==2.4.6' 'scipy==1.17.1' 'opt_einsum==3.4.0'
JAX_PLATFORMS=cpu "$work/venv/bin/python" -W ignore - <<'END'
import sys
import jax, jax.numpy as jnp, ml_dtypes, numpy as np

floats = np.array([300, -300, 8, -9], np.float32)
integers = np.array([300, -300, 8, -9], np.int32)
ways = {
    "asarray(x, dtype)": lambda x, t: jnp.asarray(x, dtype=t),
    "asarray(x).astype(dtype)": lambda x, t: jnp.asarray(x).astype(t),
    "jit: asarray(x, dtype)": lambda x, t: jax.jit(lambda v: jnp.asarray(v, dtype=t))(x),
}
wanted = {
    ("float32", "int8"): ([44, -44, 8, -9], [127, -128, 8, -9]),
    ("float32", "uint8"): ([44, 212, 8, 247], [255, 0, 8, 0]),
    ("float32", "int4"): ([-4, 4, -8, 7], [7, -8, 7, -8]),
    ("int32", "int4"): ([-4, 4, -8, 7], [-4, 4, -8, 7]),
}
changed = []
for (source, target), (first, others) in wanted.items():
    x = floats if source == "float32" else integers
    for name, way in ways.items():
        seen = np.asarray(way(x, getattr(jnp, target))).astype(np.int32).tolist()
        print(f"{source} {x.astype(int).tolist()} -> {target:5} {name:26} {seen}")
        if seen != (first if name == "asarray(x, dtype)" else others):
            changed.append((source, target, name))
if changed:
    sys.exit(f"changed: {changed}")
END
