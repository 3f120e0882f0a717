"""Jobs: waited for, awaited, cancelled, forgotten."""

import asyncio
import gc
import threading
import time

import numpy as np
import pytest
from conftest import SLOW_NS, array_of, buffer_of, random_array, same

from fercuda_runtime import errors


def slow(session, scale, buffer, wait_ns=SLOW_NS):
    return session.launch_async(scale, 1, 1, [buffer, 2.0, 1, wait_ns])


@pytest.fixture
def busy(session, scale):
    return buffer_of(session, np.ones(1, np.float32))


def test_jobs_come_in_their_order_and_have_their_values(session, rng):
    buffer = session.alloc((1000,), "i32")
    arrays = [random_array(rng, "int32", 1000) for _ in range(100)]
    jobs = []
    for array in arrays:
        jobs += [buffer.upload_async(array), buffer.download_async()]
    for at, array in enumerate(arrays):
        assert jobs[2 * at].wait() is None
        same(np.frombuffer(jobs[2 * at + 1].wait(), np.int32), array)
        # As often as one likes.
        assert jobs[2 * at + 1].wait(0.0) == array.tobytes()
    assert [job.number for job in jobs] == list(range(1, 201)) and jobs[-1].status == "done"


def test_a_time_limit_passes_and_the_job_goes_on(session, scale, busy, held):
    held.job()
    job = slow(session, scale, busy, 0)
    with pytest.raises(errors.JobTimeoutError) as raised:
        job.wait(0.01)
    assert isinstance(raised.value, TimeoutError) and 0.01 <= raised.value.waited_s < 60
    held.let_go()
    assert job.wait() is None and job.done()
    assert array_of(busy) == [2]
    with pytest.raises(errors.ConfigError):
        job.wait(-1.0)


def test_what_the_device_has_not_begun_is_cancelled(session, scale, busy, held):
    jobs = [held.job() if n == 0 else slow(session, scale, busy, 0) for n in range(100)]
    assert jobs[99].cancel() and jobs[99].cancel()
    with pytest.raises(errors.JobCancelledError) as raised:
        jobs[99].wait()
    assert (raised.value.job, jobs[99].status) == (jobs[99].number, "cancelled")
    held.let_go()
    assert jobs[98].wait() is None
    assert not jobs[0].cancel()
    assert array_of(busy) == [2.0**98]


def test_other_threads_run_while_one_waits(session, scale, busy):
    count, stop = [0], threading.Event()

    def counts():
        while not stop.is_set():
            count[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=counts)
    thread.start()
    waits = {
        "job": lambda: slow(session, scale, busy).wait(),
        "synchronize": lambda: (session.launch(scale, 1, 1, [busy, 2.0, 1, SLOW_NS]), session.synchronize()),
        "download": lambda: (session.launch(scale, 1, 1, [busy, 2.0, 1, SLOW_NS]), busy.download()),
        "upload": lambda: (session.launch(scale, 1, 1, [busy, 2.0, 1, SLOW_NS]), busy.upload(b"\0" * 4)),
    }
    try:
        for name, wait in waits.items():
            # A busy machine may keep them from it too, and not each time.
            for _ in range(20):
                before = count[0]
                wait()
                if count[0] > before + 5:
                    break
            else:
                pytest.fail(f"{name} kept the others from running")
    finally:
        stop.set()
        thread.join()


def test_jobs_are_awaited_together_and_without_polling(session, scale, busy, rng):
    array = random_array(rng, "float32", 5000)
    buffer = buffer_of(session, array)

    async def work():
        loop = asyncio.get_running_loop()
        turns = 0

        def turn():
            nonlocal turns
            turns += 1

        # The loop's own count of its turns: a poll would make thousands.
        run_once = loop._run_once
        loop._run_once = lambda: (turn(), run_once())[1]
        first = slow(session, scale, busy)
        values = await asyncio.gather(first, buffer.download_async(), buffer.download_async())
        del loop._run_once
        return turns, values

    turns, (nothing, left, right) = asyncio.run(work())
    assert nothing is None and left == right == array.tobytes()
    assert turns < 50


def test_a_job_that_is_over_is_awaited_at_once_and_a_failed_one_raises(session, scale, busy, held):
    done = buffer_of(session, np.zeros(3, np.int8)).download_async()
    done.wait()
    jobs = [held.job() if n == 0 else slow(session, scale, busy, 0) for n in range(100)]
    jobs[99].cancel()

    async def work():
        assert await done == b"\0\0\0"
        with pytest.raises(errors.JobCancelledError):
            await jobs[99]
        # A task that is cancelled cancels its job.
        task = asyncio.ensure_future(asyncio.wait_for(jobs[98], 0.01))
        with pytest.raises((asyncio.TimeoutError, TimeoutError)):
            await task

    asyncio.run(work())
    assert jobs[98].status == "cancelled"
    held.let_go()
    assert jobs[97].wait() is None


def test_a_loop_that_is_gone_harms_no_job(session, scale, busy):
    jobs = [slow(session, scale, busy, SLOW_NS if n == 0 else 0) for n in range(3)]

    async def work():
        loop = asyncio.get_running_loop()
        for job in jobs:
            asyncio.ensure_future(waits(job))
        await asyncio.sleep(0)
        # The loop ends here without notifying the tasks: they are neither done nor cancelled.
        loop.stop()

    async def waits(job):
        await job

    loop = asyncio.new_event_loop()
    with pytest.raises(RuntimeError, match="stopped"):
        loop.run_until_complete(work())
        loop.run_until_complete(asyncio.sleep(60))
    loop.close()
    session.synchronize()
    assert [job.status for job in jobs] == ["done"] * 3
    assert array_of(busy) == [8]


def test_callbacks_are_called_once_each_and_may_raise(session, scale, busy, monkeypatch):
    raised = []
    monkeypatch.setattr("sys.unraisablehook", lambda it: raised.append(str(it.exc_value)))
    calls, done = [], threading.Event()
    job = slow(session, scale, busy)

    def fails():
        raise RuntimeError("of a callback")

    job.add_done_callback(fails)
    job.add_done_callback(lambda: calls.append(1))
    job.add_done_callback(done.set)
    job.wait()
    assert done.wait(60)
    job.add_done_callback(lambda: calls.append(2))
    assert (calls, raised) == ([1, 2], ["of a callback"])


def test_what_is_collected_while_its_copy_runs_is_copied_all_the_same(session, scale, busy, rng):
    for _ in range(10):
        array = random_array(rng, "int32", 20_000).copy()
        expected = array.tobytes()
        first = slow(session, scale, busy, 5_000_000)
        buffer = session.alloc((20_000,), "i32")
        target = session.alloc((20_000,), "i32")
        sent = buffer.upload_async(array)
        array[:] = 0
        del array
        target.copy_from(buffer)
        fetched = target.download_async()
        del buffer, target, sent, first
        gc.collect()
        assert fetched.wait() == expected


def test_threads_share_a_session(session, rng):
    arrays = [random_array(rng, "float32", 3000) for _ in range(8)]
    wrong = []

    def work(array):
        for _ in range(10):
            buffer = buffer_of(session, array)
            if buffer.copy().download_async().wait() != array.tobytes():
                wrong.append(1)

    threads = [threading.Thread(target=work, args=(array,)) for array in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
