"""Products of four warps (`wgmma`) recorded on a device: sums of random bits, and the layouts of operands.

    python3 hopper_wgmma.py run OUT.npz [--lib libcuda.so.1] [--only TEXT] [--cases N]
    python3 hopper_wgmma.py compare A.npz B.npz [--show N]

`run` needs a driver (`--lib`, the drop-in library of the software device also) and numpy; the PTX
is written here and compiled by the driver. Inputs follow from fixed seeds, so two files of two
devices are of the same inputs; `compare` prints where they differ, with the factors of a sum.

A `sums` record is a form with kinds of data: whole results of some cases (`raw`), hashes of more.
A `probe` record is a layout: one factor is a unit matrix, so that the result is the other one as
the device reads it from memory; every 16 bits of that are different.
"""

import argparse
import ctypes
import sys
import time
import zlib

import numpy as np

KINDS = ("ints", "bits", "finite", "near", "wide", "tiny", "top", "cancel")
# (exponent bits, fraction bits, whether the largest exponent is infinite and NaN)
FLOATS = {"f16": (5, 10, True), "bf16": (8, 7, True), "tf32": (8, 23, True), "f32": (8, 23, True),
          "e4m3": (4, 3, False), "e5m2": (5, 2, True)}
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "b1": 1}
IMAGE = 4096


# ---- the driver ---------------------------------------------------------------------------------

class Driver:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, 128, device)
        self.name = name.value.decode()

    def call(self, name, *args):
        code = getattr(self.lib, name)(*args)
        if code:
            raise RuntimeError(f"{name}: error {code}")

    def alloc(self, size):
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(max(size, 1)))
        return at

    def launch(self, ptx, blocks, data, out_words):
        """Results of kernel `k(input, output)` with 128 threads a block, as words."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        log = ctypes.create_string_buffer(8192)
        options = (ctypes.c_int * 2)(5, 6)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), 8192)
        text = ctypes.create_string_buffer(ptx.encode())
        try:
            self.call("cuModuleLoadDataEx", ctypes.byref(module), text, 2, options, values)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{log.value.decode()}") from None
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"k")
        data = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        source, target = self.alloc(data.nbytes), self.alloc(4 * out_words)
        self.call("cuMemcpyHtoD_v2", source, data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(data.nbytes))
        params = (ctypes.c_void_p * 2)(ctypes.addressof(source), ctypes.addressof(target))
        self.call("cuLaunchKernel", function, blocks, 1, 1, 128, 1, 1, 0, None, params, None)
        self.call("cuCtxSynchronize")
        out = np.empty(out_words, np.uint32)
        self.call("cuMemcpyDtoH_v2", out.ctypes.data_as(ctypes.c_void_p), target, ctypes.c_size_t(out.nbytes))
        for at in (source, target):
            self.call("cuMemFree_v2", at)
        self.call("cuModuleUnload", module)
        return out


# ---- kernels ------------------------------------------------------------------------------------

class Form:
    def __init__(self, a, b, sums, n=8, sparse=None, regs=False, sat=False, sides=(0, 0), signs=(1, 1)):
        self.a, self.b, self.sums, self.n, self.sparse, self.regs = a, b, sums, n, sparse, regs
        self.sat, self.sides, self.signs = sat, sides, signs
        self.bits = BITS[a]
        self.k = 256 // self.bits * (2 if sparse is not None else 1)
        self.stored = 256 // self.bits
        self.registers = n // 4 if sums == "f16" else n // 2
        self.float = a in FLOATS

    def name(self):
        parts = [f"m64n{self.n}k{self.k}", self.sums, self.a, self.b]
        parts += ["sat"] * self.sat + ([f"sp{self.sparse}"] if self.sparse is not None else []) + ["ra"] * self.regs
        parts += [f"t{self.sides[0]}{self.sides[1]}"] if any(self.sides) else []
        return ".".join(parts) + ("".join("+" if s > 0 else "-" for s in self.signs) if self.signs != (1, 1) else "")

    def instruction(self):
        op = ".and.popc" if self.a == "b1" else ".satfinite" if self.sat else ""
        sp = ".sp" if self.sparse is not None else ""
        d = "{" + ", ".join(f"%d{r}" for r in range(self.registers)) + "}"
        left = "{%a0, %a1, %a2, %a3}" if self.regs else "%rd4"
        tail = f", %e0, {self.sparse}" if self.sparse is not None else ""
        tail += ", %p0"
        if self.float:
            tail += f", {self.signs[0]}, {self.signs[1]}"
        if self.bits == 16:
            tail += ("" if self.regs else f", {self.sides[0]}") + f", {self.sides[1]}"
        return (f"wgmma.mma_async{sp}.sync.aligned.m64n{self.n}k{self.k}.{self.sums}.{self.a}.{self.b}{op} "
                f"{d}, {left}, %rd5{tail};")

    def ptx(self, image=IMAGE):
        """A block: image of shared memory, both descriptors, scale-d, pad; of each thread A, metadata, C."""
        each = 5 + self.registers
        stride = image + 32 + 512 * each
        loads = "\n".join(f"ld.global.b32 %d{r}, [%rd2+{4 * (5 + r)}];" for r in range(self.registers))
        stores = "\n".join(f"st.global.b32 [%rd3+{4 * r}], %d{r};" for r in range(self.registers))
        return f""".version 8.4
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 input, .param .u64 output) {{
.reg .b32 %r<16>; .reg .b32 %a<4>; .reg .b32 %e<1>; .reg .b32 %d<128>; .reg .b64 %rd<9>; .reg .pred %p<4>;
.shared .align 1024 .b8 tile[{image}];
ld.param.u64 %rd0, [input]; ld.param.u64 %rd1, [output];
mov.u32 %r0, %tid.x; mov.u32 %r5, %ctaid.x;
mad.wide.u32 %rd0, %r5, {stride}, %rd0; mad.wide.u32 %rd1, %r5, {512 * self.registers}, %rd1;
mov.u32 %r1, tile; shl.b32 %r2, %r0, 2; add.u32 %r1, %r1, %r2;
mul.wide.u32 %rd2, %r0, 4; add.u64 %rd2, %rd0, %rd2; mov.u32 %r3, 0;
COPY:
ld.global.b32 %r4, [%rd2]; st.shared.b32 [%r1], %r4;
add.u64 %rd2, %rd2, 512; add.u32 %r1, %r1, 512; add.u32 %r3, %r3, 512;
setp.lt.u32 %p1, %r3, {image}; @%p1 bra COPY;
fence.proxy.async.shared::cta;
bar.sync 0;
ld.global.u64 %rd4, [%rd0+{image}]; ld.global.u64 %rd5, [%rd0+{image + 8}]; ld.global.u32 %r6, [%rd0+{image + 16}];
mov.u32 %r7, tile; shr.u32 %r7, %r7, 4; cvt.u64.u32 %rd6, %r7; add.u64 %rd4, %rd4, %rd6; add.u64 %rd5, %rd5, %rd6;
mad.wide.u32 %rd2, %r0, {4 * each}, %rd0; add.u64 %rd2, %rd2, {image + 32};
mad.wide.u32 %rd3, %r0, {4 * self.registers}, %rd1;
ld.global.b32 %a0, [%rd2]; ld.global.b32 %a1, [%rd2+4]; ld.global.b32 %a2, [%rd2+8]; ld.global.b32 %a3, [%rd2+12];
ld.global.b32 %e0, [%rd2+16];
{loads}
setp.eq.u32 %p0, %r6, 1;
wgmma.fence.sync.aligned;
{self.instruction()}
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
{stores}
ret;
}}
"""


def descriptor(start, leading, stride, mode=0, base=0):
    return np.uint64((start >> 4 & 0x3FFF) | (leading >> 4 & 0x3FFF) << 16 | (stride >> 4 & 0x3FFF) << 32 | base << 49 | mode << 62)


# ---- data ---------------------------------------------------------------------------------------

def random_bits(rng, shape, bits):
    return (rng.randint(0, 1 << 16, shape).astype(np.uint32) | rng.randint(0, 1 << 16, shape).astype(np.uint32) << 16) \
        & np.uint32((1 << bits) - 1)


def from_ints(values, name):
    """The bits of small integers."""
    if name not in FLOATS:
        return values.astype(np.int64).astype(np.uint32) & np.uint32((1 << BITS.get(name, 32)) - 1)
    e, m, _ = FLOATS[name]
    words = values.astype(np.float32).view(np.uint32)
    sign, field, fraction = words >> 31, (words >> 23 & 255).astype(np.int64), words & 0x7FFFFF
    out = sign << (e + m) | (field - 127 + (1 << (e - 1)) - 1).astype(np.uint32) << m | fraction >> (23 - m)
    return np.where(values == 0, 0, out).astype(np.uint32)


def elements(rng, shape, name, kind):
    """Bits of an element type in a kind of data."""
    bits = BITS.get(name, 32)
    if name == "b1":
        return random_bits(rng, shape, 1)
    if kind == "ints":
        return from_ints(rng.randint(0 if name == "u8" else -4, 5, shape), name)
    raw = random_bits(rng, shape, bits)
    if name not in FLOATS or kind == "bits":
        return raw
    e, m, special = FLOATS[name]
    bias, top = (1 << (e - 1)) - 1, (1 << e) - (2 if special else 1)
    field = raw >> m & ((1 << e) - 1)
    if kind in ("near", "cancel"):
        field = bias + rng.randint(-2, 3, shape)
    elif kind == "wide":
        field = bias + np.rint(rng.normal(0, min(8, bias / 3), shape)).astype(np.int64)
    elif kind == "tiny":
        field = rng.randint(0, 3, shape) * rng.randint(0, 2, shape)
    elif kind == "top":
        field = top - rng.randint(0, 3, shape)
    field = np.clip(np.asarray(field).astype(np.int64), 0, top).astype(np.uint32)
    out = raw & np.uint32(~(((1 << e) - 1) << m) & 0xFFFFFFFF) | field << m
    if name == "e4m3":
        out = np.where(out & 0x7F == 0x7F, out ^ 1, out)
    return out.astype(np.uint32)


def sum_elements(rng, shape, name, kind, form):
    if name == "s32":
        raw = random_bits(rng, shape, 32)
        near = np.where(raw & 1, 0x7FFFFFFF, 0x80000000).astype(np.uint32) + (raw >> 1 & 0x3FFF) - 0x2000
        return {"ints": raw & 255, "top": near, "near": near}.get(kind, raw)
    if kind == "ints":
        return from_ints(rng.randint(-99, 100, shape), name)
    if kind in ("near", "cancel", "wide"):
        return elements(rng, shape, name, "near" if kind != "wide" else "wide")
    if kind == "tiny" and name == "f32":
        # About as small as the products.
        e, _, _ = FLOATS[form.a]
        low = max(1, 127 - 2 * ((1 << (e - 1)) + 6))
        return (random_bits(rng, shape, 32) & np.uint32(0x807FFFFF)) | (low + rng.randint(0, 16, shape)).astype(np.uint32) << 23
    return elements(rng, shape, name, kind)


def metadata(rng, form, rows):
    """(64-bit metadata of each row of 16 x 4, columns of stored elements)."""
    groups = form.k // (2 if form.bits == 32 else 4)
    if form.bits == 32:
        pick = rng.randint(0, 2, (rows, groups))
        nibbles, columns = np.where(pick, 14, 4), (2 * np.arange(groups) + pick)[..., None]
    else:
        pairs = np.array([(i, j) for i in range(4) for j in range(i + 1, 4)])
        chosen = pairs[rng.randint(0, 6, (rows, groups))]
        nibbles = chosen[..., 0] | chosen[..., 1] << 2
        columns = 4 * np.arange(groups)[None, :, None] + chosen
    words = np.zeros(rows, np.uint64)
    for g in range(groups):
        words |= nibbles[:, g].astype(np.uint64) << np.uint64(4 * g)
    return words, columns.reshape(rows, -1)


def metadata_words(rng, words, form):
    """A register for each of 128 threads."""
    out = random_bits(rng, 128, 32)
    for thread in range(128):
        rows, lane = words[thread // 32 * 16:][:16], thread % 32
        row, four = lane // 4, lane % 4
        if form.bits == 8:
            out[thread] = int(rows[row + 8 * (four % 2)]) >> (32 * (four // 2)) & 0xFFFFFFFF
        elif four // 2 == form.sparse:
            half = [int(rows[r]) >> (16 * (four % 2)) & 0xFFFF for r in (row, row + 8)]
            out[thread] = half[0] | half[1] << 16
    return out


def pack(matrix, bits):
    """Rows of elements as bytes."""
    if bits == 1:
        return np.packbits(matrix.astype(np.uint8), axis=-1, bitorder="little")
    return matrix.astype({8: "<u1", 16: "<u2", 32: "<u4"}[bits]).view(np.uint8).reshape(*matrix.shape[:-1], -1)


def fragment_a(rows):
    """Registers of A (4 of each thread) of 64 rows of 32 bytes."""
    words = np.ascontiguousarray(rows).view("<u4").reshape(4, 2, 8, 2, 4)  # warp, upper, row, half, word
    return words.transpose(0, 2, 4, 3, 1).reshape(128, 4)


def fragment_d(matrix, halves):
    """Registers of D or C of 64 x n elements."""
    n = matrix.shape[1]
    m = matrix.reshape(4, 2, 8, n // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5)  # warp, row, thread | block, upper, pair
    flat = m.reshape(128, -1)
    if halves:
        flat = flat[:, 0::2] & 0xFFFF | flat[:, 1::2] << 16
    return flat.astype(np.uint32)


def of_fragment(words, n, halves):
    """The inverse."""
    words = words.reshape(128, -1)
    if halves:
        words = np.stack([words & 0xFFFF, words >> 16], -1).reshape(128, -1)
    return words.reshape(4, 8, 4, n // 8, 2, 2).transpose(0, 4, 1, 3, 2, 5).reshape(64, n)


def plain_tile(image, at, rows):
    """Writes rows of bytes without a pattern; gives (bytes, leading offset, stride)."""
    count, width = rows.shape
    for c in range(width // 16):
        block = rows[:, 16 * c:16 * c + 16].reshape(-1)
        image[at + c * count * 16:][:block.size] = block
    return count * width, count * 16, 128


class Case:
    """One product: elements, metadata, C, and its input block."""

    def __init__(self, form, kind, number):
        seed = zlib.crc32(f"{form.name()} {kind} {number}".encode())
        rng = np.random.RandomState(seed)
        self.a = elements(rng, (64, form.stored), form.a, kind)
        self.b = elements(rng, (form.n, form.k), form.b, kind)
        if kind == "cancel" and form.float:
            half = form.k // 2
            self.b[:, half:] = self.b[:, :half]
            sign = np.uint32(1 << (form.bits - 1))
            flips = np.where(rng.randint(0, 4, (64, form.stored // 2)) == 0, 1, 0).astype(np.uint32)
            self.a[:, form.stored // 2:] = self.a[:, :form.stored // 2] ^ sign ^ flips << (13 if form.a == "tf32" else 0)
        self.adds = int(kind == "ints" and number % 2 or kind != "ints" and number % 8 != 7)
        self.c = sum_elements(rng, (64, form.n), form.sums, kind, form)
        self.columns, words = None, np.zeros(128, np.uint32)
        if form.sparse is not None:
            rows, self.columns = metadata(rng, form, 64)
            words = metadata_words(rng, rows, form)
        image = np.zeros(IMAGE, np.uint8)
        rows = pack(self.a, form.bits)
        used, la, sa = plain_tile(image, 0, rows)
        used = (used + 127) // 128 * 128
        _, lb, sb = plain_tile(image, used, pack(self.b, form.bits))
        head = np.zeros(4, np.uint64)
        head[0], head[1], head[2] = descriptor(0, la, sa), descriptor(used, lb, sb), self.adds
        threads = np.concatenate([fragment_a(rows), words[:, None], fragment_d(self.c, form.sums == "f16")], 1)
        self.block = np.concatenate([image, head.view(np.uint8), np.ascontiguousarray(threads.astype("<u4")).view(np.uint8).reshape(-1)])


# ---- what is recorded ---------------------------------------------------------------------------

def sum_forms():
    narrow = [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2")]
    whole = [("s8", "s8"), ("s8", "u8"), ("u8", "s8"), ("u8", "u8")]
    for regs in (False, True):
        for a, sums in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("tf32", "f32")):
            yield Form(a, a, sums, regs=regs)
        for a, b in narrow:
            for sums in ("f32", "f16"):
                yield Form(a, b, sums, regs=regs)
        yield Form("b1", "b1", "s32", regs=regs)
    for a, b in whole:
        for sat in (False, True):
            yield Form(a, b, "s32", sat=sat, regs=sat)
    for selector in (0, 1):
        for a, sums in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("tf32", "f32")):
            yield Form(a, a, sums, sparse=selector, regs=bool(selector))
    for a, b in narrow:
        for sums in ("f32", "f16"):
            yield Form(a, b, sums, sparse=0)
    for a, b in whole:
        yield Form(a, b, "s32", sparse=0, sat=a == "s8", regs=b == "s8")
    for signs in ((-1, 1), (1, -1), (-1, -1)):
        for a, sums in (("f16", "f32"), ("bf16", "f32"), ("tf32", "f32"), ("e4m3", "f32"), ("e5m2", "f16")):
            yield Form(a, a, sums, signs=signs)


def record_sums(driver, form, cases, raw):
    out = {}
    for kind in KINDS:
        if not form.float and kind not in ("ints", "bits", "top"):
            continue
        blocks = [Case(form, kind, number).block for number in range(cases)]
        words = driver.launch(form.ptx(), len(blocks), np.concatenate(blocks), 128 * form.registers * len(blocks))
        words = words.reshape(len(blocks), -1)
        out[f"sums/{form.name()}/{kind}/raw"] = words[:raw]
        out[f"sums/{form.name()}/{kind}/hash"] = np.array([zlib.crc32(w.tobytes()) for w in words], np.uint32)
    return out


def record_shapes(driver):
    """Every number of columns: hashes alone."""
    out = {}
    for a, sums in (("f16", "f32"), ("bf16", "f32"), ("e4m3", "f16"), ("s8", "s32"), ("tf32", "f32"), ("b1", "s32")):
        for n in range(8, 257, 8):
            if sums == "s32" and n > 24 and n % 16:
                continue
            form = Form(a, a, sums, n=n)
            image = 2048 + 32 * n
            image = (image + 511) // 512 * 512
            case = wide_case(form, image)
            words = driver.launch(form.ptx(image), 1, case, 128 * form.registers)
            out[f"shape/{form.name()}"] = np.array([zlib.crc32(words.tobytes())], np.uint32)
    return out


def wide_case(form, size):
    rng = np.random.RandomState(form.n)
    a, b = elements(rng, (64, form.stored), form.a, "near"), elements(rng, (form.n, form.k), form.b, "near")
    c = sum_elements(rng, (64, form.n), form.sums, "near", form)
    image = np.zeros(size, np.uint8)
    used, la, sa = plain_tile(image, 0, pack(a, form.bits))
    _, lb, sb = plain_tile(image, used, pack(b, form.bits))
    head = np.zeros(4, np.uint64)
    head[0], head[1], head[2] = descriptor(0, la, sa), descriptor(used, lb, sb), 1
    threads = np.concatenate([np.zeros((128, 5), np.uint32), fragment_d(c, form.sums == "f16")], 1)
    return np.concatenate([image, head.view(np.uint8), np.ascontiguousarray(threads.astype("<u4")).view(np.uint8).reshape(-1)])


PROBE_IMAGE = 48 << 10
PROBE_DATA = 40 << 10  # What is behind holds the unit matrix.


def probe_values():
    """16-bit patterns that are finite as f16 and all different, then 0."""
    values = np.arange(1, 1 << 16, dtype=np.uint32)
    values = values[(values & 0x7C00) != 0x7C00]
    values = values[(values & 0x7FFF) != 0]
    return np.random.RandomState(7).permutation(values)[:PROBE_DATA // 2].astype("<u2")


def probe_layouts():
    """(side, mode, base, start, leading, stride) of layouts, plain and odd ones."""
    for mode in range(4):
        width = (16, 128, 64, 32)[mode]
        period = width * 8
        for side in (0, 1):
            offsets = [(2048, 128), (128, 2048), (period * 2, period), (period, period * 4), (16, period), (period * 3, period * 2)]
            for leading, stride in offsets:
                for start in (0, 32, 64, 1024, 1024 + 16):
                    yield side, mode, 0, start, leading, stride
            for base in range(8):
                for start in (128 * base, 1024 + 128 * base, 1024, 1024 + 64):
                    yield side, mode, base, start, period * 2, period
            for start in (128, 256, 384, 512, 640, 896):
                yield side, mode, 0, start, period, period * 2


def record_probes(driver, of_a, sparse):
    """The matrix that a layout names, of A or of B: 16-bit elements as they are read."""
    values, layouts = probe_values(), list(probe_layouts())
    n = 16 if of_a else 64
    blocks = []
    one = {False: 0x3C00}[False]
    for side, mode, base, start, leading, stride in layouts:
        image = np.zeros(PROBE_IMAGE, np.uint8)
        image[:PROBE_DATA] = values.view(np.uint8)
        form = Form("f16", "f16", "f32", n=n, regs=not of_a, sides=(side, 0) if of_a else (0, side),
                    sparse=0 if sparse else None)
        head = np.zeros(4, np.uint64)
        threads = np.zeros((128, 5 + form.registers), np.uint32)
        if of_a:
            unit = np.zeros((n, 16), np.uint32)
            unit[np.arange(16), np.arange(16)] = one
            _, lb, sb = plain_tile(image, PROBE_DATA, pack(unit, 16))
            head[0], head[1] = descriptor(start, leading, stride, mode, base), descriptor(PROBE_DATA, lb, sb)
        else:
            # Row r of A chooses row r of B; of a sparse A the first or second of each four.
            unit = np.zeros((64, 16), np.uint32)
            rows = np.zeros(64, np.uint64)
            for r in range(form.k):
                unit[r, r // 4 * 2 + (r % 4 >= 2) if sparse else r] = one
                if sparse:
                    pair = {0: 0 | 2 << 2, 1: 1 | 2 << 2, 2: 0 | 2 << 2, 3: 0 | 3 << 2}[r % 4]
                    rows[r] = sum(pair << (4 * g) for g in range(8))
            threads[:, :4] = fragment_a(pack(unit, 16))
            if sparse:
                threads[:, 4] = metadata_words(np.random.RandomState(0), rows, form)
            head[1] = descriptor(start, leading, stride, mode, base)
        blocks.append((form, np.concatenate([image, head.view(np.uint8), threads.astype("<u4").view(np.uint8).reshape(-1)])))
    out = np.zeros((len(layouts), 64 if of_a else 32, 16 if of_a else n), np.uint16)
    for side in (0, 1):
        chosen = [i for i, layout in enumerate(layouts) if layout[0] == side]
        form = blocks[chosen[0]][0]
        data = np.concatenate([blocks[i][1] for i in chosen])
        words = driver.launch(form.ptx(PROBE_IMAGE), len(chosen), data, 128 * form.registers * len(chosen))
        for i, w in zip(chosen, words.reshape(len(chosen), -1)):
            matrix = of_fragment(w, form.n, False).view(np.float32).astype(np.float16).view(np.uint16)
            out[i] = matrix[:out.shape[1]]
    return {f"probe/{'a' if of_a else 'b'}{'.sp' if sparse else ''}": out if of_a or sparse else out[:, :16]}


def run(args):
    driver = Driver(args.lib)
    begun, out = time.time(), {"device": np.array(driver.name)}
    tasks = [(f"sums {f.name()}", lambda f=f: record_sums(driver, f, args.cases, 4)) for f in sum_forms()]
    tasks.append(("shapes", lambda: record_shapes(driver)))
    for of_a, sparse in ((True, False), (False, False), (False, True)):
        tasks.append((f"probe {'a' if of_a else 'b'} {sparse}", lambda a=of_a, s=sparse: record_probes(driver, a, s)))
    for name, task in tasks:
        if args.only and args.only not in name:
            continue
        try:
            out.update(task())
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            if "cuModuleLoad" not in str(error):
                raise
    np.savez_compressed(args.out, **out)
    print(f"{driver.name}: {len(out)} records, {time.time() - begun:.1f} s")


# ---- comparison ---------------------------------------------------------------------------------

def shown(form, kind, number, row, column, words):
    case = Case(form, kind, number)
    b = case.b[column]
    if case.columns is not None:
        b = b[case.columns[row]]
    halves = form.sums == "f16"
    got = [of_fragment(w, form.n, halves)[row, column] for w in words]
    c = case.c[row, column] if case.adds else 0
    pairs = " ".join(f"{x:x}*{y:x}" for x, y in zip(case.a[row], b))
    return f"    {kind} case {number} ({row},{column}): {got[0]:08x} and {got[1]:08x}, c={c:x}: {pairs}"


def compare(args):
    files = [np.load(name) for name in (args.first, args.second)]
    print(" and ".join(str(f["device"]) for f in files))
    forms = {f.name(): f for f in sum_forms()}
    names = [name for name in files[0].files if name in files[1].files and name != "device"]
    missing = set(files[0].files) ^ set(files[1].files)
    if missing:
        print(f"in one file alone: {sorted(missing)}")
    wrong = equal = 0
    for name in names:
        a, b = (f[name] for f in files)
        differ = a != b
        if name.startswith("sums") and name.endswith("hash"):
            count = min(len(a), len(b))
            differ = a[:count] != b[:count]
        if not differ.any():
            equal += 1
            continue
        wrong += 1
        if name.startswith("probe"):
            layouts = list(probe_layouts())
            bad = [i for i in range(len(a)) if differ[i].any()]
            print(f"{name}: {len(bad)} of {len(a)} layouts differ (side, mode, base, start, leading, stride)")
            where = {int(v): 2 * i for i, v in enumerate(probe_values())}
            for i in bad[:args.show]:
                at = np.argwhere(differ[i])[0]
                places = [where.get(int(x[i][tuple(at)]), -1) for x in (a, b)]
                print(f"    {layouts[i]}: element {tuple(at)} from byte {places[0]} and {places[1]}")
            continue
        print(f"{name}: {int(differ.sum())} of {differ.size} differ")
        if name.endswith("raw"):
            _, form, kind, _ = name.split("/")
            form = forms[form]
            left = args.show
            for number in range(len(a)):
                matrices = [of_fragment(w[number], form.n, form.sums == "f16") for w in (a, b)]
                for row, column in np.argwhere(matrices[0] != matrices[1])[:left]:
                    print(shown(form, kind, number, row, column, (a[number], b[number])))
                    left -= 1
                if left <= 0:
                    break
    print(f"{equal} records equal, {wrong} differ")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("out")
    one.add_argument("--lib", default="libcuda.so.1")
    one.add_argument("--only")
    one.add_argument("--cases", type=int, default=64)
    one.set_defaults(run=run)
    two = commands.add_parser("compare")
    two.add_argument("first")
    two.add_argument("second")
    two.add_argument("--show", type=int, default=4)
    two.set_defaults(run=compare)
    args = parser.parse_args()
    sys.exit(args.run(args) or 0)


if __name__ == "__main__":
    main()
