#!/usr/bin/env bash
# In a Taichi kernel NaN != NaN is false in any mode; by default Inf - Inf is 0 and (1 + 1e8) - 1e8
# is 1; and the integer power 2 ** -1 is 2.
#
# Version: taichi 1.7.4, numpy 2.4.6; on the processor, fast_math as ti.init() has it.
# Expected: float32 arithmetic of IEEE 754 unless something is asked for: NaN, NaN and 0, since 1e8
# has a unit in the last place of 8; 2 ** -1 an error, or 0, as in C.
# Seen: with the defaults x != x is 0 for NaN, where ti.math.isnan is 1; NaN * 0, Inf * 0 and Inf -
# Inf are 0; (1 + 1e8) - 1e8 is 1. With fast_math=False the latter are NaN, NaN, NaN and 0, but x !=
# x stays 0. max(NaN, 1) and max(1, NaN) are 1 in both modes. Whatever the mode: 2 ** -1 of int32 is
# 2 and 3 ** -2 is 9; round(2.5) is 3, where Python and NumPy have 2; float to uint8 wraps; x = 1
# followed by x = 2.9 leaves 2.
# Likely why: fast_math lets LLVM assume that there are neither NaN nor Inf and reorder sums; a
# comparison of a value with itself is replaced before LLVM; the power takes the exponent's
# magnitude.
# For us: a simulation that looks for its own blow-up by x != x finds none. Numbers of Taichi
# kernels are compared with ours only under fast_math=False, and NaN by isnan. Our JIT (crates/jit)
# never reorders.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'taichi==1.7.4' 'numpy==2.4.6' 'colorama==0.4.6' 'dill==0.4.1' 'rich==15.0.0' 'markdown-it-py==4.2.0' \
    'mdurl==0.1.2' 'pygments==2.20.0'
cat > "$work/kernels.py" <<'END'
import sys
import taichi as ti

is_fast = sys.argv[1] == "fast"
ti.init(arch=ti.cpu, cpu_max_num_threads=1, log_level=ti.ERROR, offline_cache=False, **({} if is_fast else {"fast_math": False}))
nan, inf = float("nan"), float("inf")


@ti.kernel
def differs(x: ti.f32) -> ti.i32:
    return x != x


@ti.kernel
def is_nan(x: ti.f32) -> ti.i32:
    return ti.math.isnan(x)


@ti.kernel
def by_zero(x: ti.f32) -> ti.f32:
    return x * 0.0


@ti.kernel
def less_itself(x: ti.f32) -> ti.f32:
    return x - x


@ti.kernel
def there_and_back(x: ti.f32) -> ti.f32:
    return (x + 1e8) - 1e8


@ti.kernel
def largest(x: ti.f32, y: ti.f32) -> ti.f32:
    return ti.max(x, y)


@ti.kernel
def power(x: ti.i32, y: ti.i32) -> ti.i32:
    return x ** y


@ti.kernel
def rounded(x: ti.f32) -> ti.f32:
    return ti.round(x)


@ti.kernel
def as_byte(x: ti.f32) -> ti.i32:
    return ti.cast(ti.cast(x, ti.u8), ti.i32)


@ti.kernel
def assigned_twice() -> ti.f32:
    x = 1
    x = 2.9
    return x


rows = [  # what, seen, with fast_math, without
    ("NaN != NaN", differs(nan), 0, 0), ("isnan(NaN)", is_nan(nan), 1, 1), ("NaN * 0", by_zero(nan), 0.0, nan),
    ("Inf * 0", by_zero(inf), 0.0, nan), ("Inf - Inf", less_itself(inf), 0.0, nan),
    ("(1 + 1e8) - 1e8", there_and_back(1.0), 1.0, 0.0),
    ("max(NaN, 1)", largest(nan, 1.0), 1.0, 1.0), ("max(1, NaN)", largest(1.0, nan), 1.0, 1.0),
    ("2 ** -1", power(2, -1), 2, 2), ("3 ** -2", power(3, -2), 9, 9), ("round(2.5)", rounded(2.5), 3.0, 3.0),
    ("300.0 and -1.5 as uint8", [as_byte(300.0), as_byte(-1.5)], [44, 255], [44, 255]),
    ("x = 1; x = 2.9", assigned_twice(), 2.0, 2.0),
]
changed = []
for name, seen, fast, exact in rows:
    print(f"{'fast_math' if is_fast else 'without':10} {name:24} {seen}")
    if str(seen) != str(fast if is_fast else exact):
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
export TI_LOG_LEVEL=error HOME="$work"
"$work/venv/bin/python" -W ignore "$work/kernels.py" fast
"$work/venv/bin/python" -W ignore "$work/kernels.py" exact
