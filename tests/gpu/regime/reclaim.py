"""Memory that PyTorch and CuPy cache, wanted by JAX and the others: `fercuda run -- python3 reclaim.py`.

    fercuda run -- python3 reclaim.py [--gib N] [--turns N] [--threads N] [--budget SECONDS]

PyTorch allocates N GiB and frees them into its cache, then another library allocates as much, by
turns; meanwhile threads hold the interpreter and let it go. Each turn's times go to stderr, and at
the end a JSON object with them in milliseconds to stdout. Exit status 1 if an allocation fails or
takes a second, or a thread made no progress; 3 if PyTorch or JAX is not installed. Where an
allocation does not return within a minute, the stacks of all threads are printed, and that is 1 too.
"""

import argparse
import faulthandler
import gc
import hashlib
import importlib.util
import json
import os
import statistics
import sys
import threading
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--gib", type=int, default=100)
parser.add_argument("--turns", type=int, default=100)
parser.add_argument("--threads", type=int, default=8)
parser.add_argument("--budget", type=float, default=240, help="no turn begins after as many seconds")
arguments = parser.parse_args()
missing = [name for name in ("torch", "jax") if importlib.util.find_spec(name) is None]
if missing:
    print(json.dumps({"missing": missing}))
    raise SystemExit(3)
os.environ.setdefault("XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import torch

try:
    import cupy
except Exception as error:
    print(f"without CuPy: {type(error).__name__}: {error}", file=sys.stderr)
    cupy = None

total = torch.cuda.get_device_properties(0).total_memory
# Both at once never fit.
GIB = max(min(arguments.gib, int(total * 0.72) >> 30), 1)
BYTES = GIB << 30
stop = False
loops = [0] * arguments.threads


def churn(number):
    """Computes in the interpreter, or outside of it, or allocates a little with PyTorch."""
    data = bytes(1 << 20)
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
    parts = (1, 1, 2, 4, 8, 16)
    blocks = [torch.empty(BYTES * part // 32, dtype=torch.uint8, device="cuda") for part in parts]
    del blocks


# Compiled before anything is timed. In rows, so that an index has 32 bits.
zeros = jax.jit(lambda: jnp.zeros((GIB, 1 << 30), jnp.uint8)).lower().compile()
last = jax.jit(lambda array: array[-1, -1]).lower(jax.ShapeDtypeStruct((GIB, 1 << 30), jnp.uint8)).compile()


def by_jax():
    array = zeros()
    array.block_until_ready()
    value = int(last(array))
    array.delete()
    if value:
        raise RuntimeError(f"the last byte is {value}, not 0")


def by_cupy():
    memory = cupy.get_default_memory_pool().malloc(BYTES)
    del memory
    # What CuPy caches now, PyTorch gets in the next turn.


others = [("jax", by_jax)] + ([("cupy", by_cupy)] if cupy else [])
torch.empty(1, device="cuda")
jnp.zeros(1).block_until_ready()
threads = [threading.Thread(target=churn, args=(number,), daemon=True) for number in range(arguments.threads)]
for thread in threads:
    thread.start()
times = {name: [] for name in ("torch", *(name for name, _ in others))}
failed = []
begun = time.monotonic()
turns = 0
while turns < arguments.turns and time.monotonic() - begun < arguments.budget:
    line = []
    for name, allocate in (("torch", cached_by_torch), others[turns % len(others)]):
        faulthandler.dump_traceback_later(60, exit=True)
        at = time.monotonic()
        try:
            allocate()
        except Exception as error:
            failed.append(f"turn {turns}, {name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}")
            line.append(failed[-1])
        times[name].append((time.monotonic() - at) * 1e3)
        line.append(f"{name} {times[name][-1]:.1f} ms")
    faulthandler.cancel_dump_traceback_later()
    print(f"turn {turns}: {', '.join(line)}", file=sys.stderr, flush=True)
    turns += 1
stop = True
for thread in threads:
    thread.join(30)
gc.collect()
figures = {
    name: {"n": len(them), "median_ms": round(statistics.median(them), 2), "max_ms": round(max(them), 2)}
    for name, them in times.items()
    if them
}
slow = [name for name, them in figures.items() if them["max_ms"] > 1000]
still = [number for number, count in enumerate(loops) if count == 0]
result = {
    "gib": GIB, "turns": turns, "times": figures, "failures": len(failed), "failed": failed[:10], "slow": slow,
    "threads without progress": still, "threads that did not end": sum(thread.is_alive() for thread in threads), "loops": loops,
}
print(json.dumps(result), flush=True)
raise SystemExit(bool(failed or slow or still or turns < arguments.turns))
