#!/usr/bin/env bash
# In a Warp kernel // rounds down, as in Python, and % has the sign of the dividend, as in C: of
# integers below zero (a // b) * b + a % b is not a.
#
# Versions: warp-lang 1.19.0, numpy 2.4.6, on the device "cpu".
# Expected: Python's operators in a Python kernel are a pair, both of Python's kind (as in Taichi
# and in numba-cuda) or both of C's (as in Triton).
# Seen: -7 // 2 = -4 and -7 % 2 = -1, for 32-bit integers and floats: the identity gives -9.
# Evaluated outside a kernel the same lines give -4 and 1.
# Also: wp.sign(0.0) is 1, wp.min, wp.max and wp.clamp drop a NaN.
# For us: kernels ported between GPU languages of Python change at negative indices and offsets
# (wrap-around, periodic boundaries) without an error. Our op for the remainder needs its rule in
# its name, and a parity test with operands of all four sign pairs.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'warp-lang==1.19.0' 'numpy==2.4.6'
# Warp reads a kernel's source, so it stands in a file.
cat > "$work/probe.py" <<'END'
import sys
import numpy as np, warp as wp

wp.config.quiet = True
wp.config.kernel_cache_dir = sys.argv[1] + "/cache"
wp.init()


@wp.kernel
def integers(a: wp.array(dtype=int), b: wp.array(dtype=int), q: wp.array(dtype=int), r: wp.array(dtype=int)):
    i = wp.tid()
    q[i] = a[i] // b[i]
    r[i] = a[i] % b[i]


@wp.kernel
def floats(a: wp.array(dtype=float), b: wp.array(dtype=float), q: wp.array(dtype=float), r: wp.array(dtype=float)):
    i = wp.tid()
    q[i] = a[i] // b[i]
    r[i] = a[i] % b[i]


@wp.kernel
def others(x: wp.array(dtype=float), o: wp.array(dtype=float)):
    o[0] = wp.sign(x[0])
    o[1] = wp.min(x[1], 1.0)
    o[2] = wp.max(1.0, x[1])
    o[3] = wp.clamp(x[1], 0.0, 1.0)


def array(values, element):
    return wp.array(values, dtype=element, device="cpu")


a, b = [-7, 7, -7, 7], [2, -2, -3, 3]
changed = []
for kernel, element in ((integers, int), (floats, float)):
    q, r = array([0] * 4, element), array([0] * 4, element)
    wp.launch(kernel, 4, [array(a, element), array(b, element), q, r], device="cpu")
    q, r = q.numpy().tolist(), r.numpy().tolist()
    for k in range(4):
        print(f"{element.__name__:5} {a[k]:2} // {b[k]:2} = {q[k]:4}  {a[k]:2} % {b[k]:2} = {r[k]:4}  "
              f"q * b + r = {q[k] * b[k] + r[k]:5}  Python {a[k] // b[k]:2} and {a[k] % b[k]:2}")
    if q != [-4, -4, 2, 2] or r != [-1, 1, -1, 1]:
        changed.append(element.__name__)
o = array([0] * 4, float)
wp.launch(others, 1, [array([0.0, float("nan")], float), o], device="cpu")
print("sign(0), min(NaN, 1), max(1, NaN), clamp(NaN, 0, 1) =", o.numpy().tolist())
if o.numpy().tolist() != [1, 1, 1, 0]:
    changed.append("sign, min, max, clamp")
if changed:
    sys.exit(f"changed: {changed}")
END
"$work/venv/bin/python" "$work/probe.py" "$work"
