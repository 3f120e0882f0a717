"""Place in Transformers where decoding by graphs enters: the decode loops of `GenerationMixin`.

`generate` prepares a request and then calls a loop, `_sample` or another, as a function of its
class. While a model is accelerated these functions are wrapped: for such a model `_sample` leads to
its decoder, other loops run as they are and their use is reported once. All other models pass
through. So `generate` itself, its signature and its checks are Transformers' own, a copy of a model
(`copy.deepcopy`, pickle) is not accelerated, and PEFT's wrappers need nothing more.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .attention import register
from .capture import CudaGraphs, Graphs
from .decode import Decoder

__all__ = ["decoder_of", "install", "uninstall", "unwatch", "watch"]

_LOCK = threading.RLock()
_DECODERS: weakref.WeakKeyDictionary[Any, Decoder] = weakref.WeakKeyDictionary()
_ORIGINALS: dict[str, Callable[..., Any]] = {}
# Whether a model that generates on a GPU is accelerated by its first call, and models that were
# taken out of that again.
_WATCHED = threading.Event()
_DEVICE = "cuda"
_LEFT: weakref.WeakSet[Any] = weakref.WeakSet()
# Loops that no graph runs, with the words for their use.
_OTHERS = {
    "_beam_search": "beams are searched",
    "_assisted_decoding": "another model assists",
    "_contrastive_search": "contrastive search is asked for",
    "_group_beam_search": "beams are searched",
    "_constrained_beam_search": "beams are searched",
    "_dola_decoding": "layers are contrasted (DoLa)",
    "_mtp_decoding": "several tokens are predicted at once",
}


def decoder_of(model: Any) -> Decoder | None:
    """The decoder of an accelerated model, or none."""
    return _DECODERS.get(model)


def install(
    model: Any, graphs: Graphs, *, max_context: int | None = None, memory: int | None = None
) -> Decoder:
    """Makes `model` decode by `graphs`, in place of a decoder that it has already."""
    with _LOCK:
        register()
        _wrap()
        decoder = Decoder(model, graphs, max_context=max_context, memory=memory)
        old = _DECODERS.get(model)
        _DECODERS[model] = decoder
        weakref.finalize(model, _forget, decoder).atexit = False
    if old is not None:
        old.free()
    return decoder


def uninstall(model: Any) -> bool:
    """Makes `model` decode as before; whether it was accelerated. Waits for a `generate` under
    way, and puts Transformers' functions back after the last model."""
    with _LOCK:
        decoder = _DECODERS.pop(model, None)
        if _WATCHED.is_set():
            _LEFT.add(model)
        elif not len(_DECODERS):
            _unwrap()
    if decoder is None:
        return False
    decoder.free()
    return True


def watch() -> None:
    """Accelerates every model that calls `generate` on a GPU from now on, without a call for it."""
    with _LOCK:
        _WATCHED.set()
        register()
        _wrap()


def unwatch() -> None:
    """Ends `watch`; models that are accelerated stay so."""
    with _LOCK:
        _WATCHED.clear()
        if not len(_DECODERS):
            _unwrap()


def _first(model: Any) -> Decoder | None:
    """A new decoder for a model on a GPU while `watch` is on, or none."""
    if not _WATCHED.is_set() or model in _LEFT or model.device.type != _DEVICE:
        return None
    with _LOCK:
        found = _DECODERS.get(model)
        return found if found is not None else install(model, CudaGraphs(model.device))


def _forget(decoder: Decoder) -> None:
    """Frees what is left of a model that is gone."""
    decoder.release()
    with _LOCK:
        if not list(_DECODERS) and not _WATCHED.is_set():
            _unwrap()


def _wrap() -> None:
    from transformers.generation.utils import GenerationMixin

    if _ORIGINALS:
        return
    sample = GenerationMixin._sample
    _ORIGINALS["_sample"] = sample

    @functools.wraps(sample)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        decoder = _DECODERS.get(self) or _first(self)
        if decoder is None:
            return sample(self, *args, **kwargs)
        return decoder.sample(sample, self, *args, **kwargs)

    GenerationMixin._sample = wrapped
    for name, words in _OTHERS.items():
        if name in GenerationMixin.__dict__:
            _ORIGINALS[name] = GenerationMixin.__dict__[name]
            setattr(GenerationMixin, name, _reporting(_ORIGINALS[name], words))
    extract = GenerationMixin.__dict__.get("_extract_generation_mode_kwargs")
    if extract is not None:
        _ORIGINALS["_extract_generation_mode_kwargs"] = extract

        @functools.wraps(extract)
        def extracting(self: Any, custom_generate: Any, *args: Any, **kwargs: Any) -> Any:
            decoder = _DECODERS.get(self)
            if custom_generate is not None and decoder is not None:
                decoder.say("custom_generate is a loop of the caller's")
            return extract(self, custom_generate, *args, **kwargs)

        GenerationMixin._extract_generation_mode_kwargs = extracting


def _reporting(loop: Callable[..., Any], words: str) -> Callable[..., Any]:
    @functools.wraps(loop)
    def reporting(self: Any, *args: Any, **kwargs: Any) -> Any:
        decoder = _DECODERS.get(self)
        if decoder is not None:
            decoder.say(words)
        return loop(self, *args, **kwargs)

    return reporting


def _unwrap() -> None:
    from transformers.generation.utils import GenerationMixin

    while _ORIGINALS:
        name, original = _ORIGINALS.popitem()
        setattr(GenerationMixin, name, original)
