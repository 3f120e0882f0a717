#!/usr/bin/env bash
# Kitoken reads a tokenizer.json without lstrip, rstrip, single_word and normalized of added tokens,
# and joins pieces that no merge of the file joins.
#
# Versions: kitoken 0.11.1, tokenizers 0.23.3.
# Expected: from_tokenizers() converts a file to the same ids, or refuses what it cannot convert, as
# it refuses models of type WordLevel.
# Seen: "a <mask> b" with lstrip, as RoBERTa's <mask> has it, has one id more: the blank before the
# token stays; so with rstrip. A single_word "ab" is found in "cab", and a token <X> of normalized
# true under a lower-casing normaliser is not found in <x>. "ab" and "c" become "abc" because that
# is a piece, though the file's merges make it of "a" and "bc" alone; a text that is a piece is that
# piece without any merge ("xyz"), as if ignore_merges were true, and is spelled in a longer text.
# WhitespaceSplit drops the blanks in tokenizers, here each is a token. No error for any.
# Likely why: the conversion keeps of added tokens the text and whether they are special, and of the
# merges the order of the pieces that they make, as tiktoken's files have it.
# For us: a fast tokenizer is to be compared on texts with its special tokens in them, beside
# blanks. Our own (crates/tokenizer) is the crate for this format.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'kitoken==0.11.1' 'tokenizers==0.23.3' 'huggingface_hub==2.4.0' 'typing_extensions==4.16.0'
"$work/venv/bin/python" - <<'END'
import json, sys
from kitoken import Kitoken
from tokenizers import Tokenizer

pieces = ["?", *"abcxyz<X>", " ", "ab", "xyz", "bc", "abc"]
ids = {it: at for at, it in enumerate(pieces)}
flags = {"special": False, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}


def file(added=(), normalizer=None, pre_tokenizer=None, merges=()):
    entries = [{**flags, "id": 0, "content": "?", "special": True}]
    for content, more in added:
        entries.append({**flags, **more, "content": content, "id": len(pieces) + len(entries) - 1})
    model = {"type": "BPE", "unk_token": "?", "vocab": ids, "merges": list(merges), "dropout": None, "fuse_unk": False,
             "continuing_subword_prefix": None, "end_of_word_suffix": None, "byte_fallback": False, "ignore_merges": False}
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": entries,
                       "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": None,
                       "decoder": None, "model": model})


spell = lambda text: [ids[it] for it in text]
new = len(pieces)
lower, words = {"type": "Lowercase"}, {"type": "WhitespaceSplit"}
merges = [["a", "b"], ["b", "c"], ["a", "bc"]]
blank, cut = ids[" "], lambda *it: list(it)
# What, file, text, ids of tokenizers, ids of Kitoken.
rows = [
    ("lstrip", file([("<x>", {"lstrip": True})]), "a <x> b", cut(1, new, blank, 2), cut(1, blank, new, blank, 2)),
    ("rstrip", file([("<x>", {"rstrip": True})]), "a <x> b", cut(1, blank, new, 2), cut(1, blank, new, blank, 2)),
    ("single_word", file([("ab", {"single_word": True})]), "cab", spell("cab"), [ids["c"], new]),
    ("normalized", file([("<X>", {"normalized": True})], normalizer=lower), "<x>", [new], spell("<x>")),
    ("no merge makes xyz", file(), "xyz", spell("xyz"), [ids["xyz"]]),
    ("no merge makes xyz", file(), "axyz", spell("axyz"), spell("axyz")),
    ("a merge before that of abc", file(merges=merges), "abc", [ids["ab"], ids["c"]], [ids["abc"]]),
    ("a merge before that of abc", file(merges=merges), "cabc", [ids["c"], ids["ab"], ids["c"]], [ids["c"], ids["abc"]]),
    ("WhitespaceSplit", file(pre_tokenizer=words), "a b", cut(1, 2), cut(1, blank, 2)),
]
changed = []
for what, made, text, *wanted in rows:
    seen = [Tokenizer.from_str(made).encode(text).ids, Kitoken.from_tokenizers(made.encode()).encode(text, True)]
    print(f"{what:27} {text!r:9} tokenizers {seen[0]}, Kitoken {seen[1]}")
    if seen != wanted:
        changed.append(what)
if changed:
    sys.exit(f"changed: {changed}")
END
