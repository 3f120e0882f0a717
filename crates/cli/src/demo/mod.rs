//! `fercuda demo`: a short tour of kernels, every result checked, and finally several libraries
//! in one process that share one pool.
//!
//! Invariant: a row says `ok` only if every element of its result is within an error bound that
//! follows from sizes and data. Elsewhere: the steps (`tour`), the f64 references and their
//! bounds (`reference`), the shared pool (`together`).

#[expect(
    unsafe_code,
    reason = "functions of a loaded library have the types of its interface"
)]
mod here;
pub(crate) mod python;
mod reference;
mod step;
mod together;
#[expect(
    unsafe_code,
    reason = "launching a kernel needs a safety argument about what it touches"
)]
mod tour;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use fercuda_cuda::{Context, Cuda};
use serde::Serialize;

use crate::out::say;
use crate::terminal::{self, Paint};
use step::StepResult;
use together::SharedPoolDemo;

/// Runs a tour of kernels and of libraries that share a pool; checks all results.
#[derive(clap::Args)]
#[command(after_help = "\
Exit status: 0 if every result is right and all memory is governed, 1 if not or
if the device fails.

The error is the largest difference from an f64 reference; the bound is the most
that rounding can explain, derived from sizes and data. Both are in ulp: the
distance between f32 neighbours at the largest value.

At the end several libraries share one process, started as `fercuda run` does:
our runtime; cuda.core, if a Python has it (FERCUDA_WHEELS, VIRTUAL_ENV,
CONDA_PREFIX or python3);
and on a GPU whichever of PyTorch, JAX, CuPy and Triton that Python has. The
last line compares the memory that the process's ledger accounts for with the
memory in use according to the driver.

Examples:
  fercuda demo
  FERCUDA_DEVICE=soft fercuda demo
  fercuda demo --device 1 --seed 7 --json")]
pub(crate) struct Args {
    /// Device to use, by its ordinal.
    #[arg(long, default_value_t = 0, value_name = "ORDINAL")]
    device: u32,
    /// Seed of the random data, to repeat a run [default: a random one].
    #[arg(long)]
    seed: Option<u64>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Run as the process with the tenants, with our runtime from this file.
    #[arg(long, hide = true, value_name = "GUEST")]
    tenants_here: Option<PathBuf>,
}

/// The result of a demo.
#[derive(Debug, Serialize)]
struct DemoOutcome {
    device: String,
    software: bool,
    compute_capability: (u32, u32),
    memory_bytes: u64,
    driver_version: (u32, u32),
    seed: u64,
    steps: Vec<StepResult>,
    together: Option<SharedPoolDemo>,
    passed: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let seed = args.seed.unwrap_or_else(fresh_seed);
    if let Some(guest) = &args.tenants_here {
        return here::run(guest, args.device, seed);
    }
    let device = Cuda::from_env()?.device(args.device)?;
    let context = Context::primary(device)?;
    let mut outcome = DemoOutcome {
        device: device.name()?,
        software: device.cuda().is_software(),
        compute_capability: device.compute_capability()?,
        memory_bytes: device.memory_bytes()?,
        driver_version: device.cuda().version()?,
        seed,
        steps: Vec::new(),
        together: None,
        passed: true,
    };
    if outcome.compute_capability < (8, 0) {
        let (major, minor) = outcome.compute_capability;
        bail!(
            "{} has compute capability {major}.{minor}; the tour's kernels need 8.0\n\
             try: FERCUDA_DEVICE=soft fercuda demo",
            outcome.device
        );
    }
    let paint = Paint::stdout();
    if !args.json {
        print_head(&outcome, paint);
    }
    let mut tour = tour::Tour::new(context, seed)?;
    for (name, step) in tour::STEPS {
        let step = step(&mut tour).with_context(|| format!("the tour failed at: {name}"))?;
        outcome.passed &= step.passed;
        if !args.json {
            print_step(&step, paint);
        }
        outcome.steps.push(step);
    }
    // The tour's memory must not count in the process that follows.
    drop(tour);
    if !args.json {
        print_foot(&outcome, paint);
    }
    let together = together::run(args.device, outcome.software, seed)
        .context("the demo failed at: several libraries in one process")?;
    outcome.passed &= together.passed();
    if !args.json {
        say!("");
        together.print(paint);
    }
    outcome.together = Some(together);
    if args.json {
        say!("{}", serde_json::to_string_pretty(&outcome)?);
    }
    Ok(if outcome.passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A random seed: the standard library seeds its hash tables with one.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    // Short enough to type.
    RandomState::new().hash_one(()) >> 32
}

fn print_head(outcome: &DemoOutcome, paint: Paint) {
    let (major, minor) = outcome.compute_capability;
    say!("{}", paint.strong(&outcome.device));
    say!(
        "compute capability {major}.{minor}, {} of memory, CUDA driver API {}.{}, seed {}",
        terminal::bytes(outcome.memory_bytes),
        outcome.driver_version.0,
        outcome.driver_version.1,
        outcome.seed
    );
    say!("");
    let head = format!(
        "{:<15} {:<24} {:>9}  {:>10} {:>10}",
        "step", "size", "time", "error", "bound"
    );
    say!("{}", paint.faint(&head));
}

fn print_step(step: &StepResult, paint: Paint) {
    let ulp = |value: Option<f64>| match value {
        None => "-".to_owned(),
        Some(0.0) => "exact".to_owned(),
        Some(value) if value >= 100.0 => format!("{value:.0} ulp"),
        Some(value) => format!("{value:.2} ulp"),
    };
    let mark = if step.passed {
        paint.good("ok")
    } else {
        paint.bad("WRONG")
    };
    say!(
        "{:<15} {:<24} {:>9}  {:>10} {:>10}  {mark}",
        step.name,
        step.size,
        terminal::duration(step.seconds),
        ulp(step.error_ulp),
        ulp(step.bound_ulp),
    );
    if let Some(finding) = &step.finding {
        say!("{:<15} {}", "", paint.faint(finding));
    }
}

fn print_foot(outcome: &DemoOutcome, paint: Paint) {
    say!("");
    if outcome.passed {
        say!(
            "{}",
            paint.good("All results are within their error bounds.")
        );
    } else {
        say!(
            "{}\ntry: fercuda demo --seed {}, with FERCUDA_DEVICE=soft for comparison",
            paint.bad("Some results are outside their error bounds."),
            outcome.seed
        );
    }
    if outcome.software {
        say!("No GPU was used: kernels ran on the CPU. See fercuda doctor for the reason.");
    }
}
