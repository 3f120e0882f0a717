//! Rows of sorting along one axis, of parts of what is sorted, and of searches.
//!
//! NaN is last in ascending order and first in descending order, zeros are equal, and equal
//! elements stay in order: so every place is determined, and results are exact.

use std::cmp::Ordering;

use fercuda_kernels::{KernelError, MemoryView, NativeProgram, sort};
use fercuda_tensor::{Dtype, Layout};

use super::along::{by_rows, first_axis};
use super::scalar::whole_number;
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, native};

type SortResults = Result<Vec<(Dtype, Vec<u64>)>, Misfit>;
type SortLowered = Result<(), KernelError>;

/// The order of values, NaN last.
pub(super) fn in_order(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b)
        .unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Places of a row's elements in order.
pub(super) fn places(row: &[f64], is_descending: bool) -> Vec<usize> {
    let mut all: Vec<usize> = (0..row.len()).collect();
    all.sort_by(|a, b| match is_descending {
        true => in_order(row[*b], row[*a]),
        false => in_order(row[*a], row[*b]),
    });
    all
}

/// Whether the results have no axis.
fn is_single(op: &OpParameters) -> bool {
    matches!(op.name(), "kth_value" | "median")
}

fn is_descending(op: &OpParameters) -> bool {
    matches!(op.choice_of("order"), "descending" | "largest")
}

/// The part of an axis of that many elements, if the op has one of it.
fn part(op: &OpParameters, len: u64) -> Result<sort::SortedPart, Misfit> {
    let of_axis = |least: u64| {
        let k = whole_number(op, "k")?;
        let what = format!("k is {k}, the axis has {len} elements");
        let hint = match len < least {
            true => format!("an axis of at least {least}"),
            false => format!("{least} to {len}, or a longer axis"),
        };
        let k = u64::try_from(k).ok();
        let k = k.filter(|k| (least..=len).contains(k));
        k.ok_or_else(|| Misfit::new(what, hint))
    };
    let (first, count) = match op.name() {
        "topk" => (0, of_axis(0)?),
        "kth_value" => (of_axis(1)? - 1, 1),
        "median" if len == 0 => {
            let what = "the median of an empty axis is undefined";
            return Err(Misfit::new(what, "an axis of at least 1"));
        }
        "median" => ((len - 1) / 2, 1),
        _ => (0, len),
    };
    Ok(sort::SortedPart {
        first,
        count,
        is_descending: is_descending(op),
        is_nan_if_any: op.name() == "median",
    })
}

fn results(op: &OpParameters, operands: &[Layout]) -> SortResults {
    let mut shape = operands[0].shape().to_vec();
    let axis = op.axis_of(shape.len())?;
    let part = part(op, shape[axis])?;
    match is_single(op) {
        true => drop(shape.remove(axis)),
        false => shape[axis] = part.count,
    }
    let places = (Dtype::I64, shape.clone());
    Ok(match op.name() {
        "argsort" => vec![places],
        _ => vec![(operands[0].dtype(), shape), places],
    })
}

fn lower(op: &OpParameters, program: &mut NativeProgram) -> SortLowered {
    let x = program.input(0);
    let axis = first_axis(op, x.shape().len());
    // The rule of results has accepted it.
    let Ok(part) = part(op, x.shape()[axis]) else {
        return Ok(());
    };
    let with_axis = |view: MemoryView| match is_single(op) {
        true => {
            let mut shape = view.shape().to_vec();
            shape.insert(axis, 1);
            view.reshape(&shape)
        }
        false => Ok(view),
    };
    let first = with_axis(program.output(0))?;
    if op.name() == "argsort" {
        return sort::along(program, axis, part, &x, None, Some(&first));
    }
    let second = with_axis(program.output(1))?;
    sort::along(program, axis, part, &x, Some(&first), Some(&second))
}

fn expected(op: &OpParameters, x: &[HostArray], results: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let axis = first_axis(op, x[0].shape.len());
    let Ok(part) = part(op, x[0].shape[axis]) else {
        return Vec::new();
    };
    let wanted = |row: &[f64]| {
        let all = places(row, part.is_descending);
        let is_nan = |at: &&usize| part.is_nan_if_any && row[**at].is_nan();
        if let Some(nan) = all.iter().find(is_nan) {
            return vec![*nan];
        }
        all[part.first as usize..][..part.count as usize].to_vec()
    };
    let exact = |value: f64| (value, 0.0);
    let count = part.count as usize;
    let values = by_rows(&x[0], axis, count, |row| {
        wanted(row).into_iter().map(|at| exact(row[at])).collect()
    });
    let places = by_rows(&x[0], axis, count, |row| {
        wanted(row).into_iter().map(|at| exact(at as f64)).collect()
    });
    match results {
        [_] => vec![places],
        _ => vec![values, places],
    }
}

fn search_results(_: &OpParameters, operands: &[Layout]) -> SortResults {
    let (sorted, values) = (operands[0].shape(), operands[1].shape());
    let outer = |shape: &[u64]| shape.split_last().map(|(_, outer)| outer.to_vec());
    let is_one_row = sorted.len() == 1;
    if sorted.is_empty() || !is_one_row && outer(sorted) != outer(values) {
        let what = format!("{sorted:?} are not the sorted rows of {values:?}");
        let hint = "one row, or extents that are equal but for the last one";
        return Err(Misfit::new(what, hint));
    }
    Ok(vec![(Dtype::I64, values.to_vec())])
}

fn search(op: &OpParameters, program: &mut NativeProgram) -> SortLowered {
    let (sorted, values) = (program.input(0), program.input(1));
    let (out, is_right) = (program.output(0), op.choice_of("side") == "right");
    sort::search(program, &sorted, &values, &out, is_right)
}

fn search_expected(op: &OpParameters, x: &[HostArray], _: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let len = x[0].shape.last().copied().unwrap_or_default() as usize;
    let per_row = x[1].shape.last().copied().unwrap_or(1).max(1) as usize;
    let last = match op.choice_of("side") {
        "right" => Ordering::Equal,
        _ => Ordering::Less,
    };
    let place = |(at, value): (usize, &f64)| {
        let row = if x[0].shape.len() == 1 {
            0
        } else {
            at / per_row
        };
        let row = &x[0].values[row * len..][..len];
        let before = row.iter().filter(|own| in_order(**own, *value) <= last);
        (before.count() as f64, 0.0)
    };
    vec![x[1].values.iter().enumerate().map(place).collect()]
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Order "sort" ("x") All {} ["axis"]
        { results: &["values", "indices"], choices: &[("order", &["ascending", "descending"])] }
        "cuda.sort", results, lower, expected,
        "elements along an axis in order, and their places; stable, NaN above all"),
    native!(Order "argsort" ("x") All {} ["axis"]
        { results: &["indices"], choices: &[("order", &["ascending", "descending"])] }
        "cuda.sort", results, lower, expected,
        "places of the elements along an axis in order; stable, NaN above all"),
    native!(Order "topk" ("x") All { "k": 1.0 } ["axis"]
        { results: &["values", "indices"], choices: &[("order", &["largest", "smallest"])] }
        "cuda.sort", results, lower, expected,
        "the `k` largest or smallest elements along an axis in order, and their places; NaN above all"),
    native!(Order "kth_value" ("x") All { "k": 1.0 } ["axis"] { results: &["value", "index"] }
        "cuda.sort", results, lower, expected,
        "the `k`th smallest element along an axis, from 1 on, and its place; NaN above all"),
    native!(Order "median" ("x") All {} ["axis"] { results: &["value", "index"] }
        "cuda.sort", results, lower, expected,
        "the lower one of the middle elements along an axis, and its place; NaN if one is"),
    native!(Order "searchsorted" ("sorted", "values") All {} []
        { results: &["indices"], choices: &[("side", &["left", "right"])] }
        "cuda.sort", search_results, search, search_expected,
        "places in sorted rows at which values would be inserted, before or behind equal elements"),
];
