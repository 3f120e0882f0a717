//! Rows that singular values give: inverses of any matrices, ranks; and covariances of rows.

use fercuda_kernels::maths::{self, ElementFunction};
use fercuda_kernels::multiply::{ProductEpilogue, ProductKernel, matrices as product};
use fercuda_kernels::norm::{self, NormSpec, NormStatistics};
use fercuda_kernels::{KernelError, MemoryView, NativeProgram, copy, jacobi, pairs};
use fercuda_tensor::{Dtype, Layout};

use super::algebra::{bounded, each, matrices};
use super::approx::{Approx, ApproxType};
use super::bounds::unit_roundoff;
use super::dense::{HostMatrix, orthogonal};
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// The roundings of rotations, as for `svd`.
const ROUNDINGS: f64 = 125.0;
/// Largest relative error for which the first order is enough.
const FIRST_ORDER: f64 = 0.1;

/// The part of the largest singular value above which one counts.
fn part(op: &OpParameters, dtype: Dtype, [rows, columns]: [u64; 2]) -> f64 {
    match op.number_of("rtol") {
        0.0 => 2.0 * rows.max(columns) as f64 * unit_roundoff(dtype),
        part => part,
    }
}

fn results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let x = &operands[0];
    let (outer, rows, columns) = matrices("x", x)?;
    let of = |last: &[u64]| [outer, last].concat();
    Ok(match op.name() {
        "cov" | "corrcoef" => {
            let correction = op.number_of("correction");
            if !correction.is_finite() {
                let what = format!("a correction of {correction}");
                return Err(Misfit::new(what, "a number"));
            }
            vec![(x.dtype(), of(&[rows, rows]))]
        }
        name => {
            let rtol = op.number_of("rtol");
            if !(0.0..1.0).contains(&rtol) {
                let what = format!("an rtol of {rtol}");
                return Err(Misfit::new(what, "0 for the type's, or a part below 1"));
            }
            match name {
                "pinv" => vec![(x.dtype(), of(&[columns, rows]))],
                _ => vec![(Dtype::I64, outer.to_vec())],
            }
        }
    })
}

/// Singular values and vectors in the workspace.
fn singular(program: &mut NativeProgram, x: &MemoryView) -> Result<[MemoryView; 3], KernelError> {
    let [outer @ .., rows, columns] = x.shape() else {
        return copy::unwritten(program, x.dtype(), &[]).map(|view| [view; 3]);
    };
    let count = rows.min(columns);
    let part = |program: &mut NativeProgram, last: &[u64]| {
        copy::unwritten(program, x.dtype(), &[outer, last].concat())
    };
    let u = part(program, &[*rows, *count])?;
    let values = part(program, &[*count])?;
    let vh = part(program, &[*count, *columns])?;
    jacobi::singular(program, x, [&u, &values, &vh])?;
    Ok([u, values, vh])
}

/// The largest singular value of each matrix, for each of them.
fn largest(values: &MemoryView) -> Result<MemoryView, KernelError> {
    let last = values.shape().len() - 1;
    let first = values.slice(last, 0..1, 1)?;
    Ok(first.broadcast(values.shape())?)
}

fn turned(view: &MemoryView) -> Result<MemoryView, KernelError> {
    let rank = view.shape().len();
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 2, rank - 1);
    Ok(view.permute(&order)?)
}

fn pinv(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    let x = maths::computed(program, &x)?;
    if to.layout().is_empty() {
        return Ok(());
    }
    let result = maths::computed_result(program, &to)?;
    let [.., rows, columns] = *x.shape() else {
        return Ok(());
    };
    let [u, values, vh] = singular(program, &x)?;
    let part = part(op, x.dtype(), [rows, columns]).to_bits();
    let inverses = copy::unwritten(program, x.dtype(), values.shape())?;
    let inverse = ElementFunction::InverseAbove(part);
    maths::apply(program, inverse, &[&values, &largest(&values)?], &inverses)?;
    // The right vectors as columns, each by its inverse.
    let right = turned(&vh)?;
    let scaled = copy::unwritten(program, x.dtype(), right.shape())?;
    let mut single = inverses.shape().to_vec();
    single.insert(single.len() - 1, 1);
    let inverses = inverses.reshape(&single)?;
    maths::apply(
        program,
        ElementFunction::Product,
        &[&right, &inverses],
        &scaled,
    )?;
    let left = turned(&u)?;
    let plain = ProductEpilogue::default();
    product(
        program,
        ProductKernel::Threads,
        [&scaled, &left, &result],
        plain,
    )?;
    maths::narrow(program, &result, &to)
}

fn rank(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    let x = maths::computed(program, &x)?;
    let [.., rows, columns] = *x.shape() else {
        return Ok(());
    };
    if rows.min(columns) == 0 {
        copy::fill(program, &to, 0);
        return Ok(());
    }
    let [_, values, _] = singular(program, &x)?;
    let part = part(op, x.dtype(), [rows, columns]).to_bits();
    let counted = copy::unwritten(program, Dtype::I64, values.shape())?;
    let is_above = ElementFunction::IsAbove(part);
    maths::apply(program, is_above, &[&values, &largest(&values)?], &counted)?;
    pairs::row_sums(program, &counted, &to)
}

/// The inverse of a matrix of full rank by its orthonormal columns, and the error of a singular
/// value; nothing of one that is not of full rank.
fn inverse_of(dtype: Dtype, x: &HostMatrix) -> Option<(HostMatrix, f64)> {
    let is_wide = x.rows < x.columns;
    let long = if is_wide { x.transposed() } else { x.clone() };
    let [q, r] = orthogonal(&long);
    let inverse = r.inverse()?.product(&q.transposed());
    let roundings = ROUNDINGS * (x.rows + x.columns) as f64 * unit_roundoff(dtype);
    let near = roundings * x.norm();
    let inverse = if is_wide {
        inverse.transposed()
    } else {
        inverse
    };
    (inverse.norm() * near < FIRST_ORDER).then_some((inverse, near))
}

fn pinv_expected(op: &OpParameters, x: &[HostArray], _: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let dtype = x[0].dtype;
    each(&x[0], 1, |x| {
        let extents = [x.rows as u64, x.columns as u64];
        let unknown = HostMatrix::by(x.columns, x.rows, |_, _| f64::NAN);
        let Some((inverse, near)) = inverse_of(dtype, x) else {
            return vec![bounded(dtype, &unknown, None)];
        };
        let size = inverse.norm();
        // Every singular value counts, also with its error.
        let counts = 1.0 / size > 2.0 * (part(op, dtype, extents) * x.norm() + near);
        let vectors = ROUNDINGS * (x.rows + x.columns) as f64 * unit_roundoff(dtype);
        let error = 4.0 * (size * size * near + size * vectors);
        let errors = inverse.map(|_| error);
        vec![bounded(dtype, &inverse, counts.then_some(&errors))]
    })
}

fn rank_expected(op: &OpParameters, x: &[HostArray], _: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let dtype = x[0].dtype;
    each(&x[0], 1, |x| {
        let extents = [x.rows as u64, x.columns as u64];
        let full = x.rows.min(x.columns) as f64;
        let is_full = full == 0.0
            || inverse_of(dtype, x).is_some_and(|(inverse, near)| {
                1.0 / inverse.norm() > 2.0 * (part(op, dtype, extents) * x.norm() + near)
            });
        let is_zero = x.values.iter().all(|x| *x == 0.0);
        let value = if is_zero { 0.0 } else { full };
        vec![vec![(
            value,
            if is_full || is_zero {
                0.0
            } else {
                f64::INFINITY
            },
        )]]
    })
}

// Covariances.

fn covariance(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    let x = maths::computed(program, &x)?;
    let result = maths::computed_result(program, &to)?;
    let is_scaled = op.name() == "corrcoef";
    let last = x.shape().len() - 1;
    let spec = NormSpec {
        groups: (0..last).collect(),
        channels: vec![last],
        is_centred: true,
        is_scaled,
        eps: 0.0,
    };
    let centred = copy::unwritten(program, x.dtype(), x.shape())?;
    norm::normalise(
        program,
        &spec,
        [&x, &centred],
        [None; 2],
        NormStatistics::Computed,
    )?;
    let epilogue = ProductEpilogue {
        scale: Some(1.0 / divisor(op, x.shape()[last])),
        ..ProductEpilogue::default()
    };
    let views = [&centred, &turned(&centred)?, &result];
    product(program, ProductKernel::Threads, views, epilogue)?;
    maths::narrow(program, &result, &to)
}

/// What sums of products are divided by.
fn divisor(op: &OpParameters, count: u64) -> f64 {
    (count as f64 - op.number_of("correction")).max(0.0)
}

fn covariance_expected(
    op: &OpParameters,
    x: &[HostArray],
    _: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = x[0].dtype;
    let real = ApproxType::of(dtype);
    each(&x[0], 1, |x| {
        let count = real.number(x.columns as f64);
        let row = |i: usize| -> Vec<Approx> {
            let own = || (0..x.columns).map(|j| real.exact(x.at(i, j)));
            let mean = real.sum(own()) / count;
            let centred: Vec<Approx> = own().map(|x| x - mean).collect();
            if op.name() != "corrcoef" {
                return centred;
            }
            let variance = real.sum(centred.iter().map(|x| *x * *x)) / count;
            let by = real.exact(1.0) / variance.sqrt();
            centred.into_iter().map(|x| x * by).collect()
        };
        let rows: Vec<Vec<Approx>> = (0..x.rows).map(row).collect();
        let scale = real.number(1.0 / divisor(op, x.columns as u64));
        let mut all = Vec::new();
        for a in &rows {
            for b in &rows {
                let sum = real.sum(a.iter().zip(b).map(|(a, b)| *a * *b));
                all.push((sum * scale).stored(dtype));
            }
        }
        vec![all]
    })
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Algebra "pinv" ("x") Floats { "rtol": 0.0 } [] {}
        "cuda.jacobi", results, pinv, pinv_expected,
        "inverses of matrices of any extents, without the singular values of at most `rtol` times the largest; 0 stands for the larger extent by a unit in the last place of 1"),
    native!(Algebra "matrix_rank" ("x") Floats { "rtol": 0.0 } [] {}
        "cuda.jacobi", results, rank, rank_expected,
        "i64: numbers of singular values above `rtol` times the largest; 0 as for pinv"),
    native!(Algebra "cov" ("x") Floats { "correction": 1.0 } [] {}
        "cuda.norm", results, covariance, covariance_expected,
        "covariances of the rows of x[.., variables, observations]: sums of products by their number less `correction`"),
    native!(Algebra "corrcoef" ("x") Floats {} [] {}
        "cuda.norm", results, covariance, covariance_expected,
        "correlations of the rows of x[.., variables, observations]"),
];
