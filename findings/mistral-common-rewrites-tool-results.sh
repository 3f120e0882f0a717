#!/usr/bin/env bash
# mistral-common's v2 and v3 tokenizers rewrite what a tool answered if it reads as JSON: 1.50
# becomes 1.5 and 1e3 becomes 1000.0; and a prefix of the answer loses its last blank.
#
# Versions: mistral-common 1.13.1 and its tokenizer files, sentencepiece 0.2.3.
# Expected: the content of a tool message is a text, which stands in the prompt as it came, as other
# messages do; a prefix is continued where it ends.
# Seen: in v2 and v3 the content {"r": 1.50} becomes {"r": 1.5}, of two members of one name the last
# is left, NaN stays NaN, blanks are set anew, and what is no JSON is put in quotes. v7 has the
# content as it came. A call's arguments are rewritten in all of them: 1e3 becomes 1000.0, and
# arguments that were cut become one text in quotes. The messages of an assistant lose blanks at
# their ends, from v2 on also with prefix=True, those of a user keep them. Two messages of a user
# become one, with an empty line between.
# Why: json.loads and json.dumps on the way to the prompt.
# For us: a conversation that is sent back has other tokens than the model wrote, so a cached prefix
# ends at the first rewritten number; prompts of our templates (crates/tokenizer) keep texts and are
# equal to Mistral's only where the numbers are spelled as Python does.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'mistral-common==1.13.1' 'sentencepiece==0.2.3' 'numpy==2.4.6' 'pydantic==2.14.4' \
    'pydantic_core==2.50.5' 'annotated-types==0.8.0' 'typing_extensions==4.16.0' 'typing-inspection==0.4.5' \
    'pydantic-extra-types==2.11.1' 'pycountry==26.2.16' 'jsonschema==4.26.0' \
    'jsonschema-specifications==2025.9.1' 'referencing==0.37.0' 'rpds-py==2026.9.1' 'attrs==26.1.0' \
    'pillow==13.0.0' 'requests==2.34.2' 'certifi==2026.10.19.post1' 'idna==3.20' 'urllib3==2.8.0' \
    'charset-normalizer==3.5.3' 'tiktoken==0.14.0' 'regex==2026.11.19'
"$work/venv/bin/python" -W ignore - <<'END'
import sys
from pathlib import Path
import mistral_common
from mistral_common.protocol.instruct.messages import AssistantMessage, ToolMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import FunctionCall, ToolCall
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

folder = Path(mistral_common.__file__).parent / "data"
files = {"v1": "tokenizer.model.v1", "v2": "mistral_instruct_tokenizer_240216.model.v2",
         "v3": "mistral_instruct_tokenizer_240323.model.v3",
         "v7": "mistral_instruct_tokenizer_241114.model.v7"}
tokenizers = {name: MistralTokenizer.from_file(str(folder / file)) for name, file in files.items()}


def prompt(name, *messages):
    text = tokenizers[name].encode_chat_completion(ChatCompletionRequest(messages=list(messages))).text
    return text.replace("\u2581", " ").replace("<0x0A>", "\n")


def between(text, start, end):
    return text[text.index(start) + len(start):text.rindex(end)].strip()


def call(name, arguments, content):
    calls = [ToolCall(id="abcdefghi", function=FunctionCall(name="f", arguments=arguments))]
    return prompt(name, UserMessage(content="a"), AssistantMessage(tool_calls=calls),
                  ToolMessage(tool_call_id="abcdefghi", content=content))


changed = []
RESULTS = {'{"r": 1.50}': '{"r": 1.5}', '{"b":1,"b":2}': '{"b": 2}', "1e3": "1000.0", "007": '"007"', "done": '"done"', "[NaN]": "[NaN]"}
for content, wanted in RESULTS.items():
    for name in ("v2", "v3", "v7"):
        text = call(name, "{}", content)
        seen = between(text, "[TOOL_CONTENT]" if name == "v7" else '"content":', "[/TOOL_RESULTS]")
        seen = seen.split(', "call_id"')[0] if "call_id" in seen else seen.removesuffix("}]")
        print(f"result {content:15} {name:3} {seen}")
        if seen != (content if name == "v7" else wanted):
            changed.append((content, name))
ARGUMENTS = {'{"x":1e3,"y":0.10}': '{"x": 1000.0, "y": 0.1}', '{"x": ': '"{\\"x\\": "'}
for arguments, wanted in ARGUMENTS.items():
    for name in ("v3", "v7"):
        seen = between(call(name, arguments, "x"), '"arguments":', ', "id"')
        print(f"arguments {arguments:20} {name:3} {seen}")
        if " ".join(seen.split()) != wanted:
            changed.append((arguments, name))
ENDS = {"v1": "b ", "v2": "b", "v3": "b", "v7": "b"}
for name, wanted in ENDS.items():
    text = prompt(name, UserMessage(content="a "), AssistantMessage(content="b ", prefix=True))
    seen = text[text.index("[/INST]") + 7:].removeprefix(" ")
    print(f"prefix 'b ' {name:3} {seen!r}")
    if seen != wanted or "a [/INST]" not in text and "a  [/INST]" not in text:
        changed.append(("prefix", name))
    if "a\n\nb" not in prompt(name, UserMessage(content="a"), UserMessage(content="b")):
        changed.append(("two", name))
if changed:
    sys.exit(f"changed: {changed}")
END
