"""Decode step of gated DeltaNet: update of the convolution's state, and of the recurrent state.

Both change their state in place; a barrier separates its loads from its stores.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from .early import begin_early


@triton.jit
def conv_update(
    x, state, weight, bias, y, channels, blocks_per_batch, x_batch, x_channel,
    HAS_BIAS: tl.constexpr, HAS_SILU: tl.constexpr,
    WIDTH: tl.constexpr, STATE: tl.constexpr, BLOCK: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    """A token is appended to the last `STATE` of each channel, and the last `WIDTH` are weighed."""
    begin_early(IS_EARLY)
    kind = y.dtype.element_ty
    batch = (tl.program_id(0) // blocks_per_batch).to(tl.int64)
    channel = (tl.program_id(0) % blocks_per_batch).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_inside = channel < channels
    token = tl.load(x + batch * x_batch + channel * x_channel, mask=is_inside, other=0.0)
    past = state + (batch * channels + channel) * STATE
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for i in tl.static_range(WIDTH - 1):
        old = tl.load(past + STATE + 1 - WIDTH + i, mask=is_inside, other=0.0).to(tl.float32)
        total += old * tl.load(weight + channel * WIDTH + i, mask=is_inside, other=0.0).to(tl.float32)
    last = tl.load(weight + channel * WIDTH + WIDTH - 1, mask=is_inside, other=0.0)
    total += token.to(tl.float32) * last.to(tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + channel, mask=is_inside, other=0.0).to(tl.float32)
    result = total.to(kind)
    if HAS_SILU:
        z = result.to(tl.float32)
        result = tl.math.div_rn(z, 1.0 + tl.exp(-z)).to(kind)
    tl.store(y + batch * channels + channel, result, mask=is_inside)
    for i in tl.static_range(STATE - 1):
        moved = tl.load(past + i + 1, mask=is_inside, other=0.0)
        tl.debug_barrier()
        tl.store(past + i, moved, mask=is_inside)
    tl.debug_barrier()
    tl.store(past + STATE - 1, token, mask=is_inside)


@triton.jit
def gated_delta_step(
    q, k, v, a, b, a_log, dt_bias, state, y, heads, heads_per_key, blocks_per_head,
    q_batch, q_head, k_batch, k_head, v_batch, v_head, a_batch, b_batch, keys, values, root,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    """`BLOCK_V` columns of a head's state decay, are corrected towards the value, and are read."""
    begin_early(IS_EARLY)
    job = tl.program_id(0).to(tl.int64)
    block, job = job % blocks_per_head, job // blocks_per_head
    head, batch = job % heads, job // heads
    row = tl.arange(0, BLOCK_K)
    column = block * BLOCK_V + tl.arange(0, BLOCK_V)
    is_row, is_column = row < keys, column < values
    key_head = head // heads_per_key
    query = tl.load(q + batch * q_batch + key_head * q_head + row, mask=is_row, other=0.0).to(tl.float32)
    key = tl.load(k + batch * k_batch + key_head * k_head + row, mask=is_row, other=0.0).to(tl.float32)
    value = tl.load(v + batch * v_batch + head * v_head + column, mask=is_column, other=0.0).to(tl.float32)
    query = tl.math.div_rn(query * tl.rsqrt(tl.sum(query * query, axis=0) + 1e-6), root)
    key = key * tl.rsqrt(tl.sum(key * key, axis=0) + 1e-6)
    x = tl.load(a + batch * a_batch + head).to(tl.float32) + tl.load(dt_bias + head).to(tl.float32)
    step = tl.where(x > 20.0, x, libdevice.log1p(libdevice.exp(tl.minimum(x, 20.0))))
    decay = libdevice.exp(-libdevice.exp(tl.load(a_log + head).to(tl.float32)) * step)
    rate = tl.math.div_rn(1.0, 1.0 + tl.exp(-tl.load(b + batch * b_batch + head).to(tl.float32)))
    rate = rate.to(b.dtype.element_ty).to(tl.float32)
    at = state + (job * keys + row[:, None]) * values + column[None, :]
    is_inside = is_row[:, None] & is_column[None, :]
    memory = tl.load(at, mask=is_inside, other=0.0).to(tl.float32) * decay
    tl.debug_barrier()
    change = (value - tl.sum(memory * key[:, None], axis=0)) * rate
    memory += key[:, None] * change[None, :]
    tl.store(at, memory.to(state.dtype.element_ty), mask=is_inside)
    result = tl.sum(memory * query[:, None], axis=0)
    tl.store(y + job * values + column, result.to(y.dtype.element_ty), mask=is_column)
