//! Floating point done with integers: any small format, any rounding, exactly.
//!
//! Everything here is exact before it is rounded once. The fast paths of the ALU use the processor where
//! that gives the same bits; the rest comes here.

/// A binary floating-point format with subnormals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    /// Stored bits of the significand.
    pub(crate) frac: u32,
    pub(crate) exp: u32,
    /// e4m3 has no infinity and one NaN.
    pub(crate) infinite: bool,
}

pub(crate) const F64: Format = Format {
    frac: 52,
    exp: 11,
    infinite: true,
};
pub(crate) const F32: Format = Format {
    frac: 23,
    exp: 8,
    infinite: true,
};
pub(crate) const F16: Format = Format {
    frac: 10,
    exp: 5,
    infinite: true,
};
pub(crate) const BF16: Format = Format {
    frac: 7,
    exp: 8,
    infinite: true,
};
pub(crate) const TF32: Format = Format {
    frac: 10,
    exp: 8,
    infinite: true,
};
pub(crate) const E5M2: Format = Format {
    frac: 2,
    exp: 5,
    infinite: true,
};
pub(crate) const E4M3: Format = Format {
    frac: 3,
    exp: 4,
    infinite: false,
};

/// Rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// To nearest, ties to even.
    Near,
    /// To nearest, ties away from zero.
    Away,
    Zero,
    Down,
    Up,
}

/// A number taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parts {
    Nan,
    Inf(bool),
    /// (negative, significand, exponent of its lowest bit); the significand is not normalised; 0 is zero.
    Num(bool, u64, i32),
}

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exp - 1)) - 1
    }
    pub(crate) fn bits(self) -> u32 {
        1 + self.exp + self.frac
    }
    fn exp_max(self) -> u64 {
        (1 << self.exp) - 1
    }
    /// NVIDIA's canonical NaN: all ones but the sign.
    pub(crate) fn nan(self) -> u64 {
        match self.frac {
            52 => 0xfff8_0000_0000_0000,
            _ => (1 << (self.bits() - 1)) - 1,
        }
    }
    pub(crate) fn inf(self, negative: bool) -> u64 {
        (self.exp_max() << self.frac) | (u64::from(negative) << (self.bits() - 1))
    }
    pub(crate) fn max_finite(self, negative: bool) -> u64 {
        let m = if self.infinite {
            self.inf(false) - 1
        } else {
            self.nan() - 1
        };
        m | (u64::from(negative) << (self.bits() - 1))
    }

    pub(crate) fn unpack(self, bits: u64) -> Parts {
        let negative = (bits >> (self.bits() - 1)) & 1 != 0;
        let e = (bits >> self.frac) & self.exp_max();
        let f = bits & ((1 << self.frac) - 1);
        if e == self.exp_max() {
            if self.infinite {
                return if f == 0 {
                    Parts::Inf(negative)
                } else {
                    Parts::Nan
                };
            }
            if f == (1 << self.frac) - 1 {
                return Parts::Nan;
            }
        }
        let low = 1 - self.bias() - self.frac as i32;
        if e == 0 {
            Parts::Num(negative, f, low)
        } else {
            Parts::Num(negative, f | (1 << self.frac), low + e as i32 - 1)
        }
    }

    /// Rounds `significand * 2^exp`, plus something below its last bit if `sticky`, once.
    pub(crate) fn pack(
        self,
        negative: bool,
        significand: u128,
        exp: i32,
        sticky: bool,
        round: Round,
    ) -> u64 {
        self.pack_full(negative, significand, exp, sticky, round, false)
    }

    /// With `satfinite`, what is too large becomes the greatest finite number.
    pub(crate) fn pack_full(
        self,
        negative: bool,
        significand: u128,
        exp: i32,
        sticky: bool,
        round: Round,
        satfinite: bool,
    ) -> u64 {
        let sign = u64::from(negative) << (self.bits() - 1);
        let up_away = |round| match round {
            Round::Up => !negative,
            Round::Down => negative,
            _ => false,
        };
        if significand == 0 {
            // Only a remainder below everything: it decides directed rounding alone.
            return if sticky && up_away(round) {
                sign | 1
            } else {
                sign
            };
        }
        let low = 1 - self.bias() - self.frac as i32;
        let top = 127 - significand.leading_zeros() as i32;
        // Exponent of the result's last bit.
        let last = (exp + top - self.frac as i32).max(low);
        let drop = last - exp;
        let (mut m, half, rest) = if drop <= 0 {
            (significand << (-drop).min(127), false, sticky)
        } else if drop > 127 {
            (0, false, true)
        } else {
            let half = (significand >> (drop - 1)) & 1 != 0;
            let rest = sticky || significand & ((1 << (drop - 1)) - 1) != 0;
            (significand >> drop, half, rest)
        };
        let up = match round {
            Round::Near => half && (rest || m & 1 != 0),
            Round::Away => half,
            Round::Zero => false,
            Round::Up | Round::Down => (half || rest) && up_away(round),
        };
        m += u128::from(up);
        // A carry into the next binade, or from subnormal to normal, falls out of the encoding.
        let biased = (last - low) as u64;
        let bits = if m >> self.frac == 0 {
            m as u64
        } else {
            (biased << self.frac) + m as u64
        };
        let limit = self.max_finite(false);
        if bits > limit {
            let to_max = match round {
                Round::Near | Round::Away => false,
                Round::Zero => true,
                Round::Up => negative,
                Round::Down => !negative,
            };
            return if to_max || satfinite {
                limit | sign
            } else if self.infinite {
                self.inf(negative)
            } else {
                self.nan() | sign
            };
        }
        sign | bits
    }

    /// Exact conversion from `from`, rounded once.
    pub(crate) fn convert(self, from: Format, bits: u64, round: Round, satfinite: bool) -> u64 {
        match from.unpack(bits) {
            Parts::Nan => self.nan(),
            Parts::Inf(n) => {
                if satfinite {
                    self.max_finite(n)
                } else if self.infinite {
                    self.inf(n)
                } else {
                    self.nan() | (u64::from(n) << (self.bits() - 1))
                }
            }
            Parts::Num(n, m, e) => self.pack_full(n, u128::from(m), e, false, round, satfinite),
        }
    }

    pub(crate) fn add(self, a: u64, b: u64, round: Round) -> u64 {
        self.fma(a, self.one(), b, round)
    }

    fn one(self) -> u64 {
        (self.bias() as u64) << self.frac
    }

    pub(crate) fn mul(self, a: u64, b: u64, round: Round) -> u64 {
        match (self.unpack(a), self.unpack(b)) {
            (Parts::Nan, _) | (_, Parts::Nan) => self.nan(),
            (Parts::Inf(_), Parts::Num(_, 0, _)) | (Parts::Num(_, 0, _), Parts::Inf(_)) => {
                self.nan()
            }
            (Parts::Inf(n), Parts::Inf(p) | Parts::Num(p, ..))
            | (Parts::Num(p, ..), Parts::Inf(n)) => self.inf(n ^ p),
            (Parts::Num(n, x, e), Parts::Num(p, y, f)) => {
                self.pack(n ^ p, u128::from(x) * u128::from(y), e + f, false, round)
            }
        }
    }

    pub(crate) fn fma(self, a: u64, b: u64, c: u64, round: Round) -> u64 {
        let (pa, pb, pc) = (self.unpack(a), self.unpack(b), self.unpack(c));
        if matches!(pa, Parts::Nan) || matches!(pb, Parts::Nan) || matches!(pc, Parts::Nan) {
            return self.nan();
        }
        let product = match (pa, pb) {
            (Parts::Num(n, x, e), Parts::Num(p, y, f)) => {
                Ok((n ^ p, u128::from(x) * u128::from(y), e + f))
            }
            (Parts::Inf(_), Parts::Num(_, 0, _)) | (Parts::Num(_, 0, _), Parts::Inf(_)) => {
                return self.nan();
            }
            (Parts::Inf(n), Parts::Inf(p) | Parts::Num(p, ..))
            | (Parts::Num(p, ..), Parts::Inf(n)) => Err(n ^ p),
            _ => return self.nan(),
        };
        match (product, pc) {
            (Err(n), Parts::Inf(p)) if n != p => self.nan(),
            (Err(n), _) => self.inf(n),
            (Ok(_), Parts::Inf(p)) => self.inf(p),
            (Ok((n, x, e)), Parts::Num(p, y, f)) => {
                let (negative, m, exp, sticky) = add_exact((n, x, e), (p, u128::from(y), f), round);
                self.pack(negative, m, exp, sticky, round)
            }
            (Ok(_), Parts::Nan) => self.nan(),
        }
    }

    pub(crate) fn div(self, a: u64, b: u64, round: Round) -> u64 {
        match (self.unpack(a), self.unpack(b)) {
            (Parts::Nan, _) | (_, Parts::Nan) | (Parts::Inf(_), Parts::Inf(_)) => self.nan(),
            (Parts::Num(_, 0, _), Parts::Num(_, 0, _)) => self.nan(),
            (Parts::Inf(n), Parts::Num(p, ..)) => self.inf(n ^ p),
            (Parts::Num(n, ..), Parts::Inf(p)) => self.pack(n ^ p, 0, 0, false, Round::Zero),
            (Parts::Num(n, ..), Parts::Num(p, 0, _)) => self.inf(n ^ p),
            (Parts::Num(n, x, e), Parts::Num(p, y, f)) => {
                if x == 0 {
                    return self.pack(n ^ p, 0, 0, false, Round::Zero);
                }
                // At least 64 significant bits of quotient.
                let (xs, ys) = (x.leading_zeros(), y.leading_zeros());
                let wide = u128::from(x << xs) << 63;
                let d = u128::from(y << ys);
                let (q, r) = (wide / d, wide % d);
                self.pack(n ^ p, q, e - xs as i32 - 63 - f + ys as i32, r != 0, round)
            }
        }
    }

    pub(crate) fn sqrt(self, a: u64, round: Round) -> u64 {
        match self.unpack(a) {
            Parts::Num(_, 0, _) => a,
            Parts::Nan | Parts::Inf(true) | Parts::Num(true, ..) => self.nan(),
            Parts::Inf(false) => a,
            Parts::Num(false, x, e) => {
                let mut shift = u128::from(x).leading_zeros() as i32 - 1;
                if (e - shift) % 2 != 0 {
                    shift -= 1;
                }
                let m = u128::from(x) << shift;
                let r = m.isqrt();
                self.pack(false, r, (e - shift) / 2, r * r != m, round)
            }
        }
    }
}

/// Exact sum of two numbers, as (sign, significand, exponent, sticky).
fn add_exact(a: (bool, u128, i32), b: (bool, u128, i32), round: Round) -> (bool, u128, i32, bool) {
    let zero_sign = if a.0 == b.0 {
        a.0
    } else {
        round == Round::Down
    };
    match (a.1, b.1) {
        (0, 0) => return (zero_sign, 0, 0, false),
        (0, _) => return (b.0, b.1, b.2, false),
        (_, 0) => return (a.0, a.1, a.2, false),
        _ => {}
    }
    // Highest bit at 125, so that a sum fits and a cancellation loses nothing.
    let norm = |x: (bool, u128, i32)| {
        let s = x.1.leading_zeros() as i32 - 2;
        (x.0, x.1 << s, x.2 - s)
    };
    let (mut big, mut small) = (norm(a), norm(b));
    if (small.2, small.1) > (big.2, big.1) {
        std::mem::swap(&mut big, &mut small);
    }
    let d = (big.2 - small.2) as u32;
    let (m, sticky) = if d > 127 {
        (0, true)
    } else {
        (small.1 >> d, small.1 & ((1u128 << d) - 1) != 0)
    };
    if big.0 == small.0 {
        (big.0, big.1 + m, big.2, sticky)
    } else {
        let r = big.1 - m - u128::from(sticky);
        if r == 0 && !sticky {
            (zero_sign, 0, 0, false)
        } else {
            (big.0, r, big.2, sticky)
        }
    }
}

pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let e = u32::from(bits >> 10) & 31;
    let f = u32::from(bits) & 1023;
    match e {
        0 => {
            let v = f as f32 * (1.0 / 16_777_216.0);
            f32::from_bits(v.to_bits() | sign)
        }
        31 if f != 0 => f32::from_bits(0x7fff_ffff),
        31 => f32::from_bits(sign | 0x7f80_0000),
        _ => f32::from_bits(sign | ((e + 112) << 23) | (f << 13)),
    }
}

pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    let v = f32::from_bits(u32::from(bits) << 16);
    if v.is_nan() {
        f32::from_bits(0x7fff_ffff)
    } else {
        v
    }
}

/// Round to nearest even; NaN to the canonical one.
pub(crate) fn f32_to_f16(x: f32) -> u16 {
    let b = x.to_bits();
    let sign = (b >> 16) as u16 & 0x8000;
    let a = b & 0x7fff_ffff;
    if a > 0x7f80_0000 {
        return 0x7fff;
    }
    if a >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    if a < 0x3880_0000 {
        // Subnormal: adding 2^-1 * 2^-13... aligns the last bit with the processor's own rounding.
        let v = f32::from_bits(a) + 0.5;
        return sign | (v.to_bits() - 0.5f32.to_bits()) as u16;
    }
    let r = a + 0xfff + ((a >> 13) & 1);
    sign | ((r - 0x3800_0000) >> 13) as u16
}

/// Round to nearest even; NaN to the canonical one.
pub(crate) fn f32_to_bf16(x: f32) -> u16 {
    let b = x.to_bits();
    if b & 0x7fff_ffff > 0x7f80_0000 {
        return 0x7fff;
    }
    ((b + 0x7fff + ((b >> 16) & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rng(seed: &mut u64) -> u64 {
        *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn seed() -> u64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_nanos() as u64
    }

    #[test]
    fn rounding_to_nearest_agrees_with_the_processor() {
        let mut s = seed();
        let start = s;
        for _ in 0..200_000 {
            let (a, b, c) = (rng(&mut s), rng(&mut s), rng(&mut s));
            let (x, y, z) = (f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
            let same = |got: u64, want: f64| {
                f64::from_bits(got).is_nan() && want.is_nan() || got == want.to_bits()
            };
            assert!(
                same(F64.add(a, b, Round::Near), x + y),
                "seed {start}: {x:e} + {y:e}"
            );
            assert!(
                same(F64.mul(a, b, Round::Near), x * y),
                "seed {start}: {x:e} * {y:e}"
            );
            assert!(
                same(F64.div(a, b, Round::Near), x / y),
                "seed {start}: {x:e} / {y:e}"
            );
            assert!(
                same(F64.sqrt(a, Round::Near), x.sqrt()),
                "seed {start}: sqrt {x:e}"
            );
            assert!(
                same(F64.fma(a, b, c, Round::Near), x.mul_add(y, z)),
                "seed {start}: fma {x:e} {y:e} {z:e}"
            );
            let (x, y, z) = (
                f32::from_bits(a as u32),
                f32::from_bits(b as u32),
                f32::from_bits(c as u32),
            );
            let same = |got: u64, want: f32| {
                f32::from_bits(got as u32).is_nan() && want.is_nan() || got as u32 == want.to_bits()
            };
            let (a, b, c) = (
                u64::from(a as u32),
                u64::from(b as u32),
                u64::from(c as u32),
            );
            assert!(
                same(F32.fma(a, b, c, Round::Near), x.mul_add(y, z)),
                "seed {start}: fma {x:e} {y:e} {z:e}"
            );
            assert!(
                same(F32.div(a, b, Round::Near), x / y),
                "seed {start}: {x:e} / {y:e}"
            );
            let d = f64::from_bits(rng(&mut s));
            assert!(
                same(F32.convert(F64, d.to_bits(), Round::Near, false), d as f32),
                "seed {start}: {d:e} as f32"
            );
        }
    }

    #[test]
    fn directed_rounding_brackets_the_exact_value() {
        let mut s = seed();
        let start = s;
        for _ in 0..100_000 {
            let (a, b) = (u64::from(rng(&mut s) as u32), u64::from(rng(&mut s) as u32));
            let (x, y) = (
                f64::from(f32::from_bits(a as u32)),
                f64::from(f32::from_bits(b as u32)),
            );
            let exact = x * y;
            if exact.is_nan() || exact.is_infinite() {
                continue;
            }
            let f = |r| f64::from(f32::from_bits(F32.mul(a, b, r) as u32));
            assert!(
                f(Round::Down) <= exact && exact <= f(Round::Up),
                "seed {start}: {x:e} * {y:e}"
            );
            assert!(
                f(Round::Zero).abs() <= exact.abs(),
                "seed {start}: {x:e} * {y:e}"
            );
        }
    }

    #[test]
    fn halves_round_as_the_half_crate_rounds_them() {
        for bits in 0..=u16::MAX {
            let h = half::f16::from_bits(bits);
            if !h.is_nan() {
                assert_eq!(f16_to_f32(bits).to_bits(), h.to_f32().to_bits());
            }
        }
        let mut s = seed();
        let start = s;
        for _ in 0..500_000 {
            let x = f32::from_bits(rng(&mut s) as u32);
            if !x.is_nan() {
                assert_eq!(
                    f32_to_f16(x),
                    half::f16::from_f32(x).to_bits(),
                    "seed {start}: {x:e}"
                );
                assert_eq!(
                    f32_to_bf16(x),
                    half::bf16::from_f32(x).to_bits(),
                    "seed {start}: {x:e}"
                );
                assert_eq!(
                    F16.convert(F32, u64::from(x.to_bits()), Round::Near, false) as u16,
                    f32_to_f16(x),
                    "seed {start}: {x:e}"
                );
            }
        }
    }
}
