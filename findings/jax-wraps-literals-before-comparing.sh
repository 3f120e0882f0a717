#!/usr/bin/env bash
# JAX wraps a Python integer to the array's type before it compares: of a uint8 array, 255 == -1,
# 44 == 300 and 1 < -1 are true, and clip(200, 0, 300) is 44.
#
# Versions: jax 0.10.2, numpy 2.4.6.
# Expected: NumPy's answers (a number outside the type is compared as the number it is), or the
# OverflowError that JAX itself raises for int32 and 2**31.
# Seen: for uint8, x == -1 holds for 255, x == 300 for 44, x < -1 for all below 255 and x < 300
# only below 44; for int8, 100 > 200 holds. minimum(200, 300) is 44, maximum(5, -1) is 255 and
# clip(200, 0, 300) is 44. The same in jit, and with jnp.array(300) in the literal's place;
# jnp.int32(300) and isin() are right. No warning.
# Why: a literal has no type of its own and takes that of the array, by a conversion that wraps.
# For us: masks and references for uint8 and int8 (codes of quantised weights against 256, padding
# of -1) must compare in int32 on JAX's side. A literal beyond an element type in our own API
# (ops' scalars, jit's constants) must be refused or compared as the number it is.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'jax==0.10.2' 'jaxlib==0.10.2' 'ml_dtypes==0.6.0' \
    'numpy==2.4.6' 'scipy==1.17.1' 'opt_einsum==3.4.0'
JAX_PLATFORMS=cpu "$work/venv/bin/python" - <<'END'
import sys
import jax, jax.numpy as jnp, numpy as np

rows = [  # text, element, values, function of a module and an array, JAX, NumPy (None: not asked)
    ("x == -1", "uint8", [255, 0], lambda m, x: x == -1, [True, False], [False, False]),
    ("x == 300", "uint8", [44, 0], lambda m, x: x == 300, [True, False], [False, False]),
    ("x < -1", "uint8", [1, 254, 255], lambda m, x: x < -1, [True, True, False], [False] * 3),
    ("x < 300", "uint8", [1, 43, 44, 255], lambda m, x: x < 300, [True, True, False, False], [True] * 4),
    ("x > 200", "int8", [100, -128], lambda m, x: x > 200, [True, False], [False, False]),
    ("x == 2**16", "uint16", [0], lambda m, x: x == 2**16, [True], [False]),
    ("minimum(x, 300)", "uint8", [200, 5], lambda m, x: m.minimum(x, 300), [44, 5], None),
    ("maximum(x, -1)", "uint8", [5], lambda m, x: m.maximum(x, -1), [255], None),
    ("clip(x, 0, 300)", "uint8", [200, 5], lambda m, x: m.clip(x, 0, 300), [44, 5], None),
    ("isin(x, [300])", "uint8", [44], lambda m, x: m.isin(x, m.array([300])), [False], [False]),
    ("x < array(300)", "uint8", [1, 255], lambda m, x: x < m.array(300), [True, False], [True, True]),
    ("x < int32(300)", "uint8", [1, 255], lambda m, x: x < m.int32(300), [True, True], [True, True]),
]
changed = []
for name, element, values, function, wanted, in_numpy in rows:
    x = jnp.array(values, element)
    seen = function(jnp, x).tolist()
    jitted = jax.jit(lambda x: function(jnp, x))(x).tolist()
    numpy = function(np, np.array(values, element)).tolist() if in_numpy else None
    print(f"{element:6} {values!s:18} {name:16} JAX {seen!s:30} NumPy {numpy or 'not asked'}")
    if seen != wanted or jitted != wanted or numpy != in_numpy:
        changed.append(name)
try:
    print(jnp.array([0], jnp.int32) == 2**31)
    changed.append("int32 == 2**31")
except OverflowError:
    print("int32  == 2**31 raises OverflowError")
if changed:
    sys.exit(f"changed: {changed}")
END
