"""cuda.core and this package over one driver's library: memory goes both ways, in the streams'
order."""

import gc

import numpy as np
import pytest
from conftest import SLOW_NS, array_of, buffer_of, same

from fercuda_runtime import ops

try:
    from cuda.core import Device
    from cuda.core.utils import StridedMemoryView
except ImportError:  # before its first stable release
    from cuda.core.experimental import Device
    from cuda.core.experimental.utils import StridedMemoryView


@pytest.fixture
def device():
    device = Device()
    device.set_current()
    return device


def copied(stream, address, count, dtype):
    from cuda.bindings import driver

    out = np.empty(count, dtype)
    (code,) = driver.cuMemcpyDtoHAsync(out.ctypes.data, int(address), out.nbytes, stream.handle)
    assert int(code) == 0
    stream.sync()
    return out


@pytest.mark.parametrize("way", ["from_dlpack", "from_cuda_array_interface"])
def test_cuda_core_views_a_buffer_behind_its_kernels(session, scale, device, rng, way):
    array = rng.standard_normal((8, 8)).astype(np.float32)
    buffer = buffer_of(session, array)
    stream = device.create_stream()
    session.launch(scale, 1, 64, [buffer, 2.0, 64, SLOW_NS])
    view = getattr(StridedMemoryView, way)(buffer, stream_ptr=int(stream.handle))
    assert view.shape == (8, 8) and view.ptr == buffer.export_device_ptr() and view.is_device_accessible
    same(copied(stream, view.ptr, 64, np.float32).reshape(8, 8), array * np.float32(2))
    del view
    gc.collect()


def test_a_buffer_of_cuda_cores_is_borrowed_and_given_back(session, device, rng):
    stream = device.create_stream()
    theirs = device.allocate(4096, stream=stream)
    stream.sync()
    borrowed = session.from_dlpack(theirs)
    values = borrowed.view("f32", (1024,))
    array = rng.standard_normal(1024).astype(np.float32)
    values.upload(array)
    session.lead_stream(int(stream.handle))
    same(copied(stream, theirs.handle, 1024, np.float32), array)
    address = int(theirs.handle)
    assert borrowed.export_device_ptr() == address
    del values, borrowed
    gc.collect()
    theirs.close(stream)
    stream.sync()


def test_streams_of_both_wait_for_each_other(session, scale, device):
    stream = device.create_stream()
    theirs = device.allocate(256, stream=stream)
    session.follow_stream(int(stream.handle))
    ours = session.import_memory(int(theirs.handle), (64,), "f32")
    ours.upload(np.ones(64, np.float32))
    session.launch(scale, 1, 64, [ours, 5.0, 64, SLOW_NS])
    session.lead_stream(int(stream.handle))
    same(copied(stream, theirs.handle, 64, np.float32), np.full(64, 5, np.float32))
    ours.free()
    session.synchronize()
    theirs.close(stream)
    stream.sync()


def test_ops_run_over_cuda_cores_memory_in_its_stream(session, scale, device, rng):
    stream = device.create_stream()
    theirs, out = (device.allocate(256, stream=stream) for _ in range(2))
    session.follow_stream(int(stream.handle))
    array = rng.standard_normal(64).astype(np.float32)
    ours = session.import_memory(int(theirs.handle), (64,), "f32")
    ours.upload(array)
    # The library's memory has no type but bytes, and the library no from_dlpack: new results are Buffers.
    got = ops.copy(theirs, stream=stream, session=session)
    assert type(got) is type(ours) and got.shape == (256,)
    same(array_of(got.view("f32", (64,))), array)
    # Behind a kernel in the session, and before what the stream does next.
    session.launch(scale, 1, 64, [ours, 2.0, 64, SLOW_NS])
    assert ops.copy(theirs, out=out, stream=stream, session=session) is out
    same(copied(stream, out.handle, 64, np.float32), array * np.float32(2))
    ours.free()
    del got
    gc.collect()
    session.synchronize()
    for buffer in (theirs, out):
        buffer.close(stream)
    stream.sync()
