"""Rules by which a model or a request runs eager, each with the reason that the user reads.

A refusal is never an error: the request runs as it does without `accelerate`.
"""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import torch

from .attention import implementation_of

__all__ = ["fingerprint", "model_refusal", "request_refusal"]

# Arguments of the decode loop that a graph has an equal of.
_ARGUMENTS = {
    "attention_mask",
    "position_ids",
    "use_cache",
    "logits_to_keep",
    "cache",
    "past_key_values",
}
# Types of settings that are compared by their value.
_SCALARS = (bool, int, float, str, torch.dtype)
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def model_refusal(model: Any, device_type: str) -> str | None:
    """The reason why `model` cannot decode by graphs on a device of `device_type`, or none."""
    from transformers.generation.utils import GenerationMixin

    if not isinstance(model, torch.nn.Module) or not isinstance(model, GenerationMixin):
        return f"a {type(model).__name__} has no generate of Transformers"
    kind = type(model)
    parameters = list(model.parameters())
    if not parameters:
        return "the model has no parameters"
    tensors = parameters + list(model.buffers())
    devices = {tensor.device for tensor in tensors}
    if any(device.type == "meta" for device in devices):
        return "a weight is a meta tensor, without data"
    if len({tensor.device for tensor in parameters}) > 1:
        return "its weights are on several devices: " + ", ".join(sorted(map(str, devices)))
    device = parameters[0].device
    if device.type != device_type:
        return f"the model is on {device}, and graphs need {device_type}"
    if model.config.is_encoder_decoder:
        return "it is an encoder with a decoder"
    for name in ("_sample", "_prefill", "prepare_inputs_for_generation"):
        own = getattr(kind, name, None)
        allowed = (getattr(GenerationMixin, name, None),)
        if name in vars(model):
            return f"the model's {name} is replaced"
        if own not in allowed and not (name == "prepare_inputs_for_generation" and _is_plain(kind)):
            return f"{kind.__name__} has a {name} of its own"
    inputs = inspect.signature(model.forward).parameters
    if not {"input_ids", "position_ids"} <= inputs.keys() or not inputs.keys() & {"cache", "past_key_values"}:
        return f"{kind.__name__}.forward takes no input_ids, position_ids and cache"
    known = {"self", "input_ids", "logits_processor", "stopping_criteria", "generation_config"}
    known |= {"synced_gpus", "streamer", "model_kwargs"}
    if set(inspect.signature(GenerationMixin._sample).parameters) != known:
        return "this release of Transformers decodes in another way"
    needed = {"input_ids", "generation_config", "model_kwargs"}
    if not needed <= inspect.signature(GenerationMixin._prefill).parameters.keys():
        return "this release of Transformers prefills in another way"
    return _module_refusal(model)


def _is_plain(kind: Any) -> bool:
    """Whether a class's own `prepare_inputs_for_generation` adds nothing in a decode step."""
    return kind.__module__ in (
        "transformers.models.phi3.modeling_phi3",
        "transformers.models.gemma3.modeling_gemma3",
    ) and kind.__name__ in ("Phi3ForCausalLM", "Gemma3ForCausalLM")


def _module_refusal(model: Any) -> str | None:
    if getattr(model, "_compiled_call_impl", None) is not None or hasattr(model, "_orig_mod"):
        return "it is under torch.compile"
    if torch.nn.modules.module._has_any_global_hook():
        return "there are hooks for all modules"
    implementation = implementation_of(model.config.get_text_config(decoder=True))
    if implementation not in ("sdpa", "eager"):
        return f'its attention is "{implementation}"; graphs know "sdpa" and "eager"'
    for name, module in model.named_modules():
        where = f"module {name or type(module).__name__}"
        if module.training:
            return f"{where} is in training mode"
        if any(getattr(module, kind, None) for kind in _HOOKS) or not _is_idle(module):
            return f"{where} has hooks"
        if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod"):
            return f"{where} is under torch.compile"
        rope = getattr(module, "rope_type", None)
        for kind in rope.values() if isinstance(rope, dict) else (rope,):
            if isinstance(kind, str) and (kind == "longrope" or "dynamic" in kind):
                return f'{where} changes its frequencies with the length ("{kind}")'
    return None


def _is_idle(module: Any) -> bool:
    """Whether a module has no hook of Accelerate, or one that moves nothing: models that are
    quantised as they are loaded have hooks that name the device where everything is."""
    hook = getattr(module, "_hf_hook", None)
    hooks = getattr(hook, "hooks", (hook,))
    return all(
        one is None
        or (type(one).__name__ == "AlignDevicesHook" and not one.offload and not one.weights_map)
        for one in hooks
    )


def request_refusal(
    model: Any, arguments: dict[str, Any], config: Any, *, synced: bool
) -> str | None:
    """The reason why this call of the decode loop runs eager, or none. `arguments`: those for the
    model; `config`: the call's generation settings."""
    if synced:
        return "generation is synchronised between GPUs"
    if torch.is_grad_enabled():
        return "gradients are recorded"
    if torch._C._len_torch_dispatch_stack() > 0:
        return "a dispatch mode observes each operation"
    if torch.is_autocast_enabled(model.device.type):
        return "autocast is on, and its copies of weights end with its block"
    if not arguments.get("use_cache"):
        return "it is without a cache"
    unknown = sorted(
        name for name, value in arguments.items() if name not in _ARGUMENTS and value is not None
    )
    if unknown:
        return "it has the argument " + ", ".join(unknown)
    if config.output_attentions or config.output_hidden_states:
        return "attentions or hidden states are asked for"
    if getattr(config, "is_assistant", False):
        return "the model is the assistant of another"
    positions = arguments.get("position_ids")
    if positions is not None and positions.dim() != 2:
        return f"positions have {positions.dim()} dimensions"
    return None


def fingerprint(model: Any) -> tuple[Any, ...]:
    """Identity of what graphs have taken in: the address of each weight, buffer and quantisation
    state; the modules, their classes and forward functions; the settings that modules and configs
    have as numbers and names (scales, bounds, adapters). Changes of weights in place leave it equal,
    as graphs read the weights where they lie. Weak references stand for objects: those of an object
    that is gone equal no other's."""
    parts: list[Any] = []
    configs: dict[int, Any] = {}
    for module in model.modules():
        kind = type(module)
        parts += [weakref.ref(module), kind, kind.forward]
        settings = module.__dict__
        own = settings.get("forward")
        if own is not None:
            parts.append(_reference(own))
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                parts.append((tensor.data_ptr(), tensor.dtype, tensor.shape))
                state = getattr(tensor, "quant_state", None)
                if state is not None:
                    parts.extend(_addresses(state))
        parts += [value for value in settings.values() if type(value) in _SCALARS]
        if "_disable_adapters" in settings or "_active_adapter" in settings:
            parts += [str(settings.get(name)) for name in ("_active_adapter", "merged_adapters", "scaling")]
        config = settings.get("config")
        if config is not None:
            configs[id(config)] = config
    for config in configs.values():
        parts += [weakref.ref(config), implementation_of(config)]
        parts += [
            (name, value)
            for name, value in vars(config).items()
            if type(value) in _SCALARS and name != "_attn_implementation_internal"
        ]
    return tuple(parts)


def _reference(function: Any) -> Any:
    """What equals for this function alone, without keeping it."""
    try:
        return weakref.ref(function)
    except TypeError:
        return id(function)


def _addresses(state: Any) -> list[Any]:
    """Addresses of the tensors of a quantisation state, nested states included."""
    found: list[Any] = [id(state)]
    for value in getattr(state, "__dict__", {}).values():
        if isinstance(value, torch.Tensor):
            found.append(value.data_ptr())
        elif type(value) is type(state):
            found.extend(_addresses(value))
    return found
