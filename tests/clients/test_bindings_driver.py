"""cuda.bindings.driver: CUDA C++ through NVRTC to PTX, and every driver call spelled out."""

import ctypes

import numpy as np
import pytest
from cuda.bindings import driver, nvrtc

SOURCE = r"""
extern "C" __global__ void saxpy(float a, const float *x, const float *y, float *out, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = fmaf(a, x[i], y[i]);
}

extern "C" __global__ void block_sums(const float *in, float *out, unsigned n)
{
    extern __shared__ float tile[];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? in[i] : 0.0f;
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) tile[threadIdx.x] += tile[threadIdx.x + half];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = tile[0];
}

__constant__ int scale;
__device__ int hits;

extern "C" __global__ void scaled(const int *in, int *out, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { out[i] = in[i] * scale; atomicAdd(&hits, 1); }
}

extern "C" __global__ void spin(unsigned *flag, unsigned rounds)
{
    for (unsigned i = 0; i < rounds; ++i) atomicAdd(flag, 1u);
}

extern "C" __global__ void touch(int *p) { *p = 1; }
"""


def ok(result):
    """The value of a driver call, or an error that names the code."""
    code, *values = result
    assert int(code) == 0, f"{type(code).__name__} {code!r}"
    return values[0] if len(values) == 1 else tuple(values)


def compile_ptx(source, arch):
    program = ok(nvrtc.nvrtcCreateProgram(source.encode(), b"clients.cu", 0, [], []))
    options = [f"--gpu-architecture={arch}".encode()]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    size = ok(nvrtc.nvrtcGetProgramLogSize(program))
    log = b" " * size
    ok(nvrtc.nvrtcGetProgramLog(program, log))
    assert int(code) == 0, log.decode()
    size = ok(nvrtc.nvrtcGetPTXSize(program))
    ptx = b" " * size
    ok(nvrtc.nvrtcGetPTX(program, ptx))
    ok(nvrtc.nvrtcDestroyProgram(program))
    return ptx


@pytest.fixture(scope="module")
def context():
    ok(driver.cuInit(0))
    device = ok(driver.cuDeviceGet(0))
    ctx = ok(driver.cuDevicePrimaryCtxRetain(device))
    ok(driver.cuCtxSetCurrent(ctx))
    yield ctx
    ok(driver.cuDevicePrimaryCtxRelease(device))


@pytest.fixture(scope="module")
def module(context):
    mod = ok(driver.cuModuleLoadData(compile_ptx(SOURCE, "compute_80")))
    yield mod
    ok(driver.cuModuleUnload(mod))


def upload(array):
    pointer = ok(driver.cuMemAlloc(array.nbytes))
    ok(driver.cuMemcpyHtoD(pointer, array.ctypes.data, array.nbytes))
    return pointer


def download(pointer, like):
    out = np.empty_like(like)
    ok(driver.cuMemcpyDtoH(out.ctypes.data, pointer, out.nbytes))
    return out


def launch(module, name, grid, block, values, types, shared=0, stream=0):
    function = ok(driver.cuModuleGetFunction(module, name))
    ok(driver.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, (values, types), 0))


def test_device_describes_itself(context):
    assert ok(driver.cuDeviceGetCount()) >= 1
    device = ok(driver.cuDeviceGet(0))
    assert ok(driver.cuDeviceGetName(128, device)).rstrip(b"\0")
    warp = ok(driver.cuDeviceGetAttribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE, device))
    assert warp == 32
    free, total = ok(driver.cuMemGetInfo())
    assert 0 < free <= total == ok(driver.cuDeviceTotalMem(device))
    assert ok(driver.cuDriverGetVersion()) >= 12000


def test_saxpy_is_exact(module, rng):
    n = int(rng.integers(1, 100_000))
    x, y = rng.standard_normal((2, n), dtype=np.float32)
    dx, dy, dz = upload(x), upload(y), ok(driver.cuMemAlloc(x.nbytes))
    launch(module, b"saxpy", (n + 255) // 256, 256, (2.0, dx, dy, dz, n),
           (ctypes.c_float, None, None, None, ctypes.c_uint))
    assert np.array_equal(download(dz, x), np.float32(2) * x + y)  # 2*x is exact, so one rounding on both sides
    for pointer in (dx, dy, dz):
        ok(driver.cuMemFree(pointer))


def test_dynamic_shared_memory_reduction(module, rng):
    n, block = int(rng.integers(1, 50_000)), 256
    grid = (n + block - 1) // block
    x = rng.integers(-1000, 1000, n).astype(np.float32)
    dx, dout = upload(x), ok(driver.cuMemAlloc(grid * 4))
    launch(module, b"block_sums", grid, block, (dx, dout, n), (None, None, ctypes.c_uint), shared=block * 4)
    padded = np.zeros(grid * block, np.float32)
    padded[:n] = x
    assert np.array_equal(download(dout, np.empty(grid, np.float32)), padded.reshape(grid, block).sum(1))
    ok(driver.cuMemFree(dx))
    ok(driver.cuMemFree(dout))


def test_module_globals_and_atomics(module, rng):
    n = int(rng.integers(1, 10_000))
    values = rng.integers(-(2**15), 2**15, n).astype(np.int32)
    scale, size = ok(driver.cuModuleGetGlobal(module, b"scale"))
    assert size == 4
    ok(driver.cuMemcpyHtoD(scale, np.int32(7).tobytes(), 4))
    hits, _ = ok(driver.cuModuleGetGlobal(module, b"hits"))
    ok(driver.cuMemsetD32(hits, 0, 1))
    din, dout = upload(values), ok(driver.cuMemAlloc(values.nbytes))
    launch(module, b"scaled", (n + 127) // 128, 128, (din, dout, n), (None, None, ctypes.c_uint))
    assert np.array_equal(download(dout, values), values * 7)
    assert download(hits, np.empty(1, np.int32))[0] == n
    ok(driver.cuMemFree(din))
    ok(driver.cuMemFree(dout))


def test_streams_and_events_order_work(module, rng):
    first = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    second = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    start, done = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
    flag = upload(np.zeros(1, np.uint32))
    copy = ok(driver.cuMemAlloc(4))
    rounds = 20_000
    ok(driver.cuEventRecord(start, first))
    launch(module, b"spin", 1, 32, (flag, rounds), (None, ctypes.c_uint), stream=first)
    ok(driver.cuEventRecord(done, first))
    ok(driver.cuStreamWaitEvent(second, done, 0))
    ok(driver.cuMemcpyDtoDAsync(copy, flag, 4, second))
    ok(driver.cuStreamSynchronize(second))
    assert download(copy, np.empty(1, np.uint32))[0] == 32 * rounds
    assert ok(driver.cuEventElapsedTime(start, done)) > 0
    for stream in (first, second):
        ok(driver.cuStreamDestroy(stream))
    for event in (start, done):
        ok(driver.cuEventDestroy(event))
    ok(driver.cuMemFree(flag))
    ok(driver.cuMemFree(copy))


def test_stream_ordered_allocation_and_pool_attributes(module, rng):
    stream = ok(driver.cuStreamCreate(0))
    n = 4096
    pointer = ok(driver.cuMemAllocAsync(4 * n, stream))
    ok(driver.cuMemsetD32Async(pointer, 0x01020304, n, stream))
    out = np.empty(n, np.uint32)
    ok(driver.cuMemcpyDtoHAsync(out.ctypes.data, pointer, out.nbytes, stream))
    ok(driver.cuMemFreeAsync(pointer, stream))
    ok(driver.cuStreamSynchronize(stream))
    assert (out == 0x01020304).all()
    pool = ok(driver.cuDeviceGetDefaultMemPool(ok(driver.cuDeviceGet(0))))
    used = ok(driver.cuMemPoolGetAttribute(pool, driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_HIGH))
    assert int(used) >= 4 * n
    ok(driver.cuStreamDestroy(stream))


def test_captured_graph_replays(module, rng):
    n = 1000
    x = rng.standard_normal(n, dtype=np.float32)
    dx, dy = upload(x), upload(np.zeros(n, np.float32))
    stream = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    launch(module, b"saxpy", 4, 256, (1.0, dx, dy, dy, n), (ctypes.c_float, None, None, None, ctypes.c_uint),
           stream=stream)
    graph = ok(driver.cuStreamEndCapture(stream))
    executable = ok(driver.cuGraphInstantiate(graph, 0))
    replays = 5
    expected = np.zeros(n, np.float32)
    for _ in range(replays):
        ok(driver.cuGraphLaunch(executable, stream))
        expected = x + expected
    ok(driver.cuStreamSynchronize(stream))
    assert np.array_equal(download(dy, x), expected)
    ok(driver.cuGraphExecDestroy(executable))
    ok(driver.cuGraphDestroy(graph))
    ok(driver.cuStreamDestroy(stream))
    ok(driver.cuMemFree(dx))
    ok(driver.cuMemFree(dy))


def test_virtual_memory_management(context, rng):
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = 0
    minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    granularity = ok(driver.cuMemGetAllocationGranularity(prop, minimum))
    assert granularity == 2 << 20
    size = 3 * granularity
    base = ok(driver.cuMemAddressReserve(size, 0, 0, 0))
    handle = ok(driver.cuMemCreate(size, prop, 0))
    ok(driver.cuMemMap(base, size, 0, handle, 0))
    access = driver.CUmemAccessDesc()
    access.location = prop.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(driver.cuMemSetAccess(base, size, [access], 1))
    data = rng.integers(0, 2**32, size // 4, dtype=np.uint32)
    ok(driver.cuMemcpyHtoD(base, data.ctypes.data, size))
    assert np.array_equal(download(base, data), data)
    ok(driver.cuMemUnmap(base, size))
    ok(driver.cuMemRelease(handle))
    ok(driver.cuMemAddressFree(base, size))


def test_errors_are_the_drivers_own(module):
    assert int(driver.cuModuleGetFunction(module, b"absent")[0]) == 500
    assert int(driver.cuModuleLoadData(b"this is not PTX\0")[0]) in (200, 218)
    assert int(driver.cuDeviceGet(4096)[0]) == 101
    function = ok(driver.cuModuleGetFunction(module, b"touch"))
    too_many = driver.cuLaunchKernel(function, 1, 1, 1, 2048, 1, 1, 0, 0, ((0,), (ctypes.c_uint64,)), 0)
    assert int(too_many[0]) == 1
    _, total = ok(driver.cuMemGetInfo())
    assert int(driver.cuMemAlloc(total * 4)[0]) == 2
    assert int(driver.cuStreamDestroy(0)[0]) in (1, 400)
