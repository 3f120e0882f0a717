"""Answers of driver calls while a stream captures, by mode and thread.

As a program it writes what the driver below answers, as JSON; `captures.json` is what an H200 with
driver 580.159.04 wrote, and `test_captures.py` holds the software device to it.

    python3 capture_calls.py > captures.json
"""

import ctypes
import json
import sys
import threading
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p

MODES = {"global": 0, "thread_local": 1, "relaxed": 2}
THREADS = ("same", "another")
NON_BLOCKING = 1
PTX = b""".version 8.0
.target sm_80
.address_size 64
.visible .entry idle() { ret; }
.visible .global .align 4 .u32 word;
\0"""

cuda = ctypes.CDLL("libcuda.so.1")


def must(code, what):
    if code != 0:
        raise RuntimeError(f"{what} answered {code}")


class World:
    """A context with one object of each kind, and streams that capture or do not."""

    def __init__(self):
        must(cuda.cuInit(0), "cuInit")
        self.context = c_void_p()
        must(cuda.cuDevicePrimaryCtxRetain(byref(self.context), 0), "cuDevicePrimaryCtxRetain")
        self.use()
        self.module = c_void_p()
        must(cuda.cuModuleLoadData(byref(self.module), PTX), "cuModuleLoadData")
        self.idle = c_void_p()
        must(cuda.cuModuleGetFunction(byref(self.idle), self.module, b"idle"), "cuModuleGetFunction")
        self.memory = c_void_p()
        must(cuda.cuMemAlloc_v2(byref(self.memory), c_size_t(1 << 16)), "cuMemAlloc")
        self.pinned = c_void_p()
        must(cuda.cuMemAllocHost_v2(byref(self.pinned), c_size_t(1 << 16)), "cuMemAllocHost")
        self.graph = c_void_p()
        must(cuda.cuGraphCreate(byref(self.graph), c_uint(0)), "cuGraphCreate")
        self.runnable = c_void_p()
        made = cuda.cuGraphInstantiateWithFlags(
            byref(self.runnable), self.graph, ctypes.c_ulonglong(0)
        )
        must(made, "cuGraphInstantiateWithFlags")
        # A graph of one node, which a capture made.
        stream, captured = self.stream(), c_void_p()
        self.filling = c_void_p()
        must(cuda.cuStreamBeginCapture_v2(stream, c_int(2)), "cuStreamBeginCapture")
        fill = cuda.cuMemsetD8Async(self.memory, ctypes.c_ubyte(0), c_size_t(64), stream)
        must(fill, "cuMemsetD8Async")
        must(cuda.cuStreamEndCapture(stream, byref(captured)), "cuStreamEndCapture")
        made = cuda.cuGraphInstantiateWithFlags(
            byref(self.filling), captured, ctypes.c_ulonglong(0)
        )
        must(made, "cuGraphInstantiateWithFlags")
        must(cuda.cuStreamDestroy_v2(stream), "cuStreamDestroy")
        whole, none = c_size_t(2 << 20), ctypes.c_ulonglong(0)
        self.physical, self.reserved = c_void_p(), c_void_p()
        made = cuda.cuMemCreate(byref(self.physical), whole, byref(on_device()), none)
        must(made, "cuMemCreate")
        made = cuda.cuMemAddressReserve(
            byref(self.reserved), whole, c_size_t(0), c_void_p(0), none
        )
        must(made, "cuMemAddressReserve")
        self.pageable = ctypes.create_string_buffer(1 << 16)

    def use(self):
        must(cuda.cuCtxSetCurrent(self.context), "cuCtxSetCurrent")

    def stream(self, flags=NON_BLOCKING):
        made = c_void_p()
        must(cuda.cuStreamCreate(byref(made), c_uint(flags)), "cuStreamCreate")
        return made

    def event(self):
        made = c_void_p()
        must(cuda.cuEventCreate(byref(made), c_uint(0)), "cuEventCreate")
        return made


class Trial:
    """What one call may use: fresh streams and events, and what it has to put back."""

    def __init__(self, world, flags):
        self.world = world
        self.captured = world.stream(flags)
        self.other = world.stream()
        self.blocking = world.stream(0)
        self.recorded = world.event()
        must(cuda.cuEventRecord(self.recorded, self.other), "cuEventRecord")
        must(cuda.cuStreamSynchronize(self.other), "cuStreamSynchronize")
        self.block = c_void_p()
        must(cuda.cuMemAlloc_v2(byref(self.block), c_size_t(1 << 16)), "cuMemAlloc")
        self.ordered = c_void_p()
        allocate = cuda.cuMemAllocAsync(byref(self.ordered), c_size_t(1 << 16), self.other)
        must(allocate, "cuMemAllocAsync")
        must(cuda.cuStreamSynchronize(self.other), "cuStreamSynchronize")
        self.host, self.spare = c_void_p(), c_void_p()
        must(cuda.cuMemAllocHost_v2(byref(self.host), c_size_t(4096)), "cuMemAllocHost")
        must(cuda.cuModuleLoadData(byref(self.spare), PTX), "cuModuleLoadData")
        self.out = c_void_p()

    def close(self):
        """Whatever the call left: errors of frees that were done already are expected."""
        cuda.cuMemFreeAsync(self.ordered, self.other)
        cuda.cuStreamSynchronize(self.other)
        cuda.cuMemFree_v2(self.block)
        cuda.cuMemFreeHost(self.host)
        cuda.cuModuleUnload(self.spare)
        cuda.cuEventDestroy_v2(self.recorded)
        for stream in (self.captured, self.other, self.blocking):
            cuda.cuStreamDestroy_v2(stream)
        must(cuda.cuCtxSynchronize(), "cuCtxSynchronize after a trial")


def launch(trial, stream):
    return cuda.cuLaunchKernel(
        trial.world.idle, 1, 1, 1, 1, 1, 1, 0, stream, c_void_p(0), c_void_p(0)
    )


def load_module(trial):
    code = cuda.cuModuleLoadData(byref(trial.out), PTX)
    return code


def word_of_module(trial):
    size = c_size_t()
    return cuda.cuModuleGetGlobal_v2(byref(trial.out), byref(size), trial.world.module, b"word")


def memory_info(_):
    free, total = c_size_t(), c_size_t()
    return cuda.cuMemGetInfo_v2(byref(free), byref(total))


def address_range(trial):
    base, size = c_void_p(), c_size_t()
    return cuda.cuMemGetAddressRange_v2(byref(base), byref(size), trial.block)


def default_pool(trial):
    return cuda.cuDeviceGetDefaultMemPool(byref(trial.out), 0)


def trim(trial):
    code = default_pool(trial)
    return code or cuda.cuMemPoolTrimTo(trial.out, c_size_t(0))


def host_memory(trial):
    code = cuda.cuMemAllocHost_v2(byref(trial.out), c_size_t(4096))
    if code == 0:
        cuda.cuMemFreeHost(trial.out)
    return code


def registered(trial):
    page = ctypes.create_string_buffer(8192)
    at = (ctypes.addressof(page) + 4095) & ~4095
    code = cuda.cuMemHostRegister_v2(c_void_p(at), c_size_t(4096), c_uint(0))
    if code == 0:
        cuda.cuMemHostUnregister(c_void_p(at))
    return code


def capture_status(trial):
    status = c_int()
    return cuda.cuStreamIsCapturing(trial.other, byref(status))


def elapsed(trial):
    took = ctypes.c_float()
    return cuda.cuEventElapsedTime(byref(took), trial.recorded, trial.recorded)


def made_stream(trial):
    code = cuda.cuStreamCreate(byref(trial.out), c_uint(NON_BLOCKING))
    if code == 0:
        cuda.cuStreamDestroy_v2(trial.out)
    return code


def made_event(trial):
    code = cuda.cuEventCreate(byref(trial.out), c_uint(0))
    if code == 0:
        cuda.cuEventDestroy_v2(trial.out)
    return code


def second_capture(trial):
    code = cuda.cuStreamBeginCapture_v2(trial.other, c_int(2))
    if code == 0:
        graph = c_void_p()
        code = cuda.cuStreamEndCapture(trial.other, byref(graph))
        cuda.cuGraphDestroy(graph)
    return code


def new_graph(trial):
    code = cuda.cuGraphCreate(byref(trial.out), c_uint(0))
    if code == 0:
        cuda.cuGraphDestroy(trial.out)
    return code


def instantiate(trial):
    made = c_void_p()
    code = cuda.cuGraphInstantiateWithFlags(
        byref(made), trial.world.graph, ctypes.c_ulonglong(0)
    )
    if code == 0:
        cuda.cuGraphExecDestroy(made)
    return code


def clone_graph(trial):
    code = cuda.cuGraphClone(byref(trial.out), trial.world.graph)
    if code == 0:
        cuda.cuGraphDestroy(trial.out)
    return code


def reserve(trial):
    whole = c_size_t(2 << 20)
    code = cuda.cuMemAddressReserve(
        byref(trial.out), whole, c_size_t(0), c_void_p(0), ctypes.c_ulonglong(0)
    )
    if code == 0:
        cuda.cuMemAddressFree(trial.out, whole)
    return code


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class Physical(ctypes.Structure):
    """`CUmemAllocationProp` and, longer than it, `CUmemPoolProps`."""

    _fields_ = [
        ("type", c_int),
        ("handles", c_int),
        ("location", Location),
        ("security", c_void_p),
        ("rest", ctypes.c_ubyte * 64),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


def on_device():
    return Physical(1, 0, Location(1, 0), None)


def create_memory(trial):
    code = cuda.cuMemCreate(
        byref(trial.out), c_size_t(2 << 20), byref(on_device()), ctypes.c_ulonglong(0)
    )
    if code == 0:
        cuda.cuMemRelease(trial.out)
    return code


def map_memory(trial):
    """Maps the world's physical memory where it reserved addresses, and unmaps it."""
    world = trial.world
    none = ctypes.c_ulonglong(0)
    whole = c_size_t(2 << 20)
    code = cuda.cuMemMap(world.reserved, whole, c_size_t(0), world.physical, none)
    if code == 0:
        access = Access(Location(1, 0), 3)
        code = cuda.cuMemSetAccess(world.reserved, whole, byref(access), c_size_t(1))
        code = code or cuda.cuMemUnmap(world.reserved, whole)
    return code


def create_pool(trial):
    code = cuda.cuMemPoolCreate(byref(trial.out), byref(on_device()))
    if code == 0:
        cuda.cuMemPoolDestroy(trial.out)
    return code


def create_context(trial):
    code = cuda.cuCtxCreate_v2(byref(trial.out), c_uint(0), c_int(0))
    if code == 0:
        cuda.cuCtxDestroy_v2(trial.out)
        trial.world.use()
    return code


def stack_limit(_):
    value = c_size_t()
    code = cuda.cuCtxGetLimit(byref(value), c_int(0))
    return code or cuda.cuCtxSetLimit(c_int(0), value)


def heap_limit(_):
    return cuda.cuCtxSetLimit(c_int(2), c_size_t(16 << 20))


def pitched(trial):
    pitch = c_size_t()
    code = cuda.cuMemAllocPitch_v2(
        byref(trial.out), byref(pitch), c_size_t(100), c_size_t(10), c_uint(4)
    )
    if code == 0:
        cuda.cuMemFree_v2(trial.out)
    return code


def pointer_context(trial):
    return cuda.cuPointerGetAttribute(byref(trial.out), c_int(1), trial.block)


def occupancy(trial):
    blocks = c_int()
    return cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(
        byref(blocks), trial.world.idle, c_int(32), c_size_t(0)
    )


def function_attribute(trial):
    return cuda.cuFuncSetAttribute(trial.world.idle, c_int(8), c_int(1024))


def destroy_stream(trial):
    code = cuda.cuStreamDestroy_v2(trial.other)
    if code == 0:
        trial.other = trial.world.stream()
    return code


def destroy_event(trial):
    code = cuda.cuEventDestroy_v2(trial.recorded)
    if code == 0:
        trial.recorded = trial.world.event()
    return code


def unload_module(trial):
    return cuda.cuModuleUnload(trial.spare)


def free_host(trial):
    return cuda.cuMemFreeHost(trial.host)


HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: None)
CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p)(lambda *_: None)


CALLS = {
    "cuMemAlloc": lambda t: cuda.cuMemAlloc_v2(byref(t.out), c_size_t(4096)),
    "cuMemFree": lambda t: cuda.cuMemFree_v2(t.block),
    "cuMemAllocHost": host_memory,
    "cuMemHostRegister": registered,
    "cuMemAllocManaged": lambda t: cuda.cuMemAllocManaged(
        byref(t.out), c_size_t(4096), c_uint(1)
    ),
    "cuMemAllocAsync, another stream": lambda t: cuda.cuMemAllocAsync(
        byref(t.out), c_size_t(4096), t.other
    ),
    "cuMemAllocAsync, the stream that captures": lambda t: cuda.cuMemAllocAsync(
        byref(t.out), c_size_t(4096), t.captured
    ),
    "cuMemFreeAsync, another stream": lambda t: cuda.cuMemFreeAsync(t.ordered, t.other),
    "cuMemPoolTrimTo": trim,
    "cuMemGetInfo": memory_info,
    "cuMemGetAddressRange": address_range,
    "cuMemcpyHtoD": lambda t: cuda.cuMemcpyHtoD_v2(t.block, t.world.pageable, c_size_t(64)),
    "cuMemcpyDtoH": lambda t: cuda.cuMemcpyDtoH_v2(t.world.pageable, t.block, c_size_t(64)),
    "cuMemcpyDtoD": lambda t: cuda.cuMemcpyDtoD_v2(t.block, t.world.memory, c_size_t(64)),
    "cuMemcpyHtoDAsync, another stream": lambda t: cuda.cuMemcpyHtoDAsync_v2(
        t.block, t.world.pinned, c_size_t(64), t.other
    ),
    "cuMemcpyHtoDAsync, the legacy stream": lambda t: cuda.cuMemcpyHtoDAsync_v2(
        t.block, t.world.pinned, c_size_t(64), c_void_p(0)
    ),
    "cuMemsetD8": lambda t: cuda.cuMemsetD8_v2(t.block, ctypes.c_ubyte(0), c_size_t(64)),
    "cuLaunchKernel, another stream": lambda t: launch(t, t.other),
    "cuLaunchKernel, a blocking stream": lambda t: launch(t, t.blocking),
    "cuLaunchKernel, the legacy stream": lambda t: launch(t, c_void_p(0)),
    "cuCtxSynchronize": lambda _: cuda.cuCtxSynchronize(),
    "cuStreamSynchronize, another stream": lambda t: cuda.cuStreamSynchronize(t.other),
    "cuStreamSynchronize, the stream that captures": lambda t: cuda.cuStreamSynchronize(t.captured),
    "cuStreamQuery, another stream": lambda t: cuda.cuStreamQuery(t.other),
    "cuStreamQuery, the stream that captures": lambda t: cuda.cuStreamQuery(t.captured),
    "cuStreamQuery, the legacy stream": lambda _: cuda.cuStreamQuery(c_void_p(0)),
    "cuStreamIsCapturing": capture_status,
    "cuStreamCreate": made_stream,
    "cuStreamBeginCapture, another stream": second_capture,
    "cuStreamWaitEvent, another stream": lambda t: cuda.cuStreamWaitEvent(
        t.other, t.recorded, c_uint(0)
    ),
    "cuEventCreate": made_event,
    "cuEventRecord, another stream": lambda t: cuda.cuEventRecord(t.recorded, t.other),
    "cuEventRecord, the legacy stream": lambda t: cuda.cuEventRecord(t.recorded, c_void_p(0)),
    "cuStreamWaitEvent, the legacy stream": lambda t: cuda.cuStreamWaitEvent(
        c_void_p(0), t.recorded, c_uint(0)
    ),
    "cuEventQuery": lambda t: cuda.cuEventQuery(t.recorded),
    "cuEventSynchronize": lambda t: cuda.cuEventSynchronize(t.recorded),
    "cuEventElapsedTime": elapsed,
    "cuModuleLoadData": load_module,
    "cuModuleGetGlobal": word_of_module,
    "cuDeviceGetDefaultMemPool": default_pool,
    "cuGraphCreate": new_graph,
    "cuGraphInstantiate": instantiate,
    "cuGraphClone": clone_graph,
    "cuGraphUpload, the stream that captures": lambda t: cuda.cuGraphUpload(
        t.world.filling, t.captured
    ),
    "cuGraphUpload, another stream": lambda t: cuda.cuGraphUpload(t.world.runnable, t.other),
    "cuGraphLaunch, another stream": lambda t: cuda.cuGraphLaunch(t.world.runnable, t.other),
    "cuGraphLaunch of an empty graph, the stream that captures": lambda t: cuda.cuGraphLaunch(
        t.world.runnable, t.captured
    ),
    "cuGraphLaunch, the stream that captures": lambda t: cuda.cuGraphLaunch(
        t.world.filling, t.captured
    ),
    "cuDeviceGraphMemTrim": lambda _: cuda.cuDeviceGraphMemTrim(c_int(0)),
    "cuMemAddressReserve": reserve,
    "cuMemCreate": create_memory,
    "cuMemMap, cuMemSetAccess and cuMemUnmap": map_memory,
    "cuMemPoolCreate": create_pool,
    "cuMemAllocPitch": pitched,
    "cuMemFreeHost": free_host,
    "cuPointerGetAttribute": pointer_context,
    "cuCtxCreate": create_context,
    "cuCtxSetLimit, the stack": stack_limit,
    "cuCtxSetLimit, the heap": heap_limit,
    "cuStreamDestroy, another stream": destroy_stream,
    "cuEventDestroy": destroy_event,
    "cuModuleUnload": unload_module,
    "cuFuncSetAttribute": function_attribute,
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": occupancy,
    "cuLaunchHostFunc, another stream": lambda t: cuda.cuLaunchHostFunc(
        t.other, HOST_FUNCTION, c_void_p(0)
    ),
    "cuStreamAddCallback, another stream": lambda t: cuda.cuStreamAddCallback(
        t.other, CALLBACK, c_void_p(0), c_uint(0)
    ),
    "cuStreamAddCallback, the stream that captures": lambda t: cuda.cuStreamAddCallback(
        t.captured, CALLBACK, c_void_p(0), c_uint(0)
    ),
    "cuMemsetD8Async, the stream that captures": lambda t: cuda.cuMemsetD8Async(
        t.block, ctypes.c_ubyte(0), c_size_t(64), t.captured
    ),
    "cuEventRecord, the stream that captures": lambda t: cuda.cuEventRecord(
        t.recorded, t.captured
    ),
}

# Once more while a stream captures that synchronizes with the legacy stream.
OVER_BLOCKING = [
    "cuMemAllocAsync, another stream",
    "cuMemGetInfo",
    "cuMemcpyHtoD",
    "cuMemcpyDtoH",
    "cuMemcpyDtoD",
    "cuMemcpyHtoDAsync, another stream",
    "cuMemcpyHtoDAsync, the legacy stream",
    "cuMemsetD8",
    "cuLaunchKernel, another stream",
    "cuLaunchKernel, a blocking stream",
    "cuLaunchKernel, the legacy stream",
    "cuStreamQuery, the legacy stream",
    "cuEventRecord, the legacy stream",
    "cuStreamWaitEvent, the legacy stream",
    "cuModuleLoadData",
]


def answer(world, name, flags, mode, thread):
    """`[answer, state of the capture after it, answer of cuStreamEndCapture]`."""
    trial = Trial(world, flags)
    begin = cuda.cuStreamBeginCapture_v2(trial.captured, c_int(MODES[mode]))
    must(begin, "cuStreamBeginCapture")
    seen = []

    def call():
        world.use()
        seen.append(CALLS[name](trial))

    if thread == "same":
        call()
    else:
        other = threading.Thread(target=call)
        other.start()
        other.join()
    status, graph = c_int(), c_void_p()
    cuda.cuStreamIsCapturing(trial.captured, byref(status))
    end = cuda.cuStreamEndCapture(trial.captured, byref(graph))
    if graph:
        cuda.cuGraphDestroy(graph)
    trial.close()
    return [seen[0], status.value, end]


def answers():
    """All of them, by call, mode and thread."""
    world = World()
    rows = [(name, name, NON_BLOCKING) for name in CALLS]
    rows += [(f"{name}; it is blocking", name, 0) for name in OVER_BLOCKING]
    return {
        title: {
            mode: {thread: answer(world, name, flags, mode, thread) for thread in THREADS}
            for mode in MODES
        }
        for title, name, flags in rows
    }


if __name__ == "__main__":
    version = c_int()
    name = ctypes.create_string_buffer(100)
    must(cuda.cuInit(0), "cuInit")
    must(cuda.cuDriverGetVersion(byref(version)), "cuDriverGetVersion")
    must(cuda.cuDeviceGetName(name, 100, 0), "cuDeviceGetName")
    device = c_char_p(name.value).value.decode()
    written = {"device": device, "driver_api": version.value, "answers": answers()}
    json.dump(written, sys.stdout, indent=1)
    print()
