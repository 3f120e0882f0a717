"""Several libraries in one process: each allocates device memory, computes, checks its results, and
keeps some memory.

`fercuda demo` starts this under the hook and reads the ledger meanwhile. Each result is a line of
JSON on standard output; a line on standard input frees all memory. Nothing here uses feRcuda except
for its own library, one of the tenants.
"""

import sys

# Nothing is imported from the folder in which this was started.
sys.path[:] = [place for place in sys.path if place]

import ctypes
import json
import linecache
import os
import random
from array import array

ORDINAL, SEED, GUEST = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
WANTED = sys.argv[4].split(",") if sys.argv[4] else []
LEN = 250_007

# Libraries may print to stdout; that must not mix with our messages.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer(what):
    print(json.dumps(what), file=ANSWERS, flush=True)


class Wrong(Exception):
    pass


def same(what, got, expected):
    if got != expected:
        at = next((n for n, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
        raise Wrong(f"{what}: element {at} of {len(expected)} is wrong")


def driver_functions():
    """The driver through ctypes, with the device's primary context current."""
    library = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        code = getattr(library, name)(*arguments)
        if code:
            raise Wrong(f"{name} returned {code}")

    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ORDINAL)
    call("cuCtxSetCurrent", context)
    return call


def by_ctypes():
    """Blocks that are allocated, written, copied, read back, and some of them freed."""
    call = driver_functions()
    size, kept = ctypes.c_size_t, []

    def allocated(count):
        address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(address), size(count))
        return address

    for n in range(8):
        length = RANDOM.randrange(1, 1 << 20)
        data = RANDOM.getrandbits(8 * length).to_bytes(length, "little")
        first, second = allocated(len(data)), allocated(len(data))
        call("cuMemcpyHtoD_v2", first, data, size(len(data)))
        call("cuMemcpyDtoD_v2", second, first, size(len(data)))
        back = ctypes.create_string_buffer(len(data))
        call("cuMemcpyDtoH_v2", back, second, size(len(data)))
        same("copy", back.raw, data)
        call("cuMemFree_v2", first)
        if n % 2:
            call("cuMemFree_v2", second)
        else:
            kept.append(second)

    def let_go():
        for address in kept:
            call("cuMemFree_v2", address)

    return "8 copies right", let_go


def by_our_runtime():
    """libfercuda_guest.so, which checks its own results."""
    library = ctypes.CDLL(GUEST)
    size, text = ctypes.c_size_t, ctypes.create_string_buffer(1000)

    def call(name, *arguments):
        code = getattr(library, name)(*arguments, text, size(len(text)))
        said = text.value.decode("utf-8", "replace")
        if code:
            raise Wrong(said)
        return said

    seed = ctypes.c_uint64(RANDOM.getrandbits(64))
    return call("fercuda_guest_take", ctypes.c_uint32(ORDINAL), seed), lambda: call("fercuda_guest_give_back")


SCALE = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %r<5>;
    .reg .f32 %f<3>;
    .reg .b64 %d<6>;
    ld.param.u64 %d0, [x];
    ld.param.u64 %d1, [y];
    ld.param.f32 %f0, [a];
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p, %r4, %r0;
    @%p bra $done;
    mul.wide.u32 %d2, %r4, 4;
    add.s64 %d3, %d0, %d2;
    add.s64 %d4, %d1, %d2;
    ld.global.f32 %f1, [%d3];
    mul.rn.f32 %f2, %f1, %f0;
    st.global.f32 [%d4], %f2;
$done:
    ret;
}
"""


def by_cuda_core():
    """A kernel over buffers that cuda.core allocates in stream order."""
    try:
        from cuda.core import Device, LaunchConfig, ObjectCode, launch
    except ImportError:  # before its first stable release
        from cuda.core.experimental import Device, LaunchConfig, ObjectCode, launch
    from cuda.bindings import driver

    def call(name, *arguments):
        (code,) = getattr(driver, name)(*arguments)
        if int(code):
            raise Wrong(f"{name}: {code}")

    device = Device(ORDINAL)
    device.set_current()
    stream = device.create_stream()
    x = array("f", (RANDOM.uniform(-1, 1) for _ in range(LEN)))
    count = 4 * LEN
    here, there = device.allocate(count, stream=stream), device.allocate(count, stream=stream)
    stream.sync()
    call("cuMemcpyHtoD", int(here.handle), x.buffer_info()[0], count)
    kernel = ObjectCode.from_ptx(SCALE.encode()).get_kernel("scale")
    config = LaunchConfig(grid=(LEN + 255) // 256, block=256)
    arguments = int(here.handle), int(there.handle), ctypes.c_float(0.5), ctypes.c_uint32(LEN)
    launch(stream, config, kernel, *arguments)
    stream.sync()
    y = array("f", bytes(count))
    call("cuMemcpyDtoH", y.buffer_info()[0], int(there.handle), count)
    # Multiplying by 0.5 is exact.
    same("product", y, array("f", (value / 2 for value in x)))
    here.close(stream)

    def let_go():
        there.close(stream)
        stream.sync()

    return f"{LEN} products right", let_go


def by_torch():
    import torch

    x = torch.arange(LEN, device=f"cuda:{ORDINAL}", dtype=torch.float32)
    y = x * 2 + 1
    weights = torch.eye(512, device=x.device)
    product = (weights @ y[: 512 * 256].view(512, 256)).flatten()
    same("torch", y.tolist(), [2.0 * n + 1 for n in range(LEN)])
    same("torch's product with one", product.tolist(), y[: 512 * 256].tolist())
    kept = [y]

    def let_go():
        kept.clear()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    del x, weights, product, y
    return f"{LEN} elements right", let_go


def by_jax():
    import jax
    import jax.numpy as jnp

    with jax.default_device(jax.devices()[ORDINAL]):
        x = jnp.arange(LEN, dtype=jnp.float32)
        y = jax.jit(lambda value: value * 2 + 1)(x)
        y.block_until_ready()
    same("jax", y.tolist(), [2.0 * n + 1 for n in range(LEN)])
    return f"{LEN} elements right", y.delete


def by_cupy():
    import cupy

    with cupy.cuda.Device(ORDINAL):
        x = cupy.arange(LEN, dtype=cupy.float32)
        y = x * 2 + 1
    same("cupy", y.tolist(), [2.0 * n + 1 for n in range(LEN)])
    kept = [y]

    def let_go():
        kept.clear()
        cupy.get_default_memory_pool().free_all_blocks()

    del x, y
    return f"{LEN} elements right", let_go


TRITON = """
import triton
import triton.language as tl

@triton.jit
def double(out, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)
"""


def by_triton():
    """Kernels of Triton in torch's memory."""
    import torch

    # Triton reads a kernel's source, which is in no file here.
    name = "<a kernel of the demo>"
    linecache.cache[name] = (len(TRITON), None, TRITON.splitlines(keepends=True), name)
    names = {"__name__": "demo_triton"}
    exec(compile(TRITON, name, "exec"), names)
    with torch.cuda.device(ORDINAL):
        x = torch.arange(LEN, device="cuda", dtype=torch.float32)
        out = torch.empty_like(x)
        names["double"][((LEN + 1023) // 1024,)](out, x, LEN, BLOCK=1024)
        same("triton", out.tolist(), [2.0 * n for n in range(LEN)])
    return f"{LEN} elements right", lambda: None


PARTS = {
    "ctypes": by_ctypes,
    "our runtime": by_our_runtime,
    "cuda.core": by_cuda_core,
    "torch": by_torch,
    "jax": by_jax,
    "cupy": by_cupy,
    "triton": by_triton,
}

RANDOM = random.Random(SEED)


def reconcile():
    """Queries free memory, on which the hook compares its account with the driver's."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver_functions()("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))


def main():
    endings = []
    for name in WANTED:
        try:
            what, let_go = PARTS[name]()
        except Exception as error:
            answer({"failed": {"part": name, "what": f"{type(error).__name__}: {error}"[:600]}})
            continue
        endings.append((name, let_go))
        answer({"did": {"part": name, "what": what}})
    reconcile()
    answer("holding")
    sys.stdin.readline()
    for name, let_go in reversed(endings):
        try:
            let_go()
        except Exception as error:
            answer({"failed": {"part": name, "what": f"{type(error).__name__}: {error}"[:600]}})
    reconcile()
    answer("done")


main()
