"""Speed and accuracy of the op `attention` on a GPU, beside PyTorch's attention by cuDNN and by its
own flash kernels, in turns.

usage: sequence_attention.py [--json FILE] [--only TEXT]

Needs a GPU of sm_90, torch, and the package fercuda_runtime (`pip install ./python`). Each shape is
drawn anew and rotated through several sets of memory; times are medians of 11 samples, in each of
which all kernels run in turns. Before that the result is compared with one in f64 on some heads: the
error's norm may be at most 1.1 times that of cuDNN, which rounds weights to 16 bits too, on the same
inputs. Exits 1 otherwise.
"""

import argparse
import json
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from fercuda_runtime import ops

# Batches, tokens, heads of queries, heads of keys, elements of a head, causal.
SHAPES = [
    *((4, tokens, 48, 48, 128, False) for tokens in (1024, 2048, 4096, 8192)),
    *((16384 // tokens, tokens, 16, 16, 128, True) for tokens in (1024, 2048, 4096, 8192, 16384)),
    (1, 8192, 32, 8, 128, True),
    *((16384 // tokens, tokens, 32, 32, 64, is_causal) for tokens in (2048, 8192) for is_causal in (False, True)),
    *((16384 // tokens, tokens, 8, 8, 256, is_causal) for tokens in (2048, 8192) for is_causal in (False, True)),
]
SAMPLES, SAMPLE_MS = 11, 1.0


def draw(shape):
    batches, tokens, heads, shared, length, _ = shape
    sizes = ((batches, tokens, heads, length), (batches, tokens, shared, length), (batches, tokens, shared, length))
    return [torch.randn(size, device="cuda").bfloat16() for size in sizes]


def torchs(q, k, v, is_causal):
    q, k, v = (it.transpose(1, 2) for it in (q, k, v))
    has_groups = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=has_groups).transpose(1, 2)


def check(shape):
    """The error's norm beside that of cuDNN, of the first heads of one sequence."""
    is_causal = shape[-1]
    q, k, v = (it[:1, :2048, :4].contiguous() for it in draw(shape))
    exact = [it.double() for it in (q, k, v)]
    with sdpa_kernel(SDPBackend.MATH):
        wanted = torchs(*exact, is_causal)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        theirs = torchs(q, k, v, is_causal)
    ours = torch.empty_like(q)
    ops.attention(q, k, v, mask="causal" if is_causal else "none", out=ours)
    norms = [((it.double() - wanted).norm() / wanted.norm()).item() for it in (ours, theirs)]
    return norms[0], norms[1]


def medians(functions):
    """Microseconds of each function, which takes the number of its set."""
    counts = []
    for function in functions:
        for at in range(3):
            function(at)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for at in range(3):
            function(at)
        end.record()
        end.synchronize()
        counts.append(max(1, min(40, round(SAMPLE_MS * 3 / begin.elapsed_time(end)))))
    pairs = [[] for _ in functions]
    for _ in range(SAMPLES):
        for function, count, kept in zip(functions, counts, pairs):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for at in range(count):
                function(at)
            end.record()
            kept.append((begin, end))
    torch.cuda.synchronize()
    return [
        sorted(begin.elapsed_time(end) * 1e3 / count for begin, end in kept)[SAMPLES // 2]
        for count, kept in zip(counts, pairs)
    ]


def measure(shape):
    batches, tokens, heads, _, length, is_causal = shape
    sets = [draw(shape) for _ in range(3)]
    outs = [torch.empty_like(q) for q, _, _ in sets]
    mask = "causal" if is_causal else "none"
    kernels = {"ours": lambda at: ops.attention(*sets[at % 3], mask=mask, out=outs[at % 3])}
    for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):

        def run(at, backend=backend):
            with sdpa_kernel(backend):
                torchs(*sets[at % 3], is_causal)

        try:
            run(0)
        except RuntimeError as error:
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        kernels[name] = run
    work = 4 * batches * heads * tokens * tokens * length * (0.5 if is_causal else 1.0)
    times = medians(list(kernels.values()))
    return {name: work / time * 1e-6 for name, time in zip(kernels, times)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="a file for all figures")
    parser.add_argument("--only", default="", help="shapes whose line has this text")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, bf16; TFLOP/s, and ours over the best of the others")
    failed, figures = 0, []
    for shape in SHAPES:
        batches, tokens, heads, shared, length, is_causal = shape
        line = f"{batches} x {tokens}, heads {heads}/{shared} of {length}, {'causal' if is_causal else 'full'}"
        if arguments.only not in line:
            continue
        own, theirs = check(shape)
        failed += own > 1.1 * theirs
        rates = measure(shape)
        others = [rate for name, rate in rates.items() if name != "ours"]
        ratio = rates["ours"] / max(others) if others else float("nan")
        shown = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
        print(f"{line}: {shown}; {ratio:.3f}; error {own:.2e}, cuDNN's {theirs:.2e}", flush=True)
        figures.append({"shape": line, "rates": rates, "error": own, "theirs": theirs})
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
