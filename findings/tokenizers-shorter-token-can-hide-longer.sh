#!/usr/bin/env bash
# Of two added tokens that begin alike the library tokenizers takes the one that is not normalised,
# be it the shorter; and a token "<X>" under a lower-casing normaliser is found in "<x>".
#
# Version: tokenizers 0.23.3.
# Expected: the longest text wins among added tokens, as it does if all are of one kind; a token is
# found where its content stands.
# Seen: of <x> with normalized false, which "special": true usually comes with, and <x>y with true
# the text <x>y is <x> and a y, in either order; the reverse gives <x>y. With a normaliser Lowercase
# a token <X> of normalized true, special or not, is found in "<x>" and in "<X>"; with false in
# "<X>". single_word looks at letters, digits and "_" around; lstrip and rstrip take U+00A0, U+3000,
# U+2028 and U+0085 with them, but not U+001C.
# Why: the text is first split at tokens that are not normalised; what is left is normalised, with
# the contents of the others, and split at those.
# For us: crates/tokenizer calls the crate, so it agrees where a text is all structure or has none.
# In prompts of both kinds SpecialMatcher (special.rs) takes the longest of all, in the text as it
# is, strips ASCII blanks alone and knows no single_word: there such files give other tokens.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'tokenizers==0.23.3' 'huggingface_hub==2.4.0' 'typing_extensions==4.16.0'
"$work/venv/bin/python" - <<'END'
import json, sys
from tokenizers import Tokenizer

vocabulary = {it: at for at, it in enumerate(["?", *"<xyX>ab_1", " "])}


def tokens(added, text, normalizer=None):
    entries = []
    for content, flags in added:
        entry = {"special": False, "lstrip": False, "rstrip": False, "single_word": False, "normalized": True}
        entries.append({**entry, **flags, "content": content, "id": len(vocabulary) + len(entries)})
    model = {"type": "BPE", "unk_token": "?", "fuse_unk": False, "vocab": vocabulary, "merges": []}
    file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": entries, "normalizer": normalizer,
            "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model}
    return Tokenizer.from_str(json.dumps(file)).encode(text).tokens


changed = []


def row(what, seen, wanted):
    print(f"{what:68} {ascii(seen)}")
    if seen != wanted:
        changed.append(what)


for short in (True, False):
    for long in (True, False):
        both = [("<x>", {"normalized": short}), ("<x>y", {"normalized": long})]
        wanted = ["<x>", "y"] if not short and long else ["<x>y"]
        row(f"<x> normalized {short}, <x>y normalized {long}", tokens(both, "<x>y"), wanted)
        row("    in the other order", tokens(both[::-1], "<x>y"), wanted)
lower = {"type": "Lowercase"}
for special in (False, True):
    flags = {"special": special, "normalized": True}
    row(f"<X> special {special}, in <x> and <X>", [len(tokens([("<X>", flags)], it, lower)) for it in ("<x>", "<X>")], [1, 1])
    flags["normalized"] = False
    row("    not normalized", [len(tokens([("<X>", flags)], it, lower)) for it in ("<x>", "<X>")], [3, 1])
blank = lambda it: len(tokens([("<x>", {"lstrip": True})], f"a{it}<x>")) == 2
row("lstrip takes U+0020, U+00A0, U+3000, U+2028, U+0085, U+001C",
    [blank(it) for it in " \u00a0\u3000\u2028\u0085\x1c"], [True, True, True, True, True, False])
row("single_word finds ab in 'ab', 'a ab', '<ab>', '1ab', 'ab_', '\u00e9ab'",
    ["ab" in tokens([("ab", {"single_word": True})], it) for it in ("ab", "a ab", "<ab>", "1ab", "ab_", "\u00e9ab")],
    [True, True, True, False, False, False])
if changed:
    sys.exit(f"changed: {changed}")
END
