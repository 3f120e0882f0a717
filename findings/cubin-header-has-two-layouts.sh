#!/usr/bin/env bash
# One ptxas 12.9 writes two layouts of a cubin's ELF header: the architecture lies in the low byte
# of e_flags for sm_90 and in the second byte for sm_100; CUDA 13 uses the second layout for all.
#
# Versions: nvidia-cuda-nvcc-cu12 12.9.86 and nvidia-cuda-nvcc 13.5.37 (ptxas of both).
# Expected: e_machine 190 (EM_CUDA) fixes what e_flags means, or at least a compiler release does.
# Seen: ptxas 12.9 for sm_75 to sm_90: OSABI 51, ABI version 7, e_version 129, e_flags & 0xff = SM.
# ptxas 12.9 for sm_100 and sm_120, and ptxas 13.5 for every architecture: OSABI 65, ABI version 8,
# e_version 1, (e_flags >> 8) & 0xff = SM, and the low byte holds something else (2 or 4 here).
# A reader that takes the low byte of e_flags sees "sm_4" in a CUDA 13 cubin for sm_90; one that
# decides by the compiler's release is wrong for 12.9.
# For us: what reads cubins (which kernel fits which device, caches keyed by architecture) must look
# at EI_OSABI and EI_ABIVERSION first, and refuse a pair that it does not know.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'nvidia-cuda-nvcc-cu12==12.9.86' 'nvidia-cuda-nvcc==13.5.37'
"$work/venv/bin/python" - "$work" <<'END'
import pathlib, struct, subprocess, sys, sysconfig

work = pathlib.Path(sys.argv[1])
packages = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia"
assemblers = {"12.9": packages / "cuda_nvcc/bin/ptxas", "13.5": packages / "cu13/bin/ptxas"}
(work / "k.ptx").write_text(""".version 8.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 p) { ret; }
""")
changed = []
for release, assembler in assemblers.items():
    for sm in (75, 80, 90, 100, 120):
        subprocess.run([assembler, f"-arch=sm_{sm}", work / "k.ptx", "-o", work / "k.cubin"], check=True)
        data = (work / "k.cubin").read_bytes()
        machine, version = struct.unpack_from("<HI", data, 18)
        flags = struct.unpack_from("<I", data, 48)[0]
        old = release == "12.9" and sm < 100
        print(f"ptxas {release} sm_{sm:<3} OSABI {data[7]} ABI {data[8]} e_machine {machine} "
              f"e_version {version:3} e_flags {flags:#010x}: low byte {flags & 255:3}, next byte {flags >> 8 & 255:3}")
        if old and (data[7], data[8], version, flags & 255) != (51, 7, 129, sm):
            changed.append((release, sm))
        if not old and ((data[7], data[8], version, flags >> 8 & 255) != (65, 8, 1, sm) or flags & 255 == sm):
            changed.append((release, sm))
        if machine != 190:
            changed.append((release, sm, "e_machine"))
if changed:
    sys.exit(f"changed: {changed}")
END
