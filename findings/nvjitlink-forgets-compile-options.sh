#!/usr/bin/env bash
# Link-time optimisation forgets how a kernel was compiled: --fmad=false is fused again, --ftz=true
# keeps subnormals, and of --use_fast_math one half stays. The linker's options decide instead.
#
# Versions: nvidia-cuda-nvrtc, nvidia-nvjitlink and nvidia-cuda-nvdisasm 13.5.37; sm_90, no GPU.
# Expected: options that change numbers are a part of the compiled code, as they are without -dlto;
# objects that were compiled differently stay so in one program, or the linker refuses them.
# Seen: NVRTC with --fmad=false makes FMUL and FADD; the same options with -dlto, linked by
# nvJitLink with -lto, make FFMA. --ftz=true makes FFMA.FTZ, after the link FFMA. --prec-div=false
# loses its approximation, too. -ftz=1, -fma=0 and -prec-div=0 of the link bring them about,
# whatever an object was compiled with. After --use_fast_math division and square root stay
# approximations (MUFU.RCP, MUFU.SQRT), while the multiply-add has lost its .FTZ. No messages.
# Why: LTO-IR keeps operations; contraction and flushing are chosen when instructions are.
# For us: two builds of one kernel, with and without LTO, need not agree in a bit. Whatever links
# LTO-IR hands the same options to the linker; ours compiles to PTX and links none (crates/nvrtc).
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'nvidia-cuda-nvrtc==13.5.37' 'nvidia-nvjitlink==13.5.37' 'nvidia-cuda-nvdisasm==13.5.37'
"$work/venv/bin/python" - "$work" <<'END'
import ctypes, glob, re, subprocess, sys

[lib] = glob.glob(sys.argv[1] + "/venv/lib/python3*/site-packages/nvidia/cu13/lib")
nvrtc = ctypes.CDLL(lib + "/libnvrtc.so.13")
linker = ctypes.CDLL(lib + "/libnvJitLink.so.13")
source = b"""extern "C" __global__ void madd(float *o, float a, float b, float c) { *o = a * b + c; }
extern "C" __global__ void quotient(float *o, float a, float b) { *o = a / b; }
extern "C" __global__ void root(float *o, float a) { *o = sqrtf(a); }"""


def check(status, what):
    if status:
        sys.exit(f"{what} gives {status}")


def call(name, *args):
    function = getattr(linker, "__" + name + "_13_5", None) or getattr(linker, name)
    check(function(*args), name)


def texts(options):
    return len(options), (ctypes.c_char_p * len(options))(*[it.encode() for it in options])


def compiled(options, kind):
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"k.cu", 0, None, None), "nvrtcCreateProgram")
    check(nvrtc.nvrtcCompileProgram(program, *texts(["-arch=sm_90", *options])), "nvrtcCompileProgram")
    check(getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)), kind)
    data = ctypes.create_string_buffer(size.value)
    check(getattr(nvrtc, f"nvrtcGet{kind}")(program, data), kind)
    return data.raw


def linked(code, options):
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    call("nvJitLinkCreate", ctypes.byref(handle), *texts(["-arch=sm_90", "-lto", *options]))
    lto_ir = 3
    call("nvJitLinkAddData", handle, lto_ir, code, ctypes.c_size_t(len(code)), b"k")
    call("nvJitLinkComplete", handle)
    call("nvJitLinkGetLinkedCubinSize", handle, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    call("nvJitLinkGetLinkedCubin", handle, data)
    return data.raw


def shape(cubin):
    """The instructions of the multiply-add, and whether quotient and root are exact."""
    with open(sys.argv[1] + "/k.cubin", "wb") as file:
        file.write(cubin)
    text = subprocess.run([lib + "/../bin/nvdisasm", "-c", sys.argv[1] + "/k.cubin"],
                          capture_output=True, text=True, check=True).stdout
    parts = {part.split(",")[0]: part for part in text.split("\t.section\t.text.")[1:]}
    names = re.findall(r"\*/ +(F(?:FMA|MUL|ADD)[.A-Z]*)", parts["madd"])
    exact = lambda name, routine: name if routine in parts[name] else "approximate " + name
    return " ".join(names), exact("quotient", "cuda_sm3x_div_rn"), exact("root", "cuda_sm20_sqrt_rn")


rows = [([], None), (["--fmad=false"], "-fma=0"), (["--ftz=true"], "-ftz=1"),
        (["--prec-div=false"], "-prec-div=0"), (["--use_fast_math"], None)]
seen = {}
for options, link in rows:
    name = " ".join(options) or "no options"
    ways = {"compiled": compiled(options, "CUBIN"), "compiled for LTO, linked": linked(compiled([*options, "-dlto"], "LTOIR"), [])}
    if link:
        ways["compiled without for LTO, linked with " + link] = linked(compiled(["-dlto"], "LTOIR"), [link])
    seen[name] = [shape(it) for it in ways.values()]
    for what, it in zip(ways, seen[name]):
        print(f"{name:17} {what:49} {', '.join(it)}")
exact = ("quotient", "root")
quick = ("approximate quotient", "approximate root")
fused, apart, flushed = ("FFMA", *exact), ("FMUL FADD", *exact), ("FFMA.FTZ", *exact)
rough = ("FFMA", "approximate quotient", "root")
wanted = {
    "no options": [fused, fused],
    "--fmad=false": [apart, fused, apart],
    "--ftz=true": [flushed, fused, flushed],
    "--prec-div=false": [rough, fused, rough],
    "--use_fast_math": [("FFMA.FTZ", *quick), ("FFMA", *quick)],
}
if seen != wanted:
    sys.exit("changed: " + ", ".join(name for name in wanted if seen[name] != wanted[name]))
END
