#!/usr/bin/env bash
# mul.f32 and mul.rn.f32 are two instructions: ptxas fuses the first with an add, in f64, f16 and
# bf16 too, and one .rn on either of the two prevents it.
#
# Versions: nvidia-cuda-nvcc 13.5.37 (ptxas), nvidia-cuda-nvdisasm 13.5.37.
# Expected: .rn is the default rounding of mul and add, so writing it changes nothing, and PTX that
# says mul and then add computes two roundings.
# Seen: mul + add become FFMA, DFMA, HFMA2 and HFMA2.BF16, which round once. With .rn on the mul
# alone, or on the add alone, both stay. A product that is also stored stays too, and so does one
# that differs from its add in .ftz. ptxas --fmad=false (a flag of the assembler, not of PTX) keeps
# all apart.
# Why: the PTX ISA leaves an instruction without a rounding modifier to the optimizer; NVRTC's
# --fmad=false therefore writes mul.rn and add.rn.
# For us: an interpreter of PTX cannot be bit-exact with a GPU on mul + add without .rn, and a
# printer that drops a "redundant" .rn changes results. A generator of PTX that wants the same bits
# on every device writes .rn on each mul and add, and fma.rn where it wants one rounding.
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


def machine_code(element, multiply, add, extra="", *flags):
    store = {"f32": "f32", "f64": "f64", "f16": "b16", "bf16": "b16"}[element]
    size = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2}[element]
    (work / "k.ptx").write_text(f""".version 8.6
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p) {{
  .reg .b64 %q<3>; .reg .{store} %x<6>;
  ld.param.u64 %q1, [p]; cvta.to.global.u64 %q2, %q1;
  ld.global.{store} %x1, [%q2]; ld.global.{store} %x2, [%q2+{size}]; ld.global.{store} %x3, [%q2+{2 * size}];
  {multiply}.{element} %x4, %x1, %x2; {add}.{element} %x5, %x4, %x3;
  st.global.{store} [%q2], %x5; {extra} ret; }}""")
    subprocess.run([programs / "ptxas", "-arch=sm_90", *flags, work / "k.ptx", "-o", work / "k.cubin"], check=True)
    code = subprocess.run([programs / "nvdisasm", "-c", work / "k.cubin"],
                          check=True, capture_output=True, text=True).stdout
    return re.findall(r"\b([FDH](?:FMA|MUL|ADD)2?(?:\.BF16\w*)?)(?:\.\w+)* R", code)


also_stored = "st.global.f32 [%q2+4], %x4;"
rows = [
    ("f32", "mul", "add", "", (), 1), ("f64", "mul", "add", "", (), 1),
    ("f16", "mul", "add", "", (), 1), ("bf16", "mul", "add", "", (), 1),
    ("f32", "mul.rn", "add", "", (), 2), ("f32", "mul", "add.rn", "", (), 2),
    ("f64", "mul.rn", "add", "", (), 2), ("f16", "mul.rn", "add", "", (), 2),
    ("bf16", "mul", "add.rn", "", (), 2), ("f32", "mul.ftz", "add", "", (), 2),
    ("f32", "mul", "add", also_stored, (), 2), ("f32", "mul", "add", "", ("--fmad=false",), 2),
]
changed = []
for element, multiply, add, extra, flags, count in rows:
    code = machine_code(element, multiply, add, extra, *flags)
    note = "product also stored" if extra else " ".join(flags)
    print(f"{multiply + '.' + element:11} {add + '.' + element:11} {note:20} -> {' '.join(code)}")
    if len(code) != count:
        changed.append((element, multiply, add, note, code))
if changed:
    sys.exit(f"changed: {changed}")
END
