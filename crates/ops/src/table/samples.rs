//! Rows of elements at places between elements, and of boxes.
//!
//! Places are computed in f64 from the elements of grids and boxes.

use fercuda_jit::TypeClass;
use fercuda_kernels::sample::{self, GridSampling, MOST_SAMPLES, OutsidePlaces};
use fercuda_kernels::{NativeProgram, boxes};
use fercuda_tensor::{Dtype, Layout};

use super::approx::ApproxType;
use super::bounds::stored;
use super::scalar::whole_number;
use crate::arrays::{HostArray, indices};
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// How far a place that is computed in f64 may be off, of its magnitude.
pub(super) const PLACE_ERROR: f64 = 64.0 * f64::EPSILON;

fn are_corners(op: &OpParameters) -> bool {
    op.choice_of("align") == "corners"
}

// Grids.

pub(super) fn sampling(op: &OpParameters) -> GridSampling {
    GridSampling {
        is_linear: op.choice_of("mode") == "linear",
        are_corners: are_corners(op),
        outside: match op.choice_of("outside") {
            "border" => OutsidePlaces::Border,
            "reflection" => OutsidePlaces::Reflection,
            _ => OutsidePlaces::Zeros,
        },
    }
}

pub(super) fn grid_results(_: &OpParameters, operands: &[Layout]) -> RowResults {
    let (x, grid) = (operands[0].shape(), operands[1].shape());
    let (&[batch, channels, height, width], &[own, rows, columns, 2]) = (x, grid) else {
        let what = format!("{x:?} at {grid:?}");
        return Err(Misfit::new(
            what,
            "[batch, channels, height, width] at [batch, rows, columns, 2]",
        ));
    };
    if own != batch {
        return Err(Misfit::new(
            format!("a grid of {own} for {batch}"),
            "one for each batch",
        ));
    }
    if height * width == 0 && batch * channels * rows * columns > 0 {
        return Err(Misfit::new("x has no places", "an extent of 1 or more"));
    }
    Ok(vec![(
        operands[0].dtype(),
        vec![batch, channels, rows, columns],
    )])
}

fn grid(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, grid, to) = (program.input(0), program.input(1), program.output(0));
    sample::grid(program, sampling(op), [&x, &grid, &to])
}

/// The place of a coordinate, from 0 on.
pub(super) fn place_of(sampling: GridSampling, coordinate: f64, extent: u64) -> f64 {
    let (extent, last) = (extent as f64, extent as f64 - 1.0);
    let (place, low, span) = match sampling.are_corners {
        true => ((coordinate + 1.0) / 2.0 * last, 0.0, last),
        false => (((coordinate + 1.0) * extent - 1.0) / 2.0, -0.5, extent),
    };
    match sampling.outside {
        OutsidePlaces::Zeros => place,
        OutsidePlaces::Border => place.clamp(0.0, last),
        OutsidePlaces::Reflection if span == 0.0 => 0.0,
        OutsidePlaces::Reflection => {
            // There and back again, from the lower end.
            let beyond = (place - low).rem_euclid(2.0 * span);
            (beyond.min(2.0 * span - beyond) + low).clamp(0.0, last)
        }
    }
}

fn grid_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (sampling, dtype) = (sampling(op), results[0].dtype());
    let (from, grid) = (&x[0], &x[1]);
    let [height, width] = [from.shape[2], from.shape[3]];
    let one = |own: &Vec<u64>| {
        let coordinate = |at: u64| grid.at(&[own[0], own[2], own[3], at]);
        let across = place_of(sampling, coordinate(0), width);
        let down = place_of(sampling, coordinate(1), height);
        let off = |coordinate: f64, extent: u64| {
            PLACE_ERROR * (coordinate.abs() + 1.0) * (extent as f64 + 1.0)
        };
        let [off_across, off_down] = [off(coordinate(0), width), off(coordinate(1), height)];
        let inside = |row: f64, column: f64| {
            let is_inside =
                row >= 0.0 && row < height as f64 && column >= 0.0 && column < width as f64;
            match is_inside {
                true => from.at(&[own[0], own[1], row as u64, column as u64]),
                false => 0.0,
            }
        };
        if !sampling.is_linear {
            let is_tie = |place: f64, off: f64| {
                // Half a place away from either, exactly or nearly.
                (place - place.floor() - 0.5).abs() <= off
            };
            let value = inside(down.round_ties_even(), across.round_ties_even());
            return match is_tie(down, off_down) || is_tie(across, off_across) {
                true => (value, f64::INFINITY),
                false => (value, 0.0),
            };
        }
        let (mut value, mut size) = (0.0, 0.0);
        for (row, by_row) in [(0.0, 1.0 - down.fract_up()), (1.0, down.fract_up())] {
            for (column, by) in [(0.0, 1.0 - across.fract_up()), (1.0, across.fract_up())] {
                let element = inside(down.floor() + row, across.floor() + column);
                value += by_row * by * element;
                // Also of those that a place a little aside is between.
                for near in [-1.0, 0.0, 1.0] {
                    let around = inside(down.floor() + row + near, across.floor() + column);
                    let beside = inside(down.floor() + row, across.floor() + column + near);
                    size += around.abs() + beside.abs();
                }
            }
        }
        stored(
            dtype,
            value,
            (off_across + off_down + 16.0 * f64::EPSILON) * size,
        )
    };
    vec![indices(results[0].shape()).iter().map(one).collect()]
}

/// The part above the floor, of a negative number too.
trait PartAbove {
    fn fract_up(self) -> f64;
}

impl PartAbove for f64 {
    fn fract_up(self) -> f64 {
        self - self.floor()
    }
}

fn affine_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let &[batch, 2, 3] = operands[0].shape() else {
        let what = format!("a matrix of {:?}", operands[0].shape());
        return Err(Misfit::new(what, "[batch, 2, 3]"));
    };
    let &[height @ 0..=i64::MAX, width @ 0..=i64::MAX] = op.list_of("size") else {
        let what = format!("a size of {:?}", op.list_of("size"));
        return Err(Misfit::new(what, "[height, width]"));
    };
    let shape = vec![batch, height.unsigned_abs(), width.unsigned_abs(), 2];
    Ok(vec![(operands[0].dtype(), shape)])
}

fn affine(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (matrix, to) = (program.input(0), program.output(0));
    sample::affine(program, &matrix, &to, are_corners(op))
}

fn affine_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let shape = results[0].shape();
    let coordinate = |at: u64, extent: u64| match (are_corners(op), extent) {
        (true, 1) => 0.0,
        (true, _) => 2.0 * at as f64 / (extent - 1) as f64 - 1.0,
        (false, _) => (2 * at + 1) as f64 / extent as f64 - 1.0,
    };
    let one = |own: &Vec<u64>| {
        let by = |column: u64| x[0].at(&[own[0], own[3], column]);
        let (across, down) = (coordinate(own[2], shape[2]), coordinate(own[1], shape[1]));
        let value = by(0) * across + by(1) * down + by(2);
        let size = by(0).abs() + by(1).abs() + by(2).abs();
        stored(results[0].dtype(), value, 16.0 * f64::EPSILON * size)
    };
    vec![indices(shape).iter().map(one).collect()]
}

// Boxes.

fn align_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let [x, boxes, index] = [0, 1, 2].map(|at| operands[at].shape());
    let samples = whole_number(op, "samples")?;
    if !(1..=MOST_SAMPLES as i64).contains(&samples) {
        let what = format!("{samples} samples");
        return Err(Misfit::new(what, format!("1 to {MOST_SAMPLES}")));
    }
    let (&[_, channels, _, _], &[number, 4]) = (x, boxes) else {
        let what = format!("{x:?} by boxes {boxes:?}");
        return Err(Misfit::new(
            what,
            "[batch, channels, height, width] by [boxes, 4]",
        ));
    };
    if index != [number] {
        let what = format!("an index of {index:?} for {number} boxes");
        return Err(Misfit::new(what, "one for each box"));
    }
    let &[height @ 1..=i64::MAX, width @ 1..=i64::MAX] = op.list_of("size") else {
        let what = format!("a size of {:?}", op.list_of("size"));
        return Err(Misfit::new(what, "[height, width], 1 or more each"));
    };
    let shape = vec![
        number,
        channels,
        height.unsigned_abs(),
        width.unsigned_abs(),
    ];
    Ok(vec![(operands[0].dtype(), shape)])
}

fn align(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [x, boxes, index] = [0, 1, 2].map(|at| program.input(at));
    let (to, samples) = (program.output(0), op.number_of("samples") as u64);
    sample::boxes(
        program,
        [&x, &boxes, &index, &to],
        op.number_of("scale"),
        samples,
    )
}

/// Neighbours of a place, with their shares; none of a place that is further outside than one
/// element; and whether it is nearly there.
fn around(place: f64, extent: u64, off: f64) -> (Vec<(u64, f64)>, bool) {
    let ends = [-1.0, extent as f64];
    let is_near_end = ends.iter().any(|end| (place - end).abs() <= off);
    if place < ends[0] || place > ends[1] {
        return (Vec::new(), is_near_end);
    }
    let place = place.clamp(0.0, extent as f64 - 1.0);
    let first = place as u64;
    let share = place - first as f64;
    let second = (first + 1).min(extent - 1);
    (vec![(first, 1.0 - share), (second, share)], is_near_end)
}

fn align_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (dtype, shape) = (results[0].dtype(), results[0].shape());
    let (scale, samples) = (op.number_of("scale"), op.number_of("samples") as u64);
    let [batches, _, height, width] = [0, 1, 2, 3].map(|at| x[0].shape[at]);
    let largest = x[0]
        .values
        .iter()
        .fold(0.0f64, |most, value| most.max(value.abs()));
    let one = |own: &Vec<u64>| {
        let batch = x[2].values[own[0] as usize];
        if !(batch >= 0.0 && batch < batches as f64) || height * width == 0 {
            return (0.0, 0.0);
        }
        let edge = |at: u64| x[1].at(&[own[0], at]) * scale - 0.5;
        let size = (0..4).map(|at| edge(at).abs() + 1.0).sum::<f64>();
        let off = PLACE_ERROR * (size + height as f64 + width as f64);
        let (mut sum, mut is_unknown) = (0.0, false);
        let place = |first: f64, last: f64, at: u64, parts: u64, sample: u64| {
            let share = (sample as f64 + 0.5) / samples as f64;
            first + (at as f64 + share) * ((last - first) / parts as f64)
        };
        for pair in indices(&[samples, samples]) {
            let down = place(edge(1), edge(3), own[2], shape[2], pair[0]);
            let across = place(edge(0), edge(2), own[3], shape[3], pair[1]);
            let (rows, row_end) = around(down, height, off);
            let (columns, column_end) = around(across, width, off);
            is_unknown = is_unknown || row_end || column_end;
            for (row, by_row) in &rows {
                for (column, by) in &columns {
                    sum += by_row * by * x[0].at(&[batch as u64, own[1], *row, *column]);
                }
            }
        }
        let value = sum / (samples * samples) as f64;
        match is_unknown {
            true => (value, f64::INFINITY),
            false => stored(dtype, value, 8.0 * (off + 1e-14) * largest),
        }
    };
    vec![indices(shape).iter().map(one).collect()]
}

fn suppress_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let threshold = op.number_of("threshold");
    if !(0.0..=1.0).contains(&threshold) {
        let what = format!("a threshold of {threshold}");
        return Err(Misfit::new(what, "a number from 0 to 1"));
    }
    let (boxes, scores) = (operands[0].shape(), operands[1].shape());
    match (boxes, scores) {
        (&[count, 4], &[own]) if own == count => {
            Ok(vec![(Dtype::I64, vec![count]), (Dtype::I64, Vec::new())])
        }
        _ => {
            let what = format!("boxes {boxes:?} with scores {scores:?}");
            Err(Misfit::new(what, "[boxes, 4] with [boxes]"))
        }
    }
}

fn suppress(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let operands = [0, 1].map(|at| program.input(at));
    let [kept, number] = [0, 1].map(|at| program.output(at));
    let threshold = op.number_of("threshold");
    boxes::suppress(
        program,
        [&operands[0], &operands[1]],
        [&kept, &number],
        threshold,
    )
}

fn suppress_expected(
    op: &OpParameters,
    x: &[HostArray],
    _: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let t = ApproxType::of(x[0].dtype);
    let scores = &x[1].values;
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // NaN is above all.
    let key = |at: &usize| {
        if scores[*at].is_nan() {
            f64::INFINITY
        } else {
            scores[*at]
        }
    };
    order.sort_by(|a, b| {
        let nan = scores[*b].is_nan().cmp(&scores[*a].is_nan());
        nan.then(
            key(b)
                .partial_cmp(&key(a))
                .unwrap_or(std::cmp::Ordering::Equal),
        )
    });
    let side = |at: usize, k: usize| t.exact(x[0].values[at * 4 + k]);
    let area = |at: usize| (side(at, 2) - side(at, 0)) * (side(at, 3) - side(at, 1));
    let mut is_unknown = false;
    let mut kept: Vec<usize> = Vec::new();
    for at in order {
        let overlaps = |other: &usize| {
            let along = |k: usize| {
                let end = side(at, k + 2).least(side(*other, k + 2));
                (end - side(at, k).most(side(*other, k))).most(t.exact(0.0))
            };
            let both = along(0) * along(1);
            let either = area(at) + area(*other) - both;
            let least = t.number(op.number_of("threshold")) * either;
            let apart = both.value - least.value;
            // Of 0 and 0 nothing is rounded.
            is_unknown = is_unknown
                || apart.abs() <= both.error + least.error && apart != 0.0
                || apart == 0.0 && both.value != 0.0;
            apart > 0.0
        };
        // All are compared, as any may be unknown.
        let overlaps: Vec<bool> = kept.iter().map(overlaps).collect();
        if !overlaps.contains(&true) {
            kept.push(at);
        }
    }
    let error = if is_unknown { f64::INFINITY } else { 0.0 };
    let count = kept.len();
    let all = kept
        .into_iter()
        .map(|at| at as f64)
        .chain(std::iter::repeat(0.0));
    let all = all.take(scores.len()).map(|value| (value, error));
    vec![all.collect(), vec![(count as f64, error)]]
}

const ALIGN: (&str, &[&str]) = ("align", &["middles", "corners"]);

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Window "grid_sample" ("x", "grid") Floats {} []
        { choices: &[("mode", &["linear", "nearest"]), ("outside", &["zeros", "border", "reflection"]), ALIGN] }
        "cuda.sample", grid_results, grid, grid_expected,
        "elements of x[batch, channels, height, width] at grid[batch, rows, columns, 2], across and down from -1 to 1"),
    native!(Window "affine_grid" ("matrix") Floats {} []
        { lists: &[("size", &[])], choices: &[ALIGN] }
        "cuda.sample", affine_results, affine, affine_expected,
        "grid of `size` [height, width] by matrix[batch, 2, 3] of (across, down, 1)"),
    native!(Window "roi_align" ("x", "boxes", "index") Floats { "scale": 1.0, "samples": 2.0 } []
        { lists: &[("size", &[1, 1])] }
        "cuda.sample", align_results, align, align_expected,
        "means of samples by samples places in each of `size` parts of boxes[boxes, 4], left, top, right and bottom, of the batch of the index"),
    native!(Order "nms" ("boxes", "scores") Floats { "threshold": 0.5 } []
        { typed: &[("scores", TypeClass::Floats)], results: &["kept", "count"] }
        "cuda.boxes", suppress_results, suppress, suppress_expected,
        "boxes in order of their scores that no kept one overlaps by more than the threshold of both, zeros behind, and their number"),
];
