"""numba-cuda: Python functions compiled to PTX by NVVM and linked through cuLink*."""

import math

import numpy as np
import pytest

cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is part of the client environment")
from numba import float32, int32  # noqa: E402


@cuda.jit
def axpy(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@cuda.jit
def block_sum(x, out):
    tile = cuda.shared.array(128, float32)
    i = cuda.grid(1)
    tile[cuda.threadIdx.x] = x[i] if i < x.size else 0.0
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half > 0:
        if cuda.threadIdx.x < half:
            tile[cuda.threadIdx.x] += tile[cuda.threadIdx.x + half]
        cuda.syncthreads()
        half //= 2
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = tile[0]


@cuda.jit
def histogram(values, bins):
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(bins, values[i], 1)


@cuda.jit(device=True)
def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@cuda.jit
def collatz_steps(values, out):
    i = cuda.grid(1)
    if i < values.size:
        out[i] = collatz(values[i])


@cuda.jit
def matmul(a, b, c):
    row, column = cuda.grid(2)
    if row < c.shape[0] and column < c.shape[1]:
        total = 0.0
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, column]
        c[row, column] = total


@cuda.jit
def warp_sum(x, out):
    value = x[cuda.grid(1)]
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
        offset //= 2
    if cuda.laneid == 0:
        out[cuda.grid(1) // 32] = value


@cuda.jit
def roots(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = math.sqrt(x[i])


def test_axpy(rng):
    n = int(rng.integers(1, 20_000))
    x, y = rng.integers(-1000, 1000, (2, n)).astype(np.float64)
    out = np.empty(n)
    axpy[(n + 127) // 128, 128](3.0, x, y, out)
    assert np.array_equal(out, 3.0 * x + y)


def test_shared_memory_reduction(rng):
    n = int(rng.integers(1, 20_000))
    grid = (n + 127) // 128
    x = rng.integers(-100, 100, n).astype(np.float32)
    out = np.empty(grid, np.float32)
    block_sum[grid, 128](x, out)
    padded = np.zeros(grid * 128, np.float32)
    padded[:n] = x
    assert np.array_equal(out, padded.reshape(grid, 128).sum(1))


def test_atomics(rng):
    values = rng.integers(0, 64, 10_000).astype(np.int32)
    bins = np.zeros(64, np.int32)
    histogram[79, 128](values, bins)
    assert np.array_equal(bins, np.bincount(values, minlength=64))


def test_device_functions(rng):
    values = rng.integers(1, 5000, 300).astype(np.int64)
    out = np.empty(300, np.int64)
    collatz_steps[3, 128](values, out)

    def steps(n):
        count = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            count += 1
        return count

    assert out.tolist() == [steps(int(v)) for v in values]


def test_two_dimensional_grid(rng):
    m, k, n = (int(v) for v in rng.integers(1, 40, 3))
    a = rng.integers(-9, 9, (m, k)).astype(np.float64)
    b = rng.integers(-9, 9, (k, n)).astype(np.float64)
    c = np.empty((m, n))
    matmul[(5, 5), (8, 8)](a, b, c)
    assert np.array_equal(c, a @ b)


def test_warp_shuffles(rng):
    x = rng.integers(-(2**20), 2**20, 256).astype(np.int32)
    out = np.empty(8, np.int32)
    warp_sum[2, 128](x, out)
    assert np.array_equal(out, x.reshape(8, 32).sum(1))


def test_square_root_is_correctly_rounded(rng):
    x = rng.uniform(0, 1e6, 1000)
    out = np.empty(1000)
    roots[8, 128](x, out)
    assert np.array_equal(out, np.sqrt(x))


def test_streams_and_device_arrays(rng):
    stream = cuda.stream()
    x = rng.integers(-1000, 1000, 4096).astype(np.float64)
    dx = cuda.to_device(x, stream=stream)
    dout = cuda.device_array(4096, np.float64, stream=stream)
    axpy[32, 128, stream](2.0, dx, dx, dout)
    out = dout.copy_to_host(stream=stream)
    stream.synchronize()
    assert np.array_equal(out, 3.0 * x)
