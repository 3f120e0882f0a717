//! Rows of products and distances of pairs, and of diagonals.

use fercuda_kernels::maths::{self, ElementFunction};
use fercuda_kernels::pairs::{self, DistanceNorm};
use fercuda_kernels::{NativeProgram, copy};
use fercuda_tensor::{Layout, MAX_RANK};

use super::along::{by_index, first_axis};
use super::approx::ApproxType;
use super::bounds::{magnitudes, stored, unit_roundoff};
use super::scalar::{most, whole_number};
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters, joined};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// The last two extents of a shape, and those before.
fn matrix<'a>(layout: &'a Layout, name: &str) -> Result<(&'a [u64], u64, u64), Misfit> {
    match layout.shape() {
        [outer @ .., rows, columns] => Ok((outer, *rows, *columns)),
        shape => Err(Misfit::new(
            format!("{name} is {shape:?}"),
            "at least two dimensions",
        )),
    }
}

// Cross products.

fn cross_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (x, y) = (operands[0].shape(), operands[1].shape());
    let axis = op.axis_of(x.len())?;
    if x != y || x[axis] != 3 {
        let what = format!("{x:?} and {y:?} along axis {axis}");
        return Err(Misfit::new(
            what,
            "one shape with 3 elements along the axis",
        ));
    }
    Ok(vec![(operands[0].dtype(), x.to_vec())])
}

fn cross(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [x, y] = [0, 1].map(|at| program.input(at));
    let to = program.output(0);
    let axis = first_axis(op, to.shape().len());
    let views = [x.move_last(axis)?, y.move_last(axis)?, to.move_last(axis)?];
    pairs::cross(program, [&views[0], &views[1], &views[2]])
}

fn cross_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = results[0].dtype();
    let real = ApproxType::of(dtype);
    let axis = first_axis(op, results[0].shape().len());
    by_index(&results[0], |index| {
        let at = |array: &HostArray, beyond: u64| {
            let mut own = index.clone();
            own[axis] = (own[axis] + beyond) % 3;
            real.exact(array.at(&own))
        };
        let value = at(&x[0], 1) * at(&x[1], 2) - at(&x[0], 2) * at(&x[1], 1);
        value.stored(dtype)
    })
}

// Diagonals.

fn offset(op: &OpParameters) -> Result<i64, Misfit> {
    whole_number(op, "offset")
}

/// Number of elements on a diagonal.
fn on_diagonal(rows: u64, columns: u64, offset: i64) -> u64 {
    let beyond = offset.unsigned_abs();
    match offset >= 0 {
        true => rows.min(columns.saturating_sub(beyond)),
        false => rows.saturating_sub(beyond).min(columns),
    }
}

fn diagonal_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (outer, rows, columns) = matrix(&operands[0], "x")?;
    let count = on_diagonal(rows, columns, offset(op)?);
    let last: &[u64] = if op.name() == "trace" { &[] } else { &[count] };
    Ok(vec![(operands[0].dtype(), [outer, last].concat())])
}

fn diagonal(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    let x = x.diagonal(op.number_of("offset") as i64)?;
    match op.name() {
        "trace" => pairs::row_sums(program, &x, &to),
        _ => copy::elements(program, &x, &to),
    }
}

/// The elements on a diagonal of the matrix at an index.
fn diagonal_of(op: &OpParameters, x: &HostArray, outer: &[u64]) -> Vec<f64> {
    let offset = op.number_of("offset") as i64;
    let [.., rows, columns] = x.shape[..] else {
        return Vec::new();
    };
    let [down, across] = [(-offset).max(0) as u64, offset.max(0) as u64];
    let all = 0..on_diagonal(rows, columns, offset);
    all.map(|at| x.at(&[outer, &[at + down, at + across]].concat()))
        .collect()
}

fn diagonal_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = results[0].dtype();
    by_index(&results[0], |index| {
        if op.name() == "trace" {
            let real = ApproxType::of(dtype);
            let all = diagonal_of(op, &x[0], index).into_iter();
            return real.sum(all.map(|value| real.exact(value))).stored(dtype);
        }
        let (at, outer) = (index[index.len() - 1], &index[..index.len() - 1]);
        (diagonal_of(op, &x[0], outer)[at as usize], 0.0)
    })
}

fn embed_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let Some((length, outer)) = operands[0].shape().split_last() else {
        return Err(Misfit::new("x has no dimensions", "one or more"));
    };
    let extent = length.checked_add(offset(op)?.unsigned_abs());
    let Some(extent) = extent.filter(|_| outer.len() + 2 <= MAX_RANK) else {
        let what = format!("matrices of {:?}", operands[0].shape());
        return Err(Misfit::new(what, format!("at most {MAX_RANK} dimensions")));
    };
    Ok(vec![(
        operands[0].dtype(),
        [outer, &[extent, extent]].concat(),
    )])
}

fn embed(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    copy::fill(program, &to, 0);
    let to = to.diagonal(op.number_of("offset") as i64)?;
    copy::elements(program, &x, &to)
}

fn embed_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let offset = op.number_of("offset") as i64;
    by_index(&results[0], |index| {
        let [outer @ .., row, column] = &index[..] else {
            return (0.0, 0.0);
        };
        let at = row.min(column);
        match *column as i64 - *row as i64 == offset {
            true => (x[0].at(&[outer, &[*at]].concat()), 0.0),
            false => (0.0, 0.0),
        }
    })
}

// Products of all pairs.

fn kron_results(_: &OpParameters, operands: &[Layout]) -> RowResults {
    let (x, y) = (operands[0].shape(), operands[1].shape());
    if x.len() != y.len() || 2 * x.len() > MAX_RANK {
        let what = format!("{x:?} and {y:?}");
        return Err(Misfit::new(
            what,
            format!("as many dimensions, at most {}", MAX_RANK / 2),
        ));
    }
    let shape = x.iter().zip(y).map(|(a, b)| a.checked_mul(*b));
    let shape: Option<Vec<u64>> = shape.collect();
    let shape = shape.ok_or_else(|| Misfit::new("a result beyond 64 bits", "smaller operands"))?;
    Ok(vec![(operands[0].dtype(), shape)])
}

fn kron(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [x, y] = [0, 1].map(|at| program.input(at));
    let to = program.output(0);
    let own = x.shape().iter().zip(y.shape());
    let whole: Vec<u64> = own.clone().flat_map(|(a, b)| [*a, *b]).collect();
    let of_x: Vec<u64> = own.clone().flat_map(|(a, _)| [*a, 1]).collect();
    let of_y: Vec<u64> = own.flat_map(|(_, b)| [1, *b]).collect();
    let views = [x.reshape(&of_x)?, y.reshape(&of_y)?, to.reshape(&whole)?];
    maths::apply(
        program,
        ElementFunction::Product,
        &[&views[0], &views[1]],
        &views[2],
    )
}

fn kron_expected(
    _: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = results[0].dtype();
    let real = ApproxType::of(dtype);
    by_index(&results[0], |index| {
        let inner = &x[1].shape;
        let outer: Vec<u64> = index.iter().zip(inner).map(|(at, len)| at / len).collect();
        let inner: Vec<u64> = index.iter().zip(inner).map(|(at, len)| at % len).collect();
        let value = real.exact(x[0].at(&outer)) * real.exact(x[1].at(&inner));
        value.stored(dtype)
    })
}

// Distances.

fn distance_norm(op: &OpParameters) -> DistanceNorm {
    match op.number_of("p") {
        1.0 => DistanceNorm::Sum,
        2.0 => DistanceNorm::Root,
        f64::INFINITY => DistanceNorm::Largest,
        power => DistanceNorm::Power(power),
    }
}

fn distance_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let power = op.number_of("p");
    if power.is_nan() || power <= 0.0 || (power.is_finite() && !(1e-3..=1e3).contains(&power)) {
        let what = format!("a norm of {power}");
        return Err(Misfit::new(
            what,
            "a number from 0.001 to 1000, or infinity",
        ));
    }
    let (outer, rows, length) = matrix(&operands[0], "x")?;
    let (other, columns, own) = matrix(&operands[1], "y")?;
    if length != own || outer.len() + 3 > MAX_RANK || other.len() + 3 > MAX_RANK {
        let what = format!("{:?} and {:?}", operands[0].shape(), operands[1].shape());
        return Err(Misfit::new(
            what,
            "rows of one length, in at most 7 dimensions",
        ));
    }
    let outer = joined(outer, other).ok_or_else(|| {
        let what = format!("{outer:?} and {other:?} are no shapes to broadcast");
        Misfit::new(what, "extents that are equal or 1 before the last two")
    })?;
    Ok(vec![(
        operands[0].dtype(),
        [&outer[..], &[rows, columns]].concat(),
    )])
}

fn distance(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [x, y] = [0, 1].map(|at| program.input(at));
    let to = program.output(0);
    pairs::distances(program, distance_norm(op), [&x, &y, &to])
}

fn distance_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = results[0].dtype();
    let (unit, power) = (unit_roundoff(dtype), op.number_of("p"));
    let length = x[0].shape.last().copied().unwrap_or_default();
    let (largest, least) = magnitudes(dtype);
    by_index(&results[0], |index| {
        let [outer @ .., row, column] = &index[..] else {
            return (0.0, 0.0);
        };
        let apart = (0..length).map(|at| {
            let a = x[0].at(&[outer, &[*row, at]].concat());
            (a - x[1].at(&[outer, &[*column, at]].concat())).abs()
        });
        let apart: Vec<f64> = apart.collect();
        let all = || apart.iter().copied();
        if power == f64::INFINITY {
            let value = all().fold(0.0, most);
            return stored(dtype, value, 2.0 * unit * value);
        }
        let sum: f64 = all().map(|it| it.powf(power)).sum();
        // No term overflows, nor is one lost that counts.
        let is_inside = sum == 0.0 || sum < largest * 1e-3 && sum > least * 1e12 * length as f64;
        let value = sum.powf(1.0 / power);
        // Differences have one rounding, powers and their root some more.
        let terms = length as f64 + power + 32.0;
        let relative = 2.0 * unit * (terms / power + 32.0);
        match is_inside {
            true => stored(dtype, value, relative * value),
            false => (value, f64::INFINITY),
        }
    })
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Algebra "cross" ("x", "y") Floats {} ["axis"] {}
        "cuda.pairs", cross_results, cross, cross_expected,
        "cross products of vectors of three elements along an axis"),
    native!(Algebra "diagonal" ("x") All { "offset": 0.0 } [] {}
        "cuda.pairs", diagonal_results, diagonal, diagonal_expected,
        "elements on a diagonal of matrices, `offset` columns behind the main one"),
    native!(Algebra "diag_embed" ("x") All { "offset": 0.0 } [] {}
        "cuda.pairs", embed_results, embed, embed_expected,
        "matrices with x on a diagonal, 0 elsewhere"),
    native!(Algebra "trace" ("x") Floats { "offset": 0.0 } [] {}
        "cuda.pairs", diagonal_results, diagonal, diagonal_expected,
        "sums of the elements on a diagonal of matrices"),
    native!(Algebra "kron" ("x", "y") Floats {} [] {}
        "cuda.pairs", kron_results, kron, kron_expected,
        "products of all pairs: Kronecker's product of as many dimensions"),
    native!(Algebra "cdist" ("x", "y") Floats { "p": 2.0 } [] {}
        "cuda.pairs", distance_results, distance, distance_expected,
        "distances by the norm p of each row of x[.., rows, length] from each of y[.., columns, length]"),
];
