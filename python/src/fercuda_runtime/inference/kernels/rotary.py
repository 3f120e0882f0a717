"""Rotary position embedding of queries and keys."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from . import dispatch


def fused_rotary_emb(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    unsqueeze_dim: int = 1,
    *,
    sections: tuple[int, int, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys, rotated: `x * cos + rotate_half(x) * sin` over the first dimensions of a
    head, as many as `cos` has; the others are unchanged.

    `q` and `k` have the shape (batch, heads, tokens, dimensions), or with `unsqueeze_dim=2` (batch,
    tokens, heads, dimensions); `cos` and `sin` (batch or 1, tokens, rotated dimensions). With
    `sections`, lengths of time, height and width, `cos` and `sin` have a leading dimension of those
    three grids, and frequency i is of the height's for i % 3 == 1 and i < 3 * sections[1], of the
    width's for i % 3 == 2 and i < 3 * sections[2], otherwise of the time's (Qwen3-VL, Qwen3.5).

    It is differentiable in `q` and `k`, once.
    """
    pair: tuple[torch.Tensor, torch.Tensor] | None = attempt(q, k, cos, sin, unsqueeze_dim, sections)
    if pair is None:
        pair = _eager(q, k, cos, sin, unsqueeze_dim, sections)
    return pair


def attempt(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    unsqueeze_dim: int = 1,
    sections: tuple[int, int, int] | None = None,
) -> Any:
    """As `fused_rotary_emb`, but None where no kernel runs."""
    grids = 3 if sections is not None else 0
    if (
        not _fits(q, k, cos, sin, unsqueeze_dim, grids)
        or not dispatch.can_fuse(q, k, cos, sin)
        or dispatch.needs_grad(cos, sin)
    ):
        return None
    if dispatch.needs_grad(q, k):
        return _Rotary.apply(q, k, cos, sin, unsqueeze_dim, sections)
    return _launch(q, k, cos, sin, unsqueeze_dim, sections, False)


def _fits(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, dim: int, grids: int) -> bool:
    if q.ndim != 4 or k.ndim != 4 or dim not in (1, 2) or not q.dtype == k.dtype == cos.dtype == sin.dtype:
        return False
    of_tokens = 3 - dim
    if q.shape[0] != k.shape[0] or q.shape[of_tokens] != k.shape[of_tokens] or q.shape[3] != k.shape[3]:
        return False
    table = cos.shape[1:] if grids else cos.shape
    return (
        cos.shape == sin.shape
        and len(table) == 3
        and (not grids or cos.shape[0] == grids)
        and table[0] in (1, q.shape[0])
        and table[1] == q.shape[of_tokens]
        and 0 < table[2] <= q.shape[3]
        and table[2] % 2 == 0
        # A program has whole heads in registers.
        and q.shape[3] <= 1024
        and q.shape[0] * table[1] * (q.shape[dim] + k.shape[dim]) <= dispatch.MAX_PROGRAMS
    )


def _eager(q: Any, k: Any, cos: Any, sin: Any, dim: int, sections: tuple[int, int, int] | None) -> tuple[Any, Any]:
    if sections is not None:
        cos, sin = _picked(cos, sections), _picked(sin, sections)
    cos, sin = cos.unsqueeze(dim), sin.unsqueeze(dim)
    rotated = cos.shape[-1]

    def embed(x: Any) -> Any:
        turned = x[..., :rotated]
        low, high = turned[..., : rotated // 2], turned[..., rotated // 2 :]
        turned = (turned * cos) + (torch.cat((-high, low), dim=-1) * sin)
        return turned if rotated == x.shape[-1] else torch.cat([turned, x[..., rotated:]], dim=-1)

    return embed(q), embed(k)


def _picked(table: Any, sections: tuple[int, int, int]) -> Any:
    """The table in which each frequency is of its grid."""
    half = table.shape[-1] // 2
    parts = []
    for start in (0, half):
        part = table[0, ..., start : start + half].clone()
        for grid in (1, 2):
            at = slice(grid, min(3 * sections[grid], half), 3)
            part[..., at] = table[grid, ..., start : start + half][..., at]
        parts.append(part)
    return torch.cat(parts, dim=-1)


def _with_unit_stride(x: Any) -> Any:
    return x if x.stride(-1) == 1 else x.contiguous()


def _launch(q: Any, k: Any, cos: Any, sin: Any, dim: int, sections: Any, is_backward: bool) -> tuple[Any, Any]:
    from ..triton_kernels.rotary import rotary

    q, k, cos, sin = (_with_unit_stride(it) for it in (q, k, cos, sin))
    of_tokens, dims, rotated = 3 - dim, q.shape[3], cos.shape[-1]
    half, rest = rotated // 2, dims - rotated
    # PyTorch's concatenation makes a contiguous tensor, its products keep a layout.
    outs = [torch.empty_like(it) if not rest else it.new_empty(it.shape) for it in (q, k)]
    outs = [it if it.stride(-1) == 1 else it.contiguous() for it in outs]
    heads = max(1, min(16, 1024 // dispatch.next_power(half)))
    heads = min(heads, dispatch.next_power(q.shape[dim]))
    q_parts = -(-q.shape[dim] // heads)
    parts = q_parts - (-k.shape[dim] // heads)
    tables = [it if sections is not None else it.unsqueeze(0) for it in (cos, sin)]
    strides = [stride for it in (q, k, *outs) for stride in (it.stride(0), it.stride(dim), it.stride(of_tokens))]
    for it in tables:
        strides += [it.stride(0), it.stride(1) if it.shape[1] > 1 else 0, it.stride(2)]
    _, height, width = sections if sections is not None else (0, 0, 0)
    with dispatch.on_device(q):
        rotary[(q.shape[0] * q.shape[of_tokens] * parts,)](
            q, k, cos, sin, *outs, q.shape[of_tokens], q.shape[dim], k.shape[dim], half, dims,
            *strides, q_parts, parts, height, width,
            GRIDS=sections is not None, IS_BACKWARD=is_backward, HEADS=heads, HALF=dispatch.next_power(half),
            REST=dispatch.next_power(rest) if rest else 0, num_warps=4, enable_fp_fusion=False,
            **dispatch.early_options(q.device),
        )  # fmt: skip
    return outs[0], outs[1]


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, cos: Any, sin: Any, dim: int, sections: Any) -> Any:
        ctx.save_for_backward(cos, sin)
        ctx.dim, ctx.sections = dim, sections
        return _launch(q, k, cos, sin, dim, sections, False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq: Any, dk: Any) -> Any:
        cos, sin = ctx.saved_tensors
        dq, dk = _launch(dq, dk, cos, sin, ctx.dim, ctx.sections, True)
        return dq, dk, None, None, None, None
