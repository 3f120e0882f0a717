//! `fercuda bench perplexity`: how well a model knows a text, as llama.cpp measures it.

use std::process::ExitCode;

use anyhow::{Result, bail};
use fercuda_llm::EngineConfig;
use fercuda_tokenizer::Special;
use serde::Serialize;

use super::ModelArgs;
use crate::input::{read_at_most, read_stdin};
use crate::out::{note, say};
use crate::status::ExitStatus;
use crate::terminal::bytes;

/// Measures how well a language model knows a text: its perplexity.
#[derive(clap::Args)]
#[command(after_help = "\
The text is cut into windows of --window tokens, each behind the model's token
for a beginning, if it has one. Tokens of the second half of each window are
scored, so that all have a context; what is left behind the last whole window is
not. The figure is e to the mean of the negative logarithms of their
probabilities: lower is better. llama.cpp's llama-perplexity does the same.

Examples:
  fercuda bench perplexity model.gguf text.txt
  fercuda bench perplexity model.gguf - --window 256 --json < text.txt")]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text, in UTF-8; - for standard input.
    text: std::path::PathBuf,
    /// Tokens of a window.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..=1_048_576))]
    window: u32,
    /// Most windows that are scored [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    windows: Option<u32>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct PerplexityReport {
    perplexity: f64,
    /// One standard error of it.
    error: f64,
    windows: usize,
    scored_tokens: usize,
    tokens: usize,
}

/// Tokens that are scored at once.
const AT_ONCE: u64 = 64;
/// Most bytes of a text.
const MOST_TEXT: u64 = 64 << 20;

pub(crate) fn run(args: &PerplexityArgs) -> Result<ExitCode> {
    let text = match args.text.as_os_str() == "-" {
        true => read_stdin("a text", MOST_TEXT)?,
        false => read_at_most(&args.text, MOST_TEXT)?,
    };
    let Ok(text) = String::from_utf8(text) else {
        bail!("the text is no UTF-8\ntry: iconv -t UTF-8");
    };
    if text.len() as u64 > MOST_TEXT {
        bail!(
            "the text has more than {}\ntry: a shorter one",
            bytes(MOST_TEXT)
        );
    }
    let window = args.window as usize;
    // A window is a context.
    let mut model = args.model.load_with(EngineConfig {
        requests: AT_ONCE,
        ..EngineConfig::default()
    })?;
    let tokens = model.tokenizer.encode(&text, Special::AsText)?;
    // What the model wants before a text is all that it has of none.
    let first = model.tokenizer.encode("", Special::AsText)?;
    let first = first.first().copied();
    if tokens.len() < window {
        bail!(
            "the text has {} tokens, fewer than a window of {window}\ntry: a longer text, or --window",
            tokens.len()
        );
    }
    let most = args.windows.map_or(usize::MAX, |it| it as usize);
    let all = (tokens.len() / window).min(most);
    let (mut sum, mut squares, mut count) = (0.0, 0.0, 0usize);
    for (number, own) in tokens.chunks_exact(window).take(all).enumerate() {
        let mut own = own.to_vec();
        own[0] = first.unwrap_or(own[0]);
        let scores = model.engine.score(&own)?;
        for score in &scores[window / 2..] {
            let own = -f64::from(*score);
            (sum, squares, count) = (sum + own, squares + own * own, count + 1);
        }
        note!(
            "window {} of {all}: {:.4}",
            number + 1,
            (sum / count as f64).exp()
        );
    }
    let mean = sum / count as f64;
    let variance = (squares / count as f64 - mean * mean).max(0.0);
    let perplexity = mean.exp();
    let report = PerplexityReport {
        perplexity,
        error: (variance / (count as f64 - 1.0).max(1.0)).sqrt() * perplexity,
        windows: all,
        scored_tokens: count,
        tokens: tokens.len(),
    };
    match args.json {
        true => say!("{}", serde_json::to_string(&report)?),
        false => say!(
            "perplexity {:.4} +- {:.4} of {count} tokens in {all} windows of {window}",
            report.perplexity,
            report.error
        ),
    }
    Ok(ExitStatus::Success.into())
}
