//! `fercuda bench frameworks`: the same work of other libraries, governed and not, by turns.
//!
//! Each workload (`workloads.py`) runs in processes of its own: bare, governed, governed, bare,
//! and so on. A figure is the median over the processes of one side. Elsewhere: how a program is
//! governed (`run`), which Python has the libraries (`demo::python`).
//!
//! Invariant: both sides run the same file with the same Python on the same device. A part that
//! did not run is listed with its reason, and fails nothing; a process that did not end in order
//! does.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use fercuda_ledger::Folder;
use serde::{Deserialize, Serialize};

use crate::demo::python;
use crate::ledgers;
use crate::out::{is_verbose, say, step};
use crate::progress::progress_bar;
use crate::run::{self, DeviceKind, LibraryFolders};
use crate::terminal::{Paint, bytes, clipped, plain_text, wrapped};

const WORKLOADS: &str = include_str!("workloads.py");
const WIDTH: usize = 80;
/// Columns of what a row measures.
const WHAT: usize = 46;

/// Measures other libraries' work under `fercuda run`, beside the same work without it.
#[derive(clap::Args)]
#[command(after_help = "\
Each workload runs in processes of its own, by turns: bare, governed, governed,
bare. A figure is the median over the processes of a side; RATIO is governed
divided by bare, so that below 1 is better for times, above 1 for rates.

mechanics and throughput need python3 alone, and run on the software device too.
The others need a GPU and their libraries, in the Python that has most of them
(FERCUDA_WHEELS, VIRTUAL_ENV, CONDA_PREFIX or python3). What is missing is
listed. transformers also measures graphs (fercuda run --hf), if that Python has
fercuda_runtime.

This is one run: repeat it before you quote it. Nothing else should use the GPU.

Exit status: 0 when measured, 1 if a process failed or nothing was measured.

Examples:
  fercuda bench frameworks
  fercuda bench frameworks torch jax --rounds 3
  fercuda bench frameworks mechanics --device soft
  fercuda bench frameworks transformers --json | python3 -m json.tool")]
pub(crate) struct FrameworkBenchArgs {
    /// Workloads [default: all].
    #[arg(value_enum, value_name = "NAME")]
    names: Vec<Workload>,
    /// Device to measure [default: FERCUDA_DEVICE, or auto].
    #[arg(long, value_enum)]
    device: Option<DeviceKind>,
    /// Number of the device among those of its kind.
    #[arg(long, default_value_t = 0, value_name = "ORDINAL")]
    ordinal: u32,
    /// The Python to use, instead of the one with most libraries.
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Processes of each side.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=20))]
    rounds: u8,
    /// Seconds for each row of each process.
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    seconds: f64,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

/// A workload of `workloads.py`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// Calls of the driver, each alone
    Mechanics,
    /// Allocations a second, by several threads
    Throughput,
    /// PyTorch, JAX and CuPy in one process, by turns
    Coexistence,
    /// Products, rows, a training step and tensors of PyTorch
    Torch,
    /// Compiled products, rows and a training step of JAX
    Jax,
    /// Kernels of Triton
    Triton,
    /// Generation by a small model of Transformers
    Transformers,
}

impl Workload {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A line that a workload prints.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum WorkloadLine {
    Row {
        row: String,
        unit: String,
        value: f64,
        better: BetterValue,
        beside: Option<String>,
    },
    Skipped {
        skipped: String,
        why: String,
    },
    Done {
        done: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BetterValue {
    Less,
    More,
}

/// One measurement, on both sides.
#[derive(Debug, Serialize)]
struct FrameworkRow {
    what: String,
    unit: String,
    better: BetterValue,
    /// The bare row that it is compared with, if that has another name.
    beside: Option<String>,
    /// One figure a process.
    bare: Vec<f64>,
    governed: Vec<f64>,
    /// Median governed divided by median bare.
    ratio: Option<f64>,
}

#[derive(Debug, Default, Serialize)]
struct WorkloadOutcome {
    name: String,
    rows: Vec<FrameworkRow>,
    /// What did not run, with the reason.
    skipped: BTreeMap<String, String>,
    /// Processes that did not end in order.
    failed: Vec<String>,
    /// Most memory that a governed process used and the ledger does not account for.
    ungoverned_bytes: u64,
    /// Allocations that the driver served instead of the pool.
    fallbacks: u64,
}

#[derive(Debug, Serialize)]
struct FrameworkBenchOutcome {
    python: PathBuf,
    rounds: u8,
    workloads: Vec<WorkloadOutcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunMode {
    Bare,
    Governed,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match value {
        0.001..=60.0 => Ok(value),
        _ => Err("not in 0.001 to 60".to_owned()),
    }
}

pub(super) fn run(args: &FrameworkBenchArgs) -> Result<ExitCode> {
    let kind = args.device.map_or_else(DeviceKind::from_env, Ok)?;
    let python = match &args.python {
        Some(python) => python.clone(),
        None => chosen_python()?,
    };
    step!("Python {}", python.display());
    let names: Vec<Workload> = match args.names.as_slice() {
        [] => Workload::value_variants().to_vec(),
        names => {
            let mut unique = Vec::new();
            for name in names {
                if !unique.contains(name) {
                    unique.push(*name);
                }
            }
            unique
        }
    };
    let processes = names.len() as u64 * 2 * u64::from(args.rounds);
    let bar = progress_bar("processes", processes, false);
    let mut workloads = Vec::new();
    for name in names {
        let mut outcome = WorkloadOutcome {
            name: name.name(),
            ..WorkloadOutcome::default()
        };
        for round in 0..args.rounds {
            let mut sides = [RunMode::Bare, RunMode::Governed];
            if round % 2 == 1 {
                sides.reverse();
            }
            for side in sides {
                step!("{} {side:?}, round {}", outcome.name, round + 1);
                outcome.add(args, kind, &python, side)?;
                bar.inc(1);
            }
        }
        outcome.compare();
        if !args.json {
            bar.suspend(|| outcome.print(workloads.is_empty()));
        }
        workloads.push(outcome);
    }
    bar.finish_and_clear();
    let outcome = FrameworkBenchOutcome {
        python,
        rounds: args.rounds,
        workloads,
    };
    if args.json {
        say!("{}", serde_json::to_string_pretty(&outcome)?);
    }
    let measured = outcome.workloads.iter().any(|it| !it.rows.is_empty());
    let failed = outcome.workloads.iter().any(|it| !it.failed.is_empty());
    Ok(match measured && !failed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The Python with most of the libraries, or the first in `PATH`.
fn chosen_python() -> Result<PathBuf> {
    let (found, _) = python::find(&["torch", "jax", "cupy", "triton", "transformers"]);
    if let Some(python) = found {
        return Ok(python.executable);
    }
    fercuda_nvrtc::find::program_of_path("python3").context(
        "no python3 is in PATH, and the workloads are Python's\n\
         try: --python FILE, or activate an environment",
    )
}

impl WorkloadOutcome {
    /// Runs the workload once on one side.
    fn add(
        &mut self,
        args: &FrameworkBenchArgs,
        kind: DeviceKind,
        python: &PathBuf,
        side: RunMode,
    ) -> Result<()> {
        let mut command = Command::new(python);
        command
            .args(["-c", WORKLOADS, &self.name])
            .args([args.ordinal.to_string(), args.seconds.to_string()])
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stderr(if is_verbose(1) {
                Stdio::inherit()
            } else {
                Stdio::null()
            });
        let number = run::fresh_run();
        let folder = Folder::from_env()?;
        let _hold = folder.hold(number)?;
        match side {
            RunMode::Governed => run::govern(&mut command, kind, number)?,
            RunMode::Bare => {
                let places = LibraryFolders::of_this_program()?;
                if let Some(driver) = places.ungoverned_driver(kind)? {
                    command.env("LD_PRELOAD", run::preload([driver]));
                }
            }
        }
        let output = command
            .output()
            .with_context(|| format!("cannot start {}", python.display()))?;
        let mut is_done = false;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            match serde_json::from_str(line) {
                Ok(WorkloadLine::Done { done }) => is_done = done,
                Ok(line) => self.take(line, side),
                Err(_) => bail!("a workload printed {line:?}, which is no row"),
            }
        }
        if !is_done {
            let side = format!("{side:?}").to_lowercase();
            let why = format!("the {side} process ended with {}", output.status);
            self.failed.push(why);
        }
        if side == RunMode::Governed {
            let (found, _) = ledgers::gather(&folder, |it| it.run == Some(number))?;
            let missed = ledgers::ungoverned_bytes(&found);
            self.ungoverned_bytes = self.ungoverned_bytes.max(missed);
            self.fallbacks += ledgers::fallbacks(&found);
        }
        Ok(())
    }

    /// Keeps a line of one process.
    fn take(&mut self, line: WorkloadLine, side: RunMode) {
        match line {
            WorkloadLine::Done { .. } => {}
            WorkloadLine::Skipped { skipped, why } => {
                self.skipped.insert(skipped, why);
            }
            WorkloadLine::Row {
                row: what,
                unit,
                value,
                better,
                beside,
            } => {
                let place = self.rows.iter().position(|it| it.what == what);
                let place = place.unwrap_or_else(|| {
                    self.rows.push(FrameworkRow {
                        what,
                        unit,
                        better,
                        beside,
                        bare: Vec::new(),
                        governed: Vec::new(),
                        ratio: None,
                    });
                    self.rows.len() - 1
                });
                let row = &mut self.rows[place];
                match side {
                    RunMode::Bare => row.bare.push(value),
                    RunMode::Governed => row.governed.push(value),
                }
            }
        }
    }

    /// Prints the table, as soon as it is there: all of them take minutes.
    fn print(&self, is_first: bool) {
        let paint = Paint::stdout();
        if !is_first {
            say!("");
        }
        let head = format!(
            "{:<WHAT$}{:>12}{:>12}{:>9}",
            self.name, "BARE", "GOVERNED", "RATIO"
        );
        say!("{}", paint.strong(&head));
        for row in &self.rows {
            let ratio = row.ratio.map_or("-".to_owned(), |it| format!("{it:.2}"));
            say!(
                "{:<WHAT$}{:>12}{:>12}{ratio:>9}",
                clipped(&plain_text(&row.what), WHAT - 1),
                figure(median(&row.bare), &row.unit),
                figure(median(&row.governed), &row.unit)
            );
        }
        let failed = self.failed.iter().map(|why| format!("FAILED: {why}"));
        let skipped = self.skipped.iter();
        let skipped = skipped.map(|(what, why)| format!("not run: {what}: {why}"));
        for text in failed.chain(skipped) {
            for line in wrapped(&plain_text(&text), WIDTH - 2) {
                say!("  {line}");
            }
        }
        if !self.rows.is_empty() {
            let missed = bytes(self.ungoverned_bytes);
            let fallbacks = self.fallbacks;
            say!("  ungoverned {missed}, allocations that the driver served {fallbacks}");
        }
    }

    /// Fills in the ratios.
    fn compare(&mut self) {
        let named: BTreeMap<String, Vec<f64>> = self
            .rows
            .iter()
            .map(|row| (row.what.clone(), row.bare.clone()))
            .collect();
        for row in &mut self.rows {
            if let Some(bare) = row.beside.as_ref().and_then(|name| named.get(name)) {
                row.bare = bare.clone();
            }
            row.ratio = match (median(&row.governed), median(&row.bare)) {
                (Some(governed), Some(bare)) if bare > 0.0 => Some(governed / bare),
                _ => None,
            };
        }
    }
}

/// A figure in four digits, with its unit.
fn figure(value: Option<f64>, unit: &str) -> String {
    let Some(value) = value else {
        return "-".to_owned();
    };
    let (value, unit) = match unit {
        "us" if value >= 1e4 => (value / 1e3, "ms"),
        "/s" if value >= 1e6 => (value / 1e6, "M/s"),
        "/s" if value >= 1e4 => (value / 1e3, "k/s"),
        _ => (value, unit),
    };
    match value {
        100.0.. => format!("{value:.0} {unit}"),
        10.0.. => format!("{value:.1} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = sorted.get(middle)?;
    Some(match sorted.len() % 2 {
        1 => *upper,
        _ => (sorted.get(middle - 1)? + upper) / 2.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_both_sides_are_compared_by_name() {
        let mut outcome = WorkloadOutcome::default();
        let mut take = |side, text: &str| outcome.take(serde_json::from_str(text).unwrap(), side);
        let plain = r#"{"row":"a","unit":"tok/s","value":10,"better":"more","beside":null}"#;
        take(RunMode::Bare, plain);
        take(RunMode::Governed, plain);
        take(RunMode::Bare, &plain.replace("10", "30"));
        let graphs = r#"{"row":"b","unit":"tok/s","value":80,"better":"more","beside":"a"}"#;
        take(RunMode::Governed, graphs);
        take(RunMode::Governed, r#"{"skipped":"c","why":"none"}"#);
        outcome.compare();
        assert_eq!(outcome.rows[0].bare, [10.0, 30.0]);
        assert_eq!(outcome.rows[0].ratio, Some(0.5));
        assert_eq!(outcome.rows[1].ratio, Some(4.0));
        assert_eq!(outcome.skipped["c"], "none");
    }

    #[test]
    fn figures_fit_their_columns() {
        assert_eq!(figure(None, "us"), "-");
        assert_eq!(figure(Some(0.123), "us"), "0.12 us");
        assert_eq!(figure(Some(123_456.0), "us"), "123 ms");
        assert_eq!(figure(Some(2_345_678.0), "/s"), "2.35 M/s");
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[]), None);
    }
}
