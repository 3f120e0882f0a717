//! Operations on elements: names, and the types that each accepts.
//!
//! Invariant: this module alone defines what an operation does to a type; the passes and the
//! reference follow it. Elsewhere: how it is computed (`emit`), folded (`fold`) and verified
//! (`reference`).

use std::fmt;

use fercuda_tensor::Dtype;

/// A set of types, for type checks and their messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeClass {
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
    /// All types.
    All,
    /// Floats except f64.
    NotF64,
    /// Floats of 16 bits or more.
    WideFloats,
    /// bool.
    Bool,
    /// u8.
    Bytes,
}

impl TypeClass {
    /// Whether the set contains `dtype`.
    pub fn has(self, dtype: Dtype) -> bool {
        let (float, bool) = (dtype.is_float(), dtype == Dtype::Bool);
        match self {
            Self::Floats => float,
            Self::Integers => !float && !bool,
            Self::Numbers => !bool,
            Self::Signed => float || dtype.is_signed(),
            Self::Bits => !float,
            Self::All => true,
            Self::NotF64 => float && dtype != Dtype::F64,
            Self::WideFloats => float && dtype.bytes() > 1,
            Self::Bool => bool,
            Self::Bytes => dtype == Dtype::U8,
        }
    }
}

impl fmt::Display for TypeClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Floats => "a float",
            Self::Integers => "an integer",
            Self::Numbers => "a number",
            Self::Signed => "a float or a signed integer",
            Self::Bits => "an integer or bool",
            Self::All => "any type",
            Self::NotF64 => "a float other than f64",
            Self::WideFloats => "a float of 16 bits or more",
            Self::Bool => "bool",
            Self::Bytes => "u8",
        })
    }
}

/// Computation type: f32 for floats narrower than f32, else the type itself.
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
            /// All operations.
            pub const ALL: &'static [Self] = &[$(Self::$op),*];

            /// Its name, here and on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$op => $text,)* }
            }

            /// The types that it accepts.
            pub const fn class(self) -> TypeClass {
                match self { $(Self::$op => TypeClass::$class,)* }
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
        /// Negation; of the least integer itself.
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
        /// Bitwise complement.
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
        /// Remainder of integer division, with the dividend's sign; by zero 0.
        Rem "rem" Integers,
        /// The smaller; NaN if either is; -0 is below 0.
        Min "min" Numbers,
        /// The larger; NaN if either is; 0 is above -0.
        Max "max" Numbers,
        /// Bitwise and.
        And "and" Bits,
        /// Bitwise or.
        Or "or" Bits,
        /// Bitwise exclusive or.
        Xor "xor" Bits,
        /// Shift left; by the width or more, or by a negative number: 0.
        Shl "shl" Integers,
        /// Shift right; by the width or more, or by a negative number: 0 or the sign.
        Shr "shr" Integers,
        /// Equal; false if either is NaN.
        Eq "eq" All,
        /// Not equal; true if either is NaN.
        Ne "ne" All,
        /// Less; false if either is NaN.
        Lt "lt" Numbers,
        /// Less or equal; false if either is NaN.
        Le "le" Numbers,
        /// Greater; false if either is NaN.
        Gt "gt" Numbers,
        /// Greater or equal; false if either is NaN.
        Ge "ge" Numbers,
    }
}

impl Binary {
    /// Whether the result is bool.
    pub fn compares(self) -> bool {
        use Binary::*;
        matches!(self, Eq | Ne | Lt | Le | Gt | Ge)
    }

    /// Whether the operation is commutative.
    pub(crate) fn commutes(self) -> bool {
        use Binary::*;
        matches!(self, Add | Mul | Min | Max | And | Or | Xor | Eq | Ne)
    }
}

ops! {
    /// Reductions of many elements to one.
    Reduction {
        /// Floats in f32 (f64 in f64); integers and bool in 64 bits, which wrap.
        Sum "sum" All,
        /// The sum times the reciprocal of the number of elements, both rounded.
        Mean "mean" Floats,
        /// As the sum is computed.
        Prod "prod" Numbers,
        /// The smallest; NaN if one is.
        Min "min" All,
        /// The largest; NaN if one is.
        Max "max" All,
        /// Index of the first smallest element; NaN counts as smaller than all others.
        ArgMin "argmin" Numbers,
        /// Index of the first largest element; NaN counts as larger than all others.
        ArgMax "argmax" Numbers,
    }
}

impl Reduction {
    /// Result type of a reduction of elements of a type.
    pub fn result(self, of: Dtype) -> Dtype {
        match self {
            Self::Sum | Self::Prod if of.is_float() => of,
            Self::Sum | Self::Prod if of.is_signed() || of == Dtype::Bool => Dtype::I64,
            Self::Sum | Self::Prod => Dtype::U64,
            Self::ArgMin | Self::ArgMax => Dtype::I64,
            Self::Mean | Self::Min | Self::Max => of,
        }
    }
}
