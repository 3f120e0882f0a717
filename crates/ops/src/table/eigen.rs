//! Row of the eigenvalues of matrices that need not be symmetric.
//!
//! The reference finds all of them at once, each by Newton's steps for the determinant that the
//! others repel, with the trace of an inverse. An eigenvalue's bound is that of a matrix near the
//! operand, by the eigenvalue's own condition: that inverse beside it, times the distance.

use fercuda_kernels::{NativeProgram, eigen, maths};
use fercuda_tensor::Layout;

use super::algebra::{each, square};
use super::bounds::{rounded, unit_roundoff};
use super::dense::HostMatrix;
use crate::arrays::HostArray;
use crate::parameters::OpParameters;
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// Roundings of the reduction and the steps for a row.
const ROUNDINGS: f64 = 200.0;

fn results(_: &OpParameters, operands: &[Layout]) -> RowResults {
    let (outer, extent) = square("x", &operands[0])?;
    Ok(vec![(operands[0].dtype(), [outer, &[extent, 2]].concat())])
}

fn lower(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    let x = maths::computed(program, &x)?;
    let result = maths::computed_result(program, &to)?;
    eigen::values(program, &x, &result)?;
    maths::narrow(program, &result, &to)
}

/// Real and imaginary part.
type Pair = [f64; 2];

fn reciprocal(a: Pair) -> Pair {
    let size = a[0] * a[0] + a[1] * a[1];
    [a[0] / size, -a[1] / size]
}

/// The inverse of a matrix less a complex number on its diagonal, as a real one of twice the
/// extent.
fn shifted_inverse(x: &HostMatrix, at: Pair) -> Option<HostMatrix> {
    let n = x.rows;
    let both = HostMatrix::by(2 * n, 2 * n, |i, j| {
        let own = match (i / n, j / n) {
            (a, b) if a == b => x.at(i % n, j % n),
            _ => 0.0,
        };
        match (i % n == j % n, i / n, j / n) {
            (true, 0, 1) => own + at[1],
            (true, 1, 0) => own - at[1],
            (true, _, _) => own - at[0],
            _ => own,
        }
    });
    both.inverse()
}

/// The eigenvalues, if the steps end.
fn eigenvalues(x: &HostMatrix) -> Option<Vec<Pair>> {
    let (n, size) = (x.rows, x.norm().max(f64::MIN_POSITIVE));
    let centre = (0..n).map(|i| x.at(i, i)).sum::<f64>() / n.max(1) as f64;
    let angle = |k: usize| (k as f64 + 0.3) * std::f64::consts::TAU / n as f64;
    let start = |k: usize| [centre + size * angle(k).cos(), size * angle(k).sin()];
    let mut all: Vec<Pair> = (0..n).map(start).collect();
    for _ in 0..300 {
        let mut largest = 0.0f64;
        for k in 0..n {
            // An exact eigenvalue stays.
            let Some(inverse) = shifted_inverse(x, all[k]) else {
                continue;
            };
            let real: f64 = (0..n).map(|i| inverse.at(i, i)).sum();
            let imaginary: f64 = (0..n).map(|i| inverse.at(n + i, i)).sum();
            let mut slope = [-real, -imaginary];
            for j in (0..n).filter(|j| *j != k) {
                let other = reciprocal([all[k][0] - all[j][0], all[k][1] - all[j][1]]);
                slope = [slope[0] - other[0], slope[1] - other[1]];
            }
            let step = reciprocal(slope);
            if step.iter().all(|it| it.is_finite()) {
                all[k] = [all[k][0] - step[0], all[k][1] - step[1]];
                largest = largest.max(step[0].hypot(step[1]));
            }
        }
        if largest <= 4.0 * f64::EPSILON * size {
            return Some(all);
        }
    }
    None
}

fn distance(a: Pair, b: Pair) -> f64 {
    (a[0] - b[0]).hypot(a[1] - b[1])
}

fn expected(_: &OpParameters, x: &[HostArray], _: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let dtype = x[0].dtype;
    each(&x[0], 1, |x| {
        let n = x.rows;
        let unknown = vec![(f64::NAN, f64::INFINITY); 2 * n];
        if !x.norm().is_finite() {
            return vec![unknown];
        }
        let Some(all) = eigenvalues(x) else {
            return vec![unknown];
        };
        let near = ROUNDINGS * (n + 1) as f64 * unit_roundoff(dtype) * x.norm();
        let with_error = |k: usize| {
            let others = (0..n).filter(|j| *j != k).map(|j| distance(all[k], all[j]));
            let gap = others.fold(x.norm().max(1e-300), f64::min);
            let beside = 1e-4 * gap;
            let inverse = shifted_inverse(x, [all[k][0] + beside, all[k][1]]);
            // Twice the extent has the square twice.
            let condition = inverse.map(|it| beside * it.norm() / std::f64::consts::SQRT_2);
            let error = condition.map_or(f64::INFINITY, |condition| 2.0 * condition * near);
            let error = error + 1e-12 * x.norm();
            (
                all[k],
                if error < 0.05 * gap {
                    error
                } else {
                    f64::INFINITY
                },
            )
        };
        let mut found: Vec<(Pair, f64)> = (0..n).map(with_error).collect();
        // What differs by less than its error has one real part, as pairs have.
        found.sort_by(|a, b| a.0[0].total_cmp(&b.0[0]));
        let is_one = |a: &(Pair, f64), b: &(Pair, f64)| (a.0[0] - b.0[0]).abs() <= a.1 + b.1;
        let is_pair = |a: &(Pair, f64), b: &(Pair, f64)| {
            is_one(a, b) && (a.0[1] + b.0[1]).abs() <= a.1 + b.1 && a.0[1].abs() > a.1 + b.1
        };
        let mut is_certain = found.iter().all(|it| it.1.is_finite());
        let mut at = 0;
        while is_certain && at + 1 < n {
            if is_one(&found[at], &found[at + 1]) {
                is_certain = is_pair(&found[at], &found[at + 1]);
                if found[at].0[1] > 0.0 {
                    found.swap(at, at + 1);
                }
                at += 1;
            }
            if at + 1 < n
                && is_one(&found[at], &found[at + 1])
                && !is_pair(&found[at], &found[at + 1])
            {
                is_certain = false;
            }
            at += 1;
        }
        if !is_certain {
            return vec![unknown];
        }
        let parts = found.iter().flat_map(|([real, imaginary], error)| {
            // A real one stays real.
            let is_real = imaginary.abs() <= *error;
            let imaginary = if is_real { 0.0 } else { *imaginary };
            [
                rounded(dtype, *real, *error),
                rounded(dtype, imaginary, *error),
            ]
        });
        vec![parts.collect()]
    })
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Algebra "eigvals" ("x") Floats {} [] {}
        "cuda.eigen", results, lower, expected,
        "eigenvalues of matrices as rows of real and imaginary part, in ascending order of the first, then of the second; NaN of a matrix that is not finite"),
];
