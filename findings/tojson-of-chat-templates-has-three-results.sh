#!/usr/bin/env bash
# One chat template with "tojson" has three prompts: jinja2 sorts the members and escapes < and
# letters, minijinja escapes < alone, transformers does neither; and 1e22 is written out by
# minijinja.
#
# Versions: jinja2 3.1.6, minijinja 3.1.0, transformers 5.24.0.
# Expected: the filter has one result, as it has one name; transformers' templates are jinja2's.
# Seen: of an object with b, 1, and a, a text of < and e with acute, transformers makes {"b": 1,
# "a": ...} with both characters as they are; jinja2 {"a": "\u003c\u00e9", "b": 1}; and minijinja
# keeps the order and the letter, and writes < as \u003c. As output 1e22, 1e-7 and 1e16 are 1e+22,
# 1e-07 and 1e+16 in the two Python ones, and 10000000000000000000000.0, 0.0000001 and
# 10000000000000000.0 in minijinja; by its tojson 1e-7 is 1e-7, by theirs 1e-07.
# Why: transformers replaces jinja2's filter, which is made for script elements of pages.
# For us: the tools in a prompt differ by runtime: one that renders a model's template by plain
# jinja2 shows the model tools as it never saw them. Our own filters (crates/tokenizer,
# chat/filters.rs and python.rs) follow transformers; a reference rendering has to come from there
# too.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'jinja2==3.1.6' 'markupsafe==3.0.4' 'minijinja==3.1.0' 'transformers==5.24.0' 'numpy==2.4.6' 'packaging==26.4' \
    'PyYAML==6.0.4' 'regex==2026.11.19' 'tqdm==4.70.1' 'safetensors==0.8.0' 'tokenizers==0.23.3' 'filelock==4.3.1' \
    'huggingface_hub==2.4.0' 'typing_extensions==4.16.0' 'fsspec==2026.9.0' 'hf-xet==1.8.0' 'httpx2==2.16.2' \
    'httpcore2==2.16.2' 'h11==0.16.0' 'anyio==4.16.0' 'idna==3.20' 'truststore==0.10.5' 'sniffio==1.3.1' 'click==8.5.1'
TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" -W ignore - 2>"$work/log" <<'END' || { cat "$work/log"; exit 1; }
import sys
import jinja2, jinja2.sandbox, minijinja
from transformers.utils.chat_template_utils import _compile_jinja_template

plain = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
small = minijinja.Environment(trim_blocks=True, lstrip_blocks=True)
values = {"d": {"b": 1, "a": "<\u00e9"}, "f": [1e22, 1e-7, 1e16, 0.1]}
ways = {"transformers": lambda text: _compile_jinja_template(text).render(**values),
        "jinja2": lambda text: plain.from_string(text).render(**values),
        "minijinja": lambda text: small.render_str(text, **values)}
rows = {
    "{{ d|tojson }}": ('{"b": 1, "a": "<\u00e9"}', '{"a": "\\u003c\\u00e9", "b": 1}', '{"b": 1, "a": "\\u003c\u00e9"}'),
    "{{ d }}": ("{'b': 1, 'a': '<\u00e9'}",) * 3,
    "{{ f[0] }} {{ f[1] }} {{ f[2] }} {{ f[3] }}": (
        "1e+22 1e-07 1e+16 0.1", "1e+22 1e-07 1e+16 0.1", "10000000000000000000000.0 0.0000001 10000000000000000.0 0.1"),
    "{{ f|tojson }}": ("[1e+22, 1e-07, 1e+16, 0.1]", "[1e+22, 1e-07, 1e+16, 0.1]", "[1e+22, 1e-7, 1e+16, 0.1]"),
}
changed = []
for text, wanted in rows.items():
    for (name, render), one in zip(ways.items(), wanted):
        seen = render(text)
        print(f"{text:44} {name:12} {seen}")
        if seen != one:
            changed.append((text, name))
if changed:
    sys.exit(f"changed: {changed}")
END
