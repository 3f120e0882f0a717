"""JAX and this package on one GPU. JAX's arrays never change: what it lends is read."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
from conftest import SLOW_TURNS, array_of, buffer_of, same


def test_jax_borrows_behind_the_sessions_kernels(session, scale, rng):
    array = rng.standard_normal(64).astype(np.float32)
    buffer = buffer_of(session, array)
    session.launch(scale, 1, 64, [buffer, 2.0, 64, SLOW_TURNS // 64])
    theirs = jax.dlpack.from_dlpack(buffer)
    same(np.asarray(theirs), array * np.float32(2))
    buffer.free()
    del buffer
    gc.collect()
    assert np.isfinite(float(jnp.sum(theirs)))


def test_a_session_borrows_from_jax(session):
    theirs = jax.jit(lambda x: x * 2 + 1)(jnp.arange(4096, dtype=jnp.float32))
    borrowed = session.from_dlpack(theirs, copy=True)
    same(array_of(borrowed), np.arange(4096, dtype=np.float32) * 2 + 1)
    del borrowed
    gc.collect()
    session.synchronize()
