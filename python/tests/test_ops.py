"""Ops over buffers and over arrays of another library: plans, outputs, order and errors."""

import gc
import importlib.util
import inspect
import pathlib
import sys
import time
import types

import numpy as np
import pytest
from conftest import SLOW_NS, array_of, buffer_of, run_script

import fercuda_runtime
from fercuda_runtime import RuntimeSession, errors, ops


class Tensor:
    """An array of another library, whose current stream is that of a session of its own."""

    current = None

    def __init__(self, buffer):
        self.buffer = buffer

    def __dlpack_device__(self):
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **options):
        assert stream is not None
        return self.buffer.__dlpack__(stream=stream, **options)


class Lent:
    """A capsule that was asked for already."""

    def __init__(self, capsule, device):
        self.capsule, self.device = capsule, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_options):
        return self.capsule


def from_dlpack(array):
    """As libraries import: the lender makes the current stream wait."""
    device = array.__dlpack_device__()
    assert device[0] == 2
    capsule = array.__dlpack__(stream=Tensor.current.stream_handle, max_version=(1, 0))
    return Tensor(Tensor.current.from_dlpack(Lent(capsule, device)))


@pytest.fixture
def library(other, monkeypatch):
    """A library that is found by the module of its arrays."""
    module = types.ModuleType("another_library")
    module.Tensor, module.from_dlpack = Tensor, from_dlpack
    monkeypatch.setattr(Tensor, "__module__", "another_library")
    monkeypatch.setitem(sys.modules, "another_library", module)
    monkeypatch.setattr(Tensor, "current", other)
    fercuda_runtime._ops._importers.clear()
    yield other
    fercuda_runtime._ops._importers.clear()


@pytest.fixture
def default():
    """The session that ops open themselves, closed again."""
    yield ops.default_session()
    ops.default_session().close()


def test_a_plan_says_what_it_runs_and_runs_many_times(session, rng):
    arrays = [rng.standard_normal((3, 5)).astype(np.float32) for _ in range(3)]
    buffers = [buffer_of(session, it) for it in arrays]
    plan = ops.plan("sum", buffers[0], axes=-1, keep=True)
    assert plan.op == "sum" and plan.sku.kernel == "jit.rows" and plan.sku.launches == 1
    assert "jit.map" in plan.sku.rejected and plan.workspace_bytes >= 0
    assert plan.outputs == (ops.TensorLayout("f32", (3, 1), (1, 1)),)
    assert plan.operands == (ops.TensorLayout("f32", (3, 5), (5, 1)),)
    assert plan.session.name == session.name and "sum of f32[3, 5]" in repr(plan)
    out = session.alloc((3, 1))
    for array, buffer in zip(arrays, buffers, strict=True):
        assert plan.run(buffer, out=out) is out
        np.testing.assert_allclose(array_of(out), array.sum(-1, keepdims=True), atol=5 * 5 * 2.0**-20)
    with pytest.raises(errors.LayoutError, match=r"the plan of sum is for operands f32\[3, 5\]"):
        plan.run(buffers[0][:2])
    with pytest.raises(errors.LayoutError, match="for outputs"):
        plan.run(buffers[0], out=session.alloc((3,)))
    with pytest.raises(errors.ArgumentsError, match="for 1 operands, not 2"):
        plan.run(*buffers[:2])
    # New results have the layouts of the outputs that the plan was made with.
    turned = ops.plan("neg", buffers[0], out=session.alloc((5, 3)).T)
    result = turned.run(buffers[0])
    assert result.strides == (1, 3) and (array_of(result) == -arrays[0]).all()


def test_equal_calls_share_a_plan(session, rng):
    x = buffer_of(session, rng.standard_normal((4, 4)).astype(np.float32))
    ops.clear_cache()
    before = ops.cache_info()
    assert before.plans == 0
    for _ in range(5):
        ops.softmax(x, axis=1)
    ops.softmax(x)
    ops.softmax(x, axis=0)
    ops.softmax(x.T, axis=1)
    ops.plan("softmax", x, axis=-1)
    after = ops.cache_info()
    # The last axis by default is another descriptor than axis 1.
    assert (after.misses - before.misses, after.plans) == (4, 4)
    assert after.hits - before.hits == 5
    # Cleared plans of a caller still run.
    plan = ops.plan("relu", x)
    ops.clear_cache()
    assert (array_of(plan.run(x)) >= 0).all()


def test_a_kernel_is_demanded_by_its_name(session, rng):
    array = rng.standard_normal((4, 6)).astype(np.float32)
    x = buffer_of(session, array)
    for sku in ("cuda.copy", "jit.map"):
        plan = ops.plan("permute", x, sku=sku)
        assert plan.sku.kernel == sku
        assert (array_of(plan.run(x)) == array.T).all()
        assert (array_of(ops.permute(x, sku=sku)) == array.T).all()
    with pytest.raises(errors.OpError, match="jit.rows was demanded") as raised:
        ops.permute(x, sku="jit.rows")
    assert raised.value.op == "permute" and "try: without sku=" in str(raised.value)


def test_outputs_are_written_where_they_are(session, rng):
    array = rng.standard_normal((4, 6)).astype(np.float32)
    x, out = buffer_of(session, array), session.alloc((8, 6))
    out.fill_bytes(0xFF)
    assert ops.neg(x, out=out[::2]).shape == (4, 6)
    written = array_of(out)
    assert (written[::2] == -array).all() and np.isnan(written[1::2]).all()
    # In place: an op of each element.
    assert ops.neg(x, out=x) is x
    assert (array_of(x) == -array).all()
    values, places = session.alloc((4, 2)), session.alloc((4, 2), "i64")
    assert ops.topk(x, k=2, out=(values, places)) == (values, places)
    order = np.argsort(array, -1, kind="stable")[:, :2]
    assert (array_of(places) == order).all()
    for overlapping in (lambda: ops.softmax(x.T, axis=0, out=x.T[::-1]), lambda: ops.add(x[:-1], x[1:], out=x[1:])):
        with pytest.raises(errors.LayoutError, match="overlaps"):
            overlapping()
    assert (array_of(x) == -array).all()


def test_buffers_of_two_sessions_are_ordered(session, other, scale, rng):
    array = rng.standard_normal(64).astype(np.float32)
    x, y = buffer_of(session, array), buffer_of(other, array)
    session.launch(scale, 1, 64, [x, 2.0, 64, SLOW_NS])
    # In the session of the first buffer, unless one is given.
    z = ops.add(y, x)
    assert z.session_name == other.name
    session.launch(scale, 1, 64, [x, 0.0, 64, 0])
    assert (array_of(z) == array + array * 2).all()
    assert ops.add(y, x, session=session).session_name == session.name


def test_results_are_in_the_library_of_the_first_operand(library, session, default, rng):
    array = rng.standard_normal((4, 6)).astype(np.float32)
    theirs, ours = Tensor(buffer_of(library, array)), buffer_of(session, array)
    y = ops.exp(theirs, session=session)
    assert type(y) is Tensor
    assert (array_of(y.buffer) == array_of(ops.exp(ours))).all()
    values, places = ops.topk(theirs, k=2, session=session)
    assert type(values) is type(places) is Tensor and places.buffer.dtype == "i64"
    # Without a session or a buffer: the default one.
    z = ops.add(theirs, theirs)
    assert type(z) is Tensor and default.name == "ops"
    assert (array_of(z.buffer) == array + array).all()
    # Of a buffer a buffer, whatever follows.
    assert type(ops.add(ours, theirs)) is type(ours) is type(ops.layer_norm(ours, gamma=Tensor(ours[0])))
    plan = ops.plan("exp", theirs, session=session)
    assert type(plan.run(theirs)) is Tensor and type(plan.run(ours)) is type(ours)
    assert plan.run(theirs, out=ours) is ours
    del y, z, values, places, theirs
    gc.collect()


def test_streams_of_a_library_are_ordered_both_ways(library, session, scale, rng):
    array = rng.standard_normal(64).astype(np.float32)
    x = buffer_of(library, array)
    theirs = Tensor(x)
    scaled = library.load(fercuda_test_scale()).function("scale")
    begin = time.monotonic_ns()
    # Behind their work, and before what they do next; the host waits for nothing.
    library.launch(scaled, 1, 64, [x, 2.0, 64, SLOW_NS])
    out = Tensor(library.alloc((64,)))
    assert ops.neg(theirs, out=out, session=session) is out
    library.launch(scaled, 1, 64, [x, 0.0, 64, 0])
    library.launch(scaled, 1, 64, [out.buffer, 3.0, 64, 0])
    is_ahead = time.monotonic_ns() - begin < SLOW_NS
    assert (array_of(out.buffer) == array * np.float32(-6)).all()
    assert (array_of(x) == 0).all()
    # The same by the streams' numbers; the lender orders nothing then.
    library.launch(scaled, 1, 64, [out.buffer, 0.5, 64, SLOW_NS])
    again = session.alloc((64,))
    ops.neg(out.buffer, out=again, stream=library.stream_handle, session=session)
    library.launch(scaled, 1, 64, [out.buffer, 0.0, 64, 0])
    assert (array_of(again) == array * np.float32(3)).all()
    print(f"the host was {'' if is_ahead else 'not '}ahead of the device")


def fercuda_test_scale():
    from conftest import SCALE

    return SCALE


def test_streams_are_numbers_or_objects_of_libraries(session, other):
    x = session.alloc((4,))
    x.fill_bytes(0)

    class TorchStream:
        cuda_stream = other.stream_handle

    class CupyStream:
        ptr = 0

    class CoreStream:
        def __cuda_stream__(self):
            return 0, other.stream_handle

    for stream in (other.stream_handle, TorchStream(), CupyStream(), CoreStream(), 1, 2):
        assert array_of(ops.neg(x, stream=stream)).tolist() == [0] * 4
    for stream in (0, -1, "default"):
        with pytest.raises(errors.ConfigError, match="try:"):
            ops.neg(x, stream=stream)


def test_memory_is_the_sessions(runtime, rng):
    with RuntimeSession("small", runtime=runtime, limit_bytes=1 << 20) as session:
        x = session.alloc((1 << 17,))
        x.fill_bytes(0)
        y = ops.neg(x)
        assert y.session_name == "small" and session.held_bytes == 1 << 20
        with pytest.raises(errors.LimitError):
            ops.neg(x)
        # In place nothing is allocated.
        ops.neg(x, out=y)
        del y
        session.synchronize()
        # Workspace is held until the run is done.
        values, places = ops.sort(x[: 1 << 10])
        session.synchronize()
        assert session.held_bytes == (1 << 19) + (1 << 12) + (1 << 13)
        del values, places
    with pytest.raises(errors.SessionEndedError):
        ops.neg(x)


def test_the_default_session_is_opened_again(rng):
    session = ops.default_session()
    x = ops.full(shape=(3,), value=1, to="f32")
    assert x.session_name == session.name == "ops"
    session.close()
    with pytest.raises(errors.SessionEndedError):
        ops.neg(x)
    y = ops.full(shape=(3,), value=2, to="f32")
    assert y.session_name == "ops" and array_of(y).tolist() == [2, 2, 2]
    ops.default_session().close()


def test_indices_are_checked_on_demand(session):
    x = buffer_of(session, np.arange(12, dtype=np.float32).reshape(4, 3))
    index = buffer_of(session, np.array([1, 7, 0], dtype=np.int64))
    taken = ops.index_select(x, index, axis=0)
    assert array_of(taken).tolist() == [[3, 4, 5], [0, 0, 0], [0, 1, 2]]
    with pytest.raises(errors.OpIndexError, match="index 7") as raised:
        ops.index_select(x, index, axis=0, check=True)
    assert raised.value.index == 7 and raised.value.op == "index_select" and isinstance(raised.value, IndexError)
    assert ops.index_select(x, index[:1], axis=0, check=True).shape == (1, 3)
    plan = ops.plan("take", x, index, check=True)
    assert array_of(plan.run(x, index)).tolist() == [1, 7, 0]
    index.upload(np.array([1, 2, 12]))
    with pytest.raises(errors.OpIndexError, match="index 12, number 2"):
        plan.run(x, index)


def bad_calls(session):
    x, half = session.alloc((4, 6)), session.alloc((4, 6), "f16")
    freed = session.alloc((4, 6))
    freed.free()
    yield "freed", lambda: ops.exp(freed), errors.StaleHandleError, "freed"
    yield "freed out", lambda: ops.exp(x, out=freed), errors.StaleHandleError, "freed"
    yield "dtype", lambda: ops.bitwise_not(x), errors.DtypeError, "operand x is f32, it takes an integer"
    yield "mixed", lambda: ops.add(x, half), errors.DtypeError, "operand y is f16"
    yield "shape", lambda: ops.add(x, x[:, :5]), errors.LayoutError, "no shapes to broadcast"
    yield "output", lambda: ops.exp(x, out=half), errors.LayoutError, "another type or shape"
    yield "outputs", lambda: ops.topk(x, out=x), errors.LayoutError, "another number of outputs"
    yield "overlap", lambda: ops.softmax(x, axis=0, out=x[::-1]), errors.LayoutError, "overlaps"
    yield "repeats", lambda: ops.exp(x, out=x[:1].broadcast_to(4, 6)), errors.LayoutError, "may overlap"
    yield "host", lambda: ops.exp(np.ones(3, np.float32)), errors.LayoutError, r"operand x of exp is in host memory.*\n"
    yield "number", lambda: ops.add(x, 1.0), errors.ArgumentsError, "operand y of add is .*float"
    yield "many", lambda: ops.exp(x, x), errors.ArgumentsError, "exp of 2 operands"
    yield "none", lambda: ops.exp(), errors.ArgumentsError, "exp of 0 operands"
    yield "left out", lambda: ops.layer_norm(x, beta=x[0]), errors.ArgumentsError, "gamma of layer_norm is left out"
    yield "twice", lambda: ops.exp(x, x=x), errors.ArgumentsError, "given twice"
    yield "keyword", lambda: ops.softmax(x, axs=1), errors.ArgumentsError, 'no parameter "axs"\ntry: one of x, axis, out'
    yield "value", lambda: ops.softmax(x, axis="last"), errors.OpError, 'axis is "last"\ntry: an axis'
    yield "axis", lambda: ops.softmax(x, axis=2), errors.OpError, "there is no axis 2"
    yield "negative axis", lambda: ops.softmax(x, axis=-3), errors.OpError, "no axis -3 in 2 dimensions\ntry: -2 to 1"
    yield "choice", lambda: ops.topk(x, order="up"), errors.OpError, 'order is never "up"\ntry: largest'
    yield "type", lambda: ops.cast(x, to="f12"), errors.DtypeError, "f12"
    yield "missing", lambda: ops.cast(x), errors.OpError, "no type to convert to"
    yield "whole", lambda: ops.elu(x, alpha=2**60), errors.OpError, "alpha is 1152921504606846976\ntry: a number"
    yield "big", lambda: ops.full(shape=1, value=2**70), errors.OpError, "try: a number"
    yield "extent", lambda: ops.full(shape=(-1,), session=session), errors.OpError, "0 or more"
    yield "unchecked", lambda: ops.exp(x, check=True), errors.OpError, "no indices to check"
    yield "name", lambda: ops.plan("sofmax", x), errors.OpError, "there is no op 'sofmax'\ntry: softmax"
    yield "described", lambda: ops.describe("conv3"), errors.OpError, "try: conv"
    yield "session", lambda: ops.exp(x, session="x"), TypeError, "session"


def test_bad_input_is_refused_with_what_to_try(session):
    names = []
    for name, call, kind, message in bad_calls(session):
        with pytest.raises(kind, match=message) as raised:
            call()
        assert kind is TypeError or "try:" in str(raised.value) or kind is errors.StaleHandleError, name
        names.append(name)
    assert len(names) == len(set(names))
    # Nothing was written, and nothing is left.
    session.synchronize()


def test_an_unknown_op_is_an_attribute_error_with_the_nearest_names():
    with pytest.raises(AttributeError, match="softmax, ") as raised:
        ops.sofmax
    assert raised.value.name == "sofmax"
    with pytest.raises(ImportError, match="cannot import name"):
        from fercuda_runtime.ops import no_such_op  # noqa: F401
    assert not hasattr(ops, "__wrapped__") and "softmax" in dir(ops) and "plan" in dir(ops)


def test_functions_have_signatures_and_documentation():
    assert ops.softmax is ops.softmax and ops.softmax.__name__ == "softmax"
    assert ops.softmax.__doc__ == f"{ops.describe('softmax').doc}."
    signature = inspect.signature(ops.layer_norm)
    assert list(signature.parameters)[:5] == ["x", "gamma", "beta", "eps", "axis"]
    assert signature.parameters["gamma"].default is None and signature.parameters["eps"].default == 1e-5
    assert inspect.signature(ops.concat).parameters["x"].kind is inspect.Parameter.VAR_POSITIONAL
    reserved = {"out", "stream", "session", "sku", "check"}
    for name in ops.names():
        op = ops.describe(name)
        words = [*op.operands, *(it.name for it in op.parameters)]
        assert len(words) == len(set(words)) and not reserved & set(words), name
        assert not hasattr(fercuda_runtime._ops, name), f"{name} is a name of the module itself"
        assert all(word.isidentifier() for word in words)


def test_the_stub_is_up_to_date():
    path = pathlib.Path(__file__).resolve().parent.parent / "ops_stub.py"
    spec = importlib.util.spec_from_file_location("ops_stub", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    installed = pathlib.Path(fercuda_runtime.__file__).parent / "ops.pyi"
    is_same = made.stub() == installed.read_text(encoding="utf-8")
    assert is_same, "try: python3 python/ops_stub.py > python/src/fercuda_runtime/ops.pyi"


def test_ops_of_several_threads_are_right(session, rng):
    from concurrent.futures import ThreadPoolExecutor

    arrays = [rng.standard_normal((8, 16 + at)).astype(np.float32) for at in range(8)]

    def work(array):
        x = buffer_of(session, array)
        for _ in range(5):
            assert (array_of(ops.neg(x)) == -array).all()
            assert (array_of(ops.amax(x, axes=1)) == array.max(1)).all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, arrays))


def test_a_process_may_end_with_ops_in_flight():
    run_script(
        """
        from fercuda_runtime import ops
        x = ops.full(shape=(1 << 12,), value=2, to="f32")
        for _ in range(50):
            x = ops.neg(x)
        """
    )


def test_after_a_reboot_plans_are_of_no_session(runtime, rng):
    with RuntimeSession("ends", runtime=runtime) as session:
        plan = ops.plan("neg", session.alloc((3,)))
        runtime.reboot()
        with pytest.raises(errors.SessionEndedError):
            plan.run(session_buffer_of(runtime, [1, 2, 3]))


def session_buffer_of(runtime, values):
    session = RuntimeSession("lends", runtime=runtime)
    return buffer_of(session, np.array(values, np.float32))


def test_plans_are_made_again_after_a_reset_of_the_context():
    run_script(
        """
        import array
        from fercuda_runtime import RuntimeConfig, RuntimeSession, errors, ops
        from fercuda_runtime.runtime import reboot
        runtime = RuntimeConfig().open()
        numbers = memoryview(array.array("f", [3, 1, 2]))
        with RuntimeSession("ends", runtime=runtime) as session:
            x = session.alloc((3,), "f32")
            x.upload(numbers)
            plan = ops.plan("neg", x)
            assert memoryview(ops.sort(x)[0].download()).cast("f").tolist() == [1, 2, 3]
            assert memoryview(plan.run(x).download()).cast("f").tolist() == [-3, -1, -2]
            assert ops.full(shape=2, value=1, to="f32").session_name == "ops"
            bad = session.launch_async(session.load(SCALE).function("scale"), 1, 1, [8, 2.0, 1, 0])
            try:
                bad.wait()
            except errors.DeviceFaultError:
                pass
            try:
                ops.neg(x)
            except (errors.DeviceFaultError, errors.FercudaError):
                pass
            else:
                raise SystemExit("an op in a context that has failed was queued")
            try:
                assert reboot(runtime, reset_failed=True).was_reset
            except errors.DeviceFaultError:
                # NVIDIA's driver (580) does not recover.
                assert not runtime.is_software
                raise SystemExit(0)
        with RuntimeSession("after", runtime=runtime) as session:
            x = session.alloc((3,), "f32")
            x.upload(numbers)
            assert memoryview(ops.sort(x)[0].download()).cast("f").tolist() == [1, 2, 3]
            assert memoryview(ops.neg(x).download()).cast("f").tolist() == [-3, -1, -2]
            try:
                plan.run(x)
            except errors.SessionEndedError:
                pass
            else:
                raise SystemExit("a plan of a session that has ended was run")
            assert ops.full(shape=2, value=1, to="f32").session_name == "ops"
            assert ops.cache_info().plans == 3
        """,
        # The fault is the test's own.
        env={"FERCUDA_SOFT_CHECK_EXIT": "0"},
    )
