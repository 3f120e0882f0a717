//! Rows of products with the weights of experts that an index chooses for each token.
//!
//! A pair is a token and one of its choices. Weights of experts that no pair has chosen are not
//! read, and a choice of no expert gives zeros.

use fercuda_jit::TypeClass;
use fercuda_kernels::block::{self, BlockProduct};
use fercuda_kernels::expert::{self, ExpertProduct, MOST_EXPERTS};
use fercuda_kernels::{KernelError, MemoryView, NativeProgram};
use fercuda_tensor::{BlockFormat, Dtype, Layout};

use super::blocks::{
    OF_FORMAT, bytes_of, check_bytes, dot, elements, format, gated_element, lowered, near,
    quantised_rows, result_type, weight_row,
};
use super::bounds::{stored, unit_roundoff};
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// Pairs that are computed one by one, so that others are grouped.
const MOST_PAIRS: u64 = u32::MAX as u64;

/// Experts, outputs and elements of the last dimension of a weight.
fn three(weight: &Layout, name: &str, last: &str) -> Result<[u64; 3], Misfit> {
    let own = <[u64; 3]>::try_from(weight.shape());
    let wanted = format!("{name}[experts, outputs, {last}]");
    let own = own.map_err(|_| Misfit::new(format!("{name} is {:?}", weight.shape()), wanted))?;
    match own[0] <= MOST_EXPERTS {
        true => Ok(own),
        false => {
            let what = format!("{name} has {} experts", own[0]);
            Err(Misfit::new(what, format!("at most {MOST_EXPERTS}")))
        }
    }
}

/// The shape of the product: that of the index, and the outputs. x has a row for each token, or for
/// each choice.
fn pairs_shape(x: &Layout, index: &Layout, columns: u64, depth: u64) -> Result<Vec<u64>, Misfit> {
    let Some((slots, tokens)) = index.shape().split_last() else {
        return Err(Misfit::new("index has no dimensions", "index[.., choices]"));
    };
    if *slots == 0 || index.len() > MOST_PAIRS {
        let what = format!("{slots} choices of each, {} in all", index.len());
        return Err(Misfit::new(what, "one or more of each, below 2^32 in all"));
    }
    let Some((inputs, outer)) = x.shape().split_last() else {
        return Err(Misfit::new("x has no dimensions", "x[.., inputs]"));
    };
    if *inputs != depth {
        let what = format!("x has {inputs} inputs, the weights {depth}");
        return Err(Misfit::new(what, "as many"));
    }
    if outer != tokens && outer != index.shape() {
        let what = format!("x is {:?}, index {:?}", x.shape(), index.shape());
        return Err(Misfit::new(
            what,
            "a row of x for each token, or each choice",
        ));
    }
    Ok(index.shape().iter().copied().chain([columns]).collect())
}

fn check_bias(operands: &[Layout], experts: u64, columns: u64) -> Result<(), Misfit> {
    match operands.get(3) {
        Some(bias) if bias.shape() != [experts, columns] => {
            let what = format!("bias is {:?}", bias.shape());
            Err(Misfit::new(what, format!("[{experts}, {columns}]")))
        }
        _ => Ok(()),
    }
}

// Weights of floats.

fn linear_results(_: &OpParameters, operands: &[Layout]) -> RowResults {
    let [x, weight, index] = [0, 1, 2].map(|at| &operands[at]);
    let [experts, columns, depth] = three(weight, "w", "inputs")?;
    if weight.dtype() == Dtype::F64 {
        return Err(Misfit::new("w of f64", "a narrower float"));
    }
    let shape = pairs_shape(x, index, columns, depth)?;
    check_bias(operands, experts, columns)?;
    Ok(vec![(x.dtype(), shape)])
}

fn linear(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [x, weight, index] = [0, 1, 2].map(|at| program.input(at));
    let bias = (program.operands() > 3).then(|| program.input(3));
    let views = ExpertProduct {
        x: &x,
        weight: &weight,
        index: &index,
        bias: bias.as_ref(),
        to: &program.output(0),
    };
    expert::product(program, views)
}

/// The elements of a product by their row of x, their expert and their column; zeros for a choice
/// outside.
fn of_choices(
    [x, weight, index]: [&HostArray; 3],
    element: impl Fn(usize, usize, usize) -> ExpectedElement,
) -> Vec<Vec<ExpectedElement>> {
    let [experts, columns] = [weight.shape[0] as f64, weight.shape[1] as f64];
    let rows: u64 = x.shape.iter().rev().skip(1).product();
    let slots = index.values.len() / (rows as usize).max(1);
    let mut all = Vec::new();
    for (pair, expert) in index.values.iter().enumerate() {
        let is_chosen = (0.0..experts).contains(expert);
        all.extend((0..columns as usize).map(|column| match is_chosen {
            true => element(pair / slots, *expert as usize, column),
            false => (0.0, 0.0),
        }));
    }
    vec![all]
}

/// The bias of an element, if there is one.
fn bias_of(bias: Option<&HostArray>, expert: usize, column: usize) -> f64 {
    bias.map_or(0.0, |bias| {
        bias.values[expert * bias.shape[1] as usize + column]
    })
}

fn linear_expected(
    _: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (weight, dtype, unit) = (&x[1], results[0].dtype(), unit_roundoff(Dtype::F32));
    let (columns, depth) = (weight.shape[1] as usize, weight.shape[2] as usize);
    // A lane's own sum, and those of the others.
    let times = depth.div_ceil(256) as f64 * 8.0 + 8.0;
    of_choices([&x[0], weight, &x[2]], |row, expert, column| {
        let from = (expert * columns + column) * depth;
        let weights = &weight.values[from..from + depth];
        let both = x[0].values[row * depth..][..depth].iter().zip(weights);
        let bias = bias_of(x.get(3), expert, column);
        let (sum, size) = both.fold((bias, bias.abs()), |(sum, size), (x, w)| {
            (x.mul_add(*w, sum), size + (x * w).abs())
        });
        let least = f64::exp2(-148.0) * depth as f64;
        match size < f64::from(f32::MAX) {
            true => stored(dtype, sum, 2.0 * times * unit * size + least),
            false => (sum, f64::INFINITY),
        }
    })
}

// Weights in blocks.

/// Experts, outputs and inputs of a weight in blocks.
fn blocks(format: BlockFormat, weight: &Layout, name: &str) -> Result<[u64; 3], Misfit> {
    check_bytes(weight, name)?;
    let [experts, columns, bytes] = three(weight, name, "bytes of blocks")?;
    Ok([experts, columns, elements(format, bytes)?])
}

fn quantised_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let [x, weight, index] = [0, 1, 2].map(|at| &operands[at]);
    let [experts, columns, depth] = blocks(format(op)?, weight, "w")?;
    let shape = pairs_shape(x, index, columns, depth)?;
    check_bias(operands, experts, columns)?;
    Ok(vec![(result_type(op, x.dtype())?, shape)])
}

fn gated_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let [x, gate, up, index] = [0, 1, 2, 3].map(|at| &operands[at]);
    let format = format(op)?;
    let own @ [_, columns, depth] = blocks(format, up, "up")?;
    if blocks(format, gate, "gate")? != own {
        let what = format!("gate is {:?}, up {:?}", gate.shape(), up.shape());
        return Err(Misfit::new(what, "one shape"));
    }
    let shape = pairs_shape(x, index, columns, depth)?;
    Ok(vec![(result_type(op, x.dtype())?, shape)])
}

fn block_product(
    op: &OpParameters,
    program: &mut NativeProgram,
    [gate, bias]: [Option<MemoryView>; 2],
    [weight, index]: [MemoryView; 2],
) -> Result<(), KernelError> {
    let (x, to) = (program.input(0), program.output(0));
    let views = BlockProduct {
        x: &x,
        weight: &weight,
        choice: Some(&index),
        gate: gate.as_ref(),
        bias: bias.as_ref(),
        residual: None,
        to: &to,
    };
    lowered(op, |format| block::product(program, format, views))
}

fn quantised(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let bias = (program.operands() > 3).then(|| program.input(3));
    let both = [program.input(1), program.input(2)];
    block_product(op, program, [None, bias], both)
}

fn gated(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [gate, up, index] = [1, 2, 3].map(|at| program.input(at));
    block_product(op, program, [Some(gate), None], [up, index])
}

/// The bytes of an expert's row.
fn row_bytes<'a>(bytes: &'a [u8], weight: &HostArray, expert: usize, column: usize) -> &'a [u8] {
    let (columns, width) = (weight.shape[1] as usize, weight.shape[2] as usize);
    &bytes[(expert * columns + column) * width..][..width]
}

fn quantised_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (Ok(format), dtype) = (format(op), results[0].dtype()) else {
        return Vec::new();
    };
    let (rows, weight, bytes) = (quantised_rows(format, &x[0]), &x[1], bytes_of(&x[1]));
    let unit = unit_roundoff(Dtype::F32);
    of_choices([&x[0], weight, &x[2]], |row, expert, column| {
        let own = weight_row(format, row_bytes(&bytes, weight, expert, column));
        let (sum, error) = dot(&rows[row], &own);
        let bias = bias_of(x.get(3), expert, column);
        let size = sum.abs() + bias.abs();
        near(dtype, sum + bias, error + 4.0 * unit * size)
    })
}

fn gated_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (Ok(format), dtype) = (format(op), results[0].dtype()) else {
        return Vec::new();
    };
    let rows = quantised_rows(format, &x[0]);
    let bytes = [1, 2].map(|at| bytes_of(&x[at]));
    of_choices([&x[0], &x[1], &x[3]], |row, expert, column| {
        let [gate, up] = [0, 1].map(|at| {
            let own = row_bytes(&bytes[at], &x[at + 1], expert, column);
            weight_row(format, own)
        });
        gated_element(dtype, &rows[row], &gate, &up)
    })
}

const OF_FLOATS: &[(&str, TypeClass)] = &[("w", TypeClass::NotF64)];
const OF_BLOCKS: &[(&str, TypeClass)] = &[
    ("w", TypeClass::Bytes),
    ("gate", TypeClass::Bytes),
    ("up", TypeClass::Bytes),
];

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Product "expert_linear" ("x", "w", "index", "bias") NotF64 {} []
        { optional: 1, typed: OF_FLOATS }
        "cuda.expert", linear_results, linear, linear_expected,
        "x w[index]^T + bias[index] of w[experts, outputs, inputs], for each choice index[.., choices] of a token; x has a row for each token or each choice; zeros for a choice of no expert"),
    native!(Quantisation "quantised_expert_linear" ("x", "w", "index", "bias") NotF64 {} ["to"]
        { optional: 1, typed: OF_BLOCKS, choices: OF_FORMAT }
        "cuda.block", quantised_results, quantised, quantised_expected,
        "expert_linear of blocks w[experts, outputs, bytes], each product as quantised_linear"),
    native!(Quantisation "quantised_expert_swiglu" ("x", "gate", "up", "index") NotF64 {} ["to"]
        { typed: OF_BLOCKS, choices: OF_FORMAT }
        "cuda.block", gated_results, gated, gated_expected,
        "silu(x gate[index]^T) (x up[index]^T), each product as quantised_expert_linear"),
];
