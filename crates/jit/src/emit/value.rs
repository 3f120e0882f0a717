//! Dynamically typed registers, and operations on them.
//!
//! Invariant: an integer narrower than 32 bits is in a 32-bit register, sign- or zero-extended as
//! its type; a bool is a predicate. The results equal those of constant folding.
//!
//! Elsewhere: loads and stores (`memory`).

use fercuda_ptx::build::{Int, KernelBuilder, Num, Pred, Reg, Scalar};
use fercuda_tensor::Dtype;

use super::math64;
use super::narrow;
use crate::expr::Prim;
use crate::op::{Binary, Unary};

/// A register of a computation type.
#[derive(Clone, Copy)]
pub(super) enum DynValue<'k> {
    F64(Reg<'k, f64>),
    F32(Reg<'k, f32>),
    I32(Reg<'k, i32>),
    U32(Reg<'k, u32>),
    I64(Reg<'k, i64>),
    U64(Reg<'k, u64>),
    Bool(Pred<'k>),
}

use DynValue::{Bool, F32, F64, I32, I64, U32, U64};

/// Applies an expression to two registers of one numeric type; `$other` if they are not.
macro_rules! pairs {
    ($a:expr, $b:expr, |$x:ident, $y:ident| $wrap:tt $body:expr, $other:expr) => {
        match ($a, $b) {
            (F64($x), F64($y)) => pairs!(@$wrap F64 $body),
            (F32($x), F32($y)) => pairs!(@$wrap F32 $body),
            (I32($x), I32($y)) => pairs!(@$wrap I32 $body),
            (U32($x), U32($y)) => pairs!(@$wrap U32 $body),
            (I64($x), I64($y)) => pairs!(@$wrap I64 $body),
            (U64($x), U64($y)) => pairs!(@$wrap U64 $body),
            _ => $other,
        }
    };
    (@same $variant:ident $body:expr) => { $variant($body) };
    (@bool $variant:ident $body:expr) => { Bool($body) };
}

impl<'k> DynValue<'k> {
    /// A constant, as in `fold`.
    pub(super) fn constant(k: &'k KernelBuilder, dtype: Dtype, bits: u64) -> Self {
        let signed = bits.cast_signed();
        match dtype {
            Dtype::F64 => F64(k.value(f64::from_bits(bits))),
            Dtype::F32 => F32(k.value(f32::from_bits(bits as u32))),
            Dtype::I8 | Dtype::I16 | Dtype::I32 => I32(k.value(signed as i32)),
            Dtype::I64 => I64(k.value(signed)),
            Dtype::U64 => U64(k.value(bits)),
            Dtype::Bool => Bool(k.value(u32::from(bits != 0)).equals(1)),
            _ => U32(k.value(bits as u32)),
        }
    }

    pub(super) fn kernel(self) -> &'k KernelBuilder {
        match self {
            F64(x) => x.kernel(),
            F32(x) => x.kernel(),
            I32(x) => x.kernel(),
            U32(x) => x.kernel(),
            I64(x) => x.kernel(),
            U64(x) => x.kernel(),
            Bool(x) => x.kernel(),
        }
    }

    /// `self` where `condition` holds, `other` of the same type elsewhere.
    pub(super) fn or(self, condition: Pred<'k>, other: Self) -> Self {
        match (self, other) {
            (Bool(a), Bool(b)) => Bool((condition & a) | (!condition & b)),
            _ => pairs!(self, other, |a, b| same condition.select(a, b), self),
        }
    }

    pub(super) fn lt(self, other: Self) -> Pred<'k> {
        compare(Binary::Lt, self, other)
    }

    pub(super) fn le(self, other: Self) -> Pred<'k> {
        compare(Binary::Le, self, other)
    }

    pub(super) fn equals(self, other: Self) -> Pred<'k> {
        compare(Binary::Eq, self, other)
    }

    /// Whether it is NaN; `None` for types other than floats.
    pub(super) fn nan(self) -> Option<Pred<'k>> {
        match self {
            F64(x) => Some(x.test_nan()),
            F32(x) => Some(x.test_nan()),
            _ => None,
        }
    }

    /// The value of the lane with a number that differs in the bits of `mask`.
    pub(super) fn of_lane(self, mask: u32) -> Self {
        fn wide<'k>(x: Reg<'k, u64>, mask: u32) -> Reg<'k, u64> {
            let low = x.to::<u32>().shuffle_xor(mask);
            let high = (x >> 32).to::<u32>().shuffle_xor(mask);
            (high.to::<u64>() << 32) | low.to::<u64>()
        }
        match self {
            F32(x) => F32(x.shuffle_xor(mask)),
            I32(x) => I32(x.shuffle_xor(mask)),
            U32(x) => U32(x.shuffle_xor(mask)),
            F64(x) => F64(wide(x.bitcast(), mask).bitcast()),
            I64(x) => I64(wide(x.bitcast(), mask).bitcast()),
            U64(x) => U64(wide(x, mask)),
            Bool(x) => {
                let word = x.select(x.kernel().value(1u32), 0u32);
                Bool(word.shuffle_xor(mask).equals(1))
            }
        }
    }
}

/// Keeps the low bits of an integer of less than 32, sign- or zero-extended as its type.
fn wrapped<'k>(dtype: Dtype, value: DynValue<'k>) -> DynValue<'k> {
    match (dtype, value) {
        (Dtype::I8, I32(x)) => I32((x << 24) >> 24),
        (Dtype::I16, I32(x)) => I32((x << 16) >> 16),
        (Dtype::U8, U32(x)) => U32(x & 0xff),
        (Dtype::U16, U32(x)) => U32(x & 0xffff),
        (_, value) => value,
    }
}

/// Applies an operation; `from` is the type of its last operand, `dtype` that of its result.
pub(super) fn apply<'k>(
    op: Prim,
    from: Dtype,
    dtype: Dtype,
    args: &[DynValue<'k>],
) -> DynValue<'k> {
    let x = args[0];
    match (op, args) {
        (Prim::Unary(op), _) => wrapped(dtype, unary(op, x)),
        (Prim::Binary(op), [a, b, ..]) if op.compares() => Bool(compare(op, *a, *b)),
        (Prim::Binary(op), [a, b, ..]) => wrapped(dtype, binary(op, dtype, *a, *b)),
        (Prim::Fma, [F32(a), F32(b), F32(c), ..]) => F32(a.mul_add(*b, *c)),
        (Prim::Fma, [F64(a), F64(b), F64(c), ..]) => F64(a.mul_add(*b, *c)),
        (Prim::Fma, [a, b, c, ..]) => {
            let product = binary(Binary::Mul, dtype, *a, *b);
            wrapped(dtype, binary(Binary::Add, dtype, product, *c))
        }
        (Prim::Select, [Bool(c), a, b, ..]) => a.or(*c, *b),
        (Prim::Convert(to), _) => convert(from, to, x),
        (Prim::Round(to), _) => match x {
            F32(x) => F32(narrow::rounded(to, x)),
            other => other,
        },
        _ => x,
    }
}

fn unary<'k>(op: Unary, x: DynValue<'k>) -> DynValue<'k> {
    match (op, x) {
        (Unary::Neg, F64(x)) => F64(-x),
        (Unary::Neg, F32(x)) => F32(-x),
        (Unary::Neg, I32(x)) => I32(-x),
        (Unary::Neg, I64(x)) => I64(-x),
        (Unary::Abs, F64(x)) => F64(x.abs()),
        (Unary::Abs, F32(x)) => F32(x.abs()),
        (Unary::Abs, I32(x)) => I32(x.lt(0).select(-x, x)),
        (Unary::Abs, I64(x)) => I64(x.lt(0i64).select(-x, x)),
        (Unary::Recip, F64(x)) => F64(x.recip()),
        (Unary::Recip, F32(x)) => F32(x.recip_approx()),
        (Unary::Sqrt, F64(x)) => F64(x.sqrt()),
        (Unary::Sqrt, F32(x)) => F32(x.sqrt()),
        (Unary::Rsqrt, F64(x)) => F64(x.sqrt().recip()),
        (Unary::Rsqrt, F32(x)) => F32(x.rsqrt_approx()),
        (Unary::Exp, F64(x)) => F64(math64::exp(x)),
        (Unary::Exp, F32(x)) => F32(x.exp()),
        (Unary::Ln, F64(x)) => F64(math64::ln(x)),
        (Unary::Ln, F32(x)) => F32(x.ln()),
        (Unary::Tanh, F64(x)) => F64(math64::tanh(x)),
        (Unary::Tanh, F32(x)) => F32(x.tanh()),
        (Unary::Sigmoid, F64(x)) => F64(math64::sigmoid(x)),
        (Unary::Sigmoid, F32(x)) => F32(x.sigmoid()),
        (Unary::Erf, F32(x)) => F32(x.erf()),
        (Unary::Floor, F64(x)) => F64(x.floor()),
        (Unary::Floor, F32(x)) => F32(x.floor()),
        (Unary::Ceil, F64(x)) => F64(x.ceil()),
        (Unary::Ceil, F32(x)) => F32(x.ceil()),
        (Unary::Trunc, F64(x)) => F64(x.trunc()),
        (Unary::Trunc, F32(x)) => F32(x.trunc()),
        (Unary::Round, F64(x)) => F64(x.round_even()),
        (Unary::Round, F32(x)) => F32(x.round_even()),
        (Unary::Not, I32(x)) => I32(!x),
        (Unary::Not, U32(x)) => U32(!x),
        (Unary::Not, I64(x)) => I64(!x),
        (Unary::Not, U64(x)) => U64(!x),
        (Unary::Not, Bool(x)) => Bool(!x),
        (Unary::IsNan, F64(x)) => Bool(x.test_nan()),
        (Unary::IsNan, F32(x)) => Bool(x.test_nan()),
        // Other types cannot occur: the graph refuses them.
        (_, x) => x,
    }
}

fn compare<'k>(op: Binary, a: DynValue<'k>, b: DynValue<'k>) -> Pred<'k> {
    let k = a.kernel();
    if let (Bool(a), Bool(b)) = (a, b) {
        return match op {
            Binary::Ne => a ^ b,
            _ => !(a ^ b),
        };
    }
    macro_rules! by {
        ($method:ident) => {
            pairs!(a, b, |a, b| bool a.$method(b), Bool(never(k)))
        };
    }
    let answer = match op {
        Binary::Eq => by!(equals),
        Binary::Ne => by!(differs),
        Binary::Lt => by!(lt),
        Binary::Le => by!(le),
        Binary::Gt => by!(gt),
        _ => by!(ge),
    };
    match answer {
        Bool(answer) => answer,
        _ => never(k),
    }
}

fn never(k: &KernelBuilder) -> Pred<'_> {
    k.value(0u32).equals(1)
}

pub(super) fn binary<'k>(
    op: Binary,
    dtype: Dtype,
    a: DynValue<'k>,
    b: DynValue<'k>,
) -> DynValue<'k> {
    match op {
        Binary::Add => pairs!(a, b, |a, b| same a + b, a),
        Binary::Sub => pairs!(a, b, |a, b| same a - b, a),
        Binary::Mul => pairs!(a, b, |a, b| same a * b, a),
        Binary::Div => match (a, b) {
            (F64(a), F64(b)) => F64(a / b),
            (F32(a), F32(b)) => F32(a / b),
            (I32(a), I32(b)) => I32(quotient(a, b)),
            (I64(a), I64(b)) => I64(quotient(a, b)),
            (U32(a), U32(b)) => U32(quotient(a, b)),
            (U64(a), U64(b)) => U64(quotient(a, b)),
            _ => a,
        },
        Binary::Rem => match (a, b) {
            (I32(a), I32(b)) => I32(remainder(a, b)),
            (I64(a), I64(b)) => I64(remainder(a, b)),
            (U32(a), U32(b)) => U32(remainder(a, b)),
            (U64(a), U64(b)) => U64(remainder(a, b)),
            _ => a,
        },
        Binary::Min | Binary::Max => extreme(op == Binary::Max, a, b),
        Binary::And | Binary::Or | Binary::Xor => {
            macro_rules! bits {
                ($($variant:ident)*) => {
                    match (op, a, b) {
                        $((Binary::And, $variant(a), $variant(b)) => $variant(a & b),
                        (Binary::Or, $variant(a), $variant(b)) => $variant(a | b),
                        (_, $variant(a), $variant(b)) => $variant(a ^ b),)*
                        _ => a,
                    }
                };
            }
            bits!(I32 U32 I64 U64 Bool)
        }
        Binary::Shl | Binary::Shr => {
            let width = 8 * dtype.bytes() as u32;
            let up = op == Binary::Shl;
            let amount = match b {
                I32(b) => b.bitcast::<u32>().min(width),
                U32(b) => b.min(width),
                I64(b) => b.bitcast::<u64>().min(u64::from(width)).to::<u32>(),
                U64(b) => b.min(u64::from(width)).to::<u32>(),
                _ => return a,
            };
            match a {
                I32(a) => I32(if up { a << amount } else { a >> amount }),
                U32(a) => U32(if up { a << amount } else { a >> amount }),
                I64(a) => I64(if up { a << amount } else { a >> amount }),
                U64(a) => U64(if up { a << amount } else { a >> amount }),
                a => a,
            }
        }
        Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => {
            Bool(compare(op, a, b))
        }
    }
}

/// The larger or smaller; NaN if either is.
pub(super) fn extreme<'k>(larger: bool, a: DynValue<'k>, b: DynValue<'k>) -> DynValue<'k> {
    match (a, b) {
        (F32(a), F32(b)) => F32(if larger { a.max_nan(b) } else { a.min_nan(b) }),
        (F64(x), F64(y)) => {
            let number = if larger { x.max(y) } else { x.min(y) };
            let number = y.test_nan().select(y, number);
            F64(x.test_nan().select(x, number))
        }
        (Bool(a), Bool(b)) => Bool(if larger { a | b } else { a & b }),
        _ if larger => pairs!(a, b, |a, b| same a.max(b), a),
        _ => pairs!(a, b, |a, b| same a.min(b), a),
    }
}

/// An integer type with guarded division.
trait DivisionType: Int + fercuda_ptx::build::Divide {
    fn of<'k>(k: &'k KernelBuilder, value: i32) -> Reg<'k, Self>;
}

impl DivisionType for i32 {
    fn of<'k>(k: &'k KernelBuilder, value: i32) -> Reg<'k, i32> {
        k.value(value)
    }
}
impl DivisionType for i64 {
    fn of<'k>(k: &'k KernelBuilder, value: i32) -> Reg<'k, i64> {
        k.value(i64::from(value))
    }
}
impl DivisionType for u32 {
    fn of<'k>(k: &'k KernelBuilder, value: i32) -> Reg<'k, u32> {
        k.value(value.cast_unsigned())
    }
}
impl DivisionType for u64 {
    fn of<'k>(k: &'k KernelBuilder, value: i32) -> Reg<'k, u64> {
        k.value(i64::from(value).cast_unsigned())
    }
}

/// PTX leaves division by zero undefined, and the least number by -1; so neither is ever executed.
fn quotient<'k, T: DivisionType>(a: Reg<'k, T>, b: Reg<'k, T>) -> Reg<'k, T> {
    let k = a.kernel();
    let (zero, one) = (T::of(k, 0), T::of(k, 1));
    let none = b.equals(zero);
    if !T::SIGNED {
        let quotient = a / none.select(one, b);
        return none.select(zero, quotient);
    }
    let turns = b.equals(T::of(k, -1));
    let quotient = a / (none | turns).select(one, b);
    let quotient = turns.select(zero - a, quotient);
    none.select(zero, quotient)
}

fn remainder<'k, T: DivisionType>(a: Reg<'k, T>, b: Reg<'k, T>) -> Reg<'k, T> {
    let k = a.kernel();
    let (zero, one) = (T::of(k, 0), T::of(k, 1));
    let mut none = b.equals(zero);
    if T::SIGNED {
        none = none | b.equals(T::of(k, -1));
    }
    a % none.select(one, b)
}

/// Converts between two computation types.
fn convert<'k>(from: Dtype, to: Dtype, x: DynValue<'k>) -> DynValue<'k> {
    if from == to {
        return x;
    }
    let k = x.kernel();
    if to == Dtype::Bool {
        let zero = DynValue::constant(k, from, 0);
        return Bool(compare(Binary::Ne, x, zero));
    }
    let x = match x {
        Bool(x) => U32(x.select(k.value(1u32), 0u32)),
        x => x,
    };
    match to {
        Dtype::F64 => F64(to_f64(x)),
        Dtype::F32 => F32(to_f32(x)),
        _ => match x {
            F32(x) => from_f32(to, x),
            F64(x) => from_f64(to, x),
            whole => wrapped(to, to_integer(to, whole)),
        },
    }
}

fn to_f64<'k>(x: DynValue<'k>) -> Reg<'k, f64> {
    match x {
        F64(x) => x,
        F32(x) => x.to(),
        I32(x) => x.to(),
        U32(x) => x.to(),
        I64(x) => x.to(),
        U64(x) => x.to(),
        Bool(x) => x.select(x.kernel().value(1.0f64), 0.0f64),
    }
}

fn to_f32<'k>(x: DynValue<'k>) -> Reg<'k, f32> {
    match x {
        F64(x) => x.to(),
        F32(x) => x,
        I32(x) => x.to(),
        U32(x) => x.to(),
        I64(x) => x.to(),
        U64(x) => x.to(),
        Bool(x) => x.select(x.kernel().value(1.0f32), 0.0f32),
    }
}

/// Converts to the register of an integer type; keeps the low bits.
fn to_integer<'k>(to: Dtype, x: DynValue<'k>) -> DynValue<'k> {
    match (to, x) {
        (Dtype::I64, I32(x)) => I64(x.to()),
        (Dtype::I64, U32(x)) => I64(x.to()),
        (Dtype::I64, U64(x)) => I64(x.bitcast()),
        (Dtype::U64, I32(x)) => U64(x.to::<i64>().bitcast()),
        (Dtype::U64, U32(x)) => U64(x.to()),
        (Dtype::U64, I64(x)) => U64(x.bitcast()),
        (Dtype::I64 | Dtype::U64, x) => x,
        (to, x) => {
            let low = match x {
                I32(x) => x.bitcast::<u32>(),
                I64(x) => x.to::<u32>(),
                U64(x) => x.to::<u32>(),
                U32(x) => x,
                _ => return x,
            };
            match to.is_signed() {
                true => I32(low.bitcast()),
                false => U32(low),
            }
        }
    }
}

/// Rounds towards zero and saturates; NaN to 0.
fn from_f32<'k>(to: Dtype, x: Reg<'k, f32>) -> DynValue<'k> {
    let k = x.kernel();
    let within = |least: f32, most: f32| x.max_nan(least).min_nan(most);
    match to {
        Dtype::I8 => I32(within(-128.0, 127.0).to()),
        Dtype::I16 => I32(within(-32768.0, 32767.0).to()),
        Dtype::I32 => I32(x.to()),
        Dtype::U8 => U32(within(0.0, 255.0).to()),
        Dtype::U16 => U32(within(0.0, 65535.0).to()),
        Dtype::U32 => U32(x.to()),
        // For 64 bits a GPU converts NaN to another number.
        Dtype::I64 => I64(x.test_nan().select(k.value(0i64), x.to::<i64>())),
        _ => U64(x.test_nan().select(k.value(0u64), x.to::<u64>())),
    }
}

fn from_f64<'k>(to: Dtype, x: Reg<'k, f64>) -> DynValue<'k> {
    let k = x.kernel();
    let nan = x.test_nan();
    // `max` and `min` drop a NaN; the number that results does not matter.
    let within = |least: f64, most: f64| x.max(least).min(most);
    fn number<'k, T: Scalar + Num>(nan: Pred<'k>, zero: Reg<'k, T>, x: Reg<'k, T>) -> Reg<'k, T> {
        nan.select(zero, x)
    }
    let (signed, unsigned) = (k.value(0i32), k.value(0u32));
    match to {
        Dtype::I8 => I32(number(nan, signed, within(-128.0, 127.0).to())),
        Dtype::I16 => I32(number(nan, signed, within(-32768.0, 32767.0).to())),
        Dtype::I32 => I32(number(nan, signed, x.to())),
        Dtype::U8 => U32(number(nan, unsigned, within(0.0, 255.0).to())),
        Dtype::U16 => U32(number(nan, unsigned, within(0.0, 65535.0).to())),
        Dtype::U32 => U32(number(nan, unsigned, x.to())),
        Dtype::I64 => I64(number(nan, k.value(0i64), x.to())),
        _ => U64(number(nan, k.value(0u64), x.to())),
    }
}
