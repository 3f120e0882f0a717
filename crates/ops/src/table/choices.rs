//! Rows of choices by weights, as samplers of language models make them.

use fercuda_jit::TypeClass;
use fercuda_kernels::NativeProgram;
use fercuda_kernels::choice::{self, SETTINGS};
use fercuda_tensor::{Dtype, Layout};

use super::sorting::in_order;
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// Part of all weights by which sums of a device and of the reference may differ.
const NEAR: f64 = 1e-4;
/// Elements that a device sorts, as in `choice.cu`.
const SORTED: usize = 2048;

fn results(_: &OpParameters, operands: &[Layout]) -> RowResults {
    let [x, settings] = [0, 1].map(|at| &operands[at]);
    let &[rows, len] = x.shape() else {
        let what = format!("x is {:?}", x.shape());
        return Err(Misfit::new(what, "x[rows, n]"));
    };
    if len == 0 {
        return Err(Misfit::new("rows without elements", "one at least"));
    }
    if settings.dtype() != Dtype::I32 || settings.shape() != [rows, SETTINGS] {
        let what = format!("settings is {settings}");
        return Err(Misfit::new(what, format!("i32[{rows}, {SETTINGS}]")));
    }
    Ok(vec![(Dtype::I64, vec![rows]), (x.dtype(), vec![rows])])
}

fn lower(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let operands = (program.input(0), program.input(1));
    let results = (program.output(0), program.output(1));
    choice::choose(
        program,
        (&operands.0, &operands.1),
        (&results.0, &results.1),
    )
}

/// Settings of a row.
struct RowSettings {
    temperature: f64,
    top_k: usize,
    top_p: f64,
    min_p: f64,
    place: f64,
}

impl RowSettings {
    fn of(numbers: &[f64]) -> Self {
        let bits = |at: usize| (numbers[at] as i32).cast_unsigned();
        let float = |at: usize| f64::from(f32::from_bits(bits(at)));
        let place = f64::from_bits(u64::from(bits(5)) << 32 | u64::from(bits(4)));
        Self {
            temperature: float(0),
            top_k: bits(1) as usize,
            top_p: float(2),
            min_p: float(3),
            place: if (0.0..1.0).contains(&place) {
                place
            } else {
                0.0
            },
        }
    }

    /// The place of the chosen element; `None` where a device's rounding decides.
    fn chosen(&self, row: &[f64]) -> Option<usize> {
        let largest = (0..row.len())
            .rev()
            .max_by(|a, b| row[*a].total_cmp(&row[*b]));
        let most = row[largest?];
        let first = row.iter().position(|it| *it == most);
        let is_some = self.temperature > 0.0 && most > f64::NEG_INFINITY;
        if !is_some || row.iter().any(|it| it.is_nan()) {
            return first;
        }
        let weight = |value: f64| match value == most {
            true => 1.0,
            false => ((value - most) / self.temperature).exp(),
        };
        let is_near = |a: f64, b: f64, of: f64| (a - b).abs() <= NEAR * of;
        let mut all: Vec<(usize, f64)> = (0..).zip(row.iter().map(|it| weight(*it))).collect();
        if self.min_p > 0.0 && all.iter().any(|it| is_near(it.1, self.min_p, self.min_p)) {
            return None;
        }
        all.retain(|it| it.1 > 0.0 && it.1 >= self.min_p);
        let is_cut = self.top_k > 0 && self.top_k < row.len() || self.top_p < 1.0;
        if is_cut {
            // Stable: of equal ones the first. Their own order, as weights may be equal where they
            // are not.
            all.sort_by(|a, b| in_order(row[b.0], row[a.0]));
            if self.top_k > 0 && self.top_k < all.len() {
                let is_equal = row[all[self.top_k].0] == row[all[self.top_k - 1].0];
                if row.len() > SORTED && is_equal {
                    return None;
                }
                all.truncate(self.top_k);
            }
            let total: f64 = all.iter().map(|it| it.1).sum();
            let wanted = self.top_p * total;
            let (mut sum, mut kept) = (0.0, all.len());
            for (at, (_, weight)) in all.iter().enumerate() {
                sum += weight;
                if self.top_p < 1.0 && is_near(sum, wanted, total) {
                    return None;
                }
                if sum >= wanted && self.top_p < 1.0 {
                    kept = at + 1;
                    break;
                }
            }
            // Where many are kept, equal ones are kept all.
            let is_equal = all.get(kept).zip(kept.checked_sub(1));
            let is_equal = is_equal.is_some_and(|(next, last)| row[next.0] == row[all[last].0]);
            if row.len() > SORTED && is_equal {
                return None;
            }
            all.truncate(kept);
            all.sort_by_key(|it| it.0);
        }
        let total: f64 = all.iter().map(|it| it.1).sum();
        let target = self.place * total;
        let mut sum = 0.0;
        for (at, weight) in &all {
            sum += weight;
            if is_near(sum, target, total) {
                return None;
            }
            if sum > target {
                return Some(*at);
            }
        }
        all.last().map(|it| it.0)
    }
}

fn expected(_: &OpParameters, x: &[HostArray], _: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let len = x[0].shape[1].max(1) as usize;
    let rows = x[0].values.chunks(len);
    let settings = x[1].values.chunks(SETTINGS as usize).map(RowSettings::of);
    let places = rows
        .clone()
        .zip(settings)
        .map(|(row, settings)| match settings.chosen(row) {
            Some(at) => (at as f64, 0.0),
            None => (0.0, f64::INFINITY),
        });
    let values = rows.map(|row| {
        let has_nan = row.iter().any(|it| it.is_nan());
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (if has_nan { f64::NAN } else { most }, 0.0)
    });
    vec![places.collect(), values.collect()]
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Random "choose_by_weight" ("x", "settings") NotF64 {} []
        { typed: &[("settings", TypeClass::Integers)], results: &["place", "most"] }
        "cuda.choice", results, lower, expected,
        "the place of one element of each row of x[rows, n], by weights e^((x - most) / temperature), and the largest element. A row of settings[rows, 6], i32, has the bits of an f32 temperature, 0 for the largest element; top_k, the number of largest elements that are kept, 0 for all; the bits of f32 top_p, the part of the weight of these that the kept ones have at least, and min_p, the least weight; and the low and the high half of the bits of an f64 from 0 to 1, which chooses: as much of the kept weight is before the element, in the order of the row. Of equal elements of which top_k and top_p keep some the first are kept, or all where more than 2048 are near. NaN: the first largest of the others, and NaN"),
];
