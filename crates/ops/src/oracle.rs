//! ExpectedElement results of ops, with a bound of a device's error.
//!
//! A value comes from the row's function in f64 and loops over indices here, which share nothing
//! with the compiler's passes. Its bound comes from the op's expression: `fercuda_jit::reference`
//! propagates the documented error of each operation, from the sizes. It is doubled, for constants
//! that a type cannot represent and for f64's own roundings in the functions, and has one unit in
//! the last place more where the result is narrower than it is computed.
//!
//! Invariant: a bound of 0 stays 0: there the device's value is this one.

use fercuda_jit::reference::{self, ExactValue, Near};
use fercuda_tensor::{Dtype, Layout};

use crate::arrays::{HostArray, indices};
use crate::descriptor::OpDescriptor;
use crate::error::OpError;
use crate::row::OpOracle;

/// The elements that an op gives, in order, of each result, for the bits of its operands'
/// elements.
///
/// # Errors
/// As for [`OpDescriptor::graph`].
pub fn evaluate(
    op: &OpDescriptor,
    operands: &[Layout],
    bits: &[Vec<u64>],
) -> Result<Vec<Vec<Near>>, OpError> {
    let lengths = operands.iter().map(Layout::len);
    if !lengths.eq(bits.iter().map(|bits| bits.len() as u64)) {
        let what = "elements are given for other layouts".to_owned();
        return Err(op.misfit(
            operands,
            what,
            "one list of elements for each operand".to_owned(),
        ));
    }
    op.check_operands(operands)?;
    let arrays: Vec<HostArray> = operands
        .iter()
        .zip(bits)
        .map(|(layout, bits)| HostArray {
            dtype: layout.dtype(),
            shape: layout.shape().to_vec(),
            values: bits
                .iter()
                .map(|bits| layout.dtype().value(*bits))
                .collect(),
        })
        .collect();
    if let OpOracle::Whole(f) = op.row().oracle {
        let results = op.results(operands, None)?;
        let all = f(op, &arrays, &results);
        let all = all.into_iter().zip(&results).map(|(elements, layout)| {
            let elements = elements.into_iter();
            elements
                .map(|(value, error)| exact_or_near(layout.dtype(), value, error))
                .collect()
        });
        return Ok(all.collect());
    }
    let graph = op.graph(operands)?;
    // Of the one output.
    let bounds = reference::evaluate(&graph, bits).into_iter().flatten();
    let (_, result) = op.result(&graph)?;
    let from = operands[operands.len() - 1].dtype();
    let values = values(op, &arrays);
    let pairs = values.into_iter().zip(bounds);
    Ok(vec![
        pairs
            .map(|(value, bound)| {
                // A value on the way was beyond the type, though f64 has it.
                let is_lost = match bound.value {
                    ExactValue::Float(own) => !own.is_finite() && value.is_finite(),
                    ExactValue::Int(_) => false,
                };
                let error = if is_lost { f64::INFINITY } else { bound.error };
                expected(from, result.dtype(), value, error)
            })
            .collect(),
    ])
}

/// An element of a type, within a bound that the reference of the op gives.
fn exact_or_near(dtype: Dtype, value: f64, error: f64) -> Near {
    let value = match dtype.is_float() {
        true => ExactValue::Float(value),
        false => ExactValue::Int(value as i128),
    };
    Near { value, error }
}

/// Stores a value as a type, with its bound.
fn expected(from: Dtype, to: Dtype, value: f64, error: f64) -> Near {
    if !to.is_float() {
        let value = ExactValue::Int(whole(from, to, value));
        return Near { value, error };
    }
    let is_narrow = !matches!(to, Dtype::F64 | Dtype::F32);
    let stored = match to {
        Dtype::F64 => value,
        _ => to.nearest((value as f32).into()),
    };
    let value = ExactValue::Float(stored);
    if error == 0.0 || error == f64::INFINITY {
        return Near { value, error };
    }
    let last = match to.float_format() {
        Some((exponent, fraction)) if is_narrow => {
            let bias = (1 << (exponent - 1)) - 1;
            let least = f64::from(1 - bias - fraction as i32).exp2();
            (stored.abs() * f64::from(-(fraction as i32)).exp2()).max(least)
        }
        _ => 0.0,
    };
    let error = 2.0 * error + 4.0 * f64::exp2(-53.0) * stored.abs() + last;
    Near { value, error }
}

/// A whole number of a type: of a float towards zero and saturating, of an integer its low bits.
fn whole(from: Dtype, to: Dtype, value: f64) -> i128 {
    if to == Dtype::Bool {
        return i128::from(value != 0.0);
    }
    let width = 8 * to.bytes() as u32;
    let (low, high) = match to.is_signed() {
        true => (-(1i128 << (width - 1)), (1i128 << (width - 1)) - 1),
        false => (0, (1i128 << width) - 1),
    };
    match from.is_float() {
        true => (value as i128).clamp(low, high),
        false => {
            // The remainder of floats is exact, and of any size.
            let bits = (value % f64::from(width).exp2()) as i128;
            (bits - low).rem_euclid(1 << width) + low
        }
    }
}

fn values(op: &OpDescriptor, arrays: &[HostArray]) -> Vec<f64> {
    let numbers = op.numbers();
    let mut shape: Vec<u64> = Vec::new();
    for array in arrays {
        let missing = array.shape.len().saturating_sub(shape.len());
        shape.splice(0..0, std::iter::repeat_n(1, missing));
        let new = shape.len() - array.shape.len();
        for (extent, own) in shape[new..].iter_mut().zip(&array.shape) {
            *extent = if *own == 1 { *extent } else { *own };
        }
    }
    let rank = shape.len();
    let axes = op.axes_of(rank);
    let of = |index: &[u64]| {
        arrays
            .iter()
            .map(|array| array.at(index))
            .collect::<Vec<f64>>()
    };
    match op.row().oracle {
        OpOracle::Each(f) => indices(&shape)
            .iter()
            .map(|index| f(&of(index), &numbers))
            .collect(),
        OpOracle::Fold(f) => {
            let outer: Vec<u64> = kept(&shape, &axes, 1);
            let inner: Vec<u64> = (0..rank)
                .map(|axis| if axes.contains(&axis) { shape[axis] } else { 1 })
                .collect();
            let inner = indices(&inner);
            let fold = |at: &Vec<u64>| {
                let row = inner.iter().map(|inside| sum_of(at, inside));
                let row: Vec<Vec<u64>> = row.collect();
                let operands = arrays.iter();
                let operands = operands.map(|x| row.iter().map(|index| x.at(index)).collect());
                f(&operands.collect::<Vec<Vec<f64>>>(), &numbers)
            };
            indices(&outer).iter().map(fold).collect()
        }
        OpOracle::Whole(_) => Vec::new(),
        OpOracle::Rows(f) => by_rows(op, arrays, axes[0], f),
        OpOracle::Permute => {
            let turned: Vec<u64> = axes.iter().map(|axis| shape[*axis]).collect();
            let back = |index: &Vec<u64>| {
                let mut own = vec![0; rank];
                for (axis, at) in axes.iter().zip(index) {
                    own[*axis] = *at;
                }
                arrays[0].at(&own)
            };
            indices(&turned).iter().map(back).collect()
        }
        OpOracle::Broadcast => {
            let to = op.target_shape().unwrap_or_default();
            indices(to)
                .iter()
                .map(|index| arrays[0].at(index))
                .collect()
        }
    }
}

fn sum_of(a: &[u64], b: &[u64]) -> Vec<u64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// The shape with another extent at some axes.
fn kept(shape: &[u64], axes: &[usize], extent: u64) -> Vec<u64> {
    let all = shape.iter().enumerate();
    all.map(|(axis, own)| if axes.contains(&axis) { extent } else { *own })
        .collect()
}

/// Applies a function to each row along an axis of the arrays of the widest rank.
fn by_rows(
    op: &OpDescriptor,
    arrays: &[HostArray],
    axis: usize,
    f: fn(&[Vec<f64>], &[f64]) -> Vec<f64>,
) -> Vec<f64> {
    let numbers = op.numbers();
    // Vectors along the axis follow one array; operands of other ops are alike.
    let has_vectors = op.row().has("operands");
    let widest = &arrays[0].shape;
    let mut results = vec![0.0; widest.iter().product::<u64>() as usize];
    for at in indices(&kept(widest, &[axis], 1)) {
        let along = |n: u64| {
            let mut index = at.clone();
            index[axis] = n;
            index
        };
        let operands = arrays.iter().enumerate().map(|(number, array)| {
            let all = 0..widest[axis];
            match has_vectors && number > 0 {
                true => array.values.clone(),
                false => all.map(|n| array.at(&along(n))).collect::<Vec<f64>>(),
            }
        });
        let row = f(&operands.collect::<Vec<_>>(), &numbers);
        for (n, value) in (0..widest[axis]).zip(row) {
            let index = along(n);
            let place = widest
                .iter()
                .zip(&index)
                .fold(0, |place, (extent, at)| place * extent + at);
            results[place as usize] = value;
        }
    }
    results
}
