#!/usr/bin/env bash
# NVRTC's -G switches fused multiply-add off, even if --fmad=true is given too, so a debug build
# computes other numbers; with --dopt=on it is fused again.
#
# Versions: NVRTC and nvdisasm 13.5.37, numpy 2.4.6; sm_90, no GPU.
# Expected: the manual has fmad on by default and -G as generating debug information; arithmetic is
# the same, and an explicit --fmad=true wins.
# Seen: x * a + b is fma.rn.f32 (FFMA) without options, with -lineinfo and with -G --dopt=on. With
# -G, and with -G --fmad=true, it is mul.f32 and add.f32 (FMUL, FADD), so two roundings; with -G
# --fmad=false the two have .rn. x * x - y for x = 1 + 2^-12 and y = 1 + 2^-11 is 0 in the debug
# build and 2^-24 without. -Xptxas -O0, which is another way to unoptimised code, leaves FFMA.
# Why: the front end does not contract when it does not optimise.
# For us: a fault of rounding can vanish under -G. `fercuda check` compiles with line information
# instead (source.rs of crates/cli), so that it runs the arithmetic of the release build.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'nvidia-cuda-nvrtc==13.5.37' 'nvidia-cuda-nvdisasm==13.5.37' 'numpy==2.4.6'
"$work/venv/bin/python" - "$work" <<'END'
import ctypes, glob, re, subprocess, sys
import numpy as np

folder = sys.argv[1]
library, = glob.glob(folder + "/venv/lib/**/libnvrtc.so.13", recursive=True)
nvdisasm, = glob.glob(folder + "/venv/lib/**/bin/nvdisasm", recursive=True)
nvrtc = ctypes.CDLL(library)
SOURCE = b'extern "C" __global__ void k(float* x, float a, float b) { x[0] = x[0] * a + b; }'


def output(program, size, get):
    count = ctypes.c_size_t()
    assert size(program, ctypes.byref(count)) == 0
    text = ctypes.create_string_buffer(count.value)
    assert get(program, text) == 0
    return text.raw


def compiled(*options):
    """The arithmetic of the PTX and of the machine code."""
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE, b"k.cu", 0, None, None) == 0
    options = [b"-arch=sm_90", *(option.encode() for option in options)]
    assert nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)) == 0
    ptx = output(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).decode()
    with open(folder + "/k.cubin", "wb") as file:
        file.write(output(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN))
    code = subprocess.run([nvdisasm, "-c", folder + "/k.cubin"], capture_output=True, text=True, check=True).stdout
    return (sorted(set(re.findall(r"\b(?:fma|mul|add)(?:\.rn)?\.f32", ptx))),
            sorted(set(re.findall(r"\b(?:FFMA|FMUL|FADD)\b", code))))


FUSED = (["fma.rn.f32"], ["FFMA"])
APART = (["add.f32", "mul.f32"], ["FADD", "FMUL"])
rows = [((), FUSED), (("-lineinfo",), FUSED), (("-Xptxas", "-O0"), FUSED), (("-G", "--dopt=on"), FUSED), (("-G",), APART),
        (("-G", "--fmad=true"), APART), (("-G", "--fmad=false"), (["add.rn.f32", "mul.rn.f32"], ["FADD", "FMUL"]))]
changed = []
for options, wanted in rows:
    seen = compiled(*options)
    print(f"{' '.join(options) or 'no options':20} {seen[0]} {seen[1]}")
    if seen != wanted:
        changed.append(options)
x, y = np.float32(1 + 2**-12), np.float32(1 + 2**-11)
apart, fused = float(x * x - y), float(np.float32(float(x) * float(x) - float(y)))
print(f"x * x - y: apart {apart}, fused {fused}")
if changed or (apart, fused) != (0.0, 2.0**-24):
    sys.exit(f"changed: {changed}")
END
