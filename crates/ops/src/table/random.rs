//! Rows of random numbers by counter, and of elements that depend on their place.
//!
//! A number depends on seed, subsequence and its place in row-major order alone: Philox4x32-10, as
//! `random.cu` of `fercuda-kernels` describes, on every device.

use fercuda_kernels::NativeProgram;
use fercuda_kernels::place::{self, TrianglePart};
use fercuda_kernels::random::{self, Distribution, RandomSeed};
use fercuda_tensor::{Dtype, Layout};

use super::along::by_index;
use super::bounds::{stored, unit_roundoff};
use super::scalar::{erf, whole_number};
use crate::arrays::{HostArray, indices};
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

pub(super) const SEED: &[(&str, &[i64])] = &[("seed", &[0]), ("subsequence", &[0])];

pub(super) fn seed(op: &OpParameters) -> RandomSeed {
    let first = |list: &str| op.list_of(list).first().copied().unwrap_or_default();
    RandomSeed {
        seed: first("seed").cast_unsigned(),
        stream: first("subsequence").cast_unsigned(),
    }
}

pub(super) fn check_seed(op: &OpParameters) -> Result<(), Misfit> {
    match ["seed", "subsequence"]
        .iter()
        .all(|list| op.list_of(list).len() == 1)
    {
        true => Ok(()),
        false => Err(Misfit::new(
            "seed or subsequence is no single number",
            "one number each",
        )),
    }
}

/// A block of random words.
fn philox(block: u64, seed: RandomSeed) -> [u32; 4] {
    let [mut a, mut b] = [block as u32, (block >> 32) as u32];
    let [mut c, mut d] = [seed.stream as u32, (seed.stream >> 32) as u32];
    let (mut low, mut high) = (seed.seed as u32, (seed.seed >> 32) as u32);
    for _ in 0..10 {
        let left = u64::from(a) * 0xd251_1f53;
        let right = u64::from(c) * 0xcd9e_8d57;
        (a, b, c, d) = (
            (right >> 32) as u32 ^ b ^ low,
            right as u32,
            (left >> 32) as u32 ^ d ^ high,
            left as u32,
        );
        low = low.wrapping_add(0x9e37_79b9);
        high = high.wrapping_add(0xbb67_ae85);
    }
    [a, b, c, d]
}

/// 32 random bits of an element.
fn word(seed: RandomSeed, at: u64) -> u32 {
    philox(at / 4, seed)[(at % 4) as usize]
}

/// 64 random bits of an element.
pub(super) fn half(seed: RandomSeed, at: u64) -> u64 {
    let words = philox(at / 2, seed);
    let from = 2 * (at % 2) as usize;
    u64::from(words[from + 1]) << 32 | u64::from(words[from])
}

/// A random fraction of an element, in [0, 1), or in (0, 1] with `up` one step more.
fn fraction(dtype: Dtype, seed: RandomSeed, at: u64, up: u64) -> f64 {
    match dtype {
        Dtype::F64 => ((half(seed, at) >> 11) + up) as f64 * (-53f64).exp2(),
        _ => f64::from((word(seed, at) >> 8) + up as u32) * (-24f64).exp2(),
    }
}

/// A value near which a device's one is, if intermediate values have that magnitude.
fn near(dtype: Dtype, value: f64, magnitude: f64, steps: f64) -> ExpectedElement {
    stored(dtype, value, steps * unit_roundoff(dtype) * magnitude)
}

fn new_results(op: &OpParameters, _: &[Layout]) -> RowResults {
    check_seed(op)?;
    let Some(shape) = op.target_shape() else {
        return Err(Misfit::new("it has no shape", "`shape`"));
    };
    let dtype = op.target().unwrap_or(match op.name() {
        "random_integers" => Dtype::I64,
        _ => Dtype::F32,
    });
    let is_valid = match op.name() {
        "random_integers" => !dtype.is_float() && dtype != Dtype::Bool,
        "bernoulli" => true,
        _ => dtype.is_float(),
    };
    if !is_valid {
        return Err(Misfit::new(
            format!("it gives no {dtype}"),
            "another type for `to`",
        ));
    }
    distribution(op, dtype)?;
    Ok(vec![(dtype, shape.to_vec())])
}

fn distribution(op: &OpParameters, dtype: Dtype) -> Result<Distribution, Misfit> {
    match op.name() {
        "random_uniform" => {
            let [low, high] = ["low", "high"].map(|name| finite(op, dtype, name));
            let (low, high) = (low?, high?);
            match low <= high {
                true => Ok(Distribution::Uniform { low, high }),
                false => Err(Misfit::new(
                    format!("from {low} to {high}"),
                    "low, then high",
                )),
            }
        }
        "random_normal" => Ok(Distribution::Normal {
            mean: finite(op, dtype, "mean")?,
            deviation: finite(op, dtype, "deviation")?,
        }),
        "truncated_normal" => {
            let of = |name| finite(op, dtype, name);
            let (mean, deviation) = (of("mean")?, of("deviation")?);
            let (low, high) = (of("low")?, of("high")?);
            match low <= high && deviation > 0.0 {
                true => Ok(Distribution::TruncatedNormal {
                    mean,
                    deviation,
                    low,
                    high,
                }),
                false => Err(Misfit::new(
                    format!("from {low} to {high} by a deviation of {deviation}"),
                    "low, then high, and a deviation above 0",
                )),
            }
        }
        "random_exponential" => {
            let rate = finite(op, dtype, "rate")?;
            // In the type in which it is computed.
            let computed = match dtype {
                Dtype::F64 => rate,
                _ => f64::from(rate as f32),
            };
            match computed >= f64::from(f32::MIN_POSITIVE) {
                true => Ok(Distribution::Exponential { rate }),
                false => Err(Misfit::new(
                    format!("a rate of {rate}"),
                    "a rate above 1e-37",
                )),
            }
        }
        "bernoulli" => Ok(Distribution::Bernoulli {
            chance: chance(op)?,
        }),
        _ => integers(op, dtype),
    }
}

/// A number that the type in which it is computed has.
fn finite(op: &OpParameters, dtype: Dtype, name: &str) -> Result<f64, Misfit> {
    let value = op.number_of(name);
    let computed = if dtype == Dtype::F64 {
        value
    } else {
        f64::from(value as f32)
    };
    match computed.is_finite() {
        true => Ok(value),
        false => Err(Misfit::new(
            format!("{name} is {value}"),
            format!("a number of {dtype}"),
        )),
    }
}

fn integers(op: &OpParameters, dtype: Dtype) -> Result<Distribution, Misfit> {
    let [low, high] = op.list_of("bounds") else {
        return Err(Misfit::new(
            "bounds are not two numbers",
            "[low, high], without high",
        ));
    };
    let width = 8 * dtype.bytes() as u32;
    let (least, most) = match dtype.is_signed() {
        true => (-(1i128 << (width - 1)), 1i128 << (width - 1)),
        false => (0, 1i128 << width),
    };
    let (low_in, high_in) = (i128::from(*low) >= least, i128::from(*high) <= most);
    if low >= high || !low_in || !high_in {
        let what = format!("there is no {dtype} from {low} to below {high}");
        return Err(Misfit::new(what, "a range of the type's values"));
    }
    let range = high.wrapping_sub(*low).cast_unsigned();
    Ok(Distribution::Integers { low: *low, range })
}

fn chance(op: &OpParameters) -> Result<f64, Misfit> {
    let chance = op.number_of("p");
    match (0.0..=1.0).contains(&chance) {
        true => Ok(chance),
        false => Err(Misfit::new(
            format!("a chance of {chance}"),
            "a number from 0 to 1",
        )),
    }
}

fn random(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let out = program.output(0);
    // The results' rule has accepted it.
    if let Ok(distribution) = distribution(op, out.dtype()) {
        random::elements(program, &out, distribution, seed(op));
    }
    Ok(())
}

/// The normal distribution's function.
fn normal_cdf(x: f64) -> f64 {
    0.5 + 0.5 * erf(x * std::f64::consts::FRAC_1_SQRT_2)
}

/// Where the normal distribution's function has that value, by bisection, and how far a device's
/// place may be from it: both functions may be some 2^-50 off, by the slope there.
fn normal_place(share: f64) -> (f64, f64) {
    let (mut low, mut high) = (-8.5, 8.5);
    for _ in 0..64 {
        let middle = 0.5 * (low + high);
        match normal_cdf(middle) < share {
            true => low = middle,
            false => high = middle,
        }
    }
    let place = 0.5 * (low + high);
    let slope = (-0.5 * place * place).exp() / std::f64::consts::TAU.sqrt();
    let off = f64::exp2(-50.0) / slope;
    // Far from the middle the slope is not that of the whole error.
    (place, if off < 0.01 { 2.0 * off } else { f64::INFINITY })
}

fn random_expected(
    op: &OpParameters,
    _: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (seed, dtype) = (seed(op), results[0].dtype());
    let Ok(distribution) = distribution(op, dtype) else {
        return vec![Vec::new()];
    };
    let element = |at: u64| match distribution {
        Distribution::Uniform { low, high } => {
            let share = fraction(dtype, seed, at, 0);
            let value = low * (1.0 - share) + high * share;
            near(dtype, value, low.abs() + high.abs(), 8.0)
        }
        Distribution::Normal { mean, deviation } => {
            let pair = at - at % 2;
            let radius = (-2.0 * fraction(dtype, seed, pair, 1).ln()).sqrt();
            let turn = std::f64::consts::TAU * fraction(dtype, seed, pair + 1, 0);
            let part = if at.is_multiple_of(2) {
                turn.cos()
            } else {
                turn.sin()
            };
            let value = (deviation * radius).mul_add(part, mean);
            near(dtype, value, mean.abs() + deviation.abs() * radius, 32.0)
        }
        Distribution::TruncatedNormal {
            mean,
            deviation,
            low,
            high,
        } => {
            let share = match dtype {
                Dtype::F64 => ((half(seed, at) >> 12) as f64 + 0.5) * (-52f64).exp2(),
                _ => (f64::from(word(seed, at) >> 8) + 0.5) * (-24f64).exp2(),
            };
            let [before, until] = [low, high].map(|end| normal_cdf((end - mean) / deviation));
            let (place, off) = normal_place(before + share * (until - before));
            let value = deviation.mul_add(place, mean).clamp(low, high);
            let magnitude = mean.abs() + deviation * place.abs();
            let error = deviation * off + 32.0 * f64::EPSILON * magnitude;
            stored(dtype, value, error)
        }
        Distribution::Exponential { rate } => {
            let value = -fraction(dtype, seed, at, 1).ln() / rate;
            near(dtype, value, value.abs(), 16.0)
        }
        Distribution::Bernoulli { chance } => {
            let is_one = f64::from(word(seed, at)) * (-32f64).exp2() < chance;
            (f64::from(u8::from(is_one)), 0.0)
        }
        Distribution::Integers { low, range } => {
            let above = (u128::from(half(seed, at)) * u128::from(range)) >> 64;
            ((i128::from(low) + above as i128) as f64, 0.0)
        }
    };
    vec![(0..results[0].len()).map(element).collect()]
}

fn dropout_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    check_seed(op)?;
    chance(op)?;
    let shape = operands[0].shape().to_vec();
    Ok(vec![
        (operands[0].dtype(), shape.clone()),
        (Dtype::Bool, shape),
    ])
}

fn dropout(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [x, out, mask] = [program.input(0), program.output(0), program.output(1)];
    random::dropout(program, [&x, &out, &mask], op.number_of("p"), seed(op))
}

fn dropout_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (seed, chance, dtype) = (seed(op), op.number_of("p"), results[0].dtype());
    let stays = |at: u64| f64::from(word(seed, at)) * (-32f64).exp2() >= chance;
    let all = 0..results[0].len();
    let values = all.clone().map(|at| match stays(at) {
        true => {
            let value = x[0].values[at as usize] / (1.0 - chance);
            near(dtype, value, value.abs(), 4.0)
        }
        false => (0.0, 0.0),
    });
    let mask = all.clone().map(|at| (f64::from(u8::from(stays(at))), 0.0));
    vec![values.collect(), mask.collect()]
}

// Places.

fn iota_results(op: &OpParameters, _: &[Layout]) -> RowResults {
    let Some(shape) = op.target_shape() else {
        return Err(Misfit::new("it has no shape", "`shape`"));
    };
    let dtype = op.target().unwrap_or(Dtype::I64);
    if dtype == Dtype::Bool {
        return Err(Misfit::new("it gives no bool", "another type for `to`"));
    }
    if !dtype.is_float() {
        whole_number(op, "start")?;
        whole_number(op, "step")?;
    }
    Ok(vec![(dtype, shape.to_vec())])
}

fn iota(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let out = program.output(0);
    place::number(program, &out, op.number_of("start"), op.number_of("step"));
    Ok(())
}

fn iota_expected(
    op: &OpParameters,
    _: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (start, step, dtype) = (
        op.number_of("start"),
        op.number_of("step"),
        results[0].dtype(),
    );
    let element = |at: u64| {
        if dtype.is_float() {
            let value = step.mul_add(at as f64, start);
            return near(dtype, value, value.abs(), 2.0);
        }
        let width = 8 * dtype.bytes() as u32;
        let value = start as i128 + i128::from(at) * step as i128;
        let low = if dtype.is_signed() {
            -(1i128 << (width - 1))
        } else {
            0
        };
        (((value - low).rem_euclid(1 << width) + low) as f64, 0.0)
    };
    vec![(0..results[0].len()).map(element).collect()]
}

fn triangle_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    whole_number(op, "diagonal")?;
    match operands[0].shape() {
        [.., _, _] => Ok(vec![(operands[0].dtype(), operands[0].shape().to_vec())]),
        _ => Err(Misfit::new(
            "less than 2 dimensions",
            "a matrix, or several",
        )),
    }
}

fn triangle(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, out) = (program.input(0), program.output(0));
    let part = match op.name() {
        "tril" => TrianglePart::Lower,
        _ => TrianglePart::Upper,
    };
    place::triangle(program, &x, &out, part, op.number_of("diagonal") as i64)
}

fn triangle_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let diagonal = op.number_of("diagonal") as i64;
    let element = |(index, value): (&Vec<u64>, &f64)| {
        let [.., row, column] = index[..] else {
            return (f64::NAN, 0.0);
        };
        let above = column as i64 - row as i64;
        let stays = match op.name() {
            "tril" => above <= diagonal,
            _ => above >= diagonal,
        };
        (if stays { *value } else { 0.0 }, 0.0)
    };
    let all = indices(results[0].shape());
    vec![all.iter().zip(&x[0].values).map(element).collect()]
}

fn eye_results(op: &OpParameters, _: &[Layout]) -> RowResults {
    whole_number(op, "diagonal")?;
    match op.target_shape() {
        Some(shape @ [.., _, _]) => Ok(vec![(op.target().unwrap_or(Dtype::F32), shape.to_vec())]),
        _ => Err(Misfit::new(
            "no shape of 2 dimensions",
            "`shape`, of a matrix or several",
        )),
    }
}

fn eye(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let out = program.output(0);
    let one = out.dtype().encode(1.0);
    place::diagonal(program, &out, op.number_of("diagonal") as i64, one);
    Ok(())
}

fn eye_expected(
    op: &OpParameters,
    _: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let diagonal = op.number_of("diagonal") as i64;
    let element = |index: &Vec<u64>| match index[..] {
        [.., row, column] if column as i64 - row as i64 == diagonal => (1.0, 0.0),
        _ => (0.0, 0.0),
    };
    by_index(&results[0], element)
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Random "random_uniform" () All { "low": 0.0, "high": 1.0 } ["to", "shape"] { lists: SEED }
        "cuda.random", new_results, random, random_expected,
        "uniform from low to high, to which it may round; f32 without `to`"),
    native!(Random "random_normal" () All { "mean": 0.0, "deviation": 1.0 } ["to", "shape"]
        { lists: SEED }
        "cuda.random", new_results, random, random_expected, "normal, by Box and Muller; f32 without `to`"),
    native!(Random "truncated_normal" ()
        All { "mean": 0.0, "deviation": 1.0, "low": -2.0, "high": 2.0 } ["to", "shape"] { lists: SEED }
        "cuda.random", new_results, random, random_expected,
        "normal, of which only what is from low to high is drawn, by the inverse of its function in f64; f32 without `to`"),
    native!(Random "random_exponential" () All { "rate": 1.0 } ["to", "shape"] { lists: SEED }
        "cuda.random", new_results, random, random_expected, "exponential; f32 without `to`"),
    native!(Random "bernoulli" () All { "p": 0.5 } ["to", "shape"] { lists: SEED }
        "cuda.random", new_results, random, random_expected,
        "1 with the chance p, else 0; f32 without `to`"),
    native!(Random "random_integers" () All {} ["to", "shape"]
        { lists: &[("seed", &[0]), ("subsequence", &[0]), ("bounds", &[0, 2])] }
        "cuda.random", new_results, random, random_expected,
        "whole numbers from bounds[0] to below bounds[1], whose chances differ by at most 2^-64; i64 without `to`"),
    native!(Random "dropout" ("x") Floats { "p": 0.5 } []
        { lists: SEED, results: &["out", "mask"] }
        "cuda.random", dropout_results, dropout, dropout_expected,
        "0 with the chance p, else x / (1 - p), and whether it stayed"),
    native!(Shape "iota" () All { "start": 0.0, "step": 1.0 } ["to", "shape"] {}
        "cuda.place", iota_results, iota, iota_expected,
        "start + i step by the number i in row-major order; i64 without `to`"),
    native!(Shape "tril" ("x") All { "diagonal": 0.0 } [] {}
        "cuda.place", triangle_results, triangle, triangle_expected,
        "matrices at and below a diagonal, 0 elsewhere"),
    native!(Shape "triu" ("x") All { "diagonal": 0.0 } [] {}
        "cuda.place", triangle_results, triangle, triangle_expected,
        "matrices at and above a diagonal, 0 elsewhere"),
    native!(Shape "eye" () All { "diagonal": 0.0 } ["to", "shape"] {}
        "cuda.place", eye_results, eye, eye_expected, "1 on a diagonal, 0 elsewhere; f32 without `to`"),
];

#[cfg(test)]
mod tests {
    use super::{RandomSeed, philox};

    #[test]
    fn philox_gives_the_published_words() {
        // Known answers of Random123's philox4x32 of 10 rounds: zeros, ones, digits of pi.
        let zero = RandomSeed { seed: 0, stream: 0 };
        let words = [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
        assert_eq!(philox(0, zero), words);
        let ones = RandomSeed {
            seed: u64::MAX,
            stream: u64::MAX,
        };
        let words = [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd];
        assert_eq!(philox(u64::MAX, ones), words);
        let pi = RandomSeed {
            seed: 0x299f_31d0_a409_3822,
            stream: 0x0370_7344_1319_8a2e,
        };
        let words = [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1];
        assert_eq!(philox(0x85a3_08d3_243f_6a88, pi), words);
    }
}
