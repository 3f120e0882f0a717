#!/usr/bin/env bash
# PyECLib decodes fragments of another Reed-Solomon code to wrong bytes without an error, and never
# compares the checksum that it writes with inline_crc32, even if it is asked to check.
#
# Version: pyeclib 1.8.0 with liberasurecode and ISA-L in its wheel; codes of 4 data and 2 parity.
# Expected: a fragment's header (80 bytes with the code's number and version, the lengths and, with
# chksum_type="inline_crc32", a CRC of the payload) is compared with the driver and the payload;
# decode() raises or takes other fragments, at least with force_metadata_checks=True.
# Seen: of isa_l_rs_vand, isa_l_rs_vand_inv, isa_l_rs_cauchy and liberasurecode_rs_vand each decodes
# each other's fragments: right with all data fragments there, wrong with two lost. With one lost
# isa_l_rs_vand and liberasurecode_rs_vand are right for each other (their first parity is the
# exclusive or), so a test that loses one fragment passes. force_metadata_checks=True refuses them.
# It lets pass a changed bit of a payload, with inline_crc32 and without, though sound fragments
# enough are there; and it makes one file of fragments of two files of one length.
# For us: what decodes has to check for itself. Our blocks have a code that differs by block (MASK
# in crates/vramfs, code.rs) and checksums that are compared first, so neither is mistaken there.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile 'pyeclib==1.8.0'
"$work/venv/bin/python" - <<'END'
import sys
from pyeclib.ec_iface import ECDriver

names = ["isa_l_rs_vand", "isa_l_rs_vand_inv", "isa_l_rs_cauchy", "liberasurecode_rs_vand"]
data = bytes(index * index * 7 % 251 for index in range(1000))
other = bytes(255 - it for it in data)
make = lambda name, **more: ECDriver(k=4, m=2, ec_type=name, **more)


def result(driver, fragments, **options):
    try:
        decoded = driver.decode(fragments, **options)
    except Exception as error:
        return type(error).__name__
    return "right" if decoded == data else "wrong"


changed = []


def row(what, seen, wanted):
    print(f"{what:74} {seen}")
    if seen != wanted:
        changed.append(what)


alike = {"isa_l_rs_vand", "liberasurecode_rs_vand"}
refused = "ECInsufficientFragments"
for written in names:
    fragments = make(written).encode(data)
    for read in names:
        parts = (fragments[:4], fragments[1:5], fragments[2:])
        seen = [result(make(read), it) for it in parts]
        seen.append(result(make(read), parts[2], force_metadata_checks=True))
        one = "right" if written == read or {written, read} == alike else "wrong"
        two, checked = ("right", "right") if written == read else ("wrong", refused)
        row(f"{written} by {read}: 0, 1, 2 lost, 2 checked", seen, ["right", one, two, checked])
for kind in ("none", "inline_crc32"):
    driver = make("isa_l_rs_cauchy", chksum_type=kind)
    fragments = driver.encode(data)
    damaged = bytearray(fragments[1])
    damaged[100] ^= 1
    for checks in (False, True):
        seen = result(driver, [fragments[0], bytes(damaged), *fragments[2:5]], force_metadata_checks=checks)
        row(f"a changed bit, checksum {kind}, checks {checks}", seen, "wrong")
driver = make("isa_l_rs_cauchy")
first, second = driver.encode(data), driver.encode(other)
mixed = driver.decode([*first[:2], *second[2:4]], force_metadata_checks=True)
half = len(data) // 2
row("two fragments of each of two files", mixed == data[:half] + other[half:], True)
if changed:
    sys.exit(f"changed: {changed}")
END
