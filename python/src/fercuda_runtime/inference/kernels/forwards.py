"""Functions that take the place of `forward` in modules of Transformers.

Each is a method of the module that it is bound to, and has no state. Linear layers and attention
are in `products`. Where no kernel runs it calls
the class's own `forward`, so that the result is that of the unpatched module. All are named
`forward`: a pickled model refers to its class's.
"""

from __future__ import annotations

from typing import Any

import torch

from . import activation, delta, linear, norm, products, rotary
from .products import Attention, Linear


def has_hooks(module: Any) -> bool:
    """Whether a call of the module does more than its class's `forward`."""
    return "forward" in vars(module) or products.has_hooks(module)


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


def _silu_inner(mlp: Any, x: Any) -> Any:
    y = products.attempt_gated(mlp.gate_proj, mlp.up_proj, x, False)
    return activation.fused_silu_mul(mlp.gate_proj(x), mlp.up_proj(x)) if y is None else y


def _gelu_inner(mlp: Any, x: Any) -> Any:
    y = products.attempt_gated(mlp.gate_proj, mlp.up_proj, x, True)
    return activation.fused_gelu_mul(mlp.gate_proj(x), mlp.up_proj(x)) if y is None else y


def _packed_inner(mlp: Any, x: Any) -> Any:
    y = products.attempt_packed(mlp.gate_up_proj, x, False)
    if y is None:
        gate, up = mlp.gate_up_proj(x).chunk(2, dim=-1)
        y = activation.fused_silu_mul(gate, up)
    return y


class SiluMlp(torch.nn.Module):
    """Gate, up and down projections, with SiLU."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, x: Any) -> Any:
        if torch.compiler.is_compiling() or has_hooks(self.act_fn):
            return type(self).forward(self, x)
        return products.multiply(self.down_proj, _silu_inner(self, x))


class GeluMlp(torch.nn.Module):
    """Gate, up and down projections, with the tanh approximation of GELU."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, x: Any) -> Any:
        if torch.compiler.is_compiling() or has_hooks(self.act_fn):
            return type(self).forward(self, x)
        return products.multiply(self.down_proj, _gelu_inner(self, x))


class PackedSiluMlp(torch.nn.Module):
    """Gate and up projections in one, with SiLU."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, hidden_states: Any) -> Any:
        if torch.compiler.is_compiling() or has_hooks(self.activation_fn):
            return type(self).forward(self, hidden_states)
        return products.multiply(self.down_proj, _packed_inner(self, hidden_states))


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


class Layer(torch.nn.Module):
    """A decoder layer of few rows: its first sum with the norm behind it, its second with the MLP's
    last product."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        if args or _is_whole(hidden_states):
            return type(self).forward(self, hidden_states, *args, **kwargs)
        kwargs.setdefault("attention_mask", None)
        mixed, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        return _finish(self, hidden_states, mixed)


class HybridLayer(torch.nn.Module):
    """The same with either attention or gated DeltaNet, to which `cache` is given."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        if args or _is_whole(hidden_states) or "past_key_values" in kwargs:
            return type(self).forward(self, hidden_states, *args, **kwargs)
        return _finish(self, hidden_states, _mixed(self, hidden_states, kwargs, "cache", "cache"))


class HybridLayerWithParams(torch.nn.Module):
    """The same where the cache is `past_key_values`, and `cache_params` of gated DeltaNet."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        if args or _is_whole(hidden_states):
            return type(self).forward(self, hidden_states, *args, **kwargs)
        return _finish(self, hidden_states, _mixed(self, hidden_states, kwargs, "past_key_values", "cache_params"))


class Rotary(torch.nn.Module):
    """A function of the rotary embedding, which the package `kernels` has made a module."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        pair = rotary.attempt(q, k, cos, sin, unsqueeze_dim)
        return type(self).forward(self, q, k, cos, sin, unsqueeze_dim) if pair is None else pair


def _is_whole(hidden_states: Any) -> bool:
    """Whether a layer is left to its class's `forward`: many rows, gradients, or a compiler."""
    return torch.compiler.is_compiling() or torch.is_grad_enabled() or not linear.is_few(hidden_states)


def _mixed(self: Any, hidden_states: Any, kwargs: dict[str, Any], given: str, taken: str) -> Any:
    normed = self.input_layernorm(hidden_states)
    mask, cache = kwargs.pop("attention_mask", None), kwargs.pop(given, None)
    if self.block_type == "linear_attention":
        others = {name: it for name, it in kwargs.items() if name not in ("position_embeddings", "position_ids")}
        return self.linear_attn(hidden_states=normed, attention_mask=mask, **{taken: cache}, **others)
    return self.self_attn(hidden_states=normed, attention_mask=mask, **{given: cache}, **kwargs)[0]


def _finish(self: Any, residual: Any, mixed: Any) -> Any:
    """What follows the attention: a sum, a norm, the MLP and a sum."""
    post, mlp, pair = self.post_attention_layernorm, self.mlp, None
    replaced = getattr(vars(post).get("forward"), "__func__", None)
    if replaced is Norm.forward and not products.has_hooks(post):
        pair = norm.attempt(mixed, post.weight, post.variance_epsilon, residual=residual)
    elif replaced is NormPlusOne.forward and not products.has_hooks(post):
        pair = norm.attempt(mixed, post.weight, post.eps, True, residual=residual)
    if pair is None:
        summed = residual + mixed
        pair = post(summed), summed
    normed, summed = pair
    inner = INNER.get(getattr(vars(mlp).get("forward"), "__func__", None))
    if inner is None or products.has_hooks(mlp):
        return summed + mlp(normed)
    if has_hooks(mlp.activation_fn if inner is _packed_inner else mlp.act_fn):
        return summed + mlp(normed)
    return products.multiply(mlp.down_proj, inner(mlp, normed), summed)


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
    Layer, HybridLayer, HybridLayerWithParams,
)  # fmt: skip
FUNCTIONS = frozenset(it.forward for it in ALL)
INNER: dict[Any, Any] = {
    SiluMlp.forward: _silu_inner, GeluMlp.forward: _gelu_inner, PackedSiluMlp.forward: _packed_inner,
}  # fmt: skip
"""What an MLP computes before its last product, by its replacement."""
