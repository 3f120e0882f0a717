//! Operators of registers.
//!
//! Rounding is always written (`add.rn.f32`), so that no compiler fuses a product and a sum:
//! [`Reg::mul_add`] is the only fused form.

use std::ops;

use super::reg::{Arg, Pred, Reg, RegVar};
use super::state::{mods, w};
use super::types::{
    Bf16, Bf16x2, BitOps, Convert, F16, F16x2, Float, Int, Num, Ordered, Scalar, Type,
};
use crate::ast::{Imm, Operand};
use crate::words::{Mod, Op, ScalarType, Word};

impl<'k, T: Num> RegVar<'k, T> {
    /// `self = a * b + self`, fused for floats.
    pub fn accumulate(self, a: Reg<'k, T>, b: impl Arg<'k, T>) {
        self.set(a.mul_add(b, self));
    }
}

fn ty<T: Type>() -> Mod {
    Mod::Type(T::TY)
}

fn bits<T: Type>() -> Mod {
    Mod::Type(T::BITS)
}

impl<'k, T: Num> Reg<'k, T> {
    pub(crate) fn plus(self, b: impl Arg<'k, T>) -> Reg<'k, T> {
        self.binary(Op::Add, mods(&[T::ADD, &[ty::<T>()]]), b)
    }

    fn minus(self, b: impl Arg<'k, T>) -> Reg<'k, T> {
        self.binary(Op::Sub, mods(&[T::ADD, &[ty::<T>()]]), b)
    }

    fn times(self, b: impl Arg<'k, T>) -> Reg<'k, T> {
        self.binary(Op::Mul, mods(&[T::MUL, &[ty::<T>()]]), b)
    }

    /// `self * b + c`; rounded once for floats.
    #[must_use]
    pub fn mul_add(self, b: impl Arg<'k, T>, c: impl Arg<'k, T>) -> Reg<'k, T> {
        let op = if T::FLOAT { Op::Fma } else { Op::Mad };
        let k = self.kernel;
        let (b, c) = (k.src(b.src()), k.src(c.src()));
        k.op(op, mods(&[T::MUL, &[ty::<T>()]]), vec![self.own(), b, c])
    }
}

impl<'k> Reg<'k, Bf16x2> {
    /// `self * b + c`, rounded once, in both halves.
    #[must_use]
    pub fn mul_add(self, b: Reg<'k, Bf16x2>, c: Reg<'k, Bf16x2>) -> Reg<'k, Bf16x2> {
        self.kernel.needs(80, "fma.rn.bf16x2");
        let (b, c) = (self.kernel.src(b.src()), self.kernel.src(c.src()));
        self.kernel.op(
            Op::Fma,
            vec![w(Word::Rn), ty::<Bf16x2>()],
            vec![self.own(), b, c],
        )
    }
}

impl<'k, T: Ordered> Reg<'k, T> {
    fn compare(self, how: Word, b: impl Arg<'k, T>) -> Pred<'k> {
        self.binary(Op::Setp, vec![w(how), ty::<T>()], b)
    }

    /// `self < b`; false of NaN.
    #[must_use]
    pub fn lt(self, b: impl Arg<'k, T>) -> Pred<'k> {
        self.compare(Word::Lt, b)
    }

    /// `self <= b`; false of NaN.
    #[must_use]
    pub fn le(self, b: impl Arg<'k, T>) -> Pred<'k> {
        self.compare(Word::Le, b)
    }

    /// `self > b`; false of NaN.
    #[must_use]
    pub fn gt(self, b: impl Arg<'k, T>) -> Pred<'k> {
        self.compare(Word::Gt, b)
    }

    /// `self >= b`; false of NaN.
    #[must_use]
    pub fn ge(self, b: impl Arg<'k, T>) -> Pred<'k> {
        self.compare(Word::Ge, b)
    }

    /// `self == b`; false of NaN.
    #[must_use]
    pub fn equals(self, b: impl Arg<'k, T>) -> Pred<'k> {
        self.compare(Word::Eq, b)
    }

    /// `self != b`; true of NaN.
    #[must_use]
    pub fn differs(self, b: impl Arg<'k, T>) -> Pred<'k> {
        self.compare(T::NE, b)
    }

    /// The smaller; a number rather than NaN.
    #[must_use]
    pub fn min(self, b: impl Arg<'k, T>) -> Reg<'k, T> {
        self.binary(Op::Min, vec![ty::<T>()], b)
    }

    /// The larger; a number rather than NaN.
    #[must_use]
    pub fn max(self, b: impl Arg<'k, T>) -> Reg<'k, T> {
        self.binary(Op::Max, vec![ty::<T>()], b)
    }
}

impl<'k, T: Scalar> Reg<'k, T> {
    /// To another type of number; see [`Convert`] for rounding.
    #[must_use]
    pub fn to<U: Scalar>(self) -> Reg<'k, U>
    where
        T: Convert<U>,
    {
        self.kernel.needs(T::ARCH, "this conversion");
        self.unary(Op::Cvt, mods(&[T::ROUNDING, &[ty::<U>(), ty::<T>()]]))
    }

    /// The same bits as another type; `U` must be as wide.
    #[must_use]
    pub fn bitcast<U: Scalar>(self) -> Reg<'k, U> {
        const {
            assert!(
                T::BYTES == U::BYTES,
                "bitcast between types of different width"
            )
        }
        self.unary(Op::Mov, vec![bits::<U>()])
    }
}

impl<'k> Reg<'k, Bf16> {
    /// Exactly, as `f32`.
    #[must_use]
    pub fn widen(self) -> Reg<'k, f32> {
        let zero = self.kernel.value::<u16>(0);
        let halves = Operand::Vector(vec![zero.operand(), self.own()]);
        self.kernel
            .op(Op::Mov, vec![Mod::Type(ScalarType::B32)], vec![halves])
    }
}

macro_rules! packed {
    ($($packed:ty, $half:ty;)*) => {$(
        impl<'k> Reg<'k, $packed> {
            /// The lower and the upper half.
            #[must_use]
            pub fn unpack(self) -> (Reg<'k, $half>, Reg<'k, $half>) {
                let (lo, hi) = (self.kernel.fresh::<$half>(), self.kernel.fresh::<$half>());
                let halves = Operand::Vector(vec![lo.operand(), hi.operand()]);
                self.kernel.emit(Op::Mov, vec![Mod::Type(ScalarType::B32)], 1, vec![halves, self.own()]);
                (lo, hi)
            }

            /// From a lower and an upper half.
            #[must_use]
            pub fn pack(lo: Reg<'k, $half>, hi: Reg<'k, $half>) -> Reg<'k, $packed> {
                let k = lo.kernel;
                let halves = Operand::Vector(vec![lo.operand(), k.src(hi.src())]);
                k.op(Op::Mov, vec![Mod::Type(ScalarType::B32)], vec![halves])
            }
        }
    )*};
}
packed! { F16x2, F16; Bf16x2, Bf16; }

impl<'k, T: Int> Reg<'k, T> {
    /// The upper half of the double-width product.
    #[must_use]
    pub fn mul_hi(self, b: impl Arg<'k, T>) -> Reg<'k, T> {
        self.binary(Op::Mul, vec![w(Word::Hi), ty::<T>()], b)
    }
}

macro_rules! wide {
    ($($t:ty => $wide:ty;)*) => {$(
        impl<'k> Reg<'k, $t> {
            /// The whole product.
            #[must_use]
            pub fn mul_wide(self, b: impl Arg<'k, $t>) -> Reg<'k, $wide> {
                self.binary(Op::Mul, vec![w(Word::Wide), ty::<$t>()], b)
            }

            /// The whole product plus `c`.
            #[must_use]
            pub fn mul_wide_add(self, b: impl Arg<'k, $t>, c: impl Arg<'k, $wide>) -> Reg<'k, $wide> {
                let k = self.kernel;
                let (b, c) = (k.src(b.src()), k.src(c.src()));
                k.op(Op::Mad, vec![w(Word::Wide), ty::<$t>()], vec![self.own(), b, c])
            }
        }
    )*};
}
wide! { u16 => u32; i16 => i32; u32 => u64; i32 => i64; }

impl<'k, T: Float> Reg<'k, T> {
    /// Correctly rounded square root.
    #[must_use]
    pub fn sqrt(self) -> Reg<'k, T> {
        self.unary(Op::Sqrt, vec![w(Word::Rn), ty::<T>()])
    }

    /// Correctly rounded reciprocal.
    #[must_use]
    pub fn recip(self) -> Reg<'k, T> {
        self.unary(Op::Rcp, vec![w(Word::Rn), ty::<T>()])
    }

    /// Approximate reciprocal square root: 2 ulp for `f32`.
    #[must_use]
    pub fn rsqrt_approx(self) -> Reg<'k, T> {
        self.unary(Op::Rsqrt, vec![w(Word::Approx), ty::<T>()])
    }

    /// Magnitude.
    #[must_use]
    pub fn abs(self) -> Reg<'k, T> {
        self.unary(Op::Abs, vec![ty::<T>()])
    }

    /// Rounds down to an integer.
    #[must_use]
    pub fn floor(self) -> Reg<'k, T> {
        self.unary(Op::Cvt, vec![w(Word::Rmi), ty::<T>(), ty::<T>()])
    }

    /// Rounds up to an integer.
    #[must_use]
    pub fn ceil(self) -> Reg<'k, T> {
        self.unary(Op::Cvt, vec![w(Word::Rpi), ty::<T>(), ty::<T>()])
    }

    /// Rounds towards zero to an integer.
    #[must_use]
    pub fn trunc(self) -> Reg<'k, T> {
        self.unary(Op::Cvt, vec![w(Word::Rzi), ty::<T>(), ty::<T>()])
    }

    /// Rounds to the nearest integer, ties to even.
    #[must_use]
    pub fn round_even(self) -> Reg<'k, T> {
        self.unary(Op::Cvt, vec![w(Word::Rni), ty::<T>(), ty::<T>()])
    }

    /// The magnitude of `self` with the sign of `sign`.
    #[must_use]
    pub fn copysign(self, sign: impl Arg<'k, T>) -> Reg<'k, T> {
        let sign = self.kernel.src(sign.src());
        self.kernel
            .op(Op::Copysign, vec![ty::<T>()], vec![sign, self.own()])
    }

    /// Whether it is NaN.
    #[must_use]
    pub fn test_nan(self) -> Pred<'k> {
        self.compare(Word::IsNan, self)
    }
}

impl<'k> Reg<'k, f32> {
    fn approx(self, op: Op) -> Reg<'k, f32> {
        self.unary(op, vec![w(Word::Approx), ty::<f32>()])
    }

    /// `2^self`, within 2 ulp.
    #[must_use]
    pub fn exp2_approx(self) -> Reg<'k, f32> {
        self.approx(Op::Ex2)
    }

    /// `log2(self)`, approximately.
    #[must_use]
    pub fn log2_approx(self) -> Reg<'k, f32> {
        self.approx(Op::Lg2)
    }

    /// Sine, to an absolute error of about 2^-20 between -pi and pi.
    #[must_use]
    pub fn sin_approx(self) -> Reg<'k, f32> {
        self.approx(Op::Sin)
    }

    /// Cosine, to an absolute error of about 2^-20 between -pi and pi.
    #[must_use]
    pub fn cos_approx(self) -> Reg<'k, f32> {
        self.approx(Op::Cos)
    }

    /// Hyperbolic tangent, to a relative error of about 2^-11.
    #[must_use]
    pub fn tanh_approx(self) -> Reg<'k, f32> {
        self.kernel.needs(75, "tanh.approx.f32");
        self.approx(Op::Tanh)
    }

    /// Reciprocal within 1 ulp.
    #[must_use]
    pub fn recip_approx(self) -> Reg<'k, f32> {
        self.approx(Op::Rcp)
    }

    /// Square root, approximately.
    #[must_use]
    pub fn sqrt_approx(self) -> Reg<'k, f32> {
        self.approx(Op::Sqrt)
    }

    /// Quotient within 2 ulp, for divisors of ordinary size.
    #[must_use]
    pub fn div_approx(self, b: impl Arg<'k, f32>) -> Reg<'k, f32> {
        self.binary(Op::Div, vec![w(Word::Approx), ty::<f32>()], b)
    }

    /// The smaller; NaN if either is.
    #[must_use]
    pub fn min_nan(self, b: impl Arg<'k, f32>) -> Reg<'k, f32> {
        self.kernel.needs(80, "min.NaN.f32");
        self.binary(Op::Min, vec![w(Word::PropagateNan), ty::<f32>()], b)
    }

    /// The larger; NaN if either is.
    #[must_use]
    pub fn max_nan(self, b: impl Arg<'k, f32>) -> Reg<'k, f32> {
        self.kernel.needs(80, "max.NaN.f32");
        self.binary(Op::Max, vec![w(Word::PropagateNan), ty::<f32>()], b)
    }
}

impl<'k> Reg<'k, i32> {
    /// Magnitude; the least value stays.
    #[must_use]
    pub fn abs(self) -> Reg<'k, i32> {
        self.unary(Op::Abs, vec![ty::<i32>()])
    }

    /// Sum of four products of signed bytes, plus `c`.
    #[must_use]
    pub fn dp4a(self, b: impl Arg<'k, i32>, c: impl Arg<'k, i32>) -> Reg<'k, i32> {
        let k = self.kernel;
        let (b, c) = (k.src(b.src()), k.src(c.src()));
        k.op(
            Op::Dp4a,
            vec![ty::<i32>(), ty::<i32>()],
            vec![self.own(), b, c],
        )
    }
}

impl<'k> Reg<'k, u32> {
    /// Number of ones.
    #[must_use]
    pub fn count_ones(self) -> Reg<'k, u32> {
        self.unary(Op::Popc, vec![bits::<u32>()])
    }

    /// Zeros above the highest one; 32 of zero.
    #[must_use]
    pub fn leading_zeros(self) -> Reg<'k, u32> {
        self.unary(Op::Clz, vec![bits::<u32>()])
    }

    /// Bits in reverse order.
    #[must_use]
    pub fn reverse_bits(self) -> Reg<'k, u32> {
        self.unary(Op::Brev, vec![bits::<u32>()])
    }

    /// `len` bits from bit `at`, zero-extended.
    #[must_use]
    pub fn extract_bits(self, at: impl Arg<'k, u32>, len: impl Arg<'k, u32>) -> Reg<'k, u32> {
        let k = self.kernel;
        let (at, len) = (k.src(at.src()), k.src(len.src()));
        k.op(Op::Bfe, vec![ty::<u32>()], vec![self.own(), at, len])
    }

    /// `target` with the low `len` bits of `self` placed at bit `at`.
    #[must_use]
    pub fn insert_bits(
        self,
        target: impl Arg<'k, u32>,
        at: impl Arg<'k, u32>,
        len: impl Arg<'k, u32>,
    ) -> Reg<'k, u32> {
        let k = self.kernel;
        let (target, at, len) = (k.src(target.src()), k.src(at.src()), k.src(len.src()));
        k.op(
            Op::Bfi,
            vec![bits::<u32>()],
            vec![self.own(), target, at, len],
        )
    }

    /// Bytes of `self` (0 to 3) and `b` (4 to 7) chosen by the nibbles of `selector`.
    #[must_use]
    pub fn permute_bytes(self, b: impl Arg<'k, u32>, selector: impl Arg<'k, u32>) -> Reg<'k, u32> {
        let k = self.kernel;
        let (b, selector) = (k.src(b.src()), k.src(selector.src()));
        k.op(Op::Prmt, vec![bits::<u32>()], vec![self.own(), b, selector])
    }

    /// Any function of three bits, bit by bit; `table` is its value where a, b, c are
    /// 0xF0, 0xCC, 0xAA.
    #[must_use]
    pub fn lop3(self, b: impl Arg<'k, u32>, c: impl Arg<'k, u32>, table: u8) -> Reg<'k, u32> {
        let k = self.kernel;
        let (b, c) = (k.src(b.src()), k.src(c.src()));
        let table = Operand::Imm(Imm::Int {
            value: i64::from(table),
            unsigned: false,
        });
        k.op(Op::Lop3, vec![bits::<u32>()], vec![self.own(), b, c, table])
    }

    /// The upper 32 bits of `(high:self) << shift`, shift modulo 32.
    #[must_use]
    pub fn funnel_shift_left(
        self,
        high: impl Arg<'k, u32>,
        shift: impl Arg<'k, u32>,
    ) -> Reg<'k, u32> {
        let k = self.kernel;
        let (high, shift) = (k.src(high.src()), k.src(shift.src()));
        k.op(
            Op::Shf,
            vec![w(Word::L), w(Word::Wrap), bits::<u32>()],
            vec![self.own(), high, shift],
        )
    }

    /// Sum of four products of unsigned bytes, plus `c`.
    #[must_use]
    pub fn dp4a(self, b: impl Arg<'k, u32>, c: impl Arg<'k, u32>) -> Reg<'k, u32> {
        let k = self.kernel;
        let (b, c) = (k.src(b.src()), k.src(c.src()));
        k.op(
            Op::Dp4a,
            vec![ty::<u32>(), ty::<u32>()],
            vec![self.own(), b, c],
        )
    }

    /// `self / b` rounded up, for constants `b > 0`; must not overflow `self + b - 1`.
    #[must_use]
    pub fn div_ceil(self, b: u32) -> Reg<'k, u32> {
        (self + b.saturating_sub(1)) / b
    }
}

impl<'k> Pred<'k> {
    /// `a` where it holds, `b` elsewhere.
    #[must_use]
    pub fn select<T: Scalar>(self, a: impl Arg<'k, T>, b: impl Arg<'k, T>) -> Reg<'k, T> {
        let k = self.kernel;
        let (a, b) = (k.src(a.src()), k.src(b.src()));
        k.op(Op::Selp, vec![Mod::Type(T::REG)], vec![a, b, self.own()])
    }
}

impl<'k, T: BitOps> Reg<'k, T> {
    fn bitwise(self, op: Op, b: impl Arg<'k, T>) -> Reg<'k, T> {
        self.binary(op, vec![bits::<T>()], b)
    }
}

// Operators. `RegVar` forwards to its register.

macro_rules! operator {
    ($tr:ident $f:ident $bound:ident |$a:ident, $b:ident| $e:expr) => {
        impl<'k, T: $bound, B: Arg<'k, T>> ops::$tr<B> for Reg<'k, T> {
            type Output = Reg<'k, T>;
            fn $f(self, b: B) -> Reg<'k, T> {
                let ($a, $b) = (self, b);
                $e
            }
        }

        impl<'k, T: $bound, B: Arg<'k, T>> ops::$tr<B> for RegVar<'k, T> {
            type Output = Reg<'k, T>;
            fn $f(self, b: B) -> Reg<'k, T> {
                let ($a, $b) = (self.reg, b);
                $e
            }
        }
    };
}

/// A type with `/`.
pub trait Divide: Num {
    /// Between `div` and the type.
    const DIV: &'static [Mod];
}

macro_rules! divides {
    ($($div:expr => $($t:ty)*;)*) => {$($(
        impl Divide for $t {
            const DIV: &'static [Mod] = $div;
        }
    )*)*};
}
divides! {
    &[] => u16 i16 u32 i32 u64 i64;
    &[Mod::Word(Word::Rn)] => f32 f64;
}

operator! { Add add Num |a, b| a.plus(b) }
operator! { Sub sub Num |a, b| a.minus(b) }
operator! { Mul mul Num |a, b| a.times(b) }
operator! { Div div Divide |a, b| a.binary(Op::Div, mods(&[T::DIV, &[ty::<T>()]]), b) }
operator! { Rem rem Int |a, b| a.binary(Op::Rem, vec![ty::<T>()], b) }
operator! { BitAnd bitand BitOps |a, b| a.bitwise(Op::And, b) }
operator! { BitOr bitor BitOps |a, b| a.bitwise(Op::Or, b) }
operator! { BitXor bitxor BitOps |a, b| a.bitwise(Op::Xor, b) }

macro_rules! shift {
    ($tr:ident $f:ident |$a:ident, $b:ident| $e:expr) => {
        impl<'k, T: Int, B: Arg<'k, u32>> ops::$tr<B> for Reg<'k, T> {
            type Output = Reg<'k, T>;
            fn $f(self, b: B) -> Reg<'k, T> {
                let ($a, $b) = (self, b);
                $e
            }
        }

        impl<'k, T: Int, B: Arg<'k, u32>> ops::$tr<B> for RegVar<'k, T> {
            type Output = Reg<'k, T>;
            fn $f(self, b: B) -> Reg<'k, T> {
                let ($a, $b) = (self.reg, b);
                $e
            }
        }
    };
}

// By the width or more: zeros, or the sign.
shift! { Shl shl |a, b| a.binary::<T, u32>(Op::Shl, vec![bits::<T>()], b) }
shift! { Shr shr |a, b| a.binary::<T, u32>(Op::Shr, vec![ty::<T>()], b) }

impl<'k, T: BitOps> ops::Not for Reg<'k, T> {
    type Output = Reg<'k, T>;
    fn not(self) -> Reg<'k, T> {
        self.unary(Op::Not, vec![bits::<T>()])
    }
}

/// A type with unary `-`.
pub trait Signed: Num {}
impl Signed for i16 {}
impl Signed for i32 {}
impl Signed for i64 {}
impl Signed for f32 {}
impl Signed for f64 {}
impl Signed for F16 {}
impl Signed for F16x2 {}

impl<'k, T: Signed> ops::Neg for Reg<'k, T> {
    type Output = Reg<'k, T>;
    fn neg(self) -> Reg<'k, T> {
        self.unary(Op::Neg, vec![ty::<T>()])
    }
}

impl<'k, T: Signed> ops::Neg for RegVar<'k, T> {
    type Output = Reg<'k, T>;
    fn neg(self) -> Reg<'k, T> {
        -self.reg
    }
}

macro_rules! constant_first {
    ($($t:ty: $($tr:ident $f:ident)*;)*) => {$($(
        impl<'k> ops::$tr<Reg<'k, $t>> for $t {
            type Output = Reg<'k, $t>;
            fn $f(self, b: Reg<'k, $t>) -> Reg<'k, $t> {
                let a = b.kernel.value::<$t>(self);
                ops::$tr::$f(a, b)
            }
        }
    )*)*};
}
constant_first! {
    u32: Add add Sub sub Mul mul;
    i32: Add add Sub sub Mul mul;
    f32: Add add Sub sub Mul mul Div div;
    f64: Add add Sub sub Mul mul Div div;
}
