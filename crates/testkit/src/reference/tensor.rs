//! Matrix products: plain loops, bounds from the sizes.

use super::bounds::rounded;
use super::entry::Reference;
use super::exact::{F32, Format, Number, Round};
use crate::data::{Expected, LaunchInputs};

pub(super) const TABLE: &[Reference] = &[
    Reference::new("gemm_tiled", gemm_tiled),
    Reference::new("gemm_registers", gemm_registers),
    Reference::new("wmma_f16_f32", wmma_f16_f32),
    Reference::new("wmma_f16_f16", wmma_f16_f16),
    Reference::new("wmma_tall", wmma_tall),
    Reference::new("wmma_tf32", wmma_tf32),
    Reference::new("wmma_bf16", wmma_bf16),
    Reference::new("wmma_s8", wmma_s8),
    Reference::new("wmma_u8_wide", wmma_u8_wide),
    Reference::new("mma_bf16", mma_bf16),
    Reference::new("mma_f16_k8", mma_f16_k8),
    Reference::new("ldmatrix_moves", ldmatrix_moves),
    Reference::new("mma_s8", mma_s8),
    Reference::new("mma_s8_saturates", mma_s8_saturates),
    Reference::new("mma_tf32", mma_tf32),
    Reference::new("mma_f64", mma_f64),
];

/// Each element of an m x n product: its value, and the sum of its terms' magnitudes.
fn product(
    m: usize,
    n: usize,
    k: usize,
    a: impl Fn(usize, usize) -> f64,
    b: impl Fn(usize, usize) -> f64,
    c: impl Fn(usize, usize) -> f64,
) -> Vec<(f64, f64)> {
    let mut out = Vec::with_capacity(m * n);
    for i in 0..m {
        for j in 0..n {
            let (mut sum, mut size) = (c(i, j), c(i, j).abs());
            for l in 0..k {
                sum += a(i, l) * b(l, j);
                size += (a(i, l) * b(l, j)).abs();
            }
            out.push((sum, size));
        }
    }
    out
}

/// Tensor cores align the terms of a step to the largest and cut: an f32 accumulator loses at most
/// an ulp a term in aligning and another in adding.
fn cut(k: usize, out: Vec<(f64, f64)>) -> impl Iterator<Item = (f64, f64)> {
    out.into_iter()
        .map(move |(v, size)| (v, rounded(4 * k + 4, size)))
}

fn gemm_tiled(c: &LaunchInputs, e: &mut Expected) {
    let (a, b, m, n, k) = (
        c.values("a"),
        c.values("b"),
        c.size("m"),
        c.size("n"),
        c.size("k"),
    );
    let out = product(
        m,
        n,
        k,
        |i, l| a[i * k + l],
        |l, j| b[l * n + j],
        |_, _| 0.0,
    );
    e.near(
        "c",
        out.into_iter().map(|(v, size)| (v, rounded(k + 9, size))),
    );
}

fn gemm_registers(c: &LaunchInputs, e: &mut Expected) {
    let (a, b) = (c.values("a"), c.values("b"));
    let out = product(
        64,
        64,
        64,
        |i, l| a[i * 64 + l],
        |l, j| b[l * 64 + j],
        |_, _| 0.0,
    );
    e.near("c", out.into_iter().map(|(v, size)| (v, rounded(64, size))));
}

fn wmma_f16_f32(c: &LaunchInputs, e: &mut Expected) {
    let (a, b, add) = (c.values("a"), c.values("b"), c.values("c"));
    let out = product(
        32,
        32,
        48,
        |i, l| a[i * 48 + l],
        |l, j| b[j * 48 + l],
        |i, j| add[i * 32 + j],
    );
    e.near("d", cut(48, out).map(|(v, bound)| (2.0 * v, 2.0 * bound)));
}

fn wmma_f16_f16(c: &LaunchInputs, e: &mut Expected) {
    let (a, b) = (c.values("a"), c.values("b"));
    let out = product(
        16,
        16,
        16,
        |i, l| a[i * 16 + l],
        |l, j| b[l * 16 + j],
        |_, _| 0.25,
    );
    // An f16 result of eleven digits, rounded perhaps between halves of k too; stored by columns.
    let turned = (0..256).map(|i| out[i % 16 * 16 + i / 16]);
    e.near(
        "d",
        turned
            .map(|(v, size)| (v, 3.0 * size / 2048.0))
            .collect::<Vec<_>>(),
    );
}

fn wmma_tall(c: &LaunchInputs, e: &mut Expected) {
    let (a, b) = (c.values("a"), c.values("b"));
    e.near(
        "d",
        cut(
            16,
            product(
                32,
                8,
                16,
                |i, l| a[l * 32 + i],
                |l, j| b[l * 8 + j],
                |_, _| 0.0,
            ),
        ),
    );
}

/// f32 with ten fraction digits, ties away from zero.
fn tf32(v: &f64) -> f64 {
    let bits = Number::of(*v).round(Format(F32.0, 10), Round::Away);
    f64::from(f32::from_bits((bits as u32) << 13))
}

fn wmma_tf32(c: &LaunchInputs, e: &mut Expected) {
    let a: Vec<f64> = c.values("a").iter().map(tf32).collect();
    let b: Vec<f64> = c.values("b").iter().map(tf32).collect();
    e.near(
        "d",
        cut(
            32,
            product(
                16,
                16,
                32,
                |i, l| a[i * 32 + l],
                |l, j| b[j * 32 + l],
                |_, _| 0.0,
            ),
        ),
    );
}

fn wmma_bf16(c: &LaunchInputs, e: &mut Expected) {
    let (a, b) = (c.values("a"), c.values("b"));
    e.near(
        "d",
        cut(
            16,
            product(
                16,
                16,
                16,
                |i, l| a[i * 16 + l],
                |l, j| b[l * 16 + j],
                |_, _| 1.0,
            ),
        ),
    );
}

fn whole(out: Vec<(f64, f64)>) -> Vec<i32> {
    out.into_iter().map(|(v, _)| v as i64 as i32).collect()
}

fn wmma_s8(c: &LaunchInputs, e: &mut Expected) {
    let (a, b) = (c.values("a"), c.values("b"));
    // Two 16 x 16 tiles one after the other, each by its own rows (a) and columns (b).
    let tile = |v: &[f64], line: usize, l: usize| v[l / 16 * 256 + line * 16 + l % 16];
    e.exact(
        "d",
        &whole(product(
            16,
            16,
            32,
            |i, l| tile(&a, i, l),
            |l, j| tile(&b, j, l),
            |_, _| 7.0,
        )),
    );
}

fn wmma_u8_wide(c: &LaunchInputs, e: &mut Expected) {
    let (a, b, add) = (c.values("a"), c.values("b"), c.values("c"));
    e.exact(
        "d",
        &whole(product(
            8,
            32,
            16,
            |i, l| a[i * 16 + l],
            |l, j| b[l * 32 + j],
            |i, j| add[i * 32 + j],
        )),
    );
}

fn mma_bf16(c: &LaunchInputs, e: &mut Expected) {
    let (a, b) = (c.values("a"), c.values("b"));
    e.near(
        "d",
        cut(
            48,
            product(
                32,
                16,
                48,
                |i, l| a[i * 48 + l],
                |l, j| b[l * 16 + j],
                |_, _| 0.0,
            ),
        ),
    );
}

fn mma_f16_k8(c: &LaunchInputs, e: &mut Expected) {
    let (a, b, add) = (c.values("a"), c.values("b"), c.values("c"));
    e.near(
        "d",
        cut(
            8,
            product(
                16,
                8,
                8,
                |i, l| a[i * 8 + l],
                |l, j| b[j * 8 + l],
                |i, j| add[i * 8 + j],
            ),
        ),
    );
}

fn ldmatrix_moves(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<u16> = c.get("x");
    let pair = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
    let at = |matrix: usize, row: usize, col: usize| x[matrix * 64 + row * 8 + col];
    // Lane l holds two neighbours of row l / 4: columns 2 (l mod 4) and the next.
    let plain: Vec<u32> = (0..128)
        .map(|i| {
            pair(
                at(i / 32, i % 32 / 4, i % 4 * 2),
                at(i / 32, i % 32 / 4, i % 4 * 2 + 1),
            )
        })
        .collect();
    let turned: Vec<u32> = (0..64)
        .map(|i| {
            pair(
                at(i / 32, i % 4 * 2, i % 32 / 4),
                at(i / 32, i % 4 * 2 + 1, i % 32 / 4),
            )
        })
        .collect();
    e.exact("plain", &plain);
    e.exact("turned", &turned);
}

fn mma_s8(c: &LaunchInputs, e: &mut Expected) {
    let (a, b, add) = (c.values("a"), c.values("b"), c.values("c"));
    let unsigned: Vec<f64> = c.get::<u8>("a").iter().map(|v| f64::from(*v)).collect();
    e.exact(
        "d",
        &whole(product(
            16,
            8,
            32,
            |i, l| a[i * 32 + l],
            |l, j| b[j * 32 + l],
            |i, j| add[i * 8 + j],
        )),
    );
    e.exact(
        "mixed",
        &whole(product(
            16,
            8,
            32,
            |i, l| unsigned[i * 32 + l],
            |l, j| b[j * 32 + l],
            |i, j| add[i * 8 + j],
        )),
    );
    e.exact(
        "short_k",
        &whole(product(
            16,
            8,
            16,
            |i, l| a[i * 32 + l],
            |l, j| b[j * 32 + l],
            |_, _| 0.0,
        )),
    );
}

fn mma_s8_saturates(c: &LaunchInputs, e: &mut Expected) {
    let (a, b, add) = (c.values("a"), c.values("b"), c.values("c"));
    let out = product(
        16,
        8,
        32,
        |i, l| a[i * 32 + l],
        |l, j| b[j * 32 + l],
        |i, j| add[i * 8 + j],
    );
    e.exact(
        "d",
        &out.into_iter().map(|(v, _)| v as i32).collect::<Vec<i32>>(),
    );
}

fn mma_tf32(c: &LaunchInputs, e: &mut Expected) {
    let a: Vec<f64> = c.values("a").iter().map(tf32).collect();
    let b: Vec<f64> = c.values("b").iter().map(tf32).collect();
    e.near(
        "d",
        cut(
            8,
            product(
                16,
                8,
                8,
                |i, l| a[i * 8 + l],
                |l, j| b[j * 8 + l],
                |_, _| 0.0,
            ),
        ),
    );
    e.near(
        "half_k",
        cut(
            4,
            product(
                16,
                8,
                4,
                |i, l| a[i * 8 + l],
                |l, j| b[j * 8 + l],
                |_, _| 0.5,
            ),
        ),
    );
}

fn mma_f64(c: &LaunchInputs, e: &mut Expected) {
    let (a, b, add) = (c.values("a"), c.values("b"), c.values("c"));
    // The order of the four fused steps is not promised; eight roundings cover both sides' own.
    let out = product(
        8,
        8,
        4,
        |i, l| a[i * 4 + l],
        |l, j| b[j * 4 + l],
        |i, j| add[i * 8 + j],
    );
    e.near(
        "d",
        out.into_iter()
            .map(|(v, size)| (v, 8.0 * f64::EPSILON * size)),
    );
}
