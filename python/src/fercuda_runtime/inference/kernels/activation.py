"""Gated activations: SwiGLU's and GeGLU's product."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from . import dispatch


def fused_silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up`, of two tensors of one shape and type. `silu(gate)` is rounded to the type.

    It is differentiable in both tensors, once. Halves of one tensor, as `chunk(2, -1)` gives them,
    are not copied.
    """
    return _gated(gate, up, False)


def fused_gelu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`gelu(gate, approximate="tanh") * up`, otherwise as `fused_silu_mul`."""
    return _gated(gate, up, True)


def _gated(gate: torch.Tensor, up: torch.Tensor, is_gelu: bool) -> torch.Tensor:
    if gate.ndim and gate.shape == up.shape and gate.dtype == up.dtype and dispatch.can_fuse(gate, up):
        if dispatch.needs_grad(gate, up):
            fused: torch.Tensor = _Gated.apply(gate, up, is_gelu)
            return fused
        return _forward(gate, up, is_gelu)
    if is_gelu:
        eager: torch.Tensor = torch.nn.functional.gelu(gate, approximate="tanh") * up
    else:
        eager = torch.nn.functional.silu(gate) * up
    return eager


def _layout(gate: torch.Tensor, up: torch.Tensor) -> tuple[Any, Any, Any, int, int, int, int]:
    """Sources, a result like them, columns, rows, and the distances of rows."""
    y = torch.empty_like(gate)
    if gate.stride() != y.stride() and not y.is_contiguous():
        gate = torch.empty_like(gate).copy_(gate)
    if gate.stride() == y.stride():
        up = dispatch.like(up, gate)
        return gate, up, y, gate.numel(), 1, gate.numel(), gate.numel()
    gate, gate_stride = dispatch.with_rows(gate)
    up, up_stride = dispatch.with_rows(up)
    return gate, up, y, gate.shape[1], gate.shape[0], gate_stride, up_stride


def _block(elements: int) -> int:
    # Small tensors are spread over more processors.
    return 512 if elements < 1 << 20 else 2048


def _forward(gate: torch.Tensor, up: torch.Tensor, is_gelu: bool) -> torch.Tensor:
    from ..triton_kernels.activation import gated_forward

    of_gate, of_up, y, columns, rows, gate_stride, up_stride = _layout(gate, up)
    block = _block(y.numel())
    blocks = -(-columns // block)
    with dispatch.on_device(gate):
        gated_forward[(rows * blocks,)](
            of_gate, of_up, y, columns, blocks, gate_stride, up_stride,
            IS_GELU=is_gelu, BLOCK=block, num_warps=4, enable_fp_fusion=False,
            **dispatch.early_options(gate.device),
        )  # fmt: skip
    result: torch.Tensor = y
    return result


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Any, up: Any, is_gelu: bool) -> Any:
        ctx.save_for_backward(gate, up)
        ctx.is_gelu = is_gelu
        return _forward(gate, up, is_gelu)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Any) -> Any:
        from ..triton_kernels.activation import gated_backward

        gate, up = ctx.saved_tensors
        of_gate, of_up, dgate, columns, rows, gate_stride, up_stride = _layout(gate, up)
        dy, dup = dispatch.like(dy, dgate), torch.empty_like(dgate)
        block = _block(dgate.numel())
        blocks = -(-columns // block)
        with dispatch.on_device(gate):
            gated_backward[(rows * blocks,)](
                dy, of_gate, of_up, dgate, dup, columns, blocks, gate_stride, up_stride,
                IS_GELU=ctx.is_gelu, BLOCK=block, num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
        return dgate, dup, None
