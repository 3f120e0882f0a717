"""Process lifecycle: forks, exits, and deleters that raise."""

import gc
import sys
import threading
import time

import numpy as np
import pytest
from conftest import SCALE, SLOW_NS, array_of, buffer_of, run_script

from fercuda_runtime import RuntimeSession, errors

BEGIN = """
import gc, os, sys, threading, time
import numpy as np
from fercuda_runtime import RuntimeSession, errors
session = RuntimeSession("main")
buffer = session.alloc((1000,), "f32")
buffer.fill_bytes(0)
scale = session.load(SCALE).function("scale")
def slow():
    return session.launch_async(scale, 1, 1, [buffer, 2.0, 1, %d])
""" % SLOW_NS


def script(body, **more):
    import textwrap

    return run_script(BEGIN + textwrap.dedent(body), **more)


def test_the_child_of_a_fork_gets_an_error_and_exits_normally():
    script(
        """
        job = slow()
        array = np.from_dlpack(session.alloc((4,), "f32", regime="pinned"))
        child = os.fork()
        if child == 0:
            refused = 0
            calls = [
                buffer.download, buffer.free, lambda: buffer[0], lambda: buffer.upload(b""), buffer.copy,
                buffer.download_async, buffer.__dlpack__, buffer.__dlpack_device__, buffer.export_device_ptr,
                lambda: session.alloc((1,)), session.close, session.synchronize, job.wait, job.cancel,
                lambda: session.runtime.memory(), lambda: RuntimeSession("child"), lambda: session.load(SCALE),
                lambda: session.from_dlpack(np.zeros(3)), lambda: buffer.__exit__(),
            ]
            for call in calls:
                try:
                    call()
                except errors.ForkedError as error:
                    refused += error.process == os.getppid() and "try:" in str(error)
            # Collected in the child, which must not touch the device.
            del buffer, job, array, scale, session, call, calls
            gc.collect()
            sys.exit(0 if refused == 19 else 1)
        deadline = time.monotonic() + 30
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            assert time.monotonic() < deadline, "the child hangs"
            time.sleep(0.01)
        assert status == 0, status
        job.wait()
        assert len(buffer.download()) == 4000
        session.close()
        """
    )


@pytest.mark.parametrize(
    "body",
    [
        "jobs = [slow() for _ in range(80)]",
        "job = slow(); del buffer, session",
        "job = slow(); job.add_done_callback(lambda: print('late'))",
        "job = slow(); threading.Thread(target=job.wait, daemon=True).start(); time.sleep(0.05)",
        "job = slow(); array = np.from_dlpack(session.alloc((9,), regime='managed')); sys.keep = array",
        "mine = session.alloc((9,)); late = session.import_memory(mine.export_device_ptr(), (9,), 'f32', "
        "deleter=lambda: print('ended')); sys.keep = late; job = slow()",
        "import asyncio\nasync def work():\n    asyncio.ensure_future(wait()); await asyncio.sleep(0)\n"
        "async def wait():\n    await slow()\nasyncio.run(work())",
        "sys.keep = session.__dict__; session.me = session; job = slow()",
        "def again():\n    slow()\nimport atexit; atexit.register(again)",
        "job = slow(); os._exit(0)",
        "class Late:\n    def __del__(self): slow()\nlate = Late(); sys.late = late",
    ],
)
def test_an_exit_with_work_in_flight_neither_hangs_nor_crashes(body):
    done = run_script(BEGIN + body, timeout=60)
    assert "Traceback" not in done.stderr and "panicked" not in done.stderr, done.stderr


@pytest.fixture
def unraisable(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda it: seen.append(str(it.exc_value)))
    return seen


def lent(session, owner, deleter, shape=(1000,)):
    return session.import_memory(owner.export_device_ptr(), shape, "f32", deleter=deleter)


def test_a_deleter_is_called_once_behind_the_last_work(session, other, scale, held):
    owner = buffer_of(other, np.ones(1000, np.float32))
    calls, done = [], threading.Event()

    def ended():
        calls.append(job.done())
        done.set()

    buffer = lent(session, owner, ended)
    held.job()
    job = session.launch_async(scale, 1, 1, [buffer, 2.0, 1, 0])
    view = buffer[:10]
    buffer.free()
    del buffer
    gc.collect()
    assert not calls
    # Dropping the last reference may wait for that work.
    threading.Timer(0.1, held.let_go).start()
    del view
    gc.collect()
    assert done.wait(60) and len(calls) == 1
    job.wait()
    other.follow_stream(session.stream_handle)
    assert array_of(owner)[0] == 2


def test_an_exception_in_a_deleter_is_reported_and_leaks_nothing(session, other, unraisable):
    owner = buffer_of(other, np.ones(1000, np.float32))

    def throws():
        raise ValueError("of a deleter")

    for end in (lambda it: it.free(), lambda it: it.__exit__(), lambda it: None):
        buffer = lent(session, owner, throws)
        end(buffer)
        del buffer
        gc.collect()
    session.synchronize()
    session.close()
    assert unraisable == ["of a deleter"] * 3
    # At once, if nothing comes of it.
    with pytest.raises(errors.SessionEndedError):
        lent(session, owner, throws)
    with pytest.raises(errors.LayoutError):
        lent(other, owner, throws, (2**62, 2**62))
    with pytest.raises(errors.DriverError):
        other.import_memory(0x123450, (4,), "f32", deleter=throws)
    assert unraisable == ["of a deleter"] * 6


def test_a_session_that_ends_calls_the_deleters_of_what_it_was_lent(session, other):
    owner = buffer_of(other, np.ones(1000, np.float32))
    calls = []
    buffers = [lent(session, owner, lambda: calls.append(1)) for _ in range(5)]
    session.close()
    assert len(calls) == 5
    assert all(buffer.is_freed for buffer in buffers)


def test_two_threads_that_end_one_session_both_return_when_it_has_ended(runtime, other):
    owner = buffer_of(other, np.ones(1000, np.float32))
    for _ in range(20):
        session = RuntimeSession("ends", runtime=runtime)
        scale = session.load(SCALE).function("scale")
        calls, seen, wrong, begin = [], [], [], threading.Barrier(3)
        buffer = lent(session, owner, lambda: calls.append(1))
        job = session.launch_async(scale, 1, 1, [buffer, 1.0, 1, 3_000_000])

        def ends(end):
            begin.wait()
            end()
            seen.append((session.is_open, job.done(), buffer.is_freed, len(calls)))

        def uses():
            begin.wait()
            with pytest.raises(errors.SessionEndedError):
                while True:
                    session.alloc((1000,)).fill_bytes(0)

        def thread(work, *given):
            def guarded():
                try:
                    work(*given)
                except BaseException as error:
                    wrong.append(error)

            return threading.Thread(target=guarded)

        threads = [thread(ends, session.close), thread(ends, session.__exit__), thread(uses)]
        for it in threads:
            it.start()
        for it in threads:
            it.join(60)
        assert not any(it.is_alive() for it in threads) and not wrong, wrong
        assert seen == [(False, True, True, 1)] * 2
        # Its name is free as soon as one of them has returned.
        RuntimeSession("ends", runtime=runtime).close()


def test_the_last_references_go_in_two_threads(runtime, other):
    owner = buffer_of(other, np.ones(1000, np.float32))
    for _ in range(20):
        session = RuntimeSession("ends", runtime=runtime)
        scale = session.load(SCALE).function("scale")
        calls = []
        buffers = [lent(session, owner, lambda: calls.append(1)) for _ in range(4)]
        job = session.launch_async(scale, 1, 1, [buffers[0], 1.0, 1, 3_000_000])
        held = [[session, *buffers[:2]], [*buffers[2:], scale, job]]
        del session, scale, buffers, job
        begin = threading.Barrier(2)

        def forgets(mine):
            begin.wait()
            while mine:
                mine.pop()

        threads = [threading.Thread(target=forgets, args=(mine,)) for mine in held]
        for it in threads:
            it.start()
        for it in threads:
            it.join(60)
        assert not any(it.is_alive() for it in threads)
        deadline = time.monotonic() + 60
        while len(calls) < 4:
            assert time.monotonic() < deadline, calls
            time.sleep(0.001)
        assert calls == [1] * 4
        # The session keeps its name until it has ended; dropping the last reference does not wait
        # for that.
        while True:
            try:
                RuntimeSession("ends", runtime=runtime).close()
                break
            except errors.SessionNameError:
                assert time.monotonic() < deadline
                time.sleep(0.001)
