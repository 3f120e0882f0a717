"""Tile shapes of products of few rows, by job, weights and rows: the one place to tune them.

`tests/gpu/hf_linear.py --sweep` measures the candidates. A program reads `block_n` rows in pieces
of `block_k` columns. A GPU of 4 TB/s needs about 25 KB of loads in flight on each multiprocessor:
a piece of 4 rows by 1024 columns of 16 bits is 8 KB, and at least three such programs run at once.
With `block_k` of 256 columns for each warp (16 bits; 128 of f32) every thread loads 16 bytes of
each row, and values of `x` lie in the threads that need them.
"""

from __future__ import annotations

from typing import NamedTuple


class Tiles(NamedTuple):
    """Rows and columns of a piece, warps of a program, and pieces of an unrolled turn."""

    block_n: int
    block_k: int
    warps: int
    unroll: int


# By job ("linear" or "gate_up"), rows of all weights together (of one of both), and columns: for
# one row of `x` in types of 16 bits.
TABLE: dict[tuple[str, int, int], Tiles] = {
    # An H200: Mistral-7B and Llama-3-8B, then Qwen3.5-4B.
    ("linear", 6144, 4096): Tiles(1, 2048, 8, 1),
    ("linear", 4096, 4096): Tiles(2, 256, 1, 4),
    ("gate_up", 14336, 4096): Tiles(2, 2048, 8, 1),
    ("linear", 4096, 14336): Tiles(4, 2048, 4, 1),
    ("linear", 12352, 2560): Tiles(4, 256, 1, 4),
    ("linear", 10240, 2560): Tiles(4, 256, 1, 4),
    ("linear", 2560, 4096): Tiles(2, 1024, 4, 1),
    ("gate_up", 9216, 2560): Tiles(2, 512, 2, 4),
    ("linear", 2560, 9216): Tiles(2, 1024, 4, 1),
}


def tiles_of(job: str, rows: int, columns: int, m: int, item_bytes: int) -> Tiles:
    """The tiles of a job for `m` rows of `x`."""
    if m == 1 and item_bytes == 2:
        found = TABLE.get((job, rows, columns))
        if found is not None:
            return found
    each = 512 // item_bytes
    # The fewest idle threads in the last piece; of equals the wider.
    warps = min((4, 2), key=lambda it: -columns % (it * each))
    # Sums in registers: 8 columns of each row of the weights for each row of `x`.
    block_n = 4 if m == 1 else 2
    if job == "gate_up" or m > 2:
        block_n //= 2
    return Tiles(block_n, warps * each, warps, 2 if m == 1 else 1)
