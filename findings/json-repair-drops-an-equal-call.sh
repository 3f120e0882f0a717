#!/usr/bin/env bash
# json_repair returns the last of two objects that have the same members, where it returns a list of
# two that have not: of two calls of one tool in a row the first is gone.
#
# Version: json_repair 0.64.6.
# Expected: two JSON values one after the other are a list of two, as the library's description says
# of several values in one text; a repair adds what is missing and drops no whole value.
# Seen: {"name": "f", "arguments": {"x": 1}} and, in the next line, the same with 2 give the second
# alone; with another function's arguments, a list of both. So with a blank, with words between them
# and as two blocks of code; with a comma between them both are kept. Three calls of f, g, f are
# three, of f, f, g two. [1] and [2] in two lines are [2], [1] and [3, 4] are both. No error.
# Why: a value that has the same keys (or an equally long list) as the one before it counts as its
# correction. Only the shape is compared, never the numbers or texts.
# For us: a client that repairs tool calls out of a model's text loses parallel calls of one tool.
# Our server (crates/server, tool_syntax.rs) reads calls by their marks and keeps each; programs
# that use ours read tool_calls of the answer, never its text by a repair.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile 'json_repair==0.64.6'
"$work/venv/bin/python" - <<'END'
import json, sys
import json_repair

call = lambda name, **arguments: {"name": name, "arguments": arguments}
first, second, other = call("f", x=1), call("f", x=2), call("g", y=3)
text = json.dumps
code = lambda value: f"```json\n{text(value)}\n```"
rows = {
    "two calls of one tool, in two lines": (f"{text(first)}\n{text(second)}", second),
    "two calls of two tools, in two lines": (f"{text(first)}\n{text(other)}", [first, other]),
    "two calls of one tool, words between": (f"{text(first)} and then {text(second)}", second),
    "two calls of one tool, in code blocks": (f"{code(first)}\n{code(second)}", second),
    "two calls of one tool, with a comma": (f"{text(first)}, {text(second)}", [first, second]),
    "f, g, f": (f"{text(first)}\n{text(other)}\n{text(second)}", [first, other, second]),
    "f, f, g": (f"{text(first)}\n{text(second)}\n{text(other)}", [second, other]),
    "two arrays of one length": ("[1]\n[2]", [2]),
    "two arrays of two lengths": ("[1]\n[3, 4]", [[1], [3, 4]]),
}
changed = []
for what, (given, wanted) in rows.items():
    seen = json_repair.loads(given)
    print(f"{what:38} {text(seen)}")
    if seen != wanted:
        changed.append(what)
if changed:
    sys.exit(f"changed: {changed}")
END
