//! Shape of a warp's addresses: contiguous, equal or scattered.
//!
//! The compiler does not vectorise these comparisons by itself: it drops the comparison of the
//! first lane's address with itself and has an odd number left. So they are written in SSE2, which
//! every x86-64 has.
//!
//! Elsewhere: uses of the shapes ([`crate::exec`]).

use std::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_castsi128_pd, _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_movemask_epi8,
    _mm_movemask_pd, _mm_movemask_ps, _mm_or_si128, _mm_set_epi32, _mm_set_epi64x, _mm_set1_epi32,
    _mm_set1_epi64x, _mm_setzero_si128, _mm_sub_epi32, _mm_sub_epi64, _mm_xor_si128,
};

/// How eight lanes' addresses lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressShape {
    Same,
    /// One behind the other.
    Step,
    Scattered,
}

/// An address, or an offset in a space of 32 bits.
pub(crate) trait At: Copy {
    fn plus(self, bytes: usize) -> Self;

    /// How eight lanes lie that access `size` bytes each.
    fn shape(at: &[Self; 8], size: usize) -> AddressShape;

    /// Whether lanes that access `size` bytes each lie one behind the other.
    fn is_run<const N: usize>(at: &[Self; N], size: usize) -> bool;

    /// Whether all of them are at most `last` behind `first`, and share no bit with `low`. `last`
    /// is less than half of all addresses.
    fn within<const N: usize>(at: &[Self; N], first: Self, last: Self, low: Self) -> bool;
}

/// The same as vectors.
#[inline(always)]
fn vectors<A: At, const N: usize>(a: &[A; N]) -> impl Iterator<Item = __m128i> {
    let pieces = a.as_ptr().cast::<__m128i>();
    // SAFETY: so many whole vectors are there; a `u32` or `u64` has no padding, and any bits are a
    // vector.
    (0..size_of::<[A; N]>() / 16).map(move |n| unsafe { pieces.add(n).read_unaligned() })
}

macro_rules! at {
    ($t:ty, $signed:ty, $splat:ident, $sub:ident, |$v:ident| $negative:expr, |$n:ident, $size:ident| $steps:expr) => {
        impl At for $t {
            #[inline(always)]
            fn plus(self, bytes: usize) -> Self {
                self.wrapping_add(bytes as $t)
            }

            #[inline(always)]
            fn shape(at: &[Self; 8], size: usize) -> AddressShape {
                let $size = size as $signed;
                // SAFETY: SSE2 is part of x86-64.
                unsafe {
                    let (mut same, mut step) = (_mm_setzero_si128(), _mm_setzero_si128());
                    let first = $splat(at[0] as $signed);
                    for ($n, v) in (0..).zip(vectors(at)) {
                        let behind = $sub(v, first);
                        same = _mm_or_si128(same, behind);
                        step = _mm_or_si128(step, _mm_xor_si128(behind, $steps));
                    }
                    if is_zero(step) {
                        AddressShape::Step
                    } else if is_zero(same) {
                        AddressShape::Same
                    } else {
                        AddressShape::Scattered
                    }
                }
            }

            #[inline(always)]
            fn is_run<const N: usize>(at: &[Self; N], size: usize) -> bool {
                let each = 16 / size_of::<Self>();
                let first = at.iter().zip(&at[1..]).take(each - 1);
                let mut run = true;
                for (a, b) in first {
                    run &= b.wrapping_sub(*a) == size as $t;
                }
                // SAFETY: SSE2 is part of x86-64.
                unsafe {
                    // Each vector is as far behind the one before.
                    let step = $splat((each * size) as $signed);
                    let mut odd = _mm_setzero_si128();
                    for (v, next) in vectors(at).zip(vectors(at).skip(1)) {
                        odd = _mm_or_si128(odd, _mm_xor_si128($sub(next, v), step));
                    }
                    run && is_zero(odd)
                }
            }

            #[inline(always)]
            fn within<const N: usize>(at: &[Self; N], first: Self, last: Self, low: Self) -> bool {
                let [first, last, low] = [first, last, low].map(|x| x as $signed);
                // SAFETY: SSE2 is part of x86-64.
                unsafe {
                    let (mut far, mut odd) = (_mm_setzero_si128(), _mm_setzero_si128());
                    for v in vectors(at) {
                        // `last` is positive: of a distance that is greater, one of the two is
                        // negative.
                        let behind = $sub(v, $splat(first));
                        far = _mm_or_si128(far, _mm_or_si128(behind, $sub($splat(last), behind)));
                        odd = _mm_or_si128(odd, v);
                    }
                    let $v = far;
                    $negative == 0 && is_zero(_mm_and_si128(odd, $splat(low)))
                }
            }
        }
    };
}
at! { u32, i32, _mm_set1_epi32, _mm_sub_epi32,
    |v| _mm_movemask_ps(_mm_castsi128_ps(v)),
    |n, s| _mm_set_epi32((4 * n + 3) * s, (4 * n + 2) * s, (4 * n + 1) * s, 4 * n * s)
}
at! { u64, i64, _mm_set1_epi64x, _mm_sub_epi64,
    |v| _mm_movemask_pd(_mm_castsi128_pd(v)),
    |n, s| _mm_set_epi64x((2 * n + 1) * s, 2 * n * s)
}

#[inline(always)]
fn is_zero(v: __m128i) -> bool {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_movemask_epi8(_mm_cmpeq_epi32(v, _mm_setzero_si128())) == 0xffff }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn addresses_lie_as_they_do_one_by_one(
            first: u64, step in 0u64..9, which in 0usize..8, off in 0u64..3, size in 1usize..33,
        ) {
            let mut at: [u64; 8] = std::array::from_fn(|l| first.wrapping_add(step * l as u64));
            at[which] = at[which].wrapping_add(off);
            let low = at.map(|a| a as u32);
            let shape = |step: bool, same: bool| match (step, same) {
                (true, _) => AddressShape::Step,
                (_, true) => AddressShape::Same,
                _ => AddressShape::Scattered,
            };
            let behind = at.map(|a| a.wrapping_sub(at[0]));
            let stepped = behind.iter().zip(0u64..).all(|(&b, l)| b == l * size as u64);
            let want = shape(stepped, behind == [0; 8]);
            prop_assert_eq!(u64::shape(&at, size), want);
            prop_assert_eq!(u64::is_run(&at, size), stepped);
            prop_assert_eq!(u32::is_run(&low, size), stepped);
            prop_assert_eq!(u32::shape(&low, size), want);
        }

        #[test]
        fn a_range_holds_what_each_comparison_says(
            first: u64, behind in prop::array::uniform8(0u64..40), far: bool, last in 0u64..40, bit in 0u32..6,
        ) {
            let mut at = behind.map(|b| first.wrapping_add(b));
            if far {
                at[3] = at[3].wrapping_sub(1 << 63);
            }
            let low = (1 << bit) - 1;
            let want = at.iter().all(|a| a.wrapping_sub(first) <= last && a & low == 0);
            prop_assert_eq!(u64::within(&at, first, last, low), want);
            let at = behind.map(|b| (first as u32).wrapping_add(b as u32));
            let want = at.iter().all(|a| a.wrapping_sub(first as u32) <= last as u32 && a & low as u32 == 0);
            prop_assert_eq!(u32::within(&at, first as u32, last as u32, low as u32), want);
        }
    }
}
