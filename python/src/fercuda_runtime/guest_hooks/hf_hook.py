"""Configuration for Hugging Face Transformers. `guest_hooks.hf_hook` is the function."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Sequence
from types import ModuleType

from .activation import Activation, activate

__all__ = ["hf_hook"]

# The module of `GenerationMixin`.
_GENERATION = "transformers.generation.utils"


def hf_hook(*, accelerate: bool = True) -> Activation:
    """Configures this process for Hugging Face Transformers, before or after its import: its models
    are PyTorch's, so this is `activate(torch=True)` first. With `accelerate` the models that
    generate on a GPU then do so by CUDA graphs, as `inference.accelerate` makes one do it.

    PyTorch reads the choice of its allocator at its import. After that, outside of the hook, it
    keeps its own: it is named in `late` of the result, and the rest works as it does before.
    """
    if "torch" in sys.modules:
        done = Activation({}, {}, (), ("torch",))
    else:
        done = activate(torch=True)
    if not accelerate:
        return done
    if hasattr(sys.modules.get(_GENERATION), "GenerationMixin"):
        _watch()
        return done
    if not any(isinstance(finder, _GenerationFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _GenerationFinder())
    return Activation(done.set, done.kept, (*done.on_import, "transformers"), done.late)


def _watch() -> None:
    importlib.import_module("fercuda_runtime.inference.accelerated.install").watch()


class _GenerationFinder(importlib.abc.MetaPathFinder):
    """Finds Transformers' module of `generate` through the other finders, and wraps its decode loop
    after the module has been executed. A search without an import changes nothing."""

    def __init__(self) -> None:
        self._searching = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _GENERATION or getattr(self._searching, "is_on", False):
            return None
        self._searching.is_on = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching.is_on = False
        if spec is not None and spec.loader is not None:
            spec.loader = _GenerationLoader(spec.loader)
        return spec


class _GenerationLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for finder in [it for it in sys.meta_path if isinstance(it, _GenerationFinder)]:
            sys.meta_path.remove(finder)
        _watch()
