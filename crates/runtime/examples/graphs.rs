//! Measurement of a replay's cost beside the driver's own call, over a million replays.
//!
//! `cargo run --release -p fercuda-runtime --example graphs -- [OPTION=VALUE ...]`, with
//! `FERCUDA_DEVICE=gpu` on a GPU. Options, with their defaults: `replays=10000`
//! (0: none), `keys=64`, `fitting=48` (keys that the budget has room for), `stay=100`
//! (steps with one key, about), `compare=1000` (every so many, with the eager step),
//! `invalidate=20000`, `workers=1` (threads that replay, each a share
//! of the keys in a stream of its own), `churners=1`, `kernels=300`, `width=256`, `rows=8`,
//! `seconds=480`, `rounds=200` and `launches=16` (of the comparison of costs; 0: none),
//! `seed`.
//!
//! Fails if a result differs, or memory has grown.

#![expect(clippy::print_stdout, reason = "it is for people to read")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use fercuda_cuda::sys::Symbol;
use fercuda_cuda::sys::signatures::cuGraphLaunch;
use fercuda_cuda::sys::types::CUresult;
use fercuda_cuda::{CaptureMode, Context, Cuda, Stream};
use fercuda_runtime::{ArgumentBlock, GraphBudget, GraphCache, GraphKey, RecordOptions, Recording};

mod decode;

use decode::run::{Options, run};
use decode::{Model, Output, Result, Shape};

fn main() -> Result<ExitCode> {
    let mut options = Options {
        seed: fastrand::u64(..),
        replays: 10_000,
        keys: 64,
        fitting: 48,
        stay: 100,
        compare: 1000,
        invalidate: 20_000,
        workers: 1,
        churners: 1,
        longest: Duration::from_secs(480),
        shape: Shape {
            kernels: 300,
            width: 256,
            rows: 8,
        },
    };
    let (mut rounds, mut launches) = (200, 16);
    for argument in std::env::args().skip(1) {
        let (name, value) = argument.split_once('=').ok_or("NAME=VALUE")?;
        let value: u64 = value.parse()?;
        let small = u32::try_from(value);
        match name {
            "seed" => options.seed = value,
            "replays" => options.replays = value,
            "keys" => options.keys = small?,
            "fitting" => options.fitting = small?,
            "stay" => options.stay = value.max(1),
            "compare" => options.compare = value.max(1),
            "invalidate" => options.invalidate = value.max(1),
            "workers" => options.workers = small?.max(1),
            "churners" => options.churners = small?,
            "seconds" => options.longest = Duration::from_secs(value),
            "kernels" => options.shape.kernels = value as usize,
            "width" => options.shape.width = small?,
            "rows" => options.shape.rows = small?,
            "rounds" => rounds = value as usize,
            "launches" => launches = value as usize,
            other => return Err(format!("there is no option {other}").into()),
        }
    }
    let context = Context::primary(Cuda::from_env()?.device(0)?)?;
    println!("device       {}", context.device());
    println!("seed         {}", options.seed);
    let mut good = true;
    if rounds > 0 && launches > 0 {
        costs(&context, &options, rounds, launches)?;
    }
    if options.replays > 0 {
        good = many(&context, &options)?;
    }
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Measures replays through the cache, and launches of the same graph by the driver's function, in
/// turns.
fn costs(context: &Context, options: &Options, rounds: usize, launches: usize) -> Result<()> {
    let stream = Stream::new(context)?;
    let mut random = fastrand::Rng::with_seed(options.seed);
    let model = Model::new(&stream, options.shape, &mut random)?;
    let mut block = ArgumentBlock::new(&stream, model.layout.clone(), 64)?;
    let out = Output::new(&stream, options.shape)?;
    let cache = GraphCache::new(context, GraphBudget::default())?;
    let key = |number: u32| GraphKey {
        generation: 1,
        kind: 1,
        bucket: number,
        words: [8, 0],
    };
    let fields = model.fields;
    block.set(fields.kv_len, 1)?;
    block.push(&stream)?;
    // As many graphs for the driver's function, created in turns with the cache's, so that both
    // find the caches in the same state.
    let mut bare = Vec::new();
    for number in 0..2 * options.keys {
        let (number, bares) = (number / 2, [1, 2].contains(&(number % 4)));
        if bares {
            let capture = stream.begin_capture(CaptureMode::Relaxed)?;
            let none: Option<&Recording<'_, GraphKey>> = None;
            model.step(&stream, none, &block, &model.cache, (1, 8), &out)?;
            bare.push(capture.end()?.instantiate()?);
            continue;
        }
        let recording = cache.begin(key(number), &stream, RecordOptions::default())?;
        let it = Some(&recording);
        model.step(&stream, it, &block, &model.cache, (1, 8), &out)?;
        let recorded = recording.finish()?;
        if number == 0 {
            println!(
                "one graph    {} nodes, {} KiB of arena; host: capture {:?}, instantiate {:?}, upload {:?}",
                recorded.nodes,
                recorded.arena_bytes >> 10,
                recorded.capture,
                recorded.instantiate,
                recorded.upload
            );
        }
    }
    for exec in &mut bare {
        exec.upload(&stream)?;
        exec.launch(&stream)?;
    }
    let address = context.device().cuda().driver();
    let address = address.address(Symbol::cuGraphLaunch)?;
    // SAFETY: the table gives this signature for this symbol.
    let launch: cuGraphLaunch = unsafe { std::mem::transmute(address) };
    stream.synchronize()?;

    for (pattern, stays) in [("one graph a round", true), ("another each time", false)] {
        let (mut means, mut singles) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for round in 0..rounds {
            for turn in 0..2 {
                let which = (round + turn) % 2;
                let began = Instant::now();
                let mut before = began;
                for launched in 0..launches {
                    let number = if stays {
                        round
                    } else {
                        round * launches + launched
                    };
                    let number = number % options.keys as usize;
                    if which == 0 {
                        cache.replay(&key(number as u32), &stream)?;
                    } else {
                        // SAFETY: both are alive, and used by this thread alone.
                        let answer = unsafe { launch(bare[number].raw(), stream.raw()) };
                        assert_eq!(answer, CUresult::CUDA_SUCCESS);
                    }
                    let now = Instant::now();
                    singles[which].push((now - before).as_nanos() as f64);
                    before = now;
                }
                means[which].push(began.elapsed().as_nanos() as f64 / launches as f64);
                stream.synchronize()?;
            }
        }
        println!(
            "launches     {rounds} rounds of {launches}, {pattern} of {}, in turns",
            options.keys
        );
        let figures = |values: &mut Vec<f64>| {
            // The first ones find cold caches and a rising clock frequency.
            let cold = values.len() / 10;
            values.drain(..cold);
            values.sort_by(f64::total_cmp);
            (values[values.len() / 2], values[values.len() * 99 / 100])
        };
        let [replay, bare_launch] = means.each_mut().map(figures);
        let [replay_single, bare_single] = singles.each_mut().map(figures);
        for (name, mean, single) in [
            ("bare launch", bare_launch, bare_single),
            ("replay", replay, replay_single),
        ] {
            println!(
                "{name:12} ns: mean of a round, median {:9.1}; single ones, median {:9.1}, p99 {:9.1}",
                mean.0, single.0, single.1
            );
        }
        println!(
            "ratio        (to be at most 1.02) mean of a round, median {:.4}; single ones, median {:.4}, p99 {:.4}",
            replay.0 / bare_launch.0,
            replay_single.0 / bare_single.0,
            replay_single.1 / bare_single.1
        );
    }
    let timing = cache.replay_timed(&key(0), &stream)?.ok_or("it is there")?;
    println!("one replay   {:?}", timing.wait()?);
    Ok(())
}

fn many(context: &Context, options: &Options) -> Result<bool> {
    let report = run(context, options)?;
    let each = report.took.as_secs_f64() / report.replays.max(1) as f64;
    println!(
        "replays      {} of {} in {:.1} s, {:.1} us each; {} compared with the eager step, all equal",
        report.replays,
        options.replays,
        report.took.as_secs_f64(),
        each * 1e6,
        report.compared
    );
    println!(
        "graphs       {} captures, {:?}",
        report.captures, report.stats
    );
    println!("beside       {} allocations and frees", report.churned);
    println!("one entry    counts for {} KiB", report.graph_bytes >> 10);
    println!("at a tenth   {:?}", report.early);
    println!("at the end   {:?}", report.late);
    println!("before       {:?}", report.around[0]);
    println!("after        {:?}", report.around[1]);
    let back = report.around[0].pool_bytes == report.around[1].pool_bytes;
    let grown = report.late.device_bytes as f64 / report.early.device_bytes.max(1) as f64;
    let host = report
        .late
        .host_bytes
        .saturating_sub(report.early.host_bytes);
    println!(
        "grown        device by a factor of {grown:.4}, host by {} KiB, from a tenth of the replays to the end",
        host >> 10
    );
    println!("given back   {}", if back { "all" } else { "not all" });
    Ok(report.replays == options.replays && back && grown < 1.05 && host < 64 << 20)
}
