"""Compares ops with PyTorch on one GPU: their results on random calls, and their speed.

    python3 peers.py agree [--calls N] [--seed N]
    python3 peers.py speed [--match TEXT] [--compile] [--json FILE]

`agree` draws ops, types, shapes and strides, and compares each result with PyTorch's of the same
operands in f64. The bound is a few roundings to the result's type of the largest value, times the
square root of the number of elements that are combined. The first difference of each op is
printed with the seed; the exit status is 1 if there is one.

`speed` measures each row in turns: ours, PyTorch eager and, with --compile, torch.compile. Operands
are random; the L2 cache is flushed before each run by writing 256 MiB; times are the device's, by
events, medians of 30. The share is of a copy of as many bytes, measured in the same turns.
"""

import argparse
import json
import math
import pathlib
import random
import sys
import time

import torch
import torch.nn.functional as F

from fercuda_runtime import ops

EPS = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-22, torch.float64: 2.0**-50}
DTYPES = list(EPS)


# Operands: a function of the generator, a type and a shape.
def anything(shape, dtype):
    return torch.randn(shape, device="cuda", dtype=torch.float64).to(dtype)


def positive(shape, dtype):
    return (torch.rand(shape, device="cuda", dtype=torch.float64) * 4 + 0.1).to(dtype)


def inside(shape, dtype):
    return (torch.rand(shape, device="cuda", dtype=torch.float64) * 1.8 - 0.9).to(dtype)


def truth(shape, dtype):
    return torch.rand(shape, device="cuda") < 0.5


def strided(x):
    """The same elements in another order of dimensions, or with gaps."""
    if x.dim() and random.random() < 0.4:
        order = list(range(x.dim()))
        random.shuffle(order)
        back = [order.index(k) for k in range(x.dim())]
        x = x.permute(order).contiguous().permute(back)
    if x.dim() and random.random() < 0.3:
        gaps = torch.empty((*x.shape[:-1], 2 * x.shape[-1] + 1), device=x.device, dtype=x.dtype)
        view = gaps[..., 1::2]
        view.copy_(x)
        x = view
    return x


sqrt2pi = math.sqrt(2 * math.pi)
ELEMENTS = {
    "neg": (torch.neg, [anything]),
    "abs": (torch.abs, [anything]),
    "sign": (torch.sign, [anything]),
    "square": (torch.square, [anything]),
    "cube": (lambda x: x**3, [anything]),
    "recip": (torch.reciprocal, [positive]),
    "sqrt": (torch.sqrt, [positive]),
    "rsqrt": (torch.rsqrt, [positive]),
    "exp": (torch.exp, [anything]),
    "exp2": (torch.exp2, [anything]),
    "expm1": (torch.expm1, [anything]),
    "ln": (torch.log, [positive]),
    "log2": (torch.log2, [positive]),
    "log10": (torch.log10, [positive]),
    "sinh": (torch.sinh, [anything]),
    "cosh": (torch.cosh, [anything]),
    "floor": (torch.floor, [anything]),
    "ceil": (torch.ceil, [anything]),
    "trunc": (torch.trunc, [anything]),
    "round": (torch.round, [anything]),
    "frac": (torch.frac, [anything]),
    "deg2rad": (torch.deg2rad, [anything]),
    "rad2deg": (torch.rad2deg, [anything]),
    "clamp": (lambda x: x.clamp(0, 1), [anything]),
    "add": (torch.add, [anything, anything]),
    "sub": (torch.sub, [anything, anything]),
    "mul": (torch.mul, [anything, anything]),
    "div": (torch.div, [anything, positive]),
    "minimum": (torch.minimum, [anything, anything]),
    "maximum": (torch.maximum, [anything, anything]),
    "fmin": (torch.fmin, [anything, anything]),
    "fmax": (torch.fmax, [anything, anything]),
    "hypot": (torch.hypot, [anything, anything]),
    "logaddexp": (torch.logaddexp, [anything, anything]),
    "xlogy": (torch.xlogy, [anything, positive]),
    "heaviside": (torch.heaviside, [anything, anything]),
    "lerp": (torch.lerp, [anything, anything, inside]),
    "addcmul": (torch.addcmul, [anything, anything, anything]),
    "addcdiv": (torch.addcdiv, [anything, anything, positive]),
    "where": (torch.where, [truth, anything, anything]),
    "relu": (F.relu, [anything]),
    "relu6": (F.relu6, [anything]),
    "leaky_relu": (F.leaky_relu, [anything]),
    # PyTorch's own have a sixth that is rounded to f32, in f64 too.
    "hard_sigmoid": (lambda x: (x + 3).clamp(0, 6) / 6, [anything]),
    "hard_swish": (lambda x: x * (x + 3).clamp(0, 6) / 6, [anything]),
    "hard_shrink": (F.hardshrink, [anything]),
    "soft_shrink": (F.softshrink, [anything]),
    "tanh": (torch.tanh, [anything]),
    "tanh_shrink": (F.tanhshrink, [anything]),
    "sigmoid": (torch.sigmoid, [anything]),
    "log_sigmoid": (F.logsigmoid, [anything]),
    "silu": (F.silu, [anything]),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), [anything]),
    "softplus": (F.softplus, [anything]),
    "softsign": (F.softsign, [anything]),
    "mish": (F.mish, [anything]),
    "elu": (F.elu, [anything]),
    "celu": (F.celu, [anything]),
    "selu": (F.selu, [anything]),
    "swiglu": (lambda x, gate: x * F.silu(gate), [anything, anything]),
    "reglu": (lambda x, gate: x * F.relu(gate), [anything, anything]),
    "is_nan": (torch.isnan, [anything]),
    "is_finite": (torch.isfinite, [anything]),
    "eq": (torch.eq, [anything, anything]),
    "lt": (torch.lt, [anything, anything]),
    "ge": (torch.ge, [anything, anything]),
    "copy": (torch.clone, [anything]),
}
# In f64 the compiler of expressions has no erf.
ERF = {
    "erf": (torch.erf, [anything]),
    "gelu": (F.gelu, [anything]),
    "normal_cdf": (torch.special.ndtr, [anything]),
    "geglu": (lambda x, gate: x * F.gelu(gate), [anything, anything]),
}
# Of an operand and the axes that are combined.
REDUCED = {
    "sum": lambda x, axes: x.sum(axes),
    "mean": lambda x, axes: x.mean(axes),
    "amin": lambda x, axes: x.amin(axes),
    "amax": lambda x, axes: x.amax(axes),
    "norm_l1": lambda x, axes: x.abs().sum(axes),
    "norm_l2": lambda x, axes: x.square().sum(axes).sqrt(),
    "norm_inf": lambda x, axes: x.abs().amax(axes),
    "sum_square": lambda x, axes: x.square().sum(axes),
    "mean_abs": lambda x, axes: x.abs().mean(axes),
    "logsumexp": lambda x, axes: x.logsumexp(axes),
    "count_nonzero": lambda x, axes: x.count_nonzero(axes),
}
# Of an operand and an axis.
ALONG = {
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "softmin": lambda x, axis: F.softmin(x, dim=axis),
    "cumsum": torch.cumsum,
    "logcumsumexp": torch.logcumsumexp,
    "cummax": lambda x, axis: tuple(torch.cummax(x, axis)),
    "cummin": lambda x, axis: tuple(torch.cummin(x, axis)),
    "sort": lambda x, axis: tuple(torch.sort(x, dim=axis, stable=True)),
    "argsort": lambda x, axis: torch.argsort(x, dim=axis, stable=True),
    "normalize": lambda x, axis: F.normalize(x, dim=axis),
}


def product(x, y):
    return x @ y


def calls_of(name, shape, dtype):
    """Operands, parameters, the reference in f64, and how many elements a result combines."""
    if name in ELEMENTS or name in ERF:
        reference, draws = (ELEMENTS | ERF)[name]
        shapes = [list(shape) for _ in draws]
        if len(draws) > 1 and shape and random.random() < 0.4:
            at = random.randrange(len(shape))
            shapes[-1][at] = 1
        return [draw(s, dtype) for draw, s in zip(draws, shapes, strict=True)], {}, reference, 1
    if name in REDUCED:
        axes = sorted(random.sample(range(len(shape)), random.randint(1, len(shape))))
        count = math.prod(shape[a] for a in axes)
        return [anything(shape, dtype)], {"axes": axes}, lambda x: REDUCED[name](x, axes), count
    if name in ALONG:
        axis = random.randrange(len(shape))
        return [anything(shape, dtype)], {"axis": axis}, lambda x: ALONG[name](x, axis), shape[axis]
    return SPECIAL[name](shape, dtype)


def matmul(shape, dtype):
    m, n, k = (random.randint(1, 80) for _ in range(3))
    batch = random.choice([(), (), (3,), (2, 2)])
    return [anything((*batch, m, k), dtype), anything((*batch, k, n), dtype)], {}, product, k


def linear(shape, dtype):
    m, n, k = random.choice([1, 4, 16, 40]), 8 * random.randint(1, 20), 8 * random.randint(1, 60)
    operands = [anything((m, k), dtype), anything((n, k), dtype), anything((n,), dtype)]
    return operands, {}, F.linear, k


def rows(reference, operands):
    def make(shape, dtype):
        others = [anything((shape[-1],), dtype) for _ in range(operands)]
        axis = len(shape) - 1
        return [anything(shape, dtype), *others], {"axis": axis}, reference, shape[-1]

    return make


def convolution(shape, dtype):
    groups = random.choice([1, 1, 2])
    channels, out = groups * random.randint(1, 4), groups * random.randint(1, 4)
    kernel = [random.randint(1, 3), random.randint(1, 3)]
    stride, padding, dilation = ([random.randint(1, 2) for _ in kernel] for _ in range(3))
    x = anything((2, channels, 11, 9), dtype)
    weight = anything((out, channels // groups, *kernel), dtype)
    given = {"groups": groups, "stride": stride, "padding": padding, "dilation": dilation}

    def reference(x, weight):
        return F.conv2d(x, weight, None, stride, padding, dilation, groups)

    return [x, weight], given, reference, channels * 9


def spectrum(shape, dtype):
    n = random.randint(1, 300)
    norm = random.choice(["backward", "ortho", "forward"])
    x = anything((3, n, 2), dtype)

    def reference(x):
        return torch.view_as_real(torch.fft.fft(torch.view_as_complex(x.contiguous()), norm=norm))

    # The axis of the transform, counted without that of real and imaginary parts.
    return [x], {"norm": norm, "axes": [1]}, reference, n


def positive_definite(size, dtype):
    x = anything((2, size, size), torch.float64)
    return (x @ x.mT + size * torch.eye(size, device="cuda", dtype=torch.float64)).to(dtype)


def cholesky(shape, dtype):
    size = random.randint(1, 40)
    return [positive_definite(size, dtype)], {}, torch.linalg.cholesky, 4 * size


def solve(shape, dtype):
    size = random.randint(1, 40)
    b = anything((2, size, 3), dtype)
    return [positive_definite(size, dtype), b], {}, torch.linalg.solve, 16 * size


def inverse(shape, dtype):
    size = random.randint(1, 40)
    return [positive_definite(size, dtype)], {}, torch.linalg.inv, 16 * size


def eigh(shape, dtype):
    size = random.randint(1, 30)
    # Vectors have no fixed sign, so values alone.
    return [positive_definite(size, dtype)], {}, lambda x: (torch.linalg.eigvalsh(x), None), 16 * size


def cross_entropy(shape, dtype):
    n, classes = random.randint(1, 30), random.randint(2, 200)
    index = torch.randint(0, classes, (n,), device="cuda")
    index[random.randrange(n)] = -100
    index[0] = 0
    smoothing = random.choice([0.0, 0.1])

    def reference(x, index):
        return F.cross_entropy(x, index, label_smoothing=smoothing)

    return [anything((n, classes), dtype), index], {"smoothing": smoothing}, reference, n * classes


def gather(shape, dtype):
    axis = random.randrange(len(shape))
    index = torch.randint(0, shape[axis], shape, device="cuda")
    return [anything(shape, dtype), index], {"axis": axis}, lambda x, i: x.gather(axis, i), 1


def index_select(shape, dtype):
    axis = random.randrange(len(shape))
    index = torch.randint(0, shape[axis], (random.randint(1, 50),), device="cuda")
    return [anything(shape, dtype), index], {"axis": axis}, lambda x, i: x.index_select(axis, i), 1


def pooled(shape, dtype):
    kernel = [random.randint(1, 3), random.randint(1, 3)]
    stride = [random.randint(1, 3), random.randint(1, 3)]

    def reference(x):
        return tuple(F.max_pool2d(x, kernel, stride, return_indices=True))

    return [anything((2, 3, 9, 8), dtype)], {"kernel": kernel, "stride": stride}, reference, 1


def averaged(shape, dtype):
    kernel = [random.randint(1, 3), random.randint(1, 3)]
    given = {"kernel": kernel, "stride": kernel}
    return [anything((2, 3, 9, 8), dtype)], given, lambda x: F.avg_pool2d(x, kernel), 9


def resized(shape, dtype):
    size = [random.randint(1, 20), random.randint(1, 20)]
    x = anything((2, 3, 9, 8), dtype)
    given = {"size": size, "mode": "linear"}
    return [x], given, lambda x: F.interpolate(x, size, mode="bilinear", align_corners=False), 16


def losses(reference):
    def make(shape, dtype):
        axes = list(range(len(shape)))
        return [anything(shape, dtype), anything(shape, dtype)], {"axes": axes}, reference, math.prod(shape)

    return make


SPECIAL = {
    "matmul": matmul,
    "linear": linear,
    "layer_norm": rows(lambda x, g, b: F.layer_norm(x, (x.shape[-1],), g, b), 2),
    "rms_norm": rows(lambda x, g: F.rms_norm(x, (x.shape[-1],), g, eps=1e-5), 1),
    "conv": convolution,
    "fft": spectrum,
    "cholesky": cholesky,
    "solve": solve,
    "inverse": inverse,
    "eigh": eigh,
    "cross_entropy": cross_entropy,
    "gather": gather,
    "index_select": index_select,
    "max_pool": pooled,
    "avg_pool": averaged,
    "interpolate": resized,
    "mse_loss": losses(F.mse_loss),
    "l1_loss": losses(F.l1_loss),
    "huber_loss": losses(F.huber_loss),
    "smooth_l1_loss": losses(F.smooth_l1_loss),
}
WIDE_ONLY = {"fft", "cholesky", "solve", "inverse", "eigh"}


def difference(name, ours, theirs, combined):
    """What is wrong with a result, or nothing."""
    if theirs is None:
        return None
    if tuple(ours.shape) != tuple(theirs.shape):
        return f"shape {tuple(ours.shape)} instead of {tuple(theirs.shape)}"
    if not theirs.is_floating_point():
        wrong = (ours.to(torch.int64) != theirs.to(torch.int64)).sum().item()
        return f"{wrong} of {theirs.numel()} whole numbers differ" if wrong else None
    # What the result's type cannot hold is infinite.
    top = torch.finfo(ours.dtype).max
    theirs = torch.where(theirs.abs() > top, theirs.sign() * math.inf, theirs)
    got, most = ours.double(), theirs.masked_fill(~theirs.isfinite(), 0).abs().max().clamp(min=1).item()
    # A row of nearly equal values is divided by its small deviation.
    combined *= 64 if name == "layer_norm" else 1
    bound = 8 * EPS[ours.dtype] * most * max(1, math.sqrt(combined))
    off = (got - theirs).abs().nan_to_num(nan=math.inf)
    both = (got == theirs) | (got.isnan() & theirs.isnan())
    largest = off.masked_fill(both, 0).max().item()
    return f"off by {largest:.3g}, the bound is {bound:.3g}" if largest > bound else None


def agree(calls, seed):
    random.seed(seed)
    torch.manual_seed(seed)
    names = [*ELEMENTS, *ERF, *REDUCED, *ALONG, *SPECIAL]
    done, wrong_ops, begin = {}, set(), time.monotonic()
    for at in range(calls):
        name = names[at] if at < len(names) else random.choice(names)
        dtypes = DTYPES[2:] if name in WIDE_ONLY else DTYPES[:3] if name in ERF else DTYPES
        dtype = random.choice(dtypes)
        shape = tuple(random.choice([1, 2, 3, 5, 8, 17, 64, 130]) for _ in range(random.randint(1, 3)))
        operands, given, reference, combined = calls_of(name, shape, dtype)
        operands = [strided(x) for x in operands]
        expected = reference(*[x.double() if x.is_floating_point() else x for x in operands])
        try:
            result = getattr(ops, name)(*operands, **given)
        except Exception as error:
            result, problem = None, f"{type(error).__name__}: {error}"
        else:
            pairs = (result, expected) if isinstance(result, tuple) else ((result,), (expected,))
            wrong = [difference(name, *pair, combined) for pair in zip(*pairs, strict=True)]
            problem = next((it for it in wrong if it), None)
        if problem:
            layouts = [(str(x.dtype), tuple(x.shape), x.stride()) for x in operands]
            if name not in wrong_ops:
                print(f"{name}{layouts} {given}: {problem}\ncall {at}, --seed {seed}", file=sys.stderr)
            wrong_ops.add(name)
        else:
            done[name] = done.get(name, 0) + 1
    if wrong_ops:
        print(f"{len(wrong_ops)} ops differ: {', '.join(sorted(wrong_ops))}", file=sys.stderr)
        return 1
    print(f"{calls} calls of {len(done)} ops agree with PyTorch {torch.__version__} in f64", end=", ")
    print(f"seed {seed}, {time.monotonic() - begin:.0f} s")
    return 0


def speed_rows():
    """Name, our call, PyTorch's, and the bytes that a run must move."""
    bf, f32, n = torch.bfloat16, torch.float32, 1 << 26

    def r(*shape, dtype=bf):
        return torch.randn(*shape, device="cuda", dtype=f32).to(dtype)

    def size(*tensors):
        return sum(x.numel() * x.element_size() for x in tensors)

    for dtype, label in ((f32, "f32"), (bf, "bf16")):
        a, c = r(n, dtype=dtype), r(n, dtype=dtype)
        o = torch.empty_like(a)
        yield f"add {label} 64M", lambda: ops.add(a, c, out=o), lambda: torch.add(a, c, out=o), size(a, c, o)
        yield f"gelu {label} 64M", lambda: ops.gelu(a, out=o), lambda: F.gelu(a), size(a, o)
    g, u = r(8192, 14336), r(8192, 14336)
    o = torch.empty_like(g)
    yield "swiglu bf16 8192x14336", lambda: ops.swiglu(u, g, out=o), lambda: F.silu(g) * u, size(g, u, o)
    for m, k, dtype, label in ((4096, 4096, f32, "f32"), (8192, 8192, bf, "bf16"), (65536, 1024, bf, "bf16"), (64, 131072, bf, "bf16")):
        x, w = r(m, k, dtype=dtype), torch.ones(k, device="cuda", dtype=dtype)
        o = torch.empty_like(x)
        name = f"{label} {m}x{k}"
        yield f"softmax {name}", lambda: ops.softmax(x, axis=1, out=o), lambda: torch.softmax(x, -1), size(x, o)
        yield f"layer_norm {name}", lambda: ops.layer_norm(x, w, w, axis=1, out=o), lambda: F.layer_norm(x, (k,), w, w), size(x, o)
        yield f"rms_norm {name}", lambda: ops.rms_norm(x, w, axis=1, out=o), lambda: F.rms_norm(x, (k,), w), size(x, o)
    x = r(8192, 8192, dtype=f32)
    rows, all_, o = torch.empty(8192, device="cuda"), torch.empty((), device="cuda"), torch.empty_like(x)
    yield "sum rows f32 8192x8192", lambda: ops.sum(x, axes=1, out=rows), lambda: x.sum(-1), size(x)
    yield "sum columns f32 8192x8192", lambda: ops.sum(x, axes=0, out=rows), lambda: x.sum(0), size(x)
    yield "sum all f32 8192x8192", lambda: ops.sum(x, axes=(0, 1), out=all_), lambda: x.sum(), size(x)
    yield "transpose f32 8192x8192", lambda: ops.permute(x, out=o), lambda: x.t().contiguous(), size(x, o)
    yield "cumsum f32 8192x8192", lambda: ops.cumsum(x, axis=1, out=o), lambda: torch.cumsum(x, 1), size(x, o)
    logits, index = r(4096, 128256), torch.randint(0, 128256, (4096,), device="cuda")
    yield "cross_entropy bf16 4096x128256", lambda: ops.cross_entropy(logits, index, axis=1), lambda: F.cross_entropy(logits, index), size(logits)
    for m in (64, 1):
        x = r(m, 128256)
        yield f"argmax bf16 {m}x128256", lambda: ops.argmax(x, axes=1), lambda: x.argmax(-1), size(x)
        yield f"topk50 bf16 {m}x128256", lambda: ops.topk(x, k=50, axis=1), lambda: x.topk(50), size(x)
    x = r(1 << 24, dtype=f32)
    o = torch.empty_like(x)
    yield "sort f32 16M", lambda: ops.sort(x, axis=0), lambda: torch.sort(x), size(x, x)
    yield "cumsum f32 16M", lambda: ops.cumsum(x, axis=0, out=o), lambda: torch.cumsum(x, 0), size(x, o)
    table, at = r(1 << 20, 128), torch.randint(0, 1 << 20, (1 << 20,), device="cuda")
    o = torch.empty_like(table)
    yield "index_select bf16 1Mx128", lambda: ops.index_select(table, at, axis=0, out=o), lambda: table.index_select(0, at), size(table, o)
    for m in (1, 8, 32, 128):
        x, w = r(m, 4096), torch.ones(4096, device="cuda", dtype=bf)
        o = torch.empty_like(x)
        yield f"rms_norm bf16 {m}x4096", lambda: ops.rms_norm(x, w, axis=1, out=o), lambda: F.rms_norm(x, (4096,), w), size(x, o)
        yield f"softmax bf16 {m}x4096", lambda: ops.softmax(x, axis=1, out=o), lambda: torch.softmax(x, -1), size(x, o)
    for m, out, k in ((1, 4096, 4096), (1, 14336, 4096), (16, 4096, 4096), (4096, 4096, 4096)):
        x, w, o = r(m, k), r(out, k), r(m, out)
        yield f"linear bf16 {m}x{out}x{k}", lambda: ops.linear(x, w, out=o), lambda: F.linear(x, w), size(x, w, o)
    x = r(32, 256, 56, 56)
    w = r(256, 256, 3, 3)
    yield "conv bf16 32x256x56x56 k3", lambda: ops.conv(x, w, padding=(1, 1)), lambda: F.conv2d(x, w, padding=1), size(x, x, w)
    x = torch.randn(1 << 22, 2, device="cuda")
    o = torch.empty_like(x)
    z = torch.view_as_complex(x)
    yield "fft c64 4M", lambda: ops.fft(x, axes=0, out=o), lambda: torch.fft.fft(z), size(x, o)
    o = torch.empty(n, device="cuda")
    yield "random_normal f32 64M", lambda: ops.random_normal(shape=(n,), out=o), lambda: o.normal_(), size(o)
    a = r(n)
    yield "dropout bf16 64M", lambda: ops.dropout(a, p=0.1), lambda: F.dropout(a, 0.1), size(a, a)


def timed(call, flush, turns):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    taken = []
    for _ in range(turns):
        flush.zero_()
        begin.record()
        call()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) * 1e3)
    return taken


def median(values):
    return sorted(values)[len(values) // 2]


def speed(match, compiled):
    flush = torch.empty(64 << 20, device="cuda")
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    print(f"{'us':<32}{'ours':>10}{'eager':>10}{'compile':>10}{'copy':>10}{'ours/copy':>11}{'best/ours':>11}")
    found = []
    for name, ours, theirs, moved in speed_rows():
        if match not in name:
            continue
        source = torch.empty(max(moved // 2, 4), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        calls = {"ours": ours, "eager": theirs, "copy": lambda: target.copy_(source)}
        if compiled:
            calls["compile"] = torch.compile(theirs)
        taken = {key: [] for key in calls}
        problem = None
        for turn in range(4):
            for key, call in calls.items():
                try:
                    some = timed(call, flush, 10)
                except Exception as error:
                    problem = f"{key}: {type(error).__name__}: {error}".splitlines()[0]
                    some = [math.nan]
                taken[key] += some if turn else []
        us = {key: median(values) for key, values in taken.items()}
        best = min(us["eager"], us.get("compile", math.inf))
        row = {"name": name, **us, "share": us["copy"] / us["ours"], "against": best / us["ours"]}
        found.append(row)
        print(
            f"{name:<32}{us['ours']:>10.1f}{us['eager']:>10.1f}{us.get('compile', math.nan):>10.1f}"
            f"{us['copy']:>10.1f}{row['share']:>11.2f}{row['against']:>11.2f} {problem or ''}",
            flush=True,
        )
        del source, target, calls
        torch.cuda.empty_cache()
    rates = [row["eager"] / row["ours"] for row in found if row["eager"] > 0 and row["ours"] > 0]
    if rates:
        print(f"geometric mean of eager / ours: {math.exp(sum(map(math.log, rates)) / len(rates)):.2f}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["agree", "speed"])
    parser.add_argument("--calls", type=int, default=10_000, help="calls to compare (10,000)")
    parser.add_argument("--seed", type=int, default=None, help="seed of all draws (a random one)")
    parser.add_argument("--match", default="", help="rows with this text in their names")
    parser.add_argument("--compile", action="store_true", help="torch.compile beside eager")
    parser.add_argument("--json", type=pathlib.Path, help="write the rows to this file")
    args = parser.parse_args()
    if args.what == "agree":
        seed = random.randrange(1 << 32) if args.seed is None else args.seed
        sys.exit(agree(args.calls, seed))
    found = speed(args.match, args.compile)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
