"""CuPy and this package on one GPU, by DLPack and by `__cuda_array_interface__`."""

import gc

import cupy
import numpy as np
import pytest
from conftest import SLOW_TURNS, array_of, buffer_of, same


@pytest.mark.parametrize("borrow", [cupy.from_dlpack, cupy.asarray])
def test_cupy_borrows_behind_the_sessions_kernels(session, scale, rng, borrow):
    array = rng.standard_normal(64).astype(np.float32)
    buffer = buffer_of(session, array)
    session.launch(scale, 1, 64, [buffer, 2.0, 64, SLOW_TURNS // 64])
    with cupy.cuda.Stream(non_blocking=True) as stream:
        theirs = borrow(buffer)
        same(cupy.asnumpy(theirs * 2), array * np.float32(4))
        theirs[:] = 1
        session.follow_stream(stream.ptr)
    same(array_of(buffer), np.ones(64, np.float32))
    buffer.free()
    del buffer
    gc.collect()
    assert float(theirs.sum()) == 64


def test_a_session_borrows_behind_cupys_kernels(session):
    with cupy.cuda.Stream(non_blocking=True):
        theirs = cupy.arange(4096, dtype=cupy.float64).reshape(64, 64)
        for _ in range(50):
            theirs = theirs + 1
        borrowed = session.from_dlpack(theirs)
        shown = session.from_cuda_array_interface(theirs.T)
    expected = np.arange(4096, dtype=np.float64).reshape(64, 64) + 50
    same(array_of(borrowed), expected)
    same(array_of(shown), np.ascontiguousarray(expected.T))
    del borrowed, shown
    gc.collect()
    session.synchronize()
