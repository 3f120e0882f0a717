"""Framework workloads, one per call: `tenants.py NAME` runs one and prints one JSON object.

They do not use feRcuda. Results are printed as a digest, so that two runs can be compared.
"""

import hashlib
import json
import os
import sys
import time


def digest(*arrays):
    import numpy as np

    h = hashlib.sha256()
    for array in arrays:
        h.update(np.ascontiguousarray(array).tobytes())
    return h.hexdigest()[:16]


def torch_model(torch, layers=24):
    torch.manual_seed(0)
    widths = [1024 if n % 2 == 0 else 4096 for n in range(layers + 1)]
    parts = []
    for a, b in zip(widths, widths[1:]):
        parts += [torch.nn.Linear(a, b), torch.nn.GELU()]
    return torch.nn.Sequential(*parts[:-1]).to("cuda", torch.bfloat16)


def torch_step(torch, graphs=False):
    """The perceptron and one step of its training."""
    model = torch_model(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=graphs)
    x = torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16)
    y = torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return model, step


def timed(torch, step):
    """A step's result, and its time in seconds on an idle device."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    result = step()
    torch.cuda.synchronize()
    return result, time.perf_counter() - begun


def torch_train(steps=60, graphs=False):
    import torch

    model, step = torch_step(torch, graphs)
    run = step
    if graphs:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()

        def run():
            graph.replay()
            return captured

    times, losses = [], []
    for n in range(steps):
        loss, seconds = timed(torch, run)
        times.append(seconds)
        if n % 10 == 9:
            losses.append(loss.item())
    weights = digest(*(p.detach().float().cpu().numpy() for p in model.parameters()))
    times.sort()
    out = {"losses": losses, "weights": weights, "step_ms": times[len(times) // 2] * 1e3}
    try:
        out["torch_peak_allocated"] = torch.cuda.max_memory_allocated()
        out["torch_peak_reserved"] = torch.cuda.max_memory_reserved()
    except Exception as error:  # some allocators keep no figures
        out["torch_figures"] = str(error)
    return out


def torch_graphs():
    return torch_train(graphs=True)


def torch_pairs():
    """Latency of `torch.empty` and its release."""
    import torch

    for _ in range(1000):
        torch.empty(1 << 18, device="cuda")
    torch.cuda.synchronize()
    begun = time.perf_counter()
    n = 20000
    for _ in range(n):
        torch.empty(1 << 18, device="cuda")
    return {"pair_us": (time.perf_counter() - begun) / n * 1e6}


def jax_train():
    import jax
    import jax.numpy as jnp
    import numpy as np

    key = jax.random.PRNGKey(0)
    sizes = [1024, 4096, 1024, 4096, 1024]
    params = []
    for a, b in zip(sizes, sizes[1:]):
        key, sub = jax.random.split(key)
        params.append(jax.random.normal(sub, (a, b), jnp.float32) * (1.0 / a) ** 0.5)

    def loss(params, x, y):
        for n, w in enumerate(params):
            x = x @ w
            if n < len(params) - 1:
                x = jax.nn.gelu(x)
        return jnp.mean((x - y) ** 2)

    @jax.jit
    def step(params, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return value, [p - 1e-3 * g for p, g in zip(params, grads)]

    x = jax.random.normal(jax.random.PRNGKey(1), (512, 1024))
    y = jax.random.normal(jax.random.PRNGKey(2), (512, 1024))
    value = None
    for _ in range(20):
        value, params = step(params, x, y)
    begun = time.perf_counter()
    for _ in range(20):
        value, params = step(params, x, y)
    value.block_until_ready()
    took = (time.perf_counter() - begun) / 20
    return {"loss": float(value), "weights": digest(*(np.asarray(p) for p in params)), "step_ms": took * 1e3}


def cupy_work():
    import cupy as cp

    rng = cp.random.default_rng(0)
    a = rng.standard_normal((2048, 2048), dtype=cp.float32)
    results = []
    for n in range(20):
        b = a @ a.T + n
        c = cp.sort(b.ravel())[::1000]
        results.append(c)
        a = a / (1 + cp.abs(a).max())
    return {"result": digest(*(cp.asnumpy(r) for r in results))}


def triton_work():
    import torch
    import triton
    import triton.language as tl

    global softmax_kernel

    @triton.jit
    def softmax_kernel(out, x, columns, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        at = tl.arange(0, BLOCK)
        values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
        values = tl.exp(values - tl.max(values, axis=0))
        tl.store(out + row * columns + at, values / tl.sum(values, axis=0), mask=at < columns)

    torch.manual_seed(0)
    total = []
    for n in range(20):
        x = torch.randn(512, 1000 + n, device="cuda")
        out = torch.empty_like(x)
        softmax_kernel[(512,)](out, x, x.shape[1], BLOCK=2048)
        assert torch.allclose(out, torch.softmax(x, 1), atol=1e-6)
        total.append(out.cpu().numpy())
    return {"result": digest(*total)}


def all_four():
    import torch

    out = {"torch": torch_train(steps=20)}
    out["jax"] = jax_train()
    out["cupy"] = cupy_work()
    out["triton"] = triton_work()
    import cupy as cp

    # One buffer shared by three of them.
    shared = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    there = cp.from_dlpack(shared) * 2
    import jax

    back = torch.from_dlpack(jax.dlpack.from_dlpack(there) + 1)
    assert torch.equal(back, shared * 2 + 1)
    out["torch_again"] = torch_train(steps=20)
    return out


def both_hungry(share=0.62):
    """PyTorch and JAX each use most of the device, one after the other."""
    import jax.numpy as jnp
    import torch

    import jax

    total = torch.cuda.get_device_properties(0).total_memory
    want = int(total * share)
    done = []
    for n in range(3):
        x = torch.empty(want, dtype=torch.uint8, device="cuda")
        x.fill_(n + 1)
        done.append(int(x[-1]))
        del x
        z = jnp.full((want >> 22, 1 << 20), n, jnp.float32)
        z.block_until_ready()
        done.append(float(z[-1, -1]))
        del z
    return {"done": done}


PROGRAMS = {f.__name__: f for f in (torch_train, torch_graphs, torch_pairs, jax_train, cupy_work, triton_work, all_four, both_hungry)}

if __name__ == "__main__":
    name = sys.argv[1]
    try:
        result = PROGRAMS[name]()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        print(json.dumps({"program": name, "failed": text[:600]}), flush=True)
        sys.exit(1)
    print(json.dumps({"program": name, **result}), flush=True)
