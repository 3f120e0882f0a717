#!/usr/bin/env bash
# In JAX an integer // 0 is -2 on the CPU, unless the dividend is 0, where it is -1.
#
# Versions: jax 0.10.2, numpy 2.4.6.
# Expected: 0 with remainder 0 as in NumPy, or XLA's documented -1 with the dividend as remainder.
# Seen: 7 // 0, 1 // 0 and -7 // 0 are -2 for int8 and int32, also in divmod and in jit; 0 // 0 is
# -1. Unsigned types give all ones. % 0 is 0 for all, so neither q * b + r = a nor |r| < |b|
# holds. lax.div gives -1 and lax.rem the dividend. The least integer // -1 is itself. No warning.
# Why: // takes XLA's -1 and, as the remainder is not 0 and the signs seem to differ, subtracts
# the 1 that rounding down needs.
# For us: our floor_divide and remainder give 0 for a divisor of 0 (crates/ops, table/maths.rs),
# as NumPy does, so comparisons with JAX need other divisors. Whoever builds a floor division from
# a truncating one, in a kernel or in the JIT, has to look at the divisor before correcting by 1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'jax==0.10.2' 'jaxlib==0.10.2' 'ml_dtypes==0.6.0' \
    'numpy==2.4.6' 'scipy==1.17.1' 'opt_einsum==3.4.0'
JAX_PLATFORMS=cpu "$work/venv/bin/python" -W ignore - <<'END'
import sys
import jax, jax.numpy as jnp, numpy as np

ways = {
    "NumPy //": lambda a, b: np.asarray(a) // np.asarray(b), "NumPy %": lambda a, b: np.asarray(a) % np.asarray(b),
    "//": lambda a, b: a // b, "jit //": jax.jit(lambda a, b: a // b), "divmod": lambda a, b: jnp.divmod(a, b)[0],
    "%": lambda a, b: a % b, "lax.div": jax.lax.div, "lax.rem": jax.lax.rem,
}
signed, unsigned = [7, 1, 0, -7], [7, 1, 0, 9]
wanted = {
    "int8": {"//": [-2, -2, -1, -2], "%": [0] * 4, "lax.div": [-1] * 4, "lax.rem": signed},
    "int32": {"//": [-2, -2, -1, -2], "%": [0] * 4, "lax.div": [-1] * 4, "lax.rem": signed},
    "uint8": {"//": [255] * 4, "%": [0] * 4, "lax.div": [255] * 4, "lax.rem": unsigned},
}
changed = []
for name, expected in wanted.items():
    a = jnp.array(unsigned if name[0] == "u" else signed, name)
    expected |= {"NumPy //": [0] * 4, "NumPy %": [0] * 4, "jit //": expected["//"], "divmod": expected["//"]}
    for way, function in ways.items():
        seen = np.asarray(function(a, jnp.zeros(4, name))).tolist()
        print(f"{name:6} {a.tolist()!s:16} {way:9} 0 = {seen}")
        if seen != expected[way]:
            changed.append((name, way))
least = int((jnp.array([-(2**31)], jnp.int32) // -1)[0])
print(f"int32  -2^31 // -1 = {least}")
if changed or least != -(2**31):
    sys.exit(f"changed: {changed} {least}")
END
