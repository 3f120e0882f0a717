"""Random calls of `generate`: with graphs and without, tokens, errors, calls back and the state of
the generator of random numbers are the same."""

import copy
import os
import random
import time
import warnings

import torch
import transformers
from cpu_graphs import CpuGraphs
from test_transformers import FAMILIES, VOCABULARY, Listing, close, eager, model_of, seed  # noqa: F401

from fercuda_runtime.inference.accelerated import decode
from fercuda_runtime.inference.accelerated.install import install, uninstall

SECONDS = {"soak": 3600}.get(os.environ.get("FERCUDA_BUDGET", ""), 20)
CACHE = "cache" if "cache" in transformers.LlamaForCausalLM.forward.__code__.co_varnames else "past_key_values"


class Keeping(transformers.LogitsProcessor):
    """Forbids a token by all that it has seen, and keeps what it is given."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(input_ids)
        return scores.index_fill(1, input_ids.view(-1)[-1:] % scores.shape[1], -30.0)


class Counting(transformers.StoppingCriteria):
    """Ends a row by its last token and by how often it was asked."""

    def __init__(self, modulus):
        self.calls, self.modulus, self.kept = 0, modulus, []

    def __call__(self, input_ids, scores, **kwargs):
        self.calls += 1
        self.kept.append(input_ids)
        return (input_ids[:, -1] + self.calls) % self.modulus == 1


def inputs_of(pick):
    rows, columns = pick.choice((1, 1, 2, 3, 5, 8)), pick.choice((1, 2, 5, 17, 40, 250))
    ids = torch.randint(3, VOCABULARY, (rows, columns))
    mask = torch.ones_like(ids)
    for row in range(rows):
        if pick.random() < 0.5:
            mask[row, : pick.randrange(columns)] = 0
    kind = pick.random()
    if kind < 0.1 and columns > 6:
        mask[:, columns // 2] = 0
    elif kind < 0.15:
        mask[pick.randrange(rows), -1] = 0
    return {"input_ids": ids, **({"attention_mask": mask} if pick.random() < 0.85 else {})}


def maybe(pick, chance, arguments, **more):
    if pick.random() < chance:
        arguments.update(more)


def arguments_of(pick, model):
    """A call: its arguments, and what calls back."""
    found = {**inputs_of(pick), "do_sample": pick.random() < 0.5}
    found["max_new_tokens"] = pick.choice((1, 2, 3, 9, 25, 60))
    backs = []
    if found["do_sample"]:
        maybe(pick, 0.5, found, temperature=pick.choice((0.3, 1.7)))
        maybe(pick, 0.4, found, top_k=pick.choice((0, 1, 7)))
        maybe(pick, 0.4, found, top_p=pick.choice((0.2, 0.9)))
        maybe(pick, 0.2, found, min_p=0.05)
        maybe(pick, 0.2, found, typical_p=0.8)
        maybe(pick, 0.1, found, eta_cutoff=1e-3)
        maybe(pick, 0.2, found, num_return_sequences=2)
    maybe(pick, 0.3, found, repetition_penalty=pick.choice((0.8, 1.4)))
    maybe(pick, 0.2, found, no_repeat_ngram_size=2)
    maybe(pick, 0.2, found, min_new_tokens=pick.choice((1, 5)))
    maybe(pick, 0.1, found, min_length=12)
    maybe(pick, 0.1, found, max_length=50)
    maybe(pick, 0.1, found, bad_words_ids=[[5], [7, 9]])
    maybe(pick, 0.1, found, suppress_tokens=[4, 6])
    maybe(pick, 0.1, found, begin_suppress_tokens=[8])
    maybe(pick, 0.1, found, sequence_bias=[[[11], 4.0]])
    maybe(pick, 0.1, found, forced_eos_token_id=2)
    maybe(pick, 0.1, found, exponential_decay_length_penalty=(3, 1.2))
    maybe(pick, 0.1, found, renormalize_logits=True, remove_invalid_values=True)
    maybe(pick, 0.1, found, guidance_scale=1.5)
    maybe(pick, 0.4, found, eos_token_id=pick.choice((2, [2, 3], pick.sample(range(3, VOCABULARY), 30))))
    maybe(pick, 0.1, found, pad_token_id=pick.choice((0, 5)))
    maybe(pick, 0.1, found, prefix_allowed_tokens_fn=lambda row, ids: [3 + row, 9, (int(ids[-1]) * 7) % VOCABULARY])
    maybe(pick, 0.3, found, return_dict_in_generate=True, output_scores=pick.random() < 0.5)
    maybe(pick, 0.2, found, output_logits=True)
    maybe(pick, 0.05, found, output_hidden_states=True, return_dict_in_generate=True)
    maybe(pick, 0.05, found, use_cache=False)
    maybe(pick, 0.05, found, num_beams=2)
    maybe(pick, 0.05, found, prompt_lookup_num_tokens=2)
    maybe(pick, 0.05, found, cache_implementation=pick.choice(("static", "dynamic", "offloaded")))
    maybe(pick, 0.05, found, prefill_chunk_size=3)
    maybe(pick, 0.05, found, max_time=1e-9)
    if pick.random() < 0.2:
        backs.append(Keeping())
        found["logits_processor"] = [backs[-1]]
    if pick.random() < 0.2:
        backs.append(Counting(pick.choice((5, 40))))
        found["stopping_criteria"] = [backs[-1]]
    if found["input_ids"].shape[0] == 1 and pick.random() < 0.3:
        error = pick.choice((None, None, ValueError("full"), KeyboardInterrupt()))
        backs.append(Listing(pick.randrange(1, 9), error))
        found["streamer"] = backs[-1]
    if pick.random() < 0.1:
        found[CACHE] = transformers.DynamicCache(config=model.config)
    if pick.random() < 0.08:
        found["inputs_embeds"] = model.get_input_embeddings()(found.pop("input_ids")).detach()
    return found, backs


def outcome(model, arguments, seed):
    """What a call does, and all that it leaves. A tensor that was kept must not have changed."""
    arguments = copy.deepcopy(arguments)
    backs = [
        one
        for name in ("logits_processor", "stopping_criteria", "streamer")
        for one in (arguments.get(name) if isinstance(arguments.get(name), list) else [arguments.get(name)])
        if one is not None
    ]
    torch.manual_seed(seed)
    try:
        result = model.generate(**arguments)
    except (Exception, KeyboardInterrupt) as error:
        result = error
    after = torch.rand(1)
    second = None
    cache = arguments.get(CACHE)
    tokens = getattr(result, "sequences", result)
    if cache is not None and isinstance(tokens, torch.Tensor) and "inputs_embeds" not in arguments:
        mask = arguments.get("attention_mask")
        if mask is None or tokens.shape[0] == mask.shape[0]:
            more = {CACHE: cache, "max_new_tokens": 7, "do_sample": False}
            if mask is not None:
                grown = mask.new_ones(mask.shape[0], tokens.shape[1] - mask.shape[1])
                more["attention_mask"] = torch.cat((mask, grown), dim=1)
            try:
                second = model.generate(tokens, **more)
            except Exception as error:
                second = error
    return result, after, backs, second


def same(one, other):
    if isinstance(one, BaseException) or isinstance(other, BaseException):
        assert type(one) is type(other), repr(other)[:300]
        if isinstance(one, Exception):
            assert str(one)[:60] == str(other)[:60]
        return
    if isinstance(one, torch.Tensor) or one is None:
        assert one is None and other is None or torch.equal(one, other)
        return
    assert type(one) is type(other)
    assert torch.equal(one.sequences, other.sequences)
    for name in ("scores", "logits"):
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None) and len(a or ()) == len(b or ())
        for x, y in zip(a or (), b or (), strict=True):
            close(x, y)


def compare(model, arguments, seed):
    found = outcome(model, arguments, seed)
    with eager(model):
        expected = outcome(model, arguments, seed)
    same(expected[0], found[0])
    assert torch.equal(expected[1], found[1]), "the generator of random numbers is elsewhere"
    for one, other in zip(expected[2], found[2], strict=True):
        for name in ("seen", "kept"):
            for a, b in zip(getattr(one, name, ()), getattr(other, name, ()), strict=True):
                assert torch.equal(a, b), f"{name}: a tensor that was given changed"
        assert getattr(one, "parts", None) == getattr(other, "parts", None)
        assert getattr(one, "calls", None) == getattr(other, "calls", None)
    same(expected[3], found[3])


def run(seconds, seed, families=tuple(FAMILIES), failures=None):
    """Calls until `seconds` are over; their number, and how many had replays."""
    pick = random.Random(seed)
    end, calls, replayed = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        family = pick.choice(families)
        model = model_of(family)
        decoder = install(model, CpuGraphs())
        try:
            for _ in range(8):
                arguments, _ = arguments_of(pick, model)
                before = decoder.replayed
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        compare(model, arguments, pick.randrange(2**31))
                except BaseException as error:
                    if failures is None:
                        shown = {
                            name: tuple(value.shape) if isinstance(value, torch.Tensor) else value
                            for name, value in arguments.items()
                        }
                        error.add_note(f"{family}: {shown}")
                        raise
                    failures.append((family, arguments, error))
                calls += 1
                replayed += decoder.replayed > before
                if time.monotonic() >= end:
                    break
        finally:
            uninstall(model)
    return calls, replayed


def test_random_calls_are_those_of_eager(monkeypatch):
    monkeypatch.setattr(decode, "_FIRST_TOKENS", 16)
    calls, replayed = run(SECONDS, random.randrange(2**32))
    print(f"{calls} calls, {replayed} with replays")
    assert calls > 3 and replayed > 0
