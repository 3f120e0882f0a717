"""Kernels from PTX: arguments, and errors."""

import numpy as np
import pytest
from conftest import array_of, buffer_of, random_array, run_script, same

from fercuda_runtime import errors
from fercuda_runtime.runtime import Scalar


def test_a_kernel_gets_buffers_views_and_numbers(session, scale, rng):
    array = rng.standard_normal(1000).astype(np.float32)
    buffer = buffer_of(session, array)
    session.launch(scale, 4, 256, [buffer, 3.0, 1000, 0])
    session.launch(scale, (4, 1, 1), (256,), [buffer[500:], Scalar("f32", 0.5), np.uint32(500), np.int32(0)])
    # One rounding each, as the device's.
    array *= np.float32(3)
    array[500:] *= np.float32(0.5)
    same(array_of(buffer), array)
    assert scale.parameter_bytes == [8, 4, 4, 4] and scale.name == "scale"
    assert scale.max_threads_per_block >= 256


def test_arguments_that_do_not_fit_are_refused(session, other, scale):
    buffer, foreign = session.alloc((4,), "f32"), other.alloc((4,), "f32")
    for arguments in [
        None,
        [buffer, 1.0, 1],
        [buffer, 1.0, 1, 0, 0],
        [1.5, 1.0, 2**32, 0],
        [buffer, 1.0, -(2**31) - 1, 0],
        [buffer, "x", 1, 0],
        [buffer, 1.0, None, 0],
        [foreign, 1.0, 1, 0],
        [buffer, Scalar("f64", 1.0), 1, 0],
        [buffer, np.float16(1.0), 1, 0],
        [buffer, buffer, 1, 0],
    ]:
        with pytest.raises(errors.ArgumentsError):
            session.launch(scale, 1, 1, arguments)
        with pytest.raises(errors.ArgumentsError):
            session.launch_async(scale, 1, 1, arguments).wait()
    with pytest.raises(errors.LaunchLimitError) as raised:
        session.launch(scale, 1, 4096, [buffer, 1.0, 1, 0])
    assert (raised.value.asked, raised.value.limit) == (4096, scale.max_threads_per_block)
    freed = session.alloc((4,), "f32")
    freed.free()
    with pytest.raises(errors.StaleHandleError):
        session.launch(scale, 1, 1, [freed, 1.0, 1, 0])
    for call in (lambda: Scalar("u8", 256), lambda: Scalar("i8", -129)):
        with pytest.raises(OverflowError):
            call()
    with pytest.raises(errors.DtypeError):
        Scalar("f8e4m3", 1.0)
    assert buffer.size == 4


def test_code_that_cannot_be_loaded_says_why(session):
    with pytest.raises(errors.ModuleError) as raised:
        session.load(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry f() { nonsense; }")
    assert raised.value.log
    with pytest.raises(errors.ModuleError):
        session.load(b"no machine code")
    with pytest.raises(errors.ModuleError):
        session.load(3)
    with pytest.raises(errors.DriverError) as raised:
        session.load(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry f() { ret; }").function("g")
    assert raised.value.code_name == "CUDA_ERROR_NOT_FOUND"


def test_a_fault_is_an_exception_and_a_reset_recovers():
    run_script(
        """
        import time
        from fercuda_runtime import RuntimeSession, RuntimeConfig, errors
        from fercuda_runtime.runtime import reboot
        runtime = RuntimeConfig().open()
        def all_is_back():
            end = time.monotonic() + 60
            while runtime.holders() != []:
                assert time.monotonic() < end, runtime.holders()
                time.sleep(0.001)
        session = RuntimeSession("faulty", runtime=runtime)
        buffer = session.alloc((4,), "f32")
        lent = buffer.__dlpack__(stream=-1)
        # Returned when the context was reset, where it can be.
        late = session.alloc((4,), "f32").__dlpack__(stream=-1) if runtime.is_software else None
        scale = session.load(SCALE).function("scale")
        bad = session.launch_async(scale, 1, 1, [8, 2.0, 1, 0])
        behind = buffer.download_async()
        try:
            bad.wait()
        except errors.DeviceFaultError as error:
            assert error.code_name == "CUDA_ERROR_ILLEGAL_ADDRESS", error.code_name
        else:
            raise SystemExit("the fault was not heard of")
        try:
            behind.wait()
        except errors.JobNotRunError as error:
            assert error.by == bad.number and isinstance(error.__cause__, errors.DeviceFaultError)
        except errors.DeviceFaultError:
            pass
        else:
            raise SystemExit("what was behind the fault went well")
        try:
            reboot(runtime)
        except errors.DeviceFaultError:
            pass
        else:
            raise SystemExit("a failed context was not reset, and no error was raised")
        del lent
        try:
            assert reboot(runtime, reset_failed=True).was_reset
        except errors.DeviceFaultError:
            # NVIDIA's driver (580) does not recover. What it has goes with the process, which has to end.
            assert not runtime.is_software
            raise SystemExit(0)
        del late
        with RuntimeSession("after", runtime=runtime) as session:
            with session.alloc((4,), "f32") as buffer:
                buffer.fill_bytes(1)
                assert buffer.download() == b"\\1" * 16
        all_is_back()
        """,
        # The fault is the test's own.
        env={"FERCUDA_SOFT_CHECK_EXIT": "0"},
    )
