"""cuda.core: the Pythonic client; NVRTC to PTX, libraries and kernels, streams, graphs, buffers."""

import numpy as np
import pytest

try:
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
except ImportError:  # before its first stable release
    from cuda.core.experimental import Device, LaunchConfig, Program, ProgramOptions, launch

SOURCE = r"""
template <typename T>
__global__ void add(const T *a, const T *b, T *c, size_t n)
{
    size_t stride = (size_t)blockDim.x * gridDim.x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += stride) c[i] = a[i] + b[i];
}
"""


@pytest.fixture(scope="module")
def device():
    dev = Device()
    dev.set_current()
    return dev


@pytest.fixture(scope="module")
def compiled(device):
    options = ProgramOptions(std="c++17", arch="sm_80")
    return Program(SOURCE, code_type="c++", options=options).compile(
        "ptx", name_expressions=("add<float>", "add<int>"))


def host_copy(buffer, dtype):
    """A pinned host copy of a device buffer, through the driver."""
    from cuda.bindings import driver

    out = np.empty(buffer.size // np.dtype(dtype).itemsize, dtype)
    (code,) = driver.cuMemcpyDtoH(out.ctypes.data, int(buffer.handle), out.nbytes)
    assert int(code) == 0
    return out


def device_copy(device, array, stream):
    from cuda.bindings import driver

    buffer = device.allocate(array.nbytes, stream=stream)
    stream.sync()
    (code,) = driver.cuMemcpyHtoD(int(buffer.handle), array.ctypes.data, array.nbytes)
    assert int(code) == 0
    return buffer


@pytest.mark.parametrize("name,dtype", [("add<float>", np.float32), ("add<int>", np.int32)])
def test_templates_add_vectors(device, compiled, rng, name, dtype):
    stream = device.create_stream()
    n = int(rng.integers(1, 50_000))
    a, b = (rng.integers(-1000, 1000, n).astype(dtype) for _ in range(2))
    da, db = device_copy(device, a, stream), device_copy(device, b, stream)
    dc = device.allocate(a.nbytes, stream=stream)
    config = LaunchConfig(grid=16, block=128)
    launch(stream, config, compiled.get_kernel(name), int(da.handle), int(db.handle), int(dc.handle), np.uint64(n))
    stream.sync()
    assert np.array_equal(host_copy(dc, dtype), a + b)
    for buffer in (da, db, dc):
        buffer.close(stream)
    stream.close()


def test_kernel_attributes_are_answered(compiled):
    attributes = compiled.get_kernel("add<float>").attributes
    assert attributes.max_threads_per_block >= 128
    assert attributes.num_regs > 0


def test_events_measure_time(device):
    from cuda.core import EventOptions

    stream = device.create_stream()
    timed = EventOptions(timing_enabled=True)
    start = stream.record(options=timed)
    end = stream.record(options=timed)
    end.sync()
    assert end - start >= 0
    stream.close()


def test_device_properties_are_consistent(device):
    properties = device.properties
    assert properties.warp_size == 32
    assert properties.max_threads_per_block >= 1024
    assert device.compute_capability >= (8, 0)
    assert device.name
