"""Foreign clients of the CUDA driver: programs that do not use feRcuda.

They run over whatever `libcuda.so.1` the loader finds: the drop-in software device in CI, NVIDIA's
driver on a GPU machine. A test here may ask for nothing that the documented driver API does not
promise.
"""

import os
import random

import numpy as np
import pytest


@pytest.fixture
def rng():
    """Random numbers from a fresh seed; FERCUDA_SEED repeats a run."""
    seed = int(os.environ.get("FERCUDA_SEED") or random.SystemRandom().randrange(2**32))
    print(f"FERCUDA_SEED={seed}")
    return np.random.default_rng(seed)
