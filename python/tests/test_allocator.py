"""User-supplied allocators of sessions."""

import threading

import numpy as np
import pytest
from conftest import array_of, random_array, run_script, same

from fercuda_runtime import RuntimeSession, errors

BLOCK = 1 << 12


class Blocks:
    """An allocator over a buffer of another session; freed blocks are reused at once."""

    def __init__(self, lender, count=16):
        self.buffer = lender.alloc((BLOCK * count,), "u8")
        lender.synchronize()
        self.begin = self.buffer.export_device_ptr()
        self.all = [self.begin + at * BLOCK for at in range(count)]
        self.free_ones = self.all.copy()
        self.given, self.unordered, self.streams, self.threads = {}, 0, set(), set()
        self.raises = self.instead = None

    def allocate(self, bytes, stream):
        self.streams.add(stream)
        if self.raises is not None:
            raise self.raises
        if self.instead is not None:
            return self.instead
        assert 0 < bytes <= BLOCK
        address = self.free_ones.pop(0)
        self.given[address] = bytes
        return address

    def free(self, address, bytes, stream):
        self.unordered += stream is None
        self.streams.add(stream)
        self.threads.add(threading.get_ident())
        assert self.given.pop(address) == bytes
        if address in self.all:
            self.free_ones.insert(0, address)


@pytest.fixture
def blocks(session):
    blocks = Blocks(session)
    yield blocks
    # Its address was handed out, so its memory stays as long as the object.
    del blocks.buffer


@pytest.fixture
def lent(runtime, blocks):
    with RuntimeSession("ends", runtime=runtime, limit_bytes=1 << 16, allocator=blocks) as lent:
        yield lent


def test_memory_comes_from_the_object_and_goes_back_once_in_the_sessions_order(lent, blocks, rng):
    values = random_array(rng, "float32", 1000)
    buffer = lent.alloc((1000,), "f32", regime="callbacks")
    assert (buffer.regime, lent.held_bytes, blocks.given) == ("callbacks", 4000, {blocks.begin: 4000})
    buffer.upload(values)
    view = buffer[500:]
    buffer.free()
    assert len(blocks.given) == 1
    same(array_of(view), values[500:])
    del view
    assert (blocks.given, lent.held_bytes, blocks.unordered) == ({}, 0, 0)
    # The same memory again, after the work queued on it.
    for fill in range(10):
        buffer = lent.alloc((BLOCK,), "u8", regime="callbacks")
        assert buffer.export_device_ptr() == blocks.begin
        buffer.fill_bytes(fill)
        same(array_of(buffer), np.full(BLOCK, fill, np.uint8))
        del buffer
    assert blocks.streams == {lent.stream_handle}
    # The session's end frees what is left, in any thread.
    left = [lent.alloc((10,), regime="callbacks") for _ in range(3)]
    closes = threading.Thread(target=lent.close)
    closes.start()
    closes.join()
    assert blocks.given == {} and closes.ident in blocks.threads
    del left


def test_its_exceptions_and_invalid_results_are_reported_and_nothing_is_held(lent, blocks):
    blocks.raises = ZeroDivisionError("no room on purpose")
    with pytest.raises(errors.AllocatorError, match="ZeroDivisionError: no room on purpose") as raised:
        lent.alloc((10,), regime="callbacks")
    assert raised.value.__cause__ is blocks.raises and isinstance(raised.value, MemoryError)
    assert (raised.value.session, raised.value.asked_bytes) == ("ends", 40)
    blocks.raises = None
    for instead, what in (
        (0, "address 0"),
        ("x", "TypeError"),
        (-1, "OverflowError"),
        (1 << 70, "OverflowError"),
    ):
        blocks.instead = instead
        with pytest.raises(errors.AllocatorError, match=what):
            lent.alloc((10,), regime="callbacks")
    # Memory is freed with the address as this allocator returned it.
    blocks.instead = blocks.begin + BLOCK + 8
    blocks.given[blocks.instead] = 40
    with pytest.raises(errors.AllocatorError, match="no multiple of 256") as raised:
        lent.alloc((10,), regime="callbacks")
    assert raised.value.__cause__ is None
    assert blocks.given == {}
    blocks.instead = np.zeros(1024, np.uint8).ctypes.data & ~255
    blocks.given[blocks.instead] = 40
    with pytest.raises(errors.AllocatorError, match="the memory was freed again"):
        lent.alloc((10,), regime="callbacks")
    assert lent.held_bytes == 0 and blocks.given == {}
    blocks.instead = None
    # Over the limit it is not called.
    asked = len(blocks.free_ones)
    with pytest.raises(errors.LimitError):
        lent.alloc((1 << 17,), "u8", regime="callbacks")
    assert len(blocks.free_ones) == asked
    lent.alloc((10,), regime="callbacks").free()


def test_an_invalid_allocator_and_a_session_without_one_are_refused(runtime, session):
    class Half:
        def allocate(self, bytes, stream):
            return 0

    for wrong in (3, Half(), Half):
        with pytest.raises(errors.ConfigError, match="no method"):
            RuntimeSession("x", runtime=runtime, allocator=wrong)
    with pytest.raises(errors.ConfigError, match="no allocator"):
        session.alloc((10,), regime="callbacks")
    assert session.held_bytes == 0


def test_it_may_use_sessions_and_its_exceptions_in_free_are_reported(runtime, session, blocks, monkeypatch):
    heard, sessions = [], {}
    monkeypatch.setattr("sys.unraisablehook", lambda it: heard.append(it.exc_value))

    class Calls(Blocks):
        def allocate(self, bytes, stream):
            session.alloc((10,)).fill_bytes(1)
            with pytest.raises(errors.AllocatorError, match="by itself"):
                sessions["lent"].alloc((1,), regime="callbacks")
            return super().allocate(bytes, stream)

        def free(self, address, bytes, stream):
            super().free(address, bytes, stream)
            session.alloc((10,)).fill_bytes(1)
            raise ZeroDivisionError("on purpose")

    calls = Calls(session)
    with RuntimeSession("ends", runtime=runtime, allocator=calls) as lent:
        sessions["lent"] = lent
        buffer = lent.alloc((10,), regime="callbacks")
        buffer.fill_bytes(1)
        buffer.free()
        assert [str(it) for it in heard] == ["on purpose"] and calls.given == {}
        del buffer
    # An allocator that refers to its session keeps it.
    sessions.clear()


def test_other_threads_run_while_it_is_asked_and_all_may_ask(lent, blocks):
    both = threading.Barrier(4)
    allocate, results = Blocks.allocate, []
    lock = threading.Lock()

    def slowly(bytes, stream):
        # Passed only if all four are in it at once.
        both.wait(60)
        with lock:
            return allocate(blocks, bytes, stream)

    blocks.allocate = slowly

    def asks():
        results.append(lent.alloc((10,), regime="callbacks"))

    threads = [threading.Thread(target=asks) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({it.export_device_ptr() for it in results}) == 4
    results.clear()
    assert blocks.given == {}


@pytest.mark.parametrize("body", ["", "sys.keep = lent, buffer", "del lent", "lent.close()", "import os; os._exit(0)"])
def test_an_exit_with_memory_that_is_lent_neither_hangs_nor_crashes(body):
    done = run_script(
        f"""
        import sys
        from fercuda_runtime import RuntimeSession
        lender = RuntimeSession("lends")
        memory = lender.alloc((4096,), "u8")
        lender.synchronize()

        class One:
            def allocate(self, bytes, stream): return memory.export_device_ptr()
            def free(self, address, bytes, stream): print("freed", address != 0, stream is not None)

        lent = RuntimeSession("lent", runtime=lender.runtime, allocator=One())
        buffer = lent.alloc((1024,), "f32", regime="callbacks")
        buffer.fill_bytes(0)
        {body}
        """
    )
    assert "Traceback" not in done.stderr and "panicked" not in done.stderr, done.stderr
    assert done.stdout.splitlines() in ([], ["freed True True"])
    assert body != "lent.close()" or done.stdout
