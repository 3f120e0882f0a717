//! Rows of random places: permutations, and draws by weights.
//!
//! A permutation has the places of the elements' random numbers of 64 bits in ascending order,
//! equal ones in order of their places; the numbers are those of `random_integers`, so they are the
//! same on every device.

use fercuda_kernels::{NativeProgram, draw};
use fercuda_tensor::{Dtype, Layout};

use super::random::{SEED, check_seed, half, seed};
use super::scalar::whole_number;
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

fn permutation_results(op: &OpParameters, _: &[Layout]) -> RowResults {
    check_seed(op)?;
    match op.target_shape() {
        Some(shape @ [.., _]) => Ok(vec![(Dtype::I64, shape.to_vec())]),
        _ => Err(Misfit::new("no shape of one dimension or more", "`shape`")),
    }
}

fn permutation(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let to = program.output(0);
    draw::permutation(program, &to, seed(op))
}

fn permutation_expected(
    op: &OpParameters,
    _: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let seed = seed(op);
    let len = results[0].shape().last().copied().unwrap_or(1).max(1);
    let row = |number: u64| {
        let mut places: Vec<u64> = (0..len).collect();
        places.sort_by_key(|at| half(seed, number * len + at));
        places.into_iter().map(|at| (at as f64, 0.0))
    };
    vec![(0..results[0].len() / len).flat_map(row).collect()]
}

fn draw_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    check_seed(op)?;
    let Some(samples) = u64::try_from(whole_number(op, "samples")?).ok() else {
        return Err(Misfit::new("a negative number of samples", "0 or more"));
    };
    let mut shape = operands[0].shape().to_vec();
    let length = shape.last().copied().unwrap_or_default();
    if op.name() == "multinomial_different" && samples > length {
        let what = format!("{samples} different samples of {length}");
        return Err(Misfit::new(what, "at most as many as there are weights"));
    }
    match shape.last_mut() {
        Some(last) if *last > 0 || samples == 0 => *last = samples,
        _ => {
            return Err(Misfit::new(
                "there are no weights",
                "one or more along a dimension",
            ));
        }
    }
    Ok(vec![(Dtype::I64, shape)])
}

fn draws(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    draw::places(program, &x, &to, seed(op))
}

fn draws_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (seed, samples) = (seed(op), op.number_of("samples") as u64);
    let len = x[0].shape.last().copied().unwrap_or(1).max(1) as usize;
    let one = |at: u64| {
        let row = &x[0].values[(at / samples) as usize * len..][..len];
        let weights = row.iter().map(|weight| weight.max(0.0));
        let sums: Vec<f64> = weights
            .scan(0.0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        let all = sums[len - 1];
        let share = (half(seed, at) >> 11) as f64 * (-53f64).exp2() * all;
        let place = sums.iter().position(|sum| *sum > share).unwrap_or(0);
        // Sums of another order may be some units in the last place off.
        let off = 4.0 * len as f64 * f64::EPSILON * all;
        let is_near = sums.iter().any(|sum| (sum - share).abs() <= off) && all > 0.0;
        (place as f64, if is_near { f64::INFINITY } else { 0.0 })
    };
    vec![(0..results[0].len()).map(one).collect()]
}

fn different(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    draw::different_places(program, &x, &to, seed(op))
}

fn different_expected(
    op: &OpParameters,
    x: &[HostArray],
    _: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (seed, samples) = (seed(op), op.number_of("samples") as usize);
    let len = x[0].shape.last().copied().unwrap_or(1).max(1) as usize;
    let row = |(number, row): (usize, &[f64])| {
        let key = |(at, weight): (usize, &f64)| {
            let share = ((half(seed, (number * len + at) as u64) >> 11) + 1) as f64;
            let key = -(share * (-53f64).exp2()).ln() / weight;
            (if *weight > 0.0 { key } else { f64::INFINITY }, at)
        };
        let mut all: Vec<(f64, usize)> = row.iter().enumerate().map(key).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let places = (0..samples).map(|at| {
            let (key, place) = all[at];
            if key == f64::INFINITY {
                return (-1.0, 0.0);
            }
            // Some units in the last place apart may be in the other order.
            let is_near = |other: &(f64, usize)| (other.0 - key).abs() <= 32.0 * f64::EPSILON * key;
            let beside = [at.checked_sub(1), Some(at + 1)].into_iter().flatten();
            let is_unknown = beside.filter_map(|at| all.get(at)).any(is_near);
            (place as f64, if is_unknown { f64::INFINITY } else { 0.0 })
        });
        places.collect::<Vec<_>>()
    };
    vec![x[0].values.chunks(len).enumerate().flat_map(row).collect()]
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Random "random_permutation" () All {} ["shape"] { lists: SEED }
        "cuda.draw", permutation_results, permutation, permutation_expected,
        "i64: the places along the last dimension in random order, by sorting numbers of 64 bits"),
    native!(Random "multinomial" ("x") Floats { "samples": 1.0 } [] { lists: SEED }
        "cuda.draw", draw_results, draws, draws_expected,
        "i64: places along the last dimension by their finite weights, with replacement; a weight below 0 or NaN is 0, and of no weight above 0 the place is 0"),
    native!(Random "multinomial_different" ("x") Floats { "samples": 1.0 } [] { lists: SEED }
        "cuda.draw", draw_results, different, different_expected,
        "i64: different places along the last dimension by their finite weights, without replacement; a weight below 0 or NaN is 0, and -1 where no weight above 0 is left"),
];
