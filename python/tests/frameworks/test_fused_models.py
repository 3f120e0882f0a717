"""Fused kernels and patches against PyTorch on the CPU, with models of Transformers.

Without a GPU the kernels run on the software device: the fixture `launches` gives the wrappers a
launcher that compiles for sm_80, copies CPU tensors to a session's buffers, launches, and copies
what changed back. So wrappers, backward passes and patched models are those of a GPU. Needed are
torch, triton and transformers; `python3 -m pytest tests/frameworks/test_fused_models.py`.
"""

import contextlib
import copy
import gc
import pickle
import subprocess
import sys
import types

import pytest
import torch
import transformers
import triton
from conftest import array_of
from torch.nn import functional
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fercuda_runtime import errors
from fercuda_runtime.guest_hooks import load_triton
from fercuda_runtime.inference import kernels, triton_kernels
from fercuda_runtime.inference.kernels import dispatch, fingerprint, products
from fercuda_runtime.inference.kernels import patch as patching_function
from fercuda_runtime.inference.triton_kernels import activation, delta, linear, norm, rotary

POINTERS = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}
COMPILED = {}


class Launcher:
    """Takes the place of a kernel in `kernel[grid](...)`, for tensors of the CPU."""

    def __init__(self, kernel, session, launches):
        self.kernel, self.session, self.launches = kernel, session, launches

    def __getitem__(self, grid):
        return lambda *given, **named: self.launch(grid, given, named)

    def launch(self, grid, given, named):
        options = {name: named.pop(name) for name in ("num_warps", "enable_fp_fusion") if name in named}
        names = self.kernel.arg_names
        arguments = dict(zip(names, given, strict=False)) | named
        assert list(arguments) == names
        signature, constants, attributes, values = {}, {}, {}, []
        for at, (name, value) in enumerate(arguments.items()):
            if name in named or value is None or (type(value) is int and value == 1):
                signature[name], constants[(at,)] = "constexpr", value
                continue
            values.append(value)
            if isinstance(value, torch.Tensor):
                signature[name], divisor = POINTERS[value.dtype], value.data_ptr()
            else:
                signature[name], divisor = ("fp32", 1) if isinstance(value, float) else ("i32", value)
            if divisor % 16 == 0:
                attributes[(at,)] = [["tt.divisibility", 16]]
        key = (self.kernel.__name__, str(signature), str(constants), str(attributes), str(options))
        if key not in COMPILED:
            source = ASTSource(self.kernel, signature, constants, attributes)
            COMPILED[key] = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options)
        self.launches.append(self.kernel.__name__)
        # Each tensor with what is behind it in its storage: strides may go anywhere.
        memory = []
        for at, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                value = value.detach()
                offset = value.storage_offset()
                length = value.untyped_storage().nbytes() // value.element_size() - offset
                # An array: what is written by it is not a change in place for PyTorch, as on a GPU.
                flat = value.as_strided((length,), (1,), offset).view(torch.uint8).numpy()
                buffer = self.session.alloc(flat.shape, "u8")
                buffer.upload(flat)
                memory.append((flat, flat.copy(), buffer))
                values[at] = buffer
        load_triton(self.session, COMPILED[key]).launch(self.session, tuple(grid), values)
        for flat, before, buffer in memory:
            after = array_of(buffer)
            changed = after != before
            flat[changed] = after[changed]


@pytest.fixture
def launches(monkeypatch, session):
    """Runs the kernels on a session of the software device; the list of their names."""
    assert session.is_software, "on a GPU the kernels are held against f64 by tests/gpu/hf_kernels.py"
    names = []
    for module, kinds in [
        (norm, ("rms_norm_forward", "rms_norm_backward")),
        (activation, ("gated_forward", "gated_backward")),
        (rotary, ("rotary",)),
        (linear, ("linear_rows", "gate_up_rows")),
        (delta, ("conv_update", "gated_delta_step")),
    ]:
        for name in kinds:
            monkeypatch.setattr(module, name, Launcher(getattr(module, name), session, names))
    monkeypatch.setattr(dispatch, "is_supported", lambda device: device.type == "cpu")
    monkeypatch.setattr(dispatch, "on_device", lambda tensor: contextlib.nullcontext())
    monkeypatch.setattr(dispatch, "count_processors", lambda device: 1)
    monkeypatch.setattr(dispatch, "early_options", lambda device: {"IS_EARLY": False})
    return names


BASE = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR = {
    "head_dim": 32, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
# A configuration, and how many modules and functions are patched and left.
MODELS = {
    "llama": ("LlamaConfig", {}, 20, 0),
    "mistral": ("MistralConfig", {}, 20, 0),
    "qwen2": ("Qwen2Config", {}, 20, 0),
    "qwen2_moe": ("Qwen2MoeConfig", {**EXPERTS, "shared_expert_intermediate_size": 48}, 20, 2),
    "qwen3": ("Qwen3Config", {"head_dim": 16}, 24, 0),
    "qwen3_moe": ("Qwen3MoeConfig", {"head_dim": 16, "mlp_only_layers": [1], **EXPERTS}, 23, 1),
    "qwen3_5": ("Qwen3_5TextConfig", LINEAR, 31, 0),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 32}, 27, 4),
    "gemma": ("GemmaConfig", {"head_dim": 16}, 20, 0),
    "gemma2": ("Gemma2Config", {"head_dim": 16}, 22, 0),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16}, 26, 0),
    "phi": ("PhiConfig", {}, 11, 2),
    "phi3": ("Phi3Config", {}, 12, 0),
}


def model_of(name, dtype=torch.float32):
    kind, more, *_ = MODELS[name]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**{**BASE, **more}))
    with torch.no_grad():
        # Norms begin as the identity: nothing would be seen of their weights.
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return model.to(dtype).eval()


def tokens_of(rng, batch=2, count=6):
    return torch.from_numpy(rng.integers(3, 96, (batch, count)))


@torch.no_grad()
def answers(model, ids, count=4):
    """Logits of a prompt, and tokens and logits of greedy decoding."""
    new = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    return [model(ids).logits, new.sequences, *new.logits]


def is_same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_a_patched_model_on_the_cpu_is_the_unpatched_one_and_is_restored(rng, name):
    model, ids = model_of(name), tokens_of(rng)
    before = answers(model, ids)
    source = __import__(type(model).__module__, fromlist=["x"])
    function = source.apply_rotary_pos_emb
    report = kernels.patch(model)
    assert (report.patched, report.left) == MODELS[name][2:], str(report)
    assert any("cpu" in note for note in report.notes) and transformers.__version__ in str(report)
    assert all(row.note for row in report.rows if not row.became)
    assert is_same(before, answers(model, ids))
    again = kernels.patch(model)
    assert (again.patched, again.left) == (report.patched, report.left)
    twin = copy.deepcopy(model)
    assert kernels.unpatch(model) == report.patched - 1
    assert source.apply_rotary_pos_emb is function
    assert not any("forward" in vars(it) for it in model.modules())
    assert any("forward" in vars(it) for it in twin.modules())
    assert is_same(before, answers(model, ids)) and kernels.unpatch(model) == 0
    kernels.unpatch(twin)
    assert source.apply_rotary_pos_emb is function
    assert is_same(before, answers(twin, ids))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_patched_with_kernels_has_the_logits_of_eager_execution(rng, launches, name):
    model, ids = model_of(name), tokens_of(rng)
    before = answers(model, ids)
    kernels.patch(model)
    after = answers(model, ids)
    kernels.unpatch(model)
    expected = {"rotary", "linear_rows"}
    if name != "phi":
        # The prompt's rows are too many for products of few, and have the activation alone.
        expected |= {"rms_norm_forward", "gated_forward", "gate_up_rows"}
    if name.startswith("qwen3_5"):
        expected |= {"conv_update", "gated_delta_step"}
    assert set(launches) == expected
    if name.startswith("qwen3_5"):
        # Three tokens after the prompt's, in three layers.
        assert launches.count("conv_update") == launches.count("gated_delta_step") == 9
    # Both round in f32: a token may differ only where two logits are as near.
    for old, new in zip([before[0], *before[2:]], [after[0], *after[2:]], strict=True):
        assert (old - new).abs().max() <= 2e-5 * old.abs().max()
    gaps = torch.stack(before[2:]).topk(2).values
    if (gaps[..., 0] - gaps[..., 1]).min() > 1e-4:
        assert torch.equal(before[1], after[1])


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3_5", "phi3"])
def test_gradients_of_a_patched_model_are_those_of_eager_execution(rng, launches, name):
    model, ids = model_of(name).train(), tokens_of(rng)

    def gradients():
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        return {at: it.grad.clone() for at, it in model.named_parameters() if it.grad is not None}

    before = gradients()
    kernels.patch(model)
    after = gradients()
    kernels.unpatch(model)
    assert {"rms_norm_backward", "gated_backward", "rotary"} <= set(launches)
    assert not {"conv_update", "gated_delta_step"} & set(launches)
    assert before.keys() == after.keys()
    for at, expected in before.items():
        assert (expected - after[at]).abs().max() <= 1e-4 * expected.abs().max() + 1e-8, at


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["plain", "transposed", "chunk", "step", "column"])
def test_wrappers_take_any_layout_and_give_that_of_eager_execution(rng, launches, dtype, layout):
    torch.manual_seed(int(rng.integers(2**31)))

    def tensor():
        x = torch.randn(2, 6, 10, 64).to(dtype)
        return {
            "plain": x[:, :3, :5, :32].contiguous(),
            "transposed": x[:, :5, :3, :32].contiguous().transpose(1, 2),
            "chunk": x[:, :3, :5].chunk(2, dim=-1)[1],
            "step": x[:, ::2, ::2, ::2],
            "column": x[:, :3, :5, :32].transpose(2, 3).contiguous().transpose(2, 3),
        }[layout].detach().requires_grad_()

    x, gate, residual, up = (tensor() for _ in range(4))
    weight = torch.randn(32).to(dtype).requires_grad_()
    cos, sin = (torch.randn(2, 5, 16).to(dtype) for _ in range(2))
    grids = [torch.randn(3, 1, 5, 16).to(dtype) for _ in range(2)]
    jobs = [
        lambda: kernels.fused_rms_norm(x, weight),
        lambda: kernels.fused_rms_norm(x, weight, 1e-5, plus_one=True),
        lambda: kernels.fused_rms_norm(x, weight, gate=gate),
        lambda: kernels.fused_rms_norm(x, weight, residual=residual),
        lambda: kernels.fused_rms_norm(x, weight, gate=gate, residual=residual, plus_one=True),
        lambda: kernels.fused_silu_mul(gate, up),
        lambda: kernels.fused_gelu_mul(gate, up),
        lambda: kernels.fused_rotary_emb(x, up, cos, sin),
        lambda: kernels.fused_rotary_emb(x, up, *grids, sections=(3, 3, 2)),
    ]
    inputs = [x, gate, residual, up, weight]

    def results(job):
        outputs = job()
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        torch.manual_seed(1)
        total = sum((it.float() * torch.randn(it.shape)).sum() for it in outputs)
        return outputs, torch.autograd.grad(total, inputs, allow_unused=True)

    # The last place of values up to about 8, and of sums of them in gradients.
    near = {torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1.6e-1}[dtype]
    for job in jobs:
        count = len(launches)
        fused, fused_grads = results(job)
        # Rows with gaps between elements, of a norm alone, are PyTorch's.
        is_eager = layout in ("step", "column") and "norm" in str(job.__code__.co_names)
        assert len(launches) == count + (0 if is_eager else 2)
        with torch.no_grad():
            quiet = job()
        quiet = quiet if isinstance(quiet, tuple) else (quiet,)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(dispatch, "is_supported", lambda device: False)
            eager, eager_grads = results(job)
        for ours, silent, theirs in zip(fused, quiet, eager, strict=True):
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            assert torch.equal(ours, silent) and ours.stride() == silent.stride()
            assert (ours.float() - theirs.float()).abs().max() <= near * max(1, theirs.abs().max())
        for ours, theirs in zip(fused_grads, eager_grads, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                assert (ours.float() - theirs.float()).abs().max() <= near * max(1, theirs.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 200), (2, 2, 72), (3, 256)])
@pytest.mark.parametrize("layout", ["plain", "chunk", "column"])
@torch.no_grad()
def test_products_of_few_rows_are_those_of_eager_execution(rng, launches, dtype, shape, layout):
    torch.manual_seed(int(rng.integers(2**31)))
    columns = shape[-1]

    def tensor(*shape):
        wide = torch.randn(*shape[:-1], 2 * shape[-1]).to(dtype)
        return {
            "plain": wide[..., : shape[-1]].contiguous(), "chunk": wide.chunk(2, dim=-1)[1],
            "column": wide[..., : shape[-1]].transpose(0, 1).contiguous().transpose(0, 1),
        }[layout]  # fmt: skip

    x, gelu = tensor(*shape), {"activation": "gelu_tanh"}
    weights = [torch.randn(it, columns).mul(columns**-0.5).to(dtype) for it in (33, 8, 1, 17)]
    biases = [torch.randn(it.shape[0]).to(dtype) for it in weights]
    packed, residual = torch.randn(66, columns).mul(columns**-0.5).to(dtype), tensor(*shape[:-1], 33)
    jobs = [
        (lambda: kernels.fused_linear(x, weights), 1),
        (lambda: kernels.fused_linear(x, weights[:2], biases[:2]), 1),
        (lambda: kernels.fused_linear(x, weights[:3], [*biases[:2], None]), 0),
        (lambda: (kernels.fused_linear_add(x, weights[0], None, residual),), 1),
        (lambda: (kernels.fused_linear_add(x, weights[0], biases[0], residual),), 1),
        (lambda: (kernels.fused_gate_up(x, packed[:33], packed[33:]),), 1),
        (lambda: (kernels.fused_gate_up(x, packed[:33], packed[33:], **gelu),), 1),
    ]
    near = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
    for job, launched in jobs:
        del launches[:]
        ours = job()
        assert len(launches) == launched
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(dispatch, "is_supported", lambda device: False)
            theirs = job()
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.shape == other.shape and mine.dtype == other.dtype and mine.is_contiguous()
            assert (mine.float() - other.float()).abs().max() <= near * max(1, other.abs().max())


def test_products_of_many_rows_with_gradients_or_casts_are_eager(rng, launches):
    x, weight = torch.randn(1, 4, 32), torch.randn(8, 32)
    assert kernels.fused_linear(x, [weight])[0].shape == (1, 4, 8) and launches == ["linear_rows"]
    del launches[:]
    kernels.fused_linear(torch.randn(5, 32), [weight])
    kernels.fused_linear(x[:0], [weight])
    kernels.fused_linear(x, [weight, weight[:, :32].t().contiguous().t()])
    with torch.autocast("cpu", torch.bfloat16):
        assert kernels.fused_linear(x, [weight])[0].dtype == torch.bfloat16
        assert kernels.fused_gate_up(x, weight, weight).dtype == torch.bfloat16
    y = kernels.fused_linear_add(x, weight.requires_grad_(), None, torch.randn(1, 4, 8))
    assert y.requires_grad and not launches
    assert kernels.fused_linear_add(x, weight.detach(), None, torch.randn(8)).shape == (1, 4, 8) and not launches
    with pytest.raises(ValueError, match="one to four"):
        kernels.fused_linear(x, [])
    with pytest.raises(ValueError, match="as many biases"):
        kernels.fused_linear(x, [weight, weight], [None])
    with pytest.raises(ValueError, match="gelu_tanh"):
        kernels.fused_gate_up(x, weight, weight, "relu")


@pytest.mark.parametrize("name", ["llama", "phi3", "qwen3_5"])
@torch.no_grad()
def test_a_step_of_decoding_has_a_launch_for_the_layers_of_one_tensor(rng, launches, name):
    model, ids = model_of(name), tokens_of(rng)
    kernels.patch(model)
    cache = model(ids, use_cache=True).past_key_values
    assert "linear_rows" not in launches and "gate_up_rows" not in launches
    del launches[:]
    model(ids[:, :1], past_key_values=cache, use_cache=True)
    # Projections, their result's product, and the MLP's second.
    layers = model.config.num_hidden_layers
    assert launches.count("linear_rows") == 3 * layers and launches.count("gate_up_rows") == layers
    assert "gated_forward" not in launches
    kernels.unpatch(model)


@torch.no_grad()
def test_layers_that_are_more_than_linear_are_called(rng, launches):
    model, ids = model_of("llama"), tokens_of(rng, 2, 2)
    before = model(ids).logits
    kernels.patch(model)
    attention, mlp = model.model.layers[0].self_attn, model.model.layers[1].mlp

    def counted(change):
        """Launches of products with one change, and how often its function was called."""
        calls = []
        undo = change(lambda *given: calls.append(given))
        del launches[:]
        after = model(ids).logits
        undo()
        assert (after - before).abs().max() <= 2e-5 * before.abs().max()
        return launches.count("linear_rows"), launches.count("gate_up_rows"), len(calls)

    assert counted(lambda call: lambda: None) == (6, 2, 0)
    # Query and value each alone; gate and up by PyTorch; the second product by PyTorch.
    assert counted(lambda call: attention.k_proj.register_forward_hook(call).remove) == (7, 2, 1)
    assert counted(lambda call: mlp.up_proj.register_forward_pre_hook(call).remove) == (6, 1, 1)
    assert counted(lambda call: mlp.down_proj.register_forward_hook(call).remove) == (5, 2, 1)
    # A sum and what is beside it, each apart.
    assert counted(lambda call: mlp.register_forward_hook(call).remove) == (6, 2, 1)
    assert counted(lambda call: model.model.layers[0].post_attention_layernorm.register_forward_hook(call).remove) == (
        6, 2, 1,
    )  # fmt: skip
    everywhere = torch.nn.modules.module.register_module_forward_hook
    assert counted(lambda call: everywhere(call).remove)[:2] == (0, 0)

    class Adapted(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base_layer = base

        def forward(self, x):
            return self.base_layer(x)

    def adapt(call):
        plain, attention.q_proj = attention.q_proj, Adapted(attention.q_proj)
        return lambda: setattr(attention, "q_proj", plain)

    assert counted(adapt) == (8, 2, 0)
    attention.q_proj = Adapted(attention.q_proj)
    assert kernels.unpatch(model) == 19
    left = {row.name: row.note for row in kernels.patch(model).rows if not row.became}
    assert left == {"LlamaAttention": "its projections are not plain linear layers"}
    kernels.unpatch(model)


@torch.no_grad()
def test_parts_reach_the_call_they_are_for_alone(rng, launches):
    model = model_of("llama")
    kernels.patch(model)
    layer, x = model.model.layers[0].self_attn, torch.randn(1, 3, 64)
    expected, other = (torch.nn.functional.linear(it, layer.k_proj.weight) for it in (x, 2 * x))
    seen = []

    def interrupted(given):
        # In the middle of the attention: the same values in another tensor, and then an error.
        seen.append((layer.k_proj(2 * x), layer.k_proj(given), layer.k_proj(given)))
        raise KeyError("interrupted")

    layer.q_proj.forward = interrupted
    del launches[:]
    with pytest.raises(KeyError):
        layer(x, (None, None))
    # Not all three are replaced any more: each is a product of its own.
    assert launches == ["linear_rows"] * 3
    del layer.q_proj.forward
    kernels.patch(model)
    assert getattr(products._HELD, "parts", None) is None
    for mine, theirs in zip(seen[0], (other, expected, expected), strict=True):
        assert (mine - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    del launches[:]
    with pytest.raises(TypeError):
        layer(x, None)
    assert launches == ["linear_rows"] and getattr(products._HELD, "parts", None) is None
    assert (layer.k_proj(x) - expected).abs().max() <= 1e-5 * expected.abs().max() and len(launches) == 2
    kernels.unpatch(model)


def test_steps_of_delta_are_those_of_transformers_functions(rng, launches):
    source = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    torch.manual_seed(int(rng.integers(2**31)))
    batch, key_heads, heads, keys, values = 2, 2, 4, 16, 24
    for dtype, near in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        channels = 40
        conv = torch.randn(batch, channels, 4).to(dtype)
        weight, x = torch.randn(channels, 4).to(dtype), torch.randn(batch, 1, channels).to(dtype).transpose(1, 2)
        other = conv.clone()
        ours = kernels.fused_conv_update(x, conv, weight, None, "silu")
        theirs = source.causal_conv1d_update(x, other, weight, None, "silu")
        assert torch.equal(conv, other) and ours.shape == theirs.shape
        assert (ours - theirs).abs().max() <= near * theirs.abs().max()
        mixed = torch.randn(batch, 1, 2 * key_heads * keys + heads * values).to(dtype)
        q, k, v = mixed.split([key_heads * keys, key_heads * keys, heads * values], dim=-1)
        q, k, v = q.view(batch, 1, -1, keys), k.view(batch, 1, -1, keys), v.view(batch, 1, -1, values)
        a, b = torch.randn(batch, 1, heads).to(dtype), torch.randn(batch, 1, heads).to(dtype)
        a_log, dt_bias = torch.rand(heads).to(dtype), torch.randn(heads).to(dtype)
        state = torch.randn(batch, heads, keys, values)
        g = -a_log.float().exp() * functional.softplus(a.float() + dt_bias)
        wide = [it.repeat_interleave(heads // key_heads, dim=2) for it in (q, k)]
        theirs, after = source.torch_recurrent_gated_delta_rule(
            *wide, v, g=g, beta=b.sigmoid(), initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
        )
        eager_state = state.clone()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(dispatch, "is_supported", lambda device: False)
            eager = kernels.fused_gated_delta_step(q, k, v, a, b, a_log, dt_bias, eager_state)
        assert torch.equal(eager, theirs) and torch.equal(eager_state, after)
        ours = kernels.fused_gated_delta_step(q, k, v, a, b, a_log, dt_bias, state)
        assert ours.shape == theirs.shape and (ours - theirs).abs().max() <= near * theirs.abs().max()
        assert (state - after).abs().max() <= 1e-5 * after.abs().max()
    assert launches == ["conv_update", "gated_delta_step"] * 2


def test_a_source_that_is_not_known_is_left_with_a_note(rng, monkeypatch):
    model, ids = model_of("qwen3"), tokens_of(rng)
    before = answers(model, ids)
    monkeypatch.setitem(fingerprint.KNOWN, "norm", frozenset())
    monkeypatch.setitem(fingerprint.KNOWN, "rotary", frozenset())
    report = kernels.patch(model)
    left = {row.name: row for row in report.rows if not row.became}
    assert set(left) == {"Qwen3RMSNorm", "qwen3.apply_rotary_pos_emb"} and report.patched == 14
    assert all("another version of Transformers" in row.note for row in left.values())
    assert is_same(before, answers(model, ids))
    kernels.unpatch(model)


def test_a_class_whose_signature_changed_or_that_others_replaced_is_left(rng, monkeypatch):
    source = pytest.importorskip("transformers.models.llama.modeling_llama")
    ids = tokens_of(rng)
    original = source.LlamaRMSNorm.forward

    def forward(self, hidden_states, scale=1.0):
        return original(self, hidden_states) * scale

    monkeypatch.setattr(source.LlamaRMSNorm, "forward", forward)
    model = model_of("llama")
    assert {row.name for row in kernels.patch(model).rows if not row.became} == {"LlamaRMSNorm"}
    kernels.unpatch(model)
    # Named like the original by another library.
    forward.__wrapped__ = original
    assert {row.name for row in kernels.patch(model).rows if not row.became} == {"LlamaRMSNorm"}
    kernels.unpatch(model)
    monkeypatch.setattr(source.LlamaRMSNorm, "forward", original)
    before = answers(model, ids)
    model.model.norm.forward = types.MethodType(lambda self, x: original(self, x), model.model.norm)
    model.model.layers[0].mlp.act_fn.register_forward_hook(lambda *given: None)
    report = kernels.patch(model)
    notes = {row.note for row in report.rows if not row.became}
    assert any("replaced already" in it for it in notes) and any("has hooks" in it for it in notes)
    assert report.left >= 2 and is_same(before, answers(model, ids))
    kernels.unpatch(model)
    assert "forward" in vars(model.model.norm)


def test_hooks_of_others_run_as_before_and_see_the_same_tensors(rng, launches):
    model, ids = model_of("llama"), tokens_of(rng)
    seen = []
    layer = model.model.layers[1]
    for module in (layer.mlp, layer.mlp.gate_proj, layer.input_layernorm):
        module.register_forward_hook(lambda module, given, result: seen.append((type(module).__name__, result.clone())))
    with torch.no_grad():
        model(ids)
        before, seen[:] = list(seen), []
        kernels.patch(model)
        model(ids)
        # After the patch: seen at each call.
        assert len(seen) == len(before) == 3
        for (name, old), (other, new) in zip(before, seen, strict=True):
            assert name == other and (old - new).abs().max() <= 1e-5 * old.abs().max()
        count = launches.count("gated_forward")
        called = []
        layer.mlp.act_fn.register_forward_hook(lambda *given: called.append(1))
        model(ids)
        assert called and launches.count("gated_forward") == count + 1
    kernels.unpatch(model)


def test_hooks_of_accelerate_stay_outside_of_the_kernel(rng, launches):
    accelerate = pytest.importorskip("accelerate")
    model, ids = model_of("llama"), tokens_of(rng)
    before = answers(model, ids)
    calls = []

    class Hook(accelerate.hooks.ModelHook):
        def pre_forward(self, module, *args, **kwargs):
            calls.append(module)
            return args, kwargs

    accelerate.hooks.add_hook_to_module(model.model.norm, Hook())
    report = kernels.patch(model)
    assert any("Accelerate" in row.seam for row in report.rows) and report.left == 0
    with torch.no_grad():
        after = model(ids).logits
    assert calls == [model.model.norm] and (before[0] - after).abs().max() <= 2e-5 * before[0].abs().max()
    assert launches.count("rms_norm_forward") == 5
    assert kernels.unpatch(model) == 19
    del launches[:]
    assert is_same(before, answers(model, ids)) and not launches


@pytest.mark.parametrize("name", ["llama", "qwen3_5"])
def test_torch_compile_sees_the_unpatched_model(rng, launches, name):
    model, ids = model_of(name), tokens_of(rng)
    with torch.no_grad():
        expected = torch.compile(model, backend="eager")(ids).logits
        torch.compiler.reset()
        kernels.patch(model)
        compiled = torch.compile(model, backend="eager")
        assert torch.equal(compiled(ids).logits, expected) and not launches
        torch.compiler.reset()
        with pytest.raises(errors.ConfigError, match="torch.compile"):
            kernels.patch(compiled)
    kernels.unpatch(model)
    model.model.norm.compile(backend="eager")
    notes = {row.note for row in kernels.patch(model).rows if not row.became}
    assert notes == {"compiled by torch.compile"}
    kernels.unpatch(model)


def test_meta_tensors_two_devices_and_transforms_are_eager_execution(rng, launches):
    model, ids = model_of("llama"), tokens_of(rng)
    kernels.patch(model)
    with torch.no_grad():
        assert model.to("meta")(ids.to("meta")).logits.device.type == "meta" and not launches
    kernels.unpatch(model)
    model = model_of("llama")
    kernels.patch(model)
    model.model.norm.to("meta")
    with pytest.raises(RuntimeError), torch.no_grad():
        model(ids).logits.sum().item()
    kernels.unpatch(model)
    x, weight = torch.randn(3, 8), torch.randn(8)
    del launches[:]
    mapped = torch.func.vmap(lambda row: kernels.fused_rms_norm(row, weight))(x)
    _, tangent = torch.func.jvp(lambda it: kernels.fused_silu_mul(it, x), (x,), (torch.ones_like(x),))
    assert not launches and tangent.shape == x.shape
    torch.testing.assert_close(mapped, kernels.fused_rms_norm(x, weight))
    assert launches == ["rms_norm_forward"]
    # Types that PyTorch promotes, shapes that it broadcasts, and nothing at all.
    assert kernels.fused_rms_norm(x.half(), weight).dtype == torch.float32
    assert kernels.fused_silu_mul(x, x[:1]).shape == x.shape
    assert kernels.fused_rms_norm(x[:0], weight).shape == (0, 8)
    assert kernels.fused_silu_mul(x.double(), x.double()).dtype == torch.float64
    assert launches == ["rms_norm_forward"]
    with pytest.raises(RuntimeError):
        kernels.fused_rms_norm(x, weight[:3])
    with pytest.raises(ValueError, match="tanh"):
        kernels.fused_conv_update(x[None, :, :1], x[None, :, :4], torch.randn(3, 4), None, "tanh")


def test_autocast_and_inference_mode_have_eager_types(rng, launches):
    model, ids = model_of("qwen3"), tokens_of(rng)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        before = model(ids).logits
        kernels.patch(model)
        after = model(ids).logits
    kernels.unpatch(model)
    assert before.dtype == after.dtype and (before - after).abs().max() <= 0.1 * before.abs().max()


def test_the_seeds_call_patches_qwen35_alone(rng):
    model, other = model_of("qwen3_5"), model_of("llama")
    report = kernels.patch_qwen35_with_triton(model)
    assert (report.patched, report.left) == (31, 0) and "Qwen3_5RMSNormGated" in str(report)
    kernels.unpatch(model)
    with pytest.raises(errors.ConfigError, match="no module of Qwen3.5"):
        kernels.patch_qwen35_with_triton(other)
    for call in (kernels.patch, kernels.unpatch, kernels.patch_qwen35_with_triton):
        with pytest.raises(errors.ConfigError, match="torch.nn.Module"):
            call("Qwen/Qwen3.5-4B")
    report = kernels.patch(torch.nn.Linear(2, 2))
    assert report.patched == 0 and "no module that is known" in str(report)


def test_a_patched_model_is_pickled_as_an_unpatched_one(rng):
    model, ids = model_of("llama"), tokens_of(rng)
    before = answers(model, ids)
    kernels.patch(model)
    loaded = pickle.loads(pickle.dumps(model))
    kernels.unpatch(model)
    assert is_same(before, answers(loaded, ids))
    assert kernels.patch(loaded).left == 0
    kernels.unpatch(loaded)


def test_classes_with_a_seam_for_kernels_are_patched_through_it(rng):
    pytest.importorskip("kernels")
    source = pytest.importorskip("transformers.models.llama.modeling_llama")
    if not hasattr(source.LlamaRMSNorm, "kernel_layer_name"):
        pytest.skip("the installed kernels is not of a version that transformers takes")
    model, ids = model_of("llama"), tokens_of(rng)
    before = answers(model, ids)
    seams = {row.name: row.seam for row in kernels.patch(model).rows}
    assert seams == {
        "LlamaRMSNorm": "kernels RMSNorm", "LlamaMLP": "class", "llama.apply_rotary_pos_emb": "kernels rotary_pos_emb",
        "LlamaAttention": "class", "LlamaDecoderLayer": "class", "Linear": "class",
    }  # fmt: skip
    assert is_same(before, answers(model, ids)) and kernels.unpatch(model) == 19
    assert "forward" not in vars(source.apply_rotary_pos_emb) and is_same(before, answers(model, ids))


def test_a_functions_replacement_ends_with_its_last_model():
    source = pytest.importorskip("transformers.models.llama.modeling_llama")
    original = source.apply_rotary_pos_emb
    assert "forward" not in vars(original)
    first, second = model_of("llama"), model_of("llama")
    kernels.patch(first)
    kernels.patch(second)
    kernels.unpatch(first)
    assert source.apply_rotary_pos_emb is not original or "forward" in vars(original)
    del second
    gc.collect()
    assert source.apply_rotary_pos_emb is original and "forward" not in vars(original)


def test_packages_import_no_framework():
    check = "import sys, fercuda_runtime.inference; sys.exit(any(it in sys.modules for it in ('torch', 'triton')))"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
    assert triton_kernels.__doc__ and patching_function.__doc__
