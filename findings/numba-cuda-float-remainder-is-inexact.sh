#!/usr/bin/env bash
# In a numba-cuda kernel a % b of floats is not a remainder: the steps that it compiles to give 64
# for float32 1e9 % 7, and 0 for 5 % 0.1; math.fmod, constants and the simulator are exact.
#
# Versions: numba-cuda 0.30.4, numba 0.68.1, numpy 2.4.6, NVVM and NVRTC 13.5.37; sm_90, no GPU.
# Expected: the remainder of two floats is exact and below the divisor, as in Python, in NumPy, in
# Numba on a processor and by fmod of CUDA.
# Seen: the PTX of a % b is abs, div.rn, cvt.rmi (floor), mul and sub, for float32 and float64,
# without a loop: |a| - floor(|a| / |b|) * |b|, each rounded. In NumPy these steps make 64 of
# float32 1e9 and 7 (48 if mul and sub are fused), where 6 is right; 0 or -6144 of float64 1e20 and
# 7, where 2 is; and 0 of float32 5 and 0.1, where 0.1 less a little is. Two constants in the kernel
# are computed exactly by the compiler, math.fmod has its loop, and with NUMBA_ENABLE_CUDASIM=1 %
# gives 6.
# Why: Numba emits LLVM's frem, and NVVM has no instruction for it, so it expands it in one step,
# good for quotients that are exact in the type.
# For us: phases, angles and hashes by % go wrong on the GPU alone once the quotient is beyond 2^24.
# fercuda check runs the PTX and shows the GPU's number. Our remainder (crates/ops, table/maths.rs)
# is exact.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'numba-cuda==0.30.4' 'numba==0.68.1' 'llvmlite==0.50.0' 'numpy==2.4.6' 'cuda-bindings==13.5.0' \
    'cuda-core==1.2.2' 'cuda-pathfinder==1.9.1' 'nvidia-nvvm==13.5.37' 'nvidia-cuda-nvrtc==13.5.37' \
    'nvidia-cuda-runtime==13.5.37' 'packaging==26.4'
cat > "$work/kernels.py" <<'END'
import math, re, struct, sys, warnings
import numpy as np
from numba import cuda

warnings.simplefilter("ignore")


def modulo(a, b, o):
    o[0] = a[0] % b[0]


def floored(a, b, o):
    o[0] = a[0] // b[0]


def by_fmod(a, b, o):
    o[0] = math.fmod(a[0], b[0])


def constant(a, b, o):
    o[0] = np.float32(1e9) % np.float32(7)


changed = []


def row(what, seen, wanted):
    print(f"{what:52} {seen}")
    if seen != wanted:
        changed.append(what)


def array(value, dtype=np.float32):
    return np.array([value], dtype)


def by_steps(a, b, dtype, is_fused=False):
    """The remainder of positive numbers by the steps of the PTX, each rounded to the type."""
    a, b = dtype(a), dtype(b)
    whole = np.floor(a / b)
    if is_fused:
        from fractions import Fraction
        return float(dtype(float(Fraction(float(a)) - Fraction(float(whole)) * Fraction(float(b)))))
    return float(a - whole * b)


if sys.argv[1] == "simulate":
    for kernel, wanted in ((modulo, 6.0), (by_fmod, 6.0), (floored, 142857136.0)):
        out = np.zeros(1, np.float32)
        cuda.jit(kernel)[1, 1](array(1e9), array(7), out)
        row(f"simulator, {kernel.__name__} of float32 1e9 and 7", float(out[0]), wanted)
else:
    from numba import float32, float64

    def steps(kernel, element):
        ptx = cuda.compile_ptx(kernel, (element[::1],) * 3, cc=(9, 0))[0]
        names = re.findall(r"^\s+(abs|div\.\w+|cvt\.rmi|mul|sub|bra|rem)(?:\.\w+)*\s", ptx.replace("@%p", "\n @%p"), re.M)
        return names, ptx

    for element in (float32, float64):
        names, ptx = steps(modulo, element)
        row(f"PTX of a % b of {element}", names, ["abs", "abs", "div.rn", "cvt.rmi", "mul", "sub"])
    names, ptx = steps(by_fmod, float32)
    row("PTX of math.fmod has a loop", len(re.findall(r"bra", ptx)) > 2, True)
    names, ptx = steps(constant, float32)
    stored = re.findall(r"mov\.b?[us]?32\s+%r\d+, (-?\d+);", ptx)
    row("constants in the kernel", [struct.unpack("f", struct.pack("i", int(it)))[0] for it in stored], [6.0])
    row("those steps for float32 1e9 % 7", by_steps(1e9, 7, np.float32), 64.0)
    row("with one rounding of mul and sub", by_steps(1e9, 7, np.float32, True), 48.0)
    row("those steps for float64 1e20 % 7", [by_steps(1e20, 7, np.float64, it) for it in (False, True)], [0.0, -6144.0])
    row("those steps for float32 5 % 0.1", by_steps(5, 0.1, np.float32), 0.0)
    exact = [np.float32(1e9) % np.float32(7), np.float64(1e20) % np.float64(7), np.float32(5) % np.float32(0.1)]
    row("NumPy", [round(float(it), 5) for it in exact], [6.0, 2.0, 0.1])
if changed:
    sys.exit(f"changed: {changed}")
END
for way in compile simulate; do
    NUMBA_ENABLE_CUDASIM=$([ "$way" = simulate ] && echo 1 || echo 0) "$work/venv/bin/python" "$work/kernels.py" "$way"
done
