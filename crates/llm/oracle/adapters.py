"""Compares log-probabilities of tiny random models with LoRA adapters with those of PEFT.

    python adapters.py BINARY [ARCHITECTURE...]

BINARY is the example `log_probabilities`. Each model is made by transformers, in f32 with random
weights, and its adapter by PEFT, with random factors. Both are computed by both, for every prefix
of random tokens: the model as GGUF and as a checkpoint, the adapter as PEFT saves it and as a GGUF
file. A line for each says how far apart they are at most; the exit status is 1 if that is above
1e-4. PEFT is needed beside the packages of `requirements.txt`.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import peft
import safetensors.torch
import torch

import compare

MOST = 1e-4
# Ranks and alphas that are not the same for all modules.
CASES = {
    "plain": {"r": 4, "lora_alpha": 8},
    "root": {"r": 8, "lora_alpha": 6, "use_rslora": True},
    "patterns": {
        "r": 4,
        "lora_alpha": 8,
        "rank_pattern": {"v_proj": 2, "qkv_proj": 3},
        "alpha_pattern": {"layers.0.mlp.down_proj": 3},
    },
}
MODELS = ("llama", "llama3", "mistral", "qwen2", "qwen3", "qwen3.5", "gemma2", "phi3", "mixtral")
MODULES = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "qkv_proj",
    "gate_proj",
    "up_proj",
    "gate_up_proj",
    "down_proj",
]


def adapted(model, case, generator):
    """The model with an adapter with random factors, whose product is about as a weight."""
    names = [name.rsplit(".", 1)[-1] for name, _ in model.named_modules()]
    modules = [it for it in MODULES if it in names]
    ranks = {key: rank for key, rank in case.get("rank_pattern", {}).items() if key in names}
    case = {**case, "rank_pattern": ranks}
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=modules, **case)
    model = peft.get_peft_model(model, config).float().eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if "lora_" in key:
                drawn = torch.randn(weight.shape, generator=generator)
                weight.copy_(0.5 / weight.shape[-1] ** 0.5 * drawn)
    return model


def as_gguf(path, folder, architecture, config):
    """Writes what PEFT has saved as a GGUF file; ranks and alphas are those of all modules."""
    saved = peft.LoraConfig.from_pretrained(folder)
    tensors = {}
    for key, factor in safetensors.torch.load_file(folder / "adapter_model.safetensors").items():
        array = factor.float().numpy()
        module, end = key.removeprefix("base_model.model.model.layers.").split(".lora_")
        layer, part = module.split(".", 1)
        name = compare.NAMES[part]
        is_b = end.startswith("B")
        if architecture == "llama" and is_b and name in ("attn_q", "attn_k"):
            heads = config.num_attention_heads if name == "attn_q" else config.num_key_value_heads
            array = compare.neighbours(array, heads)
        tensors[f"blk.{layer}.{name}.weight.lora_{'b' if is_b else 'a'}"] = array
    metadata = {
        "general.type": "adapter",
        "general.architecture": architecture,
        "adapter.type": "lora",
        "adapter.lora.alpha": float(saved.lora_alpha),
    }
    gguf.write(path, metadata, tensors)


def computed(binary, path, tokens, adapter):
    """Log-probabilities behind each prefix of tokens."""
    given = [str(it) for it in tokens[0].tolist()]
    command = [binary, "--adapter", adapter, path, *given]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return np.array([[float(it) for it in line.split()] for line in done.stdout.splitlines()])


def compared(name, case, binary, seed):
    """How far the log-probabilities are from PEFT's at most, and how much the adapter changes."""
    generator = torch.Generator().manual_seed(seed)
    architecture, model, config, _ = compare.made(name, generator)
    tokens = torch.randint(0, config.vocab_size, (1, compare.TOKENS), generator=generator)
    chances = lambda it: torch.log_softmax(it(tokens, use_cache=False).logits[0].double(), -1)
    own = []
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        folder = pathlib.Path(folder)
        files = [folder / "tiny.gguf"]
        gguf.write(
            files[0],
            compare.described(architecture, config, None),
            compare.converted(architecture, model, config),
        )
        if name in compare.CHECKPOINTS:
            files.append(folder / "checkpoint")
            model.save_pretrained(files[1])
        plain = chances(model).numpy()
        model = adapted(model, CASES[case], generator)
        wanted = chances(model).numpy()
        adapters = [folder / "adapter"]
        model.save_pretrained(adapters[0])
        if case == "plain":
            adapters.append(folder / "adapter.gguf")
            as_gguf(adapters[1], adapters[0], architecture, config)
        for file in files:
            for adapter in adapters:
                own.append(computed(binary, file, tokens, adapter))
    off = max(np.abs(it - wanted).max() for it in own)
    return off, np.abs(plain - wanted).max(), len(own)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("architecture", nargs="*", default=MODELS)
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else int(np.random.default_rng().integers(2**31))
    print(f"peft {peft.__version__}, torch {torch.__version__}, seed {seed}")
    is_near = True
    for name in args.architecture:
        for case in CASES:
            off, change, count = compared(name, case, args.binary, seed)
            is_near &= bool(off <= MOST)
            print(f"{name}, {case}: {off:.2e} apart of {count}, by an adapter that changes {change:.1f}")
    sys.exit(0 if is_near else 1)


if __name__ == "__main__":
    main()
