"""Configuration of other libraries in this process so that they share its pool, before they are
imported (`activate`). And Triton's kernels on a session's buffers, without Triton's launcher
(`open_triton`, `load_triton`).

A framework's caching allocator keeps memory out of reach of other libraries. `activate` makes the
settings that `fercuda run` makes for a program, from inside the program. Variables that the user
has set are kept. Whether memory is governed does not depend on this module: it is in a program that
`fercuda run` has started (`is_hooked`); elsewhere the settings make frameworks share the driver's
default pool.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from . import _fercuda
from ._fercuda import Session, TritonKernel
from .errors import ConfigError, ImportedError, TritonError

__all__ = [
    "Activation",
    "Compiled",
    "TritonKernel",
    "activate",
    "is_hooked",
    "load_triton",
    "open_triton",
]

# Names with the same meaning (old and new versions read different ones), and their value.
_Setting = tuple[tuple[str, ...], str]
_TORCH: _Setting = (("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "backend:cudaMallocAsync")
_JAX: tuple[_Setting, ...] = (
    (("XLA_PYTHON_CLIENT_ALLOCATOR",), "cuda_async"),
    (("XLA_PYTHON_CLIENT_PREALLOCATE",), "false"),
)


@dataclass(frozen=True, slots=True)
class Activation:
    """Changes made by `activate`. `set`: variables that were set, with their values; `kept`: those
    that the user had set; `on_import`: modules that are configured when they are imported.
    """

    set: dict[str, str]
    kept: dict[str, str]
    on_import: tuple[str, ...]


def is_hooked() -> bool:
    """Whether the hook intercepts this process's driver calls, so that all its libraries share one
    pool."""
    return _fercuda.is_hooked()


def activate(*, torch: bool = False, jax: bool = False, cupy: bool = False) -> Activation:
    """Configures the named frameworks to allocate from the shared pool: PyTorch and JAX by
    environment variables of this process, CuPy by setting its stream-ordered allocator when it is
    imported.

    Call it before their import. Raises `ImportedError` if one of them is already imported, and
    changes nothing then; `ConfigError` if no framework is named.
    """
    if not (torch or jax or cupy):
        raise ConfigError("no framework is named\ntry: activate(torch=True, jax=True, cupy=True)")
    wanted = {"torch": torch, "jax": jax, "jaxlib": jax, "cupy": cupy}
    for name, is_wanted in wanted.items():
        if is_wanted and name in sys.modules:
            error = ImportedError(
                f"{name} is already imported, and reads its settings only at import\ntry: activate() before its import"
            )
            error.framework = name
            raise error
    done = Activation({}, {}, ("cupy",) if cupy else ())
    settings = (*((_TORCH,) if torch else ()), *(_JAX if jax else ()))
    for names, value in settings:
        kept = {name: os.environ[name] for name in names if name in os.environ}
        done.kept.update(kept)
        if not kept:
            done.set.update(dict.fromkeys(names, value))
    os.environ.update(done.set)
    if cupy and not any(isinstance(finder, _CupyFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _CupyFinder())
    return done


def _use_async_pool(cupy: ModuleType) -> None:
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)


class _CupyFinder(importlib.abc.MetaPathFinder):
    """Finds CuPy through the other finders, once, and configures it after its module has been
    executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "cupy":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _CupyLoader(spec.loader)
        return spec


class _CupyLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _use_async_pool(module)


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
