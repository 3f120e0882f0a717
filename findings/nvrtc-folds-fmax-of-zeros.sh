#!/usr/bin/env bash
# NVRTC computes fmaxf(-0.0f, 0.0f) of constants as -0, the instruction it would emit gives +0.
#
# Versions: nvidia-cuda-nvrtc 13.5.37, nvidia-cuda-nvcc 13.5.37 (ptxas), nvidia-cuda-nvdisasm
# 13.5.37.
# Expected: the PTX ISA orders zeros in min and max (+0.0 > -0.0), so fmaxf of the two zeros is +0
# and fminf is -0 in either order of the arguments, whether the compiler or the device computes it.
# Seen: NVRTC folds fmaxf and fminf of constants before it writes PTX and returns the FIRST
# argument when the two compare equal. fmaxf(-0, +0) is -0, fminf(+0, -0) is +0, also for double.
# ptxas folds the same max.f32 and min.f32 with the order of the PTX ISA. So a kernel stores
# different bits for the same two values once they come from memory.
# For us: a bit-exact comparison of a kernel with a host reference must feed zeros as arguments of
# the kernel; a software device that follows the PTX ISA is right and still differs from a kernel
# whose zeros are literals. Our own constant folding must follow the instruction.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'nvidia-cuda-nvrtc==13.5.37' 'nvidia-cuda-nvcc==13.5.37' 'nvidia-cuda-nvdisasm==13.5.37'
"$work/venv/bin/python" - "$work" <<'END'
import ctypes, pathlib, re, subprocess, sys, sysconfig

work = pathlib.Path(sys.argv[1])
toolkit = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13"
nvrtc = ctypes.CDLL(str(next(toolkit.glob("lib/libnvrtc.so.*"))))


def compile_to_ptx(source):
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"k.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=sm_90")
    assert nvrtc.nvrtcCompileProgram(program, 1, options) == 0, "NVRTC refused the source"
    size = ctypes.c_size_t()
    assert nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetPTX(program, text) == 0
    return text.value.decode()


def folded(expression):
    ptx = compile_to_ptx('extern "C" __global__ void k(float* o) { *o = %s; }' % expression)
    assert not re.search(r"\b(min|max)\.f", ptx), "not folded"
    return int(re.search(r"mov\.\w32\s+%r\d+, (-?\d+);", ptx).group(1)) & 0xFFFFFFFF


def assembled(operation, a, b):
    ptx = f""".version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p) {{
  .reg .b64 %q<3>; .reg .f32 %f<4>;
  ld.param.u64 %q1, [p]; cvta.to.global.u64 %q2, %q1;
  mov.f32 %f1, {a}; mov.f32 %f2, {b}; {operation} %f3, %f1, %f2;
  st.global.f32 [%q2], %f3; ret; }}"""
    (work / "k.ptx").write_text(ptx)
    subprocess.run([toolkit / "bin/ptxas", "-arch=sm_90", work / "k.ptx", "-o", work / "k.cubin"], check=True)
    code = subprocess.run([toolkit / "bin/nvdisasm", "-c", work / "k.cubin"],
                          check=True, capture_output=True, text=True).stdout
    assert "FMNMX" not in code, "not folded"
    stored = re.search(r"STG\.E \S+, (\w+)", code) or re.search(r"STG\.E .*\], (\w+)", code)
    register = stored.group(1)
    if register == "RZ":
        return "+0"
    move = [line for line in code.splitlines() if re.search(r"\b%s, -RZ, RZ, -0\.0 , 0 ;" % register, line)]
    return "-0" if move else "another value"


name = {0x80000000: "-0", 0: "+0"}
wanted = {"fmaxf(-0.0f, 0.0f)": "-0", "fmaxf(0.0f, -0.0f)": "+0",
          "fminf(-0.0f, 0.0f)": "-0", "fminf(0.0f, -0.0f)": "+0"}
seen = {expression: name.get(folded(expression), "another value") for expression in wanted}
for expression, value in seen.items():
    print(f"NVRTC: {expression:20} = {value}")
instructions = {}
for operation in ("max.f32", "min.f32"):
    for a, b in (("0f80000000", "0f00000000"), ("0f00000000", "0f80000000")):
        value = instructions[operation, a] = assembled(operation, a, b)
        print(f"ptxas: {operation} {'-0' if a[2] == '8' else '+0'}, {'-0' if b[2] == '8' else '+0'}     = {value}")
if seen != wanted:
    sys.exit(f"changed: NVRTC folds to {seen}")
if set(instructions.values()) != {"+0", "-0"} or any(
        value != ("+0" if operation == "max.f32" else "-0") for (operation, _), value in instructions.items()):
    sys.exit(f"changed: ptxas folds to {instructions}")
END
