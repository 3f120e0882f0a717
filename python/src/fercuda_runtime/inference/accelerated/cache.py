"""Static caches: keys, values and recurrent states at fixed addresses, which graphs read and write.

Filled from the dynamic cache of a prefill, so that prompts are computed as Transformers computes
them. Padding is dropped on the way: row b's tokens lie in slots 0 to n_b - 1, whatever the padded
length, and a step reads only as many slots as its context bucket has. A layer with a sliding window
is a ring of as many slots as the window has tokens: token t lies in slot t modulo the window.
Recurrent and convolution states are Transformers' own layers, with tensors of ours.

Invariant: a slot holds the key and value of a token of the current request, or zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

from .attention import Layout, Step, Unsupported

__all__ = ["LayerShape", "StaticLayers", "shapes_of"]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape of one layer's cache. Of attention: `heads`, `key_dim`, `value_dim` and `window`
    (tokens that it attends to, or none); of a recurrent layer: the shapes of its states without
    the batch, in `states`, with their types."""

    heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int | None = None
    dtype: Any = None
    states: tuple[tuple[str, int, tuple[int, ...], Any], ...] = ()

    def bytes(self, batch: int, capacity: int) -> int:
        """Bytes of the layer's tensors."""
        if self.states:
            return sum(batch * _count(shape) * dtype.itemsize for _, _, shape, dtype in self.states)
        slots = min(capacity, self.window or capacity)
        size: int = self.dtype.itemsize
        return batch * self.heads * slots * (self.key_dim + self.value_dim) * size


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def shapes_of(cache: Any) -> tuple[LayerShape, ...]:
    """Shapes of the layers of a dynamic cache after a prefill.

    Raises `Unsupported` for a cache that is of another type, or has a layer of another type.
    """
    if type(cache) is not DynamicCache or getattr(cache, "offloading", False):
        raise Unsupported(f"its cache is a {type(cache).__name__} that is not dynamic, or offloaded")
    shapes = []
    for index, layer in enumerate(cache.layers):
        if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
            if layer.keys is None or layer.keys.dim() != 4:
                raise Unsupported(f"layer {index} of its cache is empty")
            window = layer.sliding_window if type(layer) is DynamicSlidingWindowLayer else None
            if getattr(layer, "record_past", False):
                raise Unsupported("its cache records the past")
            shapes.append(
                LayerShape(
                    layer.keys.shape[1],
                    layer.keys.shape[-1],
                    layer.values.shape[-1],
                    window,
                    layer.keys.dtype,
                )
            )
        elif type(layer) is LinearAttentionLayer and not layer.record_past:
            states = [
                (kind, number, tuple(tensor.shape[1:]), tensor.dtype)
                for kind, tensors in (("conv", layer.conv_states), ("recurrent", layer.recurrent_states))
                for number, tensor in tensors.items()
                if tensor is not None
            ]
            shapes.append(LayerShape(states=tuple(states)))
        else:
            raise Unsupported(f"layer {index} of its cache is a {type(layer).__name__}")
    if not any(shape.heads for shape in shapes):
        raise Unsupported("it has no attention layer")
    return tuple(shapes)


class _Slots(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one attention layer, (batch, heads, slots, dim)."""

    is_compileable = True
    is_sliding = False

    def __init__(self, shape: LayerShape, batch: int, capacity: int, device: Any) -> None:
        super().__init__()
        self.heads, self.value_dim, self.window = shape.heads, shape.value_dim, shape.window
        self.key_dim = shape.key_dim
        self.slots = min(capacity, shape.window or capacity)
        self.batch = batch
        like = {"dtype": shape.dtype, "device": device}
        self.keys = torch.zeros(batch, self.heads, self.slots, shape.key_dim, **like)
        self.values = torch.zeros(batch, self.heads, self.slots, shape.value_dim, **like)
        self.step: Step | None = None
        self.read_keys: Any = None
        self.read_values: Any = None
        self.is_initialized = True

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        """Nothing: the tensors exist."""

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Writes the new token of each row to its slot; the slots that the step reads."""
        step = self.step
        if step is None or tuple(key_states.shape) != (self.batch, self.heads, 1, self.key_dim):
            raise Unsupported(f"a layer stores keys of shape {tuple(key_states.shape)} in a step")
        if step.current is not None:
            raise Unsupported("a layer's attention does not go through Transformers' interface")
        rows = step.slot_rows(self.slots, self.heads)
        self.keys.view(-1, self.key_dim).index_copy_(0, rows, key_states.reshape(-1, self.key_dim))
        self.values.view(-1, self.value_dim).index_copy_(
            0, rows, value_states.reshape(-1, self.value_dim)
        )
        length = min(step.bucket, self.slots)
        self.read_keys, self.read_values = self.keys[:, :, :length], self.values[:, :, :length]
        step.updates += 1
        step.current = self
        return self.read_keys, self.read_values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """One slot at offset 0: no mask is made for these layers."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Zero: positions are passed to the model."""
        return 0

    def get_max_length(self) -> int:
        """The number of slots."""
        return self.slots

    def get_max_cache_shape(self) -> int:
        """The number of slots, by the name that older releases use."""
        return self.slots

    def load(self, source: Any, lengths: list[int], picks: list[Any] | None) -> None:
        """Takes the tokens of `source`, a dynamic layer of as many rows or fewer. `lengths`: the
        tokens of each row without padding; `picks`: their columns, for rows with gaps."""
        self.keys.zero_()
        self.values.zero_()
        for row, length in enumerate(lengths):
            held = min(length, source.keys.shape[-2], self.slots)
            if not held:
                continue
            for target, origin in ((self.keys, source.keys), (self.values, source.values)):
                if picks is not None:
                    tokens = origin[row].index_select(1, picks[row])
                else:
                    tokens = origin[row, :, origin.shape[-2] - held :]
                begin = (length - held) % self.slots
                first = min(held, self.slots - begin)
                target[row, :, begin : begin + first].copy_(tokens[:, :first])
                if first < held:
                    target[row, :, : held - first].copy_(tokens[:, first:])

    def append_to(self, target: Any, lengths: list[int], count: int) -> None:
        """Appends the last `count` tokens of each row to a dynamic layer, in their order.
        `lengths`: tokens of each row with them."""
        if not count:
            return
        rows = len(lengths)
        held = min(count, self.slots)
        ends = torch.tensor(lengths, device=self.keys.device)
        columns = (ends[:, None] - held + torch.arange(held, device=ends.device)).remainder(self.slots)
        index = columns[:, None, :, None]
        for name, origin in (("keys", self.keys[:rows]), ("values", self.values[:rows])):
            shape = (rows, self.heads, held, origin.shape[-1])
            joined = torch.cat((getattr(target, name), origin.gather(2, index.expand(shape))), dim=2)
            if self.window is not None:
                joined = joined[:, :, -self.window + 1 :].contiguous() if self.window > 1 else joined[:, :, :0]
            setattr(target, name, joined)
        if self.window is not None:
            target.cumulative_length += count

    def unload(self, target: Any, mask: Any) -> None:
        """Puts all tokens into an emptied dynamic layer, and frees this one. `mask`: columns of
        that layer that are tokens, (rows, columns)."""
        rows, columns = mask.shape
        ranks = ((mask != 0).cumsum(dim=1) - 1).clamp(min=0)
        if self.window is not None:
            ranks = ranks[:, max(0, columns - self.window + 1) :]
        index = ranks.remainder(self.slots)[:, None, :, None]
        for name in ("keys", "values"):
            origin = getattr(self, name)[:rows]
            shape = (rows, self.heads, index.shape[2], origin.shape[-1])
            setattr(target, name, origin.gather(2, index.expand(shape)))
            setattr(self, name, None)
            del origin
        self.read_keys = self.read_values = None
        if self.window is not None:
            target.cumulative_length = columns

    def grow(self, capacity: int) -> None:
        """Gives the layer room for `capacity` tokens, or its window's."""
        slots = min(capacity, self.window or capacity)
        if slots <= self.slots:
            return
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(*old.shape[:2], slots, old.shape[-1])
            new[:, :, : self.slots].copy_(old)
            setattr(self, name, new)
            del old
        self.slots = slots
        self.read_keys = self.read_values = None


class StaticLayers:
    """Static cache of `batch` rows. `cache`: what a model takes as its cache; `capacity`: tokens
    that a row has room for."""

    def __init__(self, shapes: tuple[LayerShape, ...], batch: int, capacity: int, device: Any) -> None:
        self.shapes = shapes
        self.batch = batch
        self.capacity = capacity
        self.layout = Layout()
        self.slots: list[_Slots] = []
        self.recurrent: list[Any] = []
        layers = []
        for shape in shapes:
            layer = _recurrent(shape, batch, device) if shape.states else _Slots(shape, batch, capacity, device)
            (self.recurrent if shape.states else self.slots).append(layer)
            layers.append(layer)
        self.cache = Cache(layers=layers)

    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(shape.bytes(self.batch, self.capacity) for shape in self.shapes)

    def begin(self, step: Step | None) -> None:
        """Sets the step that the layers write and read in."""
        for layer in self.slots:
            layer.step = step

    def load(self, source: Any, lengths: list[int], picks: list[Any] | None) -> None:
        """Copies a dynamic cache."""
        for target, origin in zip(self.cache.layers, source.layers, strict=True):
            if isinstance(target, _Slots):
                target.load(origin, lengths, picks)
            else:
                for mine, other in _states(target, origin):
                    mine.zero_()
                    mine[: len(lengths)].copy_(other)

    def unload(self, target: Any, mask: Any) -> None:
        """Fills a dynamic cache of emptied layers, and frees each layer here once it is copied: this
        cache is of no more use. `mask`: columns of the dynamic cache that are tokens, (rows,
        columns)."""
        for mine, other in zip(self.cache.layers, target.layers, strict=True):
            if isinstance(mine, _Slots):
                mine.unload(other, mask)
            else:
                for tensor, destination in _states(mine, other):
                    destination.copy_(tensor[: mask.shape[0]])

    def append_to(self, target: Any, lengths: list[int], count: int) -> None:
        """Brings a dynamic cache up to date that `load` was called with, `count` tokens ago."""
        for mine, other in zip(self.cache.layers, target.layers, strict=True):
            if isinstance(mine, _Slots):
                mine.append_to(other, lengths, count)
            else:
                for tensor, destination in _states(mine, other):
                    destination.copy_(tensor[: len(lengths)])

    def snapshot(self) -> Callable[[], None]:
        """A function that puts recurrent and convolution states back to what they are now."""
        kept = [
            (tensor, tensor.clone())
            for layer in self.recurrent
            for tensors in (layer.conv_states, layer.recurrent_states)
            for tensor in tensors.values()
            if tensor is not None
        ]

        def restore() -> None:
            for tensor, copy in kept:
                tensor.copy_(copy)

        return restore

    def grow(self, capacity: int) -> None:
        """Gives each row room for `capacity` tokens. Addresses change."""
        for layer in self.slots:
            layer.grow(capacity)
        self.capacity = capacity
        self.layout = Layout()


def _recurrent(shape: LayerShape, batch: int, device: Any) -> Any:
    layer = LinearAttentionLayer(number_of_states=1 + max((number for _, number, _, _ in shape.states), default=0))
    for kind, number, rest, dtype in shape.states:
        tensor = torch.zeros(batch, *rest, dtype=dtype, device=device)
        if kind == "conv":
            layer.conv_states[number] = tensor
            layer.is_conv_states_initialized[number] = True
            layer.conv_kernel_size[number] = rest[-1]
        else:
            layer.recurrent_states[number] = tensor
            layer.is_recurrent_states_initialized[number] = True
        layer.has_previous_state[number] = True
    layer.device = device
    layer.dtype = shape.states[0][3]
    return layer


def _states(mine: Any, other: Any) -> list[tuple[Any, Any]]:
    pairs = []
    for name in ("conv_states", "recurrent_states"):
        for number, tensor in getattr(mine, name).items():
            if tensor is not None:
                pairs.append((tensor, getattr(other, name)[number]))
    return pairs
