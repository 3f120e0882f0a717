#!/usr/bin/env bash
# jax.numpy.from_dlpack(x, copy=True) does not copy when x's memory is aligned to 64 bytes: a later
# write to x changes the JAX array.
#
# Versions: jax and jaxlib 0.10.2, numpy 2.4.6, on the CPU backend.
# Expected: copy=True of the array API standard always copies, copy=None may share, copy=False
# shares or raises.
# Seen: at an address that is a multiple of 64 all three share, also copy=True; at any other address
# copy=None and copy=True copy and copy=False raises. Whether a JAX array is immutable thus depends
# on where an allocator happened to put the source. device_put shares in the same way; asarray and
# array copy.
# For us: buffers of the pool and of the software device are aligned to more than 64 bytes, so JAX
# always shares them, whatever was asked for. Keep the source alive as long as the JAX array lives,
# and treat copy=True of the other side as a wish; a test with a small NumPy array may pass by luck.
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


def source(offset):
    raw = np.zeros(4096, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    return raw[start:start + 64].view(np.float32)


def outcome(take, offset):
    x = source(offset)
    try:
        y = take(x)
    except ValueError:
        return "raises"
    y.block_until_ready()
    x[0] = 5
    return "shares" if float(y[0]) == 5 else "copies"


rows = {
    "from_dlpack(x)": (lambda x: jnp.from_dlpack(x), "shares", "copies"),
    "from_dlpack(x, copy=True)": (lambda x: jnp.from_dlpack(x, copy=True), "shares", "copies"),
    "from_dlpack(x, copy=False)": (lambda x: jnp.from_dlpack(x, copy=False), "shares", "raises"),
    "jax.device_put(x)": (jax.device_put, "shares", "copies"),
    "jnp.asarray(x)": (jnp.asarray, "copies", "copies"),
    "jnp.array(x)": (jnp.array, "copies", "copies"),
}
changed = []
print(f"{'':28} {'aligned to 64':14} 16 bytes further")
for name, (take, aligned, other) in rows.items():
    seen = outcome(take, 0), outcome(take, 16)
    print(f"{name:28} {seen[0]:14} {seen[1]}")
    if seen != (aligned, other):
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
