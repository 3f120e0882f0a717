//! Sums, extrema, prefix sums, softmax, norms.

use super::bounds::{UNIT, rounded, summed};
use super::entry::Reference;
use crate::data::{Expected, LaunchInputs};

pub(super) const TABLE: &[Reference] = &[
    Reference::new("warp_sums", warp_sums),
    Reference::new("warp_redux", warp_redux),
    Reference::new("block_tree", block_tree),
    Reference::new("block_warps_first", block_warps_first),
    Reference::new("last_block_sum", last_block_sum),
    Reference::new("coop_normalise", coop_normalise),
    Reference::new("scan_inclusive", scan_inclusive),
    Reference::new("scan_exclusive", scan_exclusive),
    Reference::new("scan_lookback", scan_lookback),
    Reference::new("softmax_rows", softmax),
    Reference::new("softmax_online", softmax),
    Reference::new("rmsnorm", rmsnorm),
    Reference::new("rmsnorm_bf16", rmsnorm_bf16),
    Reference::new("layernorm", layernorm),
    Reference::new("cub_reduce", cub_reduce),
    Reference::new("cub_scan", cub_scan),
    Reference::new("attention", attention),
    Reference::new("attention_causal", attention),
];

fn warp_sums(c: &LaunchInputs, e: &mut Expected) {
    let x = c.values("x");
    let sums: Vec<_> = x.chunks(32).map(|w| summed(w.iter().copied(), 5)).collect();
    e.near("butterfly", sums.iter().flat_map(|s| [*s; 32]));
    e.near("down", sums);
}

fn warp_redux(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<u32> = c.get("x");
    let warps = || x.chunks(32);
    e.exact(
        "sums",
        &warps()
            .map(|w| w.iter().fold(0u32, |s, v| s.wrapping_add(*v)))
            .collect::<Vec<_>>(),
    );
    e.exact(
        "lows",
        &warps()
            .map(|w| w.iter().map(|v| *v as i32).min().unwrap_or(0))
            .collect::<Vec<_>>(),
    );
    e.exact(
        "highs",
        &warps()
            .map(|w| w.iter().copied().max().unwrap_or(0))
            .collect::<Vec<_>>(),
    );
    let masks = warps().flat_map(|w| {
        let mut m = [u32::MAX, 0, 0];
        for v in w {
            m[0] &= v | 0x00ff_00ff;
            m[1] |= v & 0x0f0f_0f0f;
            m[2] ^= v;
        }
        m
    });
    e.exact("masks", &masks.collect::<Vec<_>>());
}

fn block_tree(c: &LaunchInputs, e: &mut Expected) {
    e.near(
        "sums",
        c.values("x")
            .chunks(256)
            .map(|b| summed(b.iter().copied(), 8)),
    );
}

fn block_warps_first(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<i32> = c.get("x");
    e.exact(
        "sums",
        &x.chunks(200).map(|b| b.iter().sum()).collect::<Vec<i32>>(),
    );
    e.exact(
        "highs",
        &x.chunks(200)
            .map(|b| b.iter().copied().max().unwrap_or(0))
            .collect::<Vec<i32>>(),
    );
}

fn last_block_sum(c: &LaunchInputs, e: &mut Expected) {
    let x = c.values("x");
    let (threads, block) = (c.threads(), c.block[0] as usize);
    let each = x.len().div_ceil(threads);
    e.near(
        "partial",
        (0..c.grid[0] as usize).map(|b| {
            let mine = x
                .iter()
                .enumerate()
                .filter(|(i, _)| i % threads / block == b)
                .map(|(_, v)| *v);
            summed(mine, each + 5 + 3)
        }),
    );
    e.near("total", [summed(x.iter().copied(), each + 5 + 3 + 5 + 3)]);
    e.exact("ticket", &[0u32]);
}

fn coop_normalise(c: &LaunchInputs, e: &mut Expected) {
    let x = c.values("x");
    let (threads, block, blocks) = (c.threads(), c.block[0] as usize, c.grid[0] as usize);
    let chain = x.len().div_ceil(threads) + 7;
    e.near(
        "partial",
        (0..blocks).map(|b| {
            summed(
                x.iter()
                    .enumerate()
                    .filter(|(i, _)| i % threads / block == b)
                    .map(|(_, v)| *v),
                chain,
            )
        }),
    );
    let total: f64 = x.iter().sum();
    e.near(
        "y",
        x.iter()
            .map(|v| (v / total, rounded(chain + blocks + 1, v / total))),
    );
}

fn running(x: &[u32]) -> Vec<u32> {
    let mut sum = 0u32;
    x.iter()
        .map(|v| {
            sum = sum.wrapping_add(*v);
            sum
        })
        .collect()
}

fn scan_inclusive(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<u32> = c.get("x");
    e.exact("y", &x.chunks(256).flat_map(running).collect::<Vec<u32>>());
}

fn scan_exclusive(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<i32> = c.get("x");
    let mut y = Vec::new();
    for block in x.chunks(256) {
        let mut sum = 0;
        for v in block {
            y.push(sum);
            sum += v;
        }
    }
    e.exact("y", &y);
    e.exact(
        "totals",
        &x.chunks(256).map(|b| b.iter().sum()).collect::<Vec<i32>>(),
    );
}

fn scan_lookback(c: &LaunchInputs, e: &mut Expected) {
    let y = running(&c.get::<u32>("x"));
    let state: Vec<u64> = y
        .chunks(128)
        .map(|tile| 2 << 62 | u64::from(tile[127]))
        .collect();
    e.exact("state", &state);
    e.exact("next", &[c.grid[0]]);
    e.exact("y", &y);
}

/// exp of `x - high`: two or three roundings of the argument, which the exponential magnifies by
/// its size, and its own 2 ulp.
fn softmax(c: &LaunchInputs, e: &mut Expected) {
    let x = c.values("x");
    let cols = c.size("cols");
    let chain = cols.div_ceil(c.block[0] as usize) + 5 + 4;
    let mut out = Vec::new();
    for row in x.chunks(cols) {
        let high = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let reach = row.iter().map(|v| high - v).fold(0.0, f64::max);
        let sum: f64 = row.iter().map(|v| (v - high).exp()).sum();
        // The online form rescales its sum once a step, an exponential and a product each time.
        let relative = (chain as f64 * 8.0 + reach * 8.0) * UNIT;
        out.extend(row.iter().map(|v| {
            let y = (v - high).exp() / sum;
            (y, y * relative + f64::from(f32::MIN_POSITIVE))
        }));
    }
    e.near("y", out);
}

fn rmsnorm(c: &LaunchInputs, e: &mut Expected) {
    let (x, weight, cols, eps) = (
        c.values("x"),
        c.values("weight"),
        c.size("cols"),
        c.values("eps")[0],
    );
    let chain = cols.div_ceil(c.block[0] as usize) + 5 + 3 + 2;
    e.near(
        "y",
        x.chunks(cols).flat_map(|row| {
            let scale = 1.0 / (row.iter().map(|v| v * v).sum::<f64>() / cols as f64 + eps).sqrt();
            let out: Vec<_> = row
                .iter()
                .zip(&weight)
                .map(|(v, w)| (v * scale * w, rounded(chain / 2 + 6, (v * scale * w).abs())))
                .collect();
            out
        }),
    );
}

fn rmsnorm_bf16(c: &LaunchInputs, e: &mut Expected) {
    let (x, weight, eps) = (c.values("x"), c.values("weight"), c.values("eps")[0]);
    e.near(
        "y",
        x.chunks(256).flat_map(|row| {
            let scale = 1.0 / (row.iter().map(|v| v * v).sum::<f64>() / 256.0 + eps).sqrt();
            // The f32 error, and then half a unit of bf16's eight digits.
            let out: Vec<_> = row
                .iter()
                .zip(&weight)
                .map(|(v, w)| {
                    let y = v * scale * w;
                    (y, rounded(16, y.abs()) + y.abs() / 256.0)
                })
                .collect();
            out
        }),
    );
}

fn layernorm(c: &LaunchInputs, e: &mut Expected) {
    let (x, gamma, beta) = (c.values("x"), c.values("gamma"), c.values("beta"));
    let (cols, eps) = (c.size("cols"), c.values("eps")[0]);
    let chain = cols.div_ceil(c.block[0] as usize) + 5 + 8 + 1;
    e.near(
        "y",
        x.chunks(cols).flat_map(|row| {
            let n = cols as f64;
            let mean = row.iter().sum::<f64>() / n;
            let mean_error = rounded(chain, row.iter().map(|v| v.abs()).sum::<f64>() / n);
            let scale =
                1.0 / (row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n + eps).sqrt();
            let out: Vec<_> = row
                .iter()
                .zip(gamma.iter().zip(&beta))
                .map(|(v, (g, b))| {
                    let y = (v - mean) * scale * g;
                    let moved = mean_error + rounded(1, v.abs() + mean.abs());
                    (
                        y + b,
                        rounded(chain / 2 + 8, y.abs() + b.abs()) + 2.0 * moved * scale * g.abs(),
                    )
                })
                .collect();
            out
        }),
    );
}

fn cub_reduce(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<i32> = c.get("x");
    e.exact(
        "sums",
        &x.chunks(512).map(|b| b.iter().sum()).collect::<Vec<i32>>(),
    );
    e.exact(
        "highs",
        &x.chunks(512)
            .map(|b| b.iter().copied().max().unwrap_or(0))
            .collect::<Vec<i32>>(),
    );
    // A thread's first item is every fourth of the block's.
    e.exact(
        "warps",
        &x.chunks(128)
            .map(|w| w.iter().step_by(4).sum())
            .collect::<Vec<i32>>(),
    );
}

fn cub_scan(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<u32> = c.get("x");
    let inclusive: Vec<u32> = x.chunks(256).flat_map(running).collect();
    e.exact(
        "exclusive",
        &inclusive
            .iter()
            .zip(&x)
            .map(|(s, v)| s - v)
            .collect::<Vec<u32>>(),
    );
    e.exact(
        "totals",
        &inclusive.chunks(256).map(|b| b[255]).collect::<Vec<u32>>(),
    );
    e.exact("inclusive", &inclusive);
    // Thread t gets items t, t + 64, ... of its block.
    let striped: Vec<u32> = (0..x.len())
        .map(|i| x[i / 256 * 256 + i % 256 / 4 + i % 4 * 64])
        .collect();
    e.exact("striped", &striped);
}

fn attention(c: &LaunchInputs, e: &mut Expected) {
    let (q, k, v) = (c.values("q"), c.values("k"), c.values("v"));
    let (length, causal) = (c.size("length"), c.size("causal") != 0);
    let mut out = Vec::new();
    for row in 0..length {
        let last = if causal { row + 1 } else { length };
        let dot = |j: usize| {
            q[row * 64..][..64]
                .iter()
                .zip(&k[j * 64..])
                .map(|(a, b)| (a * b, (a * b).abs()))
        };
        let scores: Vec<f64> = (0..last)
            .map(|j| dot(j).map(|p| p.0).sum::<f64>() / 8.0)
            .collect();
        let score_error = (0..last)
            .map(|j| rounded(8, dot(j).map(|p| p.1).sum::<f64>() / 8.0))
            .fold(0.0, f64::max);
        let high = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - high).exp()).collect();
        let sum: f64 = weights.iter().sum();
        // A weight is rescaled at most once a step, by an approximate exponential good to about
        // 2^-21.
        let relative = 2.0 * score_error + last as f64 * 16.0 * UNIT;
        for d in 0..64 {
            let y = (0..last).map(|j| weights[j] * v[j * 64 + d]).sum::<f64>() / sum;
            let size = (0..last)
                .map(|j| weights[j] * v[j * 64 + d].abs())
                .sum::<f64>()
                / sum;
            out.push((y, 2.0 * relative * size));
        }
    }
    e.near("o", out);
}
