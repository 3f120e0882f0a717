"""Workloads of `fercuda bench frameworks`: NAME ORDINAL SECONDS, in a process of their own.

Each row is a line of JSON on standard output: what was measured, its unit, the median of its
samples. `better` is "less" or "more". A part that cannot run here says why, as `skipped`. The last
line is `done`. Nothing here uses feRcuda, so that the same file measures a process without it; the
exception is Transformers, whose graphs are measured where the environment has them.
"""

import sys

# Nothing is imported from the folder in which this was started.
sys.path[:] = [place for place in sys.path if place]

import ctypes
import gc
import importlib.util
import json
import linecache
import os
import random
import statistics
import threading
import time

NAME, ORDINAL, SECONDS = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
RANDOM = random.Random(1)

# Libraries may print to stdout; that must not mix with our rows.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer(**what):
    print(json.dumps(what), file=ANSWERS, flush=True)


def row(what, unit, value, better="less", beside=None):
    answer(row=what, unit=unit, value=value, better=better, beside=beside)


def skipped(what, why):
    answer(skipped=what, why=" ".join(str(why).split())[:300])


def timed(what, work, wait, each=1, scale=1e6, unit="us"):
    """The median time of `work`, which does `each` things, between two waits for the device."""
    for _ in range(3):
        work()
    wait()
    samples, end = [], time.perf_counter() + SECONDS
    while len(samples) < 5 or (time.perf_counter() < end and len(samples) < 2000):
        begun = time.perf_counter()
        work()
        wait()
        samples.append((time.perf_counter() - begun) / each)
    row(what, unit, statistics.median(samples) * scale)


class Failed(Exception):
    pass


class Driver:
    """The driver through ctypes, with the device's primary context current."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), ORDINAL)
        self.context = context
        self.enter()

    def enter(self):
        self("cuCtxSetCurrent", self.context)

    def __call__(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code:
            raise Failed(f"{name} returned {code}")


EMPTY = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry nothing()
{
    ret;
}
"""


class Properties(ctypes.Structure):
    """CUmemAllocationProp of the driver's header: pinned memory of one device."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("place", ctypes.c_int),
        ("ordinal", ctypes.c_int),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


def mechanics():
    """What a library asks the driver for, each call alone."""
    call = Driver()
    size, address = ctypes.c_size_t, ctypes.c_uint64()
    place = ctypes.byref(address)

    def wait():
        call("cuCtxSynchronize")

    def pair(bytes_):
        def work():
            call("cuMemAlloc_v2", place, size(bytes_))
            call("cuMemFree_v2", address)

        return work

    def ordered(bytes_):
        def work():
            for _ in range(16):
                call("cuMemAllocAsync", place, size(bytes_), None)
                call("cuMemFreeAsync", address, None)

        return work

    timed("cuMemAlloc + cuMemFree of 1 MiB", pair(1 << 20), wait)
    timed("cuMemAlloc + cuMemFree of 64 MiB", pair(64 << 20), wait)
    timed("cuMemAllocAsync + cuMemFreeAsync of 1 MiB", ordered(1 << 20), wait, each=16)
    properties = Properties(type=1, place=1, ordinal=ORDINAL)
    handle = ctypes.c_uint64()

    def create():
        call("cuMemCreate", ctypes.byref(handle), size(32 << 20), ctypes.byref(properties), ctypes.c_ulonglong(0))
        call("cuMemRelease", handle)

    timed("cuMemCreate + cuMemRelease of 32 MiB", create, wait)
    count = 16 << 20
    call("cuMemAlloc_v2", place, size(count))
    host = ctypes.c_void_p()
    call("cuMemAllocHost_v2", ctypes.byref(host), size(count))
    timed("copy of 16 MiB to the device", lambda: call("cuMemcpyHtoD_v2", address, host, size(count)), wait)
    timed("copy of 16 MiB to the host", lambda: call("cuMemcpyDtoH_v2", host, address, size(count)), wait)
    call("cuMemFreeHost", host)
    call("cuMemFree_v2", address)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), EMPTY)
    call("cuModuleGetFunction", ctypes.byref(function), module, b"nothing")

    def launches():
        for _ in range(16):
            call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, None, None, None)

    timed("launch of an empty kernel", launches, wait, each=16)
    call("cuModuleUnload", module)


def throughput():
    """Pairs of allocation and free a second, of random sizes, by several threads."""
    call = Driver()

    def rate(threads, allocate, free):
        counts, stop, errors = [0] * threads, threading.Event(), []

        def work(number):
            chance, size = random.Random(number), ctypes.c_size_t
            address = ctypes.c_uint64()
            try:
                call.enter()
                stream = ctypes.c_void_p()
                call("cuStreamCreate", ctypes.byref(stream), 1)
                while not stop.is_set():
                    allocate(ctypes.byref(address), size(chance.randrange(256, 1 << 20)), stream)
                    free(address, stream)
                    counts[number] += 1
                    # A stream that lags behind would hold ever more memory not freed yet.
                    if counts[number] % 32 == 0:
                        call("cuStreamSynchronize", stream)
                call("cuStreamSynchronize", stream)
                call("cuStreamDestroy_v2", stream)
            except Failed as error:
                errors.append(error)

        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        begun = time.perf_counter()
        for worker in workers:
            worker.start()
        stop.wait(max(SECONDS, 0.2))
        stop.set()
        for worker in workers:
            worker.join()
        if errors:
            raise errors[0]
        return sum(counts) / (time.perf_counter() - begun)

    def in_order(place, size, stream):
        call("cuMemAllocAsync", place, size, stream)

    def free_in_order(address, stream):
        call("cuMemFreeAsync", address, stream)

    def plain(place, size, stream):
        call("cuMemAlloc_v2", place, size)

    def free_plain(address, stream):
        call("cuMemFree_v2", address)

    for threads in (1, 4, 16):
        what = f"pairs in stream order, threads {threads}"
        row(what, "/s", rate(threads, in_order, free_in_order), "more")
    for threads in (1, 4):
        row(f"pairs of cuMemAlloc, threads {threads}", "/s", rate(threads, plain, free_plain), "more")


def on_torch():
    import torch

    torch.cuda.set_device(ORDINAL)
    torch.manual_seed(1)
    return torch


def by_torch():
    """Products, rows, a training step, and tensors that come and go."""
    torch = on_torch()
    wait = torch.cuda.synchronize
    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    timed("product 4096^3 bf16", lambda: a @ b, wait)
    x = torch.randn(4096, 4096, device="cuda")
    timed("softmax 4096x4096 f32", lambda: torch.softmax(x, 1), wait)
    timed("layer norm 4096x4096 f32", lambda: torch.nn.functional.layer_norm(x, (4096,)), wait)
    del a, b, x
    sizes = [RANDOM.randrange(1 << 10, 1 << 22) for _ in range(64)]

    def churn():
        for size in sizes:
            torch.empty(size, device="cuda", dtype=torch.uint8)

    timed("a tensor of up to 4 MiB, made and dropped", churn, wait, each=len(sizes))
    layers = [torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True) for _ in range(4)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    data = torch.randn(16, 256, 512, device="cuda")

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(data).float().pow(2).mean()
        loss.backward()
        optimizer.step()

    timed("training step, 4 layers of 512", step, wait)


def by_jax():
    """Compiled products, rows and a training step."""
    import jax
    import jax.numpy as jnp

    with jax.default_device(jax.devices()[ORDINAL]):
        keys = jax.random.split(jax.random.key(1), 4)
        a, b = (jax.random.normal(key, (4096, 4096), jnp.bfloat16) for key in keys[:2])
        x = jax.random.normal(keys[2], (4096, 4096))

        def measure(what, function, *arguments):
            function = jax.jit(function)
            timed(what, lambda: jax.block_until_ready(function(*arguments)), lambda: None)

        measure("product 4096^3 bf16", lambda a, b: a @ b, a, b)
        measure("softmax 4096x4096 f32", lambda x: jax.nn.softmax(x, 1), x)

        def loss(weights, x):
            for weight in weights:
                x = jnp.tanh(x @ weight)
            return (x * x).mean()

        weights = [jax.random.normal(keys[3], (1024, 1024)) * 0.03 for _ in range(4)]

        def step(weights, x):
            return [w - 0.01 * g for w, g in zip(weights, jax.grad(loss)(weights, x))]

        measure("training step, 4 layers of 1024", step, weights, x[:, :1024])
        big = 64 << 20

        def blocks():
            jax.block_until_ready(jnp.zeros(big, jnp.uint8))

        timed("an array of 64 MiB, made and dropped", blocks, lambda: None)


TRITON = """
import triton
import triton.language as tl

@triton.jit
def nothing(out):
    pass

@triton.jit
def add(out, x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n)
    tl.store(out + at, value, mask=at < n)

@triton.jit
def softmax(out, x, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * n + at, mask=at < n, other=-float("inf"))
    value = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * n + at, value / tl.sum(value, 0), mask=at < n)

@triton.jit
def product(out, a, b, N, K, M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((M, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + (k + inner)[None, :])
        right = tl.load(b + (k + inner)[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(out + rows[:, None] * N + columns[None, :], total.to(tl.bfloat16))
"""


def triton_kernels():
    # Triton reads a kernel's source, which is in no file here.
    name = "<kernels of the benchmark>"
    linecache.cache[name] = (len(TRITON), None, TRITON.splitlines(keepends=True), name)
    names = {"__name__": "benchmark_triton"}
    exec(compile(TRITON, name, "exec"), names)
    return names


def by_triton():
    """Kernels of Triton in PyTorch's memory."""
    torch, kernels = on_torch(), triton_kernels()
    wait = torch.cuda.synchronize
    x, y, out = (torch.randn(1 << 24, device="cuda") for _ in range(3))
    grid = (x.numel() // 1024,)

    def launches():
        for _ in range(16):
            kernels["nothing"][(1,)](out)

    timed("launch of an empty kernel", launches, wait, each=16)
    timed("sum of two vectors of 2^24", lambda: kernels["add"][grid](out, x, y, x.numel(), BLOCK=1024), wait)
    timed("softmax 4096x4096 f32", lambda: kernels["softmax"][(4096,)](out, x, 4096, BLOCK=4096), wait)
    a, b, c = (torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    tiles = (2048 // 128, 2048 // 128)

    def multiply():
        kernels["product"][tiles](c, a, b, 2048, 2048, M=128, BN=128, BK=64, num_warps=8)

    timed("product 2048^3 bf16", multiply, wait)


def by_transformers():
    """A random Llama of 16 layers of 1024 that generates 64 tokens."""
    torch = on_torch()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    prompt = torch.randint(0, 32000, (1, 64), device="cuda")
    asked = {"max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False, "pad_token_id": 0}

    def rate():
        def once():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            model.generate(prompt, **asked)
            torch.cuda.synchronize()
            return 64 / (time.perf_counter() - begun)

        for _ in range(2):
            once()
        return statistics.median(once() for _ in range(5))

    row("generate, one sequence", "tok/s", rate(), "more")
    if os.environ.get("FERCUDA_RUN") is None:
        return
    by = "generate, one sequence, by graphs"
    try:
        from fercuda_runtime.inference import accelerate, restore
    except ImportError as error:
        skipped(by, error)
        return
    accelerate(model)
    row(by, "tok/s", rate(), "more", beside="generate, one sequence")
    restore(model)


def coexistence():
    """Libraries of one process by turns, and what the next one gets of memory the last has freed."""
    libraries = {}
    for name, make in (("torch", torch_tenant), ("jax", jax_tenant), ("cupy", cupy_tenant)):
        if importlib.util.find_spec(name) is None:
            skipped(f"{name} as a tenant", f"this Python has no {name}")
            continue
        try:
            libraries[name] = make()
        except Exception as error:
            skipped(f"{name} as a tenant", f"{type(error).__name__}: {error}")
    if len(libraries) < 2:
        skipped("libraries by turns", "fewer than two of torch, jax and cupy are here")
        return

    def turn():
        for work, _ in libraries.values():
            work()

    timed("a turn of " + ", ".join(libraries), turn, lambda: None)
    call = Driver()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    part = int(free.value * 0.6) >> 20 << 20
    for name, (_, take) in libraries.items():
        try:
            take(part)
            got = part
        except Exception:
            got = 0
        gc.collect()
        row(f"GiB that {name} gets of 60 % of what was free", "GiB", got / 2**30, "more")


def torch_tenant():
    torch = on_torch()
    x = torch.randn(1024, 1024, device="cuda")

    def work():
        y = torch.softmax(x @ x, 1)
        torch.cuda.synchronize()
        return y

    def take(count):
        torch.empty(count, device="cuda", dtype=torch.uint8)

    return work, take


def jax_tenant():
    import jax
    import jax.numpy as jnp

    device = jax.devices()[ORDINAL]
    x = jax.device_put(jnp.ones((1024, 1024)), device)
    function = jax.jit(lambda x: jax.nn.softmax(x @ x, 1))

    def take(count):
        with jax.default_device(device):
            block = jnp.zeros(count, jnp.uint8)
            jax.block_until_ready(block)
            block.delete()

    return lambda: jax.block_until_ready(function(x)), take


def cupy_tenant():
    import cupy

    cupy.cuda.Device(ORDINAL).use()
    x = cupy.ones((1024, 1024), dtype=cupy.float32)

    def work():
        y = cupy.exp(x @ x * 1e-4)
        cupy.cuda.get_current_stream().synchronize()
        return y

    def take(count):
        cupy.empty(count, dtype=cupy.uint8)

    return work, take


WORKLOADS = {
    "mechanics": mechanics,
    "throughput": throughput,
    "coexistence": coexistence,
    "torch": by_torch,
    "jax": by_jax,
    "triton": by_triton,
    "transformers": by_transformers,
}

try:
    WORKLOADS[NAME]()
except Exception as error:
    skipped(f"the rest of {NAME}", f"{type(error).__name__}: {error}")
answer(done=True)
# Destructors of several libraries may meet in any order; what was measured is out.
ANSWERS.flush()
os._exit(0)
