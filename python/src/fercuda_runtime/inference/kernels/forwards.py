"""Functions that take the place of `forward` in modules of Transformers.

Each is a method of the module that it is bound to, and has no state. Linear layers and attention
are in `products`. Where no kernel runs it calls
the class's own `forward`, so that the result is that of the unpatched module. All are named
`forward`: a pickled model refers to its class's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules import module as modules

from . import activation, delta, norm, products, rotary
from .products import Attention, Linear


def has_hooks(module: Any) -> bool:
    """Whether a call of the module does more than its class's `forward`."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in vars(module)
        or modules._global_forward_hooks
        or modules._global_forward_pre_hooks
        or modules._global_backward_hooks
        or modules._global_backward_pre_hooks
    )


class Norm(torch.nn.Module):
    """By `weight`, rounded before the product."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, hidden_states: Any) -> Any:
        y = norm.attempt(hidden_states, self.weight, self.variance_epsilon)
        return type(self).forward(self, hidden_states) if y is None else y


class NormPlusOne(torch.nn.Module):
    """By `1 + weight`."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, x: Any) -> Any:
        y = norm.attempt(x, self.weight, self.eps, True)
        return type(self).forward(self, x) if y is None else y


class GatedNorm(torch.nn.Module):
    """By `weight` and the SiLU of a gate."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, hidden_states: Any, gate: Any) -> Any:
        y = None
        if gate is not None:
            y = norm.attempt(hidden_states, self.weight, self.variance_epsilon, False, gate)
        return type(self).forward(self, hidden_states, gate) if y is None else y


class SiluMlp(torch.nn.Module):
    """Gate, up and down projections, with SiLU."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, x: Any) -> Any:
        if torch.compiler.is_compiling() or has_hooks(self.act_fn):
            return type(self).forward(self, x)
        y = products.attempt_gated(self.gate_proj, self.up_proj, x, False)
        if y is None:
            y = activation.fused_silu_mul(self.gate_proj(x), self.up_proj(x))
        return products.multiply(self.down_proj, y)


class GeluMlp(torch.nn.Module):
    """Gate, up and down projections, with the tanh approximation of GELU."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, x: Any) -> Any:
        if torch.compiler.is_compiling() or has_hooks(self.act_fn):
            return type(self).forward(self, x)
        y = products.attempt_gated(self.gate_proj, self.up_proj, x, True)
        if y is None:
            y = activation.fused_gelu_mul(self.gate_proj(x), self.up_proj(x))
        return products.multiply(self.down_proj, y)


class PackedSiluMlp(torch.nn.Module):
    """Gate and up projections in one, with SiLU."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, hidden_states: Any) -> Any:
        if torch.compiler.is_compiling() or has_hooks(self.activation_fn):
            return type(self).forward(self, hidden_states)
        y = products.attempt_packed(self.gate_up_proj, hidden_states, False)
        if y is None:
            gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
            y = activation.fused_silu_mul(gate, up)
        return products.multiply(self.down_proj, y)


class Delta(torch.nn.Module):
    """A layer of gated DeltaNet with `cache`: one token with states by kernels, all else as it is."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, hidden_states: Any, cache: Any = None, attention_mask: Any = None, **kwargs: Any) -> Any:
        y = _decoded(self, hidden_states, cache, attention_mask, kwargs)
        if y is None:
            return type(self).forward(self, hidden_states, cache, attention_mask, **kwargs)
        return y


class DeltaWithParams(torch.nn.Module):
    """The same where the cache is called `cache_params`."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self: Any, hidden_states: Any, cache_params: Any = None, attention_mask: Any = None, **kwargs: Any
    ) -> Any:
        y = _decoded(self, hidden_states, cache_params, attention_mask, kwargs)
        if y is None:
            return type(self).forward(self, hidden_states, cache_params, attention_mask, **kwargs)
        return y


class Rotary(torch.nn.Module):
    """A function of the rotary embedding, which the package `kernels` has made a module."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        pair = rotary.attempt(q, k, cos, sin, unsqueeze_dim)
        return type(self).forward(self, q, k, cos, sin, unsqueeze_dim) if pair is None else pair


def _states(cache: Any, index: int) -> tuple[Any, Any] | None:
    """The convolution's and the recurrent state of a layer, where the cache keeps both in place."""
    layers = getattr(cache, "layers", None)
    if layers is None or type(cache).__module__ != "transformers.cache_utils" or index >= len(layers):
        return None
    layer = layers[index]
    if type(layer).__module__ != "transformers.cache_utils" or getattr(layer, "record_past", True):
        return None
    if getattr(cache, "offloading", False) or not getattr(layer, "has_previous_state", {}).get(0, False):
        return None
    conv, recurrent = layer.conv_states.get(0), layer.recurrent_states.get(0)
    return None if conv is None or recurrent is None else (conv, recurrent)


def _decoded(self: Any, hidden_states: Any, cache: Any, attention_mask: Any, kwargs: dict[str, Any]) -> Any:
    """The layer's result for one token after others; None where no kernel runs."""
    if torch.compiler.is_compiling() or cache is None or attention_mask is not None:
        return None
    if hidden_states.ndim != 3 or hidden_states.shape[1] != 1 or hasattr(self.conv1d, "_hf_hook"):
        return None
    if self.activation not in ("silu", "swish"):
        return None
    if kwargs.get("cu_seq_lens_q") is not None or kwargs.get("seq_idx") is not None or "cache_params" in kwargs:
        return None
    states = _states(cache, self.layer_idx)
    weight, bias = self.conv1d.weight, self.conv1d.bias
    if states is None or not delta.can_step(hidden_states, *states, weight, bias, self.A_log, self.dt_bias):
        return None
    conv_state, recurrent_state = states
    projections = (self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a)
    if torch.is_grad_enabled() and any(it.requires_grad for layer in projections for it in layer.parameters()):
        return None
    batch = hidden_states.shape[0]
    projected = products.attempt(projections, hidden_states)
    mixed, z, b, a = (it(hidden_states) for it in projections) if projected is None else projected
    mixed, z = mixed.transpose(1, 2), z.reshape(-1, self.head_v_dim)
    mixed = delta.fused_conv_update(mixed, conv_state, weight.squeeze(1), bias, self.activation)
    query, key, value = mixed.transpose(1, 2).split([self.key_dim, self.key_dim, self.value_dim], dim=-1)
    query = query.reshape(batch, 1, -1, self.head_k_dim)
    key = key.reshape(batch, 1, -1, self.head_k_dim)
    value = value.reshape(batch, 1, -1, self.head_v_dim)
    y = delta.fused_gated_delta_step(query, key, value, a, b, self.A_log, self.dt_bias, recurrent_state)
    cache.update_recurrent_state(recurrent_state, self.layer_idx)
    y = self.norm(y.reshape(-1, self.head_v_dim), z)
    return products.multiply(self.out_proj, y.reshape(batch, 1, -1))


ALL = (
    Norm, NormPlusOne, GatedNorm, SiluMlp, GeluMlp, PackedSiluMlp, Delta, DeltaWithParams, Rotary, Attention, Linear,
)  # fmt: skip
FUNCTIONS = frozenset(it.forward for it in ALL)
