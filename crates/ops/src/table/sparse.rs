//! Rows of products of matrices in compressed rows.
//!
//! Row i has the values from offset i to before offset i + 1, with an index as the column of each.
//! Offsets outside of the values, or that do not ascend, make a row empty, and a column outside is
//! skipped; a checked plan reports both, but for the order.

use fercuda_kernels::sparse::{self, CompressedRows};
use fercuda_kernels::{MemoryView, NativeProgram};
use fercuda_tensor::Layout;

use super::approx::{Approx, ApproxType};
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// The number of rows.
fn matrix_rows(operands: &[Layout]) -> Result<u64, Misfit> {
    let [values, index, offsets] = [0, 1, 2].map(|at| operands[at].shape());
    match (values, index, offsets) {
        (&[own], &[other], &[rows @ 1..=u64::MAX]) if own == other => Ok(rows - 1),
        _ => {
            let what = format!("values {values:?}, columns {index:?} and offsets {offsets:?}");
            Err(Misfit::new(what, "[elements], [elements] and [rows + 1]"))
        }
    }
}

fn matrix(program: &NativeProgram) -> CompressedRows {
    CompressedRows {
        values: program.input(0),
        index: program.input(1),
        offsets: program.input(2),
    }
}

fn product_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let rows = matrix_rows(operands)?;
    let x = &operands[3];
    match (op.name(), x.shape()) {
        ("csr_matvec", [_]) => Ok(vec![(x.dtype(), vec![rows])]),
        ("csr_matmul", [_, width]) => Ok(vec![(x.dtype(), vec![rows, *width])]),
        (_, shape) => Err(Misfit::new(
            format!("x is {shape:?}"),
            "[columns] or [columns, width]",
        )),
    }
}

fn product(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (matrix, x, to) = (matrix(program), program.input(3), program.output(0));
    let as_matrix = |view: MemoryView| match view.shape() {
        &[len] => view.reshape(&[len, 1]),
        _ => Ok(view),
    };
    sparse::multiply(program, &matrix, &as_matrix(x)?, &as_matrix(to)?)
}

/// The elements of each row: places and columns.
fn row_elements(x: &[HostArray], columns: u64) -> Vec<Vec<(usize, usize)>> {
    let elements = x[0].values.len() as f64;
    let is_inside = |at: f64| at >= 0.0 && at <= elements;
    let row = |pair: &[f64]| {
        let range = match is_inside(pair[0]) && is_inside(pair[1]) {
            true => pair[0] as usize..pair[1] as usize,
            false => 0..0,
        };
        let all = range.map(|at| (at, x[1].values[at]));
        let inside = all.filter(|(_, column)| *column >= 0.0 && *column < columns as f64);
        inside.map(|(at, column)| (at, column as usize)).collect()
    };
    x[2].values.windows(2).map(row).collect()
}

fn product_expected(
    _: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = results[0].dtype();
    let t = ApproxType::of(dtype);
    let width = x[3].shape.get(1).copied().unwrap_or(1) as usize;
    let mut all = Vec::new();
    for row in row_elements(x, x[3].shape[0]) {
        for own in 0..width {
            let terms = row.iter().map(|(at, column)| {
                t.exact(x[0].values[*at]) * t.exact(x[3].values[column * width + own])
            });
            all.push(t.sum(terms).stored(dtype));
        }
    }
    vec![all]
}

fn sampled_results(_: &OpParameters, operands: &[Layout]) -> RowResults {
    let rows = matrix_rows(operands)?;
    let (x, y) = (operands[3].shape(), operands[4].shape());
    match (x, y) {
        (&[own, depth], &[other, _]) if own == rows && depth == other => {
            Ok(vec![(operands[0].dtype(), operands[0].shape().to_vec())])
        }
        _ => {
            let what = format!("{x:?} by {y:?} for {rows} rows");
            Err(Misfit::new(what, "[rows, depth] by [depth, columns]"))
        }
    }
}

fn sampled(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (matrix, to) = (matrix(program), program.output(0));
    let [x, y] = [3, 4].map(|at| program.input(at));
    sparse::sampled_product(program, &matrix, [&x, &y, &to])
}

fn sampled_expected(
    _: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = results[0].dtype();
    let t = ApproxType::of(dtype);
    let (depth, columns) = (x[4].shape[0], x[4].shape[1]);
    let mut all = vec![(0.0, 0.0); x[0].values.len()];
    for (row, elements) in row_elements(x, columns).into_iter().enumerate() {
        for (at, column) in elements {
            let term = |k: u64| -> Approx {
                t.exact(x[3].at(&[row as u64, k])) * t.exact(x[4].at(&[k, column as u64]))
            };
            let product = t.exact(x[0].values[at]) * t.sum((0..depth).map(term));
            all[at] = product.stored(dtype);
        }
    }
    vec![all]
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Sparse "csr_matvec" ("values", "index", "offsets", "x") Floats {} [] {}
        "cuda.sparse", product_results, product, product_expected,
        "product of a matrix in compressed rows with a vector x"),
    native!(Sparse "csr_matmul" ("values", "index", "offsets", "x") Floats {} [] {}
        "cuda.sparse", product_results, product, product_expected,
        "product of a matrix in compressed rows with a matrix x[columns, width]"),
    native!(Sparse "sddmm" ("values", "index", "offsets", "x", "y") Floats {} [] {}
        "cuda.sparse", sampled_results, sampled, sampled_expected,
        "sampled product: values times those elements of x[rows, depth] y[depth, columns] that are in the rows, which share none; 0 for others"),
];
