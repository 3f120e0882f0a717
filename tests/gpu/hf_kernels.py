"""Fused kernels of `fercuda_runtime.inference.kernels` on a GPU: accuracy, patched models, speed.

    python3 tests/gpu/hf_kernels.py [--json FILE] [--only accuracy|models|speed]

Needs a GPU, torch, triton (with a C compiler) and transformers; the package is taken from where it
is installed, or else from this checkout, without its extension. Prints tables, and a line of JSON;
exits 1 if a bound is exceeded.

- accuracy: each kernel, forward and backward, against f64 of the same inputs.
  Our largest error over the bound of its roundings is printed, and PyTorch's beside it.
- models: tiny random models, patched against eager execution: logits, decoding, gradients, and a
  CUDA graph of a decode step's kernels.
- speed: bandwidth at prefill sizes beside PyTorch's eager operators, torch.compile, and a plain
  copy in the same run; ours has to be at least 90 % of the copy's. Medians of 30 calls, in turns,
  with buffers rotated past the L2 cache.
"""

import argparse
import json
import pathlib
import sys
import types

try:
    import fercuda_runtime.inference.kernels as kernels
except ImportError:
    # Without the extension: the packages above are empty, so that nothing else of them is imported.
    SOURCES = pathlib.Path(__file__).resolve().parents[2] / "python/src/fercuda_runtime"
    for name, folder in (("fercuda_runtime", SOURCES), ("fercuda_runtime.inference", SOURCES / "inference")):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(folder)]
    import fercuda_runtime.inference.kernels as kernels

import torch
import torch.nn.functional as F
from fercuda_runtime.inference.kernels import dispatch

DEVICE = torch.device("cuda")
# Relative error of one rounding.
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
RESULTS = {"accuracy": [], "models": [], "speed": []}
FAILED = []


def eagerly(function):
    """The function's result with PyTorch's operators alone."""
    supported, dispatch.is_supported = dispatch.is_supported, lambda device: False
    try:
        return function()
    finally:
        dispatch.is_supported = supported


def judge(kind, name, ratio, other=None, **more):
    RESULTS[kind].append({"name": name, "of_bound": ratio, "eager_of_bound": other, **more})
    if not ratio <= 1:
        FAILED.append(name)
    shown = "" if other is None else f"   eager {other:6.3f}"
    print(f"  {name:58} {ratio:6.3f} of the bound{shown}{'' if ratio <= 1 else '   EXCEEDED'}")


def ratio(result, exact, magnitude, roundings, f32):
    unit = UNIT[result.dtype]
    bound = magnitude.abs() * ((1 + unit) ** roundings - 1 + f32) + 2.0**-23 * (result.dtype == torch.float16) + 1e-30
    value = ((result.double() - exact).abs() / bound).max().item()
    return value if value == value else float("inf")


def check_norms():
    """A sum of n squares is off by at most n / 2 of f32's units for each of 32 lanes' parts; in f32
    1/sqrt by 4 units and exp by its argument's."""
    for dtype in UNIT:
        # Each form, length and type is a kernel to compile.
        for rows, columns in ((5, 128), (3, 2560), (2, 8192)) if dtype == torch.bfloat16 else ((3, 2560),):
            x, gate, other = (torch.randn(rows, columns, device=DEVICE).to(dtype) for _ in range(3))
            weight = torch.randn(columns, device=DEVICE).to(dtype)
            for form in ("plain", "plus_one", "gate", "residual"):
                more = {"plus_one": form == "plus_one"}
                more |= {"gate": gate} if form == "gate" else {}
                more |= {"residual": other} if form == "residual" else {}
                inputs = [it.clone().requires_grad_() for it in (x, weight)]

                def both(inputs=inputs, more=more):
                    y = kernels.fused_rms_norm(*inputs, **more)
                    y = y[0] if isinstance(y, tuple) else y
                    return y, torch.autograd.grad(y, inputs, other)

                y, grads = both()
                plain, _ = eagerly(both)
                wide = [it.double().clone().requires_grad_() for it in (x, weight)]
                values = wide[0]
                if form == "residual":
                    # The sum is rounded, exactly as a tensor.
                    values = wide[0] + ((x + other).double() - wide[0]).detach()
                normed = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + 1e-6)
                exact = normed * (wide[1] + (form == "plus_one"))
                if form == "gate":
                    exact = exact * F.silu(gate.double())
                exact_grads = torch.autograd.grad(exact, wide, other.double())
                f32 = (columns / 32 + 48) * 2.0**-24 * 2
                roundings = {"plain": 2, "plus_one": 1, "gate": 3, "residual": 2}[form]
                name = f"rms_norm {form} {rows}x{columns} {str(dtype)[6:]}"
                judge(
                    "accuracy", name, ratio(y.detach(), exact, exact, roundings, f32),
                    ratio(plain.detach(), exact, exact, roundings, f32),
                )  # fmt: skip
                size = exact_grads[0].abs().amax(-1, keepdim=True) * 4 + exact_grads[0].abs()
                judge("accuracy", name + " dx", ratio(grads[0], exact_grads[0], size, 1, 4 * f32))
                size = exact_grads[1].abs().max() * 4 + exact_grads[1].abs()
                judge("accuracy", name + " dw", ratio(grads[1], exact_grads[1], size, 1, 4 * f32))


def check_activations():
    for dtype in UNIT:
        gate, up, dy = (torch.randn(37, 3000, device=DEVICE).mul(3).to(dtype) for _ in range(3))
        for name, function, exact_act in (
            ("silu_mul", kernels.fused_silu_mul, F.silu),
            ("gelu_mul", kernels.fused_gelu_mul, lambda x: F.gelu(x, approximate="tanh")),
        ):
            inputs = [it.clone().requires_grad_() for it in (gate, up)]
            y = function(*inputs)
            grads = torch.autograd.grad(y, inputs, dy)
            plain = eagerly(lambda function=function: function(gate, up))
            wide = [it.double().clone().requires_grad_() for it in (gate, up)]
            exact = exact_act(wide[0]) * wide[1]
            exact_grads = torch.autograd.grad(exact, wide, dy.double())
            # In f32: the argument's size for exp, and 1 + tanh cancels to that of x.
            f32 = 64 * 2.0**-24
            slack = (gate.double() * up.double()).abs() * f32 * 4 / ((1 + UNIT[dtype]) ** 2 - 1 + f32)
            if dtype == torch.float16:
                # Half the distance of its smallest numbers, of both roundings.
                slack += (1 + up.double().abs()) * 2.0**-25 / ((1 + UNIT[dtype]) ** 2 - 1 + f32)
            size = exact.abs() + slack
            label = f"{name} {str(dtype)[6:]}"
            judge("accuracy", label, ratio(y.detach(), exact, size, 2, f32), ratio(plain, exact, size, 2, f32))
            for at, (ours, theirs) in enumerate(zip(grads, exact_grads, strict=True)):
                size = theirs.abs() + (dy.double() * (1 + gate.double().abs() + gate.double().abs() ** 3)
                                       * (1 + up.double().abs())).abs() * f32 * 4 / (UNIT[dtype] + f32)  # fmt: skip
                judge("accuracy", f"{label} d{('gate', 'up')[at]}", ratio(ours, theirs, size, 1, f32))


def check_rotary():
    for dtype in UNIT:
        for dims, rotated, grids in ((128, 128, 0), (96, 96, 0), (256, 64, 0), (256, 64, 3)):
            q = torch.randn(2, 7, 16, dims, device=DEVICE).to(dtype).transpose(1, 2)
            k = torch.randn(2, 7, 4, dims, device=DEVICE).to(dtype).transpose(1, 2)
            angle = torch.randn(*(3,) * (grids > 0), 2, 7, rotated, device=DEVICE)
            cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
            more = {"sections": (11, 11, 10)} if grids else {}
            wide = [it.double() for it in (q, k, cos, sin)]
            inputs = [it.clone().requires_grad_() for it in (q, k)]
            ours = kernels.fused_rotary_emb(*inputs, cos, sin, **more)
            dy = [torch.randn_like(it) for it in ours]
            grads = torch.autograd.grad(ours, inputs, dy)
            given = (q, k, cos, sin)
            plain = eagerly(lambda given=given, more=more: kernels.fused_rotary_emb(*given, **more))
            wide_inputs = [it.clone().requires_grad_() for it in wide[:2]]
            exact = kernels.fused_rotary_emb(*wide_inputs, *wide[2:], **more)
            exact_grads = torch.autograd.grad(exact, wide_inputs, [it.double() for it in dy])
            for at in range(2):
                size = exact[at].abs() + 2 * wide[at].abs().amax(-1, keepdim=True)
                name = f"rotary {rotated} of {dims}{', 3 grids' if grids else ''} {'qk'[at]} {str(dtype)[6:]}"
                same = torch.equal(ours[at], plain[at])
                judge(
                    "accuracy", name + (" (bits of eager)" if same else ""),
                    ratio(ours[at].detach(), exact[at], size, 1, 4 * 2.0**-24),
                    ratio(plain[at], exact[at], size, 1, 4 * 2.0**-24),
                )  # fmt: skip
                size = exact_grads[at].abs() + 2 * dy[at].double().abs().amax(-1, keepdim=True)
                judge("accuracy", name + " gradient", ratio(grads[at], exact_grads[at], size, 1, 4 * 2.0**-24))


def check_delta():
    for dtype in UNIT:
        batch, key_heads, heads, keys, values, channels = 3, 16, 32, 128, 128, 8192
        x, conv = (torch.randn(batch, channels, n, device=DEVICE).to(dtype) for n in (1, 4))
        weight, before = torch.randn(channels, 4, device=DEVICE).to(dtype), conv.clone()
        y = kernels.fused_conv_update(x, conv, weight, None, "silu")
        every = torch.cat([before, x], dim=-1)
        shifted = torch.equal(conv, every[:, :, 1:])
        terms = every[:, :, 1:].double() * weight.double()
        exact = F.silu(terms.sum(-1, keepdim=True))
        size = exact.abs() + terms.abs().sum(-1, keepdim=True) * 1.1
        judge("accuracy", f"conv_update {str(dtype)[6:]}", ratio(y, exact, size, 2, 64 * 2.0**-24) if shifted else 1e9)
        q, k = (torch.randn(batch, 1, key_heads, keys, device=DEVICE).to(dtype) for _ in range(2))
        v = torch.randn(batch, 1, heads, values, device=DEVICE).to(dtype)
        a, b = (torch.randn(batch, 1, heads, device=DEVICE).to(dtype) for _ in range(2))
        a_log, dt_bias = torch.rand(heads, device=DEVICE).to(dtype), torch.randn(heads, device=DEVICE).to(dtype)
        state = torch.randn(batch, heads, keys, values, device=DEVICE)
        plain_state, memory = state.clone(), state.double()
        y = kernels.fused_gated_delta_step(q, k, v, a, b, a_log, dt_bias, state)
        plain = eagerly(lambda: kernels.fused_gated_delta_step(q, k, v, a, b, a_log, dt_bias, plain_state))
        query, key = (it[:, 0].double().repeat_interleave(heads // key_heads, dim=1) for it in (q, k))
        query = query * torch.rsqrt(query.pow(2).sum(-1, keepdim=True) + 1e-6) / keys**0.5
        key = key * torch.rsqrt(key.pow(2).sum(-1, keepdim=True) + 1e-6)
        decay = (-a_log.double().exp() * F.softplus(a.double() + dt_bias.double()))[:, 0].exp()[..., None, None]
        # The rate is rounded to the type, in PyTorch too.
        rate = b.sigmoid()[:, 0].double()[..., None]
        held = memory * decay
        change = (v[:, 0].double() - (held * key[..., None]).sum(-2)) * rate
        exact = held + key[..., None] * change[..., None, :]
        size = exact.abs() + (v[:, 0].double().abs() + held.abs().sum(-2))[..., None, :] * key[..., None].abs()
        f32 = (2 * keys + 64) * 2.0**-24 + UNIT[dtype]
        judge(
            "accuracy", f"gated_delta_step state {str(dtype)[6:]}", ratio(state, exact, size, 0, f32),
            ratio(plain_state, exact, size, 0, f32),
        )  # fmt: skip
        result = (exact * query[..., None]).sum(-2)[:, None]
        size = (size * query[..., None].abs()).sum(-2)[:, None]
        judge(
            "accuracy", f"gated_delta_step {str(dtype)[6:]}", ratio(y, result, size, 1, f32),
            ratio(plain, result, size, 1, f32),
        )  # fmt: skip


BASE = {
    "vocab_size": 256, "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
LINEAR = {
    "head_dim": 64, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 64, "linear_value_head_dim": 64,
}  # fmt: skip
MODELS = {
    "LlamaConfig": {}, "MistralConfig": {}, "Qwen2Config": {}, "Qwen3Config": {"head_dim": 64},
    "Qwen3MoeConfig": {"head_dim": 64, **EXPERTS}, "Qwen3_5TextConfig": LINEAR,
    "Qwen3_5MoeTextConfig": {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 64},
    "Gemma2Config": {"head_dim": 64}, "Gemma3TextConfig": {"head_dim": 64}, "PhiConfig": {}, "Phi3Config": {},
}  # fmt: skip


def check_models():
    import transformers

    transformers.logging.set_verbosity_error()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    for name, more in MODELS.items():
        try:
            check_model(transformers, name, more)
        except Exception as error:
            # The other models are worth their figures.
            FAILED.append(f"{name}: {type(error).__name__}: {error}")
            print(f"  {FAILED[-1]}")


def check_model(transformers, name, more):
    torch.manual_seed(0)
    config = getattr(transformers, name)(**{**BASE, **more})
    model = transformers.AutoModelForCausalLM.from_config(config).to(DEVICE).eval()
    ids = torch.randint(3, 256, (2, 24), device=DEVICE)
    mask = torch.ones_like(ids)

    def decoded(model=model, ids=ids, mask=mask):
        with torch.no_grad():
            new = model.generate(
                ids, attention_mask=mask, max_new_tokens=12, min_new_tokens=12, do_sample=False,
                output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip
            return model(ids).logits, torch.stack(new.logits), new.sequences

    def gradients(model=model, ids=ids):
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        return [it.grad.clone() for it in model.parameters() if it.grad is not None]

    before, before_grads = decoded(), gradients()
    report = kernels.patch(model)
    if name == "Qwen3_5TextConfig":
        print(report)
    after, after_grads = decoded(), gradients()
    kernels.unpatch(model)
    # Sums of experts may be in any order from run to run.
    restored = not any("forward" in vars(it) for it in model.modules())
    restored &= torch.allclose(before[0], decoded()[0], rtol=0, atol=1e-5 * before[0].abs().max().item())
    # Of both: 2^-24 for each of some hundred roundings along the layers, amplified by norms.
    scale = before[0].abs().max()
    error = max(((a - b).abs().max() / scale).item() for a, b in zip(before[:2], after[:2], strict=True))
    of_grads = max(
        ((a - b).abs().max() / (a.abs().max() + 1e-9)).item()
        for a, b in zip(before_grads, after_grads, strict=True)
    )
    judge("models", f"{name} logits", error / 1e-4, patched=report.patched, left=report.left, restored=restored,
          same_tokens=torch.equal(before[2], after[2]))  # fmt: skip
    judge("models", f"{name} gradients", of_grads / 1e-3)
    if report.patched == 0 or not restored:
        FAILED.append(f"{name}: {report.patched} patched, restored {restored}")


def check_graph():
    """A captured decode step of DeltaNet and norms replays what eager launches compute."""
    x, w = torch.randn(1, 1, 2560, device=DEVICE, dtype=torch.bfloat16), torch.randn(2560, device=DEVICE).bfloat16()
    conv, weight = torch.zeros(1, 2560, 4, device=DEVICE).bfloat16(), torch.randn(2560, 4, device=DEVICE).bfloat16()

    def step():
        y = kernels.fused_rms_norm(x, w, plus_one=True)
        y = kernels.fused_conv_update(y.transpose(1, 2), conv, weight, None, "silu").transpose(1, 2)
        return kernels.fused_silu_mul(y, x)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    conv.zero_()
    expected = [step().clone() for _ in range(3)]
    conv.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    conv.zero_()
    same = True
    for it in expected:
        graph.replay()
        torch.cuda.synchronize()
        same &= torch.equal(captured, it)
    judge("models", "CUDA graph of norm, conv update and silu_mul", 0.0 if same else float("inf"))


def times(jobs, count=30):
    """Median times in seconds of each job's calls, in turns."""
    taken = {name: [] for name in jobs}
    for turn in range(count + 3):
        order = list(jobs) if turn % 2 else list(jobs)[::-1]
        for name in order:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            # The launches are queued behind this, so that the host's time is hidden.
            torch.cuda._sleep(400_000)
            start.record()
            jobs[name](turn)
            end.record()
            end.synchronize()
            if turn >= 3:
                taken[name].append(start.elapsed_time(end) * 1e-3)
    return {name: sorted(it)[len(it) // 2] for name, it in taken.items()}


def compare(name, moved, jobs):
    """Prints bandwidths of jobs that move so many bytes, beside a copy that moves as many."""
    half = moved // 2
    source, target = (torch.empty(3, half, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    source.random_(0, 255)
    jobs = {**jobs, "copy": lambda turn: target[turn % 3].copy_(source[turn % 3])}
    measured = {key: moved / it * 1e-12 for key, it in times(jobs).items()}
    share = measured["ours"] / measured["copy"]
    RESULTS["speed"].append({"name": name, "bytes": moved, "of_copy": share, "tb_per_s": measured})
    if share < 0.9:
        FAILED.append(f"{name}: {share:.3f} of the copy's bandwidth")
    shown = "  ".join(f"{key} {it:5.2f}" for key, it in measured.items())
    print(f"  {name:44} {share:5.2f} of a copy; TB/s: {shown}")


def check_speed():
    torch.manual_seed(0)
    dtype, rows, columns = torch.bfloat16, 8192, 4096

    def sets(*shapes):
        return [[torch.randn(shape, device=DEVICE, dtype=dtype) for shape in shapes] for _ in range(3)]

    def suite(name, function, inputs, moved, is_compiled=False):
        # Compiled, the wrappers are PyTorch's operators, of which inductor makes a kernel.
        compiled = None
        try:
            if is_compiled:
                compiled = torch.compile(lambda *given: function(*given))
                compiled(*inputs[0])
        except Exception as error:
            print(f"  torch.compile failed: {type(error).__name__}")
            compiled = None
        jobs = {
            "ours": lambda turn: function(*inputs[turn % 3]),
            "eager": lambda turn: eagerly(lambda: function(*inputs[turn % 3])),
        }
        if compiled is not None:
            jobs["compile"] = lambda turn: compiled(*inputs[turn % 3])
        compare(name, moved, jobs)

    size = rows * columns * 2
    weight = torch.randn(columns, device=DEVICE, dtype=dtype)
    with torch.no_grad():
        one, two = sets((rows, columns)), sets((rows, columns), (rows, columns))
        suite("rms_norm 8192x4096 bf16", lambda x: kernels.fused_rms_norm(x, weight), one, 2 * size, True)
        suite("rms_norm 1 + weight", lambda x: kernels.fused_rms_norm(x, weight, plus_one=True), one, 2 * size)
        suite("rms_norm gated", lambda x, z: kernels.fused_rms_norm(x, weight, gate=z), two, 3 * size)
        suite("rms_norm with residual", lambda x, r: kernels.fused_rms_norm(x, weight, residual=r), two, 4 * size)
        suite("silu_mul 8192x4096 bf16", kernels.fused_silu_mul, two, 3 * size, True)
        suite("gelu_mul 8192x4096 bf16", kernels.fused_gelu_mul, two, 3 * size)
        packed = sets((rows, 2 * columns))
        suite("silu_mul of chunks", lambda x: kernels.fused_silu_mul(*x.chunk(2, dim=-1)), packed, 3 * size)
        heads = sets((1, rows, 32, 128))
        narrow = torch.randn(128, device=DEVICE, dtype=dtype)
        suite("rms_norm of heads 262144x128", lambda x: kernels.fused_rms_norm(x, narrow), heads, 2 * size)
        qk = [[q.transpose(1, 2), k.transpose(1, 2)] for q, k in sets((1, rows, 32, 128), (1, rows, 8, 128))]
        angle = torch.randn(1, rows, 128, device=DEVICE)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        suite(
            "rotary 8192 tokens, 32 + 8 heads of 128", lambda q, k: kernels.fused_rotary_emb(q, k, cos, sin), qk,
            2 * size * 40 // 32 + 2 * cos.numel() * 2,
        )  # fmt: skip
    backward(rows, columns, size, weight, two)
    decode()


def backward(rows, columns, size, weight, two):
    """Backward passes alone; printed, without a limit: partial sums and several outputs."""
    for name, forward, moved in (
        ("rms_norm backward", lambda x, y: kernels.fused_rms_norm(x, weight.requires_grad_()), 3 * size),
        ("silu_mul backward", lambda x, y: kernels.fused_silu_mul(x, y), 5 * size),
    ):
        jobs = {}
        for kind in ("ours", "eager"):
            wanted = [[it.detach().requires_grad_() for it in pair] for pair in two]
            run = [forward(*it) if kind == "ours" else eagerly(lambda it=it: forward(*it)) for it in wanted]
            dy = torch.randn_like(run[0])
            jobs[kind] = lambda turn, run=run, wanted=wanted, dy=dy: torch.autograd.grad(
                run[turn % 3], wanted[turn % 3], dy, retain_graph=True, allow_unused=True
            )
        measured = {key: moved / it * 1e-12 for key, it in times(jobs).items()}
        RESULTS["speed"].append({"name": name, "bytes": moved, "tb_per_s": measured})
        print(f"  {name:44} TB/s: " + "  ".join(f"{key} {it:5.2f}" for key, it in measured.items()))


def decode():
    """One token of Qwen3.5-4B's sizes: microseconds of the GPU for a graph of 20 calls, each."""
    dtype, heads = torch.bfloat16, 32
    x, weight = torch.randn(1, 1, 2560, device=DEVICE, dtype=dtype), torch.randn(2560, device=DEVICE, dtype=dtype)
    gate, up = (torch.randn(1, 1, 9216, device=DEVICE, dtype=dtype) for _ in range(2))
    conv, taps = torch.zeros(1, 8192, 4, device=DEVICE, dtype=dtype), torch.randn(8192, 4, device=DEVICE, dtype=dtype)
    token = torch.randn(1, 8192, 1, device=DEVICE, dtype=dtype)
    q, k = (torch.randn(1, 1, 16, 128, device=DEVICE, dtype=dtype) for _ in range(2))
    v, state = torch.randn(1, 1, heads, 128, device=DEVICE, dtype=dtype), torch.zeros(1, heads, 128, 128, device=DEVICE)
    a, b = (torch.randn(1, 1, heads, device=DEVICE, dtype=dtype) for _ in range(2))
    a_log, bias = torch.rand(heads, device=DEVICE, dtype=dtype), torch.randn(heads, device=DEVICE, dtype=dtype)
    for name, function in (
        ("rms_norm 2560", lambda: kernels.fused_rms_norm(x, weight, plus_one=True)),
        ("silu_mul 9216", lambda: kernels.fused_silu_mul(gate, up)),
        ("conv_update 8192x4", lambda: kernels.fused_conv_update(token, conv, taps, None, "silu")),
        ("gated_delta_step 32x128x128", lambda: kernels.fused_gated_delta_step(q, k, v, a, b, a_log, bias, state)),
    ):
        graphs = {}
        for kind in ("ours", "eager"):
            call = function if kind == "ours" else (lambda function=function: eagerly(function))
            with torch.no_grad():
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    call()
                torch.cuda.current_stream().wait_stream(side)
                graphs[kind] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graphs[kind]):
                    for _ in range(20):
                        call()
        measured = times({kind: (lambda turn, graph=graph: graph.replay()) for kind, graph in graphs.items()})
        measured = {kind: it / 20 * 1e6 for kind, it in measured.items()}
        RESULTS["speed"].append({"name": f"decode {name}", "us": measured})
        print(f"  decode {name:37} us: " + "  ".join(f"{key} {it:6.2f}" for key, it in measured.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--only", choices=list(RESULTS))
    given = parser.parse_args()
    torch.manual_seed(1)
    RESULTS["machine"] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(RESULTS["machine"])
    parts = {
        "accuracy": (check_norms, check_activations, check_rotary, check_delta),
        "models": (check_models, check_graph),
        "speed": (check_speed,),
    }
    for kind, checks in parts.items():
        if given.only in (None, kind):
            print(kind)
            for check in checks:
                try:
                    check()
                except Exception as error:
                    # The other parts are worth their figures.
                    FAILED.append(f"{check.__name__}: {type(error).__name__}: {error}")
                    print(f"  {FAILED[-1]}")
    RESULTS["failed"] = FAILED
    text = json.dumps(RESULTS)
    if given.json:
        given.json.write_text(text)
    print(text)
    print("failed: " + "; ".join(FAILED) if FAILED else "passed")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
