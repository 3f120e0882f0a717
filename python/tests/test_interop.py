"""Memory lent and borrowed: DLPack, `__cuda_array_interface__`, bare addresses."""

import ctypes
import gc
import os
import time

import numpy as np
import pytest
from conftest import NUMPY, SCALE, SLOW_NS, array_of, buffer_of, random_array, same

from fercuda_runtime import RuntimeSession, errors


def capsule_name(capsule):
    get = ctypes.pythonapi.PyCapsule_GetName
    get.restype, get.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return get(capsule)


@pytest.mark.parametrize("regime", ["pinned", "managed"])
@pytest.mark.parametrize("dtype", sorted(NUMPY))
def test_numpy_shares_memory_that_the_host_reads(session, rng, dtype, regime):
    array = random_array(rng, NUMPY[dtype], (4, 6))
    buffer = buffer_of(session, array, regime=regime)
    shared = np.from_dlpack(buffer)
    same(shared, array)
    cut = np.from_dlpack(buffer[::-2, 1::2].T)
    same(cut, array[::-2, 1::2].T)
    assert np.shares_memory(shared, cut)
    values = random_array(rng, NUMPY[dtype], (4, 6))
    shared[...] = values
    same(array_of(buffer), values)
    same(cut, values[::-2, 1::2].T)


def test_numpy_reads_when_the_device_has_written(session, scale):
    buffer = buffer_of(session, np.ones(8, np.float32), regime="pinned")
    session.launch(scale, 1, 8, [buffer, 2.0, 8, SLOW_NS])
    same(np.from_dlpack(buffer), np.full(8, 2, np.float32))
    job = session.launch_async(scale, 1, 8, [buffer, 2.0, 8, SLOW_NS])
    same(np.from_dlpack(buffer), np.full(8, 4, np.float32))
    assert job.wait() is None


def test_what_is_lent_outlives_buffer_session_and_reboot(runtime):
    session = RuntimeSession("lends", runtime=runtime)
    buffer = session.alloc((100,), "u8", regime="managed")
    buffer.fill_bytes(7)
    array = np.from_dlpack(buffer)
    buffer.free()
    session.close()
    del buffer, session
    gc.collect()
    assert (array == 7).all() and runtime.holders() != []
    array[:] = 8
    assert array.sum() == 800


def test_numpy_arrays_are_copied_in_whatever_their_layout(session, rng):
    whole = random_array(rng, "float64", (5, 6, 7))
    for array in (whole, whole[::-1, 1:, ::3], whole.T, whole[2, 3, 4:5], whole[:0], np.array(3.5), whole[..., None]):
        buffer = session.from_dlpack(array)
        same(array_of(buffer), np.ascontiguousarray(array).reshape(array.shape))
        same(np.from_dlpack(buffer, device="cpu"), np.ascontiguousarray(array).reshape(array.shape))
    frozen = whole.copy()
    frozen.flags.writeable = False
    same(array_of(session.from_dlpack(frozen)), whole)
    with pytest.raises(errors.LayoutError, match="copy"):
        session.from_dlpack(whole, copy=False)
    for wrong in (np.zeros(3, np.complex64), object(), 3):
        with pytest.raises((errors.DtypeError, BufferError)):
            session.from_dlpack(wrong)


@pytest.mark.parametrize("shape", [(1 << 45,), (1 << 62,), (1 << 20, 1 << 30), (4, 1 << 48)])
def test_a_tensor_that_claims_more_elements_than_memory_is_refused(session, shape):
    held = session.held_bytes
    with pytest.raises((MemoryError, errors.LayoutError)):
        session.from_dlpack(np.broadcast_to(np.uint8(7), shape))
    assert session.held_bytes == held
    same(array_of(session.from_dlpack(np.broadcast_to(np.uint8(7), (1000,)))), np.full(1000, 7, np.uint8))


class _Tensor(ctypes.Structure):
    """DLPack's DLManagedTensor, with its DLTensor inlined."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


@pytest.mark.parametrize("without", ["shape", "data"])
def test_a_tensor_without_its_parts_is_refused(session, without):
    shape, data = (ctypes.c_int64 * 1)(4), (ctypes.c_float * 4)()
    tensor = _Tensor(device_type=1, rank=1, code=2, bits=32, lanes=1)
    tensor.data, tensor.shape = ctypes.addressof(data), ctypes.addressof(shape)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

    class Lender:
        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **options):
            return new(ctypes.addressof(tensor), b"dltensor", None)

    same(array_of(session.from_dlpack(Lender())), np.zeros(4, np.float32))
    setattr(tensor, without, None)
    with pytest.raises(errors.LayoutError, match="another array"):
        session.from_dlpack(Lender())


@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (1, 3), (2, 0)])
def test_a_capsule_is_of_the_version_that_was_asked_for_and_frees_an_unconsumed_tensor(session, max_version):
    buffer = session.alloc((10,), "f32")
    before = session.count_buffers()
    capsule = buffer.__dlpack__(max_version=max_version)
    is_versioned = max_version is not None and max_version[0] >= 1
    assert capsule_name(capsule) == (b"dltensor_versioned" if is_versioned else b"dltensor")
    buffer.free()
    held = session.runtime.holders()
    assert ("first", 512) in [it[:2] for it in held]
    del capsule
    assert session.count_buffers() == before - 1


class Lender:
    """A library of its own that lends a buffer of another session."""

    def __init__(self, buffer, versioned=True):
        self.buffer, self.versioned, self.asked = buffer, versioned, []

    def __dlpack_device__(self):
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **more):
        if not self.versioned and more:
            raise TypeError("no such keyword: max_version")
        self.asked.append(stream)
        return self.buffer.__dlpack__(stream=stream, **more)


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("regime", ["pool", "driver", "managed", "pinned"])
def test_another_session_borrows_in_the_right_order(session, other, scale, rng, regime, versioned):
    array = rng.standard_normal(64).astype(np.float32)
    buffer = buffer_of(session, array, regime=regime)
    session.launch(scale, 1, 64, [buffer, 2.0, 64, SLOW_NS])
    lender = Lender(buffer, versioned)
    borrowed = other.from_dlpack(lender)
    assert lender.asked == [None if regime == "pinned" else other.stream_handle]
    assert borrowed.regime == "foreign" and borrowed.__dlpack_device__() == buffer.__dlpack_device__()
    # With checks on, a read before the kernel's writes would be found.
    same(array_of(borrowed), array * np.float32(2))
    borrowed.fill_bytes(0)
    session.follow_stream(other.stream_handle)
    same(array_of(buffer), np.zeros(64, np.float32))
    buffer.free()
    del buffer, lender
    gc.collect()
    assert borrowed.download() == bytes(256)
    copied = other.from_dlpack(borrowed, copy=True)
    assert copied.regime == "pool" and copied.download() == bytes(256)


class DlTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int),
        ("device_id", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("dtype", ctypes.c_uint32),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class DlManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", DlTensor), ("manager", ctypes.c_void_p), ("deleter", Deleter)]


class Passer:
    """A library of C++ that borrows a buffer and lends it on; its deleter releases the
    interpreter's lock."""

    def __init__(self, buffer):
        self.device, self.ended = buffer.__dlpack_device__(), 0
        capsule = buffer.__dlpack__()
        api = ctypes.pythonapi
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
        api.PyCapsule_New.restype = ctypes.py_object
        api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.address = api.PyCapsule_GetPointer(capsule, b"dltensor")
        self.used = b"used_dltensor"
        assert api.PyCapsule_SetName(capsule, self.used) == 0
        borrowed = DlManagedTensor.from_address(self.address)
        self.lent = DlManagedTensor(borrowed.tensor, None, Deleter(self.end))
        self.capsule = api.PyCapsule_New(ctypes.addressof(self.lent), b"dltensor", None)

    def end(self, _):
        self.ended += 1
        # ctypes calls functions without the lock.
        DlManagedTensor.from_address(self.address).deleter(self.address)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_):
        return self.capsule


@pytest.mark.parametrize("end", ["free", "collected"])
def test_a_deleter_of_ours_is_called_by_who_has_released_the_interpreters_lock(session, other, end):
    buffer = session.alloc((16,), "f32")
    buffer.fill_bytes(0)
    session.synchronize()
    passer = Passer(buffer)
    buffer.free()
    borrowed = other.from_dlpack(passer)
    assert passer.ended == 0 and borrowed.download() == bytes(64)
    if end == "free":
        borrowed.free()
    del borrowed
    gc.collect()
    other.synchronize()
    assert passer.ended == 1


def until(is_so, what):
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.001)


def test_who_drops_what_was_lent_does_not_wait_for_the_device(runtime, other, held):
    lent = other.alloc((16,), "f32")
    capsule = lent.__dlpack__(stream=-1)
    lent.free()
    job = held.job()
    until(lambda: job.status == "running", "it does not begin")
    before = other.held_bytes
    del capsule
    assert job.status == "running" and other.held_bytes == before > 0
    held.let_go()
    job.wait()
    until(lambda: other.held_bytes == 0, "it is not given back")


def test_a_thread_that_python_does_not_know_returns_what_was_lent_without_it(session):
    before = session.held_bytes
    buffer = session.alloc((16,), "f32")
    passer = Passer(buffer)
    buffer.free()
    del buffer
    deleter = ctypes.cast(DlManagedTensor.from_address(passer.address).deleter, ctypes.c_void_p)
    # Functions that are called with the interpreter's lock.
    libc, thread = ctypes.PyDLL(None), ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(thread), None, deleter, ctypes.c_void_p(passer.address)) == 0
    by = (ctypes.c_long * 2)(int(time.time()) + 60, 0)
    assert libc.pthread_timedjoin_np(thread, None, by) == 0, "it waits for the interpreter's lock"
    until(lambda: session.held_bytes == before, "it is not given back")


def test_what_borrowers_return_beside_a_dispatcher_is_counted_as_parked(runtime, session, other):
    kept = session.alloc((64,), "u8")
    kept.fill_bytes(0)
    before = session.held_bytes
    lent = session.alloc((1 << 20,), "u8")
    with other.dispatcher([other.alloc((64,), "f32")]):
        first, second = kept.__dlpack__(stream=-1), lent.__dlpack__(stream=-1)
        lent.free()
        del lent
        assert runtime.parked_bytes() == 0
        # Of the first the program has a name.
        del first, second
        assert runtime.parked_bytes() == 1 << 20 == session.held_bytes - before
    until(lambda: session.held_bytes == before, "it is not given back")
    assert runtime.parked_bytes() == 0 and kept.download() == bytes(64)


def test_streams_and_devices_that_make_no_sense_are_refused(session):
    buffer = session.alloc((4,), "f32")
    for stream in (0, -2):
        with pytest.raises(errors.ConfigError):
            buffer.__dlpack__(stream=stream)
    # NVIDIA's library takes any other number for an address and reads what is there.
    if os.environ.get("FERCUDA_DEVICE") == "soft":
        with pytest.raises(errors.DriverError):
            buffer.__dlpack__(stream=0x1234567890)
        with pytest.raises(errors.DriverError):
            session.follow_stream(0x1234567890)
    for stream in (-1, 1, 2, None, session.stream_handle):
        assert capsule_name(buffer.__dlpack__(stream=stream)) == b"dltensor"
    for device in ((2, 9), (3, 0), (7, 0), (99, 0)):
        with pytest.raises(BufferError):
            buffer.__dlpack__(dl_device=device)
    with pytest.raises(BufferError, match="copy"):
        buffer.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError):
        np.from_dlpack(buffer, copy=False, device="cpu")
    for flag in (None, True):
        assert np.from_dlpack(buffer, device="cpu", copy=flag).shape == (4,)
    for bad in ("no capsule", buffer.__dlpack__):
        class Liar:
            __dlpack_device__ = staticmethod(lambda: (2, 0))
            __dlpack__ = staticmethod(lambda **_: bad)

        with pytest.raises(errors.LayoutError):
            session.from_dlpack(Liar())


def test_a_capsule_is_good_once(session, other):
    buffer = buffer_of(session, np.ones(4, np.float32))
    capsule = buffer.__dlpack__(max_version=(1, 0))

    class Twice:
        __dlpack_device__ = staticmethod(lambda: (2, 0))
        __dlpack__ = staticmethod(lambda **_: capsule)

    first = other.from_dlpack(Twice())
    with pytest.raises(errors.LayoutError, match="consumed once"):
        other.from_dlpack(Twice())
    assert first.download() == buffer.download()
    first.free()


class Shows:
    """An array that knows nothing but the interface."""

    def __init__(self, buffer, **changed):
        self.buffer = buffer
        self.__cuda_array_interface__ = {**buffer.__cuda_array_interface__, **changed}


def test_the_array_interface_goes_both_ways(session, other, scale, rng):
    array = rng.standard_normal((8, 8)).astype(np.float32)
    buffer = buffer_of(session, array)
    shown = buffer.__cuda_array_interface__
    assert shown["shape"] == (8, 8) and shown["typestr"] == "<f4" and shown["strides"] is None
    assert shown["version"] == 3 and shown["stream"] == session.stream_handle
    assert shown["data"] == (buffer.export_device_ptr(), False) and buffer.is_exported
    session.launch(scale, 1, 64, [buffer, 2.0, 64, SLOW_NS])
    array *= 2
    for view, part in ((buffer, array), (buffer.T, array.T), (buffer[::-2, 3:], array[::-2, 3:])):
        borrowed = other.from_cuda_array_interface(Shows(view))
        same(array_of(borrowed), np.ascontiguousarray(part))
    view = buffer[1:3]
    borrowed = other.from_cuda_array_interface(view)
    # Handing out the address makes the object keep its memory: neither free nor the end frees it.
    view.free()
    buffer.free()
    session.close()
    del view, buffer
    gc.collect()
    same(array_of(borrowed), array[1:3])


def test_array_interfaces_that_make_no_sense_are_refused(session):
    buffer = session.alloc((4,), "f32")
    cases = [
        (errors.ConfigError, {"stream": 0}),
        (errors.LayoutError, {"mask": buffer}),
        (errors.LayoutError, {"data": (buffer.export_device_ptr(), True)}),
        (errors.LayoutError, {"strides": (3,)}),
        (errors.LayoutError, {"shape": None}),
        (errors.DtypeError, {"typestr": ">f4"}),
        (errors.DtypeError, {"typestr": "<c8"}),
        (errors.DriverError, {"data": (0x1234560, False)}),
    ]
    if os.environ.get("FERCUDA_DEVICE") == "soft":
        cases.append((errors.DriverError, {"stream": 0x1234567890}))
    for kind, changed in cases:
        with pytest.raises(kind):
            session.from_cuda_array_interface(Shows(buffer, **changed))
    with pytest.raises(errors.DtypeError):
        session.from_cuda_array_interface(np.zeros(3))
    assert not hasattr(session.alloc((4,), "bf16"), "__cuda_array_interface__")
    read_only = Shows(buffer, data=(buffer.export_device_ptr(), True))
    assert session.from_cuda_array_interface(read_only, copy=True).regime == "pool"
    assert session.from_cuda_array_interface(Shows(buffer, shape=(0,))).size == 0


def test_an_exported_address_is_good_as_long_as_the_buffer_is_there(session, other):
    buffer = buffer_of(session, np.arange(4, dtype=np.int32))
    assert not buffer.is_exported
    address = buffer.export_device_ptr()
    assert buffer.is_exported
    buffer.free()
    again = other.import_memory(address + 12, (4,), "i32", strides=(-1,))
    same(array_of(again), np.arange(4, dtype=np.int32)[::-1])
    again.free()
