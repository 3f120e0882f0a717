//! Rows of ops that move elements: each element of the result is one of an operand, or one value.
//!
//! Their kernels are copies of views: what an op computes is which view goes where.

use fercuda_kernels::{KernelError, MemoryView, NativeProgram, copy};
use fercuda_tensor::Layout;

use super::along::{by_index, first_axis};
use super::scalar::whole_number;
use crate::arrays::{HostArray, indices};
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, NativeRule, OpRow, RowLowering, RowResults, native};

/// Elements at the place that a function gives for each index, or 0.
fn gathered(
    x: &HostArray,
    result: &Layout,
    place: impl Fn(&[u64]) -> Option<Vec<u64>>,
) -> Vec<Vec<ExpectedElement>> {
    let all = indices(result.shape());
    let element = |index: &Vec<u64>| (place(index).map_or(0.0, |at| x.at(&at)), 0.0);
    vec![all.iter().map(element).collect()]
}

/// The axis of a result that has one more than the operands.
fn new_axis(op: &OpParameters, rank: usize) -> Result<usize, Misfit> {
    op.axis_of(rank + 1)
}

fn extents(list: &[i64], what: &str) -> Result<Vec<u64>, Misfit> {
    let extent = |value: &i64| u64::try_from(*value);
    let all: Result<Vec<u64>, _> = list.iter().map(extent).collect();
    all.map_err(|_| Misfit::new(format!("{what} has a negative number"), "0 or more"))
}

fn per_dimension(list: &[i64], each: usize, x: &Layout, what: &str) -> Result<(), Misfit> {
    let (rank, len) = (x.shape().len(), list.len());
    match len == rank * each {
        true => Ok(()),
        false => Err(Misfit::new(
            format!(
                "{what} has {len} numbers, {rank} dimensions have {}",
                rank * each
            ),
            format!("{each} for each dimension"),
        )),
    }
}

fn multiplied(a: u64, b: u64) -> Result<u64, Misfit> {
    a.checked_mul(b)
        .filter(|product| *product <= i64::MAX as u64)
        .ok_or_else(|| Misfit::new(format!("{a} times {b} elements"), "fewer"))
}

// Joining.

fn concat_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let mut shape = operands[0].shape().to_vec();
    let axis = op.axis_of(shape.len())?;
    for layout in &operands[1..] {
        let mut own = layout.shape().to_vec();
        if own.len() != shape.len() {
            return Err(Misfit::new(
                "their numbers of dimensions differ",
                "one rank for all",
            ));
        }
        let along = std::mem::replace(&mut own[axis], shape[axis]);
        if own != shape {
            let what = format!("the extents but that of axis {axis} differ");
            return Err(Misfit::new(what, "equal extents along all other axes"));
        }
        shape[axis] = shape[axis].saturating_add(along);
    }
    Ok(vec![(operands[0].dtype(), shape)])
}

fn concat(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let out = program.output(0);
    let axis = op
        .axes_of(out.shape().len())
        .first()
        .copied()
        .unwrap_or_default();
    let mut from = 0;
    for at in 0..program.operands() {
        let x = program.input(at);
        let until = from + x.shape()[axis];
        copy::elements(program, &x, &out.slice(axis, from..until, 1)?)?;
        from = until;
    }
    Ok(())
}

fn concat_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let axis = first_axis(op, results[0].shape().len());
    let element = |index: &Vec<u64>| {
        let mut own = index.clone();
        let found = x.iter().find(|x| {
            let is_here = own[axis] < x.shape[axis];
            if !is_here {
                own[axis] -= x.shape[axis];
            }
            is_here
        });
        (found.map_or(f64::NAN, |x| x.at(&own)), 0.0)
    };
    by_index(&results[0], element)
}

fn stack_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let shape = operands[0].shape();
    let axis = new_axis(op, shape.len())?;
    if operands.iter().any(|layout| layout.shape() != shape) {
        return Err(Misfit::new(
            "their shapes differ",
            "one shape for all, or `concat`",
        ));
    }
    let mut stacked = shape.to_vec();
    stacked.insert(axis, operands.len() as u64);
    Ok(vec![(operands[0].dtype(), stacked)])
}

fn stack(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let out = program.output(0);
    let axis = op
        .axes_of(out.shape().len())
        .first()
        .copied()
        .unwrap_or_default();
    for at in 0..program.operands() {
        let x = program.input(at);
        let mut shape = x.shape().to_vec();
        shape.insert(axis, 1);
        let n = at as u64;
        copy::elements(program, &x.reshape(&shape)?, &out.slice(axis, n..n + 1, 1)?)?;
    }
    Ok(())
}

fn stack_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let axis = first_axis(op, results[0].shape().len());
    let element = |index: &Vec<u64>| {
        let mut own = index.clone();
        let which = own.remove(axis);
        (x[which as usize].at(&own), 0.0)
    };
    by_index(&results[0], element)
}

// Order.

fn same(_: &OpParameters, operands: &[Layout]) -> RowResults {
    Ok(vec![(operands[0].dtype(), operands[0].shape().to_vec())])
}

fn flip_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let rank = operands[0].shape().len();
    let axes = op.axes_of(rank);
    for (at, axis) in axes.iter().enumerate() {
        if *axis >= rank || axes[..at].contains(axis) {
            let what = format!("axis {axis} is twice in the list, or not one of {rank}");
            return Err(Misfit::new(what, "each axis at most once"));
        }
    }
    same(op, operands)
}

fn flip(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (mut x, out) = (program.input(0), program.output(0));
    for axis in op.axes_of(x.shape().len()) {
        x = x.flip(axis)?;
    }
    copy::elements(program, &x, &out)
}

fn flip_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let shape = results[0].shape();
    gathered(&x[0], &results[0], |index| {
        let mut own = index.to_vec();
        for axis in op.axes_of(shape.len()) {
            own[axis] = shape[axis] - 1 - own[axis];
        }
        Some(own)
    })
}

fn roll_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    op.axis_of(operands[0].shape().len())?;
    whole_number(op, "shift")?;
    same(op, operands)
}

fn roll(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, out) = (program.input(0), program.output(0));
    let axis = op
        .axes_of(x.shape().len())
        .first()
        .copied()
        .unwrap_or_default();
    let len = x.shape()[axis];
    if len == 0 {
        return Ok(());
    }
    let shift = (op.number_of("shift") as i128).rem_euclid(i128::from(len)) as u64;
    for (from, until, to) in [(0, len - shift, shift), (len - shift, len, 0)] {
        let moved = x.slice(axis, from..until, 1)?;
        copy::elements(
            program,
            &moved,
            &out.slice(axis, to..to + (until - from), 1)?,
        )?;
    }
    Ok(())
}

fn roll_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let axis = first_axis(op, results[0].shape().len());
    let len = i128::from(results[0].shape()[axis]);
    let shift = op.number_of("shift") as i128;
    gathered(&x[0], &results[0], |index| {
        let mut own = index.to_vec();
        own[axis] = (i128::from(own[axis]) - shift).rem_euclid(len) as u64;
        Some(own)
    })
}

// Repeating.

fn tile_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let list = op.list_of("repeats");
    per_dimension(list, 1, &operands[0], "repeats")?;
    let repeats = extents(list, "repeats")?;
    let extents = operands[0].shape().iter().zip(&repeats);
    let shape: Result<Vec<u64>, _> = extents.map(|(len, n)| multiplied(*len, *n)).collect();
    Ok(vec![(operands[0].dtype(), shape?)])
}

/// A dimension of `n` parts of `len` elements as two; `is_inner` if the parts are the inner one.
fn split(view: &MemoryView, axis: usize, parts: [u64; 2]) -> Result<MemoryView, KernelError> {
    let mut shape = view.shape().to_vec();
    shape.splice(axis..=axis, parts);
    Ok(view.reshape(&shape)?)
}

/// Copies the operand, repeated along each axis: whole, or each element by itself.
fn repeat_along(
    program: &mut NativeProgram,
    axis: usize,
    times: u64,
    each: bool,
    x: &MemoryView,
    out: &MemoryView,
) -> RowLowering {
    let len = x.shape()[axis];
    if len == 0 || times == 0 {
        return Ok(());
    }
    let parts = if each { [len, times] } else { [times, len] };
    let single = if each { [len, 1] } else { [1, len] };
    let x = split(x, axis, single)?;
    // Only an output that is laid out as its shape can be split: every dimension can.
    copy::elements(program, &x, &split(out, axis, parts)?)
}

fn tile(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, out) = (program.input(0), program.output(0));
    if out.layout().is_empty() {
        return Ok(());
    }
    // The first axis that is repeated comes from the operand, the others from the result so far.
    let mut done = x.shape().to_vec();
    let part = |shape: &[u64]| {
        let mut view = out;
        for (axis, len) in shape.iter().enumerate() {
            view = view.slice(axis, 0..*len, 1)?;
        }
        Ok::<_, KernelError>(view)
    };
    copy::elements(program, &x, &part(&done)?)?;
    for axis in 0..done.len() {
        let (len, all) = (done[axis], out.shape()[axis]);
        let from = part(&done)?;
        done[axis] = all;
        if all > len {
            let rest = part(&done)?.slice(axis, len..all, 1)?;
            repeat_along(program, axis, all / len - 1, false, &from, &rest)?;
        }
    }
    Ok(())
}

fn tile_expected(
    _: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    gathered(&x[0], &results[0], |index| {
        let own = index.iter().zip(&x[0].shape);
        Some(own.map(|(at, len)| at % len).collect())
    })
}

fn interleave_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let mut shape = operands[0].shape().to_vec();
    let axis = op.axis_of(shape.len())?;
    let times = extents(&[whole_number(op, "repeats")?], "repeats")?;
    shape[axis] = multiplied(shape[axis], times[0])?;
    Ok(vec![(operands[0].dtype(), shape)])
}

fn interleave(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, out) = (program.input(0), program.output(0));
    let axis = op
        .axes_of(x.shape().len())
        .first()
        .copied()
        .unwrap_or_default();
    repeat_along(
        program,
        axis,
        op.number_of("repeats") as u64,
        true,
        &x,
        &out,
    )
}

fn interleave_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let axis = first_axis(op, results[0].shape().len());
    gathered(&x[0], &results[0], |index| {
        let mut own = index.to_vec();
        own[axis] /= op.number_of("repeats") as u64;
        Some(own)
    })
}

// Padding.

fn pad_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let list = op.list_of("pads");
    per_dimension(list, 2, &operands[0], "pads")?;
    let pads = extents(list, "pads")?;
    let mode = op.choice_of("mode");
    let mut shape = operands[0].shape().to_vec();
    for (axis, len) in shape.iter_mut().enumerate() {
        let (before, after) = (pads[2 * axis], pads[2 * axis + 1]);
        let most = match mode {
            "reflect" => len.saturating_sub(1),
            "circular" => *len,
            "replicate" if *len == 0 => 0,
            _ => u64::MAX,
        };
        if before > most || after > most {
            let what = format!("{mode} of {len} elements by {before} and {after}");
            return Err(Misfit::new(what, format!("at most {most}")));
        }
        let all = len.checked_add(before).and_then(|it| it.checked_add(after));
        *len = all.ok_or_else(|| Misfit::new("more elements than can be counted", "fewer"))?;
    }
    Ok(vec![(operands[0].dtype(), shape)])
}

fn pad(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, out) = (program.input(0), program.output(0));
    let pads: Vec<u64> = op
        .list_of("pads")
        .iter()
        .map(|n| n.unsigned_abs())
        .collect();
    let mode = op.choice_of("mode");
    if mode == "constant" {
        copy::fill(program, &out, x.dtype().encode(op.number_of("value")));
    }
    // The middle, and then axis by axis what is beside it, as wide as the result so far.
    let mut inside = out;
    for (axis, len) in x.shape().iter().enumerate() {
        inside = inside.slice(axis, pads[2 * axis]..pads[2 * axis] + len, 1)?;
    }
    copy::elements(program, &x, &inside)?;
    if mode == "constant" {
        return Ok(());
    }
    for axis in 0..x.shape().len() {
        let (before, after, len) = (pads[2 * axis], pads[2 * axis + 1], x.shape()[axis]);
        // All of this axis; of later ones the middle only.
        let mut band = out;
        for (later, len) in x.shape().iter().enumerate().skip(axis + 1) {
            band = band.slice(later, pads[2 * later]..pads[2 * later] + len, 1)?;
        }
        let part = |from: u64, until: u64| band.slice(axis, from..until, 1);
        let end = before + len;
        if before > 0 {
            let source = match mode {
                "reflect" => part(before + 1, 2 * before + 1)?.flip(axis)?,
                "circular" => part(end - before, end)?,
                _ => part(before, before + 1)?,
            };
            copy::elements(program, &source, &part(0, before)?)?;
        }
        if after > 0 {
            let source = match mode {
                "reflect" => part(end - 1 - after, end - 1)?.flip(axis)?,
                "circular" => part(before, before + after)?,
                _ => part(end - 1, end)?,
            };
            copy::elements(program, &source, &part(end, end + after)?)?;
        }
    }
    Ok(())
}

fn pad_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (pads, mode) = (op.list_of("pads"), op.choice_of("mode"));
    let value = results[0]
        .dtype()
        .value(results[0].dtype().encode(op.number_of("value")));
    let element = |index: &Vec<u64>| {
        let mut own = Vec::new();
        for (axis, at) in index.iter().enumerate() {
            let len = x[0].shape[axis] as i64;
            let at = *at as i64 - pads[2 * axis];
            let from = match mode {
                "circular" => at.rem_euclid(len),
                "replicate" => at.clamp(0, len - 1),
                "reflect" if at < 0 => -at,
                "reflect" if at >= len => 2 * (len - 1) - at,
                _ => at,
            };
            if !(0..len).contains(&from) {
                return (value, 0.0);
            }
            own.push(from as u64);
        }
        (x[0].at(&own), 0.0)
    };
    by_index(&results[0], element)
}

// Parts.

/// Start and number of elements of each dimension, by `starts`, `ends` and `steps`.
fn parts(op: &OpParameters, x: &Layout) -> Result<Vec<(u64, u64, u64)>, Misfit> {
    let [starts, ends, steps] = ["starts", "ends", "steps"].map(|list| op.list_of(list));
    let mut all = Vec::new();
    for (list, what) in [(starts, "starts"), (ends, "ends"), (steps, "steps")] {
        if !list.is_empty() {
            per_dimension(list, 1, x, what)?;
        }
    }
    for (axis, len) in x.shape().iter().enumerate() {
        // A negative number counts from the end, as in Python; what is beyond is the end.
        let place = |at: i64| {
            let from_end = if at < 0 { *len as i64 } else { 0 };
            at.saturating_add(from_end).clamp(0, *len as i64) as u64
        };
        let start = starts.get(axis).map_or(0, |at| place(*at));
        let end = ends.get(axis).map_or(*len, |at| place(*at));
        let step = steps.get(axis).copied().unwrap_or(1);
        if step < 1 {
            let what = format!("a step of {step} along axis {axis}");
            return Err(Misfit::new(what, "1 or more; `flip` reverses"));
        }
        all.push((start, end.max(start), step.unsigned_abs()));
    }
    Ok(all)
}

fn slice_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let parts = parts(op, &operands[0])?;
    let shape = parts
        .iter()
        .map(|(start, end, step)| (end - start).div_ceil(*step));
    Ok(vec![(operands[0].dtype(), shape.collect())])
}

fn sliced(op: &OpParameters, view: MemoryView) -> Result<MemoryView, KernelError> {
    // The results' rule has accepted them.
    let parts = parts(op, view.layout()).unwrap_or_default();
    let mut view = view;
    for (axis, (start, end, step)) in parts.into_iter().enumerate() {
        view = view.slice(axis, start..end, step)?;
    }
    Ok(view)
}

fn slice(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let x = sliced(op, program.input(0))?;
    let out = program.output(0);
    copy::elements(program, &x, &out)
}

fn slice_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let layout = Layout::contiguous(x[0].dtype, &x[0].shape);
    let parts = layout
        .ok()
        .and_then(|layout| parts(op, &layout).ok())
        .unwrap_or_default();
    gathered(&x[0], &results[0], |index| {
        let own = index.iter().zip(&parts);
        Some(
            own.map(|(at, (start, _, step))| start + at * step)
                .collect(),
        )
    })
}

fn slice_write_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let part = slice_results(op, operands)?.remove(0).1;
    if part != operands[1].shape() {
        let what = format!("the part is {part:?}, the source {:?}", operands[1].shape());
        return Err(Misfit::new(what, "a source of the part's shape"));
    }
    same(op, operands)
}

fn slice_write(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, source, out) = (program.input(0), program.input(1), program.output(0));
    copy::elements(program, &x, &out)?;
    copy::elements(program, &source, &sliced(op, out)?)
}

fn slice_write_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let parts = parts(op, &results[0]).unwrap_or_default();
    let element = |index: &Vec<u64>| {
        let inside = index.iter().zip(&parts).map(|(at, (start, end, step))| {
            let is_in = (*start..*end).contains(at) && (at - start).is_multiple_of(*step);
            is_in.then(|| (at - start) / step)
        });
        match inside.collect::<Option<Vec<u64>>>() {
            Some(own) => (x[1].at(&own), 0.0),
            None => (x[0].at(index), 0.0),
        }
    };
    by_index(&results[0], element)
}

// Blocks of pixels.

fn block(op: &OpParameters) -> Result<u64, Misfit> {
    match whole_number(op, "factor")? {
        factor @ 1..=0xffff => Ok(factor as u64),
        factor => Err(Misfit::new(format!("a factor of {factor}"), "1 to 65535")),
    }
}

fn shuffle_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (factor, mut shape) = (block(op)?, operands[0].shape().to_vec());
    let [.., c, h, w] = shape.as_mut_slice() else {
        return Err(Misfit::new(
            "less than 3 dimensions",
            "channels, height and width",
        ));
    };
    if !c.is_multiple_of(factor * factor) {
        let what = format!("{c} channels are not whole blocks of {factor} by {factor}");
        return Err(Misfit::new(what, "another factor"));
    }
    (*c, *h, *w) = (
        *c / (factor * factor),
        multiplied(*h, factor)?,
        multiplied(*w, factor)?,
    );
    Ok(vec![(operands[0].dtype(), shape)])
}

fn unshuffle_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (factor, mut shape) = (block(op)?, operands[0].shape().to_vec());
    let [.., c, h, w] = shape.as_mut_slice() else {
        return Err(Misfit::new(
            "less than 3 dimensions",
            "channels, height and width",
        ));
    };
    if !h.is_multiple_of(factor) || !w.is_multiple_of(factor) {
        let what = format!("{h} by {w} are not whole blocks of {factor} by {factor}");
        return Err(Misfit::new(what, "another factor"));
    }
    (*c, *h, *w) = (multiplied(*c, factor * factor)?, *h / factor, *w / factor);
    Ok(vec![(operands[0].dtype(), shape)])
}

/// The narrow side as [.., c, r, r, h, w], the wide one as that with its pixels in blocks.
fn blocks(
    op: &OpParameters,
    narrow: &MemoryView,
    wide: &MemoryView,
) -> Result<[MemoryView; 2], KernelError> {
    let factor = op.number_of("factor") as u64;
    let (outer, [c, h, w]) = match wide.shape() {
        [outer @ .., c, h, w] => (outer, [*c, *h / factor, *w / factor]),
        _ => (&[][..], [1; 3]),
    };
    let shape = |inner: [u64; 5]| outer.iter().copied().chain(inner).collect::<Vec<u64>>();
    let narrow = narrow.reshape(&shape([c, factor, factor, h, w]))?;
    let wide = wide.reshape(&shape([c, h, factor, w, factor]))?;
    let at = outer.len();
    let order = (0..at).chain([at, at + 2, at + 4, at + 1, at + 3]);
    Ok([narrow, wide.permute(&order.collect::<Vec<_>>())?])
}

fn shuffle(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    if program.output(0).layout().is_empty() {
        return Ok(());
    }
    let [narrow, wide] = blocks(op, &program.input(0), &program.output(0))?;
    copy::elements(program, &narrow, &wide)
}

fn unshuffle(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    if program.output(0).layout().is_empty() {
        return Ok(());
    }
    let [narrow, wide] = blocks(op, &program.output(0), &program.input(0))?;
    copy::elements(program, &wide, &narrow)
}

/// Channel, row and column on the narrow side of a pixel of the wide one.
fn narrow_place(factor: u64, wide: &[u64]) -> Vec<u64> {
    let mut own = wide.to_vec();
    if let [.., c, h, w] = own.as_mut_slice() {
        *c = (*c * factor + *h % factor) * factor + *w % factor;
        (*h, *w) = (*h / factor, *w / factor);
    }
    own
}

fn shuffle_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let factor = op.number_of("factor") as u64;
    gathered(&x[0], &results[0], |index| {
        Some(narrow_place(factor, index))
    })
}

fn unshuffle_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let factor = op.number_of("factor") as u64;
    gathered(&x[0], &results[0], |index| {
        let mut own = index.to_vec();
        if let [.., c, h, w] = own.as_mut_slice() {
            *w = *w * factor + *c % factor;
            *h = *h * factor + *c / factor % factor;
            *c /= factor * factor;
        }
        Some(own)
    })
}

// Values.

fn full_results(op: &OpParameters, _: &[Layout]) -> RowResults {
    let (Some(dtype), Some(shape)) = (op.target(), op.target_shape()) else {
        return Err(Misfit::new(
            "it has no type or no shape",
            "`to` and `shape`",
        ));
    };
    Ok(vec![(dtype, shape.to_vec())])
}

fn full(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let out = program.output(0);
    copy::fill(program, &out, out.dtype().encode(op.number_of("value")));
    Ok(())
}

fn full_expected(
    op: &OpParameters,
    _: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let value = results[0]
        .dtype()
        .value(results[0].dtype().encode(op.number_of("value")));
    vec![vec![(value, 0.0); results[0].len() as usize]]
}

fn permute(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, out) = (program.input(0), program.output(0));
    let x = x.permute(&op.axes_of(x.shape().len()))?;
    copy::elements(program, &x, &out)
}

/// The kernel of `permute`, which is an expression too.
pub(super) const PERMUTE: NativeRule = NativeRule {
    kernel: "cuda.copy",
    results: None,
    lower: permute,
};

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Shape "concat" ("x") All {} ["axis"] { repeated: 1 }
        "cuda.copy", concat_results, concat, concat_expected, "operands one after another along an axis"),
    native!(Shape "stack" ("x") All {} ["axis"] { repeated: 1 }
        "cuda.copy", stack_results, stack, stack_expected, "operands along a new axis"),
    native!(Shape "flip" ("x") All {} ["axes"] {}
        "cuda.copy", flip_results, flip, flip_expected, "elements along axes in reverse order"),
    native!(Shape "roll" ("x") All { "shift": 1.0 } ["axis"] {}
        "cuda.copy", roll_results, roll, roll_expected,
        "elements moved along an axis, those beyond the end to the beginning"),
    native!(Shape "tile" ("x") All {} [] { lists: &[("repeats", &[])] }
        "cuda.copy", tile_results, tile, tile_expected, "the whole repeated along each dimension"),
    native!(Shape "repeat_interleave" ("x") All { "repeats": 2.0 } ["axis"] {}
        "cuda.copy", interleave_results, interleave, interleave_expected,
        "each element repeated along an axis"),
    native!(Shape "pad" ("x") All { "value": 0.0 } []
        { lists: &[("pads", &[])], choices: &[("mode", &["constant", "reflect", "replicate", "circular"])] }
        "cuda.copy", pad_results, pad, pad_expected,
        "elements before and after each dimension: a value, or those of the operand reflected, the last one, or from the other end"),
    native!(Shape "slice" ("x") All {} [] { lists: &[("starts", &[]), ("ends", &[]), ("steps", &[])] }
        "cuda.copy", slice_results, slice, slice_expected,
        "a part of each dimension, as Python's slices with steps above 0"),
    native!(Shape "slice_write" ("x", "source") All {} []
        { lists: &[("starts", &[]), ("ends", &[]), ("steps", &[])] }
        "cuda.copy", slice_write_results, slice_write, slice_write_expected,
        "x with a part of it replaced by the source"),
    native!(Shape "pixel_shuffle" ("x") All { "factor": 2.0 } [] {}
        "cuda.copy", shuffle_results, shuffle, shuffle_expected,
        "blocks of channels to blocks of pixels, of the last three dimensions"),
    native!(Shape "pixel_unshuffle" ("x") All { "factor": 2.0 } [] {}
        "cuda.copy", unshuffle_results, unshuffle, unshuffle_expected,
        "blocks of pixels to blocks of channels, of the last three dimensions"),
    native!(Shape "full" () All { "value": 0.0 } ["to", "shape"] {}
        "cuda.copy", full_results, full, full_expected, "one value in every element"),
];
