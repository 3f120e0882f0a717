//! `fercuda bench model`: speed of a model, in the form of llama-bench.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use fercuda_llm::{
    Engine, EngineConfig, FinishReason, GenerationRequest, ModelConfig, SamplerConfig,
};
use fercuda_runtime::{Runtime, RuntimeConfig};
use serde::Serialize;

use super::NO_NUMBERS;
use crate::out::{note, say};
use crate::status::{ExitStatus, bail_usage};
use crate::terminal::bytes;

/// Measures a language model: tokens a second of prompts and of generation.
#[derive(clap::Args)]
#[command(after_help = "\
Rows are as llama-bench names them: pp512 computes a prompt of 512 tokens, tg128
generates 128 tokens; @ dN does so behind N tokens, rounded down to whole blocks
of 16, which are computed before and not measured. Tokens are random, and no
prompt is measured twice. The first repetition, which prepares, is not counted.
Counts that do not fit into the model's context are reduced.

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
    /// Type of keys and values in the cache.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = super::KV_TYPES)]
    kv_type: String,
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
    kv_type: String,
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

/// Tokens that a time covers.
struct MeasuredSpan {
    tokens: u64,
    seconds: f64,
}

impl MeasuredSpan {
    /// Tokens a second.
    fn rate(&self, test: &ModelTest) -> Result<f64> {
        // Clocks have steps, and a time of a few of them says nothing.
        const LEAST_SECONDS: f64 = 1e-6;
        if self.tokens == 0 || self.seconds < LEAST_SECONDS {
            bail_usage!(
                "{}: {} tokens in {:.1e} s cannot be measured\ntry: a larger {}",
                test.name(),
                self.tokens,
                self.seconds,
                if test.is_prompt {
                    "--prompts"
                } else {
                    "--generated"
                }
            );
        }
        Ok(self.tokens as f64 / self.seconds)
    }
}

/// A row that is measured.
#[derive(Clone, Copy)]
struct ModelTest {
    count: u64,
    is_prompt: bool,
    depth: u64,
}

/// Places of a block of the cache: as many tokens as are kept together.
const BLOCK: u64 = 16;

impl ModelTest {
    fn name(&self) -> String {
        let kind = if self.is_prompt { "pp" } else { "tg" };
        match self.depth {
            0 => format!("{kind}{}", self.count),
            depth => format!("{kind}{} @ d{depth}", self.count),
        }
    }

    /// Positions that a request has.
    fn positions(&self) -> u64 {
        let before = self.depth.saturating_add(self.count);
        // A generation begins behind one token, with one that is not counted.
        before.saturating_add(if self.is_prompt { 1 } else { 2 })
    }

    /// The test with as many tokens as the context has room for.
    fn within(self, context: u64) -> Result<ModelTest> {
        let over = self.positions().saturating_sub(context.saturating_add(1));
        if over == 0 {
            return Ok(self);
        }
        let Some(count) = self.count.checked_sub(over).filter(|it| *it > 0) else {
            bail_usage!(
                "--depths {}: the context of the model has {context} positions\ntry: a smaller one",
                self.depth
            );
        };
        let reduced = ModelTest { count, ..self };
        note!(
            "{} is reduced to {}: the context of the model",
            self.name(),
            reduced.name()
        );
        Ok(reduced)
    }
}

impl MeasuredModel {
    fn random(&mut self, count: u64) -> Vec<u32> {
        (0..count)
            .map(|_| self.random.u32(..self.vocabulary))
            .collect()
    }

    fn add(&mut self, tokens: Vec<u32>, generated: u64) -> Result<()> {
        self.engine.add(GenerationRequest {
            tokens,
            max_tokens: usize::try_from(generated).unwrap_or(usize::MAX),
            sampler: SamplerConfig::default(),
            end_tokens: Vec::new(),
            top: None,
            grammar: None,
            adapter: None,
        })?;
        Ok(())
    }

    /// Runs requests behind prompts of these tokens, each with random ones of its own, and ends
    /// them. Returns what was computed until all have their first token, and what was generated
    /// behind that.
    fn run(
        &mut self,
        before: &[Vec<u32>],
        prompt: u64,
        generated: u64,
    ) -> Result<(MeasuredSpan, MeasuredSpan)> {
        for tokens in before {
            let own = self.random(prompt);
            self.add([&tokens[..], &own].concat(), generated)?;
        }
        let computed = self.engine.computed_tokens();
        let (begun, mut first) = (Instant::now(), None);
        let mut seen = std::collections::HashSet::new();
        let mut behind = 0;
        while !self.engine.is_idle() {
            let events = self.engine.step()?;
            if events
                .iter()
                .any(|it| it.finished == Some(FinishReason::Failed))
            {
                anyhow::bail!("{NO_NUMBERS}");
            }
            if first.is_some() {
                behind += events.len() as u64;
            }
            seen.extend(events.iter().map(|event| event.request));
            if first.is_none() && seen.len() == before.len() {
                let tokens = self.engine.computed_tokens() - computed;
                first = Some((tokens, Instant::now()));
            }
        }
        let Some((tokens, at)) = first else {
            anyhow::bail!("a request has ended without a token");
        };
        let seconds = (at - begun).as_secs_f64();
        let later = at.elapsed().as_secs_f64();
        let generated = MeasuredSpan {
            tokens: behind,
            seconds: later,
        };
        Ok((MeasuredSpan { tokens, seconds }, generated))
    }

    /// Tokens a second of one row, each repetition.
    fn row(&mut self, repetitions: u32, test: &ModelTest) -> Result<Vec<f64>> {
        let depth = test.depth / BLOCK * BLOCK;
        let before: Vec<Vec<u32>> = (0..self.parallel).map(|_| self.random(depth)).collect();
        let mut rates = Vec::new();
        for _ in 0..=repetitions {
            if depth > 0 {
                // The cache keeps these, if it has lost them or not.
                for tokens in &before {
                    self.add(tokens.clone(), 1)?;
                }
                while !self.engine.is_idle() {
                    self.engine.step()?;
                }
            }
            let (prompt, generated) = match test.is_prompt {
                true => (test.count, 1),
                false => (1, test.count + 1),
            };
            let (computed, generated) = self.run(&before, prompt, generated)?;
            let span = match test.is_prompt {
                true => computed,
                false => generated,
            };
            rates.push(span.rate(test)?);
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
    let context = ModelConfig::of(file)?.context;
    let tests = tests(args, context)?;
    let each = tests.iter().map(ModelTest::positions).max().unwrap_or(2);
    let each = each.min(context);
    let config = EngineConfig {
        batch_tokens: Some(args.batch.into()),
        requests: args.parallel.into(),
        context: Some(each),
        cache_tokens: Some(each.next_multiple_of(BLOCK) * u64::from(args.parallel)),
        cached: args.kv_type.parse()?,
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
    for test in tests {
        note!("measuring {} ...", test.name());
        let rates = measured.row(args.repetitions, &test)?;
        let (tokens_per_second, deviation) = mean(&rates);
        rows.push(ModelBenchRow {
            test: test.name(),
            tokens_per_second,
            deviation,
        });
    }
    let report = ModelBenchReport {
        model: name(&args.model),
        device: runtime.device().name()?,
        kv_type: args.kv_type.clone(),
        bytes: file.tensors().map(|it| it.bytes.len() as u64).sum(),
        parameters: file.tensors().map(|it| it.elements()).sum(),
        held_bytes: measured.engine.session().held_bytes(),
        parallel: args.parallel,
        rows,
    };
    print(&report, args.json)?;
    Ok(ExitStatus::Success.into())
}

/// The rows that are measured, within the context of the model.
fn tests(args: &ModelBenchArgs, context: u64) -> Result<Vec<ModelTest>> {
    let mut tests = Vec::new();
    for depth in &args.depths {
        let prompts = args.prompts.iter().map(|it| (*it, true));
        let all = prompts.chain(args.generated.iter().map(|it| (*it, false)));
        for (count, is_prompt) in all.filter(|(count, _)| *count > 0) {
            let test = ModelTest {
                count: count.into(),
                is_prompt,
                depth: (*depth).into(),
            };
            tests.push(test.within(context)?);
        }
    }
    Ok(tests)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn test(count: u64, is_prompt: bool, depth: u64) -> ModelTest {
        ModelTest {
            count,
            is_prompt,
            depth,
        }
    }

    #[test]
    fn counts_are_reduced_to_the_context() {
        let within = |it: ModelTest| it.within(512).map(|it| it.count).ok();
        assert_eq!(within(test(512, true, 0)), Some(512));
        assert_eq!(within(test(513, true, 0)), Some(512));
        assert_eq!(within(test(u64::from(u32::MAX), true, 0)), Some(512));
        assert_eq!(within(test(128, true, 500)), Some(12));
        assert_eq!(within(test(511, false, 0)), Some(511));
        assert_eq!(within(test(512, false, 0)), Some(511));
        assert_eq!(within(test(1, true, 512)), None);
        assert_eq!(within(test(1, false, u64::from(u32::MAX))), None);
        let error = test(1, true, 600).within(512).err().unwrap().to_string();
        assert!(
            error.contains("--depths 600: the context of the model has 512"),
            "{error}"
        );
    }

    #[test]
    fn times_that_cannot_be_measured_are_errors() {
        let span = |tokens, seconds| MeasuredSpan { tokens, seconds };
        let test = test(1, true, 300);
        assert_eq!(span(3, 0.5).rate(&test).unwrap(), 6.0);
        for unmeasured in [span(0, 1.0), span(1, 0.0), span(1, 1e-9)] {
            let error = unmeasured.rate(&test).unwrap_err().to_string();
            assert!(error.contains("pp1 @ d300: "), "{error}");
            assert!(error.contains("try: a larger --prompts"), "{error}");
        }
    }
}
