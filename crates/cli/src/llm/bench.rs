//! `fercuda bench model`: speed of a model, in the form of llama-bench.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use fercuda_llm::{Engine, EngineConfig, GenerationRequest, SamplerConfig};
use fercuda_runtime::{Runtime, RuntimeConfig};
use serde::Serialize;

use crate::out::{note, say};
use crate::status::ExitStatus;
use crate::terminal::bytes;

/// Measures a language model: tokens a second of prompts and of generation.
#[derive(clap::Args)]
#[command(after_help = "\
Rows are as llama-bench names them: pp512 computes a prompt of 512 tokens, tg128
generates 128 tokens; @ dN does so behind N tokens. Tokens are random, and no
prompt is computed twice. The first repetition, which prepares, is not counted.

Examples:
  fercuda bench model model.gguf
  fercuda bench model model.gguf -p 512,4096 -n 128 -d 0,32768 --json")]
pub(crate) struct ModelBenchArgs {
    /// A GGUF file, a folder with safetensors, or OWNER/NAME[:FILE-OR-TYPE] at Hugging Face.
    model: PathBuf,
    /// Lengths of prompts; 0 for none.
    #[arg(
        short = 'p',
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "512"
    )]
    prompts: Vec<u32>,
    /// Numbers of generated tokens; 0 for none.
    #[arg(
        short = 'n',
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "128"
    )]
    generated: Vec<u32>,
    /// Tokens that stand before, for each of the others.
    #[arg(
        short = 'd',
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "0"
    )]
    depths: Vec<u32>,
    /// Requests at once.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    parallel: u32,
    /// Repetitions that are counted.
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Most tokens of a step.
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Print times of the ops of a step of N tokens instead, each by events.
    #[arg(long, value_name = "N", conflicts_with = "json", value_parser = clap::value_parser!(u32).range(1..))]
    ops: Option<u32>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ModelBenchRow {
    test: String,
    /// Tokens a second: the mean, and the deviation of the repetitions.
    tokens_per_second: f64,
    deviation: f64,
}

#[derive(Serialize)]
struct ModelBenchReport {
    model: String,
    device: String,
    bytes: u64,
    parameters: u64,
    held_bytes: u64,
    parallel: u32,
    rows: Vec<ModelBenchRow>,
}

/// An engine under measurement.
struct MeasuredModel {
    engine: Engine,
    random: fastrand::Rng,
    vocabulary: u32,
    parallel: usize,
}

impl MeasuredModel {
    fn request(&mut self, prompt: u32, generated: u32) -> GenerationRequest {
        GenerationRequest {
            tokens: (0..prompt.max(1))
                .map(|_| self.random.u32(..self.vocabulary))
                .collect(),
            max_tokens: generated as usize,
            sampler: SamplerConfig::default(),
            end_tokens: Vec::new(),
            top: None,
        }
    }

    /// Runs requests of equal sizes; seconds until all have their first token, and behind that.
    fn run(&mut self, prompt: u32, generated: u32) -> Result<(f64, f64)> {
        let begun = Instant::now();
        for _ in 0..self.parallel {
            let request = self.request(prompt, generated);
            self.engine.add(request)?;
        }
        let (mut waiting, mut first) = (self.parallel, 0.0);
        let mut seen = std::collections::HashSet::new();
        while !self.engine.is_idle() {
            for event in self.engine.step()? {
                if seen.insert(event.request) {
                    waiting -= 1;
                }
            }
            if waiting == 0 && first == 0.0 {
                first = begun.elapsed().as_secs_f64();
            }
        }
        Ok((first, begun.elapsed().as_secs_f64() - first))
    }

    /// Tokens a second of one row, each repetition.
    fn row(&mut self, args: &ModelBenchArgs, test: (u32, bool), depth: u32) -> Result<Vec<f64>> {
        let mut rates = Vec::new();
        for _ in 0..=args.repetitions {
            let all = f64::from(self.parallel as u32);
            rates.push(match test {
                (prompt, true) => {
                    // What stands before is computed with the prompt, and is no part of it.
                    let before = match depth {
                        0 => 0.0,
                        _ => self.run(depth, 1)?.0,
                    };
                    let (whole, _) = self.run(depth + prompt, 1)?;
                    all * f64::from(prompt) / (whole - before).max(1e-9)
                }
                (generated, false) => {
                    let (_, seconds) = self.run(depth + 1, generated + 1)?;
                    all * f64::from(generated) / seconds.max(1e-9)
                }
            });
        }
        Ok(rates.split_off(1))
    }
}

fn mean(rates: &[f64]) -> (f64, f64) {
    let count = rates.len() as f64;
    let mean = rates.iter().sum::<f64>() / count;
    let squares: f64 = rates.iter().map(|it| (it - mean) * (it - mean)).sum();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}

pub(crate) fn run(args: &ModelBenchArgs) -> Result<ExitCode> {
    let source = super::find(&args.model)
        .with_context(|| format!("cannot load {}", args.model.display()))?;
    let file = &source.file;
    let runtime = Runtime::open(RuntimeConfig::default())?;
    let most = |all: &[u32]| all.iter().copied().max().unwrap_or_default();
    let each = most(&args.depths) + most(&args.prompts).max(most(&args.generated)) + 2;
    let config = EngineConfig {
        batch_tokens: Some(args.batch.into()),
        requests: args.parallel.into(),
        context: Some(u64::from(each).next_multiple_of(16)),
        cache_tokens: Some(u64::from(each).next_multiple_of(16) * u64::from(args.parallel)),
        ..EngineConfig::default()
    };
    let engine = Engine::load(&runtime, file, &config, |_, _| {})?;
    if let Some(tokens) = args.ops {
        print_ops(engine, tokens)?;
        return Ok(ExitStatus::Success.into());
    }
    let vocabulary = engine.vocabulary();
    let mut measured = MeasuredModel {
        engine,
        random: fastrand::Rng::new(),
        vocabulary: u32::try_from(vocabulary)?,
        parallel: args.parallel as usize,
    };
    let mut rows = Vec::new();
    for depth in &args.depths {
        let prompts = args.prompts.iter().map(|it| (*it, true));
        let all = prompts.chain(args.generated.iter().map(|it| (*it, false)));
        for (count, is_prompt) in all.filter(|(count, _)| *count > 0) {
            let kind = if is_prompt { "pp" } else { "tg" };
            let behind = match depth {
                0 => String::new(),
                depth => format!(" @ d{depth}"),
            };
            let test = format!("{kind}{count}{behind}");
            note!("measuring {test} ...");
            let rates = measured.row(args, (count, is_prompt), *depth)?;
            let (tokens_per_second, deviation) = mean(&rates);
            rows.push(ModelBenchRow {
                test,
                tokens_per_second,
                deviation,
            });
        }
    }
    let report = ModelBenchReport {
        model: name(&args.model),
        device: runtime.device().name()?,
        bytes: file.tensors().map(|it| it.bytes.len() as u64).sum(),
        parameters: file.tensors().map(|it| it.elements()).sum(),
        held_bytes: measured.engine.session().held_bytes(),
        parallel: args.parallel,
        rows,
    };
    print(&report, args.json)?;
    Ok(ExitStatus::Success.into())
}

/// The last part of what was named.
fn name(model: &Path) -> String {
    let file = model.file_name();
    file.map_or_else(String::new, |it| it.to_string_lossy().into_owned())
}

/// Times of ops, those of one kind together, the longest first.
fn print_ops(mut engine: Engine, tokens: u32) -> Result<()> {
    let times = engine.op_times(tokens.into(), 20)?;
    let total: f64 = times.iter().map(|(_, _, time)| time.as_secs_f64()).sum();
    let mut all: BTreeMap<(&str, &str), (usize, f64)> = BTreeMap::new();
    for (name, kernel, time) in &times {
        let (count, seconds) = all.entry((*name, *kernel)).or_default();
        *count += 1;
        *seconds += time.as_secs_f64();
    }
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    say!(
        "{:<22} {:<16} {:>6} {:>10} {:>10} {:>6}",
        "op",
        "kernel",
        "runs",
        "each us",
        "all us",
        "%"
    );
    for ((name, kernel), (count, seconds)) in all {
        say!(
            "{name:<22} {kernel:<16} {count:>6} {:>10.2} {:>10.1} {:>6.1}",
            1e6 * seconds / count as f64,
            1e6 * seconds,
            100.0 * seconds / total
        );
    }
    say!(
        "{:<22} {:<16} {:>6} {:>10} {:>10.1}",
        "all",
        "",
        times.len(),
        "",
        1e6 * total
    );
    Ok(())
}

fn print(report: &ModelBenchReport, is_json: bool) -> Result<()> {
    if is_json {
        say!("{}", serde_json::to_string(report)?);
        return Ok(());
    }
    say!(
        "{} on {}: {}, {:.2} B parameters, {} of device memory, {} at once",
        crate::terminal::plain_text(&report.model),
        report.device,
        bytes(report.bytes),
        report.parameters as f64 / 1e9,
        bytes(report.held_bytes),
        report.parallel
    );
    say!("{:<18} {:>12} {:>10}", "test", "tokens/s", "+-");
    for row in &report.rows {
        say!(
            "{:<18} {:>12.2} {:>10.2}",
            row.test,
            row.tokens_per_second,
            row.deviation
        );
    }
    Ok(())
}
