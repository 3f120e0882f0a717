#!/usr/bin/env bash
# Of two special tokens that begin alike tiktoken takes one by the hash of their texts, not the
# longer one; a longer token can be impossible to encode.
#
# Versions: tiktoken 0.14.0, tokenizers 0.23.3.
# Expected: the longest, as in Hugging Face's tokenizers; or the one that was given first.
# Seen: with <|im|> and <|im|>x the text <|im|>x is the first token and an x, in either order of
# the dictionary, although decoding the second's id gives that text; with </s> and </s>\n the longer
# one is found. 50 unrelated special tokens more turn both round. Where only the longer one is
# allowed, the shorter, forbidden one hides <|im|>x all the same. It is so in each process alike.
# tokenizers takes the longer one in all of these cases (of tokens that are normalised and tokens
# that are not it does not: tokenizers-shorter-token-can-hide-longer).
# Why: the texts become alternatives of one regular expression, in the order of a hash map, and the
# first alternative that matches wins.
# For us: crates/tokenizer takes the longest (special.rs), as llama.cpp does, and tokenizers with
# tokens of one kind. Ids from tiktoken can differ for models whose special tokens begin alike;
# such a difference is theirs. Never use a map's order for alternatives.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'tiktoken==0.14.0' 'regex==2026.11.19' 'tokenizers==0.23.3'
"$work/venv/bin/python" - <<'END'
import sys
import tiktoken
from tokenizers import AddedToken, Tokenizer, models

ranks = {bytes([byte]): byte for byte in range(256)}
more = {f"<|r{i}|>": 400 + i for i in range(50)}


def is_one(special, text, allowed="all"):
    encoding = tiktoken.Encoding("bytes", pat_str=".", mergeable_ranks=ranks, special_tokens=special)
    assert encoding.decode([special[text]]) == text
    return encoding.encode(text, allowed_special=allowed, disallowed_special=()) == [special[text]]


def is_one_in_tokenizers(short, long):
    tokenizer = Tokenizer(models.BPE(vocab={chr(c): c for c in range(128)}, merges=[]))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (short, long)])
    return tokenizer.encode(long).tokens == [long]


wanted = {
    ("<|im|>", "<|im|>x"): (False, False, True, False),
    ("<|a|>", "<|a|><|b|>"): (False, False, True, False),
    ("[IMG]", "[IMG]]"): (False, False, True, False),
    ("<|end|>", "<|end|>\n"): (True, True, False, True),
    ("</s>", "</s>\n"): (True, True, False, True),
    ("<tool>", "<tool>s"): (True, False, True, True),
}
changed = []
for (short, long), expected in wanted.items():
    seen = (is_one({short: 300, long: 301}, long), is_one({long: 301, short: 300}, long),
            is_one({short: 300, long: 301, **more}, long), is_one({short: 300, long: 301}, long, {long}))
    print(f"{long!r:14} one token: short first {seen[0]!s:6} long first {seen[1]!s:6} with 50 more {seen[2]!s:6}"
          f" long alone allowed {seen[3]!s:6} tokenizers {is_one_in_tokenizers(short, long)}")
    if seen != expected or not is_one_in_tokenizers(short, long):
        changed.append(long)
if changed:
    sys.exit(f"changed: {changed}")
END
