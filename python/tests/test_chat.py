"""The chat program with this package's own engine, and the start of a Python under `--hf`."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fercuda_runtime import chat, guest_hooks

STARTUP = Path(guest_hooks.__file__).with_name("startup")


class Scripted:
    """An engine with given answers; `interrupt`: number of the answer that Ctrl-C ends."""

    def __init__(self, interrupt=None):
        self.seen, self.interrupt, self.is_closed = [], interrupt, False

    def answer(self, messages, answer, write):
        self.seen.append([(one["role"], one["content"]) for one in messages])
        for part in ("an ", "answer"):
            answer.count(1)
            answer.parts.append(part)
            write(part)
            if len(self.seen) == self.interrupt:
                raise KeyboardInterrupt

    def close(self):
        self.is_closed = True


def conversation(monkeypatch, capsys, engine, lines, *arguments):
    monkeypatch.setattr(chat, "_Transformers", lambda given: engine)
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    assert chat.main(["model", *arguments]) == 0
    assert engine.is_closed
    return capsys.readouterr().out


def test_a_conversation_is_remembered_until_it_is_cleared(monkeypatch, capsys):
    engine = Scripted()
    lines = ["one", "", "two", "/clear", "three", "/exit", "never"]
    out = conversation(monkeypatch, capsys, engine, lines, "--system", "be brief")
    system = ("system", "be brief")
    assert engine.seen == [
        [system, ("user", "one")],
        [system, ("user", "one"), ("assistant", "an answer"), ("user", "two")],
        [system, ("user", "three")],
    ]
    assert out.count("an answer\n[2 tokens, first after ") == 3 and out.count("tokens/s]") == 3


def test_ctrl_c_ends_an_answer_and_keeps_its_part(monkeypatch, capsys):
    engine = Scripted(interrupt=1)
    out = conversation(monkeypatch, capsys, engine, ["one", "two"])
    assert engine.seen[1] == [("user", "one"), ("assistant", "an "), ("user", "two")]
    assert "an  ...\n[1 tokens" in out


def test_what_fails_in_an_answer_ends_that_answer_alone(monkeypatch, capsys):
    class Failing(Scripted):
        def answer(self, messages, answer, write):
            if messages[-1]["content"] == "two":
                raise RuntimeError("CUDA out of memory")
            super().answer(messages, answer, write)

    engine = Failing()
    out = conversation(monkeypatch, capsys, engine, ["one", "two", "thr\udcffee", "four"])
    assert out.count("an answer") == 2
    assert engine.seen[1] == [("user", "one"), ("assistant", "an answer"), ("user", "four")]


RUN = """
import sys
from fercuda_runtime import chat
class Endless:
    def __init__(self, given): pass
    def answer(self, messages, answer, write):
        while True:
            answer.count(1)
            answer.parts.append("word ")
            write("word ")
    def close(self): print("closed", file=sys.stderr)
chat._Transformers = Endless
sys.exit(chat.main(["m"]))
"""


def test_a_reader_that_leaves_ends_the_program():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", RUN], **pipes) as process:
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.read(5) == b"word "
        process.stdout.close()
        assert process.stderr.read().splitlines()[-1:] == [b"closed"]
        assert process.wait(60) == 1


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_an_interrupt_ends_an_answer_and_the_next_one_the_program():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", RUN], **pipes) as process:
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.read(5) == b"word "
        process.send_signal(signal.SIGINT)
        while not process.stdout.readline().startswith(b"["):
            pass
        process.send_signal(signal.SIGINT)
        # 130 before it waits for input again, 0 while it does.
        assert process.wait(60) in (0, 130)
        assert process.stderr.read() == b"closed\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["m", "--max-tokens", "0"], "--max-tokens must be positive"),
        (["m", "--temperature", "-1"], "--temperature must not be negative"),
        (["m", "--top-p", "3"], "--top-p must be above 0"),
        (["m", "--engine", "native", "--4bit"], "--4bit is of the engine hf"),
        (["model.gguf"], "try: --engine native"),
        (["/no/such/folder"], "/no/such/folder is no folder"),
        (["/no/such/model.gguf", "--engine", "native"], "/no/such/model.gguf"),
    ],
)
def test_what_cannot_be_done_is_said(capsys, arguments, words):
    assert chat.main(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_folder_in_the_search_path_hooks_the_first_import(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.users_own = True\n")
    (tmp_path / "torch.py").write_text("import os; conf = os.environ.get('PYTORCH_CUDA_ALLOC_CONF')\n")
    script = (
        "import sys; assert users_own; assert 'fercuda_runtime' not in sys.modules; import torch; "
        "assert torch.conf == 'backend:cudaMallocAsync', torch.conf; "
        "assert any(type(it).__name__ == '_GenerationFinder' for it in sys.meta_path)"
    )
    package = Path(chat.__file__).parents[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTORCH")}
    environment.pop("PYTHONSAFEPATH", None)
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (STARTUP, tmp_path, package)))
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


def test_a_search_for_transformers_does_not_use_up_the_hook(tmp_path):
    folder = tmp_path / "transformers" / "generation"
    folder.mkdir(parents=True)
    (tmp_path / "transformers" / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "utils.py").write_text("class Other: pass\n")
    script = """
import importlib.util
from fercuda_runtime.guest_hooks import hf_hook as function
import sys
module = sys.modules["fercuda_runtime.guest_hooks.hf_hook"]
watched = []
module._watch = lambda: watched.append(1)
function()
name = "transformers.generation.utils"
for _ in range(2):
    assert importlib.util.find_spec(name) is not None and not watched
import transformers.generation.utils as utils
assert utils.Other and watched == [1]
assert not any(type(it).__name__ == "_GenerationFinder" for it in sys.meta_path)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, Path(chat.__file__).parents[1])))}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
