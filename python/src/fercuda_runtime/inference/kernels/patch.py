"""Patches of models of Transformers: kernels in the place of modules' `forward`, and back.

A module is replaced only if the source of its class's `forward`, and of what that calls, is of a
form in `fingerprint.KNOWN`; otherwise it is left, and the report says so. Where Transformers has a
seam for the package `kernels` (a class with `kernel_layer_name`, if that package is installed), the
replacement of a module without others inside goes through it, otherwise into the module itself;
classes are never changed. The rotary embedding is a function of the process: its replacement
computes the same for every model, and is withdrawn with the last patched model of its family.
Linear layers of attention are replaced one by one, and attention itself calls its class's `forward`
in any case: both need no form of a source.

Invariant: what is in place is found by looking at the modules, so a copied model can be unpatched.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import types
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from ...errors import ConfigError
from . import dispatch, forwards, norm, products, rotary
from .fingerprint import is_known
from .report import PatchReport, PatchRow

FAMILIES = (
    "llama", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe",
    "gemma", "gemma2", "gemma3", "phi", "phi3",
)  # fmt: skip
_QWEN35 = ("qwen3_5", "qwen3_5_moe")
# A replacement and its name in reports, or None and why a module is left.
Choice = tuple[type[torch.nn.Module] | None, str]


def patch(model: torch.nn.Module) -> PatchReport:
    """Puts fused kernels into a model of Transformers: Llama, Mistral, Qwen2, Qwen3, Qwen3.5 (each
    with experts or without), Gemma, Gemma 2 and 3, Phi, Phi 3; and reports what was replaced, what
    was left, and why. Parameters, hooks and results stay as they are but for rounding.

    Patched modules check each call: on the CPU, under `torch.compile`, or with tensors that no
    kernel fits, they are computed as before. Gradients are those of the kernels' backward passes.
    A module with another `forward` of its own, or of a version of Transformers with another source,
    is left. It may be called again, for instance after `model.to("cuda")`.

    Raises `ConfigError` for what is not a module, or was compiled by `torch.compile`.
    """
    return _patch(model, FAMILIES)


def patch_qwen35_with_triton(model: torch.nn.Module) -> PatchReport:
    """`patch`, for Qwen3.5 alone: norms, SiLU of the MLPs, rotary embedding, decode steps of gated
    DeltaNet, and products of few rows.

    Raises `ConfigError` as `patch`, and if the model has no module of Qwen3.5.
    """
    _check(model)
    if not any(_family(type(it)) in _QWEN35 for it in model.modules()):
        raise ConfigError(
            f"{type(model).__name__} has no module of Qwen3.5\ntry: patch(model), for any family that is known"
        )
    return _patch(model, _QWEN35)


def unpatch(model: torch.nn.Module) -> int:
    """Restores what `patch` replaced in this model, and returns how many modules that were."""
    _check(model)
    count = 0
    for module in model.modules():
        for place in ("forward", "_old_forward"):
            method = vars(module).get(place)
            if _is_ours(method):
                count += 1
                if place == "forward":
                    del module.forward
                else:
                    # Where Accelerate keeps what its hooks call.
                    module._old_forward = types.MethodType(type(module).forward, module)
    with _LOCK:
        for rotation in _ROTATIONS.values():
            rotation.users.discard(model)
    _withdraw_unused()
    return count


def _check(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"the model is a {type(model)}\ntry: a torch.nn.Module, such as from_pretrained(...) returns")
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        raise ConfigError(
            f"{type(model).__name__} is compiled by torch.compile, which fuses by itself\n"
            "try: the model before torch.compile"
        )


def _family(kind: type) -> str | None:
    """The family of a class of Transformers, if it is one of those known here."""
    parts = kind.__module__.split(".")
    is_ours = len(parts) == 4 and parts[:2] == ["transformers", "models"] and parts[2] in FAMILIES
    return parts[2] if is_ours else None


def _patch(model: torch.nn.Module, families: Sequence[str]) -> PatchReport:
    _check(model)
    rows: dict[tuple[str, str | None, str, str], int] = {}
    reason, notes = _device_notes(model)
    sources: dict[str, int] = {}
    for module in model.modules():
        kind, name = type(module), type(module).__name__
        if (_family(kind) or "") not in families:
            if name.endswith(("RMSNorm", "RMSNormGated")):
                other = (name, None, "", "not of a family that is known")
                rows[other] = rows.get(other, 0) + 1
            continue
        if name.endswith("Attention") and hasattr(sys.modules[kind.__module__], "apply_rotary_pos_emb"):
            sources[kind.__module__] = sources.get(kind.__module__, 0) + 1
        for named, choice in [(module, _choice(module)), *_layers(module)]:
            if choice is not None:
                key = (type(named).__name__, *_outcome(named, choice, reason))
                rows[key] = rows.get(key, 0) + 1
    for source, count in sources.items():
        became, seam, note = (None, "", reason) if reason else _rotation(model, source)
        rows[(f"{source.split('.')[2]}.apply_rotary_pos_emb", became, seam, note)] = count
    if not rows:
        notes.append(f"{type(model).__name__} has no module that is known")
    found = [PatchRow(name, count, became, seam, note) for (name, became, seam, note), count in rows.items()]
    return PatchReport(_version(), tuple(sorted(found, key=lambda it: (it.became is None, it.name))), tuple(notes))


def _version() -> str:
    return str(getattr(sys.modules.get("transformers"), "__version__", "(not imported)"))


def _device_notes(model: torch.nn.Module) -> tuple[str, list[str]]:
    """Why no kernel can run on the model's GPUs, or "", and what to know about its devices."""
    devices = {it.device for it in model.parameters()} | {it.device for it in model.buffers()}
    others = sorted({it.type for it in devices} - {"cuda"})
    notes = [f"what is on {' and '.join(others)} is computed by PyTorch"] if others else []
    for device in sorted((it for it in devices if it.type == "cuda"), key=str):
        if not dispatch.is_supported(device):
            return f"{device} is not of NVIDIA's compute capability 8.0 or more", notes
        failure = _failure(device)
        if failure:
            return failure, notes
    return "", notes


@functools.cache
def _failure(device: torch.device) -> str:
    """Why Triton cannot launch on this device, if so: it may lack a C compiler."""
    try:
        with torch.no_grad():
            norm.fused_rms_norm(torch.ones(1, 16, device=device), torch.ones(16, device=device))
    except Exception as error:
        return f"Triton cannot launch on {device}: {type(error).__name__}: {str(error).splitlines()[0:1]}"
    return ""


def _outcome(module: torch.nn.Module, choice: Choice, reason: str) -> tuple[str | None, str, str]:
    """Replaces the module's `forward`: the kernel, the seam and a note."""
    replacement, text = choice
    if replacement is None or reason:
        return None, "", text if replacement is None else reason
    own = vars(module).get("forward")
    place = "forward"
    if own is not None and "_hf_hook" in vars(module) and "_old_forward" in vars(module):
        own, place = vars(module)["_old_forward"], "_old_forward"
    if _is_ours(own):
        return text, "class" if place == "forward" else "class, inside of Accelerate's hook", "patched before"
    is_plain = own is None or (isinstance(own, types.MethodType) and own.__func__ is type(module).forward)
    if not is_plain:
        return None, "", "its forward is replaced already"
    if getattr(module, "_compiled_call_impl", None) is not None:
        return None, "", "compiled by torch.compile"
    layer = getattr(type(module), "kernel_layer_name", None)
    if place == "forward" and isinstance(layer, str) and _through_seam(module, layer, replacement):
        return text, f"kernels {layer}", ""
    setattr(module, place, types.MethodType(replacement.forward, module))
    return text, "class" if place == "forward" else "class, inside of Accelerate's hook", ""


def _is_ours(method: Any) -> bool:
    return isinstance(method, types.MethodType) and method.__func__ in forwards.FUNCTIONS


_UNKNOWN = "its source is not one that is known: another version of Transformers, or changed"


def _choice(module: torch.nn.Module) -> Choice | None:
    """The replacement of a module of a known family; None if it is of no kind that has one."""
    kind = type(module)
    name = kind.__name__
    if "Vision" in name:
        return None
    if name.endswith("RMSNormGated"):
        if is_known("gated norm", kind.forward) and getattr(module, "activation", "silu") == "silu":
            return forwards.GatedNorm, "fused_rms_norm, gated"
        return None, _UNKNOWN
    if name.endswith("RMSNorm"):
        if is_known("norm", kind.forward):
            return forwards.Norm, "fused_rms_norm"
        if is_known("norm of 1 + weight", kind.forward) and is_known("_norm", getattr(kind, "_norm", None)):
            return forwards.NormPlusOne, "fused_rms_norm, 1 + weight"
        return None, _UNKNOWN
    if name.endswith("MLP"):
        return _mlp(module)
    if name.endswith("GatedDeltaNet"):
        return _delta(kind)
    if name.endswith("Attention"):
        return _attention(module)
    if name.endswith("DecoderLayer"):
        return _layer(kind)
    if name.endswith("Experts"):
        return None, "experts have kernels of Transformers (experts_implementation)"
    return None


def _layer(kind: Any) -> Choice | None:
    """Sums of a decoder layer with what is beside them, for forms of two norms and one MLP."""
    for form, replacement in (
        ("layer", forwards.Layer),
        ("hybrid layer with cache", forwards.HybridLayer),
        ("hybrid layer with past_key_values", forwards.HybridLayerWithParams),
    ):
        if is_known(form, kind.forward):
            return replacement, "fused_rms_norm and fused_linear_add"
    return None


def _attention(module: torch.nn.Module) -> Choice | None:
    """One launch for query, key and value. The class's `forward` is called in any case, and takes
    the parts if it calls each projection with its own argument: any form of it is right."""
    layers = [getattr(module, it, None) for it in products.PROJECTIONS]
    if not all(isinstance(it, torch.nn.Module) for it in layers):
        return None
    if not all(type(it) is torch.nn.Linear for it in layers):
        return None, "its projections are not plain linear layers"
    return products.Attention, "fused_linear"


def _layers(module: torch.nn.Module) -> list[tuple[torch.nn.Module, Choice | None]]:
    """The linear layers that an attention module calls, with their replacement."""
    name = type(module).__name__
    if not name.endswith("Attention") or "Vision" in name:
        return []
    called = (getattr(module, it, None) for it in (*products.PROJECTIONS, "qkv_proj", "o_proj", "dense"))
    return [(it, (products.Linear, "fused_linear")) for it in called if type(it) is torch.nn.Linear]


def _mlp(module: Any) -> Choice:
    kind = type(module)
    if is_known("plain mlp", kind.forward):
        return None, "it has no gate"
    is_packed = is_known("packed mlp", kind.forward)
    if not is_packed and not is_known("mlp", kind.forward):
        return None, _UNKNOWN
    act = module.activation_fn if is_packed else module.act_fn
    if forwards.has_hooks(act):
        return None, "its activation has hooks"
    activations = importlib.import_module("transformers.activations")
    if type(act) in (torch.nn.SiLU, getattr(activations, "SiLUActivation", None)):
        return (forwards.PackedSiluMlp if is_packed else forwards.SiluMlp), "fused_silu_mul, fused_gate_up"
    inner = getattr(act, "act", None)
    is_tanh = (
        type(act) is getattr(activations, "GELUTanh", None)
        and isinstance(inner, functools.partial)
        and inner.func is torch.nn.functional.gelu
        and inner.keywords == {"approximate": "tanh"}
    )
    if is_tanh and not is_packed:
        return forwards.GeluMlp, "fused_gelu_mul, fused_gate_up"
    return None, f"its activation is {type(act).__name__}"


def _delta(kind: Any) -> Choice:
    source = sys.modules[kind.__module__]
    called = ("causal_conv1d_update", "torch_recurrent_gated_delta_rule", "l2norm")
    if not all(is_known(it, getattr(source, it, None)) for it in called):
        return None, _UNKNOWN
    caches = importlib.import_module("transformers.cache_utils")
    kept = getattr(getattr(caches, "LinearAttentionLayer", None), "update_recurrent_state", None)
    if not is_known("update_recurrent_state", kept):
        return None, _UNKNOWN
    for form, replacement in (
        ("delta with cache", forwards.Delta),
        ("delta with cache_params", forwards.DeltaWithParams),
    ):
        if is_known(form, kind.forward):
            return replacement, "fused_conv_update, fused_gated_delta_step, fused_linear"
    return None, _UNKNOWN


class _Repository:
    """A layer of this package, as the package `kernels` looks it up."""

    def __init__(self, layer_name: str, layer: type[torch.nn.Module]) -> None:
        self.layer_name, self._layer = layer_name, layer

    def load(self) -> type[torch.nn.Module]:
        return self._layer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Repository) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return f"fercuda_runtime, layer {self._layer.__name__}"

    def _key(self) -> tuple[str, type[torch.nn.Module]]:
        return self.layer_name, self._layer


def _through_seam(module: torch.nn.Module, layer: str, replacement: type[torch.nn.Module]) -> bool:
    """Replaces the module's `forward` by the package `kernels`, if that takes the replacement."""
    if next(module.children(), None) is not None or "_kernel_funcs" in vars(module):
        # It would go through what is inside as well.
        return False
    try:
        kernels = importlib.import_module("kernels")
        # Of the machine, not of the module: the replacement looks at the tensors of each call.
        device = "cuda" if torch.cuda.is_available() else "cpu"
        mapping = {layer: {device: _Repository(layer, replacement)}}
        mode = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
        with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
            kernels.kernelize(module, mode=mode, device=device, use_fallback=False)
    except Exception:
        # Another version of the package, or another signature: by class.
        vars(module).pop("forward", None)
    return _is_ours(vars(module).get("forward"))


class _Rotation:
    """A family's function of the process, and the models that have it replaced.

    With the package `kernels` it is a module, of which the `forward` is replaced.
    """

    def __init__(self, source: str, original: Any) -> None:
        self.source, self.original = source, original
        self.users: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.seam = "function"
        self.replacement = original
        if isinstance(original, torch.nn.Module):
            layer = getattr(type(original), "kernel_layer_name", "")
            self.seam = f"kernels {layer}"
            if not _through_seam(original, layer, forwards.Rotary):
                self.seam = "function"
                original.forward = types.MethodType(forwards.Rotary.forward, original)
            return

        @functools.wraps(original)
        def apply_rotary_pos_emb(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
            pair = rotary.attempt(q, k, cos, sin, unsqueeze_dim)
            return original(q, k, cos, sin, unsqueeze_dim) if pair is None else pair

        self.replacement = apply_rotary_pos_emb
        setattr(sys.modules[source], "apply_rotary_pos_emb", apply_rotary_pos_emb)

    def is_in_place(self) -> bool:
        """Whether no other library has replaced it since."""
        module = sys.modules.get(self.source)
        if getattr(module, "apply_rotary_pos_emb", None) is not self.replacement:
            return False
        return self.replacement is not self.original or _is_ours(vars(self.original).get("forward"))

    def withdraw(self) -> None:
        """Restores the original, if the replacement is in place."""
        if not self.is_in_place():
            return
        if self.replacement is self.original:
            del self.original.forward
        else:
            setattr(sys.modules[self.source], "apply_rotary_pos_emb", self.original)


_ROTATIONS: dict[str, _Rotation] = {}
_LOCK = threading.RLock()


def _rotation(model: torch.nn.Module, source: str) -> tuple[str | None, str, str]:
    """Replaces a family's rotary embedding: the kernel or None, the seam, and a note."""
    module: Any = sys.modules[source]
    with _LOCK:
        current, known = module.apply_rotary_pos_emb, _ROTATIONS.get(source)
        if known is None or not known.is_in_place():
            if not is_known("rotary", current) or not is_known("rotate_half", getattr(module, "rotate_half", None)):
                return None, "", _UNKNOWN
            known = _ROTATIONS[source] = _Rotation(source, current)
        known.users.add(model)
    weakref.finalize(model, _withdraw_unused).atexit = False
    return "fused_rotary_emb", known.seam, "of the process, for each model of the family"


def _withdraw_unused() -> None:
    with _LOCK:
        for source, rotation in list(_ROTATIONS.items()):
            if not any(True for _ in rotation.users):
                rotation.withdraw()
                del _ROTATIONS[source]
