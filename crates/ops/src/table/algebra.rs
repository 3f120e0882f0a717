//! Rows of linear algebra of the last two dimensions.
//!
//! A bound is that of the matrix near to the operand whose exact result the device gives, to first
//! order: the error of the factors' product, a number of roundings by the extent times the product
//! of the factors' magnitudes (Higham, Accuracy and Stability, 8 to 10 and 19), carried to the
//! result by the inverse that the reference computes in f64, so by the matrix's condition. Where
//! the condition is so bad that the first order is not enough, nothing is promised.

use fercuda_kernels::algebra::{MatrixTriangle, TriangularSpec};
use fercuda_kernels::{KernelError, NativeProgram, algebra};
use fercuda_tensor::{Dtype, Layout};

use super::bounds::{magnitudes, rounded, unit_roundoff};
use super::dense::{HostFactors, HostMatrix, orthogonal};
use crate::arrays::{HostArray, indices};
use crate::parameters::{Misfit, OpParameters, joined};
use crate::row::{ExpectedElement, OpRow, native};

type AlgebraResults = Result<Vec<(Dtype, Vec<u64>)>, Misfit>;
type AlgebraLowered = Result<(), KernelError>;
type AlgebraExpected = Vec<Vec<ExpectedElement>>;

/// Largest relative error for which the first order is enough.
const FIRST_ORDER: f64 = 0.1;

/// Outer dimensions, rows and columns of matrices.
pub(super) fn matrices<'a>(
    name: &str,
    layout: &'a Layout,
) -> Result<(&'a [u64], u64, u64), Misfit> {
    match layout.shape() {
        [outer @ .., rows, columns] => Ok((outer, *rows, *columns)),
        shape => Err(Misfit::new(
            format!("{name} is {shape:?}, not matrices in the last two dimensions"),
            "an operand of at least two dimensions",
        )),
    }
}

pub(super) fn square<'a>(name: &str, layout: &'a Layout) -> Result<(&'a [u64], u64), Misfit> {
    match matrices(name, layout)? {
        (outer, rows, columns) if rows == columns => Ok((outer, rows)),
        (_, rows, columns) => Err(Misfit::new(
            format!("{name} has {rows} rows and {columns} columns"),
            "square matrices",
        )),
    }
}

pub(super) fn triangle(op: &OpParameters) -> MatrixTriangle {
    match op.choice_of("triangle") {
        "upper" => MatrixTriangle::Upper,
        _ => MatrixTriangle::Lower,
    }
}

fn results(op: &OpParameters, operands: &[Layout]) -> AlgebraResults {
    let x = &operands[0];
    let dtype = x.dtype();
    let joined_with = |outer: &[u64], last: &[u64]| [outer, last].concat();
    Ok(match op.name() {
        "lu" => {
            let (outer, rows, columns) = matrices("x", x)?;
            let pivots = joined_with(outer, &[rows.min(columns)]);
            vec![(dtype, x.shape().to_vec()), (Dtype::I64, pivots)]
        }
        "qr" => {
            let (outer, rows, columns) = matrices("x", x)?;
            let steps = rows.min(columns);
            vec![
                (dtype, joined_with(outer, &[rows, steps])),
                (dtype, joined_with(outer, &[steps, columns])),
            ]
        }
        "determinant" => vec![(dtype, square("x", x)?.0.to_vec())],
        "slogdet" => vec![(dtype, square("x", x)?.0.to_vec()); 2],
        "solve" | "solve_triangular" => {
            let (outer, extent) = square("a", x)?;
            let (of_b, rows, columns) = matrices("b", &operands[1])?;
            if rows != extent {
                let what = format!("a has {extent} rows, b has {rows}");
                return Err(Misfit::new(what, "as many rows"));
            }
            let outer = joined(outer, of_b).ok_or_else(|| {
                let what = format!("{outer:?} and {of_b:?} are no shapes to broadcast");
                Misfit::new(what, "extents that are equal or 1, from the last one on")
            })?;
            vec![(dtype, joined_with(&outer, &[rows, columns]))]
        }
        _ => {
            square("x", x)?;
            vec![(dtype, x.shape().to_vec())]
        }
    })
}

fn triangular_spec(op: &OpParameters) -> TriangularSpec {
    TriangularSpec {
        triangle: triangle(op),
        is_transposed: op.choice_of("transposed") == "yes",
        is_unit: op.choice_of("diagonal") == "unit",
    }
}

fn lower(op: &OpParameters, program: &mut NativeProgram) -> AlgebraLowered {
    let (x, out) = (program.input(0), program.output(0));
    match op.name() {
        "cholesky" => algebra::cholesky(program, triangle(op), &x, &out),
        "solve_triangular" => {
            let right = program.input(1);
            algebra::solve_triangular(program, triangular_spec(op), &x, &right, &out)
        }
        "lu" => {
            let pivots = program.output(1);
            algebra::factors(program, &x, &out, &pivots)
        }
        "solve" => {
            let right = program.input(1);
            algebra::solve(program, &x, Some(&right), &out)
        }
        "inverse" => algebra::solve(program, &x, None, &out),
        "slogdet" => {
            let logarithms = program.output(1);
            algebra::determinant(program, &x, &out, Some(&logarithms))
        }
        "qr" => {
            let triangle = program.output(1);
            algebra::orthogonal(program, &x, &out, &triangle)
        }
        _ => algebra::determinant(program, &x, &out, None),
    }
}

/// Values with their errors; nothing is promised if these are too large, or not known.
pub(super) fn bounded(
    dtype: Dtype,
    values: &HostMatrix,
    errors: Option<&HostMatrix>,
) -> Vec<ExpectedElement> {
    let errors = errors.map(|errors| errors.values.as_slice());
    let element = |(at, value): (usize, &f64)| match errors.map(|errors| errors[at]) {
        Some(error) if error.is_finite() => rounded(dtype, *value, error),
        _ => (*value, f64::INFINITY),
    };
    values.values.iter().enumerate().map(element).collect()
}

/// Results of each matrix, one after the other.
pub(super) fn each(
    x: &HostArray,
    results: usize,
    f: impl Fn(&HostMatrix) -> Vec<Vec<ExpectedElement>>,
) -> AlgebraExpected {
    let outer = &x.shape[..x.shape.len() - 2];
    let mut all = vec![Vec::new(); results];
    for index in indices(outer) {
        for (to, own) in all.iter_mut().zip(f(&HostMatrix::of(x, &index))) {
            to.extend(own);
        }
    }
    all
}

fn cholesky(op: &OpParameters, x: &[HostArray], _: &[Layout]) -> AlgebraExpected {
    let is_upper = triangle(op) == MatrixTriangle::Upper;
    let dtype = x[0].dtype;
    each(&x[0], 1, |x| {
        let x = if is_upper { x.transposed() } else { x.clone() };
        let (lower, errors) = cholesky_lower(dtype, &x);
        let errors = errors.as_ref();
        let errors = errors.map(|it| {
            if is_upper {
                it.transposed()
            } else {
                it.clone()
            }
        });
        let lower = if is_upper { lower.transposed() } else { lower };
        vec![bounded(dtype, &lower, errors.as_ref())]
    })
}

/// The lower factor of a matrix's lower triangle, row after row, and its errors.
fn cholesky_lower(dtype: Dtype, x: &HostMatrix) -> (HostMatrix, Option<HostMatrix>) {
    let (n, u) = (x.rows, unit_roundoff(dtype));
    let mut lower = HostMatrix::by(n, n, |_, _| 0.0);
    let largest = (0..n).map(|i| x.at(i, i).abs()).fold(0.0, f64::max);
    let (mut least, mut failed) = (f64::INFINITY, n);
    for i in 0..n {
        for j in 0..=i {
            let sum: f64 = (0..j).map(|k| lower.at(i, k) * lower.at(j, k)).sum();
            let left = x.at(i, j) - sum;
            lower.set(
                i,
                j,
                match i == j {
                    true => left.sqrt(),
                    false => left / lower.at(j, j),
                },
            );
            if i == j && (left.is_nan() || left <= 0.0) {
                failed = failed.min(i);
            }
            if i == j && i <= failed {
                least = least.min(left.abs());
            }
        }
    }
    // Too near to 0 to know its sign.
    let is_certain = n == 0 || least > 1e3 * n as f64 * u * largest;
    if !is_certain {
        return (lower, None);
    }
    if failed < n {
        let nan = |i: usize, j: usize| match j >= failed && i >= j {
            true => f64::NAN,
            false => lower.at(i, j),
        };
        // Above the diagonal it is 0, and before that column nothing is promised.
        let error = |i: usize, j: usize| match j >= failed || j > i {
            true => 0.0,
            false => f64::INFINITY,
        };
        return (HostMatrix::by(n, n, nan), Some(HostMatrix::by(n, n, error)));
    }
    let Some(inverse) = lower.inverse() else {
        return (lower, None);
    };
    let (own, inverse) = (lower.magnitudes(), inverse.magnitudes());
    let near = own
        .product(&own.transposed())
        .map(|x| (n + 2) as f64 * u * x);
    let carried = inverse.product(&near).product(&inverse.transposed());
    if carried.row_norm() > FIRST_ORDER {
        return (lower, None);
    }
    let below = HostMatrix::by(n, n, |i, j| if j <= i { carried.at(i, j) } else { 0.0 });
    (lower, Some(own.product(&below)))
}

fn lu(_: &OpParameters, x: &[HostArray], _: &[Layout]) -> AlgebraExpected {
    let dtype = x[0].dtype;
    each(&x[0], 2, |x| {
        let factors = HostFactors::of(x);
        let errors = factor_errors(dtype, x, &factors);
        let place = |pivot: &usize| match errors {
            Some(_) => (*pivot as f64, 0.0),
            None => (*pivot as f64, f64::INFINITY),
        };
        let pivots = factors.pivots.iter().map(place).collect();
        vec![bounded(dtype, &factors.packed, errors.as_ref()), pivots]
    })
}

/// Errors of packed factors, if the choice of the pivots is certain.
fn factor_errors(dtype: Dtype, x: &HostMatrix, factors: &HostFactors) -> Option<HostMatrix> {
    let (rows, columns) = (x.rows, x.columns);
    let steps = rows.min(columns) as f64;
    let u = unit_roundoff(dtype);
    let [lower, upper] = factors.square();
    let largest = lower.magnitudes().product(&upper.magnitudes()).row_norm();
    let certain = 1e2 * (steps + 2.0) * u * largest;
    let is_certain = steps == 0.0 || factors.margin > certain && factors.least > certain;
    if !is_certain {
        return None;
    }
    let inverses = [lower.inverse()?.magnitudes(), upper.inverse()?.magnitudes()];
    let (lower, upper) = (lower.magnitudes(), upper.magnitudes());
    let near = lower.product(&upper).map(|x| (steps + 2.0) * u * x);
    let carried = inverses[0].product(&near).product(&inverses[1]);
    if carried.row_norm() > FIRST_ORDER {
        return None;
    }
    let n = carried.rows;
    let part = |is_below: bool| {
        HostMatrix::by(n, n, |i, j| {
            if (j < i) == is_below {
                carried.at(i, j)
            } else {
                0.0
            }
        })
    };
    let (of_lower, of_upper) = (lower.product(&part(true)), part(false).product(&upper));
    let error = |i: usize, j: usize| match j < i {
        true => of_lower.at(i, j),
        false => of_upper.at(i, j),
    };
    Some(HostMatrix::by(rows, columns, error))
}

/// The magnitudes of an inverse times those of the matrices near to it that have the device's
/// result, relative to roundings; nothing if the matrix is too near to a singular one.
fn condition(dtype: Dtype, x: &HostMatrix, inverse: &HostMatrix) -> Option<HostMatrix> {
    let n = x.rows;
    let growth = HostFactors::of(x).growth();
    let most = growth.with(&x.magnitudes(), |a, b| 2.0 * a.max(b));
    let roundings = (3 * n + 2) as f64 * unit_roundoff(dtype);
    let all = inverse.magnitudes().product(&most).map(|x| roundings * x);
    (all.row_norm() < FIRST_ORDER).then_some(all)
}

fn solved(dtype: Dtype, x: &HostMatrix, right: &HostMatrix) -> Vec<ExpectedElement> {
    let unknown = HostMatrix::by(right.rows, right.columns, |_, _| f64::NAN);
    let Some(inverse) = x.inverse() else {
        return bounded(dtype, &unknown, None);
    };
    let solution = x.solved(&inverse, right);
    let errors = condition(dtype, x, &inverse);
    let errors = errors.map(|errors| errors.product(&solution.magnitudes()));
    bounded(dtype, &solution, errors.as_ref())
}

fn solve(_: &OpParameters, x: &[HostArray], results: &[Layout]) -> AlgebraExpected {
    let shape = results[0].shape();
    let outer = indices(&shape[..shape.len() - 2]);
    let all = outer.iter().flat_map(|index| {
        let [a, b] = [0, 1].map(|at| HostMatrix::of(&x[at], index));
        solved(x[0].dtype, &a, &b)
    });
    vec![all.collect()]
}

fn inverse(_: &OpParameters, x: &[HostArray], _: &[Layout]) -> AlgebraExpected {
    let dtype = x[0].dtype;
    each(&x[0], 1, |x| {
        vec![solved(dtype, x, &HostMatrix::identity(x.rows))]
    })
}

fn solve_triangular(op: &OpParameters, x: &[HostArray], results: &[Layout]) -> AlgebraExpected {
    let spec = triangular_spec(op);
    let shape = results[0].shape();
    let (dtype, outer) = (x[0].dtype, indices(&shape[..shape.len() - 2]));
    let all = outer.iter().flat_map(|index| {
        let [a, b] = [0, 1].map(|at| HostMatrix::of(&x[at], index));
        let n = a.rows;
        let own = |i: usize, j: usize| match spec.triangle {
            _ if i == j && spec.is_unit => 1.0,
            MatrixTriangle::Lower if j <= i => a.at(i, j),
            MatrixTriangle::Upper if j >= i => a.at(i, j),
            _ => 0.0,
        };
        let t = HostMatrix::by(n, n, own);
        let t = if spec.is_transposed {
            t.transposed()
        } else {
            t
        };
        let Some(inverse) = t.inverse() else {
            return bounded(dtype, &b, None);
        };
        let solution = t.solved(&inverse, &b);
        let roundings = (n + 2) as f64 * unit_roundoff(dtype);
        let near = inverse.magnitudes().product(&t.magnitudes());
        let near = near.map(|x| roundings * x);
        let errors = near.product(&solution.magnitudes());
        let is_known = near.row_norm() < FIRST_ORDER;
        bounded(dtype, &solution, is_known.then_some(&errors))
    });
    vec![all.collect()]
}

/// The pivots of a square matrix with the sign of its determinant, and this one's relative error.
fn pivots(dtype: Dtype, x: &HostMatrix) -> (Vec<f64>, f64, Option<f64>) {
    let factors = HostFactors::of(x);
    let exchanged = factors.pivots.iter().enumerate();
    let exchanged = exchanged.filter(|(at, pivot)| at != *pivot).count();
    let sign = if exchanged % 2 == 0 { 1.0 } else { -1.0 };
    let all: Vec<f64> = (0..x.rows).map(|i| factors.packed.at(i, i)).collect();
    let error = x.inverse().and_then(|inverse| {
        let near = condition(dtype, x, &inverse)?;
        let trace: f64 = (0..x.rows).map(|i| near.at(i, i)).sum();
        Some(trace + (x.rows + 2) as f64 * unit_roundoff(dtype))
    });
    (all, sign, error.filter(|error| *error < FIRST_ORDER))
}

fn determinant(_: &OpParameters, x: &[HostArray], _: &[Layout]) -> AlgebraExpected {
    let dtype = x[0].dtype;
    let (most, least) = magnitudes(dtype);
    each(&x[0], 1, |x| {
        let (all, sign, error) = pivots(dtype, x);
        let value = all.iter().fold(sign, |product, pivot| product * pivot);
        // No part of the product overflows or underflows.
        let logarithms = all.iter().map(|pivot| pivot.abs().ln());
        let above: f64 = logarithms.clone().map(|it| it.max(0.0)).sum();
        let below: f64 = logarithms.map(|it| it.min(0.0)).sum();
        let is_inside = above < most.ln() - 1.0 && below > least.ln() + 1.0;
        let error = error.filter(|_| is_inside);
        vec![vec![match error {
            Some(error) => rounded(dtype, value, error * value.abs()),
            None => (value, f64::INFINITY),
        }]]
    })
}

fn slogdet(_: &OpParameters, x: &[HostArray], _: &[Layout]) -> AlgebraExpected {
    let dtype = x[0].dtype;
    each(&x[0], 2, |x| {
        let (all, sign, error) = pivots(dtype, x);
        let sign = all.iter().fold(sign, |sign, pivot| sign * pivot.signum());
        let logarithms = all.iter().map(|pivot| pivot.abs().ln());
        let value: f64 = logarithms.clone().sum();
        let sizes: f64 = logarithms.map(f64::abs).sum();
        let of_sum = (x.rows + 4) as f64 * unit_roundoff(dtype) * sizes;
        vec![
            vec![(sign, error.map_or(f64::INFINITY, |_| 0.0))],
            vec![match error {
                Some(error) => rounded(dtype, value, 1.2 * error + of_sum),
                None => (value, f64::INFINITY),
            }],
        ]
    })
}

fn qr(_: &OpParameters, x: &[HostArray], _: &[Layout]) -> AlgebraExpected {
    let dtype = x[0].dtype;
    each(&x[0], 2, |x| {
        let [q, r] = orthogonal(x);
        let steps = q.columns;
        let first = HostMatrix::by(steps, steps, |i, j| r.at(i, j));
        // Of each reflection: the sums of a warp and of a block, and the vector itself.
        let each = x.rows as f64 / 32.0 + 16.0;
        let near = 3.0 * steps as f64 * each * unit_roundoff(dtype) * x.norm();
        let of_q = first.inverse().map(|inverse| 2.5 * inverse.norm() * near);
        let of_q = of_q.filter(|error| *error < FIRST_ORDER);
        let of_r = of_q.map(|error| 2.0 * error * x.norm() + near);
        let q_errors = of_q.map(|error| q.map(|_| error));
        let below = |i: usize, j: usize, error| if j < i { 0.0 } else { error };
        let r_errors =
            of_r.map(|error| HostMatrix::by(steps, x.columns, |i, j| below(i, j, error)));
        vec![
            bounded(dtype, &q, q_errors.as_ref()),
            bounded(dtype, &r, r_errors.as_ref()),
        ]
    })
}

pub(super) const TRIANGLES: (&str, &[&str]) = ("triangle", &["lower", "upper"]);

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Algebra "cholesky" ("x") Floats {} [] { choices: &[TRIANGLES] }
        "cuda.algebra", results, lower, cholesky,
        "triangle whose product with its transpose is `x`, of which that triangle is read; NaN from the column on that shows `x` not to be positive definite"),
    native!(Algebra "solve_triangular" ("a", "b") Floats {} []
        { choices: &[TRIANGLES, ("transposed", &["no", "yes"]), ("diagonal", &["given", "unit"])] }
        "cuda.algebra", results, lower, solve_triangular,
        "x of a x = b for a triangle of `a`; by 0 on its diagonal, quotients are infinite or NaN"),
    native!(Algebra "lu" ("x") Floats {} [] { results: &["lu", "pivots"] }
        "cuda.algebra", results, lower, lu,
        "factors of `x` with interchanged rows in one matrix, the lower one without its diagonal of 1, and the row that each was exchanged with; of a singular matrix the upper one has a 0 on its diagonal"),
    native!(Algebra "solve" ("a", "b") Floats {} [] {}
        "cuda.algebra", results, lower, solve,
        "x of a x = b; infinite or NaN where `a` is singular"),
    native!(Algebra "inverse" ("x") Floats {} [] {}
        "cuda.algebra", results, lower, inverse,
        "inverse of matrices; infinite or NaN where one is singular"),
    native!(Algebra "determinant" ("x") Floats {} [] {}
        "cuda.algebra", results, lower, determinant,
        "determinants of matrices"),
    native!(Algebra "slogdet" ("x") Floats {} [] { results: &["sign", "logarithm"] }
        "cuda.algebra", results, lower, slogdet,
        "signs of determinants, and ln of their magnitudes; 0 and -inf of a singular matrix"),
    native!(Algebra "qr" ("x") Floats {} [] { results: &["q", "r"] }
        "cuda.algebra", results, lower, qr,
        "orthonormal columns and the upper triangle of which `x` is the product, without negative numbers on its diagonal"),
];
