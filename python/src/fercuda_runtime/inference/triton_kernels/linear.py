"""Products of one to four rows with weights of linear layers, in f32 sums.

Decoding reads each weight once: a program reads `BLOCK_N` rows of a matrix in pieces of `BLOCK_K`
columns, each thread 16 bytes of each row, and sums at the end. The rows of `x` come from the L2
cache. `M` is the number of rows of `x`; the result of part `i` lies behind those before it, each of
which takes `M` times its rows rounded up to 16.
"""

import triton
import triton.language as tl

from .early import begin_early


@triton.jit
def _wide(pointer, column, columns, IS_EVEN: tl.constexpr):
    """A piece of a row of `x`, as f32."""
    if IS_EVEN:
        values = tl.load(pointer + column)
    else:
        values = tl.load(pointer + column, mask=column < columns, other=0.0)
    return values.to(tl.float32)


@triton.jit
def _weights(pointer, column, columns, IS_EVEN: tl.constexpr):
    """A piece of rows of a weight, which no other program reads."""
    if IS_EVEN:
        values = tl.load(pointer + column, eviction_policy="evict_first")
    else:
        values = tl.load(pointer + column, mask=column < columns, other=0.0, eviction_policy="evict_first")
    return values


@triton.jit
def _store(total, out, bias, residual, residual_at, row, rows, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr):
    """Rounds once after the bias, and once more after the residual."""
    kind = out.dtype.element_ty
    is_inside = row < rows
    if HAS_BIAS:
        total += tl.load(bias + row, mask=is_inside, other=0.0).to(tl.float32)
    result = total.to(kind)
    if HAS_RESIDUAL:
        added = tl.load(residual + residual_at + row, mask=is_inside, other=0.0).to(tl.float32)
        result = (added + result.to(tl.float32)).to(kind)
    tl.store(out + row, result, mask=is_inside)


@triton.jit
def linear_rows(
    x, w0, w1, w2, w3, b0, b1, b2, b3, residual, y, columns, x_stride, w_stride, residual_stride,
    N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, N3: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, IS_EVEN: tl.constexpr,
    M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UNROLL: tl.constexpr,
    IS_EARLY: tl.constexpr,
):  # fmt: skip
    """`x` times up to four weights, of `N0` to `N3` rows: 0 for one that is not there."""
    # Each part begins behind the blocks of those before it, and at a multiple of 16 elements.
    first: tl.constexpr = (N0 + BLOCK_N - 1) // BLOCK_N
    second: tl.constexpr = first + (N1 + BLOCK_N - 1) // BLOCK_N
    third: tl.constexpr = second + (N2 + BLOCK_N - 1) // BLOCK_N
    at_first: tl.constexpr = M * ((N0 + 15) // 16 * 16)
    at_second: tl.constexpr = at_first + M * ((N1 + 15) // 16 * 16)
    at_third: tl.constexpr = at_second + M * ((N2 + 15) // 16 * 16)
    block = tl.program_id(0)
    w, bias, out, rows, begin = w0, b0, y, tl.full([], N0, tl.int32), tl.full([], 0, tl.int32)
    if N1 > 0:
        if block >= first:
            w, out, rows, begin = w1, y + at_first, tl.full([], N1, tl.int32), tl.full([], first, tl.int32)
            if HAS_BIAS:
                bias = b1
    if N2 > 0:
        if block >= second:
            w, out, rows, begin = w2, y + at_second, tl.full([], N2, tl.int32), tl.full([], second, tl.int32)
            if HAS_BIAS:
                bias = b2
    if N3 > 0:
        if block >= third:
            w, out, rows, begin = w3, y + at_third, tl.full([], N3, tl.int32), tl.full([], third, tl.int32)
            if HAS_BIAS:
                bias = b3
    row = (block - begin) * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows behind the last are read as the last, and not stored.
    w += tl.minimum(row, rows - 1)[:, None].to(tl.int64) * w_stride
    column = tl.arange(0, BLOCK_K)[None, :]
    # The first piece comes while kernels before end, as nothing writes weights then.
    piece = _weights(w, column, columns, IS_EVEN)
    begin_early(IS_EARLY)
    weights = piece.to(tl.float32)
    sum0 = weights * _wide(x, column, columns, IS_EVEN)
    sum1, sum2, sum3 = sum0, sum0, sum0
    if M > 1:
        sum1 = weights * _wide(x + x_stride, column, columns, IS_EVEN)
    if M > 2:
        sum2 = weights * _wide(x + 2 * x_stride, column, columns, IS_EVEN)
    if M > 3:
        sum3 = weights * _wide(x + 3 * x_stride, column, columns, IS_EVEN)
    for start in tl.range(BLOCK_K, columns, BLOCK_K, loop_unroll_factor=UNROLL):
        weights = _weights(w, start + column, columns, IS_EVEN).to(tl.float32)
        sum0 += weights * _wide(x, start + column, columns, IS_EVEN)
        if M > 1:
            sum1 += weights * _wide(x + x_stride, start + column, columns, IS_EVEN)
        if M > 2:
            sum2 += weights * _wide(x + 2 * x_stride, start + column, columns, IS_EVEN)
        if M > 3:
            sum3 += weights * _wide(x + 3 * x_stride, start + column, columns, IS_EVEN)
    _store(tl.sum(sum0, axis=1), out, bias, residual, 0, row, rows, HAS_BIAS, HAS_RESIDUAL)
    if M > 1:
        _store(tl.sum(sum1, axis=1), out + rows, bias, residual, residual_stride, row, rows, HAS_BIAS, HAS_RESIDUAL)
    if M > 2:
        at = 2 * residual_stride
        _store(tl.sum(sum2, axis=1), out + 2 * rows, bias, residual, at, row, rows, HAS_BIAS, HAS_RESIDUAL)
    if M > 3:
        at = 3 * residual_stride
        _store(tl.sum(sum3, axis=1), out + 3 * rows, bias, residual, at, row, rows, HAS_BIAS, HAS_RESIDUAL)


@triton.jit
def _store_gated(gate, up, y, row, rows, IS_GELU: tl.constexpr):
    """Rounds both products, the activation, and their product."""
    kind = y.dtype.element_ty
    value = gate.to(kind).to(tl.float32)
    inner = value
    if IS_GELU:
        # As in `activation`: 1 + tanh(u) is 2 sigmoid(2 u).
        inner = 1.5957691216057308 * (value + 0.044715 * (value * value * value))
    if kind == tl.float32:
        active = tl.math.div_rn(value, 1.0 + tl.exp(-inner))
    else:
        active = value / (1.0 + tl.exp(-inner))
    result = active.to(kind).to(tl.float32) * up.to(kind).to(tl.float32)
    tl.store(y + row, result.to(kind), mask=row < rows)


@triton.jit
def gate_up_rows(
    x, gate, up, y, columns, x_stride, w_stride,
    N: tl.constexpr, IS_GELU: tl.constexpr, IS_EVEN: tl.constexpr,
    M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UNROLL: tl.constexpr,
    IS_EARLY: tl.constexpr,
):  # fmt: skip
    """The activated product with `gate` times that with `up`, each of `N` rows."""
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    read = tl.minimum(row, N - 1)[:, None].to(tl.int64)
    gate += read * w_stride
    up += read * w_stride
    column = tl.arange(0, BLOCK_K)[None, :]
    # As in `linear_rows`.
    gate_piece = _weights(gate, column, columns, IS_EVEN)
    up_piece = _weights(up, column, columns, IS_EVEN)
    begin_early(IS_EARLY)
    of_gate, of_up = gate_piece.to(tl.float32), up_piece.to(tl.float32)
    values = _wide(x, column, columns, IS_EVEN)
    gate0, up0 = of_gate * values, of_up * values
    gate1, gate2, gate3, up1, up2, up3 = gate0, gate0, gate0, up0, up0, up0
    if M > 1:
        values = _wide(x + x_stride, column, columns, IS_EVEN)
        gate1, up1 = of_gate * values, of_up * values
    if M > 2:
        values = _wide(x + 2 * x_stride, column, columns, IS_EVEN)
        gate2, up2 = of_gate * values, of_up * values
    if M > 3:
        values = _wide(x + 3 * x_stride, column, columns, IS_EVEN)
        gate3, up3 = of_gate * values, of_up * values
    for start in tl.range(BLOCK_K, columns, BLOCK_K, loop_unroll_factor=UNROLL):
        of_gate = _weights(gate, start + column, columns, IS_EVEN).to(tl.float32)
        of_up = _weights(up, start + column, columns, IS_EVEN).to(tl.float32)
        values = _wide(x, start + column, columns, IS_EVEN)
        gate0 += of_gate * values
        up0 += of_up * values
        if M > 1:
            values = _wide(x + x_stride, start + column, columns, IS_EVEN)
            gate1 += of_gate * values
            up1 += of_up * values
        if M > 2:
            values = _wide(x + 2 * x_stride, start + column, columns, IS_EVEN)
            gate2 += of_gate * values
            up2 += of_up * values
        if M > 3:
            values = _wide(x + 3 * x_stride, start + column, columns, IS_EVEN)
            gate3 += of_gate * values
            up3 += of_up * values
    _store_gated(tl.sum(gate0, axis=1), tl.sum(up0, axis=1), y, row, N, IS_GELU)
    if M > 1:
        _store_gated(tl.sum(gate1, axis=1), tl.sum(up1, axis=1), y + N, row, N, IS_GELU)
    if M > 2:
        _store_gated(tl.sum(gate2, axis=1), tl.sum(up2, axis=1), y + 2 * N, row, N, IS_GELU)
    if M > 3:
        _store_gated(tl.sum(gate3, axis=1), tl.sum(up3, axis=1), y + 3 * N, row, N, IS_GELU)
