"""Taichi's samples over the drop-in library: they compute what its backend for processors does.

Each sample runs twice, on either backend, without a window (taichi_sample.py). Where its kernels
draw random numbers, which differ between backends, the two are compared as distributions.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
SAMPLES = Path(find_spec("taichi").origin).parent / "examples"
# Frames, for samples of which two take minutes.
FRAMES = {
    "ggui_examples/mpm3d_ggui": 1,
    "real_func/rendering/cornell_box": 1,
    "rendering/cornell_box": 1,
    "rendering/oit_renderer": 1,
}
# Samples whose kernels append to a list in the order of their threads.
IN_ANY_ORDER = {"algorithm/mciso_advanced"}
# The share of numbers that may be another: pixels at an edge, where rounding decides.
OTHERS = 0.005


def samples():
    return sorted(str(path.relative_to(SAMPLES).with_suffix("")) for path in SAMPLES.rglob("*.py"))


def run(sample, backend, folder):
    """What a sample has drawn on a backend."""
    result = folder / f"{backend}.npz"
    command = [
        sys.executable,
        HERE / "taichi_sample.py",
        backend,
        SAMPLES / f"{sample}.py",
        str(FRAMES.get(sample, 2)),
        result,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    output = "\n".join((done.stdout + done.stderr).splitlines()[-12:])
    assert done.returncode == 0, f"{backend}: {done.returncode}\n{output}"
    with np.load(result) as arrays:
        printed = done.stdout.splitlines()
        return dict(arrays), [line for line in printed if not line.startswith("[Taichi]")]


def is_random(sample):
    text = (SAMPLES / f"{sample}.py").read_text()
    return "ti.random" in text or "ti.randn" in text


def assert_equal(name, got, wanted):
    if got.dtype.kind not in "fc":
        others = got != wanted
    else:
        finite = wanted[np.isfinite(wanted)]
        scale = np.abs(finite).max(initial=0)
        others = ~np.isclose(got, wanted, rtol=1e-3, atol=1e-3 * scale, equal_nan=True)
    share = others.mean() if others.size else 0
    assert share <= OTHERS, f"{name}: {share:.2%} differ, {got[others][:4]}, {wanted[others][:4]}"


def assert_alike(name, got, wanted):
    """The same mean and spread, to a tenth of the range: for many numbers."""
    assert np.isfinite(got).all() == np.isfinite(wanted).all(), name
    if wanted.size < 1000 or not np.isfinite(wanted).all():
        return
    got, wanted = got.astype(float), wanted.astype(float)
    near = 0.1 * (wanted.max() - wanted.min()) + 1e-6
    assert abs(got.mean() - wanted.mean()) <= near, name
    assert abs(got.std() - wanted.std()) <= near, name


@pytest.mark.parametrize("sample", samples())
def test_sample(sample, tmp_path):
    got, printed = run(sample, "cuda", tmp_path)
    wanted, expected = run(sample, "x64", tmp_path)
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        mine = got[name]
        assert mine.shape == array.shape, name
        if sample in IN_ANY_ORDER:
            mine, array = np.sort(mine, axis=None), np.sort(array, axis=None)
        (assert_alike if is_random(sample) else assert_equal)(name, mine, array)
    # What draws nothing and has no fields prints.
    assert wanted or printed == expected


def test_a_wrong_result_is_seen():
    right = np.linspace(0, 1, 2000)
    assert_equal("x", right * 1.0001, right)
    assert_alike("x", right[::-1], right)
    for wrong in (right * 1.01, right + 0.01, np.where(np.arange(2000) < 20, 2, right)):
        with pytest.raises(AssertionError):
            assert_equal("x", wrong, right)
    for wrong in (right * 0.5, np.full(2000, 0.5)):
        with pytest.raises(AssertionError):
            assert_alike("x", wrong, right)
