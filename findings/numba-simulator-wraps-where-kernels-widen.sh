#!/usr/bin/env bash
# numba-cuda's simulator computes with the arrays' element types, compiled kernels with 64 bits:
# the square of an int32 of 70000 is 605032704 in one and 4900000000 in the other.
#
# Versions: numba-cuda 0.30.4, numba 0.68.1, numpy 2.4.6, NVVM and NVRTC 13.5.37; sm_90, no GPU.
# Expected: the simulator runs a kernel slowly, with the kernel's results.
# Seen: for a[0] * a[0], a[0] + 1, a[0] << 40 and 2 * a[0] summed, of int32, int8 and uint8, the
# simulator wraps at the element's width, with a warning at most; the kernel's PTX widens the
# element (mul.wide, or a load and shl.b64) and stores 64 bits. a[0] - a[0] - 1 of uint32 is
# 4294967295 against -1, and 10 % -7 of uint32 raises OverflowError in the simulator. A local
# int32 array wraps in both.
# Why: the simulator runs the Python function with NumPy 2's scalars, where int32 * int32 is int32
# and a literal takes the other's type; Numba types both as int64.
# For us: a kernel's index arithmetic that overflows under the simulator is right on the GPU, and
# the reverse: no oracle for `fercuda check`, whose software device runs the PTX itself. Numba's
# kernels address with 64 bits where CUDA C++ would with 32.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'numba-cuda==0.30.4' 'numba==0.68.1' 'llvmlite==0.50.0' 'numpy==2.4.6' 'cuda-bindings==13.5.0' \
    'cuda-core==1.2.2' 'cuda-pathfinder==1.9.1' 'nvidia-nvvm==13.5.37' 'nvidia-cuda-nvrtc==13.5.37' \
    'nvidia-cuda-runtime==13.5.37' 'packaging==26.4'
cat > "$work/kernels.py" <<'END'
import re, sys, warnings
import numba, numpy as np
from numba import cuda

warnings.simplefilter("ignore")


def square(a, o):
    o[0] = a[0] * a[0]


def next_one(a, o):
    o[0] = a[0] + 1


def shifted(a, o):
    o[0] = a[0] << 40


def summed(a, o):
    total = 0
    for _ in range(2):
        total += a[0]
    o[0] = total


def below(a, o):
    o[0] = a[0] - a[0] - 1


def remainder(a, o):
    o[0] = a[0] % -7


def local(a, o):
    t = cuda.local.array(1, "int32")
    t[0] = a[0] * a[0]
    o[0] = t[0]


ROWS = [  # kernel, element, value, simulator, what the PTX computes with
    (square, "int32", 70000, 605032704, r"mul\.wide\.s32"), (square, "int8", 100, 16, r"mul\.wide\.s32"),
    (square, "uint8", 200, 64, r"mul\.wide\.u32"), (next_one, "int32", 2**31 - 1, -(2**31), r"add\.s64"),
    (next_one, "uint8", 255, 0, r"add\.s64"), (shifted, "int32", 1, 0, r"shl\.b64"),
    (summed, "uint8", 200, 144, r"mul\.wide\.u32"), (below, "uint32", 5, 4294967295, r"mov\.b?[us]?64\s+\S+, -1"),
    (remainder, "uint32", 10, "OverflowError", r"selp\.b64"), (local, "int32", 70000, 605032704, r"mul\.lo\.s32"),
]
changed = []
for kernel, element, value, simulated, instruction in ROWS:
    name = f"{kernel.__name__} of {element} {value}"
    if sys.argv[1] == "simulate":
        o = np.zeros(1, np.int64)
        try:
            cuda.jit(kernel)[1, 1](np.array([value], element), o)
            seen = int(o[0])
        except OverflowError:
            seen = "OverflowError"
        print(f"simulator {name:28} {seen}")
        is_same = seen == simulated
    else:
        signature = (numba.from_dtype(np.dtype(element))[:], numba.int64[:])
        ptx, _ = cuda.compile(kernel, signature, cc=(9, 0))
        found = re.search(instruction, ptx)
        print(f"kernel    {name:28} {found and ' '.join(found.group().split())}")
        is_same = bool(found) and bool(re.search(r"st(\.global)?\.[bu]64", ptx))
    if not is_same:
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
NUMBA_ENABLE_CUDASIM=1 "$work/venv/bin/python" "$work/kernels.py" simulate
"$work/venv/bin/python" "$work/kernels.py" compile
