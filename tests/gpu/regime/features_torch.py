"""Features of PyTorch, and of Transformers and NCCL over it. See features.py."""

import os
import pathlib
import re
import subprocess
import tempfile
import threading

from features_kit import answer, digest, feature, refused, steps

MIB = 1 << 20


def stepped(step):
    import torch

    steps(step, torch.cuda.synchronize)


def seeded(number):
    import torch

    return torch.Generator("cuda").manual_seed(number)


def small_model():
    import torch

    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512), torch.nn.LayerNorm(512)
    ).cuda()


# ---- steps ----------------------------------------------------------------------------------


@feature(timed=True)
def training_step():
    import torch

    model = small_model()
    data = torch.randn(256, 512, device="cuda", generator=seeded(1))
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(data).square().mean().backward()
        optimizer.step()

    stepped(step)
    return {"weights": digest(model[0].weight), "allocated": torch.cuda.memory_allocated()}


@feature(timed=True)
def ragged_steps():
    """A new shape in each step: an allocator that keeps nothing grows in each."""
    import torch

    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    rows = (64 + 37 * (number % 250) for number in range(100000))

    def step():
        data = torch.ones(next(rows), 512, device="cuda")
        optimizer.zero_grad(set_to_none=True)
        model(data).square().mean().backward()
        optimizer.step()

    stepped(step)
    return {"weights": digest(model[0].weight)}


@feature(timed=True)
def graph_network():
    """Messages along edges: many sizes, gathered and summed per node."""
    import torch

    nodes, edges, width = 4000, 40000, 128
    generator = torch.Generator().manual_seed(5)
    ends = torch.randint(0, nodes, (edges,), generator=generator).sort().values.cuda()
    begins = torch.randint(0, nodes, (edges,), generator=generator).cuda()
    lengths = torch.bincount(ends, minlength=nodes)
    torch.manual_seed(6)
    layers = [torch.nn.Linear(2 * width, width).cuda() for _ in range(4)]
    optimizer = torch.optim.Adam([p for layer in layers for p in layer.parameters()], 1e-3)
    data = torch.randn(nodes, width, device="cuda", generator=seeded(7))

    def step():
        optimizer.zero_grad(set_to_none=True)
        x = data
        for layer in layers:
            messages = torch.relu(layer(torch.cat([x[begins], x[ends]], 1)))
            x = torch.segment_reduce(messages, "sum", lengths=lengths, axis=0, unsafe=True)
        x.square().mean().backward()
        optimizer.step()

    stepped(step)
    # Gathers are summed by atomics on their way back, in any order: only the shape is compared.
    return {"shape": list(layers[0].weight.shape), "finite": bool(layers[0].weight.isfinite().all())}


@feature(timed=True)
def convolutions():
    import torch

    torch.backends.cudnn.deterministic = True
    torch.manual_seed(8)
    block = lambda a, b: [torch.nn.Conv2d(a, b, 3, padding=1), torch.nn.BatchNorm2d(b), torch.nn.ReLU()]
    model = torch.nn.Sequential(*block(3, 64), *block(64, 128), torch.nn.MaxPool2d(2), *block(128, 256)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    data = torch.randn(16, 3, 64, 64, device="cuda", generator=seeded(9))

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(data).square().mean().backward()
        optimizer.step()

    stepped(step)
    return {"finite": bool(model[0].weight.isfinite().all()), "running": digest(model[1].running_mean)}


@feature(timed=True)
def fine_tuning_adapters():
    import torch

    torch.manual_seed(4)
    base = [torch.nn.Linear(1024, 1024, bias=False).cuda().requires_grad_(False) for _ in range(8)]
    down = [torch.nn.Linear(1024, 8, bias=False).cuda() for _ in range(8)]
    up = [torch.nn.Linear(8, 1024, bias=False).cuda() for _ in range(8)]
    optimizer = torch.optim.AdamW([w for layer in down + up for w in layer.parameters()], 1e-3)
    data = torch.ones(512, 1024, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        x = data
        for a, b, c in zip(base, down, up):
            x = torch.relu(a(x) + c(b(x)))
        x.square().mean().backward()
        optimizer.step()

    stepped(step)
    return {"weights": digest(up[0].weight)}


@feature(timed=True)
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

    stepped(step)
    return {"weights": digest(model[0].weight), "scale": scaler.get_scale()}


@feature(timed=True)
def checkpointing():
    import torch
    from torch.utils.checkpoint import checkpoint

    model = small_model()
    data = torch.ones(256, 512, device="cuda", requires_grad=True)

    def step():
        checkpoint(model, data, use_reentrant=False).square().mean().backward()

    stepped(step)
    return {"gradient": digest(data.grad)}


@feature(timed=True)
def several_streams():
    import torch

    streams = [torch.cuda.Stream() for _ in range(4)]
    total = torch.zeros(4, device="cuda")

    def step():
        for number, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                block = torch.full((1 << 18,), float(number), device="cuda")
                total[number] = (block + 1).sum()
                block.record_stream(torch.cuda.default_stream())

    stepped(step)
    return {"total": total.tolist()}


@feature(timed=True)
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
        stepped(graph.replay)
    return {"result": digest(result)}


@feature(timed=True, seconds=150)
def graph_trees():
    """`torch.compile(mode="reduce-overhead")`, for inference."""
    import torch

    model = small_model()
    forward = torch.compile(model, mode="reduce-overhead")
    data = torch.randn(64, 512, device="cuda", generator=seeded(2))
    with torch.no_grad():
        for _ in range(4):
            result = forward(data).clone()
        stepped(lambda: forward(data))
    return {"result": digest(result), **trees()}


def trees():
    """Whether graph trees are really used; a driver's pool makes PyTorch do without them."""
    try:
        from torch._inductor.cudagraph_trees import get_manager

        manager = get_manager(0, create_if_none_exists=False)
    except Exception as error:
        return {"trees": type(error).__name__}
    return {"trees": manager is not None}


# ---- the allocator's own interface ---------------------------------------------------------------


@feature(seconds=150)
def graph_trees_in_training():
    import torch

    model = small_model()
    compiled = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    data = torch.randn(64, 512, device="cuda", generator=seeded(2))
    losses = []
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        loss = compiled(data).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(round(float(loss.detach()), 5))
    return {"losses": losses, **trees()}


@feature
def graphed_callables():
    import torch

    model = small_model()
    data = torch.randn(64, 512, device="cuda", generator=seeded(3))
    model = torch.cuda.make_graphed_callables(model, (torch.randn_like(data),))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for _ in range(5):
        optimizer.zero_grad(set_to_none=True)
        model(data).square().mean().backward()
        optimizer.step()
    return {"weights": digest(model[0].weight)}


@feature
def graphs_that_share_a_pool():
    import torch

    handle = torch.cuda.graph_pool_handle()
    data = torch.arange(MIB, device="cuda", dtype=torch.float32)
    graphs, results = [], []
    for factor in (2, 3, 4):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=handle):
            results.append((data * factor + 1).sum())
        graphs.append(graph)
    for _ in range(3):
        for graph in graphs:
            graph.replay()
    sums = [float(result) for result in results]
    graphs[0].reset()
    del graph, graphs, results
    torch.cuda.empty_cache()
    return {"sums": sums, "reserved": torch.cuda.memory_reserved()}


@feature
def memory_history_and_snapshot():
    import pickle

    import torch

    torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python")
    kept = [torch.zeros(MIB, device="cuda") for _ in range(8)]
    del kept[::2]
    snapshot = torch.cuda.memory._snapshot()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(path)
        with open(path, "rb") as file:
            dumped = pickle.load(file)
    torch.cuda.memory._record_memory_history(enabled=None)
    actions = [entry["action"] for entry in snapshot["device_traces"][0]]
    segments = snapshot["segments"]
    return {
        "actions": {action: actions.count(action) for action in sorted(set(actions))},
        "segments": [segment["total_size"] for segment in segments],
        "active": sum(segment["active_size"] for segment in segments),
        "dumped": len(dumped["device_traces"][0]) > 0 and len(dumped["segments"]) == len(segments),
        "frames": any(entry.get("frames") for entry in snapshot["device_traces"][0]),
    }


@feature
def memory_stats():
    import torch

    kept = [torch.zeros(n << 18, device="cuda") for n in range(1, 9)]
    del kept[3:5]
    stats = torch.cuda.memory_stats()
    keys = (
        "allocated_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.current",
        "active.all.current", "segment.all.allocated", "num_ooms", "num_alloc_retries",
    )
    first = {key: stats.get(key) for key in keys}
    torch.cuda.reset_peak_memory_stats()
    first["after"] = torch.cuda.max_memory_allocated()
    del kept
    torch.cuda.empty_cache()
    first["reserved after"] = torch.cuda.memory_reserved()
    first["summary"] = "Allocated memory" in torch.cuda.memory_summary()
    first["segments left"] = len(torch.cuda.memory_snapshot())
    return first


@feature(alone=True)
def free_memory_of_the_card():
    import torch

    torch.ones(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    block = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
    during, _ = torch.cuda.mem_get_info()
    del block
    torch.cuda.empty_cache()
    after, _ = torch.cuda.mem_get_info()
    properties = torch.cuda.get_device_properties(0)
    return {
        "total": total, "same total": abs(properties.total_memory - total) < (1 << 30),
        "taken GiB": round((free - during) / (1 << 30), 1), "given back": abs(after - free) <= 64 * MIB,
    }


@feature
def memory_pools():
    import torch

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.ones(MIB, device="cuda")
    outside = torch.ones(MIB, device="cuda")
    total, segments = float((inside + outside).sum()), len(pool.snapshot())
    in_it = any(s["address"] <= inside.data_ptr() < s["address"] + s["total_size"] for s in pool.snapshot())
    del inside
    return {"sum": total, "segments": segments, "in it": in_it, "uses": pool.use_count()}


OWN = r"""
#include <stddef.h>
int cudaMalloc(void **, size_t);
int cudaFree(void *);
int calls, frees;
void *take(size_t bytes, int device, void *stream) { void *at = 0; ++calls; cudaMalloc(&at, bytes); return at; }
void give(void *at, size_t bytes, int device, void *stream) { ++frees; cudaFree(at); }
"""


def own_allocator():
    """A library with an allocator over the CUDA runtime that this process has loaded."""
    import torch

    folder = tempfile.mkdtemp()
    source, library = pathlib.Path(folder, "own.c"), str(pathlib.Path(folder, "own.so"))
    source.write_text(OWN)
    maps = pathlib.Path("/proc/self/maps").read_text()
    runtime = sorted(set(re.findall(r"/\S*libcudart\S*\.so\S*", maps)))
    command = ["cc", "-shared", "-fPIC", "-w", "-o", library, str(source), *runtime[:1]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the allocator could not be compiled: {done.stderr[-300:]}")
    return torch.cuda.memory.CUDAPluggableAllocator(library, "take", "give"), library


def counted(library):
    import ctypes

    loaded = ctypes.CDLL(library)
    return [ctypes.c_int.in_dll(loaded, name).value for name in ("calls", "frees")]


@feature
def pluggable_allocator():
    import torch

    allocator, library = own_allocator()
    torch.cuda.memory.change_current_allocator(allocator)
    tensor = torch.ones(MIB, device="cuda")
    total = float((tensor * 2).sum())
    del tensor
    calls, frees = counted(library)
    return {"sum": total, "calls": calls, "frees": frees}


@feature
def pool_with_an_own_allocator():
    import torch

    allocator, library = own_allocator()
    pool = torch.cuda.MemPool(allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        inside = torch.ones(4 * MIB, device="cuda")
    total = float(inside.sum())
    calls, _ = counted(library)
    return {"sum": total, "calls": calls}


@feature
def expandable_segments_from_code():
    import torch

    settings_from_code("expandable_segments:True")
    blocks = [torch.full((n << 20,), n, dtype=torch.uint8, device="cuda") for n in range(1, 40)]
    total = sum(int(block[0]) for block in blocks)
    expandable = [segment.get("is_expandable") for segment in torch.cuda.memory_snapshot()]
    del blocks
    torch.cuda.empty_cache()
    return {"total": total, "expandable": all(expandable), "reserved": torch.cuda.memory_reserved()}


def settings_from_code(text):
    import torch

    setter = getattr(torch.cuda.memory, "_set_allocator_settings", None) or torch._C._accelerator_setAllocatorSettings
    setter(text)


@feature
def settings_of_the_allocator_from_code():
    import torch

    settings_from_code("max_split_size_mb:64,garbage_collection_threshold:0.8,roundup_power2_divisions:4")
    blocks = [torch.ones(n * 300001, dtype=torch.uint8, device="cuda") for n in range(1, 30)]
    figures = torch.cuda.memory_stats()
    total = sum(int(block.sum(dtype=torch.int64)) for block in blocks)
    return {"total": total, "allocated": figures["allocated_bytes.all.current"], "reserved": figures["reserved_bytes.all.current"]}


@feature
def expandable_segments_by_environment():
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    import torch

    blocks = [torch.full((n << 20,), n, dtype=torch.uint8, device="cuda") for n in range(1, 40)]
    total = sum(int(block[-1]) for block in blocks)
    del blocks[::2]
    more = torch.zeros(200 * MIB, dtype=torch.uint8, device="cuda")
    return {"total": total, "more": int(more.sum()), "reserved": torch.cuda.memory_reserved()}


@feature
def raw_allocations():
    import torch

    address = torch.cuda.caching_allocator_alloc(MIB)
    during = torch.cuda.memory_allocated()
    torch.cuda.caching_allocator_delete(address)
    return {"during": during, "after": torch.cuda.memory_allocated(), "is an address": address > 0}


@feature
def process_fraction():
    import torch

    torch.cuda.set_per_process_memory_fraction(0.05)
    total = torch.cuda.get_device_properties(0).total_memory
    errors = []
    with refused(torch.cuda.OutOfMemoryError, errors):
        torch.empty(int(total * 0.06), dtype=torch.uint8, device="cuda")
    small = torch.empty(int(total * 0.03), dtype=torch.uint8, device="cuda")
    with refused(torch.cuda.OutOfMemoryError, errors):
        torch.empty(int(total * 0.03), dtype=torch.uint8, device="cuda")
    torch.cuda.set_per_process_memory_fraction(1.0)
    more = torch.empty(int(total * 0.03), dtype=torch.uint8, device="cuda")
    return {"errors": errors, "given": small.numel() + more.numel()}


@feature
def out_of_memory_and_recovery():
    import torch

    seen, errors = [], []
    torch._C._cuda_attach_out_of_memory_observer(lambda device, size, *more: seen.append(size))
    for _ in range(3):
        with refused(torch.cuda.OutOfMemoryError, errors):
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    total = float(torch.ones(MIB, device="cuda").sum())
    stats = torch.cuda.memory_stats()
    return {"errors": errors, "seen": seen, "sum": total, "ooms": stats["num_ooms"], "retries": stats["num_alloc_retries"]}


@feature(alone=True, seconds=100)
def a_full_card():
    import torch

    piece = 8 << 30
    blocks, errors = [], []
    with refused(torch.cuda.OutOfMemoryError, errors):
        while len(blocks) < 64:
            blocks.append(torch.empty(piece, dtype=torch.uint8, device="cuda"))
    count = len(blocks)
    del blocks[:2]
    # From the cache, in another shape: the cached blocks are released for it.
    other = torch.empty(12 << 30, dtype=torch.uint8, device="cuda")
    other[-1] = 7
    last = int(other[-1])
    del blocks, other
    torch.cuda.empty_cache()
    return {"pieces": count, "errors": errors, "last": last, "reserved": torch.cuda.memory_reserved()}


@feature
def pinned_memory():
    import torch

    host = torch.arange(MIB, dtype=torch.float32).pin_memory()
    back = torch.empty(MIB, dtype=torch.float32, pin_memory=True)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(4):
            device = host.to("cuda", non_blocking=True)
            back.copy_(device * 2, non_blocking=True)
    stream.synchronize()
    stats = getattr(torch.cuda, "host_memory_stats", dict)()
    return {
        "pinned": host.is_pinned() and back.is_pinned(), "sum": float(back.double().sum()),
        "host blocks": stats.get("allocations.current", stats.get("allocation.current")),
    }


# ---- several processes and threads -----------------------------------------------------------------


def shared_child(queue, back):
    import torch

    tensor = queue.get(timeout=60)
    total = float(tensor.double().sum())
    tensor[0] = -1
    torch.cuda.synchronize()
    own = torch.full((MIB,), 3.0, device="cuda")
    back.put((total, own, own[512:1024]))
    del tensor
    queue.get(timeout=60)


@feature
def sharing_between_processes():
    """A part of a tensor to a spawned process, and two of its tensors back."""
    import torch
    import torch.multiprocessing as multiprocessing

    context = multiprocessing.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    child = context.Process(target=shared_child, args=(queue, back))
    child.start()
    tensor = torch.arange(MIB, device="cuda", dtype=torch.float32)
    part = tensor[4096:8192]
    queue.put(part)
    total, whole, piece = answer(back, child)
    figures = {"child": total, "changed": float(part[0]), "beside": float(tensor[4095]), "back": float(whole.sum()), "piece": float(piece.sum())}
    same = piece.data_ptr() - whole.data_ptr() == 512 * 4
    del whole, piece
    queue.put("enough")
    child.join(30)
    return figures | {"one block": same, "exit": child.exitcode}


def pooled(tensor):
    tensor += 1
    return float(tensor.sum())


@feature
def pool_of_processes():
    import torch
    import torch.multiprocessing as multiprocessing

    tensors = [torch.full((1000 * (n + 1),), float(n), device="cuda") for n in range(6)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        sums = pool.map(pooled, tensors)
        torch.cuda.synchronize()
    return {"sums": sums, "changed": [float(tensor[0]) for tensor in tensors]}


def event_child(handle, queue, back):
    import torch

    event = torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), handle)
    tensor = queue.get(timeout=60)
    event.synchronize()
    back.put(float(tensor.sum()))
    queue.get(timeout=60)


@feature
def events_between_processes():
    import torch
    import torch.multiprocessing as multiprocessing

    tensor = torch.zeros(MIB, device="cuda")
    event = torch.cuda.Event(interprocess=True)
    tensor += 5
    event.record()
    context = multiprocessing.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    child = context.Process(target=event_child, args=(event.ipc_handle(), queue, back))
    child.start()
    queue.put(tensor)
    total = answer(back, child)
    queue.put("enough")
    child.join(30)
    return {"child": total, "exit": child.exitcode}


def forked(back):
    import torch

    try:
        torch.zeros(1, device="cuda")
        back.put("no error")
    except RuntimeError as error:
        back.put(str(error).splitlines()[0])


@feature
def forked_process():
    """A child of fork may not use the parent's context; the parent goes on."""
    import multiprocessing

    import torch

    tensor = torch.ones(MIB, device="cuda")
    context = multiprocessing.get_context("fork")
    back = context.Queue()
    child = context.Process(target=forked, args=(back,))
    child.start()
    said = answer(back, child, seconds=40)
    child.join(20)
    return {"child": said, "exit": child.exitcode, "parent": float(tensor.sum())}


class Squares:
    def __len__(self):
        return 256

    def __getitem__(self, index):
        import torch

        return torch.tensor([index * index], dtype=torch.float32)


@feature
def loader_workers():
    import torch

    total = float(torch.zeros(1, device="cuda"))
    loader = torch.utils.data.DataLoader(Squares(), batch_size=32, num_workers=4, pin_memory=True, persistent_workers=True)
    for _ in range(2):
        total += sum(float(batch.cuda(non_blocking=True).sum()) for batch in loader)
    return {"total": total}


@feature
def several_threads():
    import torch

    sums = [0.0] * 8

    def work(number):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for turn in range(200):
                block = torch.full((1000 * (1 + (number * 7 + turn) % 90),), float(number), device="cuda")
                sums[number] += float((block[:1000] + 1).sum())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"sums": sums}


def rank(number, ranks, store, back):
    import torch
    import torch.distributed as distributed

    torch.cuda.set_device(number)
    distributed.init_process_group("nccl", init_method=f"file://{store}", rank=number, world_size=ranks)
    tensor = torch.full((4 * MIB,), float(number + 1), device="cuda")
    distributed.all_reduce(tensor)
    gathered = [torch.empty(1000, device="cuda") for _ in range(ranks)]
    distributed.all_gather(gathered, tensor[:1000].contiguous() * (number + 1))
    figures = float(tensor[0]), [float(it[0]) for it in gathered]
    distributed.barrier()
    distributed.destroy_process_group()
    if number == 0:
        back.put(figures)


@feature(seconds=100)
def nccl():
    """A collective over the GPUs of this machine, two at most."""
    import torch
    import torch.multiprocessing as multiprocessing

    ranks = min(torch.cuda.device_count(), 2)
    store = os.path.join(tempfile.mkdtemp(), "store")
    context = multiprocessing.get_context("spawn")
    back = context.Queue()
    children = [context.Process(target=rank, args=(number, ranks, store, back)) for number in range(ranks)]
    for child in children:
        child.start()
    figures = answer(back, *children, seconds=80)
    for child in children:
        child.join(20)
    return {"ranks": ranks, "figures": figures, "exits": [child.exitcode for child in children]}


# ---- other libraries in one process ------------------------------------------------------------------


@feature
def libraries_with_workspaces():
    """cuBLAS, cuDNN, cuSOLVER, cuFFT, cuSPARSE and CUB, each of which allocates by itself."""
    import torch

    torch.backends.cudnn.deterministic = True
    x = torch.randn(512, 512, device="cuda", generator=seeded(11))
    # Of several correct digits, as algorithms may differ with what is free.
    few = lambda value: float(f"{float(value):.4g}")
    picture = x.view(1, 1, 512, 512)
    sparse = torch.where(x > 2, x, 0.0).to_sparse_csr()
    values, order = x.flatten().sort()
    return {
        "matmul": few((x @ x.T).diagonal().sum()),
        "batched": few(torch.bmm(x.view(8, 64, 512), x.view(8, 512, 64)).abs().sum()),
        "convolution": few(torch.nn.functional.conv2d(picture, x[:5, :5].reshape(1, 1, 5, 5)).abs().sum()),
        "singular": few(torch.linalg.svdvals(x)[0]),
        "solved": few(torch.linalg.solve(x @ x.T + 512 * torch.eye(512, device="cuda"), x).abs().sum()),
        "transform": few(torch.fft.fft2(x).abs().sum()),
        "sparse": few((sparse @ x).abs().sum()),
        "sorted": [int(order[0]), int(order[-1]), few(values[1000])],
    }


@feature
def saved_and_loaded():
    import torch

    model = small_model()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "state.pt")
        torch.save({"model": model.state_dict(), "step": 7}, path)
        state = torch.load(path, map_location="cuda")
    again = small_model()
    with torch.no_grad():
        again[0].weight.zero_()
    again.load_state_dict(state["model"])
    return {"loaded": digest(again[0].weight), "same": digest(again[0].weight) == digest(model[0].weight)}


@feature
def profiler():
    import torch

    x = torch.ones(1024, 1024, device="cuda")
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds, profile_memory=True) as profile:
        y = x @ x
        z = y + 1
        torch.cuda.synchronize()
    rows = {event.key: event for event in profile.key_averages()}
    memory = lambda event: getattr(event, "device_memory_usage", getattr(event, "cuda_memory_usage", 0))
    return {"matmul": "aten::mm" in rows, "memory": memory(rows["aten::mm"]), "sum": float(z[0, 0])}


def small_llama(layers=2):
    import torch
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=4, vocab_size=1000, max_position_embeddings=256,
    )
    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(config).cuda()


@feature(seconds=100)
def generation():
    import torch

    model = small_llama().half().eval()
    prompt = torch.arange(1, 17, device="cuda")[None]
    out = model.generate(prompt, max_new_tokens=24, min_new_tokens=24, do_sample=False, pad_token_id=0)
    return {"tokens": out[0].tolist()}


@feature(seconds=170)
def generation_with_a_static_cache():
    """Transformers compiles the decoding step with graphs then."""
    import torch

    model = small_llama().half().eval()
    prompt = torch.arange(1, 17, device="cuda")[None]
    options = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    first = model.generate(prompt, cache_implementation="static", **options)
    again = model.generate(prompt, cache_implementation="static", **options)
    return {"tokens": first[0].tolist(), "same": again.tolist() == first.tolist(), **trees()}


@feature(seconds=100)
def fine_tuning_with_transformers():
    import torch

    model = small_llama()
    model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    tokens = torch.randint(0, 1000, (4, 64), device="cuda", generator=seeded(12))
    losses = []
    for _ in range(4):
        optimizer.zero_grad(set_to_none=True)
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        losses.append(round(float(loss.detach()), 4))
    return {"losses": losses}
