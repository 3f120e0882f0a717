"""Triton's kernels over the drop-in library with its checks: right results, and no finding.

Triton compiles for sm_80 without a GPU; its PTX is loaded by the driver API through ctypes, as its
own launcher does. Each test reads what the checks reported of its launches.
"""

import ctypes
import json
import os
import warnings

import numpy as np
import pytest

warnings.filterwarnings("ignore", message=".*FP_FUSION.*")
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton_kernels as kernels  # noqa: E402
from triton import compile as compile_kernel  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

TYPES = {np.dtype(name): of for name, of in [("float32", "fp32"), ("float16", "fp16"), ("int32", "i32"), ("int64", "i64")]}
REPORT = os.environ["FERCUDA_SOFT_CHECK_REPORT"]


class Driver:
    """The driver's functions; any error is raised."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.cuInit(0)
        context = ctypes.c_void_p()
        self.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        self.cuCtxSetCurrent(context)

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            code = function(*arguments)
            assert code == 0, f"{name}: {code}"

        return call


@pytest.fixture(scope="module")
def driver():
    return Driver()


@pytest.fixture
def launch(driver):
    """Launches a kernel on arrays, which then hold what it wrote."""
    return lambda *arguments, **more: run(driver, *arguments, **more)


@pytest.fixture(autouse=True)
def findings():
    """What the checks report during a test: nothing, unless the test takes it."""
    before = os.path.getsize(REPORT)

    def read():
        with open(REPORT) as file:
            file.seek(before)
            events = [json.loads(line) for line in file if line.strip()]
        return [event for event in events if event["event"] not in ("start", "launches")]

    taken = []
    yield lambda: taken.append(True) or read()
    if not taken:
        assert read() == []


def run(driver, kernel, grid, *arguments, warps=4, stages=3, shared=None, **constants):
    names = kernel.arg_names
    signature = {}
    for name, value in zip(names, arguments, strict=False):
        if isinstance(value, np.ndarray):
            signature[name] = "*" + TYPES[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    signature.update(dict.fromkeys(constants, "constexpr"))
    assert list(signature) == names
    # As Triton's launcher does: alignment of pointers, divisibility by 16 and the value 1 are known.
    fixed = {(names.index(name),): value for name, value in constants.items()}
    hints = {}
    for at, value in enumerate(arguments):
        if isinstance(value, np.ndarray) or (isinstance(value, int) and value % 16 == 0):
            hints[(at,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, fixed, hints)
    target = GPUTarget("cuda", 80, 32)
    made = compile_kernel(source, target=target, options={"num_warps": warps, "num_stages": stages})
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver.cuModuleLoadData(ctypes.byref(module), made.asm["ptx"].encode())
    driver.cuModuleGetFunction(ctypes.byref(function), module, made.metadata.name.encode())
    if made.metadata.shared > 48 << 10:
        driver.cuFuncSetAttribute(function, 8, made.metadata.shared)
    values, memory = [], []
    for value in arguments:
        if isinstance(value, np.ndarray):
            at = ctypes.c_uint64()
            driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(value.nbytes))
            driver.cuMemcpyHtoD_v2(at, ctypes.c_void_p(value.ctypes.data), ctypes.c_size_t(value.nbytes))
            memory.append((value, at))
            values.append(at)
        else:
            values.append(ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int32(value))
    assert made.metadata.global_scratch_size == 0
    values += [ctypes.c_uint64(0), ctypes.c_uint64(0)]
    pointers = (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values])
    grid = (*grid, 1, 1)[:3]
    driver.cuLaunchKernel(function, *grid, 32 * warps, 1, 1, made.metadata.shared, None, pointers, None)
    driver.cuCtxSynchronize()
    for value, at in memory:
        driver.cuMemcpyDtoH_v2(ctypes.c_void_p(value.ctypes.data), at, ctypes.c_size_t(value.nbytes))
        driver.cuMemFree_v2(at)
    driver.cuModuleUnload(module)
    return made


def blank(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def softmax(x):
    x = x.astype(np.float64)
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("rows,columns,warps", [(5, 781, 4), (3, 128, 8), (7, 33, 1)])
def test_softmax_of_rows(launch, rng, dtype, rows, columns, warps):
    x, y = rng.standard_normal((rows, columns)).astype(dtype), blank(rows, columns, dtype=dtype)
    block = 1 << (columns - 1).bit_length()
    launch(kernels.softmax_rows, (rows,), x, y, columns, warps=warps, BLOCK=block)
    np.testing.assert_allclose(y, softmax(x), rtol=2e-3 if dtype == "float16" else 1e-5, atol=1e-6)


@pytest.mark.parametrize("columns", [1000, 2048])
def test_softmax_of_long_rows(launch, rng, columns):
    x, y = rng.standard_normal((3, columns)).astype(np.float32), blank(3, columns)
    launch(kernels.softmax_online, (3,), x, y, columns, BLOCK=256)
    np.testing.assert_allclose(y, softmax(x), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("columns,warps", [(300, 4), (512, 8)])
def test_layer_norm_and_the_gradients_of_its_weights(launch, rng, columns, warps):
    rows, groups, block = 24, 4, 512
    x, dy = (rng.standard_normal((rows, columns)).astype(np.float32) for _ in range(2))
    weight, bias = (rng.standard_normal(columns).astype(np.float32) for _ in range(2))
    y, means, factors = blank(rows, columns), blank(rows), blank(rows)
    launch(kernels.layer_norm, (rows,), x, weight, bias, y, means, factors, columns, 1e-5, warps=warps, BLOCK=block)
    normal = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, normal * weight + bias, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(means, x.mean(1), rtol=1e-4, atol=1e-5)
    dweight, dbias = blank(groups, columns), blank(groups, columns)
    locks = blank(2 * groups, dtype=np.int32)
    launch(kernels.layer_norm_weights, (rows,), dy, x, means, factors, dweight, dbias, locks, rows, columns,
           warps=warps, GROUPS=groups, BLOCK=block)
    np.testing.assert_allclose(dweight.sum(0), (dy * normal).sum(0), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(dbias.sum(0), dy.sum(0), rtol=1e-3, atol=1e-3)
    assert locks.tolist() == [0] * groups + [1] * groups


@pytest.mark.parametrize("count,warps", [(3000, 4), (1024, 1)])
def test_reductions(launch, rng, count, warps):
    block = 512
    programs = -(-count // block)
    x = rng.standard_normal(count).astype(np.float32)
    sums, maxima, where, alls = blank(programs), blank(programs), blank(programs, dtype=np.int32), blank(1)
    launch(kernels.reductions, (programs,), x, sums, maxima, where, alls, count, warps=warps, BLOCK=block)
    parts = [x[at : at + block] for at in range(0, count, block)]
    np.testing.assert_allclose(sums, [part.sum() for part in parts], rtol=1e-4, atol=1e-4)
    assert maxima.tolist() == [part.max() for part in parts]
    assert where.tolist() == [at * block + int(part.argmax()) for at, part in enumerate(parts)]
    np.testing.assert_allclose(alls, x.sum(), rtol=1e-3, atol=1e-3)


def test_reduction_down_the_columns(launch, rng):
    x, y = rng.standard_normal((100, 70)).astype(np.float32), blank(70)
    launch(kernels.reduced_columns, (3,), x, y, 100, 70, ROWS=32, COLUMNS=32)
    np.testing.assert_allclose(y, x.sum(0), rtol=1e-4, atol=1e-4)


def test_the_last_program_adds_up(launch, rng):
    x, parts, arrived, y = rng.standard_normal(4000).astype(np.float32), blank(16), blank(1, dtype=np.int32), blank(1)
    launch(kernels.last_block_sum, (16,), x, parts, arrived, y, 4000, BLOCK=256, PROGRAMS=16)
    np.testing.assert_allclose(y, x.sum(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("columns,warps", [(777, 4), (64, 2)])
def test_scans(launch, rng, columns, warps):
    x = rng.standard_normal((3, columns)).astype(np.float32)
    gates = rng.uniform(0.9, 1, (3, columns)).astype(np.float32)
    sums, products, states = (blank(3, columns) for _ in range(3))
    block = 1 << (columns - 1).bit_length()
    launch(kernels.scans, (3,), x, gates, sums, products, states, columns, warps=warps, BLOCK=block)
    np.testing.assert_allclose(sums, np.cumsum(x, 1), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(products, np.cumprod(gates, 1), rtol=1e-3, atol=1e-6)
    state, expected = np.zeros(3), []
    for at in range(columns):
        state = state * gates[:, at] + x[:, at]
        expected.append(state)
    np.testing.assert_allclose(states, np.stack(expected, 1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype,block,descending", [("float32", 512, False), ("int32", 64, True)])
def test_sort(launch, rng, dtype, block, descending):
    x = (rng.standard_normal((3, block)) * 1000).astype(dtype)
    y, flipped = blank(3, block, dtype=dtype), blank(3, block, dtype=dtype)
    launch(kernels.sorted_rows, (3,), x, y, flipped, BLOCK=block, DESCENDING=descending)
    expected = np.sort(x, 1)[:, :: -1 if descending else 1]
    assert np.array_equal(y, expected)
    assert np.array_equal(flipped, expected[:, ::-1])


def test_largest_values(launch, rng):
    x, y = rng.standard_normal((3, 200)).astype(np.float32), blank(3, 8)
    launch(kernels.largest, (3,), x, y, 200, BLOCK=256, K=8)
    assert np.array_equal(y, np.sort(x, 1)[:, :-9:-1])


def test_histogram(launch, rng):
    x, bins = rng.integers(0, 64, 3000).astype(np.int32), blank(64, dtype=np.int32)
    launch(kernels.histogram, (6,), x, bins, 3000, BLOCK=512, BINS=64)
    assert np.array_equal(bins, np.bincount(x, minlength=64))


def test_transposition(launch, rng):
    x, y = rng.standard_normal((50, 70)).astype(np.float32), blank(70, 50)
    launch(kernels.transposed, (2, 3), x, y, 50, 70, TILE=32)
    assert np.array_equal(y, x.T)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("m,n,k,stages", [(100, 90, 70, 3), (64, 128, 96, 4)])
def test_matmul(launch, rng, dtype, m, n, k, stages):
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    c = blank(m, n, dtype=dtype)
    grid = -(-m // 32) * -(-n // 64)
    launch(kernels.matmul, (grid,), a, b, c, m, n, k, stages=stages, M=32, N=64, K=32, GROUP=2)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    exact = np.where(exact >= 0, exact, 0.01 * exact)
    np.testing.assert_allclose(c, exact, rtol=1e-2, atol=0.05)


def test_matmul_in_parts_of_the_inner_dimension(launch, rng):
    a, b = rng.standard_normal((32, 200)).astype(np.float16), rng.standard_normal((200, 64)).astype(np.float16)
    c = blank(32, 64)
    launch(kernels.matmul_split, (1, 2, 2), a, b, c, 32, 64, 200, M=32, N=32, K=32, SPLIT=2)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-2, atol=0.05)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length,head,warps", [(100, 64, 4), (64, 32, 2)])
def test_flash_attention(launch, rng, causal, length, head, warps):
    q, k, v = (rng.standard_normal((2, length, head)).astype(np.float16) for _ in range(3))
    out, sums = blank(2, length, head, dtype=np.float16), blank(2, length)
    grid = (-(-length // 32), 2)
    launch(kernels.attention, grid, q, k, v, out, sums, length, head**-0.5, warps=warps,
           HEAD=head, M=32, N=32, CAUSAL=causal)
    score = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) * head**-0.5
    if causal:
        score = np.where(np.tril(np.ones((length, length), bool)), score, -np.inf)
    np.testing.assert_allclose(out, softmax(score) @ v.astype(np.float64), rtol=1e-2, atol=5e-3)


def test_rows_of_a_table(launch, rng):
    table, y = rng.standard_normal((50, 40)).astype(np.float32), blank(9, 40)
    rows = rng.integers(0, 50, 9).astype(np.int64)
    launch(kernels.gathered, (9,), table, rows, y, 40, BLOCK=64)
    assert np.array_equal(y, table[rows])


def test_dropout(launch, rng):
    x, y = rng.standard_normal(5000).astype(np.float32), blank(5000)
    launch(kernels.dropout, (10,), x, y, 5000, 0.25, 7, BLOCK=512)
    kept = y != 0
    np.testing.assert_allclose(y[kept], x[kept] / np.float32(0.75), rtol=1e-6)
    assert 0.7 < kept.mean() < 0.8


def test_a_kernel_without_its_mask_is_reported(launch, rng, findings):
    x, y = rng.standard_normal(1000).astype(np.float32), blank(1000)
    launch(kernels.scaled_without_a_mask, (1,), x, y, 1000, BLOCK=1024)
    reported = findings()
    assert {(event["kind"], event["place"]["kernel"]) for event in reported} == {("out of bounds", "scaled_without_a_mask")}
