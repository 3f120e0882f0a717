"""Chat in a terminal with a language model: `python -m fercuda_runtime.chat MODEL`.

    python -m fercuda_runtime.chat Qwen/Qwen3.5-4B --4bit
    python -m fercuda_runtime.chat mistralai/Mistral-7B-Instruct-v0.2 --no-fused
    python -m fercuda_runtime.chat model.gguf --engine native

Answers stream while they are made; Ctrl-C ends one and keeps what there is of it, `/clear` forgets
the conversation, `/exit` or the end of input leaves. Below each answer stand its tokens, tokens a
second after the first, and the time to the first. If the conversation outgrows the model's context,
its oldest turns are left out.

The engine `hf` is Transformers with decoding by CUDA graphs (`inference.accelerate`); `native` is
this package's own (`inference.load`).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .errors import ConfigError, FercudaError

__all__ = ["main"]

Message = dict[str, str]
Write = Callable[[str], None]


@dataclass(slots=True)
class _Answer:
    """An answer as far as it has come. Times in seconds of `time.perf_counter`."""

    begin: float = field(default_factory=time.perf_counter)
    parts: list[str] = field(default_factory=list)
    tokens: int = 0
    first: float | None = None
    last: float = 0.0

    def count(self, tokens: int) -> None:
        """Counts tokens that have just come."""
        self.last = time.perf_counter()
        if self.first is None:
            self.first = self.last
        self.tokens += tokens

    def line(self) -> str:
        """Figures of the answer."""
        if self.first is None:
            return "[no token]"
        text = f"[{self.tokens} tokens, first after {self.first - self.begin:.2f} s"
        if self.tokens > 1 and self.last > self.first:
            text += f", then {(self.tokens - 1) / (self.last - self.first):.1f} tokens/s"
        return text + "]"


class _Engine(Protocol):
    def answer(self, messages: list[Message], answer: _Answer, write: Write) -> None:
        """Generates an answer into `answer`, and writes its parts as they come."""

    def close(self) -> None:
        """Frees the model."""


class _Native:
    """This package's own engine."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        inference = importlib.import_module("fercuda_runtime.inference")
        self._arguments = arguments
        self._model = inference.load(arguments.model)

    def answer(self, messages: list[Message], answer: _Answer, write: Write) -> None:
        given = self._arguments
        settings: dict[str, Any] = {"max_tokens": given.max_tokens, "temperature": given.temperature}
        settings.update(top_k=given.top_k, top_p=given.top_p, seed=given.seed)
        with contextlib.closing(self._model.stream_generate(messages, **settings)) as stream:
            for part in stream:
                # Parts end at whole characters: a token without one comes with the next part.
                answer.count(max(1, len(self._model.encode(part))))
                answer.parts.append(part)
                write(part)

    def close(self) -> None:
        self._model.close()


class _Transformers:
    """Transformers with decoding by CUDA graphs."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        if arguments.model.lower().endswith(".gguf"):
            raise ConfigError(
                f"{arguments.model} is a GGUF file, which the engine hf does not read\ntry: --engine native"
            )
        if os.path.isabs(arguments.model) and not os.path.isdir(arguments.model):
            raise ConfigError(
                f"{arguments.model} is no folder\ntry: a folder of a model, or owner/name at Hugging Face"
            )
        try:
            self._torch = importlib.import_module("torch")
            transformers = importlib.import_module("transformers")
        except ImportError as error:
            raise ConfigError(
                f"the engine hf needs PyTorch and Transformers: {error}\ntry: --engine native"
            ) from error
        self._arguments = arguments
        device = arguments.device or ("cuda" if self._torch.cuda.is_available() else "cpu")
        options: dict[str, Any] = {"dtype": "auto"}
        if arguments.four_bit:
            _require("bitsandbytes", "--4bit")
            options["quantization_config"] = transformers.BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_compute_dtype=self._torch.bfloat16
            )
            options["device_map"] = {"": device}
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
        model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, **options)
        self._model = (model if arguments.four_bit else model.to(device)).eval()
        self._handle: Any = None
        if self._model.device.type == "cuda":
            inference = importlib.import_module("fercuda_runtime.inference")
            self._handle = inference.accelerate(self._model, fused=arguments.fused)
        else:
            print(f"on {self._model.device}, so without graphs and fused kernels", file=sys.stderr)
        self._streamer = _streamer(transformers)
        positions = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        self._room: int | None = None
        if positions:
            self._room = int(positions) - arguments.max_tokens
            if self._room <= 0:
                raise ConfigError(
                    f"--max-tokens is {arguments.max_tokens}, and the model has room for {positions} with the text\n"
                    f"try: --max-tokens {max(1, int(positions) // 2)}"
                )

    def _prompt(self, messages: list[Message]) -> Any:
        if self._tokenizer.chat_template is None:
            text = "\n".join(message["content"] for message in messages) + "\n"
            return self._tokenizer(text, return_tensors="pt")["input_ids"]
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # Of Jinja's: a template may refuse roles or their order.
            raise ConfigError(f"the model's chat template refuses the conversation: {error}") from error
        return self._tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]

    def answer(self, messages: list[Message], answer: _Answer, write: Write) -> None:
        given, kept = self._arguments, list(messages)
        ids = self._prompt(kept)
        while self._room is not None and ids.shape[1] > self._room:
            oldest = 1 if kept[0]["role"] == "system" else 0
            if len(kept) - oldest <= 2:
                raise ConfigError(
                    f"the text has {ids.shape[1]} tokens, and {self._room} fit before the answer\n"
                    "try: a shorter text, or a smaller --max-tokens"
                )
            del kept[oldest : oldest + 2]
            ids = self._prompt(kept)
        settings: dict[str, Any] = {"max_new_tokens": given.max_tokens, "do_sample": given.temperature > 0}
        if given.temperature > 0:
            settings.update(temperature=given.temperature, top_k=given.top_k, top_p=given.top_p)
            if given.seed is not None:
                self._torch.manual_seed(given.seed)
        ids = ids.to(self._model.device)
        self._model.generate(
            ids,
            attention_mask=self._torch.ones_like(ids),
            streamer=self._streamer(self._tokenizer, answer, write),
            pad_token_id=self._tokenizer.pad_token_id if self._tokenizer.pad_token_id is not None else 0,
            **settings,
        )

    def close(self) -> None:
        if self._handle is not None:
            self._handle.release()


def _require(package: str, option: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(f"{option} needs {package}: {error}\ntry: pip install {package}") from error


def _streamer(transformers: Any) -> Callable[[Any, _Answer, Write], Any]:
    """A maker of streamers that write an answer's text as its tokens come."""

    class Streamer(transformers.TextStreamer):  # type: ignore[misc]
        def __init__(self, tokenizer: Any, answer: _Answer, write: Write) -> None:
            super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
            self._answer, self._write = answer, write
            self._is_prompt = True

        def put(self, value: Any) -> None:
            if not self._is_prompt:
                self._answer.count(int(value.numel()))
            self._is_prompt = False
            super().put(value)

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            if text:
                self._answer.parts.append(text)
                self._write(text)

    return Streamer


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fercuda_runtime.chat", description="Chats with a language model in the terminal."
    )
    parser.add_argument("model", metavar="MODEL", help="folder, GGUF file (native) or owner/name")
    parser.add_argument("--engine", choices=("hf", "native"), default="hf", help="default: hf")
    parser.add_argument(
        "--fused",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="fuse small operations of the model into single kernels",
    )
    parser.add_argument("--4bit", dest="four_bit", action="store_true", help="quantise by bitsandbytes")
    parser.add_argument("--system", metavar="TEXT", help="instruction before the conversation")
    parser.add_argument("--max-tokens", type=int, default=1024, help="of one answer; 1024")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 takes the most likely; 0.7")
    parser.add_argument("--top-k", type=int, default=20, help="most likely tokens that are kept; 20")
    parser.add_argument("--top-p", type=float, default=0.8, help="their probability together; 0.8")
    parser.add_argument("--seed", type=int, help="seed of the choices")
    parser.add_argument("--device", help="of the engine hf; cuda where there is one")
    return parser


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _converse(engine: _Engine, arguments: argparse.Namespace) -> None:
    first: list[Message] = []
    if arguments.system is not None:
        first.append({"role": "system", "content": arguments.system})
    messages = list(first)
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "").strip()
            text.encode()  # Bytes that are no text of the terminal's encoding become surrogates.
        except (EOFError, KeyboardInterrupt):
            _write("\n")
            return
        except UnicodeError as error:
            print(f"a line is no text: {error}\ntry: PYTHONUTF8=1, or another encoding", file=sys.stderr)
            continue
        if text in ("/exit", "/quit"):
            return
        if text == "/clear":
            messages = list(first)
            continue
        if not text:
            continue
        messages.append({"role": "user", "content": text})
        answer = _Answer()
        try:
            engine.answer(messages, answer, _write)
        except KeyboardInterrupt:
            _write(" ...")
        except BrokenPipeError:
            raise
        except (FercudaError, OSError, ValueError, RuntimeError) as error:
            # Also PyTorch's: memory that does not suffice, numbers that are none.
            messages.pop()
            print(error, file=sys.stderr)
            continue
        messages.append({"role": "assistant", "content": "".join(answer.parts)})
        _write(f"\n{answer.line()}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program with the given arguments, by default the process's; its exit status."""
    given = _parser().parse_args(arguments)
    checks = (
        (given.max_tokens > 0, "--max-tokens must be positive"),
        (given.temperature >= 0, "--temperature must not be negative"),
        (given.top_k >= 0, "--top-k must not be negative"),
        (0 < given.top_p <= 1, "--top-p must be above 0 and at most 1"),
    )
    for is_right, words in checks:
        if not is_right:
            print(words, file=sys.stderr)
            return 2
    if given.engine == "native" and given.four_bit:
        print("--4bit is of the engine hf\ntry: a quantised GGUF file", file=sys.stderr)
        return 2
    try:
        engine: _Engine = _Native(given) if given.engine == "native" else _Transformers(given)
    except KeyboardInterrupt:
        return 130
    except (FercudaError, OSError, ValueError, ImportError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    try:
        _converse(engine, given)
    except BrokenPipeError:
        # The reader has left. What is buffered goes nowhere, so that the exit does not write it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
