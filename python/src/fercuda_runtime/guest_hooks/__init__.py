"""Configuration of other libraries in this process so that they share its pool, before they are
imported (`activate`), or after that too (`hf_hook`, `jax_hook`). And Triton's kernels on a
session's buffers, without Triton's launcher (`open_triton`, `load_triton`).

A framework's caching allocator keeps memory out of reach of other libraries. `activate` makes the
settings that `fercuda run` makes for a program, from inside the program. Variables that the user
has set are kept. Whether memory is governed does not depend on this module: it is in a program that
`fercuda run` has started (`is_hooked`); elsewhere the settings make frameworks share the driver's
default pool.
"""

from .._fercuda import TritonKernel
from .activation import Activation, activate, is_hooked
from .hf_hook import hf_hook
from .jax_hook import jax_hook
from .triton import Compiled, load_triton, open_triton

__all__ = [
    "Activation",
    "Compiled",
    "TritonKernel",
    "activate",
    "hf_hook",
    "is_hooked",
    "jax_hook",
    "load_triton",
    "open_triton",
]
