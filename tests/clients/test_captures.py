"""Calls while a stream captures: each answered as `captures.json`, which an H200 wrote, has it."""

import json
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
RECORDED = json.loads((HERE / "captures.json").read_text())["answers"]


@pytest.fixture(scope="module")
def answered():
    # in a process of its own: a capture that a call has lost must not reach other tests
    program = str(HERE / "capture_calls.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["answers"]


def test_as_many_calls_as_recorded(answered):
    assert answered.keys() == RECORDED.keys()
    assert len(RECORDED) >= 16


@pytest.mark.parametrize("name", RECORDED)
def test_answers(answered, name):
    assert answered[name] == RECORDED[name]
