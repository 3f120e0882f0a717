"""Models on a device, and the texts that they generate."""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack

from .. import _awaiting, _fercuda, errors as _errors
from .._fercuda import Runtime
from ..scripting_api import RuntimeConfig
from .adapters import ModelAdapter, Progress, open_adapter
from .tokenizers import Message, Tokenizer

Prompt = str | Sequence[int] | Sequence[Message]
"""A text, tokens, or the messages of a conversation."""
Finish = Literal["end", "length", "stop", "closed"]
"""Why a text has ended: by a token of the model, by a number of tokens, by a text of `stop`, or by
its caller."""


class GenerationOptions(TypedDict, total=False):
    """How a text is generated."""

    max_tokens: int
    """Most tokens; 128."""
    temperature: float
    """Divisor of logits; 0, the default, takes the most likely token."""
    top_k: int
    """Number of most likely tokens that are kept; 0, the default, keeps all."""
    top_p: float
    """Probability that the tokens have together that are kept; 1."""
    min_p: float
    """Part of the largest probability that tokens have that are kept; 0."""
    repeat_penalty: float
    """Divisor of logits of the last 64 tokens; 1 changes nothing."""
    frequency_penalty: float
    """What is taken from a logit for each time that its token stands among these; 0."""
    presence_penalty: float
    """What is taken from a logit if its token stands among these; 0."""
    seed: int | None
    """Seed of the choices: equal ones give equal texts. None for a fresh one."""
    stop: str | Sequence[str]
    """Texts that end it; they are no part of it."""
    end_tokens: Sequence[int] | None
    """Tokens that end it, instead of the model's own."""
    logprobs: int | None
    """Number of most likely tokens that are reported with each token, with the logarithms of their
    probabilities."""
    json_schema: Mapping[str, Any] | str | None
    """JSON schema that the text follows: a dict, or its JSON."""
    regex: str | None
    """Regular expression that the text matches whole."""
    grammar: str | None
    """Grammar that the text follows: in the notation of Lark, from its rule `start` on, or in GBNF, from
    `root` on."""
    choice: Sequence[str] | None
    """Texts of which it is one. At most one of `json_schema`, `regex`, `grammar` and `choice` is
    given."""
    lora: str | None
    """Name of the LoRA adapter by which the model is changed for it, of those it was loaded with."""
    special: bool
    """Whether texts of control tokens in a prompt that is a text are those tokens; False."""


_DEFAULTS: dict[str, Any] = {
    "max_tokens": 128,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "seed": None,
    "stop": (),
    "end_tokens": None,
    "logprobs": None,
    "json_schema": None,
    "regex": None,
    "grammar": None,
    "choice": None,
    "lora": None,
}


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """A token that was chosen. `logprob` is the logarithm of its probability by the model alone,
    `top` has the most likely tokens with theirs; without `logprobs` None, and none."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


class Generation(str):
    """A generated text, which also knows how it came about."""

    finish: Finish
    stop: str | None
    """The text of `stop` that ended it."""
    prompt_tokens: int
    cached_tokens: int
    """Tokens of the prompt that were not computed, as the cache had them."""
    choices: tuple[TokenChoice, ...]

    @property
    def tokens(self) -> list[int]:
        """The tokens that were chosen, the last one too, if it is one that ends a text."""
        return [it.token for it in self.choices]


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """How full a model is: requests, and blocks of its cache of keys and values; and its guesses of
    tokens so far, with those of them that were right."""

    running: int
    waiting: int
    free_blocks: int
    blocks: int
    guessed_tokens: int = 0
    right_guesses: int = 0


def _schema_text(schema: object) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"json_schema is no JSON: {error}\ntry: a dict of texts, numbers and lists"
        raise _errors.RequestError(message) from None


class LanguageModel:
    """A model on a device, whose requests run together. `load` makes one. A `with` closes it."""

    def __init__(self, inner: _fercuda.LanguageModel) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        """That of its file, folder or repository."""
        return self._inner.name

    @property
    def session_name(self) -> str:
        """Name of its tenant in the ledger and in `fercuda top`."""
        return self._inner.session_name

    @property
    def architecture(self) -> str:
        """Its architecture, by the name in GGUF files."""
        return self._inner.architecture

    @property
    def context(self) -> int:
        """Positions of a request: tokens of its prompt and of its text."""
        return self._inner.context

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens."""
        return self._inner.vocabulary_size

    @property
    def held_bytes(self) -> int:
        """Device memory that it holds: weights, cache, and memory of steps."""
        return self._inner.held_bytes

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._inner.is_closed

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return Tokenizer(self._inner.tokenizer)

    def figures(self) -> LoadFigures:
        """How full it is, between two steps. Raises `SessionEndedError` of a closed one."""
        return LoadFigures(*self._inner.load_figures())

    def encode(self, prompt: Prompt, *, special: bool = False) -> list[int]:
        """The tokens of a prompt: a text, messages of a conversation, or tokens themselves."""
        tokenizer = self.tokenizer._inner
        if isinstance(prompt, str):
            tokens = tokenizer.encode(prompt, special=special)
            if not tokens:
                # Of an empty prompt a text begins.
                begin = tokenizer.bos if tokenizer.bos is not None else tokenizer.eos
                tokens = [] if begin is None else [begin]
            return tokens
        items = list(prompt)
        if items and all(isinstance(it, Mapping) for it in items):
            return Tokenizer(tokenizer).encode_chat([it for it in items if isinstance(it, Mapping)])
        tokens = [it for it in items if isinstance(it, int) and not isinstance(it, bool)]
        if len(tokens) != len(items):
            message = "a prompt of neither text, nor tokens, nor messages\ntry: a str, ints, or dicts with role and content"
            raise _errors.RequestError(message)
        if any(not 0 <= it < 1 << 32 for it in tokens):
            raise _errors.RequestError("a token below 0, or of over 32 bits\ntry: tokens of the model's tokenizer")
        return tokens

    def generate(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Generation:
        """Generates a text, and waits for it: see the function `generate`."""
        return self.stream_generate(prompt, **options).result()

    async def generate_async(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Generation:
        """Generates a text: see the function `generate_async`."""
        async with self.stream_generate(prompt, **options) as stream:
            async for _ in stream:
                pass
            return stream.result()

    def stream_generate(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> TextStream:
        """Generates a text in parts: see the function `stream_generate`."""
        given: dict[str, Any] = dict(options)
        special = bool(given.pop("special", False))
        unknown = [it for it in given if it not in _DEFAULTS]
        if unknown:
            names = ", ".join([*_DEFAULTS, "special"])
            raise TypeError(f"no option {unknown[0]!r}\ntry: one of {names}")
        settings = {**_DEFAULTS, **given}
        stop = settings["stop"]
        settings["stop"] = [stop] if isinstance(stop, str) else list(stop or ())
        if settings["end_tokens"] is not None:
            settings["end_tokens"] = list(settings["end_tokens"])
        if settings["json_schema"] is not None and not isinstance(settings["json_schema"], str):
            settings["json_schema"] = _schema_text(settings["json_schema"])
        if settings["choice"] is not None:
            settings["choice"] = list(settings["choice"])
        try:
            inner = self._inner.start(self.encode(prompt, special=special), settings)
        except _errors.FercudaError:
            raise
        except (TypeError, OverflowError) as error:
            message = f"an option of another type, below 0 or too large: {error}"
            raise _errors.RequestError(message) from None
        return TextStream(inner)

    def embed(self, texts: str | Sequence[str | Sequence[int]]) -> list[list[float]]:
        """Vectors of texts, of a model that makes them: see `EmbeddingModel`. Others raise
        `RequestError`."""
        message = f"{self.name} generates text, and makes no embeddings\ntry: a model of the architecture bert"
        raise _errors.RequestError(message)

    def close(self) -> None:
        """Ends its requests, of which those that run raise `SessionEndedError`, and frees its memory.
        It waits for the step that runs."""
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner)


class EmbeddingModel(LanguageModel):
    """An encoder on a device: it makes vectors of texts, and generates none. `load` makes one of a
    model of the architecture bert, as all-MiniLM-L6-v2. A `with` closes it."""

    def __init__(self, inner: _fercuda.TextEmbedder) -> None:
        self._embedder = inner

    @property
    def name(self) -> str:
        """That of its file, folder or repository."""
        return self._embedder.name

    @property
    def session_name(self) -> str:
        """Name of its tenant in the ledger and in `fercuda top`."""
        return self._embedder.session_name

    @property
    def architecture(self) -> str:
        """Its architecture, by the name in GGUF files."""
        return self._embedder.architecture

    @property
    def context(self) -> int:
        """Positions of a text."""
        return self._embedder.context

    @property
    def dimensions(self) -> int:
        """Elements of a vector."""
        return self._embedder.dimensions

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens."""
        return self._embedder.vocabulary_size

    @property
    def held_bytes(self) -> int:
        """Device memory that it holds."""
        return self._embedder.held_bytes

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._embedder.is_closed

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return Tokenizer(self._embedder.tokenizer)

    def figures(self) -> LoadFigures:
        """How full it is: texts are computed while their caller waits, and nothing is kept."""
        return LoadFigures(0, 0, 0, 0)

    def embed(self, texts: str | Sequence[str | Sequence[int]]) -> list[list[float]]:
        """Vectors of texts, each of the length 1. A text may be its tokens, with those around it.

        Raises `RequestError` of a text that is longer than the context, or that has no tokens;
        `SessionEndedError` of a closed model.
        """
        given = [texts] if isinstance(texts, str) else list(texts)
        tokenizer = self._embedder.tokenizer
        try:
            tokens = [tokenizer.encode(it) if isinstance(it, str) else list(it) for it in given]
            values = self._embedder.embed(tokens)
        except _errors.FercudaError:
            raise
        except (TypeError, OverflowError) as error:
            message = f"texts of another type: {error}\ntry: a list of str, or of lists of tokens"
            raise _errors.RequestError(message) from None
        width = self.dimensions
        return [list(struct.unpack_from(f"<{width}f", values, at)) for at in range(0, len(values), 4 * width)]

    def stream_generate(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> TextStream:
        """Raises `RequestError`: it generates no text."""
        message = f"{self.name} makes embeddings, and generates no text\ntry: its method embed"
        raise _errors.RequestError(message)

    def close(self) -> None:
        """Frees its memory, behind what is computed."""
        self._embedder.close()

    def __repr__(self) -> str:
        return repr(self._embedder)


class TextStream(Iterator[str], AsyncIterator[str]):
    """A text that is generated: an iterator of its parts, for `for` and for `async for`.

    It can be closed early, by `close` or `aclose`, by a `with` or its last reference; the request
    then ends and its blocks of the cache are free. Cancelling a task that waits for it does so too.
    """

    def __init__(self, inner: _fercuda.TokenStream) -> None:
        self._inner = inner
        self._parts: list[str] = []
        self._owned: LanguageModel | None = None
        self._is_closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        if self._is_closed:
            raise StopIteration
        while True:
            try:
                part = self._inner.poll()
            except BaseException:
                self._release()
                raise
            if part is not None:
                self._parts.append(part)
                return part
            self._inner.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        loop = asyncio.get_running_loop()
        if self._is_closed:
            raise StopAsyncIteration
        while True:
            try:
                part = self._inner.poll()
            except StopIteration:
                await loop.run_in_executor(None, self._release)
                raise StopAsyncIteration from None
            except BaseException:
                await loop.run_in_executor(None, self._release)
                raise
            if part is not None:
                self._parts.append(part)
                return part
            await self._changed(loop)

    async def _changed(self, loop: asyncio.AbstractEventLoop) -> None:
        """Waits for a part or an end, without a thread of the loop's."""
        future, notify = _awaiting.notification(loop)
        if not self._inner.wake(notify):
            return
        try:
            await future
        except asyncio.CancelledError:
            self._inner.cancel()
            raise

    def result(self) -> Generation:
        """The whole text, when it has ended; waits for that. Raises `SessionEndedError` if the model
        was closed meanwhile, and the exceptions of the device."""
        for _ in self:
            pass
        text = Generation("".join(self._parts))
        reason, stop = self._inner.finish or ("closed", None)
        chosen, cached = self._inner.chosen()
        text.finish = reason if reason in ("end", "length", "stop") else "closed"  # type: ignore[assignment]
        text.stop = stop
        text.prompt_tokens = self._inner.prompt_tokens
        text.cached_tokens = cached
        text.choices = tuple(TokenChoice(token, own, tuple(top)) for token, own, top in chosen)
        return text

    @property
    def text(self) -> str:
        """The parts that were taken so far, together."""
        return "".join(self._parts)

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of the prompt."""
        return self._inner.prompt_tokens

    @property
    def tokens(self) -> list[int]:
        """Tokens that were chosen so far; some may not be in a part yet."""
        return [row[0] for row in self._inner.chosen()[0]]

    @property
    def finish(self) -> str | None:
        """Why it has ended; None while it runs, "failed" of one that raises."""
        found = self._inner.finish
        return None if found is None else found[0]

    def close(self) -> None:
        """Ends it: no part comes any more. When it returns, the request's blocks are free."""
        self._is_closed = True
        self._inner.close()
        self._release()

    async def aclose(self) -> None:
        """Ends it, as `close`."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def _release(self) -> None:
        """Closes a model that was loaded for this text alone."""
        owned, self._owned = self._owned, None
        if owned is not None:
            owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return repr(self._inner)


def _part(part: float | None) -> float | None:
    if part is None:
        return None
    if isinstance(part, bool) or not isinstance(part, (int, float)) or not 0 < part <= 1:
        raise _errors.RequestError(f"gpu_memory is {part!r}\ntry: a part of the device's memory, as 0.9")
    return float(part)


def load(
    model: str | PathLike[str] | ModelAdapter,
    *,
    context: int | None = None,
    cache_tokens: int | None = None,
    gpu_memory: float | None = None,
    requests: int = 8,
    batch_tokens: int | None = None,
    kv_type: Literal["f32", "f16", "bf16", "f8e4m3", "f8e5m2"] = "f16",
    lora: Mapping[str, str | PathLike[str]] | None = None,
    draft: str | PathLike[str] | ModelAdapter | None = None,
    draft_tokens: int | None = None,
    session: str | None = None,
    config: RuntimeConfig | None = None,
    runtime: Runtime | None = None,
    progress: Progress | None = None,
) -> LanguageModel:
    """Loads a model onto a device. One that makes vectors of texts is an `EmbeddingModel`, for which
    the options of requests and of the cache mean nothing.

    `model`: a GGUF file, a folder with safetensors, a name at Hugging Face, or an adapter of one
    that is open. `context`: positions of a request, by default the model's, at most 8192.
    `cache_tokens`: positions of the cache, for all requests together, by default one request's.
    `gpu_memory`: part of the device's memory up to which the cache is taken instead, as 0.9.
    `requests`: most requests that run at once. `batch_tokens`: most tokens of a step, by default
    what the device is fast with. `kv_type`: type of keys and values in the cache. `lora`: LoRA
    adapters by their names, of which each request may choose one: folders that PEFT has saved, or
    GGUF files. `draft`: what guesses next tokens, which one step checks together, so that the text
    stays what it is without: "ngram" guesses what followed the last three tokens where they stood
    before, and a smaller model with the same vocabulary computes its guesses. `draft_tokens`: most
    guesses in a step, by default 7 of "ngram" and 3 of a model. `session`: name of its tenant, by
    default the model's.
    `config`, `runtime`: the device, as of a `RuntimeSession`. `progress`: called while files are
    fetched and weights uploaded.

    Raises `ModelError` of files that are no model or adapter that is supported; `HubError` of what
    could not be fetched; `OutOfMemoryError`, before anything is uploaded, of what does not fit;
    `RequestError` of limits; `SessionNameError` of a name that is taken.
    """
    adapter = model if isinstance(model, ModelAdapter) else open_adapter(model, progress=progress)
    if runtime is None:
        runtime = (config or RuntimeConfig()).open()
    elif config is not None:
        raise _errors.ConfigError("both config and runtime are given\ntry: one of them")
    drafts: ModelAdapter | None = None
    if draft is not None and draft != "ngram":
        drafts = draft if isinstance(draft, ModelAdapter) else open_adapter(draft, progress=progress)
    if draft is None:
        if draft_tokens is not None:
            raise _errors.RequestError('draft_tokens without draft\ntry: draft="ngram"')
        draft_tokens = 0
    elif draft_tokens is None:
        draft_tokens = 7 if drafts is None else 3
    wanted = "".join(it for it in adapter.name if it.isprintable())[:40] or "model"
    settings: dict[str, Any] = {
        "context": context,
        "cache_tokens": cache_tokens,
        "requests": requests,
        "batch_tokens": batch_tokens,
        "kv_type": kv_type,
        "draft_tokens": draft_tokens,
        "gpu_memory": _part(gpu_memory),
        "lora": list((lora or {}).items()),
    }
    for number in itertools.count(1):
        own = session or (wanted if number == 1 else f"{wanted} {number}")
        try:
            if adapter._files.is_encoder:
                if lora:
                    message = "the model makes embeddings, and takes no lora\ntry: a model that generates text"
                    raise _errors.RequestError(message)
                return EmbeddingModel(adapter._files.load_embedder(runtime, own, batch_tokens, progress))
            of_drafts = drafts._files if drafts is not None else None
            own_settings = {**settings, "session": own}
            return LanguageModel(adapter._files.load(runtime, own_settings, of_drafts, progress))
        except _errors.SessionNameError:
            # Another model of that name is loaded.
            if session is not None or number >= 1000:
                raise
        except _errors.FercudaError:
            raise
        except (TypeError, OverflowError) as error:
            message = f"an option of another type, below 0 or too large: {error}"
            raise _errors.RequestError(message) from None
    raise AssertionError


def stream_generate(
    model: LanguageModel | str | PathLike[str], prompt: Prompt, **options: Unpack[GenerationOptions]
) -> TextStream:
    """Generates a text in parts, as they are decided: for `for` and for `async for`.

    `model` may be the name of one that is loaded for this text alone. `prompt`: a text, tokens, or
    the messages of a conversation, which the model's chat template makes a prompt.

    Raises `RequestError` of a grammar that cannot be followed; of a prompt that does not fit, when
    the first part is taken;
    `ChatTemplateError`; and as `load`.
    """
    if isinstance(model, LanguageModel):
        return model.stream_generate(prompt, **options)
    owned = load(model)
    try:
        stream = owned.stream_generate(prompt, **options)
    except BaseException:
        owned.close()
        raise
    stream._owned = owned
    return stream


def generate(
    model: LanguageModel | str | PathLike[str], prompt: Prompt, **options: Unpack[GenerationOptions]
) -> Generation:
    """Generates a text, and waits for it. The result is a `str` that knows its tokens and its end.

    Raises as `stream_generate`.
    """
    with stream_generate(model, prompt, **options) as stream:
        return stream.result()


async def generate_async(
    model: LanguageModel, prompt: Prompt, **options: Unpack[GenerationOptions]
) -> Generation:
    """Generates a text, while the event loop goes on. Cancelling it ends the request.

    Raises as `stream_generate`.
    """
    return await model.generate_async(prompt, **options)


def random_model(
    path: str | PathLike[str], shape: str = "tiny", *, type: str = "Q8_0", seed: int = 1
) -> Path:
    """Writes a GGUF file with the shape of a real model and random weights, for tests and
    measurements: what `fercuda model random` does. Its tokens are bytes, its texts noise.

    `shape`: one that `fercuda model random --help` lists, as "tiny" or "qwen3-4b". `type`: that of
    the matrices. Raises `ConfigError`, `DtypeError`, `ModelError`.
    """
    _fercuda.write_random_model(fspath(path), shape, type, seed)
    return Path(path)
