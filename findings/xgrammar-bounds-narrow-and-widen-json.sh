#!/usr/bin/env bash
# In xgrammar a number with a bound has six decimals at most: with minimum 0 neither 0.1234567 nor
# 1e-7 can be written; and a text with maxLength may have raw tabs, but no quote, line feed or
# escape.
#
# Version: xgrammar 0.2.9 with apache-tvm-ffi 0.1.15.post2.
# Expected: {"type": "number", "minimum": 0} has the numbers of {"type": "number"} from 0 up, and
# {"type": "string", "maxLength": 4} the texts of {"type": "string"} up to that length: all JSON.
# Seen: without bounds both are JSON. With minimum or maximum there is no exponent and no seventh
# decimal: 0.3333333333333333 and 0.0000001 are refused; between 0.1234567 and 0.1234568 there is no
# number at all, and no error. With minLength or maxLength "\n", "\"", "\\" and \u00e9 are refused
# as escapes (a pattern refuses them, too), while a raw tab and a raw U+0001 are accepted, which
# JSON forbids: json.loads raises for what the grammar lets a model write.
# Why: bounds become expressions over decimal digits with a fixed precision; bounded texts are any
# characters but the quote, the backslash and ends of lines, where unbounded ones have JSON's rule.
# For us: learning rates, probabilities and code in arguments change by such a bound. Ours
# (crates/grammar, on llguidance) takes any decimals, escapes and no raw control characters; it has
# no exponents with bounds either (llguidance-bounds-take-exponents-away).
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


yes = lambda *texts: {it: True for it in texts}
no = lambda *texts: {it: False for it in texts}
check({"type": "number"}, yes("0.123456", "0.1234567", "0.3333333333333333", "0.0000001", "1e-7"))
rest = no("0.1234567", "0.3333333333333333", "0.0000001", "1e-7")
check({"type": "number", "minimum": 0}, yes("0.123456", "1.50", "0.000001") | rest)
check({"type": "number", "maximum": 1}, yes("0.123456", "0.000001") | rest)
check({"type": "number", "minimum": 0.1234567, "maximum": 0.1234568},
      no("0.1234567", "0.12345675", "0.1234568", "0.123456", "0.123457"))
escaped, raw = ('"\\n"', '"\\""', '"\\\\"', '"\\u00e9"'), ('"\t"', '"\x01"')
check({"type": "string"}, yes('"ab"', *escaped) | no(*raw))
check({"type": "string", "maxLength": 4}, yes('"ab"', *raw) | no(*escaped, '"a\nb"'))
check({"type": "string", "minLength": 1}, yes('"ab"', *raw) | no(*escaped, '"a\nb"'))
check({"type": "string", "pattern": "^.*$"}, yes('"ab"') | no(*escaped, *raw))
for text in raw:
    try:
        json.loads(text)
        changed.append("json.loads reads a raw control character")
    except ValueError:
        pass
if changed:
    sys.exit(f"changed: {changed}")
END
