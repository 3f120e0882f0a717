#!/usr/bin/env bash
# numpy.sort of a bfloat16 or FP8 array with a NaN returns it unsorted, whichever algorithm is asked
# for; unique() keeps repeats, median() can miss the NaN.
#
# Versions: ml_dtypes 0.6.0, numpy 2.4.6.
# Expected: NaN goes to the end, as numpy documents for its floating types, float16 among them, and
# the numbers before it ascend; max() knows the types' NaN, so sorting does.
# Seen: [3, NaN, 1, 2, NaN, 0] stays as it is, and argsort is 0 to 5. [4, 3, NaN, 1, 0] sorts to
# [3, 4, NaN, 0, 1]. unique of 1, NaN, 1 is [1, NaN, 1]. median([3, 1, 2, NaN]) is 2.5, in float16
# NaN. kind="stable" and kind="heapsort" do the same. searchsorted puts a NaN in front of 1. argmax
# and max see the NaN, as for float16. Without NaN all are right. No exception.
# Why: the order of these types is that of less-than alone, by which a NaN equals every number, so
# nothing moves past it; numpy's own types compare with a rule for NaN.
# For us: references for sort, top-k, quantiles and unique widen to float32 first; tests with NaN
# against ml_dtypes fail for its sake. A NaN in a reference's input shows as wrong neighbours.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'ml_dtypes==0.6.0' 'numpy==2.4.6'
"$work/venv/bin/python" -W ignore - <<'END'
import sys
import ml_dtypes, numpy as np

nan = float("nan")
text = lambda values: "[" + ", ".join(f"{float(v):g}" for v in np.atleast_1d(values)) + "]"
rows = {
    "sort": lambda a: np.sort(a([3, nan, 1, 2, nan, 0])),
    "sort, stable": lambda a: np.sort(a([3, nan, 1, 2, nan, 0]), kind="stable"),
    "sort, heapsort": lambda a: np.sort(a([3, nan, 1, 2, nan, 0]), kind="heapsort"),
    "argsort": lambda a: np.argsort(a([3, nan, 1, 2, nan, 0]), kind="stable"),
    "sort of 5": lambda a: np.sort(a([4, 3, nan, 1, 0])),
    "unique": lambda a: np.unique(a([1, nan, 1])),
    "median": lambda a: np.median(a([3, 1, 2, nan])),
    "searchsorted": lambda a: np.searchsorted(a([1, 2, 3]), a([nan])),
    "max": lambda a: np.max(a([3, nan, 1])),
    "argmax": lambda a: np.argmax(a([3, nan, 1])),
    "sort without NaN": lambda a: np.sort(a([3, 1, 2, 0])),
}
wanted = {
    "sort": ("[0, 1, 2, 3, nan, nan]", "[3, nan, 1, 2, nan, 0]"),
    "sort, stable": ("[0, 1, 2, 3, nan, nan]", "[3, nan, 1, 2, nan, 0]"),
    "sort, heapsort": ("[0, 1, 2, 3, nan, nan]", "[3, nan, 1, 2, nan, 0]"),
    "argsort": ("[5, 2, 3, 0, 1, 4]", "[0, 1, 2, 3, 4, 5]"),
    "sort of 5": ("[0, 1, 3, 4, nan]", "[3, 4, nan, 0, 1]"),
    "unique": ("[1, nan]", "[1, nan, 1]"),
    "median": ("[nan]", "[2.5]"),
    "searchsorted": ("[3]", "[0]"),
    "max": ("[nan]", "[nan]"),
    "argmax": ("[1]", "[1]"),
    "sort without NaN": ("[0, 1, 2, 3]", "[0, 1, 2, 3]"),
}
changed = []
for name, function in rows.items():
    seen = [text(function(lambda values: np.array(values, np.float32).astype(element)))
            for element in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)]
    print(f"{name:17} float16 {seen[0]:24} bfloat16 {seen[1]:24}"
          f"{'and FP8' if seen[2:] == [seen[1]] * 2 else f'FP8 {seen[2:]}'}")
    if tuple(seen[:2]) != wanted[name] or seen[2:] != [seen[1]] * 2:
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
