"""Features of frameworks with and without `fercuda run`: a table of features, not of programs.

    python3 features.py FERCUDA OUT_DIR [--only NAME,...] [--turns N]

Each feature runs bare and governed in turns, each in a process of its own. Results and errors must
be equal; the step time is compared by medians. OUT_DIR gets `features.json` and `features.md`. A
feature whose library is missing is listed as such. Exit status 1 if any differs.
"""

import argparse
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

FEATURES = {}


def feature(function):
    FEATURES[function.__name__] = function
    return function


def steps_of(step, count=30, warm=3):
    """Runs a step several times; returns the median and the first steps' times in milliseconds."""
    import torch

    times = []
    for _ in range(warm + count):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begun) * 1e3)
    return {"step_ms": statistics.median(times[warm:]), "early_ms": statistics.median(times[2:20])}


def digest(tensor):
    import torch

    data = tensor.detach().to("cpu").contiguous().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def small_model():
    import torch

    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512), torch.nn.LayerNorm(512)
    ).cuda()


def training(model, optimizer, data):
    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()

    return step


@feature
def training_step():
    import torch

    model = small_model()
    data = torch.randn(256, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    step = training(model, torch.optim.AdamW(model.parameters()), data)
    figures = steps_of(step)
    return {"weights": digest(model[0].weight), **figures}


@feature
def ragged_steps():
    """A new shape in each step: an allocator that keeps nothing grows in each."""
    import torch

    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    rows = iter(range(64, 10000, 37))

    def step():
        data = torch.ones(next(rows), 512, device="cuda")
        optimizer.zero_grad(set_to_none=True)
        model(data).square().mean().backward()
        optimizer.step()

    figures = steps_of(step)
    return {"weights": digest(model[0].weight), **figures}


@feature
def memory_history_and_snapshot():
    import torch

    torch.cuda.memory._record_memory_history(max_entries=1000)
    kept = [torch.zeros(1 << 20, device="cuda") for _ in range(8)]
    del kept[::2]
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    entries = [e["action"] for e in snapshot["device_traces"][0]]
    return {"alloc": entries.count("alloc"), "free": entries.count("free_requested"), "segments": len(snapshot["segments"])}


@feature
def memory_stats():
    import torch

    kept = [torch.zeros(n << 18, device="cuda") for n in range(1, 9)]
    del kept[3:5]
    stats = torch.cuda.memory_stats()
    keys = ("allocated_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.current", "num_ooms", "segment.all.allocated")
    torch.cuda.reset_peak_memory_stats()
    return {key: stats[key] for key in keys} | {"after": torch.cuda.max_memory_allocated()}


@feature
def memory_pools():
    import torch

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.ones(1 << 20, device="cuda")
    outside = torch.ones(1 << 20, device="cuda")
    return {"sum": float((inside + outside).sum()), "segments": len(pool.snapshot())}


@feature
def graph_trees():
    import torch

    model = small_model()

    @torch.compile(mode="reduce-overhead")
    def forward(x):
        return model(x)

    data = torch.randn(64, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(2))
    with torch.no_grad():
        for _ in range(4):
            result = forward(data).clone()
        figures = steps_of(lambda: forward(data))
    return {"sum": round(float(result.double().sum()), 3), **figures}


@feature
def cuda_graphs():
    import torch

    model = small_model()
    data = torch.ones(64, 512, device="cuda")
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(data)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = model(data)
        figures = steps_of(graph.replay)
    return {"result": digest(result), **figures}


@feature
def sharing_between_processes():
    import torch
    import torch.multiprocessing as multiprocessing

    context = multiprocessing.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    child = context.Process(target=shared_child, args=(queue, back))
    child.start()
    tensor = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    part = tensor[4096:8192]
    queue.put(part)
    answer = back.get(timeout=90)
    child.join(30)
    return {"child": answer, "changed": float(part[0]), "exit": child.exitcode}


def shared_child(queue, back):
    tensor = queue.get(timeout=90)
    total = float(tensor.double().sum())
    tensor[0] = -1
    import torch

    torch.cuda.synchronize()
    back.put(total)
    del tensor


@feature
def expandable_segments_from_code():
    import torch

    setter = getattr(torch.cuda.memory, "_set_allocator_settings", None) or torch._C._accelerator_setAllocatorSettings
    setter("expandable_segments:True")
    blocks = [torch.full((n << 20,), n, dtype=torch.uint8, device="cuda") for n in range(1, 40)]
    total = sum(int(block[0]) for block in blocks)
    del blocks
    torch.cuda.empty_cache()
    return {"total": total, "reserved": torch.cuda.memory_reserved()}


@feature
def process_fraction():
    import torch

    torch.cuda.set_per_process_memory_fraction(0.05)
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.empty(int(total * 0.06), dtype=torch.uint8, device="cuda")
        return {"given": True}
    except torch.cuda.OutOfMemoryError:
        small = torch.empty(int(total * 0.03), dtype=torch.uint8, device="cuda")
        return {"given": False, "small": small.numel() > 0}


@feature
def pluggable_allocator():
    import torch

    folder = tempfile.mkdtemp()
    source = pathlib.Path(folder, "own.c")
    source.write_text(
        "#include <stddef.h>\nint cudaMalloc(void **, size_t); int cudaFree(void *);\nint calls;\n"
        "void *take(size_t n, int d, void *s) { void *p = 0; ++calls; cudaMalloc(&p, n); return p; }\n"
        "void give(void *p, size_t n, int d, void *s) { cudaFree(p); }\n"
    )
    library = str(pathlib.Path(folder, "own.so"))
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, str(source)], check=True)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "take", "give")
    torch.cuda.memory.change_current_allocator(allocator)
    tensor = torch.ones(1 << 20, device="cuda")
    import ctypes

    return {"sum": float((tensor * 2).sum()), "calls": ctypes.c_int.in_dll(ctypes.CDLL(library), "calls").value > 0}


class Squares:
    def __len__(self):
        return 256

    def __getitem__(self, index):
        import torch

        return torch.tensor([index * index], dtype=torch.float32)


@feature
def loader_workers():
    import torch

    loader = torch.utils.data.DataLoader(Squares(), batch_size=32, num_workers=4, pin_memory=True)
    total = sum(float(batch.cuda(non_blocking=True).sum()) for batch in loader)
    return {"total": total}


@feature
def checkpointing():
    import torch
    from torch.utils.checkpoint import checkpoint

    model = small_model()
    data = torch.ones(256, 512, device="cuda", requires_grad=True)
    folder = tempfile.mkdtemp()

    def step():
        checkpoint(model, data, use_reentrant=False).square().mean().backward()

    figures = steps_of(step)
    torch.save({"model": model.state_dict()}, f"{folder}/state.pt")
    again = small_model()
    again.load_state_dict(torch.load(f"{folder}/state.pt", map_location="cuda")["model"])
    return {"gradient": digest(data.grad), "loaded": digest(again[0].weight), **figures}


@feature
def mixed_precision():
    import torch

    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cuda")
    data = torch.ones(256, 512, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(data).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    figures = steps_of(step)
    return {"weights": digest(model[0].weight), **figures}


@feature
def several_streams():
    import torch

    streams = [torch.cuda.Stream() for _ in range(4)]
    total = torch.zeros(4, device="cuda")

    def step():
        for number, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                block = torch.full((1 << 18,), float(number), device="cuda")
                total[number] = (block + 1).sum()
                block.record_stream(torch.cuda.current_stream())
        torch.cuda.synchronize()

    figures = steps_of(step)
    return {"total": total.tolist(), **figures}


@feature
def out_of_memory_and_recovery():
    import torch

    refused = 0
    for _ in range(3):
        try:
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            refused += 1
    return {"refused": refused, "sum": float(torch.ones(1 << 20, device="cuda").sum())}


@feature
def generate_with_static_cache():
    import torch
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, vocab_size=1000, max_position_embeddings=256,
    )
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(config).cuda().half().eval()
    prompt = torch.arange(1, 17, device="cuda")[None]
    model.generation_config.cache_implementation = "static"
    out = model.generate(prompt, max_new_tokens=32, do_sample=False, pad_token_id=0)
    return {"tokens": out[0].tolist()}


@feature
def fine_tuning_adapters():
    import torch

    torch.manual_seed(4)
    base = [torch.nn.Linear(1024, 1024, bias=False).cuda().requires_grad_(False) for _ in range(8)]
    down = [torch.nn.Linear(1024, 8, bias=False).cuda() for _ in range(8)]
    up = [torch.nn.Linear(8, 1024, bias=False).cuda() for _ in range(8)]
    weights = [w for layer in down + up for w in layer.parameters()]
    optimizer = torch.optim.AdamW(weights, 1e-3)
    data = torch.ones(512, 1024, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        x = data
        for a, b, c in zip(base, down, up):
            x = torch.relu(a(x) + c(b(x)))
        x.square().mean().backward()
        optimizer.step()

    figures = steps_of(step)
    return {"weights": digest(up[0].weight), **figures}


@feature
def jax_training():
    import jax
    import jax.numpy as jnp

    @jax.jit
    def step(w, x):
        loss = lambda w: jnp.mean(jnp.tanh(x @ w) ** 2)
        return w - 0.1 * jax.grad(loss)(w)

    w = jnp.ones((512, 512)) / 512
    x = jnp.ones((256, 512))
    times = []
    for _ in range(30):
        begun = time.perf_counter()
        w = step(w, x).block_until_ready()
        times.append((time.perf_counter() - begun) * 1e3)
    return {"sum": round(float(w.sum()), 4), "step_ms": statistics.median(times[5:])}


@feature
def cupy_work():
    import cupy

    x = cupy.arange(1 << 20, dtype=cupy.float32)
    y = (x * 2 + 1).sum()
    kernel = cupy.ElementwiseKernel("float32 x", "float32 y", "y = x * x", "square")
    pool = cupy.get_default_memory_pool()
    used = pool.used_bytes()
    return {"sum": float(y), "squares": float(kernel(x).sum()), "used": used}


@feature
def triton_kernel():
    import torch
    import triton
    import triton.language as tl

    x = torch.arange(1 << 16, device="cuda", dtype=torch.float32)
    y = torch.empty_like(x)
    TRITON.add[(64,)](x, y, x.numel(), BLOCK=1024)
    return {"sum": float(y.double().sum())}


class TRITON:
    """Filled when Triton is there: its kernels have to be functions of a file."""


try:
    if "triton_kernel" in sys.argv:
        import triton
        import triton.language as tl

        @triton.jit
        def _add(x, y, n, BLOCK: tl.constexpr):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

        TRITON.add = _add
except ImportError:
    pass


def one(name):
    """Runs one feature in this process and prints its result."""
    try:
        result = FEATURES[name]()
    except ImportError as error:
        result = {"missing": str(error).splitlines()[0]}
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"}
    print("RESULT " + json.dumps(result), flush=True)


def ran(command, out):
    with open(out, "w") as errors:
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=150)
        except subprocess.TimeoutExpired:
            return {"error": "it did not end in 150 s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    result = json.loads(lines[-1][7:]) if lines else {"error": "no result"}
    return result | ({"status": done.returncode} if done.returncode else {})


TIMES = ("step_ms", "early_ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fercuda")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--turns", type=int, default=2)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    wanted = arguments.only.split(",") if arguments.only else list(FEATURES)
    rows, differs = [], False
    for name in wanted:
        own = [sys.executable, str(pathlib.Path(__file__).resolve()), "--feature", name]
        governed = [arguments.fercuda, "run", "--", *own]
        results = {"bare": [], "governed": []}
        for turn in range(arguments.turns):
            order = [("bare", own), ("governed", governed)]
            for kind, command in order if turn % 2 == 0 else reversed(order):
                results[kind].append(ran(command, arguments.out / f"{name}-{kind}-{turn}.err"))
        without_times = lambda result: {k: v for k, v in result.items() if k not in TIMES}
        all = [without_times(result) for kind in results.values() for result in kind]
        equal = all.count(all[0]) == len(all)
        differs |= not equal
        row = {"feature": name, "equal": equal, "result": all[0]}
        if not equal:
            row["governed"] = [without_times(r) for r in results["governed"]]
            row["bare"] = [without_times(r) for r in results["bare"]]
        for figure in TIMES:
            medians = {
                kind: statistics.median(result[figure] for result in them)
                for kind, them in results.items()
                if them and all and figure in them[0] and len([r for r in them if figure in r]) == len(them)
            }
            if len(medians) == 2:
                row[figure] = medians | {"ratio": round(medians["governed"] / medians["bare"], 3)}
        rows.append(row)
        print(json.dumps(row), flush=True)
    (arguments.out / "features.json").write_text(json.dumps(rows, indent=1))
    lines = ["| feature | equal | step, governed to bare | steps 3 to 20 |", "|---|---|---:|---:|"]
    for row in rows:
        ratio = lambda figure: row[figure]["ratio"] if figure in row else ""
        said = "missing here" if "missing" in row["result"] else ("yes" if row["equal"] else "**no**")
        lines.append(f"| {row['feature']} | {said} | {ratio('step_ms')} | {ratio('early_ms')} |")
    (arguments.out / "features.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return int(differs)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--feature"]:
        one(sys.argv[2])
    else:
        sys.exit(main())
