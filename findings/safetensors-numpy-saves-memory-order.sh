#!/usr/bin/env bash
# safetensors.numpy writes a transposed array with the new shape and the old bytes: what comes back
# is another matrix, without an error.
#
# Versions: safetensors 0.8.0, numpy 2.4.6 (and safetensors 0.4.5 beside it).
# Expected: save() writes the elements in the order of the format (row-major) or refuses what is
# not contiguous, as safetensors.torch does.
# Seen: save({"w": a.T}) of a 2 x 3 array a stores shape [3, 2] and the bytes of a, so loading gives
# a.reshape(3, 2). An array in Fortran order (SciPy and LAPACK return such) is damaged in the same
# way. safetensors 0.4.5 wrote both correctly. A big-endian array is still converted.
# Why: the data are taken by the array's address now, where 0.4.5 called tobytes(), which orders.
# For us: our writer takes views with strides and must gather; our tests must not make their input
# files by this library from transposed arrays without numpy.ascontiguousarray. A weight that is off
# in a file written by Python may have been written so, above all where the matrix is square.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for version in 0.4.5 0.8.0; do
    python3 -m venv "$work/$version"
    "$work/$version/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
        --no-compile "safetensors==$version" 'numpy==2.4.6'
done
cat > "$work/probe.py" <<'END'
import sys
import numpy as np, safetensors
from safetensors.numpy import load, save

version, order_is_kept = sys.argv[1], sys.argv[2] == "kept"
a = np.arange(6, dtype=np.float32).reshape(2, 3)
assert safetensors.__version__ == version
for name, x in (("a", a), ("a.T", a.T), ("Fortran order", np.asfortranarray(a)),
                ("big-endian", a.astype(">f4")), ("ascontiguousarray(a.T)", np.ascontiguousarray(a.T))):
    y = load(save({"w": x}))["w"]
    equal = bool(np.array_equal(x, y))
    print(f"safetensors {version}: {name:22} {x.tolist()} -> {y.tolist()}{'' if equal else '  DIFFERENT'}")
    damaged = name in ("a.T", "Fortran order") and not order_is_kept
    if equal == damaged:
        sys.exit(f"changed: {name} in safetensors {version}")
    if damaged and y.ravel().tolist() != x.ravel(order="K").tolist():
        sys.exit(f"changed: {name} is damaged in another way")
END
"$work/0.4.5/bin/python" "$work/probe.py" 0.4.5 kept
"$work/0.8.0/bin/python" "$work/probe.py" 0.8.0 lost
