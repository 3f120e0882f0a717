"""Buffers and graphs of one batch size: the static cache, the argument block, captured steps.

A step is two graphs: the model's forward, by context bucket, and the choice of the token, by its
processors. Both read and write the same argument block: ids, positions, lengths, history. So the
next step needs nothing from the host. A graph that cannot be captured, for want of memory or for
an operation that captures do not allow, runs as it is on the same buffers, with the same results.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from .attention import Step, Unsupported, selected
from .cache import LayerShape, StaticLayers
from .capture import Graphs, HostSlot, Replayable
from .select import MINIMUMS, Choice, select

__all__ = ["Workspace", "batch_bucket", "context_bucket"]

def _plain() -> Any:
    """Tensors made within are no inference tensors, which later requests could not write to."""
    return torch.inference_mode(False)


# Graphs of token choices that a workspace keeps; each has a few kernels.
_CHOICES = 8


def batch_bucket(rows: int) -> int:
    """Rows of the workspace that `rows` rows run in: 1, 2, 4, 8, then multiples of 8."""
    return next((size for size in (1, 2, 4) if rows <= size), -(-rows // 8) * 8)


def context_bucket(tokens: int) -> int:
    """Slots that a graph for `tokens` tokens reads: 256 times a power of two up to 4096, then
    steps of a quarter of a power of two."""
    bucket = 256
    while bucket < tokens and bucket < 4096:
        bucket *= 2
    while bucket < tokens:
        step = 1 << (bucket.bit_length() - 3)
        bucket += step
    return bucket


class _Direct:
    """A step that runs as it is, where it could not be captured. `is_passing`: whether the reason
    may be gone by the next request."""

    bytes = 0

    def __init__(self, step: Callable[[], None], *, is_passing: bool) -> None:
        self._step = step
        self.is_passing = is_passing

    def replay(self) -> None:
        self._step()

    def close(self) -> None:
        pass


class Workspace:
    """Buffers for `batch` rows of `capacity` tokens, and the graphs that use them.

    `ids`, `positions`: the next token of each row and its position, (batch, 1); `lens`: tokens in
    the cache; `history`: all tokens, padding included, (batch, columns), of which `length` are
    set; `logits`: f32, (batch, vocabulary); `unfinished`: 1 for rows that go on; `real`: 1 for rows
    of the request; `result`: tokens, and whether any row goes on, or -1 where there is no token to
    choose. `limit`: most bytes of the buffers and graphs, or none.
    """

    def __init__(
        self, graphs: Graphs, shapes: tuple[LayerShape, ...], batch: int, capacity: int, device: Any
    ) -> None:
        self.graphs = graphs
        self.batch = batch
        self.device = device
        with _plain():
            self.layers = StaticLayers(shapes, batch, capacity, device)
            self._make_blocks({"dtype": torch.int64, "device": device})
        self.logits: Any = None
        self.noise: Any = None
        self.forwards: dict[int, Replayable] = {}
        self.choices: OrderedDict[Any, Replayable] = OrderedDict()
        self.captures = 0
        self.limit: int | None = None
        self.failures: list[str] = []

    def _make_blocks(self, like: dict[str, Any]) -> None:
        batch = self.batch
        self.ids = torch.zeros(batch, 1, **like)
        self.positions = torch.zeros(batch, 1, **like)
        self.lens = torch.zeros(batch, **like)
        self.length = torch.zeros(1, **like)
        self.minimums = torch.zeros(MINIMUMS, **like)
        self.unfinished = torch.zeros(batch, **like)
        self.real = torch.zeros(batch, **like)
        self.result = torch.zeros(batch + 1, **like)
        self.history = torch.zeros(batch, 256, **like)
        self.slots: list[HostSlot] = [self.graphs.slot(batch + 1) for _ in range(2)]

    def bytes(self) -> int:
        """Bytes of the cache and the argument block."""
        own = (self.ids, self.history, self.logits, self.noise)
        sizes: list[int] = [one.numel() * one.itemsize for one in own if one is not None]
        return self.layers.bytes() + sum(sizes)

    def graph_bytes(self) -> int:
        """Bytes that captures reserved."""
        return sum(one.bytes for one in (*self.forwards.values(), *self.choices.values()))

    def drop_graphs(self) -> None:
        """Releases all graphs."""
        for kept in (self.forwards, self.choices):
            while kept:
                kept.popitem()[1].close()

    def reserve(self, tokens: int, columns: int, vocabulary: int, *, sample: bool) -> None:
        """Makes room for `tokens` tokens a row in the cache and `columns` in the history. Graphs
        that used a buffer that moves are released."""
        with _plain(), torch.no_grad():
            self._reserve(tokens, columns, vocabulary, sample=sample)

    def _reserve(self, tokens: int, columns: int, vocabulary: int, *, sample: bool) -> None:
        if tokens > self.layers.capacity:
            self.drop_graphs()
            self.layers.grow(context_bucket(tokens))
        if columns > self.history.shape[1]:
            self._drop_choices()
            history = self.history.new_zeros(self.batch, context_bucket(columns))
            history[:, : self.history.shape[1]].copy_(self.history)
            history[:, self.history.shape[1] :].copy_(self.history[:, :1])
            self.history = history
        if self.logits is None or self.logits.shape[1] != vocabulary:
            self.drop_graphs()
            self.logits = torch.zeros(self.batch, vocabulary, dtype=torch.float32, device=self.device)
            self.noise = None
        if sample and self.noise is None:
            self._drop_choices()
            self.noise = torch.ones_like(self.logits)

    def _drop_choices(self) -> None:
        while self.choices:
            self.choices.popitem()[1].close()

    def begin(
        self, ids: Any, positions: Any, lengths: list[int], unfinished: Any, choice: Choice
    ) -> None:
        """Sets the argument block for a request: `ids`, all its tokens, (rows, columns);
        `positions`: the position of the last one; `lengths`: tokens of each row in the cache."""
        rows, columns = ids.shape
        for kept in (self.forwards, self.choices):
            for key in [key for key, one in kept.items() if getattr(one, "is_passing", False)]:
                del kept[key]
        for block in (self.ids, self.positions, self.lens, self.unfinished, self.real):
            block.zero_()
        # Free columns repeat a token of the row: processors that look for tokens find no other.
        self.history[:rows].copy_(ids[:, :1].expand(-1, self.history.shape[1]))
        self.history[:rows, :columns].copy_(ids)
        self.ids[:rows].copy_(ids[:, -1:])
        self.positions[:rows].copy_(positions)
        self.lens[:rows].copy_(torch.tensor(lengths, dtype=torch.int64, device="cpu"))
        self.length.fill_(columns)
        self.unfinished[:rows].copy_(unfinished)
        self.real[:rows].fill_(1)
        minimums = (*choice.minimums, *([0] * (MINIMUMS - len(choice.minimums))))
        self.minimums.copy_(torch.tensor(minimums, dtype=torch.int64, device="cpu"))

    def bucket(self, tokens: int) -> int:
        """Slots that a forward for `tokens` tokens reads."""
        return min(context_bucket(tokens), self.layers.capacity)

    def forward(self, tokens: int, run: Callable[[Workspace, int], None]) -> None:
        """Queues a forward for rows of at most `tokens` tokens with the new one; `run` is the
        forward itself, for the capture."""
        bucket = self.bucket(tokens)
        graph = self.forwards.get(bucket)
        if graph is None:
            graph = self.forwards[bucket] = self._capture(lambda: run(self, bucket))
        graph.replay()

    def choose(self, choice: Choice) -> None:
        """Queues the choice of the next tokens."""
        graph = self.choices.get(choice.key)
        if graph is None:
            graph = self._capture_choice(choice)
            self.choices[choice.key] = graph
            if len(self.choices) > _CHOICES:
                self.choices.popitem(last=False)[1].close()
        self.choices.move_to_end(choice.key)
        graph.replay()

    def _capture_choice(self, choice: Choice) -> Replayable:
        blocks = (self.ids, self.positions, self.lens, self.length, self.unfinished, self.result)
        kept = [block.clone() for block in blocks]
        history = self.history.clone()

        def restore() -> None:
            for block, copy in zip(blocks, kept, strict=True):
                block.copy_(copy)
            self.history.copy_(history)

        return self._capture(lambda: select(choice, self), restore)

    def _capture(
        self, step: Callable[[], None], restore: Callable[[], None] | None = None
    ) -> Replayable:
        try:
            made = self.graphs.capture(step, restore or self.layers.snapshot())
        except Unsupported:
            raise
        except RuntimeError as error:
            self.failures.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
            return _Direct(step, is_passing=isinstance(error, torch.OutOfMemoryError))
        self.captures += 1
        total = self.bytes() + self.graph_bytes() + made.bytes
        if self.limit is not None and total > self.limit:
            made.close()
            self.failures.append(
                f"with it caches and graphs have {total >> 20} MiB, and memory= allows {self.limit >> 20} MiB"
            )
            return _Direct(step, is_passing=True)
        return made

    def draw(self, rows: int) -> None:
        """Draws the noise of `rows` rows, as `torch.multinomial` does for one sample."""
        self.noise[:rows].exponential_(1)


def forward_step(
    model: Any, configs: list[Any], cache_name: str, flash: bool, caps: bool
) -> Callable[[Workspace, int], None]:
    """The forward of one token a row over a workspace's cache. `model`: a weak reference."""

    def run(work: Workspace, bucket: int) -> None:
        step = Step(work.lens, bucket, work.layers.layout, flash=flash, caps=caps)
        work.layers.begin(step)
        try:
            with selected(configs, step):
                out = model()(
                    input_ids=work.ids,
                    position_ids=work.positions,
                    attention_mask=None,
                    use_cache=True,
                    return_dict=True,
                    **{cache_name: work.layers.cache},
                )
            work.logits.copy_(out.logits[:, -1])
        finally:
            work.layers.begin(None)
        if step.attended != len(work.layers.slots) or step.updates != step.attended:
            raise Unsupported(
                f"{step.updates} of {len(work.layers.slots)} layers stored a token, and {step.attended} "
                "attended through Transformers' interface"
            )

    return run
