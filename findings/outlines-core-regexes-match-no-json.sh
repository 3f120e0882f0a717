#!/usr/bin/env bash
# The regular expression that outlines-core makes of a JSON schema matches texts that are no JSON:
# allOf joins its parts end to end, and a pattern's alternatives fall out of their quotes.
#
# Version: outlines_core 0.2.14.
# Expected: whatever the expression matches is JSON and, but for keywords that are documented as
# ignored, follows the schema; what cannot be expressed is an error.
# Seen: allOf of an integer and a boolean matches 1true, and allOf of an integer alone twice
# matches 11 but not 1. The pattern ^a|b$ becomes "a|b", which matches "a and b" (one quote each)
# and neither "a" nor "b" in quotes. A pattern [^a] matches a bare quote between two quotes. A
# member's name a"b is written without its backslash. The format time refuses "10:00:00.5" and
# matches a text with a backslash and any character in the point's place. An array with minItems 3
# and one prefixItem matches exactly one item. No error.
# Why: parts are concatenated as text; a pattern loses its ^ and $ and is put between quotes, not
# applied to the string's value.
# For us: no oracle for our grammars. A comparison of engines must first check that a text is
# JSON. Our own engine applies patterns to values (tested in crates/grammar); never build a
# grammar by formatting one expression into another without a group.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'outlines_core==0.2.14'
"$work/venv/bin/python" - <<'END'
import json, re, sys
from outlines_core.json_schema import build_regex_from_schema


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


string = lambda **k: {"type": "string", **k}
named = {"type": "object", "properties": {'a"b': {"type": "null"}}, "required": ['a"b']}
both = {"allOf": [{"type": "integer"}, {"type": "boolean"}]}
twice = {"allOf": [{"type": "integer"}, {"type": "integer"}]}
few = {"type": "array", "prefixItems": [{"type": "null"}], "minItems": 3}
rows = [  # schema, text, whether it is JSON, whether the expression matches
    (both, "1true", False, True), (twice, "11", True, True), (twice, "1", True, False),
    (string(pattern="^a|b$"), '"a', False, True), (string(pattern="^a|b$"), 'b"', False, True),
    (string(pattern="^a|b$"), '"a"', True, False), (string(pattern="^a|b$"), '"b"', True, False),
    (string(pattern="^(a|b)$"), '"b"', True, True), (string(pattern="^[^a]$"), '"""', False, True),
    (named, '{"a"b":null}', False, True), (named, '{"a\\"b":null}', True, False),
    (string(format="time"), '"10:00:00.5"', True, False), (string(format="time"), '"10:00:00\\q5"', False, True),
    (few, "[null]", True, True), (few, "[null,null,null]", True, False),
]
changed = []
for schema, text, json_wanted, wanted in rows:
    seen = bool(re.fullmatch(build_regex_from_schema(json.dumps(schema)), text))
    print(f"{json.dumps(schema)[:66]:66} {text:18} JSON {is_json(text)!s:6} matches {seen}")
    if seen != wanted or is_json(text) != json_wanted:
        changed.append((schema, text))
if changed:
    sys.exit(f"changed: {changed}")
END
