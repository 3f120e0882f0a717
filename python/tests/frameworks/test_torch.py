"""PyTorch and this package on one GPU, each in streams of its own."""

import gc
import itertools
import time

import numpy as np
import pytest
import torch
from conftest import SLOW_NS, array_of, buffer_of, same

from fercuda_runtime import errors, ops

WAIT_NS = 3 * SLOW_NS
# No clock is faster: as many cycles last as long, or longer.
SPIN_CYCLES = 3 * WAIT_NS


@pytest.fixture(autouse=True)
def what_a_first_use_loads_is_loaded():
    torch.cuda._sleep(1)
    torch.ones(64, device="cuda").clone().copy_(torch.zeros(64, device="cuda")).cpu()


def in_time(begin):
    """That the device is still busy, and the host has not waited for it."""
    assert (time.monotonic_ns() - begin) < WAIT_NS, "the host was late, or waited: of the order nothing was seen"


def streams():
    return torch.cuda.default_stream(), torch.cuda.Stream()


def test_torch_borrows_behind_the_sessions_kernels(session, scale, rng):
    array = rng.standard_normal(64).astype(np.float32)
    buffer = buffer_of(session, array)
    for stream in streams():
        begin = time.monotonic_ns()
        session.launch(scale, 1, 64, [buffer, 2.0, 64, WAIT_NS])
        array *= 2
        with torch.cuda.stream(stream):
            tensor = torch.from_dlpack(buffer)
            seen = tensor.clone()
            in_time(begin)
            same(seen.cpu().numpy(), array)
    assert tensor.data_ptr() == buffer.export_device_ptr() and tensor.dtype == torch.float32
    tensor.zero_()
    session.follow_stream(torch.cuda.default_stream().cuda_stream or 1)
    same(array_of(buffer), np.zeros(64, np.float32))
    buffer.free()
    del buffer
    gc.collect()
    assert float(tensor.sum()) == 0


@pytest.mark.parametrize("borrow", ["from_dlpack", "from_cuda_array_interface"])
def test_a_session_borrows_behind_torchs_kernels(session, borrow):
    expected = np.arange(4096, dtype=np.float32).reshape(64, 64)
    source = torch.from_numpy(expected).cuda()
    for stream in streams():
        x = torch.zeros_like(source)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            begin = time.monotonic_ns()
            torch.cuda._sleep(SPIN_CYCLES)
            x.copy_(source)
            # Rows: each is one copy, and few fit into a stream that waits.
            cut = x[::2]
            borrowed = getattr(session, borrow)(cut)
            if borrow == "from_cuda_array_interface":
                # PyTorch names no stream there, so the order is the caller's.
                session.follow_stream(stream.cuda_stream or 1)
            copy = borrowed.copy()
            in_time(begin)
        assert borrowed.export_device_ptr() == cut.data_ptr() and borrowed.strides == cut.stride()
        same(array_of(copy), expected[::2])
        same(array_of(getattr(session, borrow)(x.t())), np.ascontiguousarray(expected.T))
        del borrowed, copy, cut, x
    gc.collect()
    session.synchronize()


def test_bf16_is_bf16_on_both_sides(session):
    half = session.from_dlpack(torch.ones(5, dtype=torch.bfloat16, device="cuda"))
    assert half.dtype == "bf16" and half.download() == b"\x80\x3f" * 5
    back = torch.from_dlpack(half)
    assert back.dtype == torch.bfloat16 and back.data_ptr() == half.export_device_ptr()
    assert back.float().sum().item() == 5


def test_ops_of_tensors_are_tensors_in_the_current_stream(session):
    x = torch.randn(64, 33, device="cuda")
    # First without the clock: what is compiled and loaded for the first time may wait.
    for is_timed, stream, options in itertools.product((False, True), streams(), ({"session": session}, {})):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            begin = time.monotonic_ns()
            torch.cuda._sleep(SPIN_CYCLES)
            doubled = x * 2
            y = ops.softmax(doubled, axis=1, **options)
            # Torch's next kernel comes behind the op.
            twice = y + y
            doubled.zero_()
            if is_timed:
                in_time(begin)
        assert type(y) is torch.Tensor and y.shape == x.shape and y.device == x.device
        torch.cuda.synchronize()
        torch.testing.assert_close(twice, 2 * torch.softmax(2 * x, 1))
        values, places = ops.topk(x, k=3, session=session)
        torch.testing.assert_close(values, torch.topk(x, 3).values)
        assert places.dtype == torch.int64
    del y, twice, values, places, doubled
    gc.collect()


def test_ops_are_captured_with_torchs_own_work():
    x = torch.randn(64, 33, device="cuda")
    y = ops.softmax(x, axis=1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ops.softmax(x * 2, axis=1) + 1
    for _ in range(2):
        x.copy_(torch.randn(64, 33, device="cuda"))
        graph.replay()
        torch.testing.assert_close(y, torch.softmax(2 * x, 1) + 1)
    # Its code outlives the cache.
    ops.clear_cache()
    gc.collect()
    graph.replay()
    torch.testing.assert_close(y, torch.softmax(2 * x, 1) + 1)


def test_ops_write_tensors_in_place_and_into_outputs(session):
    x = torch.randn(32, 48, device="cuda")
    wanted = torch.relu(x).t().contiguous()
    for stream in streams():
        with torch.cuda.stream(stream):
            out = torch.zeros(48, 32, device="cuda")
            torch.cuda._sleep(SPIN_CYCLES)
            y = x.clone()
            assert ops.relu(y, out=y, session=session) is y
            assert ops.permute(y, out=out, session=session) is out
            seen = out.clone()
        torch.cuda.synchronize()
        torch.testing.assert_close(seen, wanted, rtol=0, atol=0)
        # The same by the stream itself.
        with torch.cuda.stream(torch.cuda.Stream()):
            ops.neg(out, out=out, stream=stream, session=session)
        stream.synchronize()
        torch.testing.assert_close(out, -wanted, rtol=0, atol=0)
    plan = ops.plan("add", x, x, session=session)
    torch.testing.assert_close(plan.run(x, x), x + x)
    gc.collect()


def test_ops_refuse_tensors_of_the_host_and_those_with_gradients():
    with pytest.raises(errors.LayoutError, match=r"host memory.*\ntry: .*cuda\(\)"):
        ops.relu(torch.ones(3))
    with pytest.raises(Exception, match="detach"):
        ops.relu(torch.ones(3, device="cuda", requires_grad=True))
    half = ops.cast(torch.ones(3, device="cuda"), to=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    del half
    gc.collect()
