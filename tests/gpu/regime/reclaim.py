"""Memory that PyTorch and CuPy cache, wanted by JAX and the others: `fercuda run -- python3 reclaim.py`.

    fercuda run -- python3 reclaim.py [--gib N] [--turns N] [--threads N]

PyTorch allocates N GiB and frees them into its cache, then another library allocates as much, by
turns; meanwhile threads hold the interpreter and let it go. Prints a JSON object with the times of
the other libraries' allocations in milliseconds. Exit status 1 if one fails or takes a second.
"""

import argparse
import gc
import json
import os
import statistics
import threading
import time

arguments = argparse.ArgumentParser()
arguments.add_argument("--gib", type=int, default=100)
arguments.add_argument("--turns", type=int, default=100)
arguments.add_argument("--threads", type=int, default=8)
arguments = arguments.parse_args()
os.environ.setdefault("XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async")

import jax
import jax.numpy as jnp
import torch

try:
    import cupy
except ImportError:
    cupy = None

BYTES = arguments.gib << 30
stop = False
loops = [0] * arguments.threads


def churn(number):
    """Computes in the interpreter, or outside of it, or allocates a little with PyTorch."""
    data = bytes(1 << 20)
    import hashlib

    while not stop:
        if number % 3 == 0:
            sum(range(20000))
        elif number % 3 == 1:
            hashlib.sha256(data).digest()
        else:
            torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        loops[number] += 1


def cached_by_torch():
    # Segments of several sizes, as a program leaves them.
    piece = BYTES // 8
    blocks = [torch.empty(piece, dtype=torch.uint8, device="cuda") for _ in range(8)]
    del blocks


def by_jax():
    array = jax.device_put(jnp.zeros((BYTES,), jnp.uint8))
    array.block_until_ready()
    assert int(array[-1]) == 0
    array.delete()


def by_cupy():
    pool = cupy.get_default_memory_pool()
    memory = pool.malloc(BYTES)
    del memory
    # What CuPy caches now, PyTorch gets in the next turn.


others = [("jax", by_jax)] + ([("cupy", by_cupy)] if cupy else [])
torch.empty(1, device="cuda")
jnp.zeros(1).block_until_ready()
threads = [threading.Thread(target=churn, args=(number,)) for number in range(arguments.threads)]
for thread in threads:
    thread.start()
times = {name: [] for name, _ in others}
times["torch"] = []
failed = []
for turn in range(arguments.turns):
    name, allocate = others[turn % len(others)]
    for name, allocate in (("torch", cached_by_torch), (name, allocate)):
        begun = time.monotonic()
        try:
            allocate()
        except Exception as error:
            failed.append(f"turn {turn}, {name}: {str(error).splitlines()[0][:200]}")
        times[name].append((time.monotonic() - begun) * 1e3)
stop = True
for thread in threads:
    thread.join()
gc.collect()
figures = {
    name: {"n": len(all), "median_ms": round(statistics.median(all), 2), "max_ms": round(max(all), 2)}
    for name, all in times.items()
    if all
}
print(json.dumps({"gib": arguments.gib, "times": figures, "failed": failed[:10], "failures": len(failed), "loops": loops}))
raise SystemExit(bool(failed) or any(f["max_ms"] > 1000 for f in figures.values()) or not all(loops))
