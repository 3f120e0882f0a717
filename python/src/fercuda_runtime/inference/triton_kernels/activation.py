"""Product of an activated gate and a second factor (SwiGLU, GeGLU): forward and backward.

A program has `BLOCK` elements of one row; contiguous tensors are passed as one row.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _gelu_inner(x):
    # sqrt(2 / pi) (x + 0.044715 x^3), the tanh approximation's argument.
    return 0.7978845608028654 * (x + 0.044715 * (x * x * x))


@triton.jit
def gated_forward(
    gate, up, y, columns, blocks_per_row, gate_stride, up_stride, IS_GELU: tl.constexpr, BLOCK: tl.constexpr
):
    kind = y.dtype.element_ty
    row = (tl.program_id(0) // blocks_per_row).to(tl.int64)
    column = (tl.program_id(0) % blocks_per_row).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_inside = column < columns
    x = tl.load(gate + row * gate_stride + column, mask=is_inside, other=0.0).to(tl.float32)
    factor = tl.load(up + row * up_stride + column, mask=is_inside, other=0.0).to(tl.float32)
    if IS_GELU:
        active = 0.5 * x * (1.0 + libdevice.tanh(_gelu_inner(x)))
    else:
        active = tl.math.div_rn(x, 1.0 + tl.exp(-x))
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
        bent = libdevice.tanh(_gelu_inner(x))
        active = 0.5 * x * (1.0 + bent)
        inner_slope = 0.7978845608028654 * (1.0 + 3 * 0.044715 * (x * x))
        slope = 0.5 * (1.0 + bent) + 0.5 * x * (1.0 - bent * bent) * inner_slope
    else:
        sigmoid = tl.math.div_rn(1.0, 1.0 + tl.exp(-x))
        active = x * sigmoid
        slope = sigmoid * (1.0 + x * (1.0 - sigmoid))
    tl.store(dup + at, (grad * active).to(kind), mask=is_inside)
    tl.store(dgate + at, (grad * factor * slope).to(kind), mask=is_inside)
