//! Dense products of matrices in vectors of eight columns, for AVX2 with FMA and F16C.
//!
//! A fragment's registers are spread once: A into rows, B into vectors of eight columns for each
//! step of the depth, C into vectors of eight columns of a row. A step is an element in floating
//! point, two elements of integers. The results are those of [`Mma::run`] bit for bit, which says
//! what they are; where a value is not in reach of f32 arithmetic, this refuses, and the caller
//! runs that one.
//!
//! Sums in f32: products of elements of at most 11 bits are exact in f32 unless their exponent
//! leaves its range. Cut to the grid of [`super::mma`] they are less than 2^27 of its units, so
//! eight of them and the accumulator are added in 32 bits, and the groups of eight in f64.
//!
//! In the layout of `mma.sync` a vector holds the even columns and then the odd ones: so the four
//! lanes of a group hold both halves as they stand in two registers.

use std::arch::x86_64::{
    __m128i, __m256, __m256d, __m256i, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_and_si128,
    _mm_blendv_epi8, _mm_cmpeq_epi16, _mm_cmpgt_epi16, _mm_loadu_si128, _mm_or_si128,
    _mm_packus_epi32, _mm_set1_epi8, _mm_set1_epi16, _mm_set1_epi32, _mm_slli_epi16,
    _mm_srli_epi16, _mm_srli_epi32, _mm_srli_si128, _mm_storeu_si128, _mm_sub_epi8,
    _mm_unpackhi_epi8, _mm_unpackhi_epi16, _mm_unpacklo_epi8, _mm_unpacklo_epi16, _mm_xor_si128,
    _mm256_add_epi32, _mm256_add_pd, _mm256_and_pd, _mm256_and_si256, _mm256_andnot_si256,
    _mm256_blendv_epi8, _mm256_blendv_ps, _mm256_castpd_si256, _mm256_castps_si256,
    _mm256_castps256_ps128, _mm256_castsi256_pd, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cmp_pd, _mm256_cmpeq_epi32, _mm256_cmpeq_epi64, _mm256_cmpgt_epi32,
    _mm256_cvtepi8_epi16, _mm256_cvtepi32_epi64, _mm256_cvtepi32_pd, _mm256_cvtepu8_epi16,
    _mm256_cvtepu16_epi32, _mm256_cvtpd_ps, _mm256_cvtph_ps, _mm256_cvtps_pd, _mm256_cvtps_ph,
    _mm256_cvttps_epi32, _mm256_extractf128_ps, _mm256_extracti128_si256, _mm256_fmadd_pd,
    _mm256_loadu_si256, _mm256_madd_epi16, _mm256_max_epi32, _mm256_movemask_epi8, _mm256_mul_pd,
    _mm256_mul_ps, _mm256_or_si256, _mm256_permute2x128_si256, _mm256_set_m128, _mm256_set_m128i,
    _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_set1_pd, _mm256_set1_ps, _mm256_setzero_pd,
    _mm256_setzero_si256, _mm256_slli_epi32, _mm256_slli_epi64, _mm256_srai_epi32,
    _mm256_srli_epi32, _mm256_storeu_si256, _mm256_sub_epi32, _mm256_unpackhi_epi32,
    _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64, _mm256_xor_si256,
};

use super::mma::{Accumulator, FragmentLayout, GRID_BITS, Mma, MmaElement, NO_TERM};
use super::registers::LANES;

/// Registers of a fragment at most.
pub(crate) const MAX_REGISTERS: usize = 8;
/// Vectors of A or B at most.
const MAX_VECTORS: usize = 64;
/// Vectors of C at most.
const MAX_SUMS: usize = 32;

/// A fragment's registers.
pub(crate) type Registers = [[u32; LANES]; MAX_REGISTERS];

/// A dense product that runs in vectors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VectorProduct<'a> {
    product: &'a Mma,
    /// Registers of A, B, C and D.
    counts: [usize; 4],
    /// Steps of the depth.
    steps: usize,
}

/// Sums that are accumulated as they are, whose grid is not in reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutOfReach;

/// Words that an element of A or B becomes: floating point one, integers a half.
fn words(element: MmaElement, elements: usize) -> usize {
    if element.is_float() {
        elements
    } else {
        elements / 2
    }
}

/// Whether elements of the type are spread here.
fn is_known(element: MmaElement) -> bool {
    !matches!(element, MmaElement::F64 | MmaElement::B1)
}

impl<'a> VectorProduct<'a> {
    /// The product in vectors, if its types and shape are such; `counts` are the registers of A,
    /// B, C and D.
    pub(crate) fn of(product: &'a Mma, counts: [u32; 4]) -> Option<Self> {
        let p = product;
        let [m, n, k] = [p.m, p.n, p.k].map(|x| x as usize);
        let counts = counts.map(|c| c as usize);
        let floats = p.a.is_float();
        let sums_fit = matches!(
            (floats, p.c, p.d),
            (
                true,
                Accumulator::F16 | Accumulator::F32,
                Accumulator::F16 | Accumulator::F32
            ) | (false, Accumulator::S32, Accumulator::S32)
        );
        if !is_known(p.a) || !is_known(p.b) || floats != p.b.is_float() || !sums_fit {
            return None;
        }
        let steps = words(p.a, k).next_multiple_of(8);
        let width = |a: Accumulator| if a == Accumulator::F16 { 2 } else { 1 };
        let sizes = [
            m * k * p.a.bits() as usize,
            k * n * p.b.bits() as usize,
            m * n * 32 / width(p.c),
            m * n * 32 / width(p.d),
        ];
        // Registers that a fragment needs. Those of `wmma` may hold it several times.
        let needed = sizes.map(|bits| bits / 32 / LANES);
        let fit = counts.iter().zip(needed).all(|(&have, needed)| {
            needed > 0
                && have <= MAX_REGISTERS
                && match p.layout {
                    FragmentLayout::Mma => have == needed,
                    FragmentLayout::Wmma => have.is_multiple_of(needed),
                }
        });
        let shape_fits = match p.layout {
            FragmentLayout::Mma => n == 8 && matches!(m, 8 | 16),
            FragmentLayout::Wmma => n.is_multiple_of(8) && steps == words(p.a, k),
        };
        let small = m * steps <= 8 * MAX_VECTORS && steps * n <= 8 * MAX_VECTORS;
        (fit && shape_fits && small && m * n <= 8 * MAX_SUMS).then_some(VectorProduct {
            product,
            counts,
            steps,
        })
    }

    /// D = A * B + C on whole registers.
    ///
    /// # Errors
    /// A value or a sum is outside of what f32 arithmetic holds exactly; `d` is then unspecified.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn run(
        &self,
        a: &Registers,
        b: &Registers,
        c: &Registers,
        d: &mut Registers,
    ) -> Result<(), OutOfReach> {
        let mut left = [[0u32; 8]; MAX_VECTORS];
        let mut right = [[0u32; 8]; MAX_VECTORS];
        let mut sums = [[0u32; 8]; MAX_SUMS];
        self.spread_left(a, &mut left);
        self.spread_right(b, &mut right);
        self.read_sums(c, &mut sums);
        match self.product.d {
            Accumulator::F32 => self.add_on_grid(&left, &right, &mut sums)?,
            Accumulator::F16 => self.add_halves(&left, &right, &mut sums),
            _ => self.add_integers(&left, &right, &mut sums),
        }
        self.write_sums(&sums, d);
        Ok(())
    }

    /// Vectors of a row of C.
    fn across(&self) -> usize {
        self.product.n as usize / 8
    }

    fn rows(&self) -> usize {
        self.product.m as usize
    }

    // ---- fragments from and to registers --------------------------------------------------

    #[target_feature(enable = "avx2,fma,f16c")]
    fn spread_left(&self, a: &Registers, left: &mut [[u32; 8]; MAX_VECTORS]) {
        let (p, a) = (self.product, &a[..self.counts[0]]);
        match p.layout {
            FragmentLayout::Mma => spread_rows(p.a, a, self.rows() / 8, self.steps, left),
            FragmentLayout::Wmma => spread_flat(p.a, self.last(a, p.m * p.k * p.a.bits()), left),
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn spread_right(&self, b: &Registers, right: &mut [[u32; 8]; MAX_VECTORS]) {
        let (p, b) = (self.product, &b[..self.counts[1]]);
        let mut spread = [[0u32; 8]; MAX_VECTORS];
        match p.layout {
            FragmentLayout::Mma => {
                // Columns, as the rows of A are.
                spread_rows(p.b, b, 1, self.steps, &mut spread);
                let each = self.steps / 8;
                for (n, out) in right
                    .as_chunks_mut::<8>()
                    .0
                    .iter_mut()
                    .enumerate()
                    .take(each)
                {
                    let column = |c: usize| load8(&spread[c * each + n]);
                    transpose([0, 2, 4, 6, 1, 3, 5, 7].map(column), out);
                }
            }
            FragmentLayout::Wmma => {
                let b = self.last(b, p.k * p.n * p.b.bits());
                if p.b.is_float() {
                    return spread_flat(p.b, b, right);
                }
                spread_flat(p.b, b, &mut spread);
                // Two rows of B become pairs.
                let halves = spread.as_flattened().as_chunks::<4>().0;
                let across = self.across();
                for (step, out) in right.chunks_exact_mut(across).enumerate().take(self.steps) {
                    for (n, out) in out.iter_mut().enumerate() {
                        let upper = load4(&halves[2 * step * across + n]);
                        let lower = load4(&halves[(2 * step + 1) * across + n]);
                        let pairs = _mm256_set_m128i(
                            _mm_unpackhi_epi16(upper, lower),
                            _mm_unpacklo_epi16(upper, lower),
                        );
                        store8(out, pairs);
                    }
                }
            }
        }
    }

    /// The registers of the last of the copies that a fragment of `bits` is.
    fn last<'r>(&self, registers: &'r [[u32; LANES]], bits: u32) -> &'r [[u32; LANES]] {
        &registers[registers.len() - bits as usize / 32 / LANES..]
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn read_sums(&self, c: &Registers, sums: &mut [[u32; 8]; MAX_SUMS]) {
        let (p, c) = (self.product, &c[..self.counts[2]]);
        let halves = p.c == Accumulator::F16;
        match (p.layout, halves) {
            (FragmentLayout::Mma, true) => {
                for (sums, c) in sums.as_chunks_mut::<8>().0.iter_mut().zip(c) {
                    for (sum, c) in sums.iter_mut().zip(c.as_chunks().0) {
                        let w = load4(c);
                        let even = _mm_and_si128(w, _mm_set1_epi32(0xffff));
                        let packed = _mm_packus_epi32(even, _mm_srli_epi32::<16>(w));
                        store8(sum, _mm256_castps_si256(_mm256_cvtph_ps(packed)));
                    }
                }
            }
            (FragmentLayout::Mma, false) => {
                let pairs = c.as_chunks::<2>().0;
                for (sums, [even, odd]) in sums.as_chunks_mut::<8>().0.iter_mut().zip(pairs) {
                    let both = even.as_chunks().0.iter().zip(odd.as_chunks().0);
                    for (sum, (even, odd)) in sums.iter_mut().zip(both) {
                        store8(sum, _mm256_set_m128i(load4(odd), load4(even)));
                    }
                }
            }
            (FragmentLayout::Wmma, true) => {
                spread_flat(MmaElement::F16, self.last(c, p.m * p.n * 16), sums);
            }
            (FragmentLayout::Wmma, false) => deal_out(self.last(c, p.m * p.n * 32), sums),
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn write_sums(&self, sums: &[[u32; 8]; MAX_SUMS], d: &mut Registers) {
        let (p, d) = (self.product, &mut d[..self.counts[3]]);
        let halves = p.d == Accumulator::F16;
        match (p.layout, halves) {
            (FragmentLayout::Mma, true) => {
                for (sums, d) in sums.as_chunks::<8>().0.iter().zip(d) {
                    for (sum, d) in sums.iter().zip(d.as_chunks_mut().0) {
                        let even = low4(sum);
                        let odd = _mm_srli_si128::<8>(even);
                        store4(d, _mm_unpacklo_epi16(even, odd));
                    }
                }
            }
            (FragmentLayout::Mma, false) => {
                let pairs = d.as_chunks_mut::<2>().0;
                for (sums, [even, odd]) in sums.as_chunks::<8>().0.iter().zip(pairs) {
                    let both = even.as_chunks_mut().0.iter_mut().zip(odd.as_chunks_mut().0);
                    for (sum, (even, odd)) in sums.iter().zip(both) {
                        let sum = load8(sum);
                        store4(even, _mm256_castsi256_si128(sum));
                        store4(odd, _mm256_extracti128_si256::<1>(sum));
                    }
                }
            }
            (FragmentLayout::Wmma, _) => {
                // Half a vector is in use of each sum in f16.
                let mut flat = [0u32; 8 * MAX_SUMS];
                let all = sums.iter().take(self.rows() * self.across());
                let width = if halves { 4 } else { 8 };
                for (out, sum) in flat.chunks_exact_mut(width).zip(all) {
                    out.copy_from_slice(&sum[..width]);
                }
                let needed = (p.m * p.n) as usize / LANES / if halves { 2 } else { 1 };
                for (r, d) in d.iter_mut().enumerate() {
                    for (d, words) in d.iter_mut().zip(flat.chunks_exact(needed)) {
                        *d = words[r % needed];
                    }
                }
            }
        }
    }

    // ---- products -------------------------------------------------------------------------

    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_integers(
        &self,
        left: &[[u32; 8]; MAX_VECTORS],
        right: &[[u32; 8]; MAX_VECTORS],
        sums: &mut [[u32; 8]; MAX_SUMS],
    ) {
        let across = self.across();
        let rows = left.as_flattened().chunks_exact(self.steps);
        for (row, sums) in rows.zip(sums.chunks_exact_mut(across)).take(self.rows()) {
            for (n, sum) in sums.iter_mut().enumerate() {
                let mut total = _mm256_setzero_si256();
                for (x, y) in row.iter().zip(right[n..].iter().step_by(across)) {
                    let x = _mm256_set1_epi32(*x as i32);
                    total = _mm256_add_epi32(total, _mm256_madd_epi16(x, load8(y)));
                }
                let before = load8(sum);
                let after = _mm256_add_epi32(before, total);
                store8(
                    sum,
                    if self.product.saturate {
                        saturated(before, total, after)
                    } else {
                        after
                    },
                );
            }
        }
    }

    /// Chains of sums in f64, each rounded to f16, which then fill the lower half of a vector.
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_halves(
        &self,
        left: &[[u32; 8]; MAX_VECTORS],
        right: &[[u32; 8]; MAX_VECTORS],
        sums: &mut [[u32; 8]; MAX_SUMS],
    ) {
        let across = self.across();
        let mut wide = [[_mm256_setzero_pd(); 2]; MAX_VECTORS];
        for (wide, y) in wide.iter_mut().zip(right).take(self.steps * across) {
            *wide = doubles(load8(y));
        }
        let rows = left.as_flattened().chunks_exact(self.steps);
        for (row, sums) in rows.zip(sums.chunks_exact_mut(across)).take(self.rows()) {
            for (n, sum) in sums.iter_mut().enumerate() {
                let [mut low, mut high] = doubles(load8(sum));
                for (x, [y, z]) in row.iter().zip(wide[n..].iter().step_by(across)) {
                    // A product of such factors is exact: fused or not, one rounding.
                    let x = _mm256_set1_pd(f32::from_bits(*x).into());
                    low = _mm256_fmadd_pd(x, *y, low);
                    high = _mm256_fmadd_pd(x, *z, high);
                }
                let packed = rounded_to_halves(low, high);
                let [out, _] = sum.as_chunks_mut().0 else {
                    continue;
                };
                store4(out, packed);
            }
        }
    }

    /// Sums on a common grid, see [`super::mma`].
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_on_grid(
        &self,
        left: &[[u32; 8]; MAX_VECTORS],
        right: &[[u32; 8]; MAX_VECTORS],
        sums: &mut [[u32; 8]; MAX_SUMS],
    ) -> Result<(), OutOfReach> {
        let (rows, across, steps) = (self.rows(), self.across(), self.steps);
        let mut left_exponents = [[0u32; 8]; MAX_VECTORS];
        let mut right_exponents = [[0u32; 8]; MAX_VECTORS];
        let mut sum_exponents = [[0u32; 8]; MAX_SUMS];
        exponents(&left[..rows * steps / 8], &mut left_exponents)?;
        exponents(&right[..steps * across], &mut right_exponents)?;
        exponents(&sums[..rows * across], &mut sum_exponents)?;
        let each = steps / 8;
        for row in 0..rows {
            let x = &left[row * each..][..each];
            let ex = &left_exponents[row * each..][..each];
            for n in 0..across {
                let at = row * across + n;
                let mut top = load8(&sum_exponents[at]);
                for (ex, ey) in ex
                    .as_flattened()
                    .iter()
                    .zip(right_exponents[n..].iter().step_by(across))
                {
                    let e = _mm256_add_epi32(_mm256_set1_epi32(*ex as i32), load8(ey));
                    top = _mm256_max_epi32(top, e);
                }
                let grid = Grid::of(top)?;
                let before = _mm256_castsi256_ps(load8(&sums[at]));
                let mut part = grid.units(before);
                let mut total = [_mm256_setzero_pd(); 2];
                for (n8, x) in x.iter().enumerate() {
                    let ys = right[8 * n8 * across + n..].iter().step_by(across);
                    for (x, y) in x.iter().zip(ys) {
                        let y = _mm256_castsi256_ps(load8(y));
                        let product = _mm256_mul_ps(_mm256_set1_ps(f32::from_bits(*x)), y);
                        part = _mm256_add_epi32(part, grid.units(product));
                    }
                    let low = _mm256_cvtepi32_pd(_mm256_castsi256_si128(part));
                    let high = _mm256_cvtepi32_pd(_mm256_extracti128_si256::<1>(part));
                    total = [_mm256_add_pd(total[0], low), _mm256_add_pd(total[1], high)];
                    part = _mm256_setzero_si256();
                }
                store8(&mut sums[at], grid.cut(total, before));
            }
        }
        Ok(())
    }
}

/// Eight elements' grids.
struct Grid {
    /// The largest exponent of each; 0 where all terms are zero.
    top: __m256i,
    /// Where all terms are zero.
    empty: __m256i,
    /// Units in one.
    scale: __m256,
}

impl Grid {
    /// Grids below these largest exponents.
    ///
    /// # Errors
    /// A product or a sum may leave the range of normal f32.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn of(top: __m256i) -> Result<Grid, OutOfReach> {
        let at = |x: i32| _mm256_set1_epi32(x);
        let empty = _mm256_cmpgt_epi32(at(-1000), top);
        let top = _mm256_andnot_si256(empty, top);
        let far = _mm256_or_si256(
            _mm256_cmpgt_epi32(at(LOWEST_TOP), top),
            _mm256_cmpgt_epi32(top, at(HIGHEST_TOP)),
        );
        if _mm256_movemask_epi8(far) != 0 {
            return Err(OutOfReach);
        }
        let field = _mm256_sub_epi32(at(GRID_BITS + 127), top);
        Ok(Grid {
            top,
            empty,
            scale: _mm256_castsi256_ps(_mm256_slli_epi32::<23>(field)),
        })
    }

    /// Values in whole units, cut.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn units(&self, values: __m256) -> __m256i {
        _mm256_cvttps_epi32(_mm256_mul_ps(values, self.scale))
    }

    /// Totals of units, cut to 24 bits, as f32; `before` where there is no term but zeros.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn cut(&self, total: [__m256d; 2], before: __m256) -> __m256i {
        let kept = _mm256_castsi256_pd(_mm256_set1_epi64x(!LOW_BITS));
        let field = _mm256_add_epi32(self.top, _mm256_set1_epi32(1023 - GRID_BITS));
        let unit = |field: __m128i| {
            _mm256_castsi256_pd(_mm256_slli_epi64::<52>(_mm256_cvtepi32_epi64(field)))
        };
        let value = |total: __m256d, field: __m128i| {
            _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_and_pd(total, kept), unit(field)))
        };
        let low = value(total[0], _mm256_castsi256_si128(field));
        let high = value(total[1], _mm256_extracti128_si256::<1>(field));
        let sums = _mm256_set_m128(high, low);
        _mm256_castps_si256(_mm256_blendv_ps(
            sums,
            before,
            _mm256_castsi256_ps(self.empty),
        ))
    }
}

/// Largest exponents of terms between which all that counts is in range: a unit of the grid is a
/// normal f32 and what is smaller than half of one is zero on it; no product overflows.
const LOWEST_TOP: i32 = -100;
const HIGHEST_TOP: i32 = 125;
/// The bits of an f64 below the 24 leading ones.
const LOW_BITS: i64 = 0x1fff_ffff;

/// Exponents of elements.
///
/// # Errors
/// One is not finite, or subnormal in f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn exponents(values: &[[u32; 8]], out: &mut [[u32; 8]]) -> Result<(), OutOfReach> {
    let mut special = _mm256_setzero_si256();
    let none = _mm256_setzero_si256();
    for (v, out) in values.iter().zip(out) {
        let magnitude = _mm256_and_si256(load8(v), _mm256_set1_epi32(0x7fff_ffff));
        let field = _mm256_srli_epi32::<23>(magnitude);
        let zero = _mm256_cmpeq_epi32(magnitude, none);
        let subnormal = _mm256_andnot_si256(zero, _mm256_cmpeq_epi32(field, none));
        let infinite = _mm256_cmpeq_epi32(field, _mm256_set1_epi32(255));
        special = _mm256_or_si256(special, _mm256_or_si256(subnormal, infinite));
        let e = _mm256_sub_epi32(field, _mm256_set1_epi32(127));
        store8(out, _mm256_blendv_epi8(e, _mm256_set1_epi32(NO_TERM), zero));
    }
    if _mm256_movemask_epi8(special) == 0 {
        Ok(())
    } else {
        Err(OutOfReach)
    }
}

/// `after`, the sum of two, clamped where it has overflowed.
#[inline]
#[target_feature(enable = "avx2")]
fn saturated(before: __m256i, more: __m256i, after: __m256i) -> __m256i {
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
fn doubles(values: __m256i) -> [__m256d; 2] {
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

// ---- elements -------------------------------------------------------------------------------

/// Spreads registers in the layout of `mma.sync`: each holds four words of eight rows, those of
/// the next eight rows in the next register if there are `groups` of two.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn spread_rows(
    element: MmaElement,
    registers: &[[u32; LANES]],
    groups: usize,
    steps: usize,
    out: &mut [[u32; 8]; MAX_VECTORS],
) {
    let unit = words(element, 128 / element.bits() as usize);
    for (r, register) in registers.iter().enumerate() {
        for (row, quad) in register.as_chunks().0.iter().enumerate() {
            let at = (row + 8 * (r % groups)) * steps + r / groups * unit;
            spread(element, quad, at, out);
        }
    }
}

/// Spreads registers in the layout of `wmma`: the words of all lanes one after another.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn spread_flat(element: MmaElement, registers: &[[u32; LANES]], out: &mut [[u32; 8]]) {
    let mut flat = [[0; 8]; MAX_REGISTERS * LANES / 8];
    deal_out(registers, &mut flat);
    let unit = words(element, 128 / element.bits() as usize);
    let quads = flat.as_flattened().as_chunks().0;
    for (n, quad) in quads.iter().enumerate().take(8 * registers.len()) {
        spread(element, quad, n * unit, out);
    }
}

/// The words of the first lane, of the next, and so on.
fn deal_out(registers: &[[u32; LANES]], out: &mut [[u32; 8]]) {
    let out = out.as_flattened_mut();
    for (r, register) in registers.iter().enumerate() {
        for (out, word) in out.chunks_exact_mut(registers.len()).zip(register) {
            out[r] = *word;
        }
    }
}

/// Spreads four words to the words of `out` from `at` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn spread(element: MmaElement, quad: &[u32; 4], at: usize, out: &mut [[u32; 8]]) {
    let w = load4(quad);
    let mut two = |[first, second]: [__m256i; 2]| {
        store8(&mut out[at / 8], first);
        store8(&mut out[at / 8 + 1], second);
    };
    match element {
        MmaElement::E4m3 => two(halves_of_e4m3(w).map(|h| {
            // As f16 its exponent is 8 too low.
            let v = _mm256_mul_ps(_mm256_cvtph_ps(h), _mm256_set1_ps(256.0));
            _mm256_castps_si256(v)
        })),
        MmaElement::E5m2 => {
            // The upper byte of an f16.
            let none = _mm256_castsi256_si128(_mm256_setzero_si256());
            let halves = [_mm_unpacklo_epi8(none, w), _mm_unpackhi_epi8(none, w)];
            two(halves.map(|h| _mm256_castps_si256(_mm256_cvtph_ps(h))));
        }
        MmaElement::S4 | MmaElement::U4 => {
            let low = _mm_set1_epi8(15);
            let (even, odd) = (
                _mm_and_si128(w, low),
                _mm_and_si128(_mm_srli_epi16::<4>(w), low),
            );
            let nibbles = [_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd)];
            two(nibbles.map(|n| {
                if element == MmaElement::U4 {
                    return _mm256_cvtepu8_epi16(n);
                }
                let sign = _mm_set1_epi8(8);
                _mm256_cvtepi8_epi16(_mm_sub_epi8(_mm_xor_si128(n, sign), sign))
            }));
        }
        MmaElement::F16 => store8(&mut out[at / 8], _mm256_castps_si256(_mm256_cvtph_ps(w))),
        MmaElement::Bf16 => {
            let halves = _mm256_cvtepu16_epi32(w);
            store8(&mut out[at / 8], _mm256_slli_epi32::<16>(halves));
        }
        MmaElement::S8 => store8(&mut out[at / 8], _mm256_cvtepi8_epi16(w)),
        MmaElement::U8 => store8(&mut out[at / 8], _mm256_cvtepu8_epi16(w)),
        // The multiplier reads 19 of the 32 bits.
        _ => {
            let out = &mut out.as_flattened_mut()[at..][..4];
            for (out, w) in out.iter_mut().zip(quad) {
                *out = w & 0xffff_e000;
            }
        }
    }
}

/// 16 values of e4m3 as f16 less 8 in the exponent.
#[inline]
#[target_feature(enable = "avx2")]
fn halves_of_e4m3(w: __m128i) -> [__m128i; 2] {
    let none = _mm256_castsi256_si128(_mm256_setzero_si256());
    [_mm_unpacklo_epi8(w, none), _mm_unpackhi_epi8(w, none)].map(|x| {
        let magnitude = _mm_and_si128(x, _mm_set1_epi16(0x7f));
        let sign = _mm_slli_epi16::<8>(_mm_and_si128(x, _mm_set1_epi16(0x80)));
        let value = _mm_or_si128(_mm_slli_epi16::<7>(magnitude), sign);
        let nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
        _mm_or_si128(value, _mm_and_si128(nan, _mm_set1_epi16(0x7fff)))
    })
}

/// Eight vectors of a column as eight of a row.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(columns: [__m256i; 8], rows: &mut [[u32; 8]; 8]) {
    let [a, b, c, d, e, f, g, h] = columns;
    // Pairs, then fours of them, within each half; then halves.
    let (ab, ab2) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (cd, cd2) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    let (ef, ef2) = (_mm256_unpacklo_epi32(e, f), _mm256_unpackhi_epi32(e, f));
    let (gh, gh2) = (_mm256_unpacklo_epi32(g, h), _mm256_unpackhi_epi32(g, h));
    let fours = [
        (_mm256_unpacklo_epi64(ab, cd), _mm256_unpacklo_epi64(ef, gh)),
        (_mm256_unpackhi_epi64(ab, cd), _mm256_unpackhi_epi64(ef, gh)),
        (
            _mm256_unpacklo_epi64(ab2, cd2),
            _mm256_unpacklo_epi64(ef2, gh2),
        ),
        (
            _mm256_unpackhi_epi64(ab2, cd2),
            _mm256_unpackhi_epi64(ef2, gh2),
        ),
    ];
    for (n, (first, second)) in fours.into_iter().enumerate() {
        store8(
            &mut rows[n],
            _mm256_permute2x128_si256::<0x20>(first, second),
        );
        store8(
            &mut rows[n + 4],
            _mm256_permute2x128_si256::<0x31>(first, second),
        );
    }
}

// ---- arrays as vectors ----------------------------------------------------------------------

#[inline]
#[target_feature(enable = "avx2")]
fn load8(a: &[u32; 8]) -> __m256i {
    // SAFETY: the array is 32 bytes, which are a vector whatever they hold.
    unsafe { _mm256_loadu_si256(a.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store8(a: &mut [u32; 8], v: __m256i) {
    // SAFETY: the array is 32 bytes, borrowed for writing; any bits are numbers.
    unsafe { _mm256_storeu_si256(a.as_mut_ptr().cast(), v) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load4(a: &[u32; 4]) -> __m128i {
    // SAFETY: the array is 16 bytes, which are a vector whatever they hold.
    unsafe { _mm_loadu_si128(a.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store4(a: &mut [u32; 4], v: __m128i) {
    // SAFETY: the array is 16 bytes, borrowed for writing; any bits are numbers.
    unsafe { _mm_storeu_si128(a.as_mut_ptr().cast(), v) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn low4(a: &[u32; 8]) -> __m128i {
    _mm256_castsi256_si128(load8(a))
}

#[cfg(test)]
mod tests;
