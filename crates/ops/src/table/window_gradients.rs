//! Rows of the gradients of pools and interpolation.
//!
//! `size` is the operand's: its number of places along each dimension of space.

use fercuda_kernels::NativeProgram;
use fercuda_kernels::window::{self, PoolKind, SlidingWindow, five};
use fercuda_tensor::Layout;

use super::windows::{
    check, five_extents, interpolation, neighbours, per_space, places, pool_kind, pool_window,
    space_of, spatial, summed, widened,
};
use crate::arrays::{HostArray, indices};
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// The shape of the operand of a gradient.
fn operand_shape(op: &OpParameters, gradient: &Layout) -> Result<Vec<u64>, Misfit> {
    let space = spatial(gradient, "g")?;
    if op.list_of("size").is_empty() {
        return Err(Misfit::new("it has no size", "the operand's `size`"));
    }
    let size = per_space(op, "size", space, 1, 1)?.map(i64::unsigned_abs);
    let shape = gradient.shape()[..2].iter().chain(&size[3 - space..]);
    Ok(shape.copied().collect())
}

fn has_window(op: &OpParameters) -> bool {
    op.has_list("kernel")
}

fn window_of(op: &OpParameters, gradient: &Layout) -> Result<SlidingWindow, Misfit> {
    let shape = operand_shape(op, gradient)?;
    let x = Layout::contiguous(gradient.dtype(), &shape);
    let x = x.map_err(|error| Misfit::new(error.to_string(), "a smaller size"))?;
    Ok(pool_window(op, &x)?.1)
}

fn results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let gradient = &operands[0];
    let shape = operand_shape(op, gradient)?;
    if let Some(index) = operands.get(1) {
        let what = format!("the index is {:?}, g {:?}", index.shape(), gradient.shape());
        check(
            index.shape() == gradient.shape(),
            what,
            "one place for each",
        )?;
    }
    let own = space_of(gradient.shape());
    if has_window(op) {
        let wanted = places(space_of(&shape), &window_of(op, gradient)?)?;
        let what = format!("g has {own:?} places, the windows {wanted:?}");
        check(
            own == wanted,
            what,
            "the pool's result, by its size and window",
        )?;
    }
    check(
        !own.contains(&0),
        format!("g is {:?}", gradient.shape()),
        "places in each dimension",
    )?;
    Ok(vec![(gradient.dtype(), shape)])
}

fn pool(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (gradient, to) = (program.input(0), program.output(0));
    // The results' rule has accepted it.
    let window = match has_window(op) {
        true => window_of(op, gradient.layout()).ok(),
        false => None,
    };
    let index = match program.operands() {
        1 => None,
        _ => Some(five(&program.input(1))?),
    };
    let (gradient, to) = (five(&gradient)?, five(&to)?);
    window::pool_backward(
        program,
        pool_kind(op),
        [&gradient, &to],
        index.as_ref(),
        window,
    )
}

/// The places of a window along a dimension, also those outside.
fn along(window: Option<&SlidingWindow>, d: usize, at: u64, from: u64, to: u64) -> Vec<i64> {
    match window {
        Some(window) => {
            let first = at as i64 * window.stride[d] - window.padding[d];
            let taps = 0..window.kernel[d] as i64;
            taps.map(|tap| first + tap * window.dilation[d] as i64)
                .collect()
        }
        None => {
            let end = ((at + 1) * from).div_ceil(to);
            ((at * from / to) as i64..end as i64).collect()
        }
    }
}

/// Sums of what each place of a gradient gives to elements of the operand, with its magnitude,
/// stored.
fn spread(
    x: &[HostArray],
    result: &Layout,
    mut give: impl FnMut(&[u64], f64, &mut dyn FnMut([i64; 3], [f64; 2])),
) -> Vec<Vec<ExpectedElement>> {
    let wide = five_extents(result.shape());
    let count = wide.iter().product::<u64>() as usize;
    let mut sums = vec![(0.0, 0.0, 0.0); count];
    let gradient = widened(&x[0]);
    for (own, g) in indices(&gradient.shape).iter().zip(&gradient.values) {
        give(own, *g, &mut |at, [value, magnitude]| {
            let inside = (0..3).all(|d| (0..wide[2 + d] as i64).contains(&at[d]));
            if !inside {
                return;
            }
            let first = own[0] * wide[1] + own[1];
            let place = (0..3).fold(first, |place, d| place * wide[2 + d] + at[d] as u64);
            let (sum, size, terms) = &mut sums[place as usize];
            *sum += value;
            *size += magnitude;
            *terms += 1.0;
        });
    }
    let dtype = result.dtype();
    let stored = |(sum, size, terms)| summed(dtype, sum, size, terms + 2.0);
    vec![sums.into_iter().map(stored).collect()]
}

fn pool_expected(
    op: &OpParameters,
    x: &[HostArray],
    layouts: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let own = space_of(&x[0].shape);
    let size = space_of(layouts[0].shape());
    let gradient = Layout::contiguous(x[0].dtype, &x[0].shape).ok();
    let window = gradient.filter(|_| has_window(op));
    let window = window.and_then(|gradient| window_of(op, &gradient).ok());
    let kind = pool_kind(op);
    let index = x.get(1).map(widened);
    spread(x, &layouts[0], |at, g, add| {
        let taps: [Vec<i64>; 3] =
            std::array::from_fn(|d| along(window.as_ref(), d, at[2 + d], size[d], own[d]));
        let lengths = [taps[0].len(), taps[1].len(), taps[2].len()];
        let all = indices(&lengths.map(|length| length as u64)).into_iter();
        let all = all.map(|tap| std::array::from_fn(|d| taps[d][tap[d] as usize]));
        let all: Vec<[i64; 3]> = all.collect();
        let is_inside = |at: &&[i64; 3]| (0..3).all(|d| (0..size[d] as i64).contains(&at[d]));
        let terms = match kind {
            PoolKind::MeanOfAll => all.len(),
            _ => all.iter().filter(is_inside).count(),
        };
        for place in all.iter().filter(is_inside) {
            let number = place.iter().zip(&size).fold(0.0, |number, (at, extent)| {
                number * *extent as f64 + *at as f64
            });
            match &index {
                Some(index) if index.at(at) == number => add(*place, [g, g.abs()]),
                Some(_) => {}
                None => {
                    let share = g / terms as f64;
                    add(*place, [share, share.abs()]);
                }
            }
        }
    })
}

fn interpolate(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (gradient, to) = (five(&program.input(0))?, five(&program.output(0))?);
    let corners = op.choice_of("align") == "corners";
    window::interpolate_backward(program, interpolation(op), [&gradient, &to], corners)
}

fn interpolate_expected(
    op: &OpParameters,
    x: &[HostArray],
    layouts: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (mode, corners) = (op.choice_of("mode"), op.choice_of("align") == "corners");
    let own = space_of(&x[0].shape);
    let size = space_of(layouts[0].shape());
    spread(x, &layouts[0], |at, g, add| {
        let along = |d: usize| neighbours(mode, corners, at[2 + d], size[d], own[d]);
        for (z, by_z) in along(0) {
            for (y, by_y) in along(1) {
                for (x, by_x) in along(2) {
                    // Weights have absolute errors.
                    add([z, y, x], [g * (by_z * by_y * by_x), 8.0 * g.abs()]);
                }
            }
        }
    })
}

const WINDOW: &[(&str, &[i64])] = &[
    ("size", &[]),
    ("kernel", &[]),
    ("stride", &[]),
    ("padding", &[]),
    ("dilation", &[]),
];

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Window "max_pool_backward" ("g", "index") Floats {} [] { lists: WINDOW }
        "cuda.window", results, pool, pool_expected,
        "gradient of max_pool by its operand of `size`, of the places that it gave; a place outside of its window is skipped"),
    native!(Window "adaptive_max_pool_backward" ("g", "index") Floats {} [] { lists: &[("size", &[])] }
        "cuda.window", results, pool, pool_expected,
        "gradient of adaptive_max_pool by its operand of `size`"),
    native!(Window "avg_pool_backward" ("g") Floats {} []
        { lists: &[("size", &[]), ("kernel", &[]), ("stride", &[]), ("padding", &[])], choices: &[("count", &["all", "inside"])] }
        "cuda.window", results, pool, pool_expected, "gradient of avg_pool by its operand of `size`"),
    native!(Window "adaptive_avg_pool_backward" ("g") Floats {} [] { lists: &[("size", &[])] }
        "cuda.window", results, pool, pool_expected,
        "gradient of adaptive_avg_pool by its operand of `size`"),
    native!(Window "interpolate_backward" ("g") Floats {} []
        { lists: &[("size", &[])], choices: &[("mode", &["nearest", "linear", "cubic"]), ("align", &["middles", "corners"])] }
        "cuda.window", results, interpolate, interpolate_expected,
        "gradient of interpolate by its operand of `size`"),
];
