#!/usr/bin/env bash
# The PTX remainder by zero is all ones, as the quotient is, and not the dividend.
#
# Versions: nvidia-cuda-nvcc 13.5.37 (ptxas), nvidia-cuda-nvdisasm 13.5.37.
# Expected: the PTX ISA calls division by zero machine-specific. On machines that do not trap the
# quotient is all ones (RISC-V) or zero (Arm), and the remainder a - q * b is the dividend.
# Seen: ptxas computes div and rem of 7 by 0 as -1 for signed and unsigned integers of 16, 32 and 64
# bits. For divisors that it does not know it appends an instruction to rem that replaces the
# remainder by the complement of the divisor (LOP3.LUT with table 0x33) where the divisor is 0; the
# identity (a / b) * b + a % b = a does not hold there.
# Why: GPUs have no integer division; ptxas writes a sequence and gives both results one value.
# For us: a software device that returns the dividend hides a division by zero that shows on the GPU
# as an index of 0xffffffff. Return all ones, and report the division: source languages call it
# undefined.
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


def machine_code(operation, element, divisor):
    bits = int(element[1:])
    (work / "k.ptx").write_text(f""".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p) {{
  .reg .b64 %q<3>; .reg .b{bits} %x<4>;
  ld.param.u64 %q1, [p]; cvta.to.global.u64 %q2, %q1;
  ld.global.b{bits} %x1, [%q2]; ld.global.b{bits} %x2, [%q2+{bits // 8}];
  {f"mov.b{bits} %x1, 7;" if divisor == "0" else ""} {operation}.{element} %x3, %x1, {divisor};
  st.global.b{bits} [%q2], %x3; ret; }}""")
    subprocess.run([programs / "ptxas", "-arch=sm_80", work / "k.ptx", "-o", work / "k.cubin"], check=True)
    return subprocess.run([programs / "nvdisasm", "-c", work / "k.cubin"],
                          check=True, capture_output=True, text=True).stdout


def has_no_arithmetic(code):
    return not re.search(r"\b(IMAD(\.HI|\.WIDE)?(\.U32)? R\d+, R\d+|MUFU|I2F|F2I)", code)


changed = []
for element in ("s16", "u16", "s32", "u32", "s64", "u64"):
    for operation in ("div", "rem"):
        code = machine_code(operation, element, "0")
        ones = re.findall(r"(?:MOV(?:\.U32)? R\d+,(?: RZ, RZ,)? (?:0xffffffff|-0x1)) ", code)
        print(f"{operation}.{element} 7, 0: constants {ones} {'and no arithmetic' if has_no_arithmetic(code) else ''}")
        if len(ones) < (2 if element.endswith("64") else 1) or not has_no_arithmetic(code):
            changed.append((operation, element))
for element in ("s32", "u32"):
    code = machine_code("rem", element, "%x2")
    last = [line for line in code.splitlines() if "0x33" in line]
    text = " ".join(last[-1].split(";")[0].split()[1:]) if last else "none"
    print(f"rem.{element} a, b: complement of the divisor where it is 0: {text}")
    if not last or not re.search(r"@!?P\d LOP3\.LUT R\d+, RZ, R\d+, RZ, 0x33", last[-1]):
        changed.append(("complement", element))
if changed:
    sys.exit(f"changed: {changed}")
END
