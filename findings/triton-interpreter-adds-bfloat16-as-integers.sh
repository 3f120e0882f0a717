#!/usr/bin/env bash
# In Triton's interpreter 1 + 1 of bfloat16 is 1.7e38, in silence: it adds, compares and sorts the
# codes as integers.
#
# Versions: triton 3.9.0, numpy 2.4.6, ml_dtypes 0.6.0.
# Expected: an error, as Triton's documentation says that the interpreter does not support
# operations on bfloat16; or the numbers, as all of float16's are right.
# Seen: x + x of 1 is 1.7e38 (code 0x3f80 twice), x * x of 1 is 2, -x of 1 is -4. sum of four ones
# is -4.25e37. sort of 1, 2, -3, 4 is 1, 2, 4, -3 and argmax names -3, as its code is the largest;
# x > 0 holds for -3. max and min are right, so is x / 2. Comparing with -1.0 raises. float16, and
# sums of x.to(float32), are right.
# Why: NumPy has no bfloat16, so that the interpreter keeps codes in uint16, and its operators are
# NumPy's on what is kept; max, min and division convert first.
# For us: users who check a kernel here before `fercuda check` see other wrong numbers than ours.
# Where we keep codes in integers (Rust's u16 for bf16), every operator must be on a type of its
# own.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'triton==3.9.0' 'numpy==2.4.6' 'ml_dtypes==0.6.0'
cat > "$work/interpret.py" <<'END'
import sys
import ml_dtypes, numpy as np, triton, triton.language as tl


@triton.jit
def compute(source, result, T: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, 4)
    x = tl.load(source.to(tl.pointer_type(T), bitcast=True) + i)
    r = result.to(tl.pointer_type(tl.float32), bitcast=True)
    if OP == "x + x":
        tl.store(r + i, (x + x).to(tl.float32))
    elif OP == "x * x":
        tl.store(r + i, (x * x).to(tl.float32))
    elif OP == "-x":
        tl.store(r + i, (-x).to(tl.float32))
    elif OP == "x / 2":
        tl.store(r + i, (x / 2).to(tl.float32))
    elif OP == "x > 0":
        tl.store(r + i, tl.where(x > 0, 1.0, 0.0))
    elif OP == "sort":
        tl.store(r + i, tl.sort(x).to(tl.float32))
    elif OP == "sum":
        tl.store(r + i, tl.sum(x, 0).to(tl.float32))
    elif OP == "sum of float32":
        tl.store(r + i, tl.sum(x.to(tl.float32), 0))
    elif OP == "max":
        tl.store(r + i, tl.max(x, 0).to(tl.float32))
    elif OP == "argmax":
        tl.store(r + i, tl.argmax(x, 0).to(tl.float32))


def run(values, kind, element, operation):
    x, result = np.array(values, np.float32).astype(element), np.zeros(4, np.float32)
    compute[(1,)](x.ctypes.data, result.ctypes.data, kind, operation)
    return [f"{value:.3g}" for value in result.tolist()]


ones, mixed = [1, 1, 1, 1], [1, 2, -3, 4]
rows = [  # values, operation, float16, bfloat16
    (ones, "x + x", ["2"] * 4, ["1.7e+38"] * 4), (ones, "x * x", ["1"] * 4, ["2"] * 4),
    (ones, "-x", ["-1"] * 4, ["-4"] * 4), (ones, "sum", ["4"] * 4, ["-4.25e+37"] * 4),
    (ones, "sum of float32", ["4"] * 4, ["4"] * 4), (mixed, "x / 2", ["0.5", "1", "-1.5", "2"], None),
    (mixed, "x > 0", ["1", "1", "0", "1"], ["1"] * 4),
    (mixed, "sort", ["-3", "1", "2", "4"], ["1", "2", "4", "-3"]),
    (mixed, "max", ["4"] * 4, None), (mixed, "argmax", ["3"] * 4, ["2"] * 4),
]
changed = []
for values, operation, half, brain in rows:
    seen = run(values, tl.float16, np.float16, operation), run(values, tl.bfloat16, ml_dtypes.bfloat16, operation)
    print(f"{values!s:14} {operation:15} float16 {' '.join(seen[0]):16} bfloat16 {' '.join(seen[1])}")
    if seen != (half, brain or half):
        changed.append(operation)
if changed:
    sys.exit(f"changed: {changed}")
END
TRITON_INTERPRET=1 "$work/venv/bin/python" -W ignore "$work/interpret.py"
