"""Ops over arrays of a library with DLPack's table of C functions."""

import gc

import exchange_library as library
import numpy as np
import pytest
from conftest import array_of, buffer_of, same
from exchange_library import Array

from fercuda_runtime import RuntimeSession, errors, ops


@pytest.fixture(autouse=True)
def memory(session):
    Array.session = session
    library.stream = session.stream_handle
    yield
    library.refuses.clear()
    Array.session = None
    gc.collect()
    assert not library.made, "tensors that were not deleted"


def given(session, array, **options):
    return Array(buffer_of(session, array), **options)


def exported():
    return next(library.exports)


def results(session, array):
    return array_of(array.buffer)


def random(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def test_results_are_the_librarys_and_no_capsule_is_made(session, rng):
    array = random(rng, 5, 7)
    x, before = given(session, array), exported()
    y = ops.relu(x)
    assert type(y) is Array and x.views == 1
    same(results(session, y), np.maximum(array, 0))
    values, places = ops.topk(x, k=2, axis=1)
    same(results(session, values), -np.sort(-array, 1)[:, :2])
    assert results(session, places).dtype == np.int64
    z = ops.add(x, y=x)
    same(results(session, z), array + array)
    assert exported() == before + 1


def test_a_workspace_is_the_librarys_too(session, rng):
    x = random(rng, 1 << 16)
    plan = ops.plan("sort", given(session, x), axis=0)
    assert plan.workspace_bytes > 0
    held = ops.default_session(0).held_bytes
    values, _ = ops.sort(given(session, x), axis=0)
    same(results(session, values), np.sort(x))
    assert ops.default_session(0).held_bytes == held
    del plan, values
    gc.collect()


def test_outputs_are_written_and_may_be_operands(session, rng):
    array = random(rng, 6, 4)
    x = given(session, array)
    assert ops.neg(x, out=x) is x
    same(results(session, x), -array)
    out = given(session, np.zeros((4, 6), np.float32))
    before = exported()
    assert ops.permute(x, out=out) is out
    same(results(session, out), -array.T)
    assert exported() == before + 1
    with pytest.raises(errors.LayoutError, match="overlaps"):
        ops.flip(x, out=x)


def test_what_the_table_cannot_do_goes_by_capsules(session, rng):
    array = random(rng, 3, 3)
    wanted = np.maximum(array, 0)

    def by_capsule(call):
        before = exported()
        result = call()
        assert exported() > before + 1
        session.synchronize()
        buffer = result if not isinstance(result, Array) else result.buffer
        same(array_of(buffer), wanted)

    for refusal in ("view", "stream", "allocate"):
        library.refuses.add(refusal)
        by_capsule(lambda: ops.relu(given(session, array)))
        library.refuses.clear()
    by_capsule(lambda: ops.relu(given(session, array), session=session))
    library.stream = 2
    by_capsule(lambda: ops.relu(given(session, array)))
    library.stream = session.stream_handle
    other = buffer_of(session, array)
    before = exported()
    same(array_of(ops.add(given(session, array), other)), array + array)
    assert exported() > before + 1
    empty = ops.relu(given(session, np.zeros((0, 3), np.float32)))
    assert tuple(empty.shape) == (0, 3)


def test_gradients_and_read_only_outputs_are_refused(session, rng):
    array = random(rng, 3)
    with pytest.raises(BufferError, match="detach"):
        ops.relu(given(session, array, requires_grad=True))
    out = given(session, array, read_only=True)
    before = exported()
    ops.relu(given(session, array), out=out)
    # The fake's capsules do not say so; what matters is that this path left it to them.
    assert exported() > before + 1


def test_another_stream_of_the_library_is_used(session, runtime, rng):
    array = random(rng, 64)
    x, y = given(session, array), given(session, array)
    session.synchronize()
    with RuntimeSession("second", runtime=runtime) as other:
        library.stream = other.stream_handle
        assert ops.neg(x, out=y) is y
        other.synchronize()
        same(array_of(y.buffer), -array)


def test_a_wrong_call_is_refused_before_anything_is_written(session, rng):
    x = given(session, random(rng, 3, 4))
    with pytest.raises(errors.LayoutError, match="broadcast"):
        ops.add(x, given(session, random(rng, 5, 4)))
    with pytest.raises(errors.ArgumentsError, match="no parameter"):
        ops.relu(x, by=3)
    out = given(session, np.full((3, 5), 7, np.float32))
    with pytest.raises(errors.LayoutError, match="another type or shape"):
        ops.relu(x, out=out)
    same(results(session, out), np.full((3, 5), 7, np.float32))
