#!/usr/bin/env bash
# reedsolo and galois agree on field, polynomial and generator and still write different
# Reed-Solomon parity (first root a^0 or a^1), and galois decodes the other's word as "0 errors".
#
# Versions: reedsolo 1.7.0, galois 0.4.11, numpy 2.4.6, numba 0.68.1.
# Expected: GF(2^8) with x^8 + x^4 + x^3 + x^2 + 1, generator 2, 4 parity bytes, systematic: that
# determines the code, so parity from one library is corrected by the other.
# Seen: the parity of the same 19 bytes differs in every byte. RSCodec(4, fcr=1) or
# ReedSolomon(255, 251, c=0) makes it equal. The two codes share three of four roots, so a word of
# reedsolo has only its last syndrome unequal to zero for galois: detect() finds an error, decode()
# of the same word returns it with 0 errors, where -1 means uncorrectable.
# Why: the first consecutive root is a parameter of its own; textbooks of coding take a^1, the
# "Reed-Solomon for coders" tradition and RAID-6 take a^0.
# For us: the description of an on-device code must name the first root beside polynomial and
# generator, and a cross-check against a library must set it; "0x11d, generator 2" is no format.
# A decoder must compute the syndromes again after it has corrected: "0 errors" proves nothing.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-compile 'reedsolo==1.7.0' 'galois==0.4.11' 'numpy==2.4.6' 'numba==0.68.1' \
    'llvmlite==0.50.0' 'typing_extensions==4.16.0'
"$work/venv/bin/python" - <<'END'
import sys
import galois, numpy as np, reedsolo

data = bytes(range(1, 20))
array = np.frombuffer(data, np.uint8)
parity = lambda word: bytes(bytearray(word))[-4:].hex()
by_galois = galois.ReedSolomon(255, 251)
print("field of galois:", by_galois.field.irreducible_poly, "generator", int(by_galois.alpha))
print("field of reedsolo: 0x%x generator %d" % (reedsolo.RSCodec(4).prim, reedsolo.RSCodec(4).generator))
codes = {
    "reedsolo, default": parity(reedsolo.RSCodec(4).encode(data)),
    "galois, default": parity(by_galois.encode(array)),
    "reedsolo, fcr=1": parity(reedsolo.RSCodec(4, fcr=1).encode(data)),
    "galois, c=0": parity(galois.ReedSolomon(255, 251, c=0).encode(array)),
}
for name, code in codes.items():
    print(f"{name:18} parity {code}")
word = np.frombuffer(bytes(reedsolo.RSCodec(4).encode(data)), np.uint8)
decoded, errors = by_galois.decode(by_galois.field(word), errors=True)
found = bool(by_galois.detect(by_galois.field(word)))
right = bytes(np.asarray(decoded, np.uint8)) == data
print(f"reedsolo's intact word in galois: detect {found}, decode {int(errors)} errors, message {'right' if right else 'wrong'}")
if int(by_galois.field.irreducible_poly) != 0x11D or reedsolo.RSCodec(4).prim != 0x11D:
    sys.exit("changed: another polynomial")
if (codes["reedsolo, default"] == codes["galois, default"]
        or codes["reedsolo, fcr=1"] != codes["galois, default"]
        or codes["reedsolo, default"] != codes["galois, c=0"]):
    sys.exit("changed: the first root")
if not found or int(errors) != 0:
    sys.exit("changed: what galois says of the other's word")
END
