"""Other libraries of this process as good tenants of its pool: told before they are imported.

A framework's own allocator takes memory and keeps it, out of the others' reach. What `fercuda run` sets for a program
`activate` sets from inside it. What the user has set stays. That memory is governed at all is not up to this: it is
in a program that `fercuda run` has started (`is_hooked`); elsewhere the settings have the frameworks share the
driver's own pool.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from . import _fercuda
from .errors import ConfigError, ImportedError

__all__ = ["Activation", "activate", "is_hooked"]

# Names that mean the same, as old and new versions read different ones, and their value.
_Setting = tuple[tuple[str, ...], str]
_TORCH: _Setting = (("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "backend:cudaMallocAsync")
_JAX: tuple[_Setting, ...] = (
    (("XLA_PYTHON_CLIENT_ALLOCATOR",), "cuda_async"),
    (("XLA_PYTHON_CLIENT_PREALLOCATE",), "false"),
)


@dataclass(frozen=True, slots=True)
class Activation:
    """What was done. `set`: variables, each with its value; `kept`: those that the user had; `on_import`: modules that
    are told when they are imported.
    """

    set: dict[str, str]
    kept: dict[str, str]
    on_import: tuple[str, ...]


def is_hooked() -> bool:
    """Whether the hook stands before this process's driver, so that all its libraries are tenants of one pool."""
    return _fercuda.is_hooked()


def activate(*, torch: bool = False, jax: bool = False, cupy: bool = False) -> Activation:
    """Has the named frameworks allocate as good tenants: PyTorch and JAX by variables of this process, CuPy by its
    stream-ordered allocator as soon as it is imported.

    Call it before their import. Raises `ImportedError` if one of them is imported, and changes nothing then;
    `ConfigError` if none is named.
    """
    if not (torch or jax or cupy):
        raise ConfigError("no framework is named\ntry: activate(torch=True, jax=True, cupy=True)")
    wanted = {"torch": torch, "jax": jax, "jaxlib": jax, "cupy": cupy}
    for name, is_wanted in wanted.items():
        if is_wanted and name in sys.modules:
            error = ImportedError(f"{name} is imported, and reads its settings only then\ntry: activate before its import")
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
    """Finds CuPy as the others would, once, and has it told when it has been executed."""

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
