#!/usr/bin/env bash
# In tinygrad an index outside a tensor reads 0, a label outside the classes has the loss 0, and the
# tensor of 2**40 is 0.
#
# Version: tinygrad 0.14.0, with DEV=PYTHON, which interprets the kernels of all devices.
# Expected: an error, or the clamping of JAX; -1 counts from the end, as in t[-1]; numbers that do
# not fit are refused or widen the type, as NumPy's do.
# Seen: t[Tensor([-1, 3, -4])] of three is its last element, 0, 0, while gather and an index that is
# a Python int know no -1 and no 3: 0 and IndexError. A token outside an embedding is a row of
# zeros; scatter drops what lies outside. sparse_categorical_crossentropy of class 5 of 2 is 0, a
# perfect score. Tensor([2**40]) is the int32 0 and 2**31 is -2147483648; 300 + uint8 wraps. The
# mean of two int32 of 2^31 - 1 is -1. sum of int8 is int32, a matrix product of int8 is int8: 127 *
# 127 twice is 2, not 32258. uint64 + int64 is a float, 2^53 + 1 becomes 2^53.
# Why: an index is a comparison with all positions, times the elements, summed; Python's integers
# take the default type before anything looks at their size.
# For us: our ops give 0 for such indices and labels as well, and a checked plan reports them
# (indexing.rs and classes.rs of crates/ops); tinygrad has no such check, so equal results prove
# nothing about ids. As a reference it needs int64 given by hand.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'tinygrad==0.14.0'
DEV=PYTHON CACHELEVEL=0 XDG_CACHE_HOME="$work" "$work/venv/bin/python" -W ignore - <<'END'
import sys
from tinygrad import Tensor, dtypes

numbers = Tensor([10, 20, 30])
most = 2**31 - 1
int8 = lambda values: Tensor(values, dtype=dtypes.int8)


def by_int(at):
    try:
        return numbers[at].tolist()
    except IndexError:
        return "IndexError"


rows = [
    ("t[-1, 3, -4]", numbers[Tensor([-1, 3, -4])].tolist(), [30, 0, 0]),
    ("t[3]", by_int(3), "IndexError"),
    ("gather of -1, 3, 2", numbers.gather(0, Tensor([-1, 3, 2])).tolist(), [0, 0, 30]),
    ("scatter to 5 and 0", Tensor.zeros(3, dtype=dtypes.int).scatter(0, Tensor([5, 0]), Tensor([7, 8])).tolist(), [8, 0, 0]),
    ("rows 1 and 2 of two", Tensor([[1.0, 2.0], [3.0, 4.0]])[Tensor([1, 2])].tolist(), [[3.0, 4.0], [0.0, 0.0]]),
    ("loss of class 1 of 2", round(Tensor([[1.0, 2.0]]).sparse_categorical_crossentropy(Tensor([1])).item(), 4), 0.3133),
    ("loss of class 5 of 2", Tensor([[1.0, 2.0]]).sparse_categorical_crossentropy(Tensor([5])).item(), 0.0),
    ("Tensor([2**40, 2**31])", Tensor([2**40, 2**31]).tolist(), [0, -(2**31)]),
    ("the same as int64", Tensor([2**40, 2**31], dtype=dtypes.int64).tolist(), [2**40, 2**31]),
    ("uint8 1 + 300", (Tensor([1], dtype=dtypes.uint8) + 300).tolist(), [45]),
    ("mean of int32", Tensor([most, most]).mean().item(), -1.0),
    ("sum of int8 products", (int8([127, 127]) * int8([127, 127]).cast(dtypes.int32)).sum().item(), 32258),
    ("sum of int8", int8([127, 127]).sum().item(), 254),
    ("int8 matrix product", (int8([[127, 127]]) @ int8([[127], [127]])).tolist(), [[2]]),
    ("uint64 + int64", (Tensor([2**53 + 1], dtype=dtypes.uint64) + Tensor([0], dtype=dtypes.int64)).tolist(), [2.0**53]),
]
changed = []
for name, seen, wanted in rows:
    print(f"{name:24} {seen}")
    if seen != wanted or type(seen) is not type(wanted):
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
