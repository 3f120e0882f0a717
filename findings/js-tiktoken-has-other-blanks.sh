#!/usr/bin/env bash
# js-tiktoken splits texts at other blanks than tiktoken: U+FEFF is one and U+0085 is none, so the
# ids beside them differ; and it decodes a text that began with U+FEFF without it.
#
# Versions: js-tiktoken 1.0.21 (npm) with its cl100k_base, tiktoken 0.14.0 and regex 2026.11.19
# (PyPI); node 18 or later.
# Expected: one vocabulary and one expression give one list of ids, and ids decode to the text.
# Seen: "a", U+FEFF, "_T" is a, U+FEFF and the piece "_T" in JavaScript, where the blank stands
# alone; tiktoken takes U+FEFF and "_" as one word and "T" as another. After U+0085 the text "\b" is
# a backslash and "b" in JavaScript, one piece in tiktoken. Of 3000 random texts with both
# characters 147 differ, without them none. U+FEFF, with which files of some editors begin, is lost
# by decode() at a text's front, not in its middle. No error.
# Why: \s of JavaScript has U+FEFF and no U+0085, of Rust the reverse (White_Space of Unicode); and
# TextDecoder drops a byte order mark unless it is asked not to.
# For us: counts of tokens that a client made need not be the server's. Splitting by expressions of
# our own (crates/tokenizer, gguf/split.rs) has Rust's blanks, as tiktoken and llama.cpp.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'tiktoken==0.14.0' 'regex==2026.11.19'
(cd "$work" && npm install --silent --no-audit --no-fund --cache "$work/npm" 'js-tiktoken@1.0.21')
cat > "$work/encode.mjs" <<'END'
import { readFileSync } from "fs";
import { Tiktoken } from "js-tiktoken/lite";
import ranks from "js-tiktoken/ranks/cl100k_base";
const tokenizer = new Tiktoken(ranks);
const made = JSON.parse(readFileSync(0, "utf8")).map((text) => {
    const ids = tokenizer.encode(text, [], []);
    return [ids, tokenizer.decode(ids)];
});
console.log(JSON.stringify({ ranks, made }));
END
"$work/venv/bin/python" - "$work" <<'END'
import base64, json, random, subprocess, sys
import tiktoken

print("tiktoken", tiktoken.__version__)
source = random.Random(7)
plain = [*"abSTdlm' \t\n0123.,!?-_/\\(){}", "\u00a0", "\u3000", "\u2028", "\u00c9", "\u4e2d", "'ll", "hello", " the"]
texts = {"with": ["".join(source.choice([*plain, "\ufeff", "\u0085"]) for _ in range(12)) for _ in range(3000)],
         "without": ["".join(source.choice(plain) for _ in range(12)) for _ in range(3000)]}
rows = ["hello world", "\ufeffhello", "a\ufeff_T", "\u0085\\b?", "a\ufeff"]
given = [*rows, *texts["with"], *texts["without"]]
out = json.loads(subprocess.run(["node", "encode.mjs"], cwd=sys.argv[1], text=True, check=True, capture_output=True,
                                input=json.dumps(given)).stdout)
ranks = {}
for line in out["ranks"]["bpe_ranks"].split("\n"):
    _, first, *tokens = line.split(" ")
    ranks.update((base64.b64decode(token), int(first) + at) for at, token in enumerate(tokens))
encoding = tiktoken.Encoding("cl100k", pat_str=out["ranks"]["pat_str"], mergeable_ranks=ranks, special_tokens={})
changed = []
for text, (ids, back) in zip(rows, out["made"]):
    right = encoding.encode(text, disallowed_special=())
    print(f"{ascii(text):18} tiktoken {right}, JavaScript {ids}, decoded {ascii(back)}")
    if (right == ids) != (text not in ("a\ufeff_T", "\u0085\\b?")) or (back == text) != (text != "\ufeffhello"):
        changed.append(text)
made = iter(out["made"][len(rows):])
for kind, some in texts.items():
    differ = sum(next(made)[0] != encoding.encode(text, disallowed_special=()) for text in some)
    print(f"{differ} of {len(some)} texts {kind} U+FEFF and U+0085 differ")
    if (differ > 0) != (kind == "with"):
        changed.append(kind)
if changed:
    sys.exit(f"changed: {changed}")
END
