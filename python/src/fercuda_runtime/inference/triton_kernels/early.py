"""Beginning of a kernel before the one before it has ended (programmatic dependent launch).

A GPU from compute capability 9 starts such a kernel when all programs of the one before have said
that it may. `begin_early` says so for the next kernel, and waits until all before have ended and
their results are there. What stands before it must be read only, and be written by no kernel that
lets the next one begin early: weights.
"""

import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    HAS_EARLY = True
except ImportError:
    HAS_EARLY = False


@triton.jit
def begin_early(IS_EARLY: tl.constexpr):
    """Lets the next kernel begin, and waits for those before."""
    if IS_EARLY:
        gdc_launch_dependents()
        gdc_wait()
