//! Measurement of the time from submitting a task until its result is visible, beside launching a
//! kernel
//! that does the same and waiting for its stream, in turns.
//!
//! `cargo run --release -p fercuda-dispatcher --example dispatcher -- [OPTION=VALUE ...]`,
//! with `FERCUDA_DEVICE=gpu` on a GPU. Options, with their defaults:
//! `tasks=20000`, `blocks=1`, `threads=32`, `idle=0` (nanoseconds of sleep), `batch=32`
//! (tasks submitted at once, for the rate).

#![expect(clippy::print_stdout, reason = "it is for people to read")]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fercuda_cuda::{Context, Cuda, Image, Launch, Module, SharedWords, Stream};
use fercuda_dispatcher::{DispatchOptions, Dispatcher, TaskArgs, TaskBuffers, TaskSet};
use fercuda_ptx::build::{Arch, ModuleBuilder};

const LONG: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = DispatchOptions {
        threads: 32,
        idle_ns: 0,
        ..DispatchOptions::default()
    };
    let (mut tasks, mut batch) = (20_000, 32);
    for argument in std::env::args().skip(1) {
        let (name, value) = argument.split_once('=').ok_or("NAME=VALUE")?;
        let value: u32 = value.parse()?;
        match name {
            "tasks" => tasks = value.max(100),
            "batch" => batch = value.clamp(1, options.capacity),
            "blocks" => options.blocks = value,
            "threads" => options.threads = value,
            "idle" => options.idle_ns = value,
            other => return Err(format!("there is no option {other}").into()),
        }
    }
    let context = Context::primary(Cuda::from_env()?.device(0)?)?;
    println!("device       {}", context.device());
    println!("options      {options:?}");

    // The same as a kernel: cell[0] += value.
    let mut module = ModuleBuilder::new(Arch::SM_80);
    module.kernel("bump", |k| {
        let cell = k.param_ptr::<u32>("cell");
        let value = k.param::<u32>("value");
        k.if_(k.tid_x().equals(0u32), || {
            cell.store_volatile(cell.load_volatile() + value);
        });
    });
    let text = fercuda_ptx::print(&module.finish()?);
    let bump = Module::load(&context, &Image::ptx(&text))?.function("bump")?;
    let stream = Stream::new(&context)?;
    let launched = SharedWords::new(&context, 16)?;
    let launch = Launch::new(1, options.threads);

    let place = launched.device_address()?;
    // Code is loaded on its first launch, which may wait for the whole device: not while a kernel
    // is resident.
    // SAFETY: the kernel touches the first word, which is there until the stream has been
    // waited for.
    unsafe { launch.run(&bump, &stream, (place, 0u32))? };
    stream.synchronize()?;

    let mut set = TaskSet::new();
    // SAFETY: it accesses its span only.
    let task = unsafe {
        set.add("bump", |t| {
            let k = t.kernel();
            let cell = t.span::<u32>(0);
            k.if_(k.tid_x().equals(0u32), || {
                let zero = k.value(0u32);
                let before = cell.load_volatile(zero);
                cell.store(zero, before + t.word(0).to::<u32>());
            });
        })
    };
    let words = Arc::new(SharedWords::new(&context, 16)?);
    let mut buffers = TaskBuffers::new();
    let buffer = buffers.host(words.clone());
    let dispatcher = Dispatcher::start(&context, &set, buffers, options)?;
    let arguments = TaskArgs::new().word(1).span(buffer, 0..4);

    let (mut by_task, mut by_launch) = (Vec::new(), Vec::new());
    for number in 0..tasks {
        for turn in 0..2 {
            let began = Instant::now();
            if (number + turn) % 2 == 0 {
                dispatcher.submit(0, task, &arguments)?.wait(LONG)?;
                by_task.push(began.elapsed().as_nanos() as u64);
            } else {
                // SAFETY: as above.
                unsafe { launch.run(&bump, &stream, (place, 1u32))? };
                stream.synchronize()?;
                by_launch.push(began.elapsed().as_nanos() as u64);
            }
        }
    }
    let counts = [&*words, &launched].map(|it| it.words()[0].load(Ordering::Acquire));
    assert_eq!(counts, [tasks; 2], "each was done once");

    let began = Instant::now();
    let rounds = (tasks / batch).max(1);
    for _ in 0..rounds {
        let jobs: Result<Vec<_>, _> = (0..batch)
            .map(|_| dispatcher.submit(1, task, &arguments))
            .collect();
        for job in jobs? {
            job.wait(LONG)?;
        }
    }
    let each = began.elapsed().as_nanos() as f64 / f64::from(rounds * batch);
    dispatcher.stop(LONG)?;

    for (name, times) in [("task", &mut by_task), ("launch, wait", &mut by_launch)] {
        // The first ones find cold caches and a rising clock frequency.
        times.drain(..times.len() / 10);
        times.sort_unstable();
        let at = |share: f64| times[(times.len() as f64 * share) as usize] as f64 / 1e3;
        println!(
            "{name:12} us until seen: median {:8.2}, p99 {:8.2}, p99.9 {:8.2}",
            at(0.5),
            at(0.99),
            at(0.999)
        );
    }
    println!("rate         {batch} at once: {:.2} us a task", each / 1e3);
    Ok(())
}
