"""Clusters of blocks on a GPU or on the software device: kernels, and the rules of the driver.

    python3 hopper_clusters.py run [--out FILE] [--cuda FOLDER] [--libcuda FILE] [--nvrtc FILE] [--include FOLDER]...
    python3 hopper_clusters.py compare A B

`run` compiles the kernels of `crates/testkit/programs/hopper_clusters.cu` and those below by NVRTC
for sm_90a, runs them through the driver's functions, compares what they compute with numpy, and asks
the driver for codes of launches that are wrong, occupancy and attributes. It needs python3, numpy,
`libcuda.so.1` and a CUDA toolkit, and writes one JSON: `kernels` (name: "right", or what is wrong)
and `driver` (question: answer). With `--libcuda` of the drop-in library it is the software device's.
What ends a context is asked in a process of its own. `compare` prints the answers that differ, with
exit status 1 if any do. `run` has exit status 1 if a kernel is wrong.
"""

import argparse
import ctypes as c
import glob
import json
import os
import pathlib
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve()
PROGRAMS = HERE.parents[2] / "crates/testkit/programs/hopper_clusters.cu"
LIMIT_S = 60

# Kernels for questions about the driver; those of PROGRAMS have clusters of a fixed size.
PROBES = r"""
extern "C" __global__ void plain(unsigned* y) { if (threadIdx.x == 0) y[blockIdx.x] = blockIdx.x; }
extern "C" __global__ __cluster_dims__(2, 1, 1) void fixed(unsigned* y) { if (threadIdx.x == 0) y[blockIdx.x] = 1; }
extern "C" __global__ __launch_bounds__(128, 1, 4) void bounded(unsigned* y) { if (threadIdx.x == 0) y[blockIdx.x] = 1; }

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ unsigned afar(unsigned p, unsigned rank) {
    unsigned out;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(p), "r"(rank));
    return out;
}
__device__ void sync() { asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory"); }
__device__ unsigned rank() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ unsigned load(unsigned p) {
    unsigned v;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(p) : "memory");
    return v;
}

// What registers and address instructions say, for one thread of each block.
extern "C" __global__ void numbers(unsigned* y) {
    __shared__ unsigned s[32];
    s[threadIdx.x] = 0;
    sync();
    if (threadIdx.x == 0) {
        unsigned v[16];
        asm("mov.u32 %0, %%clusterid.x;" : "=r"(v[0]));
        asm("mov.u32 %0, %%nclusterid.x;" : "=r"(v[1]));
        asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(v[2]));
        asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(v[3]));
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(v[4]));
        asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(v[5]));
        asm("{ .reg .pred p; mov.pred p, %%is_explicit_cluster; selp.u32 %0, 1, 0, p; }" : "=r"(v[6]));
        unsigned other = afar(at(s), (rank() + 1) % v[5]);
        asm("getctarank.shared::cluster.u32 %0, %1;" : "=r"(v[7]) : "r"(other));
        asm("getctarank.shared::cluster.u32 %0, %1;" : "=r"(v[8]) : "r"(at(s)));
        unsigned long long generic, mine;
        asm("mapa.u64 %0, %1, %2;" : "=l"(generic) : "l"(&s[0]), "r"((rank() + 1) % v[5]));
        asm("mapa.u64 %0, %1, %2;" : "=l"(mine) : "l"(&s[0]), "r"(rank()));
        asm("{ .reg .pred p; isspacep.shared::cta p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(v[9]) : "l"(generic));
        asm("{ .reg .pred p; isspacep.shared::cluster p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(v[10]) : "l"(generic));
        asm("{ .reg .pred p; isspacep.shared::cta p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(v[11]) : "l"(mine));
        asm("{ .reg .pred p; isspacep.shared::cluster p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(v[12]) : "l"(&s[0]));
        v[13] = mine == (unsigned long long)&s[0];
        v[14] = afar(at(s), rank()) == at(s);
        asm("{ .reg .pred p; isspacep.shared p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(v[15]) : "l"(generic));
        for (unsigned k = 0; k < 16; k++) y[blockIdx.x * 16 + k] = v[k];
    }
    sync();
}

// What ends the kernel.
extern "C" __global__ void to_exited(unsigned* y) {
    __shared__ unsigned s;
    s = 5;
    sync();
    if (rank() == 1) return;
    long long first = clock64();
    while (clock64() - first < 20000000) __nanosleep(1000);
    y[threadIdx.x] = load(afar(at(&s), 1));
}
extern "C" __global__ void to_no_rank(unsigned* y) {
    __shared__ unsigned s;
    s = 5;
    sync();
    y[threadIdx.x] = load(afar(at(&s), 7));
    sync();
}
extern "C" __global__ void past_the_end(unsigned* y) {
    __shared__ unsigned s;
    s = 5;
    sync();
    y[threadIdx.x] = load(afar(at(&s), rank() ^ 1) + (200 << 10));
    sync();
}
extern "C" __global__ void askew(unsigned* y) {
    __shared__ unsigned s[2];
    s[0] = s[1] = 5;
    sync();
    y[threadIdx.x] = load(afar(at(&s), rank() ^ 1) + 2);
    sync();
}
"""

# Directives that NVRTC does not write.
PTX = """.version 8.6
.target sm_90
.address_size 64
.visible .entry explicit_only() .explicitcluster { ret; }
.visible .entry ranked() .explicitcluster .maxclusterrank 4 { ret; }
.visible .entry fixed_by_ptx() .explicitcluster .reqnctapercluster 2, 2, 1 { ret; }
"""

COOPERATIVE, CLUSTER, POLICY, PREFERRED = 2, 4, 5, 11
MUST_BE_SET, WIDTH, HEIGHT, DEPTH, NON_PORTABLE, FUNC_POLICY = 10, 11, 12, 13, 14, 15
MAX_DYNAMIC = 8


class Config(c.Structure):
    _fields_ = [(n, c.c_uint) for n in ("gx", "gy", "gz", "bx", "by", "bz", "shared")] + [
        ("stream", c.c_void_p), ("attrs", c.c_void_p), ("count", c.c_uint)]


class Attribute(c.Structure):
    _fields_ = [("id", c.c_int), ("pad", c.c_int), ("value", c.c_uint * 16)]


class NodeParams(c.Structure):
    _fields_ = [("func", c.c_void_p)] + [(n, c.c_uint) for n in ("gx", "gy", "gz", "bx", "by", "bz", "shared")] + [
        ("params", c.c_void_p), ("extra", c.c_void_p), ("kern", c.c_void_p), ("ctx", c.c_void_p)]


def three(n):
    n = (n,) if isinstance(n, int) else tuple(n)
    return (n + (1, 1, 1))[:3]


class Driver:
    def __init__(self, path):
        self.lib = c.CDLL(path)
        self.must("cuInit", 0)
        device = c.c_int()
        self.must("cuDeviceGet", c.byref(device), 0)
        self.device = device.value
        context = c.c_void_p()
        self.must("cuDevicePrimaryCtxRetain", c.byref(context), device)
        self.must("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        return getattr(self.lib, name)(*arguments)

    def must(self, name, *arguments):
        code = self.call(name, *arguments)
        if code:
            raise SystemExit(f"{name}: {code}")

    def module(self, text):
        module = c.c_void_p()
        self.must("cuModuleLoadData", c.byref(module), c.c_char_p(text))
        return module

    def function(self, module, name):
        found = c.c_void_p()
        self.must("cuModuleGetFunction", c.byref(found), module, name.encode())
        return found

    def memory(self, array):
        at = c.c_uint64()
        self.must("cuMemAlloc_v2", c.byref(at), c.c_size_t(max(array.nbytes, 4)))
        self.must("cuMemcpyHtoD_v2", at, c.c_void_p(array.ctypes.data), c.c_size_t(array.nbytes))
        return at

    def back(self, at, array):
        self.must("cuMemcpyDtoH_v2", c.c_void_p(array.ctypes.data), at, c.c_size_t(array.nbytes))
        return array

    def launch(self, function, grid, block, arguments=(), shared=0, attributes=()):
        config, kept = configured(grid, block, shared, attributes)
        values = (c.c_void_p * max(len(arguments), 1))(*[c.cast(c.pointer(a), c.c_void_p) for a in arguments])
        code = self.call("cuLaunchKernelEx", c.byref(config), function, values, None)
        del kept
        return code

    def synchronise(self):
        return self.call("cuCtxSynchronize")


def configured(grid, block, shared=0, attributes=()):
    kept = (Attribute * max(len(attributes), 1))()
    for slot, (which, value) in zip(kept, attributes):
        slot.id = which
        for n, part in enumerate(value):
            slot.value[n] = part
    config = Config(*three(grid), *three(block), shared, None, c.cast(kept, c.c_void_p) if attributes else None, len(attributes))
    return config, kept


def compiled(nvrtc, text, name, include):
    lib = c.CDLL(nvrtc)
    program = c.c_void_p()
    options = ["--gpu-architecture=sm_90a", "--std=c++17"] + [f"--include-path={i}" for i in include]
    lib.nvrtcCreateProgram(c.byref(program), text.encode(), name.encode(), 0, None, None)
    words = (c.c_char_p * len(options))(*[o.encode() for o in options])
    code = lib.nvrtcCompileProgram(program, len(options), words)
    if code:
        size = c.c_size_t()
        lib.nvrtcGetProgramLogSize(program, c.byref(size))
        log = c.create_string_buffer(size.value)
        lib.nvrtcGetProgramLog(program, log)
        raise SystemExit(f"NVRTC: {code}\n{log.value.decode()}")
    size = c.c_size_t()
    lib.nvrtcGetPTXSize(program, c.byref(size))
    ptx = c.create_string_buffer(size.value)
    lib.nvrtcGetPTX(program, ptx)
    return ptx.raw


# ---- kernels ---------------------------------------------------------------------------------


def cases():
    """name: (grid, block, inputs, result's shape and type, expected, tolerance, attributes)."""
    rng = np.random.default_rng(7)
    u = np.uint32
    rows = rng.uniform(-4, 4, (2, 1024)).astype(np.float32)
    soft = np.exp(rows.astype(np.float64) - rows.max(1, keepdims=True))
    soft /= soft.sum(1, keepdims=True)
    points = rng.integers(0, 512, 4096).astype(u)
    any_u = lambda n: rng.integers(0, 1 << 20, n).astype(u)
    out = {}

    def case(name, grid, block, inputs, result, expected, tolerance=0.0, attributes=()):
        out[name] = (grid, block, inputs, result, expected, tolerance, attributes)

    case("softmax_row", 8, 128, [rows.ravel()], np.zeros(2048, np.float32), soft.ravel(), 1e-5)
    case("histogram", 4, 128, [points], np.zeros(512, u), np.bincount(points, minlength=512).astype(u))
    x = any_u(512)
    case("ring", 8, 64, [x], np.zeros(512, u), np.tile(x.reshape(8, 64).sum(0, dtype=u), 8))
    x = any_u(256)
    case("ring_of_stores", 4, 64, [x], np.zeros(256, u), np.tile(x.reshape(4, 64).sum(0, dtype=u), 4))
    case("remote_mbarrier", 4, 64, [x], np.zeros(256, u), (x * u(3))[::-1])
    x = any_u(128)
    before = np.roll(x.reshape(4, 32), 1, axis=0)
    sums = before * u(3) + u(3) + before[:, ::-1] + u(3)
    case("async_stores", 4, 32, [x], np.zeros(128, u), sums.ravel())
    case("async_sums", 2, 64, [x], np.zeros(2, u), x.reshape(2, 64).sum(1, dtype=u)[::-1])
    x = any_u(64)
    case("flags", 2, 64, [x], np.zeros(64, u), (x + u(7))[::-1])
    x = any_u(256)
    case("global_data", 4, 64, [x], np.zeros(256, u), (x + u(5))[::-1])
    case("early_exit", 4, 96, [], np.zeros(4, u), np.array([2, 1, 4, 3], u))
    two_on = np.roll(x.reshape(4, 64), -2, axis=0)[:, ::-1] + 2 * np.arange(64, dtype=u)
    case("split_barrier", 4, 64, [x], np.zeros(256, u), two_on.ravel())
    case("relaxed_start", 4, 64, [], np.zeros(4, u), np.ones(4, u))
    y = np.zeros(32, u)
    blocks = np.arange(32).reshape(2, 4, 4)
    for z, yy, xx in np.ndindex(2, 4, 4):
        first = blocks[0:2, yy // 2 * 2:yy // 2 * 2 + 2, xx // 2 * 2:xx // 2 * 2 + 2]
        rank = xx % 2 + 2 * (yy % 2) + 4 * (z % 2)
        y[blocks[z, yy, xx]] = first.sum() * 100 + rank * 10 + rank
    case("three_axes", (4, 4, 2), (8, 4), [], np.zeros(32, u), y)
    case("of_a_grid", 8, 64, [np.zeros(8, u)], np.zeros(8, u), np.full(8, 28, u), 0.0, [(COOPERATIVE, [1])])
    case("one_block", 3, 64, [], np.zeros(192, u), np.tile(64 - np.arange(64, dtype=u), 3))
    case("atomics_of_all", 4, 64, [], np.zeros(2, u), np.array([256, 255], u))
    x = any_u(512)
    steps = x.reshape(8, 64)[:, ::-1] * (1 + np.arange(8, dtype=u))[:, None]
    case("full_and_empty", 2, 64, [x], np.zeros(64, u), steps.sum(0, dtype=u))
    x = any_u(256)
    other = x.reshape(2, 2, 64)[:, ::-1]
    seen = other[:, :, ::-1] + other.sum(2, dtype=u)[:, :, None]
    case("by_headers", 4, 64, [x], np.zeros(256, u), seen.ravel())
    t = np.arange(256, dtype=u)
    case("group_members", 4, 64, [], np.zeros(256, u), t + u(256000) + u(1000000) * ((t // 64 + 3) % 4) + u(40000000))
    return out


def run_kernels(driver, module):
    said = {}
    for name, (grid, block, inputs, result, expected, tolerance, attributes) in cases().items():
        function = driver.function(module, name)
        for turn in range(3):
            memories = [driver.memory(np.ascontiguousarray(i)) for i in inputs]
            out = driver.memory(np.zeros_like(result))
            arguments = memories + [out]
            if name == "histogram":
                arguments.append(c.c_int(len(inputs[0])))
            code = driver.launch(function, grid, block, arguments, 0, attributes) or driver.synchronise()
            if code:
                said[name] = f"code {code}"
                break
            got = driver.back(out, result.copy())
            far = np.abs(got.astype(np.float64) - expected.astype(np.float64))
            bound = tolerance * np.maximum(np.abs(expected.astype(np.float64)), 1e-30)
            wrong = np.flatnonzero(far > bound)
            said[name] = "right" if not len(wrong) else f"{len(wrong)} wrong, the first {wrong[0]}: {got[wrong[0]]}, not {expected[wrong[0]]}"
            for at in arguments[: len(memories) + 1]:
                driver.must("cuMemFree_v2", at)
    return said


# ---- the driver's rules ----------------------------------------------------------------------


def get(driver, function, which):
    value = c.c_int(-99)
    code = driver.call("cuFuncGetAttribute", c.byref(value), which, function)
    return value.value if code == 0 else f"code {code}"


def put(driver, function, which, value):
    return driver.call("cuFuncSetAttribute", function, which, value)


def clusters(driver, function, grid, block, shared, size):
    attributes = [(CLUSTER, three(size))] if size else []
    config, kept = configured(grid, block, shared, attributes)
    value = c.c_int(-99)
    code = driver.call("cuOccupancyMaxActiveClusters", c.byref(value), function, c.byref(config))
    del kept
    return value.value if code == 0 else f"code {code}"


def potential(driver, function, grid, block, shared):
    config, kept = configured(grid, block, shared)
    value = c.c_int(-99)
    code = driver.call("cuOccupancyMaxPotentialClusterSize", c.byref(value), function, c.byref(config))
    del kept
    return value.value if code == 0 else f"code {code}"


def ask(driver, module, ptx):
    said = {}
    f = lambda name: driver.function(module, name)
    plain, fixed, bounded = f("plain"), f("fixed"), f("bounded")
    explicit, ranked, by_ptx = (driver.function(ptx, n) for n in ("explicit_only", "ranked", "fixed_by_ptx"))
    y = driver.memory(np.zeros(4096, np.uint32))

    def tried(function, grid, attributes, shared=0, block=32, arguments=(y,)):
        code = driver.launch(function, grid, block, arguments, shared, attributes)
        return code or driver.synchronise()

    value = c.c_int()
    driver.must("cuDeviceGetAttribute", c.byref(value), 120, driver.device)
    said["attribute CLUSTER_LAUNCH"] = value.value
    named = {"plain": plain, "fixed": fixed, "bounded": bounded, "explicit_only": explicit, "ranked": ranked, "fixed_by_ptx": by_ptx}
    for name, function in named.items():
        which = (MUST_BE_SET, WIDTH, HEIGHT, DEPTH, NON_PORTABLE, FUNC_POLICY)
        said[f"attributes of {name}"] = [get(driver, function, w) for w in which]

    one = lambda size: [(CLUSTER, three(size))]
    for size in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16):
        said[f"launch of 144 blocks in clusters of {size}"] = tried(plain, 144 if 144 % size == 0 else 140 if 140 % size == 0 else 150, one(size))
    said["launch of 3 blocks in clusters of 2"] = tried(plain, 3, one(2))
    said["launch of 1 block in a cluster of 2"] = tried(plain, 1, one(2))
    said["launch in clusters of 0"] = tried(plain, 4, [(CLUSTER, (0, 0, 0))])
    said["launch in clusters of 2,0,1"] = tried(plain, 4, [(CLUSTER, (2, 0, 1))])
    said["launch in clusters of 2,2,2"] = tried(plain, (4, 4, 4), one((2, 2, 2)))
    said["launch of 4,3 in clusters of 2,2"] = tried(plain, (4, 3), one((2, 2)))
    said["launch of a fixed kernel without attribute"] = tried(fixed, 4, [])
    said["launch of a fixed kernel with its size"] = tried(fixed, 4, one(2))
    said["launch of a fixed kernel with another size"] = tried(fixed, 4, one(4))
    said["launch of a fixed kernel with 1"] = tried(fixed, 4, one(1))
    said["launch of 3 blocks of a fixed kernel"] = tried(fixed, 3, [])
    said["launch of an explicit kernel without attribute"] = tried(explicit, 4, [], 0, 32, ())
    said["launch of an explicit kernel in clusters of 2"] = tried(explicit, 4, one(2), 0, 32, ())
    said["launch of an explicit kernel in clusters of 1"] = tried(explicit, 4, one(1), 0, 32, ())
    said["launch of a ranked kernel in clusters of 4"] = tried(ranked, 8, one(4), 0, 32, ())
    said["launch of a ranked kernel in clusters of 8"] = tried(ranked, 8, one(8), 0, 32, ())
    said["launch of a bounded kernel in clusters of 4"] = tried(bounded, 8, one(4))
    said["launch of a bounded kernel in clusters of 8"] = tried(bounded, 8, one(8))
    said["launch of a bounded kernel without attribute"] = tried(bounded, 8, [])
    said["launch with preferred 4 over 2"] = tried(plain, 8, one(2) + [(PREFERRED, (4, 1, 1))])
    said["launch with preferred 3 over 2"] = tried(plain, 12, one(2) + [(PREFERRED, (3, 1, 1))])
    said["launch with preferred 4 alone"] = tried(plain, 8, [(PREFERRED, (4, 1, 1))])
    said["launch with preferred 16 over 2"] = tried(plain, 16, one(2) + [(PREFERRED, (16, 1, 1))])
    for policy in (0, 1, 2, 3, 7):
        said[f"launch with policy {policy}"] = tried(plain, 8, one(2) + [(POLICY, (policy,))])
    said["cooperative launch in clusters of 2"] = tried(plain, 8, one(2) + [(COOPERATIVE, (1,))])
    said["cooperative launch of 4096 blocks in clusters of 2"] = tried(plain, 4096, one(2) + [(COOPERATIVE, (1,))], 0, 1024)
    said["launch of 1025 threads in clusters of 3 of 4 blocks"] = tried(plain, 4, one(3), 0, 1025)

    for name, function in (("plain", plain), ("fixed", fixed), ("bounded", bounded)):
        for block, shared in ((32, 0), (128, 0), (1024, 0), (128, 40 << 10)):
            for size in (None, 1, 2, 3, 4, 8, 16):
                said[f"active clusters of {name}, block {block}, shared {shared}, size {size}"] = clusters(driver, function, 240, block, shared, size)
            said[f"potential cluster of {name}, block {block}, shared {shared}"] = potential(driver, function, 240, block, shared)
    said["active clusters of 3 blocks, size 2"] = clusters(driver, plain, 3, 128, 0, 2)
    said["active clusters of no threads"] = clusters(driver, plain, 4, 0, 0, 2)
    said["active clusters with too much shared memory"] = clusters(driver, plain, 4, 128, 200 << 10, 2)

    said["set shared memory"] = put(driver, plain, MAX_DYNAMIC, 227 << 10)
    for shared in (100 << 10, 227 << 10):
        for size in (1, 2, 4, 8):
            said[f"active clusters of plain, block 128, shared {shared}, size {size}"] = clusters(driver, plain, 240, 128, shared, size)
        said[f"launch with shared {shared} in clusters of 8"] = tried(plain, 16, one(8), shared, 128)
    for value in (-1, 2, 7, 1):
        said[f"set non-portable {value}"] = put(driver, plain, NON_PORTABLE, value)
    for size in (8, 9, 12, 16, 17, 18, 32):
        said[f"launch in clusters of {size}, non-portable"] = tried(plain, size * 4, one(size))
        said[f"active clusters, non-portable, size {size}"] = clusters(driver, plain, size * 4, 128, 0, size)
    for shared in (0, 227 << 10):
        said[f"active clusters, non-portable, shared {shared}, size 16"] = clusters(driver, plain, 160, 128, shared, 16)
        said[f"potential cluster, non-portable, shared {shared}"] = potential(driver, plain, 160, 128, shared)
    said["active clusters, non-portable, block 1024, size 16"] = clusters(driver, plain, 160, 1024, 0, 16)
    said["launch with 227 KiB in clusters of 16"] = tried(plain, 32, one(16), 227 << 10, 128)

    said["set width of a fixed kernel to 2"] = put(driver, fixed, WIDTH, 2)
    said["set width of a fixed kernel to 4"] = put(driver, fixed, WIDTH, 4)
    said["set width to -1"] = put(driver, plain, WIDTH, -1)
    said["set width to 4"] = put(driver, plain, WIDTH, 4)
    said["attributes with width alone"] = [get(driver, plain, w) for w in (MUST_BE_SET, WIDTH, HEIGHT, DEPTH)]
    said["launch of 6 blocks with width 4 alone"] = tried(plain, 6, [])
    said["launch of 8 blocks with width 4 alone"] = tried(plain, 8, [])
    said["set height to 1"] = put(driver, plain, HEIGHT, 1)
    said["set depth to 1"] = put(driver, plain, DEPTH, 1)
    said["launch of 6 blocks with 4,1,1 set"] = tried(plain, 6, [])
    said["launch of 8 blocks with 4,1,1 set"] = tried(plain, 8, [])
    said["launch of 6 blocks with 4,1,1 set in clusters of 2"] = tried(plain, 6, one(2))
    for value in (3, 7, -1, 1):
        said[f"set policy {value}"] = put(driver, plain, FUNC_POLICY, value)
    said["attributes at the end"] = [get(driver, plain, w) for w in (MUST_BE_SET, WIDTH, HEIGHT, DEPTH, NON_PORTABLE, FUNC_POLICY)]

    said.update(ask_graph(driver, bounded, y))
    numbers = f("numbers")
    for size in (1, 2, 4):
        code = tried(numbers, 8, one(size))
        got = driver.back(y, np.zeros(8 * 16, np.uint32)).reshape(8, 16).tolist()
        said[f"numbers in clusters of {size}"] = got if code == 0 else f"code {code}"
    code = tried(numbers, 2, [])
    got = driver.back(y, np.zeros(2 * 16, np.uint32)).reshape(2, 16).tolist()
    said["numbers without clusters"] = got if code == 0 else f"code {code}"
    return said


def ask_graph(driver, function, y):
    said = {}
    graph, node = c.c_void_p(), c.c_void_p()
    driver.must("cuGraphCreate", c.byref(graph), 0)
    arguments = (c.c_void_p * 1)(c.cast(c.pointer(y), c.c_void_p))
    params = NodeParams(function, 6, 1, 1, 32, 1, 1, 0, c.cast(arguments, c.c_void_p), None, None, None)
    driver.must("cuGraphAddKernelNode_v2", c.byref(node), graph, None, c.c_size_t(0), c.byref(params))

    def attribute(which, value):
        slot = (c.c_uint * 16)(*value)
        return driver.call("cuGraphKernelNodeSetAttribute", node, which, c.byref(slot))

    def read(which, count):
        slot = (c.c_uint * 16)(*[77] * 16)
        code = driver.call("cuGraphKernelNodeGetAttribute", node, which, c.byref(slot))
        return list(slot)[:count] if code == 0 else f"code {code}"

    said["node's cluster before"] = read(CLUSTER, 3)
    said["node's policy before"] = read(POLICY, 1)
    said["node's preferred cluster before"] = read(PREFERRED, 3)
    said["set a node's cluster to 2"] = attribute(CLUSTER, three(2))
    said["node's cluster then"] = read(CLUSTER, 3)
    said["set a node's cluster to 4 of 6"] = attribute(CLUSTER, three(4))
    said["node's cluster after"] = read(CLUSTER, 3)
    said["set a node's policy to 1"] = attribute(POLICY, (1,))
    said["node's policy after"] = read(POLICY, 1)
    said["set a node's policy to 9"] = attribute(POLICY, (9,))
    run = c.c_void_p()
    code = driver.call("cuGraphInstantiateWithFlags", c.byref(run), graph, c.c_ulonglong(0))
    said["instantiate with clusters"] = code
    if code == 0:
        said["launch of a graph with clusters"] = driver.call("cuGraphLaunch", run, None) or driver.synchronise()
    return said


FAULTS = {"to_exited": 2, "to_no_rank": 2, "past_the_end": 2, "askew": 2}


def fault(driver, module, name):
    function = driver.function(module, name)
    y = driver.memory(np.zeros(64, np.uint32))
    return driver.launch(function, 2, 32, (y,), 0, [(CLUSTER, three(FAULTS[name]))]) or driver.synchronise()


# ---- the command -----------------------------------------------------------------------------


def found(pattern, what):
    names = sorted(glob.glob(pattern))
    if not names:
        raise SystemExit(f"no {what} at {pattern}")
    return names[-1]


def run(options):
    nvrtc = options.nvrtc or found(f"{options.cuda}/lib64/libnvrtc.so*", "NVRTC")
    include = options.include or [f"{options.cuda}/include", f"{options.cuda}/include/cccl"]
    builtins = glob.glob(str(pathlib.Path(nvrtc).parent / "libnvrtc-builtins.so*"))
    if builtins:
        c.CDLL(sorted(builtins)[-1], mode=c.RTLD_GLOBAL)
    driver = Driver(options.libcuda)
    probes = driver.module(compiled(nvrtc, PROBES, "probes.cu", include))
    if options.fault:
        print(json.dumps(fault(driver, probes, options.fault)))
        return 0
    answer = {"kernels": {}, "driver": {}}
    programs = driver.module(compiled(nvrtc, PROGRAMS.read_text(), "hopper_clusters.cu", include))
    answer["kernels"] = run_kernels(driver, programs)
    answer["driver"] = ask(driver, probes, driver.module(PTX.encode() + b"\0"))
    for name in FAULTS:
        command = [sys.executable, str(HERE), *sys.argv[1:], "--fault", name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
            answer["driver"][f"fault {name}"] = json.loads(done.stdout.strip().splitlines()[-1])
        except (subprocess.TimeoutExpired, json.JSONDecodeError, IndexError) as error:
            answer["driver"][f"fault {name}"] = f"no answer: {type(error).__name__}"
    text = json.dumps(answer, indent=1)
    if options.out:
        pathlib.Path(options.out).write_text(text + "\n")
    else:
        print(text)
    wrong = {name: what for name, what in answer["kernels"].items() if what != "right"}
    for name, what in wrong.items():
        print(f"{name}: {what}", file=sys.stderr)
    return 1 if wrong else 0


def compare(options):
    a, b = (json.loads(pathlib.Path(p).read_text()) for p in (options.a, options.b))
    different = 0
    for part in ("kernels", "driver"):
        for question in dict.fromkeys([*a[part], *b[part]]):
            x, y = a[part].get(question), b[part].get(question)
            if x != y:
                different += 1
                print(f"{question}: {json.dumps(x)} | {json.dumps(y)}")
    print(f"{different} answers differ")
    return 1 if different else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("--out")
    one.add_argument("--cuda", default=os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    one.add_argument("--libcuda", default="libcuda.so.1")
    one.add_argument("--nvrtc")
    one.add_argument("--include", action="append")
    one.add_argument("--fault", choices=FAULTS, help=argparse.SUPPRESS)
    two = commands.add_parser("compare")
    two.add_argument("a")
    two.add_argument("b")
    options = parser.parse_args()
    return run(options) if options.command == "run" else compare(options)


if __name__ == "__main__":
    sys.exit(main())
