"""Files of models, opened without a device: GGUF and safetensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from .. import _fercuda, errors as _errors
from .tokenizers import Tokenizer

Progress = Callable[[str, int, int], None]
"""Called with a file's name, or "loading", and the bytes that are there and those of all. It is
called in another thread."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file. `dtype` is the format's name of its elements or blocks, `shape` has the
    outermost dimension first, `bytes` is its size there."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    file: Path


class ModelAdapter:
    """The files of a model: names, shapes, configuration, tokenizer. They are mapped, and checked
    when they are opened. `open_adapter` makes one of the right kind."""

    format: Literal["gguf", "safetensors"] | None = None

    def __init__(self, model: str | PathLike[str], *, progress: Progress | None = None) -> None:
        """Opens a file or a folder, or fetches a name at Hugging Face first.

        Raises `ModelError`, `HubError`.
        """
        self._take(_fercuda.ModelFiles.open(model, progress))

    def _take(self, files: _fercuda.ModelFiles) -> None:
        if self.format is not None and files.format != self.format:
            message = f"{files.name} is {files.format}, not {self.format}\ntry: open_adapter"
            raise _errors.ModelError(message)
        self._files = files

    @property
    def name(self) -> str:
        """That of the file, the folder or the repository."""
        return self._files.name

    @property
    def files(self) -> list[Path]:
        """Files with weights."""
        return [Path(it) for it in self._files.files]

    @property
    def architecture(self) -> str:
        """The architecture, by its name in GGUF files. Raises `ModelError` of one that is not
        supported."""
        return self._files.described()[0]

    @property
    def layers(self) -> int:
        """Number of layers. Raises `ModelError` as `architecture`."""
        return self._files.described()[1]

    @property
    def context(self) -> int:
        """Positions that the model was made for. Raises `ModelError` as `architecture`."""
        return self._files.described()[2]

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the first file. Lists of more than 1024 values are left out."""
        return self._files.metadata()

    @property
    def config(self) -> dict[str, Any]:
        """The configuration: the metadata of a GGUF file, the config.json of a folder."""
        text = self._files.config_json
        return self.metadata if text is None else dict(json.loads(text))

    @property
    def chat_template(self) -> str | None:
        """The chat template, in Jinja."""
        return self._files.chat_template

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return Tokenizer(self._files.tokenizer)

    def tensors(self) -> list[StoredTensor]:
        """All tensors, in the files' order."""
        return [
            StoredTensor(name, dtype, tuple(shape), size, Path(file))
            for name, dtype, shape, size, file in self._files.tensors()
        ]

    def read(self, name: str) -> tuple[tuple[int, ...], bytes]:
        """A weight as f32, of however many tensors a checkpoint has it: its shape, and its bytes.

        Raises `ModelError`.
        """
        shape, values = self._files.read(name)
        return tuple(shape), values

    def __iter__(self) -> Iterator[StoredTensor]:
        return iter(self.tensors())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class GgufAdapter(ModelAdapter):
    """A GGUF model, of one file or several. Raises `ModelError` of another format."""

    format = "gguf"


class SafetensorsAdapter(ModelAdapter):
    """A folder, or a file, of safetensors with config.json and tokenizer.json. Raises `ModelError`
    of another format."""

    format = "safetensors"


def open_adapter(model: str | PathLike[str], *, progress: Progress | None = None) -> ModelAdapter:
    """Opens the files of a model: a `GgufAdapter` or a `SafetensorsAdapter`.

    Raises `ModelError`, `HubError`.
    """
    files = _fercuda.ModelFiles.open(model, progress)
    kind = GgufAdapter if files.format == "gguf" else SafetensorsAdapter
    adapter = kind.__new__(kind)
    adapter._take(files)
    return adapter
