"""Expressions over buffers: against NumPy in f64, within bounds that follow from sizes and
roundings."""

import numpy as np
import pytest
from conftest import SLOW_NS, array_of, buffer_of, random_array, same

from fercuda_runtime import errors

# Half a unit in the last place of 1.
U = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}


def near(got, wanted, bound):
    """Element by element; a bound is of the exact value, to first order, and a hundredth more."""
    error = np.abs(got.astype(np.float64) - wanted)
    at = np.unravel_index(np.argmax(error - 1.01 * bound), error.shape) if error.size else ()
    assert got.shape == wanted.shape and np.all(error <= 1.01 * bound), (
        f"element {at} is {got[at]}, should be {wanted[at]} within {np.broadcast_to(bound, error.shape)[at]}"
    )


def additions(n):
    """How many additions of a sum of n lie one upon the other at most, as crates/jit promises."""
    return min(n - 1, n // 32 + 48)


def test_elements_are_computed_with_a_rounding_an_operation(session, rng):
    for dtype, name in (("float32", "f32"), ("float64", "f64")):
        shape = tuple(rng.integers(1, 40, rng.integers(1, 4)))
        a, b, c = (rng.standard_normal(shape).astype(dtype) for _ in range(3))
        buffers = {key: buffer_of(session, it) for key, it in zip("abc", (a, b, c))}
        done = session.evaluate("y = relu(a * b + c); a - b", **buffers)
        assert list(done) == ["y", "out1"] and done["y"].dtype == name and done["y"].is_contiguous
        product = a.astype(np.float64) * b
        # The product's rounding and the sum's; of f64 the reference rounds as often again.
        bound = 2 * U[name] * (2 * np.abs(product) + np.abs(c))
        near(array_of(done["y"]), np.maximum(product + c, 0), bound)
        same(array_of(done["out1"]), a - b)


def test_shapes_are_broadcast_and_inputs_have_any_strides(session, rng):
    a, v = rng.integers(-100, 100, (6, 8)).astype(np.int32), rng.integers(-100, 100, 3).astype(np.int32)
    whole = buffer_of(session, a)
    views = {
        "a": (whole[::2, 1:7], a[::2, 1:7]),
        "t": (whole.T[1:7:1, ::-2], a.T[1:7:1, ::-2]),
        "v": (buffer_of(session, v).broadcast_to(6, 3), np.broadcast_to(v, (6, 3))),
        "one": (whole[2:3, 4:5], a[2:3, 4:5]),
    }
    given = {name: buffer for name, (buffer, _) in views.items()}
    out = session.evaluate("permute(a, [1, 0]) * t - v + one", **given)["out"]
    arrays = {name: array for name, (_, array) in views.items()}
    same(array_of(out), arrays["a"].T * arrays["t"] - arrays["v"] + arrays["one"])


def test_reductions_are_within_what_their_lengths_allow(session, rng):
    for rows, n in ((3, 7), (5, 1000), (2, 70_000)):
        x = rng.standard_normal((rows, n)).astype(np.float32)
        done = session.evaluate("s = sum(x, axis=1); m = max(x, axis=-1, keep=true); p = softmax(x)", x=buffer_of(session, x))
        wide = x.astype(np.float64)
        near(array_of(done["s"]), wide.sum(1), additions(n) * U["f32"] * np.abs(wide).sum(1))
        same(array_of(done["m"]), x.max(1, keepdims=True))
        # Of e^(x - max): the difference's rounding, and 4 ulp, of two u each; the sum's additions;
        # the reciprocal's ulp and the product's rounding.
        below = wide - wide.max(1, keepdims=True)
        exact = np.exp(below)
        exact /= exact.sum(1, keepdims=True)
        one = U["f32"] * (np.abs(below).max(1, keepdims=True) + 8)
        near(array_of(done["p"]), exact, exact * (2 * one + (additions(n) + 3) * U["f32"]) + 2.0**-149)


def test_integers_and_bools_wrap_and_count_as_numpys(session, rng):
    i = random_array(rng, "int16", (7, 300))
    u = random_array(rng, "uint8", (7, 300))
    flags = random_array(rng, "bool", (7, 300))
    given = {name: buffer_of(session, it) for name, it in (("i", i), ("u", u), ("flags", flags))}
    text = "product = i * i; total = sum(i, axis=0); count = sum(flags); wide = u64(u) << 3 ^ 5; any = select(flags, u, 7)"
    done = session.evaluate(text, **given)
    same(array_of(done["product"]), i * i)
    same(array_of(done["total"]), i.sum(0, dtype=np.int64))
    assert done["count"].shape == () and array_of(done["count"]) == flags.sum()
    same(array_of(done["wide"]), (u.astype(np.uint64) << np.uint64(3)) ^ np.uint64(5))
    same(array_of(done["any"]), np.where(flags, u, np.uint8(7)))


def test_narrow_floats_are_rounded_where_they_are_written(session, rng):
    x = rng.standard_normal(5000).astype(np.float16)
    y = rng.standard_normal(5000).astype(np.float16)
    done = session.evaluate("x * y + x; wide = f32(x) * 3", x=buffer_of(session, x), y=buffer_of(session, y))
    wide = x.astype(np.float64)
    exact = wide * y + wide
    # In f32 with two roundings at most, then to f16 with its smallest step of 2^-24.
    bound = 2 * U["f32"] * (2 * np.abs(wide * y) + np.abs(wide)) + U["f16"] * np.abs(exact) + 2.0**-25
    near(array_of(done["out"]), exact, bound)
    same(array_of(done["wide"]), x.astype(np.float32) * np.float32(3))
    # bf16 has no array of NumPy's: its bits are f32's upper half, to the nearest.
    bf16 = session.alloc((5000,), "bf16")
    f32 = rng.standard_normal(5000).astype(np.float32)
    assert session.evaluate("y = bf16(x)", into={"y": bf16}, x=buffer_of(session, f32))["y"] is bf16
    bits = np.frombuffer(bf16.download(), np.uint16).astype(np.uint32) << 16
    near(bits.view(np.float32), f32.astype(np.float64), U["bf16"] * np.abs(f32))


def test_results_go_into_buffers_that_there_are(session, rng):
    a, b = (rng.standard_normal((4, 6)).astype(np.float32) for _ in range(2))
    x, y, table = buffer_of(session, a), buffer_of(session, b), session.alloc((6, 8), "f32")
    table.fill_bytes(0)
    done = session.evaluate("s = x + y; d = x - y", into={"d": table[:, 1::2].T, "s": x}, x=x, y=y)
    assert list(done) == ["s", "d"] and done["s"] is x
    same(array_of(x), a + b)
    expected = np.zeros((6, 8), np.float32)
    expected[:, 1::2] = (a - b).T
    same(array_of(table), expected)
    before = session.count_buffers()
    for text, into in (
        ("s = sum(x, axis=0)", x),
        ("s = x > y", x),
        ("s = permute(x, [1, 0]) * 2", x.reshape(6, 4)),
        ("s = x + y", y.reshape(-1)[:1].broadcast_to(4, 6)),
    ):
        with pytest.raises(errors.ExpressionError) as raised:
            session.evaluate(text, into={"s": into}, x=x, y=y)
        assert (raised.value.line, raised.value.column) == (None, None), text
        assert "'s'" in str(raised.value) or '"s"' in str(raised.value) or "output s" in str(raised.value)
    with pytest.raises(errors.ExpressionError, match="no output .t.\ntry: one of: s d"):
        session.evaluate("s = x + y; d = x - y", into={"t": x}, x=x, y=y)
    del into
    assert session.count_buffers() == before
    same(array_of(x), a + b)


def test_an_expression_is_behind_work_and_does_not_wait(session, scale, rng):
    x = buffer_of(session, np.ones(4, np.float32))
    session.evaluate("x + 1", x=x)
    session.launch(scale, 1, 4, [x, 3.0, 4, SLOW_NS])
    done = session.evaluate("x + 1", x=x)["out"]
    assert not done.download_async().done()
    x.free()
    same(array_of(done), np.full(4, 4, np.float32))


def test_what_is_wrong_is_said_and_leaves_nothing(session, other, rng):
    x, i = session.alloc((4,), "f32"), session.alloc((4,), "i32")
    before = session.held_bytes
    for text, line, column, what in (
        ("x +", 1, 4, "missing at the end"),
        ("y = x * 2;\n  z = y + nothing", 2, 11, "there is no .nothing."),
        ("x + i", 1, 3, "add of f32 and i32"),
        ("exp(i)", 1, 1, "exp of i32"),
        ("reshape(x, [5])", 1, 1, "reshape"),
        ("-" * 1000 + "x", 1, 201, "nested"),
        ("x" + " " * 70_000, 1, 1, "70001 bytes"),
        ("", 1, 1, "no expression"),
    ):
        with pytest.raises(errors.ExpressionError, match=what) as raised:
            session.evaluate(text, x=x, i=i)
        assert (raised.value.line, raised.value.column) == (line, column) and isinstance(raised.value, ValueError)
    for given in ({"x": 2.0}, {"x": np.ones(4)}, {"x": None}):
        with pytest.raises(errors.ArgumentsError, match="input .x. is"):
            session.evaluate("x + 1", **given)
    with pytest.raises(errors.ArgumentsError, match="output .y. is"):
        session.evaluate("y = x + 1", into={"y": 3}, x=x)
    with pytest.raises(TypeError):
        session.evaluate(x)
    for given in (other.alloc((4,)), session.alloc((4,))):
        if given.session_name == session.name:
            given.free()
        with pytest.raises(errors.StaleHandleError):
            session.evaluate("x + y", x=x, y=given)
        with pytest.raises(errors.StaleHandleError):
            session.evaluate("y = x + 1", into={"y": given}, x=x)
    assert session.held_bytes == before


def test_a_limit_holds_for_results_too(runtime):
    from fercuda_runtime import RuntimeSession

    with RuntimeSession("small", limit_bytes=3 << 10, runtime=runtime) as session:
        x = session.alloc((256,), "f32")
        x.fill_bytes(0)
        with pytest.raises(errors.LimitError):
            session.evaluate("a = x + 1; b = x + 2; c = x + 3", x=x)
        assert session.count_buffers() == 1
        assert len(session.evaluate("a = x + 1; b = x + 2", x=x)) == 2
        session.close()
        with pytest.raises(errors.SessionEndedError):
            session.evaluate("x + 1", x=x)
