"""Products of few rows of `fercuda_runtime.inference.kernels` on a GPU: accuracy, speed, tiles.

    python3 tests/gpu/hf_linear.py [--only accuracy|speed|sweep] [--rows 1] [--seconds 90]

Needs a GPU, torch and triton (with a C compiler); the package is taken from where it is installed,
or else from this checkout, without its extension. Prints a line of JSON for each figure; exits 1 if
a bound is exceeded, or if a kernel could not be launched.

- accuracy: each kernel at its layers' shapes against f64, in parts of the bound of its roundings.
- speed: time in a CUDA graph over copies of the weights that do not fit the L2 cache together, and
  TB/s of weights, with the table's tiles; beside PyTorch's operators of the same, and beside reads
  (a sum) and copies of as many bytes.
- sweep: the same for candidates of tiles; per shape the best is printed last, in the form that
  `kernels/linear_table.py` takes. It ends after `--seconds`, the largest shapes last.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time
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
from fercuda_runtime.inference.kernels import linear
from fercuda_runtime.inference.kernels.linear_table import Tiles, tiles_of

DEVICE = torch.device("cuda")
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
FAILED = []

# A job, the rows of its weights, and columns. Mistral-7B and Llama-3-8B have the same projections.
# Qwen3.5-4B: hidden 2560, intermediate 9216; DeltaNet of 16 key and 32 value heads of 128;
# attention of 16 heads of 256 with a gate beside each, and 4 for keys and values.
SHAPES = {
    "mistral qkv": ("linear", (4096, 1024, 1024), 4096),
    "mistral o": ("add", (4096,), 4096),
    "mistral gate_up": ("gate_up", (14336,), 4096),
    "mistral down": ("add", (4096,), 14336),
    "qwen35 in_proj": ("linear", (8192, 4096, 32, 32), 2560),
    "qwen35 qkv": ("linear", (8192, 1024, 1024), 2560),
    "qwen35 o": ("add", (2560,), 4096),
    "qwen35 gate_up": ("gate_up", (9216,), 2560),
    "qwen35 down": ("add", (2560,), 9216),
    "mistral head": ("linear", (32768,), 4096),
    "llama head": ("linear", (128256,), 4096),
    "qwen35 head": ("linear", (248320,), 2560),
}


def say(**figures):
    print(json.dumps(figures), flush=True)


class Job:
    """A shape with its tensors: `copies` of the weights, used in turn."""

    def __init__(self, name, m, copies, dtype=torch.bfloat16):
        self.kind, self.counts, self.columns = SHAPES[name]
        weights = self.counts * 2 if self.kind == "gate_up" else self.counts
        self.x = torch.randn(m, self.columns, device=DEVICE).to(dtype)
        scale = self.columns**-0.5
        self.weights = [
            [torch.randn(it, self.columns, device=DEVICE, dtype=dtype) * scale for it in weights] for _ in range(copies)
        ]
        self.residual = torch.randn(m, self.counts[0], device=DEVICE).to(dtype)
        self.bytes = sum(weights) * self.columns * dtype.itemsize

    @property
    def key(self):
        return ("gate_up" if self.kind == "gate_up" else "linear", sum(self.counts), self.columns)

    def ours(self, at, tiles=None):
        weights = self.weights[at]
        if self.kind == "gate_up":
            return linear.attempt_gated(self.x, *weights, False, tiles)
        residual = self.residual if self.kind == "add" else None
        return linear.attempt(self.x, weights, [None] * len(weights), residual, tiles)

    def eager(self, at):
        weights = self.weights[at]
        if self.kind == "gate_up":
            return F.silu(F.linear(self.x, weights[0])) * F.linear(self.x, weights[1])
        if self.kind == "add":
            return self.residual + F.linear(self.x, weights[0])
        return tuple(F.linear(self.x, it) for it in weights)


def exact(job):
    """Results in f64, and the bounds of their errors."""
    unit, f32 = UNIT[job.x.dtype], (job.columns + 2) * 2.0**-24
    x, found = job.x.double(), []
    for weight in job.weights[0]:
        total, size = x @ weight.double().T, x.abs() @ weight.double().abs().T
        error = size * f32
        found.append((total, error + (total.abs() + error) * unit + 2.0**-24))
    if job.kind == "add":
        (total, error), = found
        total = total + job.residual.double()
        found = [(total, error + (total.abs() + error) * unit)]
    if job.kind == "gate_up":
        (gate, of_gate), (up, of_up) = found
        active = F.silu(gate)
        error = 1.2 * of_gate + active.abs() * 128 * 2.0**-24
        error = error + (active.abs() + error) * unit
        bound = error * (up.abs() + of_up) + active.abs() * of_up
        found = [(active * up, bound + ((active * up).abs() + bound) * unit + 2.0**-24)]
    return found


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def worst(results, expected):
    found = 0.0
    for result, (value, bound) in zip(as_tuple(results), expected, strict=True):
        error = ((result.double() - value).abs() / bound).max().item()
        found = max(found, error if error == error else float("inf"))
    return found


def accuracy():
    for name in SHAPES:
        if name.endswith("head"):
            continue
        for dtype, m in ((torch.bfloat16, 1), (torch.bfloat16, 2), (torch.bfloat16, 4), (torch.float16, 1)):
            job = Job(name, m, 1, dtype)
            expected = exact(job)
            ours, eager = worst(job.ours(0), expected), worst(job.eager(0), expected)
            say(what="accuracy", shape=name, rows=m, type=str(dtype)[6:], of_bound=ours, eager_of_bound=eager)
            if not ours <= 1:
                FAILED.append(f"{name} of {m} rows: {ours} of the bound")
    x, weight = torch.randn(1, 1000, device=DEVICE), torch.randn(37, 1000, device=DEVICE)
    y, = kernels.fused_linear(x, [weight])
    size = x.double().abs() @ weight.double().abs().T
    error = ((y.double() - x.double() @ weight.double().T).abs() / size).max().item() / (1002 * 2.0**-24)
    say(what="accuracy", shape="1000 to 37", rows=1, type="float32", of_bound=error)
    if not error <= 1:
        FAILED.append(f"1000 to 37 in float32: {error} of the bound")


def seconds_of(function, copies, rounds=5):
    """Median seconds of one call, of replays of a graph of one call for each copy."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function(0)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [function(at) for at in range(copies)]
    taken = []
    for turn in range(rounds + 1):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(4):
            graph.replay()
        end.record()
        end.synchronize()
        if turn:
            taken.append(start.elapsed_time(end) / 1e3 / 4 / copies)
    del kept
    return statistics.median(taken)


def copies_for(name):
    """Eight, or as many as 8 GB hold; at least two of heads, each of which is past the cache."""
    kind, counts, columns = SHAPES[name]
    size = sum(counts) * columns * 2 * (2 if kind == "gate_up" else 1)
    return max(2, min(8, 8 * 10**9 // size))


def speed(m):
    for name in SHAPES:
        copies = copies_for(name)
        job = Job(name, m, copies)
        figures = {}
        source = [torch.empty(job.bytes // 2, device=DEVICE, dtype=torch.bfloat16).zero_() for _ in range(copies)]
        target = torch.empty_like(source[0])
        jobs = {
            "ours": job.ours, "eager": job.eager, "read": lambda at, of=source: of[at].view(torch.float32).amax(),
            "copy": lambda at, of=source, to=target: to.copy_(of[at]),
        }  # fmt: skip
        for kind, function in jobs.items():
            taken = seconds_of(function, copies)
            moved = job.bytes * (2 if kind == "copy" else 1)
            figures[kind + "_us"], figures[kind + "_tbs"] = round(taken * 1e6, 2), round(moved / taken / 1e12, 3)
        used = tiles_of(*job.key, m, 2)
        say(what="speed", shape=name, rows=m, mb=round(job.bytes / 1e6, 1), tiles=list(used), **figures)
        del job, source, target, jobs


def candidates(kind, m):
    """Tiles with sums of at most 64 registers, and loads of 4 to 64 KB of a program in flight."""
    pair = 2 if kind == "gate_up" else 1
    for warps, width in ((4, 1024), (2, 512), (1, 256), (8, 2048), (4, 2048)):
        for block_n in (1, 2, 4, 8):
            for unroll in (1, 2, 4):
                sums, loads = block_n * width * m * pair // (32 * warps), block_n * width * pair * unroll * 2
                if sums <= 64 and 4096 <= loads <= 65536:
                    yield Tiles(block_n, width, warps, unroll)


def tiles_for(name, m):
    """The candidates of a shape; few for heads, which `patch` leaves to PyTorch."""
    kind, counts, columns = SHAPES[name]
    if name.endswith("head"):
        return [tiles_of("linear", sum(counts), columns, m, 2), Tiles(2, 512, 2, 2)]
    return list(candidates(kind, m))


def warm(name, m):
    """Compiles a shape's candidates into Triton's cache on disk."""
    job = Job(name, m, 1)
    for it in tiles_for(name, m):
        try:
            job.ours(0, it)
        except Exception:
            # The sweep prints it.
            continue


def warm_all(m, limit):
    """Compiles by a process a shape, and stops those that take longer."""
    command = [sys.executable, __file__, "--rows", str(m), "--warm"]
    processes = [subprocess.Popen([*command, name]) for name in SHAPES]
    ends = time.monotonic() + limit
    for process in processes:
        try:
            process.wait(max(0.1, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def sweep(m, limit):
    began, best, pending = time.monotonic(), {}, []
    warm_all(m, limit * 0.6)
    say(what="compiled", seconds=round(time.monotonic() - began, 1))
    for name in SHAPES:
        job = Job(name, m, copies_for(name))
        expected = exact(job) if not name.endswith("head") else None
        found = []
        share = (limit - (time.monotonic() - began)) / (len(SHAPES) - len(best))
        started = time.monotonic()
        for it in tiles_for(name, m):
            if time.monotonic() - started > share:
                pending.append(f"{name} from {list(it)}")
                break
            try:
                ratio = worst(job.ours(0, it), expected) if expected else None
                taken = seconds_of(lambda at, it=it, job=job: job.ours(at, it), len(job.weights), 3)
            except Exception as error:
                say(what="sweep", shape=name, rows=m, tiles=list(it), error=f"{type(error).__name__}: {error}"[:200])
                continue
            figure = round(job.bytes / taken / 1e12, 3)
            say(what="sweep", shape=name, rows=m, tiles=list(it), us=round(taken * 1e6, 2), tbs=figure)
            if ratio is not None and not ratio <= 1:
                FAILED.append(f"{name} with {it}: {ratio} of the bound")
                continue
            found.append((figure, it))
        best[name] = job.key, max(found, default=None)
        del job
    for name, (key, top) in best.items():
        say(what="best", shape=name, rows=m, tbs=top and top[0], line=top and f"{key!r}: {top[1]!r},")
    if pending:
        say(what="left out for time", shapes=pending)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=["accuracy", "speed", "sweep"])
    parser.add_argument("--rows", type=int, default=1, choices=[1, 2, 3, 4])
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--warm", choices=SHAPES, help="compile the candidates of a shape, and no more")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU\ntry: a machine with one, of compute capability 8.0 or more")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    with torch.no_grad():
        if given.warm:
            warm(given.warm, given.rows)
            return
        if given.only in (None, "accuracy"):
            accuracy()
        if given.only in (None, "speed"):
            speed(given.rows)
        if given.only in (None, "sweep"):
            sweep(given.rows, given.seconds)
    say(what="end", device=torch.cuda.get_device_name(), torch=torch.__version__, failed=FAILED)
    sys.exit(bool(FAILED))


if __name__ == "__main__":
    main()
