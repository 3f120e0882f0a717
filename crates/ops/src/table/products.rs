//! Rows of matrix products.

use fercuda_jit::TypeClass;
use fercuda_kernels::multiply::{self, Activation, ProductEpilogue, ProductKernel, product_type};
use fercuda_kernels::{MemoryView, NativeProgram};
use fercuda_tensor::{Dtype, Layout};

use super::along::by_index;
use super::bounds::{last_place, magnitudes, stored, unit_roundoff, wrapped};
use super::scalar::{gelu, most, sigmoid};
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters, joined};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// The ops that are products.
pub(crate) const OPS: [&str; 2] = ["matmul", "linear"];

/// Rows of each matrix on the left side of a product; all of x of `linear`, which are one.
pub(crate) fn rows(op: &OpParameters, operands: &[Layout]) -> u64 {
    let [.., _] = operands else { return 0 };
    match (op.name(), operands[0].shape()) {
        ("linear", [outer @ .., _]) => outer.iter().product(),
        (_, [.., rows, _]) => *rows,
        _ => 1,
    }
}

/// The product by the text for few rows.
pub(crate) fn skinny(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    lower(op, program, ProductKernel::Skinny)
}

/// The product of one row.
pub(crate) fn gemv(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    lower(op, program, ProductKernel::Gemv)
}

/// Whether the elements of the right factor that are multiplied with a row lie beside each other.
pub(crate) fn is_right_along_depth(op: &OpParameters, operands: &[Layout]) -> bool {
    let Some(right) = operands.get(1) else {
        return false;
    };
    match (op.name(), right.strides()) {
        ("linear", [.., depth]) => *depth == 1,
        (_, [depth]) => *depth == 1,
        (_, [.., depth, _]) => *depth == 1,
        _ => false,
    }
}

/// The product by tensor cores.
pub(crate) fn tensor(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    lower(op, program, ProductKernel::Tensor)
}

/// The product by warpgroups.
pub(crate) fn warpgroups(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    lower(op, program, ProductKernel::Warpgroups)
}

fn by_threads(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    lower(op, program, ProductKernel::Threads)
}

fn lower(op: &OpParameters, program: &mut NativeProgram, kernel: ProductKernel) -> RowLowering {
    match op.name() {
        "linear" => linear(op, program, kernel),
        _ => matmul(program, kernel),
    }
}

/// Shapes of a product's factors, of which vectors are matrices of one row or column.
fn factors(left: &[u64], right: &[u64]) -> Result<[Vec<u64>; 2], Misfit> {
    let (mut left, mut right) = (left.to_vec(), right.to_vec());
    if left.is_empty() || right.is_empty() {
        return Err(Misfit::new(
            "a factor of no dimensions",
            "`mul`, or a matrix or vector",
        ));
    }
    if left.len() == 1 {
        left.insert(0, 1);
    }
    if right.len() == 1 {
        right.push(1);
    }
    let (inner, other) = (left[left.len() - 1], right[right.len() - 2]);
    match inner == other {
        true => Ok([left, right]),
        false => Err(Misfit::new(
            format!("{inner} columns of x and {other} rows of y"),
            "as many columns as rows",
        )),
    }
}

fn matmul_results(_: &OpParameters, operands: &[Layout]) -> RowResults {
    let (x, y) = (operands[0].shape(), operands[1].shape());
    let [left, right] = factors(x, y)?;
    let outer = [&left, &right].map(|shape| &shape[..shape.len() - 2]);
    let outer = joined(outer[0], outer[1]).ok_or_else(|| {
        Misfit::new(
            format!(
                "{:?} and {:?} are no shapes to broadcast",
                outer[0], outer[1]
            ),
            "extents that are equal or 1 before the last two",
        )
    })?;
    let mut shape = outer;
    if x.len() > 1 {
        shape.push(left[left.len() - 2]);
    }
    if y.len() > 1 {
        shape.push(right[right.len() - 1]);
    }
    Ok(vec![(product_type(operands[0].dtype()), shape)])
}

fn matmul(program: &mut NativeProgram, kernel: ProductKernel) -> RowLowering {
    let (x, y, out) = (program.input(0), program.input(1), program.output(0));
    let Ok([left, right]) = factors(x.shape(), y.shape()) else {
        return Ok(());
    };
    let mut shape = out.shape().to_vec();
    if x.shape().len() == 1 {
        shape.insert(shape.len() - usize::from(y.shape().len() > 1), 1);
    }
    if y.shape().len() == 1 {
        shape.push(1);
    }
    let views = [x.reshape(&left)?, y.reshape(&right)?, out.reshape(&shape)?];
    let [x, y, out] = &views;
    multiply::matrices(program, kernel, [x, y, out], ProductEpilogue::default())
}

/// A sum of products, and the sum of their magnitudes.
fn dot(pairs: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
    pairs.fold((0.0, 0.0), |(sum, size), (x, y)| {
        // Of integers exact below 2^53, which the tests keep to.
        (x.mul_add(y, sum), size + (x * y).abs())
    })
}

fn matmul_expected(
    _: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let Ok([left, right]) = factors(&x[0].shape, &x[1].shape) else {
        return vec![Vec::new()];
    };
    let shaped = |array: &HostArray, shape: &[u64]| HostArray {
        shape: shape.to_vec(),
        ..array.clone()
    };
    let (left, right) = (shaped(&x[0], &left), shaped(&x[1], &right));
    let dtype = results[0].dtype();
    let depth = *left.shape.last().unwrap_or(&0);
    let unit = unit_roundoff(dtype);
    let element = |index: &Vec<u64>| {
        let mut full = index.clone();
        if x[0].shape.len() == 1 {
            full.insert(full.len() - usize::from(x[1].shape.len() > 1), 0);
        }
        if x[1].shape.len() == 1 {
            full.push(0);
        }
        let rank = full.len();
        let at = |array: &HostArray, row: u64, column: u64| {
            let mut own = full.clone();
            (own[rank - 2], own[rank - 1]) = (row, column);
            array.at(&own)
        };
        let (row, column) = (full[rank - 2], full[rank - 1]);
        let pairs = (0..depth).map(|k| (at(&left, row, k), at(&right, k, column)));
        let (sum, size) = dot(pairs);
        match dtype.is_float() {
            // A sum of some of the products may overflow.
            true if size >= magnitudes(dtype).0 => (sum, f64::INFINITY),
            true => stored(dtype, sum, 2.0 * (depth as f64 + 2.0) * unit * size),
            false => (wrapped(dtype, sum), 0.0),
        }
    };
    by_index(&results[0], element)
}

/// Checks what is added to a product of that shape: the bias, operand 2, and the residual, 3.
pub(super) fn check_added(operands: &[Layout], shape: &[u64]) -> Result<(), Misfit> {
    let columns = shape.last().copied().unwrap_or_default();
    if let Some(bias) = operands.get(2)
        && bias.shape() != [columns]
    {
        let what = format!("bias is {:?}", bias.shape());
        return Err(Misfit::new(
            what,
            format!("[{columns}], one for each output"),
        ));
    }
    if let Some(residual) = operands.get(3)
        && residual.shape() != shape
    {
        let what = format!("residual is {:?}", residual.shape());
        return Err(Misfit::new(what, format!("{shape:?}, the result's shape")));
    }
    Ok(())
}

fn linear_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let [x, weight] = [operands[0].shape(), operands[1].shape()];
    let (Some((depth, outer)), [columns, inner]) = (x.split_last(), weight) else {
        let what = format!("x is {x:?}, weight {weight:?}");
        return Err(Misfit::new(
            what,
            "x[.., inputs] and weight[outputs, inputs]",
        ));
    };
    if depth != inner {
        let what = format!("x has {depth} inputs, weight {inner}");
        return Err(Misfit::new(what, "weight[outputs, inputs]"));
    }
    let mut shape = outer.to_vec();
    shape.push(*columns);
    check_added(operands, &shape)?;
    let dtype = match (op.choice_of("result"), operands[0].dtype()) {
        ("f32", Dtype::F64) => {
            let what = "a result of f32 by products of f64".to_owned();
            return Err(Misfit::new(what, "factors of f32 or narrower"));
        }
        ("f32", _) => Dtype::F32,
        (_, dtype) => dtype,
    };
    if let Some(residual) = operands.get(3)
        && residual.dtype() != dtype
    {
        let what = format!("residual of {}", residual.dtype());
        return Err(Misfit::new(what, format!("{dtype}, the result's type")));
    }
    Ok(vec![(dtype, shape)])
}

fn activation(op: &OpParameters) -> Activation {
    match op.choice_of("activation") {
        "relu" => Activation::Relu,
        "gelu" => Activation::Gelu,
        "silu" => Activation::Silu,
        _ => Activation::None,
    }
}

fn linear(op: &OpParameters, program: &mut NativeProgram, kernel: ProductKernel) -> RowLowering {
    let (x, weight, out) = (program.input(0), program.input(1), program.output(0));
    let given = program.operands();
    let (bias, residual) = (
        (given > 2).then(|| program.input(2)),
        (given > 3).then(|| program.input(3)),
    );
    let weight = weight.permute(&[1, 0])?;
    // All rows as one matrix where they lie like that; a vector is one of one row.
    let as_matrix = |view: MemoryView| {
        let width = view.shape().last().copied().unwrap_or_default();
        let rows = view.shape().iter().rev().skip(1).product();
        view.reshape(&[rows, width])
    };
    let all = [Some(x), Some(out), residual].map(|view| view.map(as_matrix).transpose());
    let (x, out, residual) = match all {
        [Ok(Some(x)), Ok(Some(out)), Ok(residual)] => (x, out, residual),
        _ => (x, out, residual),
    };
    let views = [x, weight, out];
    let [x, weight, out] = &views;
    let scale = op.number_of("scale");
    let epilogue = ProductEpilogue {
        scale: (scale != 1.0).then_some(scale),
        bias: bias.as_ref(),
        activation: activation(op),
        residual: residual.as_ref(),
    };
    multiply::matrices(program, kernel, [x, weight, out], epilogue)
}

fn linear_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (dtype, scale) = (results[0].dtype(), op.number_of("scale"));
    let [columns, depth] = [x[1].shape[0] as usize, x[1].shape[1] as usize];
    let unit = unit_roundoff(dtype);
    let element = |at: usize| {
        let (row, column) = (at / columns, at % columns);
        let left = &x[0].values[row * depth..][..depth];
        let right = &x[1].values[column * depth..][..depth];
        let (sum, size) = dot(left.iter().copied().zip(right.iter().copied()));
        let bias = x.get(2).map_or(0.0, |bias| bias.values[column]);
        let residual = x.get(3).map_or(0.0, |residual| residual.values[at]);
        if size * scale.abs().max(1.0) >= magnitudes(dtype).0 {
            return (scale * sum, f64::INFINITY);
        }
        let before = scale.mul_add(sum, bias);
        let after = match activation(op) {
            Activation::None => before,
            Activation::Relu => most(before, 0.0),
            Activation::Gelu => gelu(before),
            Activation::Silu => before * sigmoid(before),
        };
        // No slope of the functions is above 1.2, and each costs some roundings of its own.
        let error = 2.0 * (depth as f64 + 4.0) * unit * (scale.abs() * size + bias.abs());
        let error = 1.2 * error + 32.0 * unit * (before.abs() + residual.abs());
        // A library may round the product before it adds the bias, and before what follows.
        let rounded = (scale * sum).abs() + before.abs() + after.abs();
        let error = error + 1.2 * last_place(dtype) * rounded;
        stored(dtype, after + residual, error)
    };
    vec![(0..results[0].len() as usize).map(element).collect()]
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Product "matmul" ("x", "y") Numbers {} [] {}
        "cuda.multiply", matmul_results, by_threads, matmul_expected,
        "matrix product of the last two dimensions, others broadcast, vectors as NumPy; of 8 and 16 bits in 32"),
    native!(Product "linear" ("x", "weight", "bias", "residual") Floats { "scale": 1.0 } []
        { optional: 2, typed: &[("residual", TypeClass::Floats)],
          choices: &[("activation", &["none", "relu", "gelu", "silu"]), ("result", &["same", "f32"])] }
        "cuda.multiply", linear_results, by_threads, linear_expected,
        "activation(scale x weight^T + bias) + residual, of weight[outputs, inputs]; the result, and the residual, are of the factors' type or f32"),
];
