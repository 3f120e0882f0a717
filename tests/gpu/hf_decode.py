"""Decoding by graphs on a GPU, with random weights at models' shapes: equality, speed, memory.

    python hf_decode.py [--parts equal,flash,qwen,mistral,llama,context,soak] [--layers N] [--compile]

Each part prints lines of JSON. "equal" compares the tokens of tiny f32 models with eager, for each
family, greedy and sampling; "flash" says how attention is computed; "qwen", "mistral" and "llama"
time Qwen3.5-4B, Mistral-7B and Llama-3-8B in bf16 at batch 1, eager and by graphs; "context" times
Qwen3.5-4B after 32,768 tokens; "soak" makes 1,000 calls of random lengths and batches. `--layers`
takes fewer layers, `--compile` adds Transformers' static cache with torch.compile. The exit status
is 1 if anything differs.
"""

import argparse
import gc
import json
import os
import random
import sys
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers as tf
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM

from fercuda_runtime.inference import accelerate, restore

FAILED = []
TINY = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 997,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LINEAR = {
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
WINDOW = {"sliding_window": 48}


def families():
    yield "llama", tf.LlamaForCausalLM, tf.LlamaConfig(**TINY)
    yield "mistral", tf.MistralForCausalLM, tf.MistralConfig(**TINY, **WINDOW)
    yield "qwen2", tf.Qwen2ForCausalLM, tf.Qwen2Config(**{k: v for k, v in TINY.items() if k != "head_dim"})
    yield "qwen3", tf.Qwen3ForCausalLM, tf.Qwen3Config(**TINY)
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    yield "qwen3_moe", tf.Qwen3MoeForCausalLM, tf.Qwen3MoeConfig(**TINY, **moe)
    yield "qwen3_5", Qwen3_5ForCausalLM, Qwen3_5TextConfig(**TINY, **LINEAR)
    yield "gemma2", tf.Gemma2ForCausalLM, tf.Gemma2Config(**TINY, **WINDOW)
    yield "gemma3", tf.Gemma3ForCausalLM, tf.Gemma3TextConfig(**{**TINY, "num_hidden_layers": 6}, **WINDOW)
    yield "phi3", tf.Phi3ForCausalLM, tf.Phi3Config(**TINY)


def shapes(name, layers):
    if name == "qwen":
        return Qwen3_5ForCausalLM, Qwen3_5TextConfig(
            hidden_size=2560,
            intermediate_size=9216,
            num_hidden_layers=layers or 32,
            num_attention_heads=16,
            num_key_value_heads=4,
            head_dim=256,
            vocab_size=248320,
            tie_word_embeddings=True,
            max_position_embeddings=65536,
        )
    if name == "mistral":
        return tf.MistralForCausalLM, tf.MistralConfig(
            num_hidden_layers=layers or 32, sliding_window=None, max_position_embeddings=32768, vocab_size=32000
        )
    return tf.LlamaForCausalLM, tf.LlamaConfig(
        num_hidden_layers=layers or 32,
        hidden_size=4096,
        intermediate_size=14336,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=8192,
    )


def made(kind, config, dtype):
    torch.set_default_dtype(dtype)
    try:
        with torch.device("cuda"):
            return kind(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def report(part, **figures):
    print(json.dumps({"part": part, **figures}), flush=True)
    if figures.get("equal") is False:
        FAILED.append(part)


def prompt(rows, columns, vocabulary):
    ids = torch.randint(3, vocabulary, (rows, columns), device="cuda")
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, : random.randrange(1, columns - 2)] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def equal():
    for name, kind, config in families():
        model = made(kind, config, torch.float32)
        for rows in (1, 3, 8):
            inputs = prompt(rows, 40, 997)
            for sample in (False, True):
                settings = {**inputs, "max_new_tokens": 256, "min_new_tokens": 256, "do_sample": sample}
                torch.manual_seed(7)
                expected = model.generate(**settings)
                next_expected = torch.rand(1, device="cuda")
                handle = accelerate(model, fused=False)
                torch.manual_seed(7)
                found = model.generate(**settings)
                next_found = torch.rand(1, device="cuda")
                same = torch.equal(expected, found) and torch.equal(next_expected, next_found)
                report("equal", family=name, rows=rows, sample=sample, equal=same, captures=handle.captures,
                       eager=handle.eager)
                restore(model)


class Clock(tf.generation.streamers.BaseStreamer):
    """Times at which tokens come."""

    def __init__(self):
        self.at = []

    def put(self, value):
        self.at.append(time.perf_counter())

    def end(self):
        pass


def timed(model, inputs, tokens, **more):
    """Time to the first token, from the first to the second, and tokens a second from the rest's
    last half: times of a stream of tokens, as a user sees them."""
    clock = Clock()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    model.generate(**inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0,
                   streamer=clock, **more)
    at = clock.at[1:]
    half = len(at) // 2
    return {
        "first_s": round(at[0] - begin, 4),
        "ready_s": round(at[2] - at[0], 4),
        "tokens_s": round((len(at) - 1 - half) / (at[-1] - at[half]), 1),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 3),
    }


def speed(name, options, columns=128, tokens=256):
    kind, config = shapes(name, options.layers)
    model = made(kind, config, torch.bfloat16)
    inputs = prompt(1, columns, 1000)
    label = name if columns == 128 else f"{name}-{columns}"
    timed(model, inputs, 4)
    eager = timed(model, inputs, 24)
    report(label, way="eager", **eager)
    if options.compile and columns == 128:
        more = {"cache_implementation": "static"}
        timed(model, inputs, 16, **more)
        report(label, way="static and compile", **timed(model, inputs, 128, **more))
    for fused in (False, True):
        handle = accelerate(model, fused=fused)
        if fused and not handle.fused:
            report(label, way="graphs, fused", note="no fused kernels for this model")
            restore(model)
            continue
        way = "graphs, fused" if fused else "graphs"
        report(label, way=way + ", first call", **timed(model, inputs, tokens))
        figures = timed(model, inputs, tokens)
        report(label, way=way, attention=handle.attention, eager_reasons=handle.eager, memory=handle.memory,
               times_eager=round(figures["tokens_s"] / eager["tokens_s"], 2), **figures)
        logits(model, inputs, label)
        restore(model)
    before = torch.cuda.memory_allocated()
    handle = accelerate(model, fused=False)
    model.generate(**inputs, max_new_tokens=8, do_sample=False, pad_token_id=0)
    del model, handle
    torch.cuda.synchronize()
    left = torch.cuda.memory_allocated()
    report(label, way="after del", left_mib=round(left / 2**20, 2), was_mib=round(before / 2**20, 2))


def logits(model, inputs, label):
    """Distance of the logits of 16 steps to eager ones, relative to their norm."""
    settings = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False, "pad_token_id": 0,
                "return_dict_in_generate": True, "output_logits": True}
    found = model.generate(**inputs, **settings)
    steps = found.sequences[:, inputs["input_ids"].shape[1] :]
    # Eager, with the same tokens: one forward over all of them.
    with torch.no_grad():
        whole = model(input_ids=found.sequences, use_cache=False).logits.float()
    expected = whole[0, inputs["input_ids"].shape[1] - 1 : -1]
    ours = torch.cat(found.logits).float()
    distance = ((ours - expected).norm() / expected.norm()).item()
    report(label, way="logits to one eager forward", distance=round(distance, 5), steps=int(steps.shape[1]))


def soak(calls):
    name, kind, config = [one for one in families() if one[0] == "qwen3_5"][0]
    model = made(kind, config, torch.float32)
    handle = accelerate(model, fused=False)
    differing, sizes = 0, []
    for call in range(calls):
        inputs = prompt(random.randrange(1, 9), random.randrange(5, 200), 997)
        settings = {**inputs, "max_new_tokens": random.randrange(1, 40), "do_sample": random.random() < 0.5}
        torch.manual_seed(call)
        found = model.generate(**settings)
        if call % 10 == 0:  # Eager is what takes the time.
            copy = model.generate.__func__
            torch.manual_seed(call)
            model.train(False)
            hook = model.model.layers[0].register_forward_hook(lambda *args: None)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                differing += not torch.equal(copy(model, **settings), found)
            hook.remove()
        if call in (calls // 2, calls - 1):
            torch.cuda.synchronize()
            sizes.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    report("soak", calls=calls, equal=differing == 0, half_and_end_bytes=sizes, captures=handle.captures,
           replays=handle.replays)
    restore(model)


def flash():
    from fercuda_runtime.inference.accelerated import attention

    for heads, shared, dim in ((32, 8, 128), (16, 4, 256), (32, 32, 128)):
        class Layer:
            window = None

        layer = Layer()
        layer.heads, layer.value_dim = shared, dim
        layer.keys = torch.zeros(1, shared, 8, dim, dtype=torch.bfloat16, device="cuda")
        report("flash", heads=heads, shared=shared, dim=dim, used=attention.tries_flash(layer, heads))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="equal,flash,qwen,mistral,llama,context,soak")
    parser.add_argument("--layers", type=int, help="layers of the large models; all")
    parser.add_argument("--calls", type=int, default=1000, help="calls of the part soak")
    parser.add_argument("--compile", action="store_true", help="time a static cache with torch.compile too")
    options = parser.parse_args()
    torch.manual_seed(1)
    report("machine", gpu=torch.cuda.get_device_name(), torch=torch.__version__, transformers=tf.__version__)
    for part in options.parts.split(","):
        begin = time.perf_counter()
        try:
            if part == "equal":
                equal()
            elif part == "flash":
                flash()
            elif part == "context":
                speed("qwen", options, columns=32768, tokens=192)
            elif part == "soak":
                soak(options.calls)
            else:
                speed(part, options)
        except Exception as error:  # The other parts are of use without this one.
            report(part, equal=False, error=f"{type(error).__name__}: {error}"[:600])
            import traceback

            traceback.print_exc()
        gc.collect()
        torch.cuda.empty_cache()
        report(part, way="whole part", s=round(time.perf_counter() - begin, 1))
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
