//! Elementary functions of `f32`, composed of existing instructions.
//!
//! Each has one rounded argument reduction and a polynomial, or one approximate instruction
//! with a known error; none uses a table or branches. Polynomials were fitted by us
//! (Lawson's reweighted least squares in f64); errors are in units of the last place, measured
//! over all exponents on an H200 by `crates/cuda/tests/math.rs`.

use super::reg::Reg;

impl<'k> Reg<'k, f32> {
    /// `e^self` within 4 ulp: `2^(self * log2 e)`, corrected for what rounding the
    /// exponent loses.
    ///
    /// Overflow gives infinity, underflow gives subnormals and zero, NaN stays.
    #[must_use]
    pub fn exp(self) -> Reg<'k, f32> {
        const LOG2_E: f32 = std::f32::consts::LOG2_E;
        const LOG2_E_REST: f32 = (std::f64::consts::LOG2_E - LOG2_E as f64) as f32;
        // Beyond these the result is 0 or infinity, and the correction would meet inf - inf.
        let x = self.max_nan(-120.0).min_nan(100.0);
        let exponent = x * LOG2_E;
        let lost = x.mul_add(LOG2_E, -exponent);
        let lost = x.mul_add(LOG2_E_REST, lost);
        let correction = lost.mul_add(std::f32::consts::LN_2, 1.0);
        exponent.exp2_approx() * correction
    }

    /// Natural logarithm within 2 ulp: `ln(2^e m) = e ln 2 + ln m` with `2/3 <= m < 4/3`.
    ///
    /// Zero gives -inf, negative numbers and NaN give NaN, infinity stays.
    #[must_use]
    pub fn ln(self) -> Reg<'k, f32> {
        const TWO_THIRDS: i32 = 0x3f2a_aaab;
        let k = self.kernel();
        // Subnormals have no exponent to take.
        let tiny = self.lt(f32::MIN_POSITIVE);
        let x = tiny.select(self * 8_388_608.0, self);
        let bits = x.bitcast::<i32>();
        let exponent = (bits - TWO_THIRDS) >> 23;
        let f = (bits - (exponent << 23)).bitcast::<f32>() - 1.0;
        let exponent = exponent.to::<f32>() + tiny.select(k.value(-23.0), 0.0);
        let cubic = polynomial(f, &LN);
        let square = f * f;
        // f - f^2/2 + f^3 P(f), smallest first.
        let low = square * (f * cubic - 0.5);
        let low = exponent.mul_add(LN_2_LO, low);
        let result = exponent.mul_add(LN_2_HI, f + low);
        let result = self.equals(0.0).select(f32::NEG_INFINITY, result);
        let result = self.equals(f32::INFINITY).select(f32::INFINITY, result);
        self.ge(0.0).select(result, f32::NAN)
    }

    /// Hyperbolic tangent within 3 ulp.
    #[must_use]
    pub fn tanh(self) -> Reg<'k, f32> {
        let x = self.abs();
        let square = self * self;
        let near = (self * square).mul_add(polynomial(square, &TANH), self);
        let far = ((x * 2.0).exp() + 1.0)
            .recip()
            .mul_add(-2.0, 1.0)
            .copysign(self);
        // NaN is not below, and passes through exp.
        x.lt(0.6).select(near, far)
    }

    /// `1 / (1 + e^-self)` within 5 ulp; below -87 the relative error is that of `e^self`, or
    /// zero.
    #[must_use]
    pub fn sigmoid(self) -> Reg<'k, f32> {
        // Of the two forms the one with an exponential that does not overflow.
        let e = (-self.abs()).exp();
        let numerator = self.lt(0.0).select(e, 1.0);
        numerator / (e + 1.0)
    }

    /// The error function within 4 ulp.
    #[must_use]
    pub fn erf(self) -> Reg<'k, f32> {
        let x = self.abs();
        let near = self * polynomial(self * self, &ERF);
        let capped = x.min_nan(4.0);
        let far = (1.0 - polynomial(capped, &LOG2_ERFC).exp2_approx()).copysign(self);
        x.lt(1.0).select(near, far)
    }
}

// ln 2 in two parts: the first ends in nine zero bits, so that its product with an exponent is
// exact.
const LN_2_HI: f32 = f32::from_bits(0x3f31_7200);
const LN_2_LO: f32 = (std::f64::consts::LN_2 - LN_2_HI as f64) as f32;

/// (ln(1 + f) - f + f^2/2) / f^3 for |f| <= 1/3.
const LN: [f32; 8] = [
    0.333_332_27,
    -0.249_996_89,
    0.200_099_78,
    -0.166_855_74,
    0.140_109_85,
    -0.121_129_8,
    0.139_660_05,
    -0.132_030_37,
];
/// (tanh(x) - x) / x^3 as a function of x^2, for x <= 0.6.
const TANH: [f32; 5] = [
    -0.333_333,
    0.133_319_59,
    -0.053_786_68,
    0.020_805_378,
    -0.005_905_860_6,
];
/// erf(x) / x as a function of x^2, for x <= 1.
const ERF: [f32; 8] = [
    std::f32::consts::FRAC_2_SQRT_PI,
    -0.376_126_38,
    0.112_837_83,
    -0.026_865_445,
    0.005_221_075,
    -0.000_848_471_1,
    0.000_112_705_42,
    -0.000_009_680_130_5,
];
/// log2(1 - erf(x)) for 1 <= x <= 4.
const LOG2_ERFC: [f32; 8] = [
    0.000_271_284_72,
    -1.629_637_2,
    -0.913_543_2,
    -0.156_414_94,
    0.036_367_826,
    -0.006_065_900_4,
    0.000_636_713_8,
    -0.000_031_287_513,
];

/// By Horner's rule, fused.
fn polynomial<'k>(x: Reg<'k, f32>, coefficients: &[f32]) -> Reg<'k, f32> {
    let k = x.kernel();
    match coefficients {
        [] => k.value(0.0),
        [rest @ .., last] => rest
            .iter()
            .rev()
            .fold(k.value(*last), |sum, &c| sum.mul_add(x, c)),
    }
}
