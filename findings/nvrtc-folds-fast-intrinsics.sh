#!/usr/bin/env bash
# NVRTC replaces __sinf, __expf and __powf of constants by library-quality values, unless --ftz is
# set; arithmetic of constants ignores --ftz.
#
# Version: nvidia-cuda-nvrtc 13.5.37.
# Expected: an intrinsic with two underscores names a hardware instruction (sin.approx.f32,
# ex2.approx.f32), so its value is that of the instruction, and --ftz=true makes subnormal results
# zero.
# Seen: without --ftz, __sinf(1e5f) has no instruction at all: NVRTC stores sin(1e5) rounded to
# f32. The CUDA guide bounds the error of __sinf only within [-pi, pi]; far outside it the
# instruction and this constant may differ in every digit. With --ftz=true (also through
# --use_fast_math) the intrinsic stays an instruction, but 1e-40f * 1.0f is folded to the subnormal
# 1e-40, which a mul.ftz.f32 of the same values would make zero.
# Why: probably the folder of LLVM intrinsics knows sin and exp but not their ftz variants, and
# computes on the host, where nothing is flushed.
# For us: test kernels of approximate functions need their operands from memory. A constant that
# our expression compiler folds must be folded with the flush that the instruction would have.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'nvidia-cuda-nvrtc==13.5.37'
"$work/venv/bin/python" - <<'END'
import ctypes, math, pathlib, re, struct, sys, sysconfig

packages = pathlib.Path(sysconfig.get_paths()["purelib"])
nvrtc = ctypes.CDLL(str(next(packages.glob("nvidia/cu13/lib/libnvrtc.so.*"))))


def stored(expression, *flags):
    """The constant that the kernel stores, or the approximate instruction that computes it."""
    source = 'extern "C" __global__ void k(float* o, float x) { *o = %s; }' % expression
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"k.cu", 0, None, None) == 0
    options = [b"--gpu-architecture=sm_90", *(flag.encode() for flag in flags)]
    assert nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)) == 0
    size = ctypes.c_size_t()
    assert nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetPTX(program, text) == 0
    ptx = text.value.decode()
    instruction = re.search(r"\w+\.(approx|rn|ftz)\S*", ptx.split("{", 1)[1])
    if instruction:
        return instruction.group()
    bits = int(re.search(r"mov\.\w32\s+%r\d+, (-?\d+);", ptx).group(1))
    return struct.unpack("<f", struct.pack("<i", bits))[0]


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


rows = [("__sinf(x)", ()), ("__sinf(1e5f)", ()), ("__sinf(1e5f)", ("--ftz=true",)),
        ("__sinf(1e30f)", ()), ("__expf(1.0f)", ()), ("__powf(2.0f, 0.5f)", ()),
        ("__powf(2.0f, 0.5f)", ("--use_fast_math",)), ("__fdividef(1.0f, 3.0f)", ()),
        ("1e-40f * 1.0f", ("--ftz=true",)), ("x * 1e-40f", ("--ftz=true",))]
seen = {}
for expression, flags in rows:
    seen[expression, flags] = stored(expression, *flags)
    print(f"{expression:24} {' '.join(flags):16} -> {seen[expression, flags]}")

checks = {
    "the variable stays an instruction": str(seen["__sinf(x)", ()]).startswith("sin.approx"),
    "__sinf(1e5f) is the sine": seen["__sinf(1e5f)", ()] == f32(math.sin(1e5)),
    "__sinf(1e30f) is the sine": seen["__sinf(1e30f)", ()] == f32(math.sin(f32(1e30))),
    "with ftz it is an instruction": seen["__sinf(1e5f)", ("--ftz=true",)] == "sin.approx.ftz.f32",
    "__powf is the square root": seen["__powf(2.0f, 0.5f)", ()] == f32(math.sqrt(2)),
    "__fdividef is never folded": seen["__fdividef(1.0f, 3.0f)", ()] == "div.approx.f32",
    "a folded subnormal stays": seen["1e-40f * 1.0f", ("--ftz=true",)] == f32(1e-40),
}
for what, holds in checks.items():
    if not holds:
        sys.exit(f"changed: not so any more: {what}")
END
