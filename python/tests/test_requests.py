"""Reboot requests from another process: `fercuda reboot --pid`, found in PATH."""

import json
import os
import subprocess
import sys
import textwrap
import threading

import pytest

from fercuda_runtime import RuntimeConfig, errors

SERVES = """
import sys
from fercuda_runtime import RuntimeConfig, RuntimeSession, errors
sys.unraisablehook = lambda it: print("heard", repr(it.exc_value), flush=True)
runtime = RuntimeConfig().open()
session = RuntimeSession("serves", runtime=runtime)
buffer = session.alloc((1000,), "f32")
buffer.fill_bytes(0)
def agree():
    print("asked", flush=True)
    return True
def fail():
    raise ValueError("of a consent")
def wait_for(word):
    sys.stdin.readline()
    try:
        print(word, len(buffer.download()), flush=True)
    except errors.SessionEndedError as error:
        print(word, "ended", error.epoch, flush=True)
"""


class Serving:
    """A process that prints its progress in lines, and continues on input lines."""

    def __init__(self, place, source):
        env = {**os.environ, "XDG_RUNTIME_DIR": str(place)}
        self.env = env
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVES + textwrap.dedent(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )

    def ask(self):
        """Runs `fercuda reboot`: its exit status and outcome."""
        done = subprocess.run(
            ["fercuda", "reboot", "--pid", str(self.process.pid), "--wait", "20", "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            env=self.env,
        )
        return done.returncode, json.loads(done.stdout)["outcome"] if done.stdout else done.stderr

    def says(self):
        return self.process.stdout.readline().strip()

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        try:
            self.process.stdin.close()
            status = self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
        assert error[0] is not None or status == 0, status


@pytest.fixture
def place(tmp_path):
    tmp_path.chmod(0o700)
    return tmp_path


def test_consent_ends_the_sessions_and_a_closed_object_gets_no_requests(place):
    with Serving(
        place,
        """
        with runtime.serve_requests(agree) as requests:
            print(requests.is_open, flush=True)
            wait_for("one")
        print(requests.is_open, flush=True)
        wait_for("two")
        """,
    ) as it:
        assert it.says() == "True"
        assert it.ask() == (0, "rebooted")
        assert it.says() == "asked"
        it.go_on()
        assert (it.says(), it.says()) == ("one ended 1", "False")
        status, said = it.ask()
        assert status == 2 and "does not accept requests" in said
        it.go_on()
        assert it.says() == "two ended 1"


@pytest.mark.parametrize(
    ("consent", "heard"),
    [("lambda: False", None), ("fail", "heard ValueError('of a consent')"), ("lambda: None", None)],
)
def test_anything_but_consent_refuses(place, consent, heard):
    with Serving(place, f"requests = runtime.serve_requests({consent}); print('up', flush=True); wait_for('one')") as it:
        assert it.says() == "up"
        assert it.ask() == (1, "refused")
        if heard:
            assert it.says() == heard
        it.go_on()
        assert it.says() == "one 4000"


def test_an_exit_that_has_begun_refuses_and_does_not_hang(place):
    # Its last lines are printed when none of our threads may enter the interpreter any more.
    with Serving(
        place,
        """
        import atexit
        from fercuda_runtime import _fercuda
        requests = runtime.serve_requests(agree)
        _fercuda.end()
        print("ends", flush=True)
        sys.stdin.readline()
        """,
    ) as it:
        assert it.says() == "ends"
        assert it.ask() == (1, "refused")
        it.go_on()
        assert it.says() == ""


def test_a_consent_callback_may_close_its_requests(place):
    with Serving(
        place,
        """
        def closes():
            requests.close()
            print("closed", flush=True)
            return True
        requests = runtime.serve_requests(closes)
        print("up", flush=True)
        wait_for("one")
        """,
    ) as it:
        assert it.says() == "up"
        assert it.ask() == (0, "rebooted")
        assert it.says() == "closed"
        it.go_on()
        assert it.says() == "one ended 1"


def test_only_one_runtime_of_a_process_takes_requests(runtime):
    other = RuntimeConfig().open()
    requests = runtime.serve_requests(lambda: True)
    with pytest.raises(errors.ServedError) as raised:
        other.serve_requests(lambda: True)
    assert raised.value.device == runtime.device
    # Two threads that close one.
    threads = [threading.Thread(target=requests.close) for _ in range(2)]
    for it in threads:
        it.start()
    for it in threads:
        it.join(30)
    assert not requests.is_open
    with other.serve_requests(lambda: True) as requests:
        assert requests.is_open
    # Collected, it is closed.
    kept = other.serve_requests(lambda: True)
    del kept
    runtime.serve_requests(lambda: True).close()
