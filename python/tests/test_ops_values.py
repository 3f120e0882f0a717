"""Ops against NumPy in f64: every op of the registry runs, and most have a reference here.

Values are random, of random shapes, types and strides, from a fresh seed. An error bound is that of
a few roundings to the type of values of the result's size, times the number of elements that are
summed; values are such that no intermediate one is larger than 64 times the result's bound on it.
"""

import math

import numpy as np
import pytest
from conftest import buffer_of

from fercuda_runtime import ops

EPS = {"f16": 2.0**-10, "f32": 2.0**-23, "f64": 2.0**-52}
NUMPY = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64, "u8": np.uint8, "bool": np.bool_}
erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return x * (1 + erf(x / math.sqrt(2))) / 2


def gelu_tanh(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softplus(x):
    return np.logaddexp(0, x)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def elu(x, alpha=1.0):
    return np.where(x > 0, x, alpha * np.expm1(x))


# Of f64 operands, in the order of the op, without parameters.
EACH = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "square": np.square,
    "cube": lambda x: x**3,
    "recip": lambda x: 1 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "ln": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "erf": erf,
    "erfc": lambda x: 1 - erf(x),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "frac": lambda x: x - np.trunc(x),
    "deg2rad": np.deg2rad,
    "rad2deg": np.rad2deg,
    "nan_to_num": lambda x: x,
    "clamp": lambda x: np.clip(x, 0, 1),
    "scale": lambda x: 2 * x,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "fmin": np.fmin,
    "fmax": np.fmax,
    "absolute_difference": lambda x, y: np.abs(x - y),
    "squared_difference": lambda x, y: (x - y) ** 2,
    "hypot": np.hypot,
    "logaddexp": np.logaddexp,
    "xlogy": lambda x, y: x * np.log(y),
    "heaviside": np.heaviside,
    "add_scaled": np.add,
    "fma": lambda x, y, z: x * y + z,
    "lerp": lambda x, y, w: x + w * (y - x),
    "addcmul": lambda x, y, z: x + y * z,
    "addcdiv": lambda x, y, z: x + y / z,
    "clamp_between": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "is_nan": np.isnan,
    "is_inf": np.isinf,
    "is_finite": np.isfinite,
    "logical_not": np.logical_not,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu": lambda x: np.where(x >= 0, x, 0.01 * x),
    "prelu": lambda x, slope: np.where(x >= 0, x, slope * x),
    "hard_tanh": lambda x: np.clip(x, 0, 1),
    "hard_sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hard_shrink": lambda x: np.where(np.abs(x) <= 0.5, 0, x),
    "soft_shrink": lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
    "tanh": np.tanh,
    "tanh_shrink": lambda x: x - np.tanh(x),
    "sigmoid": sigmoid,
    "log_sigmoid": lambda x: -softplus(-x),
    "silu": lambda x: x * sigmoid(x),
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "softplus": softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "mish": lambda x: x * np.tanh(softplus(x)),
    "elu": elu,
    "celu": elu,
    "glu": lambda x, gate: x * sigmoid(gate),
    "reglu": lambda x, gate: x * np.maximum(gate, 0),
    "swiglu": lambda x, gate: x * gate * sigmoid(gate),
    "geglu": lambda x, gate: x * gelu(gate),
    "geglu_tanh": lambda x, gate: x * gelu_tanh(gate),
    "relu_backward": lambda g, x: np.where(x > 0, g, 0),
    "sigmoid_backward": lambda g, y: g * y * (1 - y),
    "tanh_backward": lambda g, y: g * (1 - y * y),
}
FOLDED = {
    "sum": lambda x, axis: x.sum(axis),
    "mean": lambda x, axis: x.mean(axis),
    "amin": lambda x, axis: x.min(axis),
    "amax": lambda x, axis: x.max(axis),
    "norm_l1": lambda x, axis: np.abs(x).sum(axis),
    "norm_l2": lambda x, axis: np.sqrt((x * x).sum(axis)),
    "norm_inf": lambda x, axis: np.abs(x).max(axis),
    "sum_square": lambda x, axis: (x * x).sum(axis),
    "mean_square": lambda x, axis: (x * x).mean(axis),
    "mean_abs": lambda x, axis: np.abs(x).mean(axis),
    "any": lambda x, axis: x.any(axis),
    "all": lambda x, axis: x.all(axis),
    "count_nonzero": lambda x, axis: np.count_nonzero(x, axis),
    "logsumexp": lambda x, axis: np.log(np.exp(x).sum(axis)),
    "mse_loss": lambda x, y, axis: ((x - y) ** 2).mean(axis),
    "l1_loss": lambda x, y, axis: np.abs(x - y).mean(axis),
    "dot": lambda x, y, axis: (x * y).sum(axis),
}
ALONG = {
    "softmax": softmax,
    "softmin": lambda x, axis: softmax(-x, axis),
    "log_softmax": lambda x, axis: np.log(softmax(x, axis)),
    "normalize": lambda x, axis: x / np.sqrt((x * x).sum(axis, keepdims=True)),
    "rms_norm": lambda x, axis: x / np.sqrt((x * x).mean(axis, keepdims=True) + 1e-5),
    "layer_norm": lambda x, axis: (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 1e-5),
    "cumsum": lambda x, axis: np.cumsum(x, axis),
    "cummax": lambda x, axis: np.maximum.accumulate(x, axis),
    "cummin": lambda x, axis: np.minimum.accumulate(x, axis),
    "sort": lambda x, axis: np.sort(x, axis),
    "argsort": lambda x, axis: np.argsort(x, axis, kind="stable"),
}


def strided(session, rng, array):
    """The array's elements on the device, in a layout that is contiguous, cut, reversed or transposed."""
    way = rng.integers(0, 4)
    if way == 0 or not array.ndim:
        return buffer_of(session, array)
    if way == 1:
        return buffer_of(session, np.ascontiguousarray(array.T)).T
    if way == 2:
        return buffer_of(session, np.ascontiguousarray(array[::-1]))[::-1]
    apart = np.zeros((array.shape[0] * 2, *array.shape[1:]), array.dtype)
    apart[1::2] = array
    return buffer_of(session, apart)[1::2]


def drawn(rng, shape, dtype, low=0.25, high=2.0):
    """Numbers of magnitudes at which every function here is defined, and moderate."""
    return rng.uniform(low, high, shape).astype(NUMPY[dtype])


def a_shape(rng, rank=None):
    rank = int(rng.integers(1, 4)) if rank is None else rank
    return tuple(int(n) for n in rng.integers(1, 9, rank))


def close(got, wanted, dtype, count=1):
    wanted = np.asarray(wanted)
    assert got.shape == wanted.shape
    if got.dtype.kind != "f":
        assert (got == wanted).all(), f"{got} is not {wanted}"
        return
    # Computed in f32 at least, and stored in the type.
    computed = max(EPS["f64" if dtype == "f64" else "f32"] * 64 * count, 0)
    bound = (computed + EPS[dtype]) * np.maximum(np.abs(wanted), 1) * 2
    worst = np.max(np.abs(got.astype(np.float64) - wanted) - bound, initial=-1)
    assert worst <= 0, f"{worst} beyond the bound"


def dtype_for(rng, op):
    dtypes = [it for it in EPS if all(it in of for of in op.dtypes)]
    return dtypes[rng.integers(0, len(dtypes))]


@pytest.mark.parametrize("name", EACH)
def test_an_op_of_each_element_is_numpys(session, rng, name):
    op = ops.describe(name)
    for _ in range(3):
        dtype, shape = dtype_for(rng, op), a_shape(rng)
        arrays = [drawn(rng, shape, dtype) for _ in op.operands]
        if len(arrays) > 1 and rng.integers(0, 2):
            # The last one is broadcast.
            arrays[-1] = arrays[-1][..., :1].copy()
        wanted = EACH[name](*(it.astype(np.float64) for it in arrays))
        got = getattr(ops, name)(*(strided(session, rng, it) for it in arrays))
        close(got.numpy(), wanted, dtype)


@pytest.mark.parametrize("name", FOLDED)
def test_a_reduction_is_numpys(session, rng, name):
    op = ops.describe(name)
    for _ in range(3):
        dtype, shape = dtype_for(rng, op), a_shape(rng)
        axis = int(rng.integers(-len(shape), len(shape)))
        arrays = [drawn(rng, shape, dtype) for _ in op.operands]
        wanted = FOLDED[name](*(it.astype(np.float64) for it in arrays), axis)
        given = [strided(session, rng, it) for it in arrays]
        got = getattr(ops, name)(*given, axes=axis).numpy()
        close(got, wanted, dtype, shape[axis])
        kept = getattr(ops, name)(*given, axes=(axis,), keep=True)
        assert kept.shape == tuple(1 if at == axis % len(shape) else n for at, n in enumerate(shape))
        everything = getattr(ops, name)(*given).numpy()
        wanted = FOLDED[name](*(it.astype(np.float64) for it in arrays), None)
        close(everything, wanted, dtype, math.prod(shape))


@pytest.mark.parametrize("name", ALONG)
def test_an_op_along_an_axis_is_numpys(session, rng, name):
    op = ops.describe(name)
    for _ in range(3):
        dtype, shape = dtype_for(rng, op), a_shape(rng)
        axis = int(rng.integers(-len(shape), len(shape)))
        array = drawn(rng, shape, dtype)
        got = getattr(ops, name)(strided(session, rng, array), axis=axis)
        got = got[0] if isinstance(got, tuple) else got
        wanted = ALONG[name](array.astype(np.float64), axis)
        # The variance of a norm is a difference of sums.
        close(got.numpy(), wanted, dtype, 8 * shape[axis])


def test_products_and_windows_are_numpys(session, rng):
    for dtype in ("f16", "f32", "f64"):
        m, n, k, batch = (int(it) for it in rng.integers(1, 9, 4))
        x, y = drawn(rng, (batch, m, k), dtype, -1, 1), drawn(rng, (k, n), dtype, -1, 1)
        got = ops.matmul(strided(session, rng, x), strided(session, rng, y)).numpy()
        close(got, x.astype(np.float64) @ y.astype(np.float64), dtype, k)
        weight, bias = drawn(rng, (n, k), dtype, -1, 1), drawn(rng, (n,), dtype, -1, 1)
        got = ops.linear(
            buffer_of(session, x), buffer_of(session, weight), bias=buffer_of(session, bias), activation="relu"
        )
        wanted = np.maximum(x.astype(np.float64) @ weight.astype(np.float64).T + bias.astype(np.float64), 0)
        close(got.numpy(), wanted, dtype, k)
    image, kernel = drawn(rng, (1, 2, 6, 5), "f32", -1, 1), drawn(rng, (3, 2, 3, 2), "f32", -1, 1)
    got = ops.conv(buffer_of(session, image), buffer_of(session, kernel)).numpy()
    cuts = np.lib.stride_tricks.sliding_window_view(image.astype(np.float64), (3, 2), (2, 3))
    close(got, np.einsum("bchwij,ocij->bohw", cuts, kernel.astype(np.float64)), "f32", 12)
    largest, places = ops.max_pool(buffer_of(session, image), kernel=[2, 2])
    cuts = np.lib.stride_tricks.sliding_window_view(image, (2, 2), (2, 3))[:, :, ::2, ::2]
    assert (largest.numpy() == cuts.max((-1, -2))).all() and places.shape == largest.shape
    flat = image.reshape(1, 2, -1)
    found = np.take_along_axis(flat, places.numpy().reshape(1, 2, -1), -1).reshape(largest.shape)
    assert (found == largest.numpy()).all()


def test_moved_and_chosen_elements_are_numpys(session, rng):
    for dtype in ("f16", "f32", "f64", "i32", "i64", "bool"):
        shape = a_shape(rng, 2)
        array = rng.integers(-9, 9, shape).astype(NUMPY[dtype])
        x = strided(session, rng, array)
        assert (ops.copy(x).numpy() == array).all()
        assert (ops.permute(x, order=(1, 0)).numpy() == array.T).all()
        assert (ops.permute(x).numpy() == array.T).all()
        assert (ops.broadcast_to(x, shape=(3, *shape)).numpy() == array).all()
        assert (ops.concat(x, x, x, axis=-1).numpy() == np.concatenate([array] * 3, -1)).all()
        assert (ops.stack(x, x, axis=-1).numpy() == np.stack([array] * 2, -1)).all()
        assert (ops.flip(x, axes=-2).numpy() == array[::-1]).all()
        assert (ops.roll(x, shift=-2, axis=0).numpy() == np.roll(array, -2, 0)).all()
        assert (ops.tile(x, repeats=(2, 1)).numpy() == np.tile(array, (2, 1))).all()
        assert (ops.repeat_interleave(x, repeats=3, axis=1).numpy() == np.repeat(array, 3, 1)).all()
        padded = ops.pad(x, pads=[1, 0, 0, 2], mode="replicate").numpy()
        assert (padded == np.pad(array, ((1, 0), (0, 2)), "edge")).all()
        cut = ops.slice(x, starts=[0, 0], ends=[shape[0], -1], steps=[2, 1]).numpy()
        assert (cut == array[::2, :-1]).all()
        assert (ops.tril(x, diagonal=1).numpy() == np.tril(array, 1)).all()
        index = rng.integers(0, shape[0], 5)
        assert (ops.index_select(x, buffer_of(session, index), axis=0).numpy() == array[index]).all()
        assert (ops.embedding(x, buffer_of(session, index)).numpy() == array[index]).all()
        places = rng.integers(0, shape[1], shape)
        gathered = ops.gather(x, buffer_of(session, places), axis=1).numpy()
        assert (gathered == np.take_along_axis(array, places, 1)).all()
        mask = rng.integers(0, 2, shape).astype(bool)
        chosen, count = ops.masked_select(x, buffer_of(session, mask))
        assert int(count.numpy().reshape(-1)[0]) == mask.sum()
        assert (chosen.numpy().reshape(-1)[: mask.sum()] == array[mask]).all()
        picked = ops.where(buffer_of(session, mask), x, strided(session, rng, array[:1]))
        assert (picked.numpy() == np.where(mask, array, array[:1])).all()
    counts = ops.bincount(buffer_of(session, np.array([1, 4, 1, 0, 9])), bins=5).numpy()
    assert counts.tolist() == [1, 2, 0, 0, 1]


def test_made_numbers_are_as_described(session, rng):
    assert ops.full(shape=(2, 3), value=2.5, to="f32", session=session).numpy().tolist() == [[2.5] * 3] * 2
    assert ops.iota(shape=6, start=3, step=2, session=session).numpy().tolist() == [3, 5, 7, 9, 11, 13]
    assert (ops.eye(shape=(3, 4), to=np.float64, session=session).numpy() == np.eye(3, 4)).all()
    seed = int(rng.integers(0, 2**62))
    same = [ops.random_uniform(shape=(1000,), seed=seed, session=session).numpy() for _ in range(2)]
    other = ops.random_uniform(shape=(1000,), seed=seed, subsequence=1, session=session).numpy()
    assert (same[0] == same[1]).all() and (same[0] != other).any()
    # The mean of n uniform numbers is within 8 of its deviations, 1 / sqrt(12 n).
    assert abs(same[0].mean() - 0.5) < 8 / math.sqrt(12 * 1000)
    x = drawn(rng, (1000,), "f32")
    y, stayed = ops.dropout(buffer_of(session, x), p=0.25, seed=[seed])
    close(y.numpy(), np.where(stayed.numpy(), x.astype(np.float64) / 0.75, 0), "f32")


# What an op needs beside operands of one shape and type, and no parameters.
NEEDS = {
    "cast": {"to": "f16"},
    "full": {"to": "bf16"},
    "broadcast_to": {"shape": (2, 4, 6)},
    "tile": {"repeats": (2, 1)},
    "pad": {"pads": (1, 0, 0, 1)},
    "slice": {"starts": (0, 1), "ends": (4, 6), "steps": (1, 2)},
    "slice_write": {"starts": (0, 0), "ends": (4, 6), "steps": (1, 1)},
    "pixel_shuffle": {"x": (4, 2, 3)},
    "pixel_unshuffle": {"x": (1, 4, 6)},
    "index_select": {"index": (3,)},
    "take": {"index": (5,)},
    "index_add": {"index": (6,)},
    "index_reduce": {"index": (6,)},
    "index_copy": {"index": (6,)},
    "one_hot": {"classes": 4},
    "matmul": {"y": (6, 4)},
    "linear": {"weight": (5, 6)},
    "conv": {"x": (1, 2, 5), "weight": (3, 2, 2)},
    "conv_transpose": {"x": (1, 2, 5), "weight": (2, 3, 2)},
    "conv_weight_backward": {"g": (1, 3, 4), "x": (1, 2, 5), "kernel": 2},
    "max_pool": {"x": (1, 2, 4), "kernel": 2},
    "avg_pool": {"x": (1, 2, 4), "kernel": 2},
    "adaptive_max_pool": {"x": (1, 2, 4), "size": 2},
    "adaptive_avg_pool": {"x": (1, 2, 4), "size": 2},
    "interpolate": {"x": (1, 2, 4), "size": 6},
    "rope": {"x": (4, 2, 6), "position": (4,), "frequency": (3,)},
    "cache_append": {"cache": (2, 3, 2, 6), "rows": (1, 2, 6), "index": (1,)},
    "token_attention": {
        "x": (1, 24),
        "position": (1,),
        "frequency": (3,),
        "index": (1,),
        "k": (2, 3, 1, 8),
        "v": (2, 3, 1, 8),
        "table": (1, 2),
        "sequence": (1,),
        "arrived": (1,),
    },
    "attention_inputs": {
        "x": (1, 24),
        "position": (1,),
        "frequency": (3,),
        "index": (1,),
        "k": (2, 3, 1, 6),
        "v": (2, 3, 1, 6),
    },
    "attention": {"q": (1, 3, 4, 6), "k": (1, 5, 2, 6), "v": (1, 5, 2, 4)},
    "paged_attention": {
        "q": (4, 4, 6),
        "k": (4, 3, 2, 6),
        "v": (4, 3, 2, 6),
        "table": (2, 2),
        "sequence": (4,),
        "position": (4,),
    },
    "causal_convolution": {
        "x": (4, 6),
        "weight": (6, 3),
        "state": (2, 2, 6),
        "runs": (1, 6),
    },
    "gated_delta_rule": {
        "x": (4, 24),
        "step": (4, 2),
        "beta": (4, 2),
        "rate": (2,),
        "bias": (2,),
        "state": (2, 2, 4, 4),
        "runs": (1, 6),
    },
    "selective_scan": {
        "x": (4, 16),
        "step": (4, 2),
        "rate": (2,),
        "bias": (2,),
        "state": (2, 2, 4, 4),
        "runs": (1, 6),
    },
    "bincount": {"index": (9,)},
    "cross_entropy": {"index": (4,)},
    "cross_entropy_backward": {"g": (), "index": (4,)},
    "nll_loss": {"index": (4,)},
    "nll_loss_backward": {"g": (), "index": (4,)},
    "ctc_loss": {"x": (5, 2, 4), "index": (2, 3), "lengths": (2,), "label_lengths": (2,)},
    "sgd": {"rate": ()},
    "sgd_momentum": {"rate": ()},
    "adam": {"rate": (), "step": ()},
    "adamw": {"rate": (), "step": ()},
    "lion": {"rate": ()},
    "lamb": {"rate": (), "step": ()},
    "adafactor": {"rows": (4,), "columns": (6,), "rate": (), "step": ()},
    "multi_sgd": {"rate": ()},
    "multi_sgd_momentum": {"rate": ()},
    "multi_adam": {"rate": (), "step": ()},
    "multi_adamw": {"rate": (), "step": ()},
    "multi_lion": {"rate": ()},
    "clip_norm": {"norm": ()},
    "unscale": {"scale": ()},
    "next_scale": {"scale": (), "streak": (), "found": ()},
    "quantise_with": {"scale": (), "to": "i8"},
    "dequantise": {"scale": ()},
    "f8_scales": {"latest": (6,), "scale": (6,), "to": "f8e4m3"},
    "quantise_blocks": {"x": (2, 32)},
    "dequantise_blocks": {"w": (2, 18)},
    "quantised_linear": {"x": (4, 32), "w": (6, 18)},
    "token_linear": {"x": (4, 32), "w": (6, 32)},
    "normed_linear": {"x": (4, 32), "norm": (32,), "w": (6, 32)},
    "normed_swiglu": {"x": (4, 32), "norm": (32,), "gate": (6, 32), "up": (6, 32)},
    "quantised_swiglu": {"x": (4, 32), "gate": (6, 18), "up": (6, 18)},
    "expert_linear": {"x": (4, 8), "w": (3, 6, 8), "index": (4, 2)},
    "quantised_expert_linear": {"x": (4, 32), "w": (3, 6, 18), "index": (4, 2)},
    "quantised_expert_swiglu": {
        "x": (4, 32),
        "gate": (3, 6, 18),
        "up": (3, 6, 18),
        "index": (4, 2),
    },
    "quantised_embedding": {"w": (6, 18), "index": (5,)},
    "segment_reduce": {"offsets": (3,)},
    "embedding_bag": {"index": (5,), "offsets": (3,)},
    "embedding_bag_backward": {"g": (2, 6), "index": (5,), "offsets": (3,), "rows": 4},
    "embedding_backward": {"g": (5, 6), "index": (5,), "rows": 4},
    "lp_pool": {"x": (1, 2, 4), "kernel": 2},
    "fractional_max_pool": {"x": (1, 2, 6), "fractions": (1, 2, 1), "kernel": 2, "size": 3},
    "im2col": {"x": (1, 2, 4), "kernel": 2},
    "col2im": {"columns": (1, 4, 3), "size": 4, "kernel": 2},
    "grid_sample": {"x": (1, 2, 4, 5), "grid": (1, 3, 3, 2)},
    "affine_grid": {"matrix": (1, 2, 3), "size": (3, 4)},
    "roi_align": {"x": (1, 2, 4, 5), "boxes": (2, 4), "index": (2,)},
    "nms": {"boxes": (4, 4), "scores": (4,)},
    "csr_matvec": {"values": (5,), "index": (5,), "offsets": (5,), "x": (6,)},
    "csr_matmul": {"values": (5,), "index": (5,), "offsets": (5,), "x": (6, 3)},
    "sddmm": {"values": (5,), "index": (5,), "offsets": (5,), "x": (4, 3), "y": (3, 6)},
    "fft": {"x": (3, 6, 2)},
    "ifft": {"x": (3, 6, 2)},
    "irfft": {"x": (3, 6, 2)},
    "cholesky": {"x": (4, 4)},
    "solve": {"a": (4, 4)},
    "solve_triangular": {"a": (4, 4)},
    "inverse": {"x": (4, 4)},
    "determinant": {"x": (4, 4)},
    "slogdet": {"x": (4, 4)},
    "eigh": {"x": (4, 4)},
    "eigvals": {"x": (4, 4)},
    "matrix_power": {"x": (4, 4)},
    "cholesky_solve": {"factor": (4, 4)},
    "lstsq": {"a": (6, 4), "b": (6, 3)},
    "cross": {"x": (4, 3), "y": (4, 3)},
    "linear_cross_entropy": {"x": (5, 6), "index": (5,)},
    "linear_cross_entropy_backward": {"g": (), "logarithms": (5,), "x": (5, 6), "index": (5,)},
    "batch_norm_inference": {"mean": (6,), "variance": (6,)},
    "batch_norm_inference_backward": {"mean": (6,), "variance": (6,)},
    "index_select_backward": {"index": (6,)},
    "gather_backward": {"shape": (4, 6)},
    "max_pool_backward": {"g": (2, 3, 2), "index": (2, 3, 2), "size": (4,), "kernel": (2,), "stride": (2,)},
    "avg_pool_backward": {"g": (2, 3, 2), "size": (4,), "kernel": (2,), "stride": (2,)},
    "adaptive_max_pool_backward": {"g": (2, 3, 2), "index": (2, 3, 2), "size": (4,)},
    "adaptive_avg_pool_backward": {"g": (2, 3, 2), "size": (4,)},
    "interpolate_backward": {"g": (2, 3, 2), "size": (4,)},
    "grid_sample_backward": {"g": (2, 3, 4, 5), "x": (2, 3, 6, 7), "grid": (2, 4, 5, 2)},
}


@pytest.mark.parametrize("name", ops.names())
def test_every_op_is_called_by_its_name(session, rng, name):
    op = ops.describe(name)
    assert op.name == name and op.doc and op.signature.startswith(f"{name}(")
    needs = dict(NEEDS.get(name, {}))
    if any(it.name == "shape" for it in op.parameters):
        needs.setdefault("shape", (3, 4))
    given = []
    for operand, dtypes in list(zip(op.operands, op.dtypes, strict=True))[: len(op.operands) - op.optional]:
        shape = needs.pop(operand, (4, 6))
        if operand == "index":
            array = rng.integers(0, 4, shape).astype(np.int64)
        elif operand == "offsets":
            # They ascend: elements that two rows have may be written by both.
            array = np.sort(rng.integers(0, 5, shape)).astype(np.int64)
        elif "f32" in dtypes:
            array = drawn(rng, shape, "f32")
        else:
            kind = next((it for it in ("i32", "u8") if it in dtypes), "bool")
            array = rng.integers(0, 2, shape).astype(NUMPY[kind])
        given.append(strided(session, rng, array))
    made = {} if given else {"session": session}
    results = getattr(ops, name)(*given, **needs, **made)
    results = results if isinstance(results, tuple) else (results,)
    assert len(results) == len(op.results)
    plan = ops.plan(name, *given, **needs, **made)
    layouts = [(it.dtype, it.shape) for it in results]
    assert layouts == [(it.dtype, it.shape) for it in plan.outputs]
    assert plan.op == name and plan.sku.kernel and plan.sku.launches >= 0
    # The same call gives the same bits, but sums of scattered values may be in any order.
    again = plan.run(*given)
    again = again if isinstance(again, tuple) else (again,)
    for first, second in zip(results, again, strict=True):
        if op.family not in ("indexing", "segment"):
            assert first.download() == second.download()
    assert plan.run(*given, out=results) is not None
