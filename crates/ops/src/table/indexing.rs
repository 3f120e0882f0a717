//! Rows of ops that choose elements by indices in memory.
//!
//! An index outside of its axis gives 0, or its element is skipped; a checked plan reports it.

use fercuda_kernels::index::{self, ScatterCombine};
use fercuda_kernels::{NativeProgram, along, copy};
use fercuda_tensor::{Dtype, Layout};

use super::along::{by_index, first_axis};
use super::bounds::{stored, unit_roundoff, wrapped};
use super::scalar::{least, most, whole_number};
use crate::arrays::{HostArray, indices};
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// An index that is inside an extent.
fn inside(index: f64, extent: u64) -> Option<u64> {
    (index >= 0.0 && index < extent as f64).then_some(index as u64)
}

/// Checks that one shape is at most another one, but along an axis.
fn check_within(part: &[u64], whole: &[u64], axis: usize, what: &str) -> Result<(), Misfit> {
    let fits = part.len() == whole.len()
        && (part.iter().zip(whole).enumerate())
            .all(|(at, (part, whole))| at == axis || part <= whole);
    match fits {
        true => Ok(()),
        false => Err(Misfit::new(
            format!("{what} {part:?} is not within {whole:?} beside axis {axis}"),
            "as many dimensions, of at most these extents",
        )),
    }
}

fn check_vector(layout: &Layout, what: &str) -> Result<u64, Misfit> {
    match layout.shape() {
        [len] => Ok(*len),
        shape => Err(Misfit::new(
            format!("{what} has {} dimensions", shape.len()),
            "one dimension",
        )),
    }
}

// Gathering.

fn gather_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (x, index) = (operands[0].shape(), operands[1].shape());
    check_within(index, x, op.axis_of(x.len())?, "the index")?;
    Ok(vec![(operands[0].dtype(), index.to_vec())])
}

fn gather(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, index, out) = (program.input(0), program.input(1), program.output(0));
    index::gather(program, &x, &index, first_axis(op, x.shape().len()), &out)
}

fn gather_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let axis = first_axis(op, x[0].shape.len());
    let element = |at: &Vec<u64>| {
        let mut own = at.clone();
        let Some(chosen) = inside(x[1].at(at), x[0].shape[axis]) else {
            return (0.0, 0.0);
        };
        own[axis] = chosen;
        (x[0].at(&own), 0.0)
    };
    by_index(&results[0], element)
}

fn select_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let mut shape = operands[0].shape().to_vec();
    let axis = op.axis_of(shape.len())?;
    shape[axis] = check_vector(&operands[1], "the index")?;
    Ok(vec![(operands[0].dtype(), shape)])
}

fn select(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, index, out) = (program.input(0), program.input(1), program.output(0));
    let axis = first_axis(op, x.shape().len());
    let index = along(&index, axis, out.shape())?;
    index::gather(program, &x, &index, axis, &out)
}

fn select_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let axis = first_axis(op, x[0].shape.len());
    let element = |at: &Vec<u64>| {
        let mut own = at.clone();
        let Some(chosen) = inside(x[1].values[at[axis] as usize], x[0].shape[axis]) else {
            return (0.0, 0.0);
        };
        own[axis] = chosen;
        (x[0].at(&own), 0.0)
    };
    by_index(&results[0], element)
}

fn take_results(_: &OpParameters, operands: &[Layout]) -> RowResults {
    Ok(vec![(operands[0].dtype(), operands[1].shape().to_vec())])
}

fn take(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, index, out) = (program.input(0), program.input(1), program.output(0));
    index::take(program, &x, &index, &out)
}

fn take_expected(_: &OpParameters, x: &[HostArray], _: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let len = x[0].values.len() as u64;
    let element = |index: &f64| inside(*index, len).map_or(0.0, |at| x[0].values[at as usize]);
    vec![
        x[1].values
            .iter()
            .map(|index| (element(index), 0.0))
            .collect(),
    ]
}

fn embedding_results(_: &OpParameters, operands: &[Layout]) -> RowResults {
    let [_, width] = operands[0].shape() else {
        return Err(Misfit::new(
            "the table is no matrix",
            "a table of two dimensions",
        ));
    };
    let mut shape = operands[1].shape().to_vec();
    shape.push(*width);
    Ok(vec![(operands[0].dtype(), shape)])
}

fn embedding(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (table, index, out) = (program.input(0), program.input(1), program.output(0));
    let mut shape = out.shape().to_vec();
    // The table as one that has the index's dimensions, chosen along the first of them.
    let rank = shape.len();
    let mut single = vec![1; rank + 1];
    (single[0], single[rank]) = (table.shape()[0], table.shape()[1]);
    shape.insert(0, 1);
    let mut spread = shape.clone();
    spread[0] = table.shape()[0];
    let mut index_shape = index.shape().to_vec();
    index_shape.insert(0, 1);
    index_shape.push(1);
    let index = index.reshape(&index_shape)?.broadcast(&shape)?;
    let table = table.reshape(&single)?.broadcast(&spread)?;
    index::gather(program, &table, &index, 0, &out.reshape(&shape)?)
}

fn embedding_expected(
    _: &OpParameters,
    x: &[HostArray],
    _: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (rows, width) = (x[0].shape[0], x[0].shape[1] as usize);
    let row = |index: &f64| match inside(*index, rows) {
        Some(at) => x[0].values[at as usize * width..][..width].to_vec(),
        None => vec![0.0; width],
    };
    let all = x[1].values.iter().flat_map(row);
    vec![all.map(|value| (value, 0.0)).collect()]
}

fn one_hot_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let classes = u64::try_from(whole_number(op, "classes")?)
        .map_err(|_| Misfit::new("a negative number of classes", "0 or more"))?;
    let mut shape = operands[0].shape().to_vec();
    shape.push(classes);
    Ok(vec![(op.target().unwrap_or(Dtype::I64), shape)])
}

fn one_hot(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (index, out) = (program.input(0), program.output(0));
    index::one_hot(program, &index, &out, out.dtype().encode(1.0))
}

fn one_hot_expected(
    _: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let classes = results[0].shape().last().copied().unwrap_or_default();
    let row = |index: &f64| {
        let chosen = inside(*index, classes);
        (0..classes).map(move |at| (f64::from(u8::from(chosen == Some(at))), 0.0))
    };
    vec![x[0].values.iter().flat_map(row).collect()]
}

// Scattering.

fn combine_of(op: &OpParameters) -> ScatterCombine {
    match (op.name(), op.choice_of("reduce")) {
        ("scatter" | "index_copy", _) => ScatterCombine::Store,
        (_, "prod") => ScatterCombine::Multiply,
        (_, "amin") => ScatterCombine::Least,
        (_, "amax") => ScatterCombine::Most,
        _ => ScatterCombine::Add,
    }
}

fn scatter_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let [x, index, source] = [0, 1, 2].map(|at| operands[at].shape());
    let axis = op.axis_of(x.len())?;
    check_within(index, x, axis, "the index")?;
    check_within(index, source, usize::MAX, "the index")?;
    Ok(vec![(operands[0].dtype(), x.to_vec())])
}

fn scatter(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [x, index, mut source] = [0, 1, 2].map(|at| program.input(at));
    let out = program.output(0);
    for (dimension, len) in index.shape().iter().enumerate() {
        source = source.slice(dimension, 0..*len, 1)?;
    }
    copy::elements(program, &x, &out)?;
    let axis = first_axis(op, x.shape().len());
    index::scatter(program, &source, &index, axis, &out, combine_of(op))
}

/// What scattered values make of elements: value, number of terms, sum of magnitudes.
fn combined(
    op: &OpParameters,
    result: &Layout,
    x: &HostArray,
    terms: impl Iterator<Item = (Vec<u64>, f64)>,
) -> Vec<Vec<ExpectedElement>> {
    let combine = combine_of(op);
    let mut values = x.values.clone();
    let mut counts = vec![0.0; values.len()];
    let mut magnitudes: Vec<f64> = values.iter().map(|value| value.abs()).collect();
    for (index, term) in terms {
        let place = x.shape.iter().zip(&index);
        let place = place.fold(0, |place, (extent, at)| place * extent + at) as usize;
        counts[place] += 1.0;
        magnitudes[place] += term.abs();
        let value = &mut values[place];
        *value = match combine {
            ScatterCombine::Store => term,
            ScatterCombine::Add => *value + term,
            ScatterCombine::Multiply => *value * term,
            ScatterCombine::Least => least(*value, term),
            ScatterCombine::Most => most(*value, term),
        };
    }
    let dtype = result.dtype();
    let all = values.iter().zip(&counts).zip(&magnitudes);
    let all = all.map(|((value, count), magnitude)| {
        if !dtype.is_float() || *count == 0.0 {
            return (wrapped(dtype, *value), 0.0);
        }
        // Of any order, and one rounding where it is stored. Overflow on the way is possible.
        let unit = unit_roundoff(dtype);
        match combine {
            ScatterCombine::Add => stored(dtype, *value, 2.0 * count * unit * magnitude),
            ScatterCombine::Multiply => {
                stored(dtype, *value, 2.0 * (count + 1.0) * unit * value.abs())
            }
            _ => (*value, 0.0),
        }
    });
    vec![all.collect()]
}

fn scatter_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let axis = first_axis(op, x[0].shape.len());
    let all = indices(&x[1].shape).into_iter().filter_map(|mut at| {
        let term = x[2].at(&at);
        at[axis] = inside(x[1].at(&at), x[0].shape[axis])?;
        Some((at, term))
    });
    combined(op, &results[0], &x[0], all)
}

fn index_add_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let [x, source] = [0, 2].map(|at| operands[at].shape());
    let axis = op.axis_of(x.len())?;
    let len = check_vector(&operands[1], "the index")?;
    let mut wanted = x.to_vec();
    wanted[axis] = len;
    if source != wanted {
        let what = format!("the source is {source:?}, not {wanted:?}");
        return Err(Misfit::new(
            what,
            "x's shape with the index's length along the axis",
        ));
    }
    Ok(vec![(operands[0].dtype(), x.to_vec())])
}

fn index_add(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [x, index, source] = [0, 1, 2].map(|at| program.input(at));
    let out = program.output(0);
    copy::elements(program, &x, &out)?;
    let axis = first_axis(op, x.shape().len());
    let index = along(&index, axis, source.shape())?;
    index::scatter(program, &source, &index, axis, &out, combine_of(op))
}

fn index_add_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let axis = first_axis(op, x[0].shape.len());
    let all = indices(&x[2].shape).into_iter().filter_map(|mut at| {
        let term = x[2].at(&at);
        at[axis] = inside(x[1].values[at[axis] as usize], x[0].shape[axis])?;
        Some((at, term))
    });
    combined(op, &results[0], &x[0], all)
}

// Gradients: sums of what indices took.

fn gradient_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (g, index) = (&operands[0], operands[1].shape());
    let mut shape = g.shape().to_vec();
    if op.name() == "gather_backward" {
        let Some(own) = op.target_shape() else {
            return Err(Misfit::new("it has no shape", "the operand's `shape`"));
        };
        let axis = op.axis_of(own.len())?;
        check_within(index, own, axis, "the index")?;
        if g.shape() != index {
            let what = format!("g is {:?}, the index {index:?}", g.shape());
            return Err(Misfit::new(what, "one shape"));
        }
        return Ok(vec![(g.dtype(), own.to_vec())]);
    }
    let axis = op.axis_of(shape.len())?;
    let len = check_vector(&operands[1], "the index")?;
    if shape[axis] != len {
        let what = format!("{len} indices for {shape:?} along axis {axis}");
        return Err(Misfit::new(what, "an index for each row of g"));
    }
    let rows = whole_number(op, "rows")?;
    shape[axis] = u64::try_from(rows).map_err(|_| {
        let what = format!("{rows} rows");
        Misfit::new(what, "the operand's extent along the axis")
    })?;
    Ok(vec![(g.dtype(), shape)])
}

fn gather_gradient(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [g, index] = [0, 1].map(|at| program.input(at));
    let out = program.output(0);
    copy::fill(program, &out, 0);
    let axis = first_axis(op, out.shape().len());
    let index = match op.name() {
        "gather_backward" => index,
        _ => along(&index, axis, g.shape())?,
    };
    index::scatter(program, &g, &index, axis, &out, ScatterCombine::Add)
}

fn gradient_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let shape = results[0].shape();
    let axis = first_axis(op, shape.len());
    let is_vector = op.name() != "gather_backward";
    let all = indices(&x[0].shape).into_iter().filter_map(|mut at| {
        let term = x[0].at(&at);
        let chosen = match is_vector {
            true => x[1].values[at[axis] as usize],
            false => x[1].at(&at),
        };
        at[axis] = inside(chosen, shape[axis])?;
        Some((at, term))
    });
    let zeros = HostArray {
        dtype: x[0].dtype,
        shape: shape.to_vec(),
        values: vec![0.0; shape.iter().product::<u64>() as usize],
    };
    combined(op, &results[0], &zeros, all)
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Indexing "gather" ("x", "index") All {} ["axis"] {}
        "cuda.index", gather_results, gather, gather_expected,
        "elements of x at the indices along an axis"),
    native!(Indexing "index_select" ("x", "index") All {} ["axis"] {}
        "cuda.index", select_results, select, select_expected,
        "whole rows of x at the indices along an axis"),
    native!(Indexing "take" ("x", "index") All {} [] {}
        "cuda.index", take_results, take, take_expected,
        "elements of x at the indices, in row-major order"),
    native!(Indexing "embedding" ("table", "index") All {} [] {}
        "cuda.index", embedding_results, embedding, embedding_expected,
        "a row of the table for each index"),
    native!(Indexing "one_hot" ("index") Integers { "classes": 1.0 } ["to"] {}
        "cuda.index", one_hot_results, one_hot, one_hot_expected,
        "1 in the column of the index, else 0; i64 without `to`"),
    native!(Indexing "scatter" ("x", "index", "source") All {} ["axis"] {}
        "cuda.index", scatter_results, scatter, scatter_expected,
        "x with the source's elements at the indices along an axis; of several for one, any"),
    native!(Indexing "scatter_reduce" ("x", "index", "source") Numbers {} ["axis"]
        { choices: &[("reduce", &["sum", "prod", "amin", "amax"])] }
        "cuda.index", scatter_results, scatter, scatter_expected,
        "x with the source's elements combined into those at the indices"),
    native!(Indexing "index_add" ("x", "index", "source") Numbers {} ["axis"] {}
        "cuda.index", index_add_results, index_add, index_add_expected,
        "x with the source's rows added at the indices along an axis"),
    native!(Indexing "index_reduce" ("x", "index", "source") Numbers {} ["axis"]
        { choices: &[("reduce", &["sum", "prod", "amin", "amax"])] }
        "cuda.index", index_add_results, index_add, index_add_expected,
        "x with the source's rows combined into those at the indices along an axis"),
    native!(Indexing "index_copy" ("x", "index", "source") All {} ["axis"] {}
        "cuda.index", index_add_results, index_add, index_add_expected,
        "x with the source's rows at the indices along an axis; of several for one, any elements"),
    native!(Indexing "gather_backward" ("g", "index") Floats {} ["axis", "shape"] {}
        "cuda.index", gradient_results, gather_gradient, gradient_expected,
        "gradient of gather by its operand of `shape`"),
    native!(Indexing "index_select_backward" ("g", "index") Floats { "rows": 1.0 } ["axis"] {}
        "cuda.index", gradient_results, gather_gradient, gradient_expected,
        "gradient of index_select by its operand of `rows` rows along the axis"),
];
