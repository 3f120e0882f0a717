"""The package on a device: the software device with all checks on, or a GPU with
FERCUDA_DEVICE=gpu.

After each test no tenant of the process holds a byte, by the ledger. Findings of
the device's checks are reported at exit by the exit status (FERCUDA_SOFT_CHECK_EXIT).
"""

import gc
import os
import random
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from fercuda_runtime import RuntimeConfig, RuntimeSession
from fercuda_runtime.runtime import telemetry

# values[i] *= factor for i < n, after a wait of `wait_ns` that no compiler removes.
SCALE = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 values, .param .f32 factor, .param .u32 n, .param .u32 wait_ns)
{
    .reg .pred %p<3>;
    .reg .b32 %r<9>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [values];
    ld.param.f32 %f1, [factor];
    ld.param.u32 %r1, [n];
    ld.param.u32 %r5, [wait_ns];
    mov.u64 %rd4, %globaltimer;
    cvt.u64.u32 %rd5, %r5;
    add.u64 %rd4, %rd4, %rd5;
WAIT:
    mov.u64 %rd5, %globaltimer;
    setp.lt.u64 %p2, %rd5, %rd4;
    @%p2 bra WAIT;
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mad.lo.u32 %r2, %r3, %r4, %r2;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.f32 %f2, [%rd3];
    mul.f32 %f3, %f2, %f1;
    st.global.f32 [%rd3], %f3;
DONE:
    ret;
}
"""

# Usually long enough for the host to be ahead of the device; no test may fail where it is not.
SLOW_NS = 100_000_000

# Ends when the word is not 0, or at a time limit.
HOLD = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry hold(.param .u64 word, .param .u64 longest_ns)
{
    .reg .pred %p<3>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [word];
    ld.param.u64 %rd2, [longest_ns];
    mov.u64 %rd3, %globaltimer;
    add.u64 %rd2, %rd2, %rd3;
AGAIN:
    nanosleep.u32 1000;
    ld.acquire.sys.global.u32 %r1, [%rd1];
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    mov.u64 %rd3, %globaltimer;
    setp.lt.u64 %p2, %rd3, %rd2;
    @%p2 bra AGAIN;
DONE:
    ret;
}
"""


# Sessions that tests open.
OURS = {"first", "second", "small", "large", "ends", "lends", "x"}


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    runtime = RuntimeConfig().open()
    end = time.monotonic() + 60
    while True:
        gc.collect()
        # Frameworks keep their own memory; without one there are no other tenants.
        has_guests = any(name in sys.modules for name in ("torch", "cupy", "jax"))
        left = [it for it in telemetry(runtime).holders if it.tenant in OURS or not has_guests]
        if not left:
            return
        assert time.monotonic() < end, f"memory is left: {left}"
        time.sleep(0.01)


@pytest.fixture
def rng():
    """Random numbers from a fresh seed; FERCUDA_SEED repeats a run."""
    seed = int(os.environ.get("FERCUDA_SEED") or random.SystemRandom().randrange(2**32))
    print(f"FERCUDA_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def runtime():
    return RuntimeConfig().open()


@pytest.fixture
def session(runtime):
    with RuntimeSession("first", runtime=runtime) as session:
        yield session


@pytest.fixture
def other(runtime):
    with RuntimeSession("second", runtime=runtime) as session:
        yield session


@pytest.fixture
def scale(session):
    return session.load(SCALE).function("scale")


class Held:
    """Blocks a session's stream until the test releases it."""

    # Work that was not released by then was blocked.
    LONGEST_NS = 60_000_000_000

    def __init__(self, session):
        self.session = session
        self.kernel = session.load(HOLD).function("hold")
        self.buffer = session.alloc((1,), "u32", regime="pinned")
        self.buffer.fill_bytes(0)
        self.word = np.from_dlpack(self.buffer)

    def job(self):
        return self.session.launch_async(self.kernel, 1, 1, [self.buffer, self.LONGEST_NS])

    def let_go(self):
        self.word[0] = 1


@pytest.fixture
def held(session):
    held = Held(session)
    yield held
    held.let_go()
    session.synchronize()
    held.word = held.buffer = held.kernel = None


def buffer_of(session, array, **more):
    buffer = session.alloc(array.shape, array.dtype, **more)
    buffer.upload(array)
    return buffer


def array_of(buffer, dtype=None):
    return np.frombuffer(buffer.download(), dtype or np.dtype(NUMPY[buffer.dtype])).reshape(buffer.shape)


NUMPY = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "bool": "bool",
}
REGIMES = ["pool", "driver", "managed", "pinned"]


def random_array(rng, dtype, shape):
    dtype = np.dtype(dtype)
    if dtype == bool:
        return rng.integers(0, 2, shape).astype(bool)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.frombuffer(rng.bytes(size), dtype).reshape(shape)


def same(left, right):
    """Bit for bit: NaNs are values too."""
    assert left.shape == right.shape and left.dtype == right.dtype
    assert np.ascontiguousarray(left).tobytes() == np.ascontiguousarray(right).tobytes()


def run_script(source, *, env=None, timeout=60):
    """Runs Python in its own process; returns its output if it exits with 0."""
    done = subprocess.run(
        [sys.executable, "-c", "SCALE = '''" + SCALE + "'''\n" + textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
