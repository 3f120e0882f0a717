"""The benchmarks run here, and where frameworks are missing they say so."""

import json
import os
import pathlib
import subprocess
import sys

PAIRS = pathlib.Path(__file__).parents[1] / "benches/pairs.py"
CALLS = PAIRS.with_name("calls.py")


def test_the_benchmark_has_figures_of_what_is_here_and_reasons_for_what_is_not(tmp_path, runtime):
    out = tmp_path / "pairs.json"
    done = subprocess.run(
        [sys.executable, PAIRS, "--seconds", "0.3", "--seed", "7", "--json", out],
        capture_output=True,
        text=True,
        timeout=120,
        # With checks on, what it times is checking.
        env={**os.environ, "FERCUDA_SOFT_CHECK": "0"},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result["seed"] == 7 and result["device"] == runtime.device_name
    for rows in (*result["pairs"].values(), result["lending"]):
        for name, row in rows.items():
            assert 0 < row["median_ns"] <= row["p99_ns"] <= row["max_ns"] and row["samples"] >= 50, name
    for rows in result["pairs"].values():
        assert rows["session.alloc"]["median_ns"] > rows["nothing: the clock"]["median_ns"]
    # Each is either measured or named with a reason, in both.
    measured = {name.split(".")[0] for name in result["pairs"]["alone"]} | {
        word for name in result["lending"] for word in name.replace(",", "").split()
    }
    for framework in ("torch", "cupy", "jax"):
        assert (framework in measured) != bool(result["not_run"].get(framework)), framework
        assert framework in done.stdout
    if runtime.is_software:
        assert set(result["not_run"]) == {"torch", "cupy", "jax"}


def test_the_benchmark_of_calls_has_figures_of_each(tmp_path, runtime):
    out = tmp_path / "calls.json"
    done = subprocess.run(
        [sys.executable, CALLS, "--seconds", "0.3", "--json", out],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "FERCUDA_SOFT_CHECK": "0"},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result["device"] == runtime.device_name
    calls = result["calls"]
    assert all(0 < it["median_ns"] <= it["p99_ns"] and it["samples"] >= 50 for it in calls.values())
    nothing = calls.pop("nothing: the clock")
    assert all(it["median_ns"] > nothing["median_ns"] for it in calls.values())
    assert all(name in done.stdout for name in calls)
