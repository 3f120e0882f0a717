"""Triton's kernels on a session's buffers, without Triton's launcher."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Protocol

from .._fercuda import Session, TritonKernel
from ..errors import TritonError


class Compiled(Protocol):
    """A kernel compiled by Triton: the result of `KERNEL.warmup(...)` or `KERNEL[grid](...)`."""

    @property
    def metadata(self) -> Any:
        """Its launch metadata: a record or mapping with the contents of NAME.json."""
    @property
    def asm(self) -> Mapping[str, Any]:
        """Its code: text under "ptx", bytes under "cubin"."""


def open_triton(session: Session, path: str | os.PathLike[str]) -> TritonKernel:
    """Loads the kernel in a folder of Triton's cache (TRITON_CACHE_DIR, or ~/.triton/cache), or the
    one of a NAME.json there. Its code is NAME.cubin beside it, on the software device NAME.ptx. The
    files must be unmodified: machine code is not verified. Triton itself is not needed.

    Raises `TritonError`; `LaunchLimitError` for more shared memory (`asked` bytes) than a block may
    have (`limit`); `ModuleError`, `SessionEndedError`.
    """
    path = pathlib.Path(path).expanduser()
    if path.is_dir():
        # Triton also writes a list of the folder's files.
        found = sorted(it for it in path.glob("*.json") if not it.name.startswith("__grp__"))
        if len(found) != 1:
            names = ", ".join(it.name for it in found) or "none"
            raise TritonError(
                f"{path} has {len(found)} kernel files NAME.json ({names}), expected one\n"
                "try: one of them, or a folder of Triton's cache (TRITON_CACHE_DIR or ~/.triton/cache)"
            )
        path = found[0]
    return TritonKernel.open(session, os.fspath(path))


def load_triton(session: Session, kernel: Compiled) -> TritonKernel:
    """Loads a kernel that Triton has compiled in this process. Triton's launcher is not used: there
    are no tensor descriptors and no launch hooks.

    Raises as `open_triton`.
    """
    kind = "ptx" if session.is_software else "cubin"
    advice = "try: the result of KERNEL.warmup(...) or KERNEL[grid](...)"
    try:
        metadata, asm = kernel.metadata, kernel.asm
    except AttributeError as error:
        raise TritonError(f"{type(kernel)} is not a compiled Triton kernel: {error}\n{advice}") from None
    record = _record(metadata)
    if "target" in record:
        record["target"] = _record(record["target"])
    if kind not in asm:
        raise TritonError(f"the kernel has no {kind!r}, only {', '.join(sorted(asm)) or 'nothing'}\n{advice}")
    # Values without a JSON form do not affect a launch, or are rejected by the parser.
    return TritonKernel.load(session, json.dumps(record, default=repr), asm[kind])


def _record(value: Any) -> dict[str, Any]:
    """The fields of a Triton record: a named tuple, a dataclass, or a mapping."""
    if hasattr(value, "_asdict"):
        return dict(value._asdict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TritonError(
        f"the metadata, or its target, is a {type(value)}\ntry: a named tuple, a dataclass or a mapping of NAME.json"
    )
