"""The decode loop: prefill and first token as Transformers computes them, then replayed graphs.

A loop launches step i + 1 before it reads the tokens of step i, so that the device does not wait
for the host; after a stop the step ahead is discarded, and a generator of random numbers that it
moved is put back. Whatever cannot run as graphs goes on eager from where it is, with the same
cache. One thread at a time runs graphs of a model; a second one waits for it.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import threading
import time
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from . import rules
from .attention import Unsupported, implementation_of, tries_flash
from .cache import LayerShape, shapes_of
from .capture import Graphs
from .check import bound_of
from .select import Choice, choice_of, stops_of
from .workspace import Workspace, batch_bucket, context_bucket, forward_step

__all__ = ["Decoder"]

# Tokens that a request gets room for at first, if it may make more: the cache then doubles.
_FIRST_TOKENS = 4096
_WORKSPACES = 4
# First steps that differ from the eager one before a model is refused: one may be near a tie, where
# a mixture of experts chooses otherwise by rounding.
_TRIES = 3


class Decoder:
    """Graphs of one model, and the loop that runs them. Holds no reference to the model."""

    def __init__(
        self, model: Any, graphs: Graphs, *, max_context: int | None, memory: int | None
    ) -> None:
        self._model = weakref.ref(model)
        self._graphs = graphs
        self._max_context = max_context
        self._memory = memory
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._is_ending = False
        self._pid = os.getpid()
        self._workspaces: OrderedDict[int, Workspace] = OrderedDict()
        self._identity: tuple[Any, ...] | None = None
        self._refused: str | None = None
        self._is_checked = False
        self._tries = 0
        self._run: Callable[[Workspace, int], None] | None = None
        self.attention = "not yet chosen"
        self.reasons: dict[str, int] = {}
        self._shapes: dict[str, str] = {}
        self.requests = 0
        self.replayed = 0
        self.captures = 0

    def sample(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs Transformers' decode loop `original` for `model`, by graphs where it can."""
        try:
            request = _Request(self, model, *args, **kwargs)
            reason = request.refusal()
        except TypeError as error:
            request, reason = None, f"its decode loop has other arguments: {error}"
        if reason is None and os.getpid() != self._pid:
            reason = "the process was forked, and a device is of use in the parent alone"
        if reason is None and self._owner == threading.get_ident():
            reason = "it is called within another generate of the same model and thread"
        if reason is not None:
            self.say(reason)
            return original(model, *args, **kwargs)
        assert request is not None
        with self._lock:
            self._owner = threading.get_ident()
            self._graphs.join()
            try:
                return request.run()
            finally:
                if self._is_ending:
                    self._is_ending = False
                    self.release()
                self._owner = None
                self._graphs.leave()

    def say(self, reason: str) -> None:
        """Warns of `reason` the first time, and counts it. Reasons that differ by their figures are
        one."""
        shape = re.sub(r"[0-9][0-9.e+-]*", "0", reason)
        reason = self._shapes.setdefault(shape, reason)
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        if self.reasons[reason] == 1:
            warnings.warn(
                f"accelerate: generate runs without graphs: {reason}", UserWarning, stacklevel=4
            )

    def enter(self, request: _Request) -> Workspace:
        """A workspace with the request's cache and arguments, ready for its next forward.

        Raises `Unsupported` with the reason if the request has to go on eager.
        """
        model = request.model
        reason = rules.model_refusal(model, self._graphs.device_type)
        identity = rules.fingerprint(model)
        if identity != self._identity:
            self.release()
            self._refused, self._is_checked, self._tries = None, False, 0
        if reason is not None:
            raise Unsupported(reason)
        if self._identity is None:
            self._graphs.bind(request.device)
            self._identity = identity
        if self._refused is not None:
            raise Unsupported(self._refused)
        try:
            work, longest = self._fill(request, shapes_of(request.cache))
        except torch.OutOfMemoryError as error:
            self.release()
            raise Unsupported(f"no memory for a static cache: {str(error).splitlines()[0]}") from error
        if not self._is_checked:
            self._check(request, work, longest)
        if not request.keeps_cache:
            request.drop_cache()
        return work

    def _fill(self, request: _Request, shapes: tuple[LayerShape, ...]) -> tuple[Workspace, int]:
        lengths, picks = request.rows(shapes)
        longest = max(lengths)
        room = request.room()
        tokens = longest + 1 + min(room, _FIRST_TOKENS)
        tokens = max(tokens, self._max_context or 0)
        work = self._workspace(shapes, batch_bucket(len(lengths)), tokens, request.device)
        columns = request.ids.shape[1] + min(room, _FIRST_TOKENS) + 2
        work.reserve(tokens, columns, request.vocabulary, sample=request.choice.sample)
        if self._run is None:
            self._run = self._step(request.model, work)
        work.begin(
            request.ids, request.next_positions(), lengths, request.unfinished, request.choice
        )
        work.layers.load(request.cache, lengths, picks)
        request.lengths = lengths
        request.stored = 0
        return work, longest

    def _workspace(self, shapes: tuple[LayerShape, ...], batch: int, tokens: int, device: Any) -> Workspace:
        work = self._workspaces.get(batch)
        if work is not None and (work.layers.shapes != shapes or work.device != device):
            work.drop_graphs()
            del self._workspaces[batch]
            work = None
        capacity = max(context_bucket(tokens), work.layers.capacity if work else 0)
        planned = sum(shape.bytes(batch, capacity) for shape in shapes)
        limit = self._memory
        if limit is not None and planned > limit:
            raise Unsupported(f"its cache needs {planned >> 20} MiB, and memory= allows {limit >> 20} MiB")
        others = [size for size in self._workspaces if size != batch]
        while others and (
            len(others) >= _WORKSPACES or (limit is not None and planned + self._bytes(others) > limit)
        ):
            self._workspaces.pop(others.pop(0)).drop_graphs()
        if work is None:
            work = Workspace(self._graphs, shapes, batch, capacity, device)
            self._workspaces[batch] = work
        self._workspaces.move_to_end(batch)
        if limit is not None:
            work.limit = limit - self._bytes(others)
        return work

    def _bytes(self, batches: list[int]) -> int:
        """Bytes of caches and graphs of some batch sizes."""
        kept = [self._workspaces[batch] for batch in batches]
        return sum(one.bytes() + one.graph_bytes() for one in kept)

    def _step(self, model: Any, work: Workspace) -> Callable[[Workspace, int], None]:
        configs: dict[int, Any] = {}
        for module in (model, *model.modules()):
            config = getattr(module, "config", None)
            if hasattr(config, "_attn_implementation_internal"):
                configs[id(config)] = config
        text = model.config.get_text_config(decoder=True)
        inner = work.layers.slots[0]
        flash = tries_flash(inner, int(getattr(text, "num_attention_heads", 0)))
        self.attention = "flash attention with lengths on the device" if flash else "batched products"
        inputs = inspect.signature(model.forward).parameters
        name = "cache" if "cache" in inputs else "past_key_values"
        caps = implementation_of(text) != "sdpa"
        return forward_step(weakref.ref(model), list(configs.values()), name, flash, caps)

    def _check(self, request: _Request, work: Workspace, longest: int) -> None:
        """Compares the first step by a graph with the eager step; the dynamic cache still exists."""
        expected = request.eager_logits()
        request.stored = -1
        request.pending = expected
        assert self._run is not None
        rows = expected.shape[0]
        try:
            measure = bound_of(request.model, work, self._run, longest + 1)
            self.forward(work, longest + 1)
        except Unsupported as error:
            self._refused = str(error)
            raise
        except torch.OutOfMemoryError as error:
            self.release()
            raise Unsupported(f"no memory for a step: {str(error).splitlines()[0]}") from error
        found = work.logits[:rows]
        bound = measure(found)
        difference = (found - expected).double().norm() / expected.double().norm().clamp(min=1e-30)
        both_nan = bool(torch.equal(found.isnan(), expected.isnan()))
        if not float(difference) <= bound and not (bool(expected.isnan().any()) and both_nan):
            reason = (
                f"its first step by a graph differs from the eager one by {float(difference):.2e}, and "
                f"rounding explains {bound:.2e}"
            )
            self._tries += 1
            if self._tries == _TRIES:
                self._refused = reason
            raise Unsupported(reason)
        self._is_checked = True
        request.is_forwarded = True

    def forward(self, work: Workspace, tokens: int) -> None:
        """Queues one forward; counts captures, and says once what could not be captured."""
        assert self._run is not None
        before, failed = work.captures, len(work.failures)
        work.forward(tokens, self._run)
        self._count(work, before, failed)

    def choose(self, work: Workspace, choice: Choice) -> None:
        """Queues one choice of tokens."""
        before, failed = work.captures, len(work.failures)
        work.choose(choice)
        self._count(work, before, failed)

    def _count(self, work: Workspace, before: int, failed: int) -> None:
        self.captures += work.captures - before
        self.replayed += 1
        for failure in work.failures[failed:]:
            self.say(f"a step could not be captured ({failure})")

    def release(self) -> None:
        """Frees all graphs and caches, for the thread that generates. The next request makes its
        own."""
        if os.getpid() != self._pid:
            return  # Of no use here, and the device cannot be used to free them.
        while self._workspaces:
            self._workspaces.popitem()[1].drop_graphs()
        self._run = None
        self._identity = None

    def free(self) -> None:
        """Frees all graphs and caches when no thread generates by them: waits for another thread,
        and leaves it to the end of a `generate` that this call is made within."""
        if os.getpid() != self._pid:
            return
        if self._owner == threading.get_ident():
            self._is_ending = True
            return
        with self._lock:
            self.release()

    def is_idle(self) -> bool:
        """Whether no thread generates by these graphs."""
        return not self._lock.locked()

    def figures(self) -> dict[int, tuple[int, int, int]]:
        """By batch size: bytes of caches, bytes of graphs, and the number of graphs."""
        return {
            batch: (work.bytes(), work.graph_bytes(), len(work.forwards) + len(work.choices))
            for batch, work in list(self._workspaces.items())
        }


class _Request:
    """One call of the decode loop."""

    def __init__(
        self,
        decoder: Decoder,
        model: Any,
        input_ids: Any,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> None:
        self._decoder = decoder
        self.model = model
        self.ids = input_ids
        self._processors = logits_processor
        self._criteria = stopping_criteria
        self._config = generation_config
        self._synced = bool(synced_gpus)
        self._streamer = streamer
        self._kwargs = dict(model_kwargs)
        self.device = input_ids.device
        self.cache: Any = None
        self.unfinished: Any = None
        self.lengths: list[int] = []
        self.stored = 0
        self.pending: Any = None
        self.is_forwarded = False
        self.vocabulary = 0
        self.choice: Choice
        self._pad = generation_config._pad_token_tensor
        self._mask: Any = None
        self._positions: Any = None
        self._scores: list[Any] = []
        self._logits: list[Any] = []
        given = next((self._kwargs[name] for name in _CACHE_NAMES if self._kwargs.get(name) is not None), None)
        self.keeps_cache = bool(
            generation_config.return_dict_in_generate or getattr(given, "_is_user_defined", False)
        )

    def refusal(self) -> str | None:
        """The reason why this request runs in Transformers' own loop, or none."""
        from transformers.cache_utils import DynamicCache, StaticCache
        from transformers.generation.stopping_criteria import EosTokenCriteria

        reason = rules.request_refusal(self.model, self._kwargs, self._config, synced=self._synced)
        if reason is not None:
            return reason
        if self.device != self.model.device:
            return f"its tokens are on {self.device}, and the model on {self.model.device}"
        for criterion in self._criteria:
            if hasattr(criterion, "eos_token_id") and type(criterion) is not EosTokenCriteria:
                return f"{type(criterion).__name__} ends rows in a way of its own"
        for name in _CACHE_NAMES:
            given = self._kwargs.get(name)
            if given is None or type(given) is DynamicCache:
                continue
            if type(given) is not StaticCache or getattr(given, "_is_user_defined", False):
                return f"its cache is a {type(given).__name__} of the caller's"
            reason = rules.model_refusal(self.model, self._decoder._graphs.device_type)
            if reason is not None:
                return reason
            # A static cache of Transformers would be a second one beside ours.
            self._kwargs[name] = DynamicCache(config=self.model.config.get_text_config(decoder=True))
        return None

    def run(self) -> Any:
        """Generates; the result of Transformers' loop."""
        self._decoder.requests += 1
        optimize = getattr(self.model, "_optimize_model_for_decode", contextlib.nullcontext)
        is_first = not getattr(self._config, "is_assistant", False)
        self._mask = self._kwargs.get("attention_mask")
        self._positions = self._kwargs.get("position_ids")
        outputs = self.model._prefill(
            self.ids, self._config, self._kwargs, is_first_iteration=is_first
        )
        self.unfinished = torch.ones(self.ids.shape[0], dtype=torch.int64, device=self.device)
        with optimize():
            logits = self._take(outputs)
            del outputs
            self.vocabulary = logits.shape[-1]
            if self._accept(self._pick(logits)):
                del logits
                self._continue()
        return self._finish()

    def _take(self, outputs: Any) -> Any:
        """Logits of the last token of an eager forward, in f32; keeps its cache for the next."""
        self.cache = next((outputs[name] for name in _CACHE_NAMES if name in outputs), None)
        self._kwargs = self.model._update_model_kwargs_for_generation(
            outputs, self._kwargs, is_encoder_decoder=False
        )
        return outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=self.device)

    def _pick(self, logits: Any) -> Any:
        """Tokens that Transformers chooses for `logits`."""
        scores = self._processors(self.ids, logits)
        self._record(scores, logits)
        if self._config.do_sample:
            tokens = torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1).squeeze(1)
        else:
            tokens = torch.argmax(scores, dim=-1)
        if any(hasattr(criterion, "eos_token_id") for criterion in self._criteria):
            pad = self._pad.to(tokens.device)
            tokens = tokens * self.unfinished + pad * (1 - self.unfinished)
        return tokens

    def _record(self, scores: Any, logits: Any) -> None:
        if self._config.return_dict_in_generate:
            if self._config.output_scores:
                self._scores.append(scores)
            if self._config.output_logits:
                self._logits.append(logits)

    def _shown(self) -> Any:
        """Scores as stopping criteria get them."""
        config = self._config
        is_kept = config.return_dict_in_generate and config.output_scores
        return tuple(self._scores) if is_kept else None

    def _accept(self, tokens: Any) -> bool:
        """Appends tokens of an eager step; whether any row goes on."""
        self.ids = torch.cat((self.ids, tokens[:, None]), dim=-1)
        shown = self._shown()
        self.unfinished = self.unfinished & ~self._criteria(self.ids, shown)
        if self._streamer is not None:
            self._streamer.put(tokens.cpu())
        return bool(self.unfinished.max() != 0)

    def eager_logits(self) -> Any:
        """Logits of the next token by an eager forward with the dynamic cache."""
        inputs = self.model.prepare_inputs_for_generation(
            self.ids, next_sequence_length=1, **self._kwargs
        )
        return self._take(self.model(**inputs, return_dict=True))

    def _continue(self) -> None:
        self.choice = choice_of(
            self._processors,
            self._criteria,
            sample=bool(self._config.do_sample),
            pad=self._pad,
            device=self.device,
            shown=bool(self._config.return_dict_in_generate and self._config.output_scores),
        )
        try:
            work = self._decoder.enter(self)
        except Unsupported as error:
            self._decoder.say(str(error))
            logits = self.pending if self.pending is not None else self.eager_logits()
            while self._accept(self._pick(logits)):
                logits = self.eager_logits()
            return
        reason = self._replay(work)
        if reason is not None:
            self._decoder.say(reason)
            while self._accept(self._pick(self.eager_logits())):
                pass

    def rows(self, shapes: tuple[LayerShape, ...]) -> tuple[list[int], list[Any] | None]:
        """Tokens of each row in the cache without padding, and their columns if they have gaps."""
        rows, mask = self.ids.shape[0], self._mask
        columns = self.cache.get_seq_length()
        if mask is None:
            return [columns] * rows, None
        if tuple(mask.shape) != (rows, columns):
            raise Unsupported(f"its mask has {tuple(mask.shape)} columns, and the cache {columns}")
        set_ = mask != 0
        lengths = [int(length) for length in set_.sum(dim=1).tolist()]
        if bool((set_[:, 1:] >= set_[:, :-1]).all()):
            if not all(lengths):
                raise Unsupported("a row of its mask is empty")
            return lengths, None
        if any(shape.window or shape.states for shape in shapes) or not bool(set_[:, -1].all()):
            raise Unsupported("its mask has gaps")
        return lengths, [row.nonzero()[:, 0] for row in set_]

    def next_positions(self) -> Any:
        """Position of the next token of each row, (rows, 1)."""
        rows = self.ids.shape[0]
        if self._positions is None:
            return torch.tensor([[length] for length in self.rows(())[0]], device=self.device)
        return (self._positions[:, -1:] + 1).expand(rows, 1)

    def room(self) -> int:
        """Tokens that may still be generated."""
        length = stops_of(self._criteria).length
        return max(0, length - self.ids.shape[1]) if length is not None else 1 << 20

    def drop_cache(self) -> None:
        """Frees the contents of the dynamic cache, as the static one has them. The cache itself
        stays: `generate` holds it too, and `_go_on` fills it again."""
        for layer in self.cache.layers:
            if hasattr(layer, "keys"):
                layer.keys = layer.values = None

    def _replay(self, work: Workspace) -> str | None:
        """Generates by replays until every row has stopped, or until a step cannot be launched:
        then the reason, and the request is as an eager step needs it."""
        stops = stops_of(self._criteria)
        rows = self.ids.shape[0]
        columns = self.ids.shape[1]
        ahead_allowed = (
            self.choice.outside is None
            and not stops.others
            and not self.keeps_cache
            and not self._config.return_dict_in_generate
        )
        state: Any = None
        reason: str | None = None
        is_over = False
        steps = done = 0
        try:
            reason = self._launch(work, 0, stops.others)
            steps = 1
            while reason is None or done + 1 < steps:
                is_last = stops.length is not None and columns + done + 1 >= stops.length
                if ahead_allowed and not is_last and reason is None:
                    state = self._decoder._graphs.generator().get_state() if self.choice.sample else None
                    reason = self._launch(work, steps, stops.others)
                    steps += 1
                values = work.slots[done % 2].receive()
                done += 1
                if values[-1] < 0:
                    raise RuntimeError(
                        "probability tensor contains either `inf`, `nan` or element < 0, at token "
                        f"{columns + done - 1}"
                    )
                if self._streamer is not None:
                    self._streamer.put(torch.tensor(values[:rows], device="cpu"))
                is_late = any(time.time() - one.initial_timestamp > one.max_time for one in stops.clocks)
                is_over = bool(is_last or is_late or not values[-1])
                if is_over:
                    break
                if steps == done:
                    reason = self._launch(work, steps, stops.others)
                    steps += 1
        finally:
            if steps > done and state is not None:
                self._decoder._graphs.generator().set_state(state)
            if self.keeps_cache:
                self._export(work, done)
        self.ids = work.history[:rows, : columns + done].clone()
        if is_over:
            return None
        self._go_on(work, done)
        return reason

    def _go_on(self, work: Workspace, done: int) -> None:
        """Makes the request as it is after `done` steps of an eager loop, and frees the graphs."""
        rows = self.ids.shape[0]
        self.unfinished = work.unfinished[:rows].clone()
        mask = self._mask
        if mask is None:
            mask = torch.ones(rows, self.ids.shape[1] - 1 - done, dtype=torch.int64, device=self.device)
        grown = torch.cat((mask, mask.new_ones(rows, done)), dim=1)
        if not self.keeps_cache:
            work.layers.unload(self.cache, grown)
        if self._mask is not None:
            self._kwargs["attention_mask"] = torch.cat((grown, mask.new_ones(rows, 1)), dim=1)
        if self._positions is not None:
            first = self._positions[:, -1:] + 1
            more = torch.arange(done + 1, device=self.device, dtype=first.dtype)
            self._kwargs["position_ids"] = torch.cat((self._positions, first + more), dim=1)
        self._decoder.release()

    def _launch(self, work: Workspace, index: int, others: tuple[Any, ...]) -> str | None:
        """Queues step `index`: forward, choice of the tokens, and their copy to the host. If there
        is no memory for a forward, or none can be made, nothing has moved on: the reason."""
        rows, columns = self.ids.shape[0], self.ids.shape[1] + index
        tokens = max(self.lengths) + index + 1
        is_grown = False
        try:
            if tokens > work.layers.capacity or columns + 1 > work.history.shape[1]:
                work.reserve(
                    max(tokens, min(2 * tokens, tokens + self.room())),
                    2 * columns,
                    self.vocabulary,
                    sample=self.choice.sample,
                )
            is_grown = True
            if index or not self.is_forwarded:
                self._decoder.forward(work, tokens)
        except Unsupported as error:
            return str(error)
        except torch.OutOfMemoryError as error:
            if is_grown and work.layers.recurrent:
                raise  # Some layers have moved on by a token, and others have not.
            return f"no memory for a step: {str(error).splitlines()[0]}"
        raw = work.logits[:rows]
        if self._config.return_dict_in_generate and self._config.output_logits:
            raw = raw.clone()
        if self.choice.outside is not None:
            seen = work.history[:rows, :columns].clone(memory_format=torch.contiguous_format)
            scores = self.choice.outside(seen, raw.clone())
            self._record(scores, raw)
            work.logits[:rows].copy_(scores)
        else:
            self._record(None, raw)
        if self.choice.sample:
            work.draw(rows)
        self._decoder.choose(work, self.choice)
        if others:
            shown = self._shown()
            for criterion in others:
                seen = work.history[:rows, : columns + 1].clone(memory_format=torch.contiguous_format)
                ended = criterion(seen, shown)
                ended = torch.as_tensor(ended, device=self.device).expand(rows)
                work.unfinished[:rows].mul_((~ended).to(torch.int64))
            goes_on = (work.unfinished * work.real).max()
            work.result[-1:].copy_(torch.where(work.result[-1:] < 0, work.result[-1:], goes_on))
        work.slots[index % 2].send(work.result)
        return None

    def _export(self, work: Workspace, done: int) -> None:
        """Brings the caller's dynamic cache up to date: it has every token but the last."""
        count = done + self.stored
        if count > 0:
            work.layers.append_to(self.cache, [length + done for length in self.lengths], count)

    def _finish(self) -> Any:
        if self._streamer is not None:
            self._streamer.end()
        if not self._config.return_dict_in_generate:
            return self.ids
        from dataclasses import fields

        from transformers.generation.utils import GenerateDecoderOnlyOutput

        names = {field.name for field in fields(GenerateDecoderOnlyOutput)}
        cache_name = "cache" if "cache" in names else "past_key_values"
        return GenerateDecoderOnlyOutput(
            sequences=self.ids,
            scores=tuple(self._scores) if self._config.output_scores else None,
            logits=tuple(self._logits) if self._config.output_logits else None,
            **{cache_name: self.cache},
        )


_CACHE_NAMES = ("cache", "past_key_values")
