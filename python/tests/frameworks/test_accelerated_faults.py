"""Decoding by graphs under attack: memory that ends, threads, forks, and models that change."""

import gc
import os
import random
import subprocess
import sys
import threading
import warnings

import pytest
import torch
import transformers
from cpu_graphs import CpuGraphs
from test_transformers import (  # noqa: F401
    VOCABULARY,
    Accelerated,
    Listing,
    eager,
    eager_and_graphs,
    model,
    model_of,
    prompt,
    same_tokens,
    seed,
)

from fercuda_runtime import guest_hooks
from fercuda_runtime.inference.accelerated import decode, workspace
from fercuda_runtime.inference.accelerated.install import decoder_of, install, uninstall


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3_5", "gemma3"])
@pytest.mark.parametrize("keeps", [False, True])
def test_no_memory_to_grow_goes_on_eager_from_the_same_token(family, keeps, monkeypatch):
    monkeypatch.setattr(decode, "_FIRST_TOKENS", 8)
    right, model = workspace.StaticLayers.grow, model_of(family)

    def grow(self, capacity):
        self.slots[0].grow(capacity)  # One layer has grown, the next has no memory.
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")

    monkeypatch.setattr(workspace.StaticLayers, "grow", grow)
    inputs = prompt(3, 240)
    if family == "llama":
        inputs["attention_mask"][0, 100:110] = 0
    more = {"return_dict_in_generate": True} if keeps else {}
    settings = {"max_new_tokens": 60, "min_new_tokens": 20, "do_sample": True}
    settings["eos_token_id"] = random.sample(range(3, 200), 9)
    expected, found = eager_and_graphs(model, None, ("no memory for a step",), **inputs, **settings, **more)
    if keeps:
        expected, found = expected.sequences, found.sequences
    assert torch.equal(expected, found)
    monkeypatch.setattr(workspace.StaticLayers, "grow", right)


def test_no_memory_in_a_forward_between_captures_goes_on_eager(model):
    class Once(CpuGraphs):
        def capture(self, step, restore):
            made, right, count = super().capture(step, restore), None, [0]
            right = made.replay

            def replay():
                count[0] += 1
                if self.captures == 2 and count[0] == 5:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")
                right()

            if self.captures == 1:
                made.replay = replay
            return made

    for sample in (False, True):
        same_tokens(model, Once(), ("no memory for a step",), **prompt(3), max_new_tokens=20, do_sample=sample)


def test_memory_counts_graphs_too(model):
    class Large(CpuGraphs):
        def capture(self, step, restore):
            made = super().capture(step, restore)
            made.bytes = 1 << 30
            return made

    with Accelerated(model, Large(), says=("caches and graphs have 1024 MiB",), memory=256 << 20) as ours:
        inputs = prompt(2)
        with eager(model):
            expected = model.generate(**inputs, max_new_tokens=20, do_sample=False)
        with pytest.warns(UserWarning, match="memory= allows 256 MiB"):
            assert torch.equal(expected, model.generate(**inputs, max_new_tokens=20, do_sample=False))
        assert ours.graphs.live == 0
    with Accelerated(model, says=("its cache needs",), memory=1000), pytest.warns(UserWarning, match="memory= allows 0"):
        assert torch.equal(expected, model.generate(**inputs, max_new_tokens=20, do_sample=False))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_a_first_step_in_a_half_type_differs_by_rounding_alone(family, dtype, monkeypatch):
    from fercuda_runtime.inference.accelerated import attention

    model, inputs = model_of(family).to(dtype), prompt(3)
    with Accelerated(model) as ours:
        model.generate(**inputs, max_new_tokens=8, do_sample=False)
        assert ours.decoder._is_checked
    right = attention.attend
    monkeypatch.setattr(attention, "attend", lambda *args, **more: right(*args, **more) * 1.5)
    with Accelerated(model, says=("differs from the eager one",)) as ours, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):
            model.generate(**inputs, max_new_tokens=8, do_sample=False)
        assert ours.decoder.replayed == 3 and list(ours.decoder.reasons.values()) == [4]


def test_settings_of_modules_and_configs_are_taken_in(model):
    inputs = {**prompt(2), "max_new_tokens": 20, "do_sample": False}
    layer = model.model.layers[1]

    def doubled(self, x, right=type(layer.mlp).forward):
        return right(self, x) * 2

    changes = [
        lambda: setattr(layer.self_attn, "scaling", layer.self_attn.scaling * 3),
        lambda: setattr(layer.input_layernorm, "variance_epsilon", 3.0),
        lambda: setattr(layer.mlp, "forward", lambda x: x),
        lambda: delattr(layer.mlp, "forward"),
        lambda: setattr(layer.mlp, "forward", lambda x: x * 3),
        lambda: setattr(type(layer.mlp), "forward", doubled),
        lambda: delattr(layer.mlp, "forward"),
        lambda: model.half(),
        lambda: model.float(),
        lambda: (model.resize_token_embeddings(VOCABULARY + 9), model.eval()),
        lambda: setattr(model.config, "_attn_implementation", "eager"),
    ]
    right = type(layer.mlp).forward
    try:
        with Accelerated(model) as ours:
            for change in [lambda: None, *changes]:
                change()
                found = model.generate(**inputs)
                with eager(model):
                    assert torch.equal(model.generate(**inputs), found)
            assert not ours.decoder.reasons
    finally:
        type(layer.mlp).forward = right


def test_models_of_one_config_in_threads(model):
    other = transformers.LlamaForCausalLM(model.config).eval()
    inputs = {**prompt(2), "max_new_tokens": 60, "do_sample": False}
    expected = [one.generate(**inputs) for one in (model, other)]
    found = [[], []]
    with Accelerated(model), Accelerated(other):

        def work(index):
            for _ in range(3):
                found[index].append((model, other)[index].generate(**inputs))

        threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert model.config._attn_implementation == "sdpa"
    for index in (0, 1):
        assert len(found[index]) == 3 and all(torch.equal(one, expected[index]) for one in found[index])


@pytest.mark.parametrize("what", ["restore", "accelerate", "release"])
def test_graphs_are_freed_from_within_a_streamer(model, what):
    inputs = prompt(1)
    expected = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    graphs = CpuGraphs()
    decoder = install(model, graphs)

    class Freeing(Listing):
        def put(self, value):
            super().put(value)
            if len(self.parts) == 5:
                {"restore": uninstall, "accelerate": lambda it: install(it, CpuGraphs())}.get(
                    what, lambda it: decoder.free()
                )(model)

    try:
        found = model.generate(**inputs, max_new_tokens=20, do_sample=False, streamer=Freeing())
        assert torch.equal(expected, found)
        assert graphs.live == 0 and decoder.is_idle()
        assert torch.equal(expected, model.generate(**inputs, max_new_tokens=20, do_sample=False))
    finally:
        uninstall(model)


def test_an_interrupt_before_the_first_token_leaves_the_cache_of_the_caller(model):
    name = "cache" if "cache" in transformers.LlamaForCausalLM.forward.__code__.co_varnames else "past_key_values"
    cache = transformers.DynamicCache(config=model.config)

    def interrupt(number):
        raise KeyboardInterrupt

    with Accelerated(model, CpuGraphs(on_receive=interrupt)), pytest.raises(KeyboardInterrupt):
        model.generate(**prompt(1), max_new_tokens=20, do_sample=False, **{name: cache})
    assert cache.get_seq_length() == 21


def test_what_is_no_probability_raises_as_in_eager(model):
    class Void(transformers.LogitsProcessor):
        def __call__(self, input_ids, scores):
            return scores if input_ids.shape[1] < 24 else torch.full_like(scores, float("-inf"))

    inputs = prompt(3)
    with Accelerated(model):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="probability tensor contains either"):
                model.generate(**inputs, max_new_tokens=20, do_sample=True, logits_processor=[Void()])
        with torch.no_grad():
            model.lm_head.weight.fill_(float("nan"))
        with pytest.raises(RuntimeError, match="probability tensor contains either"):
            model.generate(**inputs, max_new_tokens=20, do_sample=True)


def test_observers_of_operations_see_all_of_them(model):
    from torch.utils.flop_counter import FlopCounterMode

    inputs = {**prompt(1), "max_new_tokens": 12, "do_sample": False}
    with Accelerated(model, says=("dispatch mode", "hooks for all modules")) as ours, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with FlopCounterMode(display=False) as counted:
            model.generate(**inputs)
        with eager(model), FlopCounterMode(display=False) as expected:
            model.generate(**inputs)
        assert counted.get_total_flops() == expected.get_total_flops()
        seen = []
        handle = torch.nn.modules.module.register_module_forward_hook(lambda *args: seen.append(1))
        try:
            model.generate(**inputs)
        finally:
            handle.remove()
        assert len(seen) >= 12 and ours.decoder.replayed == 0


def test_a_real_fork_runs_eager():
    script = """
import os, sys, threading, warnings
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")
import torch
from test_transformers import CpuGraphs, install, model_of, prompt, uninstall
torch.set_num_threads(1)
model, inputs = model_of("llama"), prompt(1)
expected = model.generate(**inputs, max_new_tokens=12, do_sample=False)
graphs = CpuGraphs()
decoder = install(model, graphs)
assert torch.equal(expected, model.generate(**inputs, max_new_tokens=12, do_sample=False))
held, live = threading.Event(), graphs.live
def hold():
    with decoder._lock:
        held.set()
        threading.Event().wait(60)
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    found = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    uninstall(model)
    os._exit(0 if torch.equal(expected, found) and graphs.live == live and list(decoder.reasons) else 3)
assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""
    here = os.path.dirname(os.path.abspath(__file__))
    subprocess.run([sys.executable, "-c", script, here], check=True, timeout=120)


def test_watched_models_are_accelerated_by_their_first_call(model, monkeypatch):
    from fercuda_runtime.inference.accelerated import install as module

    made = []

    def graphs(device):
        made.append(CpuGraphs())
        return made[-1]

    inputs = {**prompt(2), "max_new_tokens": 12, "do_sample": False}
    expected = model.generate(**inputs)
    monkeypatch.setattr(module, "CudaGraphs", graphs)
    monkeypatch.setattr(module, "_DEVICE", "cpu")
    guest_hooks.hf_hook()
    try:
        assert torch.equal(expected, model.generate(**inputs))
        decoder = decoder_of(model)
        assert len(made) == 1 and decoder.replayed > 0 and not decoder.reasons
        assert uninstall(model) and made[0].live == 0
        assert torch.equal(expected, model.generate(**inputs)) and decoder_of(model) is None
        other = model_of("qwen3_5")
        other.generate(**inputs)
        assert decoder_of(other).replayed > 0 and len(made) == 2
        module.unwatch()
        third = model_of("llama")
        third.generate(**inputs)
        assert decoder_of(third) is None
        del other
        gc.collect()
        assert made[1].live == 0
    finally:
        module.unwatch()


@pytest.mark.parametrize("kind", ["prompt", "prefix", "ia3", "dora"])
def test_other_kinds_of_adapters(kind):
    peft = pytest.importorskip("peft")
    task = {"task_type": "CAUSAL_LM"}
    settings = {
        "prompt": lambda: peft.PromptTuningConfig(**task, num_virtual_tokens=5),
        "prefix": lambda: peft.PrefixTuningConfig(**task, num_virtual_tokens=5),
        "ia3": lambda: peft.IA3Config(**task, init_ia3_weights=False),
        "dora": lambda: peft.LoraConfig(**task, r=4, use_dora=True, init_lora_weights=False),
    }
    wrapped = peft.get_peft_model(model_of("llama"), settings[kind]()).eval()
    inner, inputs = wrapped.get_base_model(), {**prompt(3), "max_new_tokens": 16, "do_sample": False}
    is_virtual = kind in ("prompt", "prefix")
    steps = [lambda: None] if is_virtual else [lambda: None, wrapped.merge_adapter, wrapped.unmerge_adapter]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Accelerated(inner, says=("is replaced",) if is_virtual else ()) as ours:
            for step in steps:
                step()
                found = wrapped.generate(**inputs)
                with eager(inner):
                    assert torch.equal(wrapped.generate(**inputs), found)
            assert (ours.decoder.replayed == 0) == is_virtual
