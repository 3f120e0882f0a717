"""Decode step of gated DeltaNet: its convolution's update, and the recurrent step."""

from __future__ import annotations

import torch
from torch.nn import functional

from . import dispatch


def can_step(*tensors: torch.Tensor | None) -> bool:
    """Whether a kernel can run on these tensors, without a backward pass: there is none."""
    given = [it for it in tensors if it is not None]
    return dispatch.can_fuse(*given) and not dispatch.needs_grad(*given)


def fused_conv_update(
    x: torch.Tensor,
    state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """One token's causal convolution of each channel; the token is appended to `state`, in place.

    `x` has the shape (batch, channels, 1), as the result; `state` (batch, channels, tokens), of at
    least one token less than `weight`, (channels, width). `activation` is None, "silu" or "swish".
    It has no backward pass.
    """
    batch, channels, tokens = x.shape
    width, held = weight.shape[-1], state.shape[-1]
    given = [it for it in (x, state, weight, bias) if it is not None]
    is_ours = (
        tokens == 1
        and weight.shape == (channels, width)
        and state.shape == (batch, channels, held)
        and held >= max(1, width - 1)
        and (bias is None or bias.shape == (channels,))
        and activation in (None, "silu", "swish")
        and all(it.dtype == x.dtype for it in given)
        and state.is_contiguous()
        and can_step(*given)
    )
    if not is_ours:
        if activation not in (None, "silu", "swish"):
            raise ValueError(f"the activation is {activation!r}\ntry: None, 'silu' or 'swish'")
        every = torch.cat([state, x], dim=-1).to(weight.dtype)
        state.copy_(every[:, :, -held:])
        total = functional.conv1d(every, weight.unsqueeze(1), bias, groups=channels)[:, :, -tokens:]
        result: torch.Tensor = (total if activation is None else functional.silu(total)).to(x.dtype)
        return result
    from ..triton_kernels.delta import conv_update

    y, block = x.new_empty(batch, channels, 1), 128
    blocks = -(-channels // block)
    with dispatch.on_device(x):
        conv_update[(batch * blocks,)](
            x, state, weight.contiguous(), bias, y, channels, blocks, x.stride(0), x.stride(1),
            HAS_BIAS=bias is not None, HAS_SILU=activation is not None,
            WIDTH=width, STATE=held, BLOCK=block, num_warps=4, **dispatch.early_options(x.device),
        )  # fmt: skip
    return y


def fused_gated_delta_step(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:
    """One token's step of the gated delta rule; `state` is updated in place.

    `query` and `key` have the shape (batch, 1, key heads, K), `value` and the result (batch, 1,
    heads, V), where a key head serves heads / key heads consecutive heads; `a` and `b` (batch, 1,
    heads); `a_log` and `dt_bias` (heads,); `state` (batch, heads, K, V). In float32: query and key
    are normalised to length 1, the query divided by sqrt(K); the state decays by `exp(-exp(a_log) *
    softplus(a + dt_bias))`, is corrected by `sigmoid(b) * (value - key @ state)` along the key, and
    the result is `query @ state`. It has no backward pass.
    """
    batch, tokens, key_heads, keys = key.shape
    heads, values = value.shape[-2:]
    given = (query, key, value, a, b, a_log, dt_bias, state)
    is_ours = (
        tokens == 1
        and query.shape == key.shape
        and value.shape == (batch, 1, heads, values)
        and heads % key_heads == 0
        and a.shape == b.shape == (batch, 1, heads)
        and a_log.shape == dt_bias.shape == (heads,)
        and state.shape == (batch, heads, keys, values)
        and query.dtype == key.dtype == value.dtype == b.dtype
        and keys <= 256
        and state.is_contiguous()
        and all(it.stride(-1) == 1 for it in given)
        and can_step(*given)
    )
    if not is_ours:
        return _eager_step(query, key, value, a, b, a_log, dt_bias, state)
    from ..triton_kernels.delta import gated_delta_step

    y = value.new_empty(batch, 1, heads, values)
    # Tiles with an element for each thread or more: of smaller ones, two lanes would have the same.
    block = 16
    blocks = -(-values // block)
    with dispatch.on_device(value):
        gated_delta_step[(batch * heads * blocks,)](
            query, key, value, a, b, a_log, dt_bias, state, y, heads, heads // key_heads, blocks,
            query.stride(0), query.stride(2), key.stride(0), key.stride(2), value.stride(0), value.stride(2),
            a.stride(0), b.stride(0), keys, values, keys**0.5,
            BLOCK_K=max(64, dispatch.next_power(keys)), BLOCK_V=block, num_warps=4,
            **dispatch.early_options(value.device),
        )  # fmt: skip
    return y


def _eager_step(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:
    share = value.shape[2] // key.shape[2]
    q, k = (it.repeat_interleave(share, dim=2)[:, 0].float() for it in (query, key))
    q = q * torch.rsqrt((q * q).sum(dim=-1, keepdim=True) + 1e-6) / q.shape[-1] ** 0.5
    k = k * torch.rsqrt((k * k).sum(dim=-1, keepdim=True) + 1e-6)
    rate = b.sigmoid()[:, 0].float().unsqueeze(-1)
    decay = (-a_log.float().exp() * functional.softplus(a.float() + dt_bias))[:, 0].exp()
    memory = state.float() * decay[..., None, None]
    change = (value[:, 0].float() - (memory * k.unsqueeze(-1)).sum(dim=-2)) * rate
    memory = memory + k.unsqueeze(-1) * change.unsqueeze(-2)
    state.copy_(memory)
    result: torch.Tensor = (memory * q.unsqueeze(-1)).sum(dim=-2).to(value.dtype).unsqueeze(1)
    return result
