"""Models of Transformers decode by graphs: tokens are those of eager generate."""

import copy
import gc
import os
import random
import subprocess
import sys
import threading
import warnings
import weakref

import pytest
import torch
import transformers
from cpu_graphs import CpuGraphs
from transformers.generation.utils import GenerationMixin
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM

from fercuda_runtime.errors import ConfigError
from fercuda_runtime.inference import accelerate, restore
from fercuda_runtime.inference.accelerated import decode, rules, workspace
from fercuda_runtime.inference.accelerated.install import decoder_of, install, uninstall

VOCABULARY = 211
BASE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = {"sliding_window": 24}
T = transformers
FAMILIES = {
    "llama": lambda: T.LlamaForCausalLM(T.LlamaConfig(**BASE)),
    "mistral": lambda: T.MistralForCausalLM(T.MistralConfig(**BASE, **WINDOW)),
    "qwen2": lambda: T.Qwen2ForCausalLM(T.Qwen2Config(**{k: v for k, v in BASE.items() if k != "head_dim"})),
    "qwen3": lambda: T.Qwen3ForCausalLM(T.Qwen3Config(**BASE)),
    "qwen3_moe": lambda: T.Qwen3MoeForCausalLM(
        T.Qwen3MoeConfig(**BASE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
    ),
    "qwen3_5": lambda: Qwen3_5ForCausalLM(
        Qwen3_5TextConfig(
            **{**BASE, "num_hidden_layers": 4},
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
        )
    ),
    "gemma2": lambda: T.Gemma2ForCausalLM(T.Gemma2Config(**BASE, **WINDOW)),
    "gemma3": lambda: T.Gemma3ForCausalLM(T.Gemma3TextConfig(**{**BASE, "num_hidden_layers": 6}, **WINDOW)),
    "phi3": lambda: T.Phi3ForCausalLM(T.Phi3Config(**BASE)),
    "gpt_oss": lambda: T.GptOssForCausalLM(
        T.GptOssConfig(
            **BASE,
            **WINDOW,
            num_local_experts=4,
            num_experts_per_tok=2,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        )
    ),
}


@pytest.fixture(autouse=True)
def seed():
    seed = int(os.environ.get("FERCUDA_SEED") or random.SystemRandom().randrange(2**32))
    print(f"FERCUDA_SEED={seed}")
    torch.manual_seed(seed)
    random.seed(seed)
    torch.set_num_threads(1)
    yield
    assert not hasattr(GenerationMixin._sample, "__wrapped__"), "a test left a model accelerated"


def model_of(family):
    return FAMILIES[family]().eval()


@pytest.fixture
def model():
    return model_of("llama")


class Accelerated:
    """A model on `CpuGraphs` within a block; every warning of ours is an error unless allowed."""

    def __init__(self, model, graphs=None, says=(), **options):
        self.model, self.graphs, self.says = model, graphs or CpuGraphs(), says
        self.options = options

    def __enter__(self):
        self.decoder = install(self.model, self.graphs, **self.options)
        return self

    def __exit__(self, kind, *rest):
        uninstall(self.model)
        assert self.graphs.live == 0, "graphs are left"
        if kind is None:
            assert len(self.decoder.reasons) == len(self.says), self.decoder.reasons
            for said, reason in zip(self.says, self.decoder.reasons, strict=True):
                assert said in reason
        return False


def prompt(rows=1, columns=20):
    """Random tokens with left padding in every row but the first."""
    ids = torch.randint(3, VOCABULARY, (rows, columns))
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, : random.randrange(1, columns - 2)] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def eager_and_graphs(model, graphs=None, says=(), **arguments):
    """Results of both, and the next random number after each."""
    seed = random.randrange(2**31)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        expected = model.generate(**copy.deepcopy(arguments))
        expected_next = torch.rand(1)
        with Accelerated(model, graphs, says) as ours:
            torch.manual_seed(seed)
            found = model.generate(**copy.deepcopy(arguments))
            found_next = torch.rand(1)
            if not says:
                assert ours.decoder.replayed > 0
    assert torch.equal(expected_next, found_next), "the generator of random numbers is elsewhere"
    return expected, found


def same_tokens(model, graphs=None, says=(), **arguments):
    expected, found = eager_and_graphs(model, graphs, says, **arguments)
    assert torch.equal(expected, found)
    return found


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_256_greedy_tokens_are_those_of_eager(family, rows):
    same_tokens(model_of(family), **prompt(rows), max_new_tokens=256, min_new_tokens=256, do_sample=False)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3_5", "gpt_oss"])
def test_sampling_with_a_seed_is_that_of_eager(family):
    settings = [
        {"temperature": 0.7, "top_k": 20, "top_p": 0.9},
        {"min_p": 0.05, "repetition_penalty": 1.3},
        {"typical_p": 0.9, "epsilon_cutoff": 1e-3, "top_k": 0},
        {"num_return_sequences": 3},
    ]
    for rows, more in zip((1, 3, 5, 2), settings, strict=True):
        same_tokens(model_of(family), **prompt(rows), max_new_tokens=40, do_sample=True, **more)


def test_rows_that_end_early_are_padded_and_nothing_is_drawn_beyond():
    for _ in range(4):
        ends = random.sample(range(3, VOCABULARY), 30)
        model = model_of("qwen3")
        for sample in (False, True):
            same_tokens(model, **prompt(4), max_new_tokens=60, do_sample=sample, eos_token_id=ends)


def test_processors_that_no_graph_runs_see_each_token_once(model):
    class Counting(transformers.LogitsProcessor):
        def __init__(self):
            self.seen = []

        def __call__(self, input_ids, scores):
            self.seen.append(input_ids.clone())
            return scores.index_fill(1, input_ids[0, -3:], -10.0)

    inputs, counts = prompt(3), []
    for graphs in (None, CpuGraphs()):
        counting = Counting()
        arguments = {**inputs, "max_new_tokens": 30, "logits_processor": [counting], "no_repeat_ngram_size": 2}
        if graphs is None:
            expected = model.generate(**arguments, do_sample=False)
        else:
            with Accelerated(model, graphs):
                assert torch.equal(expected, model.generate(**arguments, do_sample=False))
        counts.append(counting.seen)
    assert len(counts[0]) == len(counts[1])
    assert all(torch.equal(one, other) for one, other in zip(*counts, strict=True))


def test_stopping_criteria_of_the_caller_are_asked_once_a_token(model):
    class Third(transformers.StoppingCriteria):
        def __init__(self):
            self.calls = 0

        def __call__(self, input_ids, scores, **kwargs):
            self.calls += 1
            return input_ids[:, -1] % 7 == 3

    criteria = [Third(), Third()]
    inputs = prompt(4)
    expected = model.generate(**inputs, max_new_tokens=80, stopping_criteria=[criteria[0]], do_sample=False)
    with Accelerated(model):
        found = model.generate(**inputs, max_new_tokens=80, stopping_criteria=[criteria[1]], do_sample=False)
    assert torch.equal(expected, found)
    assert criteria[0].calls == criteria[1].calls


def test_a_limit_of_time_ends_generation(model):
    with Accelerated(model):
        found = model.generate(**prompt(), max_new_tokens=4000, max_time=0.4, do_sample=False, eos_token_id=None)
    assert 20 < found.shape[1] < 4020


class Listing(transformers.generation.streamers.BaseStreamer):
    def __init__(self, at=None, error=None):
        self.parts, self.at, self.error = [], at, error

    def put(self, value):
        if self.error is not None and len(self.parts) == self.at:
            raise self.error
        self.parts.append(value.tolist())

    def end(self):
        self.parts.append("end")


def test_a_streamer_gets_what_it_gets_eager(model):
    inputs, lists = prompt(), []
    for graphs in (None, CpuGraphs()):
        streamer = Listing()
        arguments = {**inputs, "max_new_tokens": 50, "do_sample": False, "streamer": streamer}
        if graphs is None:
            model.generate(**arguments)
        else:
            with Accelerated(model, graphs):
                model.generate(**arguments)
        lists.append(streamer.parts)
    assert lists[0] == lists[1]
    assert lists[0][-1] == "end"


@pytest.mark.parametrize("error", [ValueError("full"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", [1, 2, 3, 9])
def test_an_exception_in_a_streamer_leaves_the_model_usable(model, error, at):
    inputs = prompt()
    expected = model.generate(**inputs, max_new_tokens=30, do_sample=False)
    with Accelerated(model) as ours:
        with pytest.raises(type(error)):
            model.generate(**inputs, max_new_tokens=30, do_sample=False, streamer=Listing(at, error))
        assert ours.decoder.is_idle()
        assert torch.equal(expected, model.generate(**inputs, max_new_tokens=30, do_sample=False))


def test_an_interrupt_anywhere_leaves_the_model_usable(model):
    inputs = prompt(3)
    expected = model.generate(**inputs, max_new_tokens=30, do_sample=False)
    interrupts = {2, 7}

    def interrupt(number):
        if number in interrupts:
            interrupts.remove(number)
            raise KeyboardInterrupt

    failing = {1, 2}

    def fail(number):
        if number in failing:
            failing.remove(number)
            raise KeyboardInterrupt

    with Accelerated(model, CpuGraphs(fail, interrupt)) as ours:
        for _ in range(4):
            with pytest.raises(KeyboardInterrupt):
                model.generate(**inputs, max_new_tokens=30, do_sample=False)
            assert ours.decoder.is_idle()
        assert torch.equal(expected, model.generate(**inputs, max_new_tokens=30, do_sample=False))


def test_no_memory_in_a_capture_runs_the_same_step_without_a_graph():
    for number in (1, 2, 3):
        def fail(now, number=number):
            if now == number:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

        model = model_of("qwen3_5")
        same_tokens(
            model,
            CpuGraphs(fail),
            ("could not be captured (OutOfMemoryError: CUDA out of memory",),
            **prompt(2, 240),
            max_new_tokens=40,
            min_new_tokens=40,
            do_sample=False,
        )


def test_no_memory_for_a_cache_runs_eager(model, monkeypatch):
    def fail(*args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB")

    monkeypatch.setattr(workspace, "StaticLayers", fail)
    same_tokens(model, None, ("no memory for a static cache",), **prompt(3), max_new_tokens=20)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3_5", "gemma3"])
def test_a_cache_that_grows_keeps_its_contents(family, monkeypatch):
    monkeypatch.setattr(decode, "_FIRST_TOKENS", 8)
    graphs = CpuGraphs()
    same_tokens(
        model_of(family), graphs, **prompt(3, 250), max_new_tokens=300, min_new_tokens=300, do_sample=False
    )
    assert graphs.captures > 3


def test_weights_changed_in_place_are_read_and_new_weights_are_captured(model):
    inputs = {**prompt(2), "max_new_tokens": 30, "do_sample": False}
    other = model_of("llama")
    with Accelerated(model) as ours:
        first = model.generate(**inputs)
        captured = ours.graphs.captures
        with torch.no_grad():
            for mine, its in zip(model.parameters(), other.parameters(), strict=True):
                mine.copy_(its)
        in_place = model.generate(**inputs)
        assert ours.graphs.captures == captured
        third = model_of("llama")
        model.model.layers[0].mlp = third.model.layers[0].mlp
        replaced = model.generate(**inputs)
        assert ours.graphs.captures > captured
    assert not torch.equal(first, in_place)
    assert torch.equal(other.generate(**inputs), in_place)
    assert torch.equal(model.generate(**inputs), replaced)


def test_adapters_of_peft_are_switched_and_disabled():
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    wrapped = peft.get_peft_model(model_of("llama"), settings).eval()
    wrapped.add_adapter("second", settings)
    inner = wrapped.get_base_model()
    inputs = {**prompt(2), "max_new_tokens": 24, "do_sample": False}

    def all_ways():
        found = []
        for name in ("default", "second", "default"):
            wrapped.set_adapter(name)
            wrapped.eval()
            found.append(wrapped.generate(**inputs))
        with wrapped.disable_adapter():
            found.append(wrapped.generate(**inputs))
        return found

    expected = all_ways()
    with Accelerated(inner) as ours:
        found = all_ways()
        assert ours.decoder.replayed > 0
    assert not torch.equal(expected[0], expected[1]) and not torch.equal(expected[0], expected[3])
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_masks_with_gaps_and_right_padding(model):
    inputs = prompt(3)
    inputs["attention_mask"][:, 5:8] = 0
    inputs["attention_mask"][:, -1] = 1
    same_tokens(model, **inputs, max_new_tokens=30, do_sample=False)
    same_tokens(model_of("mistral"), None, ("gaps",), **inputs, max_new_tokens=30, do_sample=False)
    inputs["attention_mask"][1, -4:] = 0
    same_tokens(model, None, ("gaps",), **inputs, max_new_tokens=10, do_sample=False)


def hooked(model):
    model.model.layers[1].register_forward_hook(lambda *args: None)


UNSUPPORTED = {
    "training mode": lambda model: model.train(),
    "has hooks": hooked,
    "under torch.compile": lambda model: setattr(model.model, "_compiled_call_impl", lambda *a, **k: None),
}


@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_a_model_that_no_graph_can_run_runs_eager_and_says_so_once(model, reason):
    expected = model.generate(**(inputs := prompt(2)), max_new_tokens=10, do_sample=False)
    if reason != "under torch.compile":
        UNSUPPORTED[reason](model)
    with Accelerated(model) as ours, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if reason == "under torch.compile":
            # Only the mark: the check is on it alone, and nothing is compiled here.
            model.lm_head._compiled_call_impl = model.lm_head._call_impl
        for _ in range(3):
            assert torch.equal(expected, model.generate(**inputs, max_new_tokens=10, do_sample=False))
        ours.says = (reason,)
    said = [str(one.message) for one in caught if str(one.message).startswith("accelerate:")]
    assert len(said) == 1 and reason in said[0]


def test_meta_tensors_and_several_devices_are_refused_with_a_reason(model):
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.to("meta"))
    assert "meta tensor" in rules.model_refusal(model, "cpu")
    assert "graphs need cuda" in rules.model_refusal(model_of("llama"), "cuda")


def test_beams_assistants_and_loops_of_the_caller_run_eager(model):
    inputs = prompt(1)
    same_tokens(model, None, ("beams",), **inputs, max_new_tokens=10, num_beams=3)
    same_tokens(model, None, ("assists",), **inputs, max_new_tokens=10, prompt_lookup_num_tokens=3, do_sample=False)

    def loop(model, input_ids, **kwargs):
        return input_ids

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Accelerated(model, says=("custom_generate",)):
            assert torch.equal(inputs["input_ids"], model.generate(**inputs, custom_generate=loop))


def test_a_model_on_the_cpu_runs_eager_by_the_public_names(model):
    inputs = prompt(2)
    expected = model.generate(**inputs, max_new_tokens=10, do_sample=False)
    with pytest.warns(UserWarning, match="the model is on cpu, and graphs need cuda"):
        handle = accelerate(model)
        assert torch.equal(expected, model.generate(**inputs, max_new_tokens=10, do_sample=False))
    assert "the model is on cpu" in str(handle) and handle.captures == 0
    assert list(handle.eager.values()) == [1]
    assert restore(model) and not restore(model)
    with pytest.raises(ConfigError, match="has no generate of Transformers"):
        accelerate(torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="max_context is 0"):
        accelerate(model, max_context=0)


def test_attention_outside_of_the_interface_is_noticed(model):
    attention = type(model.model.layers[0].self_attn)
    original = attention.forward

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **kwargs):
        held = kwargs.get("cache") or kwargs.get("past_key_values")
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        keys = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        values = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        if held is not None:
            keys, values = held.update(keys, values, self.layer_idx)
        causal = query.shape[2] > 1
        out = torch.nn.functional.scaled_dot_product_attention(query, keys, values, is_causal=causal, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(*hidden_states.shape[:-1], -1)), None

    attention.forward = forward
    try:
        same_tokens(model, None, ("Transformers' interface",), **prompt(1), max_new_tokens=20, do_sample=False)
    finally:
        attention.forward = original


def test_a_step_that_computes_otherwise_is_noticed(model, monkeypatch):
    from fercuda_runtime.inference.accelerated import attention

    right = attention.attend
    monkeypatch.setattr(attention, "attend", lambda *args, **more: right(*args, **more) * 1.5)
    same_tokens(model, None, ("differs from the eager one",), **prompt(3), max_new_tokens=20, do_sample=False)


def close(one, other):
    """Equal but for the order of sums in f32: a recurrence carries its rounding from token to token,
    so the whole tensor's norm is the measure."""
    finite = one.isfinite()
    assert one.shape == other.shape and torch.equal(finite, other.isfinite())
    assert torch.equal(one[~finite], other[~finite])
    one, other = one[finite], other[finite]
    assert (one - other).double().norm() <= 1e-3 * one.double().norm()


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3_5"])
def test_scores_logits_and_the_cache_are_returned(family):
    expected, found = eager_and_graphs(
        model_of(family),
        **prompt(3),
        max_new_tokens=40,
        min_new_tokens=40,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    assert torch.equal(expected.sequences, found.sequences)
    for name in ("scores", "logits"):
        for one, other in zip(getattr(expected, name), getattr(found, name), strict=True):
            close(one, other)
    name = "cache" if hasattr(expected, "cache") else "past_key_values"
    for one, other in zip(getattr(expected, name).layers, getattr(found, name).layers, strict=True):
        if hasattr(one, "recurrent_states"):
            close(one.recurrent_states[0], other.recurrent_states[0])
            close(one.conv_states[0], other.conv_states[0])
        else:
            assert one.get_seq_length() == other.get_seq_length()
            close(one.keys, other.keys)
            close(one.values, other.values)


def test_a_cache_of_the_caller_goes_on_in_the_next_turn():
    model = model_of("mistral")
    name = "cache" if "cache" in transformers.LlamaForCausalLM.forward.__code__.co_varnames else "past_key_values"
    first, more = prompt(1)["input_ids"], torch.randint(3, VOCABULARY, (1, 6))

    def turns():
        cache = transformers.DynamicCache(config=model.config)
        settings = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None, name: cache}
        one = model.generate(first, **settings)
        return model.generate(torch.cat((one, more), dim=1), **settings)

    expected = turns()
    with Accelerated(model):
        assert torch.equal(expected, turns())


def test_a_static_cache_is_asked_for(model):
    same_tokens(model, **prompt(2), max_new_tokens=20, do_sample=False, cache_implementation="static")


def test_inference_mode_autocast_and_plain_calls_follow_each_other(model, monkeypatch):
    monkeypatch.setattr(decode, "_FIRST_TOKENS", 8)
    inputs = {**prompt(2, 230), "max_new_tokens": 60, "do_sample": True}
    with Accelerated(model, says=("autocast is on",)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode, torch.enable_grad):
            torch.manual_seed(3)
            with mode():
                found = model.generate(**inputs)
            torch.manual_seed(3)
            with eager(model):
                assert torch.equal(model.generate(**inputs), found)
        with torch.autocast("cpu", torch.bfloat16):
            model.generate(**inputs)


def test_threads_take_turns_and_a_streamer_may_generate(model):
    inputs = [prompt(rows) for rows in (1, 3, 2, 1)]
    settings = {"max_new_tokens": 25, "do_sample": False}
    expected = [model.generate(**one, **settings) for one in inputs]
    found = [None] * len(inputs)

    class Nested(Listing):
        def put(self, value):
            super().put(value)
            if len(self.parts) == 4:
                self.inner = model.generate(**inputs[1], **settings)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Accelerated(model, says=("within another generate",)):

            def work(index):
                found[index] = model.generate(**inputs[index], **settings)

            threads = [threading.Thread(target=work, args=(index,)) for index in range(len(inputs))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            nested = Nested()
            assert torch.equal(expected[0], model.generate(**inputs[0], **settings, streamer=nested))
            assert torch.equal(expected[1], nested.inner)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_a_fork_runs_eager(model):
    inputs = prompt(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model.generate(**inputs, max_new_tokens=12, do_sample=False)
        with Accelerated(model) as ours:
            model.generate(**inputs, max_new_tokens=12, do_sample=False)
            decoder = ours.decoder
            pid, decoder._pid = decoder._pid, -1  # As in the child of a fork.
            assert torch.equal(expected, model.generate(**inputs, max_new_tokens=12, do_sample=False))
            decoder._pid = pid
            ours.says = ("forked",)


def test_a_deleted_model_leaves_nothing():
    graphs, model = CpuGraphs(), model_of("qwen3_5")
    gone = weakref.ref(model)
    decoder = install(model, graphs)
    model.generate(**prompt(2), max_new_tokens=20)
    assert graphs.live > 0 and decoder.figures()[2][0] > 0
    gc.collect()
    gc.disable()
    try:
        del model
        assert gone() is None, "a cycle of references keeps the model"
        assert graphs.live == 0 and decoder.figures() == {}
    finally:
        gc.enable()


def test_a_copy_is_not_accelerated_and_can_be_made(model):
    with Accelerated(model) as ours:
        model.generate(**prompt(), max_new_tokens=5)
        other = copy.deepcopy(model)
        assert decoder_of(other) is None and decoder_of(model) is ours.decoder
        assert isinstance(model, transformers.LlamaForCausalLM)


def test_random_calls_are_equal_and_nothing_grows():
    model = model_of("qwen3_5")
    calls = 1000 if os.environ.get("FERCUDA_BUDGET") == "soak" else 20
    with Accelerated(model) as ours, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sizes = []
        for _ in range(calls):
            inputs = prompt(random.randrange(1, 7), random.randrange(5, 60))
            settings = {"max_new_tokens": random.randrange(1, 30), "do_sample": random.random() < 0.5}
            seed = random.randrange(2**31)
            torch.manual_seed(seed)
            found = model.generate(**inputs, **settings)
            decoder = install(model, ours.graphs) if random.random() < 0.02 else None
            torch.manual_seed(seed)
            with eager(model):
                assert torch.equal(model.generate(**inputs, **settings), found)
            ours.decoder = decoder or ours.decoder
            sizes.append(sum(sum(row[:2]) for row in ours.decoder.figures().values()))
        assert ours.graphs.live <= 4 * (2 + 8)
        assert max(sizes) < 4 * 2**20 * 8


class eager:
    """Runs a model without its graphs in a block, and keeps them."""

    def __init__(self, model):
        self.model = model

    def __enter__(self):
        from fercuda_runtime.inference.accelerated import install as module

        self.decoder = module._DECODERS.pop(self.model)

    def __exit__(self, *exception):
        from fercuda_runtime.inference.accelerated import install as module

        module._DECODERS[self.model] = self.decoder


def test_buckets_cover_what_they_are_for():
    for tokens in [*range(1, 600), *(random.randrange(1, 2**20) for _ in range(300))]:
        bucket = workspace.context_bucket(tokens)
        assert tokens <= bucket <= max(256, 2 * tokens) and bucket % 256 == 0
        assert bucket <= 1.25 * tokens + 256 or tokens < 4096
        assert workspace.context_bucket(bucket) == bucket
    for rows in range(1, 100):
        assert rows <= workspace.batch_bucket(rows) < rows + 8


def test_importing_inference_imports_no_torch():
    script = "import sys, fercuda_runtime.inference as i; i.accelerate; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
