"""Text to tokens and back, and conversations to prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from .. import _fercuda, errors as _errors

Message = Mapping[str, Any]
"""A `role`, a `content`, and what else a chat template reads."""


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"a conversation that is no JSON: {error}\ntry: dicts of texts, numbers and lists"
        raise _errors.ChatTemplateError(message) from None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} is none of its types")


class Tokenizer:
    """The tokenizer of a model, with its chat template."""

    def __init__(self, inner: _fercuda.Tokenizer) -> None:
        self._inner = inner

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens; each is below it."""
        return self._inner.vocabulary_size

    @property
    def bos(self) -> int | None:
        """The token that begins a text."""
        return self._inner.bos

    @property
    def eos(self) -> int | None:
        """The token that ends a text."""
        return self._inner.eos

    @property
    def generation_ends(self) -> list[int]:
        """Tokens at which a generation ends."""
        return self._inner.generation_ends

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be rendered."""
        return self._inner.has_chat_template

    def encode(self, text: str, *, special: bool = False, framed: bool = True) -> list[int]:
        """The tokens of a text. With `special` texts of control tokens, as <|im_end|>, are those
        tokens; else they stay text. `framed`: with the BOS and EOS that the model wants.

        Raises `RequestError`.
        """
        return self._inner.encode(text, special=special, framed=framed)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, control tokens left out."""
        return self._inner.decode(tokens)

    def piece(self, token: int) -> str | None:
        """A token as the model's file spells it; None of one that is not there."""
        return self._inner.piece(token)

    def token_of_piece(self, piece: str) -> int | None:
        """The token that the model's file spells so."""
        return self._inner.token_of_piece(piece)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for within a text."""
        return self._inner.token_bytes(token)

    def is_control(self, token: int) -> bool:
        """Whether a token is structure, not text."""
        return self._inner.is_control(token)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation, as text. `variables` are the template's own, as
        `enable_thinking=False`.

        Raises `ChatTemplateError`, with the template's line where it fails.
        """
        return self._chat(messages, tools, add_generation_prompt, variables)[0]

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """The tokens of a conversation. Texts of control tokens in messages stay text.

        Raises `ChatTemplateError`, `RequestError`.
        """
        return self._chat(messages, tools, add_generation_prompt, variables)[1]

    def _chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> tuple[str, list[int]]:
        listed = None if tools is None else _json(list(tools))
        return self._inner.chat_json(_json(list(messages)), listed, _json(variables), add_generation_prompt)

    def __len__(self) -> int:
        return self.vocabulary_size

    def __repr__(self) -> str:
        return repr(self._inner)


def load_tokenizer(path: str | PathLike[str]) -> Tokenizer:
    """The tokenizer of a tokenizer.json, a GGUF file or a model's folder.

    Raises `ModelError`.
    """
    return Tokenizer(_fercuda.Tokenizer.open(path))
