"""A library of arrays with DLPack's table of C functions, over a session's memory: what PyTorch has.

Each array counts how often it is viewed; `Array.exports` counts capsules. The current stream is the
module's `stream`. Arrays are of f32 and int64.
"""

import ctypes
import itertools

from fercuda_runtime import Buffer

stream = 0
refuses = set()
exports = itertools.count()
codes = {(2, 32): "f32", (0, 64): "i64", (1, 8): "u8"}


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int),
        ("device_id", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    pass


Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("manager", ctypes.c_void_p),
    ("deleter", Deleter),
    ("flags", ctypes.c_uint64),
    ("tensor", Tensor),
]
Allocate = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(Tensor), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_void_p
)
Export = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
Import = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
View = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Tensor))
CurrentStream = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class Table(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", Allocate),
        ("export", Export),
        ("import_", Import),
        ("view", View),
        ("current_stream", CurrentStream),
    ]


class Array:
    """An array; `place` is DLPack's device type."""

    session = None

    def __init__(self, buffer: Buffer, requires_grad=False, read_only=False, place=2):
        self.buffer, self.requires_grad, self.read_only, self.place = buffer, requires_grad, read_only, place
        self.views = 0
        self.shape = (ctypes.c_int64 * len(buffer.shape))(*buffer.shape)
        self.strides = (ctypes.c_int64 * len(buffer.shape))(*buffer.strides)

    def fill(self, tensor):
        self.views += 1
        dtype = str(self.buffer.dtype)
        tensor.code, tensor.bits = next(code for code, name in codes.items() if name == dtype)
        tensor.data = self.buffer.export_device_ptr()
        tensor.device_type, tensor.device_id, tensor.lanes = self.place, 0, 1
        tensor.rank = len(self.shape)
        tensor.shape, tensor.strides, tensor.byte_offset = self.shape, self.strides, 0

    def __dlpack_device__(self):
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, **options):
        next(exports)
        if self.requires_grad:
            raise BufferError("detach it first")
        return self.buffer.__dlpack__(**options)


made = {}
objects = ctypes.pythonapi
objects.PyCapsule_New.restype = ctypes.py_object
objects.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
name = b"dlpack_exchange_api"


def lend(array):
    managed = Managed(1, 3, None, delete, 1 if array.read_only else 0)
    array.fill(managed.tensor)
    address = ctypes.addressof(managed)
    made[address] = (managed, array)
    return address


@Deleter
def delete(managed):
    del made[ctypes.addressof(managed.contents)]


@Allocate
def allocate(prototype, out, context, set_error):
    if "allocate" in refuses:
        return -1
    it = prototype.contents
    shape = tuple(it.shape[k] for k in range(it.rank))
    out[0] = lend(Array(Array.session.alloc(shape, codes[it.code, it.bits])))
    return 0


@Export
def export(array, out):
    out[0] = lend(ctypes.cast(array, ctypes.py_object).value)
    return 0


@Import
def import_(managed, out):
    _, array = made.pop(managed)
    objects.Py_IncRef(ctypes.py_object(array))
    out[0] = id(array)
    return 0


@View
def view(array, out):
    if "view" in refuses:
        return -1
    ctypes.cast(array, ctypes.py_object).value.fill(out.contents)
    return 0


@CurrentStream
def current_stream(place, device, out):
    if "stream" in refuses:
        return -1
    out[0] = stream
    return 0


table = Table(1, 3, None, allocate, export, import_, view, current_stream)
newer = Table(2, 0, ctypes.addressof(table), allocate, export, import_, view, current_stream)
Array.__dlpack_c_exchange_api__ = objects.PyCapsule_New(ctypes.addressof(newer), name, None)
