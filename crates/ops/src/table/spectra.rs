//! Rows of eigenvalues and singular values.
//!
//! The kernel's results are those of a matrix that is as far from the operand as its rotations
//! round: 12 unit roundoffs of the 2-norm in each of at most ten sweeps of rounds, and what is left
//! to rotate. Values differ by no more than that (Weyl), vectors by that over the distance of their
//! value from the others (Davis and Kahan). The references rotate one pair after another, for
//! singular values those of the symmetric matrix of `x` and its transpose beside its diagonal.
//! Nothing is promised of a vector whose value is too near to another, or whose sign hangs on
//! roundings.

use fercuda_kernels::algebra::MatrixTriangle;
use fercuda_kernels::{KernelError, NativeProgram, jacobi};
use fercuda_tensor::{Dtype, Layout};

use super::algebra::{TRIANGLES, each, matrices, square, triangle};
use super::bounds::{magnitudes, rounded, unit_roundoff};
use super::dense::HostMatrix;
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, native};

type SpectrumResults = Result<Vec<(Dtype, Vec<u64>)>, Misfit>;
type SpectrumLowered = Result<(), KernelError>;

/// Roundings of the rotations of a matrix, in unit roundoffs for each row and column.
const ROUNDINGS: f64 = 125.0;
/// Largest relative error of a vector for which the first order is enough.
const FIRST_ORDER: f64 = 0.1;

fn results(op: &OpParameters, operands: &[Layout]) -> SpectrumResults {
    let (x, dtype) = (&operands[0], operands[0].dtype());
    let of = |outer: &[u64], last: &[u64]| (dtype, [outer, last].concat());
    if op.name() == "eigh" {
        let (outer, extent) = square("x", x)?;
        return Ok(vec![of(outer, &[extent]), of(outer, &[extent, extent])]);
    }
    let (outer, rows, columns) = matrices("x", x)?;
    let count = rows.min(columns);
    Ok(vec![
        of(outer, &[rows, count]),
        of(outer, &[count]),
        of(outer, &[count, columns]),
    ])
}

fn lower(op: &OpParameters, program: &mut NativeProgram) -> SpectrumLowered {
    let (x, first, second) = (program.input(0), program.output(0), program.output(1));
    if op.name() == "eigh" {
        return jacobi::symmetric(program, triangle(op), &x, &first, &second);
    }
    let vh = program.output(2);
    jacobi::singular(program, &x, [&first, &second, &vh])
}

/// Eigenvalues of a symmetric matrix in ascending order, and vectors as columns.
fn eigen(x: &HostMatrix) -> (Vec<f64>, HostMatrix) {
    let n = x.rows;
    let (mut a, mut v) = (x.clone(), HostMatrix::identity(n));
    let least = x.norm() * 1e-19;
    for _ in 0..60 {
        let pairs = (0..n).flat_map(|p| (p + 1..n).map(move |q| (p, q)));
        let mut is_done = true;
        for (p, q) in pairs {
            let across = a.at(p, q);
            if across.abs() <= least || !across.is_finite() {
                continue;
            }
            is_done = false;
            // Half of the angle whose tangent this is.
            let (s, c) = (0.5 * (2.0 * across).atan2(a.at(q, q) - a.at(p, p))).sin_cos();
            let turned = |x: f64, y: f64| (c * x - s * y, s * x + c * y);
            for k in 0..n {
                let (x, y) = turned(a.at(p, k), a.at(q, k));
                a.set(p, k, x);
                a.set(q, k, y);
            }
            for k in 0..n {
                let (x, y) = turned(a.at(k, p), a.at(k, q));
                a.set(k, p, x);
                a.set(k, q, y);
                let (x, y) = turned(v.at(k, p), v.at(k, q));
                v.set(k, p, x);
                v.set(k, q, y);
            }
            // It is 0 but for roundings.
            a.set(p, q, 0.0);
            a.set(q, p, 0.0);
        }
        if is_done {
            break;
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|i, j| a.at(*i, *i).total_cmp(&a.at(*j, *j)));
    let values = order.iter().map(|i| a.at(*i, *i)).collect();
    (values, HostMatrix::by(n, n, |i, j| v.at(i, order[j])))
}

/// The sign by which a vector's element of the largest magnitude is not negative, if that is
/// certain within an error.
fn sign(vector: &[f64], error: f64) -> Option<f64> {
    let most = vector.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    let near = || vector.iter().filter(|x| x.abs() >= most - 4.0 * error);
    match (near().all(|x| *x > 0.0), near().all(|x| *x < 0.0)) {
        (true, _) => Some(1.0),
        (_, true) => Some(-1.0),
        _ => None,
    }
}

/// Elements of a vector, with their error if it is small enough.
fn vector(dtype: Dtype, values: &[f64], factor: Option<f64>, error: f64) -> Vec<ExpectedElement> {
    let element = |x: &f64| match factor {
        Some(factor) if error < FIRST_ORDER => rounded(dtype, factor * x, error),
        _ => (*x, f64::INFINITY),
    };
    values.iter().map(element).collect()
}

/// The error of values, if squares cannot overflow or underflow.
fn value_error(dtype: Dtype, x: &HostMatrix, extent: usize) -> f64 {
    let (norm, (most, least)) = (x.norm(), magnitudes(dtype));
    let is_inside = norm == 0.0 || norm < most.sqrt() / 4.0 && norm * norm > least * 1e6;
    match is_inside {
        true => ROUNDINGS * extent as f64 * unit_roundoff(dtype) * norm,
        false => f64::INFINITY,
    }
}

/// Values within an error.
fn values(dtype: Dtype, all: &[f64], error: f64) -> Vec<ExpectedElement> {
    let element = |value: &f64| match error.is_finite() {
        true => rounded(dtype, *value, error),
        false => (*value, f64::INFINITY),
    };
    all.iter().map(element).collect()
}

/// The elements of vectors that are columns, row after row.
fn columns(all: &[Vec<ExpectedElement>], rows: usize) -> Vec<ExpectedElement> {
    let row = |i: usize| all.iter().map(move |vector| vector[i]);
    (0..rows).flat_map(row).collect()
}

/// The smallest distance of a value from the others.
fn gap(all: &[f64], at: usize) -> f64 {
    let others = all.iter().enumerate().filter(|(other, _)| *other != at);
    let distances = others.map(|(_, other)| (other - all[at]).abs());
    distances.fold(f64::INFINITY, f64::min)
}

fn eigh(op: &OpParameters, x: &[HostArray], _: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let is_upper = triangle(op) == MatrixTriangle::Upper;
    let dtype = x[0].dtype;
    each(&x[0], 2, |x| {
        let n = x.rows;
        let own = HostMatrix::by(n, n, |i, j| match (j > i) == is_upper {
            true => x.at(i, j),
            false => x.at(j, i),
        });
        if !own.norm().is_finite() {
            let is_nan = own.values.iter().any(|x| !x.is_finite());
            let all = (f64::NAN, if is_nan { 0.0 } else { f64::INFINITY });
            return vec![vec![all; n], vec![all; n * n]];
        }
        let (found, vectors) = eigen(&own);
        let error = value_error(dtype, &own, n);
        let of_vector = |j: usize| {
            let own: Vec<f64> = (0..n).map(|i| vectors.at(i, j)).collect();
            let roundings = ROUNDINGS * n as f64 * unit_roundoff(dtype);
            let of_own = 2.0 * error / gap(&found, j) + roundings;
            vector(dtype, &own, sign(&own, of_own), of_own)
        };
        let all: Vec<_> = (0..n).map(of_vector).collect();
        vec![values(dtype, &found, error), columns(&all, n)]
    })
}

fn svd(_: &OpParameters, x: &[HostArray], _: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let dtype = x[0].dtype;
    each(&x[0], 3, |x| {
        let (m, n) = (x.rows, x.columns);
        let count = m.min(n);
        if !x.norm().is_finite() {
            let is_nan = x.values.iter().any(|x| !x.is_finite());
            let all = (f64::NAN, if is_nan { 0.0 } else { f64::INFINITY });
            return [m * count, count, count * n]
                .map(|len| vec![all; len])
                .into();
        }
        // Its eigenvalues are the singular values, their opposites and 0.
        let both = HostMatrix::by(m + n, m + n, |i, j| match (i < m, j < m) {
            (true, false) => x.at(i, j - m),
            (false, true) => x.at(j, i - m),
            _ => 0.0,
        });
        let (all, vectors) = eigen(&both);
        let found: Vec<f64> = all.iter().rev().take(count).map(|x| x.max(0.0)).collect();
        let long = m.max(n);
        let error = value_error(dtype, x, count + long);
        let pair = |at: usize| {
            let column = m + n - 1 - at;
            let part = |from: usize, len: usize| -> Vec<f64> {
                let all = (from..from + len).map(|i| vectors.at(i, column));
                all.map(|x| x * std::f64::consts::SQRT_2).collect()
            };
            let (left, right) = (part(0, m), part(m, n));
            let roundings = ROUNDINGS * (count + long) as f64 * unit_roundoff(dtype);
            let own = 3.0 * error / gap(&found, at).min(found[at]) + roundings;
            let factor = sign(&right, own);
            (
                vector(dtype, &left, factor, own),
                vector(dtype, &right, factor, own),
            )
        };
        let (left, right): (Vec<_>, Vec<_>) = (0..count).map(pair).unzip();
        vec![
            columns(&left, m),
            values(dtype, &found, error),
            right.concat(),
        ]
    })
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Algebra "eigh" ("x") Floats {} []
        { results: &["values", "vectors"], choices: &[TRIANGLES] }
        "cuda.jacobi", results, lower, eigh,
        "eigenvalues of symmetric matrices in ascending order, of which one triangle is read, and unit vectors as columns, whose largest element is not negative; all NaN of a matrix that is not finite"),
    native!(Algebra "svd" ("x") Floats {} [] { results: &["u", "values", "vh"] }
        "cuda.jacobi", results, lower, svd,
        "singular values in descending order, with left vectors as columns and right ones as rows, whose largest element is not negative; all NaN of a matrix that is not finite"),
];
