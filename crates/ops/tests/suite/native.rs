//! Random parameters and operands of ops that are no expressions.

use fercuda_ops::{OpDescriptor, OpFamily, OpRow};
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{Operand, layout};
use crate::native_algebra;
use crate::native_fourier;
use crate::parity::{narrower, shape};
use crate::{
    native_attention, native_box, native_class, native_expert, native_norm, native_quant,
    native_recurrence, native_segment, native_small, native_sort, native_token, native_update,
    native_window,
};

/// A new descriptor of the op, and random operands.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    row: &'static OpRow,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let op = OpDescriptor::new(row.name).unwrap();
    if matches!(
        row.name,
        "grid_sample" | "grid_sample_backward" | "affine_grid" | "roi_align" | "nms"
    ) {
        return native_box::operands_of(random, op, dtype);
    }
    if row.family == OpFamily::Window && row.name.ends_with("l_backward")
        || row.name == "interpolate_backward"
    {
        return native_window::operands_of(random, op, dtype);
    }
    if row.name == "sparsemax" {
        let own = shape(random, 1);
        let op = op.axes(&[random.usize(..own.len())]).unwrap();
        return (op, vec![Operand::random(random, dtype, &own, true)]);
    }
    if row.family == OpFamily::Normalisation {
        return native_norm::operands_of(random, op, dtype);
    }
    if row.family == OpFamily::Loss {
        return native_class::operands_of(random, op, dtype);
    }
    if row.family == OpFamily::Optimiser {
        return native_update::operands_of(random, op, dtype);
    }
    if row.name == "expert_linear" {
        return native_expert::of_floats(random, op, dtype);
    }
    if native_token::OPS.contains(&row.name) {
        return native_token::operands_of(random, op, dtype);
    }
    if native_quant::is_of_blocks(row) {
        return native_quant::operands_of(random, row, dtype);
    }
    if row.family == OpFamily::Quantisation {
        return native_small::operands_of(random, op, dtype);
    }
    if row.name == "choose_by_weight" {
        return native_segment::choices(random, op, dtype);
    }
    if row.name.starts_with("multinomial") {
        return native_segment::weights(random, op, dtype);
    }
    if row.family == OpFamily::Sparse {
        return native_segment::sparse(random, op, dtype);
    }
    if row.family == OpFamily::Attention {
        return native_attention::operands_of(random, op, dtype);
    }
    if row.family == OpFamily::Recurrence {
        return native_recurrence::operands_of(random, op, dtype);
    }
    if row.family == OpFamily::Segment {
        return native_segment::operands_of(random, op, dtype);
    }
    if row.family == OpFamily::Order {
        return native_sort::operands_of(random, op, dtype);
    }
    if row.family == OpFamily::Transform {
        return native_fourier::operands_of(random, op, dtype);
    }
    if row.family == OpFamily::Algebra {
        return native_algebra::operands_of(random, op, dtype);
    }
    if row.family == OpFamily::Indexing {
        return indexing(random, op, dtype);
    }
    if row.family == OpFamily::Random || matches!(row.name, "iota" | "tril" | "triu" | "eye") {
        return generated(random, op, dtype);
    }
    if row.family == OpFamily::Arithmetic {
        return functions(random, op, dtype);
    }
    let (op, shapes, is_widened) = match row.family {
        OpFamily::Product => products(random, op, dtype),
        family => {
            let (op, shapes) = match family {
                OpFamily::Window => windows(random, op),
                _ => movement(random, op, dtype),
            };
            (op, shapes, false)
        }
    };
    let tame = matches!(row.family, OpFamily::Product | OpFamily::Window);
    let operands = shapes.iter().enumerate().map(|(at, shape)| {
        // What is added to a product is of its type.
        let own = if is_widened && at == 3 {
            Dtype::F32
        } else {
            dtype
        };
        Operand::random(random, own, shape, tame)
    });
    let operands = operands.collect();
    (op, operands)
}

/// Operands of a function of elements, which are broadcast, with special values.
fn functions(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let whole = shape(random, 0);
    let exponents = [Dtype::I8, Dtype::I32, Dtype::U16, Dtype::I64];
    let exponent = exponents[random.usize(..exponents.len())];
    let operands = op.row().operands.iter().map(|operand| {
        let own = narrower(random, &whole);
        let dtype = if *operand == "exponent" {
            exponent
        } else {
            dtype
        };
        Operand::random(random, dtype, &own, false)
    });
    let operands = operands.collect();
    (op, operands)
}

fn movement(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Vec<u64>>) {
    let name = op.name();
    let least = match name {
        "roll" | "repeat_interleave" | "concat" => 1,
        _ => 0,
    };
    let mut own = shape(random, least);
    let rank = own.len();
    match name {
        "concat" => {
            let axis = random.usize(..rank);
            let part = |random: &mut fastrand::Rng| {
                let mut part = own.clone();
                part[axis] = random.u64(..9);
                part
            };
            let shapes = (0..random.usize(1..5)).map(|_| part(random)).collect();
            (op.axes(&[axis]).unwrap(), shapes)
        }
        "stack" => {
            let op = op.axes(&[random.usize(..=rank)]).unwrap();
            (op, vec![own; random.usize(1..5)])
        }
        "flip" => {
            let axes: Vec<usize> = (0..rank).filter(|_| random.bool()).collect();
            (op.axes(&axes).unwrap(), vec![own])
        }
        "roll" => {
            let shift = f64::from(random.i32(-400..400));
            let op = op.axes(&[random.usize(..rank)]).unwrap();
            (op.number("shift", shift).unwrap(), vec![own])
        }
        "repeat_interleave" => {
            let repeats = f64::from(random.i32(0..4));
            let op = op.axes(&[random.usize(..rank)]).unwrap();
            (op.number("repeats", repeats).unwrap(), vec![own])
        }
        "tile" => {
            let repeats: Vec<i64> = (0..rank).map(|_| random.i64(0..4)).collect();
            (op.list("repeats", &repeats).unwrap(), vec![own])
        }
        "pad" => {
            let modes = op.row().choices[0].1;
            let mode = modes[random.usize(..modes.len())];
            let most = |len: u64| match mode {
                "reflect" => len.saturating_sub(1).min(5),
                "circular" => len.min(5),
                "replicate" if len == 0 => 0,
                _ => 5,
            };
            let pads: Vec<i64> = own
                .iter()
                .flat_map(|len| [*len, *len])
                .map(|len| random.i64(0..=most(len) as i64))
                .collect();
            let op = op
                .list("pads", &pads)
                .unwrap()
                .choice("mode", mode)
                .unwrap();
            (op.number("value", 2.0).unwrap(), vec![own])
        }
        "slice" | "slice_write" => {
            let (mut part, mut lists) = (own.clone(), [vec![], vec![], vec![]]);
            for len in &mut part {
                let start = random.u64(..=*len);
                let end = random.u64(start..=*len);
                let step = random.u64(1..4);
                // The same places, counted from the end, or beyond it.
                let from_end = |at: u64, is_end: bool| match random.u32(..3) {
                    0 if at < *len => at as i64 - *len as i64,
                    0 if is_end => i64::MAX,
                    _ => at as i64,
                };
                let mut from_end = from_end;
                lists[0].push(from_end(start, false));
                lists[1].push(from_end(end, true));
                lists[2].push(step as i64);
                *len = (end - start).div_ceil(step);
            }
            let mut op = op;
            for (name, list) in ["starts", "ends", "steps"].iter().zip(&lists) {
                op = op.list(name, list).unwrap();
            }
            let shapes = if name == "slice" {
                vec![own]
            } else {
                vec![own, part]
            };
            (op, shapes)
        }
        "pixel_shuffle" | "pixel_unshuffle" => {
            let factor = random.u64(1..4);
            own.truncate(1);
            let (c, h, w) = (random.u64(1..3), random.u64(1..9), random.u64(1..9));
            own.extend(match name {
                "pixel_shuffle" => [c * factor * factor, h, w],
                _ => [c, h * factor, w * factor],
            });
            (op.number("factor", factor as f64).unwrap(), vec![own])
        }
        "full" => {
            let op = op.to(dtype).unwrap().shape(&own).unwrap();
            (
                op.number("value", f64::from(random.u8(..2))).unwrap(),
                vec![],
            )
        }
        name => panic!("there are no random operands for {name}"),
    }
}

/// Indices into an extent: few of them outside, and each at most once if they are `unique`.
pub(crate) fn index_operand(
    random: &mut fastrand::Rng,
    shape: &[u64],
    axis: usize,
    extent: u64,
    unique: bool,
) -> Operand {
    let dtypes = [Dtype::I64, Dtype::I32, Dtype::U16, Dtype::U64];
    let dtype = dtypes[random.usize(..dtypes.len())];
    let own: Layout = layout(random, dtype, shape, true);
    let len: u64 = shape.get(axis).copied().unwrap_or(1);
    let inner: u64 = shape.iter().skip(axis + 1).product();
    let mut order: Vec<u64> = (0..extent.max(len)).collect();
    random.shuffle(&mut order);
    let bits = (0..own.len()).map(|at| {
        let along = at / inner.max(1) % len.max(1);
        let value = match random.u32(..20) {
            // Also a number that is negative as a signed one.
            0 => [extent, u64::MAX, 60_000][random.usize(..3)],
            _ if unique => order[along as usize],
            _ => random.u64(..extent.max(1)),
        };
        value & (u64::MAX >> (64 - 8 * dtype.bytes()))
    });
    let bits = bits.collect();
    Operand::of(random, own, bits)
}

fn indexing(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let name = op.name();
    let own = shape(random, usize::from(name != "take" && name != "one_hot"));
    let rank = own.len();
    let axis = random.usize(..rank.max(1));
    let unique = matches!(name, "scatter" | "index_copy");
    let values = |random: &mut fastrand::Rng, shape: &[u64]| {
        let mut operand = Operand::random(random, dtype, shape, true);
        if !dtype.is_float() {
            // Products of a few of these are exact in f64.
            operand.bits.iter_mut().for_each(|bits| *bits &= 1);
        }
        operand
    };
    let narrower = |random: &mut fastrand::Rng| -> Vec<u64> {
        let all = own.iter().enumerate();
        all.map(|(at, len)| match at == axis {
            true if unique => random.u64(0..=*len),
            true => random.u64(0..12),
            false => random.u64(0..=*len).max(u64::from(*len > 0)),
        })
        .collect()
    };
    match name {
        "gather" => {
            let part = narrower(random);
            let index = index_operand(random, &part, axis, own[axis], false);
            (op.axes(&[axis]).unwrap(), vec![values(random, &own), index])
        }
        "index_select" => {
            let len = random.u64(..20);
            let index = index_operand(random, &[len], 0, own[axis], false);
            (op.axes(&[axis]).unwrap(), vec![values(random, &own), index])
        }
        "gather_backward" => {
            let part = narrower(random);
            let index = index_operand(random, &part, axis, own[axis], false);
            let op = op.axes(&[axis]).unwrap().shape(&own).unwrap();
            (op, vec![values(random, &part), index])
        }
        "index_select_backward" => {
            let index = index_operand(random, &own[axis..=axis], 0, 9, false);
            let op = op.axes(&[axis]).unwrap().number("rows", 9.0).unwrap();
            (op, vec![values(random, &own), index])
        }
        "take" => {
            let of = shape(random, 0);
            let index = index_operand(random, &of, 0, own.iter().product(), false);
            (op, vec![values(random, &own), index])
        }
        "embedding" => {
            let of = shape(random, 0);
            let table = [random.u64(1..30), random.u64(1..70)];
            let index = index_operand(random, &of, 0, table[0], false);
            (op, vec![values(random, &table), index])
        }
        "one_hot" => {
            let classes = random.u64(0..9);
            let mut index = index_operand(random, &own, 0, classes, false);
            // The type is the op's.
            let bits = index.bits.iter().map(|bits| bits & 0x7f).collect();
            let own = layout(random, dtype, &own, true);
            index = Operand::of(random, own, bits);
            (op.number("classes", classes as f64).unwrap(), vec![index])
        }
        "scatter" | "scatter_reduce" => {
            let part = narrower(random);
            let source: Vec<u64> = part.iter().map(|len| len + random.u64(..3)).collect();
            let index = index_operand(random, &part, axis, own[axis], unique);
            let op = random_choice(random, op.axes(&[axis]).unwrap());
            (
                op,
                vec![values(random, &own), index, values(random, &source)],
            )
        }
        "index_add" | "index_reduce" | "index_copy" => {
            let mut source = own.clone();
            source[axis] = if unique { own[axis] } else { random.u64(..12) };
            let index = index_operand(random, &source[axis..=axis], 0, own[axis], unique);
            let op = random_choice(random, op.axes(&[axis]).unwrap());
            (
                op,
                vec![values(random, &own), index, values(random, &source)],
            )
        }
        name => panic!("there are no random operands for {name}"),
    }
}

pub(crate) fn random_choice(random: &mut fastrand::Rng, op: OpDescriptor) -> OpDescriptor {
    match op.row().choices.first() {
        Some((name, values)) => {
            let value = values[random.usize(..values.len())];
            op.choice(name, value).unwrap()
        }
        None => op,
    }
}

fn generated(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let name = op.name();
    let own = shape(
        random,
        match name {
            "tril" | "triu" | "eye" => 2,
            "random_permutation" => 1,
            _ => 0,
        },
    );
    let mut op = op;
    if op.row().has("shape") {
        op = op.shape(&own).unwrap();
    }
    let accepted = match name {
        "random_uniform" | "random_normal" | "truncated_normal" | "random_exponential" => {
            dtype.is_float()
        }
        "random_integers" => !dtype.is_float() && dtype != Dtype::Bool,
        "iota" => dtype != Dtype::Bool,
        _ => true,
    };
    if op.row().has("to") && (accepted || name == "random_integers") {
        op = op.to(if accepted { dtype } else { Dtype::I16 }).unwrap();
    }
    for (list, _) in op.row().lists.iter().filter(|(list, _)| *list != "bounds") {
        op = op.list(list, &[random.i64(..)]).unwrap();
    }
    if name == "random_integers" {
        let low = if dtype.is_signed() {
            random.i64(-100..0)
        } else {
            random.i64(0..20)
        };
        let low = if accepted { low } else { -7 };
        op = op.list("bounds", &[low, low + random.i64(1..100)]).unwrap();
    }
    for (number, _) in op.row().numbers {
        let value = match *number {
            "p" => f64::from(random.u32(0..=4)) / 4.0,
            "diagonal" => f64::from(random.i32(-6..6)),
            // Of unsigned types what is below 0 wraps to what f64 does not have.
            "start" | "step" if !dtype.is_signed() => f64::from(random.u32(..9)),
            "start" | "step" => f64::from(random.i32(-9..9)),
            "low" if name == "truncated_normal" => -f64::from(random.u32(1..9)) / 4.0,
            "high" => 2.0 + f64::from(random.u32(1..9)) / 4.0,
            _ => f64::from(random.u32(1..9)) / 4.0,
        };
        let value = if name == "dropout" {
            value * 0.75
        } else {
            value
        };
        op = op.number(number, value).unwrap();
    }
    let operands = match op.row().operands {
        [] => vec![],
        _ => vec![Operand::random(random, dtype, &own, true)],
    };
    (op, operands)
}

/// An extent: mostly small, some beyond a tile.
fn side(random: &mut fastrand::Rng) -> u64 {
    match random.u32(..8) {
        0 => random.u64(60..140),
        1 => random.u64(..2),
        2 | 3 => 8 * random.u64(1..20),
        _ => random.u64(1..20),
    }
}

fn products(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Vec<u64>>, bool) {
    let (m, n, k) = (side(random), side(random), side(random));
    let outer: Vec<u64> = (0..random.usize(..3)).map(|_| random.u64(1..3)).collect();
    let joined = |outer: &[u64], inner: &[u64]| [outer, inner].concat();
    if op.name() == "matmul" {
        let own = narrower(random, &outer);
        let x = if random.u32(..6) == 0 {
            vec![k]
        } else {
            joined(&outer, &[m, k])
        };
        let y = if random.u32(..6) == 0 {
            vec![k]
        } else {
            joined(&own, &[k, n])
        };
        return (op, vec![x, y], false);
    }
    let x = if random.u32(..6) == 0 {
        vec![]
    } else {
        joined(&outer, &[m])
    };
    let op = op
        .number("scale", f64::from(random.u32(1..5)) / 2.0)
        .unwrap();
    let mut shapes = vec![joined(&x, &[k]), vec![n, k], vec![n], joined(&x, &[n])];
    shapes.truncate(random.usize(2..=4));
    let result = match dtype {
        Dtype::F64 => "same",
        _ => ["same", "f32"][random.usize(..2)],
    };
    let op = op.choice("result", result).unwrap();
    (random_choice(random, op), shapes, result == "f32")
}

fn windows(random: &mut fastrand::Rng, op: OpDescriptor) -> (OpDescriptor, Vec<Vec<u64>>) {
    let (name, space) = (op.name(), random.usize(1..4));
    let draw = |random: &mut fastrand::Rng, from: u64, to: u64| -> Vec<u64> {
        (0..space).map(|_| random.u64(from..to)).collect()
    };
    let (own, kernel) = (draw(random, 1, 9), draw(random, 1, 4));
    let (stride, dilation) = (draw(random, 1, 4), draw(random, 1, 3));
    let dilation = if matches!(name, "avg_pool" | "lp_pool" | "fractional_max_pool") {
        vec![1; space]
    } else {
        dilation
    };
    let padding: Vec<u64> = kernel
        .iter()
        .map(|extent| random.u64(0..=extent / 2))
        .collect();
    let reach = |d: usize| dilation[d] * (kernel[d] - 1) + 1;
    let padding = match name {
        "fractional_max_pool" => vec![0; space],
        _ => padding,
    };
    // As many places as the window needs.
    let own: Vec<u64> = (0..space)
        .map(|d| own[d].max(reach(d).saturating_sub(2 * padding[d])))
        .collect();
    let mut op = op;
    for (list, _) in op.row().lists {
        let values = match *list {
            "kernel" => kernel.clone(),
            "stride" => stride.clone(),
            "padding" => padding.clone(),
            "dilation" => dilation.clone(),
            "size" if name == "fractional_max_pool" => draw(random, 1, 7),
            "output_padding" => stride.iter().map(|step| random.u64(..*step)).collect(),
            _ => draw(random, 1, 12),
        };
        let values: Vec<i64> = values.iter().map(|value| *value as i64).collect();
        op = op.list(list, &values).unwrap();
    }
    for (choice, values) in op.row().choices {
        let value = values[random.usize(..values.len())];
        op = op.choice(choice, value).unwrap();
    }
    if name == "lp_pool" {
        let power = [0.5, 1.0, 1.5, 2.0, 3.0][random.usize(..5)];
        op = op.number("power", power).unwrap();
    }
    let groups = random.u64(1..3);
    if op
        .row()
        .numbers
        .iter()
        .any(|(number, _)| *number == "groups")
    {
        op = op.number("groups", groups as f64).unwrap();
    }
    let (batch, inputs, outputs) = (random.u64(0..3), random.u64(1..4), random.u64(1..4));
    let joined = |first: [u64; 2], space: &[u64]| [&first[..], space].concat();
    let x = joined([batch, inputs * groups], &own);
    let with_bias = |random: &mut fastrand::Rng, shapes: [Vec<u64>; 2]| {
        let bias = random.bool().then(|| vec![outputs * groups]);
        shapes.into_iter().chain(bias).collect::<Vec<_>>()
    };
    let shapes = match name {
        "conv" => with_bias(random, [x, joined([outputs * groups, inputs], &kernel)]),
        "conv_transpose" => {
            let own = own.iter().zip(&padding).map(|(len, padding)| len + padding);
            let x = joined([batch, inputs * groups], &own.collect::<Vec<_>>());
            with_bias(random, [x, joined([inputs * groups, outputs], &kernel)])
        }
        "conv_weight_backward" => {
            let places = (0..space)
                .map(|d| (own[d] + 2 * padding[d] - reach(d)) / stride[d] + 1)
                .collect::<Vec<_>>();
            vec![joined([batch, outputs * groups], &places), x]
        }
        "fractional_max_pool" => vec![x, vec![batch, inputs * groups, space as u64]],
        "col2im" => {
            op = op
                .list("size", &own.iter().map(|it| *it as i64).collect::<Vec<_>>())
                .unwrap();
            let places = (0..space).map(|d| (own[d] + 2 * padding[d] - reach(d)) / stride[d] + 1);
            let taps: u64 = kernel.iter().product();
            vec![vec![batch, inputs * groups * taps, places.product()]]
        }
        _ => vec![x],
    };
    (op, shapes)
}
