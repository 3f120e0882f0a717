//! Values with an error bound, and the bits of elements.

use fercuda_tensor::Dtype;

use crate::op;

/// A float or an integer; bool is 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExactValue {
    /// Of a float type.
    Float(f64),
    /// Of any other type.
    Int(i128),
}

/// A value, and a bound of the device's deviation from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Near {
    /// The value.
    pub value: ExactValue,
    /// The bound; infinity if nothing is known.
    pub error: f64,
}

impl Near {
    pub(crate) fn float(value: f64, error: f64) -> Self {
        let value = ExactValue::Float(value);
        Self { value, error }
    }

    pub(crate) fn int(value: i128) -> Self {
        Self {
            value: ExactValue::Int(value),
            error: 0.0,
        }
    }

    pub(crate) fn f(self) -> f64 {
        match self.value {
            ExactValue::Float(value) => value,
            ExactValue::Int(value) => value as f64,
        }
    }

    pub(crate) fn i(self) -> i128 {
        match self.value {
            ExactValue::Float(value) => value as i128,
            ExactValue::Int(value) => value,
        }
    }

    /// Whether an element with these bits, of type `dtype`, is within the bound.
    pub fn allows(&self, dtype: Dtype, bits: u64) -> bool {
        if self.error == f64::INFINITY {
            return true;
        }
        match (self.value, decode(dtype, bits)) {
            (ExactValue::Float(wanted), ExactValue::Float(got)) => {
                wanted == got
                    || wanted.is_nan() && got.is_nan()
                    || (wanted - got).abs() <= self.error
            }
            (ExactValue::Int(wanted), ExactValue::Int(got)) => wanted == got,
            _ => false,
        }
    }
}

/// Number of exponent bits and of fraction bits.
pub(crate) fn format(dtype: Dtype) -> (u32, u32) {
    match dtype {
        Dtype::F64 => (11, 52),
        Dtype::F32 => (8, 23),
        Dtype::F16 => (5, 10),
        Dtype::Bf16 => (8, 7),
        Dtype::F8E4m3 => (4, 3),
        _ => (5, 2),
    }
}

pub(crate) fn width(dtype: Dtype) -> u32 {
    8 * dtype.bytes() as u32
}

/// Decodes an element's bits.
pub fn decode(dtype: Dtype, bits: u64) -> ExactValue {
    if !op::is_float(dtype) {
        let shift = 64 - width(dtype);
        return ExactValue::Int(match dtype {
            Dtype::Bool => i128::from(bits & 0xff != 0),
            signed if op::is_signed(signed) => ((bits << shift).cast_signed() >> shift).into(),
            _ => ((bits << shift) >> shift).into(),
        });
    }
    let (exponent_bits, fraction_bits) = format(dtype);
    let negative = bits >> (exponent_bits + fraction_bits) & 1 == 1;
    let exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    let fraction = bits & ((1 << fraction_bits) - 1);
    let top = (1u64 << exponent_bits) - 1;
    let bias = (1i32 << (exponent_bits - 1)) - 1;
    let special = match dtype {
        Dtype::F8E4m3 => exponent == top && fraction == 7,
        _ => exponent == top,
    };
    let magnitude = if special {
        match fraction == 0 {
            true => f64::INFINITY,
            false => f64::NAN,
        }
    } else if dtype == Dtype::F64 {
        return ExactValue::Float(f64::from_bits(bits));
    } else {
        let scale = (exponent.max(1) as i32 - bias - fraction_bits as i32).into();
        let hidden = u64::from(exponent > 0) << fraction_bits;
        (hidden | fraction) as f64 * f64::exp2(scale)
    };
    ExactValue::Float(if negative { -magnitude } else { magnitude })
}

/// Rounds to a float type, ties to even. Eight-bit floats saturate.
pub(crate) fn nearest(dtype: Dtype, value: f64) -> f64 {
    let (exponent_bits, fraction_bits) = format(dtype);
    if dtype == Dtype::F64 || value == 0.0 || value.is_nan() {
        return value;
    }
    let bias = (1i32 << (exponent_bits - 1)) - 1;
    let (most, over) = match dtype {
        Dtype::F8E4m3 => (448.0, 448.0),
        Dtype::F8E5m2 => (57344.0, 57344.0),
        _ => {
            let most = (2.0 - f64::exp2(-f64::from(fraction_bits))) * f64::exp2(bias.into());
            (most, f64::INFINITY)
        }
    };
    if value.is_infinite() {
        return over.copysign(value);
    }
    let exponent = (value.abs().to_bits() >> 52) as i32 - 1023;
    let unit = f64::exp2((exponent.max(1 - bias) - fraction_bits as i32).into());
    let rounded = (value / unit).round_ties_even() * unit;
    match rounded.abs() > most {
        true => over.copysign(value),
        false => rounded,
    }
}

/// Encodes a value as the bits of the nearest element.
pub fn encode(dtype: Dtype, value: ExactValue) -> u64 {
    let value = match value {
        ExactValue::Int(value) if dtype == Dtype::Bool => return u64::from(value != 0),
        ExactValue::Int(value) if !op::is_float(dtype) => {
            return value as u64 & (u64::MAX >> (64 - width(dtype)));
        }
        ExactValue::Int(value) => value as f64,
        ExactValue::Float(value) if op::is_float(dtype) => value,
        ExactValue::Float(value) => return encode(dtype, ExactValue::Int(value as i128)),
    };
    let (exponent_bits, fraction_bits) = format(dtype);
    if dtype == Dtype::F64 {
        return value.to_bits();
    }
    let sign = u64::from(value.is_sign_negative()) << (exponent_bits + fraction_bits);
    let top = ((1u64 << exponent_bits) - 1) << fraction_bits;
    if value.is_nan() {
        return top | ((1 << fraction_bits) - 1);
    }
    let rounded = nearest(dtype, value).abs();
    if rounded.is_infinite() {
        return sign | top;
    }
    if rounded == 0.0 {
        return sign;
    }
    let bias = (1i32 << (exponent_bits - 1)) - 1;
    let exponent = ((rounded.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    let whole = rounded / f64::exp2((exponent - fraction_bits as i32).into());
    // The hidden bit adds one to the exponent, or is absent.
    sign | ((((exponent + bias - 1) as u64) << fraction_bits) + whole as u64)
}
