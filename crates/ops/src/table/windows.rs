//! Rows of convolutions, pools and interpolation.
//!
//! Operands have batch, channels and one to three dimensions of space. A list of stride, padding,
//! dilation or kernel has a number for each of these, or one for all.

use fercuda_kernels::NativeProgram;
use fercuda_kernels::convolution::{self, ConvolutionKind};
use fercuda_kernels::window::{self, Interpolation, PoolKind, SlidingWindow, five};
use fercuda_tensor::{Dtype, Layout};

use super::bounds::{stored, unit_roundoff};
use super::scalar::whole_number;
use crate::arrays::{HostArray, indices};
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// Largest number in a list: places are computed in 64 bits.
const LARGEST: i64 = 1 << 31;

pub(super) fn spatial(layout: &Layout, what: &str) -> Result<usize, Misfit> {
    match layout.shape().len() {
        rank @ 3..=5 => Ok(rank - 2),
        rank => Err(Misfit::new(
            format!("{what} has {rank} dimensions"),
            "batch, channels and 1 to 3 dimensions of space",
        )),
    }
}

/// A list for three dimensions of space, of which the first have `default`.
pub(super) fn per_space(
    op: &OpParameters,
    name: &str,
    space: usize,
    default: i64,
    least: i64,
) -> Result<[i64; 3], Misfit> {
    let list = op.list_of(name);
    let mut all = [default; 3];
    match list.len() {
        0 => {}
        1 => all[3 - space..].fill(list[0]),
        len if len == space => all[3 - space..].copy_from_slice(list),
        len => {
            let what = format!("{name} has {len} numbers, there are {space} dimensions of space");
            return Err(Misfit::new(what, "one for each, or one for all"));
        }
    }
    match all.iter().find(|value| !(least..=LARGEST).contains(*value)) {
        Some(value) => Err(Misfit::new(
            format!("{name} of {value}"),
            format!("{least} to {LARGEST}"),
        )),
        None => Ok(all),
    }
}

fn window(op: &OpParameters, space: usize, kernel: [u64; 3]) -> Result<SlidingWindow, Misfit> {
    let unsigned = |list: [i64; 3]| list.map(i64::unsigned_abs);
    let is_pool = op.has_list("kernel") && op.name() != WEIGHT;
    let mut stride = per_space(op, "stride", space, 1, 1)?;
    if is_pool && op.list_of("stride").is_empty() {
        stride = kernel.map(|extent| extent as i64);
    }
    Ok(SlidingWindow {
        kernel,
        stride,
        padding: per_space(op, "padding", space, 0, 0)?,
        dilation: unsigned(per_space(op, "dilation", space, 1, 1)?),
    })
}

const WEIGHT: &str = "conv_weight_backward";

/// The last three extents of a shape, of which the first are 1.
pub(super) fn space_of(shape: &[u64]) -> [u64; 3] {
    let mut all = [1; 3];
    let own = &shape[2.min(shape.len())..];
    let from = 3 - own.len().min(3);
    all[from..].copy_from_slice(&own[..3 - from]);
    all
}

/// Places of a window over an operand along each dimension of space.
pub(super) fn places(x: [u64; 3], window: &SlidingWindow) -> Result<[u64; 3], Misfit> {
    let mut all = [0; 3];
    for (d, place) in all.iter_mut().enumerate() {
        let reach = i128::from(window.dilation[d]) * (i128::from(window.kernel[d]) - 1) + 1;
        let room = i128::from(x[d]) + 2 * i128::from(window.padding[d]) - reach;
        if room < 0 || window.kernel[d] == 0 {
            let what = format!(
                "a window of {reach} places over {} with padding {}",
                x[d], window.padding[d]
            );
            return Err(Misfit::new(what, "more padding, or a smaller window"));
        }
        *place = (room / i128::from(window.stride[d])) as u64 + 1;
    }
    Ok(all)
}

fn groups(op: &OpParameters) -> Result<u64, Misfit> {
    match whole_number(op, "groups")? {
        groups @ 1.. => Ok(groups.unsigned_abs()),
        groups => Err(Misfit::new(format!("{groups} groups"), "1 or more")),
    }
}

pub(super) fn check(holds: bool, what: String, hint: &str) -> Result<(), Misfit> {
    match holds {
        true => Ok(()),
        false => Err(Misfit::new(what, hint)),
    }
}

fn check_bias(operands: &[Layout], channels: u64) -> Result<(), Misfit> {
    let Some(bias) = operands.get(2) else {
        return Ok(());
    };
    let what = format!("bias is {:?}", bias.shape());
    check(
        bias.shape() == [channels],
        what,
        "one number for each channel of the result",
    )
}

fn conv_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let [x, weight] = [&operands[0], &operands[1]];
    let space = spatial(x, "x")?;
    let same_rank = spatial(weight, "weight")? == space;
    let (x_shape, w) = (x.shape(), weight.shape());
    check(
        same_rank,
        format!("x is {x_shape:?}, weight {w:?}"),
        "as many dimensions",
    )?;
    let groups = groups(op)?;
    let fits = w[1].checked_mul(groups) == Some(x_shape[1]) && w[0].is_multiple_of(groups);
    let what = format!("{} channels, weight {w:?}, {groups} groups", x_shape[1]);
    check(
        fits,
        what,
        "weight[outputs, channels by groups, ..], outputs in whole groups",
    )?;
    check_bias(operands, w[0])?;
    let window = window(op, space, space_of(w))?;
    let places = places(space_of(x_shape), &window)?;
    let shape = [x_shape[0], w[0]]
        .into_iter()
        .chain(places[3 - space..].iter().copied());
    Ok(vec![(x.dtype(), shape.collect())])
}

fn transposed_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let [x, weight] = [&operands[0], &operands[1]];
    let space = spatial(x, "x")?;
    let same_rank = spatial(weight, "weight")? == space;
    let (x_shape, w) = (x.shape(), weight.shape());
    check(
        same_rank,
        format!("x is {x_shape:?}, weight {w:?}"),
        "as many dimensions",
    )?;
    let groups = groups(op)?;
    let fits = w[0] == x_shape[1] && w[0].is_multiple_of(groups);
    let what = format!("{} channels, weight {w:?}, {groups} groups", x_shape[1]);
    check(
        fits,
        what,
        "weight[channels, outputs by groups, ..], channels in whole groups",
    )?;
    let channels = w[1].saturating_mul(groups);
    check_bias(operands, channels)?;
    let window = window(op, space, space_of(w))?;
    let extra = per_space(op, "output_padding", space, 0, 0)?;
    let x_space = space_of(x_shape);
    let mut shape = vec![x_shape[0], channels];
    for d in 3 - space..3 {
        check(
            x_space[d] > 0 && window.kernel[d] > 0,
            "no places".into(),
            "1 or more",
        )?;
        let reach = i128::from(window.dilation[d]) * (i128::from(window.kernel[d]) - 1) + 1;
        let all = i128::from(x_space[d] - 1) * i128::from(window.stride[d]) + reach
            - 2 * i128::from(window.padding[d])
            + i128::from(extra[d]);
        let most = i128::from(window.stride[d]).max(i128::from(window.dilation[d]));
        let what = format!("output padding of {}", extra[d]);
        check(
            i128::from(extra[d]) < most,
            what,
            "less than stride or dilation",
        )?;
        let place = u64::try_from(all).ok().filter(|all| *all > 0);
        let limit = place.filter(|place| *place <= i64::MAX as u64);
        let error = || Misfit::new(format!("{all} places"), "1 to 2^63, by padding or stride");
        shape.push(limit.ok_or_else(error)?);
    }
    Ok(vec![(x.dtype(), shape)])
}

fn weight_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let [gradient, x] = [&operands[0], &operands[1]];
    let space = spatial(x, "x")?;
    let (g, x_shape) = (gradient.shape(), x.shape());
    let groups = groups(op)?;
    let kernel = per_space(op, "kernel", space, 1, 1)?.map(i64::unsigned_abs);
    let window = window(op, space, kernel)?;
    let places = places(space_of(x_shape), &window)?;
    let fits = g.len() == x_shape.len() && g[0] == x_shape[0] && space_of(g) == places;
    let what = format!("the gradient is {g:?} of x {x_shape:?}");
    check(
        fits,
        what,
        "the convolution's result, by its kernel, stride, padding and dilation",
    )?;
    let whole = x_shape[1].is_multiple_of(groups) && g[1].is_multiple_of(groups);
    let what = format!("{} and {} channels in {groups} groups", g[1], x_shape[1]);
    check(whole, what, "whole groups")?;
    let shape = [g[1], x_shape[1] / groups]
        .into_iter()
        .chain(kernel[3 - space..].iter().copied());
    Ok(vec![(x.dtype(), shape.collect())])
}

/// A window of an accepted descriptor.
pub(super) fn accepted(op: &OpParameters, space: usize, kernel: [u64; 3]) -> SlidingWindow {
    window(op, space, kernel).unwrap_or(SlidingWindow {
        kernel,
        stride: [1; 3],
        padding: [0; 3],
        dilation: [1; 3],
    })
}

fn conv(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, weight, out) = (program.input(0), program.input(1), program.output(0));
    let window = accepted(op, x.shape().len() - 2, space_of(weight.shape()));
    let bias = (program.operands() > 2).then(|| program.input(2));
    let kind = match op.name() {
        "conv_transpose" => ConvolutionKind::Transposed,
        _ => ConvolutionKind::Forward,
    };
    let views = [five(&x)?, five(&weight)?, five(&out)?];
    let [x, weight, out] = &views;
    let groups = op.number_of("groups") as u64;
    convolution::convolve(
        program,
        kind,
        [x, weight, out],
        bias.as_ref(),
        window,
        groups,
    )
}

fn conv_weight(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (gradient, x, out) = (program.input(0), program.input(1), program.output(0));
    let window = accepted(op, x.shape().len() - 2, space_of(out.shape()));
    let views = [five(&gradient)?, five(&x)?, five(&out)?];
    let [gradient, x, out] = &views;
    convolution::convolve_weight(
        program,
        [gradient, x, out],
        window,
        op.number_of("groups") as u64,
    )
}

/// Extents of batch, channels and three dimensions of space.
pub(super) fn five_extents(shape: &[u64]) -> Vec<u64> {
    shape[..2].iter().copied().chain(space_of(shape)).collect()
}

/// An array of five dimensions.
pub(super) fn widened(array: &HostArray) -> HostArray {
    HostArray {
        shape: five_extents(&array.shape),
        ..array.clone()
    }
}

pub(super) fn element(array: &HostArray, batch: u64, channel: u64, at: [i64; 3]) -> Option<f64> {
    let mut index = vec![batch, channel];
    for (d, at) in at.into_iter().enumerate() {
        let at = u64::try_from(at)
            .ok()
            .filter(|at| *at < array.shape[2 + d])?;
        index.push(at);
    }
    Some(array.at(&index))
}

/// A result of a sum of that many terms, stored.
pub(super) fn summed(dtype: Dtype, sum: f64, size: f64, terms: f64) -> ExpectedElement {
    stored(
        dtype,
        sum,
        2.0 * (terms + 4.0) * unit_roundoff(dtype) * size,
    )
}

pub(super) fn taps(window: &SlidingWindow) -> Vec<[i64; 3]> {
    let all = indices(&window.kernel);
    let tap = |at: Vec<u64>| std::array::from_fn(|d| at[d] as i64 * window.dilation[d] as i64);
    all.into_iter().map(tap).collect()
}

fn tap_index(window: &SlidingWindow, tap: [i64; 3]) -> [i64; 3] {
    std::array::from_fn(|d| tap[d] / window.dilation[d] as i64)
}

fn conv_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (dtype, groups) = (results[0].dtype(), op.number_of("groups") as u64);
    let window = accepted(op, x[0].shape.len() - 2, space_of(&x[1].shape));
    let (from, weight) = (widened(&x[0]), widened(&x[1]));
    let shape = results[0].shape();
    let wide = five_extents(shape);
    let is_transposed = op.name() == "conv_transpose";
    let (inputs, outputs) = (from.shape[1] / groups, shape[1] / groups);
    let one = |own: &Vec<u64>| {
        let (mut sum, mut size, mut terms) = (0.0, 0.0, 0.0);
        let group = own[1] / outputs.max(1);
        for c in 0..inputs {
            for tap in taps(&window) {
                let weight_at = tap_index(&window, tap);
                let (place, chosen) = match is_transposed {
                    true => {
                        let wide: [i64; 3] =
                            std::array::from_fn(|d| own[2 + d] as i64 + window.padding[d] - tap[d]);
                        let whole = (0..3).all(|d| wide[d] >= 0 && wide[d] % window.stride[d] == 0);
                        let place = std::array::from_fn(|d| match whole {
                            true => wide[d] / window.stride[d],
                            false => -1,
                        });
                        (
                            place,
                            element(&weight, group * inputs + c, own[1] % outputs, weight_at),
                        )
                    }
                    false => {
                        let place = std::array::from_fn(|d| {
                            own[2 + d] as i64 * window.stride[d] - window.padding[d] + tap[d]
                        });
                        (place, element(&weight, own[1], c, weight_at))
                    }
                };
                if let (Some(value), Some(weight)) =
                    (element(&from, own[0], group * inputs + c, place), chosen)
                {
                    sum += value * weight;
                    size += (value * weight).abs();
                    terms += 1.0;
                }
            }
        }
        let bias = x.get(2).map_or(0.0, |bias| bias.values[own[1] as usize]);
        summed(dtype, sum + bias, size + bias.abs(), terms)
    };
    vec![indices(&wide).iter().map(one).collect()]
}

fn weight_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (dtype, groups) = (results[0].dtype(), op.number_of("groups") as u64);
    let shape = results[0].shape();
    let window = accepted(op, x[1].shape.len() - 2, space_of(shape));
    let (gradient, from) = (widened(&x[0]), widened(&x[1]));
    let wide = five_extents(shape);
    let outputs = shape[0] / groups;
    let one = |own: &Vec<u64>| {
        let (mut sum, mut size, mut terms) = (0.0, 0.0, 0.0);
        let channel = own[0] / outputs.max(1) * shape[1] + own[1];
        for place in indices(&gradient.shape) {
            if place[1] != own[0] {
                continue;
            }
            let at = std::array::from_fn(|d| {
                let tap = own[2 + d] as i64 * window.dilation[d] as i64;
                place[2 + d] as i64 * window.stride[d] - window.padding[d] + tap
            });
            if let Some(value) = element(&from, place[0], channel, at) {
                let term = value * gradient.at(&place);
                sum += term;
                size += term.abs();
                terms += 1.0;
            }
        }
        summed(dtype, sum, size, terms)
    };
    vec![indices(&wide).iter().map(one).collect()]
}

// Pools.

pub(super) fn pool_window(op: &OpParameters, x: &Layout) -> Result<(usize, SlidingWindow), Misfit> {
    let space = spatial(x, "x")?;
    if op.list_of("kernel").is_empty() {
        return Err(Misfit::new("it has no kernel", "`kernel`"));
    }
    let kernel = per_space(op, "kernel", space, 1, 1)?.map(i64::unsigned_abs);
    let window = window(op, space, kernel)?;
    for (padding, extent) in window.padding.iter().zip(kernel) {
        let what = format!("padding of {padding} for {extent} places");
        check(
            *padding <= extent as i64 / 2,
            what,
            "at most half of the kernel",
        )?;
    }
    Ok((space, window))
}

fn pool_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let x = &operands[0];
    let (space, window) = pool_window(op, x)?;
    let places = places(space_of(x.shape()), &window)?;
    let shape = x.shape()[..2].iter().chain(&places[3 - space..]).copied();
    Ok(pooled(op, x.dtype(), shape.collect()))
}

/// Whether an op gives the places of elements too.
fn has_places(op: &OpParameters) -> bool {
    matches!(op.name(), "max_pool" | "adaptive_max_pool")
}

fn pooled(op: &OpParameters, dtype: Dtype, shape: Vec<u64>) -> Vec<(Dtype, Vec<u64>)> {
    match has_places(op) {
        true => vec![(dtype, shape.clone()), (Dtype::I64, shape)],
        false => vec![(dtype, shape)],
    }
}

fn sized_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let x = &operands[0];
    let space = spatial(x, "x")?;
    if op.list_of("size").is_empty() {
        return Err(Misfit::new("it has no size", "`size`"));
    }
    let size = per_space(op, "size", space, 1, 1)?.map(i64::unsigned_abs);
    let own = &x.shape()[2..];
    check(
        !own.contains(&0),
        format!("{own:?} has no places"),
        "places in each dimension",
    )?;
    let shape = x.shape()[..2].iter().chain(&size[3 - space..]).copied();
    Ok(pooled(op, x.dtype(), shape.collect()))
}

pub(super) fn pool_kind(op: &OpParameters) -> PoolKind {
    match (
        op.name().trim_end_matches("_backward"),
        op.choice_of("count"),
    ) {
        ("max_pool" | "adaptive_max_pool", _) => PoolKind::Most,
        (_, "all") => PoolKind::MeanOfAll,
        _ => PoolKind::MeanOfInside,
    }
}

fn pool(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, out) = (program.input(0), program.output(0));
    let index = match has_places(op) {
        true => Some(five(&program.output(1))?),
        false => None,
    };
    // The results' rule has accepted it.
    let window = pool_window(op, x.layout()).ok().map(|(_, window)| window);
    let (x, out) = (five(&x)?, five(&out)?);
    window::pool(program, pool_kind(op), &x, &out, index.as_ref(), window)
}

fn pool_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (dtype, from) = (results[0].dtype(), widened(&x[0]));
    let layout = Layout::contiguous(dtype, &x[0].shape);
    let window = layout.ok().and_then(|layout| pool_window(op, &layout).ok());
    let shape = results[0].shape();
    let wide = five_extents(shape);
    let [_, height, width] = space_of(&x[0].shape).map(|extent| extent as i64);
    let (mut values, mut places) = (Vec::new(), Vec::new());
    for own in indices(&wide) {
        let along = |d: usize| match &window {
            Some((_, window)) => {
                let first = own[2 + d] as i64 * window.stride[d] - window.padding[d];
                let step = window.dilation[d] as i64;
                (0..window.kernel[d] as i64)
                    .map(|n| first + n * step)
                    .collect::<Vec<i64>>()
            }
            None => {
                let (all, parts) = (from.shape[2 + d], wide[2 + d]);
                let first = own[2 + d] * all / parts;
                let end = ((own[2 + d] + 1) * all).div_ceil(parts);
                (first as i64..end as i64).collect()
            }
        };
        let (mut sum, mut size, mut inside, mut all) = (0.0, 0.0, 0.0, 0.0);
        let (mut best, mut best_at) = (f64::NEG_INFINITY, -1i64);
        for (z, y, x) in along(0).into_iter().flat_map(|z| {
            let rows = along(1);
            let columns = along(2);
            rows.into_iter()
                .flat_map(move |y| columns.clone().into_iter().map(move |x| (z, y, x)))
                .collect::<Vec<_>>()
        }) {
            all += 1.0;
            let Some(value) = element(&from, own[0], own[1], [z, y, x]) else {
                continue;
            };
            inside += 1.0;
            sum += value;
            size += value.abs();
            if best_at < 0 || (!best.is_nan() && (value.is_nan() || value > best)) {
                (best, best_at) = (value, (z * height + y) * width + x);
            }
        }
        match pool_kind(op) {
            PoolKind::Most => {
                let none = dtype.value(dtype.encode(f64::NEG_INFINITY));
                values.push((if best_at < 0 { none } else { best }, 0.0));
                places.push((best_at as f64, 0.0));
            }
            kind => {
                let terms = if kind == PoolKind::MeanOfAll {
                    all
                } else {
                    inside
                };
                values.push(summed(dtype, sum / terms, size / terms, inside));
            }
        }
    }
    match has_places(op) {
        true => vec![values, places],
        false => vec![values],
    }
}

// Interpolation.

fn interpolate(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, out) = (five(&program.input(0))?, five(&program.output(0))?);
    let corners = op.choice_of("align") == "corners";
    window::interpolate(program, interpolation(op), &x, &out, corners)
}

pub(super) fn interpolation(op: &OpParameters) -> Interpolation {
    match op.choice_of("mode") {
        "linear" => Interpolation::Linear,
        "cubic" => Interpolation::Cubic,
        _ => Interpolation::Nearest,
    }
}

/// Neighbours of a place of the result and their weights, along one dimension.
pub(super) fn neighbours(
    mode: &str,
    corners: bool,
    at: u64,
    from: u64,
    to: u64,
) -> Vec<(i64, f64)> {
    if from == to {
        return vec![(at as i64, 1.0)];
    }
    if mode == "nearest" {
        return vec![((at * from / to) as i64, 1.0)];
    }
    let place = match (corners, to) {
        (true, 1) => 0.0,
        (true, _) => at as f64 * (from - 1) as f64 / (to - 1) as f64,
        (false, _) => (at as f64 + 0.5) * from as f64 / to as f64 - 0.5,
    };
    let place = if mode == "linear" {
        place.max(0.0)
    } else {
        place
    };
    let (first, beyond) = (place.floor() as i64, place - place.floor());
    let moved = |at: i64| at.clamp(0, from as i64 - 1);
    if mode == "linear" {
        return vec![(moved(first), 1.0 - beyond), (moved(first + 1), beyond)];
    }
    let cubic = |x: f64| {
        let (a, x) = (-0.75, x.abs());
        match x <= 1.0 {
            true => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
            false => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        }
    };
    let tap = |k: i64| (moved(first + k), cubic(beyond - k as f64));
    (-1..3).map(tap).collect()
}

fn interpolate_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (dtype, from) = (results[0].dtype(), widened(&x[0]));
    let (mode, corners) = (op.choice_of("mode"), op.choice_of("align") == "corners");
    let shape = results[0].shape();
    let wide = five_extents(shape);
    let one = |own: &Vec<u64>| {
        let along =
            |d: usize| neighbours(mode, corners, own[2 + d], from.shape[2 + d], wide[2 + d]);
        let (mut sum, mut size) = (0.0, 0.0);
        for (z, by_z) in along(0) {
            for (y, by_y) in along(1) {
                for (x, by_x) in along(2) {
                    let value = element(&from, own[0], own[1], [z, y, x]).unwrap_or(f64::NAN);
                    let weight = by_z * by_y * by_x;
                    sum += weight * value;
                    size += (weight * value).abs();
                }
            }
        }
        match mode {
            "nearest" => (sum, 0.0),
            _ => summed(dtype, sum, size, 64.0),
        }
    };
    vec![indices(&wide).iter().map(one).collect()]
}

const STEPS: &[(&str, &[i64])] = &[("stride", &[]), ("padding", &[]), ("dilation", &[])];

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Window "conv" ("x", "weight", "bias") Floats { "groups": 1.0 } []
        { optional: 1, lists: STEPS }
        "cuda.window", conv_results, conv, conv_expected,
        "convolution by weight[outputs, channels by groups, ..]"),
    native!(Window "conv_transpose" ("x", "weight", "bias") Floats { "groups": 1.0 } []
        { optional: 1, lists: &[("stride", &[]), ("padding", &[]), ("dilation", &[]), ("output_padding", &[])] }
        "cuda.window", transposed_results, conv, conv_expected,
        "transposed convolution by weight[channels, outputs by groups, ..]: the gradient of conv by its operand"),
    native!(Window "conv_weight_backward" ("g", "x") Floats { "groups": 1.0 } []
        { lists: &[("kernel", &[]), ("stride", &[]), ("padding", &[]), ("dilation", &[])] }
        "cuda.window", weight_results, conv_weight, weight_expected,
        "gradient of conv by its weight"),
    native!(Window "max_pool" ("x") Floats {} []
        { lists: &[("kernel", &[]), ("stride", &[]), ("padding", &[]), ("dilation", &[])], results: &["out", "index"] }
        "cuda.window", pool_results, pool, pool_expected,
        "largest of a window, and its place in row-major order of space; NaN if one is, -1 for no place inside"),
    native!(Window "avg_pool" ("x") Floats {} []
        { lists: &[("kernel", &[]), ("stride", &[]), ("padding", &[])], choices: &[("count", &["all", "inside"])] }
        "cuda.window", pool_results, pool, pool_expected,
        "mean of a window, of all places or of those inside"),
    native!(Window "adaptive_max_pool" ("x") Floats {} []
        { lists: &[("size", &[])], results: &["out", "index"] }
        "cuda.window", sized_results, pool, pool_expected, "max_pool to a number of places"),
    native!(Window "adaptive_avg_pool" ("x") Floats {} [] { lists: &[("size", &[])] }
        "cuda.window", sized_results, pool, pool_expected, "avg_pool to a number of places"),
    native!(Window "interpolate" ("x") Floats {} []
        { lists: &[("size", &[])], choices: &[("mode", &["nearest", "linear", "cubic"]), ("align", &["middles", "corners"])] }
        "cuda.window", sized_results, interpolate, interpolate_expected,
        "another number of places, by nearest, linear or cubic neighbours"),
];
