//! Vectors of sums: alignment to a grid, rounding, exponents.

use std::arch::x86_64::{
    __m128i, __m256, __m256d, __m256i, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_and_si128,
    _mm_andnot_si128, _mm_blendv_epi8, _mm_cmpeq_epi16, _mm_cmpgt_epi16, _mm_movemask_epi8,
    _mm_set1_epi16, _mm_setzero_si128, _mm_slli_epi16, _mm256_add_epi32, _mm256_add_ps,
    _mm256_and_pd, _mm256_and_si256, _mm256_andnot_ps, _mm256_andnot_si256, _mm256_blendv_epi8,
    _mm256_castpd_si256, _mm256_castps256_ps128, _mm256_castsi256_pd, _mm256_castsi256_ps,
    _mm256_castsi256_si128, _mm256_cmp_pd, _mm256_cmpeq_epi32, _mm256_cmpeq_epi64,
    _mm256_cmpgt_epi32, _mm256_cvtepi32_epi64, _mm256_cvtpd_ps, _mm256_cvtph_ps, _mm256_cvtps_pd,
    _mm256_cvtps_ph, _mm256_cvttps_epi32, _mm256_extractf128_ps, _mm256_extracti128_si256,
    _mm256_fmadd_ps, _mm256_max_epi32, _mm256_movemask_epi8, _mm256_mul_pd, _mm256_mul_ps,
    _mm256_or_si256, _mm256_permute2x128_si256, _mm256_set_m128, _mm256_set1_epi32,
    _mm256_set1_epi64x, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256,
    _mm256_shuffle_epi32, _mm256_slli_epi32, _mm256_slli_epi64, _mm256_srai_epi32,
    _mm256_srli_epi32, _mm256_sub_epi32, _mm256_sub_ps, _mm256_xor_si256,
};

use super::super::dot::{DotRule, NO_TERM};
use super::elements::load8;
use super::elements::store8;

/// Sums that are accumulated as they are, whose grid is not in reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutOfReach;

/// Eight elements' grids, see [`super::super::dot`].
pub(super) struct Grid {
    /// The largest exponent of each; the smallest that a grid has where all terms are zero.
    top: __m256i,
    /// Units in one.
    scale: __m256,
    rule: DotRule,
}

impl Grid {
    /// Grids below these largest exponents.
    ///
    /// # Errors
    /// A product or a sum may leave the range of normal f32.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn of(top: __m256i, rule: DotRule) -> Result<Grid, OutOfReach> {
        let at = |x: i32| _mm256_set1_epi32(x);
        let empty = _mm256_cmpgt_epi32(at(-1000), top);
        // Without a term any grid will do.
        let top = _mm256_andnot_si256(empty, top);
        let top = _mm256_max_epi32(top, at(rule.floor));
        let far = _mm256_or_si256(
            _mm256_cmpgt_epi32(at(LOWEST_TOP), top),
            _mm256_cmpgt_epi32(top, at(HIGHEST_TOP)),
        );
        if _mm256_movemask_epi8(far) != 0 {
            return Err(OutOfReach);
        }
        let field = _mm256_sub_epi32(at(rule.grid_bits + 127), top);
        Ok(Grid {
            top,
            scale: _mm256_castsi256_ps(_mm256_slli_epi32::<23>(field)),
            rule,
        })
    }

    /// Values in whole units, cut.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn units(&self, values: __m256) -> __m256i {
        _mm256_cvttps_epi32(_mm256_mul_ps(values, self.scale))
    }

    /// Totals of units as the results that they are rounded to.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn results(&self, total: [__m256d; 2]) -> __m256 {
        let field = _mm256_add_epi32(self.top, _mm256_set1_epi32(1023 - self.rule.grid_bits));
        let unit = |field: __m128i| {
            _mm256_castsi256_pd(_mm256_slli_epi64::<52>(_mm256_cvtepi32_epi64(field)))
        };
        let low = unit(_mm256_castsi256_si128(field));
        let high = unit(_mm256_extracti128_si256::<1>(field));
        if self.rule.half {
            let halves =
                rounded_to_halves(_mm256_mul_pd(total[0], low), _mm256_mul_pd(total[1], high));
            // Adding a zero makes of -0 a +0.
            return _mm256_add_ps(_mm256_cvtph_ps(halves), _mm256_setzero_ps());
        }
        let kept = _mm256_castsi256_pd(_mm256_set1_epi64x(!0 << (52 - self.rule.fraction)));
        let value = |total: __m256d, unit: __m256d| {
            _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_and_pd(total, kept), unit))
        };
        _mm256_set_m128(value(total[1], high), value(total[0], low))
    }
}

/// Largest exponents of terms between which all that counts is in range: a unit of the grid is a
/// normal f32 and what is smaller than one is zero on it; no product overflows.
const LOWEST_TOP: i32 = -100;
const HIGHEST_TOP: i32 = 125;
/// The bits of an f64 below the 24 leading ones.
const LOW_BITS: i64 = 0x1fff_ffff;

/// Exponents of finite elements whose format has none below `lowest`.
///
/// # Errors
/// One is not finite.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn exponents(
    values: &[[u32; 8]],
    lowest: i32,
    out: &mut [[u32; 8]],
) -> Result<(), OutOfReach> {
    let mut special = _mm256_setzero_si256();
    let none = _mm256_setzero_si256();
    for (v, out) in values.iter().zip(out) {
        let magnitude = _mm256_and_si256(load8(v), _mm256_set1_epi32(0x7fff_ffff));
        let field = _mm256_srli_epi32::<23>(magnitude);
        let zero = _mm256_cmpeq_epi32(magnitude, none);
        let infinite = _mm256_cmpeq_epi32(field, _mm256_set1_epi32(255));
        special = _mm256_or_si256(special, infinite);
        let e = _mm256_sub_epi32(field, _mm256_set1_epi32(127));
        let e = _mm256_max_epi32(e, _mm256_set1_epi32(lowest));
        store8(out, _mm256_blendv_epi8(e, _mm256_set1_epi32(NO_TERM), zero));
    }
    if _mm256_movemask_epi8(special) == 0 {
        Ok(())
    } else {
        Err(OutOfReach)
    }
}

/// The largest of some exponents, in all of a vector.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn largest_of(exponents: &[[u32; 8]]) -> __m256i {
    let none = _mm256_set1_epi32(NO_TERM);
    let eight = exponents
        .iter()
        .fold(none, |top, e| _mm256_max_epi32(top, load8(e)));
    let four = _mm256_max_epi32(eight, _mm256_permute2x128_si256::<1>(eight, eight));
    let two = _mm256_max_epi32(four, _mm256_shuffle_epi32::<0b01_00_11_10>(four));
    _mm256_max_epi32(two, _mm256_shuffle_epi32::<0b10_11_00_01>(two))
}

/// `after`, the sum of two, clamped where it has overflowed.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn saturated(before: __m256i, more: __m256i, after: __m256i) -> __m256i {
    let over = _mm256_and_si256(
        _mm256_xor_si256(before, after),
        _mm256_xor_si256(more, after),
    );
    let bound = _mm256_xor_si256(_mm256_srai_epi32::<31>(before), _mm256_set1_epi32(i32::MAX));
    _mm256_blendv_epi8(after, bound, _mm256_srai_epi32::<31>(over))
}

/// Eight f32 as f64.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn doubles(values: __m256i) -> [__m256d; 2] {
    let values = _mm256_castsi256_ps(values);
    [
        _mm256_cvtps_pd(_mm256_castps256_ps128(values)),
        _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(values)),
    ]
}

/// Eight f64 rounded to f16 once; a NaN becomes the canonical one.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn rounded_to_halves(low: __m256d, high: __m256d) -> __m128i {
    // Rounded to odd at 24 bits first: the second rounding is then the only one.
    let odd = |x: __m256d| {
        let bits = _mm256_castpd_si256(x);
        let rest = _mm256_and_si256(bits, _mm256_set1_epi64x(LOW_BITS));
        let exact = _mm256_cmpeq_epi64(rest, _mm256_setzero_si256());
        let sticky = _mm256_andnot_si256(exact, _mm256_set1_epi64x(LOW_BITS + 1));
        let kept = _mm256_andnot_si256(_mm256_set1_epi64x(LOW_BITS), bits);
        let nan = _mm256_castpd_si256(_mm256_cmp_pd::<_CMP_UNORD_Q>(x, x));
        let bits = _mm256_or_si256(_mm256_or_si256(kept, sticky), nan);
        _mm256_cvtpd_ps(_mm256_castsi256_pd(bits))
    };
    let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_set_m128(odd(high), odd(low)));
    let magnitude = _mm_and_si128(halves, _mm_set1_epi16(0x7fff));
    let nan = _mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7c00));
    _mm_blendv_epi8(halves, _mm_set1_epi16(0x7fff), nan)
}

/// Sums rounded to f16 if they do not depend on what the terms lose on a grid below `top` or lower.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn safe_halves(sums: [__m256d; 2], top: __m256i, rule: DotRule) -> Option<__m128i> {
    // 16 products and C lose less than a unit each. The rest of the bound is for the roundings to
    // f32 here.
    let empty = _mm256_cmpgt_epi32(_mm256_set1_epi32(-1000), top);
    let top = _mm256_max_epi32(top, _mm256_set1_epi32(rule.floor));
    let field = _mm256_add_epi32(top, _mm256_set1_epi32(127 - rule.grid_bits));
    let unit = _mm256_slli_epi32::<23>(_mm256_andnot_si256(empty, field));
    let lost = _mm256_mul_ps(_mm256_castsi256_ps(unit), _mm256_set1_ps(17.5));
    let sum = _mm256_set_m128(_mm256_cvtpd_ps(sums[1]), _mm256_cvtpd_ps(sums[0]));
    let magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0), sum);
    let error = _mm256_fmadd_ps(magnitude, _mm256_set1_ps(1.0 / 4_194_304.0), lost);
    let halves = |bound: __m256| _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bound);
    let least = halves(_mm256_sub_ps(sum, error));
    let most = halves(_mm256_add_ps(sum, error));
    let same = _mm_cmpeq_epi16(least, most);
    // A zero has no sign.
    let zero = _mm_cmpeq_epi16(_mm_slli_epi16::<1>(least), _mm_setzero_si128());
    (_mm_movemask_epi8(same) == 0xffff).then_some(_mm_andnot_si128(zero, least))
}
