//! Kernels measured by themselves, on one thread: products of matrices, and work on arrays.

use std::time::Instant;

use fercuda_softgpu::exec::{CompileOptions, Executor};

use crate::kernels::{
    ADD, FRAGMENTS, GLOBAL_HISTOGRAM, GROUP_FORMS, GROUP_STEPS, HISTOGRAM, MMA_FORMS, MMA_STEPS,
    REDUCE, SCALE_ADD, TILES, TRANSPOSE, group_kernel, mma_kernel,
};
use crate::machine::{Machine, Outcome, load};

/// Elements of each array.
const LEN: usize = 1 << 22;
/// Its bytes.
const BYTES: u64 = 4 * LEN as u64;
/// Elements of a row of the matrix that is transposed.
const SIDE: u32 = 1 << 11;
/// Rounds of each warp of products, and the blocks of a warp each.
const ROUNDS: u32 = 512;
const WARPS: u32 = 8;
/// A figure is the median of launches that take so long together, and of at least three.
const SECONDS: f64 = 0.4;

/// A kernel that is measured.
pub(crate) struct SpeedRow {
    pub(crate) name: &'static str,
    pub(crate) checks: bool,
    text: String,
    grid: [u32; 3],
    block: [u32; 3],
    /// The last parameter.
    count: u32,
    /// What a launch does, in `unit`s.
    work: f64,
    pub(crate) unit: &'static str,
    /// An element made of any bits.
    element: fn(u32) -> u32,
    is_right: fn(&[u32], &[u32], &[u32]) -> bool,
}

/// All that are measured.
pub(crate) fn all() -> Vec<SpeedRow> {
    let mut rows = Vec::new();
    let macs = |name, text, macs: u32| SpeedRow {
        name,
        checks: false,
        text,
        grid: [WARPS, 1, 1],
        block: [32, 1, 1],
        count: ROUNDS,
        work: f64::from(macs) * f64::from(ROUNDS) * f64::from(WARPS) / 1e6,
        unit: "M multiply-adds/s",
        element: small_float,
        is_right: |_, _, _| true,
    };
    for form in &MMA_FORMS {
        rows.push(macs(form.name, mma_kernel(form), form.macs * MMA_STEPS));
    }
    for form in &GROUP_FORMS {
        rows.push(SpeedRow {
            grid: [1, 1, 1],
            block: [128, 1, 1],
            count: 16,
            work: f64::from(form.macs * GROUP_STEPS) * 16.0 / 1e6,
            ..macs(form.name, group_kernel(form), form.macs)
        });
    }
    rows.push(macs("ldmatrix and mma f16", TILES.into(), 4096));
    rows.push(macs("wmma f16 with loads", FRAGMENTS.into(), 4096));
    let n = LEN as u32;
    let arrays = |name, text: &str, blocks, block, bytes: u64, is_right| SpeedRow {
        name,
        checks: false,
        text: text.to_owned(),
        grid: [blocks, 1, 1],
        block,
        count: n,
        work: bytes as f64 / 1e9,
        unit: "GB/s",
        element: small_float,
        is_right,
    };
    let wide = [256, 1, 1];
    rows.push(arrays("vector add", ADD, n / 256, wide, 3 * BYTES, added));
    let scaled = arrays(
        "vector scale and add, by four",
        SCALE_ADD,
        n / 1024,
        wide,
        3 * BYTES,
        scaled_added,
    );
    rows.push(SpeedRow {
        count: n / 4,
        ..scaled
    });
    rows.push(arrays("sum", REDUCE, n / 4096, wide, BYTES, summed));
    let transposed = arrays("transpose", TRANSPOSE, 1, [32, 8, 1], 2 * BYTES, transposed);
    rows.push(SpeedRow {
        count: SIDE,
        grid: [SIDE / 32, SIDE / 32, 1],
        ..transposed
    });
    let blocks = [
        ("histogram", HISTOGRAM, n / 4096),
        ("histogram in global memory", GLOBAL_HISTOGRAM, n / 256),
    ];
    for (name, text, blocks) in blocks {
        rows.push(SpeedRow {
            element: |x| x,
            ..arrays(name, text, blocks, wide, BYTES, counted)
        });
    }
    rows
}

/// A small integer, so that sums are exact.
fn small_float(x: u32) -> u32 {
    ((x & 63) as f32).to_bits()
}

fn value(x: u32) -> f32 {
    f32::from_bits(x)
}

fn added(a: &[u32], b: &[u32], c: &[u32]) -> bool {
    let mut all = a.iter().zip(b).zip(c);
    all.all(|((a, b), c)| value(*a) + value(*b) == value(*c))
}

fn scaled_added(a: &[u32], b: &[u32], c: &[u32]) -> bool {
    let mut all = a.iter().zip(b).zip(c);
    all.all(|((a, b), c)| 2.0 * value(*a) + value(*b) == value(*c))
}

fn summed(a: &[u32], _: &[u32], c: &[u32]) -> bool {
    let mut all = a.chunks(4096).zip(c);
    all.all(|(part, c)| part.iter().map(|x| value(*x)).sum::<f32>() == value(*c))
}

fn transposed(a: &[u32], _: &[u32], c: &[u32]) -> bool {
    let side = SIDE as usize;
    (0..LEN).all(|i| c[i] == a[i % side * side + i / side])
}

/// Whether the counts are in proportion: each launch has added as much.
fn counted(a: &[u32], _: &[u32], c: &[u32]) -> bool {
    let mut bins = [0u32; 256];
    for x in a {
        bins[(x & 255) as usize] += 1;
    }
    let total: u32 = c[..256].iter().sum();
    total > 0
        && (0..256).all(|i| u64::from(c[i]) * LEN as u64 == u64::from(bins[i]) * u64::from(total))
}

impl SpeedRow {
    /// Units a second of processor time, with the answer looked at.
    pub(crate) fn measure(&self) -> Outcome<f64> {
        let machine = Machine::new(self.checks, 3 * BYTES)?;
        let mut words = vec![0u32; 2 * LEN];
        for (n, w) in (0u32..).zip(&mut words) {
            let x = n.wrapping_mul(0x9e37_79b1) >> 16;
            *w = (self.element)(x);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        machine.space.write(0, machine.at, &bytes, None)?;
        // Touched, as memory in use is.
        let third = machine.at + 2 * BYTES;
        machine
            .space
            .write(0, third, &vec![0; BYTES as usize], None)?;
        let mut params = Vec::new();
        if self.unit == "GB/s" {
            for n in 0..3 {
                params.extend((machine.at + n * BYTES).to_le_bytes());
            }
        } else {
            params.extend(machine.at.to_le_bytes());
        }
        params.extend(self.count.to_le_bytes());
        let executor = Executor::new(1);
        let loaded = load(&self.text, &CompileOptions::default())?;
        let mut times = Vec::new();
        let begun = Instant::now();
        while times.len() < 3 || begun.elapsed().as_secs_f64() < SECONDS {
            let before = processor_seconds();
            let stats = machine.run(&executor, &loaded, self.grid, self.block, &params)?;
            times.push(match (before, processor_seconds()) {
                (Some(before), Some(after)) => after - before,
                _ => stats.elapsed.as_secs_f64(),
            });
        }
        let mut out = vec![0; BYTES as usize];
        machine.space.read(0, third, &mut out, None)?;
        let c: Vec<u32> = out
            .as_chunks()
            .0
            .iter()
            .map(|w| u32::from_le_bytes(*w))
            .collect();
        if !(self.is_right)(&words[..LEN], &words[LEN..], &c) {
            return Err(format!("{}: a wrong answer", self.name).into());
        }
        Ok(self.work / median(&mut times))
    }
}

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// How long this thread has run, where the system counts it.
fn processor_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: u64 = text.split(' ').next()?.parse().ok()?;
    Some(nanoseconds as f64 / 1e9)
}
