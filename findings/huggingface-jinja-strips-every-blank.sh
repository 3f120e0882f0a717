#!/usr/bin/env bash
# @huggingface/jinja, which renders chat templates in JavaScript, ignores what strip() is to strip:
# x.strip('\n') takes all blanks; and [] == [] is false, where an undefined name equals none.
#
# Versions: @huggingface/jinja 0.5.11 (npm), jinja2 3.1.6, markupsafe 3.0.4 (PyPI); node 18 or
# later.
# Expected: the prompt that jinja2 makes of the template, or an error for what is not supported.
# Seen: of "\n  a \n" strip('\n') leaves "a" and lstrip('\n') "a \n", where jinja2 leaves "  a " and
# "  a \n"; "abc".strip("ac") is "abc". [] == [] and {} == {} are false, u == none of an undefined u
# is true, so are "1" == 1 and "" == 0, while 1 in [true] is false. -7 % 3 is -1. "hELLO" is
# capitalised to "HELLO", "it's" is titled "It'S"; none is printed as nothing and true as true. No
# error for any. What would be missed by name (filters, tests, comparisons of texts) does raise.
# Why: strip is JavaScript's trim() without its argument; == is JavaScript's == of what is wrapped.
# For us: templates of reasoning models strip line feeds alone ("</think>" and what follows), so
# indented code loses its first indent in a browser and not here. Ours (crates/tokenizer,
# chat/methods.rs) strips what is asked. A prompt of a JavaScript client is no reference for ours.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'jinja2==3.1.6' 'markupsafe==3.0.4'
(cd "$work" && npm install --silent --no-audit --no-fund --cache "$work/npm" '@huggingface/jinja@0.5.11')
cat > "$work/render.mjs" <<'END'
import { readFileSync } from "fs";
import { Template } from "@huggingface/jinja";
const { templates, values } = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(templates.map((it) => new Template(it).render(values))));
END
"$work/venv/bin/python" - "$work" <<'END'
import json, subprocess, sys
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Template, what jinja2 makes of it, what JavaScript makes of it.
rows = [
    (r"{{ x.strip('\n') }}|", "  a |", "a|"),
    (r"{{ x.lstrip('\n') }}|", "  a \n|", "a \n|"),
    (r"{{ x.rstrip('\n') }}|", "\n  a |", "\n  a|"),
    ("{{ 'abc'.strip('ac') }}", "b", "abc"),
    ("{{ 'same' if tools == [] else 'other' }}", "same", "other"),
    ("{{ 'same' if options == {} else 'other' }}", "same", "other"),
    ("{{ 'same' if missing == none else 'other' }}", "other", "same"),
    ("{{ 'same' if '1' == 1 else 'other' }}", "other", "same"),
    ("{{ 'same' if '' == 0 else 'other' }}", "other", "same"),
    ("{{ 'in' if 1 in [true] else 'out' }}", "in", "out"),
    ("{{ -7 % 3 }}", "2", "-1"),
    ("{{ 'hELLO'|capitalize }}", "Hello", "HELLO"),
    ("{{ \"it's\"|title }}", "It's", "It'S"),
    ("{{ none }}|{{ true }}", "None|True", "|true"),
    ("{{ ['b', 'A', 'a', 'B']|unique|join }}", "bA", "bAaB"),
]
values = {"x": "\n  a \n", "tools": [], "options": {}}
templates = [row[0] for row in rows]
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
python = [environment.from_string(it).render(**values) for it in templates]
made = subprocess.run(["node", "render.mjs"], cwd=sys.argv[1], text=True, check=True, capture_output=True,
                      input=json.dumps({"templates": templates, "values": values}))
changed = []
for (template, *wanted), *seen in zip(rows, python, json.loads(made.stdout)):
    print(f"{template:46} jinja2 {seen[0]!r:12} JavaScript {seen[1]!r}")
    if seen != wanted:
        changed.append(template)
if changed:
    sys.exit(f"changed: {changed}")
END
