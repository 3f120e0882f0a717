//! `fercuda generate`: text behind a prompt.

use std::process::ExitCode;

use anyhow::Result;
use fercuda_llm::{EngineConfig, FinishReason, LlmError};
use fercuda_tokenizer::Special;
use serde::Serialize;

use super::adapter_args::AdapterArgs;
use super::draft_args::DraftArgs;
use super::grammar_args::GrammarArgs;
use super::{
    MOST_PROMPT, ModelArgs, NO_NUMBERS, SamplerArgs, show, wants_figures, watch_interrupts,
};
use crate::input::read_stdin;
use crate::out::{alert, note, say};
use crate::status::{ExitStatus, bail_usage};

/// Generate text behind a prompt with a language model.
#[derive(clap::Args)]
#[command(after_help = "\
The text alone is written to standard output, as it is generated; Ctrl-C ends
it, with the exit status 130. With a GPU the model runs there; else on the
software device, where FERCUDA_SOFT_CHECK=0 leaves checks out and is faster.

Examples:
  fercuda generate smollm2.gguf --prompt 'The capital of France is' \\
      --max-tokens 32
  fercuda generate owner/name:Q4_K_M --prompt 'Once upon a time'
  fercuda generate model.gguf --prompt - --temperature 0.8 --seed 1 < prompt.txt
  fercuda generate model.gguf --prompt 'A person: ' --json-schema person.json
  fercuda generate model.gguf --prompt 'Yes or no? ' --regex 'yes|no'
  fercuda generate model.gguf --prompt 'Once' --lora trained/checkpoint-500
  fercuda generate model.gguf --prompt - --draft ngram < code.txt
  fercuda generate model.gguf --prompt 'Once' --json | jq .tokens_per_second")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    adapter: AdapterArgs,
    /// The prompt; - reads it from standard input.
    #[arg(long, short, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: String,
    /// Generate at most so many tokens.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    #[command(flatten)]
    sampler: SamplerArgs,
    #[command(flatten)]
    grammar: GrammarArgs,
    #[command(flatten)]
    draft: DraftArgs,
    /// Texts of control tokens in the prompt, such as <|im_start|>, are those tokens.
    #[arg(long)]
    special: bool,
    /// Write one JSON object when it is complete.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct GeneratedReport<'a> {
    text: &'a str,
    finish: &'static str,
    prompt_tokens: usize,
    tokens: &'a [u32],
    first_token_seconds: f64,
    seconds: f64,
    tokens_per_second: f64,
    /// Tokens that were guessed, and those of them that were right.
    #[serde(skip_serializing_if = "Option::is_none")]
    guessed_tokens: Option<[u64; 2]>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let grammar = args.grammar.source()?;
    let prompt = match args.prompt.as_str() {
        "-" if args.grammar.reads_stdin() => {
            bail_usage!("standard input has the grammar, and no prompt\ntry: --prompt TEXT")
        }
        "-" => {
            let text = read_stdin("a prompt", MOST_PROMPT)?;
            String::from_utf8_lossy(&text).into_owned()
        }
        text => text.to_owned(),
    };
    let adapters = args.adapter.open()?;
    let options = adapters.options(EngineConfig::default());
    let mut model = args.draft.load(&args.model, options)?;
    model.adapt(&adapters)?;
    let special = match args.special {
        true => Special::Parsed,
        false => Special::AsText,
    };
    let mut tokens = model.tokenizer.encode(&prompt, special)?;
    // BOS and EOS stand by themselves.
    let is_short = tokens.len() <= 2 && !prompt.is_empty();
    if is_short && model.tokenizer.encode_part(&prompt, special)?.is_empty() {
        bail_usage!(
            "the model has no tokens for the characters of the prompt\ntry: a prompt in a language \
             of the model"
        );
    }
    if tokens.is_empty() {
        // Of an empty prompt a text begins.
        tokens.extend(model.tokenizer.bos().or(model.tokenizer.eos()));
    }
    let prompt_tokens = tokens.len();
    let max_tokens = args.max_tokens as usize;
    let config = (args.sampler.config(), model.compile(grammar.as_ref())?);
    let interrupted = watch_interrupts()?;
    let generated = model.generate((tokens, max_tokens), config, &interrupted, |text| {
        if !args.json {
            show(text);
        }
    })?;
    if args.json {
        let report = GeneratedReport {
            text: &generated.text,
            finish: match generated.finished {
                Some(FinishReason::End | FinishReason::GrammarEnd) => "end",
                Some(FinishReason::Length) => "length",
                Some(FinishReason::Failed | FinishReason::GrammarStuck) => "failed",
                None => "interrupted",
            },
            prompt_tokens,
            tokens: &generated.tokens,
            first_token_seconds: generated.first.as_secs_f64(),
            seconds: generated.total.as_secs_f64(),
            tokens_per_second: generated.rate(),
            guessed_tokens: args
                .draft
                .is_there()
                .then(|| model.engine.guessed_tokens().into()),
        };
        say!("{}", serde_json::to_string(&report)?);
    } else {
        say!("");
    }
    if wants_figures() {
        alert!(
            "{prompt_tokens} tokens of the prompt in {:.2?}, {} generated at {:.1} a second",
            generated.first,
            generated.tokens.len(),
            generated.rate()
        );
    }
    if generated.finished == Some(FinishReason::Failed) {
        anyhow::bail!("{NO_NUMBERS}");
    }
    if generated.finished == Some(FinishReason::GrammarStuck) {
        return Err(LlmError::GrammarStuck.into());
    }
    if generated.finished.is_none() {
        let count = generated.tokens.len();
        note!("interrupted: {count} of at most {max_tokens} tokens are generated");
        return Ok(ExitStatus::Interrupted.into());
    }
    Ok(ExitStatus::Success.into())
}
