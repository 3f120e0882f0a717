#!/usr/bin/env bash
# crcmod with the catalogue's parameters of CRC-32C computes another checksum: its initCrc is the
# register AFTER the final XOR, and so is its default.
#
# Versions: crcmod 1.7, google-crc32c 1.9.0, crc32c 2.9.post0.
# Expected: mkCrcFun(0x11EDC6F41, initCrc=0xFFFFFFFF, rev=True, xorOut=0xFFFFFFFF), which is what
# every catalogue of CRCs lists (init, refin, refout, xorout), is CRC-32C: e3069283 for "123456789".
# Seen: a71c05df, and the same with initCrc left to its default. initCrc=0 gives e3069283. The
# library's own table of named CRCs therefore says initCrc 0 for CRC-32C, and for all algorithms
# that have a final XOR it differs from the catalogues.
# Why: the argument doubles as the previous checksum when data come in pieces, so it is stored as a
# finished checksum is.
# For us: take "crc-32c" by name or check the nine digits before a checksum goes into a format; a
# file made with the wrong start verifies against itself for ever.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'setuptools==80.9.0' 'wheel==0.45.1'
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-build-isolation 'crcmod==1.7'
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'google-crc32c==1.9.0' 'crc32c==2.9.post0'
"$work/venv/bin/python" - <<'END'
import sys
import crc32c, crcmod, crcmod.predefined, google_crc32c

digits = b"123456789"
polynomial = 0x11EDC6F41
seen = {
    "google_crc32c": google_crc32c.value(digits),
    "crc32c": crc32c.crc32c(digits),
    "crcmod, by name": crcmod.predefined.mkCrcFun("crc-32c")(digits),
    "crcmod, initCrc=0": crcmod.mkCrcFun(polynomial, initCrc=0, rev=True, xorOut=0xFFFFFFFF)(digits),
    "crcmod, initCrc=0xffffffff": crcmod.mkCrcFun(polynomial, initCrc=0xFFFFFFFF, rev=True, xorOut=0xFFFFFFFF)(digits),
    "crcmod, initCrc by default": crcmod.mkCrcFun(polynomial, rev=True, xorOut=0xFFFFFFFF)(digits),
}
for name, value in seen.items():
    print(f"{name:28} {value:08x}")
values = list(seen.values())
if values[:4] != [0xE3069283] * 4 or values[4:] != [0xA71C05DF] * 2:
    sys.exit("changed")
END
