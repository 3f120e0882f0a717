//! Results of atomics, for every order of execution.

use half::{bf16, f16};

use super::entry::Reference;
use crate::data::{Expected, LaunchInputs};
use crate::rng::RecordedRng;

pub(super) const TABLE: &[Reference] = &[
    Reference::made("atomics_global", make_global, atomics_global),
    Reference::new("atomics_shared", atomics_shared),
    Reference::new("atomics_returned", atomics_returned),
    Reference::made("cas_loops", make_cas, cas_loops),
    Reference::new("spin_lock", spin_lock),
    Reference::new("hash_insert", hash_insert),
    Reference::new("atomics_float", atomics_float),
    Reference::new("histogram_shared", histogram_shared),
    Reference::new("histogram_match", histogram_match),
];

fn make_global(c: &mut LaunchInputs, _: &mut RecordedRng) {
    c.put(
        "r",
        &[
            5u32,
            6,
            u32::MAX,
            0,
            u32::MAX,
            0,
            0,
            i32::MAX as u32,
            i32::MIN as u32,
        ],
    );
    c.put("w", &[7u64, u64::MAX, 0, i64::MAX as u64, u64::MAX, 0, 1]);
}

fn atomics_global(c: &LaunchInputs, e: &mut Expected) {
    let (x, wide): (Vec<u32>, Vec<u64>) = (c.get("x"), c.get("wide"));
    let sum = x.iter().fold(0u32, |s, v| s.wrapping_add(*v));
    let signed = || x.iter().map(|v| *v as i32);
    e.exact(
        "r",
        &[
            sum.wrapping_add(5),
            6u32.wrapping_sub(sum),
            x.iter().copied().min().unwrap_or(0),
            x.iter().copied().max().unwrap_or(0),
            x.iter().fold(u32::MAX, |s, v| s & (v | 0xfffe_0000)),
            x.iter().fold(0, |s, v| s | (v & 0x0001_ffff)),
            x.iter().fold(0, |s, v| s ^ v),
            signed().min().unwrap_or(0) as u32,
            signed().max().unwrap_or(0) as u32,
        ],
    );
    e.exact(
        "w",
        &[
            wide.iter().fold(7u64, |s, v| s.wrapping_add(*v)),
            wide.iter().copied().min().unwrap_or(0),
            wide.iter().copied().max().unwrap_or(0),
            wide.iter().map(|v| *v as i64).min().unwrap_or(0) as u64,
            wide.iter()
                .fold(u64::MAX, |s, v| s & (v | 0xffff_ffff_0000_0000)),
            wide.iter().fold(0, |s, v| s | (v & 0xffff)),
            wide.iter().fold(1, |s, v| s ^ v),
        ],
    );
}

fn atomics_shared(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<i32> = c.get("x");
    let out: Vec<i32> = x
        .chunks(64)
        .flat_map(|b| {
            let sum = b.iter().fold(0i32, |s, v| s.wrapping_add(*v));
            [
                sum,
                0i32.wrapping_sub(sum),
                b.iter().map(|v| *v as u32).max().unwrap_or(0) as i32,
                b.iter().copied().min().unwrap_or(0),
                b.iter().fold(0, |s, v| s | (v & 0x0101_0101)),
                b.iter().fold(-1, |s, v| s & (v | 0x7fff_fff0)),
                b.iter().fold(0, |s, v| s ^ v),
                3 * 64,
            ]
        })
        .collect();
    e.exact("r", &out);
}

fn atomics_returned(c: &LaunchInputs, e: &mut Expected) {
    let threads = c.threads();
    let mut seen = vec![0u32; 384];
    let mut counter = [0u32; 3];
    for _ in 0..threads {
        seen[counter[0] as usize] += 1;
        counter[0] += 1;
        seen[128 + counter[1] as usize] += 1;
        counter[1] = if counter[1] >= 15 { 0 } else { counter[1] + 1 };
        seen[256 + counter[2] as usize] += 1;
        counter[2] = if counter[2] == 0 || counter[2] > 9 {
            9
        } else {
            counter[2] - 1
        };
    }
    e.exact("counter", &counter);
    e.exact("seen", &seen);
}

fn make_cas(c: &mut LaunchInputs, _: &mut RecordedRng) {
    c.put("high", &[-1e30f32]);
    c.put("product", &[1u32]);
}

fn cas_loops(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<f32> = c.get("x");
    e.exact("high", &[x.iter().copied().fold(-1e30f32, f32::max)]);
    e.exact(
        "product",
        &[x.iter().fold(1u64, |p, v| {
            p * u64::from(v.to_bits() % 1000 + 1) % 1_000_003
        }) as u32],
    );
    let n = x.len() as u64;
    e.exact("pair", &[n | (n / 2) << 32]);
    e.exact("narrow", &[(n / 2 * 3) as u16; 2]);
}

fn spin_lock(c: &LaunchInputs, e: &mut Expected) {
    let (mut a, mut b) = (0u32, 0u32);
    for _ in 0..c.threads() {
        b = b.wrapping_add(a);
        a += 1;
    }
    e.exact("shared_value", &[a, b]);
    e.exact("lock", &[0u32]);
}

fn hash_insert(c: &LaunchInputs, e: &mut Expected) {
    let keys: Vec<u32> = c.get("keys");
    e.exact(
        "found",
        &keys
            .iter()
            .enumerate()
            .map(|(i, k)| {
                keys[i / 128 * 128..][..128]
                    .iter()
                    .filter(|o| *o == k)
                    .count() as u32
            })
            .collect::<Vec<_>>(),
    );
}

fn atomics_float(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<i32> = c.get("x");
    let sum = |keep: &dyn Fn(usize) -> bool| {
        x.iter()
            .enumerate()
            .filter(|(i, _)| keep(*i))
            .map(|(_, v)| *v)
            .sum::<i32>()
    };
    e.exact(
        "single",
        &[sum(&|i| i % 2 == 0) as f32, sum(&|i| i % 2 == 1) as f32],
    );
    e.exact("twice", &[f64::from(sum(&|_| true)) * 0.25]);
    e.exact(
        "halves",
        &[
            f16::from_f32(sum(&|_| true) as f32),
            f16::from_f32(x.len() as f32 * 0.5),
        ],
    );
    e.exact(
        "brains",
        &[
            bf16::from_f32(sum(&|i| i % 64 < 16) as f32),
            bf16::from_f32(64.0),
        ],
    );
    e.exact(
        "one_half",
        &[
            f16::ZERO,
            f16::from_f32(x.iter().map(|v| v & 1).sum::<i32>() as f32),
        ],
    );
    e.exact(
        "in_block",
        &x.chunks(64)
            .map(|b| b.iter().sum::<i32>() as f32 * 0.5)
            .collect::<Vec<f32>>(),
    );
}

fn counts(data: &[u8], bins: usize) -> Vec<u32> {
    let mut out = vec![0; bins];
    data.iter().for_each(|b| out[usize::from(*b)] += 1);
    out
}

fn histogram_shared(c: &LaunchInputs, e: &mut Expected) {
    e.exact("bins", &counts(&c.get::<u8>("data"), 256));
}

fn histogram_match(c: &LaunchInputs, e: &mut Expected) {
    e.exact("bins", &counts(&c.get::<u8>("data"), 16));
}
