"""Configuration for Hugging Face Transformers. `guest_hooks.hf_hook` is the function."""

from __future__ import annotations

import sys

from ..errors import ImportedError
from .activation import Activation, activate

__all__ = ["hf_hook"]


def hf_hook() -> Activation:
    """Configures this process for Hugging Face Transformers, before its import: its models are
    PyTorch's, so this is `activate(torch=True)`.

    Raises `ImportedError` if Transformers or PyTorch is already imported, and changes nothing then.
    """
    if "transformers" in sys.modules:
        error = ImportedError(
            "transformers is already imported, and PyTorch reads its settings with it\n"
            "try: hf_hook() before its import"
        )
        error.framework = "transformers"
        raise error
    return activate(torch=True)
