"""Benchmark of the builder's kernels against PyTorch's, on the same data, in one run, alternating.

usage: kernels.py FOLDER [--json FILE]   (FOLDER as written by `cargo run -p fercuda-ptx --example
listings`)

Needs a GPU, torch and cuda.bindings. Results are compared with PyTorch's in f64 within bounds
derived from the sizes; exits 1 if one is exceeded. Times are device times between two events around
one call, of 50 calls, ours and PyTorch's alternating, after 5 warm-up calls. The floor is the time
to move the least data at the bandwidth of a 1 GiB copy in this run, or to compute at the f32 rate
of the multiprocessors.
"""

import ctypes
import json
import sys
from pathlib import Path

import torch
from cuda.bindings import driver

CALLS, WARM_UP = 50, 5
U = 2.0**-24


def ok(answer):
    code, *values = answer
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(code))
    return values[0] if values else None


class Kernel:
    def __init__(self, folder, name, launch):
        self.module = ok(driver.cuModuleLoadData((folder / f"{name}.ptx").read_bytes() + b"\0"))
        self.function = ok(driver.cuModuleGetFunction(self.module, name.encode()))
        self.launch = (*launch["grid"], *launch["block"], launch["shared_bytes"])
        if launch["shared_bytes"]:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            ok(driver.cuFuncSetAttribute(self.function, attribute, launch["shared_bytes"]))

    def __call__(self, *arguments):
        kinds = {torch.Tensor: ctypes.c_void_p, int: ctypes.c_uint32, float: ctypes.c_float}
        values = tuple(a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments)
        stream = torch.cuda.current_stream().cuda_stream
        ok(driver.cuLaunchKernel(self.function, *self.launch, stream, (values, tuple(kinds[type(a)] for a in arguments)), 0))


def microseconds(*functions):
    """Device times of each function's calls, alternating."""
    times = [[] for _ in functions]
    for call in range(WARM_UP + CALLS):
        for function, kept in zip(functions, times):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            function()
            end.record()
            end.synchronize()
            if call >= WARM_UP:
                kept.append(begin.elapsed_time(end) * 1e3)
    return [sorted(t) for t in times]


def spread(times):
    return {"min": times[0], "median": times[len(times) // 2], "p90": times[len(times) * 9 // 10]}


def copied_bytes_a_second():
    a, b = (torch.empty(1 << 28, device="cuda") for _ in range(2))
    (times,) = microseconds(lambda: b.copy_(a))
    return 2 * a.nbytes / times[len(times) // 2] * 1e6


def f32_operations_a_second():
    """Two for each of 128 lanes a multiprocessor and cycle, at the highest clock."""
    attributes = driver.CUdevice_attribute
    get = lambda what: ok(driver.cuDeviceGetAttribute(what, 0))
    multiprocessors = get(attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    return 256 * multiprocessors * 1e3 * get(attributes.CU_DEVICE_ATTRIBUTE_CLOCK_RATE)


class Case:
    """One kernel: our call, PyTorch's, the result with its bounds, and the least it must move or
    compute."""

    def __init__(self, name, ours, torchs, out, wanted, moved_bytes=0, operations=0):
        self.name, self.ours, self.torchs, self.out, self.wanted = name, ours, torchs, out, wanted
        self.moved_bytes, self.operations = moved_bytes, operations


def cases(kernels):
    random = lambda *shape: torch.randn(*shape, device="cuda")

    a, b = random(1 << 26), random(1 << 26)
    out = torch.empty_like(a)
    yield Case(
        "vector_add", lambda: kernels["vector_add"](a, b, out, a.numel()), lambda: torch.add(a, b, out=out),
        out, lambda: (a.double() + b.double(), U * (a.double() + b.double()).abs()), moved_bytes=3 * a.nbytes,
    )

    x, rows, cols = random(4096, 4096), 4096, 4096
    out = torch.empty_like(x)

    def softmax():
        # Each term an exponential, a row of them added in any order, a quotient; rounding x - max
        # costs its size.
        wanted = torch.softmax(x.double(), 1)
        return wanted, wanted * 2 * (cols + 80) * U

    yield Case(
        "softmax", lambda: kernels["softmax"](x, out, rows, cols), lambda: torch.softmax(x, 1, out=out),
        out, softmax, moved_bytes=2 * x.nbytes,
    )

    factor, addend = random(cols), random(cols)

    def layernorm():
        # Mean and variance are sums of a row in any order.
        wanted = torch.nn.functional.layer_norm(x.double(), (cols,), factor.double(), addend.double(), 1e-5)
        return wanted, (wanted.abs() + factor.double().abs() + addend.double().abs()) * 2 * (cols + 64) * U

    yield Case(
        "layernorm", lambda: kernels["layernorm"](x, factor, addend, out, rows, cols, 1e-5),
        lambda: torch.nn.functional.layer_norm(x, (cols,), factor, addend, 1e-5),
        out, layernorm, moved_bytes=2 * x.nbytes + 2 * factor.nbytes,
    )

    for name, n in (("gemm_64x64", 512), ("gemm_128x128", 8192)):
        a, b = random(n, n), random(n, n)
        out = torch.empty_like(a)

        def gemm():
            # n products added in any order.
            a64, b64 = a.double(), b.double()
            return a64 @ b64, (a64.abs() @ b64.abs()) * 1.01 * n * U

        yield Case(
            name, lambda: kernels[name](a, b, out, n, n, n, n, n, n, 1.0, 0.0), lambda: torch.matmul(a, b, out=out),
            out, gemm, operations=2 * n**3,
        )

    blocks = torch.randint(0, 256, (1 << 18, 144), dtype=torch.uint8, device="cuda")
    blocks[:, 1] &= 0x3B
    blocks[:, 3] &= 0x3B
    out = torch.empty(1 << 18, 256, device="cuda")
    copy_from = torch.empty((blocks.nbytes + out.nbytes) // 8, device="cuda")
    copy_to = torch.empty_like(copy_from)
    # PyTorch has none: the alternative is a copy that moves as many bytes.
    yield Case(
        "q4_k_dequantize", lambda: kernels["q4_k_dequantize"](blocks, out, blocks.shape[0]),
        lambda: copy_to.copy_(copy_from), out, None, moved_bytes=blocks.nbytes + out.nbytes,
    )


def main(folder, json_file=None):
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(seed := torch.seed() % 2**31)
    torch.zeros(1, device="cuda")
    launches = json.loads((folder / "launches.json").read_text())
    version = ok(driver.cuDriverGetVersion())
    report = {
        "device": torch.cuda.get_device_name(), "cuda": version, "torch": torch.__version__, "seed": seed, "calls": CALLS,
        "copy_bytes_a_second": copied_bytes_a_second(), "f32_operations_a_second": f32_operations_a_second(), "kernels": [],
    }
    print("{device}, CUDA {cuda}, torch {torch}, seed {seed}; us: minimum, median, 90th percentile of {calls}".format(**report))
    print(f"{'kernel':22} {'shape':26} {'ours':>25} {'PyTorch':>25} {'floor':>8} {'reached':>8}  error/bound")
    kernels = {name: Kernel(folder, name, launch) for name, launch in launches.items()}
    broken = 0
    for case in cases(kernels):
        case.out.fill_(float("nan"))
        case.ours()
        share = 0.0
        if case.wanted:
            wanted, bound = case.wanted()
            share = ((case.out.double() - wanted).abs() / bound.clamp(min=2.0**-140)).max().item()
        good = share <= 1 and bool(torch.isfinite(case.out).all())
        broken += not good
        ours, theirs = map(spread, microseconds(case.ours, case.torchs))
        floor = max(
            case.moved_bytes / report["copy_bytes_a_second"], case.operations / report["f32_operations_a_second"]
        ) * 1e6
        row = {"kernel": case.name, "shape": launches[case.name]["shape"], "us": ours, "alternative_us": theirs, "floor_us": floor, "error_of_bound": share}
        report["kernels"].append(row)
        columns = [" ".join(f"{t[k]:8.1f}" for k in ("min", "median", "p90")) for t in (ours, theirs)]
        print(f"{case.name:22} {row['shape']:26} {columns[0]} {columns[1]} {floor:8.1f} {floor / ours['median']:8.0%}  {share:.3f}" + ("" if good else "  BROKEN"))
    if json_file:
        Path(json_file).write_text(json.dumps(report, indent=1) + "\n")
    return 1 if broken else 0


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if len(arguments) not in (1, 3) or (len(arguments) == 3 and arguments[1] != "--json"):
        sys.exit(__doc__)
    sys.exit(main(Path(arguments[0]), *arguments[2:]))
