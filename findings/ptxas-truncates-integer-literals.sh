#!/usr/bin/env bash
# ptxas cuts an integer literal to the operand's size in silence, and computes 32-bit constant
# expressions in 64 bits, so -1U >> 1 is 0xffffffff.
#
# Versions: nvidia-cuda-nvcc 13.5.37 (ptxas), nvidia-cuda-nvdisasm 13.5.37.
# Expected: an assembler refuses, or at least warns of, a literal that does not fit the operand;
# (-1U >> 1) in a mov.b32 is 0x7fffffff as in C.
# Seen: mov.b32 of 0x1FFFFFFFF stores 0xffffffff, of 4294967297 stores 1, of -2147483649 stores
# 0x7fffffff, st.u8 of 300 stores 44: status 0 and not one message. -1U >> 1 stores 0xffffffff,
# since U means unsigned 64 bits. Yet floats are checked: mov.f32 refuses the integer 1 and refuses
# 1e400 ("Constant overflow"), and a minus before a hexadecimal float is a syntax error although it
# is none before a decimal one.
# For us: a PTX parser that refuses wide literals refuses PTX that NVIDIA's assembler accepts; one
# that evaluates constant expressions in 32 bits assembles another number. Parse to 64 bits, cut at
# the instruction, and report the cut as a lint.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'nvidia-cuda-nvcc==13.5.37' 'nvidia-cuda-nvdisasm==13.5.37'
"$work/venv/bin/python" - "$work" <<'END'
import pathlib, re, subprocess, sys, sysconfig

work = pathlib.Path(sys.argv[1])
programs = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "bin"


def assemble(body):
    """The stored register's constant, or the assembler's error; messages count as a change."""
    (work / "k.ptx").write_text(f""".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p) {{
  .reg .b64 %q<3>; .reg .b32 %r<3>; .reg .f32 %f<3>;
  ld.param.u64 %q1, [p]; cvta.to.global.u64 %q2, %q1;
  {body} ret; }}""")
    done = subprocess.run([programs / "ptxas", "-arch=sm_80", work / "k.ptx", "-o", work / "k.cubin"],
                          capture_output=True, text=True)
    messages = (done.stdout + done.stderr).strip()
    if done.returncode:
        return "refused: " + messages.splitlines()[0].split(";", 1)[1].split(":", 1)[1].strip()
    if messages:
        return "accepted with a message: " + messages
    code = subprocess.run([programs / "nvdisasm", "-c", work / "k.cubin"],
                          check=True, capture_output=True, text=True).stdout
    register = re.search(r"STG\.E(?:\.U8)? \[.*\], (\w+)", code).group(1)
    if register == "RZ":
        return 0
    return int(re.search(r"MOV(?:\.U32)? %s,(?: RZ, RZ,)? (-?0x\w+)" % register, code).group(1), 16) & 0xFFFFFFFF


wanted = {
    "mov.b32 %r1, 0x1FFFFFFFF; st.global.b32 [%q2], %r1;": 0xFFFFFFFF,
    "mov.b32 %r1, 4294967297; st.global.b32 [%q2], %r1;": 1,
    "mov.b32 %r1, -2147483649; st.global.b32 [%q2], %r1;": 0x7FFFFFFF,
    "st.global.u8 [%q2], 300;": 44,
    "mov.b32 %r1, -1U >> 1; st.global.b32 [%q2], %r1;": 0xFFFFFFFF,
    "mov.b32 %r1, (1 << 33) >> 33; st.global.b32 [%q2], %r1;": 1,
    "mov.f32 %f1, 1.0; st.global.f32 [%q2], %f1;": 0x3F800000,
    "mov.f32 %f1, -1.0; st.global.f32 [%q2], %f1;": 0xBF800000,
    "mov.f32 %f1, 1; st.global.f32 [%q2], %f1;": "refused",
    "mov.f32 %f1, 1e400; st.global.f32 [%q2], %f1;": "refused",
    "mov.f32 %f1, -0f3F800000; st.global.f32 [%q2], %f1;": "refused",
}
changed = []
for body, value in wanted.items():
    seen = assemble(body)
    text = hex(seen) if isinstance(seen, int) else seen
    print(f"{body.split(';')[0]:32} -> {text}")
    if (seen != value) if isinstance(value, int) else not str(seen).startswith(value):
        changed.append(body.split(";")[0])
if changed:
    sys.exit(f"changed: {changed}")
END
