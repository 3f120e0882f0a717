#!/usr/bin/env bash
# On JAX's CPU backend the f32 value 1e-40 equals 0 and yet is sorted as itself; written as a
# constant inside jit the same value is computed with in full.
#
# Versions: jax and jaxlib 0.10.2, numpy 2.4.6, on the CPU backend of an x86-64 processor.
# Expected: flush to zero, where it is on, concerns results of arithmetic, and a value does not
# depend on whether it is an argument or a constant.
# Seen: with arguments, x > 0, x != 0, count_nonzero, sign, max, log and astype(bool) take 1e-40 for
# zero; sort, abs and negation keep its bits; unique of (1e-40, -1e-40, 0, 1e-38) is one element,
# and that is 1e-40. bfloat16 behaves like f32, float16 subnormals are kept. A sum of two constants
# inside jit is 2e-40, the sum of the same two arguments is 0.
# Why: XLA's threads run with subnormal operands and results flushed; its constant folder does not.
# For us: a comparison with JAX needs inputs without subnormals, or both sides' flush made equal
# (.ftz in our PTX). A reference value that a jitted function has as a constant is no reference.
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

x = jnp.asarray(np.array([1e-40, -1e-40, 0, 1e-38], np.float32))
tiny = np.float32(1e-40)
half = jnp.asarray(np.array([6e-8], np.float16))
brain = jnp.asarray(np.array([1e-40], np.float32).astype(jnp.bfloat16))
bits = lambda v: np.asarray(v).view(np.uint32).tolist()
rows = {
    "x > 0": ((x > 0).tolist(), [False] * 4),
    "x == 0": ((x == 0).tolist(), [True] * 4),
    "count_nonzero(x)": (int(jnp.count_nonzero(x)), 0),
    "sign(x)": (jnp.sign(x).tolist(), [0.0] * 4),
    "max(x[:3])": (float(jnp.max(x[:3])), 0.0),
    "x.astype(bool)": (x.astype(bool).tolist(), [False] * 4),
    "log(x)[0]": (float(jnp.log(x)[0]), -np.inf),
    "bits of sort(x) are those of x": (bits(jnp.sort(x)) == bits(x), True),
    "bits of abs(x)[1] are those of 1e-40": (bits(jnp.abs(x))[1] == int(tiny.view(np.uint32)), True),
    "bits of unique(x)": (bits(jnp.unique(x)), [int(tiny.view(np.uint32))]),
    "float16: x > 0": ((half > 0).tolist(), [True]),
    "bfloat16: x > 0": ((brain > 0).tolist(), [False]),
    "jit, arguments: a + b": (float(jax.jit(lambda a, b: a + b)(tiny, tiny)), 0.0),
    "jit, constants: a + b": (float(jax.jit(lambda: jnp.float32(1e-40) + jnp.float32(1e-40))()), float(tiny + tiny)),
}
changed = []
print("x =", [1e-40, -1e-40, 0.0, 1e-38])
for name, (seen, wanted) in rows.items():
    print(f"{name:38} {seen}")
    if seen != wanted:
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
