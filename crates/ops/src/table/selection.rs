//! Rows of selection, and of counts by values.
//!
//! A plan's results have fixed shapes, so those of selections have room for all elements; how many
//! were chosen is a result of its own, and elements behind these are 0.

use std::cmp::Ordering;

use fercuda_kernels::{KernelError, NativeProgram, select};
use fercuda_tensor::{Dtype, Layout};

use super::scalar::whole_number;
use super::sorting::{in_order, places};
use crate::arrays::{HostArray, indices};
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, native};

type SelectResults = Result<Vec<(Dtype, Vec<u64>)>, Misfit>;
type SelectLowered = Result<(), KernelError>;

const COUNT: (Dtype, u64) = (Dtype::I64, 1);

fn exact(values: impl IntoIterator<Item = f64>) -> Vec<ExpectedElement> {
    values.into_iter().map(|value| (value, 0.0)).collect()
}

/// Exact values, with zeros up to a length, and their number.
fn filled(values: Vec<f64>, len: u64) -> [Vec<ExpectedElement>; 2] {
    let number = values.len();
    let zeros = std::iter::repeat_n(0.0, len as usize - number);
    [
        exact(values.into_iter().chain(zeros)),
        exact([number as f64]),
    ]
}

fn masked_results(_: &OpParameters, operands: &[Layout]) -> SelectResults {
    let (x, mask) = (&operands[0], &operands[1]);
    if x.shape() != mask.shape() {
        let what = format!("{:?} has a mask of {:?}", x.shape(), mask.shape());
        return Err(Misfit::new(what, "one shape, by `broadcast_to`"));
    }
    Ok(vec![(x.dtype(), vec![x.len()]), (COUNT.0, vec![COUNT.1])])
}

fn masked(_: &OpParameters, program: &mut NativeProgram) -> SelectLowered {
    let (x, mask) = (program.input(0), program.input(1));
    let (out, number) = (program.output(0), program.output(1));
    select::masked(program, &x, &mask, &out, &number)
}

fn masked_expected(
    _: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let pairs = x[0].values.iter().zip(&x[1].values);
    let chosen = pairs
        .filter(|(_, mask)| **mask != 0.0)
        .map(|(value, _)| *value);
    filled(chosen.collect(), results[0].len()).into()
}

fn nonzero_results(_: &OpParameters, operands: &[Layout]) -> SelectResults {
    let x = &operands[0];
    let shape = vec![x.len(), x.shape().len() as u64];
    Ok(vec![(Dtype::I64, shape), (COUNT.0, vec![COUNT.1])])
}

fn nonzero(_: &OpParameters, program: &mut NativeProgram) -> SelectLowered {
    let (x, out, number) = (program.input(0), program.output(0), program.output(1));
    select::nonzero(program, &x, &out, &number)
}

fn nonzero_expected(
    _: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let all = indices(&x[0].shape);
    let pairs = all.iter().zip(&x[0].values);
    let chosen = pairs.filter(|(_, value)| **value != 0.0);
    let chosen: Vec<&Vec<u64>> = chosen.map(|(index, _)| index).collect();
    let count = chosen.len() as f64;
    let flat = chosen.into_iter().flatten().map(|at| *at as f64).collect();
    let [all, _] = filled(flat, results[0].len());
    vec![all, exact([count])]
}

fn unique_results(_: &OpParameters, operands: &[Layout]) -> SelectResults {
    let (dtype, len) = (operands[0].dtype(), operands[0].len());
    let number = (COUNT.0, vec![COUNT.1]);
    Ok(vec![(dtype, vec![len]), (Dtype::I64, vec![len]), number])
}

fn unique(_: &OpParameters, program: &mut NativeProgram) -> SelectLowered {
    let [values, counts, number] = [0, 1, 2].map(|at| program.output(at));
    let x = program.input(0);
    select::unique(program, &x, &values, &counts, &number)
}

fn unique_expected(
    _: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (mut values, mut counts): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    for at in places(&x[0].values, false) {
        let own = x[0].values[at];
        match (values.last(), counts.last_mut()) {
            (Some(last), Some(count)) if in_order(*last, own) == Ordering::Equal => *count += 1.0,
            _ => {
                values.push(own);
                counts.push(1.0);
            }
        }
    }
    let len = results[0].len();
    let [values, number] = filled(values, len);
    let [counts, _] = filled(counts, len);
    vec![values, counts, number]
}

fn bin_results(op: &OpParameters, _: &[Layout]) -> SelectResults {
    let bins = whole_number(op, "bins")?;
    let Some(bins) = u64::try_from(bins).ok().filter(|bins| *bins > 0) else {
        return Err(Misfit::new(format!("{bins} bins"), "1 or more"));
    };
    if let Some((low, high)) = range(op) {
        let is_range = low < high && (high - low).is_finite();
        if !is_range {
            let what = format!("bins from {low} to {high}");
            return Err(Misfit::new(what, "`low` below `high`, and a finite range"));
        }
    }
    Ok(vec![(Dtype::I64, vec![bins])])
}

/// The range of a histogram; a bin of `bincount` is a value.
fn range(op: &OpParameters) -> Option<(f64, f64)> {
    let is_histogram = op.name() == "histogram";
    is_histogram.then(|| (op.number_of("low"), op.number_of("high")))
}

fn bins(op: &OpParameters, program: &mut NativeProgram) -> SelectLowered {
    let (x, out) = (program.input(0), program.output(0));
    select::bins(program, &x, range(op), &out)
}

fn bins_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let bins = results[0].len();
    let mut counts = vec![0.0; bins as usize];
    for value in &x[0].values {
        let bin = match range(op) {
            // In f64, as on the device.
            Some((low, high)) if (low..=high).contains(value) => {
                let place = (value - low) * bins as f64 / (high - low);
                (place as u64).min(bins - 1)
            }
            Some(_) => continue,
            None if (0.0..bins as f64).contains(value) => *value as u64,
            None => continue,
        };
        counts[bin as usize] += 1.0;
    }
    vec![exact(counts)]
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Order "masked_select" ("x", "mask") All {} [] { results: &["values", "count"] }
        "cuda.select", masked_results, masked, masked_expected,
        "elements for which the mask holds, in order, with zeros behind them, and their number"),
    native!(Order "nonzero" ("x") All {} [] { results: &["indices", "count"] }
        "cuda.select", nonzero_results, nonzero, nonzero_expected,
        "indices of the elements that are not 0, a row each, with zeros behind them, and their number"),
    native!(Order "unique" ("x") All {} [] { results: &["values", "counts", "number"] }
        "cuda.select", unique_results, unique, unique_expected,
        "values in ascending order, how often each is there, and their number; NaN is one value, and last"),
    native!(Order "bincount" ("index") Integers { "bins": 256.0 } [] { results: &["counts"] }
        "cuda.select", bin_results, bins, bins_expected,
        "how often each whole number from 0 on is there; of `bins` numbers, others are not counted"),
    native!(Order "histogram" ("x") Numbers { "bins": 100.0, "low": 0.0, "high": 1.0 } []
        { results: &["counts"] }
        "cuda.select", bin_results, bins, bins_expected,
        "number of elements in each of `bins` equal parts of the range from `low` to `high`, both included"),
];
