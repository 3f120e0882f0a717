"""Compares log-probabilities of tiny random models with those of transformers.

    python compare.py BINARY [ARCHITECTURE...]

BINARY is the example `log_probabilities`. Each model is made by transformers, in f32 with random
weights, converted to GGUF here, and computed by both, for every prefix of random tokens; as a
checkpoint too, in each form that such models have in files (`checkpoints.py`). A line for each says
how far apart they are at most; the exit status is 1 if that is above 1e-4.

MXFP4 is not compared so closely, as products with blocks are of activations of 8 bits: what is
asked of it is 0.2.
"""

import argparse
import math
import pathlib
import subprocess
import sys
import tempfile

import checkpoints
import gguf
import numpy as np
import torch
import transformers

MOST = 1e-4
MOST_OF_BLOCKS = 0.2
TOKENS = 40
COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
}
EXPERTS = {"num_experts_per_tok": 3, "output_router_logits": False}


def with_rope(theta, **scaling):
    """Parameters of the rotation in the form of transformers 5."""
    return {"rope_parameters": {"rope_theta": theta, "rope_type": "default", **scaling}}


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 32,
    "truncate": False,
}
PAIRS = 6
LONG_ROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * at for at in range(PAIRS)],
    "long_factor": [2.0 + 0.7 * at for at in range(PAIRS)],
    "original_max_position_embeddings": 128,
    "partial_rotary_factor": 0.75,
}

# Architectures whose matrices of experts have their inputs first.
INPUTS_FIRST = ("gpt-oss", "llama4")

# What a query reads of a state may be close to 0: a norm that divided by it would make rounding
# errors of f32 as large as the differences that are looked for, in transformers as here.
STATES = {
    "rms_norm_eps": 1e-2,
    "num_hidden_layers": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
}

# Names of models, each with its architecture in files, its classes and its configuration.
MODELS = {
    "llama": ("llama", "Llama", {**with_rope(1e4)}),
    "llama3": ("llama", "Llama", {**with_rope(1e4, **LLAMA3)}),
    "llama4": (
        "llama4",
        "Llama4",
        {
            **with_rope(1e4),
            "num_hidden_layers": 4,
            "intermediate_size": 48,
            "intermediate_size_mlp": 96,
            "interleave_moe_layer_step": 2,
            "num_local_experts": 5,
            "num_experts_per_tok": 1,
        },
    ),
    "mistral": ("llama", "Mistral", {**with_rope(1e4), "sliding_window": 12}),
    "mixtral": ("llama", "Mixtral", {**with_rope(1e4), **EXPERTS, "num_local_experts": 6}),
    "qwen2": ("qwen2", "Qwen2", {**with_rope(1e4)}),
    "qwen3": ("qwen3", "Qwen3", {**with_rope(1e4)}),
    "qwen3moe": (
        "qwen3moe",
        "Qwen3Moe",
        {
            **with_rope(1e4),
            **EXPERTS,
            "num_experts": 6,
            "norm_topk_prob": True,
            "moe_intermediate_size": 48,
        },
    ),
    "qwen3.5": ("qwen35", "Qwen3_5", {**with_rope(1e4, partial_rotary_factor=0.25), **STATES}),
    "qwen3.5moe": (
        "qwen35moe",
        "Qwen3_5Moe",
        {
            **with_rope(1e4, partial_rotary_factor=0.25),
            **STATES,
            **EXPERTS,
            "num_experts": 6,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 40,
        },
    ),
    "mamba2": (
        "mamba2",
        "Mamba2",
        {"layer_norm_epsilon": 1e-2, "num_heads": 8, "head_dim": 16, "state_size": 12, "n_groups": 2, "chunk_size": 16},
    ),
    "gemma": (
        "gemma",
        "Gemma",
        {**with_rope(1e4), "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh"},
    ),
    "gemma2": (
        "gemma2",
        "Gemma2",
        {
            **with_rope(1e4),
            "tie_word_embeddings": True,
            "sliding_window": 12,
            "query_pre_attn_scalar": 16,
        },
    ),
    "gemma3": (
        "gemma3",
        "Gemma3",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            "num_hidden_layers": 7,
            "tie_word_embeddings": True,
            "sliding_window": 12,
            "query_pre_attn_scalar": 16,
        },
    ),
    "gpt-oss": (
        "gpt-oss",
        "GptOss",
        {
            **with_rope(150000.0, **YARN),
            **EXPERTS,
            "num_local_experts": 6,
            "sliding_window": 12,
        },
    ),
    "phi3": ("phi3", "Phi3", {**with_rope(1e4, partial_rotary_factor=1.0), "sliding_window": 20}),
    "phi4-mini": (
        "phi3",
        "Phi3",
        {
            **with_rope(1e4, **LONG_ROPE),
            "original_max_position_embeddings": 128,
            "context": 128,
        },
    ),
    # Of a context that is longer than the original one, all positions have the long divisors here,
    # and in transformers those of as many tokens: the original context is shorter than the prompt.
    "phi4-mini long": (
        "phi3",
        "Phi3",
        {
            **with_rope(1e4, **{**LONG_ROPE, "original_max_position_embeddings": 8}),
            "original_max_position_embeddings": 8,
            "from": 9,
        },
    ),
}


def has_norms_around_0(architecture, key):
    """Whether 1 is added to a norm's weights."""
    return architecture.startswith("gemma") or (
        architecture.startswith("qwen35") and "linear_attn" not in key
    )


def made(name, generator):
    """A model of transformers with random weights of ordinary size."""
    architecture, classes, own = MODELS[name]
    options = {**COMMON, **own}
    if architecture == "mamba2":
        others = ("intermediate_size", "num_attention_heads", "num_key_value_heads")
        options = {key: value for key, value in options.items() if key not in others}
    extra = {key: options.pop(key, None) for key in ("context", "from")}
    is_part = classes in ("Gemma3", "Llama4", "Qwen3_5", "Qwen3_5Moe")
    config_class = f"{classes}TextConfig" if is_part else f"{classes}Config"
    config = getattr(transformers, config_class)(**options)
    model = getattr(transformers, f"{classes}ForCausalLM")(config)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            drawn = torch.randn(weight.shape, generator=generator)
            if "norm" in key:
                around = 0.0 if has_norms_around_0(architecture, key) else 1.0
                weight.copy_(around + 0.3 * drawn)
            elif weight.dim() == 1 or key.endswith("_bias"):
                weight.copy_(0.3 * drawn)
            elif "embed_tokens" in key and architecture.startswith("gemma"):
                weight.copy_(drawn / math.sqrt(config.hidden_size))
            elif "embed" in key:
                weight.copy_(drawn)
            else:
                is_turned = weight.dim() == 3 and architecture in INPUTS_FIRST
                width = weight.shape[-2] if is_turned else weight.shape[-1]
                weight.copy_(1.5 / math.sqrt(width) * drawn)
    return architecture, model.float().eval(), config, extra


def neighbours(weight, heads):
    """Rows of heads, whose halves are turned together, so that neighbours are."""
    shape = weight.shape
    parts = weight.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])
    return parts.swapaxes(1, 2).reshape(shape)


def tiled(array, config, axis=0):
    """Heads of values in turns by their heads of keys, which come in groups."""
    keys, heads = config.linear_num_key_heads, config.linear_num_value_heads
    shape = array.shape
    parts = array.reshape(*shape[:axis], keys, heads // keys, shape[axis] // heads, *shape[axis + 1 :])
    return parts.swapaxes(axis, axis + 1).reshape(shape)


def of_states(part, array, config):
    """A tensor of a layer with states, and its name in files."""
    first = 2 * config.linear_num_key_heads * config.linear_key_head_dim
    if part == "A_log":
        return "ssm_a", tiled(-np.exp(array), config)
    if part == "dt_bias":
        return "ssm_dt.bias", tiled(array, config)
    if part == "conv1d.weight":
        array = array.squeeze(1)
    if part in ("conv1d.weight", "in_proj_qkv.weight"):
        array = np.concatenate([array[:first], tiled(array[first:], config)])
    elif part == "out_proj.weight":
        array = tiled(array, config, 1)
    elif part.startswith("in_proj"):
        array = tiled(array, config)
    names = {
        "in_proj_qkv": "attn_qkv",
        "in_proj_z": "attn_gate",
        "in_proj_a": "ssm_alpha",
        "in_proj_b": "ssm_beta",
        "conv1d": "ssm_conv1d",
        "norm": "ssm_norm",
        "out_proj": "ssm_out",
    }
    return f"{names[part.removesuffix('.weight')]}.weight", array


def of_scans(part, array):
    """A tensor of a layer of Mamba-2, and its name in files."""
    names = {
        "norm.weight": "attn_norm.weight",
        "mixer.in_proj.weight": "ssm_in.weight",
        "mixer.conv1d.weight": "ssm_conv1d.weight",
        "mixer.conv1d.bias": "ssm_conv1d.bias",
        "mixer.dt_bias": "ssm_dt.bias",
        "mixer.A_log": "ssm_a",
        "mixer.D": "ssm_d",
        "mixer.norm.weight": "ssm_norm.weight",
        "mixer.out_proj.weight": "ssm_out.weight",
    }
    if part == "mixer.A_log":
        array = -np.exp(array)[:, None]
    if part == "mixer.D":
        array = array[:, None]
    if part == "mixer.conv1d.weight":
        array = array.squeeze(1)
    return names[part], array


def llama3_divisors(config):
    rope = config.rope_parameters
    turned = config.head_dim
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    divisors = []
    for pair in range(turned // 2):
        length = 2 * math.pi * rope["rope_theta"] ** (2 * pair / turned)
        if length < high:
            divisors.append(1.0)
        elif length > low:
            divisors.append(rope["factor"])
        else:
            ratio = rope["original_max_position_embeddings"] / length
            smooth = (ratio - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, dtype=np.float32)


# Names of a layer's tensors in files, by those of transformers.
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "feed_forward.router": "ffn_gate_inp",
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    "feed_forward.shared_expert.gate_proj": "ffn_gate_shexp",
    "feed_forward.shared_expert.up_proj": "ffn_up_shexp",
    "feed_forward.shared_expert.down_proj": "ffn_down_shexp",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def of_experts(architecture, part, array):
    """Tensors of all experts, by the name of a part of them in transformers."""
    kind = "bias" if part.endswith("_bias") else "weight"
    if architecture in INPUTS_FIRST and kind == "weight":
        array = array.swapaxes(1, 2)
    if architecture == "gpt-oss":
        # Gates and their factors alternate.
        halves = (array[:, 0::2], array[:, 1::2])
    else:
        halves = np.split(array, 2, axis=1)
    if part.startswith("gate_up_proj"):
        return {f"ffn_gate_exps.{kind}": halves[0], f"ffn_up_exps.{kind}": halves[1]}
    return {f"ffn_down_exps.{kind}": array}


def converted(architecture, model, config):
    """Tensors by their names in files."""
    tensors = {}
    is_own_norm = architecture in ("gemma2", "gemma3", "gpt-oss", "qwen35", "qwen35moe")
    after_attention = "post_attention_norm" if is_own_norm else "ffn_norm"
    names = {**NAMES, "post_attention_layernorm": after_attention}
    for key, weight in model.state_dict().items():
        array = weight.numpy().astype(np.float32)
        if "norm" in key and has_norms_around_0(architecture, key):
            array = array + 1
        key = key.removeprefix("model.").removeprefix("backbone.")
        if not key.startswith("layers."):
            outer = {
                "embed_tokens.weight": "token_embd.weight",
                "embeddings.weight": "token_embd.weight",
                "norm_f.weight": "output_norm.weight",
                "norm.weight": "output_norm.weight",
                "lm_head.weight": "output.weight",
            }
            if outer[key] != "output.weight" or not config.tie_word_embeddings:
                tensors[outer[key]] = array
            continue
        _, layer, part = key.split(".", 2)
        prefix = f"blk.{layer}"
        if architecture == "mamba2":
            name, array = of_scans(part, array)
            tensors[f"{prefix}.{name}"] = array
            continue
        if ".experts." in part:
            own = of_experts(architecture, part.split(".experts.")[1], array)
            tensors.update({f"{prefix}.{name}": value for name, value in own.items()})
            continue
        if part.startswith("linear_attn."):
            name, array = of_states(part.removeprefix("linear_attn."), array, config)
            tensors[f"{prefix}.{name}"] = array
            continue
        if part == "mlp.shared_expert_gate.weight":
            array = array.squeeze(0)
        if part == "self_attn.sinks":
            tensors[f"{prefix}.attn_sinks.weight"] = array
            continue
        part, kind = part.rsplit(".", 1)
        name = names[part]
        if architecture == "llama" and name in ("attn_q", "attn_k"):
            heads = config.num_attention_heads if name == "attn_q" else config.num_key_value_heads
            array = neighbours(array, heads)
        tensors[f"{prefix}.{name}.{kind}"] = array
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = llama3_divisors(config)
    if rope.get("rope_type") == "longrope":
        for kind in ("short", "long"):
            factors = np.array(rope[f"{kind}_factor"], dtype=np.float32)
            tensors[f"rope_factors_{kind}.weight"] = factors
    return tensors


def described(architecture, config, context):
    """Metadata of a file."""
    if architecture == "mamba2":
        own = {
            "block_count": config.num_hidden_layers,
            "embedding_length": config.hidden_size,
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "context_length": 256,
            "attention.layer_norm_rms_epsilon": float(config.layer_norm_epsilon),
            "ssm.conv_kernel": config.conv_kernel,
            "ssm.inner_size": config.num_heads * config.head_dim,
            "ssm.state_size": config.state_size,
            "ssm.time_step_rank": config.num_heads,
            "ssm.group_count": config.n_groups,
        }
        metadata = {"general.architecture": architecture, "general.name": "tiny"}
        metadata.update({f"{architecture}.{key}": value for key, value in own.items()})
        return metadata
    rope = config.rope_parameters
    own = {
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "intermediate_size_mlp", None)
        or getattr(config, "intermediate_size", 0),
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "context_length": context or config.max_position_embeddings,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
    }
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    if experts:
        own["expert_count"] = experts
        own["expert_used_count"] = config.num_experts_per_tok
        inner = getattr(config, "moe_intermediate_size", None)
        own["expert_feed_forward_length"] = inner or config.intermediate_size
    if getattr(config, "shared_expert_intermediate_size", None):
        own["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    if architecture.startswith("qwen35"):
        own["ssm.conv_kernel"] = config.linear_conv_kernel_dim
        own["ssm.inner_size"] = config.linear_num_value_heads * config.linear_value_head_dim
        own["ssm.state_size"] = config.linear_key_head_dim
        own["ssm.time_step_rank"] = config.linear_num_value_heads
        own["ssm.group_count"] = config.linear_num_key_heads
    if getattr(config, "sliding_window", None):
        own["attention.sliding_window"] = config.sliding_window
    if architecture == "gemma3":
        own["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    own["rope.freq_base"] = float(rope["rope_theta"])
    kind = rope.get("rope_type", "default")
    if kind in ("linear", "yarn"):
        own["rope.scaling.type"] = kind
        own["rope.scaling.factor"] = float(rope["factor"])
    if kind in ("yarn", "longrope"):
        own["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    turned = int(config.head_dim * rope.get("partial_rotary_factor", 1.0))
    own["rope.dimension_count"] = turned
    if kind == "longrope":
        original = rope["original_max_position_embeddings"]
        factor = config.max_position_embeddings / original
        own["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(factor) / math.log(original))
    if architecture == "gemma2":
        own["attn_logit_softcapping"] = float(config.attn_logit_softcapping)
        own["final_logit_softcapping"] = float(config.final_logit_softcapping)
    metadata = {"general.architecture": architecture, "general.name": "tiny"}
    metadata.update({f"{architecture}.{key}": value for key, value in own.items()})
    return metadata


def computed(binary, path, tokens):
    """Log-probabilities behind each prefix of tokens."""
    given = [str(it) for it in tokens[0].tolist()]
    done = subprocess.run([binary, path, *given], check=True, capture_output=True, text=True)
    return np.array([[float(it) for it in line.split()] for line in done.stdout.splitlines()])


def probabilities(model, tokens, is_each_alone):
    """Log-probabilities behind each prefix of tokens, as transformers computes them."""
    with torch.no_grad():
        if not is_each_alone:
            logits = model(tokens, use_cache=False).logits[0]
        else:
            # What is turned how depends on the prefix's length there.
            rows = [model(tokens[:, :length], use_cache=False) for length in range(1, TOKENS + 1)]
            logits = torch.stack([row.logits[0, -1] for row in rows])
    return torch.log_softmax(logits.double(), -1).numpy()


def compared(name, binary, seed):
    """How far the log-probabilities of a model are from those of transformers at most, of each
    form of its files; and how far they may be."""
    generator = torch.Generator().manual_seed(seed)
    architecture, model, config, extra = made(name, generator)
    tokens = torch.randint(0, config.vocab_size, (1, TOKENS), generator=generator)
    first = (extra["from"] or 1) - 1
    wanted = probabilities(model, tokens, bool(extra["from"]))

    def off(path):
        return np.abs(computed(binary, path, tokens) - wanted)[first:].max()

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tiny.gguf"
        gguf.write(
            path,
            described(architecture, config, extra["context"]),
            converted(architecture, model, config),
        )
        yield "GGUF", off(path), MOST
        for form, path in checkpoints.written(model, pathlib.Path(folder), extra["context"]):
            yield form, off(path), MOST
        if architecture == "gpt-oss":
            path = checkpoints.quantise(model, pathlib.Path(folder), generator)
            wanted = probabilities(model, tokens, False)
            yield "MXFP4", off(path), MOST_OF_BLOCKS


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("architecture", nargs="*", default=list(MODELS))
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else int(np.random.default_rng().integers(2**31))
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, seed {seed}")
    is_near = True
    for name in args.architecture:
        for form, off, most in compared(name, args.binary, seed):
            is_near &= bool(off <= most)
            print(f"{name}, {form}: {off:.2e} apart", flush=True)
    sys.exit(0 if is_near else 1)


if __name__ == "__main__":
    main()
