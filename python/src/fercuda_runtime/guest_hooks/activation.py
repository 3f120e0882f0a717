"""Configuration of other libraries in this process so that they share its pool."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from .. import _fercuda
from ..errors import ConfigError, ImportedError

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
    that the user had set; `on_import`: modules that are configured when they are imported; `late`:
    frameworks that were imported too early for a setting.
    """

    set: dict[str, str]
    kept: dict[str, str]
    on_import: tuple[str, ...]
    late: tuple[str, ...] = ()


def is_hooked() -> bool:
    """Whether the hook intercepts this process's driver calls, so that all its libraries share one
    pool."""
    return _fercuda.is_hooked()


def activate(*, torch: bool = False, jax: bool = False, cupy: bool = False) -> Activation:
    """Configures the named frameworks to allocate from the shared pool: PyTorch and JAX by
    environment variables of this process, CuPy by setting its stream-ordered allocator when it is
    imported. Under the hook PyTorch keeps its own allocator: the hook asks it to release what it
    caches when another library needs memory.

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
    _collect(done, (*((_TORCH,) if torch and not is_hooked() else ()), *(_JAX if jax else ())))
    os.environ.update(done.set)
    if cupy and not any(isinstance(finder, _CupyFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _CupyFinder())
    return done


def settings_of_jax() -> Activation:
    """JAX's settings as they would be made now; nothing is set yet."""
    done = Activation({}, {}, ())
    _collect(done, _JAX)
    return done


def _collect(done: Activation, settings: tuple[_Setting, ...]) -> None:
    for names, value in settings:
        kept = {name: os.environ[name] for name in names if name in os.environ}
        done.kept.update(kept)
        if not kept:
            done.set.update(dict.fromkeys(names, value))


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
