#!/usr/bin/env bash
# @huggingface/tokenizers, the tokenizers of JavaScript, drops the text between the matches of a
# Split with "invert": true; it reads $ in a replacement, and a word that is not known has no id.
#
# Versions: @huggingface/tokenizers 0.2.0 (npm), tokenizers 0.23.3 (PyPI); node 18 or later.
# Expected: one tokenizer.json gives one list of ids in both; what JavaScript lacks raises, as it
# does for unknown types.
# Seen: with Split on [ ,], behaviour Isolated, MergedWithPrevious, MergedWithNext or Contiguous and
# invert true, "ab, ab" has the two ids of the comma and the blank, and "ab" alone has none;
# tokenizers keeps all. Removed with invert is right. Replace with a regular expression and the
# content "$2x" writes the second group, where tokenizers writes $, 2 and x; so "$&" and "$$".
# single_word of an added token does nothing: "cab" has the token "ab". A word unknown to WordLevel
# is undefined in the list of ids, not the id of its unk_token. No error.
# Why: with invert it collects the matches alone; replacements are handed to JavaScript's replace().
# For us: token counts of a client in JavaScript need not be those of the server. Ours is the crate
# (crates/tokenizer, hf.rs), but for single_word in prompts that have some structure.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'tokenizers==0.23.3' 'huggingface_hub==2.4.0' 'typing_extensions==4.16.0'
(cd "$work" && npm install --silent --no-audit --no-fund --cache "$work/npm" '@huggingface/tokenizers@0.2.0')
cat > "$work/encode.mjs" <<'END'
import { readFileSync } from "fs";
import { Tokenizer } from "@huggingface/tokenizers";
const rows = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(rows.map(([file, text]) => new Tokenizer(JSON.parse(file), {}).encode(text).ids)));
END
"$work/venv/bin/python" - "$work" <<'END'
import json, subprocess, sys
from tokenizers import Tokenizer

pieces = ["?", *"abcl$2x,& "]
ids = {it: at for at, it in enumerate(pieces)}
bpe = {"type": "BPE", "unk_token": "?", "fuse_unk": False, "vocab": ids, "merges": []}
words = {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "ab": 1}}


def file(model=bpe, added=(), normalizer=None, pre_tokenizer=None):
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added),
                       "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": None,
                       "decoder": None, "model": model})


def split(behavior, invert):
    return file(pre_tokenizer={"type": "Split", "pattern": {"Regex": "[ ,]"}, "behavior": behavior, "invert": invert})


def replace(content):
    return file(normalizer={"type": "Replace", "pattern": {"Regex": "(a)(b)"}, "content": content})


spell = lambda text: [ids[it] for it in text]
word = {"id": len(pieces), "content": "ab", "special": False, "lstrip": False, "rstrip": False, "single_word": True,
        "normalized": True}
# What, file, text, ids of tokenizers, ids of JavaScript.
rows = [
    *(("Split " + it, split(it, False), "ab, ab", spell("ab, ab"), spell("ab, ab"))
      for it in ("Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")),
    *((f"Split {it}, invert", split(it, True), "ab, ab", spell("ab, ab"), spell(", "))
      for it in ("Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")),
    ("Split Isolated, invert", split("Isolated", True), "ab", spell("ab"), []),
    ("Split Removed, invert", split("Removed", True), "ab, ab", spell(", "), spell(", ")),
    ("Replace by $2x", replace("$2x"), "ab", spell("$2x"), spell("bx")),
    ("Replace by $&", replace("$&"), "ab", spell("$&"), spell("ab")),
    ("Replace by $$", replace("$$"), "ab", spell("$$"), spell("$")),
    ("an added single_word", file(added=[word]), "ab cab", [len(pieces), *spell(" cab")], [len(pieces), *spell(" c"), len(pieces)]),
    ("an unknown word", file(model=words, pre_tokenizer={"type": "WhitespaceSplit"}), "ab x", [1, 0], [1, None]),
]
python = [Tokenizer.from_str(row[1]).encode(row[2]).ids for row in rows]
made = subprocess.run(["node", "encode.mjs"], cwd=sys.argv[1], text=True, check=True, capture_output=True,
                      input=json.dumps([row[1:3] for row in rows]))
changed = []
for (what, _, text, *wanted), *seen in zip(rows, python, json.loads(made.stdout)):
    print(f"{what:34} {text!r:9} tokenizers {seen[0]}, JavaScript {seen[1]}")
    if seen != wanted:
        changed.append(what)
if changed:
    sys.exit(f"changed: {changed}")
END
