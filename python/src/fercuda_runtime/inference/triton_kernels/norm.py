"""Root-mean-square norm of rows: forward, and backward with partial sums for the weight.

A program has `ROWS` rows of up to `BLOCK` columns in registers, so that a row is read once.
"""

import triton
import triton.language as tl

from .activation import sigmoid_of
from .early import begin_early


@triton.jit
def rms_norm_forward(
    x, residual, gate, weight, y, summed, inverse, rows, columns,
    x_stride, residual_stride, gate_stride, eps,
    PLUS_ONE: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_GATE: tl.constexpr,
    STORE_INVERSE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    begin_early(IS_EARLY)
    kind = y.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    is_column = column < columns
    is_inside = (row < rows)[:, None] & is_column[None, :]
    values = tl.load(x + row[:, None] * x_stride + column[None, :], mask=is_inside, other=0.0).to(tl.float32)
    at = row[:, None] * columns + column[None, :]
    if HAS_RESIDUAL:
        added = tl.load(residual + row[:, None] * residual_stride + column[None, :], mask=is_inside, other=0.0)
        total = (values + added.to(tl.float32)).to(kind)
        tl.store(summed + at, total, mask=is_inside)
        values = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=1) / columns + eps)
    if STORE_INVERSE:
        tl.store(inverse + row, scale, mask=row < rows)
    factor = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    normed = values * scale[:, None]
    if PLUS_ONE:
        result = (normed * (1.0 + factor)).to(kind)
    else:
        result = (normed.to(kind).to(tl.float32) * factor).to(kind)
    if HAS_GATE:
        z = tl.load(gate + row[:, None] * gate_stride + column[None, :], mask=is_inside, other=0.0).to(tl.float32)
        if kind == tl.float32:
            active = tl.math.div_rn(z, 1.0 + tl.exp(-z))
        else:
            active = z / (1.0 + tl.exp(-z))
        result = (result.to(tl.float32) * active).to(kind)
    tl.store(y + at, result, mask=is_inside)


@triton.jit
def rms_norm_backward(
    dy, dsummed, x, gate, weight, inverse, dx, dgate, dweight, rows, columns,
    x_stride, gate_stride, rows_per_program,
    PLUS_ONE: tl.constexpr, HAS_SUMMED: tl.constexpr, HAS_GATE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    is_column = column < columns
    factor = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    if PLUS_ONE:
        factor = 1.0 + factor
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    first = tl.program_id(0).to(tl.int64) * rows_per_program
    for start in range(0, rows_per_program, ROWS):
        row = first + start + tl.arange(0, ROWS)
        is_row = (row < rows) & (start + tl.arange(0, ROWS) < rows_per_program)
        is_inside = is_row[:, None] & is_column[None, :]
        at = row[:, None] * columns + column[None, :]
        scale = tl.load(inverse + row, mask=is_row, other=0.0)[:, None]
        values = tl.load(x + row[:, None] * x_stride + column[None, :], mask=is_inside, other=0.0)
        normed = values.to(tl.float32) * scale
        grad = tl.load(dy + at, mask=is_inside, other=0.0).to(tl.float32)
        if HAS_GATE:
            z = tl.load(gate + row[:, None] * gate_stride + column[None, :], mask=is_inside, other=0.0)
            z = z.to(tl.float32)
            sigmoid = sigmoid_of(z, dgate.dtype.element_ty == tl.float32)
            slope = sigmoid * (1.0 + z * (1.0 - sigmoid))
            tl.store(dgate + at, (grad * normed * factor * slope).to(dgate.dtype.element_ty), mask=is_inside)
            grad = grad * (z * sigmoid)
        sums += tl.sum(grad * normed, axis=0)
        grad = grad * factor
        along = tl.sum(grad * normed, axis=1) / columns
        grad = scale * (grad - normed * along[:, None])
        if HAS_SUMMED:
            grad += tl.load(dsummed + at, mask=is_inside, other=0.0).to(tl.float32)
        tl.store(dx + at, grad.to(dx.dtype.element_ty), mask=is_inside)
    tl.store(dweight + tl.program_id(0).to(tl.int64) * columns + column, sums, mask=is_column)
