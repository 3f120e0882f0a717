//! Whole algorithms: sorting, stencils, transforms, graphs, hashing, text.

use sha2::Digest;

use super::bounds::{UNIT, rounded, summed};
use super::entry::Reference;
use crate::data::{Expected, LaunchInputs};
use crate::rng::RecordedRng;

pub(super) const TABLE: &[Reference] = &[
    Reference::new("bitonic_block", bitonic_block),
    Reference::new("bitonic_step", bitonic_step),
    Reference::new("radix_block", radix_block),
    Reference::new("cub_radix_sort", cub_radix_sort),
    Reference::new("stencil_1d", stencil_1d),
    Reference::new("stencil_2d", stencil_2d),
    Reference::new("stencil_3d", stencil_3d),
    Reference::new("mandelbrot", mandelbrot),
    Reference::new("nbody", nbody),
    Reference::new("fft", fft),
    Reference::made("spmv", make_sparse, spmv),
    Reference::new("philox", philox),
    Reference::new("xorshift", xorshift),
    Reference::new("sha256", sha256),
    Reference::new("crc32", crc32),
    Reference::made("find_all", make_text, find_all),
    Reference::new("edit_distance", edit_distance),
    Reference::made("bfs", make_graph, bfs),
    Reference::new("kmeans_assign", kmeans_assign),
    Reference::made("merge_path", make_sorted, merge_path),
];

fn bitonic_block(c: &LaunchInputs, e: &mut Expected) {
    let keys: Vec<u32> = c.get("keys");
    let (mut sorted, mut order) = (Vec::new(), Vec::new());
    for block in keys.chunks(512) {
        let mut pairs: Vec<(u32, u32)> = block.iter().copied().zip(0..).collect();
        pairs.sort_unstable();
        sorted.extend(pairs.iter().map(|p| p.0));
        order.extend(pairs.iter().map(|p| p.1));
    }
    e.exact("sorted", &sorted);
    e.exact("order", &order);
}

fn bitonic_step(c: &LaunchInputs, e: &mut Expected) {
    let (mut keys, span, apart) = (c.get::<f32>("keys"), c.size("span"), c.size("apart"));
    for i in (0..keys.len()).filter(|i| i & apart == 0) {
        let rising = i & span == 0;
        if rising == (keys[i] > keys[i + apart]) && keys[i] != keys[i + apart] {
            keys.swap(i, i + apart);
        }
    }
    e.exact("keys", &keys);
}

fn radix_block(c: &LaunchInputs, e: &mut Expected) {
    let mut keys: Vec<u32> = c.get("keys");
    keys.chunks_mut(256).for_each(<[u32]>::sort_unstable);
    e.exact("sorted", &keys);
}

fn cub_radix_sort(c: &LaunchInputs, e: &mut Expected) {
    let (mut sorted, mut order) = (Vec::new(), Vec::new());
    for block in c.get::<u32>("keys").chunks(256) {
        let mut pairs: Vec<(u32, u32)> = block.iter().map(|k| k & 0xffff).zip(0..).collect();
        pairs.sort_by_key(|p| p.0);
        sorted.extend(pairs.iter().map(|p| p.0));
        order.extend(pairs.iter().map(|p| p.1));
    }
    e.exact("sorted", &sorted);
    e.exact("order", &order);
    let mut floats: Vec<f32> = c.get("floats");
    floats
        .chunks_mut(256)
        .for_each(|b| b.sort_by(|x, y| y.total_cmp(x)));
    e.exact("falling", &floats);
}

fn stencil_1d(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<f32> = c.get("x");
    let at = |i: i64| {
        if i < 0 {
            0.0
        } else {
            x.get(i as usize).copied().unwrap_or(0.0)
        }
    };
    e.exact(
        "y",
        &(0..x.len() as i64)
            .map(|i| (0..7i64).fold(0.0f32, |s, k| s + at(i + k - 3) * (k + 1) as f32))
            .collect::<Vec<f32>>(),
    );
}

fn stencil_2d(c: &LaunchInputs, e: &mut Expected) {
    let (x, w, h) = (
        c.get::<f32>("x"),
        c.size("width") as i64,
        c.size("height") as i64,
    );
    let at = |r: i64, col: i64| x[(r.clamp(0, h - 1) * w + col.clamp(0, w - 1)) as usize];
    e.exact(
        "y",
        &(0..w * h)
            .map(|i| {
                let (r, col) = (i / w, i % w);
                0.5 * at(r, col)
                    + 0.125 * (at(r - 1, col) + at(r + 1, col) + at(r, col - 1) + at(r, col + 1))
            })
            .collect::<Vec<f32>>(),
    );
}

fn stencil_3d(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<f64> = c.get("x");
    let (nx, ny, nz) = (
        c.size("nx") as i64,
        c.size("ny") as i64,
        c.size("nz") as i64,
    );
    let at = |i: i64, j: i64, k: i64| {
        let inside = (0..nx).contains(&i) && (0..ny).contains(&j) && (0..nz).contains(&k);
        if inside {
            x[((k * ny + j) * nx + i) as usize]
        } else {
            0.0
        }
    };
    e.exact(
        "y",
        &(0..nx * ny * nz)
            .map(|p| {
                let (i, j, k) = (p % nx, p / nx % ny, p / nx / ny);
                let sides =
                    (at(i - 1, j, k) + at(i + 1, j, k)) + (at(i, j - 1, k) + at(i, j + 1, k));
                (at(i, j, k - 1) + at(i, j, k + 1)) + sides - 6.0 * at(i, j, k)
            })
            .collect::<Vec<f64>>(),
    );
}

fn mandelbrot(c: &LaunchInputs, e: &mut Expected) {
    let (w, h, limit) = (c.size("width"), c.size("height"), c.size("limit"));
    let count = |i: usize| {
        let cx = -2.0 + 3.0 * (i % w) as f32 / w as f32;
        let cy = -1.0 + 2.0 * (i / w) as f32 / h as f32;
        let (mut x, mut y, mut n) = (0.0f32, 0.0f32, 0);
        while n < limit && x * x + y * y <= 4.0 {
            (x, y) = (x * x - y * y + cx, 2.0 * x * y + cy);
            n += 1;
        }
        n as u16
    };
    e.exact("counts", &(0..w * h).map(count).collect::<Vec<u16>>());
}

fn nbody(c: &LaunchInputs, e: &mut Expected) {
    let (p, n, soft) = (c.values("position"), c.size("n"), c.values("softening")[0]);
    let mut out = Vec::new();
    for i in 0..n {
        let (mut sum, mut size) = ([0.0; 3], [0.0; 3]);
        for j in 0..n {
            let d: [f64; 3] = std::array::from_fn(|k| p[4 * j + k] - p[4 * i + k]);
            let f = p[4 * j + 3] * (d.iter().map(|v| v * v).sum::<f64>() + soft).powf(-1.5);
            for k in 0..3 {
                sum[k] += f * d[k];
                // A difference of coordinates is rounded in units of the coordinates.
                size[k] += (f * d[k]).abs();
            }
        }
        // n additions, and within a term about twenty roundings counting the approximate root's
        // cube.
        out.extend((0..3).map(|k| (sum[k], rounded(n + 24, size[k]))));
    }
    e.near("acceleration", out);
}

fn fft(c: &LaunchInputs, e: &mut Expected) {
    let x = c.values("x");
    let (mut spectrum, mut again) = (Vec::new(), Vec::new());
    for block in x.chunks(512) {
        let size: f64 = block.chunks(2).map(|z| z[0].hypot(z[1])).sum();
        // Eight stages of some eight roundings, twiddles included; the way back doubles them and
        // divides by 256.
        let bound = 64.0 * UNIT * size;
        for k in 0..256 {
            let (mut re, mut im) = (0.0, 0.0);
            for (j, z) in block.chunks(2).enumerate() {
                let (s, cs) =
                    (-2.0 * std::f64::consts::PI * (j * k % 256) as f64 / 256.0).sin_cos();
                re += z[0] * cs - z[1] * s;
                im += z[0] * s + z[1] * cs;
            }
            spectrum.extend([(re, bound), (im, bound)]);
        }
        again.extend(block.iter().map(|v| (*v, 2.0 * bound / 16.0)));
    }
    e.near("spectrum", spectrum);
    e.near("again", again);
}

fn cuts(count: usize, total: u64, rng: &mut RecordedRng) -> Vec<u32> {
    let mut at: Vec<u32> = (1..count).map(|_| rng.below(total + 1) as u32).collect();
    at.extend([0, total as u32]);
    at.sort_unstable();
    at
}

fn make_sparse(c: &mut LaunchInputs, rng: &mut RecordedRng) {
    let mut offsets = cuts(160, 2000, rng);
    // Empty rows happen on purpose, not only by luck.
    (offsets[11], offsets[12]) = (offsets[10], offsets[10]);
    c.put("offsets", &offsets);
    c.put(
        "columns",
        &(0..2000).map(|_| rng.below(300) as u32).collect::<Vec<_>>(),
    );
}

fn spmv(c: &LaunchInputs, e: &mut Expected) {
    let (offsets, columns) = (c.get::<u32>("offsets"), c.get::<u32>("columns"));
    let (values, x) = (c.values("values"), c.values("x"));
    let rows: Vec<_> = offsets
        .windows(2)
        .map(|w| {
            let range = w[0] as usize..w[1] as usize;
            summed(
                range.clone().map(|k| values[k] * x[columns[k] as usize]),
                range.len() + 6,
            )
        })
        .collect();
    e.near("by_thread", rows.clone());
    e.near("by_warp", rows);
}

fn philox(c: &LaunchInputs, e: &mut Expected) {
    let seed = c.get::<u64>("seed")[0];
    let mut bits = Vec::new();
    for i in 0..c.threads() as u32 {
        let mut x = [i, 0, 0x1234_5678, 0x9abc_def0];
        let mut key = [seed as u32, (seed >> 32) as u32];
        for _ in 0..10 {
            let a = u64::from(x[0]) * 0xd251_1f53;
            let b = u64::from(x[2]) * 0xcd9e_8d57;
            x = [
                (b >> 32) as u32 ^ x[1] ^ key[0],
                b as u32,
                (a >> 32) as u32 ^ x[3] ^ key[1],
                a as u32,
            ];
            key = [
                key[0].wrapping_add(0x9e37_79b9),
                key[1].wrapping_add(0xbb67_ae85),
            ];
        }
        bits.extend(x);
    }
    e.exact(
        "uniform",
        &bits
            .iter()
            .map(|v| (v >> 8) as f32 / 16_777_216.0)
            .collect::<Vec<f32>>(),
    );
    e.exact("bits", &bits);
}

fn xorshift(c: &LaunchInputs, e: &mut Expected) {
    let seeds: Vec<u32> = c.get("seeds");
    let last = seeds.chunks(4).map(|s| {
        let mut s: Vec<u32> = s.to_vec();
        let mut sum = 0u32;
        for _ in 0..100 {
            let t = s.remove(0);
            let t = t ^ t << 11;
            s.push(s[2] ^ s[2] >> 19 ^ t ^ t >> 8);
            sum = sum.wrapping_add(s[3]);
        }
        sum
    });
    e.exact("last", &last.collect::<Vec<u32>>());
}

fn sha256(c: &LaunchInputs, e: &mut Expected) {
    let (text, lengths) = (c.get::<u8>("text"), c.get::<u32>("lengths"));
    e.exact(
        "digests",
        &lengths
            .iter()
            .enumerate()
            .flat_map(|(i, n)| sha2::Sha256::digest(&text[i * 100..][..*n as usize]))
            .collect::<Vec<u8>>(),
    );
}

fn crc32(c: &LaunchInputs, e: &mut Expected) {
    let sums = c
        .get::<u8>("text")
        .chunks(100)
        .map(|text| {
            !text.iter().fold(!0u32, |crc, byte| {
                (0..8).fold(crc ^ u32::from(*byte), |v, _| {
                    if v & 1 == 1 {
                        v >> 1 ^ 0xedb8_8320
                    } else {
                        v >> 1
                    }
                })
            })
        })
        .collect::<Vec<u32>>();
    e.exact("sums", &sums);
}

fn make_text(c: &mut LaunchInputs, rng: &mut RecordedRng) {
    let mut letters = |n: usize| {
        (0..n)
            .map(|_| b'a' + rng.below(3) as u8)
            .collect::<Vec<u8>>()
    };
    c.put("text", &letters(1000));
    c.put("pattern", &letters(3));
}

fn find_all(c: &LaunchInputs, e: &mut Expected) {
    let (text, pattern) = (c.get::<u8>("text"), c.get::<u8>("pattern"));
    let mut places: Vec<u32> = (0..text.len())
        .filter(|i| text[*i..].starts_with(&pattern))
        .map(|i| i as u32)
        .collect();
    e.exact("count", &[places.len() as u32]);
    places.resize(1000, u32::MAX);
    e.exact("places", &places);
}

fn edit_distance(c: &LaunchInputs, e: &mut Expected) {
    let (a, b) = (c.get::<u8>("a"), c.get::<u8>("b"));
    let distance = |a: &[u8], b: &[u8]| {
        let mut d = vec![vec![0u32; b.len() + 1]; a.len() + 1];
        for i in 0..=a.len() {
            for j in 0..=b.len() {
                d[i][j] = if i == 0 || j == 0 {
                    (i + j) as u32
                } else {
                    (d[i - 1][j - 1] + u32::from(a[i - 1] != b[j - 1]))
                        .min(d[i - 1][j] + 1)
                        .min(d[i][j - 1] + 1)
                };
            }
        }
        d[a.len()][b.len()]
    };
    e.exact(
        "distance",
        &a.chunks(12)
            .zip(b.chunks(12))
            .map(|(a, b)| distance(a, b))
            .collect::<Vec<u32>>(),
    );
}

fn make_graph(c: &mut LaunchInputs, rng: &mut RecordedRng) {
    c.put("offsets", &cuts(200, 600, rng));
    c.put(
        "edges",
        &(0..600).map(|_| rng.below(200) as u32).collect::<Vec<_>>(),
    );
}

fn bfs(c: &LaunchInputs, e: &mut Expected) {
    let (offsets, edges) = (c.get::<u32>("offsets"), c.get::<u32>("edges"));
    let mut distance = vec![u32::MAX; 200];
    let mut queue = std::collections::VecDeque::from([0usize]);
    distance[0] = 0;
    while let Some(node) = queue.pop_front() {
        for to in &edges[offsets[node] as usize..offsets[node + 1] as usize] {
            if distance[*to as usize] == u32::MAX {
                distance[*to as usize] = distance[node] + 1;
                queue.push_back(*to as usize);
            }
        }
    }
    e.exact("distance", &distance);
}

fn kmeans_assign(c: &LaunchInputs, e: &mut Expected) {
    let (points, centres) = (c.get::<f32>("points"), c.get::<f32>("centres"));
    let (mut nearest, mut sums, mut counts) = (Vec::new(), vec![0i64; 24], vec![0u32; 8]);
    for p in points.chunks(3) {
        let far = |q: &[f32]| {
            let d = [p[0] - q[0], p[1] - q[1], p[2] - q[2]];
            d[0] * d[0] + d[1] * d[1] + d[2] * d[2]
        };
        let mut which = 0;
        for j in 1..8 {
            if far(&centres[3 * j..]) < far(&centres[3 * which..]) {
                which = j;
            }
        }
        nearest.push(which as u32);
        counts[which] += 1;
        for k in 0..3 {
            sums[3 * which + k] += (f64::from(p[k]) * 1_048_576.0).round_ties_even() as i64;
        }
    }
    e.exact("nearest", &nearest);
    e.exact("sums", &sums);
    e.exact("counts", &counts);
}

fn make_sorted(c: &mut LaunchInputs, rng: &mut RecordedRng) {
    for (name, n) in [("a", 300), ("b", 500)] {
        let mut v: Vec<u32> = (0..n).map(|_| rng.below(1000) as u32).collect();
        v.sort_unstable();
        c.put(name, &v);
    }
}

fn merge_path(c: &LaunchInputs, e: &mut Expected) {
    let mut all: Vec<u32> = c.get("a");
    all.extend(c.get::<u32>("b"));
    all.sort_unstable();
    e.exact("merged", &all);
}
