#!/usr/bin/env bash
# llguidance reads the integers of a JSON schema as doubles: the const 9007199254740993 forces the
# text 9007199254740992, and an int64's least value as minimum is an error.
#
# Version: llguidance 1.9.1.
# Expected: integers of JSON text stay as written, since the result is text too; or beyond 2^53 an
# error.
# Seen: const and enum force another number above 2^53 (2^64 - 1 becomes 18446744073709552000) and
# refuse the one in the schema. A minimum of 2^53 + 1 lets 2^53 through, a maximum of 2^53 + 1
# refuses it; a maximum of 2^64 - 1 ends at 2^63 - 1. minimum -2^63, which generators of schemas
# write for int64, and minimum 2^63 - 1 are compilation errors. Bounds of -2^63 + 1024 work. const
# 1.0 forces 1. Strings of digits are right. No warning.
# Why: numbers are f64 inside, printed back shortest; bounds are then i64, cut at its ends.
# For us: `--json-schema`, response_format and tools would have it. crates/grammar refuses such
# numbers in const and enum by name, and makes bounds beyond 2^53 nearer ones (source.rs).
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'llguidance==1.9.1'
"$work/venv/bin/python" - <<'END'
import json, sys
from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")


def matcher(schema):
    return LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))


def forced(schema):
    return matcher(schema).compute_ff_bytes().decode()


def accepts(schema, text):
    m = matcher(schema)
    if m.is_error():
        return "error"
    return m.try_consume_tokens(list(text.encode())) == len(text) and m.is_accepting()


integer = lambda **bounds: {"type": "integer", **bounds}
big = 2**53 + 1
rows = [
    ("const 2^53 - 1", forced({"const": 2**53 - 1}), "9007199254740991"),
    ("const 2^53 + 1", forced({"const": big}), "9007199254740992"),
    ("const 2^53 + 1 as itself", accepts({"const": big}, str(big)), False),
    ("enum of 2^53 + 1", forced({"enum": [big]}), "9007199254740992"),
    ("const 2^64 - 1", forced({"const": 2**64 - 1}), "18446744073709552000"),
    ("const 1.0", forced({"const": 1.0}), "1"),
    ('const "9007199254740993"', forced({"const": str(big)}), '"9007199254740993"'),
    ("minimum 2^53 + 1, text 2^53", accepts(integer(minimum=big), str(2**53)), True),
    ("maximum 2^53 + 1, text 2^53 + 1", accepts(integer(maximum=big), str(big)), False),
    ("maximum 2^64 - 1, text 2^63 - 1", accepts(integer(maximum=2**64 - 1), str(2**63 - 1)), True),
    ("maximum 2^64 - 1, text 2^63", accepts(integer(maximum=2**64 - 1), str(2**63)), False),
    ("minimum -2^63, text 0", accepts(integer(minimum=-(2**63)), "0"), "error"),
    ("minimum -2^63 + 1024, text 0", accepts(integer(minimum=-(2**63) + 1024), "0"), True),
    ("minimum 2^63 - 1, text 2^63 - 1", accepts(integer(minimum=2**63 - 1), str(2**63 - 1)), "error"),
    ("no bounds, text 2^64", accepts(integer(), str(2**64)), True),
]
changed = []
for name, seen, wanted in rows:
    print(f"{name:32} {seen}")
    if seen != wanted:
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
