#!/usr/bin/env bash
# xgrammar drops "type" and "properties" beside "anyOf" or "allOf": the schema of an object with one
# of two members required accepts null, 1 and any text, without a warning.
#
# Version: xgrammar 0.2.9 with apache-tvm-ffi 0.1.15.post2.
# Expected: a schema's keywords hold together, or those that cannot be held together are refused;
# what is accepted has at least the type that the schema names.
# Seen: {"type": "object", "properties": ..., "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
# the usual way to say "a or b", accepts 1, null and [], and {"a": "x"}. {"type": "integer",
# "allOf": [{"minimum": 3}]} accepts any JSON. With the type within the branches they are right.
# "not", "uniqueItems", "contains", "if" and "dependentRequired" do nothing, a bound beside "$ref"
# is lost, and "enum" beside "type": "string" accepts its number. Only for "oneOf", and an allOf of
# several parts, a warning goes to the standard error.
# Why: a schema is taken for the first kind that it has, anyOf before type, and nothing else is
# read.
# For us: servers that hold answers by this library promise less than the schema says; a client has
# to validate. Ours (crates/grammar, on llguidance) combines them, and refuses what it cannot.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'xgrammar==0.2.9' 'apache-tvm-ffi==0.1.15.post2' 'numpy==2.4.6' 'pydantic==2.14.4' 'pydantic_core==2.50.5' \
    'annotated-types==0.8.0' 'typing-inspection==0.4.5' 'typing_extensions==4.16.0'
"$work/venv/bin/python" - 2>"$work/log" <<'END' || { cat "$work/log"; exit 1; }
import json, sys, types
import tvm_ffi


class Any:
    def __init__(self, *args, **options):
        pass

    def __getattr__(self, name):
        return Any()

    def __call__(self, *args, **options):
        return Any()


# The grammars are C++; of PyTorch and transformers their Python side needs names alone here.
for name in ("torch", "transformers"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__getattr__ = lambda name: Any
import xgrammar
from xgrammar.testing import _is_grammar_accept_string as accepts

changed = []


def check(schema, wanted):
    grammar = xgrammar.Grammar.from_json_schema(json.dumps(schema))
    seen = {text: accepts(grammar, text) for text in wanted}
    print(json.dumps(schema))
    print("    accepted:", " ".join(ascii(it)[1:-1] for it in seen if seen[it]) or "none")
    print("    refused: ", " ".join(ascii(it)[1:-1] for it in seen if not seen[it]) or "none")
    if seen != wanted:
        changed.append(json.dumps(schema))


members = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
either = [{"required": ["a"]}, {"required": ["b"]}]
yes = lambda *texts: {it: True for it in texts}
no = lambda *texts: {it: False for it in texts}
check(members, yes('{"a": 1}', "{}") | no("1", "null", "[]", '"x"', '{"a": "x"}'))
check({**members, "anyOf": either}, yes('{"a": 1}', "{}", "1", "null", "[]", '"x"', '{"a": "x"}'))
check({**members, "oneOf": either}, yes('{"a": 1}', "{}", "1", "null", "[]", '"x"', '{"a": "x"}'))
check({**members, "allOf": either[:1]}, yes('{"a": 1}', "{}", "1", "null", "[]", '"x"', '{"a": "x"}'))
check({"anyOf": [{**members, **it} for it in either]}, yes('{"a": 1}', '{"b": 1}') | no("{}", "1", '{"a": "x"}'))
check({"type": "integer", "allOf": [{"minimum": 3}]}, yes("1", "4", '"x"', "null"))
check({"type": "integer", "minimum": 3}, yes("4") | no("1", '"x"', "null"))
check({"type": "string", "anyOf": [{"maxLength": 1}, {"pattern": "^x"}]}, yes('"yy"', "1", "{}"))
check({"type": "integer", "not": {"const": 3}}, yes("3", "4"))
check({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, yes("[1, 1]"))
check({"type": "array", "items": {"type": "integer"}, "contains": {"const": 1}}, yes("[2]", "[]"))
check({"type": "integer", "if": {"type": "integer"}, "then": {"minimum": 3}}, yes("1"))
check({**members, "dependentRequired": {"a": ["b"]}}, yes('{"a": 1}'))
check({"$ref": "#/$defs/x", "minimum": 3, "$defs": {"x": {"type": "integer"}}}, yes("1"))
check({"type": "string", "enum": ["a", 1]}, yes('"a"', "1"))
if changed:
    sys.exit(f"changed: {changed}")
END
