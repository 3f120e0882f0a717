//! Speed of the engine.
//!
//! `cargo run --release -p fercuda-softgpu --example speed` prints lane-operations a second, and
//! their ratio to plain Rust doing the same; then multiply-adds and bytes a second of one thread.
//! `-- --against PROGRAM` measures the latter by turns with another build of this example, and
//! prints both: `--turns N` times each, 5 unless said. `--row NAME` prints one figure.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod kernels;
mod machine;
mod rows;

use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use fercuda_softgpu::exec::{CompileOptions, Executor, LaunchStats, Loaded};

use kernels::{STEPS, fma_kernel, gemm_kernel};
use machine::{Machine, Outcome, load};
use rows::{SpeedRow, median};

const ROUNDS: u32 = 4096;
const N: usize = 256;
const ATTEMPTS: usize = 8;
/// Memory of the kernels that need little.
const SMALL: u64 = 1 << 20;

/// Runs both in turn, so that a disturbance meets both; the best time of each in seconds.
fn best(mut runs: [impl FnMut() -> Outcome<LaunchStats>; 2]) -> Outcome<[f64; 2]> {
    let mut best = [f64::INFINITY; 2];
    for _ in 0..ATTEMPTS {
        for (run, best) in runs.iter_mut().zip(&mut best) {
            *best = best.min(run()?.elapsed.as_secs_f64());
        }
    }
    Ok(best)
}

/// The chain again, one thread after the other: a scalar loop of fused multiply-adds.
fn plain_chain() -> f64 {
    if std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the processor has the one feature that it is compiled for.
        unsafe { plain_chain_fma() }
    } else {
        plain_chain_any()
    }
}

#[target_feature(enable = "fma")]
fn plain_chain_fma() -> f64 {
    plain_chain_any()
}

#[inline(always)]
fn plain_chain_any() -> f64 {
    let begun = Instant::now();
    let threads = 32;
    for t in 0..threads {
        let mut x = [t as f32; 8];
        let (a, b) = (black_box(0.999_999_05_f32), black_box(1e-3_f32));
        for _ in 0..ROUNDS {
            for k in 0..STEPS as usize {
                x[k % 8] = x[k % 8].mul_add(a, b);
            }
            black_box(&mut x);
        }
    }
    f64::from(threads) * f64::from(STEPS) * f64::from(ROUNDS) / begun.elapsed().as_secs_f64()
}

/// The product again, as three loops.
fn plain_gemm() -> f64 {
    let a = black_box(vec![1.5f32; N * N]);
    let b = black_box(vec![0.5f32; N * N]);
    let begun = Instant::now();
    let mut c = vec![0f32; N * N];
    for i in 0..N {
        for j in 0..N {
            let mut sum = 0f32;
            for k in 0..N {
                sum += a[i * N + k] * b[k * N + j];
            }
            c[i * N + j] = sum;
        }
    }
    black_box(&c);
    begun.elapsed().as_secs_f64()
}

/// The product on the device, and its answer looked at.
fn product(m: &Machine, executor: &Executor, gemm: &Arc<Loaded>) -> Outcome<LaunchStats> {
    let bytes = (N * N * 4) as u64;
    let fill = |period: usize| -> Vec<u8> {
        (0..N * N)
            .flat_map(|i| ((i % period) as f32).to_le_bytes())
            .collect()
    };
    m.space.write(0, m.at, &fill(7), None)?;
    m.space.write(0, m.at + bytes, &fill(5), None)?;
    let params: Vec<u8> = [m.at, m.at + bytes, m.at + 2 * bytes]
        .iter()
        .flat_map(|p| p.to_le_bytes())
        .collect();
    let stats = m.run(executor, gemm, [16, 16, 1], [16, 16, 1], &params)?;
    let mut c = vec![0; N * N * 4];
    m.space.read(0, m.at + 2 * bytes, &mut c, None)?;
    for (i, j) in [(0, 0), (17, 201), (255, 255)] {
        let want: f32 = (0..N)
            .map(|k| ((i * N + k) % 7 * ((k * N + j) % 5)) as f32)
            .sum();
        let at = (i * N + j) * 4;
        let got = f32::from_le_bytes([c[at], c[at + 1], c[at + 2], c[at + 3]]);
        assert_eq!(got, want, "element {i}, {j}");
    }
    Ok(stats)
}

/// The table of ratios to plain Rust.
fn against_plain() -> Outcome<()> {
    let plain = plain_chain();
    println!(
        "fma chain, plain Rust on one core      {:8.2} G operations/s",
        plain / 1e9
    );
    for baseline in [false, true] {
        let mut options = CompileOptions::default();
        options.baseline = baseline;
        let chain = load(&fma_kernel(), &options)?;
        let rounds = if baseline { 64 } else { ROUNDS };
        let times = best([false, true].map(|checks| {
            let (m, chain) = (Machine::new(checks, SMALL), &chain);
            move || {
                let m = m.as_ref().map_err(ToString::to_string)?;
                let mut params = m.at.to_le_bytes().to_vec();
                params.extend(rounds.to_le_bytes());
                m.run(&Executor::new(1), chain, [1, 1, 1], [256, 1, 1], &params)
            }
        }))?;
        for (seconds, checks) in times.into_iter().zip(["off", "on "]) {
            let rate = 256.0 * f64::from(STEPS) * f64::from(rounds) / seconds;
            println!(
                "fma chain, {}, checks {checks}       {:8.2} G lane-operations/s, {:.2} of plain",
                if baseline { "baseline" } else { "AVX2    " },
                rate / 1e9,
                rate / plain
            );
        }
    }
    let plain = plain_gemm();
    println!(
        "gemm 256^3, plain Rust on one core     {:8.2} ms",
        plain * 1e3
    );
    let gemm = load(&gemm_kernel(), &CompileOptions::default())?;
    for threads in [1, 2] {
        let executor = Executor::new(threads);
        let [off, on] = best([false, true].map(|checks| {
            let (m, executor, gemm) = (Machine::new(checks, SMALL), &executor, &gemm);
            move || product(m.as_ref().map_err(ToString::to_string)?, executor, gemm)
        }))?;
        let ratio = format!(", {:.2} times unchecked", on / off);
        for (seconds, checks, ratio) in [(off, "off", ""), (on, "on ", &ratio)] {
            println!(
                "gemm 256^3, {threads} threads, checks {checks}      {:8.2} ms, {:.2} of plain{ratio}",
                seconds * 1e3,
                seconds / plain
            );
        }
    }
    Ok(())
}

/// One figure of another build.
fn figure_of(program: &str, row: &SpeedRow) -> Outcome<f64> {
    let output = Command::new(program).args(["--row", row.name]).output()?;
    let text = String::from_utf8(output.stdout)?;
    let figure = text.trim().parse();
    figure.map_err(|_| format!("{program} --row \"{}\" prints no figure: {text}", row.name).into())
}

/// Both builds by turns.
fn compare(program: &str, turns: usize) -> Outcome<()> {
    let this = std::env::current_exe()?;
    let this = this.to_str().ok_or("this program's path is no text")?;
    println!("{:32}{:>10}{:>10}  ratio", "", "other", "this");
    for row in rows::all() {
        let (mut other, mut own) = (Vec::new(), Vec::new());
        for _ in 0..turns {
            other.push(figure_of(program, &row)?);
            own.push(figure_of(this, &row)?);
        }
        let (other, own) = (median(&mut other), median(&mut own));
        println!(
            "{:32}{other:10.2}{own:10.2}  {:5.2}  {}",
            row.name,
            own / other,
            row.unit
        );
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => {
            against_plain()?;
            for row in rows::all() {
                println!("{:32}{:10.2} {}", row.name, row.measure()?, row.unit);
            }
            Ok(())
        }
        ["--row", name] => {
            let row = rows::all().into_iter().find(|row| row.name == name);
            println!("{}", row.ok_or("no row of this name")?.measure()?);
            Ok(())
        }
        ["--against", program] => compare(program, 5),
        ["--against", program, "--turns", turns] => compare(program, turns.parse()?),
        _ => Err("try: no argument, --against PROGRAM [--turns N] or --row NAME".into()),
    }
}
