#!/usr/bin/env bash
# The library tokenizers ignores the ids that tokenizer.json gives to added tokens: it numbers them
# by their order in the file, from the vocabulary's size on.
#
# Version: tokenizers 0.23.3.
# Expected: {"id": 1000, "content": "<x>"} makes <x> token 1000, which is how every other reader of
# the file takes it, or the file is refused.
# Seen: <x> becomes the vocabulary's size (2 here); two tokens listed in descending order swap
# their ids; saving writes the new ids, so a load and a save change a file. Where the vocabulary
# has gaps, the new id can be one that a piece already has: two texts encode to one id. A token that
# is in the vocabulary keeps that id. No exception; a mismatch goes to the log of the Rust library,
# which Python does not show.
# For us: a reader of tokenizer.json must choose. For files as models ship them (ids dense and in
# order) both agree; for all others agree with this library, since training data were encoded by
# it, and report the difference. Never take an added token's id as proof of a row in the embedding.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'tokenizers==0.23.3'
"$work/venv/bin/python" - <<'END'
import json, sys
from tokenizers import Tokenizer


def load(vocabulary, added):
    token = lambda i, text: {"id": i, "content": text, "single_word": False, "lstrip": False,
                             "rstrip": False, "normalized": False, "special": True}
    return Tokenizer.from_str(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "added_tokens": [token(i, text) for i, text in added],
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}}))


dense = {"[UNK]": 0, "hello": 1}
gaps = {"[UNK]": 0, "hello": 3, "world": 7}
rows = {
    "a gap before the id": (dense, [(1000, "<x>")], {"<x>": 2}),
    "ids listed backwards": (dense, [(3, "<b>"), (2, "<a>")], {"<b>": 2, "<a>": 3}),
    "ids as models have them": (dense, [(2, "<a>"), (3, "<b>")], {"<a>": 2, "<b>": 3}),
    "id of a piece": (dense, [(1, "<c>")], {"<c>": 2}),
    "a piece as added token": (dense, [(9, "hello")], {"hello": 1}),
    "vocabulary with gaps": (gaps, [(8, "<d>")], {"<d>": 3}),
}
changed = []
for name, (vocabulary, added, wanted) in rows.items():
    tokenizer = load(vocabulary, added)
    seen = {text: tokenizer.encode(text).ids[0] for _, text in added}
    saved = {t["content"]: t["id"] for t in json.loads(tokenizer.to_str())["added_tokens"]}
    print(f"{name:24} file {dict((t, i) for i, t in added)!s:22} encodes to {seen!s:22} saved as {saved}")
    if seen != wanted or saved != wanted:
        changed.append(name)
both = load(gaps, [(8, "<d>")])
ids = [both.encode(text).ids[0] for text in ("hello", "<d>")]
print(f"{'vocabulary with gaps':24} 'hello' and '<d>' encode to {ids}")
if changed or ids != [3, 3]:
    sys.exit(f"changed: {changed}, {ids}")
END
