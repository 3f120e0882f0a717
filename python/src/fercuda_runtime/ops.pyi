"""Ops: primitives of array programs, over arrays of any library with DLPack. Made by
`python/ops_stub.py`; docs/ops.md lists the ops with their types.

Each op is a function. Results are in the library of the first operand, or Buffers where that has no
`from_dlpack`; the library's current stream waits for them, and the session for the library's
operands. `out`: existing outputs, one or a tuple of all; an operand may be one, if the op computes
each element from the one at its place. `stream`: the stream in which operands are ready and
behind which the op is ordered, instead of the library's current one. `session`: where the op runs
and its memory comes from; otherwise the session of the first Buffer, or `default_session`. `sku`:
the kernel, instead of the plan's choice. `check`: wait, and raise for an index outside of its axis.

Raises `DtypeError`, `LayoutError` and `ArgumentsError` for operands that do not fit, `OpError` for
a parameter that does not, `OpIndexError`, `LimitError`, `OutOfMemoryError`, `StaleHandleError`,
`SessionEndedError`, `DeviceFaultError` of earlier work.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack

from ._fercuda import Buffer, Session
from ._ops import (
    Array as _Array,
    CacheInfo as CacheInfo,
    Description as Description,
    OpPlan as OpPlan,
    Outputs as _Outputs,
    Parameter as Parameter,
    Sku as Sku,
    Stream as _Stream,
    SupportsDLPack as SupportsDLPack,
    TensorLayout as TensorLayout,
    cache_info as cache_info,
    clear_cache as clear_cache,
    default_session as default_session,
    describe as describe,
    names as names,
    plan as plan,
)

_Integers = int | Sequence[int]
_Dtype = str | type | Any

class _Options(TypedDict, total=False):
    out: _Outputs | None
    stream: _Stream | None
    session: Session | None
    sku: str | None
    check: bool

def neg(x: _Array, **options: Unpack[_Options]) -> _Array:
    """-x."""

def abs(x: _Array, **options: Unpack[_Options]) -> _Array:
    """magnitude."""

def sign(x: _Array, **options: Unpack[_Options]) -> _Array:
    """-1, 0 or 1; NaN of NaN."""

def square(x: _Array, **options: Unpack[_Options]) -> _Array:
    """x^2."""

def cube(x: _Array, **options: Unpack[_Options]) -> _Array:
    """x^3."""

def recip(x: _Array, **options: Unpack[_Options]) -> _Array:
    """1 / x."""

def sqrt(x: _Array, **options: Unpack[_Options]) -> _Array:
    """square root."""

def rsqrt(x: _Array, **options: Unpack[_Options]) -> _Array:
    """1 / sqrt(x)."""

def exp(x: _Array, **options: Unpack[_Options]) -> _Array:
    """e^x."""

def exp2(x: _Array, **options: Unpack[_Options]) -> _Array:
    """2^x; its relative error grows with the exponent."""

def exp10(x: _Array, **options: Unpack[_Options]) -> _Array:
    """10^x; its relative error grows with the exponent."""

def expm1(x: _Array, **options: Unpack[_Options]) -> _Array:
    """e^x - 1, exact to some ulp near 0 too."""

def ln(x: _Array, **options: Unpack[_Options]) -> _Array:
    """natural logarithm."""

def log2(x: _Array, **options: Unpack[_Options]) -> _Array:
    """logarithm to base 2."""

def log10(x: _Array, **options: Unpack[_Options]) -> _Array:
    """logarithm to base 10."""

def sinh(x: _Array, **options: Unpack[_Options]) -> _Array:
    """hyperbolic sine."""

def cosh(x: _Array, **options: Unpack[_Options]) -> _Array:
    """hyperbolic cosine."""

def erf(x: _Array, **options: Unpack[_Options]) -> _Array:
    """error function."""

def erfc(x: _Array, **options: Unpack[_Options]) -> _Array:
    """1 - erf(x), with the absolute error of erf."""

def floor(x: _Array, **options: Unpack[_Options]) -> _Array:
    """down to an integer."""

def ceil(x: _Array, **options: Unpack[_Options]) -> _Array:
    """up to an integer."""

def trunc(x: _Array, **options: Unpack[_Options]) -> _Array:
    """towards zero to an integer."""

def round(x: _Array, **options: Unpack[_Options]) -> _Array:
    """to the nearest integer, ties to even."""

def frac(x: _Array, **options: Unpack[_Options]) -> _Array:
    """part behind the point, with the sign of x."""

def deg2rad(x: _Array, **options: Unpack[_Options]) -> _Array:
    """degrees to radians."""

def rad2deg(x: _Array, **options: Unpack[_Options]) -> _Array:
    """radians to degrees."""

def logit(x: _Array, **options: Unpack[_Options]) -> _Array:
    """ln(x / (1 - x))."""

def nan_to_num(x: _Array, *, nan: float = 0.0, **options: Unpack[_Options]) -> _Array:
    """x, and a number for NaN."""

def bitwise_not(x: _Array, **options: Unpack[_Options]) -> _Array:
    """bitwise complement."""

def clamp(x: _Array, *, low: float = 0.0, high: float = 1.0, **options: Unpack[_Options]) -> _Array:
    """x, not below `low`, not above `high`."""

def scale(x: _Array, *, by: float = 2.0, shift: float = 0.0, **options: Unpack[_Options]) -> _Array:
    """x * by + shift, rounded once."""

def add(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x + y."""

def sub(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x - y."""

def mul(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x * y."""

def div(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x / y."""

def int_div(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """quotient towards zero; by zero 0."""

def rem(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """remainder with the sign of x; by zero 0."""

def minimum(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """the smaller; NaN if either is."""

def maximum(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """the larger; NaN if either is."""

def fmin(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """the smaller; the other one of NaN."""

def fmax(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """the larger; the other one of NaN."""

def bitwise_and(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """bitwise and."""

def bitwise_or(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """bitwise or."""

def bitwise_xor(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """bitwise exclusive or."""

def absolute_difference(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """|x - y|."""

def squared_difference(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """(x - y)^2."""

def hypot(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """sqrt(x^2 + y^2) without overflow between; NaN if either is."""

def logaddexp(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """ln(e^x + e^y)."""

def xlogy(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x ln(y), and 0 where x is 0."""

def heaviside(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """0 below 0, 1 above, y at 0."""

def add_scaled(
    x: _Array,
    y: SupportsDLPack,
    *,
    alpha: float = 1.0,
    **options: Unpack[_Options]
) -> _Array:
    """x + alpha y, rounded once."""

def fma(x: _Array, y: SupportsDLPack, z: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x y + z, of floats rounded once."""

def lerp(
    x: _Array,
    y: SupportsDLPack,
    weight: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """x + weight (y - x)."""

def addcmul(
    x: _Array,
    y: SupportsDLPack,
    z: SupportsDLPack,
    *,
    value: float = 1.0,
    **options: Unpack[_Options]
) -> _Array:
    """x + value y z."""

def addcdiv(
    x: _Array,
    y: SupportsDLPack,
    z: SupportsDLPack,
    *,
    value: float = 1.0,
    **options: Unpack[_Options]
) -> _Array:
    """x + value y / z."""

def clamp_between(
    x: _Array,
    low: SupportsDLPack,
    high: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """clamp by elements of two operands."""

def where(
    condition: _Array,
    x: SupportsDLPack,
    y: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """x where the condition holds, else y."""

def masked_fill(
    condition: _Array,
    x: SupportsDLPack,
    *,
    value: float = 0.0,
    **options: Unpack[_Options]
) -> _Array:
    """a number where the condition holds."""

def copy(x: _Array, **options: Unpack[_Options]) -> _Array:
    """the same elements; layouts of operand and output make it transpose, flip, slice, gather
    rows."""

def cast(x: _Array, *, to: _Dtype, **options: Unpack[_Options]) -> _Array:
    """another type: to integers towards zero and saturating, NaN to 0; integers keep their low
    bits."""

def permute(
    x: _Array,
    *,
    order: Sequence[int] | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """dimensions in another order; reversed without one."""

def broadcast_to(x: _Array, *, shape: _Integers, **options: Unpack[_Options]) -> _Array:
    """repeated along new dimensions and those of extent 1."""

def sin(x: _Array, **options: Unpack[_Options]) -> _Array:
    """sine."""

def cos(x: _Array, **options: Unpack[_Options]) -> _Array:
    """cosine."""

def tan(x: _Array, **options: Unpack[_Options]) -> _Array:
    """tangent."""

def asin(x: _Array, **options: Unpack[_Options]) -> _Array:
    """inverse of the sine; NaN beyond 1."""

def acos(x: _Array, **options: Unpack[_Options]) -> _Array:
    """inverse of the cosine; NaN beyond 1."""

def atan(x: _Array, **options: Unpack[_Options]) -> _Array:
    """inverse of the tangent."""

def atan2(y: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """angle of the point (x, y) from the first axis."""

def asinh(x: _Array, **options: Unpack[_Options]) -> _Array:
    """inverse of the hyperbolic sine."""

def acosh(x: _Array, **options: Unpack[_Options]) -> _Array:
    """inverse of the hyperbolic cosine; NaN below 1."""

def atanh(x: _Array, **options: Unpack[_Options]) -> _Array:
    """inverse of the hyperbolic tangent; NaN beyond 1."""

def log1p(x: _Array, **options: Unpack[_Options]) -> _Array:
    """ln(1 + x), exact near 0 too."""

def cbrt(x: _Array, **options: Unpack[_Options]) -> _Array:
    """cube root."""

def pow(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x^y, as C's; NaN of a negative x with a y that is not whole."""

def fmod(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """remainder with the sign of x, exact."""

def remainder(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """remainder with the sign of y; of integers by zero 0."""

def floor_divide(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """quotient down to an integer; of integers by zero 0."""

def lgamma(x: _Array, **options: Unpack[_Options]) -> _Array:
    """ln of the magnitude of the gamma function."""

def digamma(x: _Array, **options: Unpack[_Options]) -> _Array:
    """derivative of lgamma; computed in f64."""

def erfinv(x: _Array, **options: Unpack[_Options]) -> _Array:
    """inverse of the error function; NaN beyond 1."""

def i0(x: _Array, **options: Unpack[_Options]) -> _Array:
    """modified Bessel function of the first kind of order 0."""

def sinc(x: _Array, **options: Unpack[_Options]) -> _Array:
    """sin(pi x) / (pi x), 1 at 0."""

def copysign(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """the magnitude of x with the sign of y."""

def signbit(x: _Array, **options: Unpack[_Options]) -> _Array:
    """whether the sign is set, of -0 too."""

def nextafter(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """the next number of the type from x towards y."""

def frexp(x: _Array, **options: Unpack[_Options]) -> tuple[_Array, _Array]:
    """a number from a half to below 1, and the power of 2 that makes x of it, of i32. Results: out,
    exponent."""

def ldexp(x: _Array, exponent: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x times 2 to an exponent."""

def gcd(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """largest common divisor of the magnitudes."""

def lcm(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """least common multiple of the magnitudes; wraps."""

def shift_left(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x by 2^y; 0 from the type's number of bits on and below 0."""

def shift_right(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x by 2^y down to an integer; all bits its sign from the number of bits on and below 0."""

def concat(*x: _Array, axis: int | None = None, **options: Unpack[_Options]) -> _Array:
    """operands one after another along an axis."""

def stack(*x: _Array, axis: int | None = None, **options: Unpack[_Options]) -> _Array:
    """operands along a new axis."""

def flip(x: _Array, *, axes: _Integers | None = None, **options: Unpack[_Options]) -> _Array:
    """elements along axes in reverse order."""

def roll(
    x: _Array,
    *,
    shift: float = 1.0,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """elements moved along an axis, those beyond the end to the beginning."""

def tile(x: _Array, *, repeats: _Integers = (), **options: Unpack[_Options]) -> _Array:
    """the whole repeated along each dimension."""

def repeat_interleave(
    x: _Array,
    *,
    repeats: float = 2.0,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """each element repeated along an axis."""

def pad(
    x: _Array,
    *,
    value: float = 0.0,
    pads: _Integers = (),
    mode: Literal['constant', 'reflect', 'replicate', 'circular'] = 'constant',
    **options: Unpack[_Options]
) -> _Array:
    """elements before and after each dimension: a value, or those of the operand reflected, the
    last one, or from the other end."""

def slice(
    x: _Array,
    *,
    starts: _Integers = (),
    ends: _Integers = (),
    steps: _Integers = (),
    **options: Unpack[_Options]
) -> _Array:
    """a part of each dimension, as Python's slices with steps above 0."""

def slice_write(
    x: _Array,
    source: SupportsDLPack,
    *,
    starts: _Integers = (),
    ends: _Integers = (),
    steps: _Integers = (),
    **options: Unpack[_Options]
) -> _Array:
    """x with a part of it replaced by the source."""

def pixel_shuffle(x: _Array, *, factor: float = 2.0, **options: Unpack[_Options]) -> _Array:
    """blocks of channels to blocks of pixels, of the last three dimensions."""

def pixel_unshuffle(x: _Array, *, factor: float = 2.0, **options: Unpack[_Options]) -> _Array:
    """blocks of pixels to blocks of channels, of the last three dimensions."""

def full(
    *,
    value: float = 0.0,
    to: _Dtype,
    shape: _Integers,
    **options: Unpack[_Options]
) -> Buffer:
    """one value in every element."""

def eq(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x = y."""

def ne(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x ≠ y."""

def lt(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x < y."""

def le(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x ≤ y."""

def gt(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x > y."""

def ge(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x ≥ y."""

def is_close(
    x: _Array,
    y: SupportsDLPack,
    *,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    **options: Unpack[_Options]
) -> _Array:
    """|x - y| ≤ atol + rtol |y|."""

def is_nan(x: _Array, **options: Unpack[_Options]) -> _Array:
    """whether it is NaN."""

def is_inf(x: _Array, **options: Unpack[_Options]) -> _Array:
    """whether it is an infinity."""

def is_finite(x: _Array, **options: Unpack[_Options]) -> _Array:
    """whether it is neither NaN nor an infinity."""

def is_pos_inf(x: _Array, **options: Unpack[_Options]) -> _Array:
    """whether it is the positive infinity."""

def is_neg_inf(x: _Array, **options: Unpack[_Options]) -> _Array:
    """whether it is the negative infinity."""

def logical_not(x: _Array, **options: Unpack[_Options]) -> _Array:
    """whether it is 0."""

def logical_and(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """whether neither is 0."""

def logical_or(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """whether one is not 0."""

def logical_xor(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """whether exactly one is 0."""

def relu(x: _Array, **options: Unpack[_Options]) -> _Array:
    """max(x, 0)."""

def relu6(x: _Array, **options: Unpack[_Options]) -> _Array:
    """min(max(x, 0), 6)."""

def leaky_relu(x: _Array, *, slope: float = 0.01, **options: Unpack[_Options]) -> _Array:
    """x, and slope x below 0."""

def prelu(x: _Array, slope: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x, and slope x below 0, by an operand."""

def threshold(
    x: _Array,
    *,
    above: float = 0.0,
    value: float = 0.0,
    **options: Unpack[_Options]
) -> _Array:
    """x above a threshold, else a number."""

def hard_tanh(
    x: _Array,
    *,
    low: float = 0.0,
    high: float = 1.0,
    **options: Unpack[_Options]
) -> _Array:
    """x between two numbers."""

def hard_sigmoid(x: _Array, **options: Unpack[_Options]) -> _Array:
    """min(max(x + 3, 0), 6) / 6."""

def hard_swish(x: _Array, **options: Unpack[_Options]) -> _Array:
    """x hard_sigmoid(x)."""

def hard_shrink(x: _Array, *, lambd: float = 0.5, **options: Unpack[_Options]) -> _Array:
    """0 near 0, else x."""

def soft_shrink(x: _Array, *, lambd: float = 0.5, **options: Unpack[_Options]) -> _Array:
    """0 near 0, else nearer to 0 by lambd."""

def tanh(x: _Array, **options: Unpack[_Options]) -> _Array:
    """hyperbolic tangent."""

def tanh_shrink(x: _Array, **options: Unpack[_Options]) -> _Array:
    """x - tanh(x)."""

def sigmoid(x: _Array, **options: Unpack[_Options]) -> _Array:
    """1 / (1 + e^-x)."""

def log_sigmoid(x: _Array, **options: Unpack[_Options]) -> _Array:
    """ln(sigmoid(x))."""

def silu(x: _Array, **options: Unpack[_Options]) -> _Array:
    """x sigmoid(x)."""

def quick_gelu(x: _Array, **options: Unpack[_Options]) -> _Array:
    """x sigmoid(1.702 x)."""

def gelu(x: _Array, **options: Unpack[_Options]) -> _Array:
    """x (1 + erf(x / √2)) / 2."""

def gelu_tanh(x: _Array, **options: Unpack[_Options]) -> _Array:
    """gelu by its approximation with tanh."""

def softplus(x: _Array, **options: Unpack[_Options]) -> _Array:
    """ln(1 + e^x), with an absolute error of some ulp of 1."""

def softsign(x: _Array, **options: Unpack[_Options]) -> _Array:
    """x / (1 + |x|)."""

def mish(x: _Array, **options: Unpack[_Options]) -> _Array:
    """x tanh(softplus(x))."""

def elu(x: _Array, *, alpha: float = 1.0, **options: Unpack[_Options]) -> _Array:
    """x, and alpha (e^x - 1) below 0."""

def celu(x: _Array, *, alpha: float = 1.0, **options: Unpack[_Options]) -> _Array:
    """x, and alpha (e^(x / alpha) - 1) below 0."""

def selu(x: _Array, **options: Unpack[_Options]) -> _Array:
    """scaled elu, with its two constants."""

def normal_cdf(x: _Array, **options: Unpack[_Options]) -> _Array:
    """distribution function of the normal distribution."""

def relu_backward(g: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of relu at x."""

def leaky_relu_backward(
    g: _Array,
    x: SupportsDLPack,
    *,
    slope: float = 0.01,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of leaky_relu at x."""

def sigmoid_backward(g: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of sigmoid by its result y."""

def tanh_backward(g: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of tanh by its result y."""

def silu_backward(g: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of silu at x."""

def gelu_backward(g: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of gelu at x."""

def softplus_backward(g: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of softplus at x."""

def elu_backward(
    g: _Array,
    x: SupportsDLPack,
    *,
    alpha: float = 1.0,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of elu at x."""

def glu(x: _Array, gate: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x sigmoid(gate)."""

def reglu(x: _Array, gate: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x relu(gate)."""

def swiglu(x: _Array, gate: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x silu(gate)."""

def geglu(x: _Array, gate: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x gelu(gate)."""

def geglu_tanh(x: _Array, gate: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x gelu_tanh(gate)."""

def swiglu_clamped(
    x: _Array,
    gate: SupportsDLPack,
    *,
    alpha: float = 1.702,
    limit: float = 7.0,
    **options: Unpack[_Options]
) -> _Array:
    """(x + 1) gate sigmoid(alpha gate), of a gate not above the limit and x within it."""

def soft_limit(x: _Array, *, limit: float = 30.0, **options: Unpack[_Options]) -> _Array:
    """limit tanh(x / limit)."""

def relu6_backward(g: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of relu6 at x."""

def prelu_backward(
    g: _Array,
    x: SupportsDLPack,
    slope: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of prelu by x."""

def prelu_slope_backward(g: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of prelu by the slope, of each element."""

def threshold_backward(
    g: _Array,
    x: SupportsDLPack,
    *,
    above: float = 0.0,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of threshold at x."""

def hard_tanh_backward(
    g: _Array,
    x: SupportsDLPack,
    *,
    low: float = 0.0,
    high: float = 1.0,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of hard_tanh at x."""

def hard_sigmoid_backward(g: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of hard_sigmoid at x."""

def hard_swish_backward(g: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of hard_swish at x."""

def hard_shrink_backward(
    g: _Array,
    x: SupportsDLPack,
    *,
    lambd: float = 0.5,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of hard_shrink at x."""

def soft_shrink_backward(
    g: _Array,
    x: SupportsDLPack,
    *,
    lambd: float = 0.5,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of soft_shrink at x."""

def tanh_shrink_backward(g: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of tanh_shrink at x."""

def log_sigmoid_backward(g: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of log_sigmoid at x."""

def quick_gelu_backward(g: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of quick_gelu at x."""

def gelu_tanh_backward(g: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of gelu_tanh at x."""

def softsign_backward(g: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of softsign at x."""

def mish_backward(g: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of mish at x."""

def celu_backward(
    g: _Array,
    x: SupportsDLPack,
    *,
    alpha: float = 1.0,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of celu at x."""

def selu_backward(g: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of selu at x."""

def normal_cdf_backward(g: _Array, x: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of normal_cdf at x."""

def glu_gate_backward(
    g: _Array,
    x: SupportsDLPack,
    gate: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of glu by the gate."""

def reglu_gate_backward(
    g: _Array,
    x: SupportsDLPack,
    gate: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of reglu by the gate."""

def swiglu_gate_backward(
    g: _Array,
    x: SupportsDLPack,
    gate: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of swiglu by the gate."""

def geglu_gate_backward(
    g: _Array,
    x: SupportsDLPack,
    gate: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of geglu by the gate."""

def geglu_tanh_gate_backward(
    g: _Array,
    x: SupportsDLPack,
    gate: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of geglu_tanh by the gate."""

def normalize_backward(
    g: _Array,
    x: SupportsDLPack,
    *,
    eps: float = 1e-12,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of normalize at x."""

def mse_loss_backward(
    g: _Array,
    x: SupportsDLPack,
    target: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of each term of mse_loss."""

def l1_loss_backward(
    g: _Array,
    x: SupportsDLPack,
    target: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of each term of l1_loss."""

def huber_loss_backward(
    g: _Array,
    x: SupportsDLPack,
    target: SupportsDLPack,
    *,
    delta: float = 1.0,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of each term of huber_loss."""

def smooth_l1_loss_backward(
    g: _Array,
    x: SupportsDLPack,
    target: SupportsDLPack,
    *,
    beta: float = 1.0,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of each term of smooth_l1_loss."""

def log_cosh_loss_backward(
    g: _Array,
    x: SupportsDLPack,
    target: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of each term of log_cosh_loss."""

def bce_with_logits_backward(
    g: _Array,
    x: SupportsDLPack,
    target: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of each term of bce_with_logits."""

def bce_loss_backward(
    g: _Array,
    x: SupportsDLPack,
    target: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of each term of bce_loss; x (1 - x) not below 1e-12."""

def kl_div_backward(g: _Array, target: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """gradient of each term of kl_div by the log-probabilities."""

def hinge_loss_backward(
    g: _Array,
    x: SupportsDLPack,
    target: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of each term of hinge_loss."""

def squared_hinge_loss_backward(
    g: _Array,
    x: SupportsDLPack,
    target: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of each term of squared_hinge_loss."""

def soft_margin_loss_backward(
    g: _Array,
    x: SupportsDLPack,
    target: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of each term of soft_margin_loss."""

def poisson_nll_loss_backward(
    g: _Array,
    x: SupportsDLPack,
    target: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of each term of poisson_nll_loss."""

def gaussian_nll_loss_backward(
    g: _Array,
    x: SupportsDLPack,
    target: SupportsDLPack,
    variance: SupportsDLPack,
    *,
    eps: float = 1e-06,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of each term of gaussian_nll_loss by x."""

def sum(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """sum; of integers and bool in 64 bits."""

def mean(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """mean."""

def prod(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """product; of integers in 64 bits."""

def amin(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """smallest; NaN if one is."""

def amax(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """largest; NaN if one is."""

def argmin(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """index of the first smallest; of NaN if there is one."""

def argmax(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """index of the first largest; of NaN if there is one."""

def any(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """whether one is not 0; of none false."""

def all(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """whether none is 0; of none true."""

def count_nonzero(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """number that are not 0."""

def count_nan(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """number that are NaN."""

def norm_l1(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """sum of magnitudes."""

def norm_l2(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """root of the sum of squares, which are not scaled: they may overflow."""

def norm_inf(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """largest magnitude."""

def sum_square(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """sum of squares."""

def mean_square(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """mean of squares."""

def mean_abs(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """mean of magnitudes."""

def var(
    x: _Array,
    *,
    correction: float = 1.0,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """variance: sum of squared distances from the mean by their number less `correction`."""

def std(
    x: _Array,
    *,
    correction: float = 1.0,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """root of the variance."""

def logsumexp(
    x: _Array,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """ln of the sum of e^x."""

def dot(
    x: _Array,
    y: SupportsDLPack,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """sum of products."""

def cosine_similarity(
    x: _Array,
    y: SupportsDLPack,
    *,
    eps: float = 1e-08,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """cosine of the angle between vectors."""

def pairwise_distance(
    x: _Array,
    y: SupportsDLPack,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """distance of vectors."""

def softmax(x: _Array, *, axis: int | None = None, **options: Unpack[_Options]) -> _Array:
    """e^x by the sum of e^x along an axis."""

def softmin(x: _Array, *, axis: int | None = None, **options: Unpack[_Options]) -> _Array:
    """softmax of -x."""

def log_softmax(x: _Array, *, axis: int | None = None, **options: Unpack[_Options]) -> _Array:
    """logarithm of softmax."""

def masked_softmax(
    condition: _Array,
    x: SupportsDLPack,
    *,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """softmax of the elements for which the condition holds; NaN where it holds for none."""

def softmax_backward(
    g: _Array,
    y: SupportsDLPack,
    *,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of softmax by its result y."""

def log_softmax_backward(
    g: _Array,
    y: SupportsDLPack,
    *,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of log_softmax by its result y."""

def normalize(
    x: _Array,
    *,
    eps: float = 1e-12,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """x by its L2 norm along an axis."""

def rms_norm_gated(
    x: _Array,
    gamma: SupportsDLPack,
    gate: SupportsDLPack,
    *,
    eps: float = 1e-06,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """rms_norm along an axis, by gamma and silu(gate)."""

def rms_norm_of_gated(
    x: _Array,
    gamma: SupportsDLPack,
    gate: SupportsDLPack,
    *,
    eps: float = 1e-05,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """rms_norm of x silu(gate) along an axis, by gamma."""

def layer_norm(
    x: _Array,
    gamma: SupportsDLPack | None = None,
    beta: SupportsDLPack | None = None,
    *,
    eps: float = 1e-05,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """(x - mean) / √(variance + eps) gamma + beta along an axis."""

def rms_norm(
    x: _Array,
    gamma: SupportsDLPack | None = None,
    *,
    eps: float = 1e-05,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """x / √(mean of squares + eps) gamma along an axis."""

def layer_norm_backward(
    g: _Array,
    x: SupportsDLPack,
    gamma: SupportsDLPack | None = None,
    *,
    eps: float = 1e-05,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array, _Array]:
    """gradient of layer_norm by x, gamma and beta. Results: x, gamma, beta."""

def rms_norm_backward(
    g: _Array,
    x: SupportsDLPack,
    gamma: SupportsDLPack | None = None,
    *,
    eps: float = 1e-05,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """gradient of rms_norm by x and gamma. Results: x, gamma."""

def group_norm(
    x: _Array,
    gamma: SupportsDLPack | None = None,
    beta: SupportsDLPack | None = None,
    *,
    groups: float = 1.0,
    eps: float = 1e-05,
    **options: Unpack[_Options]
) -> _Array:
    """(x - mean) / √(variance + eps) gamma + beta of x[batch, channels, ..], of groups of
    channels."""

def group_norm_backward(
    g: _Array,
    x: SupportsDLPack,
    gamma: SupportsDLPack | None = None,
    *,
    groups: float = 1.0,
    eps: float = 1e-05,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array, _Array]:
    """gradient of group_norm by x, gamma and beta. Results: x, gamma, beta."""

def instance_norm(
    x: _Array,
    gamma: SupportsDLPack | None = None,
    beta: SupportsDLPack | None = None,
    *,
    eps: float = 1e-05,
    **options: Unpack[_Options]
) -> _Array:
    """group_norm of each channel by itself."""

def instance_norm_backward(
    g: _Array,
    x: SupportsDLPack,
    gamma: SupportsDLPack | None = None,
    *,
    eps: float = 1e-05,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array, _Array]:
    """gradient of instance_norm by x, gamma and beta. Results: x, gamma, beta."""

def batch_norm(
    x: _Array,
    gamma: SupportsDLPack | None = None,
    beta: SupportsDLPack | None = None,
    *,
    eps: float = 1e-05,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array, _Array]:
    """(x - mean) / √(variance + eps) gamma + beta of x[batch, channels, ..], of each channel, and
    its statistics: the variance of all elements, without correction. Results: out, mean,
    variance."""

def batch_norm_backward(
    g: _Array,
    x: SupportsDLPack,
    gamma: SupportsDLPack | None = None,
    *,
    eps: float = 1e-05,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array, _Array]:
    """gradient of batch_norm by x, gamma and beta. Results: x, gamma, beta."""

def batch_norm_inference(
    x: _Array,
    mean: SupportsDLPack,
    variance: SupportsDLPack,
    gamma: SupportsDLPack | None = None,
    beta: SupportsDLPack | None = None,
    *,
    eps: float = 1e-05,
    **options: Unpack[_Options]
) -> _Array:
    """batch_norm by given statistics of the channels."""

def batch_norm_inference_backward(
    g: _Array,
    x: SupportsDLPack,
    mean: SupportsDLPack,
    variance: SupportsDLPack,
    gamma: SupportsDLPack | None = None,
    *,
    eps: float = 1e-05,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array, _Array]:
    """gradient of batch_norm_inference by x, gamma and beta. Results: x, gamma, beta."""

def sparsemax(x: _Array, *, axis: int | None = None, **options: Unpack[_Options]) -> _Array:
    """the nearest point to x along an axis whose elements are not negative and have the sum 1."""

def sparsemax_backward(
    g: _Array,
    y: SupportsDLPack,
    *,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of sparsemax by its result y."""

def mse_loss(
    x: _Array,
    target: SupportsDLPack,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """mean of squared differences."""

def l1_loss(
    x: _Array,
    target: SupportsDLPack,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """mean of absolute differences."""

def huber_loss(
    x: _Array,
    target: SupportsDLPack,
    *,
    delta: float = 1.0,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """squared below delta, linear above."""

def smooth_l1_loss(
    x: _Array,
    target: SupportsDLPack,
    *,
    beta: float = 1.0,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """huber_loss by beta."""

def log_cosh_loss(
    x: _Array,
    target: SupportsDLPack,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """mean of ln(cosh(x - target))."""

def bce_with_logits(
    x: _Array,
    target: SupportsDLPack,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """binary cross-entropy of logits."""

def bce_loss(
    x: _Array,
    target: SupportsDLPack,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """binary cross-entropy of probabilities; logarithms not below -100."""

def kl_div(
    x: _Array,
    target: SupportsDLPack,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """Kullback-Leibler divergence of log-probabilities x."""

def hinge_loss(
    x: _Array,
    target: SupportsDLPack,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """mean of max(0, 1 - x target)."""

def squared_hinge_loss(
    x: _Array,
    target: SupportsDLPack,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """mean of the hinge squared."""

def soft_margin_loss(
    x: _Array,
    target: SupportsDLPack,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """mean of ln(1 + e^(-x target))."""

def poisson_nll_loss(
    x: _Array,
    target: SupportsDLPack,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """Poisson's negative log-likelihood of the logarithm x of the rate."""

def gaussian_nll_loss(
    x: _Array,
    target: SupportsDLPack,
    variance: SupportsDLPack,
    *,
    eps: float = 1e-06,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """negative log-likelihood of a normal distribution."""

def margin_ranking_loss(
    x: _Array,
    y: SupportsDLPack,
    target: SupportsDLPack,
    *,
    margin: float = 0.0,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """mean of max(0, target (y - x) + margin)."""

def cross_entropy_probabilities(
    x: _Array,
    target: SupportsDLPack,
    *,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """cross-entropy of logits with target probabilities, over the axes."""

def focal_loss(
    x: _Array,
    target: SupportsDLPack,
    *,
    alpha: float = 0.25,
    gamma: float = 2.0,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """mean of alpha (1 - p)^gamma (-ln p), p the probability of the label 0 or 1 by the logit x."""

def triplet_loss(
    anchor: _Array,
    positive: SupportsDLPack,
    negative: SupportsDLPack,
    *,
    margin: float = 1.0,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """max(0, distance to the positive - distance to the negative + margin), over the axes."""

def cosine_embedding_loss(
    x: _Array,
    y: SupportsDLPack,
    target: SupportsDLPack,
    *,
    margin: float = 0.0,
    eps: float = 1e-08,
    axes: _Integers | None = None,
    keep: bool = False,
    **options: Unpack[_Options]
) -> _Array:
    """1 - cosine where the largest target is above 0, else max(0, cosine - margin), over the
    axes."""

def cross_entropy(
    x: _Array,
    index: SupportsDLPack,
    weights: SupportsDLPack | None = None,
    *,
    smoothing: float = 0.0,
    z_weight: float = 0.0,
    ignore: float = -100.0,
    reduce: Literal['mean', 'sum', 'none'] = 'mean',
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """cross-entropy of logits with the class of an index, of which `smoothing` is spread over all
    classes, and z_weight ln(sum of e^x)^2."""

def cross_entropy_backward(
    g: _Array,
    x: SupportsDLPack,
    index: SupportsDLPack,
    weights: SupportsDLPack | None = None,
    *,
    smoothing: float = 0.0,
    z_weight: float = 0.0,
    ignore: float = -100.0,
    reduce: Literal['mean', 'sum', 'none'] = 'mean',
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of cross_entropy at the logits x."""

def nll_loss(
    x: _Array,
    index: SupportsDLPack,
    weights: SupportsDLPack | None = None,
    *,
    ignore: float = -100.0,
    reduce: Literal['mean', 'sum', 'none'] = 'mean',
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """negative of the logarithm x of the probability of the class of an index."""

def nll_loss_backward(
    g: _Array,
    x: SupportsDLPack,
    index: SupportsDLPack,
    weights: SupportsDLPack | None = None,
    *,
    ignore: float = -100.0,
    reduce: Literal['mean', 'sum', 'none'] = 'mean',
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of nll_loss at x."""

def ctc_loss(
    x: _Array,
    index: SupportsDLPack,
    lengths: SupportsDLPack,
    label_lengths: SupportsDLPack,
    *,
    blank: float = 0.0,
    **options: Unpack[_Options]
) -> _Array:
    """connectionist temporal classification of x[steps, samples, classes], logarithms of
    probabilities, by index[samples, labels]; 0 where a length or a label is outside."""

def linear_cross_entropy(
    x: _Array,
    weight: SupportsDLPack,
    index: SupportsDLPack,
    bias: SupportsDLPack | None = None,
    *,
    smoothing: float = 0.0,
    z_weight: float = 0.0,
    ignore: float = -100.0,
    chunk: float = 0.0,
    reduce: Literal['mean', 'sum', 'none'] = 'mean',
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """cross_entropy of the logits x weight^T + bias, by `chunk` classes at a time, which are never
    held all, and ln of the sum of e^x of each row, of f32 or f64. Results: out, logarithms."""

def linear_cross_entropy_backward(
    g: _Array,
    logarithms: SupportsDLPack,
    x: SupportsDLPack,
    weight: SupportsDLPack,
    index: SupportsDLPack,
    bias: SupportsDLPack | None = None,
    *,
    smoothing: float = 0.0,
    z_weight: float = 0.0,
    ignore: float = -100.0,
    chunk: float = 0.0,
    reduce: Literal['mean', 'sum', 'none'] = 'mean',
    **options: Unpack[_Options]
) -> tuple[_Array, _Array, _Array]:
    """gradient of linear_cross_entropy by x, weight and bias, of the logarithms that it gave.
    Results: x, weight, bias."""

def sgd(
    x: _Array,
    gradient: SupportsDLPack,
    rate: SupportsDLPack,
    *,
    decay: float = 0.0,
    **options: Unpack[_Options]
) -> _Array:
    """x - rate (gradient + decay x)."""

def sgd_momentum(
    x: _Array,
    gradient: SupportsDLPack,
    velocity: SupportsDLPack,
    rate: SupportsDLPack,
    *,
    momentum: float = 0.9,
    dampening: float = 0.0,
    decay: float = 0.0,
    nesterov: Literal['off', 'on'] = 'off',
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """sgd by a velocity: momentum times itself + (1 - dampening) (gradient + decay x). Results:
    out, velocity."""

def adam(
    x: _Array,
    gradient: SupportsDLPack,
    mean: SupportsDLPack,
    square: SupportsDLPack,
    rate: SupportsDLPack,
    step: SupportsDLPack,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-08,
    decay: float = 0.0,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array, _Array]:
    """Adam; decay x is added to the gradient. Results: out, mean, square."""

def adamw(
    x: _Array,
    gradient: SupportsDLPack,
    mean: SupportsDLPack,
    square: SupportsDLPack,
    rate: SupportsDLPack,
    step: SupportsDLPack,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-08,
    decay: float = 0.01,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array, _Array]:
    """Adam with decoupled decay: x is made smaller by rate decay x. Results: out, mean, square."""

def lion(
    x: _Array,
    gradient: SupportsDLPack,
    mean: SupportsDLPack,
    rate: SupportsDLPack,
    *,
    beta1: float = 0.9,
    beta2: float = 0.99,
    decay: float = 0.0,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """Lion: by the sign of beta1 mean + (1 - beta1) gradient, with decoupled decay. Results: out,
    mean."""

def lamb(
    x: _Array,
    gradient: SupportsDLPack,
    mean: SupportsDLPack,
    square: SupportsDLPack,
    rate: SupportsDLPack,
    step: SupportsDLPack,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-06,
    decay: float = 0.01,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array, _Array]:
    """LAMB: the change of Adam + decay x, by the ratio of the norms of x and of that change, 1 if
    one is 0. Results: out, mean, square."""

def adafactor(
    x: _Array,
    gradient: SupportsDLPack,
    rows: SupportsDLPack,
    columns: SupportsDLPack,
    rate: SupportsDLPack,
    step: SupportsDLPack,
    *,
    power: float = 0.8,
    eps: float = 1e-30,
    least_scale: float = 0.001,
    threshold: float = 1.0,
    decay: float = 0.0,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array, _Array]:
    """Adafactor of a matrix: squares of gradients as means of rows and columns, the rate by x's
    root mean square. Results: out, rows, columns."""

def multi_sgd(
    rate: _Array,
    *groups: SupportsDLPack,
    decay: float = 0.0,
    **options: Unpack[_Options]
) -> tuple[_Array, ...]:
    """sgd of many tensors."""

def multi_sgd_momentum(
    rate: _Array,
    *groups: SupportsDLPack,
    momentum: float = 0.9,
    dampening: float = 0.0,
    decay: float = 0.0,
    nesterov: Literal['off', 'on'] = 'off',
    **options: Unpack[_Options]
) -> tuple[_Array, ...]:
    """sgd_momentum of many tensors. Results: out, velocity."""

def multi_adam(
    rate: _Array,
    step: SupportsDLPack,
    *groups: SupportsDLPack,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-08,
    decay: float = 0.0,
    **options: Unpack[_Options]
) -> tuple[_Array, ...]:
    """adam of many tensors. Results: out, mean, square."""

def multi_adamw(
    rate: _Array,
    step: SupportsDLPack,
    *groups: SupportsDLPack,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-08,
    decay: float = 0.01,
    **options: Unpack[_Options]
) -> tuple[_Array, ...]:
    """adamw of many tensors. Results: out, mean, square."""

def multi_lion(
    rate: _Array,
    *groups: SupportsDLPack,
    beta1: float = 0.9,
    beta2: float = 0.99,
    decay: float = 0.0,
    **options: Unpack[_Options]
) -> tuple[_Array, ...]:
    """lion of many tensors. Results: out, mean."""

def gradient_norm(*x: _Array, **options: Unpack[_Options]) -> _Array:
    """root of the sum of squares of all elements of many tensors, f32 or f64; squares may
    overflow."""

def clip_norm(
    x: _Array,
    norm: SupportsDLPack,
    *,
    most: float = 1.0,
    eps: float = 1e-06,
    **options: Unpack[_Options]
) -> _Array:
    """x min(1, most / (norm + eps))."""

def unscale(x: _Array, scale: SupportsDLPack, **options: Unpack[_Options]) -> tuple[_Array, _Array]:
    """x / scale, and whether an element is infinite or NaN. Results: out, found."""

def next_scale(
    scale: _Array,
    streak: SupportsDLPack,
    found: SupportsDLPack,
    *,
    growth: float = 2.0,
    backoff: float = 0.5,
    interval: float = 2000.0,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """scale of a loss for the next step: smaller after a gradient that was not finite, larger after
    `interval` finite ones. Results: scale, streak."""

def quantise(
    x: _Array,
    *,
    bits: float = 8.0,
    axes: _Integers | None = None,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """i8 of 2 to 8 bits, symmetric, and their scale: the largest magnitude along the axes by the
    largest number. Results: out, scale."""

def quantise_asymmetric(
    x: _Array,
    *,
    bits: float = 8.0,
    axes: _Integers | None = None,
    to: _Dtype | None = None,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array, _Array]:
    """u8 or i8 of 2 to 8 bits, their scale, and the number that stands for 0, of the range of x and
    0 along the axes. Results: out, scale, zero."""

def quantise_f8(
    x: _Array,
    *,
    axes: _Integers | None = None,
    to: _Dtype | None = None,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """f8e4m3 or f8e5m2, and their scale: the largest magnitude along the axes by the largest
    number. Results: out, scale."""

def quantise_with(
    x: _Array,
    scale: SupportsDLPack,
    zero: SupportsDLPack | None = None,
    *,
    bits: float = 8.0,
    to: _Dtype | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """i8, u8, f8e4m3 or f8e5m2 by a scale, and of integers a zero, that are broadcast to x."""

def dequantise(
    x: _Array,
    scale: SupportsDLPack,
    zero: SupportsDLPack | None = None,
    *,
    to: _Dtype | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """(x - zero) scale; of the scale's type without `to`."""

def pack_int4(x: _Array, **options: Unpack[_Options]) -> _Array:
    """u8 of the low 4 bits of two neighbours along the last dimension, the first in the low
    bits."""

def unpack_int4(
    x: _Array,
    *,
    numbers: Literal['signed', 'unsigned'] = 'signed',
    to: _Dtype | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """two numbers of 4 bits of each byte, neighbours along the last dimension; i8 without `to`."""

def f8_scales(
    history: _Array,
    latest: SupportsDLPack,
    scale: SupportsDLPack,
    *,
    margin: float = 0.0,
    by: Literal['largest', 'latest'] = 'largest',
    to: _Dtype | None = None,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """delayed scaling: the latest magnitude before the history[steps, ..], and 2^margin times the
    largest by the largest number of the type as scale; unless that is 0 or not finite. Results:
    history, scale."""

def quantise_blocks(
    x: _Array,
    *,
    format: Literal['q8_0', 'q8_1', 'q8_k'] = 'q8_0',
    **options: Unpack[_Options]
) -> _Array:
    """u8[.., bytes] of blocks of 8 bits, as llama.cpp's reference quantiser; of one with an element
    that is not finite the scale is NaN."""

def dequantise_blocks(
    w: _Array,
    *,
    format: Literal['q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q8_1', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4', 'nvfp4', 'q1_0', 'q2_0'] = 'q4_0',
    to: _Dtype | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """elements of w[.., bytes], blocks of a format of GGUF, with the bits of llama.cpp's C code,
    rounded once; f32 without `to`."""

def quantised_linear(
    x: _Array,
    w: SupportsDLPack,
    bias: SupportsDLPack | None = None,
    residual: SupportsDLPack | None = None,
    *,
    format: Literal['q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q8_1', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4', 'nvfp4', 'q1_0', 'q2_0'] = 'q4_0',
    to: _Dtype | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """x w^T + bias + residual, of blocks w[outputs, bytes] and x quantised to 8 bits as llama.cpp
    does on a processor; a row of x that is not finite gives NaN."""

def quantised_swiglu(
    x: _Array,
    gate: SupportsDLPack,
    up: SupportsDLPack,
    *,
    format: Literal['q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q8_1', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4', 'nvfp4', 'q1_0', 'q2_0'] = 'q4_0',
    to: _Dtype | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """silu(x gate^T) (x up^T), each product as quantised_linear."""

def quantised_embedding(
    w: _Array,
    index: SupportsDLPack,
    *,
    format: Literal['q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q8_1', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4', 'nvfp4', 'q1_0', 'q2_0'] = 'q4_0',
    to: _Dtype | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """elements of the rows of blocks w[rows, bytes] that the index chooses; zeros for an index
    outside; f32 without `to`."""

def expert_linear(
    x: _Array,
    w: SupportsDLPack,
    index: SupportsDLPack,
    bias: SupportsDLPack | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """x w[index]^T + bias[index] of w[experts, outputs, inputs], for each choice index[.., choices]
    of a token; x has a row for each token or each choice; zeros for a choice of no expert."""

def quantised_expert_linear(
    x: _Array,
    w: SupportsDLPack,
    index: SupportsDLPack,
    bias: SupportsDLPack | None = None,
    *,
    format: Literal['q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q8_1', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4', 'nvfp4', 'q1_0', 'q2_0'] = 'q4_0',
    to: _Dtype | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """expert_linear of blocks w[experts, outputs, bytes], each product as quantised_linear."""

def quantised_expert_swiglu(
    x: _Array,
    gate: SupportsDLPack,
    up: SupportsDLPack,
    index: SupportsDLPack,
    *,
    format: Literal['q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q8_1', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4', 'nvfp4', 'q1_0', 'q2_0'] = 'q4_0',
    to: _Dtype | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """silu(x gate[index]^T) (x up[index]^T), each product as quantised_expert_linear."""

def gather(
    x: _Array,
    index: SupportsDLPack,
    *,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """elements of x at the indices along an axis."""

def index_select(
    x: _Array,
    index: SupportsDLPack,
    *,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """whole rows of x at the indices along an axis."""

def take(x: _Array, index: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """elements of x at the indices, in row-major order."""

def embedding(table: _Array, index: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """a row of the table for each index."""

def one_hot(
    index: _Array,
    *,
    classes: float = 1.0,
    to: _Dtype | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """1 in the column of the index, else 0; i64 without `to`."""

def scatter(
    x: _Array,
    index: SupportsDLPack,
    source: SupportsDLPack,
    *,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """x with the source's elements at the indices along an axis; of several for one, any."""

def scatter_reduce(
    x: _Array,
    index: SupportsDLPack,
    source: SupportsDLPack,
    *,
    reduce: Literal['sum', 'prod', 'amin', 'amax'] = 'sum',
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """x with the source's elements combined into those at the indices."""

def index_add(
    x: _Array,
    index: SupportsDLPack,
    source: SupportsDLPack,
    *,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """x with the source's rows added at the indices along an axis."""

def index_reduce(
    x: _Array,
    index: SupportsDLPack,
    source: SupportsDLPack,
    *,
    reduce: Literal['sum', 'prod', 'amin', 'amax'] = 'sum',
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """x with the source's rows combined into those at the indices along an axis."""

def index_copy(
    x: _Array,
    index: SupportsDLPack,
    source: SupportsDLPack,
    *,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """x with the source's rows at the indices along an axis; of several for one, any elements."""

def gather_backward(
    g: _Array,
    index: SupportsDLPack,
    *,
    axis: int | None = None,
    shape: _Integers,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of gather by its operand of `shape`."""

def index_select_backward(
    g: _Array,
    index: SupportsDLPack,
    *,
    rows: float = 1.0,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of index_select by its operand of `rows` rows along the axis."""

def segment_reduce(
    x: _Array,
    offsets: SupportsDLPack,
    *,
    reduce: Literal['sum', 'mean', 'amax', 'amin'] = 'sum',
    **options: Unpack[_Options]
) -> _Array:
    """rows of x, along its first dimension, combined from each offset to before the next one."""

def embedding_bag(
    table: _Array,
    index: SupportsDLPack,
    offsets: SupportsDLPack,
    weights: SupportsDLPack | None = None,
    *,
    reduce: Literal['sum', 'mean', 'amax', 'amin'] = 'sum',
    **options: Unpack[_Options]
) -> _Array:
    """rows of the table at the indices from each offset to before the next one, combined, with a
    weight each for sums."""

def embedding_bag_backward(
    g: _Array,
    index: SupportsDLPack,
    offsets: SupportsDLPack,
    weights: SupportsDLPack | None = None,
    *,
    rows: float = 1.0,
    reduce: Literal['sum', 'mean'] = 'sum',
    **options: Unpack[_Options]
) -> _Array:
    """gradient of embedding_bag by its table of `rows` rows, of sums and means."""

def embedding_backward(
    g: _Array,
    index: SupportsDLPack,
    *,
    rows: float = 1.0,
    **options: Unpack[_Options]
) -> _Array:
    """gradient of embedding by its table of `rows` rows."""

def random_uniform(
    *,
    low: float = 0.0,
    high: float = 1.0,
    seed: _Integers = (0,),
    subsequence: _Integers = (0,),
    to: _Dtype | None = None,
    shape: _Integers,
    **options: Unpack[_Options]
) -> Buffer:
    """uniform from low to high, to which it may round; f32 without `to`."""

def random_normal(
    *,
    mean: float = 0.0,
    deviation: float = 1.0,
    seed: _Integers = (0,),
    subsequence: _Integers = (0,),
    to: _Dtype | None = None,
    shape: _Integers,
    **options: Unpack[_Options]
) -> Buffer:
    """normal, by Box and Muller; f32 without `to`."""

def truncated_normal(
    *,
    mean: float = 0.0,
    deviation: float = 1.0,
    low: float = -2.0,
    high: float = 2.0,
    seed: _Integers = (0,),
    subsequence: _Integers = (0,),
    to: _Dtype | None = None,
    shape: _Integers,
    **options: Unpack[_Options]
) -> Buffer:
    """normal, of which only what is from low to high is drawn, by the inverse of its function in
    f64; f32 without `to`."""

def random_exponential(
    *,
    rate: float = 1.0,
    seed: _Integers = (0,),
    subsequence: _Integers = (0,),
    to: _Dtype | None = None,
    shape: _Integers,
    **options: Unpack[_Options]
) -> Buffer:
    """exponential; f32 without `to`."""

def bernoulli(
    *,
    p: float = 0.5,
    seed: _Integers = (0,),
    subsequence: _Integers = (0,),
    to: _Dtype | None = None,
    shape: _Integers,
    **options: Unpack[_Options]
) -> Buffer:
    """1 with the chance p, else 0; f32 without `to`."""

def random_integers(
    *,
    seed: _Integers = (0,),
    subsequence: _Integers = (0,),
    bounds: _Integers = (0, 2),
    to: _Dtype | None = None,
    shape: _Integers,
    **options: Unpack[_Options]
) -> Buffer:
    """whole numbers from bounds[0] to below bounds[1], whose chances differ by at most 2^-64; i64
    without `to`."""

def dropout(
    x: _Array,
    *,
    p: float = 0.5,
    seed: _Integers = (0,),
    subsequence: _Integers = (0,),
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """0 with the chance p, else x / (1 - p), and whether it stayed. Results: out, mask."""

def iota(
    *,
    start: float = 0.0,
    step: float = 1.0,
    to: _Dtype | None = None,
    shape: _Integers,
    **options: Unpack[_Options]
) -> Buffer:
    """start + i step by the number i in row-major order; i64 without `to`."""

def tril(x: _Array, *, diagonal: float = 0.0, **options: Unpack[_Options]) -> _Array:
    """matrices at and below a diagonal, 0 elsewhere."""

def triu(x: _Array, *, diagonal: float = 0.0, **options: Unpack[_Options]) -> _Array:
    """matrices at and above a diagonal, 0 elsewhere."""

def eye(
    *,
    diagonal: float = 0.0,
    to: _Dtype | None = None,
    shape: _Integers,
    **options: Unpack[_Options]
) -> Buffer:
    """1 on a diagonal, 0 elsewhere; f32 without `to`."""

def random_permutation(
    *,
    seed: _Integers = (0,),
    subsequence: _Integers = (0,),
    shape: _Integers,
    **options: Unpack[_Options]
) -> Buffer:
    """i64: the places along the last dimension in random order, by sorting numbers of 64 bits."""

def multinomial(
    x: _Array,
    *,
    samples: float = 1.0,
    seed: _Integers = (0,),
    subsequence: _Integers = (0,),
    **options: Unpack[_Options]
) -> _Array:
    """i64: places along the last dimension by their finite weights, with replacement; a weight
    below 0 or NaN is 0, and of no weight above 0 the place is 0."""

def multinomial_different(
    x: _Array,
    *,
    samples: float = 1.0,
    seed: _Integers = (0,),
    subsequence: _Integers = (0,),
    **options: Unpack[_Options]
) -> _Array:
    """i64: different places along the last dimension by their finite weights, without replacement;
    a weight below 0 or NaN is 0, and -1 where no weight above 0 is left."""

def choose_by_weight(
    x: _Array,
    settings: SupportsDLPack,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """the place of one element of each row of x[rows, n], by weights e^((x - most) / temperature),
    and the largest element. A row of settings[rows, 6], i32, has the bits of an f32 temperature, 0
    for the largest element; top_k, the number of largest elements that are kept, 0 for all; the
    bits of f32 top_p, the part of the weight of these that the kept ones have at least, and min_p,
    the least weight; and the low and the high half of the bits of an f64 from 0 to 1, which
    chooses: as much of the kept weight is before the element, in the order of the row. Of equal
    elements of which top_k and top_p keep some the first are kept, or all where more than 2048 are
    near. NaN: the first largest of the others, and NaN. Results: place, most."""

def matmul(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """matrix product of the last two dimensions, others broadcast, vectors as NumPy; of 8 and 16
    bits in 32."""

def linear(
    x: _Array,
    weight: SupportsDLPack,
    bias: SupportsDLPack | None = None,
    residual: SupportsDLPack | None = None,
    *,
    scale: float = 1.0,
    activation: Literal['none', 'relu', 'gelu', 'silu'] = 'none',
    result: Literal['same', 'f32'] = 'same',
    **options: Unpack[_Options]
) -> _Array:
    """activation(scale x weight^T + bias) + residual, of weight[outputs, inputs]; the result, and
    the residual, are of the factors' type or f32."""

def token_linear(
    x: _Array,
    w: SupportsDLPack,
    residual: SupportsDLPack | None = None,
    *,
    format: Literal['plain', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q8_1', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4', 'nvfp4', 'q1_0', 'q2_0'] = 'plain',
    weights: Literal['any', 'constant'] = 'any',
    **options: Unpack[_Options]
) -> _Array:
    """x w^T + residual of at most 8 vectors, in one launch; w has floats, or blocks of a format;
    with weights=constant they are read while the kernel before still runs, which must not write
    them."""

def normed_linear(
    x: _Array,
    norm: SupportsDLPack,
    w: SupportsDLPack,
    w2: SupportsDLPack | None = None,
    w3: SupportsDLPack | None = None,
    *,
    eps: float = 1e-06,
    format: Literal['plain', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q8_1', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4', 'nvfp4', 'q1_0', 'q2_0'] = 'plain',
    weights: Literal['any', 'constant'] = 'any',
    **options: Unpack[_Options]
) -> _Array:
    """token_linear of rms_norm(x) norm, by up to three matrices whose outputs follow one
    another."""

def normed_swiglu(
    x: _Array,
    norm: SupportsDLPack,
    gate: SupportsDLPack,
    up: SupportsDLPack,
    *,
    eps: float = 1e-06,
    format: Literal['plain', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q8_1', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4', 'nvfp4', 'q1_0', 'q2_0'] = 'plain',
    weights: Literal['any', 'constant'] = 'any',
    **options: Unpack[_Options]
) -> _Array:
    """silu(n gate^T) (n up^T) of n = rms_norm(x) norm, as token_linear."""

def rope(
    x: _Array,
    position: SupportsDLPack,
    frequency: SupportsDLPack,
    *,
    magnitude: float = 1.0,
    pairs: Literal['halves', 'adjacent'] = 'halves',
    **options: Unpack[_Options]
) -> _Array:
    """x[tokens, heads, length] with pairs of elements turned by position * frequency, which is f32,
    times the magnitude; a pair is from both halves of what is turned, or neighbours."""

def cache_append(
    cache: _Array,
    rows: SupportsDLPack,
    index: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """cache[blocks, places, heads, length] with the rows of tokens in the places that the index
    numbers through all blocks; in place, nothing else is copied."""

def attention_inputs(
    x: _Array,
    position: SupportsDLPack,
    frequency: SupportsDLPack,
    index: SupportsDLPack,
    k: SupportsDLPack,
    v: SupportsDLPack,
    q_norm: SupportsDLPack | None = None,
    k_norm: SupportsDLPack | None = None,
    *,
    eps: float = 1e-06,
    magnitude: float = 1.0,
    pairs: Literal['halves', 'adjacent'] = 'halves',
    **options: Unpack[_Options]
) -> tuple[_Array, _Array, _Array]:
    """heads of x[tokens, those of queries, of keys and of values]: rms_norm of each of the first
    two by q_norm and k_norm, rope of them, and cache_append of the last two; the heads of queries,
    and the cache, in place or not. Results: q, k, v."""

def paged_attention(
    q: _Array,
    k: SupportsDLPack,
    v: SupportsDLPack,
    table: SupportsDLPack,
    sequence: SupportsDLPack,
    position: SupportsDLPack,
    sinks: SupportsDLPack | None = None,
    *,
    scale: float = 0.0,
    limit: float = 0.0,
    max_bias: float = 0.0,
    window: float = 0.0,
    run: float = 1.0,
    products: Literal['exact', 'cached'] = 'exact',
    **options: Unpack[_Options]
) -> _Array:
    """values of a cache by the softmax of q . k * scale (0 for 1 / root of the length), of each
    token up to its position in its sequence, whose blocks are a row of the table; limit is that of
    tanh, max_bias of ALiBi, window of the last positions; a sink is a score without value; products
    of a cache of 16 or 8 bits may round queries and weights to its type or, of 8 bits, to f16, on
    tensor cores; run is about how many tokens of a sequence follow one another, a hint."""

def attention(
    q: _Array,
    k: SupportsDLPack,
    v: SupportsDLPack,
    sinks: SupportsDLPack | None = None,
    *,
    scale: float = 0.0,
    limit: float = 0.0,
    window: float = 0.0,
    mask: Literal['none', 'causal'] = 'none',
    **options: Unpack[_Options]
) -> _Array:
    """values v[batches, keys, shared heads, value length] by the softmax of q[batches, tokens,
    heads, length] . k[batches, keys, shared heads, length] * scale (0 for 1 / root of the length);
    each shared head is that of neighbouring heads of queries; with mask=causal the last query
    attends to all keys, the one before to all but the last, and with a window to the last keys of
    those; limit is that of tanh; a sink is a score without value, f32; without keys 0; of f16 and
    bf16 weights may be rounded to the type."""

def token_attention(
    x: _Array,
    position: SupportsDLPack,
    frequency: SupportsDLPack,
    index: SupportsDLPack,
    k: SupportsDLPack,
    v: SupportsDLPack,
    table: SupportsDLPack,
    sequence: SupportsDLPack,
    arrived: SupportsDLPack,
    q_norm: SupportsDLPack | None = None,
    k_norm: SupportsDLPack | None = None,
    *,
    eps: float = 1e-06,
    magnitude: float = 1.0,
    scale: float = 0.0,
    limit: float = 0.0,
    window: float = 0.0,
    pairs: Literal['halves', 'adjacent'] = 'halves',
    cache: Literal['any', 'constant'] = 'any',
    **options: Unpack[_Options]
) -> tuple[_Array, _Array, _Array, _Array]:
    """attention_inputs and paged_attention of tokens of which each is the last one of its sequence,
    in one launch; the index is the place of its position by the table, which no other token's keys
    have; arrived is zeros of u32 or i32, as many as tokens and heads of queries or more, in place
    and zeros again; with cache=constant all but x may be read while the kernel before still runs,
    which must not write it. Results: out, k, v, arrived."""

def causal_convolution(
    x: _Array,
    weight: SupportsDLPack,
    state: SupportsDLPack,
    runs: SupportsDLPack,
    bias: SupportsDLPack | None = None,
    *,
    activation: Literal['silu', 'none'] = 'silu',
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """each channel of x[tokens, channels] by its row of weight[channels, taps], which ends with the
    token itself, + bias, through SiLU; before a run stands state[slots, taps - 1, channels], f32
    for floats narrower than f64. A row of runs[count, 6] has the first token and how many follow
    it, the slots in which the state is read and written, and a number of tokens and the slot in
    which the state behind them is kept; slots outside are none, and a state that is not read is 0.
    Runs are in the order of tokens, tokens of none give 0, and no slot that is written is another
    one of the launch. Results: y, state."""

def gated_delta_rule(
    x: _Array,
    step: SupportsDLPack,
    beta: SupportsDLPack,
    rate: SupportsDLPack,
    bias: SupportsDLPack,
    state: SupportsDLPack,
    runs: SupportsDLPack,
    *,
    eps: float = 1e-06,
    keys: Literal['grouped', 'tiled'] = 'grouped',
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """q . S of heads of x[tokens, those of queries, of keys and of values], where q and k are by
    their lengths, q by 1 / root of its elements too, and each token makes S = e^(rate softplus(step
    + bias)) S, then S = S + k (v - k . S) sigmoid(beta); S is state[slots, heads, value length, key
    length], in runs as of causal_convolution. Heads have the keys of their group, or of their
    number modulo that of keys. Results: y, state."""

def selective_scan(
    x: _Array,
    step: SupportsDLPack,
    rate: SupportsDLPack,
    bias: SupportsDLPack,
    state: SupportsDLPack,
    runs: SupportsDLPack,
    skip: SupportsDLPack | None = None,
    *,
    least: float = 0.0,
    most: float = 0.0,
    keys: Literal['grouped', 'tiled'] = 'grouped',
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """c . S + skip v of heads of x[tokens, those of values, of b and of c], where each token makes
    S = e^(rate d) S + b v d, and d is softplus(step + bias) within least and most, 0 for no limit;
    S is state[slots, heads, value length, key length], in runs as of causal_convolution. Results:
    y, state."""

def csr_matvec(
    values: _Array,
    index: SupportsDLPack,
    offsets: SupportsDLPack,
    x: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """product of a matrix in compressed rows with a vector x."""

def csr_matmul(
    values: _Array,
    index: SupportsDLPack,
    offsets: SupportsDLPack,
    x: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """product of a matrix in compressed rows with a matrix x[columns, width]."""

def sddmm(
    values: _Array,
    index: SupportsDLPack,
    offsets: SupportsDLPack,
    x: SupportsDLPack,
    y: SupportsDLPack,
    **options: Unpack[_Options]
) -> _Array:
    """sampled product: values times those elements of x[rows, depth] y[depth, columns] that are in
    the rows, which share none; 0 for others."""

def conv(
    x: _Array,
    weight: SupportsDLPack,
    bias: SupportsDLPack | None = None,
    *,
    groups: float = 1.0,
    stride: _Integers = (),
    padding: _Integers = (),
    dilation: _Integers = (),
    **options: Unpack[_Options]
) -> _Array:
    """convolution by weight[outputs, channels by groups, ..]."""

def conv_transpose(
    x: _Array,
    weight: SupportsDLPack,
    bias: SupportsDLPack | None = None,
    *,
    groups: float = 1.0,
    stride: _Integers = (),
    padding: _Integers = (),
    dilation: _Integers = (),
    output_padding: _Integers = (),
    **options: Unpack[_Options]
) -> _Array:
    """transposed convolution by weight[channels, outputs by groups, ..]: the gradient of conv by
    its operand."""

def conv_weight_backward(
    g: _Array,
    x: SupportsDLPack,
    *,
    groups: float = 1.0,
    kernel: _Integers = (),
    stride: _Integers = (),
    padding: _Integers = (),
    dilation: _Integers = (),
    **options: Unpack[_Options]
) -> _Array:
    """gradient of conv by its weight."""

def max_pool(
    x: _Array,
    *,
    kernel: _Integers = (),
    stride: _Integers = (),
    padding: _Integers = (),
    dilation: _Integers = (),
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """largest of a window, and its place in row-major order of space; NaN if one is, -1 for no
    place inside. Results: out, index."""

def avg_pool(
    x: _Array,
    *,
    kernel: _Integers = (),
    stride: _Integers = (),
    padding: _Integers = (),
    count: Literal['all', 'inside'] = 'all',
    **options: Unpack[_Options]
) -> _Array:
    """mean of a window, of all places or of those inside."""

def adaptive_max_pool(
    x: _Array,
    *,
    size: _Integers = (),
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """max_pool to a number of places. Results: out, index."""

def adaptive_avg_pool(x: _Array, *, size: _Integers = (), **options: Unpack[_Options]) -> _Array:
    """avg_pool to a number of places."""

def interpolate(
    x: _Array,
    *,
    size: _Integers = (),
    mode: Literal['nearest', 'linear', 'cubic'] = 'nearest',
    align: Literal['middles', 'corners'] = 'middles',
    **options: Unpack[_Options]
) -> _Array:
    """another number of places, by nearest, linear or cubic neighbours."""

def max_pool_backward(
    g: _Array,
    index: SupportsDLPack,
    *,
    size: _Integers = (),
    kernel: _Integers = (),
    stride: _Integers = (),
    padding: _Integers = (),
    dilation: _Integers = (),
    **options: Unpack[_Options]
) -> _Array:
    """gradient of max_pool by its operand of `size`, of the places that it gave; a place outside of
    its window is skipped."""

def adaptive_max_pool_backward(
    g: _Array,
    index: SupportsDLPack,
    *,
    size: _Integers = (),
    **options: Unpack[_Options]
) -> _Array:
    """gradient of adaptive_max_pool by its operand of `size`."""

def avg_pool_backward(
    g: _Array,
    *,
    size: _Integers = (),
    kernel: _Integers = (),
    stride: _Integers = (),
    padding: _Integers = (),
    count: Literal['all', 'inside'] = 'all',
    **options: Unpack[_Options]
) -> _Array:
    """gradient of avg_pool by its operand of `size`."""

def adaptive_avg_pool_backward(
    g: _Array,
    *,
    size: _Integers = (),
    **options: Unpack[_Options]
) -> _Array:
    """gradient of adaptive_avg_pool by its operand of `size`."""

def interpolate_backward(
    g: _Array,
    *,
    size: _Integers = (),
    mode: Literal['nearest', 'linear', 'cubic'] = 'nearest',
    align: Literal['middles', 'corners'] = 'middles',
    **options: Unpack[_Options]
) -> _Array:
    """gradient of interpolate by its operand of `size`."""

def lp_pool(
    x: _Array,
    *,
    power: float = 2.0,
    kernel: _Integers = (),
    stride: _Integers = (),
    padding: _Integers = (),
    **options: Unpack[_Options]
) -> _Array:
    """(sum of |x|^power)^(1 / power) of a window, of the places inside."""

def fractional_max_pool(
    x: _Array,
    fractions: SupportsDLPack,
    *,
    kernel: _Integers = (),
    size: _Integers = (),
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """max_pool of `size` windows that begin at floor((i + f) a) - floor(f a), a = (extent - kernel)
    / (size - 1), by fractions[batch, channels, dimensions]; the last one ends with x. Results: out,
    index."""

def im2col(
    x: _Array,
    *,
    kernel: _Integers = (),
    stride: _Integers = (),
    padding: _Integers = (),
    dilation: _Integers = (),
    **options: Unpack[_Options]
) -> _Array:
    """windows as columns: [batch, channels by window, places]."""

def col2im(
    columns: _Array,
    *,
    size: _Integers = (),
    kernel: _Integers = (),
    stride: _Integers = (),
    padding: _Integers = (),
    dilation: _Integers = (),
    **options: Unpack[_Options]
) -> _Array:
    """sums of the elements of windows' columns that came from one place of an operand of `size`:
    the gradient of im2col."""

def grid_sample(
    x: _Array,
    grid: SupportsDLPack,
    *,
    mode: Literal['linear', 'nearest'] = 'linear',
    outside: Literal['zeros', 'border', 'reflection'] = 'zeros',
    align: Literal['middles', 'corners'] = 'middles',
    **options: Unpack[_Options]
) -> _Array:
    """elements of x[batch, channels, height, width] at grid[batch, rows, columns, 2], across and
    down from -1 to 1."""

def affine_grid(
    matrix: _Array,
    *,
    size: _Integers = (),
    align: Literal['middles', 'corners'] = 'middles',
    **options: Unpack[_Options]
) -> _Array:
    """grid of `size` [height, width] by matrix[batch, 2, 3] of (across, down, 1)."""

def roi_align(
    x: _Array,
    boxes: SupportsDLPack,
    index: SupportsDLPack,
    *,
    scale: float = 1.0,
    samples: float = 2.0,
    size: _Integers = (1, 1),
    **options: Unpack[_Options]
) -> _Array:
    """means of samples by samples places in each of `size` parts of boxes[boxes, 4], left, top,
    right and bottom, of the batch of the index."""

def nms(
    boxes: _Array,
    scores: SupportsDLPack,
    *,
    threshold: float = 0.5,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """boxes in order of their scores that no kept one overlaps by more than the threshold of both,
    zeros behind, and their number. Results: kept, count."""

def grid_sample_backward(
    g: _Array,
    x: SupportsDLPack,
    grid: SupportsDLPack,
    *,
    mode: Literal['linear', 'nearest'] = 'linear',
    outside: Literal['zeros', 'border', 'reflection'] = 'zeros',
    align: Literal['middles', 'corners'] = 'middles',
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """gradient of grid_sample by x and the grid; that of places of nearest elements is 0. Results:
    x, grid."""

def cumsum(x: _Array, *, axis: int | None = None, **options: Unpack[_Options]) -> _Array:
    """sums of the elements up to each one along an axis; of integers and bool in 64 bits."""

def cumprod(x: _Array, *, axis: int | None = None, **options: Unpack[_Options]) -> _Array:
    """products of the elements up to each one along an axis; of integers in 64 bits."""

def cummax(
    x: _Array,
    *,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """largest of the elements up to each one along an axis, and the last place of it; NaN if one
    is. Results: values, indices."""

def cummin(
    x: _Array,
    *,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """smallest of the elements up to each one along an axis, and the last place of it; NaN if one
    is. Results: values, indices."""

def logcumsumexp(x: _Array, *, axis: int | None = None, **options: Unpack[_Options]) -> _Array:
    """ln of the sum of e^x of the elements up to each one along an axis."""

def sort(
    x: _Array,
    *,
    order: Literal['ascending', 'descending'] = 'ascending',
    axis: int | None = None,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """elements along an axis in order, and their places; stable, NaN above all. Results: values,
    indices."""

def argsort(
    x: _Array,
    *,
    order: Literal['ascending', 'descending'] = 'ascending',
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """places of the elements along an axis in order; stable, NaN above all."""

def topk(
    x: _Array,
    *,
    k: float = 1.0,
    order: Literal['largest', 'smallest'] = 'largest',
    axis: int | None = None,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """the `k` largest or smallest elements along an axis in order, and their places; NaN above all.
    Results: values, indices."""

def kth_value(
    x: _Array,
    *,
    k: float = 1.0,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """the `k`th smallest element along an axis, from 1 on, and its place; NaN above all. Results:
    value, index."""

def median(
    x: _Array,
    *,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """the lower one of the middle elements along an axis, and its place; NaN if one is. Results:
    value, index."""

def searchsorted(
    sorted: _Array,
    values: SupportsDLPack,
    *,
    side: Literal['left', 'right'] = 'left',
    **options: Unpack[_Options]
) -> _Array:
    """places in sorted rows at which values would be inserted, before or behind equal elements."""

def masked_select(
    x: _Array,
    mask: SupportsDLPack,
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """elements for which the mask holds, in order, with zeros behind them, and their number.
    Results: values, count."""

def nonzero(x: _Array, **options: Unpack[_Options]) -> tuple[_Array, _Array]:
    """indices of the elements that are not 0, a row each, with zeros behind them, and their number.
    Results: indices, count."""

def unique(x: _Array, **options: Unpack[_Options]) -> tuple[_Array, _Array, _Array]:
    """values in ascending order, how often each is there, and their number; NaN is one value, and
    last. Results: values, counts, number."""

def bincount(index: _Array, *, bins: float = 256.0, **options: Unpack[_Options]) -> _Array:
    """how often each whole number from 0 on is there; of `bins` numbers, others are not counted."""

def histogram(
    x: _Array,
    *,
    bins: float = 100.0,
    low: float = 0.0,
    high: float = 1.0,
    **options: Unpack[_Options]
) -> _Array:
    """number of elements in each of `bins` equal parts of the range from `low` to `high`, both
    included."""

def fft(
    x: _Array,
    *,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    axes: _Integers | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """discrete Fourier transform of complex numbers, along the last axis before their parts or
    along `axes`."""

def ifft(
    x: _Array,
    *,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    axes: _Integers | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """inverse of `fft`."""

def rfft(
    x: _Array,
    *,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    axes: _Integers | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """first half of the discrete Fourier transform of real numbers along the last of `axes`,
    transformed along the others."""

def irfft(
    x: _Array,
    *,
    n: float = 0.0,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    axes: _Integers | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """inverse of `rfft`: `n` real numbers along the last of `axes`, by default an even number."""

def cholesky(
    x: _Array,
    *,
    triangle: Literal['lower', 'upper'] = 'lower',
    **options: Unpack[_Options]
) -> _Array:
    """triangle whose product with its transpose is `x`, of which that triangle is read; NaN from
    the column on that shows `x` not to be positive definite."""

def solve_triangular(
    a: _Array,
    b: SupportsDLPack,
    *,
    triangle: Literal['lower', 'upper'] = 'lower',
    transposed: Literal['no', 'yes'] = 'no',
    diagonal: Literal['given', 'unit'] = 'given',
    **options: Unpack[_Options]
) -> _Array:
    """x of a x = b for a triangle of `a`; by 0 on its diagonal, quotients are infinite or NaN."""

def lu(x: _Array, **options: Unpack[_Options]) -> tuple[_Array, _Array]:
    """factors of `x` with interchanged rows in one matrix, the lower one without its diagonal of 1,
    and the row that each was exchanged with; of a singular matrix the upper one has a 0 on its
    diagonal. Results: lu, pivots."""

def solve(a: _Array, b: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x of a x = b; infinite or NaN where `a` is singular."""

def inverse(x: _Array, **options: Unpack[_Options]) -> _Array:
    """inverse of matrices; infinite or NaN where one is singular."""

def determinant(x: _Array, **options: Unpack[_Options]) -> _Array:
    """determinants of matrices."""

def slogdet(x: _Array, **options: Unpack[_Options]) -> tuple[_Array, _Array]:
    """signs of determinants, and ln of their magnitudes; 0 and -inf of a singular matrix. Results:
    sign, logarithm."""

def qr(x: _Array, **options: Unpack[_Options]) -> tuple[_Array, _Array]:
    """orthonormal columns and the upper triangle of which `x` is the product, without negative
    numbers on its diagonal. Results: q, r."""

def cholesky_solve(
    b: _Array,
    factor: SupportsDLPack,
    *,
    triangle: Literal['lower', 'upper'] = 'lower',
    **options: Unpack[_Options]
) -> _Array:
    """x of a x = b by a triangular factor whose product with its transpose is a."""

def lstsq(a: _Array, b: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """x for which a x is nearest to b, of a with at least as many rows as columns, by qr; infinite
    or NaN where the columns depend on each other."""

def matrix_power(x: _Array, *, power: float = 2.0, **options: Unpack[_Options]) -> _Array:
    """powers of square matrices from 0 on, by squares."""

def cross(
    x: _Array,
    y: SupportsDLPack,
    *,
    axis: int | None = None,
    **options: Unpack[_Options]
) -> _Array:
    """cross products of vectors of three elements along an axis."""

def diagonal(x: _Array, *, offset: float = 0.0, **options: Unpack[_Options]) -> _Array:
    """elements on a diagonal of matrices, `offset` columns behind the main one."""

def diag_embed(x: _Array, *, offset: float = 0.0, **options: Unpack[_Options]) -> _Array:
    """matrices with x on a diagonal, 0 elsewhere."""

def trace(x: _Array, *, offset: float = 0.0, **options: Unpack[_Options]) -> _Array:
    """sums of the elements on a diagonal of matrices."""

def kron(x: _Array, y: SupportsDLPack, **options: Unpack[_Options]) -> _Array:
    """products of all pairs: Kronecker's product of as many dimensions."""

def cdist(x: _Array, y: SupportsDLPack, *, p: float = 2.0, **options: Unpack[_Options]) -> _Array:
    """distances by the norm p of each row of x[.., rows, length] from each of y[.., columns,
    length]."""

def eigh(
    x: _Array,
    *,
    triangle: Literal['lower', 'upper'] = 'lower',
    **options: Unpack[_Options]
) -> tuple[_Array, _Array]:
    """eigenvalues of symmetric matrices in ascending order, of which one triangle is read, and unit
    vectors as columns, whose largest element is not negative; all NaN of a matrix that is not
    finite. Results: values, vectors."""

def svd(x: _Array, **options: Unpack[_Options]) -> tuple[_Array, _Array, _Array]:
    """singular values in descending order, with left vectors as columns and right ones as rows,
    whose largest element is not negative; all NaN of a matrix that is not finite. Results: u,
    values, vh."""

def pinv(x: _Array, *, rtol: float = 0.0, **options: Unpack[_Options]) -> _Array:
    """inverses of matrices of any extents, without the singular values of at most `rtol` times the
    largest; 0 stands for the larger extent by a unit in the last place of 1."""

def matrix_rank(x: _Array, *, rtol: float = 0.0, **options: Unpack[_Options]) -> _Array:
    """i64: numbers of singular values above `rtol` times the largest; 0 as for pinv."""

def cov(x: _Array, *, correction: float = 1.0, **options: Unpack[_Options]) -> _Array:
    """covariances of the rows of x[.., variables, observations]: sums of products by their number
    less `correction`."""

def corrcoef(x: _Array, **options: Unpack[_Options]) -> _Array:
    """correlations of the rows of x[.., variables, observations]."""

def eigvals(x: _Array, **options: Unpack[_Options]) -> _Array:
    """eigenvalues of matrices as rows of real and imaginary part, in ascending order of the first,
    then of the second; NaN of a matrix that is not finite."""
