"""Kernels that Triton compiles here, launched by this package on a session's buffers."""

import gc
import os
import pathlib
import tempfile

# Read when Triton is imported: a cache that has nothing but what is compiled here.
CACHE = tempfile.TemporaryDirectory()
os.environ["TRITON_CACHE_DIR"] = CACHE.name

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from conftest import SLOW_NS, array_of, buffer_of, same

from fercuda_runtime import errors
from fercuda_runtime.guest_hooks import load_triton, open_triton


@triton.jit
def scaled_sums(x, y, sums, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, other=0.0) * factor
    tl.store(y + at, values, mask=at < n)
    tl.store(sums + tl.program_id(0), tl.sum(values, axis=0))


@pytest.fixture(scope="module")
def compiled():
    x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    sums = torch.zeros(4, device="cuda")
    kernel = scaled_sums[(4,)](x, y, sums, 2.5, 1000, BLOCK=256)
    torch.cuda.synchronize()
    assert float(y.sum()) == 2500
    return kernel


@pytest.mark.parametrize("way", ["object", "folder"])
def test_a_kernel_of_tritons_runs_on_a_sessions_buffers(session, scale, rng, compiled, way):
    if way == "object":
        kernel = load_triton(session, compiled)
    else:
        (path,) = pathlib.Path(CACHE.name).glob("*/scaled_sums.json")
        kernel = open_triton(session, path.parent)
    assert kernel.name == "scaled_sums" and kernel.argument_bytes == [8, 8, 8, 4, 4]
    # Small numbers: every sum is exact, in whatever order.
    array = rng.integers(-8, 8, 1000).astype(np.float32)
    x, y, sums = buffer_of(session, array), session.alloc((1000,), "f32"), session.alloc((4,), "f32")
    session.launch(scale, 4, 256, [x, 2.0, 1000, SLOW_NS])
    kernel.launch(session, 4, [x, y, sums, 2.5, 1000])
    expected = array * np.float32(5)
    same(array_of(y), expected)
    same(array_of(sums), np.add.reduceat(expected, [0, 256, 512, 768]).astype(np.float32))
    with pytest.raises(errors.ArgumentsError):
        kernel.launch(session, 4, [x, y, sums, 2.5, 1000, 256])
    assert kernel.launch_async(session, 4, [x, y, sums, 1.0, 1000]).wait() is None
    same(array_of(y), array * np.float32(2))
    del x, y, sums
    gc.collect()
