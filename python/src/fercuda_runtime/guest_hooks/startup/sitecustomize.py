"""Start of a Python in which models of Transformers decode by graphs, by nothing but its
environment: with this folder first in PYTHONPATH, the first import of PyTorch or Transformers calls
`guest_hooks.hf_hook`. A `sitecustomize` of the user's is run as without this one. Programs that
import neither pay for nothing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType


class _FirstFinder(importlib.abc.MetaPathFinder):
    """Calls the hook before PyTorch or Transformers is found, once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in ("torch", "transformers"):
            return None
        if self not in sys.meta_path:
            return None  # Another thread imports the other one.
        sys.meta_path.remove(self)
        try:
            from fercuda_runtime.guest_hooks import hf_hook

            hf_hook()
        except Exception as error:  # Whatever it is, the user's import goes on.
            print(f"fercuda: models of Transformers run as they are: {error}", file=sys.stderr)
        return importlib.util.find_spec(fullname)


def _run_next() -> None:
    """Runs the `sitecustomize` that Python would have run without this folder."""
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, _FirstFinder())
_run_next()
