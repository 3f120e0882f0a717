"""feRcuda from Python: sessions, buffers and jobs on a GPU, or on a software device.

    from fercuda_runtime import RuntimeSession

    with RuntimeSession("example") as session:
        buffer = session.alloc((2, 3), "f32")
        buffer.fill_bytes(0)
        values = buffer.download()

Modules: `scripting_api` (sessions, ignition), `runtime` (buffers, jobs, telemetry), `ops`
(primitives over arrays of any library with DLPack), `inference` (language models), `guest_hooks`
(settings that make other libraries share the pool), `platform` (what this machine has),
`execution_contract` (versioned guarantees of this package), `errors`. Everything is thread-safe;
calls that wait release the GIL.
"""

import atexit as _atexit

from . import errors, ops
from ._fercuda import __version__, end as _end
from .runtime import Buffer, Job, Runtime, Session
from .scripting_api import RuntimeConfig, RuntimeSession

# From then on none of our threads calls into Python.
_atexit.register(_end)

__all__ = [
    "Buffer",
    "Job",
    "Runtime",
    "RuntimeConfig",
    "RuntimeSession",
    "Session",
    "__version__",
    "errors",
    "ops",
]
