"""Edge cases of the driver API: each code here was returned by an H200 with driver 580.159.

The same table is asserted on the software device, so a program that relies on these answers sees no
difference. Programs that leave a context unusable run in a process of their own.
"""

import ctypes
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from cuda.bindings import driver

PTX = b""".version 8.0
.target sm_80
.address_size 64
.visible .entry idle(.param .u64 p, .param .u32 n, .param .align 8 .b8 s[24]) { ret; }
.visible .entry store(.param .u64 p)
{
    .reg .b64 %a;
    .reg .b32 %r;
    ld.param.u64 %a, [p];
    mov.u32 %r, 1;
    st.global.u32 [%a], %r;
    ret;
}
.visible .entry stop() { trap; ret; }
\0"""

CAPTURED, INVALIDATED = 1, 2
IMPLICIT = 906
INVALID_VALUE, OUT_OF_MEMORY, CONTEXT_DESTROYED, ILLEGAL_STATE, NOT_READY = 1, 2, 709, 401, 600
UNSUPPORTED, INVALID, UNJOINED, ISOLATION, CAPTURED_EVENT = 900, 901, 904, 905, 907
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2


def code(result):
    return int(result[0])


def ok(result):
    assert code(result) == 0, result
    return result[1] if len(result) == 2 else result[1:]


class World:
    """A context with one object of each kind."""

    def __init__(self):
        ok(driver.cuInit(0))
        self.device = ok(driver.cuDeviceGet(0))
        self.context = ok(driver.cuDevicePrimaryCtxRetain(self.device))
        ok(driver.cuCtxSetCurrent(self.context))
        self.module = ok(driver.cuModuleLoadData(PTX))
        self.idle = ok(driver.cuModuleGetFunction(self.module, b"idle"))
        self.event = ok(driver.cuEventCreate(0))
        self.memory = ok(driver.cuMemAlloc(100))

    def stream(self):
        return ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def capturing(self, mode):
        stream = self.stream()
        ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode(mode)))
        return stream

    def launch(self, stream=0, grid=(1, 1, 1), block=(1, 1, 1), shared=0):
        # three parameters in the signature; spare pointers past them are never read
        params = ((0,) * 5, (ctypes.c_ulonglong,) * 5)
        return driver.cuLaunchKernel(self.idle, *grid, *block, shared, stream, params, 0)


@pytest.fixture(scope="module")
def world():
    made = World()
    yield made
    ok(driver.cuDevicePrimaryCtxRelease(made.device))


LAUNCHES = [
    ("an empty grid", dict(grid=(0, 1, 1)), INVALID_VALUE),
    ("an empty block", dict(block=(0, 1, 1)), INVALID_VALUE),
    ("more threads than a block may have", dict(block=(2048, 1, 1)), INVALID_VALUE),
    ("a block 65 deep", dict(block=(1, 1, 65)), INVALID_VALUE),
    ("a grid 70000 high", dict(grid=(1, 70000, 1)), INVALID_VALUE),
    ("49 KiB of shared memory without opting in", dict(shared=49 << 10), INVALID_VALUE),
    ("300 KiB of shared memory", dict(shared=300 << 10), INVALID_VALUE),
    ("one thread", {}, 0),
]


@pytest.mark.parametrize("what,geometry,expected", LAUNCHES, ids=[row[0] for row in LAUNCHES])
def test_launch_limits(world, what, geometry, expected):
    assert code(world.launch(**geometry)) == expected
    assert code(driver.cuCtxSynchronize()) == 0


def test_launch_without_parameters_is_refused(world):
    assert code(driver.cuLaunchKernel(world.idle, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)) == INVALID_VALUE


def test_shared_memory_opt_in_ends_at_227_kib(world):
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert code(driver.cuFuncSetAttribute(world.idle, attribute, 228 << 10)) == INVALID_VALUE
    assert code(driver.cuFuncSetAttribute(world.idle, attribute, 227 << 10)) == 0
    assert code(world.launch(shared=227 << 10)) == 0
    assert code(driver.cuFuncSetAttribute(world.idle, attribute, 0)) == 0


def test_parameter_layout(world):
    assert [driver.cuFuncGetParamInfo(world.idle, i) for i in range(3)] == [
        (driver.CUresult.CUDA_SUCCESS, 0, 8),
        (driver.CUresult.CUDA_SUCCESS, 8, 4),
        (driver.CUresult.CUDA_SUCCESS, 16, 24),
    ]
    assert code(driver.cuFuncGetParamInfo(world.idle, 3)) == INVALID_VALUE


def test_allocation_edges(world):
    assert code(driver.cuMemAlloc(0)) == INVALID_VALUE
    first, second = ok(driver.cuMemAlloc(100)), ok(driver.cuMemAlloc(100))
    assert int(first) % 512 == 0 and int(second) % 512 == 0
    base, size = ok(driver.cuMemGetAddressRange(int(first) + 50))
    assert (int(base), size) == (int(first), 100)
    assert code(driver.cuMemFree(int(first) + 8)) == INVALID_VALUE
    assert code(driver.cuMemFree(0)) == 0
    assert code(driver.cuMemFree(first)) == 0
    assert code(driver.cuMemFree(first)) == INVALID_VALUE
    assert code(driver.cuMemFree(0x1234)) == INVALID_VALUE
    assert code(driver.cuMemGetAddressRange(0x1234)) == 500
    assert code(driver.cuMemsetD8(second, 0, 4 << 20)) == INVALID_VALUE
    assert code(driver.cuMemFree(second)) == 0


def test_pointer_attributes(world):
    attribute = driver.CUpointer_attribute
    ask = lambda name, pointer: driver.cuPointerGetAttribute(getattr(attribute, f"CU_POINTER_ATTRIBUTE_{name}"), pointer)
    inside = int(world.memory) + 10
    assert ask("MEMORY_TYPE", inside)[1] == 2
    assert ask("DEVICE_ORDINAL", inside)[1] == 0
    assert not ask("IS_MANAGED", inside)[1]
    assert int(ask("RANGE_START_ADDR", inside)[1]) == int(world.memory)
    assert ask("RANGE_SIZE", inside)[1] == 100
    assert ask("MAPPED", inside)[1]
    assert code(ask("HOST_POINTER", inside)) == INVALID_VALUE
    for name in ("CONTEXT", "MEMORY_TYPE", "DEVICE_ORDINAL", "RANGE_SIZE"):
        assert code(ask(name, 0x1234)) == INVALID_VALUE


def test_event_edges(world):
    fresh, other = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
    untimed = ok(driver.cuEventCreate(2))
    assert code(driver.cuEventQuery(fresh)) == 0
    assert code(driver.cuEventSynchronize(fresh)) == 0
    assert code(driver.cuEventElapsedTime(fresh, other)) == 400
    ok(driver.cuEventRecord(fresh, 0))
    ok(driver.cuEventRecord(untimed, 0))
    assert code(driver.cuEventElapsedTime(fresh, untimed)) == 400
    for event in (fresh, other, untimed):
        ok(driver.cuEventDestroy(event))


# (what, call, answer, state of the capture after it, answer of EndCapture) by mode
LOST = (UNSUPPORTED, INVALIDATED, INVALID)
FINE = (0, CAPTURED, 0)
CAPTURE = [
    ("allocating", lambda w, s: driver.cuMemAlloc(64), LOST, LOST, FINE),
    ("allocating pinned host memory", lambda w, s: driver.cuMemHostAlloc(64, 0), LOST, LOST, FINE),
    ("querying an event", lambda w, s: driver.cuEventQuery(w.event), LOST, LOST, FINE),
    ("synchronising the stream", lambda w, s: driver.cuStreamSynchronize(s), LOST, LOST, LOST),
    ("querying the stream", lambda w, s: driver.cuStreamQuery(s), LOST, LOST, LOST),
    ("synchronising the context", lambda w, s: driver.cuCtxSynchronize(), LOST, LOST, LOST),
    ("recording an event of the context", lambda w, s: driver.cuCtxRecordEvent(w.context, w.event), LOST, LOST, LOST),
    ("waiting for an event outside", lambda w, s: driver.cuStreamWaitEvent(s, w.event, 0),
     (ISOLATION, INVALIDATED, INVALID), (ISOLATION, INVALIDATED, INVALID), (ISOLATION, INVALIDATED, INVALID)),
    ("beginning again", lambda w, s: driver.cuStreamBeginCapture(s, driver.CUstreamCaptureMode(RELAXED)),
     (ILLEGAL_STATE, CAPTURED, 0), (ILLEGAL_STATE, CAPTURED, 0), (ILLEGAL_STATE, CAPTURED, 0)),
    ("recording an event on the legacy stream", lambda w, s: driver.cuEventRecord(w.event, 0), FINE, FINE, FINE),
    ("launching on the legacy stream", lambda w, s: w.launch(), FINE, FINE, FINE),
    ("copying synchronously", lambda w, s: driver.cuMemcpyHtoD(w.memory, bytes(16), 16), FINE, FINE, FINE),
    ("asking for memory info", lambda w, s: driver.cuMemGetInfo(), FINE, FINE, FINE),
    ("creating an event", lambda w, s: driver.cuEventCreate(0), FINE, FINE, FINE),
    ("loading a module", lambda w, s: driver.cuModuleLoadData(PTX), FINE, FINE, FINE),
    ("launching on the stream", lambda w, s: w.launch(s), FINE, FINE, FINE),
]


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED], ids=["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("row", CAPTURE, ids=[row[0] for row in CAPTURE])
def test_capture_rules(world, row, mode):
    _, call, *by_mode = row
    ok(driver.cuEventRecord(world.event, 0))
    ok(driver.cuCtxSynchronize())
    stream = world.capturing(mode)
    answer = code(call(world, stream))
    state = int(ok(driver.cuStreamIsCapturing(stream)))
    end = code(driver.cuStreamEndCapture(stream))
    assert (answer, state, end) == by_mode[mode]
    assert code(driver.cuCtxSynchronize()) == 0
    ok(driver.cuStreamDestroy(stream))


@pytest.mark.parametrize("ask", [driver.cuStreamIsCapturing, driver.cuStreamGetCaptureInfo], ids=["is", "info"])
def test_asking_the_legacy_stream_harms_no_capture_and_using_it_does(world, ask):
    stream = ok(driver.cuStreamCreate(0))
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode(RELAXED)))
    assert code(ask(0)) == IMPLICIT
    assert int(ok(driver.cuStreamIsCapturing(stream))) == CAPTURED
    assert code(driver.cuStreamSynchronize(0)) == IMPLICIT
    assert int(ok(driver.cuStreamIsCapturing(stream))) == INVALIDATED
    assert code(driver.cuStreamEndCapture(stream)) == INVALID
    assert code(ask(0)) == 0
    ok(driver.cuStreamDestroy(stream))


def test_capture_that_is_not_joined_is_lost(world):
    origin, other, event = world.capturing(RELAXED), world.stream(), ok(driver.cuEventCreate(2))
    ok(driver.cuEventRecord(event, origin))
    ok(driver.cuStreamWaitEvent(other, event, 0))
    assert code(world.launch(other)) == 0
    assert code(driver.cuStreamEndCapture(origin)) == UNJOINED
    assert code(driver.cuStreamEndCapture(other)) == ILLEGAL_STATE


@pytest.mark.parametrize("call", [driver.cuEventQuery, driver.cuEventSynchronize], ids=["query", "synchronise"])
def test_event_recorded_in_a_capture_is_not_of_the_host(world, call):
    stream, event = world.capturing(RELAXED), ok(driver.cuEventCreate(2))
    ok(driver.cuEventRecord(event, stream))
    assert code(call(event)) == CAPTURED_EVENT
    assert int(ok(driver.cuStreamIsCapturing(stream))) == INVALIDATED
    assert code(driver.cuStreamEndCapture(stream)) == INVALID


def run_alone(program):
    """Runs `program` after this file's names in a fresh process; returns what it printed."""
    text = f"import sys; sys.path.insert(0, {str(__import__('pathlib').Path(__file__).parent)!r})\n"
    text += "from test_driver_rules import *\nw = World()\n" + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


AFTER_A_FAULT = """
    def show(result): print(int(result[0]))
    f = ok(driver.cuModuleGetFunction(w.module, b"{kernel}"))
    ok(driver.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, {params}, 0))
    show(driver.cuCtxSynchronize())
    show(driver.cuCtxSynchronize())
    show(driver.cuMemAlloc(64))
    show(driver.cuStreamCreate(1))
    show(driver.cuMemGetInfo())
    show(driver.cuStreamQuery(0))
    show(driver.cuMemFree(w.memory))
    show(driver.cuDeviceGetAttribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE, w.device))
    show(driver.cuCtxGetDevice())
    show(driver.cuDevicePrimaryCtxReset(w.device))
    show(driver.cuCtxSynchronize())
"""


def test_a_store_to_nowhere_makes_the_context_unusable(world):
    params = "((16,), (ctypes.c_ulonglong,))"
    assert run_alone(AFTER_A_FAULT.format(kernel="store", params=params)) == (
        ["700"] * 7 + ["0", "0", "0", str(CONTEXT_DESTROYED)])


def test_a_trap_makes_the_context_unusable(world):
    printed = run_alone(AFTER_A_FAULT.format(kernel="stop", params="0"))
    assert len(set(printed[:7])) == 1 and printed[0] in ("715", "719"), printed
    assert printed[7:] == ["0", "0", "0", str(CONTEXT_DESTROYED)]


def test_other_processes_do_not_notice(world):
    assert code(world.launch()) == 0
    assert code(driver.cuCtxSynchronize()) == 0
    free, total = ok(driver.cuMemGetInfo())
    assert 0 < free <= total
    assert np.uint64(int(world.memory)) != 0


POINTER = driver.CUpointer_attribute
USED = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
NO_CONTEXT, NOT_FOUND = 201, 500
SIZE = 4 << 20


def owner(pointer):
    return int(ok(driver.cuPointerGetAttribute(POINTER.CU_POINTER_ATTRIBUTE_CONTEXT, pointer)))


def pool_of(pointer):
    return int(ok(driver.cuPointerGetAttribute(POINTER.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pointer)))


def own_pool():
    props = driver.CUmemPoolProps()
    props.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    props.location.id = 0
    return ok(driver.cuMemPoolCreate(props))


def mapped(size):
    """Mapped memory that belongs to no allocation: its address and its handle."""
    props = driver.CUmemAllocationProp()
    props.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    props.location.id = 0
    access = driver.CUmemAccessDesc()
    access.location = props.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    address = ok(driver.cuMemAddressReserve(size, 0, 0, 0))
    handle = ok(driver.cuMemCreate(size, props, 0))
    ok(driver.cuMemMap(address, size, 0, handle, 0))
    ok(driver.cuMemSetAccess(address, size, [access], 1))
    return address, handle


def first_word(pointer):
    word = np.zeros(1, np.uint32)
    ok(driver.cuMemcpyDtoH(word.ctypes.data, pointer, 4))
    return int(word[0])


class Held:
    """Memory of every kind, allocated in the current context and a stream of it; the n-th holds n
    everywhere."""

    def __init__(self, world):
        self.pool = ok(driver.cuDeviceGetDefaultMemPool(world.device))
        self.own = own_pool()
        stream = world.stream()
        self.blocks = [ok(driver.cuMemAllocAsync(SIZE, stream)) for _ in range(4)]
        self.blocks += [ok(driver.cuMemAllocFromPoolAsync(SIZE, self.own, stream)) for _ in range(2)]
        self.mapped, self.handle = mapped(SIZE)
        for n, block in enumerate([*self.blocks, self.mapped]):
            ok(driver.cuMemsetD32Async(block, n, SIZE // 4, stream))
        self.plain = ok(driver.cuMemAlloc(SIZE))
        ok(driver.cuMemFreeAsync(self.blocks.pop(3), stream))
        ok(driver.cuCtxSynchronize())

    def used(self):
        return [int(ok(driver.cuMemPoolGetAttribute(pool, USED))) // SIZE for pool in (self.pool, self.own)]


def test_memory_in_a_streams_order_is_no_contexts(world):
    stream, own = world.stream(), own_pool()
    plain, ordered = ok(driver.cuMemAlloc(100)), ok(driver.cuMemAllocAsync(100, stream))
    of_own = ok(driver.cuMemAllocFromPoolAsync(100, own, stream))
    default = ok(driver.cuDeviceGetDefaultMemPool(world.device))
    assert [owner(p) for p in (plain, ordered, of_own)] == [int(world.context), 0, 0]
    assert [pool_of(p) for p in (plain, ordered, of_own)] == [0, int(default), int(own)]
    together = [POINTER.CU_POINTER_ATTRIBUTE_CONTEXT, POINTER.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE]
    assert [int(it) for it in ok(driver.cuPointerGetAttributes(2, together, of_own))] == [0, int(own)]
    for pointer in (plain, ordered, of_own):
        ok(driver.cuMemFree(pointer))
    ok(driver.cuMemPoolDestroy(own))
    ok(driver.cuStreamDestroy(stream))


ENDS = {
    "reset": """
        ok(driver.cuDevicePrimaryCtxReset(w.device))
    """,
    "released": """
        ok(driver.cuDevicePrimaryCtxRelease(w.device))
    """,
    "destroyed": """
        ok(driver.cuCtxDestroy(made))
        ok(driver.cuDevicePrimaryCtxRelease(w.device))
    """,
    "destroyed_beside_another": """
        ok(driver.cuCtxDestroy(made))
    """,
}

OUTLIVES = """
    {made}
    held = Held(w)
    {end}
    {then}
    print(*held.used(), *(first_word(block) for block in held.blocks), first_word(held.mapped))
    print(*(owner(block) for block in held.blocks), pool_of(held.blocks[0]) == int(held.pool), pool_of(held.blocks[4]) == int(held.own))
    print(ok(driver.cuMemGetAddressRange(held.blocks[0]))[1] // SIZE, code(driver.cuMemGetAddressRange(held.plain)))
    print(code(driver.cuMemcpyDtoH(bytes(4), held.plain, 4)), code(driver.cuMemFree(held.plain)))
    store = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(PTX)), b"store"))
    for block in (held.blocks[2], held.blocks[4], held.mapped):
        ok(driver.cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, 0, ((int(block),), (ctypes.c_ulonglong,)), 0))
        print(first_word(block))
    print(code(driver.cuMemFreeAsync(held.blocks[0], 0)), code(driver.cuMemFreeAsync(held.blocks[1], w.stream())))
    ok(driver.cuCtxSynchronize())
    print(*held.used())
    print(code(driver.cuMemFree(held.blocks[2])), code(driver.cuMemFree(held.blocks[2])))
    print(code(driver.cuMemPoolDestroy(held.own)), first_word(held.blocks[3]))
    print(code(driver.cuMemFree(held.blocks[3])), code(driver.cuMemFreeAsync(held.blocks[4], 0)))
    print(code(driver.cuMemUnmap(held.mapped, SIZE)), code(driver.cuMemRelease(held.handle)))
    print(code(driver.cuCtxSynchronize()))
"""

ANEW = "ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(w.device))))"


@pytest.mark.parametrize("end", ENDS)
def test_memory_in_a_streams_order_outlives_its_context(world, end):
    made = "made = ok(driver.cuCtxCreate(None, 0, w.device))" if "destroyed" in end else ""
    program = OUTLIVES.format(made=made, end=textwrap.dedent(ENDS[end]).strip().replace("\n", "\n    "), then=ANEW)
    assert run_alone(program) == [
        *"3 2  0 1 2 4 5 6".split(),
        *"0 0 0 0 0 True True".split(),
        "1", str(NOT_FOUND),
        "1", "1",
        "1", "1", "1",
        "0", "0",
        "1", "2",
        "0", "1",
        "0", "4",
        "0", "0",
        "0", "0",
        "0",
    ]


WITHOUT = """
    held = Held(w)
    kept, freed = held.blocks[:2]
    def show(*results): print(*(code(it) for it in results))
    {end}
    for gone in (True, False):
        if not gone:
            ok(driver.cuCtxSetCurrent(0))
        show(driver.cuMemFreeAsync(kept, 0), driver.cuMemcpyDtoH(bytes(4), kept, 4), driver.cuMemGetAddressRange(kept))
        show(driver.cuMemFree(freed), driver.cuMemFree(held.plain), driver.cuMemAllocAsync(SIZE, 0))
        show(driver.cuPointerGetAttribute(POINTER.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, kept))
        print(owner(kept), pool_of(kept) == int(held.pool))
    show(driver.cuMemFree(freed))
    {then}
    print(first_word(kept))
    show(driver.cuMemFree(freed), driver.cuMemFree(kept))
"""


@pytest.mark.parametrize("end", ["reset", "released"])
def test_memory_that_outlives_its_context_is_freed_in_any_other_or_none(world, end):
    program = WITHOUT.format(end=ENDS[end].strip(), then=ANEW)
    gone, none = str(CONTEXT_DESTROYED), str(NO_CONTEXT)
    assert run_alone(program) == [
        gone, gone, gone,
        gone, gone, gone,
        none, "0", "True",
        none, none, none,
        "0", "1", none,
        none, "0", "True",
        "1",
        "0",
        "1", "0",
    ]
