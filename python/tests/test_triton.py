"""Triton kernels on a session's buffers: from a folder of its cache, and from a compiled kernel
object.

The metadata have the form of Triton 3.6; the kernel is our own, with the parameters that Triton
adds, so that it runs without Triton. Tests of kernels compiled by Triton are in `frameworks`.
"""

import json
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import SLOW_NS, array_of, buffer_of, same

from fercuda_runtime import RuntimeSession, errors
from fercuda_runtime.guest_hooks import load_triton, open_triton
from fercuda_runtime.runtime import Scalar

# y[i] = x[i] * factor for i < n by programs of 64, by way of shared memory and, where there is
# some, scratch memory.
PTX = """
.version 8.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 smem[];
.visible .entry scale_kernel(
    .param .u64 x, .param .u64 y, .param .f32 factor, .param .u32 n, .param .u64 scratch, .param .u64 profile
)
.reqntid 64, 1, 1
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .f32 %f<5>;
    .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.f32 %f1, [factor];
    ld.param.u32 %r1, [n];
    ld.param.u64 %rd3, [scratch];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    shl.b32 %r4, %r3, 6;
    add.u32 %r4, %r4, %r2;
    setp.ge.u32 %p1, %r4, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %rd4, %r4, 4;
    add.u64 %rd5, %rd1, %rd4;
    ld.global.f32 %f2, [%rd5];
    mul.f32 %f3, %f2, %f1;
    mov.u32 %r5, smem;
    shl.b32 %r6, %r2, 2;
    add.u32 %r5, %r5, %r6;
    st.shared.f32 [%r5], %f3;
    ld.shared.f32 %f4, [%r5];
    setp.eq.u64 %p2, %rd3, 0;
    @%p2 bra STORE;
    add.u64 %rd6, %rd3, %rd4;
    st.global.f32 [%rd6], %f4;
    ld.global.f32 %f4, [%rd6];
STORE:
    add.u64 %rd7, %rd2, %rd4;
    st.global.f32 [%rd7], %f4;
DONE:
    ret;
}
"""


def metadata(**changed):
    return {
        "hash": "0123", "target": {"backend": "cuda", "arch": 80, "warp_size": 32},
        "num_warps": 2, "num_ctas": 1, "num_stages": 3, "cluster_dims": [1, 1, 1],
        "maxnreg": None, "launch_cooperative_grid": False, "launch_pdl": False,
        "triton_version": "3.6.0", "tensordesc_meta": [], "shared": 256, "tmem_size": 0,
        "global_scratch_size": 0, "global_scratch_align": 1,
        "profile_scratch_size": 0, "profile_scratch_align": 1, "name": "scale_kernel",
        **changed,
    }  # fmt: skip


@dataclass(frozen=True)
class GPUTarget:
    backend: str
    arch: int
    warp_size: int


def compiled(**changed):
    """A compiled kernel as Triton returns it: a named tuple with a dataclass, and values without a
    JSON form."""
    fields = metadata(**changed)
    if isinstance(fields["target"], dict):
        fields["target"] = GPUTarget(**fields["target"])
    fields["debug"] = object()
    record = namedtuple("KernelMetadata", sorted(fields))(**fields)
    # A driver takes text too, whatever it is called.
    return SimpleNamespace(metadata=record, asm={"ttir": "", "ptx": PTX, "cubin": PTX.encode()})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scale_kernel.json").write_text(json.dumps(metadata()))
    (tmp_path / "__grp__scale_kernel.json").write_text(json.dumps({"child_paths": {}}))
    for kind in ("ptx", "cubin"):
        (tmp_path / f"scale_kernel.{kind}").write_text(PTX)
    return tmp_path


def scaled(session, kernel, rng, count=1000):
    array = rng.standard_normal(count).astype(np.float32)
    x, y = buffer_of(session, array), session.alloc((count,), "f32")
    kernel.launch(session, -(-count // 64), [x, y, 2.5, count])
    # One rounding, as the device's.
    same(array_of(y), array * np.float32(2.5))


@pytest.mark.parametrize("given", ["folder", "file", "text", "object", "mapping"])
def test_a_kernel_of_the_cache_runs_on_a_sessions_buffers(session, rng, folder, given):
    kernel = {
        "folder": lambda: open_triton(session, folder),
        "file": lambda: open_triton(session, folder / "scale_kernel.json"),
        "text": lambda: open_triton(session, str(folder)),
        "object": lambda: load_triton(session, compiled()),
        "mapping": lambda: load_triton(session, SimpleNamespace(metadata=metadata(), asm={"ptx": PTX, "cubin": PTX.encode()})),
    }[given]()
    assert (kernel.name, kernel.arch, kernel.warps, kernel.shared_bytes) == ("scale_kernel", 80, 2, 256)
    assert (kernel.cluster, kernel.scratch_bytes) == ((1, 1, 1), 0)
    assert kernel.argument_bytes == [8, 8, 4, 4]
    for count in (1, 64, 1000):
        scaled(session, kernel, rng, count)


def test_scratch_memory_is_the_sessions_and_comes_by_itself(session, rng):
    kernel = load_triton(session, compiled(global_scratch_size=256))
    assert kernel.scratch_bytes == 256 and kernel.argument_bytes == [8, 8, 4, 4]
    before = session.held_bytes, session.count_buffers()
    scaled(session, kernel, rng)
    session.synchronize()
    assert (session.held_bytes, session.count_buffers()) == before
    # Sixteen blocks of 256 bytes, beside the buffers.
    assert session.peak_bytes >= before[0] + 2 * 4096 + 16 * 256
    with RuntimeSession("small", runtime=session.runtime, limit_bytes=4096) as small:
        x = small.alloc((128,), "f32")
        with pytest.raises(errors.LimitError) as raised:
            kernel.launch(small, 1000, [x, x, 1.0, 0])
        assert (raised.value.asked_bytes, raised.value.limit_bytes) == (256_000, 4096)
        assert small.count_buffers() == 1


def test_a_job_keeps_its_buffers_and_is_behind_what_came_before(session, scale, rng):
    kernel = load_triton(session, compiled(global_scratch_size=256))
    array = rng.standard_normal(640).astype(np.float32)
    x, y = buffer_of(session, array), session.alloc((640,), "f32")
    session.launch(scale, 10, 64, [x, 2.0, 640, SLOW_NS])
    job = kernel.launch_async(session, (10, 1), [x, y, Scalar("f32", 2.5), np.uint32(640)])
    x.free()
    assert job.wait() is None
    same(array_of(y), array * np.float32(2) * np.float32(2.5))


def test_a_grid_without_programs_does_nothing(session):
    kernel = load_triton(session, compiled())
    y = buffer_of(session, np.arange(64, dtype=np.float32))
    kernel.launch(session, 0, [y, y, 2.5, 64])
    assert kernel.launch_async(session, (1, 0, 1), [y, y, 2.5, 64]).wait() is None
    same(array_of(y), np.arange(64, dtype=np.float32))


def test_arguments_that_do_not_fit_a_kernel_of_tritons_are_refused(session, other):
    kernel = load_triton(session, compiled(global_scratch_size=256))
    y, foreign, freed = session.alloc((64,), "f32"), other.alloc((64,), "f32"), session.alloc((64,), "f32")
    freed.free()
    y.fill_bytes(0)
    for launch in (kernel.launch, lambda *given: kernel.launch_async(*given).wait()):
        for arguments in [
            None,
            [y, y, 2.5],
            [y, y, 2.5, 64, 0],
            [y, y, 2.5, 64, 0, 0],
            [y, y, "x", 64],
            [y, y, 2.5, 2**32],
            [y, foreign, 2.5, 64],
            [y, y, Scalar("f64", 2.5), 64],
        ]:
            with pytest.raises(errors.ArgumentsError, match="scale_kernel"):
                launch(session, 1, arguments)
        with pytest.raises(errors.StaleHandleError):
            launch(session, 1, [y, freed, 2.5, 64])
        clustered = load_triton(session, compiled(num_ctas=4))
        assert clustered.cluster == (4, 1, 1)
        with pytest.raises(errors.LaunchLimitError, match="larger than there can be") as raised:
            clustered.launch(session, 2**31, [y, y, 2.5, 64])
        assert (raised.value.asked, raised.value.limit) == (2**33, 2**32 - 1)
    assert y.download() == bytes(256) and session.count_buffers() == 1


def test_what_cannot_be_loaded_says_why(session, folder):
    for changed, says in [
        ({"target": {"backend": "hip", "arch": 942, "warp_size": 64}}, "not NVIDIA's"),
        ({"target": {"backend": "cuda", "arch": 999, "warp_size": 32}}, "compiled for sm_999"),
        ({"target": 3}, "a named tuple"),
        ({"num_warps": 64}, "1 to 32"),
        ({"tensordesc_meta": [{"swizzle": 1}]}, "tensor descriptors"),
        ({"profile_scratch_size": 8}, "profiler"),
        ({"shared": None}, "no \"shared\""),
        ({"shared": object()}, "a whole number"),
    ]:
        with pytest.raises(errors.TritonError, match=says):
            load_triton(session, compiled(**changed))
    with pytest.raises(errors.LaunchLimitError, match="shared memory") as raised:
        load_triton(session, compiled(shared=1 << 20))
    assert raised.value.asked == 1 << 20 and 0 < raised.value.limit < 1 << 20
    with pytest.raises(errors.DriverError, match="another"):
        load_triton(session, compiled(name="another"))
    with pytest.raises(errors.TritonError, match="not a compiled Triton kernel"):
        load_triton(session, lambda: None)
    with pytest.raises(errors.TritonError, match="only ttir"):
        load_triton(session, SimpleNamespace(metadata=metadata(), asm={"ttir": ""}))
    with pytest.raises(errors.ModuleError):
        load_triton(session, SimpleNamespace(metadata=metadata(), asm={"ptx": b"\xff", "cubin": b"\xff"}))
    with pytest.raises(errors.TritonError, match="no JSON object"):
        open_triton(session, folder / "scale_kernel.ptx")
    for kind in ("ptx", "cubin"):
        (folder / f"scale_kernel.{kind}").unlink()
    with pytest.raises(errors.TritonError, match=r"scale_kernel\.(ptx|cubin).*\n.*\.triton/cache"):
        open_triton(session, folder)
    (folder / "second.json").write_text(json.dumps(metadata()))
    with pytest.raises(errors.TritonError, match="has 2 kernel files NAME.json.*scale_kernel.json, second.json"):
        open_triton(session, folder)
    with pytest.raises(errors.TritonError, match="No such file"):
        open_triton(session, folder / "third.json")
    session.close()
    with pytest.raises(errors.SessionEndedError):
        load_triton(session, compiled())
