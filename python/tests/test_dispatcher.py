"""The dispatcher: a resident kernel and its tasks."""

import asyncio
import threading
import time

import numpy as np
import pytest
from conftest import array_of, buffer_of, random_array, run_script, same

from fercuda_runtime import RuntimeSession, errors

U32 = 2.0**-24

# So many elements by so few threads take a task longer, on the software device, than a busy machine
# keeps the host from looking; and no watchdog takes that for ever.
LONG = 1 << 19
SLOW = {"threads": 32, "steps": 1 << 30, "watchdog_s": 60.0}


def test_tasks_do_what_they_say_to_buffers_and_views(session, rng):
    x, y = (rng.standard_normal(1000).astype(np.float32) for _ in range(2))
    i, u = random_array(rng, "int32", 777).copy(), random_array(rng, "uint32", 777).copy()
    bx, by, bi, bu = (buffer_of(session, it) for it in (x, y, i, u))
    sums = {name: session.alloc((1,), name) for name in ("f32", "i32", "u32")}
    with session.dispatcher([bx, by, bi, bu, *sums.values()]) as dispatcher:
        a = float(rng.standard_normal())
        assert dispatcher.axpy(by[100:900], a, bx[:800]).wait() == 800
        product = np.float64(np.float32(a)) * x[:800]
        exact = product + y[100:900]
        total = dispatcher.sum(sums["f32"], bx)
        assert isinstance(total.wait(), float)
        # Each thread adds eight, and 128 are added in pairs; no order has more additions than there
        # are.
        assert abs(total.wait() - x.sum(dtype=np.float64)) <= 999 * U32 * np.abs(x).sum(dtype=np.float64)
        assert dispatcher.sum(sums["i32"], bi).wait() == int(i.sum(dtype=np.int32))
        assert dispatcher.sum(sums["u32"], bu).wait() == int(u.sum(dtype=np.uint32))
        filled = [dispatcher.fill(bi[:10], -7), dispatcher.fill(bu[5:6], 2**32 - 1), dispatcher.fill(bx[-3:], 0.1)]
        assert [it.wait() for it in filled] == [10, 1, 3]
        assert dispatcher.copy(bu[700:], bu[:77]).wait() == 77
        it = dispatcher.statistics()
        assert (it.submitted, it.done, it.waiting, it.dropped, it.is_stopped) == (8, 8, 0, 0, False)
    assert dispatcher.statistics().is_stopped
    got = array_of(by)
    # One rounding.
    assert np.all(np.abs(got[100:900] - exact) <= 1.01 * U32 * np.abs(exact))
    same(got[:100], y[:100])
    same(got[900:], y[900:])
    i[:10], u[5], x[-3:] = -7, 2**32 - 1, 0.1
    u[700:] = u[:77]
    for buffer, expected in ((bi, i), (bu, u), (bx, x)):
        same(array_of(buffer), expected)
    assert total.wait() == array_of(sums["f32"])[0]


def test_what_no_task_could_mean_is_refused_and_a_bad_task_is_its_own_error(session, other):
    x, y, stranger = (session.alloc((64,), "f32") for _ in range(3))
    for it in (x, y):
        it.fill_bytes(0)
    narrow, wide = session.alloc((64,), "u16"), session.alloc((64,), "f64")
    # Few enough threads that a fill takes each of them more than one step.
    with session.dispatcher([x, y, narrow, wide], threads=32) as dispatcher:
        for refused, error in (
            (lambda: dispatcher.fill(stranger, 1.0), errors.ArgumentsError),
            (lambda: dispatcher.fill(other.alloc((64,)), 1.0), errors.StaleHandleError),
            (lambda: dispatcher.fill(x[::2], 1.0), errors.ArgumentsError),
            (lambda: dispatcher.fill(narrow, 1), errors.DtypeError),
            (lambda: dispatcher.copy(narrow[:1], narrow[1:2]), errors.ArgumentsError),
            (lambda: dispatcher.fill(wide, 1.0), errors.DtypeError),
            (lambda: dispatcher.fill(x.view("u32", (64,)), -1), OverflowError),
            (lambda: dispatcher.fill(x, "x"), TypeError),
            (lambda: dispatcher.axpy(wide, 1.0, wide), errors.DtypeError),
            (lambda: dispatcher.copy(x, wide), errors.DtypeError),
            (lambda: dispatcher.sum(x[:1], wide), errors.DtypeError),
            (lambda: dispatcher.fill(x, 1.0, priority=2), errors.ConfigError),
            (lambda: dispatcher.fill(x, 1.0).wait(-1.0), errors.ConfigError),
        ):
            with pytest.raises(error):
                refused()
        dispatcher.fill(x, 1.0).wait()
        for bad, what in (
            (dispatcher.copy(x[:4], y[:5]), "equal length"),
            (dispatcher.copy(x[:4], x[1:5]), "disjoint"),
            (dispatcher.sum(x[:2], y), "one element"),
            (dispatcher.fill(y, 2.0, steps=1), "steps"),
        ):
            with pytest.raises(errors.TaskError, match=what) as raised:
                bad.wait()
            assert raised.value.task == bad.task and bad.status == "failed"
        assert dispatcher.copy(y, x).wait() == 64
        assert dispatcher.copy(wide[:32], wide[:32]).wait() == 64
    same(array_of(y), np.ones(64, np.float32))
    for options in ({"capacity": 3}, {"priorities": 0}, {"threads": 33}, {"steps": 0}, {"watchdog_s": 0.0}, {"watchdog_s": -1.0}):
        with pytest.raises(errors.ConfigError):
            session.dispatcher([x], **options)
    for buffers in ([x[1:]], [x[::2]]):
        with pytest.raises(errors.LayoutError, match="try: "):
            session.dispatcher(buffers)


def test_a_full_queue_is_reported_at_once_and_tickets_are_waited_for_cancelled_and_awaited(session):
    x = session.alloc((LONG,), "f32")
    x.fill_bytes(0)
    with session.dispatcher([x], capacity=4, **SLOW) as dispatcher:
        tickets, full = [], None
        while full is None:
            try:
                tickets.append(dispatcher.axpy(x, 1.0, x))
            except errors.DispatcherFullError as error:
                full = error
        assert (full.priority, full.capacity) == (0, 4)
        last = tickets[-1]
        with pytest.raises(errors.JobTimeoutError) as raised:
            last.wait(0.0)
        assert raised.value.task == "axpy_f32" and last.status in ("waiting", "running") and not last.done()
        last.cancel()
        with pytest.raises(errors.TaskCancelledError):
            last.wait()
        assert last.status == "cancelled" and last.done()

        async def work():
            first = dispatcher.fill(x[:8], 3.0, priority=1)
            assert await asyncio.gather(first, dispatcher.sum(x[:1], x[:8], priority=1)) == [8, 24.0]
            assert await first == 8

        asyncio.run(work())
        assert all(ticket.wait() == LONG for ticket in tickets[:-1])


def test_other_threads_run_while_one_waits_for_a_task(session):
    x = session.alloc((1 << 17,), "f32")
    x.fill_bytes(0)
    count, stop = [0], threading.Event()

    def counts():
        while not stop.wait(0.001):
            count[0] += 1

    thread = threading.Thread(target=counts)
    with session.dispatcher([x], threads=32, steps=1 << 30) as dispatcher:
        tickets = [dispatcher.axpy(x, 1.0, x) for _ in range(8)]
        thread.start()
        try:
            before, begun = count[0], time.monotonic()
            tickets[-1].wait()
            waited = time.monotonic() - begun
            assert count[0] > before or waited < 0.1
            tickets = [dispatcher.axpy(x, 1.0, x) for _ in range(8)]
            before, begun = count[0], time.monotonic()
            dispatcher.stop()
            waited = time.monotonic() - begun
            assert count[0] > before or waited < 0.1
        finally:
            stop.set()
            thread.join()
        assert all(ticket.done() for ticket in tickets)


def test_stop_runs_what_there_is_and_an_exception_in_the_body_does_not(session):
    x = session.alloc((LONG,), "f32")
    x.fill_bytes(0)

    def slow(dispatcher, count=6):
        return [dispatcher.axpy(x, 1.0, x) for _ in range(count)]

    dispatcher = session.dispatcher([x], **SLOW)
    tickets = slow(dispatcher)
    with pytest.raises(errors.DispatcherRunningError) as raised:
        dispatcher.stop(timeout=0.0)
    assert 0 < raised.value.waiting <= 6 and isinstance(raised.value, TimeoutError)
    with pytest.raises(errors.DispatcherStoppedError):
        slow(dispatcher, 1)
    dispatcher.stop()
    dispatcher.stop()
    assert [ticket.wait() for ticket in tickets] == [LONG] * 6
    with pytest.raises(ZeroDivisionError), session.dispatcher([x], **SLOW) as dispatcher:
        tickets = slow(dispatcher)
        1 / 0
    with pytest.raises(errors.DispatcherStoppedError):
        tickets[-1].wait()
    it = dispatcher.statistics()
    assert it.dropped > 0 and it.done + it.dropped == 6 and it.is_stopped


def test_a_sessions_end_stops_its_dispatchers_whose_buffers_stay_until_then(runtime):
    session = RuntimeSession("ends", runtime=runtime)
    x, total = buffer_of(session, np.ones(5000, np.float32)), session.alloc((1,), "f32")
    dispatcher = session.dispatcher([x, total])
    ticket = dispatcher.sum(total, x)
    whole = x[:]
    x.free()
    del x
    assert ticket.wait() == 5000
    last = dispatcher.sum(total, whole)
    held = session.held_bytes
    session.close()
    assert held >= 20_000 and last.wait() == 5000
    with pytest.raises(errors.SessionEndedError):
        dispatcher.fill(whole, 1.0)
    dispatcher.stop()
    # Only the queue remains, in host memory, for queries about tasks.
    assert [it[1] for it in runtime.holders() if it[0] == "ends"] == [0]


@pytest.mark.parametrize("regime", ["driver", "managed"])
def test_what_is_freed_beside_a_dispatcher_is_held_until_it_has_ended(runtime, session, regime):
    with RuntimeSession("small", runtime=runtime, limit_bytes=6 << 20) as small:
        with session.dispatcher([session.alloc((64,), "f32")]):
            small.alloc((4 << 20,), "u8", regime=regime).free()
            assert small.held_bytes == runtime.parked_bytes() == 4 << 20
            with pytest.raises(errors.LimitError, match="of it freed") as raised:
                small.alloc((4 << 20,), "u8", regime=regime)
            assert raised.value.freed_bytes == raised.value.held_bytes == 4 << 20
        small.synchronize()
        assert (small.held_bytes, runtime.parked_bytes()) == (0, 0)
        small.alloc((4 << 20,), "u8", regime=regime).free()


@pytest.mark.parametrize("body", ["", "sys.keep = dispatcher", "del session", "t.wait()", "import os; os._exit(0)"])
def test_an_exit_with_a_dispatcher_that_runs_neither_hangs_nor_crashes(body):
    done = run_script(
        f"""
        import sys
        from fercuda_runtime import RuntimeSession
        session = RuntimeSession("exits")
        x = session.alloc((1 << 16,), "f32")
        x.fill_bytes(0)
        dispatcher = session.dispatcher([x], threads=32, steps=1 << 30)
        t = [dispatcher.axpy(x, 1.0, x) for _ in range(8)][-1]
        {body}
        """
    )
    assert "Traceback" not in done.stderr and "panicked" not in done.stderr, done.stderr
