"""Configuration for JAX. `guest_hooks.jax_hook` is the function."""

from __future__ import annotations

import os
import sys

from ..errors import ImportedError
from .activation import Activation, settings_of_jax

__all__ = ["jax_hook"]


def jax_hook() -> Activation:
    """Configures JAX in this process to allocate from the shared pool, before its import or after
    it: JAX reads these settings when it first uses a device.

    Raises `ImportedError` once JAX has used a device, and changes nothing then.
    """
    bridge = sys.modules.get("jax._src.xla_bridge")
    if getattr(bridge, "_backends", None):
        error = ImportedError(
            "JAX has used a device already, and read its settings then\n"
            "try: jax_hook() before the first array"
        )
        error.framework = "jax"
        raise error
    done = settings_of_jax()
    os.environ.update(done.set)
    return done
