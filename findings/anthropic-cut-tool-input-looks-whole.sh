#!/usr/bin/env bash
# If max_tokens cuts a tool's input, the anthropic client's final message has a whole-looking
# input: the last text is left out, and a number keeps the digits that had come.
#
# Version: anthropic 2.14.0, on streams from memory.
# Expected: an error, or the raw text; the client does raise for input that is no JSON.
# Seen: {"path": "a", "size": 12 (of 1200) gives {"path": "a", "size": 12}, {"path": "a", "to": "b
# gives {"path": "a"}, {"x": tru gives {}. Only stop_reason "max_tokens" tells. NaN is taken as a
# number. Complete JSON with the escape of half a surrogate pair, "\ud83d", raises ValueError
# while streaming, although json.loads reads it. Two deltas of a thinking signature leave the
# second alone, where texts, thinking and inputs are joined.
# Why: the input is parsed anew with each delta by a parser that allows a cut end, and never once
# more as a whole at the block's end.
# For us: a program that runs tools must look at stop_reason first. Our server sends a call only
# when it is complete, and a cut one as text (ToolReader::finish, tool_syntax.rs of
# crates/server): keep it. A tool's arguments must leave the server without halves of surrogate
# pairs.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'anthropic==2.14.0' 'httpx2==2.16.2' 'httpcore2==2.16.2' 'h11==0.16.0' 'anyio==4.16.0' 'idna==3.20' \
    'truststore==0.10.5' 'sniffio==1.3.1' 'jiter==0.19.0' 'pydantic==2.14.4' 'pydantic_core==2.50.5' \
    'annotated-types==0.8.0' 'typing_extensions==4.16.0' 'typing-inspection==0.4.5' \
    'docstring_parser==0.18.0' 'opentelemetry-api==1.45.2'
"$work/venv/bin/python" -W ignore - <<'END'
import json, sys
import anthropic, httpx2


def final(block, deltas, reason):
    """The block that the client's helper makes of a stream."""
    events = [
        {"type": "message_start", "message": {
            "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
            "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None},
         "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    answer = lambda _: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    transport = httpx2.Client(transport=httpx2.MockTransport(answer))
    client = anthropic.Anthropic(api_key="none", base_url="http://127.0.0.1", http_client=transport)
    try:
        with client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]) as stream:
            message = stream.get_final_message()
    except ValueError:
        return "ValueError"
    assert message.stop_reason == reason
    return message.content[0]


def tool_input(*parts, reason="max_tokens"):
    deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
    block = final({"type": "tool_use", "id": "t", "name": "f", "input": {}}, deltas, reason)
    return block if block == "ValueError" else repr(block.input)


thought = final({"type": "thinking", "thinking": "", "signature": ""},
                [{"type": "thinking_delta", "thinking": "a"}, {"type": "thinking_delta", "thinking": "b"},
                 {"type": "signature_delta", "signature": "AB"}, {"type": "signature_delta", "signature": "CD"}],
                "end_turn")
half = '{"x": "\\ud83d"}'
rows = [
    ("whole", tool_input('{"path": "a",', ' "size": 1200}', reason="tool_use"), "{'path': 'a', 'size': 1200}"),
    ("cut in a number", tool_input('{"path": "a",', ' "size": 12'), "{'path': 'a', 'size': 12}"),
    ("cut in a text", tool_input('{"path": "a", "to": "b'), "{'path': 'a'}"),
    ("cut in a list", tool_input('{"all": [1, 2, 3'), "{'all': [1, 2, 3]}"),
    ("cut in a word", tool_input('{"x": tru'), "{}"),
    ("cut after a name", tool_input('{"x"'), "{}"),
    ("NaN", tool_input('{"x": NaN}', reason="tool_use"), "{'x': nan}"),
    ("no JSON", tool_input('{"x" 1}', reason="tool_use"), "ValueError"),
    ("half a surrogate pair", tool_input(half, reason="tool_use"), "ValueError"),
    ("a pair in two parts", tool_input(half[:-2], '\\ude00"}', reason="tool_use"), "{'x': '\U0001f600'}"),
    ("thinking, signature", (thought.thinking, thought.signature), ("ab", "CD")),
]
changed = []
for name, seen, wanted in rows:
    print(f"{name:24} {ascii(seen)}")
    if seen != wanted:
        changed.append(name)
if json.loads(half) != {"x": "\ud83d"}:
    changed.append("json.loads")
if changed:
    sys.exit(f"changed: {changed}")
END
