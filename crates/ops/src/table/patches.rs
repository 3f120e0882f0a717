//! Rows of pools by a power and at random places, and of windows as columns.

use fercuda_kernels::window::{SlidingWindow, five};
use fercuda_kernels::{NativeProgram, patch};
use fercuda_tensor::{Dtype, Layout};

use super::approx::{Approx, ApproxType};
use super::windows::{
    element, five_extents, per_space, places, pool_window, space_of, spatial, taps, widened,
};
use crate::arrays::{HostArray, indices};
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// Kernel, stride, padding and dilation, and the number of dimensions of space.
fn window(op: &OpParameters, space: usize) -> Result<SlidingWindow, Misfit> {
    if op.list_of("kernel").is_empty() {
        return Err(Misfit::new("it has no kernel", "`kernel`"));
    }
    let unsigned = |list: [i64; 3]| list.map(i64::unsigned_abs);
    Ok(SlidingWindow {
        kernel: unsigned(per_space(op, "kernel", space, 1, 1)?),
        stride: per_space(op, "stride", space, 1, 1)?,
        padding: per_space(op, "padding", space, 0, 0)?,
        dilation: unsigned(per_space(op, "dilation", space, 1, 1)?),
    })
}

// Pools by a power.

fn check_power(op: &OpParameters) -> Result<f64, Misfit> {
    let power = op.number_of("power");
    match (0.0625..=64.0).contains(&power) {
        true => Ok(power),
        false => Err(Misfit::new(format!("a power of {power}"), "1/16 to 64")),
    }
}

fn power_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    check_power(op)?;
    let x = &operands[0];
    let (space, window) = pool_window(op, x)?;
    let places = places(space_of(x.shape()), &window)?;
    let shape = [&x.shape()[..2], &places[3 - space..]].concat();
    Ok(vec![(x.dtype(), shape)])
}

fn power(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    match pool_window(op, x.layout()) {
        Ok((_, window)) => {
            let power = op.number_of("power");
            patch::power_pool(program, &five(&x)?, &five(&to)?, &window, power)
        }
        // The results' rule has accepted it.
        Err(_) => Ok(()),
    }
}

/// A power with the error of a device's function, some units in the last place of the result.
fn powered(t: ApproxType, x: Approx, power: f64) -> Approx {
    let value = x.value.powf(power);
    let mut all = t.exact(value).rounded(16.0);
    if x.error > 0.0 && x.value > 0.0 {
        all.error += value.abs() * (2.0 * power * x.error / (x.value - x.error).max(0.0));
    } else if x.error > 0.0 {
        all.error += x.error.powf(power);
    }
    all
}

fn power_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (dtype, power) = (results[0].dtype(), op.number_of("power"));
    let t = ApproxType::of(dtype);
    let layout = Layout::contiguous(dtype, &x[0].shape);
    let Some((_, window)) = layout.ok().and_then(|it| pool_window(op, &it).ok()) else {
        return Vec::new();
    };
    let from = widened(&x[0]);
    let one = |own: &Vec<u64>| {
        let values = taps(&window).into_iter().filter_map(|tap| {
            let at = std::array::from_fn(|d| {
                own[2 + d] as i64 * window.stride[d] - window.padding[d] + tap[d]
            });
            element(&from, own[0], own[1], at)
        });
        let sum = t.sum(values.map(|value| powered(t, t.exact(value.abs()), power)));
        // The exponent is rounded too: its error is one of the logarithm.
        let mut root = powered(t, sum, 1.0 / power);
        let logarithm = if sum.value > 0.0 {
            sum.value.ln().abs()
        } else {
            0.0
        };
        root.error += root.value * logarithm / power * t.number(1.0).error;
        root.stored(dtype)
    };
    vec![
        indices(&five_extents(results[0].shape()))
            .iter()
            .map(one)
            .collect(),
    ]
}

// Pools at random places.

fn fractional_sizes(op: &OpParameters, x: &Layout) -> Result<([u64; 3], [u64; 3], usize), Misfit> {
    let space = spatial(x, "x")?;
    for list in ["kernel", "size"] {
        if op.list_of(list).is_empty() {
            return Err(Misfit::new(
                format!("it has no {list}"),
                format!("`{list}`"),
            ));
        }
    }
    let unsigned = |list: [i64; 3]| list.map(i64::unsigned_abs);
    let kernel = unsigned(per_space(op, "kernel", space, 1, 1)?);
    let size = unsigned(per_space(op, "size", space, 1, 1)?);
    let own = space_of(x.shape());
    match (0..3).find(|d| kernel[*d] > own[*d]) {
        Some(d) => {
            let what = format!("a window of {} places over {}", kernel[d], own[d]);
            Err(Misfit::new(what, "a smaller kernel"))
        }
        None => Ok((kernel, size, space)),
    }
}

fn fractional_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let [x, fractions] = [&operands[0], &operands[1]];
    let (_, size, space) = fractional_sizes(op, x)?;
    let wanted = [x.shape()[0], x.shape()[1], space as u64];
    if fractions.shape() != wanted {
        let what = format!("fractions of {:?}, not {wanted:?}", fractions.shape());
        return Err(Misfit::new(what, "[batch, channels, dimensions of space]"));
    }
    let shape = [&x.shape()[..2], &size[3 - space..]].concat();
    Ok(vec![(x.dtype(), shape.clone()), (Dtype::I64, shape)])
}

fn fractional(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, fractions) = (program.input(0), program.input(1));
    let (to, index) = (five(&program.output(0))?, five(&program.output(1))?);
    match fractional_sizes(op, x.layout()) {
        Ok((kernel, ..)) => {
            patch::fractional_pool(program, &five(&x)?, &fractions, [&to, &index], kernel)
        }
        Err(_) => Ok(()),
    }
}

fn fractional_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let layout = Layout::contiguous(x[0].dtype, &x[0].shape);
    let Some((kernel, _, space)) = layout.ok().and_then(|it| fractional_sizes(op, &it).ok()) else {
        return Vec::new();
    };
    let (from, wide) = (widened(&x[0]), five_extents(results[0].shape()));
    let one = |own: &Vec<u64>| {
        let first: [u64; 3] = std::array::from_fn(|d| {
            let last = from.shape[2 + d] - kernel[d];
            let (at, out) = (own[2 + d], wide[2 + d]);
            if at + 1 == out {
                return last;
            }
            let fraction = x[1].at(&[own[0], own[1], (space + d - 3) as u64]);
            let apart = last as f64 / (out - 1) as f64;
            let place = ((at as f64 + fraction) * apart).floor() - (fraction * apart).floor();
            place.clamp(0.0, last as f64) as u64
        });
        let mut best: Option<(f64, f64)> = None;
        for tap in indices(&kernel) {
            let at: [u64; 3] = std::array::from_fn(|d| first[d] + tap[d]);
            let value = from.at(&[own[0], own[1], at[0], at[1], at[2]]);
            let place = (at[0] * from.shape[3] + at[1]) * from.shape[4] + at[2];
            let is_better =
                |(before, _): (f64, f64)| !before.is_nan() && (value.is_nan() || value > before);
            if best.is_none_or(is_better) {
                best = Some((value, place as f64));
            }
        }
        best.unwrap_or((f64::NAN, -1.0))
    };
    let all: Vec<(f64, f64)> = indices(&wide).iter().map(one).collect();
    let exact = |value: f64| (value, 0.0);
    vec![
        all.iter().map(|(value, _)| exact(*value)).collect(),
        all.iter().map(|(_, place)| exact(*place)).collect(),
    ]
}

// Columns.

fn columns_shape(x: &[u64], window: &SlidingWindow) -> Result<(Vec<u64>, [u64; 3]), Misfit> {
    let places = places(space_of(x), window)?;
    let product = |first: u64, all: &[u64; 3]| {
        all.iter()
            .try_fold(first, |product, extent| product.checked_mul(*extent))
    };
    match (product(x[1], &window.kernel), product(1, &places)) {
        (Some(rows), Some(all)) => Ok((vec![x[0], rows, all], places)),
        _ => Err(Misfit::new(
            "too many columns",
            "a smaller window or operand",
        )),
    }
}

fn im2col_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let x = &operands[0];
    let window = window(op, spatial(x, "x")?)?;
    let (shape, _) = columns_shape(x.shape(), &window)?;
    Ok(vec![(x.dtype(), shape)])
}

fn im2col(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    let Ok(window) = window(op, x.shape().len() - 2) else {
        return Ok(());
    };
    match columns_shape(x.shape(), &window) {
        Ok((_, places)) => patch::to_columns(program, &five(&x)?, &to, &window, places),
        Err(_) => Ok(()),
    }
}

/// Of each element of the columns: its place in the operand, if it has one.
fn column_sources(
    whole: &[u64],
    window: &SlidingWindow,
    columns: &[u64],
    places: [u64; 3],
) -> Vec<Option<Vec<u64>>> {
    let all = taps(window);
    let source = |index: &Vec<u64>| {
        let tap = all[(index[1] % all.len() as u64) as usize];
        let place = [
            index[2] / places[2] / places[1],
            index[2] / places[2] % places[1],
            index[2] % places[2],
        ];
        let mut at = vec![index[0], index[1] / all.len() as u64];
        for d in 0..3 {
            let own = place[d] as i64 * window.stride[d] - window.padding[d] + tap[d];
            at.push(u64::try_from(own).ok().filter(|own| *own < whole[2 + d])?);
        }
        Some(at)
    };
    indices(columns).iter().map(source).collect()
}

fn im2col_expected(op: &OpParameters, x: &[HostArray], _: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let Ok(window) = window(op, x[0].shape.len() - 2) else {
        return Vec::new();
    };
    let Ok((columns, places)) = columns_shape(&x[0].shape, &window) else {
        return Vec::new();
    };
    let from = widened(&x[0]);
    let sources = column_sources(&from.shape, &window, &columns, places);
    let value = |source: Option<Vec<u64>>| (source.map_or(0.0, |at| from.at(&at)), 0.0);
    vec![sources.into_iter().map(value).collect()]
}

/// The shape of the operand that columns came from.
fn whole_shape(op: &OpParameters, columns: &Layout) -> Result<(Vec<u64>, SlidingWindow), Misfit> {
    let &[batch, rows, _] = columns.shape() else {
        let what = format!("columns of {:?}", columns.shape());
        return Err(Misfit::new(what, "[batch, channels by window, places]"));
    };
    let size = op.list_of("size");
    let space = size.len();
    if !(1..=3).contains(&space) || size.iter().any(|extent| *extent < 0) {
        return Err(Misfit::new(format!("a size of {size:?}"), "1 to 3 extents"));
    }
    let window = window(op, space)?;
    let taps = window
        .kernel
        .iter()
        .try_fold(1u64, |all, extent| all.checked_mul(*extent));
    let Some(taps) = taps.filter(|taps| rows % taps == 0) else {
        let what = format!("{rows} rows of columns for a window of {:?}", window.kernel);
        return Err(Misfit::new(what, "channels by elements of a window"));
    };
    let mut shape = vec![batch, rows / taps];
    shape.extend(size.iter().map(|extent| extent.unsigned_abs()));
    let (wanted, _) = columns_shape(&shape, &window)?;
    match wanted == columns.shape() {
        true => Ok((shape, window)),
        false => {
            let what = format!("columns {:?}, not {wanted:?}", columns.shape());
            Err(Misfit::new(what, "the columns of an operand of this size"))
        }
    }
}

fn col2im_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (shape, _) = whole_shape(op, &operands[0])?;
    Ok(vec![(operands[0].dtype(), shape)])
}

fn col2im(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    let Ok((shape, window)) = whole_shape(op, x.layout()) else {
        return Ok(());
    };
    match columns_shape(&shape, &window) {
        Ok((_, places)) => patch::from_columns(program, &x, &five(&to)?, &window, places),
        Err(_) => Ok(()),
    }
}

fn col2im_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = results[0].dtype();
    let t = ApproxType::of(dtype);
    let shape = results[0].shape();
    let Ok(window) = window(op, shape.len() - 2) else {
        return Vec::new();
    };
    let Ok((columns, places)) = columns_shape(shape, &window) else {
        return Vec::new();
    };
    let wide = five_extents(shape);
    let mut terms: Vec<Vec<Approx>> = vec![Vec::new(); results[0].len() as usize];
    let sources = column_sources(&wide, &window, &columns, places);
    for (source, value) in sources.into_iter().zip(&x[0].values) {
        if let Some(at) = source {
            let place = wide
                .iter()
                .zip(&at)
                .fold(0, |place, (extent, at)| place * extent + at);
            terms[place as usize].push(t.exact(*value));
        }
    }
    vec![
        terms
            .into_iter()
            .map(|terms| t.sum(terms).stored(dtype))
            .collect(),
    ]
}

const STEPS: &[(&str, &[i64])] = &[
    ("kernel", &[]),
    ("stride", &[]),
    ("padding", &[]),
    ("dilation", &[]),
];

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Window "lp_pool" ("x") Floats { "power": 2.0 } []
        { lists: &[("kernel", &[]), ("stride", &[]), ("padding", &[])] }
        "cuda.patch", power_results, power, power_expected,
        "(sum of |x|^power)^(1 / power) of a window, of the places inside"),
    native!(Window "fractional_max_pool" ("x", "fractions") Floats {} []
        { lists: &[("kernel", &[]), ("size", &[])], results: &["out", "index"] }
        "cuda.patch", fractional_results, fractional, fractional_expected,
        "max_pool of `size` windows that begin at floor((i + f) a) - floor(f a), a = (extent - kernel) / (size - 1), by fractions[batch, channels, dimensions]; the last one ends with x"),
    native!(Window "im2col" ("x") Floats {} [] { lists: STEPS }
        "cuda.patch", im2col_results, im2col, im2col_expected,
        "windows as columns: [batch, channels by window, places]"),
    native!(Window "col2im" ("columns") Floats {} []
        { lists: &[("size", &[]), ("kernel", &[]), ("stride", &[]), ("padding", &[]), ("dilation", &[])] }
        "cuda.patch", col2im_results, col2im, col2im_expected,
        "sums of the elements of windows' columns that came from one place of an operand of `size`: the gradient of im2col"),
];
