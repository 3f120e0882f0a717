"""What features have in common: their registry, and the process that runs one of them.

A feature is a function that returns a dict, which has to be the same with and without
`fercuda run`. One that measures calls `steps`, in which it answers its parent: each line says how
many steps to run, and 0 ends it; so two processes that are both alive step by turns.
"""

import contextlib
import hashlib
import importlib
import json
import os
import queue
import re
import sys
import time
import traceback

FEATURES = {}
# The process's own output, apart from what libraries print; set by `one`.
wire = None
commands = None


def feature(function=None, *, timed=False, alone=False, seconds=75):
    """Registers a feature. `timed`: it calls `steps`; `alone`: nothing else may use the device
    meanwhile; `seconds`: how long it may take."""

    def register(function):
        function.timed, function.alone, function.seconds = timed, alone, seconds
        FEATURES[function.__name__] = function
        return function

    return register(function) if function else register


def load(modules):
    for module in modules:
        importlib.import_module(module)


def tell(word, value=None):
    wire.write(f"{word} {json.dumps(value)}\n")
    wire.flush()


def steps(step, synchronize):
    """Runs as many steps as each line says, and tells their times in milliseconds."""
    tell("READY")
    for line in commands:
        if int(line) == 0:
            return
        times = []
        for _ in range(int(line)):
            synchronize()
            begun = time.perf_counter()
            step()
            synchronize()
            times.append((time.perf_counter() - begun) * 1e3)
        tell("TURN", times)


def digest(tensor):
    """A tensor's bytes, in 16 digits."""
    import torch

    data = tensor.detach().to("cpu").contiguous().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def normal(error):
    """An error's type and first line, without the numbers, paths and addresses of a moment."""
    first = (str(error).splitlines() or [""])[0]
    first = re.sub(r"0x[0-9a-f]+|\d[\d,.]*", "N", first)
    return f"{type(error).__name__}: {first[:200]}"


@contextlib.contextmanager
def refused(kinds, into):
    """Appends the error that the body has to raise to a list, or says that it raised none."""
    try:
        yield
    except kinds as error:
        into.append(normal(error))
    else:
        into.append("no error")


def answer(back, *children, seconds=60):
    """What children put into a queue; an error as soon as one of them has failed."""
    until = time.monotonic() + seconds
    while True:
        try:
            return back.get(timeout=0.5)
        except queue.Empty:
            failed = [child.exitcode for child in children if child.exitcode]
            if failed:
                raise RuntimeError(f"a child process ended with status {failed[0]} before it answered") from None
            if time.monotonic() > until:
                raise RuntimeError(f"the child processes did not answer in {seconds} s") from None


def one(name):
    """Runs one feature in this process and tells its result."""
    global wire, commands
    # Libraries print to stderr, and read nothing; children get neither.
    wire = os.fdopen(os.dup(1), "w")
    commands = os.fdopen(os.dup(0))
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    try:
        result = FEATURES[name]()
    except ImportError as error:
        # Only what is not there at all: a library that breaks while it is imported is an error.
        if isinstance(error, ModuleNotFoundError):
            result = {"missing": error.name or str(error)}
        else:
            traceback.print_exc()
            result = {"error": normal(error)}
    except Exception as error:
        traceback.print_exc()
        result = {"error": normal(error)}
    sys.stdout.flush()
    tell("RESULT", result)
