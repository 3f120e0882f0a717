"""Buffers: values, views, copies, ends, and what is refused."""

import gc

import numpy as np
import pytest
from conftest import NUMPY, REGIMES, array_of, buffer_of, random_array, same

from fercuda_runtime import RuntimeConfig, RuntimeSession, errors


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("dtype", sorted(NUMPY))
def test_values_come_back_as_they_went(session, rng, dtype, regime):
    shape = tuple(int(n) for n in rng.integers(1, 9, int(rng.integers(0, 5))))
    array = random_array(rng, NUMPY[dtype], shape)
    with buffer_of(session, array, regime=regime) as buffer:
        assert (buffer.shape, buffer.dtype, buffer.regime) == (shape, dtype, regime)
        assert (buffer.nbytes, buffer.size, buffer.ndim) == (array.nbytes, array.size, array.ndim)
        same(array_of(buffer), array)


@pytest.mark.parametrize("dtype,integer", [("bf16", np.uint16), ("f8e4m3", np.uint8), ("f8e5m2", np.uint8)])
def test_types_that_numpy_has_not_are_lent_as_integers_or_bytes(session, rng, dtype, integer):
    array = random_array(rng, integer, (3, 5))
    buffer = session.alloc((3, 5), dtype)
    buffer.upload(array)
    assert buffer.download() == array.tobytes()
    buffer.upload(array.tobytes()[::-1])
    assert buffer.download() == array.tobytes()[::-1]


def random_index(rng, shape):
    index = []
    for length in shape:
        if rng.random() < 0.3 and length:
            index.append(int(rng.integers(-length, length)))
        else:
            ends = [None if rng.random() < 0.3 else int(rng.integers(-length - 2, length + 3)) for _ in range(2)]
            step = [None, 1, 2, 3, -1, -2][rng.integers(6)]
            index.append(slice(ends[0], ends[1], step))
    index = index[: int(rng.integers(0, len(index) + 1))]
    if rng.random() < 0.3:
        # Dots in the middle: what follows them is of the last dimensions.
        index = [..., *index] if len(index) == len(shape) else [*index, ...]
    return tuple(index)


def test_random_views_are_numpys(session, rng):
    for _ in range(60):
        shape = tuple(int(n) for n in rng.integers(1, 7, int(rng.integers(1, 5))))
        array = random_array(rng, "int16", shape).copy()
        buffer = buffer_of(session, array)
        whole, view = array, buffer
        for _ in range(int(rng.integers(1, 5))):
            turn = rng.integers(3)
            if turn == 0:
                index = random_index(rng, array.shape)
                array, view = array[index], view[index]
            elif turn == 1:
                order = [int(n) for n in rng.permutation(array.ndim)]
                array, view = array.transpose(order), view.transpose(order)
            else:
                try:
                    view = view.reshape(-1)
                except errors.LayoutError:
                    assert not array.flags.c_contiguous
                    continue
                array = array.reshape(-1)
            # A scalar of NumPy's is no array that could be written to.
            if array.ndim == 0:
                break
        same(array_of(view), np.asarray(array))
        if np.ndim(array) and array.base is not None and np.shares_memory(array, whole):
            values = random_array(rng, "int16", array.shape)
            array[...] = values
            view.upload(values)
            same(array_of(buffer), whole)


def test_copies_between_views_and_sessions_are_numpys(session, other, rng):
    a, b = (random_array(rng, "float32", (6, 8)).copy() for _ in range(2))
    x, y = buffer_of(session, a), buffer_of(other, b)
    y[1:5, ::2].copy_from(x[::-1][2:, 4:])
    b[1:5, ::2] = a[::-1][2:, 4:]
    same(array_of(y), b)
    same(array_of(y.T.copy()), np.ascontiguousarray(b.T))
    y[0].fill_bytes(0x3F)
    b[0] = np.frombuffer(b"\x3f" * 4, np.float32)
    same(array_of(y), b)
    same(array_of(x.view("u8", (6 * 8 * 4 - 4,), 4)), a.reshape(-1)[1:].view(np.uint8))
    same(array_of(x[:1].broadcast_to(5, 8)), np.broadcast_to(a[:1], (5, 8)))


def test_what_does_not_fit_is_refused_with_its_figures(session, other):
    buffer = session.alloc((2, 3), "f32")
    cases = [
        (errors.DtypeError, lambda: buffer.upload(np.zeros((2, 3)))),
        (errors.LayoutError, lambda: buffer.upload(np.zeros((3, 2), np.float32))),
        (errors.LayoutError, lambda: buffer.upload(b"12345")),
        (errors.DtypeError, lambda: buffer.upload(object())),
        (errors.DtypeError, lambda: session.alloc((2,), "f33")),
        (errors.LayoutError, lambda: session.alloc((1,) * 9)),
        (errors.LayoutError, lambda: session.alloc((2**62, 2**62))),
        (errors.ConfigError, lambda: session.alloc((2,), regime="moon")),
        (errors.LayoutError, lambda: buffer.reshape(5)),
        (errors.LayoutError, lambda: buffer.reshape(-1, -1)),
        (errors.LayoutError, lambda: buffer.T.reshape(6)),
        (errors.LayoutError, lambda: buffer.transpose(0, 0)),
        (errors.LayoutError, lambda: buffer.view("f64", (4,))),
        (errors.LayoutError, lambda: buffer.view("f32", (2,), 2)),
        (errors.LayoutError, lambda: buffer.view("f32", (2,), -4)),
        (errors.LayoutError, lambda: buffer.broadcast_to(2, 2, 3).upload(np.zeros((2, 2, 3), np.float32))),
        (errors.LayoutError, lambda: buffer.copy_from(buffer.T)),
        (errors.DtypeError, lambda: buffer.copy_from(session.alloc((2, 3), "i32"))),
        (IndexError, lambda: buffer[2]),
        (IndexError, lambda: buffer[0, 0, 0]),
        (errors.SessionNameError, lambda: RuntimeSession("first", runtime=session.runtime)),
        (errors.ConfigError, lambda: RuntimeSession("x", config=RuntimeConfig(), runtime=session.runtime)),
        (errors.ConfigError, lambda: RuntimeSession("x", config=RuntimeConfig(select="moon"))),
        (errors.ValuesError, lambda: session.alloc((3,), "bool").upload(b"\0\1\2")),
    ]
    for kind, call in cases:
        with pytest.raises(kind) as raised:
            call()
        assert str(raised.value)
    with pytest.raises(errors.LayoutError) as raised:
        buffer.upload(b"12345")
    assert (raised.value.given_bytes, raised.value.expected_bytes) == (5, 24)
    assert isinstance(raised.value, ValueError) and "try:" in str(raised.value)


def test_a_limit_is_kept_and_an_empty_device_says_who_holds_it(runtime):
    with RuntimeSession("small", limit_bytes=4096, runtime=runtime) as small:
        kept = small.alloc((512,), "f32")
        with pytest.raises(errors.LimitError) as raised:
            small.alloc((1024,), "f32")
        error = raised.value
        assert (error.session, error.limit_bytes, error.held_bytes, error.asked_bytes) == ("small", 4096, 2048, 4096)
        assert isinstance(error, MemoryError)
        assert (small.held_bytes, small.peak_bytes) == (2048, 2048)
        assert kept.size == 512
    with RuntimeSession("large", runtime=runtime) as large:
        kept = large.alloc((1000,), "u8")
        with pytest.raises(errors.OutOfMemoryError) as raised:
            large.alloc((2**50,), "u8")
        assert isinstance(raised.value, MemoryError) and raised.value.asked_bytes == 2**50
        assert ("large", 1024) in [held[:2] for held in raised.value.holders]
        assert kept.size == 1000


def test_a_handle_ends_once_and_says_so(session, other):
    buffer = session.alloc((4,), "f32")
    view = buffer[1:3]
    buffer.free()
    assert buffer.is_freed and not view.is_freed
    for call in (buffer.free, buffer.download, lambda: buffer[0], lambda: buffer.fill_bytes(1), buffer.export_device_ptr):
        with pytest.raises(errors.StaleHandleError, match="freed"):
            call()
    view.fill_bytes(1)
    assert view.download() == b"\1" * 8
    with view:
        view.free()
    late = other.alloc((4,), "f32")
    other.close()
    for call in (late.free, late.download, lambda: other.alloc((1,)), other.synchronize):
        with pytest.raises(errors.SessionEndedError) as raised:
            call()
        assert (raised.value.session, raised.value.epoch) == ("second", None)
    with late:
        pass


def test_objects_give_their_memory_back_when_they_are_collected(session):
    before = session.held_bytes, session.count_buffers()
    buffers = [session.alloc((1000,), "f32") for _ in range(20)]
    views = [buffer[::2] for buffer in buffers]
    assert session.count_buffers() == before[1] + 40
    del buffers
    gc.collect()
    assert session.held_bytes == before[0] + 20 * 4096
    del views
    gc.collect()
    assert (session.held_bytes, session.count_buffers()) == before


def test_a_reboot_ends_sessions_and_returns_all_memory(runtime):
    from fercuda_runtime.runtime import reboot

    session = RuntimeSession("ends", runtime=runtime)
    buffer = session.alloc((100_000,), "f32")
    done = reboot(runtime)
    assert done.sessions >= 1 and not done.was_reset and done.returned_bytes > 0
    with pytest.raises(errors.SessionEndedError) as raised:
        buffer.download()
    assert raised.value.epoch == runtime.epoch == 1
    assert runtime.holders() == []
