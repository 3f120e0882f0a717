"""Decoding by CUDA graphs for models of Hugging Face Transformers.

    model = AutoModelForCausalLM.from_pretrained(name, dtype="bfloat16").to("cuda").eval()
    handle = accelerate(model)
    model.generate(**inputs, max_new_tokens=256)    # after the first token: replayed graphs
    print(handle)                                   # graphs, memory, and what ran eager, and why

`generate` keeps its arguments and results: greedy search and sampling with a seed, batches with
left padding, streamers, stopping criteria, logits processors, adapters of PEFT. The prompt is
computed as before; from the second token on, one graph of the model and one of the token's choice
are replayed a step. Requests that no graph can run (beams, assistants, attentions asked for, models
on several devices or in training mode) run as without this module, with one warning that says why.

PyTorch and Transformers are imported by `accelerate`, not with this module.
"""

from __future__ import annotations

import importlib
from typing import Any

from ...errors import ConfigError

__all__ = ["Accelerated", "accelerate", "restore"]


class Accelerated:
    """An accelerated model's graphs and what became of its requests. Holds no reference to the
    model; once the model is gone, nothing is left on the device."""

    def __init__(self, decoder: Any, fused: tuple[str, ...], refusal: str | None) -> None:
        self._decoder = decoder
        self._fused = fused
        self._refusal = refusal

    @property
    def fused(self) -> tuple[str, ...]:
        """Names of the parts of the model that fused kernels replaced; empty without them."""
        return self._fused

    @property
    def attention(self) -> str:
        """How attention is computed in a step; chosen at the first request."""
        return str(self._decoder.attention)

    @property
    def captures(self) -> int:
        """Graphs captured since `accelerate`."""
        return int(self._decoder.captures)

    @property
    def replays(self) -> int:
        """Graphs replayed since `accelerate`: two a token."""
        return int(self._decoder.replayed)

    @property
    def requests(self) -> int:
        """Requests that began in the loop of this module."""
        return int(self._decoder.requests)

    @property
    def eager(self) -> dict[str, int]:
        """Requests that ran eager, or partly so, by reason."""
        return dict(self._decoder.reasons)

    @property
    def memory(self) -> dict[int, tuple[int, int, int]]:
        """By batch size that graphs were made for: bytes of the cache and the argument block, bytes
        that captures reserved, and the number of graphs."""
        figures: dict[int, tuple[int, int, int]] = self._decoder.figures()
        return figures

    def release(self) -> None:
        """Frees all graphs and caches; the next request makes them again. Waits for a `generate`
        under way; from within one (a streamer's, say), they are freed at its end."""
        self._decoder.free()

    def __str__(self) -> str:
        lines = [
            f"decoding by graphs: {self.requests} requests, {self.captures} graphs captured, "
            f"{self.replays} replays; attention: {self.attention}"
        ]
        for batch, (cache, graphs, count) in sorted(self.memory.items()):
            lines.append(
                f"  batch {batch}: cache {cache / 2**20:.1f} MiB, {count} graphs {graphs / 2**20:.1f} MiB "
                "(of the tenant PyTorch)"
            )
        if self._refusal is not None:
            lines.append(f"  as the model is now, requests run eager: {self._refusal}")
        lines += [f"  eager: {reason} ({count} times)" for reason, count in self.eager.items()]
        return "\n".join(lines)


def accelerate(
    model: Any, *, fused: bool = True, max_context: int | None = None, memory: int | None = None
) -> Accelerated:
    """Makes `model.generate` decode by CUDA graphs, for a causal language model of Transformers or
    a model of PEFT around one. `fused`: fuse small operations into single kernels too, where this
    package has them for the model; `max_context`: tokens that caches have room for from the start,
    so that they never grow below that; `memory`: most bytes of caches and graphs: older batch sizes
    make room, a request with a larger cache runs eager, and a step with too large a graph runs
    without one.

    Nothing is captured yet. A second thread that calls `generate` waits for the first; a fork, and
    a `generate` within a streamer of another, run eager. Whatever runs eager says so once, as a
    `UserWarning`. Called again, it begins anew.

    Raises `ConfigError` if the model has no `generate` of Transformers, or an argument is not
    positive; `ImportError` without PyTorch and Transformers.
    """
    for name, value in (("max_context", max_context), ("memory", memory)):
        if value is not None and value <= 0:
            raise ConfigError(f"{name} is {value}\ntry: a positive number, or none for no limit")
    install = importlib.import_module(f"{__name__}.install")
    rules = importlib.import_module(f"{__name__}.rules")
    capture = importlib.import_module(f"{__name__}.capture")
    inner = _inner(model)
    if not hasattr(inner, "generate") or not hasattr(inner, "_sample"):
        raise ConfigError(
            f"a {type(model).__name__} has no generate of Transformers\n"
            "try: a model of AutoModelForCausalLM, before or after PEFT"
        )
    refusal = rules.model_refusal(inner, "cuda")
    graphs = _NoGraphs() if refusal is not None and not _has_cuda() else capture.CudaGraphs(_device(inner))
    patched = _fuse(inner) if fused and refusal is None else ()
    return Accelerated(install.install(inner, graphs, max_context=max_context, memory=memory), patched, refusal)


def restore(model: Any) -> bool:
    """Undoes `accelerate`: graphs and caches are freed, fused kernels are taken out; whether the
    model was accelerated. Waits for a `generate` under way."""
    inner = _inner(model)
    install = importlib.import_module(f"{__name__}.install")
    was = bool(install.uninstall(inner))
    if was:
        try:
            kernels = importlib.import_module("fercuda_runtime.inference.kernels")
        except ImportError:
            return was
        undo = getattr(kernels, "unpatch", None)
        if undo is not None:
            undo(inner)
    return was


def _inner(model: Any) -> Any:
    """The model of Transformers within one of PEFT, or the model itself."""
    base = getattr(model, "get_base_model", None)
    return base() if callable(base) else model


def _has_cuda() -> bool:
    torch = importlib.import_module("torch")
    return bool(torch.cuda.is_available())


def _device(model: Any) -> Any:
    torch = importlib.import_module("torch")
    device = next(iter(model.parameters())).device
    return device if device.type == "cuda" else torch.device("cuda", torch.cuda.current_device())


def _fuse(model: Any) -> tuple[str, ...]:
    try:
        kernels = importlib.import_module("fercuda_runtime.inference.kernels")
    except ImportError:
        return ()
    patch = getattr(kernels, "patch", None)
    if patch is None:
        return ()
    found = patch(model)
    if found is None:
        return ("kernels",)
    return tuple(str(one) for one in found) if isinstance(found, (list, tuple, set, dict)) else (str(found),)


class _NoGraphs:
    """Stands for graphs where there is no device: every request runs eager before it asks."""

    device_type = "cuda"

    def join(self) -> None:
        """Nothing is queued."""

    def leave(self) -> None:
        """Nothing is queued."""

    def bind(self, device: Any) -> None:
        """Nothing is captured."""
