//! Rows of linear algebra that are made of other factorisations: systems by factors, least squares,
//! powers.
//!
//! They compute in f32, or f64, from the operands to the result: narrower floats are rounded once.

use fercuda_kernels::algebra::{self, MatrixTriangle, TriangularSpec};
use fercuda_kernels::multiply::{ProductEpilogue, ProductKernel, matrices as product};
use fercuda_kernels::{KernelError, MemoryView, NativeProgram, copy, maths, place};
use fercuda_tensor::Layout;

use super::algebra::{TRIANGLES, bounded, each, matrices, square, triangle};
use super::bounds::{magnitudes, unit_roundoff};
use super::dense::{HostMatrix, orthogonal};
use super::scalar::whole_number;
use crate::arrays::{HostArray, indices};
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// Largest relative error for which the first order is enough.
const FIRST_ORDER: f64 = 0.1;
/// Largest power of a matrix.
const MOST_POWER: i64 = 1 << 10;

fn results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let dtype = operands[0].dtype();
    if op.name() == "matrix_power" {
        square("x", &operands[0])?;
        let power = whole_number(op, "power")?;
        return match (0..=MOST_POWER).contains(&power) {
            true => Ok(vec![(dtype, operands[0].shape().to_vec())]),
            false => Err(Misfit::new(
                format!("a power of {power}"),
                format!("0 to {MOST_POWER}; of negative ones the inverse first"),
            )),
        };
    }
    let (outer, rows, columns) = match op.name() {
        "cholesky_solve" => {
            let (outer, extent) = square("factor", &operands[1])?;
            (outer, extent, extent)
        }
        _ => matrices("a", &operands[0])?,
    };
    let b = match op.name() {
        "cholesky_solve" => &operands[0],
        _ => &operands[1],
    };
    let (of_b, own, wide) = matrices("b", b)?;
    if outer != of_b || own != rows {
        let what = format!("{} and {}", operands[0], operands[1]);
        return Err(Misfit::new(what, "as many matrices and rows of both"));
    }
    if rows < columns {
        let what = format!("{rows} rows of {columns} columns");
        return Err(Misfit::new(what, "at least as many rows as columns"));
    }
    Ok(vec![(dtype, [outer, &[columns, wide]].concat())])
}

fn cholesky_solve(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [b, factor] = [0, 1].map(|at| program.input(at));
    let to = program.output(0);
    let [b, factor] = [
        maths::computed(program, &b)?,
        maths::computed(program, &factor)?,
    ];
    let result = maths::computed_result(program, &to)?;
    let between = copy::contiguous(program, &b)?;
    let own = triangle(op);
    let spec = |is_transposed| TriangularSpec {
        triangle: own,
        is_transposed,
        is_unit: false,
    };
    // Of an upper one the transposed one is first.
    let is_upper = own == MatrixTriangle::Upper;
    algebra::solve_triangular(program, spec(is_upper), &factor, &b, &between)?;
    algebra::solve_triangular(program, spec(!is_upper), &factor, &between, &result)?;
    maths::narrow(program, &result, &to)
}

fn least_squares(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [a, b] = [0, 1].map(|at| program.input(at));
    let to = program.output(0);
    let [a, b] = [maths::computed(program, &a)?, maths::computed(program, &b)?];
    let result = maths::computed_result(program, &to)?;
    let ([outer @ .., rows, columns], [.., wide]) = (a.shape(), b.shape()) else {
        return Ok(());
    };
    let part = |program: &mut NativeProgram, extents: [u64; 2]| {
        copy::unwritten(program, a.dtype(), &[outer, &extents].concat())
    };
    let q = part(program, [*rows, *columns])?;
    let r = part(program, [*columns, *columns])?;
    let right = part(program, [*columns, *wide])?;
    algebra::orthogonal(program, &a, &q, &r)?;
    let rank = q.shape().len();
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 2, rank - 1);
    let turned = q.permute(&order)?;
    let plain = ProductEpilogue::default();
    product(
        program,
        ProductKernel::Threads,
        [&turned, &b, &right],
        plain,
    )?;
    let spec = TriangularSpec {
        triangle: MatrixTriangle::Upper,
        is_transposed: false,
        is_unit: false,
    };
    algebra::solve_triangular(program, spec, &r, &right, &result)?;
    maths::narrow(program, &result, &to)
}

fn power(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    let mut left = op.number_of("power") as u64;
    if left == 0 {
        place::diagonal(program, &to, 0, to.dtype().encode(1.0));
        return Ok(());
    }
    let mut square = maths::computed(program, &x)?;
    let mut all = None;
    let dtype = square.dtype();
    let times = |program: &mut NativeProgram, a: &MemoryView, b: &MemoryView| {
        let c = copy::unwritten(program, dtype, x.shape())?;
        let plain = ProductEpilogue::default();
        product(program, ProductKernel::Threads, [a, b, &c], plain)?;
        Ok::<_, KernelError>(c)
    };
    loop {
        if left % 2 == 1 {
            all = Some(match &all {
                Some(all) => times(program, all, &square)?,
                None => square,
            });
        }
        left /= 2;
        if left == 0 {
            break;
        }
        square = times(program, &square, &square)?;
    }
    match all {
        Some(all) if all.dtype() == to.dtype() => copy::elements(program, &all, &to),
        Some(all) => maths::narrow(program, &all, &to),
        None => Ok(()),
    }
}

fn by_matrices(
    results: &[Layout],
    f: impl Fn(&[u64]) -> Vec<ExpectedElement>,
) -> Vec<Vec<ExpectedElement>> {
    let shape = results[0].shape();
    let outer = indices(&shape[..shape.len() - 2]);
    vec![outer.iter().flat_map(|index| f(index)).collect()]
}

fn cholesky_solved(
    op: &OpParameters,
    x: &[HostArray],
    layouts: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = layouts[0].dtype();
    let is_upper = triangle(op) == MatrixTriangle::Upper;
    by_matrices(layouts, |index| {
        let [b, factor] = [0, 1].map(|at| HostMatrix::of(&x[at], index));
        let factor = if is_upper {
            factor.transposed()
        } else {
            factor
        };
        let n = factor.rows;
        let lower = HostMatrix::by(n, n, |i, j| if j <= i { factor.at(i, j) } else { 0.0 });
        let Some(inverse) = lower.inverse() else {
            return bounded(dtype, &b, None);
        };
        let upper = lower.transposed();
        let between = lower.solved(&inverse, &b);
        let solution = upper.solved(&inverse.transposed(), &between);
        let roundings = 2.0 * (n + 2) as f64 * unit_roundoff(dtype);
        let (own, back) = (inverse.magnitudes(), inverse.transposed().magnitudes());
        let near = own.product(&lower.magnitudes()).map(|x| roundings * x);
        let near_back = back.product(&upper.magnitudes()).map(|x| roundings * x);
        let first = near.product(&between.magnitudes());
        let errors = near_back.product(&solution.magnitudes());
        let errors = errors.with(&back.product(&first), |a, b| a + b);
        let is_known = near.row_norm().max(near_back.row_norm()) < FIRST_ORDER;
        bounded(dtype, &solution, is_known.then_some(&errors))
    })
}

fn least_squares_expected(
    _: &OpParameters,
    x: &[HostArray],
    layouts: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = layouts[0].dtype();
    by_matrices(layouts, |index| {
        let [a, b] = [0, 1].map(|at| HostMatrix::of(&x[at], index));
        let [q, r] = orthogonal(&a);
        let unknown = HostMatrix::by(a.columns, b.columns, |_, _| f64::NAN);
        let Some(inverse) = r.inverse() else {
            return bounded(dtype, &unknown, None);
        };
        let solution = inverse.product(&q.transposed().product(&b));
        let residual = b.with(&a.product(&solution), |b, ax| b - ax);
        // As for qr, relative to the matrix; and the product of the columns with the right side.
        let each = a.rows as f64 / 32.0 + 16.0;
        let unit = unit_roundoff(dtype);
        let near = 3.0 * (a.columns + 1) as f64 * each * unit * a.norm();
        let size = inverse.norm();
        let of_side = (a.rows + a.columns + 8) as f64 * unit * b.norm();
        let error = 4.0 * size * (near * (solution.norm() + size * residual.norm()) + of_side);
        let errors = solution.map(|_| error);
        let is_known = 4.0 * near * size < FIRST_ORDER;
        bounded(dtype, &solution, is_known.then_some(&errors))
    })
}

fn power_expected(op: &OpParameters, x: &[HostArray], _: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let (dtype, count) = (x[0].dtype, op.number_of("power") as u64);
    each(&x[0], 1, |x| {
        let n = x.rows;
        let mut all = HostMatrix::identity(n);
        let mut size = HostMatrix::identity(n);
        for _ in 0..count {
            all = all.product(x);
            size = size.product(&x.magnitudes());
        }
        if count < 2 {
            let exact = all.map(|_| 0.0);
            return vec![bounded(dtype, &all, Some(&exact))];
        }
        let relative = 2.0 * count as f64 * (n + 2) as f64 * unit_roundoff(dtype);
        let errors = size.map(|x| relative * x);
        let largest = size.row_norm();
        let is_known = relative < FIRST_ORDER && largest < magnitudes(dtype).0 * 1e-3;
        vec![bounded(dtype, &all, is_known.then_some(&errors))]
    })
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Algebra "cholesky_solve" ("b", "factor") Floats {} [] { choices: &[TRIANGLES] }
        "cuda.algebra", results, cholesky_solve, cholesky_solved,
        "x of a x = b by a triangular factor whose product with its transpose is a"),
    native!(Algebra "lstsq" ("a", "b") Floats {} [] {}
        "cuda.algebra", results, least_squares, least_squares_expected,
        "x for which a x is nearest to b, of a with at least as many rows as columns, by qr; infinite or NaN where the columns depend on each other"),
    native!(Algebra "matrix_power" ("x") Floats { "power": 2.0 } [] {}
        "cuda.algebra", results, power, power_expected,
        "powers of square matrices from 0 on, by squares"),
];
