#!/usr/bin/env bash
# The openai client's chat.completions.stream() joins members that chunks repeat
# ("assistantassistant"), fails if choice 1 speaks before choice 0, and ends calls that are still
# coming.
#
# Version: openai 3.57.0, on streams from memory.
# Expected: a chunk's role, id and name are what they are; choices and calls come in any order, as
# each has its index; a plain text that max_tokens cut is returned with finish_reason "length".
# Seen: a role in each of two chunks becomes "assistantassistant", a call's id "call_1call_1" and
# its name "ff"; numbers of extra members are added up. With n=2 and choice 1 first: IndexError.
# Two calls whose arguments alternate: the event "arguments.done" of each comes with half its
# arguments, at the first chunk of the other, and not again. get_final_completion() of plain text
# that ended by length raises LengthFinishReasonError, without tools or a format. The chunks
# themselves, and create() with stream=True, have everything right.
# Why: the helper adds up all texts but those of "type", appends unknown indices to a list, and
# takes a new index as the end of the one before.
# For us: the server sends role, id and name once, each call whole and in order, and one choice
# (openai.rs of crates/server): keep it so, above all when n > 1 or parts of calls are added:
# choice 0 first, one call after the other.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'openai==3.57.0' 'httpx2==2.16.2' 'httpcore2==2.16.2' 'h11==0.16.0' 'anyio==4.16.0' 'idna==3.20' \
    'truststore==0.10.5' 'sniffio==1.3.1' 'jiter==0.19.0' 'pydantic==2.14.4' 'pydantic_core==2.50.5' \
    'annotated-types==0.8.0' 'typing_extensions==4.16.0' 'typing-inspection==0.4.5'
"$work/venv/bin/python" -W ignore - <<'END'
import json, sys
import httpx2, openai

TOOLS = [{"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in "fg"]


def chunk(delta, finish=None, index=0):
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def call(arguments, index=0, **members):
    function = {"arguments": arguments, **({"name": members.pop("name")} if "name" in members else {})}
    return chunk({"tool_calls": [{"index": index, "function": function, **members}]})


def client(chunks):
    body = "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n"
    answer = lambda _: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    transport = httpx2.Client(transport=httpx2.MockTransport(answer))
    return openai.OpenAI(api_key="none", base_url="http://127.0.0.1/v1", http_client=transport)


def helped(chunks, look, **options):
    """What look makes of the final completion, and the arguments of events that say done."""
    ended = []
    try:
        with client(chunks).chat.completions.stream(model="m", messages=[], **options) as stream:
            for event in stream:
                if event.type == "tool_calls.function.arguments.done":
                    ended.append(event.arguments)
            return look(stream.get_final_completion()), ended
    except (IndexError, openai.LengthFinishReasonError) as error:
        return type(error).__name__, ended


def raw(chunks):
    stream = client(chunks).chat.completions.create(model="m", messages=[], stream=True)
    return [(c.index, c.delta.content, c.finish_reason) for part in stream for c in part.choices]


message = lambda completion: completion.choices[0].message
calls = lambda completion: [(c.id, c.function.name, c.function.arguments) for c in message(completion).tool_calls]
texts = lambda completion: [c.message.content for c in completion.choices]
role = {"role": "assistant"}
two_choices = [chunk({**role, "content": "A"}), chunk({**role, "content": "B"}, index=1),
               chunk({}, "stop"), chunk({}, "stop", 1)]
swapped = [two_choices[at] for at in (1, 0, 2, 3)]
length = [chunk({**role, "content": "cut"}), chunk({}, "length")]
rows = [
    ("role in each chunk", helped([chunk({**role, "content": "a"}), chunk({**role, "content": "b"}), chunk({}, "stop")],
                                  lambda c: (message(c).role, message(c).content)), (("assistantassistant", "ab"), [])),
    ("an extra number", helped([chunk({**role, "n": 1}), chunk({"content": "a", "n": 2}), chunk({}, "stop")],
                               lambda c: message(c).to_dict()["n"]), (3, [])),
    ("id and name in each chunk", helped(
        [chunk(role), call("{", id="call_1", type="function", name="f"),
         call("}", id="call_1", type="function", name="f"), chunk({}, "tool_calls")], calls, tools=TOOLS),
     ([("call_1call_1", "ff", "{}")], ["{}"])),
    ("id and name once", helped([chunk(role), call("{", id="call_1", type="function", name="f"), call("}"),
                                 chunk({}, "tool_calls")], calls, tools=TOOLS), ([("call_1", "f", "{}")], ["{}"])),
    ("choice 0 first", helped(two_choices, texts, n=2), (["A", "B"], [])),
    ("choice 1 first", helped(swapped, texts, n=2), ("IndexError", [])),
    ("choice 1 first, chunks", raw(swapped), [(1, "B", None), (0, "A", None), (0, None, "stop"), (1, None, "stop")]),
    ("calls that alternate", helped(
        [chunk(role), call('{"x":', id="a", type="function", name="f"), call('{"y":', 1, id="b", type="function", name="g"),
         call("1}"), call("2}", 1), chunk({}, "tool_calls")], calls, tools=TOOLS),
     ([("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')], ['{"x":', '{"y":'])),
    ("plain text cut by length", helped(length, texts), ("LengthFinishReasonError", [])),
    ("the same, chunks", raw(length), [(0, "cut", None), (0, None, "length")]),
]
changed = []
for name, seen, wanted in rows:
    print(f"{name:26} {seen}")
    if seen != wanted:
        changed.append(name)
if changed:
    sys.exit(f"changed: {changed}")
END
