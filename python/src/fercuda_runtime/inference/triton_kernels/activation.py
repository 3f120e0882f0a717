"""Product of an activated gate and a second factor (SwiGLU, GeGLU): forward and backward.

A program has `BLOCK` elements of one row; contiguous tensors are passed as one row.
"""

import triton
import triton.language as tl

from .early import begin_early


@triton.jit
def sigmoid_of(x, IS_EXACT: tl.constexpr):
    """1 / (1 + exp(-x)); in types of 16 bits the division need not be rounded correctly."""
    if IS_EXACT:
        return tl.math.div_rn(1.0, 1.0 + tl.exp(-x))
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _doubled_inner(x):
    # 2 sqrt(2 / pi) (x + 0.044715 x^3): 1 + tanh(u) is 2 sigmoid(2 u), without cancellation.
    return 1.5957691216057308 * (x + 0.044715 * (x * x * x))


@triton.jit
def gated_forward(
    gate, up, y, columns, blocks_per_row, gate_stride, up_stride,
    IS_GELU: tl.constexpr, BLOCK: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    begin_early(IS_EARLY)
    kind = y.dtype.element_ty
    row = (tl.program_id(0) // blocks_per_row).to(tl.int64)
    column = (tl.program_id(0) % blocks_per_row).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_inside = column < columns
    x = tl.load(gate + row * gate_stride + column, mask=is_inside, other=0.0).to(tl.float32)
    factor = tl.load(up + row * up_stride + column, mask=is_inside, other=0.0).to(tl.float32)
    inner = x
    if IS_GELU:
        inner = _doubled_inner(x)
    if kind == tl.float32:
        active = tl.math.div_rn(x, 1.0 + tl.exp(-inner))
    else:
        active = x / (1.0 + tl.exp(-inner))
    result = active.to(kind).to(tl.float32) * factor
    tl.store(y + row * columns + column, result.to(kind), mask=is_inside)


@triton.jit
def gated_backward(
    dy, gate, up, dgate, dup, columns, blocks_per_row, gate_stride, up_stride,
    IS_GELU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    kind = dgate.dtype.element_ty
    row = (tl.program_id(0) // blocks_per_row).to(tl.int64)
    column = (tl.program_id(0) % blocks_per_row).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_inside = column < columns
    at = row * columns + column
    grad = tl.load(dy + at, mask=is_inside, other=0.0).to(tl.float32)
    x = tl.load(gate + row * gate_stride + column, mask=is_inside, other=0.0).to(tl.float32)
    factor = tl.load(up + row * up_stride + column, mask=is_inside, other=0.0).to(tl.float32)
    if IS_GELU:
        sigmoid = sigmoid_of(_doubled_inner(x), kind == tl.float32)
        inner_slope = 1.5957691216057308 * (1.0 + 3 * 0.044715 * (x * x))
        slope = sigmoid + x * sigmoid * (1.0 - sigmoid) * inner_slope
    else:
        sigmoid = sigmoid_of(x, kind == tl.float32)
        slope = sigmoid * (1.0 + x * (1.0 - sigmoid))
    active = x * sigmoid
    tl.store(dup + at, (grad * active).to(kind), mask=is_inside)
    tl.store(dgate + at, (grad * factor * slope).to(kind), mask=is_inside)
