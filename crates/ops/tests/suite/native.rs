//! Random parameters and operands of ops that are no expressions.

use fercuda_ops::{OpDescriptor, OpFamily, OpRow};
use fercuda_tensor::Dtype;

use crate::bench::Operand;
use crate::native_sort;
use crate::parity::shape;

/// A new descriptor of the op, and random operands.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    row: &'static OpRow,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let op = OpDescriptor::new(row.name).unwrap();
    if row.family == OpFamily::Order {
        return native_sort::operands_of(random, op, dtype);
    }
    let (op, shapes) = movement(random, op, dtype);
    let operands = shapes.iter();
    let operands = operands.map(|shape| Operand::random(random, dtype, shape, false));
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
