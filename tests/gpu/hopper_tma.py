"""Copies of the tensor memory accelerator on a device, beside a model of the host.

    python3 hopper_tma.py [--libcuda PATH] [--libnvrtc PATH] [--out FILE] [--against FILE]

Needs a driver, NVRTC and nothing else. Boxes of tensors are loaded, stored and reduced: tiled and
im2col, each type, swizzle, interleave and fill, boxes partly and wholly outside, shared addresses
at every line of a swizzle. What the device leaves is compared with a model in this file, which
shares no code with the software device. Prints one JSON:

    device      its name and driver version
    failed      cases in which bytes differ, with the first difference
    passed      how many did not
    codes       what the encoding functions answer to arguments within and beyond their rules
    raw         digests of copies that no manual describes fully, and their first bytes where
                they are not what the model says

`--against` names the output of another device: `unlike` then lists codes and raw copies that
differ. Exit status 1 if any case failed or is unlike.
"""

import argparse
import ctypes
import hashlib
import itertools
import json
import os
import random
import struct
import sys

MARK = 0xEE
LOST = -1
SMEM = 192 << 10

TYPES = {
    # name: (driver's number, bytes, is float)
    "u8": (0, 1, False), "u16": (1, 2, False), "u32": (2, 4, False), "s32": (3, 4, False),
    "u64": (4, 8, False), "s64": (5, 8, False), "f16": (6, 2, True), "f32": (7, 4, True),
    "f64": (8, 8, True), "bf16": (9, 2, True), "f32ftz": (10, 4, True), "tf32": (11, 4, True),
    "tf32ftz": (12, 4, True),
}
SWIZZLES = {"none": 0, "32": 1, "64": 2, "128": 3, "128a32": 4, "128a32f8": 5, "128a64": 6}
SPAN = {"none": 0, "32": 32, "64": 64, "128": 128, "128a32": 128, "128a32f8": 128, "128a64": 128}

SOURCE = r"""
struct alignas(64) Map { unsigned long long opaque[16]; };
typedef unsigned long long u64;
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void begin(unsigned bar, unsigned n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(n) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ void expect(unsigned bar, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ int waited(unsigned bar, unsigned parity) {
    // Bounded, so that a wrong number of bytes is an answer and not a hang.
    for (int n = 0; n < 200000; n++) {
        unsigned done;
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(bar), "r"(parity) : "memory");
        if (done) return 1;
        __nanosleep(100);
    }
    return 0;
}
#define LOAD(N, LIST, ...) asm volatile("cp.async.bulk.tensor." #N "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {" LIST "}], [%2];" \
    ::"r"(dst), "l"(map), "r"(bar), __VA_ARGS__ : "memory")
#define PIXELS(N, LIST, OFFSETS, ...) asm volatile("cp.async.bulk.tensor." #N "d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {" LIST "}], [%2], {" OFFSETS "};" \
    ::"r"(dst), "l"(map), "r"(bar), __VA_ARGS__ : "memory")
#define PUT(OP, MODE, N, LIST, ...) asm volatile(OP "." #N "d.global.shared::cta" MODE ".bulk_group [%1, {" LIST "}], [%0];" \
    ::"r"(src), "l"(map), __VA_ARGS__ : "memory")
struct Job { int rank, pixels, c[5]; unsigned short o[3]; unsigned bytes, offset, region; };
extern "C" __global__ void load(const __grid_constant__ Map m, Job j, unsigned char* out, int* done) {
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) u64 barrier;
    unsigned bar = at(&barrier), dst = at(memory) + j.offset;
    u64 map = (u64)&m;
    for (unsigned n = threadIdx.x; n < j.region; n += blockDim.x) memory[n] = 0xEE;
    asm volatile("fence.proxy.async;" ::: "memory");
    if (threadIdx.x == 0) begin(bar, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        expect(bar, j.bytes);
        if (!j.pixels) switch (j.rank) {
        case 1: LOAD(1, "%3", "r"(j.c[0])); break;
        case 2: LOAD(2, "%3, %4", "r"(j.c[0]), "r"(j.c[1])); break;
        case 3: LOAD(3, "%3, %4, %5", "r"(j.c[0]), "r"(j.c[1]), "r"(j.c[2])); break;
        case 4: LOAD(4, "%3, %4, %5, %6", "r"(j.c[0]), "r"(j.c[1]), "r"(j.c[2]), "r"(j.c[3])); break;
        case 5: LOAD(5, "%3, %4, %5, %6, %7", "r"(j.c[0]), "r"(j.c[1]), "r"(j.c[2]), "r"(j.c[3]), "r"(j.c[4])); break;
        } else switch (j.rank) {
        case 3: PIXELS(3, "%3, %4, %5", "%6", "r"(j.c[0]), "r"(j.c[1]), "r"(j.c[2]), "h"(j.o[0])); break;
        case 4: PIXELS(4, "%3, %4, %5, %6", "%7, %8", "r"(j.c[0]), "r"(j.c[1]), "r"(j.c[2]), "r"(j.c[3]), "h"(j.o[0]), "h"(j.o[1])); break;
        case 5: PIXELS(5, "%3, %4, %5, %6, %7", "%8, %9, %10", "r"(j.c[0]), "r"(j.c[1]), "r"(j.c[2]), "r"(j.c[3]), "r"(j.c[4]), "h"(j.o[0]), "h"(j.o[1]), "h"(j.o[2])); break;
        }
    }
    int ok = waited(bar, 0);
    __syncthreads();
    if (threadIdx.x == 0) *done = ok;
    for (unsigned n = threadIdx.x; n < j.region; n += blockDim.x) out[n] = memory[n];
}
#define STORE(OP, MODE) switch (j.rank) { \
    case 1: PUT(OP, "", 1, "%2", "r"(j.c[0])); break; \
    case 2: PUT(OP, "", 2, "%2, %3", "r"(j.c[0]), "r"(j.c[1])); break; \
    case 3: PUT(OP, MODE, 3, "%2, %3, %4", "r"(j.c[0]), "r"(j.c[1]), "r"(j.c[2])); break; \
    case 4: PUT(OP, MODE, 4, "%2, %3, %4, %5", "r"(j.c[0]), "r"(j.c[1]), "r"(j.c[2]), "r"(j.c[3])); break; \
    case 5: PUT(OP, MODE, 5, "%2, %3, %4, %5, %6", "r"(j.c[0]), "r"(j.c[1]), "r"(j.c[2]), "r"(j.c[3]), "r"(j.c[4])); break; }
#define REDUCE(OP) switch (j.rank) { \
    case 2: asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta." OP ".tile.bulk_group [%1, {%2, %3}], [%0];" ::"r"(src), "l"(map), "r"(j.c[0]), "r"(j.c[1]) : "memory"); break; \
    case 3: asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta." OP ".tile.bulk_group [%1, {%2, %3, %4}], [%0];" ::"r"(src), "l"(map), "r"(j.c[0]), "r"(j.c[1]), "r"(j.c[2]) : "memory"); break; }
extern "C" __global__ void store(const __grid_constant__ Map m, Job j, const unsigned char* in, int op) {
    extern __shared__ __align__(1024) unsigned char memory[];
    unsigned src = at(memory) + j.offset;
    u64 map = (u64)&m;
    for (unsigned n = threadIdx.x; n < j.region; n += blockDim.x) memory[n] = in[n];
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        switch (op) {
        case 0: if (j.pixels) { STORE("cp.async.bulk.tensor", ".im2col_no_offs") } else { STORE("cp.async.bulk.tensor", ".tile") } break;
        case 1: REDUCE("add") break;
        case 2: REDUCE("min") break;
        case 3: REDUCE("max") break;
        case 4: REDUCE("inc") break;
        case 5: REDUCE("dec") break;
        case 6: REDUCE("and") break;
        case 7: REDUCE("or") break;
        case 8: REDUCE("xor") break;
        }
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
#define BULK(CASE, WORDS) case CASE: asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group." WORDS " [%0], [%1], %2;" ::"l"(dst), "r"(src), "r"(bytes) : "memory"); break;
extern "C" __global__ void bulk(unsigned char* to, const unsigned char* from, unsigned bytes, int op) {
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) u64 barrier;
    unsigned bar = at(&barrier), src = at(memory);
    u64 dst = (u64)to;
    if (threadIdx.x == 0) {
        begin(bar, 1);
        expect(bar, bytes);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     ::"r"(src), "l"(from), "r"(bytes), "r"(bar) : "memory");
        waited(bar, 0);
        switch (op) {
        case 0: asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src), "r"(bytes) : "memory"); break;
        BULK(1, "add.u32") BULK(2, "add.s32") BULK(3, "add.u64") BULK(4, "add.f32") BULK(5, "add.f64")
        BULK(6, "add.noftz.f16") BULK(7, "add.noftz.bf16") BULK(8, "min.s32") BULK(9, "max.u32")
        BULK(10, "min.u64") BULK(11, "max.s64") BULK(12, "min.f16") BULK(13, "max.bf16")
        BULK(14, "inc.u32") BULK(15, "dec.u32") BULK(16, "and.b32") BULK(17, "or.b64") BULK(18, "xor.b32")
        }
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
"""


class Failure(Exception):
    pass


class Job(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_int), ("pixels", ctypes.c_int), ("c", ctypes.c_int * 5),
                ("o", ctypes.c_ushort * 3), ("bytes", ctypes.c_uint), ("offset", ctypes.c_uint),
                ("region", ctypes.c_uint)]


class Device:
    def __init__(self, libcuda, libnvrtc):
        self.cuda = ctypes.CDLL(libcuda)
        self.call("cuInit", 0)
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        name, version = ctypes.create_string_buffer(100), ctypes.c_int()
        self.call("cuDeviceGetName", name, 100, self.device)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.name = f"{name.value.decode()}, driver API {version.value}"
        self.ptx = self.compile(libnvrtc)
        self.begin()

    def begin(self):
        context, module = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(module), self.ptx)
        self.functions = {}
        for kernel in ("load", "store", "bulk"):
            function = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
            self.call("cuFuncSetAttribute", function, 8, SMEM)
            self.functions[kernel] = function
        self.room = 1 << 20
        self.tensor, self.other, self.flag = (self.memory(n) for n in (self.room, self.room, 16))

    def call(self, name, *args):
        code = getattr(self.cuda, name)(*args)
        if code != 0:
            raise Failure(f"{name}: {code}")

    def compile(self, libnvrtc):
        nvrtc = ctypes.CDLL(libnvrtc)
        program = ctypes.c_void_p()
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE.encode(), b"tma.cu", 0, None, None)
        options = [b"--gpu-architecture=sm_90a", b"--std=c++17"]
        options[0] = b"--gpu-architecture=compute_90a"
        code = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        size = ctypes.c_size_t()
        if code != 0:
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise Failure(log.value.decode())
        nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
        ptx = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetPTX(program, ptx)
        return ptx

    def memory(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def put(self, address, data):
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), bytes(data), ctypes.c_size_t(len(data)))

    def get(self, address, size):
        out = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", out, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return out.raw

    def launch(self, kernel, *args):
        pointers = (ctypes.c_void_p * len(args))(*[ctypes.cast(ctypes.pointer(a), ctypes.c_void_p) for a in args])
        self.call("cuLaunchKernel", self.functions[kernel], 1, 1, 1, 128, 1, 1, SMEM, None, pointers, None)
        self.call("cuCtxSynchronize")

    def encode(self, m):
        """The code of the driver, and the map."""
        raw = (ctypes.c_ubyte * (128 + 64))()
        start = (-ctypes.addressof(raw)) % 64
        opaque = (ctypes.c_ubyte * 128).from_buffer(raw, start)
        rank = len(m["dims"])
        arrays = lambda kind, values: (kind * max(len(values), 1))(*values)
        dims, strides = arrays(ctypes.c_uint64, m["dims"]), arrays(ctypes.c_uint64, m["strides"])
        steps = arrays(ctypes.c_uint32, m.get("steps", [1] * rank))
        number = m.get("number", TYPES[m["type"]][0] if "type" in m else 0)
        tail = (m.get("interleave", 0), SWIZZLES[m.get("swizzle", "none")], m.get("promotion", 0), m.get("nan", 0))
        address = ctypes.c_void_p(self.tensor + m.get("shift", 0))
        if "pixels" in m:
            lower, upper = arrays(ctypes.c_int, m["lower"]), arrays(ctypes.c_int, m["upper"])
            code = self.cuda.cuTensorMapEncodeIm2col(ctypes.byref(opaque), number, m.get("rank", rank), address, dims, strides,
                                                     lower, upper, m["channels"], m["pixels"], steps, *tail)
        else:
            box = arrays(ctypes.c_uint32, m["box"])
            code = self.cuda.cuTensorMapEncodeTiled(ctypes.byref(opaque), number, m.get("rank", rank), address, dims, strides,
                                                    box, steps, *tail)
        return code, opaque


# ---- the model ---------------------------------------------------------------------------------


def swizzled(kind, address):
    line = address >> 7
    return {
        "none": address,
        "32": address ^ (line & 1) << 4,
        "64": address ^ (line & 3) << 4,
        "128": address ^ (line & 7) << 4,
        "128a32": address ^ (line & 3) << 5,
        "128a32f8": address ^ (line & 3) << 5 ^ (line & 1) << 3,
        "128a64": address ^ (line & 1) << 6,
    }[kind]


def inside(m, at):
    return all(0 <= c < d for c, d in zip(at, m["dims"]))


def place(m, at):
    """Byte of the tensor at which an element begins."""
    size = TYPES[m["type"]][1]
    return m.get("shift", 0) + at[0] * size + sum(c * s for c, s in zip(at[1:], m["strides"]))


def elements(m, start, offsets):
    """Coordinates of a box's elements, in the order of shared memory."""
    rank = len(m["dims"])
    steps = m.get("steps", [1] * rank)
    if "pixels" not in m:
        counts = [-(-b // s) if n else b for n, (b, s) in enumerate(zip(m["box"], steps))]
        for index in itertools.product(*[range(n) for n in reversed(counts)]):
            index = index[::-1]
            yield [start[n] + index[n] * (steps[n] if n else 1) for n in range(rank)]
        return
    pixel = list(start[1:])
    for _ in range(m["pixels"]):
        shifted = [p + o for p, o in zip(pixel, list(offsets) + [0])]
        for channel in range(m["channels"]):
            yield [start[0] + channel] + shifted
        for n in range(rank - 2):
            pixel[n] += steps[n + 1]
            if pixel[n] <= m["dims"][n + 1] - 1 + m["upper"][n]:
                break
            pixel[n] = m["lower"][n]
        else:
            pixel[rank - 2] += 1


def places(m, offset):
    """Where the elements of a box lie before the swizzle: each row at a line of its span."""
    size, row = TYPES[m["type"]][1], m["channels"] if "pixels" in m else m["box"][0]
    pitch = max(row * size, SPAN[m.get("swizzle", "none")])
    for n in itertools.count():
        yield offset + n // row * pitch + n % row * size


def outside_value(m):
    size = TYPES[m["type"]][1]
    return (b"\xf7\x7f" * 4)[:size] if m.get("nan") else bytes(size)


def converted(m, value):
    kind = m["type"]
    if kind not in ("tf32", "tf32ftz"):
        return value
    v = struct.unpack("<I", value)[0]
    if v & 0x7FFFFFFF > 0x7F800000:
        v = 0x7FFFE000
    elif v >> 23 & 255 != 255:
        v = (v + 0xFFF + (v >> 13 & 1)) & 0xFFFFE000
    return struct.pack("<I", v)


def loaded(m, tensor, start, offsets, offset, region):
    memory = bytearray([MARK]) * region
    size = TYPES[m["type"]][1]
    for where, at in zip(elements(m, start, offsets), places(m, offset)):
        value = outside_value(m)
        if inside(m, where):
            from_ = place(m, where)
            value = converted(m, tensor[from_:from_ + size])
        for n in range(size):
            memory[swizzled(m.get("swizzle", "none"), at + n)] = value[n]
    return bytes(memory)


OPS = ["store", "add", "min", "max", "inc", "dec", "and", "or", "xor"]


def reduced(kind, op, old, new):
    size = len(old)
    a, b = (int.from_bytes(x, "little") for x in (old, new))
    signed = kind in ("s32", "s64")
    top = 1 << (8 * size)
    as_signed = lambda v: v - top if signed and v >= top // 2 else v
    if op == "store":
        return new
    if op in ("and", "or", "xor"):
        return {"and": a & b, "or": a | b, "xor": a ^ b}[op].to_bytes(size, "little")
    if op == "inc":
        return (0 if a >= b else a + 1).to_bytes(size, "little")
    if op == "dec":
        return (b if a == 0 or a > b else a - 1).to_bytes(size, "little")
    if kind in ("u32", "s32", "u64", "s64"):
        if op == "add":
            return ((a + b) % top).to_bytes(size, "little")
        return (min if op == "min" else max)(old, new, key=lambda v: as_signed(int.from_bytes(v, "little")))
    code = {"f16": "<e", "f32": "<f", "f64": "<d"}.get(kind)
    if code is None:
        widen = lambda v: struct.unpack("<f", b"\0\0" + v)[0]
    else:
        widen = lambda v: struct.unpack(code, v)[0]
    x, y = widen(old), widen(new)
    if op in ("min", "max"):
        return old if (x <= y) == (op == "min") else new
    total = x + y
    if code is not None:
        return struct.pack(code, total)
    # The nearest of the neighbours, the even one of two as near.
    near = struct.unpack("<I", struct.pack("<f", total))[0] >> 16
    magnitudes = [v for v in (near - 1, near, near + 1) if v >= 0 and v & 0x8000 == near & 0x8000]
    distance = lambda v: (abs(struct.unpack("<f", struct.pack("<I", v << 16))[0] - total), v & 1)
    return min(magnitudes, key=distance).to_bytes(2, "little")


def stored(m, tensor, memory, start, offset, op):
    out = bytearray(tensor)
    size = TYPES[m["type"]][1]
    for where, at in zip(elements(m, start, [0] * 3), places(m, offset)):
        if inside(m, where):
            new = bytes(memory[swizzled(m.get("swizzle", "none"), at + n)] for n in range(size))
            to = place(m, where)
            out[to:to + size] = reduced(m["type"], op, bytes(out[to:to + size]), new)
    return bytes(out)


# ---- cases -------------------------------------------------------------------------------------


def packed(kind, dims, box, rng, **more):
    """A map with rows that are padded a little, in dimensions 1 and above."""
    size = TYPES[kind][1]
    stride, strides = dims[0] * size, []
    for n in range(1, len(dims)):
        stride = -(-stride // 16) * 16 + 16 * rng.choice([0, 0, 1, 3])
        strides.append(stride)
        stride *= dims[n]
    return {"type": kind, "dims": dims, "strides": strides, "box": box, **more}


def tiled_cases(rng):
    for kind, (_, size, is_float) in TYPES.items():
        for swizzle in ("none", "32", "64", "128"):
            row = {"none": 48, "32": 32, "64": 64, "128": 128}[swizzle]
            box = [row // size, 8, 3]
            dims = [row // size + 5, 11, 4]
            nan = int(is_float and swizzle in ("32", "128"))
            m = packed(kind, dims, box, rng, swizzle=swizzle, nan=nan)
            for start in ([0, 0, 0], [3, 2, 1], [-2, 5, -1], [7, -3, 2]):
                yield f"tile {kind} {swizzle} {start}", m, start, []
    for rank in range(1, 6):
        dims, box = [40, 5, 4, 3, 3][:rank], [16, 3, 2, 2, 2][:rank]
        m = packed("u16", dims, box, rng)
        for start in ([0] * 5, [30, 3, 3, 2, 2], [-9, -1, -1, -1, -1]):
            yield f"rank {rank} {start[:rank]}", m, start[:rank], []
    for steps in ([1, 2, 1], [1, 3, 2], [1, 8, 1], [1, 1, 5]):
        m = packed("f32", [20, 30, 9], [8, 13, 6], rng, steps=steps)
        for start in ([0, 0, 0], [1, -4, 2], [16, 20, 5]):
            yield f"steps {steps} {start}", m, start, []
    m = packed("u8", [300, 70], [128, 40], rng, swizzle="128")
    yield "large box", m, [5, 3], []
    m = packed("f32", [9, 1 << 10], [8, 256], rng, swizzle="32")
    yield "tall box", m, [1, 900], []


def lines_of_swizzles(rng):
    """A tile that begins at each line of a swizzle's period."""
    for swizzle in ("32", "64", "128"):
        row = SPAN[swizzle]
        m = packed("u16", [row, 20], [row // 2, 9], rng, swizzle=swizzle)
        for line in range(8):
            yield f"line {line} of {swizzle}", m, [1, 2], [], 128 * line


def pixel_cases(rng):
    def images(kind, dims, lower, upper, channels, pixels, **more):
        return packed(kind, dims, None, rng, lower=lower, upper=upper, channels=channels, pixels=pixels, **more)
    m = images("u16", [64, 9, 14, 3], [-1, -1], [-1, -1], 8, 64)
    for start in ([0, -1, -1, 0], [7, 7, 4, 0], [8, 3, 12, 2], [56, 0, 0, 1]):
        for offsets in ([0, 0], [1, 0], [2, 2]):
            yield f"im2col {start} {offsets}", m, start, offsets
    m = images("f16", [64, 9, 14, 2], [0, 0], [-2, -2], 32, 40, swizzle="64", nan=1)
    yield "im2col example 2", m, [7, 7, 4, 0], [2, 2]
    m = images("f16", [64, 8, 14, 4], [-1, -1], [-1, -1], 16, 32, steps=[1, 2, 2, 1])
    for offsets in ([0, 0], [1, 1]):
        yield f"im2col stride {offsets}", m, [7, 7, 5, 0], offsets
        yield f"im2col stride from a corner {offsets}", m, [0, -1, -1, 1], offsets
    m = images("f32", [16, 20, 5], [-3], [2], 8, 50)
    for start in ([0, -3, 0], [4, 15, 2], [0, 21, 4]):
        yield f"im2col 3d {start}", m, start, [4]
    m = images("u8", [32, 5, 4, 3, 2], [-1, 0, -1], [0, -1, -1], 16, 60)
    for start in ([0, -1, 0, -1, 0], [16, 2, 1, 1, 1]):
        yield f"im2col 5d {start}", m, start, [1, 0, 2]


def unknown_cases(rng):
    """What no manual settles: rows shorter than the swizzle, interleaved tensors, later swizzles."""
    for swizzle, row in (("128", 64), ("128", 32), ("128", 16), ("128", 96), ("128", 112), ("64", 32), ("64", 16), ("64", 48), ("32", 16)):
        yield f"row of {row} in a swizzle of {swizzle}", packed("u8", [row + 16, 12], [row, 9], rng, swizzle=swizzle), [0, 0], []
    for swizzle in ("128a32", "128a32f8", "128a64"):
        yield f"swizzle {swizzle}", packed("u16", [64, 12], [64, 8], rng, swizzle=swizzle), [0, 1], []
    for interleave, size in ((1, 16), (2, 32)):
        # Not implemented on the software device: their bytes are recorded, and no model has them.
        swizzle = "none" if interleave == 1 else "32"
        for channels in (size // 2, size, 2 * size):
            for box in (size // 2, size):
                # Channels in slices of 16 or 32 bytes; the strides of pixels, rows and slices by turns.
                for strides in ([size, size * 10, size * 100], [size * 100, size, size * 10], [size * 100, size * 10, size * 100 * 4]):
                    yield (f"interleave {interleave} channels {channels} box {box} strides {strides}",
                           {"type": "u16", "dims": [channels, 10, 10, 4], "strides": strides, "box": [box, 4, 3, 2],
                            "interleave": interleave, "swizzle": swizzle}, [0, 1, 2, 0], [])
    for kind in ("f16", "bf16", "f32", "tf32", "f64"):
        yield f"fill {kind}", packed(kind, [32, 4], [16, 4], rng, nan=1), [24, 2], []


def store_cases(rng):
    for kind in ("u8", "f16", "f32", "tf32", "f32ftz", "u64"):
        size = TYPES[kind][1]
        for swizzle in ("none", "64", "128"):
            row = {"none": 48, "64": 64, "128": 128}[swizzle]
            m = packed(kind, [row // size + 5, 11, 4], [row // size, 5, 2], rng, swizzle=swizzle)
            for start in ([0, 0, 0], [4, 8, 3], [-3, -2, 1]):
                yield f"store {kind} {swizzle} {start}", m, start, "store"
    m = packed("f32", [20, 30], [8, 13], rng, steps=[1, 3])
    yield "store steps", m, [2, 3], "store"
    m = packed("u16", [64, 9, 14, 3], None, rng, lower=[-1, -1], upper=[-1, -1], channels=8, pixels=64)
    yield "store pixels", m, [7, 7, 4, 0], "store"
    for kind, ops in (("u32", ("add", "min", "max", "inc", "dec", "and", "or", "xor")), ("s32", ("add", "min", "max", "xor")),
                      ("u64", ("add", "min", "max", "and", "or")), ("s64", ("min", "max", "xor")),
                      ("f16", ("add", "min", "max")), ("bf16", ("add", "min", "max")), ("f32", ("add",))):
        size = TYPES[kind][1]
        m = packed(kind, [64 // size + 3, 9], [64 // size, 6], rng, swizzle="64")
        for op in ops:
            yield f"reduce {op} {kind}", m, [1, 5], op


BULK = [None, ("u32", "add"), ("s32", "add"), ("u64", "add"), ("f32", "add"), ("f64", "add"), ("f16", "add"), ("bf16", "add"),
        ("s32", "min"), ("u32", "max"), ("u64", "min"), ("s64", "max"), ("f16", "min"), ("bf16", "max"), ("u32", "inc"),
        ("u32", "dec"), ("u32", "and"), ("u64", "or"), ("u32", "xor")]


def code_cases():
    base = {"type": "f16", "dims": [64, 32], "strides": [128], "box": [64, 8]}
    pixels = {"type": "f16", "dims": [64, 9, 14, 3], "strides": [128, 1152, 16128], "lower": [-1, -1], "upper": [-1, -1],
              "channels": 8, "pixels": 64}
    changes = {
        "as it is": {}, "shift 8": {"shift": 8}, "stride 136": {"strides": [136]}, "stride 2^40": {"strides": [1 << 40]},
        "stride below the row": {"strides": [64]}, "stride 0": {"strides": [0]}, "dim 0": {"dims": [64, 0]},
        "dim 2^32": {"dims": [64, 1 << 32]}, "dim 2^32+1": {"dims": [64, (1 << 32) + 1]}, "box 0": {"box": [64, 0]},
        "box 257": {"box": [64, 257]}, "box 256": {"box": [64, 256]}, "box row of 8 bytes": {"box": [4, 8]},
        "box beyond the tensor": {"box": [128, 64]}, "step 0": {"steps": [1, 0]}, "step 9": {"steps": [1, 9]},
        "step 8": {"steps": [1, 8]}, "inner step 0": {"steps": [0, 1]}, "inner step 2": {"steps": [2, 1]},
        "swizzle 32 with rows of 128": {"swizzle": "32"}, "swizzle 128": {"swizzle": "128"},
        "swizzle 128 with rows of 256": {"box": [128, 8], "swizzle": "128"}, "swizzle 128a32": {"swizzle": "128a32"},
        "swizzle 128a32f8": {"swizzle": "128a32f8"}, "swizzle 128a64": {"swizzle": "128a64"},
        "interleave 16 of rank 2": {"interleave": 1}, "nan": {"nan": 1}, "nan of integers": {"type": "u16", "nan": 1},
        "nan 2": {"nan": 2}, "promotion 3": {"promotion": 3}, "promotion 4": {"promotion": 4}, "rank 0": {"rank": 0},
        "rank 6": {"rank": 6}, "type 13": {"number": 13}, "type 14": {"number": 14}, "type 15": {"number": 15}, "type 16": {"number": 16},
    }
    for name, change in changes.items():
        yield f"tiled, {name}", {**base, **change}
    three = {"type": "f16", "dims": [16, 10, 4], "strides": [32, 320], "box": [16, 4, 2]}
    for name, change in {"32 without a swizzle": {"interleave": 2}, "32": {"interleave": 2, "swizzle": "32"},
                         "16": {"interleave": 1}, "16 with swizzle 128": {"interleave": 1, "swizzle": "128"}, "3": {"interleave": 3},
                         "32 at 16": {"interleave": 2, "swizzle": "32", "shift": 16}}.items():
        yield f"interleave {name}", {**three, **change}
    for name, change in {"as it is": {}, "lower -129": {"lower": [-129, 0]}, "lower -128": {"lower": [-128, 0]}, "upper 128": {"upper": [0, 128]},
                         "empty box": {"lower": [5, 0], "upper": [-5, 0]}, "channels 257": {"channels": 257}, "channels 256": {"channels": 256},
                         "channels 4": {"channels": 4}, "channels 0": {"channels": 0}, "pixels 1025": {"pixels": 1025},
                         "pixels 1024": {"pixels": 1024}, "pixels 0": {"pixels": 0}, "swizzle 32 with 64 channels": {"channels": 64, "swizzle": "32"},
                         "step 9": {"steps": [1, 9, 1, 1]}, "rank 2": {"rank": 2}}.items():
        yield f"im2col, {name}", {**pixels, **change}


def difference(want, have):
    if want == have:
        return None
    at = next(n for n, (a, b) in enumerate(zip(want, have)) if a != b)
    count = sum(a != b for a, b in zip(want, have))
    return f"{count} bytes differ, the first at {at}: {have[at:at + 16].hex()} instead of {want[at:at + 16].hex()}"


def job_of(m, start, offsets, count, offset):
    job = Job(rank=len(m["dims"]), pixels=int("pixels" in m), bytes=count, offset=offset)
    job.c[:len(start)] = start
    job.o[:len(offsets)] = offsets
    row = m["channels"] if "pixels" in m else m["box"][0]
    size = TYPES[m["type"]][1]
    reach = count // (row * size) * max(row * size, SPAN[m.get("swizzle", "none")])
    job.region = min(SMEM, (offset + reach + 2047) // 1024 * 1024)
    return job


def plain_bytes(rng, kind, count):
    """Bits that are ordinary numbers in the type, subnormals and all; NaN compares with nothing."""
    data = bytearray(rng.randbytes(count))
    size = TYPES[kind][1]
    if TYPES[kind][2]:
        for at in range(size - 1, count, size):
            data[at] &= 0xBF if kind in ("bf16", "f32", "f64", "f32ftz", "tf32", "tf32ftz") else 0xBB
    return bytes(data)


def run_load(device, rng, m, start, offsets, offset, numbered=False):
    # Halves that hold their own number say by themselves where they come from.
    tensor = rng.randbytes(device.room) if not numbered else b"".join(struct.pack("<H", n & 0xFFFF) for n in range(device.room // 2))
    device.put(device.tensor, tensor)
    code, opaque = device.encode(m)
    if code != 0:
        return f"encoding: {code}", b"", b""
    count = sum(1 for _ in elements(m, start, offsets)) * TYPES[m["type"]][1]
    job = job_of(m, start, offsets, count, offset)
    want = loaded(m, tensor, start, offsets, offset, job.region)
    device.launch("load", opaque, job, ctypes.c_uint64(device.other), ctypes.c_uint64(device.flag))
    have = device.get(device.other, job.region)
    if struct.unpack("<i", device.get(device.flag, 4))[0] != 1:
        return f"{count} bytes did not complete the phase", want, have
    return difference(want, have), want, have


def run_store(device, rng, m, start, op, offset=0):
    kind = m["type"]
    tensor, memory = plain_bytes(rng, kind, device.room), plain_bytes(rng, kind, 64 << 10)
    device.put(device.tensor, tensor)
    device.put(device.other, memory)
    code, opaque = device.encode(m)
    if code != 0:
        return f"encoding: {code}"
    count = sum(1 for _ in elements(m, start, [0] * 3)) * TYPES[kind][1]
    job = job_of(m, start, [], count, offset)
    want = stored(m, tensor, memory, start, offset, op)
    device.launch("store", opaque, job, ctypes.c_uint64(device.other), ctypes.c_int(OPS.index(op)))
    return difference(want, device.get(device.tensor, device.room))


def run_bulk(device, rng, number):
    kind, op = BULK[number] or ("u8", "store")
    size = TYPES[kind][1]
    old, new = plain_bytes(rng, kind, 4096), plain_bytes(rng, kind, 4096)
    device.put(device.tensor, old)
    device.put(device.other, new)
    device.launch("bulk", ctypes.c_uint64(device.tensor), ctypes.c_uint64(device.other), ctypes.c_uint(4096), ctypes.c_int(number))
    want = b"".join(reduced(kind, op, old[n:n + size], new[n:n + size]) for n in range(0, 4096, size))
    return difference(want, device.get(device.tensor, 4096))


def jobs_of():
    """All cases: group, name, function, arguments."""
    rng = random.Random(38)
    loads = [(*case, 0) for case in itertools.chain(tiled_cases(rng), pixel_cases(rng))] + list(lines_of_swizzles(rng))
    for name, m, start, offsets, offset in loads:
        yield "case", name, run_load, (random.Random(name), m, aligned(m, start), offsets, offset)
    for name, m, start, op in store_cases(rng):
        yield "case", name, run_store, (random.Random(name), m, aligned(m, start), op)
    m = packed("u16", [64, 12], [16, 4], rng)
    for first in (1, 4, 7, -3):
        yield "raw", f"coordinate {first} of u16", run_load, (random.Random(38), m, [first, 1], [], 0)
    for number in range(len(BULK)):
        name = f"bulk {number} {BULK[number]}"
        yield "case", name, run_bulk, (random.Random(name), number)
    for name, m, start, offsets in unknown_cases(rng):
        yield "raw", name, run_load, (random.Random(name), m, start, offsets, 0, "interleave" in name)
    for name, m in code_cases():
        yield "code", name, lambda device, m: device.encode(m)[0], (m,)


def aligned(m, start):
    """Coordinates of which the first is at a multiple of 16 bytes: a device faults at others."""
    each = 16 // TYPES[m["type"]][1]
    return [start[0] // each * each, *start[1:]]


def run_some(options, jobs, result):
    """Runs jobs in a process of their own until one fails; how many it has begun."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as out:
            device = Device(options.libcuda, options.libnvrtc)
            print(json.dumps(device.name), file=out)
            for _, _, run, args in jobs:
                try:
                    found = run(device, *args)
                except Failure as failure:
                    print(json.dumps({"fault": str(failure)}), file=out)
                    break
                if isinstance(found, tuple):
                    found = [found[0], hashlib.sha256(found[2]).hexdigest()[:16], found[2][:2048].hex()]
                print(json.dumps({"found": found}), file=out, flush=True)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        result["device"] = json.loads(lines.readline() or '"no device"')
        begun = 0
        for line, (group, name, _, _) in zip(lines, jobs):
            begun += 1
            take(result, group, name, json.loads(line))
    os.waitpid(child, 0)
    if begun == 0:
        raise Failure("the process with the device ended before its first case")
    return begun


def take(result, group, name, answer):
    fault, found = answer.get("fault"), answer.get("found")
    problem = fault or (found[0] if isinstance(found, list) else found)
    if group == "code":
        result["codes"][name] = found
    elif group == "raw":
        _, digest, have = found if isinstance(found, list) else (None, "", "")
        result["raw"][name] = {"model": problem or "same", "digest": digest}
        if problem:
            result["raw"][name]["bytes"] = have
    elif problem is None:
        result["passed"] += 1
    else:
        result["failed"][name] = problem


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libcuda", default="libcuda.so.1")
    parser.add_argument("--libnvrtc", default="libnvrtc.so.13")
    parser.add_argument("--out")
    parser.add_argument("--against")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    result = {"device": "", "passed": 0, "failed": {}, "codes": {}, "raw": {}}
    jobs = [job for job in jobs_of() if options.only in job[1]]
    begun = 0
    # A fault spoils the process that it happens in, so the rest is another one's.
    while begun < len(jobs):
        begun += run_some(options, jobs[begun:], result)
    unlike = []
    if options.against:
        with open(options.against) as file:
            other = json.load(file)
        unlike += [f"{n}: {c} and {other['codes'].get(n)}" for n, c in result["codes"].items() if other["codes"].get(n) != c]
        unlike += [n for n, raw in result["raw"].items() if other["raw"].get(n, {}).get("digest") != raw["digest"]]
        result["unlike"] = unlike
    text = json.dumps(result, indent=1)
    if options.out:
        with open(options.out, "w") as file:
            file.write(text)
    print(text)
    return 1 if result["failed"] or unlike else 0


if __name__ == "__main__":
    sys.exit(main())
