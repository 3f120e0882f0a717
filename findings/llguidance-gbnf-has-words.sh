#!/usr/bin/env bash
# llguidance's converter of GBNF makes words of a grammar's rules: "if" | [a-z]+ does not have the
# word "iff", and [a-z]+ "z" has texts until [a-z]+ is given a name, and then has none.
#
# Versions: llguidance 1.9.1, numpy 2.4.6.
# Expected: gbnf_to_lark gives a grammar of the same texts as the notation has in llama.cpp, which
# reads characters one by one; a rule's name changes nothing. What differs is refused.
# Seen: root ::= [a-z]+ "z" has "abz"; with w ::= [a-z]+ and root ::= w "z" it has not one text,
# since a rule of one class becomes a terminal, which takes the z as well. "if" | [a-z]+ has "if",
# "i" and "ig", but neither "iff" nor "ifg": after "if" that word is over. "." has no line feed.
# \u00e9 and "a"{0}, which llama.cpp has, are errors when the grammar is compiled, not when it is
# converted.
# Why: Lark's grammars have a lexer, which takes the longest terminal and does not step back.
# For us: crates/grammar therefore has a converter of its own (gbnf.rs), in which each character is
# a terminal and brackets are rules: its texts are llama.cpp's. Grammars of others that came through
# gbnf_to_lark can hold a model to less than they say.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'llguidance==1.9.1' 'numpy==2.4.6'
"$work/venv/bin/python" - 2>"$work/log" <<'END' || { cat "$work/log"; exit 1; }
import sys
import llguidance
from llguidance import LLMatcher
from llguidance._tokenizer import TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark


class Bytes:
    """A token for each byte, and one for the end."""
    eos_token_id, bos_token_id = 256, None
    tokens = [bytes([it]) for it in range(256)] + [b"<end>"]
    special_token_ids = [256]

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


tokenizer = llguidance.LLTokenizer(TokenizerWrapper(Bytes()), n_vocab=257)


def accepts(grammar, text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar))
    if matcher.get_error():
        return "error"
    return all(matcher.consume_token(it) for it in text.encode()) and matcher.is_accepting()


rows = [
    ('root ::= [a-z]+ "z"', {"az": True, "abz": True, "zz": True}),
    ('root ::= w "z"\nw ::= [a-z]+', {"az": False, "abz": False, "zz": False}),
    ('root ::= w "z"\nw ::= [a-z] | [a-z] w', {"az": True, "abz": True, "zz": True}),
    ('root ::= "if" | [a-z]+', {"if": True, "i": True, "ig": True, "iff": False, "ifg": False}),
    ('root ::= line ","\nline ::= [^"]+', {"a,": False, "a,,": False}),
    ('root ::= .', {"a": True, "\n": False}),
    ('root ::= "\\u00e9"', {"\u00e9": "error"}),
    ('root ::= "a"{0} "b"', {"b": "error"}),
]
changed = []
for grammar, wanted in rows:
    lark = gbnf_to_lark(grammar)
    seen = {text: accepts(lark, text) for text in wanted}
    print(f"{grammar!r:52} {ascii(seen)}")
    if seen != wanted:
        changed.append(grammar)
if changed:
    sys.exit(f"changed: {changed}")
END
