#!/usr/bin/env bash
# In llguidance \d and \w are ASCII in a schema's "pattern" and Unicode in a regular expression or
# a Lark grammar; \s is Unicode in all three.
#
# Version: llguidance 1.9.1.
# Expected: one engine has one meaning of \d, or each source its own dialect in all classes.
# Seen: \d matches U+0663 (Arabic-Indic three) and \w matches e with acute in regular expressions
# and in Lark; as "pattern" both are refused, and \D and \W match them. \s matches U+00A0 in all.
# The point takes a carriage return and U+2028 in all three; in ECMAScript, whose expressions a
# schema's patterns are, it takes neither. [0-9] and [[:digit:]] are ASCII everywhere.
# Why: patterns are rewritten from ECMAScript's \d and \w to those of Rust's regex crate; \s and
# the point are not.
# For us: `--json-schema` and `--regex` (crates/grammar, source.rs) inherit it: the same \d+ lets
# other digits through as a regular expression, which int() of Rust or C does not read. Our help
# and README should use [0-9], and a test that compares both sources should too.
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


def accepts(grammar, text):
    m = LLMatcher(tokenizer, grammar)
    assert not m.is_error(), m.get_error()
    text = list(text.encode())
    return m.try_consume_tokens(text) == len(text) and m.is_accepting()


def three(expression, text):
    schema = json.dumps({"type": "string", "pattern": f"^{expression}$"})
    return (accepts(LLMatcher.grammar_from_regex(expression), text),
            accepts(LLMatcher.grammar_from_lark(f"start: /{expression}/"), text),
            accepts(LLMatcher.grammar_from_json_schema(schema), f'"{text}"' if text != "\r" else '"\\r"'))


rows = [
    (r"\d", "3", (True, True, True)), (r"\d", "\u0663", (True, True, False)),
    (r"\D", "\u0663", (False, False, True)), (r"[^\d]", "\u0663", (False, False, True)),
    (r"\w", "\u00e9", (True, True, False)), (r"\W", "\u00e9", (False, False, True)),
    (r"\s", "\u00a0", (True, True, True)), (r".", "\u2028", (True, True, True)),
    (r".", "\r", (True, True, True)), ("[0-9]", "\u0663", (False, False, False)),
    ("[[:digit:]]", "\u0663", (False, False, False)),
]
changed = []
for expression, text, wanted in rows:
    seen = three(expression, text)
    print(f"{expression:12} {ascii(text):10} regular expression {seen[0]!s:6} Lark {seen[1]!s:6} pattern {seen[2]}")
    if seen != wanted:
        changed.append((expression, text))
if changed:
    sys.exit(f"changed: {changed}")
END
