//! Values with an error bound, and the bits of elements.

use fercuda_tensor::Dtype;

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
            (ExactValue::Int(wanted), ExactValue::Int(got)) => {
                wanted == got || wanted.abs_diff(got) as f64 <= self.error
            }
            _ => false,
        }
    }
}

pub(crate) fn width(dtype: Dtype) -> u32 {
    8 * dtype.bytes() as u32
}

/// Decodes an element's bits.
pub fn decode(dtype: Dtype, bits: u64) -> ExactValue {
    if !dtype.is_float() {
        let shift = 64 - width(dtype);
        return ExactValue::Int(match dtype {
            Dtype::Bool => i128::from(bits & 0xff != 0),
            signed if signed.is_signed() => ((bits << shift).cast_signed() >> shift).into(),
            _ => ((bits << shift) >> shift).into(),
        });
    }
    ExactValue::Float(dtype.value(bits))
}

/// Encodes a value as the bits of the nearest element.
pub fn encode(dtype: Dtype, value: ExactValue) -> u64 {
    let value = match value {
        ExactValue::Int(value) if dtype == Dtype::Bool => return u64::from(value != 0),
        ExactValue::Int(value) if !dtype.is_float() => {
            return value as u64 & (u64::MAX >> (64 - width(dtype)));
        }
        ExactValue::Int(value) => value as f64,
        ExactValue::Float(value) if dtype.is_float() => value,
        ExactValue::Float(value) => return encode(dtype, ExactValue::Int(value as i128)),
    };
    dtype.encode(value)
}
