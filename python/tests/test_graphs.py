"""The graph cache: capture, replay, eviction; and argument blocks."""

import threading
import time

import numpy as np
import pytest
from conftest import SLOW_NS, array_of, buffer_of, random_array, same

from fercuda_runtime import RuntimeSession, errors, ops
from fercuda_runtime.runtime import GraphKey, Scalar


@pytest.fixture
def graphs(session):
    return session.graphs()


def adds(capture, x, step):
    return capture.evaluate("sum = x + step", into={"sum": x}, x=x, step=step)


def test_a_replay_does_what_was_captured_with_what_was_pushed_before_it(session, graphs, scale, rng):
    values = random_array(rng, "int32", (5, 70))
    x = buffer_of(session, values)
    floats = rng.standard_normal(100).astype(np.float32)
    y = buffer_of(session, floats)
    block = session.argument_block(unused="u64", step="i32", weights=("f32", 100), pushes=3)
    with graphs.capture("step") as capture:
        adds(capture, x, block.field("step"))
        capture.launch(scale, 1, 128, [y, 0.5, 100, 0])
        capture.evaluate("z = y + w", into={"z": y}, y=y, w=block.field("weights"))
    assert capture.record.nodes == 3 and not capture.record.updated
    # Only a replay does the work.
    same(array_of(x), values)
    for _ in range(20):
        step, weights = int(rng.integers(-(2**31), 2**31)), rng.standard_normal(100).astype(np.float32)
        block.set(step=step, weights=weights.tolist())
        block.push()
        # The host is ahead: values set now belong to the next push.
        block.set(step=0, weights=[0.0] * 100)
        assert graphs.replay("step")
        values = values + np.int32(step)
        floats = floats * np.float32(0.5) + weights
    same(array_of(x), values)
    same(array_of(y), floats)
    assert not graphs.replay("another")
    it = graphs.statistics()
    assert (it.entries, it.replays, it.absent, it.instantiated, it.updated) == (1, 20, 1, 1, 0)
    assert len(graphs) == 1 and "step" in graphs and "another" not in graphs


def test_what_raises_in_the_body_discards_the_capture_and_nothing_else(session, graphs, scale):
    x = buffer_of(session, np.ones(4, np.float32))
    with graphs.capture("key") as capture:
        capture.launch(scale, 1, 4, [x, 2.0, 4, 0])
    with pytest.raises(ZeroDivisionError), graphs.capture("key") as broken:
        broken.launch(scale, 1, 4, [x, 100.0, 4, 0])
        # This is work of the session, not part of the graph.
        session.launch(scale, 1, 4, [x, 3.0, 4, 0])
        1 / 0
    assert broken.record is None and "discarded" in repr(broken)
    for wrong in (
        lambda it: it.launch(scale, 1, 4, [x, 2.0, 4]),
        lambda it: it.evaluate("x + nothing", x=x),
        lambda it: it.evaluate("x", x=1),
    ):
        with pytest.raises((errors.ArgumentsError, errors.ExpressionError)), graphs.capture("key") as broken:
            wrong(broken)
    # At its end: the driver is called only then.
    with pytest.raises(errors.LaunchLimitError), graphs.capture("key") as broken:
        broken.launch(scale, 1, 4096, [x, 2.0, 4, 0])
    same(array_of(x), np.full(4, 3, np.float32))
    assert graphs.replay("key")
    same(array_of(x), np.full(4, 6, np.float32))
    for late in (capture, broken, graphs.capture("key")):
        with pytest.raises(errors.GraphError, match="try: "):
            late.launch(scale, 1, 4, [x, 2.0, 4, 0])
    with pytest.raises(errors.GraphError, match="has already begun"), capture:
        pass
    assert graphs.statistics().instantiated == 1


def test_a_graph_holds_what_it_was_given_until_it_is_let_go(runtime, session, graphs, rng):
    def held():
        return sum(pooled for name, pooled, _ in runtime.holders() if name == "first")

    before = held()
    array = rng.standard_normal(50_000).astype(np.float32)
    x, total = buffer_of(session, array), session.alloc((), "f32")
    with graphs.capture("sum") as capture:
        between = capture.evaluate("y = x * 2", x=x)["y"]
        capture.evaluate("t = sum(y)", into={"t": total}, y=between)
    with pytest.raises(errors.StaleHandleError), graphs.capture("sum") as broken:
        x.free()
        broken.evaluate("x", x=x)
    between.free()
    del x, between
    assert graphs.replay("sum")
    bound = (50_000 // 32 + 48) * 2.0**-24 * np.abs(array * 2.0).sum(dtype=np.float64)
    assert abs(array_of(total) - array.sum(dtype=np.float64) * 2) <= bound
    assert held() - before >= 2 * array.nbytes
    assert graphs.invalidate("sum") and not graphs.invalidate("sum")
    session.synchronize()
    total.free()
    # A dropped graph is destroyed when a call on the cache finds its last launch finished, and its
    # memory is freed by a thread of the driver's: both are soon, but not at once.
    end = time.monotonic() + 60
    while held() != before:
        graphs.invalidate_all()
        assert time.monotonic() < end, f"the graph's memory is left: {held() - before} bytes"
        time.sleep(0.01)


def test_memory_between_an_expressions_kernels_is_the_graphs(session, graphs, rng):
    # Rows so long are reduced in parts, which lie in between.
    array = rng.integers(-1000, 1000, (2, 100_000)).astype(np.int32)
    x, total, squares = buffer_of(session, array), session.alloc((2,), "i64"), session.alloc((2,), "i64")
    with graphs.capture("sums") as capture:
        capture.evaluate("t = sum(x, axis=1)", into={"t": total}, x=x)
        capture.evaluate("t = sum(x * x, axis=1)", into={"t": squares}, x=x)
    assert capture.record.nodes >= 4
    for _ in range(3):
        assert graphs.replay("sums")
    same(array_of(total), array.sum(1, dtype=np.int64))
    same(array_of(squares), (array.astype(np.int64) ** 2).sum(1))


def test_ops_are_captured_by_their_plans(session, runtime, graphs, rng):
    x = buffer_of(session, rng.standard_normal((4, 300)).astype(np.float32))
    y, values = session.alloc((4, 300)), session.alloc((4, 300))
    places = session.alloc((4, 300), "i64")
    softmax = ops.plan("softmax", x, axis=1)
    sort = ops.plan("sort", y, axis=1)
    with graphs.capture(("ops",)) as capture:
        capture.run(softmax, x, out=y)
        capture.run(sort, y, out=(values, places))
    for _ in range(2):
        array = rng.standard_normal((4, 300)).astype(np.float32)
        x.upload(array)
        assert graphs.replay(("ops",))
        e = np.exp(array - array.max(1, keepdims=True))
        expected = e / e.sum(1, keepdims=True)
        np.testing.assert_allclose(array_of(values), np.sort(expected, 1), rtol=1e-5)
        taken = np.take_along_axis(array_of(y), array_of(places), 1)
        same(taken, array_of(values))
    with RuntimeSession("second", runtime=runtime) as other:
        theirs = other.alloc((4, 300))
        with graphs.capture(("refused",)) as capture:
            for operands, out in (((x, x), y), ((theirs,), y), ((x,), theirs)):
                with pytest.raises(errors.ArgumentsError):
                    capture.run(softmax, *operands, out=out)
            with pytest.raises(errors.ArgumentsError, match="no plan"):
                capture.run("softmax", x, out=y)
            with pytest.raises(errors.ArgumentsError, match="is of session"):
                capture.run(ops.plan("neg", theirs), x, out=y)
            for operand, out in ((session.alloc((4, 301)), y), (x, (y, y))):
                with pytest.raises(errors.LayoutError):
                    capture.run(softmax, operand, out=out)
            capture.run(softmax, x, out=y)
        theirs.free()
        del theirs, operand, out, operands
    with pytest.raises(errors.GraphError, match="is over"):
        capture.run(softmax, x, out=y)


def test_keys_and_generations_say_what_goes(session, graphs):
    x = buffer_of(session, np.zeros((), np.int32))
    steps = [buffer_of(session, np.int32(10**n).reshape(())) for n in range(6)]
    keys = [GraphKey("decode", n, generation=n % 2) for n in range(4)] + ["decode", ("decode", 2**63)]
    for key, step in zip(keys, steps):
        with graphs.capture(key) as capture:
            adds(capture, x, step)
    assert all(graphs.replay(key) for key in keys) and array_of(x) == 111111
    assert graphs.replay(GraphKey("decode", 1, generation=1)) and graphs.replay(GraphKey("decode"))
    assert array_of(x) == 121121
    assert not graphs.replay(("decode", 1)) and not graphs.replay(("decode", "1")) and graphs.replay(("decode", 2))
    assert graphs.invalidate_generation(1) == 2 and len(graphs) == 4
    assert keys[1] not in graphs and keys[0] in graphs
    assert graphs.invalidate(keys[0]) and graphs.invalidate_all() == 3 and len(graphs) == 0
    a, b = GraphKey("a", 1, generation=2), GraphKey("a", 1, generation=2)
    assert a == b and hash(a) == hash(b) and a != GraphKey("a", 1) and a != GraphKey(1, "a", generation=2)
    assert (a.parts, a.generation, GraphKey(2**63, -1).parts) == (("a", 1), 2, (2**63, -1))
    for wrong in (1.5, None, ("a", None), 2**64, ("a", ("b",))):
        with pytest.raises(errors.ConfigError):
            graphs.replay(wrong)


def test_what_is_invalidated_while_its_body_runs_is_not_kept(session, graphs):
    x, step = buffer_of(session, np.zeros((), np.int32)), buffer_of(session, np.ones((), np.int32))
    for invalidate in (
        lambda: graphs.invalidate(("a", 1)),
        lambda: graphs.invalidate_generation(0),
        graphs.invalidate_all,
    ):
        with pytest.raises(errors.GraphInvalidatedError), graphs.capture(("a", 1)) as capture:
            adds(capture, x, step)
            invalidate()
        assert capture.record is None and len(graphs) == 0
    with graphs.capture(("a", 1)) as capture:
        graphs.invalidate(("a", 2))
        graphs.invalidate_generation(7)
        adds(capture, x, step)
    assert graphs.replay(("a", 1)) and array_of(x) == 1


def test_a_budget_lets_the_least_recently_used_go(session):
    graphs = session.graphs(budget_bytes=3000, node_bytes=1000)
    x, step = buffer_of(session, np.zeros((), np.int32)), buffer_of(session, np.ones((), np.int32))

    def captured(key, nodes):
        with graphs.capture(key) as capture:
            for _ in range(nodes):
                adds(capture, x, step)
        return capture.record

    assert captured("a", 1).bytes == 1000 and captured("b", 1).nodes == 1 and captured("c", 1)
    assert graphs.replay("a")
    captured("d", 1)
    assert [key in graphs for key in "abcd"] == [True, False, True, True]
    with pytest.raises(errors.GraphBudgetError) as raised:
        captured("a", 4)
    assert (raised.value.bytes, raised.value.nodes, raised.value.budget_bytes) == (4000, 4, 3000)
    assert graphs.replay("a") and array_of(x) == 2
    # Of the same shape it is updated in place.
    assert captured("a", 1).updated
    it = graphs.statistics()
    assert (it.bytes, it.evicted, it.updated) == (3000, 1, 1)


def test_a_replay_is_timed_while_others_run(session, graphs, scale):
    x = buffer_of(session, np.ones(4, np.float32))
    with graphs.capture("slow") as capture:
        capture.launch(scale, 1, 4, [x, 2.0, 4, Scalar("u32", SLOW_NS)])
    count, stop = [0], threading.Event()

    def counts():
        while not stop.wait(0.001):
            count[0] += 1

    thread = threading.Thread(target=counts)
    thread.start()
    replays = 0
    try:
        # A busy machine may keep the others from running too, and not each time.
        for replays in range(1, 21):
            before = count[0]
            times = graphs.replay_timed("slow")
            if count[0] > before + 5:
                break
        else:
            pytest.fail("a replay kept the others from running")
    finally:
        stop.set()
        thread.join()
    # The clock of the kernel and that of the events tick apart, by a microsecond or less.
    assert SLOW_NS / 1e9 - 1e-5 <= times.device_s and times.completion_s >= SLOW_NS / 1e9 - 1e-5
    assert 0 < times.launch_s <= times.completion_s and times.upload_s == capture.record.upload_s
    assert graphs.replay_timed("nothing") is None
    same(array_of(x), np.full(4, 2.0**replays, np.float32))


def test_replays_are_behind_jobs_that_wait_on_the_host(session, graphs, scale):
    x = buffer_of(session, np.ones(4, np.float32))
    block = session.argument_block(step="f32")
    with graphs.capture(1) as capture:
        adds(capture, x, block.field("step"))
    jobs = [session.launch_async(scale, 1, 4, [x, 2.0, 4, 20_000_000 if n == 0 else 0]) for n in range(80)]
    block.set(step=1.0)
    block.push()
    assert graphs.replay(1)
    same(array_of(x), np.full(4, 2.0**80, np.float32) + np.float32(1))
    assert jobs[-1].done()


def test_threads_capture_and_replay_at_once(session, graphs):
    buffers = [buffer_of(session, np.zeros((), np.int32)) for _ in range(4)]
    step, wrong = buffer_of(session, np.ones((), np.int32)), []

    def works(number, x):
        try:
            for turn in range(10):
                with graphs.capture((number, turn % 2)) as capture:
                    adds(capture, x, step)
                assert graphs.replay((number, turn % 2))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=works, args=it) for it in enumerate(buffers)]
    for it in threads:
        it.start()
    for it in threads:
        it.join(60)
    assert not wrong and [int(array_of(x)) for x in buffers] == [10] * 4


def test_a_body_may_end_in_another_thread_or_never(session, graphs, scale):
    x = buffer_of(session, np.ones(4, np.float32))

    def body(key):
        with graphs.capture(key) as capture:
            capture.launch(scale, 1, 4, [x, 2.0, 4, 0])
            yield

    ends, never = body("ends"), body("never")
    next(ends), next(never)
    thread = threading.Thread(target=lambda: next(ends, None))
    thread.start()
    thread.join(30)
    assert "ends" in graphs and graphs.replay("ends")
    del never
    assert "never" not in graphs
    same(array_of(x), np.full(4, 2, np.float32))


def test_graphs_and_blocks_end_with_their_session(runtime):
    session = RuntimeSession("ends", runtime=runtime)
    graphs, block = session.graphs(), session.argument_block(step="i32")
    x = buffer_of(session, np.zeros((), np.int32))
    with graphs.capture("a") as capture:
        adds(capture, x, block.field("step"))
    with pytest.raises(errors.SessionEndedError), graphs.capture("b") as capture:
        adds(capture, x, block.field("step"))
        session.close()
    for call in (
        lambda: graphs.replay("a"),
        lambda: graphs.replay_timed("a"),
        lambda: block.set(step=1),
        block.push,
        lambda: block.field("step"),
        lambda: block.buffer,
        session.graphs,
        lambda: session.argument_block(step="i32"),
    ):
        with pytest.raises(errors.SessionEndedError):
            call()
    assert len(graphs) == 0
    # While they are still there nothing of them is the device's.
    assert runtime.holders() == [] or all(name != "ends" for name, *_ in runtime.holders())


def test_a_block_has_its_fields_where_c_has_them(session, rng):
    block = session.argument_block(a="u32", b="f64", c=("i32", 3), d=np.int64, e="f32")
    assert block.fields == {
        "a": ("u32", 1, 0),
        "b": ("f64", 1, 8),
        "c": ("i32", 3, 16),
        "d": ("i64", 1, 32),
        "e": ("f32", 1, 40),
    }
    assert block.nbytes == 44 and not any(block.buffer.download())
    assert (block.field("c").shape, block.field("a").shape, block.field("d").dtype) == ((3,), (), "i64")
    block.set(a=2**32 - 1, b=0.1, c=[1, -2, 3], d=np.int64(-(2**63)), e=0.1)
    block.push()
    expected = np.zeros((), np.dtype([("a", "u4"), ("b", "f8"), ("c", "i4", 3), ("d", "i8"), ("e", "f4")], align=True))
    expected["a"], expected["b"], expected["c"], expected["d"], expected["e"] = 2**32 - 1, 0.1, [1, -2, 3], -(2**63), 0.1
    assert block.buffer.download() == expected.tobytes()[:44]
    for values, error in (
        ({"a": 1, "nothing": 1}, errors.ConfigError),
        ({"a": 1, "c": [1, 2]}, errors.LayoutError),
        ({"a": 1, "c": 3}, TypeError),
        ({"a": 1, "b": "x"}, TypeError),
        ({"a": 1, "d": 2**63}, OverflowError),
        ({"a": -1}, OverflowError),
    ):
        with pytest.raises(error):
            block.set(**values)
    block.push()
    # Values that do not fit have set nothing.
    assert block.buffer.download() == expected.tobytes()[:44]
    for fields, error in (
        ({"a": "f16"}, errors.DtypeError),
        ({"a": "moon"}, errors.DtypeError),
        ({"a": ("u32", 0)}, errors.ConfigError),
        ({"a": ("u32", 2**40)}, errors.ConfigError),
        ({"a": "u32", "pushes": 0}, errors.ConfigError),
    ):
        with pytest.raises(error):
            session.argument_block(**fields)


def test_a_block_is_within_the_limit(runtime):
    with RuntimeSession("small", limit_bytes=1024, runtime=runtime) as session:
        with pytest.raises(errors.LimitError):
            session.argument_block(a=("f64", 200))
        assert session.held_bytes == 0
        block = session.argument_block(a=("f64", 100))
        field = block.field("a")
        del block
        # The field's handle is of its own.
        assert session.held_bytes == 1024 and not any(field.download())
        del field
        assert session.held_bytes == 0
