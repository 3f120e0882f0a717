//! Rows of reductions of segments, bags of a table's rows, and gradients of tables.
//!
//! Segment i is from offset i to before offset i + 1. It has no rows if one of both is outside of
//! the rows, or if it ends before it begins; of no rows the result is 0. An index outside of the
//! table is skipped, and a mean does not count it. A checked plan reports both.

use fercuda_kernels::NativeProgram;
use fercuda_kernels::segment::{self, RowBags, SegmentReduction};
use fercuda_tensor::Layout;

use super::approx::{Approx, ApproxType};
use super::scalar::whole_number;
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

const REDUCE: &[(&str, &[&str])] = &[("reduce", &["sum", "mean", "amax", "amin"])];
const LINEAR: &[(&str, &[&str])] = &[("reduce", &["sum", "mean"])];

fn reduction(op: &OpParameters) -> SegmentReduction {
    match op.choice_of("reduce") {
        "mean" => SegmentReduction::Mean,
        "amax" => SegmentReduction::Most,
        "amin" => SegmentReduction::Least,
        _ => SegmentReduction::Sum,
    }
}

/// Number of segments of offsets.
fn segments(offsets: &Layout) -> Result<u64, Misfit> {
    match offsets.shape() {
        [len] if *len > 0 => Ok(len - 1),
        shape => {
            let what = format!("offsets of {shape:?}");
            Err(Misfit::new(
                what,
                "one dimension, with a number more than segments",
            ))
        }
    }
}

fn segment_results(_: &OpParameters, operands: &[Layout]) -> RowResults {
    let mut shape = operands[0].shape().to_vec();
    match shape.first_mut() {
        Some(rows) => *rows = segments(&operands[1])?,
        None => {
            return Err(Misfit::new(
                "no rows",
                "an operand of one dimension or more",
            ));
        }
    }
    Ok(vec![(operands[0].dtype(), shape)])
}

fn segment(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, offsets, to) = (program.input(0), program.input(1), program.output(0));
    segment::reduce(program, [&x, &offsets, &to], reduction(op))
}

/// The rows of each segment.
fn ranges(offsets: &HostArray, rows: u64) -> Vec<std::ops::Range<usize>> {
    let is_inside = |at: f64| at >= 0.0 && at <= rows as f64;
    let pairs = offsets.values.windows(2);
    let range = pairs.map(|pair| match is_inside(pair[0]) && is_inside(pair[1]) {
        true => pair[0] as usize..pair[1] as usize,
        false => 0..0,
    });
    range.collect()
}

/// What is made of values.
fn reduced(t: ApproxType, reduction: SegmentReduction, values: Vec<Approx>) -> Approx {
    let count = values.len();
    if count == 0 {
        return t.exact(0.0);
    }
    match reduction {
        SegmentReduction::Sum => t.sum(values),
        SegmentReduction::Mean => t.sum(values) / t.number(count as f64),
        SegmentReduction::Most => values[1..].iter().fold(values[0], |a, b| a.most(*b)),
        SegmentReduction::Least => values[1..].iter().fold(values[0], |a, b| a.least(*b)),
    }
}

fn segment_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = results[0].dtype();
    let t = ApproxType::of(dtype);
    let width = x[0].shape[1..].iter().product::<u64>() as usize;
    let mut all = Vec::new();
    for range in ranges(&x[1], x[0].shape[0]) {
        for column in 0..width {
            let rows = range
                .clone()
                .map(|row| t.exact(x[0].values[row * width + column]));
            all.push(reduced(t, reduction(op), rows.collect()).stored(dtype));
        }
    }
    vec![all]
}

// Bags.

fn check_bags(op: &OpParameters, operands: &[Layout]) -> Result<(), Misfit> {
    let [_, index, offsets, ..] = operands else {
        return Ok(());
    };
    segments(offsets)?;
    if index.shape().len() != 1 {
        let what = format!("an index of {:?}", index.shape());
        return Err(Misfit::new(what, "one dimension"));
    }
    match operands.get(3) {
        Some(weights) if weights.shape() != index.shape() => {
            let what = format!("weights of {:?} for {:?}", weights.shape(), index.shape());
            Err(Misfit::new(what, "one for each index"))
        }
        Some(_) if reduction(op) != SegmentReduction::Sum => {
            Err(Misfit::new("weights of what is no sum", "reduce=sum"))
        }
        _ => Ok(()),
    }
}

fn row_bags(op: &OpParameters, program: &NativeProgram) -> RowBags {
    RowBags {
        index: program.input(1),
        offsets: program.input(2),
        weights: (program.operands() > 3).then(|| program.input(3)),
        reduction: reduction(op),
    }
}

fn bag_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    check_bags(op, operands)?;
    let [_, width] = operands[0].shape() else {
        return Err(Misfit::new(
            "the table is no matrix",
            "a table of two dimensions",
        ));
    };
    let bags = segments(&operands[2])?;
    Ok(vec![(operands[0].dtype(), vec![bags, *width])])
}

fn bag(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (bags, table, to) = (row_bags(op, program), program.input(0), program.output(0));
    segment::bags(program, &bags, &table, &to)
}

/// Places and rows of a bag that are inside.
fn chosen(index: &HostArray, range: std::ops::Range<usize>, rows: u64) -> Vec<(usize, usize)> {
    let all = range.map(|at| (at, index.values[at]));
    let inside = all.filter(|(_, row)| *row >= 0.0 && *row < rows as f64);
    inside.map(|(at, row)| (at, row as usize)).collect()
}

fn bag_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = results[0].dtype();
    let t = ApproxType::of(dtype);
    let (rows, width) = (x[0].shape[0], x[0].shape[1] as usize);
    let mut all = Vec::new();
    for range in ranges(&x[2], x[1].shape[0]) {
        let chosen = chosen(&x[1], range, rows);
        for column in 0..width {
            let values = chosen.iter().map(|(at, row)| {
                let value = t.exact(x[0].values[row * width + column]);
                x.get(3)
                    .map_or(value, |weights| value * t.exact(weights.values[*at]))
            });
            all.push(reduced(t, reduction(op), values.collect()).stored(dtype));
        }
    }
    vec![all]
}

/// Rows of a table, from the number.
fn table_rows(op: &OpParameters) -> Result<u64, Misfit> {
    u64::try_from(whole_number(op, "rows")?)
        .map_err(|_| Misfit::new("a negative number of rows", "0 or more"))
}

fn bag_gradient_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    check_bags(op, operands)?;
    let bags = segments(&operands[2])?;
    match operands[0].shape() {
        [own, width] if *own == bags => {
            Ok(vec![(operands[0].dtype(), vec![table_rows(op)?, *width])])
        }
        shape => {
            let what = format!("a gradient of {shape:?} for {bags} bags");
            Err(Misfit::new(what, "a row for each bag"))
        }
    }
}

fn bag_gradient(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (bags, g, to) = (row_bags(op, program), program.input(0), program.output(0));
    segment::bags_backward(program, &bags, &g, &to)
}

/// Elements of a table to which terms are added.
fn added(
    result: &Layout,
    terms: impl Iterator<Item = (usize, Approx)>,
) -> Vec<Vec<ExpectedElement>> {
    let t = ApproxType::of(result.dtype());
    let mut all: Vec<Vec<Approx>> = vec![Vec::new(); result.len() as usize];
    terms.for_each(|(at, term)| all[at].push(term));
    let sums = all.into_iter().map(|terms| match terms.is_empty() {
        true => (0.0, 0.0),
        false => t.sum(terms).stored(result.dtype()),
    });
    vec![sums.collect()]
}

fn bag_gradient_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let t = ApproxType::of(results[0].dtype());
    let (rows, width) = (results[0].shape()[0], results[0].shape()[1] as usize);
    let mut terms = Vec::new();
    for (bag, range) in ranges(&x[2], x[1].shape[0]).into_iter().enumerate() {
        let chosen = chosen(&x[1], range, rows);
        for (at, row) in &chosen {
            for column in 0..width {
                let g = t.exact(x[0].values[bag * width + column]);
                let term = match (reduction(op), x.get(3)) {
                    (SegmentReduction::Mean, _) => g / t.number(chosen.len() as f64),
                    (_, Some(weights)) => g * t.exact(weights.values[*at]),
                    _ => g,
                };
                terms.push((row * width + column, term));
            }
        }
    }
    added(&results[0], terms.into_iter())
}

// The gradient of a table.

fn table_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (g, index) = (operands[0].shape(), operands[1].shape());
    match g {
        [outer @ .., width] if outer == index => {
            Ok(vec![(operands[0].dtype(), vec![table_rows(op)?, *width])])
        }
        _ => {
            let what = format!("a gradient of {g:?} for an index of {index:?}");
            Err(Misfit::new(what, "a row for each index"))
        }
    }
}

fn table_gradient(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (g, index, to) = (program.input(0), program.input(1), program.output(0));
    segment::rows_backward(program, &index, &g, &to)
}

fn table_expected(
    _: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let t = ApproxType::of(results[0].dtype());
    let (rows, width) = (results[0].shape()[0], results[0].shape()[1] as usize);
    let all = x[0].values.iter().enumerate().filter_map(|(at, value)| {
        let row = x[1].values[at / width];
        let is_inside = row >= 0.0 && row < rows as f64;
        is_inside.then(|| (row as usize * width + at % width, t.exact(*value)))
    });
    added(&results[0], all)
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Segment "segment_reduce" ("x", "offsets") Floats {} [] { choices: REDUCE }
        "cuda.segment", segment_results, segment, segment_expected,
        "rows of x, along its first dimension, combined from each offset to before the next one"),
    native!(Segment "embedding_bag" ("table", "index", "offsets", "weights") Floats {} []
        { optional: 1, choices: REDUCE }
        "cuda.segment", bag_results, bag, bag_expected,
        "rows of the table at the indices from each offset to before the next one, combined, with a weight each for sums"),
    native!(Segment "embedding_bag_backward" ("g", "index", "offsets", "weights") Floats
        { "rows": 1.0 } [] { optional: 1, choices: LINEAR }
        "cuda.segment", bag_gradient_results, bag_gradient, bag_gradient_expected,
        "gradient of embedding_bag by its table of `rows` rows, of sums and means"),
    native!(Segment "embedding_backward" ("g", "index") Floats { "rows": 1.0 } [] {}
        "cuda.segment", table_results, table_gradient, table_expected,
        "gradient of embedding by its table of `rows` rows"),
];
