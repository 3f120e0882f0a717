"""Decodes words of the filesystem's code with reedsolo, and compares the results with those of our decoder.

Reads records from standard input, as oracle.rs writes them; the names of their classes are the arguments. What a
block's mask is comes from docs/vramfs-format.md. Prints a line a class, and ends with 1 if any word disagrees.

A word agrees if
- ours is corrected, and it is what reedsolo decodes, which is what was sent;
- ours is lost, and reedsolo decodes nothing, or another word than what was sent;
- there was no record: ours is corrected exactly if reedsolo corrects no more than three symbols, and to the same.
"""

from __future__ import annotations

import collections
import multiprocessing
import os
import struct
import sys

import reedsolo

ROWS, DATA = 136, 128
HEAD = struct.Struct("<QQIBBBB")
RECORD = HEAD.size + 4 * ROWS
BATCH = 1000

# Roots alpha^-4 .. alpha^3: those from the exponent 251 on, of 255.
CODEC = reedsolo.RSCodec(nsym=8, nsize=ROWS, fcr=251, prim=0x11D, generator=2, c_exp=8)
A, B, C = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15
MASK64 = (1 << 64) - 1


def factor(number: int, generation: int, lane: int) -> int:
    x = ((number * A + generation) * B + (lane + 1) * C) & MASK64
    x = (x ^ x >> 30) * A & MASK64
    x = (x ^ x >> 27) * B & MASK64
    return 1 + (x ^ x >> 31) % 255


def decoded(word: bytes, erased: list[int]) -> bytes | None:
    try:
        return bytes(CODEC.decode(word, erase_pos=erased)[1])
    except reedsolo.ReedSolomonError:
        return None


def verdict(record: bytes) -> tuple[int, str]:
    number, generation, word, is_lost, has_record, is_alone, kind = HEAD.unpack_from(record)
    f = factor(number, generation, word // 32)
    mask = bytes(DATA) + bytes(reedsolo.gf_mul(i + 1, f) for i in range(ROWS - DATA))

    def unmasked(part: int) -> bytes:
        at = HEAD.size + part * ROWS
        return bytes(a ^ b for a, b in zip(record[at : at + ROWS], mask))

    sent, received, after = unmasked(0), unmasked(1), unmasked(2)
    erased = [row for row in range(ROWS) if record[HEAD.size + 3 * ROWS + row]]
    if not has_record:
        found = decoded(received, [])
        if found is not None and sum(a != b for a, b in zip(found, received)) > 3:
            found = None
        if not is_lost:
            agrees = after == found
        else:
            agrees = after == received and (found is None or not is_alone)
        how = {sent: "corrected by both", None: "detected by both"}.get(found, "another word to both")
        return kind, ("not alone" if is_lost and found else how) if agrees else "DISAGREE"
    found = decoded(received, erased) if len(erased) <= 8 else None
    if found != sent:
        # Checksums may name the wrong rows.
        found = decoded(received, []) or found
    if not is_lost:
        return kind, "corrected by both" if found == sent == after else "DISAGREE"
    if after != received or (is_alone and found == sent):
        return kind, "DISAGREE"
    if found is None:
        return kind, "detected by both"
    return kind, "not alone" if found == sent else "detected, another word to reedsolo"


def of_batch(batch: bytes) -> collections.Counter:
    return collections.Counter(verdict(batch[at : at + RECORD]) for at in range(0, len(batch), RECORD))


def main() -> int:
    names = sys.argv[1:]
    # PyPy, which decodes sixteen times as fast, only has the machine's processor count.
    processes = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    counts: collections.Counter = collections.Counter()
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        # In large parts: the pool would read all of its input at once.
        while part := sys.stdin.buffer.read(16 * processes * BATCH * RECORD):
            batches = [part[at : at + BATCH * RECORD] for at in range(0, len(part), BATCH * RECORD)]
            for found in pool.imap_unordered(of_batch, batches):
                counts.update(found)
    disagree = 0
    for kind, name in enumerate(names):
        mine = {how: count for (of, how), count in counts.items() if of == kind}
        disagree += mine.get("DISAGREE", 0)
        line = ", ".join(f"{count} {how}" for how, count in sorted(mine.items()))
        print(f"{name:36} {sum(mine.values()):9} words: {line}")
    return 1 if disagree or not counts else 0


if __name__ == "__main__":
    sys.exit(main())
