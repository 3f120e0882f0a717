#!/usr/bin/env bash
# In a chat template "if p['items']" is true in jinja2 for a JSON schema that has no items: the text
# in the brackets names a method of dictionaries; minijinja says false; p.items has three meanings.
#
# Versions: jinja2 3.1.6, markupsafe 3.0.4, minijinja 3.1.0 (PyPI), @huggingface/jinja 0.5.11 (npm);
# node 18 or later.
# Expected: p["items"] is a member and nothing else, as in Python; p.items is the same wherever
# there is such a member. "items" is what each array's schema has, and a template asks for it.
# Seen: where q has no such member, q["items"] and q.items are a method in jinja2 and JavaScript:
# true and defined, and default() does not step in; in minijinja they are undefined. Where p has
# one, p.items is the method in jinja2 (p.items.type is the empty text), the member in the other
# two; and "for k, v in p.items()" raises in JavaScript, for such objects alone. A tool's parameter
# may be named items, keys, values or get. q.get("items") and "items" in q are the same in all
# three.
# Why: jinja2 and @huggingface/jinja look for an attribute if there is no member, minijinja does
# not.
# For us: minijinja's rule is ours (crates/tokenizer, chat/template.rs): an array without "items"
# takes another branch of such templates than under transformers, which wrote the prompts of the
# training.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'jinja2==3.1.6' 'markupsafe==3.0.4' 'minijinja==3.1.0'
(cd "$work" && npm install --silent --no-audit --no-fund --cache "$work/npm" '@huggingface/jinja@0.5.11')
cat > "$work/render.mjs" <<'END'
import { readFileSync } from "fs";
import { Template } from "@huggingface/jinja";
const templates = JSON.parse(readFileSync(0, "utf8"));
const render = (it) => { try { return new Template(it).render(); } catch { return "error"; } };
console.log(JSON.stringify(templates.map(render)));
END
"$work/venv/bin/python" - "$work" <<'END'
import json, subprocess, sys
import minijinja
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Template; then what jinja2, minijinja and JavaScript make of it.
rows = [
    ("{{ 'yes' if q['items'] else 'no' }}", "yes", "no", "yes"),
    ("{{ 'yes' if q['items'] is defined else 'no' }}", "yes", "no", "yes"),
    ("{{ 'yes' if q.items else 'no' }}", "yes", "no", "yes"),
    ("{{ q['items']|default('none') == 'none' }}", "False", "True", "false"),
    ("{{ 'yes' if q['other'] is defined else 'no' }}", "no", "no", "no"),
    ("{{ 'yes' if q.get('items') else 'no' }}", "no", "no", "no"),
    ("{{ 'yes' if 'items' in q else 'no' }}", "no", "no", "no"),
    ("{{ [q, p]|selectattr('items')|list|length }}", "2", "1", "1"),
    ("{{ p['items'].type }}", "string", "string", "string"),
    ("{{ p.items.type }}", "", "string", "string"),
    ("{% for k, v in q.items() %}{{ k }} {% endfor %}", "type ", "type ", "type "),
    ("{% for k, v in p.items() %}{{ k }} {% endfor %}", "type items ", "type items ", "error"),
    ("{% for k in r.keys() %}{{ k }} {% endfor %}", "keys ", "keys ", "error"),
]
first = """{% set p = {"type": "array", "items": {"type": "string"}} %}{% set q = {"type": "array"} %}{% set r = {"keys": 1} %}"""
templates = [first + row[0] for row in rows]
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
small = minijinja.Environment(trim_blocks=True, lstrip_blocks=True)
python = [environment.from_string(it).render() for it in templates]
rust = [small.render_str(it) for it in templates]
made = subprocess.run(["node", "render.mjs"], cwd=sys.argv[1], text=True, check=True, capture_output=True,
                      input=json.dumps(templates))
changed = []
for (template, *wanted), *seen in zip(rows, python, rust, json.loads(made.stdout)):
    print(f"{template:51}" + "".join(f" {name} {it!r:14}" for name, it in zip(("jinja2", "minijinja", "JavaScript"), seen)))
    if seen != wanted:
        changed.append(template)
if changed:
    sys.exit(f"changed: {changed}")
END
