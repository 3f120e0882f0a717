"""Writes what jinja2 in transformers renders, for tests to compare with.

    pip install transformers==5.24.0 jinja2==3.1.6
    make_references.py                 writes expressions.json beside this file
    make_references.py FOLDER OUTPUT   renders every *.jinja of a folder for conversations

Folders of templates, and vocabularies with vectors, are in llama-cpp-python's source package
(0.3.36, vendor/llama.cpp/models); the examples `templates` and `vectors` read them.
"""

import json
import sys
from datetime import datetime
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

HERE = Path(__file__).parent

VARIABLES = {
    "d": {"b": 1, "a": [1, "x", None, True, 2.0]},
    "s": "a<b>\u00e9\"'",
    "n": None,
    "l": [1, 2, 3],
    "t": True,
    "f": 1e20,
    "m": {"items": 5, "get": 1, "keys": 2},
}


def render(case):
    """The case with its text, or with the error that it ends in."""
    arguments = {
        "conversations": [
            [{k: v for k, v in message.items() if v is not None} for message in case.get("messages", [])]
        ],
        "tools": case.get("tools"),
        "documents": case.get("documents"),
        "chat_template": case["template"],
        "add_generation_prompt": case.get("add_generation_prompt", True),
        **case.get("variables", {}),
    }
    try:
        return {**case, "text": render_jinja_template(**arguments)[0][0]}
    except Exception as error:  # noqa: BLE001: whatever it is, the case fails
        return {**case, "error": f"{type(error).__name__}: {error}"}


def write(cases, path):
    lines = ",\n".join(json.dumps(render(case), ensure_ascii=True) for case in cases)
    path.write_text(f"[\n{lines}\n]\n")


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city, <now> & here's it",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Stra\u00dfe"},
                "days": {"type": "integer", "default": 3, "enum": [1, 3]},
                "scale": {"type": ["number", "null"], "minimum": 0.5},
            },
            "required": ["city"],
        },
        "return": {"type": "string"},
    },
}
CALL = {"type": "function", "id": "call00001", "function": {"name": "weather", "arguments": {"city": "Oslo", "days": 1}}}
TEXT_CALL = {**CALL, "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


CONVERSATIONS = {
    "one": {"messages": [user("Hello")]},
    "system": {"messages": [{"role": "system", "content": "Be brief.\n"}, user(" Hi "), assistant("Yes"), user("So?")]},
    "closed": {"messages": [user("a"), assistant("b\n")], "add_generation_prompt": False},
    "reasoning": {"messages": [user("a"), assistant("b", reasoning_content="why\nnot"), user("c")]},
    "thinking": {"messages": [user("a"), assistant("b", thinking="hm"), user("c"), assistant("d", reasoning="x")]},
    "inline": {"messages": [user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c")]},
    "tools": {"messages": [user("Oslo?")], "tools": [WEATHER]},
    "calls": {
        "messages": [
            user("Oslo?"),
            assistant(None, tool_calls=[CALL]),
            {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": '{"t": -3.5}'},
            assistant("-3.5"),
            user("Thanks"),
        ],
        "tools": [WEATHER],
    },
    "text calls": {
        "messages": [
            user("Oslo?"),
            assistant("", tool_calls=[TEXT_CALL]),
            {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "cold"},
        ],
        "tools": [WEATHER],
    },
    "two calls": {
        "messages": [
            user("Oslo?"),
            assistant("I look", tool_calls=[CALL, CALL]),
            {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "cold"},
            {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "colder"},
        ],
        "tools": [WEATHER, WEATHER],
    },
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}]},
    "documents": {"messages": [user("?")], "documents": [{"title": "T", "text": "body"}]},
    "no thinking": {"messages": [user("a")], "variables": {"enable_thinking": False}},
    "developer": {"messages": [{"role": "developer", "content": "D"}, user("u")]},
    "two users": {"messages": [user("a"), user("b")]},
    "unicode": {"messages": [user("\u00e9\u4e2d\U0001f600 <b>&'\" \\n"), assistant("\u2028"), user("\t")]},
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def main():
    if len(sys.argv) == 1:
        lines = (HERE / "expressions.txt").read_text().splitlines()
        sources = [line.replace("\\n", "\n").replace("\\r", "\r") for line in lines]
        write([{"name": s, "template": s, "variables": VARIABLES} for s in sources], HERE / "expressions.json")
        return
    cases = []
    for path in sorted(Path(sys.argv[1]).glob("*.jinja")):
        source = path.read_bytes().decode()
        for name, conversation in CONVERSATIONS.items():
            variables = {**TOKENS, **conversation.get("variables", {})}
            case = {"name": f"{path.stem}: {name}", "template": source, **conversation, "variables": variables}
            cases.append(case)
    write(cases, Path(sys.argv[2]))
    # A template that shows the date is the same on both sides for a day.
    print(f"{len(cases)} cases of {datetime.now():%Y-%m-%d}")


if __name__ == "__main__":
    main()
