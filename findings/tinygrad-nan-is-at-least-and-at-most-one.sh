#!/usr/bin/env bash
# In tinygrad NaN >= 1 and NaN <= 1 are true, argmax of three numbers can be 3, and sort of 3, NaN
# and 1 is 1, 3, 3.
#
# Version: tinygrad 0.14.0, with DEV=PYTHON, which interprets the kernels of all devices.
# Expected: comparisons with NaN are false but "!="; max is NaN or passes over it; argmax is an
# index of the tensor; sort returns the numbers that it was given.
# Seen: NaN >= 1 and NaN <= 1 are true, > and < false. max of (1, NaN, 2) and of (1, 2, NaN) is 2,
# of (NaN, 1, 2) NaN, and maximum(1, NaN) is 1 where maximum(NaN, 1) is NaN. argmax of (NaN, 1, 2)
# is 3 and of two NaN 2: one past the end. sort of (3, NaN, 1) is (1, 3, 3) with the indices 2, 0,
# 0; with a NaN in front all become NaN. relu(NaN) is 0, sign(NaN) is 1.
# Why: "a >= b" is "not a < b"; a maximum is "a < b ? b : a"; argmax takes the maximum of descending
# numbers where the element equals the maximum, which NaN does not, and subtracts it from the
# length; sort's indices are looked up by equality.
# For us: a greedy choice over logits with a NaN is a token beyond the vocabulary there. Our sort
# (crates/kernels, sort.rs) has NaN last and loses nothing.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'tinygrad==0.14.0'
DEV=PYTHON CACHELEVEL=0 XDG_CACHE_HOME="$work" "$work/venv/bin/python" -W ignore - <<'END'
import sys
from tinygrad import Tensor

nan = float("nan")


def one(x):
    return x.item()


rows = [
    ("NaN >= 1, <= 1, > 1, < 1", [one(Tensor([nan]) >= 1), one(Tensor([nan]) <= 1), one(Tensor([nan]) > 1),
                                  one(Tensor([nan]) < 1)], [True, True, False, False]),
    ("NaN == NaN, 1 <= NaN", [one(Tensor([nan]) == nan), one(Tensor([1.0]) <= nan)], [False, True]),
    ("max of (1, NaN, 2)", one(Tensor([1.0, nan, 2.0]).max()), 2.0),
    ("max of (NaN, 1, 2)", one(Tensor([nan, 1.0, 2.0]).max()), nan),
    ("max of (1, 2, NaN)", one(Tensor([1.0, 2.0, nan]).max()), 2.0),
    ("maximum(1, NaN)", one(Tensor([1.0]).maximum(Tensor([nan]))), 1.0),
    ("maximum(NaN, 1)", one(Tensor([nan]).maximum(Tensor([1.0]))), nan),
    ("argmax of (1, NaN, 2)", one(Tensor([1.0, nan, 2.0]).argmax()), 2),
    ("argmax of (NaN, 1, 2)", one(Tensor([nan, 1.0, 2.0]).argmax()), 3),
    ("argmax of (NaN, NaN)", one(Tensor([nan, nan]).argmax()), 2),
    ("sort of (3, NaN, 1)", [part.tolist() for part in Tensor([3.0, nan, 1.0]).sort()], [[1.0, 3.0, 3.0], [2, 0, 0]]),
    ("sort of (3, 2, 1)", [part.tolist() for part in Tensor([3.0, 2.0, 1.0]).sort()], [[1.0, 2.0, 3.0], [2, 1, 0]]),
    ("sort of (NaN, 3, 1)", Tensor([nan, 3.0, 1.0]).sort()[0].tolist(), [nan, nan, nan]),
    ("relu and sign of NaN", [one(Tensor([nan]).relu()), one(Tensor([nan]).sign())], [0.0, 1.0]),
]
changed = []
for name, seen, wanted in rows:
    print(f"{name:26} {seen}")
    if str(seen) != str(wanted):
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
