#!/usr/bin/env bash
# jax.lax.top_k on the CPU ranks a NaN first or last by its sign bit, and the NaN of 0/0 is the
# one that comes last; it also ranks 0.0 above -0.0. argmax, sort and max do neither.
#
# Versions: jax 0.10.2, numpy 2.4.6, x86-64.
# Expected: one rule for all: NaN is the largest, as argmax, max and sort have it, and equal
# numbers keep their order, zeros among them.
# Seen: top_k([1, NaN], 1) is NaN when the NaN is jnp.nan, and 1 when it is 0/0 or inf - inf
# computed by JAX on x86-64, whose NaN has the sign bit set. argmax names the NaN in both cases
# and sort puts it last. top_k of [-0, 0, -0, 0] gives the places 1, 3, 0, 2; argmax gives 0 and
# argsort 0 to 3. The same in float16, bfloat16 and float8_e4m3fn.
# Why: top_k compares bit patterns as integers (a total order), the others compare numbers.
# For us: a sampler's top-k can lose a NaN that argmax would show, depending on its sign. Rust's
# total_cmp is the same order: sampler.rs of crates/llm sorts weights, from which NaN is gone, but
# sparsemax's reference (crates/ops, table/norms.rs) sorts values and depends on a NaN's sign.
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

zero_by_zero = jax.jit(lambda x: x / x)(jnp.float32(0))
inf_minus_inf = jax.jit(lambda x: x - x)(jnp.float32(jnp.inf))
changed = []
for name, nan, sign, first in (("jnp.nan", jnp.float32(jnp.nan), False, 1), ("0/0", zero_by_zero, True, 0),
                               ("inf - inf", inf_minus_inf, True, 0)):
    for element in (jnp.float32, jnp.float16, jnp.bfloat16, jnp.float8_e4m3fn):
        x = jnp.stack([jnp.float32(1), nan, jnp.float32(-1)]).astype(element)
        seen = (bool(np.signbit(np.asarray(nan))), int(jax.lax.top_k(x, 1)[1][0]), int(jnp.argmax(x)),
                bool(jnp.isnan(jnp.max(x))), bool(jnp.isnan(jnp.sort(x)[2])))
        print(f"[1, {name}, -1] in {element.__name__:14} sign bit {seen[0]!s:6} top_k {seen[1]} argmax {seen[2]}"
              f" max is NaN {seen[3]} sorted last {seen[4]}")
        if seen != (sign, first, 1, True, True):
            changed.append((name, element.__name__))
for element in (jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn):
    x = jnp.array([-0.0, 0.0, -0.0, 0.0], element)
    seen = (jax.lax.top_k(x, 4)[1].tolist(), int(jnp.argmax(x)), jnp.argsort(x, descending=True).tolist())
    print(f"[-0, 0, -0, 0] in {element.__name__:14} top_k {seen[0]} argmax {seen[1]} argsort {seen[2]}")
    if seen != ([1, 3, 0, 2], 0, [0, 1, 2, 3]):
        changed.append(("zeros", element.__name__))
if changed:
    sys.exit(f"changed: {changed}")
END
