"""The kernels of `inference.triton_kernels` as Triton compiles them for sm_80, on the device of the
tests, against references in f64. Neither a GPU nor PyTorch is needed: this package launches them.

Bounds: u is half a unit in the last place of the tensors' type for each rounding to it, and F that
of f32. A sum over n elements is off by at most n F of the sum of magnitudes in any order;
rsqrt.approx and ex2.approx have errors of at most 4 F.
"""

import os
import tempfile
from types import SimpleNamespace

# Read when Triton is imported: nothing is taken from a cache of another run.
CACHE = tempfile.TemporaryDirectory()
os.environ["TRITON_CACHE_DIR"] = CACHE.name

import numpy as np
import pytest
import triton
from conftest import array_of
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fercuda_runtime.guest_hooks import load_triton
from fercuda_runtime.inference.triton_kernels import activation, delta, linear, norm, rotary

F = 2.0**-24
# Relative error of one rounding, and the smallest difference of two values.
ROUNDING = {"f32": (F, 2.0**-149), "f16": (2.0**-11, 2.0**-24), "bf16": (2.0**-8, 2.0**-133)}
DTYPES = list(ROUNDING)
COMPILED = {}


class Tensor:
    """An array of a type that NumPy may not have: its values, exact in f64, and its bits."""

    def __init__(self, dtype, values):
        self.dtype, values = dtype, np.asarray(values, np.float32)
        if dtype == "bf16":
            bits = np.ascontiguousarray(values).view(np.uint32)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            self.bits = rounded.astype(np.uint16)
        else:
            self.bits = values.astype({"f32": np.float32, "f16": np.float16}[dtype])
        self.values = self.exact(self.bits)

    def exact(self, bits):
        if self.dtype == "bf16":
            bits = (bits.astype(np.uint32) << 16).view(np.float32)
        return bits.astype(np.float64)


class Room(Tensor):
    """A tensor to be written, with its strides' holes: what is not written stays NaN."""

    def __init__(self, dtype, shape):
        super().__init__(dtype, np.full(shape, np.nan, np.float32))


def run(session, kernel, programs, arguments, constants, warps=4, fusion=False):
    """Compiles a kernel as Triton's launcher would for these arguments, and launches it."""
    names, given, signature, attributes = kernel.arg_names, [], {}, {}
    if "IS_EARLY" in names:
        # Of compute capability 9 alone.
        constants = {"IS_EARLY": False, **constants}
    constexprs = dict(constants)
    pointer = {"f32": "*fp32", "f16": "*fp16", "bf16": "*bf16"}
    for at, name in enumerate(names):
        value = constants.get(name, arguments.get(name))
        if name in constants or value is None or (type(value) is int and value == 1):
            signature[name], constexprs[name] = "constexpr", value
            continue
        given.append(value)
        if isinstance(value, Tensor):
            signature[name] = pointer[value.dtype]
            attributes[(at,)] = [["tt.divisibility", 16]]
        elif isinstance(value, int):
            signature[name] = "i32"
            if value % 16 == 0:
                attributes[(at,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32"
    assert set(arguments) | set(constants) == set(names)
    key = (kernel.__name__, str(signature), str(constexprs), str(attributes), warps)
    if key not in COMPILED:
        source = ASTSource(kernel, signature, {(names.index(name),): it for name, it in constexprs.items()}, attributes)
        options = {"num_warps": warps, "enable_fp_fusion": fusion}
        COMPILED[key] = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options)
    # The text for every driver: machine code is of one GPU, and of no software device.
    kernel, text = COMPILED[key], COMPILED[key].asm["ptx"]
    loaded = load_triton(session, SimpleNamespace(metadata=kernel.metadata, asm={"ptx": text, "cubin": text.encode()}))
    buffers = []
    for value in given:
        if isinstance(value, Tensor):
            buffer = session.alloc(value.bits.shape, value.bits.dtype)
            buffer.upload(value.bits)
            buffers.append((value, buffer))
    held = iter(buffers)
    loaded.launch(session, programs, [next(held)[1] if isinstance(it, Tensor) else it for it in given])
    for value, buffer in buffers:
        value.bits = array_of(buffer, value.bits.dtype)
        value.values = value.exact(value.bits)


def random(rng, dtype, shape, scale=1.0):
    return Tensor(dtype, rng.standard_normal(shape).astype(np.float32) * np.float32(scale))


def near(tensor, reference, magnitude, roundings=1, f32=64 * F):
    """Holds the values against a reference of this magnitude, with so many roundings to the type."""
    u, smallest = ROUNDING[tensor.dtype]
    bound = np.abs(magnitude) * ((1 + u) ** roundings - 1 + f32) + (roundings + 1) * smallest
    assert np.isfinite(tensor.values).all(), "an element was not written"
    error = np.abs(tensor.values - reference)
    assert (error <= bound).all(), f"{(error / bound).max()} times the bound"


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def norm_shapes(columns):
    block = triton.next_power_of_2(columns)
    rows = max(1, 1024 // block)
    return {"ROWS": rows, "BLOCK": block}


@pytest.mark.parametrize("dtype, rows, columns", [("f32", 7, 64), ("f16", 3, 1000), ("bf16", 2, 2560)])
@pytest.mark.parametrize("form", ["plain", "plus_one", "gated", "residual", "all"])
def test_rms_norm_is_that_of_f64_forward_and_backward(session, rng, dtype, form, rows, columns):
    plus_one, gated, residual = (form in (it, "all") for it in ("plus_one", "gated", "residual"))
    eps, wide = float(np.float32(1e-6)), columns + 16
    x = random(rng, dtype, (rows, wide), 3.0)
    weight = random(rng, dtype, columns)
    added = random(rng, dtype, (rows, columns)) if residual else None
    gate = random(rng, dtype, (rows, wide)) if gated else None
    y, inverse = Room(dtype, (rows, columns)), Room("f32", rows)
    summed = Room(dtype, (rows, columns)) if residual else None
    shapes = norm_shapes(columns)
    run(
        session, norm.rms_norm_forward, -(-rows // shapes["ROWS"]),
        dict(x=x, residual=added, gate=gate, weight=weight, y=y, summed=summed, inverse=inverse, rows=rows,
             columns=columns, x_stride=wide, residual_stride=columns, gate_stride=wide, eps=eps),
        dict(PLUS_ONE=plus_one, HAS_RESIDUAL=residual, HAS_GATE=gated, STORE_INVERSE=True, **shapes),
    )  # fmt: skip
    values = x.values[:, :columns]
    if residual:
        near(summed, values + added.values, values + added.values)
        values = summed.values
    scale = 1 / np.sqrt((values**2).mean(axis=1) + eps)
    exact = (columns + 8) * F
    near(inverse, scale, scale, f32=exact)
    factor = weight.values + plus_one
    expected, roundings = values * scale[:, None] * factor, 1 if plus_one else 2
    z = gate.values[:, :columns] if gated else None
    if gated:
        # exp(-z) is off by |z| F beside its own error.
        expected, roundings = expected * z * sigmoid(z), roundings + 1
        exact += (16 + np.abs(z)) * F
    near(y, expected, expected, roundings, exact + 8 * F)

    dy, dx = random(rng, dtype, (rows, columns)), Room(dtype, (rows, columns))
    dsummed = random(rng, dtype, (rows, columns)) if residual else None
    dgate = Room(dtype, (rows, columns)) if gated else None
    each = -(-rows // 3)
    programs = -(-rows // each)
    dweight = Room("f32", (programs, columns))
    of_x, stride = (summed, columns) if residual else (x, wide)
    run(
        session, norm.rms_norm_backward, programs,
        dict(dy=dy, dsummed=dsummed, x=of_x, gate=gate, weight=weight, inverse=inverse, dx=dx, dgate=dgate,
             dweight=dweight, rows=rows, columns=columns, x_stride=stride, gate_stride=wide, rows_per_program=each),
        dict(PLUS_ONE=plus_one, HAS_SUMMED=residual, HAS_GATE=gated, **shapes),
    )  # fmt: skip
    normed, grad = values * scale[:, None], dy.values
    f32 = (2 * columns + 64) * F
    if gated:
        f32 = f32 + 8 * F * np.abs(z).max()
        slope = sigmoid(z) * (1 + z * (1 - sigmoid(z)))
        near(dgate, grad * normed * factor * slope, grad * normed * factor * (1 + np.abs(z)), f32=f32)
        grad = grad * z * sigmoid(z)
    summing = np.zeros((programs, columns)), np.zeros((programs, columns))
    for program in range(programs):
        mine = slice(program * each, (program + 1) * each)
        summing[0][program] = (grad * normed)[mine].sum(axis=0)
        summing[1][program] = np.abs(grad * normed)[mine].sum(axis=0)
    near(dweight, *summing, f32=f32 + rows * F)
    grad = grad * factor
    along = (grad * normed).mean(axis=1)[:, None]
    magnitude = np.abs(grad) + np.abs(normed) * np.abs(grad * normed).mean(axis=1)[:, None]
    expected, magnitude = scale[:, None] * (grad - normed * along), scale[:, None] * magnitude
    if residual:
        expected, magnitude = expected + dsummed.values, magnitude + np.abs(dsummed.values)
    near(dx, expected, magnitude, f32=f32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_gelu", [False, True])
@pytest.mark.parametrize("rows, columns, wide", [(1, 777, 777), (3, 300, 608)])
def test_a_gated_activation_is_that_of_f64_forward_and_backward(session, rng, dtype, is_gelu, rows, columns, wide):
    gate, up = random(rng, dtype, (rows, wide), 4.0), random(rng, dtype, (rows, wide))
    y, block = Room(dtype, (rows, columns)), 128
    blocks = -(-columns // block)
    shared = dict(columns=columns, blocks_per_row=blocks, gate_stride=wide, up_stride=wide)
    constants = dict(IS_GELU=is_gelu, BLOCK=block)
    run(session, activation.gated_forward, rows * blocks, dict(gate=gate, up=up, y=y, **shared), constants)
    x, factor = gate.values[:, :columns], up.values[:, :columns]
    f32 = (64 + 4 * np.abs(x)) * F
    if is_gelu:
        inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
        bent = np.tanh(inner)
        active = 0.5 * x * (1 + bent)
        slope = 0.5 * (1 + bent) + 0.5 * x * (1 - bent**2) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
        # 1 + tanh cancels: the error is that of 1.
        of_active = np.abs(x)
        of_slope = 1 + np.abs(x) * (1 + x**2)
    else:
        active, slope = x * sigmoid(x), sigmoid(x) * (1 + x * (1 - sigmoid(x)))
        of_active, of_slope = np.abs(active), 1 + np.abs(x)
    # Roundings are relative to the result, errors in f32 to the terms.
    u, smallest = ROUNDING[dtype]
    error = np.abs(y.values - active * factor)
    bound = np.abs(active * factor) * ((1 + u) ** 2 - 1) + of_active * np.abs(factor) * f32 * (1 + u)
    assert (error <= bound + (1 + np.abs(factor)) * smallest).all()
    dy, dgate, dup = random(rng, dtype, (rows, columns)), Room(dtype, (rows, columns)), Room(dtype, (rows, columns))
    run(
        session, activation.gated_backward, rows * blocks,
        dict(dy=dy, gate=gate, up=up, dgate=dgate, dup=dup, **shared), constants,
    )  # fmt: skip
    for tensor, expected, magnitude in [
        (dup, dy.values * active, dy.values * of_active),
        (dgate, dy.values * factor * slope, dy.values * factor * of_slope),
    ]:
        assert np.isfinite(tensor.values).all()
        bound = np.abs(expected) * u + np.abs(magnitude) * f32 * 2 + 2 * smallest
        assert (np.abs(tensor.values - expected) <= bound).all()


def strides(name, batch, head, token):
    return {f"{name}_batch": batch, f"{name}_head": head, f"{name}_token": token}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sections", [None, (3, 3, 2)])
@pytest.mark.parametrize("half, dims", [(8, 16), (12, 40)])
def test_rotary_embedding_is_that_of_f64_and_backward_is_its_transpose(session, rng, dtype, sections, half, dims):
    batch, tokens, q_heads, k_heads, heads = 2, 3, 5, 2, 2
    # As the projections lay them out: the heads of a token one after another.
    q, k = random(rng, dtype, (batch, tokens, q_heads, dims)), random(rng, dtype, (batch, tokens, k_heads, dims))
    grids = 3 if sections else 1
    angle = rng.standard_normal((grids, batch, tokens, 2 * half))
    cos, sin = Tensor(dtype, np.cos(angle)), Tensor(dtype, np.sin(angle))
    picked = np.zeros(half, int)
    if sections:
        for grid in (1, 2):
            picked[grid : 3 * sections[grid] : 3] = grid
    picked = np.concatenate([picked, picked])
    c, s = (it.values[picked, :, :, np.arange(2 * half)].transpose(1, 2, 0)[:, :, None] for it in (cos, sin))
    table = (batch * tokens * 2 * half, tokens * 2 * half, 2 * half)
    q_parts, k_parts = -(-q_heads // heads), -(-k_heads // heads)
    shared = dict(
        cos=cos, sin=sin, tokens=tokens, q_heads=q_heads, k_heads=k_heads, half=half, dims=dims,
        **strides("q", tokens * q_heads * dims, dims, q_heads * dims),
        **strides("k", tokens * k_heads * dims, dims, k_heads * dims),
        # Written with the heads first.
        **strides("q_out", tokens * q_heads * dims, tokens * dims, dims),
        **strides("k_out", tokens * k_heads * dims, tokens * dims, dims),
        **{f"{name}_{part}": it for name in ("cos", "sin") for part, it in zip(("grid", "batch", "token"), table)},
        q_parts=q_parts, parts=q_parts + k_parts, height=(sections or (0, 0))[1], width=(sections or (0, 0, 0))[2],
    )  # fmt: skip
    u, smallest = ROUNDING[dtype]
    for is_backward in (False, True):
        q_out, k_out = Room(dtype, (batch, q_heads, tokens, dims)), Room(dtype, (batch, k_heads, tokens, dims))
        rest = triton.next_power_of_2(dims - 2 * half) if dims > 2 * half else 0
        run(
            session, rotary.rotary, batch * tokens * (q_parts + k_parts),
            dict(q=q, k=k, q_out=q_out, k_out=k_out, **shared),
            dict(GRIDS=grids == 3, IS_BACKWARD=is_backward, HEADS=heads, HALF=triton.next_power_of_2(half), REST=rest),
        )  # fmt: skip
        for given, out in ((q, q_out), (k, k_out)):
            x = given.values
            a, b = x[..., :half], x[..., half : 2 * half]
            turned = np.concatenate([-b, a], axis=-1) * s
            if is_backward:
                turned = np.concatenate([b * s[..., half:], -a * s[..., :half]], axis=-1)
            straight = x[..., : 2 * half] * c
            expected = straight + turned
            bound = (np.abs(straight) + np.abs(turned)) * (u + F) * (1 + u) + np.abs(expected) * u + 3 * smallest
            result = out.values.transpose(0, 2, 1, 3)
            assert (np.abs(result[..., : 2 * half] - expected) <= bound).all()
            assert (result[..., 2 * half :] == x[..., 2 * half :]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias, has_silu", [(False, True), (True, False)])
@pytest.mark.parametrize("width, held", [(4, 4), (4, 3), (2, 5)])
def test_a_convolution_update_shifts_its_state_and_weighs_it(
    session, rng, dtype, has_bias, has_silu, width, held
):
    batch, channels, block = 2, 150, 64
    x, weight = random(rng, dtype, (batch, channels)), random(rng, dtype, (channels, width))
    state, bias = random(rng, dtype, (batch, channels, held)), random(rng, dtype, channels) if has_bias else None
    y, blocks = Room(dtype, (batch, channels)), -(-channels // block)
    every = np.concatenate([state.values, x.values[:, :, None]], axis=2)
    for _ in range(2):
        run(
            session, delta.conv_update, batch * blocks,
            dict(x=x, state=state, weight=weight, bias=bias, y=y, channels=channels, blocks_per_batch=blocks,
                 x_batch=channels, x_channel=1),
            dict(HAS_BIAS=has_bias, HAS_SILU=has_silu, WIDTH=width, STATE=held, BLOCK=block), fusion=True,
        )  # fmt: skip
        assert (state.values == every[:, :, -held:]).all()
        terms = every[:, :, -width:] * weight.values
        total = terms.sum(axis=2) + (bias.values if has_bias else 0)
        magnitude = np.abs(terms).sum(axis=2) + (np.abs(bias.values) if has_bias else 0)
        u, smallest = ROUNDING[dtype]
        bound = np.abs(total) * u + magnitude * (width + 2) * F + smallest
        if has_silu:
            # The slope of SiLU is below 1.1.
            total = total * sigmoid(total)
            bound = 1.1 * bound + np.abs(total) * (u + (16 + magnitude) * F) + smallest
        assert (np.abs(y.values - total) <= bound).all()
        every = np.concatenate([every, x.values[:, :, None]], axis=2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keys, values, block", [(16, 16, 16), (24, 40, 16), (128, 64, 16)])
def test_a_step_of_the_gated_delta_rule_is_that_of_f64(session, rng, dtype, keys, values, block):
    batch, heads, key_heads = 2, 4, 2
    q, k = random(rng, dtype, (batch, key_heads, keys)), random(rng, dtype, (batch, key_heads, keys))
    v = random(rng, dtype, (batch, heads, values))
    a, b = random(rng, dtype, (batch, heads), 8.0), random(rng, dtype, (batch, heads))
    a_log, dt_bias = Tensor(dtype, np.log(rng.uniform(0.01, 16, heads))), random(rng, dtype, heads)
    state = random(rng, "f32", (batch, heads, keys, values))
    y, blocks = Room(dtype, (batch, heads, values)), -(-values // block)
    memory, u = state.values.copy(), ROUNDING[dtype][0]
    run(
        session, delta.gated_delta_step, batch * heads * blocks,
        dict(q=q, k=k, v=v, a=a, b=b, a_log=a_log, dt_bias=dt_bias, state=state, y=y, heads=heads, heads_per_key=2,
             blocks_per_head=blocks, q_batch=key_heads * keys, q_head=keys, k_batch=key_heads * keys, k_head=keys,
             v_batch=heads * values, v_head=values, a_batch=heads, b_batch=heads, keys=keys, values=values,
             root=float(np.float32(keys**0.5))),
        dict(BLOCK_K=max(64, triton.next_power_of_2(keys)), BLOCK_V=block), fusion=True,
    )  # fmt: skip
    query, key = (np.repeat(it.values, 2, axis=1) for it in (q, k))
    query = query / np.sqrt((query**2).sum(axis=-1, keepdims=True) + 1e-6) / np.sqrt(keys)
    key = key / np.sqrt((key**2).sum(axis=-1, keepdims=True) + 1e-6)
    step = np.logaddexp(0, a.values + dt_bias.values)
    exponent = np.exp(a_log.values) * step
    decay, rate = np.exp(-exponent)[..., None, None], sigmoid(b.values)[..., None]
    held = memory * decay
    read = (held * key[..., None]).sum(axis=-2)
    change = (v.values - read) * rate
    expected = held + key[..., None] * change[..., None, :]
    # The decay is off by its exponent's error; the rate is rounded to the type.
    of_decay = (exponent[..., None, None] * 64 + 16) * F
    held_error = np.abs(held) * of_decay
    size = np.abs(v.values) + (np.abs(held) * np.abs(key[..., None])).sum(axis=-2)
    read_error = (held_error * np.abs(key[..., None])).sum(axis=-2) + size * (2 * keys + 32) * F
    change_error = (read_error + size * (u + 32 * F)) * rate * (1 + u)
    change_error = change_error + np.abs(change) * (keys + 16) * F
    memory_error = held_error + np.abs(key[..., None]) * change_error[..., None, :]
    memory_error += np.abs(expected) * 4 * F
    assert (np.abs(state.values - expected) <= memory_error).all()
    result = (expected * query[..., None]).sum(axis=-2)
    bound = (memory_error * np.abs(query[..., None])).sum(axis=-2) + np.abs(result) * u + ROUNDING[dtype][1]
    bound += (np.abs(expected) * np.abs(query[..., None])).sum(axis=-2) * (2 * keys + 32) * F
    assert (np.abs(y.values - result) <= bound).all()


def rows_of(tensor, m, count):
    """Rows that lie one after another, with the rest of a part's room left unwritten."""
    assert np.isnan(tensor[m * count :]).all()
    return tensor[: m * count].reshape(m, count)


def products_of(x, weight, bias=None):
    """Products in f64, and what their errors in f32 are relative to."""
    total, size = x @ weight.T, np.abs(x) @ np.abs(weight).T
    return (total, size) if bias is None else (total + bias, size + np.abs(bias))


@pytest.mark.parametrize("dtype, m, counts, columns, block_n, block_k, warps, unroll", [
    ("bf16", 1, (37, 16, 5), 1280, 4, 512, 2, 2),
    ("bf16", 4, (20, 7, 1, 3), 264, 1, 256, 1, 1),
    ("f16", 2, (33,), 2048, 2, 1024, 4, 2),
    ("f16", 3, (8, 24), 1000, 2, 256, 4, 1),
    ("f32", 1, (9, 2, 18), 515, 4, 256, 2, 1),
    ("f32", 4, (10,), 512, 2, 256, 2, 2),
])  # fmt: skip
@pytest.mark.parametrize("has_bias, has_residual", [(False, False), (True, False), (True, True)])
def test_products_of_few_rows_are_those_of_f64(
    session, rng, dtype, m, counts, columns, block_n, block_k, warps, unroll, has_bias, has_residual
):  # fmt: skip
    wide = columns + 24
    x = random(rng, dtype, (m, wide))
    weights = [random(rng, dtype, (it, wide), 0.1) for it in counts]
    biases = [random(rng, dtype, it) if has_bias else None for it in counts]
    rooms = [m * (-(-it // 16) * 16) for it in counts]
    y = Room(dtype, sum(rooms))
    residual = random(rng, dtype, (m, counts[0])) if has_residual and len(counts) == 1 else None
    absent = [None] * (4 - len(counts))
    run(
        session, linear.linear_rows, sum(-(-it // block_n) for it in counts),
        dict(x=x, residual=residual, y=y, columns=columns, x_stride=wide, w_stride=wide, residual_stride=counts[0],
             **{f"w{at}": it for at, it in enumerate([*weights, *absent])},
             **{f"b{at}": it for at, it in enumerate([*biases, *absent])}),
        dict(M=m, BLOCK_N=block_n, BLOCK_K=block_k, UNROLL=unroll, IS_EVEN=columns % block_k == 0,
             HAS_BIAS=has_bias, HAS_RESIDUAL=residual is not None,
             **{f"N{at}": it for at, it in enumerate([*counts, *(0 for _ in absent)])}),
        warps, fusion=True,
    )  # fmt: skip
    u, smallest = ROUNDING[dtype]
    at = 0
    for weight, bias, count, room in zip(weights, biases, counts, rooms):
        result = rows_of(y.values[at : at + room], m, count)
        at += room
        added = None if bias is None else bias.values
        total, size = products_of(x.values[:, :columns], weight.values[:, :columns], added)
        bound = size * (columns + 2) * F
        bound = bound + (np.abs(total) + bound) * u + smallest
        if residual is not None:
            total = total + residual.values
            bound = bound + (np.abs(total) + bound) * u + smallest
        assert (np.abs(result - total) <= bound).all()


@pytest.mark.parametrize("is_gelu", [False, True])
@pytest.mark.parametrize("dtype, m, count, columns, block_n, block_k, warps, unroll", [
    ("bf16", 1, 35, 1280, 2, 512, 2, 2),
    ("bf16", 3, 6, 264, 1, 256, 1, 1),
    ("f16", 2, 9, 1024, 1, 512, 2, 2),
    ("f16", 4, 5, 1000, 1, 256, 2, 1),
    ("f32", 1, 14, 515, 2, 256, 2, 1),
])  # fmt: skip
def test_a_gate_and_a_second_product_are_those_of_f64(
    session, rng, dtype, m, count, columns, block_n, block_k, warps, unroll, is_gelu
):  # fmt: skip
    x = random(rng, dtype, (m, columns))
    gate, up = random(rng, dtype, (count, columns), 0.1), random(rng, dtype, (count, columns), 0.1)
    y = Room(dtype, (m, count))
    run(
        session, linear.gate_up_rows, -(-count // block_n),
        dict(x=x, gate=gate, up=up, y=y, columns=columns, x_stride=columns, w_stride=columns),
        dict(N=count, M=m, IS_GELU=is_gelu, BLOCK_N=block_n, BLOCK_K=block_k, UNROLL=unroll,
             IS_EVEN=columns % block_k == 0),
        warps, fusion=True,
    )  # fmt: skip
    u, smallest = ROUNDING[dtype]
    assert np.isfinite(y.values).all()

    def rounded(weight):
        total, size = products_of(x.values, weight.values)
        error = size * (columns + 2) * F
        return total, error + (np.abs(total) + error) * u + smallest

    (value, of_value), (factor, of_factor) = rounded(gate), rounded(up)
    if is_gelu:
        active = 0.5 * value * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)))
        own = np.abs(value) * (64 + 4 * np.abs(value)) * F
    else:
        active = value * sigmoid(value)
        own = np.abs(active) * (64 + 4 * np.abs(value)) * F
    # The slope of both activations is below 1.2.
    of_active = 1.2 * of_value + own
    of_active = of_active + (np.abs(active) + of_active) * u + smallest
    bound = of_active * (np.abs(factor) + of_factor) + np.abs(active) * of_factor
    bound = bound + (np.abs(active * factor) + bound) * u + smallest
    assert (np.abs(y.values - active * factor) <= bound).all()
