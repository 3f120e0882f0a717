#!/usr/bin/env bash
# In llguidance a JSON number may have an exponent only if its schema has no bound: with minimum 0,
# 1e-8, 1e3 and -0.0 are refused.
#
# Version: llguidance 1.9.1.
# Expected: {"type": "number", "minimum": 0} has the numbers of {"type": "number"} from 0 up, in any
# of JSON's notations.
# Seen: without a bound 1e-8 and 1.5E+3 are allowed. With minimum, maximum or multipleOf no exponent
# is, whatever its value: after "1" only a digit, a point or the end may follow. multipleOf 0.5
# allows 1.5 and refuses 1.50, multipleOf 2 refuses 4.0. Any digits may follow a decimal point of
# bounded numbers, so 0.00000001 is the way to 1e-8. A maximum of 1e22 is an error, as is 1e19;
# 1e18 is not.
# Why: a bound becomes a regular expression over decimal digits; exponents would change their order.
# For us: it is so for our `--json-schema` too. A model that wants to write 1e-8 is held to "1" and
# goes on with whatever is allowed: another magnitude, and no error. Say so where the README speaks
# of JSON schemas, and leave bounds away for quantities that need exponents.
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


def matcher(bounds):
    schema = json.dumps({"type": "number", **bounds})
    return LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema))


def accepts(bounds, text):
    m = matcher(bounds)
    if m.is_error():
        return "error"
    return m.try_consume_tokens(list(text.encode())) == len(text) and m.is_accepting()


def after_one(bounds):
    allowed = ""
    for byte in range(256):
        m = matcher(bounds)
        assert m.consume_tokens(list(b"1"))
        if m.try_consume_tokens([byte]) == 1:
            allowed += chr(byte)
    return allowed


rows = [({}, text, True) for text in ("1e-8", "1.5E+3", "-0.0")]
rows += [({"minimum": 0}, text, False) for text in ("1e-8", "1.5E+3", "-0.0")]
rows += [({"minimum": 0}, text, True) for text in ("0.00000001", "1500", "1500.0", "0.0")]
rows += [({"maximum": 5000}, "1e3", False), ({"maximum": 5000}, "1000", True)]
rows += [({"multipleOf": 0.5}, text, wanted) for text, wanted in (("1.5", True), ("1.50", False), ("1", True))]
rows += [({"multipleOf": 2}, text, wanted) for text, wanted in (("4", True), ("4.0", False), ("4e0", False))]
rows += [({"maximum": largest}, "5", wanted) for largest, wanted in ((1e18, True), (1e19, "error"), (1e22, "error"))]
changed = []
for bounds, text, wanted in rows:
    seen = accepts(bounds, text)
    print(f"{json.dumps(bounds):22} {text:12} {seen}")
    if seen != wanted:
        changed.append((bounds, text))
for bounds, wanted in (({}, ".0123456789Ee"), ({"minimum": 0}, ".0123456789")):
    seen = after_one(bounds)
    print(f"{json.dumps(bounds):22} after 1: {seen}")
    if set(seen) != set(wanted):
        changed.append((bounds, "after 1"))
if changed:
    sys.exit(f"changed: {changed}")
END
