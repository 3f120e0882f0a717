"""PyTorch and this package on one GPU, each in streams of its own."""

import gc

import numpy as np
import torch
from conftest import SLOW_TURNS, array_of, buffer_of, same


def test_torch_borrows_behind_the_sessions_kernels(session, scale, rng):
    array = rng.standard_normal(64).astype(np.float32)
    buffer = buffer_of(session, array)
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        session.launch(scale, 1, 64, [buffer, 2.0, 64, SLOW_TURNS // 64])
        array *= 2
        with torch.cuda.stream(stream):
            tensor = torch.from_dlpack(buffer)
            seen = tensor.clone().cpu().numpy()
        same(seen, array)
    assert tensor.data_ptr() == buffer.export_device_ptr()
    tensor.zero_()
    session.follow_stream(torch.cuda.default_stream().cuda_stream or 1)
    same(array_of(buffer), np.zeros(64, np.float32))
    buffer.free()
    del buffer
    gc.collect()
    assert float(tensor.sum()) == 0


def test_a_session_borrows_behind_torchs_kernels(session, rng):
    x = torch.arange(4096, device="cuda", dtype=torch.float32).reshape(64, 64)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(50):
            x = x @ torch.eye(64, device="cuda")
        cut = x.t()[::2]
        borrowed = session.from_dlpack(cut)
        shown = session.from_cuda_array_interface(cut)
    expected = np.arange(4096, dtype=np.float32).reshape(64, 64).T[::2]
    same(array_of(borrowed), np.ascontiguousarray(expected))
    assert shown.export_device_ptr() == borrowed.export_device_ptr() == cut.data_ptr()
    half = session.from_dlpack(torch.ones(5, dtype=torch.bfloat16, device="cuda"))
    assert half.dtype == "bf16" and half.download() == b"\x80\x3f" * 5
    del borrowed, shown, half
    gc.collect()
    session.synchronize()
