"""Framework tests on a GPU with and without `fercuda run`, checked by the ledger and by comparing
results.

    python3 judge.py FERCUDA OUT_DIR [--only NAME,...] [--times N]

Each case runs bare and governed, alternating in order. In the governed run, no memory may be
ungoverned or served by the driver as a fallback, and the results must equal the bare run's. OUT_DIR
gets `regime.json` and `regime.md`. Exit status 1 if any case fails.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
# XLA autotuning times candidates and takes the fastest, so two bare runs may differ; level 0 disables
# it, and then they do not.
JAX = {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}


def allocator(setting):
    """PyTorch's allocator setting, under both of its names."""
    return dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), setting)


# A user's setting takes precedence over `fercuda run`'s, so these select each framework's mode.
CASES = {
    "torch, as fercuda run sets it": ("torch_train", {}, 5),
    "torch, default caching": ("torch_train", allocator("backend:native"), 1),
    "torch, no caching": ("torch_train", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", **allocator("backend:native")}, 1),
    "torch, backend:cudaMallocAsync": ("torch_train", allocator("backend:cudaMallocAsync"), 1),
    "torch, expandable segments": ("torch_train", allocator("expandable_segments:True"), 1),
    "torch, CUDA graphs": ("torch_graphs", allocator("backend:native"), 1),
    "torch, CUDA graphs, backend:cudaMallocAsync": ("torch_graphs", allocator("backend:cudaMallocAsync"), 1),
    "jax, default": ("jax_train", {**JAX, "XLA_PYTHON_CLIENT_ALLOCATOR": "default", "XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, 1),
    "jax, platform": ("jax_train", {**JAX, "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, 1),
    "jax, cuda_async": ("jax_train", {**JAX, "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, 1),
    "cupy": ("cupy_work", {}, 1),
    "triton": ("triton_work", {}, 1),
    "torch, jax, cupy and triton in one process": ("all_four", JAX, 1),
    "torch and jax, each wanting 62 % of the card": ("both_hungry", {}, 1),
}
# The bare run of this case runs out of memory, as intended.
MUST_FAIL_BARE = {"torch and jax, each wanting 62 % of the card"}
# Measurements of a run, not its results.
FIGURES = ("step_ms", "pair_us", "torch_peak_allocated", "torch_peak_reserved", "torch_figures")


def computed(result):
    if isinstance(result, dict):
        return {k: computed(v) for k, v in result.items() if k not in FIGURES}
    return result


def run(command, environment, out, label):
    begun = time.monotonic()
    with open(out / f"{label}.err", "w") as errors:
        done = subprocess.run(
            command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=120
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    result = json.loads(lines[-1]) if lines else {"failed": f"exit status {done.returncode}, no result"}
    return {"status": done.returncode, "seconds": time.monotonic() - begun, "result": result}


def figures(snapshots):
    """Figures of the first device in the ledgers of one run."""
    devices = [d for s in snapshots for d in s["devices"] if d["device"] == 0]
    events = {}
    for d in devices:
        for kind, count in d["event_counts"].items():
            events[kind] = events.get(kind, 0) + count
    held = [e["detail"] for s in snapshots for e in s["events"] if e["kind"] == "growth"]
    tenants = {}
    for s in snapshots:
        for t in s["tenants"]:
            peak = sum(a["peak_bytes"] for a in t["accounts"])
            if peak:
                tenants[t["name"]] = tenants.get(t["name"], 0) + peak
    return {
        "ungoverned_bytes": sum(d["ungoverned_bytes"] for d in devices),
        "fallback": events.get("fallback", 0),
        "driver_used_bytes": sum(d["driver_total_bytes"] - d["driver_free_bytes"] for d in devices),
        "governed": {g["kind"]: g["bytes"] for d in devices for g in d["governed"]},
        "pooled_bytes": sum(d["pooled_bytes"] for d in devices),
        "peak_live_bytes": sum(d["peak_bytes"] for d in devices),
        "peak_physical_bytes": max(held, default=0),
        "allocs": sum(d["allocs"] for d in devices),
        "events": events,
        "tenant_peaks": tenants,
    }


def worst(ledgers):
    """The run with the largest overhead over live memory, or one without figures in its ledger."""
    ratio = lambda seen: seen["peak_physical_bytes"] / max(seen["peak_live_bytes"], 1)
    return max(ledgers, key=lambda seen: float("inf") if "unreadable" in seen else ratio(seen))


def step_ms(result):
    return result["result"].get("step_ms")


def judge(name, fercuda, out, times):
    program, environment, usual = CASES[name]
    label = "".join(c if c.isalnum() else "-" for c in name)
    bare, governed, ledgers = [], [], []
    command = [sys.executable, str(HERE / "tenants.py"), program]
    for n in range(times or usual):
        # The baseline is PyTorch's caching allocator, which is the default.
        if n % 2 == 0:
            bare.append(run(command, environment, out, f"{label}-bare-{n}"))
        with tempfile.NamedTemporaryFile(suffix=".json", delete=False) as file:
            path = file.name
        wrapped = [fercuda, "run", "--report", "--json", path, "--", *command]
        governed.append(run(wrapped, environment, out, f"{label}-governed-{n}"))
        if n % 2 == 1:
            bare.append(run(command, environment, out, f"{label}-bare-{n}"))
        try:
            ledgers.append(figures(json.loads(pathlib.Path(path).read_text())["processes"]))
        except (OSError, ValueError, KeyError) as error:
            ledgers.append({"unreadable": f"{type(error).__name__}: {error}"})
        os.unlink(path)
    problems = []
    for n in range(times or usual):
        if governed[n]["status"] != 0:
            problems.append(f"governed run failed: {governed[n]['result'].get('failed')}")
        if name in MUST_FAIL_BARE:
            if bare[n]["status"] == 0:
                problems.append("the bare run was to run out of memory")
        elif computed(bare[n]["result"]) != computed(governed[n]["result"]):
            problems.append("results differ")
        seen = ledgers[n]
        if "unreadable" in seen:
            problems.append(seen["unreadable"])
            continue
        for what in ("ungoverned_bytes", "fallback"):
            if seen[what] != 0:
                problems.append(f"{what} = {seen[what]}")
        if not seen["allocs"] and not seen["governed"].get("vmm"):
            problems.append("nothing was governed")
    case = {"name": name, "problems": problems, "bare": bare, "governed": governed, "ledgers": ledgers}
    pairs = [(a, b) for a, b in zip(map(step_ms, bare), map(step_ms, governed)) if a and b]
    if pairs:
        ratios = sorted(b / a for a, b in pairs)
        case["step_ms"] = {
            "bare": statistics.median(a for a, _ in pairs),
            "governed": statistics.median(b for _, b in pairs),
            "ratio": statistics.median(ratios),
            "ratios": [round(ratio, 3) for ratio in ratios],
        }
    return case


def table(cases):
    lines = [
        "| program | verdict | step, bare / governed, median of ratios | ungoverned | fallback | peak physical / live | tenants' peaks, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        seen = worst(case["ledgers"])
        verdict = "; ".join(sorted(set(case["problems"]))) or "equal"
        step = case.get("step_ms")
        step = f"{step['bare']:.2f} / {step['governed']:.2f} ms, {step['ratio']:.3f}" if step else ""
        if "unreadable" in seen:
            lines.append(f"| {case['name']} | {verdict} | {step} | | | | |")
            continue
        live = seen["peak_live_bytes"]
        ratio = f"{seen['peak_physical_bytes'] / live:.3f}" if live else ""
        tenants = ", ".join(f"{n} {b >> 20}" for n, b in sorted(seen["tenant_peaks"].items(), key=lambda t: -t[1]))
        lines.append(
            f"| {case['name']} | {verdict} | {step} | {seen['ungoverned_bytes']} | {seen['fallback']} | {ratio} | {tenants} |"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fercuda", help="path of fercuda, with its libraries beside it")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--only", help="run only cases with one of these (comma-separated) in their name")
    parser.add_argument("--times", type=int, help="runs of each case (1, or 5 where step times are compared)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = [n for n in CASES if not args.only or any(part in n for part in args.only.split(","))]
    cases = []
    for name in wanted:
        try:
            case = judge(name, args.fercuda, args.out, args.times)
        except subprocess.TimeoutExpired as error:
            case = {"name": name, "problems": [f"took longer than {error.timeout} s"], "bare": [], "governed": [], "ledgers": [{"unreadable": ""}]}
        cases.append(case)
        print(table([case]).splitlines()[-1], flush=True)
    (args.out / "regime.json").write_text(json.dumps(cases, indent=1))
    (args.out / "regime.md").write_text(table(cases))
    return 1 if any(case["problems"] for case in cases) else 0


if __name__ == "__main__":
    sys.exit(main())
