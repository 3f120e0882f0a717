"""Products of one to four rows with weights of linear layers, for decoding.

No product here has a backward pass: where one may be needed PyTorch's operators run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from . import dispatch
from .linear_table import Tiles, tiles_of

MAX_ROWS = 4
"""The most rows of `x` that a kernel takes: more are PyTorch's products of matrices."""
MAX_WEIGHTS = 4


def fused_linear(
    x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None] | None = None
) -> tuple[torch.Tensor, ...]:
    """`linear(x, weight, bias)` for each of one to four weights `[rows, columns]`, in one launch.

    `x` is `[..., columns]` with at most four rows, all of one type. Sums are computed in float32,
    and rounded after the bias. The results are views of one buffer, contiguous each. More rows,
    gradients, other layouts, and biases of some weights alone are computed by PyTorch.

    Raises `ValueError` for a number of weights or biases that is not from one to four and equal.
    """
    given: Sequence[torch.Tensor | None] = [None] * len(weights) if biases is None else biases
    if not 1 <= len(weights) <= MAX_WEIGHTS or len(given) != len(weights):
        raise ValueError(
            f"{len(weights)} weights and {len(given)} biases\ntry: one to four weights, and as many biases or none"
        )
    fused = attempt(x, weights, given)
    if fused is not None:
        return fused
    return tuple(functional.linear(x, *it) for it in zip(weights, given, strict=True))


def fused_linear_add(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor
) -> torch.Tensor:
    """`residual + linear(x, weight, bias)`, where the product is rounded before the sum.

    Conditions are those of `fused_linear`; `residual` has the shape of the result.
    """
    fused = attempt(x, [weight], [bias], residual)
    return residual + functional.linear(x, weight, bias) if fused is None else fused[0]


def fused_gate_up(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str = "silu"
) -> torch.Tensor:
    """`act(linear(x, gate)) * linear(x, up)`, of two weights of one shape. Both products, the
    activation and the result are rounded to the type.

    `activation` is "silu" or "gelu_tanh". Conditions are those of `fused_linear`.

    Raises `ValueError` for another activation.
    """
    if activation not in ("silu", "gelu_tanh"):
        raise ValueError(f'the activation is {activation!r}\ntry: "silu" or "gelu_tanh"')
    fused = attempt_gated(x, gate, up, activation == "gelu_tanh")
    if fused is not None:
        return fused
    product = functional.linear(x, gate)
    if activation == "silu":
        active = functional.silu(product)
    else:
        active = functional.gelu(product, approximate="tanh")
    return active * functional.linear(x, up)


def is_few(x: torch.Tensor) -> bool:
    """Whether `x` has at most as many rows as the kernels take."""
    return bool(0 < x.ndim and 0 < x.numel() <= MAX_ROWS * x.shape[-1])


def _can_fuse(x: torch.Tensor, weights: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    # First: a compiler that traces this sees a constant, and nothing below it.
    if torch.compiler.is_compiling():
        return False
    return (
        is_few(x)
        and all(
            it.ndim == 2
            and it.shape[1] == x.shape[-1]
            and it.stride() == (weights[0].stride(0), 1)
            and it.shape[0] < 2**24
            for it in weights
        )
        and all(it.dtype == x.dtype for it in (*weights, *others))
        and dispatch.can_fuse(x, *weights, *others)
        and not torch.is_autocast_enabled(x.device.type)
        and not dispatch.needs_grad(x, *weights, *others)
    )


def attempt(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    residual: torch.Tensor | None = None,
    tiles: Tiles | None = None,
) -> tuple[torch.Tensor, ...] | None:
    """As `fused_linear` and `fused_linear_add`, but None where no kernel runs."""
    given = [it for it in biases if it is not None]
    if len(given) not in (0, len(weights)):
        return None
    if not _can_fuse(x, weights, given if residual is None else [*given, residual]):
        return None
    if any(it.shape != weight.shape[:1] or it.stride(0) != 1 for it, weight in zip(given, weights, strict=False)):
        return None
    if residual is not None and residual.shape != (*x.shape[:-1], weights[0].shape[0]):
        return None
    from ..triton_kernels.linear import linear_rows

    rows, row_stride = dispatch.with_rows(x)
    m, columns = rows.shape
    counts = [it.shape[0] for it in weights]
    tiles = tiles or tiles_of("linear", sum(counts), columns, m, x.element_size())
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + m * (-(-count // 16) * 16))
    y = torch.empty(starts[-1], dtype=x.dtype, device=x.device)
    added, added_stride = (None, 0) if residual is None else dispatch.with_rows(residual)
    missing = MAX_WEIGHTS - len(weights)
    with dispatch.on_device(x):
        linear_rows[(sum(-(-it // tiles.block_n) for it in counts),)](
            rows, *weights, *(None,) * missing, *biases, *(None,) * missing, added, y, columns,
            row_stride, weights[0].stride(0), added_stride,
            **{f"N{at}": counts[at] if at < len(counts) else 0 for at in range(MAX_WEIGHTS)},
            HAS_BIAS=bool(given), HAS_RESIDUAL=residual is not None, IS_EVEN=columns % tiles.block_k == 0,
            M=m, BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k, UNROLL=tiles.unroll, num_warps=tiles.warps,
            **dispatch.early_options(x.device),
        )  # fmt: skip
    return tuple(
        y[start : start + m * count].view(*x.shape[:-1], count)
        for start, count in zip(starts, counts, strict=False)
    )


def attempt_gated(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, is_gelu: bool, tiles: Tiles | None = None
) -> torch.Tensor | None:
    """As `fused_gate_up`, but None where no kernel runs."""
    if gate.shape != up.shape or not _can_fuse(x, (gate, up), ()):
        return None
    from ..triton_kernels.linear import gate_up_rows

    rows, row_stride = dispatch.with_rows(x)
    m, columns = rows.shape
    count = gate.shape[0]
    tiles = tiles or tiles_of("gate_up", count, columns, m, x.element_size())
    y: Any = torch.empty((*x.shape[:-1], count), dtype=x.dtype, device=x.device)
    with dispatch.on_device(x):
        gate_up_rows[(-(-count // tiles.block_n),)](
            rows, gate, up, y, columns, row_stride, gate.stride(0),
            N=count, IS_GELU=is_gelu, IS_EVEN=columns % tiles.block_k == 0,
            M=m, BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k, UNROLL=tiles.unroll, num_warps=tiles.warps,
            **dispatch.early_options(x.device),
        )  # fmt: skip
    result: torch.Tensor = y
    return result
