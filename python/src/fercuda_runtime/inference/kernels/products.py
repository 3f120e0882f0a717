"""Linear layers of a model as products of few rows: of several in one launch, or of one.

A layer is computed by a kernel only if a call of it would be `torch.nn.Linear`'s `forward` alone.
The parts of one launch reach `q_proj`, `k_proj` and `v_proj` through the thread: the attention's
replacement computes them and calls its class's `forward`, in which each layer takes the part that
is its own, if it is called with the very same tensor. Nothing is left behind that call.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.modules import module as modules

from . import dispatch, linear

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
"""Layers of an attention module that take the same tensor."""
_HELD = threading.local()


class Linear(torch.nn.Module):
    """A linear layer: the part that was computed with others', or few rows by a kernel."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, input: Any) -> Any:
        if torch.compiler.is_compiling():
            return type(self).forward(self, input)
        held = getattr(_HELD, "parts", None)
        if held is not None:
            source, parts = held
            if source is input and id(self) in parts:
                return parts.pop(id(self))
        y = None if has_more(self) else linear.attempt(input, (self.weight,), (self.bias,))
        return type(self).forward(self, input) if y is None else y[0]


class Attention(torch.nn.Module):
    """Attention of which the query, key and value projections of few rows are one launch."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not linear.is_few(hidden_states):
            return type(self).forward(self, hidden_states, *args, **kwargs)
        layers = [getattr(self, it, None) for it in PROJECTIONS]
        # A layer that is not replaced would not take its part.
        parts = attempt(layers, hidden_states) if all(_is_replaced(it) for it in layers) else None
        if parts is None:
            return type(self).forward(self, hidden_states, *args, **kwargs)
        before = getattr(_HELD, "parts", None)
        _HELD.parts = hidden_states, {id(layer): part for layer, part in zip(layers, parts, strict=True)}
        try:
            return type(self).forward(self, hidden_states, *args, **kwargs)
        finally:
            _HELD.parts = before


def has_hooks(module: Any) -> bool:
    """Whether a call of the module does more than its `forward`."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or getattr(module, "_compiled_call_impl", None) is not None
        or modules._global_forward_hooks
        or modules._global_forward_pre_hooks
        or modules._global_backward_hooks
        or modules._global_backward_pre_hooks
    )


def has_more(layer: Any) -> bool:
    """Whether a call of the linear layer does more than `torch.nn.Linear`'s `forward`."""
    if type(layer) is not torch.nn.Linear or not (_is_replaced(layer) or "forward" not in vars(layer)):
        return True
    return has_hooks(layer)


def _is_replaced(layer: Any) -> bool:
    if not isinstance(layer, torch.nn.Module):
        return False
    return getattr(vars(layer).get("forward"), "__func__", None) is Linear.forward


def attempt(layers: Sequence[Any], x: Any) -> tuple[torch.Tensor, ...] | None:
    """The layers' results of `x` in one launch; None where no kernel runs."""
    if torch.compiler.is_compiling() or any(has_more(it) for it in layers):
        return None
    return linear.attempt(x, [it.weight for it in layers], [it.bias for it in layers])


def multiply(layer: Any, x: Any, residual: Any = None) -> Any:
    """The layer's result of `x`, plus a residual if there is one; by a kernel or by a call."""
    fused = None
    if not torch.compiler.is_compiling() and not has_more(layer):
        fused = linear.attempt(x, (layer.weight,), (layer.bias,), residual)
    if fused is not None:
        return fused[0]
    return layer(x) if residual is None else residual + layer(x)


def attempt_gated(gate: Any, up: Any, x: Any, is_gelu: bool) -> Any:
    """The activated gate times the other projection, of two layers; None where no kernel runs."""
    if torch.compiler.is_compiling() or has_more(gate) or has_more(up):
        return None
    if gate.bias is not None or up.bias is not None:
        return None
    return linear.attempt_gated(x, gate.weight, up.weight, is_gelu)


def attempt_packed(layer: Any, x: Any, is_gelu: bool) -> Any:
    """The same of one layer with the gate's rows before the other's."""
    if torch.compiler.is_compiling() or has_more(layer) or layer.bias is not None or not linear.is_few(x):
        return None
    weight = layer.weight
    if type(weight) not in (torch.Tensor, torch.nn.Parameter) or dispatch.needs_grad(weight):
        return None
    gate, up = weight.detach().chunk(2)
    return linear.attempt_gated(x, gate, up, is_gelu)
