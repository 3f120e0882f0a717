"""Root-mean-square norm: plain, by `1 + weight`, gated, and with a residual."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from . import dispatch


def fused_rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    plus_one: bool = False,
    gate: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> Any:
    """The norm of `x` over its last dimension, of which `weight` has the length, in the type of `x`.

    Plain: `weight * (x * rsqrt(mean(x**2) + eps))`, where the parentheses are computed in float32
    and rounded to the type of `x`. With `plus_one`: times `1 + weight`, in float32 and rounded once
    (Gemma, Qwen3.5). With `gate`, of the shape of `x`: times `silu(gate)` in float32. With
    `residual`, of the shape of `x`: of `x + residual`, and the result is the pair of the norm and
    that sum.

    It is differentiable in every tensor, once. Rows longer than 32768, or not contiguous, are
    computed by PyTorch.
    """
    fused = attempt(x, weight, eps, plus_one, gate, residual)
    return _eager(x, weight, gate, residual, eps, plus_one) if fused is None else fused


def attempt(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    plus_one: bool = False,
    gate: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> Any:
    """As `fused_rms_norm`, but None where no kernel runs."""
    others = [it for it in (gate, residual) if it is not None]
    is_same = all(it.shape == x.shape and it.dtype == x.dtype for it in others)
    has_weight = weight.shape == x.shape[-1:] and (plus_one or weight.dtype == x.dtype)
    if not (
        is_same
        and x.ndim
        and x.stride(-1) == 1
        and has_weight
        and dispatch.can_fuse(x, weight, *others)
        and x.shape[-1] <= dispatch.MAX_COLUMNS
        and x.numel() // x.shape[-1] <= dispatch.MAX_PROGRAMS
    ):
        return None
    if dispatch.needs_grad(x, weight, gate, residual):
        y, summed = _RmsNorm.apply(x, weight, gate, residual, eps, plus_one)
    else:
        y, summed, _ = _forward(x, weight, gate, residual, eps, plus_one, False)
    return y if residual is None else (y, summed)


def _eager(
    x: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor | None,
    residual: torch.Tensor | None,
    eps: float,
    plus_one: bool,
) -> Any:
    summed = x if residual is None else x + residual
    values = summed.float()
    normed = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + eps)
    if plus_one:
        y = (normed * (1.0 + weight.float())).to(summed.dtype)
    else:
        y = weight * normed.to(summed.dtype)
    if gate is not None:
        y = (y * torch.nn.functional.silu(gate.float())).to(summed.dtype)
    return y if residual is None else (y, summed)


def _tile(columns: int, elements: int) -> tuple[int, int, int]:
    """Rows and columns of a program, and its warps; small tensors are spread over more programs."""
    block = dispatch.next_power(columns)
    rows = max(1, (1024 if elements < 1 << 22 else 4096) // block)
    return rows, block, min(16, max(4, rows * block // 512))


def _forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor | None,
    residual: torch.Tensor | None,
    eps: float,
    plus_one: bool,
    keep: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The norm, `x + residual` (or `x`), and with `keep` the rows' factors 1 / root mean square."""
    from ..triton_kernels.norm import rms_norm_forward

    columns = x.shape[-1]
    rows = x.numel() // columns
    y = torch.empty_like(x)
    is_dense = dispatch.is_dense(x, y)
    if not is_dense and not y.is_contiguous():
        # Rows at several distances: one more copy.
        x = torch.empty_like(x).copy_(x)
        is_dense = dispatch.is_dense(x, y)
    if is_dense:
        source, stride = x, columns
        gate = None if gate is None else dispatch.like(gate, x)
        residual = None if residual is None else dispatch.like(residual, x)
        gate_stride = residual_stride = columns
    else:
        source, stride = dispatch.with_rows(x)
        gate_stride = residual_stride = 0
        if gate is not None:
            gate, gate_stride = dispatch.with_rows(gate)
        if residual is not None:
            residual, residual_stride = dispatch.with_rows(residual)
    summed = torch.empty_like(y) if residual is not None else None
    inverse = torch.empty(rows, dtype=torch.float32, device=x.device) if keep else None
    per_program, block, warps = _tile(columns, x.numel())
    with dispatch.on_device(x):
        rms_norm_forward[((rows + per_program - 1) // per_program,)](
            source, residual, gate, weight.contiguous(), y, summed, inverse, rows, columns,
            stride, residual_stride, gate_stride, eps,
            PLUS_ONE=plus_one, HAS_RESIDUAL=residual is not None, HAS_GATE=gate is not None,
            STORE_INVERSE=keep, ROWS=per_program, BLOCK=block, num_warps=warps, enable_fp_fusion=False,
            **dispatch.early_options(x.device),
        )  # fmt: skip
    return y, x if summed is None else summed, inverse


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, gate: Any, residual: Any, eps: float, plus_one: bool) -> Any:
        y, summed, inverse = _forward(x, weight, gate, residual, eps, plus_one, True)
        ctx.save_for_backward(summed, weight, gate, inverse)
        ctx.plus_one, ctx.has_residual = plus_one, residual is not None
        if residual is None:
            # Not `x` itself, which would be returned as a view of an input.
            return y, None
        return y, summed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Any, dsummed: Any) -> Any:
        from ..triton_kernels.norm import rms_norm_backward

        x, weight, gate, inverse = ctx.saved_tensors
        columns = x.shape[-1]
        rows = x.numel() // columns
        dx = torch.empty_like(x)
        if dispatch.is_dense(x, dx):
            source, stride, gate_stride = x, columns, columns
            gate = None if gate is None else dispatch.like(gate, x)
        else:
            (source, stride), gate_stride = dispatch.with_rows(x), 0
            if gate is not None:
                gate, gate_stride = dispatch.with_rows(gate)
        dy = dispatch.like(dy, dx)
        has_summed = ctx.has_residual and dsummed is not None
        dsummed = dispatch.like(dsummed, dx) if has_summed else None
        dgate = None if gate is None else torch.empty_like(dx)
        per_program, block, warps = _tile(columns, 0)
        each = -(-rows // (4 * dispatch.count_processors(x.device)))
        programs = -(-rows // each)
        partial = torch.empty((programs, columns), dtype=torch.float32, device=x.device)
        with dispatch.on_device(x):
            rms_norm_backward[(programs,)](
                dy, dsummed, source, gate, weight.contiguous(), inverse, dx, dgate, partial, rows, columns,
                stride, gate_stride, each,
                PLUS_ONE=ctx.plus_one, HAS_SUMMED=has_summed, HAS_GATE=gate is not None,
                ROWS=per_program, BLOCK=block, num_warps=warps, enable_fp_fusion=False,
            )  # fmt: skip
        dweight = partial.sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        return dx, dweight, dgate, dx if ctx.has_residual else None, None, None
