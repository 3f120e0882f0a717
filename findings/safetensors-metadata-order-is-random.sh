#!/usr/bin/env bash
# safetensors writes the entries of its metadata in a random order: one input saved twice gives two
# files, and load() returns the tensors of one file in another order at each call.
#
# Versions: safetensors 0.8.0 and 0.4.5, numpy 2.4.6.
# Expected: the format sorts its tensors, so equal tensors and equal metadata give equal bytes, in
# one process at least; load() returns the names sorted, as stored or as they were given.
# Seen: with 8 entries of metadata 20 calls of save() give some 20 different files of one size,
# within one process; with one entry, as the usual {"format": "pt"} is, or none they are equal. The
# tensors' own entries and data keep their order. PYTHONHASHSEED changes nothing. load() of five
# tensors returns dicts in many orders; load_file() returns them by name.
# Why: the metadata, and load()'s list of tensors, lie in a hash map that is seeded anew each time.
# For us: two such files are compared by their tensors and by their metadata as a set, never by a
# hash of the file; caches and deduplication by hash miss. What goes with load() is the name: zip()
# with another dict's values pairs the wrong tensors on most runs and the right ones on some.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for version in 0.4.5 0.8.0; do
    python3 -m venv "$work/$version"
    "$work/$version/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
        --no-compile "safetensors==$version" 'numpy==2.4.6'
done
cat > "$work/probe.py" <<'END'
import json, sys
import numpy as np, safetensors
from safetensors.numpy import load, load_file, save

tensors = {name: np.full(2, i, np.float32) for i, name in enumerate("dbace")}
changed = []


def header(data):
    size = int.from_bytes(data[:8], "little")
    return list(json.loads(data[8:8 + size]).items()), data[8 + size:]


for count in (0, 1, 8):
    metadata = {f"key{i}": str(i) for i in range(count)} or None
    files = [save(tensors, metadata=metadata) for _ in range(20)]
    different = len(set(files))
    # All but the metadata is the same, and so is the metadata, taken as a set.
    contents = {(str([e for e in entries if e[0] != "__metadata__"]), rest,
                 str(sorted(dict(entries).get("__metadata__", {}).items())))
                for entries, rest in map(header, files)}
    print(f"safetensors {safetensors.__version__}: {count} entries of metadata, saved 20 times: "
          f"{different} different files, {len(set(map(len, files)))} size, {len(contents)} content")
    if (different > 1) != (count > 1) or len(contents) != 1:
        changed.append(f"{count} entries")

data = save(tensors)
path = sys.argv[1]
open(path, "wb").write(data)
orders = ["".join(load(data)) for _ in range(20)]
from_file = ["".join(load_file(path)) for _ in range(20)]
print(f"  names given as 'dbace'; load() gives {len(set(orders))} orders: {' '.join(orders[:6])} ...; "
      f"load_file() {' '.join(sorted(set(from_file)))}")
if len(set(orders)) < 2:
    changed.append("load")
if set(from_file) != {"abcde"}:
    changed.append("load_file")
if changed:
    sys.exit(f"changed: {changed}")
END
for version in 0.4.5 0.8.0; do
    PYTHONHASHSEED=0 "$work/$version/bin/python" "$work/probe.py" "$work/file"
done
