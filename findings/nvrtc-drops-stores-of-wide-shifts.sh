#!/usr/bin/env bash
# NVRTC leaves out the store of x << 32 or x / 0 where it knows the amount: memory keeps what it
# had, and of "if (x >> 32 == 0)" the else is compiled; with an amount from memory both compute.
#
# Version: nvidia-cuda-nvrtc 13.5.37; sm_90, no GPU.
# Expected: some number, as the instructions define one: shl and shr give 0 from 32 on, div and rem
# by 0 all ones; and C++ calls the result undefined, so that a warning stands in the log.
# Seen: o[0] = x << 32, o[1] = x >> 32, o[2] = x / 0 and o[3] = x % 0 have no st.global at all, each
# with a warning; o[4] = x << n and o[5] = x / n beside them are shl.b32 and div.s32, without a test
# of n. In a template "x >> (32 - BITS)" with BITS = 0 it is the same, and a comparison of that with
# 0 takes the branch of unequal. (x & 1) ? 32 : 3 as the amount is a shift again.
# nvrtcCompileProgram returns success.
# Why: the value is poison for LLVM, and a store of poison may be anything, also none.
# For us: fercuda check compiles by NVRTC (crates/cli, check/source.rs), so no instruction is left
# for it to report; NVRTC's log, which it prints, is the one trace. A result that such code was to
# store shows as memory that was never written, or as what a former kernel left there.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile 'nvidia-cuda-nvrtc==13.5.37'
"$work/venv/bin/python" - "$work" <<'END'
import ctypes, glob, re, sys

[path] = glob.glob(sys.argv[1] + "/venv/lib/python3*/site-packages/nvidia/cu13/lib/libnvrtc.so.13")
nvrtc = ctypes.CDLL(path)
source = b"""
extern "C" __global__ void plain(int *o, int x, int n) {
    o[0] = x << 32; o[1] = (unsigned)x >> 32; o[2] = x / 0; o[3] = x % 0; o[4] = x << n; o[5] = x / n;
}
template <int BITS> __device__ unsigned top(unsigned x) { return x >> (32 - BITS); }
extern "C" __global__ void templated(unsigned *o, unsigned x) { o[0] = top<0>(x); o[1] = top<8>(x); }
extern "C" __global__ void branch(unsigned *o, unsigned x) { if (top<0>(x) == 0) o[0] = 1; else o[1] = 2; }
extern "C" __global__ void chosen(unsigned *o, unsigned x) { o[0] = x << ((x & 1) ? 32 : 3); }
"""


def check(status, what):
    if status:
        sys.exit(f"{what} gives {status}")


def text(name):
    size = ctypes.c_size_t()
    check(getattr(nvrtc, f"nvrtcGet{name}Size")(program, ctypes.byref(size)), name)
    data = ctypes.create_string_buffer(size.value)
    check(getattr(nvrtc, f"nvrtcGet{name}")(program, data), name)
    return data.value.decode()


program = ctypes.c_void_p()
check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"k.cu", 0, None, None), "nvrtcCreateProgram")
check(nvrtc.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(b"-arch=sm_90")), "nvrtcCompileProgram")
warnings = re.findall(r"warning #\d+-D: (.*)", text("ProgramLog"))
kernels = {}
for part in text("PTX").split(".visible .entry ")[1:]:
    steps = re.findall(r"^\s*((?:shl|shr|div|rem)\.\w+|st\.global\.\w+\s+\[%rd\d+(?:\+\d+)?\])", part, re.M)
    kernels[part.split("(")[0]] = [re.sub(r"\s*\[%rd\d+(?:\+(\d+))?\]", lambda it: f" o[{int(it[1] or 0) // 4}]", it) for it in steps]
for warning in warnings:
    print("warning:", warning)
for name, steps in kernels.items():
    print(f"{name:10}", ", ".join(steps))
wanted = {
    "plain": ["shl.b32", "st.global.u32 o[4]", "div.s32", "st.global.u32 o[5]"],
    "templated": ["st.global.u32 o[1]"],
    "branch": ["st.global.u32 o[1]"],
    "chosen": ["shl.b32", "st.global.u32 o[0]"],
}
if kernels != wanted:
    sys.exit(f"changed: {[name for name in wanted if kernels.get(name) != wanted[name]]}")
if len(warnings) < 4:
    sys.exit("changed: the warnings")
END
