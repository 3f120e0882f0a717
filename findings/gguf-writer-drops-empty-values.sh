#!/usr/bin/env bash
# gguf's GGUFWriter leaves out a key whose value is an empty text or an empty array, and its
# reader returns lists of lists as one list.
#
# Versions: gguf 0.19.0, numpy 2.4.6.
# Expected: the format has texts of no bytes and arrays of no elements; what is added is in the
# file, or the call raises.
# Seen: after add_string("k", "") and add_array("k", []) the file has no key k, without a word; ""
# as an element of an array stays, and add_key_value with "" writes it. contents() of [[1, 2],
# [3]] is [1, 2, 3]. An array's integers are int32 by the first element: [1, 2**40] raises
# struct.error, as does [2**40], and Python's floats become float32. A text "ab" given as an array
# is ["a", "b"].
# For us: a converted model without, say, an empty chat template or empty merges looks like one
# whose converter forgot them: our reader (crates/modelfile, crates/tokenizer) must take a missing
# list as an empty one where that has a meaning. Files for tests of empty values need our writer
# or add_key_value.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'gguf==0.19.0' 'numpy==2.4.6' 'PyYAML==6.0.3' 'tqdm==4.70.1' 'requests==2.34.2'
"$work/venv/bin/python" -W ignore - "$work/k.gguf" <<'END'
import struct, sys
from gguf import GGUFReader, GGUFValueType, GGUFWriter


def written(method, *value):
    """What a file has of key k, and of which types, after the writer's method."""
    writer = GGUFWriter(sys.argv[1], "llama")
    try:
        getattr(writer, method)("k", *value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
    except struct.error:
        return "struct.error"
    finally:
        writer.close()
    field = GGUFReader(sys.argv[1]).get_field("k")
    return "no key" if field is None else (field.contents(), [kind.name for kind in field.types])


rows = [
    ("add_string", ("",), "no key"), ("add_string", ("a",), ("a", ["STRING"])),
    ("add_key_value", ("", GGUFValueType.STRING), ("", ["STRING"])),
    ("add_array", ([],), "no key"), ("add_array", (["", "a"],), (["", "a"], ["ARRAY", "STRING"])),
    ("add_array", ([[1, 2], [3]],), ([1, 2, 3], ["ARRAY", "ARRAY", "INT32"])),
    ("add_array", ([1, 2**40],), "struct.error"), ("add_array", ([2**40],), "struct.error"),
    ("add_array", ([0.1],), ([0.10000000149011612], ["ARRAY", "FLOAT32"])),
    ("add_array", ("ab",), (["a", "b"], ["ARRAY", "STRING"])),
]
changed = []
for method, value, wanted in rows:
    seen = written(method, *value)
    print(f"{method:14} {value[0]!r:22} {seen}")
    if seen != wanted:
        changed.append((method, value[0]))
if changed:
    sys.exit(f"changed: {changed}")
END
