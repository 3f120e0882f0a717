"""CuPy and this package on one GPU, by DLPack and by `__cuda_array_interface__`."""

import gc
import time

import cupy
import numpy as np
import pytest
from conftest import SLOW_NS, array_of, buffer_of, same

from fercuda_runtime import ops

WAIT_NS = 3 * SLOW_NS
# No clock is faster: as many cycles last as long, or longer.
SPIN_CYCLES = 3 * WAIT_NS

SPIN = cupy.RawKernel(
    """
extern "C" __global__ void spin(long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {}
}
""",
    "spin",
)


@pytest.fixture(autouse=True)
def what_a_first_use_loads_is_loaded():
    SPIN((1,), (1,), (np.int64(1),))
    ones = cupy.ones((8, 8), cupy.float32)
    ones[:] = cupy.asnumpy(ones.copy() * 2)[0, 0]
    ones[...] = cupy.ones((8, 8), cupy.float32)
    cupy.cuda.Device().synchronize()


def in_time(begin):
    """That the device is still busy, and the host has not waited for it."""
    assert (time.monotonic_ns() - begin) < WAIT_NS, "the host was late, or waited: of the order nothing was seen"


@pytest.mark.parametrize("borrow", [cupy.from_dlpack, cupy.asarray])
def test_cupy_borrows_behind_the_sessions_kernels(session, scale, rng, borrow):
    array = rng.standard_normal(64).astype(np.float32)
    buffer = buffer_of(session, array)
    begin = time.monotonic_ns()
    session.launch(scale, 1, 64, [buffer, 2.0, 64, WAIT_NS])
    with cupy.cuda.Stream(non_blocking=True) as stream:
        theirs = borrow(buffer)
        seen = theirs.copy()
        # By the other interface CuPy waits for the session's stream on the host.
        if borrow is cupy.from_dlpack:
            in_time(begin)
        same(cupy.asnumpy(seen), array * np.float32(2))
        theirs[:] = 1
        session.follow_stream(stream.ptr)
    assert theirs.data.ptr == buffer.export_device_ptr()
    same(array_of(buffer), np.ones(64, np.float32))
    buffer.free()
    del buffer
    gc.collect()
    assert float(theirs.sum()) == 64


@pytest.mark.parametrize("borrow", ["from_dlpack", "from_cuda_array_interface"])
def test_a_session_borrows_behind_cupys_kernels(session, borrow):
    expected = np.arange(4096, dtype=np.float32).reshape(64, 64)
    source, theirs = cupy.asarray(expected), cupy.zeros((64, 64), cupy.float32)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True):
        begin = time.monotonic_ns()
        SPIN((1,), (1,), (np.int64(SPIN_CYCLES),))
        theirs[...] = source
        # Rows: each is one copy, and few fit into a stream that waits.
        cut = theirs[::2]
        borrowed = getattr(session, borrow)(cut)
        copy = borrowed.copy()
        in_time(begin)
        shown = getattr(session, borrow)(theirs.T)
    assert borrowed.export_device_ptr() == cut.data.ptr
    assert borrowed.strides == tuple(n // 4 for n in cut.strides)
    same(array_of(copy), expected[::2])
    same(array_of(shown), np.ascontiguousarray(expected.T))
    del shown
    del borrowed, copy
    gc.collect()
    session.synchronize()


def test_ops_of_arrays_are_arrays_in_the_current_stream(session, rng):
    expected = rng.standard_normal((64, 32)).astype(np.float32)
    # First without the clock: what is compiled and loaded for the first time may wait.
    for is_timed in (False, True):
        source, x = cupy.asarray(expected), cupy.zeros((64, 32), cupy.float32)
        cupy.cuda.Device().synchronize()
        with cupy.cuda.Stream(non_blocking=True) as stream:
            begin = time.monotonic_ns()
            SPIN((1,), (1,), (np.int64(SPIN_CYCLES),))
            x[...] = source
            y = ops.neg(x, session=session)
            # CuPy's next kernels come behind the op.
            twice = y + y
            ops.relu(x, out=x, session=session)
            seen = x.copy()
            if is_timed:
                in_time(begin)
            assert isinstance(y, cupy.ndarray) and y.shape == x.shape
            same(cupy.asnumpy(twice), expected * np.float32(-2))
            same(cupy.asnumpy(seen), np.maximum(expected, np.float32(0)))
            out = cupy.empty_like(x)
            assert ops.neg(y, out=out, stream=stream, session=session) is out
            same(cupy.asnumpy(out), expected)
    del y, twice, seen
    gc.collect()
