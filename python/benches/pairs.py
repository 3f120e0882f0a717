"""Measures the latency of a session's allocations, compared with PyTorch's caching allocator and
CuPy's pool in one process, alternating; then the cost of lending a tensor by DLPack.

    python3 pairs.py [--seconds S] [--seed N] [--json FILE]

A pair is one allocation and its free, by dropping the reference: `session.alloc`, `torch.empty`,
`cupy.empty`, and NumPy's allocation of host memory, as the cost of a Python call. Sizes are between
512 B and 64 MiB, log-uniform, and are drawn before the clock is read. "alone": nothing else is
allocated; "among others": each pair frees one of 64 live blocks and allocates another. In a round
every contestant has the same sizes, and the order rotates with every round; the first round, in
which pools grow, is discarded. Every figure includes the clock's own time, which has a row of its
own. Nothing else runs on the device meanwhile.

Lending: a tensor of 4 KiB is borrowed and returned; "round trip" is there and back again, both
returned; "to itself" is the cost of both of the session's halves.

FERCUDA_DEVICE selects the device; on the software device only NumPy can be compared. Libraries that
are skipped are listed with the reason.
"""

import argparse
import gc
import importlib
import json
import os
import pathlib
import random
import sys
import time

import numpy as np

import fercuda_runtime
from fercuda_runtime import RuntimeConfig, RuntimeSession, guest_hooks

LEAST_BYTES, MOST_BYTES = 512, 64 << 20
LIVE = 64
TURN = 200
clock = time.perf_counter_ns


def sizes(rng, count):
    """Log-uniform, in multiples of 512."""
    steps = MOST_BYTES // LEAST_BYTES
    return [LEAST_BYTES * round(steps ** rng.random()) for _ in range(count)]


def alone(empty, sizes, _):
    times = []
    for size in sizes:
        begin = clock()
        empty(size)
        times.append(clock() - begin)
    return times


def among_others(empty, sizes, places):
    live = [None] * LIVE
    # From the same distribution as the sizes that follow.
    for at in range(LIVE):
        live[at] = empty(sizes[at])
    times = []
    for size, at in zip(sizes, places):
        begin = clock()
        live[at] = None
        live[at] = empty(size)
        times.append(clock() - begin)
    return times


def spread(times):
    times = sorted(times)
    return {
        "median_ns": times[len(times) // 2],
        "p99_ns": times[len(times) * 99 // 100],
        "max_ns": times[-1],
        "samples": len(times),
    }


def in_turns(contestants, turn, seconds):
    """Each contestant's times, in rounds until `seconds` have passed; at least one round, besides
    the discarded first."""
    times = {name: [] for name in contestants}
    names = list(contestants)
    end, count = time.monotonic() + seconds, 0
    while count < 2 or time.monotonic() < end:
        work = turn()
        first = count % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            gc.disable()
            taken = work(contestants[name])
            gc.enable()
            if count:
                times[name] += taken
        count += 1
    return {name: spread(taken) for name, taken in times.items()}


class Frameworks:
    """Installed libraries that have this device; why the others are skipped."""

    def __init__(self, runtime):
        self.found, self.not_run, self.versions = {}, {}, {}
        # JAX would take three quarters of the device's memory for itself.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        for name in ("torch", "cupy", "jax"):
            try:
                if runtime.is_software:
                    raise RuntimeError("it cannot use the software device")
                module = importlib.import_module(name)
                self.versions[name] = module.__version__
                # The first use shows whether it has the device.
                if name == "torch":
                    module.empty(1, device="cuda")
                elif name == "cupy":
                    module.empty(1)
                elif module.default_backend() != "gpu":
                    raise RuntimeError(f"its backend is {module.default_backend()}")
                self.found[name] = module
            except Exception as error:  # Libraries raise different exceptions where something is missing.
                self.not_run[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"


def pairs(session, frameworks, rng, seconds):
    contestants = {
        "nothing: the clock": lambda size: None,
        "numpy.empty, on the host": lambda size: np.empty(size, np.uint8),
        "session.alloc": lambda size: session.alloc((size,), "u8"),
    }
    if torch := frameworks.get("torch"):
        contestants[f"torch.empty, {torch.cuda.get_allocator_backend()}"] = lambda size: torch.empty(
            size, dtype=torch.uint8, device="cuda"
        )
    if cupy := frameworks.get("cupy"):
        contestants["cupy.empty"] = lambda size: cupy.empty(size, cupy.uint8)

    def turn_of(kind):
        def turn():
            given = sizes(rng, TURN)
            places = [rng.randrange(LIVE) for _ in given]
            return lambda empty: kind(empty, given, places)

        return turn

    return {
        "alone": in_turns(contestants, turn_of(alone), seconds / 2),
        "among others": in_turns(contestants, turn_of(among_others), seconds / 2),
    }


def lending(session, frameworks, seconds):
    """Times of borrowing, by lender and borrower."""
    buffer = session.alloc((1024,), "f32")
    pinned = session.alloc((1024,), "f32", regime="pinned")
    array = np.zeros(1024, np.float32)
    for it in (buffer, pinned):
        it.fill_bytes(0)
    session.synchronize()
    contestants = {
        "nothing: the clock": lambda: None,
        "numpy to numpy": lambda: np.from_dlpack(array),
        "session to numpy, pinned": lambda: np.from_dlpack(pinned),
        "session to itself": lambda: session.from_dlpack(buffer),
    }
    if torch := frameworks.get("torch"):
        tensor = torch.zeros(1024, device="cuda")
        contestants["session to torch"] = lambda: torch.from_dlpack(buffer)
        contestants["torch to session"] = lambda: session.from_dlpack(tensor)
        contestants["session to torch, round trip"] = lambda: session.from_dlpack(torch.from_dlpack(buffer))
    if cupy := frameworks.get("cupy"):
        theirs = cupy.zeros(1024, cupy.float32)
        contestants["session to cupy"] = lambda: cupy.from_dlpack(buffer)
        contestants["cupy to session"] = lambda: session.from_dlpack(theirs)
        contestants["session to cupy, round trip"] = lambda: session.from_dlpack(cupy.from_dlpack(buffer))
    if torch and cupy:
        contestants["torch to cupy"] = lambda: cupy.from_dlpack(tensor)
        contestants["torch to cupy, round trip"] = lambda: torch.from_dlpack(cupy.from_dlpack(tensor))
    if jax := frameworks.get("jax"):
        contestants["session to jax"] = lambda: jax.dlpack.from_dlpack(buffer)

    def turn():
        def work(lend):
            times = []
            for _ in range(50):
                begin = clock()
                lend()
                times.append(clock() - begin)
            return times

        return work

    return in_turns(contestants, turn, seconds)


def table(title, columns):
    """One row per contestant; median and 99th percentile in microseconds for each column."""
    names = list(next(iter(columns.values())))
    lines = [f"{title:<34}" + "".join(f"{name + ': median':>22}{'99 %':>10}" for name in columns)]
    for name in names:
        cells = (column[name] for column in columns.values())
        lines.append(
            f"  {name:<32}" + "".join(f"{it['median_ns'] / 1e3:>22.2f}{it['p99_ns'] / 1e3:>10.2f}" for it in cells)
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30, help="total duration of all rounds (30)")
    parser.add_argument("--seed", type=int, help="seed of the sizes, to repeat a run")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if args.seed is None else args.seed
    rng = random.Random(seed)
    runtime = RuntimeConfig().open()
    frameworks = Frameworks(runtime)
    with RuntimeSession("pairs", runtime=runtime) as session:
        result = {
            "device": runtime.device_name,
            "seed": seed,
            "versions": {
                "fercuda_runtime": fercuda_runtime.__version__,
                "python": ".".join(map(str, sys.version_info[:3])),
                "numpy": np.__version__,
                **frameworks.versions,
            },
            "is_hooked": guest_hooks.is_hooked(),
            "pairs": pairs(session, frameworks.found, rng, args.seconds * 2 / 3),
            "lending": lending(session, frameworks.found, args.seconds / 3),
            "not_run": frameworks.not_run,
        }
    print(f"{result['device']}, seed {seed}, {'under the hook' if result['is_hooked'] else 'without the hook'}")
    print(", ".join(f"{name} {version}" for name, version in result["versions"].items()))
    counts = {it["samples"] for part in result["pairs"].values() for it in part.values()}
    print(f"\n{table('pairs, microseconds', result['pairs'])}\n  of {min(counts)} pairs or more")
    print(f"\n{table('lending 4 KiB, microseconds', {'DLPack': result['lending']})}")
    for name, why in result["not_run"].items():
        print(f"\nnot run: {name} ({why})")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
