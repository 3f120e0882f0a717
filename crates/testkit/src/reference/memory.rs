//! Data movement: transposes, shared and constant memory, parameters, vectors, asynchronous copies.

use super::bounds::summed;
use super::entry::Reference;
use crate::data::{Expected, LaunchInputs};
use crate::rng::RecordedRng;

pub(super) const TABLE: &[Reference] = &[
    Reference::new("transpose_f32", transpose_f32),
    Reference::new("transpose_f16", transpose_f16),
    Reference::new("dynamic_shared", dynamic_shared),
    Reference::new("large_shared", large_shared),
    Reference::new("constants", constants),
    Reference::new("local_array", local_array),
    Reference::made("struct_param", make_struct, struct_param),
    Reference::made("large_param", make_table, large_param),
    Reference::new("vector_copy", vector_copy),
    Reference::new("vector_kinds", vector_kinds),
    Reference::new("generic_space", generic_space),
    Reference::new("double_buffered", double_buffered),
    Reference::new("three_stages", three_stages),
    Reference::new("zero_fill", zero_fill),
];

fn turned<T: Copy>(x: &[T], rows: usize, cols: usize) -> Vec<T> {
    (0..rows * cols)
        .map(|i| x[i % rows * cols + i / rows])
        .collect()
}

fn transpose_f32(c: &LaunchInputs, e: &mut Expected) {
    e.exact(
        "y",
        &turned(&c.get::<u32>("x"), c.size("rows"), c.size("cols")),
    );
}

fn transpose_f16(c: &LaunchInputs, e: &mut Expected) {
    e.exact("y", &turned(&c.get::<u16>("x"), c.size("n"), c.size("n")));
}

fn dynamic_shared(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<f32> = c.get("x");
    let (mut y, mut order) = (Vec::new(), Vec::new());
    for block in x.chunks(64) {
        let half = |t: usize| f64::from(block[63 - t]) * 0.5;
        for t in 0..64 {
            y.push((half(t) + f64::from(block[63])) as f32);
            order.push((t ^ 5) as u32 | u32::from(half(t) > half(t ^ 1)) << 16);
        }
    }
    e.exact("y", &y);
    e.exact("order", &order);
}

fn large_shared(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<u32> = c.get("x");
    let mut y = vec![0u32; x.len()];
    for (i, v) in x.iter().enumerate() {
        y[24575 - i * 5 % 24576] = *v;
    }
    e.exact("y", &y);
    e.exact("size", &[98304u32]);
}

fn constants(c: &LaunchInputs, e: &mut Expected) {
    let (x, taps) = (c.get::<f32>("x"), c.get::<f32>("taps"));
    let text = b"feRcuda runs kernels with and without a GPU";
    let steps = [1.0f32, -2.0, 300.0];
    e.exact(
        "y",
        &x.iter()
            .enumerate()
            .map(|(t, v)| v * taps[t % 16] + (2.5 * steps[t % 3] - 7.0))
            .collect::<Vec<f32>>(),
    );
    e.exact(
        "name",
        &(0..128).map(|t| text[t % text.len()]).collect::<Vec<u8>>(),
    );
    e.exact("launches", &[42u32]);
    e.exact("seen", &[1i64, 2, -45, 9]);
}

fn local_array(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<u32> = c.get("x");
    e.exact(
        "digits",
        &x.iter()
            .flat_map(|v| format!("{v:<10}").into_bytes())
            .collect::<Vec<u8>>(),
    );
    e.exact(
        "permuted",
        &x.iter()
            .map(|&v| {
                let mut p: Vec<u32> = (0..16).collect();
                for k in (1..16).rev() {
                    p.swap(k, (v >> k) as usize % (k + 1));
                }
                p.iter().fold(0u32, |h, k| {
                    h.wrapping_mul(33)
                        .wrapping_add(*k)
                        .wrapping_add(v.wrapping_mul(k + 1))
                })
            })
            .collect::<Vec<u32>>(),
    );
    e.exact(
        "window",
        &x.iter()
            .map(|&v| {
                let mut ring = [1u32; 8];
                for k in 0..v & 63 {
                    let add = ring[(k * 3 + 1) as usize % 8] ^ k;
                    let at = &mut ring[k.wrapping_add(v) as usize % 8];
                    *at = at.wrapping_add(add);
                }
                ring.iter()
                    .fold(0u32, |s, r| s.wrapping_mul(5).wrapping_add(*r))
            })
            .collect::<Vec<u32>>(),
    );
}

/// Fields at their offsets: tag 0, scale 8, six steps from 16, two biases from 28, seed 40. Values
/// are whole numbers of sixteenths, so that sums are exact.
fn make_struct(c: &mut LaunchInputs, rng: &mut RecordedRng) {
    let mut bytes = [0u8; 48];
    bytes[0] = rng.below(100) as u8;
    bytes[8..16].copy_from_slice(&[0.25f64, 0.5, 2.0, 4.0][rng.below(4) as usize].to_le_bytes());
    for i in 0..6 {
        bytes[16 + 2 * i..][..2].copy_from_slice(&(rng.next() as i16).to_le_bytes());
    }
    for i in 0..2 {
        bytes[28 + 4 * i..][..4]
            .copy_from_slice(&(rng.below(4096) as f32 / 16.0 - 128.0).to_le_bytes());
    }
    bytes[40..48].copy_from_slice(&rng.next().to_le_bytes());
    c.put("s", &bytes);
    c.put(
        "odd",
        &[rng.next() as u8, rng.next() as u8, rng.next() as u8],
    );
}

fn struct_param(c: &LaunchInputs, e: &mut Expected) {
    let (s, odd) = (c.get::<u8>("s"), c.get::<u8>("odd"));
    let scale = f64::from_bits(bytemuck::pod_read_unaligned(&s[8..16]));
    let steps: [i16; 6] = bytemuck::pod_read_unaligned(&s[16..28]);
    let bias: [f32; 2] = bytemuck::pod_read_unaligned(&s[28..36]);
    let seed: u64 = bytemuck::pod_read_unaligned(&s[40..48]);
    e.exact(
        "y",
        &(0..64)
            .map(|t| {
                let parts = [
                    f64::from(steps[t % 6]) * scale,
                    bias[t % 2].into(),
                    (seed >> (t % 32) & 15) as f64,
                    f64::from(s[0] as i8),
                    odd[t % 3].into(),
                ];
                parts.iter().sum()
            })
            .collect::<Vec<f64>>(),
    );
}

fn make_table(c: &mut LaunchInputs, rng: &mut RecordedRng) {
    let table: Vec<u32> = (0..1152).map(|_| rng.next() as u32).collect();
    c.put("table", &table);
}

fn large_param(c: &LaunchInputs, e: &mut Expected) {
    let (table, shift) = (c.get::<u32>("table"), c.size("shift"));
    let one = |t: usize| {
        table
            .iter()
            .skip(t)
            .step_by(256)
            .fold(0u32, |s, v| s.wrapping_add(v >> shift))
            ^ table[t * 37 % 1152]
    };
    e.exact("y", &(0..256).map(one).collect::<Vec<u32>>());
}

fn vector_copy(c: &LaunchInputs, e: &mut Expected) {
    e.exact("y", &c.get::<u32>("x"));
}

fn vector_kinds(c: &LaunchInputs, e: &mut Expected) {
    let (a, b, d) = (c.get::<u8>("a"), c.get::<u16>("b"), c.get::<i32>("d"));
    let f: Vec<f64> = c.get("c");
    e.exact(
        "r",
        &(0..64)
            .map(|t| {
                let first: u32 = (0..4)
                    .map(|k| u32::from(a[4 * t + k]) * [1, 3, 5, 7][k])
                    .sum();
                let second = u32::from(b[2 * t]) * 11 + u32::from(b[2 * t + 1]) * 13;
                let third = (0..4).fold(0i32, |s, k| {
                    s.wrapping_add(d[4 * t + k].wrapping_mul([1, 3, 9, 27][k]))
                });
                first ^ second ^ third as u32
            })
            .collect::<Vec<u32>>(),
    );
    e.exact(
        "s",
        &(0..64)
            .map(|t| f[2 * t] - f[2 * t + 1])
            .collect::<Vec<f64>>(),
    );
    e.exact(
        "bytes",
        &(0..64)
            .flat_map(|t| {
                [
                    a[4 * t + 3],
                    a[4 * t + 2],
                    a[4 * t + 1],
                    a[4 * t].wrapping_add(1),
                ]
            })
            .collect::<Vec<u8>>(),
    );
}

fn generic_space(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<i32> = c.get("x");
    e.exact(
        "y",
        &(0..32usize)
            .map(|t| match t % 3 {
                0 => x[(t + 1) % 32].wrapping_mul(2).wrapping_add(1000),
                1 => x[t].wrapping_add(t as i32 % 4 + 1).wrapping_add(2000),
                _ => x[31 - t].wrapping_add(3000),
            })
            .collect::<Vec<i32>>(),
    );
}

fn double_buffered(c: &LaunchInputs, e: &mut Expected) {
    let (x, tiles) = (c.values("x"), c.size("tiles"));
    e.near(
        "sums",
        x.chunks(tiles * 64)
            .flat_map(|mine| {
                (0..64).map(move |t| summed(mine.chunks(64).map(|s| s[t] * s[63 - t]), tiles + 1))
            })
            .collect::<Vec<_>>(),
    );
}

fn three_stages(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<u32> = c.get("x");
    let one = |i: usize| {
        (0..16).fold(0u32, |r, tile| {
            r.wrapping_mul(3)
                .wrapping_add(x[i / 128 * 2048 + tile * 128 + ((i % 128) ^ 1)])
        })
    };
    e.exact("y", &(0..256).map(one).collect::<Vec<u32>>());
}

fn zero_fill(c: &LaunchInputs, e: &mut Expected) {
    let mut x: Vec<u32> = c.get("x");
    x.resize(128, 0);
    e.exact("y", &x);
}
