//! Rows of functions of elements by CUDA's mathematical functions.
//!
//! Bounds are the largest errors that the CUDA C++ Programming Guide gives for them, in units in
//! the last place, twice: for references are computed in f64 too.

use std::f64::consts::{FRAC_2_SQRT_PI, PI};

use fercuda_jit::TypeClass;
use fercuda_kernels::NativeProgram;
use fercuda_kernels::maths::{self, ElementFunction};
use fercuda_tensor::{Dtype, Layout};

use super::bounds::{magnitudes, stored, unit_roundoff, wrapped};
use super::scalar::erf;
use crate::arrays::{HostArray, indices};
use crate::parameters::{Misfit, OpParameters, joined};
use crate::row::OpOracle::Each;
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native, op};

fn function(op: &OpParameters) -> ElementFunction {
    match op.name() {
        "i0" => ElementFunction::Cuda("cyl_bessel_i0"),
        "remainder" => ElementFunction::Remainder,
        "floor_divide" => ElementFunction::FloorQuotient,
        "digamma" => ElementFunction::Digamma,
        "sinc" => ElementFunction::Sinc,
        "ldexp" => ElementFunction::Scaled,
        "signbit" => ElementFunction::SignBit,
        "gcd" => ElementFunction::CommonDivisor,
        "lcm" => ElementFunction::CommonMultiple,
        name => ElementFunction::Cuda(name),
    }
}

/// The shape that all operands are broadcast to.
fn common_shape(operands: &[Layout]) -> Result<Vec<u64>, Misfit> {
    let mut shape = operands[0].shape().to_vec();
    for other in &operands[1..] {
        shape = joined(&shape, other.shape()).ok_or_else(|| {
            let what = format!(
                "{:?} and {shape:?} are no shapes to broadcast",
                other.shape()
            );
            Misfit::new(what, "extents that are equal or 1, from the last one on")
        })?;
    }
    Ok(shape)
}

fn results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (shape, dtype) = (common_shape(operands)?, operands[0].dtype());
    Ok(match op.name() {
        "signbit" => vec![(Dtype::Bool, shape)],
        "frexp" => vec![(dtype, shape.clone()), (Dtype::I32, shape)],
        _ => vec![(dtype, shape)],
    })
}

fn lower(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    match (op.name(), program.operands()) {
        ("frexp", _) => {
            let exponents = program.output(1);
            maths::parts(program, &x, &to, &exponents)
        }
        (_, 1) => maths::apply(program, function(op), &[&x], &to),
        ("nextafter", _) => {
            let y = program.input(1);
            maths::next_towards(program, [&x, &y, &to])
        }
        _ => {
            let y = program.input(1);
            maths::apply(program, function(op), &[&x, &y], &to)
        }
    }
}

/// ln of the magnitude of the gamma function by Stirling's series, and the size of what it is the
/// sum of.
fn ln_gamma(x: f64) -> (f64, f64) {
    if x.is_infinite() {
        return (f64::INFINITY, 0.0);
    }
    if x <= 0.0 {
        let beyond = x - x.round();
        if beyond == 0.0 {
            return (f64::INFINITY, 0.0);
        }
        let (other, size) = ln_gamma(1.0 - x);
        let sine = (PI / (PI * beyond).sin().abs()).ln();
        return (sine - other, size + sine.abs());
    }
    let (mut product, mut up) = (0.0f64, x);
    let mut size = 0.0;
    while up < 20.0 {
        product += up.ln();
        size += up.ln().abs();
        up += 1.0;
    }
    let inverse = 1.0 / (up * up);
    let series =
        (1.0 / 12.0 - inverse * (1.0 / 360.0 - inverse * (1.0 / 1260.0 - inverse / 1680.0))) / up;
    let own = (up - 0.5) * up.ln() - up + 0.5 * (2.0 * PI).ln() + series;
    (own - product, size + 2.0 * own.abs() + up)
}

/// The derivative of ln of the gamma function, and the size of what it is the sum of.
fn psi(x: f64) -> (f64, f64) {
    if x == 0.0 {
        return (f64::INFINITY.copysign(-x), 0.0);
    }
    if x < 0.0 {
        let beyond = x - x.round();
        if beyond == 0.0 || x == f64::NEG_INFINITY {
            return (f64::NAN, 0.0);
        }
        let (other, size) = psi(1.0 - x);
        let slope = PI / (PI * beyond).tan();
        // The tangent's error is that of its argument where it is small.
        return (
            other - slope,
            size + slope.abs() + (PI / (PI * beyond).sin()).powi(2) * beyond.abs(),
        );
    }
    let (mut sum, mut size, mut up) = (0.0, 0.0, x);
    while up < 30.0 {
        sum += 1.0 / up;
        size += 1.0 / up;
        up += 1.0;
    }
    let inverse = 1.0 / (up * up);
    let series = inverse
        * (1.0 / 12.0 - inverse * (1.0 / 120.0 - inverse * (1.0 / 252.0 - inverse / 240.0)));
    let own = up.ln() - 0.5 / up - series;
    (own - sum, size + own.abs())
}

/// The inverse of the error function by Newton's steps from within.
fn inverse_erf(x: f64) -> f64 {
    if x.abs() >= 1.0 || x == 0.0 || x.is_nan() {
        return match x.abs() {
            1.0 => f64::INFINITY.copysign(x),
            0.0 => x,
            _ => f64::NAN,
        };
    }
    // The function is below its chord's slope, so steps from a larger one do not pass it.
    let (mut low, mut high) = (0.0f64, 6.5f64);
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if erf(middle) < x.abs() {
            low = middle;
        } else {
            high = middle;
        }
    }
    let slope = |y: f64| FRAC_2_SQRT_PI * (-y * y).exp();
    let y = 0.5 * (low + high);
    let y = y - (erf(y) - x.abs()) / slope(y);
    y.copysign(x)
}

/// I0 by its series of positive terms.
fn bessel_i0(x: f64) -> f64 {
    if !x.is_finite() {
        return x.abs();
    }
    let (mut term, mut sum, mut k) = (1.0f64, 1.0f64, 1.0);
    let square = x * x / 4.0;
    while term > sum * 1e-18 && sum.is_finite() {
        term *= square / (k * k);
        sum += term;
        k += 1.0;
    }
    sum
}

fn remainder(x: f64, y: f64) -> f64 {
    let rest = x % y;
    if rest != 0.0 && (rest < 0.0) != (y < 0.0) {
        rest + y
    } else {
        rest
    }
}

/// A value with units in the last place that the device's may be off, and an absolute error.
fn value_of(name: &str, dtype: Dtype, x: f64, y: f64) -> (f64, f64, f64) {
    let unit = unit_roundoff(dtype);
    let relative = |value: f64, units: f64| (value, units, 0.0);
    match name {
        "sin" => relative(x.sin(), 4.0),
        "cos" => relative(x.cos(), 4.0),
        "tan" => relative(x.tan(), 8.0),
        "asin" => relative(x.asin(), 6.0),
        "acos" => relative(x.acos(), 6.0),
        "atan" => relative(x.atan(), 6.0),
        "atan2" => relative(x.atan2(y), 6.0),
        "asinh" => relative(inverse_sinh(x), 8.0),
        // The reference takes ln of a number near 1.
        "acosh" => (x.acosh(), 10.0, 16.0 * f64::EPSILON),
        "atanh" => relative(x.abs().atanh().copysign(x), 8.0),
        "log1p" => relative(x.ln_1p(), 4.0),
        "cbrt" => relative(x.cbrt(), 4.0),
        "pow" => relative(x.powf(y), 16.0),
        "fmod" => (x % y, 0.0, 0.0),
        "copysign" => (x.copysign(y), 0.0, 0.0),
        "lgamma" => {
            let (value, size) = ln_gamma(x);
            (
                value,
                12.0,
                32.0 * unit * (if x < 0.0 { size } else { 0.0 }) + 32.0 * f64::EPSILON * size,
            )
        }
        "digamma" => {
            let (value, size) = psi(x);
            (value, 2.0, 32.0 * f64::EPSILON * size)
        }
        "erfinv" => {
            let value = inverse_erf(x);
            let slope = FRAC_2_SQRT_PI * (-value * value).exp();
            (value, 10.0, 8.0 * f64::EPSILON / slope)
        }
        "i0" => relative(bessel_i0(x), 14.0),
        "sinc" => {
            if x == 0.0 {
                return (1.0, 0.0, 0.0);
            }
            let (whole, beyond) = (x.round_ties_even(), x - x.round_ties_even());
            let sine = (PI * beyond).sin() * if whole % 2.0 == 0.0 { 1.0 } else { -1.0 };
            relative(sine / (PI * x), 12.0)
        }
        _ => relative(f64::NAN, 0.0),
    }
}

/// ln(x + root(x^2 + 1)), exact near 0 too.
fn inverse_sinh(x: f64) -> f64 {
    let size = x.abs();
    if size > 1e8 || !size.is_finite() {
        return (size.ln() + std::f64::consts::LN_2).copysign(x);
    }
    let square = size * size;
    (size + square / (1.0 + (square + 1.0).sqrt()))
        .ln_1p()
        .copysign(x)
}

fn float_element(name: &str, dtype: Dtype, x: f64, y: f64) -> ExpectedElement {
    let (value, units, error) = value_of(name, dtype, x, y);
    let unit = unit_roundoff(dtype);
    let (most, least) = magnitudes(dtype);
    if !value.is_finite() {
        return (value_or_largest(dtype, value), 0.0);
    }
    let error = error + 2.0 * units * unit * value.abs();
    if units > 0.0 && value.abs() + error >= most * (1.0 - 1e-6) {
        // Beyond the type in which it is computed, or nearly.
        let is_beyond = value.abs() - error > most * (1.0 + 1e-6);
        let infinite = value_or_largest(dtype, f64::INFINITY.copysign(value));
        return (infinite, if is_beyond { 0.0 } else { f64::INFINITY });
    }
    let error = error
        + if units > 0.0 {
            32.0 * unit * least
        } else {
            0.0
        };
    if units == 0.0 && error == 0.0 {
        return (dtype.nearest(value), 0.0);
    }
    near_largest(dtype, value, error)
}

/// Stored, but for what is near the largest number: its neighbour is infinite.
fn near_largest(dtype: Dtype, value: f64, error: f64) -> ExpectedElement {
    let most = dtype.value(dtype.encode(f64::INFINITY) - 1);
    let is_near = value.abs() + error >= most * (1.0 - 1e-3);
    match is_near && dtype.bytes() > 1 {
        true if value.abs() - error <= most * 1.01 => (value, f64::INFINITY),
        true => (dtype.nearest(value), 0.0),
        false => stored(dtype, value, error),
    }
}

/// Eight-bit floats saturate.
fn value_or_largest(dtype: Dtype, value: f64) -> f64 {
    match value.is_infinite() && dtype.bytes() == 1 {
        true => dtype.nearest(f64::MAX.copysign(value)),
        false => value,
    }
}

fn each(
    x: &[HostArray],
    result: &Layout,
    f: impl Fn(f64, f64) -> ExpectedElement,
) -> Vec<ExpectedElement> {
    let all = indices(result.shape());
    let of = |index: &Vec<u64>| {
        let first = x[0].at(index);
        let second = x.get(1).map_or(first, |y| y.at(index));
        f(first, second)
    };
    all.iter().map(of).collect()
}

fn expected(op: &OpParameters, x: &[HostArray], layouts: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let (name, dtype) = (op.name(), x[0].dtype);
    vec![each(x, &layouts[0], |x, y| {
        float_element(name, dtype, x, y)
    })]
}

/// Of what is computed of bits, or exact in f64.
fn exact_expected(
    op: &OpParameters,
    x: &[HostArray],
    layouts: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = x[0].dtype;
    match op.name() {
        "signbit" => vec![each(x, &layouts[0], |x, _| match x.is_nan() {
            true => (0.0, f64::INFINITY),
            false => (f64::from(u8::from(x.is_sign_negative())), 0.0),
        })],
        "frexp" => {
            let part = |x: f64| {
                if x == 0.0 || !x.is_finite() {
                    return (x, 0.0);
                }
                let (mut part, mut exponent) = (x, 0.0);
                while part.abs() >= 1.0 {
                    part *= 0.5;
                    exponent += 1.0;
                }
                while part.abs() < 0.5 {
                    part *= 2.0;
                    exponent -= 1.0;
                }
                (part, exponent)
            };
            vec![
                each(x, &layouts[0], |x, _| (part(x).0, 0.0)),
                each(x, &layouts[1], |x, _| (part(x).1, 0.0)),
            ]
        }
        "ldexp" => vec![each(x, &layouts[0], |x, y| {
            // In steps that f64 has.
            let mut left = y.clamp(-3000.0, 3000.0);
            let mut value = x;
            while left != 0.0 {
                let step = left.clamp(-512.0, 512.0);
                value *= step.exp2();
                left -= step;
            }
            match value == 0.0 || !value.is_finite() || x == 0.0 {
                true => (value_or_largest(dtype, value), least_of(dtype, value)),
                false => near_largest(dtype, value, least_of(dtype, value)),
            }
        })],
        "nextafter" => vec![each(x, &layouts[0], |x, y| (next_after(dtype, x, y), 0.0))],
        "remainder" | "floor_divide" if dtype.is_float() => {
            let is_quotient = op.name() == "floor_divide";
            vec![each(x, &layouts[0], |x, y| {
                float_division(dtype, x, y, is_quotient)
            })]
        }
        name => vec![each(x, &layouts[0], |x, y| {
            whole_element(name, dtype, x, y)
        })],
    }
}

/// A smallest number, to which tiny ones may be rounded in two steps.
fn least_of(dtype: Dtype, value: f64) -> f64 {
    match value.is_finite() {
        true => dtype.value(1).abs(),
        false => 0.0,
    }
}

fn next_after(dtype: Dtype, x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() || x == y {
        return if x.is_nan() { x } else { y };
    }
    let bits = dtype.encode(x.abs());
    match (x == 0.0, (y > x) == (x > 0.0)) {
        (true, _) => dtype.value(1).copysign(y),
        (false, true) => dtype.value(bits + 1).copysign(x),
        (false, false) => dtype.value(bits - 1).copysign(x),
    }
}

fn float_division(dtype: Dtype, x: f64, y: f64, is_quotient: bool) -> ExpectedElement {
    let unit = unit_roundoff(dtype);
    if !is_quotient {
        let value = remainder(x, y);
        return match value.is_finite() {
            true => stored(dtype, value, 4.0 * unit * value.abs()),
            false => (value_or_largest(dtype, value), 0.0),
        };
    }
    if y == 0.0 || !x.is_finite() || !y.is_finite() {
        let value = match y == 0.0 {
            true => x / y,
            // Of infinite ones the remainder decides.
            false => return (x / y, f64::INFINITY),
        };
        return (value_or_largest(dtype, value), 0.0);
    }
    let rest = x % y;
    let down = if rest != 0.0 && (rest < 0.0) != (y < 0.0) {
        1.0
    } else {
        0.0
    };
    let value = ((x - rest) / y - down).round_ties_even();
    let (most, _) = magnitudes(dtype);
    if value.abs() >= most * (1.0 - 1e-3) {
        return (value, f64::INFINITY);
    }
    // Small ones are exact.
    match value.abs() < 0.125 / unit {
        true => near_largest(dtype, value, 0.0),
        false => near_largest(dtype, value, 8.0 * unit * value.abs()),
    }
}

fn whole_element(name: &str, dtype: Dtype, x: f64, y: f64) -> ExpectedElement {
    let value = match name {
        "remainder" if y == 0.0 => 0.0,
        "remainder" => remainder(x, y),
        "floor_divide" if y == 0.0 => 0.0,
        "floor_divide" => {
            let rest = x % y;
            let down = if rest != 0.0 && (rest < 0.0) != (y < 0.0) {
                1.0
            } else {
                0.0
            };
            (x - rest) / y - down
        }
        _ => {
            let (mut a, mut b) = (x.abs(), y.abs());
            while b != 0.0 {
                (a, b) = (b, a % b);
            }
            match name {
                "gcd" => a,
                _ if a == 0.0 => 0.0,
                _ => x.abs() / a * y.abs(),
            }
        }
    };
    (wrapped(dtype, value), 0.0)
}

const EXPONENT: &[(&str, TypeClass)] = &[("exponent", TypeClass::Integers)];

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Arithmetic "sin" ("x") Floats {} [] {} "cuda.maths", results, lower, expected, "sine"),
    native!(Arithmetic "cos" ("x") Floats {} [] {} "cuda.maths", results, lower, expected, "cosine"),
    native!(Arithmetic "tan" ("x") Floats {} [] {} "cuda.maths", results, lower, expected, "tangent"),
    native!(Arithmetic "asin" ("x") Floats {} [] {} "cuda.maths", results, lower, expected,
        "inverse of the sine; NaN beyond 1"),
    native!(Arithmetic "acos" ("x") Floats {} [] {} "cuda.maths", results, lower, expected,
        "inverse of the cosine; NaN beyond 1"),
    native!(Arithmetic "atan" ("x") Floats {} [] {} "cuda.maths", results, lower, expected,
        "inverse of the tangent"),
    native!(Arithmetic "atan2" ("y", "x") Floats {} [] {} "cuda.maths", results, lower, expected,
        "angle of the point (x, y) from the first axis"),
    native!(Arithmetic "asinh" ("x") Floats {} [] {} "cuda.maths", results, lower, expected,
        "inverse of the hyperbolic sine"),
    native!(Arithmetic "acosh" ("x") Floats {} [] {} "cuda.maths", results, lower, expected,
        "inverse of the hyperbolic cosine; NaN below 1"),
    native!(Arithmetic "atanh" ("x") Floats {} [] {} "cuda.maths", results, lower, expected,
        "inverse of the hyperbolic tangent; NaN beyond 1"),
    native!(Arithmetic "log1p" ("x") Floats {} [] {} "cuda.maths", results, lower, expected,
        "ln(1 + x), exact near 0 too"),
    native!(Arithmetic "cbrt" ("x") Floats {} [] {} "cuda.maths", results, lower, expected,
        "cube root"),
    native!(Arithmetic "pow" ("x", "y") Floats {} [] {} "cuda.maths", results, lower, expected,
        "x^y, as C's; NaN of a negative x with a y that is not whole"),
    native!(Arithmetic "fmod" ("x", "y") Floats {} [] {} "cuda.maths", results, lower, expected,
        "remainder with the sign of x, exact"),
    native!(Arithmetic "remainder" ("x", "y") Numbers {} [] {} "cuda.maths", results, lower, exact_expected,
        "remainder with the sign of y; of integers by zero 0"),
    native!(Arithmetic "floor_divide" ("x", "y") Numbers {} [] {} "cuda.maths", results, lower, exact_expected,
        "quotient down to an integer; of integers by zero 0"),
    native!(Arithmetic "lgamma" ("x") Floats {} [] {} "cuda.maths", results, lower, expected,
        "ln of the magnitude of the gamma function"),
    native!(Arithmetic "digamma" ("x") Floats {} [] {} "cuda.maths", results, lower, expected,
        "derivative of lgamma; computed in f64"),
    native!(Arithmetic "erfinv" ("x") Floats {} [] {} "cuda.maths", results, lower, expected,
        "inverse of the error function; NaN beyond 1"),
    native!(Arithmetic "i0" ("x") Floats {} [] {} "cuda.maths", results, lower, expected,
        "modified Bessel function of the first kind of order 0"),
    native!(Arithmetic "sinc" ("x") Floats {} [] {} "cuda.maths", results, lower, expected,
        "sin(pi x) / (pi x), 1 at 0"),
    native!(Arithmetic "copysign" ("x", "y") Floats {} [] {} "cuda.maths", results, lower, expected,
        "the magnitude of x with the sign of y"),
    native!(Arithmetic "signbit" ("x") Floats {} [] {} "cuda.maths", results, lower, exact_expected,
        "whether the sign is set, of -0 too"),
    native!(Arithmetic "nextafter" ("x", "y") WideFloats {} [] {} "cuda.maths", results, lower, exact_expected,
        "the next number of the type from x towards y"),
    native!(Arithmetic "frexp" ("x") Floats {} [] { results: &["out", "exponent"] }
        "cuda.maths", results, lower, exact_expected,
        "a number from a half to below 1, and the power of 2 that makes x of it, of i32"),
    native!(Arithmetic "ldexp" ("x", "exponent") Floats {} [] { typed: EXPONENT }
        "cuda.maths", results, lower, exact_expected, "x times 2 to an exponent"),
    native!(Arithmetic "gcd" ("x", "y") Integers {} [] {} "cuda.maths", results, lower, exact_expected,
        "largest common divisor of the magnitudes"),
    native!(Arithmetic "lcm" ("x", "y") Integers {} [] {} "cuda.maths", results, lower, exact_expected,
        "least common multiple of the magnitudes; wraps"),
    op!(Arithmetic "shift_left" ("x", "y") Integers {} "x << y",
        Each(|x, _| if (0.0..64.0).contains(&x[1]) { x[0] * x[1].exp2() } else { 0.0 }),
        "x by 2^y; 0 from the type's number of bits on and below 0"),
    op!(Arithmetic "shift_right" ("x", "y") Integers {} "x >> y",
        Each(|x, _| match (0.0..64.0).contains(&x[1]) {
            true => (x[0] / x[1].exp2()).floor(),
            false => if x[0] < 0.0 { -1.0 } else { 0.0 },
        }), "x by 2^y down to an integer; all bits its sign from the number of bits on and below 0"),
];
