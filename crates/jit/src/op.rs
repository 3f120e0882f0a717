//! What can be done to elements: names, and the types that each takes.
//!
//! Invariant: what an operation does to a type is said here once; the passes and the
//! reference go by it. Elsewhere: how it is computed (`emit`), folded (`fold`) and
//! judged (`reference`).

use std::fmt;

use fercuda_tensor::Dtype;

/// A set of types, for messages and for asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// f64 f32 f16 bf16 f8e4m3 f8e5m2.
    Floats,
    /// i8 to i64, u8 to u64.
    Integers,
    /// Floats and integers.
    Numbers,
    /// Floats and signed integers.
    Signed,
    /// Integers and bool.
    Bits,
    /// Any.
    All,
    /// Floats but f64.
    NotF64,
    /// bool.
    Bool,
}

impl Class {
    /// Whether `dtype` is one of them.
    pub fn has(self, dtype: Dtype) -> bool {
        let (float, bool) = (is_float(dtype), dtype == Dtype::Bool);
        match self {
            Self::Floats => float,
            Self::Integers => !float && !bool,
            Self::Numbers => !bool,
            Self::Signed => float || is_signed(dtype),
            Self::Bits => !float,
            Self::All => true,
            Self::NotF64 => float && dtype != Dtype::F64,
            Self::Bool => bool,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Floats => "a float",
            Self::Integers => "an integer",
            Self::Numbers => "a number",
            Self::Signed => "a float or a signed integer",
            Self::Bits => "an integer or bool",
            Self::All => "any type",
            Self::NotF64 => "a float other than f64",
            Self::Bool => "bool",
        })
    }
}

/// Whether it is one of the floats.
pub(crate) fn is_float(dtype: Dtype) -> bool {
    use Dtype::*;
    matches!(dtype, F64 | F32 | F16 | Bf16 | F8E4m3 | F8E5m2)
}

/// Whether it is an integer with negative values.
pub(crate) fn is_signed(dtype: Dtype) -> bool {
    use Dtype::*;
    matches!(dtype, I8 | I16 | I32 | I64)
}

/// What it is computed in: floats narrower than f32 in f32, all others as they are.
pub(crate) fn computed(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F16 | Dtype::Bf16 | Dtype::F8E4m3 | Dtype::F8E5m2 => Dtype::F32,
        other => other,
    }
}

macro_rules! ops {
    ($(#[$doc:meta])* $name:ident { $($(#[$op_doc:meta])* $op:ident $text:literal $class:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$op_doc])* $op,)* }

        impl $name {
            /// All there are.
            pub const ALL: &'static [Self] = &[$(Self::$op),*];

            /// As it is written, here and on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$op => $text,)* }
            }

            /// The types that it takes.
            pub const fn class(self) -> Class {
                match self { $(Self::$op => Class::$class,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

ops! {
    /// One operand.
    Unary {
        /// The opposite; of the least integer itself.
        Neg "neg" Signed,
        /// The magnitude; of the least integer itself.
        Abs "abs" Signed,
        /// 1 / x within 1 ulp (f64: rounded correctly); written as a quotient, it is rounded
        /// correctly.
        Recip "recip" Floats,
        /// Rounded correctly.
        Sqrt "sqrt" Floats,
        /// 1 / sqrt(x) within 2 ulp (f64: both rounded correctly).
        Rsqrt "rsqrt" Floats,
        /// e^x within 4 ulp (f64: 2).
        Exp "exp" Floats,
        /// The natural logarithm within 2 ulp (f64: 3).
        Ln "ln" Floats,
        /// Within 3 ulp (f64: 5).
        Tanh "tanh" Floats,
        /// 1 / (1 + e^-x) within 5 ulp.
        Sigmoid "sigmoid" Floats,
        /// The error function within 4 ulp.
        Erf "erf" NotF64,
        /// Down to an integer.
        Floor "floor" Floats,
        /// Up to an integer.
        Ceil "ceil" Floats,
        /// Towards zero to an integer.
        Trunc "trunc" Floats,
        /// To the nearest integer, ties to even.
        Round "round" Floats,
        /// Every bit turned.
        Not "not" Bits,
        /// Whether it is NaN.
        IsNan "isnan" Floats,
    }
}

ops! {
    /// Two operands of one type.
    Binary {
        /// Sum; integers wrap.
        Add "add" Numbers,
        /// Difference; integers wrap.
        Sub "sub" Numbers,
        /// Product; integers wrap.
        Mul "mul" Numbers,
        /// Quotient; of integers towards zero, by zero 0, the least by -1 itself.
        Div "div" Numbers,
        /// What division of integers leaves, with the dividend's sign; by zero 0.
        Rem "rem" Integers,
        /// The smaller; NaN if either is; -0 is below 0.
        Min "min" Numbers,
        /// The larger; NaN if either is; 0 is above -0.
        Max "max" Numbers,
        /// Bit by bit.
        And "and" Bits,
        /// Bit by bit.
        Or "or" Bits,
        /// Bit by bit.
        Xor "xor" Bits,
        /// Shifted up; by the width or more, or by a negative number: 0.
        Shl "shl" Integers,
        /// Shifted down; by the width or more, or by a negative number: 0 or the sign.
        Shr "shr" Integers,
        /// Equal; NaN to nothing.
        Eq "eq" All,
        /// Not equal; NaN to everything.
        Ne "ne" All,
        /// Below; false of NaN.
        Lt "lt" Numbers,
        /// Below or equal; false of NaN.
        Le "le" Numbers,
        /// Above; false of NaN.
        Gt "gt" Numbers,
        /// Above or equal; false of NaN.
        Ge "ge" Numbers,
    }
}

impl Binary {
    /// Whether it answers yes or no.
    pub fn compares(self) -> bool {
        use Binary::*;
        matches!(self, Eq | Ne | Lt | Le | Gt | Ge)
    }

    /// Whether the operands may change places.
    pub(crate) fn commutes(self) -> bool {
        use Binary::*;
        matches!(self, Add | Mul | Min | Max | And | Or | Xor | Eq | Ne)
    }
}

ops! {
    /// Many elements to one.
    Reduction {
        /// Floats in f32 (f64 in f64); integers and bool in 64 bits, which wrap.
        Sum "sum" All,
        /// The sum times the reciprocal of the number, both rounded.
        Mean "mean" Floats,
        /// As the sum is computed.
        Prod "prod" Numbers,
        /// The smallest; NaN if one is.
        Min "min" All,
        /// The largest; NaN if one is.
        Max "max" All,
        /// Where the first smallest is; NaN is smaller than all others.
        ArgMin "argmin" Numbers,
        /// Where the first largest is; NaN is larger than all others.
        ArgMax "argmax" Numbers,
    }
}

impl Reduction {
    /// What it makes of elements of a type.
    pub fn result(self, of: Dtype) -> Dtype {
        match self {
            Self::Sum | Self::Prod if is_float(of) => of,
            Self::Sum | Self::Prod if is_signed(of) || of == Dtype::Bool => Dtype::I64,
            Self::Sum | Self::Prod => Dtype::U64,
            Self::ArgMin | Self::ArgMax => Dtype::I64,
            Self::Mean | Self::Min | Self::Max => of,
        }
    }
}
