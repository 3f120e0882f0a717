"""Bound on the difference between a model's first step by a graph and the eager step beside it.

Two right ways of computing a step differ by rounding, and how far rounding at each module comes out
in the logits is the model's own affair. So that is measured: the step runs a second time with the
result of each module changed at random by as much as one rounding, and the bound is a multiple of
what this changes. Sums in f32 are not rounded to it product by product: there the bound is fixed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["bound_of"]

# Bound of f32 and f64, relative, in the 2-norm: sums in another order.
_BOUND_F32 = 1e-3
# What rounding is measured to change, times this, is still taken for rounding: a module has several
# operations, of which the measure has one rounding.
_MARGIN = 4.0
# Least bound in roundings, for models with next to no modules; and most, where chance has made a
# mixture of experts choose otherwise in the measure.
_LEAST = 4.0
_MOST = 0.25


def bound_of(
    model: Any, work: Any, run: Callable[[Any, int], None], tokens: int
) -> Callable[[Any], float]:
    """Runs the step of `tokens` tokens once in `work`, with roundings changed at random, and undoes
    it; the bound as a function of the logits that the step has. `run`: the step."""
    unit = _unit(model)
    if unit is None:
        return lambda found: _BOUND_F32
    restore = work.layers.snapshot()
    try:
        with _rounded(model, unit):
            run(work, work.bucket(tokens))
    finally:
        restore()
    changed = work.logits.clone()

    def bound(found: Any) -> float:
        other = changed[: found.shape[0]]
        finite = found.isfinite() & other.isfinite()
        found, other = found.double(), other.double()
        norm = found.where(finite, 0).norm().clamp(min=1e-30)
        moved = float((found - other).where(finite, 0).norm() / norm)
        return min(max(_MARGIN * moved, _LEAST * unit), _MOST)

    return bound


def _unit(model: Any) -> float | None:
    """Most that one rounding changes a result by, relative; none where products are f32."""
    dtype = model.dtype
    if dtype in (torch.float16, torch.bfloat16):
        return float(torch.finfo(dtype).eps) / 2
    if model.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest":
        return 2.0**-8 if torch.get_float32_matmul_precision() == "medium" else 2.0**-11
    return None


@contextlib.contextmanager
def _rounded(model: Any, unit: float) -> Iterator[None]:
    """Within, in this thread, results of `model`'s modules are changed at random by up to `unit`."""
    generators: dict[Any, Any] = {}
    thread = threading.get_ident()

    def change(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        found = generators.get(value.device)
        if found is None:
            found = generators[value.device] = torch.Generator(value.device).manual_seed(0)
        noise = torch.rand(value.shape, generator=found, device=value.device, dtype=torch.float32)
        return (value.float() * (1 + unit * (2 * noise - 1))).to(value.dtype)

    def hook(module: Any, inputs: Any, result: Any) -> Any:
        if threading.get_ident() != thread:
            return None
        if type(result) is tuple:
            return tuple(change(value) for value in result)
        return change(result) if isinstance(result, torch.Tensor) else None

    handles = []
    try:
        for module in model.modules():
            handles.append(module.register_forward_hook(hook))
        yield
    finally:
        for handle in handles:
            handle.remove()
