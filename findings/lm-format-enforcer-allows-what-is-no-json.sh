#!/usr/bin/env bash
# lm-format-enforcer lets a comma stand before the end of an object, accepts the number 1.e5, and
# takes constants unescaped: the const a"b is the text "a".
#
# Versions: lm-format-enforcer 0.11.3, interegular 0.3.3, pydantic 2.14.4.
# Expected: every text that it can end is JSON, and follows the keywords that are not refused.
# Seen: with an optional second member {"a":1,} may end. 1.e5 is a number. The const a"b allows "a",
# and ends there. An enum's line feed stands in the text as it is, and the backslash of the enum a\b
# may be any escape: with a line feed or a quote in its place the text may end. minimum, maximum,
# exclusiveMinimum and multipleOf are passed over in silence, and so is format. A pattern must match
# the whole text: [0-9] refuses "a5". A string of maxLength 2 may be \u0041b. An integer may be 1e5.
# Letters beyond ASCII are allowed as \u escapes only.
# For us: no oracle for our grammars: its texts have to be parsed first, then validated. Ours
# (crates/grammar, on llguidance) allow no such text, hold bounds, and search for a pattern
# anywhere.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'lm-format-enforcer==0.11.3' 'interegular==0.3.3' 'packaging==26.4' 'PyYAML==6.0.4' 'pydantic==2.14.4' \
    'pydantic_core==2.50.5' 'annotated-types==0.8.0' 'typing_extensions==4.16.0' 'typing-inspection==0.4.5'
"$work/venv/bin/python" -W ignore - <<'END'
import json, logging, sys

logging.disable()  # It warns that NumPy is missing.
from lmformatenforcer import JsonSchemaParser


def accepts(schema, text):
    parser = JsonSchemaParser(schema)
    for character in text:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()


def meaning(text):
    try:
        return repr(json.loads(text))
    except json.JSONDecodeError:
        return "no JSON"


integer = {"type": "integer"}
members = {"type": "object", "properties": {"a": integer, "b": integer}, "required": ["a"]}
array = {"type": "array", "items": {"type": "number"}}
string = lambda **keywords: {"type": "string", **keywords}
rows = [
    (members, '{"a":1}', True, "{'a': 1}"), (members, '{"a":1,}', True, "no JSON"), (members, '{"a":1,"b":2,}', False, "no JSON"),
    (array, "[1,]", False, "no JSON"), (array, "[1.e5]", True, "no JSON"), (array, "[1.5e5]", True, "[150000.0]"),
    (integer, "1e5", True, "100000.0"), (integer, "1.0", False, "1.0"),
    ({"const": 'a"b'}, '"a"', True, "'a'"), ({"const": 'a"b'}, '"a\\"b"', False, "'a\"b'"),
    ({"enum": ["a\nb"]}, '"a\nb"', True, "no JSON"), ({"enum": ["a\\b"]}, '"a\\nb"', True, "'a\\nb'"),
    ({**integer, "minimum": 5, "maximum": 10}, "11", True, "11"), ({**integer, "multipleOf": 3}, "4", True, "4"),
    ({"type": "number", "exclusiveMinimum": 0}, "-1", True, "-1"), (string(format="date"), '"x"', True, "'x'"),
    (string(pattern="[0-9]"), '"5"', True, "'5'"), (string(pattern="[0-9]"), '"a5"', False, "'a5'"),
    (string(maxLength=2), '"abc"', False, "'abc'"), (string(maxLength=2), '"\\u0041b"', True, "'Ab'"),
    (string(), '"\u00e9"', False, "'\u00e9'"), (string(), '"\\u00e9"', True, "'\u00e9'"),
]
changed = []
for schema, text, wanted, wanted_meaning in rows:
    seen = accepts(schema, text)
    print(f"{json.dumps(schema)[:60]:60} {text!r:20} {'allowed' if seen else 'refused'}, means {meaning(text)}")
    if seen != wanted or meaning(text) != wanted_meaning:
        changed.append((schema, text))
if changed:
    sys.exit(f"changed: {changed}")
END
