//! Constant folding on the host.
//!
//! Invariant: a folded constant has the bits that the device would have computed; an operation with
//! bits that may differ (an approximated function, a NaN, the minimum of two zeros) is not folded.
//! A constant is 64 bits: for f32 the low 32; for integers the value, sign- or zero-extended; for
//! bool 0 or 1.

use fercuda_tensor::Dtype;

use crate::op::{Binary, Unary};

/// Prints a constant exactly, so that different ones are never printed alike.
pub(crate) fn show(dtype: Dtype, bits: u64) -> String {
    match dtype {
        Dtype::F64 => format!("{:?}", f64::from_bits(bits)),
        Dtype::F32 => format!("{:?}", f32::from_bits(bits as u32)),
        Dtype::Bool => (bits != 0).to_string(),
        signed if signed.is_signed() => bits.cast_signed().to_string(),
        _ => bits.to_string(),
    }
}

/// An integer's low bits, sign- or zero-extended as its type.
fn wrap(dtype: Dtype, value: i128) -> u64 {
    match dtype {
        Dtype::I8 => value as i8 as i64 as u64,
        Dtype::I16 => value as i16 as i64 as u64,
        Dtype::I32 => value as i32 as i64 as u64,
        Dtype::U8 => value as u8 as u64,
        Dtype::U16 => value as u16 as u64,
        Dtype::U32 => value as u32 as u64,
        Dtype::Bool => u64::from(value & 1 != 0),
        _ => value as u64,
    }
}

fn integer(dtype: Dtype, bits: u64) -> i128 {
    match dtype.is_signed() {
        true => bits.cast_signed().into(),
        false => bits.into(),
    }
}

fn f32_bits(value: f32) -> Option<u64> {
    (!value.is_nan()).then(|| value.to_bits().into())
}

fn f64_bits(value: f64) -> Option<u64> {
    (!value.is_nan()).then(|| value.to_bits())
}

macro_rules! floats {
    ($unary:ident $binary:ident $float:ty, $bits:ident) => {
        fn $unary(op: Unary, x: $float) -> Option<u64> {
            $bits(match op {
                Unary::Neg => -x,
                Unary::Abs => x.abs(),
                Unary::Sqrt => x.sqrt(),
                Unary::Floor => x.floor(),
                Unary::Ceil => x.ceil(),
                Unary::Trunc => x.trunc(),
                Unary::Round => x.round_ties_even(),
                Unary::IsNan => return (!x.is_nan()).then_some(0),
                _ => return None,
            })
        }

        fn $binary(op: Binary, a: $float, b: $float) -> Option<u64> {
            let zeros = a == 0.0 && b == 0.0;
            let yes = |holds: bool| (!a.is_nan() && !b.is_nan()).then_some(u64::from(holds));
            match op {
                Binary::Add => $bits(a + b),
                Binary::Sub => $bits(a - b),
                Binary::Mul => $bits(a * b),
                Binary::Div => $bits(a / b),
                Binary::Min if !zeros => yes(true).and($bits(a.min(b))),
                Binary::Max if !zeros => yes(true).and($bits(a.max(b))),
                Binary::Eq => yes(a == b),
                Binary::Ne => yes(a != b),
                Binary::Lt => yes(a < b),
                Binary::Le => yes(a <= b),
                Binary::Gt => yes(a > b),
                Binary::Ge => yes(a >= b),
                _ => None,
            }
        }
    };
}
floats! { unary_f32 binary_f32 f32, f32_bits }
floats! { unary_f64 binary_f64 f64, f64_bits }

fn as_f32(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

/// Folds a unary operation on a constant of type `dtype`.
pub(crate) fn unary(op: Unary, dtype: Dtype, x: u64) -> Option<u64> {
    match dtype {
        Dtype::F32 => unary_f32(op, as_f32(x)),
        Dtype::F64 => unary_f64(op, f64::from_bits(x)),
        _ => {
            let value = integer(dtype, x);
            match op {
                Unary::Neg => Some(wrap(dtype, -value)),
                Unary::Abs => Some(wrap(dtype, value.abs())),
                Unary::Not => Some(wrap(dtype, !value)),
                _ => None,
            }
        }
    }
}

/// Folds a binary operation on two constants of type `dtype`.
pub(crate) fn binary(op: Binary, dtype: Dtype, a: u64, b: u64) -> Option<u64> {
    match dtype {
        Dtype::F32 => return binary_f32(op, as_f32(a), as_f32(b)),
        Dtype::F64 => return binary_f64(op, f64::from_bits(a), f64::from_bits(b)),
        _ => {}
    }
    let (a, b) = (integer(dtype, a), integer(dtype, b));
    let bits = 8 * i128::from(dtype.bytes());
    // As unsigned: a negative amount is larger than any width.
    let amount = || match b {
        b if b < 0 || b >= bits => None,
        b => Some(b as u32),
    };
    let holds = |holds: bool| u64::from(holds);
    Some(match op {
        Binary::Add => wrap(dtype, a + b),
        Binary::Sub => wrap(dtype, a - b),
        // The low 64 bits of a product are those of its factors' low 64 bits.
        Binary::Mul => wrap(dtype, a.wrapping_mul(b)),
        Binary::Div => wrap(dtype, if b == 0 { 0 } else { a / b }),
        Binary::Rem => wrap(dtype, if b == 0 { 0 } else { a % b }),
        Binary::Min => wrap(dtype, a.min(b)),
        Binary::Max => wrap(dtype, a.max(b)),
        Binary::And => wrap(dtype, a & b),
        Binary::Or => wrap(dtype, a | b),
        Binary::Xor => wrap(dtype, a ^ b),
        Binary::Shl => amount().map_or(0, |by| wrap(dtype, a << by)),
        Binary::Shr => wrap(
            dtype,
            amount().map_or(if a < 0 { -1 } else { 0 }, |by| a >> by),
        ),
        Binary::Eq => holds(a == b),
        Binary::Ne => holds(a != b),
        Binary::Lt => holds(a < b),
        Binary::Le => holds(a <= b),
        Binary::Gt => holds(a > b),
        Binary::Ge => holds(a >= b),
    })
}

/// Folds `a * b + c` of constants of type `dtype`.
pub(crate) fn fma(dtype: Dtype, [a, b, c]: [u64; 3]) -> Option<u64> {
    match dtype {
        Dtype::F32 => f32_bits(as_f32(a).mul_add(as_f32(b), as_f32(c))),
        Dtype::F64 => f64_bits(f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c))),
        _ => {
            let product = binary(Binary::Mul, dtype, a, b)?;
            binary(Binary::Add, dtype, product, c)
        }
    }
}

/// Converts between two computation types.
pub(crate) fn convert(from: Dtype, to: Dtype, bits: u64) -> Option<u64> {
    let float = match from {
        Dtype::F32 => f64::from(as_f32(bits)),
        Dtype::F64 => f64::from_bits(bits),
        _ => {
            let value = integer(from, bits);
            return match to {
                Dtype::F32 => f32_bits(value as f32),
                Dtype::F64 => f64_bits(value as f64),
                Dtype::Bool => Some(u64::from(value != 0)),
                _ => Some(wrap(to, value)),
            };
        }
    };
    if float.is_nan() {
        return None;
    }
    Some(match to {
        Dtype::F32 => f32_bits(float as f32)?,
        Dtype::F64 => f64_bits(float)?,
        Dtype::Bool => u64::from(float != 0.0),
        Dtype::I8 => float as i8 as i64 as u64,
        Dtype::I16 => float as i16 as i64 as u64,
        Dtype::I32 => float as i32 as i64 as u64,
        Dtype::I64 => float as i64 as u64,
        Dtype::U8 => float as u8 as u64,
        Dtype::U16 => float as u16 as u64,
        Dtype::U32 => float as u32 as u64,
        _ => float as u64,
    })
}

/// Whether multiplying by the constant changes nothing.
pub(crate) fn is_one(dtype: Dtype, bits: u64) -> bool {
    match dtype {
        Dtype::F32 => as_f32(bits) == 1.0,
        Dtype::F64 => f64::from_bits(bits) == 1.0,
        _ => bits == 1,
    }
}

/// Whether adding the constant changes nothing, not even the sign of a zero.
pub(crate) fn adds_nothing(dtype: Dtype, bits: u64) -> bool {
    match dtype {
        Dtype::F32 => bits == u64::from((-0.0f32).to_bits()),
        Dtype::F64 => bits == (-0.0f64).to_bits(),
        _ => bits == 0,
    }
}
