"""Rotary position embedding of queries and keys in one launch: forward, and its transpose.

A program has `HEADS` heads of one token, of the queries or of the keys. The first and the second
half of the rotated dimensions are pairs; what follows them is copied. With `GRIDS`, the tables have
three grids (time, height, width), of which frequency i is taken from one: the interleaved
multimodal form.
"""

import triton
import triton.language as tl

from .early import begin_early


@triton.jit
def _rotate(
    x, y, token, part, heads, batch, position, x_batch, x_head, x_token, y_batch, y_head, y_token,
    first_cos, first_sin, second_cos, second_sin, half, dims,
    IS_BACKWARD: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    kind = y.dtype.element_ty
    head = part.to(tl.int64) * HEADS + tl.arange(0, HEADS)
    pair = tl.arange(0, HALF)
    is_pair = (head < heads)[:, None] & (pair < half)[None, :]
    source = x + batch * x_batch + position * x_token + head[:, None] * x_head
    target = y + batch * y_batch + position * y_token + head[:, None] * y_head
    a = tl.load(source + pair[None, :], mask=is_pair, other=0.0).to(tl.float32)
    b = tl.load(source + half + pair[None, :], mask=is_pair, other=0.0).to(tl.float32)
    if IS_BACKWARD:
        low, high = (b * second_sin).to(kind), (-(a * first_sin)).to(kind)
    else:
        low, high = (-b * first_sin).to(kind), (a * second_sin).to(kind)
    low = (a * first_cos).to(kind).to(tl.float32) + low.to(tl.float32)
    high = (b * second_cos).to(kind).to(tl.float32) + high.to(tl.float32)
    tl.store(target + pair[None, :], low.to(kind), mask=is_pair)
    tl.store(target + half + pair[None, :], high.to(kind), mask=is_pair)
    if REST > 0:
        column = 2 * half + tl.arange(0, REST)
        is_rest = (head < heads)[:, None] & (column < dims)[None, :]
        kept = tl.load(source + column[None, :], mask=is_rest, other=0.0)
        tl.store(target + column[None, :], kept.to(kind), mask=is_rest)


@triton.jit
def rotary(
    q, k, cos, sin, q_out, k_out, tokens, q_heads, k_heads, half, dims,
    q_batch, q_head, q_token, k_batch, k_head, k_token,
    q_out_batch, q_out_head, q_out_token, k_out_batch, k_out_head, k_out_token,
    cos_grid, cos_batch, cos_token, sin_grid, sin_batch, sin_token, q_parts, parts, height, width,
    GRIDS: tl.constexpr, IS_BACKWARD: tl.constexpr,
    HEADS: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    begin_early(IS_EARLY)
    token = (tl.program_id(0) // parts).to(tl.int64)
    part = tl.program_id(0) % parts
    batch, position = token // tokens, token % tokens
    pair = tl.arange(0, HALF)
    is_pair = pair < half
    of_cos = cos + batch * cos_batch + position * cos_token + pair
    of_sin = sin + batch * sin_batch + position * sin_token + pair
    if GRIDS:
        # Every third frequency, from the second, is of the height's grid, from the third of the
        # width's.
        is_height = (pair % 3 == 1) & (pair < 3 * height)
        is_width = (pair % 3 == 2) & (pair < 3 * width)
        grid = tl.where(is_height, 1, tl.where(is_width, 2, 0)).to(tl.int64)
        of_cos += grid * cos_grid
        of_sin += grid * sin_grid
    first_cos = tl.load(of_cos, mask=is_pair, other=0.0).to(tl.float32)[None, :]
    first_sin = tl.load(of_sin, mask=is_pair, other=0.0).to(tl.float32)[None, :]
    second_cos = tl.load(of_cos + half, mask=is_pair, other=0.0).to(tl.float32)[None, :]
    second_sin = tl.load(of_sin + half, mask=is_pair, other=0.0).to(tl.float32)[None, :]
    if part < q_parts:
        _rotate(
            q, q_out, token, part, q_heads, batch, position, q_batch, q_head, q_token,
            q_out_batch, q_out_head, q_out_token, first_cos, first_sin, second_cos, second_sin,
            half, dims, IS_BACKWARD, HEADS, HALF, REST,
        )  # fmt: skip
    else:
        _rotate(
            k, k_out, token, part - q_parts, k_heads, batch, position, k_batch, k_head, k_token,
            k_out_batch, k_out_head, k_out_token, first_cos, first_sin, second_cos, second_sin,
            half, dims, IS_BACKWARD, HEADS, HALF, REST,
        )  # fmt: skip
