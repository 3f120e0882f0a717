//! The vectors against the loops, bit for bit.

use fastrand::Rng;

use super::*;
use crate::exec::mma::BitOp;

use Accumulator::{F16 as SumF16, F32 as SumF32, S32};
use FragmentLayout::{Mma as Sync, Wmma};
use MmaElement::{Bf16, E4m3, E5m2, F16, S4, S8, Tf32, U4, U8};

type Shape = [u32; 3];

/// Every form that runs in vectors: A, B, C, D, shape, layout.
fn forms() -> Vec<Mma> {
    let mut forms = Vec::new();
    let mut add = |a, b, c, d, [m, n, k]: Shape, layout| {
        for saturate in [false, true] {
            let (bit_op, product) = (BitOp::Xor, (a, b, c, d));
            let (a, b, c, d) = product;
            forms.push(Mma {
                m,
                n,
                k,
                a,
                b,
                c,
                d,
                saturate,
                bit_op,
                layout,
            });
        }
    };
    let tiles = [[16, 16, 16], [32, 8, 16], [8, 32, 16]];
    for c in [SumF16, SumF32] {
        for d in [SumF16, SumF32] {
            add(F16, F16, c, d, [16, 8, 8], Sync);
            add(F16, F16, c, d, [16, 8, 16], Sync);
            add(E4m3, E5m2, c, d, [16, 8, 16], Sync);
            for (a, b) in [(E4m3, E4m3), (E4m3, E5m2), (E5m2, E4m3), (E5m2, E5m2)] {
                add(a, b, c, d, [16, 8, 32], Sync);
            }
            for tile in tiles {
                add(F16, F16, c, d, tile, Wmma);
            }
        }
    }
    add(Bf16, Bf16, SumF32, SumF32, [16, 8, 8], Sync);
    add(Bf16, Bf16, SumF32, SumF32, [16, 8, 16], Sync);
    add(Tf32, Tf32, SumF32, SumF32, [16, 8, 4], Sync);
    add(Tf32, Tf32, SumF32, SumF32, [16, 8, 8], Sync);
    add(Tf32, Tf32, SumF32, SumF32, [16, 16, 8], Wmma);
    for tile in tiles {
        add(Bf16, Bf16, SumF32, SumF32, tile, Wmma);
    }
    for (a, b) in [(S8, S8), (S8, U8), (U8, S8), (U8, U8)] {
        for shape in [[8, 8, 16], [16, 8, 16], [16, 8, 32]] {
            add(a, b, S32, S32, shape, Sync);
        }
        for tile in tiles {
            add(a, b, S32, S32, tile, Wmma);
        }
    }
    for (a, b) in [(S4, S4), (S4, U4), (U4, S4), (U4, U4)] {
        for shape in [[8, 8, 32], [16, 8, 32], [16, 8, 64]] {
            add(a, b, S32, S32, shape, Sync);
        }
        add(a, b, S32, S32, [8, 8, 32], Wmma);
    }
    forms
}

/// Registers that the fragments need.
fn needed(p: &Mma) -> [u32; 4] {
    let width = |a: Accumulator| if a == SumF16 { 16 } else { 32 };
    [
        p.m * p.k * p.a.bits(),
        p.k * p.n * p.b.bits(),
        p.m * p.n * width(p.c),
        p.m * p.n * width(p.d),
    ]
    .map(|bits| bits / 1024)
}

/// How values are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Values {
    /// Any bits, with NaN and infinities.
    Any,
    /// Finite, and of moderate size; some zero.
    Moderate,
    /// All but few of them zero, of either sign.
    Sparse,
    /// Powers of two around the bounds of the grid.
    Extreme,
}

/// An element's bits; `exponent` and `fraction` are the widths of its fields.
fn float(rng: &mut Rng, values: Values, exponent: u32, fraction: u32) -> u32 {
    let sign = rng.u32(0..2) << (exponent + fraction);
    let bias = (1 << (exponent - 1)) - 1;
    let all = 1 << (exponent + fraction);
    let field = match values {
        Values::Any => return sign | rng.u32(0..all),
        Values::Sparse if rng.u32(0..8) > 0 => return sign,
        Values::Extreme if exponent == 8 => match rng.u32(0..4) {
            0 => rng.u32(0..3),
            1 => rng.u32(252..255),
            2 => bias / 2 + rng.u32(0..16),
            _ => bias * 3 / 2 + rng.u32(0..4),
        },
        Values::Extreme => return sign | rng.u32(0..4),
        _ if rng.u32(0..16) == 0 => return sign,
        _ => (bias + rng.u32(0..6)).saturating_sub(3),
    };
    sign | field << fraction | rng.u32(0..1 << fraction)
}

fn word(rng: &mut Rng, values: Values, element: MmaElement) -> u32 {
    let (exponent, fraction) = match element {
        F16 => (5, 10),
        Bf16 => (8, 7),
        E4m3 => (4, 3),
        E5m2 => (5, 2),
        Tf32 => return float(rng, values, 8, 23),
        _ => return rng.u32(..),
    };
    let bits = element.bits();
    (0..32 / bits).fold(0, |w, n| {
        w | float(rng, values, exponent, fraction) << (bits * n)
    })
}

fn registers(n: u32, mut word: impl FnMut() -> u32) -> Registers {
    let mut out = [[0; LANES]; MAX_REGISTERS];
    for w in out[..n as usize].as_flattened_mut() {
        *w = word();
    }
    out
}

/// Runs both and compares; whether the vectors did it.
fn both_agree(p: &Mma, counts: [u32; 4], values: Values, rng: &mut Rng) -> bool {
    let vectors = VectorProduct::of(p, counts).expect("a form of vectors");
    let a = registers(counts[0], || word(rng, values, p.a));
    let b = registers(counts[1], || word(rng, values, p.b));
    let c = registers(counts[2], || match p.c {
        SumF16 => word(rng, values, F16),
        SumF32 => word(rng, values, Tf32),
        // Near the bounds of 32 bits, every other time.
        _ => rng.u32(..) >> 15 | 0x7fff_8000 | rng.u32(0..2) << 31,
    });
    let mut want = [[0; LANES]; MAX_REGISTERS];
    let at = |f: &Registers, r: u32, l: u32| u64::from(f[r as usize][l as usize]);
    p.run(
        counts,
        |r, l| at(&a, r, l),
        |r, l| at(&b, r, l),
        |r, l| at(&c, r, l),
        |r, l, v| want[r as usize][l as usize] = v as u32,
    );
    let mut got = [[0; LANES]; MAX_REGISTERS];
    // SAFETY: the caller has asked for the features.
    if unsafe { vectors.run(&a, &b, &c, &mut got) }.is_err() {
        return false;
    }
    assert!(
        got == want,
        "{p:?} {counts:?} {values:?}\n{got:x?}\n{want:x?}"
    );
    true
}

fn has_features() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("f16c")
}

#[test]
fn vectors_give_the_bits_of_the_loops_in_every_form() {
    if !has_features() {
        return;
    }
    let mut rng = Rng::with_seed(34);
    for p in &forms() {
        let counts = needed(p);
        for values in [
            Values::Any,
            Values::Moderate,
            Values::Sparse,
            Values::Extreme,
        ] {
            let mut refused = 0;
            for _ in 0..24 {
                refused += u32::from(!both_agree(p, counts, values, &mut rng));
            }
            let may_refuse = p.a.is_float() && matches!(values, Values::Any | Values::Extreme);
            assert!(
                refused == 0 || may_refuse,
                "{p:?} {values:?} refused {refused}"
            );
        }
    }
}

#[test]
fn of_copies_in_a_wmma_fragment_the_last_counts() {
    if !has_features() {
        return;
    }
    let mut rng = Rng::with_seed(35);
    for p in forms().iter().filter(|p| p.layout == Wmma) {
        let [a, b, c, d] = needed(p);
        for times in [1, 2, 4] {
            let counts = [times * a, times * b, c, d];
            if counts.iter().all(|&n| n as usize <= MAX_REGISTERS) {
                assert!(both_agree(p, counts, Values::Moderate, &mut rng));
            }
        }
    }
}

#[test]
fn forms_without_vectors_are_left_to_the_loops() {
    let [first, ..] = forms()[..] else {
        return;
    };
    let counts = needed(&first);
    assert!(VectorProduct::of(&first, counts).is_some());
    for (a, c) in [
        (MmaElement::F64, Accumulator::F64),
        (MmaElement::B1, S32),
        (S8, SumF32),
    ] {
        let other = Mma {
            a,
            b: a,
            c,
            d: c,
            ..first
        };
        assert!(VectorProduct::of(&other, counts).is_none(), "{other:?}");
    }
    let [a, b, c, d] = counts;
    assert!(VectorProduct::of(&first, [a + 1, b, c, d]).is_none());
}
