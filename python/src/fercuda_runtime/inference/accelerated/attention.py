"""Attention of one new token a row over a static cache, with lengths that are read on the device.

Registered with Transformers under the name `NAME`, and selected while a decode step runs. Other
threads that run the model meanwhile are led to the implementation that the model is configured
for. No mask is made: row b attends to the first `counts[b]` slots of its cache.

Three ways of computing: flash attention with per-row lengths (half types on CUDA, after a trial
against the second on the device itself), or two batched products with a softmax in f32.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["NAME", "Step", "Unsupported", "attend", "implementation_of", "register", "selected", "tries_flash"]

NAME = "fercuda_decode"


class Unsupported(Exception):
    """A model that a decode step cannot run as a graph, with the reason."""


class _Group:
    """Values that all layers with the same number of slots and heads share in one step."""

    def __init__(self, lens: Any, slots: int, heads: int) -> None:
        batch = lens.shape[0]
        rows = torch.arange(batch * heads, device=lens.device).view(batch, heads) * slots
        self.rows = rows
        self.slots = slots
        self.heads = heads
        self.edges = torch.arange(batch * heads + 1, device=lens.device, dtype=torch.int32)
        self.starts = self.edges * slots
        self.ranks = torch.arange(slots, device=lens.device)


class Layout:
    """Constants on the device for the layers of one static cache, made outside of graphs."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, int], _Group] = {}

    def group(self, lens: Any, slots: int, heads: int) -> _Group:
        """The constants for layers of `slots` slots and `heads` heads."""
        found = self._groups.get((slots, heads))
        if found is None:
            found = self._groups[slots, heads] = _Group(lens, slots, heads)
        return found


class Step:
    """One run of a model over a static cache. `lens`: tokens in the cache of each row, int64 on
    the device; `bucket`: slots that are read at most; `flash`: whether flash attention is used;
    `caps`: whether the model's own attention applies softcap and sinks."""

    def __init__(self, lens: Any, bucket: int, layout: Layout, *, flash: bool, caps: bool) -> None:
        self.lens = lens
        self.bucket = bucket
        self.layout = layout
        self.flash = flash
        self.caps = caps
        self.updates = 0
        self.attended = 0
        self.current: Any = None
        self._slots: dict[tuple[int, int], Any] = {}
        self._counts: dict[tuple[int, int], Any] = {}
        self._bias: dict[tuple[int, int], Any] = {}

    def slot_rows(self, slots: int, heads: int) -> Any:
        """Rows of a cache, seen as (batch * heads * slots, dim), that the new tokens go to."""
        key = slots, heads
        if key not in self._slots:
            group = self.layout.group(self.lens, slots, heads)
            self._slots[key] = (group.rows + self.lens.remainder(slots)[:, None]).view(-1)
        return self._slots[key]

    def counts(self, slots: int, heads: int) -> Any:
        """Filled slots of each row and head with the new token, int32, (batch * heads)."""
        key = slots, heads
        if key not in self._counts:
            filled = (self.lens + 1).clamp(max=slots).to(torch.int32)
            # A reshape of one row alone would be a view without strides, which flash attention refuses.
            self._counts[key] = filled[:, None].expand(-1, heads).contiguous().view(-1)
        return self._counts[key]

    def bias(self, slots: int, length: int) -> Any:
        """Zero for filled slots, minus infinity for others: f32, (batch, 1, length)."""
        key = slots, length
        if key not in self._bias:
            ranks = self.layout.group(self.lens, slots, 1).ranks[:length]
            empty = ranks[None, None, :] > self.lens[:, None, None]
            bias = torch.zeros(empty.shape, dtype=torch.float32, device=empty.device)
            self._bias[key] = bias.masked_fill_(empty, float("-inf"))
        return self._bias[key]


class _Local(threading.local):
    step: Step | None = None


class _Selection:
    """A config under this module's name: what it had before, and how many steps are under way.
    Models may share a config, and run in several threads."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.original: str = config._attn_implementation_internal
        self.steps = 0


_LOCAL = _Local()
_LOCK = threading.Lock()
# By the config's identity, while it is changed.
_SELECTIONS: dict[int, _Selection] = {}


@contextlib.contextmanager
def selected(configs: list[Any], step: Step) -> Iterator[None]:
    """Runs its body with this module's attention for models of `configs`, in this thread."""
    taken: list[_Selection] = []
    try:
        with _LOCK:
            for config in configs:
                found = _SELECTIONS.setdefault(id(config), _Selection(config))
                found.steps += 1
                taken.append(found)
                config._attn_implementation_internal = NAME
        _LOCAL.step = step
        yield
    finally:
        _LOCAL.step = None
        with _LOCK:
            for found in taken:
                found.steps -= 1
                if not found.steps:
                    found.config._attn_implementation_internal = found.original
                    del _SELECTIONS[id(found.config)]


def implementation_of(config: Any) -> str | None:
    """The attention that a config is set to, whatever steps are under way in other threads."""
    with _LOCK:
        found = _SELECTIONS.get(id(config))
        name = found.original if found is not None else getattr(config, "_attn_implementation", None)
    return None if name is None else str(name)


def register() -> None:
    """Makes this module's attention and masks known to Transformers, under `NAME`."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _mask)


def _mask(*args: Any, **kwargs: Any) -> Any:
    if _LOCAL.step is not None:
        return None
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    config = kwargs.get("config")
    found = _SELECTIONS.get(id(config))
    original = found.original if found is not None else "sdpa"
    return ALL_MASK_ATTENTION_FUNCTIONS[original](*args, **kwargs)


def _attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any
) -> tuple[Any, Any]:
    step = _LOCAL.step
    if step is None:
        return _original(module)(module, query, key, value, attention_mask, **kwargs)  # type: ignore[no-any-return]
    layer = step.current
    if layer is None or key is not layer.read_keys or value is not layer.read_values:
        raise Unsupported(f"{type(module).__name__} changes cached keys or values before attention")
    if attention_mask is not None or kwargs.get("position_bias") is not None:
        raise Unsupported(f"{type(module).__name__} adds a bias to its attention")
    window = kwargs.get("sliding_window")
    if window is not None and window != layer.window:
        raise Unsupported(
            f"{type(module).__name__} attends to {window} tokens, and its cache keeps {layer.window or 'all'}"
        )
    step.current = None
    step.attended += 1
    scaling = kwargs.get("scaling")
    return (
        attend(
            step,
            layer,
            query,
            float(scaling) if scaling is not None else query.shape[-1] ** -0.5,
            softcap=kwargs.get("softcap") if step.caps else None,
            sinks=kwargs.get("s_aux") if step.caps else None,
        ),
        None,
    )


def _original(module: Any) -> Any:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    config = getattr(module, "config", None)
    found = _SELECTIONS.get(id(config))
    name = found.original if found is not None else "sdpa"
    own = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return own if name == "eager" else ALL_ATTENTION_FUNCTIONS[name]


def attend(
    step: Step, layer: Any, query: Any, scaling: float, *, softcap: Any = None, sinks: Any = None
) -> Any:
    """Attention of `query`, (batch, heads, 1, dim), over the layer's filled slots: (batch, 1,
    heads, dim of values). Softmax in f32."""
    batch, heads, _, dim = query.shape
    slots, shared = layer.slots, layer.heads
    length = min(step.bucket, slots)
    rows = batch * shared
    query = query.reshape(rows, heads // shared, dim)
    if step.flash and softcap is None and sinks is None and _fits_flash(query, layer):
        out = _flash(step, layer, query, scaling, length)
        return out.reshape(batch, 1, heads, layer.value_dim)
    keys = layer.keys.view(rows, slots, dim)[:, :length]
    values = layer.values.view(rows, slots, layer.value_dim)[:, :length]
    scores = _product(query, keys.transpose(1, 2)).mul_(scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.view(batch, heads, length) + step.bias(slots, length)
    if sinks is not None:
        column = sinks.reshape(1, heads, 1).expand(batch, -1, 1).to(scores.dtype)
        weights = torch.softmax(torch.cat((scores, column), dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    weights = weights.to(values.dtype).reshape(rows, heads // shared, length)
    return torch.bmm(weights, values).reshape(batch, 1, heads, layer.value_dim)


# Number types of which this device's batched products can have f32 results, found at first use.
_WIDE_PRODUCTS: dict[Any, bool] = {}


def _product(left: Any, right: Any) -> Any:
    """Batched product in f32; of half types on CUDA without rounding the sums to the half type."""
    if not left.is_cuda or left.dtype == torch.float32:
        return torch.bmm(left, right).float()
    key = left.device, left.dtype
    if key not in _WIDE_PRODUCTS:
        # A step runs before it is captured, so that this is not within a capture.
        one = left.new_ones(1, 8, 8)
        try:
            torch.bmm(one, one, out_dtype=torch.float32)
            _WIDE_PRODUCTS[key] = True
        except (TypeError, RuntimeError):
            _WIDE_PRODUCTS[key] = False
    if _WIDE_PRODUCTS[key]:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left, right).float()


def _fits_flash(query: Any, layer: Any) -> bool:
    dim = query.shape[-1]
    return (
        query.is_cuda
        and query.dtype in (torch.float16, torch.bfloat16)
        and dim == layer.value_dim
        and dim % 8 == 0
        and dim <= 256
    )


def _flash(step: Step, layer: Any, query: Any, scaling: float, length: int) -> Any:
    """Flash attention with a sequence for each row and head of the cache. Lengths are read
    on the device, so that slots beyond them are not read."""
    group = step.layout.group(step.lens, layer.slots, layer.heads)
    rows = query.shape[0]
    dim = query.shape[-1]
    return torch.ops.aten._flash_attention_forward(
        query,
        layer.keys.view(rows * layer.slots, 1, dim),
        layer.values.view(rows * layer.slots, 1, dim),
        group.edges,
        group.starts,
        1,
        length,
        0.0,
        False,
        False,
        scale=scaling,
        seqused_k=step.counts(layer.slots, layer.heads),
    )[0]


def tries_flash(layer: Any, heads: int) -> bool:
    """Whether flash attention with lengths on the device gives this device's results for a layer's
    shape: both ways are computed on random data and compared. Takes a few milliseconds once."""
    if layer.keys is None or layer.heads == 0 or heads // layer.heads < 2:
        return False
    generator = torch.Generator(device="cpu").manual_seed(1)
    like = {"dtype": layer.keys.dtype, "device": layer.keys.device}
    trial = _Trial(layer, generator, like)
    query = torch.randn(2, heads, 1, trial.dim, generator=generator).to(**like)
    if not _fits_flash(query, trial):
        return False
    lens = torch.tensor([3, 299], device=layer.keys.device)
    try:
        step = Step(lens, 512, Layout(), flash=True, caps=False)
        found = attend(step, trial, query, 0.1)
        step = Step(lens, 512, Layout(), flash=False, caps=False)
        expected = attend(step, trial, query, 0.1)
        difference = (found.float() - expected.float()).abs().max().item()
        return bool(difference <= 0.02 * expected.float().abs().max().item())
    except (RuntimeError, TypeError, AttributeError):
        return False


class _Trial:
    """A layer of random keys and values in the shape of another, for `tries_flash`."""

    window = None

    def __init__(self, layer: Any, generator: Any, like: dict[str, Any]) -> None:
        self.heads, self.slots = layer.heads, 512
        self.dim, self.value_dim = layer.keys.shape[-1], layer.value_dim
        shape = (2, self.heads, self.slots)
        self.keys = torch.randn(*shape, self.dim, generator=generator).to(**like)
        self.values = torch.randn(*shape, self.value_dim, generator=generator).to(**like)
