"""Checkpoints of tiny models, in each form that models of their type have in files."""

import json
import re

import torch
from safetensors.torch import load_file, save_file

# Experts, and the names of their matrices: of gates, of what they are multiplied with, of results.
EXPERTS = re.compile(r"(.*)\.(block_sparse_moe|mlp)\.experts\.(\d+)\.(\w+)\.weight")
GATES, UPS = ("gate_proj", "w1"), ("up_proj", "w3")

# Names of types of models for images of which the text model is a part, and what names of tensors
# begin with there.
PARTS = {
    "gemma3_text": ("gemma3", ("language_model.model.", "model.language_model.")),
    "llama4_text": ("llama4", ("language_model.model.",)),
    "qwen3_5_text": ("qwen3_5", ("model.language_model.",)),
    "qwen3_5_moe_text": ("qwen3_5_moe", ("model.language_model.",)),
}


def _write(folder, name, tensors, config):
    path = folder / name.replace(" ", "-")
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return name, path


def _stacked(tensors):
    """One tensor of all experts, gates before the others, as newer programs may write them."""
    out, experts = {}, {}
    for name, tensor in tensors.items():
        found = EXPERTS.fullmatch(name)
        if not found:
            out[name.replace("block_sparse_moe", "mlp")] = tensor
            continue
        layer, _, number, part = found.groups()
        experts.setdefault(layer, {}).setdefault(int(number), {})[part] = tensor
    for layer, all_own in experts.items():
        both, down = [], []
        for _, own in sorted(all_own.items()):
            gate = next(own.pop(part) for part in GATES if part in own)
            up = next(own.pop(part) for part in UPS if part in own)
            both.append(torch.cat([gate, up]))
            down.extend(own.values())
        out[f"{layer}.mlp.experts.gate_up_proj"] = torch.stack(both)
        out[f"{layer}.mlp.experts.down_proj"] = torch.stack(down)
    return out


def _separate(tensors):
    """A tensor of each expert, where a tensor of all has columns of gates before the others."""
    out = {}
    for name, tensor in tensors.items():
        place, _, end = name.rpartition(".")
        if end == "gate_up_proj":
            for number, both in enumerate(tensor.transpose(1, 2)):
                for part, own in zip(("gate_proj", "up_proj"), both.chunk(2)):
                    out[f"{place}.{number}.{part}.weight"] = own.contiguous()
        elif end == "down_proj":
            for number, own in enumerate(tensor.transpose(1, 2)):
                out[f"{place}.{number}.down_proj.weight"] = own.contiguous()
        else:
            out[name] = tensor
    return out


def _older(config):
    """A configuration with the keys that transformers 4 wrote."""
    config = dict(config)
    rope = config.pop("rope_parameters", None)
    if rope is None:
        return config
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    rope = dict(rope)
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {**rope, "type": kind}
    config.pop("layer_types", None)
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    if "num_local_experts" in config and config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    return config


def written(model, folder, context):
    """Names and folders of a model's checkpoints."""
    own = folder / "saved"
    model.save_pretrained(own)
    path = own / "config.json"
    # As transformers reads it, with a number that is none in JSON.
    config = json.loads(path.read_text())
    if context:
        # The engine takes the context from here, and the factor from that of the model.
        rope = config["rope_parameters"]
        original = rope["original_max_position_embeddings"]
        rope["factor"] = config["max_position_embeddings"] / original
        config["max_position_embeddings"] = context
        path.write_text(json.dumps(config))
    yield "saved", own
    tensors = load_file(own / "model.safetensors")
    older = _older(config)
    if config["model_type"] == "mamba2":
        # Python's writer makes a word of it that JSON does not have.
        older["time_step_limit"] = [0.0, float("inf")]
    yield _write(folder, "older keys", tensors, older)
    if any(EXPERTS.fullmatch(name) for name in tensors):
        tensors = _stacked(tensors)
        yield _write(folder, "stacked experts", tensors, config)
    elif config["model_type"] == "llama4_text":
        yield _write(folder, "separate experts", _separate(tensors), config)
    whole, prefixes = PARTS.get(config["model_type"], (None, ()))
    for number, prefix in enumerate(prefixes):
        head = "language_model." if prefix.startswith("language_model.") else ""
        renamed = {
            name.replace("model.", prefix, 1)
            if name.startswith("model.")
            else f"{head}{name}": tensor
            for name, tensor in tensors.items()
        }
        as_part = {
            "model_type": whole,
            "text_config": older,
            "vision_config": {},
            "tie_word_embeddings": config["tie_word_embeddings"],
        }
        yield _write(folder, f"part of images {number}", renamed, as_part)


def quantise(model, folder, generator):
    """Replaces weights of gpt-oss's experts by random MXFP4 ones; a checkpoint that has them."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    own = folder / "saved"
    tensors = load_file(own / "model.safetensors")
    config = json.loads((own / "config.json").read_text())
    parameters = dict(model.named_parameters())
    # All are chosen, as rounding of activations may change the choice.
    config["num_experts_per_tok"] = config["num_local_experts"]
    for layer in model.model.layers:
        layer.mlp.router.top_k = config["num_local_experts"]
    for name in [it for it in tensors if it.endswith(("gate_up_proj", "down_proj"))]:
        # Inputs are in front of outputs there.
        count, inputs, outputs = tensors.pop(name).shape
        shape = (count, outputs, inputs // 32)
        codes = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(121, 124, shape, generator=generator, dtype=torch.uint8)
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = codes, scales
        with torch.no_grad():
            values = convert_moe_packed_tensors(codes, scales, dtype=torch.float32)
            parameters[name].copy_(values)
    config["quantization_config"] = {"quant_method": "mxfp4"}
    return _write(folder, "mxfp4", tensors, config)[1]
