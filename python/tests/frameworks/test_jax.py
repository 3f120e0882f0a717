"""JAX and this package on one GPU. JAX's arrays never change: what it lends is read."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
from conftest import SLOW_NS, array_of, buffer_of, same

from fercuda_runtime import ops


def test_jax_borrows_behind_the_sessions_kernels(session, scale, rng):
    array = rng.standard_normal(64).astype(np.float32)
    buffer = buffer_of(session, array)
    session.launch(scale, 1, 64, [buffer, 2.0, 64, SLOW_NS])
    theirs = jax.dlpack.from_dlpack(buffer)
    assert theirs.unsafe_buffer_pointer() == buffer.export_device_ptr()
    same(np.asarray(theirs), array * np.float32(2))
    buffer.free()
    del buffer
    gc.collect()
    # Of a new array, as JAX keeps what it has shown to NumPy.
    same(np.asarray(theirs + 1), array * np.float32(2) + np.float32(1))


def test_a_session_borrows_from_jax(session):
    theirs = jax.jit(lambda x: x * 2 + 1)(jnp.arange(4096, dtype=jnp.float32))
    expected = np.arange(4096, dtype=np.float32) * 2 + 1
    borrowed = session.from_dlpack(theirs)
    assert borrowed.export_device_ptr() == theirs.unsafe_buffer_pointer() and borrowed.regime == "foreign"
    same(array_of(borrowed), expected)
    copied = session.from_dlpack(theirs, copy=True)
    assert copied.export_device_ptr() != theirs.unsafe_buffer_pointer()
    del theirs
    gc.collect()
    same(array_of(borrowed), expected)
    same(array_of(copied), expected)
    del borrowed, copied
    gc.collect()
    session.synchronize()


def test_ops_of_jaxs_arrays_are_jaxs(session):
    theirs = jax.jit(lambda x: (x * 2 + 1).reshape(64, 64))(jnp.arange(4096, dtype=jnp.float32))
    expected = (np.arange(4096, dtype=np.float32) * 2 + 1).reshape(64, 64)
    y = ops.permute(theirs, session=session)
    assert isinstance(y, jax.Array)
    same(np.asarray(y + 1), expected.T + np.float32(1))
    out = session.alloc((64, 64))
    assert ops.neg(theirs, out=out) is out
    same(array_of(out), -expected)
    del y, out
    gc.collect()
