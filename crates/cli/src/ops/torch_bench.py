# Times PyTorch's ops: one JSON object a line on standard input, one a line on standard output.
import json
import sys


def main():
    try:
        import torch
        import torch.nn.functional as F
    except ImportError as error:
        return {"error": f"it has no PyTorch: {error}"}
    if not torch.cuda.is_available():
        return {"error": "its PyTorch sees no GPU"}
    spec = json.loads(sys.stdin.readline())
    names = {"f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f16": "float16", "bf16": "bfloat16"}
    names |= {f"f{bits}": f"float{bits}" for bits in (32, 64)}
    names |= {f"{kind}{bits}": f"{word}{bits}" for kind, word in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)}
    dtype = getattr(torch, names.get(spec["dtype"], spec["dtype"]))
    to = torch.float16 if dtype == torch.float32 else torch.float32
    shape = spec["shape"]
    last = len(shape) - 1

    def functional(name, *fixed, **options):
        return lambda *x: getattr(F, name)(*x, *fixed, **options)

    calls = {
        "copy": lambda x: x.clone(),
        "permute": lambda x: x.permute(*reversed(range(x.dim()))).contiguous(),
        "cast": lambda x: x.to(to),
        "swiglu": lambda x, gate: F.silu(gate) * x,
        "sum": lambda x: x.sum(last),
        "mean": lambda x: x.mean(last),
        "amax": lambda x: x.amax(last),
        "amin": lambda x: x.amin(last),
        "argmax": lambda x: x.argmax(last),
        "argmin": lambda x: x.argmin(last),
        "logsumexp": lambda x: x.logsumexp(last),
        "var": lambda x: x.var(last),
        "softmax": lambda x: torch.softmax(x, last),
        "log_softmax": lambda x: torch.log_softmax(x, last),
        "cumsum": lambda x: torch.cumsum(x, last),
        "cumprod": lambda x: torch.cumprod(x, last),
        "cummax": lambda x: torch.cummax(x, last),
        "cummin": lambda x: torch.cummin(x, last),
        "sort": lambda x: torch.sort(x, last),
        "argsort": lambda x: torch.argsort(x, last),
        "flip": lambda x: x.flip(last),
        "layer_norm": lambda x, *rest: F.layer_norm(x, x.shape[-1:], *rest),
        "rms_norm": lambda x, *rest: F.rms_norm(x, x.shape[-1:], *rest, eps=1e-5),
        "gelu": F.gelu,
        "gelu_tanh": functional("gelu", approximate="tanh"),
        "ln": torch.log,
        "recip": torch.reciprocal,
        "rem": torch.fmod,
        "tril": torch.tril,
        "triu": torch.triu,
        "matmul": torch.matmul,
    }
    for name in ("relu", "silu", "mish", "softplus", "elu", "relu6"):
        calls[name] = getattr(F, name)
    for name in ("abs", "neg", "sqrt", "rsqrt", "exp", "exp2", "tanh", "sigmoid", "floor", "ceil", "trunc", "square"):
        calls[name] = getattr(torch, name)
    for name in ("add", "sub", "mul", "div", "minimum", "maximum", "hypot"):
        calls[name] = getattr(torch, name)
    say({"version": torch.__version__})
    for line in sys.stdin:
        request = json.loads(line)
        call = calls.get(request["op"])
        if call is None:
            say({})
            continue
        try:
            say({"median_us": measured(torch, call, request, dtype, spec["samples"], spec["l2_bytes"])})
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}".splitlines()[0]})
    return None


def measured(torch, call, request, dtype, samples, l2_bytes):
    def drawn(shape):
        if dtype == torch.bool or not dtype.is_floating_point:
            return torch.randint(0, 2, shape, device="cuda").to(dtype)
        return torch.rand(shape, device="cuda", dtype=torch.float32).to(dtype)

    operands = [drawn(shape) for shape in request["shapes"]]
    moved = max(request["necessary_bytes"], 1)
    sets = [[x.clone() for x in operands] for _ in range(min(1024, 2 + 4 * l2_bytes // moved))]
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    at, times = 0, []
    for sample in range(samples + 3):
        begin.record()
        for _ in range(request["runs"]):
            call(*sets[at])
            at = (at + 1) % len(sets)
        end.record()
        end.synchronize()
        if sample >= 3:
            times.append(begin.elapsed_time(end) * 1e3 / request["runs"])
    return sorted(times)[len(times) // 2]


def say(answer):
    print(json.dumps(answer), flush=True)


failure = main()
if failure:
    say(failure)
