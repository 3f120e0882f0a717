//! Rows of scans along one axis.
//!
//! The bound of a sum is the number of additions that one element goes through, times the unit
//! roundoff, times the sum of magnitudes. A product has as many roundings as factors; it is bounded
//! only where no part of it can overflow or underflow. Of ln of a sum of e^x, each combination
//! rounds a difference, its power and a sum, relative to a sum of at least 1.

use fercuda_kernels::{KernelError, NativeProgram, scan};
use fercuda_tensor::{Dtype, Layout};

use super::along::{by_rows, first_axis};
use super::bounds::{magnitudes, rounded, unit_roundoff, whole};
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, native};

type ScanResults = Result<Vec<(Dtype, Vec<u64>)>, Misfit>;
type ScanLowered = Result<(), KernelError>;

fn scanned(op: &OpParameters) -> scan::ScanOp {
    match op.name() {
        "cumprod" => scan::ScanOp::Product,
        "cummax" => scan::ScanOp::Largest,
        "cummin" => scan::ScanOp::Smallest,
        "logcumsumexp" => scan::ScanOp::LogSum,
        _ => scan::ScanOp::Sum,
    }
}

fn results(op: &OpParameters, operands: &[Layout]) -> ScanResults {
    let shape = operands[0].shape();
    op.axis_of(shape.len())?;
    let scanned = scanned(op);
    let mut all = vec![(scanned.result(operands[0].dtype()), shape.to_vec())];
    if scanned.has_places() {
        all.push((Dtype::I64, shape.to_vec()));
    }
    Ok(all)
}

fn lower(op: &OpParameters, program: &mut NativeProgram) -> ScanLowered {
    let (x, out, scanned) = (program.input(0), program.output(0), scanned(op));
    let places = scanned.has_places().then(|| program.output(1));
    let axis = first_axis(op, x.shape().len());
    scan::along(program, scanned, axis, &x, &out, places.as_ref())
}

/// Largest number of operations between an element and a result, of a row of that length: those of
/// a thread, a warp, the warps, up to 32 carries or the same of the chunks' totals, and the carries
/// of these, one for each 512 chunks of 512 elements or fewer.
fn depth(len: usize) -> f64 {
    (len as f64).min(64.0 + len as f64 / f64::from(512 * 512))
}

/// Rows by a function of the type of the results and a row.
fn expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
    f: fn(Dtype, &[f64]) -> Vec<ExpectedElement>,
) -> Vec<Vec<ExpectedElement>> {
    let axis = first_axis(op, x[0].shape.len());
    let (len, dtype) = (x[0].shape[axis] as usize, results[0].dtype());
    vec![by_rows(&x[0], axis, len, |row| f(dtype, row))]
}

fn integers(dtype: Dtype, x: &[f64], first: u64, f: fn(u64, u64) -> u64) -> Vec<ExpectedElement> {
    let mut so_far = first;
    let next = x.iter().map(|x| {
        so_far = f(so_far, *x as i128 as u64);
        whole(dtype, so_far)
    });
    next.collect()
}

fn sums(dtype: Dtype, x: &[f64]) -> Vec<ExpectedElement> {
    if !dtype.is_float() {
        return integers(dtype, x, 0, u64::wrapping_add);
    }
    let by = depth(x.len()) * unit_roundoff(dtype);
    let (mut sum, mut lost, mut magnitude) = (0.0f64, 0.0, 0.0);
    let next = x.iter().map(|x| {
        let next = sum + x;
        // Compensated, as `scalar::total`.
        if next.is_finite() {
            lost += match sum.abs() >= x.abs() {
                true => (sum - next) + x,
                false => (x - next) + sum,
            };
        }
        sum = next;
        if x.is_finite() {
            magnitude += x.abs();
        }
        let value = if sum.is_finite() { sum + lost } else { sum };
        match magnitude < magnitudes(dtype).0 {
            true => rounded(dtype, value, by * magnitude),
            false => (value, f64::INFINITY),
        }
    });
    next.collect()
}

fn products(dtype: Dtype, x: &[f64]) -> Vec<ExpectedElement> {
    if !dtype.is_float() {
        return integers(dtype, x, 1, u64::wrapping_mul);
    }
    let (most, least) = magnitudes(dtype);
    // Logarithms of the products of all factors above 1, and of all others.
    let (mut product, mut above, mut below) = (1.0, 0.0, 0.0);
    let next = x.iter().enumerate().map(|(at, x)| {
        product *= x;
        if x.is_finite() && *x != 0.0 {
            let size = x.abs().ln();
            above += size.max(0.0);
            below += size.min(0.0);
        }
        let roundings = 2.0 * at as f64 * unit_roundoff(dtype);
        match above < most.ln() - 1.0 && below > least.ln() + 1.0 {
            true => rounded(dtype, product, roundings * product.abs()),
            false => (product, f64::INFINITY),
        }
    });
    next.collect()
}

fn log_sums(dtype: Dtype, x: &[f64]) -> Vec<ExpectedElement> {
    // The reference of f64 combines one element after the other, in f64.
    let count = x.len() as f64;
    let roundings = if dtype == Dtype::F64 {
        count
    } else {
        depth(x.len())
    };
    let by = unit_roundoff(dtype);
    let logarithm = count.ln();
    let (mut most, mut sum) = (f64::NEG_INFINITY, 0.0);
    let next = x.iter().map(|x| {
        let larger = if *x > most || x.is_nan() { *x } else { most };
        let scale = |own: f64| {
            if own == larger {
                1.0
            } else {
                (own - larger).exp()
            }
        };
        sum = sum * scale(most) + scale(*x);
        most = larger;
        let value = most + f64::ln(sum);
        let error = roundings * (logarithm + 8.0) + 2.0 * logarithm + 4.0 + 2.0 * value.abs();
        rounded(dtype, value, by * error)
    });
    next.collect()
}

/// Values and places of the last element than which none before is better; NaN is the best.
fn extremes(
    op: &OpParameters,
    x: &[HostArray],
    is_better: fn(f64, f64) -> bool,
) -> Vec<Vec<ExpectedElement>> {
    let axis = first_axis(op, x[0].shape.len());
    let len = x[0].shape[axis] as usize;
    let places = |row: &[f64]| {
        let mut best = 0;
        let place = |at: usize| {
            let better = row[at].is_nan() || !row[best].is_nan() && !is_better(row[best], row[at]);
            best = if better { at } else { best };
            best
        };
        (0..row.len()).map(place).collect::<Vec<usize>>()
    };
    let values = by_rows(&x[0], axis, len, |row| {
        let all = places(row).into_iter();
        all.map(|at| (row[at], 0.0)).collect()
    });
    let places = by_rows(&x[0], axis, len, |row| {
        let all = places(row).into_iter();
        all.map(|at| (at as f64, 0.0)).collect()
    });
    vec![values, places]
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Order "cumsum" ("x") All {} ["axis"] {}
        "cuda.scan", results, lower, |op, x, results| expected(op, x, results, sums),
        "sums of the elements up to each one along an axis; of integers and bool in 64 bits"),
    native!(Order "cumprod" ("x") Numbers {} ["axis"] {}
        "cuda.scan", results, lower, |op, x, results| expected(op, x, results, products),
        "products of the elements up to each one along an axis; of integers in 64 bits"),
    native!(Order "cummax" ("x") Numbers {} ["axis"] { results: &["values", "indices"] }
        "cuda.scan", results, lower, |op, x, _| extremes(op, x, |a, b| a > b),
        "largest of the elements up to each one along an axis, and the last place of it; NaN if one is"),
    native!(Order "cummin" ("x") Numbers {} ["axis"] { results: &["values", "indices"] }
        "cuda.scan", results, lower, |op, x, _| extremes(op, x, |a, b| a < b),
        "smallest of the elements up to each one along an axis, and the last place of it; NaN if one is"),
    native!(Order "logcumsumexp" ("x") Floats {} ["axis"] {}
        "cuda.scan", results, lower, |op, x, results| expected(op, x, results, log_sums),
        "ln of the sum of e^x of the elements up to each one along an axis"),
];
