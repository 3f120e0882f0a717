//! Elements of fragments as words of vectors, and arrays as vectors.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_and_si128, _mm_cmpeq_epi16, _mm_loadu_si128, _mm_or_si128, _mm_set1_epi8,
    _mm_set1_epi16, _mm_setr_epi8, _mm_shuffle_epi8, _mm_slli_epi16, _mm_srli_epi16,
    _mm_storeu_si128, _mm_sub_epi8, _mm_unpackhi_epi8, _mm_unpacklo_epi8, _mm_xor_si128,
    _mm256_castps_si256, _mm256_castsi256_si128, _mm256_cvtepi8_epi16, _mm256_cvtepu8_epi16,
    _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_loadu_si256, _mm256_mul_ps,
    _mm256_permute2x128_si256, _mm256_set1_ps, _mm256_setzero_si256, _mm256_slli_epi32,
    _mm256_storeu_si256, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32,
    _mm256_unpacklo_epi64,
};

use super::super::mma::MmaElement;
use crate::exec::registers::LANES;

/// Registers of a fragment at most.
pub(crate) const MAX_REGISTERS: usize = 8;
/// Vectors of A or B at most.
pub(super) const MAX_VECTORS: usize = 64;

/// Words that an element of A or B becomes: floating point one, integers a half.
pub(super) fn words(element: MmaElement, elements: usize) -> usize {
    if element.is_float() {
        elements
    } else {
        elements / 2
    }
}

/// Spreads registers in the layout of `mma.sync`: each holds four words of eight rows, those of
/// the next eight rows in the next register if there are `groups` of two. If `halved`, the lower
/// halves of all words of a row come first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn spread_rows(
    element: MmaElement,
    registers: &[[u32; LANES]],
    groups: usize,
    steps: usize,
    halved: bool,
    out: &mut [[u32; 8]; MAX_VECTORS],
) {
    let unit = words(element, 128 / element.bits() as usize);
    for (r, register) in registers.iter().enumerate() {
        for (row, quad) in register.as_chunks().0.iter().enumerate() {
            let at = (row + 8 * (r % groups)) * steps;
            if halved {
                let at = at + r / groups * 8;
                spread_bytes(
                    element,
                    lower_halves(load4(quad)),
                    [at, at + steps / 2],
                    out,
                );
            } else {
                spread(element, quad, at + r / groups * unit, out);
            }
        }
    }
}

/// The lower halves of four words, then the upper ones.
#[inline]
#[target_feature(enable = "avx2")]
fn lower_halves(w: __m128i) -> __m128i {
    let order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    _mm_shuffle_epi8(w, order)
}

/// Spreads registers in the layout of `wmma`: the words of all lanes one after another.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn spread_flat(element: MmaElement, registers: &[[u32; LANES]], out: &mut [[u32; 8]]) {
    let mut flat = [[0; 8]; MAX_REGISTERS * LANES / 8];
    deal_out(registers, &mut flat);
    let unit = words(element, 128 / element.bits() as usize);
    let quads = flat.as_flattened().as_chunks().0;
    for (n, quad) in quads.iter().enumerate().take(8 * registers.len()) {
        spread(element, quad, n * unit, out);
    }
}

/// The words of the first lane, of the next, and so on.
pub(super) fn deal_out(registers: &[[u32; LANES]], out: &mut [[u32; 8]]) {
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
        MmaElement::E4m3 | MmaElement::E5m2 => spread_bytes(element, w, [at, at + 8], out),
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

/// Spreads 16 elements of 8 bits in floating point, eight of them to each place.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn spread_bytes(element: MmaElement, w: __m128i, at: [usize; 2], out: &mut [[u32; 8]]) {
    let values = if element == MmaElement::E4m3 {
        // As f16 its exponent is 8 too low.
        let scale = _mm256_set1_ps(256.0);
        halves_of_e4m3(w).map(|h| _mm256_mul_ps(_mm256_cvtph_ps(h), scale))
    } else {
        // The upper byte of an f16.
        let none = _mm256_castsi256_si128(_mm256_setzero_si256());
        let halves = [_mm_unpacklo_epi8(none, w), _mm_unpackhi_epi8(none, w)];
        halves.map(|h| _mm256_cvtph_ps(h))
    };
    for (at, v) in at.into_iter().zip(values) {
        store8(&mut out[at / 8], _mm256_castps_si256(v));
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
pub(super) fn transpose(columns: [__m256i; 8], rows: &mut [[u32; 8]; 8]) {
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

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load8(a: &[u32; 8]) -> __m256i {
    // SAFETY: the array is 32 bytes, which are a vector whatever they hold.
    unsafe { _mm256_loadu_si256(a.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store8(a: &mut [u32; 8], v: __m256i) {
    // SAFETY: the array is 32 bytes, borrowed for writing; any bits are numbers.
    unsafe { _mm256_storeu_si256(a.as_mut_ptr().cast(), v) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load4(a: &[u32; 4]) -> __m128i {
    // SAFETY: the array is 16 bytes, which are a vector whatever they hold.
    unsafe { _mm_loadu_si128(a.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store4(a: &mut [u32; 4], v: __m128i) {
    // SAFETY: the array is 16 bytes, borrowed for writing; any bits are numbers.
    unsafe { _mm_storeu_si128(a.as_mut_ptr().cast(), v) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn low4(a: &[u32; 8]) -> __m128i {
    _mm256_castsi256_si128(load8(a))
}
