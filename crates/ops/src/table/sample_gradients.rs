//! Row of the gradients of elements at places between elements.

use fercuda_kernels::NativeProgram;
use fercuda_kernels::sample::{self, OutsidePlaces};
use fercuda_tensor::Layout;

use super::bounds::{stored, unit_roundoff};
use super::samples::{PLACE_ERROR, grid_results, place_of, sampling};
use crate::arrays::{HostArray, indices};
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

fn results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let forward = grid_results(op, &operands[1..])?;
    let (own, wanted) = (operands[0].shape(), &forward[0].1);
    if own != wanted {
        let what = format!("g is {own:?}, the result {wanted:?}");
        return Err(Misfit::new(what, "a gradient of the result's shape"));
    }
    let like = |at: usize| (operands[at].dtype(), operands[at].shape().to_vec());
    Ok(vec![like(1), like(2)])
}

fn lower(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [gradient, x, grid] = [0, 1, 2].map(|at| program.input(at));
    let [to_x, to_grid] = [0, 1].map(|at| program.output(at));
    let operands = [&gradient, &x, &grid];
    sample::grid_backward(program, sampling(op), operands, [&to_x, &to_grid])
}

/// A place along one dimension: how far it may be off, and the slope of it by its coordinate,
/// unless that is not known there.
struct SlopedPlace {
    at: f64,
    off: f64,
    slope: Option<f64>,
}

impl SlopedPlace {
    fn of(op: &OpParameters, coordinate: f64, extent: u64) -> Self {
        let sampling = sampling(op);
        let at = place_of(sampling, coordinate, extent);
        let off = PLACE_ERROR * (coordinate.abs() + 1.0) * (extent as f64 + 1.0);
        let last = extent as f64 - 1.0;
        let size = 0.5
            * if sampling.are_corners {
                last
            } else {
                last + 1.0
            };
        let moved = |by: f64| place_of(sampling, coordinate + by, extent);
        // Of places that are moved inside, a little step does not matter.
        let step = 1e-6;
        let is_still = moved(step) == at && moved(-step) == at;
        let is_near_whole = (at - at.round()).abs() <= 2.0 * off + 2.0 * size * step;
        let slope = match (is_still, is_near_whole) {
            (true, _) if sampling.outside != OutsidePlaces::Zeros => Some(0.0),
            (_, true) => None,
            _ if moved(step) > at => Some(size),
            _ => Some(-size),
        };
        Self { at, off, slope }
    }

    fn is_tie(&self) -> bool {
        (self.at - self.at.floor() - 0.5).abs() <= self.off
    }

    /// The elements around with their weights, and those further around without.
    fn weights(&self, is_linear: bool) -> [(f64, f64); 4] {
        let floor = self.at.floor();
        let beyond = self.at - floor;
        let weights = match is_linear {
            true => [0.0, 1.0 - beyond, beyond, 0.0],
            false => {
                let nearest = self.at.round_ties_even() - floor;
                [0.0, 1.0 - nearest, nearest, 0.0]
            }
        };
        std::array::from_fn(|k| (floor + k as f64 - 1.0, weights[k]))
    }
}

fn expected(op: &OpParameters, x: &[HostArray], layouts: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let (is_linear, dtype) = (sampling(op).is_linear, layouts[0].dtype());
    let [gradient, from, grid] = [0, 1, 2].map(|at| &x[at]);
    let [height, width] = [from.shape[2], from.shape[3]];
    let place = |index: &[u64]| {
        let fold = |place, (extent, at): (&u64, &u64)| place * extent + at;
        from.shape.iter().zip(index).fold(0, fold) as usize
    };
    let inside = |at: f64, extent: u64| (at >= 0.0 && at < extent as f64).then_some(at as u64);
    // Sum, error, magnitude and number of terms of each element.
    let mut of_x = vec![[0.0; 4]; from.values.len()];
    let mut of_grid = Vec::new();
    for own in indices(&grid.shape[..3]) {
        let coordinate = |at: u64| grid.at(&[own[0], own[1], own[2], at]);
        let across = SlopedPlace::of(op, coordinate(0), width.max(1));
        let down = SlopedPlace::of(op, coordinate(1), height.max(1));
        let off = across.off + down.off + 64.0 * f64::EPSILON;
        let (mut by_across, mut by_down, mut size) = (0.0, 0.0, 0.0);
        for channel in 0..from.shape[1] {
            let g = gradient.at(&[own[0], channel, own[1], own[2]]);
            let is_tied = !is_linear && (across.is_tie() || down.is_tie());
            let error = match is_linear {
                true => off * g.abs(),
                false if is_tied => f64::INFINITY,
                false => 0.0,
            };
            let (rows, columns) = (down.weights(is_linear), across.weights(is_linear));
            for (k, (row, by_row)) in rows.iter().enumerate() {
                for (j, (column, by)) in columns.iter().enumerate() {
                    let both = inside(*row, height).zip(inside(*column, width));
                    let Some((row, column)) = both else { continue };
                    let at = place(&[own[0], channel, row, column]);
                    let value = by_row * by * g;
                    let all = [value, error, value.abs() + error, 1.0];
                    (0..4).for_each(|k| of_x[at][k] += all[k]);
                    let element = from.values[at];
                    let slope = |k: usize| [0.0, -1.0, 1.0, 0.0][k];
                    by_across += g * by_row * slope(j) * element;
                    by_down += g * slope(k) * by * element;
                    size += (g * element).abs();
                }
            }
        }
        let terms = from.shape[1] as f64 + 4.0;
        for (sum, place) in [(by_across, &across), (by_down, &down)] {
            // The weights along the other dimension have slopes too, of which nothing is needed.
            let error = (off + terms * f64::EPSILON) * 8.0 * size;
            of_grid.push(match place.slope {
                _ if !is_linear => (0.0, 0.0),
                Some(slope) => stored(dtype, sum * slope, error * slope.abs()),
                None => (sum, f64::INFINITY),
            });
        }
    }
    let unit = unit_roundoff(dtype);
    let of_x = of_x.into_iter().map(|[value, error, size, terms]| {
        stored(dtype, value, error + 2.0 * (terms + 2.0) * unit * size)
    });
    vec![of_x.collect(), of_grid]
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Window "grid_sample_backward" ("g", "x", "grid") Floats {} []
        { choices: &[("mode", &["linear", "nearest"]), ("outside", &["zeros", "border", "reflection"]), ("align", &["middles", "corners"])],
          results: &["x", "grid"] }
        "cuda.spread", results, lower, expected,
        "gradient of grid_sample by x and the grid; that of places of nearest elements is 0"),
];
