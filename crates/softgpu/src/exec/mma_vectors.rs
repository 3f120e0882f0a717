//! Dense products of matrices in vectors of eight columns, for AVX2 with FMA and F16C.
//!
//! A fragment's registers are spread once: A into rows, B into vectors of eight columns for each
//! step of the depth, C into vectors of eight columns of a row. A step is an element in floating
//! point, two elements of integers. The results are those of [`Mma::run`] bit for bit, which says
//! what they are; where a value is not in reach of f32 arithmetic, this refuses, and the caller
//! runs that one.
//!
//! Products of elements of at most 11 bits are exact in f32 unless their exponent leaves its range.
//! Cut to the grid of [`super::dot`] they are less than 2^27 of its units, so eight of them and the
//! accumulator are added in 32 bits, and the groups of eight in f64.
//!
//! In the layout of `mma.sync` a vector holds the even columns and then the odd ones: so the four
//! lanes of a group hold both halves as they stand in two registers.

use std::arch::x86_64::{
    __m256, __m256i, _MM_FROUND_TO_NEAREST_INT, _mm_and_si128, _mm_packus_epi32, _mm_set1_epi32,
    _mm_srli_epi32, _mm_srli_si128, _mm_unpackhi_epi16, _mm_unpacklo_epi16, _mm256_add_epi32,
    _mm256_add_pd, _mm256_add_ps, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cvtepi32_pd, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_extracti128_si256,
    _mm256_fmadd_pd, _mm256_madd_epi16, _mm256_max_epi32, _mm256_mul_ps, _mm256_set_m128i,
    _mm256_set1_epi32, _mm256_set1_pd, _mm256_set1_ps, _mm256_setzero_pd, _mm256_setzero_si256,
};

use super::dot::{DotRule, NO_TERM};
use super::mma::{Accumulator, FragmentLayout, Mma, MmaElement};
use super::registers::LANES;

mod elements;
mod grid;

pub(crate) use elements::MAX_REGISTERS;
pub(crate) use grid::OutOfReach;

use elements::{
    MAX_VECTORS, deal_out, load4, load8, low4, spread_flat, spread_rows, store4, store8, transpose,
    words,
};
use grid::{Grid, doubles, exponents, largest_of, safe_halves, saturated};

/// Steps of sums in f16 at most.
const MAX_HALF_STEPS: usize = 16;
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
    /// Steps of the depth, and those of them that are added at once.
    steps: usize,
    step: usize,
    /// How they are added.
    rule: DotRule,
    /// Whether C is added when all steps have been.
    c_last: bool,
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
            step: if p.a.is_float() {
                p.steps(steps)
            } else {
                steps
            },
            rule: p.rule(),
            c_last: p.adds_c_last(),
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
            Accumulator::F16 | Accumulator::F32 => self.add_floats(&left, &right, &mut sums)?,
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
            FragmentLayout::Mma => {
                spread_rows(p.a, a, self.rows() / 8, self.steps, self.c_last, left)
            }
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
                spread_rows(p.b, b, 1, self.steps, self.c_last, &mut spread);
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

    /// Sums of floating point elements. Those in f16 then fill the lower half of a vector.
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_floats(
        &self,
        left: &[[u32; 8]; MAX_VECTORS],
        right: &[[u32; 8]; MAX_VECTORS],
        sums: &mut [[u32; 8]; MAX_SUMS],
    ) -> Result<(), OutOfReach> {
        let (steps, across) = (self.steps, self.across());
        let sums = &mut sums[..self.rows() * across];
        let mut e_left = [[0; 8]; MAX_VECTORS];
        let mut e_right = [[0; 8]; MAX_VECTORS];
        let mut e_sums = [[0; 8]; MAX_SUMS];
        let [a, b, c] = self.rule.lowest;
        exponents(&left[..self.rows() * steps / 8], a, &mut e_left)?;
        exponents(&right[..steps * across], b, &mut e_right)?;
        exponents(sums, c, &mut e_sums)?;
        let factors = Factors {
            left,
            right,
            e_left: &e_left,
            e_right: &e_right,
            from: 0,
        };
        if self.c_last {
            let mut products = [[0u32; 8]; MAX_SUMS];
            let products = &mut products[..sums.len()];
            e_sums[..products.len()].fill([NO_TERM as u32; 8]);
            self.add_steps(factors, &mut e_sums, products)?;
            for (sum, product) in sums.iter_mut().zip(products) {
                // Two f16 are added as in f32: that the sum is rounded twice then makes no
                // difference.
                let c = _mm256_castsi256_ps(load8(sum));
                let total = _mm256_add_ps(c, _mm256_castsi256_ps(load8(product)));
                store8(sum, _mm256_castps_si256(total));
            }
        } else {
            self.add_steps(factors, &mut e_sums, sums)?;
        }
        if self.product.d == Accumulator::F16 {
            for sum in sums {
                let value = _mm256_castsi256_ps(load8(sum));
                let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value);
                if let [out, _] = sum.as_chunks_mut().0 {
                    store4(out, halves);
                }
            }
        }
        Ok(())
    }

    /// Adds all products to sums, whose exponents are known.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_steps(
        &self,
        factors: Factors<'_>,
        e_sums: &mut [[u32; 8]; MAX_SUMS],
        sums: &mut [[u32; 8]],
    ) -> Result<(), OutOfReach> {
        for from in (0..self.steps).step_by(self.step) {
            if from > 0 {
                exponents(sums, self.rule.lowest[2], e_sums)?;
            }
            let factors = Factors { from, ..factors };
            // Products of elements of 8 bits are often ties.
            let in_chains = self.rule.half && !self.c_last;
            match (self.across(), in_chains, self.step % 8) {
                (1, true, _) => self.add_halves::<1>(factors, e_sums, sums)?,
                (2, true, _) => self.add_halves::<2>(factors, e_sums, sums)?,
                (_, true, _) => self.add_halves::<4>(factors, e_sums, sums)?,
                (1, _, 0) => self.add_on_grid::<1, 8>(factors, e_sums, sums)?,
                (2, _, 0) => self.add_on_grid::<2, 8>(factors, e_sums, sums)?,
                (_, _, 0) => self.add_on_grid::<4, 8>(factors, e_sums, sums)?,
                _ => self.add_on_grid::<2, 4>(factors, e_sums, sums)?,
            }
        }
        Ok(())
    }

    /// Sums in f16 of a part of the steps, in rows of ACROSS vectors: chains in f64 with a bound on
    /// what the rule cuts off. Where the rounded sum does not depend on it, it is the rule's; the
    /// others are formed on their grid.
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_halves<const ACROSS: usize>(
        &self,
        factors: Factors<'_>,
        e_sums: &[[u32; 8]; MAX_SUMS],
        sums: &mut [[u32; 8]],
    ) -> Result<(), OutOfReach> {
        let (right, e_right) = factors.right_rows::<ACROSS>(self.step);
        let sums = sums.as_chunks_mut::<ACROSS>().0;
        let e_sums = e_sums.as_chunks::<ACROSS>().0;
        for n in 0..ACROSS {
            let mut wide = [[_mm256_setzero_pd(); 2]; MAX_HALF_STEPS];
            let wide = &mut wide[..self.step];
            let mut largest_right = _mm256_set1_epi32(NO_TERM);
            for ((y, e), wide) in right.iter().zip(e_right).zip(&mut *wide) {
                *wide = doubles(load8(&y[n]));
                largest_right = _mm256_max_epi32(largest_right, load8(&e[n]));
            }
            for (row, (sums, e_sums)) in sums.iter_mut().zip(e_sums).enumerate() {
                let (x, e_left) = factors.left_row::<8>(self, row);
                let c = load8(&sums[n]);
                // Two chains, so that neither waits for the other.
                let mut low = [doubles(c)[0], _mm256_setzero_pd()];
                let mut high = [doubles(c)[1], _mm256_setzero_pd()];
                let pairs = x.as_flattened().as_chunks::<2>().0;
                for (x, y) in pairs.iter().zip(wide.as_chunks::<2>().0) {
                    for i in 0..2 {
                        let x = _mm256_set1_pd(f32::from_bits(x[i]).into());
                        low[i] = _mm256_fmadd_pd(x, y[i][0], low[i]);
                        high[i] = _mm256_fmadd_pd(x, y[i][1], high[i]);
                    }
                }
                let [low, high] = [low, high].map(|s| _mm256_add_pd(s[0], s[1]));
                let e_c = load8(&e_sums[n]);
                let top = _mm256_add_epi32(largest_of(e_left), largest_right);
                let top = _mm256_max_epi32(top, e_c);
                let value = match safe_halves([low, high], top, self.rule) {
                    Some(halves) => _mm256_cvtph_ps(halves),
                    None => self.sum_on_grid::<ACROSS, 8>(factors, [row, n], c, e_c)?,
                };
                store8(&mut sums[n], _mm256_castps_si256(value));
            }
        }
        Ok(())
    }

    /// Sums of a part of the steps on their grids, in rows of ACROSS vectors; steps come in groups
    /// of N.
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_on_grid<const ACROSS: usize, const N: usize>(
        &self,
        factors: Factors<'_>,
        e_sums: &[[u32; 8]; MAX_SUMS],
        sums: &mut [[u32; 8]],
    ) -> Result<(), OutOfReach> {
        let sums = sums.as_chunks_mut::<ACROSS>().0.iter_mut();
        for (row, (sums, e)) in sums.zip(e_sums.as_chunks::<ACROSS>().0).enumerate() {
            for (n, (sum, e)) in sums.iter_mut().zip(e).enumerate() {
                let (c, e) = (load8(sum), load8(e));
                let value = self.sum_on_grid::<ACROSS, N>(factors, [row, n], c, e)?;
                store8(sum, _mm256_castps_si256(value));
            }
        }
        Ok(())
    }

    /// The sums of a row and a vector of its columns, see [`super::dot`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn sum_on_grid<const ACROSS: usize, const N: usize>(
        &self,
        factors: Factors<'_>,
        [row, n]: [usize; 2],
        c: __m256i,
        e_c: __m256i,
    ) -> Result<__m256, OutOfReach> {
        let (left, e_left) = factors.left_row::<N>(self, row);
        let (right, e_right) = factors.right_rows::<ACROSS>(self.step);
        let (right, e_right) = (right.as_chunks::<N>().0, e_right.as_chunks::<N>().0);
        let mut top = e_c;
        for (x, y) in e_left.iter().zip(e_right) {
            for (x, y) in x.iter().zip(y) {
                let e = _mm256_add_epi32(_mm256_set1_epi32(*x as i32), load8(&y[n]));
                top = _mm256_max_epi32(top, e);
            }
        }
        let grid = Grid::of(top, self.rule)?;
        let mut part = grid.units(_mm256_castsi256_ps(c));
        let mut total = [_mm256_setzero_pd(); 2];
        for (x, y) in left.iter().zip(right) {
            for (x, y) in x.iter().zip(y) {
                let y = _mm256_castsi256_ps(load8(&y[n]));
                let product = _mm256_mul_ps(_mm256_set1_ps(f32::from_bits(*x)), y);
                part = _mm256_add_epi32(part, grid.units(product));
            }
            let low = _mm256_cvtepi32_pd(_mm256_castsi256_si128(part));
            let high = _mm256_cvtepi32_pd(_mm256_extracti128_si256::<1>(part));
            total = [_mm256_add_pd(total[0], low), _mm256_add_pd(total[1], high)];
            part = _mm256_setzero_si256();
        }
        Ok(grid.results(total))
    }
}

/// A and B with their exponents, and the first of the steps that are added.
#[derive(Clone, Copy)]
struct Factors<'a> {
    left: &'a [[u32; 8]; MAX_VECTORS],
    right: &'a [[u32; 8]; MAX_VECTORS],
    e_left: &'a [[u32; 8]; MAX_VECTORS],
    e_right: &'a [[u32; 8]; MAX_VECTORS],
    from: usize,
}

/// StepRows of steps: a vector of columns or several.
type StepRows<'a, const ACROSS: usize> = &'a [[[u32; 8]; ACROSS]];

impl<'a> Factors<'a> {
    /// The elements of A that a row multiplies by, and their exponents, in groups of N.
    #[inline(always)]
    fn left_row<const N: usize>(
        &self,
        p: &VectorProduct<'_>,
        row: usize,
    ) -> (&'a [[u32; N]], &'a [[u32; N]]) {
        let first = (row * p.steps + self.from) / N;
        let of = |all: &'a [[u32; 8]; MAX_VECTORS]| {
            &all.as_flattened().as_chunks::<N>().0[first..][..p.step / N]
        };
        (of(self.left), of(self.e_left))
    }

    /// The rows of B for so many steps, and their exponents.
    #[inline(always)]
    fn right_rows<const ACROSS: usize>(
        &self,
        steps: usize,
    ) -> (StepRows<'a, ACROSS>, StepRows<'a, ACROSS>) {
        let of =
            |all: &'a [[u32; 8]; MAX_VECTORS]| &all.as_chunks::<ACROSS>().0[self.from..][..steps];
        (of(self.right), of(self.e_right))
    }
}

#[cfg(test)]
mod tests;
