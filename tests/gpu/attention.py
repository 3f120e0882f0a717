"""Accuracy and speed of our attention and PyTorch's, against f64: our error may be at most twice
theirs.

usage: attention.py FOLDER   (FOLDER as written by `cargo run -p fercuda-testkit --example listings`)

Needs a GPU, torch and cuda.bindings. Prints a table; exits 1 if a bound is exceeded. Two figures
are compared: the root mean square over all draws, and the median over the draws of the largest
error. The largest of millions of errors varies twofold between draws, for either kernel, so a
single draw says little. The worst single draw is printed. Times are medians of 20 calls, ours and
PyTorch's alternating.
"""

import ctypes
import math
import sys
from pathlib import Path

import torch
from cuda.bindings import driver

QUERIES, THREADS, DRAWS = 64, 128, 7
# Head dimension: keys per tile.
KERNELS = {32: 64, 64: 64, 128: 32}


def ok(answer):
    code, *values = answer
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(code))
    return values[0] if values else None


class Attention:
    def __init__(self, folder, d):
        name = f"attention_d{d}"
        self.module = ok(driver.cuModuleLoadData((Path(folder) / f"{name}.ptx").read_bytes() + b"\0"))
        self.function = ok(driver.cuModuleGetFunction(self.module, name.encode()))
        keys = KERNELS[d]
        self.shared = 4 * (QUERIES * (d + 4) + keys * (d + 4) + keys * d + QUERIES * (keys + 4))
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        ok(driver.cuFuncSetAttribute(self.function, attribute, self.shared))

    def __call__(self, q, k, v, causal):
        heads, q_len, d = q.shape
        kv_len = k.shape[1]
        out = torch.empty_like(q)
        pointers = tuple(t.data_ptr() for t in (q, k, v, out))
        numbers = (heads, q_len, kv_len, 1, 1 if causal else kv_len, d**-0.5)
        kinds = (ctypes.c_void_p,) * 4 + (ctypes.c_uint32,) * 4 + (ctypes.c_int32, ctypes.c_float)
        blocks = -(-q_len // QUERIES) * heads
        stream = torch.cuda.current_stream().cuda_stream
        launch = (self.function, blocks, 1, 1, THREADS, 1, 1, self.shared, stream)
        ok(driver.cuLaunchKernel(*launch, (pointers + numbers, kinds), 0))
        return out


def torchs(q, k, v, causal):
    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]


def error(got, wanted):
    """The largest error and the mean of the squares."""
    difference = got.double() - wanted
    return difference.abs().max().item(), difference.pow(2).mean().item()


def summary(errors):
    """Over draws: the median of the largest errors, the root mean square, and the largest of
    all."""
    largest = sorted(e[0] for e in errors)
    return largest[len(largest) // 2], math.sqrt(sum(e[1] for e in errors) / len(errors)), largest[-1]


def microseconds(first, second):
    times = ([], [])
    for _ in range(20):
        for function, kept in zip((first, second), times):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            function()
            end.record()
            end.synchronize()
            kept.append(begin.elapsed_time(end) * 1e3)
    return [sorted(t)[len(t) // 2] for t in times]


def main(folder):
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.zeros(1, device="cuda")
    torch.manual_seed(seed := torch.seed() % 2**31)
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "seed", seed, f"{DRAWS} draws")
    print(
        f"{'d':>4} {'heads':>5} {'q':>5} {'kv':>5} {'mask':>6} {'max':>9} {'torch':>9} {'rms':>9} {'torch':>9}"
        f" {'us':>8} {'torch':>8}  worst draw"
    )
    broken = 0
    for d in KERNELS:
        ours = Attention(folder, d)
        for heads, q_len, kv_len, causal in (
            (8, 333, 777, False),
            (8, 512, 512, True),
            (64, 2048, 2048, False),
            (64, 2048, 2048, True),
        ):
            mine, theirs, worst = [], [], 0.0
            for _ in range(DRAWS):
                q = torch.randn(heads, q_len, d, device="cuda")
                k, v = (torch.randn(heads, kv_len, d, device="cuda") for _ in range(2))
                wanted = torchs(q.double(), k.double(), v.double(), causal)
                mine.append(error(ours(q, k, v, causal), wanted))
                theirs.append(error(torchs(q, k, v, causal), wanted))
                worst = max(worst, mine[-1][0] / theirs[-1][0])
            mine, theirs = summary(mine), summary(theirs)
            times = microseconds(lambda: ours(q, k, v, causal), lambda: torchs(q, k, v, causal))
            good = all(math.isfinite(m) and m <= 2 * t for m, t in zip(mine[:2], theirs[:2]))
            broken += not good
            print(
                f"{d:4} {heads:5} {q_len:5} {kv_len:5} {'causal' if causal else 'none':>6}"
                f" {mine[0]:9.2e} {theirs[0]:9.2e} {mine[1]:9.2e} {theirs[1]:9.2e} {times[0]:8.1f} {times[1]:8.1f}"
                f"  {worst:.2f}" + ("" if good else "  more than twice")
            )
    return 1 if broken else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
