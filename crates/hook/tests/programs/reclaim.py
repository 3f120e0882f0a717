"""Python programs in which one library caches memory that another one needs.

`torch` is a stand-in: a module of that name with the two functions of PyTorch that the hook calls,
over a library in a folder of that name. Arguments: a case, that library, and another one.
"""

import ctypes
import sys
import threading
import time
import types

MIB = 1 << 20
case, caching_path, other_path = sys.argv[1:]

driver = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert driver.cuInit(0) == 0
assert driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0


def library(path, kind):
    it = kind(path)
    it.take.restype = ctypes.c_uint64
    it.take.argtypes = [ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int]
    it.give.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
    it.hold.argtypes = [ctypes.c_uint]
    return it


caching = library(caching_path, ctypes.CDLL)
# A CDLL lets go of the interpreter during a call, a PyDLL does not.
other = library(other_path, ctypes.CDLL)
other_attached = library(other_path, ctypes.PyDLL)

cached = []
asked = 0
lock = threading.Lock()


def empty_cache():
    global asked
    with lock:
        asked += 1
        while cached:
            assert caching.give(cached.pop(), context) == 0


torch = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(is_initialized=lambda: True, empty_cache=empty_cache)
sys.modules["torch"] = torch


def fill_cache(bytes):
    address = caching.take(bytes, context, 0)
    assert address, "the caching library gets memory"
    cached.append(address)


def take_and_give(library, bytes, managed=0):
    address = library.take(bytes, context, managed)
    assert address, "the other library gets memory"
    assert library.give(address, context) == 0


if case == "cached":
    for managed in 0, 1:
        for library_of in other, other_attached:
            fill_cache(600 * MIB)
            before = asked
            begun = time.monotonic()
            take_and_give(library_of, 600 * MIB, managed)
            assert time.monotonic() - begun < 1, "it takes no longer than a second"
            assert asked == before + 1 and not cached
    # Nothing is cached, and the request is too large anyhow.
    fill_cache(600 * MIB)
    held = cached.pop()
    assert other.take(600 * MIB, context, 0) == 0
    # The caching library's own failure asks no library: it releases its cache by itself.
    before = asked
    assert caching.take(600 * MIB, context, 0) == 0
    assert asked == before
    assert caching.give(held, context) == 0
elif case == "kept":
    fill_cache(600 * MIB)
    assert other.take(600 * MIB, context, 0) == 0
    assert asked == 0
elif case == "raising":
    fill_cache(600 * MIB)
    torch.cuda.empty_cache = lambda: 1 / 0
    assert other.take(600 * MIB, context, 0) == 0
    del torch.cuda
    assert other_attached.take(600 * MIB, context, 0) == 0
    sys.modules["torch"] = None
    assert other.take(600 * MIB, context, 0) == 0
elif case == "exception":
    # An exception that is being raised stays what it is.
    fill_cache(600 * MIB)
    try:
        raise KeyError("mine")
    except KeyError as error:
        take_and_give(other_attached, 600 * MIB)
        assert sys.exc_info()[1] is error
elif case == "held":
    # The owner keeps the interpreter for longer than anybody waits.
    fill_cache(600 * MIB)

    def empty_slowly():
        other_attached.hold(5000)
        empty_cache()

    torch.cuda.empty_cache = empty_slowly
    assert other.take(600 * MIB, context, 0) == 0
    assert 1900 <= other.took_ms() <= 4500, other.took_ms()
    # The call returned by then; this thread went on when the interpreter was free again.
    torch.cuda.empty_cache = empty_cache
    # What was taken from the list is freed only when the lock is free.
    with lock:
        if not cached:
            fill_cache(600 * MIB)
    # No thread waits for the helper again before it has ended that round.
    until = time.monotonic() + 20
    while not (address := other.take(600 * MIB, context, 0)) and time.monotonic() < until:
        time.sleep(0.01)
    assert address, "the other library gets memory"
    assert other.give(address, context) == 0
elif case == "threads":
    stop = False
    calls = [0] * 8

    def churn(number):
        n = 0
        while not stop:
            # Half of them compute in the interpreter, half of them hold it in C or let it go.
            if number % 4 == 0:
                other_attached.hold(1)
            elif number % 4 == 1:
                other.hold(1)
            else:
                n = sum(range(2000))
            calls[number] += 1

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for turn in range(100):
        fill_cache(600 * MIB)
        take_and_give(other if turn % 2 else other_attached, 600 * MIB)
    stop = True
    for thread in threads:
        thread.join()
    assert all(calls), calls
    assert asked >= 100
else:
    sys.exit("there is no such case")
print("end")
