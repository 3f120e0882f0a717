#!/usr/bin/env bash
# ISA-L's Reed-Solomon code of Vandermonde rows, isa_l_rs_vand of liberasurecode, cannot correct
# some losses of 5 or more fragments that its parity is for; the same number of other losses it can.
#
# Versions: pyeclib 1.8.0 with liberasurecode and ISA-L in its wheel; zfec 1.6.0.0 beside it.
# Expected: of k data and m parity fragments any k are enough; that is what Reed-Solomon means, and
# what the driver's documentation promises for m fragments. One code of 4 + 2 is that of another.
# Seen: with k = 8, m = 5 six of the 1287 ways to lose five raise, with m = 6 twenty of 3003. With m
# = 4 none does, up to k = 12, and with k = 4 none up to m = 8. All other ways to lose as many are
# right, so a test of some losses passes. isa_l_rs_cauchy, isa_l_rs_vand_inv and
# liberasurecode_rs_vand correct every loss. The parity of 4 + 2 differs between all four and zfec,
# though all are over GF(256); isa_l_rs_vand and liberasurecode_rs_vand have an equal first one.
# Why: powers of 1, 2, 4 and so on under an identity are no code of the largest distance: a square
# part of those rows can be singular. A Vandermonde matrix has to be reduced first, as zfec does.
# For us: "Reed-Solomon over GF(256)" promises nothing by its name. Our code has its roots in a row
# (crates/vramfs, code.rs), which bounds the distance, and its tests erase up to as many rows as it
# promises; rows of a matrix of any kind would need all losses tried.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'pyeclib==1.8.0' 'zfec==1.6.0.0'
"$work/venv/bin/python" - <<'END'
import itertools, sys
import zfec
from pyeclib.ec_iface import ECDriver

data = bytes(index * index * 7 % 251 for index in range(960))


def failing(name, k, m):
    """How many ways to lose m fragments cannot be corrected, and the first."""
    driver = ECDriver(k=k, m=m, ec_type=name)
    fragments, failed, count = driver.encode(data), [], 0
    for lost in itertools.combinations(range(k + m), m):
        count += 1
        try:
            if driver.decode([it for at, it in enumerate(fragments) if at not in lost]) != data:
                sys.exit(f"changed: {name} {k}+{m} decodes to other bytes after {lost}")
        except Exception:
            failed.append(lost)
    return len(failed), count, failed[:1]


names = ["isa_l_rs_vand", "isa_l_rs_cauchy", "isa_l_rs_vand_inv", "liberasurecode_rs_vand"]
seen = {}
for name, k, m in [*((name, 8, m) for m in (4, 5, 6) for name in names), *(("isa_l_rs_vand", k, 4) for k in (10, 12)),
                   *(("isa_l_rs_vand", 4, m) for m in (5, 6, 7, 8))]:
    seen[name, k, m], count, first = failing(name, k, m)
    print(f"{name:22} {k:2} + {m}: {seen[name, k, m]:2} of {count:4} losses fail {first or ''}")
parity = {name: [it[80:].hex() for it in ECDriver(k=4, m=2, ec_type=name).encode(data)[4:]] for name in names}
parts = [data[at:at + 240] for at in range(0, 960, 240)]
parity["zfec"] = [bytes(it).hex() for it in zfec.Encoder(4, 6).encode(parts)[4:]]
pairs = list(itertools.combinations(sorted(parity), 2))
both = [pair for pair in pairs if parity[pair[0]] == parity[pair[1]]]
first = [pair for pair in pairs if parity[pair[0]][0] == parity[pair[1]][0]]
print("codes with equal parity of 4 + 2:", both, "- with an equal first one:", first)
wanted = {key: {("isa_l_rs_vand", 8, 5): 6, ("isa_l_rs_vand", 8, 6): 20}.get(key, 0) for key in seen}
if seen != wanted:
    sys.exit(f"changed: the losses that fail, {seen}")
if both or first != [("isa_l_rs_vand", "liberasurecode_rs_vand")]:
    sys.exit("changed: which codes have equal parity")
END
