"""Choice of the next token: which logits processors run within a graph, and the graph's step.

Within: processors that compute on scores alone, the repetition penalty (over the history buffer)
and minimum lengths (over a threshold on the device). All others run as they are, on the logits
between two graphs, and see the tokens so far as they do in Transformers. Sampling draws its noise
outside of the graph with the call that `torch.multinomial` makes inside, so that the generator's
state and the tokens are those of an eager run with the same logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation import logits_process as processors
from transformers.generation import stopping_criteria as criteria_module

__all__ = ["Choice", "Stops", "choice_of", "select", "stops_of"]

# Processors that compute on scores alone, without waiting for the device, by their exact type.
_PURE = tuple(
    getattr(processors, name)
    for name in (
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "MinPLogitsWarper",
        "TypicalLogitsWarper",
        "EpsilonLogitsWarper",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
        "SuppressTokensLogitsProcessor",
    )
    if hasattr(processors, name)
)
_MINIMUM = (processors.MinLengthLogitsProcessor, processors.MinNewTokensLengthLogitsProcessor)
# Thresholds of minimum lengths that one graph has.
MINIMUMS = 4


@dataclass(frozen=True, slots=True)
class Choice:
    """How tokens are chosen. `within`: processors that run in the graph, in order; `outside`:
    processors that run on the logits before it (then `within` is empty); `minimums`: shortest
    lengths, prompt included, of the minimum processors in their order; `key`: identifies a graph
    that can be shared."""

    within: tuple[Any, ...]
    outside: Any
    minimums: tuple[int, ...]
    sample: bool
    eos: tuple[int, ...]
    pad: int | None
    key: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Stops:
    """Stopping criteria by where they are checked. `length`: longest sequence, or none; `clocks`:
    criteria of time, checked on the host; `others`: those that see the tokens of each step."""

    length: int | None
    clocks: tuple[Any, ...]
    others: tuple[Any, ...]


def _signature(processor: Any) -> tuple[Any, ...]:
    parts: list[Any] = [type(processor)]
    for name, value in sorted(vars(processor).items()):
        if isinstance(value, torch.Tensor):
            value = (value.dtype, tuple(value.flatten().tolist()))
        parts.append((name, value))
    return tuple(parts)


def _shortest(processor: Any) -> int:
    if isinstance(processor, processors.MinLengthLogitsProcessor):
        return int(processor.min_length)
    return int(processor.prompt_length_to_skip) + int(processor.min_new_tokens)


def choice_of(
    processor_list: Any, stopping: Any, *, sample: bool, pad: Any, device: Any, shown: bool
) -> Choice:
    """Sorts the logits processors of a request. `pad`: the padding token as a tensor, or none;
    `shown`: whether the processed scores are returned, so that all run outside."""
    within: list[Any] = []
    minimums: list[int] = []
    keys: list[Any] = []
    outside = shown
    for processor in processor_list:
        kind = type(processor)
        if kind in _MINIMUM and len(minimums) < MINIMUMS:
            keys.append((kind, tuple(processor.eos_token_id.tolist())))
            within.append((processor.eos_token_id.to(device), len(minimums)))
            minimums.append(_shortest(processor))
        elif kind in _PURE or (
            kind is processors.RepetitionPenaltyLogitsProcessor
            and getattr(processor, "prompt_ignore_length", None) is None
        ):
            keys.append(_signature(processor))
            within.append(processor)
        else:
            outside = True
    eos: list[int] = []
    for criterion in stopping:
        if type(criterion) is criteria_module.EosTokenCriteria:
            eos.extend(torch.as_tensor(criterion.eos_token_id).flatten().tolist())
    padding = int(pad.flatten()[0].item()) if pad is not None and eos else None
    if outside:
        within, minimums, keys = [], [], []
    return Choice(
        tuple(within),
        processor_list if outside else None,
        tuple(minimums),
        sample,
        tuple(eos),
        padding,
        (tuple(keys), sample, tuple(eos), padding),
    )


def stops_of(stopping: Any) -> Stops:
    """Sorts the stopping criteria of a request."""
    length: int | None = None
    clocks: list[Any] = []
    others: list[Any] = []
    for criterion in stopping:
        kind = type(criterion)
        if kind is criteria_module.MaxLengthCriteria:
            limit = int(criterion.max_length)
            length = limit if length is None else min(length, limit)
        elif kind is criteria_module.MaxTimeCriteria:
            clocks.append(criterion)
        elif kind is not criteria_module.EosTokenCriteria:
            others.append(criterion)
    return Stops(length, tuple(clocks), tuple(others))


def select(choice: Choice, buffers: Any) -> None:
    """Chooses a token a row from `buffers.logits`, and moves every buffer on by one token: the
    body of a graph."""
    scores = buffers.logits
    for processor in choice.within:
        if isinstance(processor, tuple):
            eos, index = processor
            short = buffers.length < buffers.minimums[index : index + 1]
            ranks = torch.arange(scores.shape[-1], device=scores.device)
            stop = (ranks[:, None] == eos[None, :]).any(dim=1)
            scores = scores.masked_fill(short & stop, float("-inf"))
        else:
            scores = processor(buffers.history, scores)
    if choice.sample:
        shares = torch.softmax(scores, dim=-1)
        tokens = torch.argmax(shares / buffers.noise, dim=-1)
        # A softmax is a number for each token or for none.
        is_void = ((shares[:, 0] != shares[:, 0]) & (buffers.real != 0)).any()
    else:
        tokens = torch.argmax(scores, dim=-1)
    unfinished = buffers.unfinished
    if choice.eos:
        tokens = tokens * unfinished + (choice.pad or 0) * (1 - unfinished)
        ended = torch.zeros_like(unfinished, dtype=torch.bool)
        for token in choice.eos:
            ended = ended | (tokens == token)
        unfinished.mul_((~ended).to(unfinished.dtype))
    buffers.history.index_copy_(1, buffers.length, tokens[:, None])
    buffers.ids.copy_(tokens[:, None])
    buffers.positions.add_(1)
    buffers.lens.add_(1)
    buffers.length.add_(1)
    buffers.result[:-1].copy_(tokens)
    goes_on = (unfinished * buffers.real).max()
    if choice.sample:
        void = is_void.to(goes_on.dtype)  # A `where` with a number would copy it from the host.
        goes_on = goes_on * (1 - void) - void
    buffers.result[-1:].copy_(goes_on)
