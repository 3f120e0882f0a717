"""Features of JAX, CuPy, Triton, RMM, cuda.core and Numba. See features.py."""

import functools
import sys

from features_kit import answer, feature, refused, steps

MIB = 1 << 20


# ---- JAX ------------------------------------------------------------------------------------


@feature(timed=True, seconds=100)
def jax_training():
    import jax
    import jax.numpy as jnp

    @functools.partial(jax.jit, donate_argnums=0)
    def step(weights, data):
        def loss(weights):
            return jnp.mean(jnp.tanh(data @ weights) ** 2)

        return weights - 0.1 * jax.grad(loss)(weights)

    state = [jnp.ones((512, 512), jnp.float32) / 512]
    data = jnp.ones((256, 512), jnp.float32)

    def once():
        state[0] = step(state[0], data)

    steps(once, lambda: state[0].block_until_ready())
    return {"sum": round(float(state[0].sum()), 4)}


@feature
def jax_shapes_and_scans():
    import jax
    import jax.numpy as jnp

    @jax.jit
    def scanned(x):
        return jax.lax.scan(lambda carry, row: (carry + row @ row, carry.sum()), jnp.float32(0), x)

    totals = []
    for rows in (3, 50, 7, 200):
        carry, sums = scanned(jnp.ones((rows, 64), jnp.float32))
        totals.append([float(carry), float(sums[-1])])
    values = jax.random.normal(jax.random.key(1), (1 << 16,))
    order = jnp.argsort(values)
    return {"totals": totals, "first": int(order[0]), "fft": round(float(jnp.abs(jnp.fft.fft(values)).sum()) / 1e5, 3)}


@feature
def jax_memory_stats():
    import jax
    import jax.numpy as jnp

    device = jax.devices()[0]
    before = (device.memory_stats() or {}).get("bytes_in_use")
    kept = jnp.ones(8 * MIB, jnp.float32).block_until_ready()
    after = (device.memory_stats() or {}).get("bytes_in_use")
    grew = None if before is None or after is None else after - before >= kept.nbytes
    live = sum(array.nbytes for array in jax.live_arrays())
    return {"grew": grew, "live": live >= kept.nbytes, "kind": device.platform}


@feature
def jax_out_of_memory():
    import jax
    import jax.numpy as jnp

    said = []
    for _ in range(2):
        try:
            jnp.zeros((1 << 40,), jnp.uint8).block_until_ready()
            said.append("no error")
        except Exception as error:
            said.append(f"{type(error).__name__} RESOURCE_EXHAUSTED: {'RESOURCE_EXHAUSTED' in str(error)}")
    array = jax.device_put(jnp.ones(MIB, jnp.float32))
    return {"errors": said, "sum": float(array.sum())}


@feature
def jax_and_torch():
    import jax
    import jax.numpy as jnp
    import torch

    tensor = torch.arange(MIB, device="cuda", dtype=torch.float32)
    array = jnp.from_dlpack(tensor)
    back = torch.from_dlpack((array * 2).block_until_ready())
    tensor.add_(1)
    torch.cuda.synchronize()
    moved = jax.device_put(jnp.ones((3, 5)), jax.devices("cpu")[0])
    return {"sum": float(back.double().sum()), "one memory": float(array[0]), "moved": float(moved.sum())}


# ---- CuPy -----------------------------------------------------------------------------------


@feature
def cupy_work():
    import cupy

    x = cupy.arange(MIB, dtype=cupy.float32)
    y = (x[:1000] * 2 + 1).sum()
    square = cupy.ElementwiseKernel("float32 x", "float32 y", "y = x * x", "square")
    twice = cupy.RawKernel(
        'extern "C" __global__ void twice(float *x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2; }',
        "twice",
    )
    z = cupy.ones(5000, dtype=cupy.float32)
    twice((20,), (256,), (z, cupy.int32(5000)))
    pool = cupy.get_default_memory_pool()
    used = pool.used_bytes()
    del x
    free = pool.free_bytes()
    pool.free_all_blocks()
    return {
        "sum": float(y), "squares": float(square(z).sum()), "used": used, "free": free, "left": pool.free_bytes(),
        "solved": round(float(cupy.linalg.solve(cupy.eye(64) * 2, cupy.ones(64)).sum()), 4),
        "transform": float(abs(cupy.fft.fft(cupy.ones(1024))).sum()),
    }


@feature
def cupy_limit_of_a_pool():
    import cupy

    pool = cupy.get_default_memory_pool()
    pool.set_limit(size=64 * MIB)
    errors = []
    with refused(cupy.cuda.memory.OutOfMemoryError, errors):
        cupy.empty(128 * MIB, dtype=cupy.uint8)
    kept = cupy.zeros(32 * MIB, dtype=cupy.uint8)
    with refused(cupy.cuda.memory.OutOfMemoryError, errors):
        cupy.empty(48 * MIB, dtype=cupy.uint8)
    return {"errors": errors, "limit": pool.get_limit(), "total": pool.total_bytes(), "sum": int(kept.sum())}


@feature
def cupy_allocators():
    """The stream-ordered pool, managed memory, and no pool at all."""
    import cupy

    sums = {}
    managed = cupy.cuda.MemoryPool(cupy.cuda.malloc_managed)
    kinds = {"async": cupy.cuda.MemoryAsyncPool().malloc, "managed": managed.malloc, "none": None}
    for name, allocator in kinds.items():
        with cupy.cuda.using_allocator(allocator), cupy.cuda.Stream(non_blocking=True) as stream:
            x = cupy.arange(100000, dtype=cupy.float64)
            y = x * x
            sums[name] = float(y.sum())
            del x, y
            stream.synchronize()
    pinned = cupy.cuda.alloc_pinned_memory(MIB)
    return {**sums, "pinned": pinned.size() >= MIB if callable(getattr(pinned, "size", None)) else True}


@feature
def cupy_graph():
    import cupy

    x = cupy.zeros(100000, dtype=cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x += 1
        stream.synchronize()
        stream.begin_capture()
        x += 1
        x *= 2
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
    return {"first": float(x[0]), "last": float(x[-1])}


def cupy_child(handle, count, back):
    import cupy

    address = cupy.cuda.runtime.ipcOpenMemHandle(handle)
    memory = cupy.cuda.UnownedMemory(address, count * 4, None)
    array = cupy.ndarray((count,), cupy.float32, cupy.cuda.MemoryPointer(memory, 0))
    total = float(array.sum())
    array += 1
    cupy.cuda.Device().synchronize()
    cupy.cuda.runtime.ipcCloseMemHandle(address)
    back.put(total)


@feature
def cupy_between_processes():
    import multiprocessing

    import cupy

    array = cupy.full(100000, 2, dtype=cupy.float32)
    cupy.cuda.Device().synchronize()
    handle = cupy.cuda.runtime.ipcGetMemHandle(array.data.ptr)
    context = multiprocessing.get_context("spawn")
    back = context.Queue()
    child = context.Process(target=cupy_child, args=(handle, array.size, back))
    child.start()
    total = answer(back, child)
    child.join(20)
    return {"child": total, "changed": float(array[-1]), "exit": child.exitcode}


@feature
def cupy_and_torch():
    import cupy
    import torch

    tensor = torch.arange(1000, device="cuda", dtype=torch.float32)
    array = cupy.from_dlpack(tensor)
    array *= 2
    cupy.cuda.Device().synchronize()
    return {"torch": float(tensor.sum()), "back": float(torch.from_dlpack(array + 1).sum())}


# ---- Triton ---------------------------------------------------------------------------------

KERNELS = {}
if any(argument.startswith("triton") for argument in sys.argv):
    # Its kernels have to be functions of a file, and their names global.
    try:
        import triton
        import triton.language as tl
    except ModuleNotFoundError:
        pass
    else:

        @triton.jit
        def _added(x, y, n, BLOCK: tl.constexpr):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

        @triton.jit
        def _softmax(x, y, columns, BLOCK: tl.constexpr):
            row = tl.program_id(0)
            at = tl.arange(0, BLOCK)
            values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
            powers = tl.exp(values - tl.max(values, axis=0))
            tl.store(y + row * columns + at, powers / tl.sum(powers, axis=0), mask=at < columns)

        KERNELS = {
            "added": _added,
            "softmax": _softmax,
            "tuned": triton.autotune(
                configs=[triton.Config({"BLOCK": size}, num_warps=warps) for size, warps in ((256, 2), (1024, 4), (2048, 8))],
                key=["n"],
            )(_added),
        }


@feature(seconds=100)
def triton_kernels():
    import torch
    import triton

    x = torch.arange(1 << 16, device="cuda", dtype=torch.float32)
    y = torch.empty_like(x)
    KERNELS["added"][(64,)](x, y, x.numel(), BLOCK=1024)
    rows = torch.randn(100, 700, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    out = torch.empty_like(rows)
    KERNELS["softmax"][(100,)](rows, out, 700, BLOCK=1024)
    return {
        "sum": float(y.double().sum()), "close": bool(torch.allclose(out, rows.softmax(1), atol=1e-6)),
        "blocks": triton.cdiv(700, 1024),
    }


@feature(seconds=100)
def triton_autotuned():
    """Tuning measures, which allocates and clears a buffer of its own."""
    import torch
    import triton

    x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    y = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)
    KERNELS["tuned"][grid](x, y, x.numel())
    return {"sum": float(y.double().sum())}


# ---- RMM, cuda.core, Numba ------------------------------------------------------------------


@feature
def rmm_resources():
    import rmm

    first = rmm.DeviceBuffer(size=MIB)
    figures = {"plain": first.size}
    rmm.reinitialize(pool_allocator=True, initial_pool_size=64 * MIB, maximum_pool_size=256 * MIB)
    second = rmm.DeviceBuffer.to_device(bytes(range(256)) * 16)
    figures["bytes"] = sum(second.copy_to_host().tobytes())
    errors = []
    with refused(MemoryError, errors):
        rmm.DeviceBuffer(size=512 * MIB)
    del second
    rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())
    third = rmm.DeviceBuffer(size=8 * MIB)
    rmm.mr.set_current_device_resource(rmm.mr.ManagedMemoryResource())
    fourth = rmm.DeviceBuffer(size=MIB)
    return figures | {"errors": errors, "async": third.size, "managed": fourth.size}


@feature
def rmm_for_torch():
    import rmm
    import torch
    from rmm.allocators.torch import rmm_torch_allocator

    rmm.reinitialize(pool_allocator=True, initial_pool_size=64 * MIB)
    torch.cuda.memory.change_current_allocator(rmm_torch_allocator)
    return {"sum": float((torch.ones(MIB, device="cuda") * 2).sum())}


def core():
    """cuda.core, which older versions have in `experimental`."""
    import importlib

    found = importlib.import_module("cuda.core")
    return found if hasattr(found, "Device") else importlib.import_module("cuda.core.experimental")


@feature
def cuda_core_work():
    cuda = core()
    device = cuda.Device(0)
    device.set_current()
    stream = device.create_stream()
    code = 'extern "C" __global__ void fill(int *x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = i; }'
    options = cuda.ProgramOptions(std="c++17", arch=f"compute_{device.arch}")
    # PTX: on a machine without a GPU the software device runs it.
    kernel = cuda.Program(code, code_type="c++", options=options).compile("ptx").get_kernel("fill")
    buffer = device.memory_resource.allocate(4000, stream=stream)
    cuda.launch(stream, cuda.LaunchConfig(grid=4, block=256), kernel, buffer, int32(1000))
    host = cuda.LegacyPinnedMemoryResource().allocate(4000)
    buffer.copy_to(host, stream=stream)
    stream.sync()
    import ctypes

    values = (ctypes.c_int * 1000).from_address(int(host.handle))
    return {"sum": sum(values)}


def int32(value):
    import ctypes

    return ctypes.c_int32(value)


def core_child(queue, back):
    cuda = core()
    device = cuda.Device(0)
    # Before what it is given is opened.
    device.set_current()
    stream = device.create_stream()
    buffer = queue.get(timeout=60)
    host = cuda.LegacyPinnedMemoryResource().allocate(4096)
    buffer.copy_to(host, stream=stream)
    stream.sync()
    import ctypes

    back.put(sum((ctypes.c_ubyte * 4096).from_address(int(host.handle))))
    buffer.close(stream)


@feature
def cuda_core_between_processes():
    import multiprocessing

    cuda = core()
    device = cuda.Device(0)
    device.set_current()
    stream = device.create_stream()
    options = cuda.DeviceMemoryResourceOptions(ipc_enabled=True, max_size=2 * MIB)
    memory = cuda.DeviceMemoryResource(device, options=options)
    buffer = memory.allocate(4096, stream=stream)
    buffer.fill(3, stream=stream)
    stream.sync()
    context = multiprocessing.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    child = context.Process(target=core_child, args=(queue, back))
    child.start()
    queue.put(buffer)
    total = answer(back, child)
    child.join(20)
    return {"child": total, "exit": child.exitcode}


@feature
def numba_kernels():
    import numpy
    from numba import cuda

    @cuda.jit
    def doubled(x):
        at = cuda.grid(1)
        if at < x.size:
            x[at] *= 2

    array = cuda.to_device(numpy.arange(1000, dtype=numpy.float32))
    doubled[4, 256](array)
    free, total = cuda.current_context().get_memory_info()
    return {"sum": float(array.copy_to_host().sum()), "free": 0 < free <= total, "total": total}


def numba_child(handle, back):
    with handle as array:
        back.put(float(array.copy_to_host().sum()))


@feature
def numba_between_processes():
    import multiprocessing

    import numpy
    from numba import cuda

    array = cuda.to_device(numpy.arange(1000, dtype=numpy.float32))
    cuda.synchronize()
    context = multiprocessing.get_context("spawn")
    back = context.Queue()
    child = context.Process(target=numba_child, args=(array.get_ipc_handle(), back))
    child.start()
    total = answer(back, child)
    child.join(20)
    return {"child": total, "exit": child.exitcode}
