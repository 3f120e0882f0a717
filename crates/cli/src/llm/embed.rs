//! `fercuda embed`: vectors of texts.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use fercuda_hub::ModelSource;
use fercuda_llm::{Embedder, EmbedderConfig, tenant_name};
use fercuda_runtime::{Runtime, RuntimeConfig};
use fercuda_tokenizer::{Special, Tokenizer};
use serde::Serialize;

use super::{MOST_PROMPT, ModelArgs, find};
use crate::input::read_stdin;
use crate::out::{say, step};
use crate::progress::progress_bar;
use crate::status::{ExitStatus, bail_usage};
use crate::terminal::bytes;

/// Compute embeddings of texts: vectors that are near each other where texts mean alike.
#[derive(clap::Args)]
#[command(after_help = "\
Writes one JSON object with the vectors, each of the length 1, in the order of
the texts. The model is an encoder of the architecture bert: a GGUF file, or a
folder or a name at Hugging Face with safetensors.

Examples:
  fercuda embed sentence-transformers/all-MiniLM-L6-v2 --prompt 'A cat sits.'
  fercuda embed bge-small.gguf --prompt 'A cat.' --prompt 'A dog.'
  fercuda embed model --lines - < texts.txt | jq '.embeddings[0]'")]
pub(crate) struct Args {
    /// A GGUF file, a folder with safetensors, or OWNER/NAME[:FILE-OR-TYPE] at Hugging Face.
    #[arg(value_name = "MODEL")]
    model: std::path::PathBuf,
    /// A text; may be given several times.
    #[arg(long, short, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Vec<String>,
    /// Take each line of a file as a text; - reads standard input.
    #[arg(long, value_name = "FILE")]
    lines: Option<std::path::PathBuf>,
}

#[derive(Serialize)]
struct EmbeddingsReport {
    model: String,
    /// Tokens of all texts.
    tokens: usize,
    seconds: f64,
    embeddings: Vec<Vec<f32>>,
}

/// An embedder with its tokenizer.
pub(crate) struct LoadedEmbedder {
    pub(crate) embedder: Embedder,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) name: String,
}

/// Loads an embedder; a bar on stderr shows how far that is.
fn load(source: ModelSource) -> Result<LoadedEmbedder> {
    let begun = Instant::now();
    let runtime = Runtime::open(RuntimeConfig::default())?;
    let config = EmbedderConfig {
        session: tenant_name(&source.name),
        ..EmbedderConfig::default()
    };
    let mut bar = None;
    let embedder = Embedder::load(&runtime, &source.file, &config, |done, all| {
        bar.get_or_insert_with(|| progress_bar("loading", all, true))
            .set_position(done.min(all));
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let embedder = embedder.with_context(|| format!("cannot load {}", source.name))?;
    step!(
        "loaded {} on {} in {:.1?}: {} of device memory",
        source.name,
        runtime.device().name()?,
        begun.elapsed(),
        bytes(embedder.session().held_bytes())
    );
    Ok(LoadedEmbedder {
        embedder,
        tokenizer: source.tokenizer,
        name: source.name,
    })
}

impl ModelArgs {
    /// Loads a model that makes embeddings.
    pub(crate) fn load_embedder(&self, source: ModelSource) -> Result<LoadedEmbedder> {
        load(source)
    }
}

impl Args {
    /// The texts.
    fn texts(&self) -> Result<Vec<String>> {
        let mut texts = self.prompt.clone();
        if let Some(file) = &self.lines {
            let all = match file.as_os_str() == "-" {
                true => read_stdin("texts", MOST_PROMPT)?,
                false => crate::input::read_at_most(file, MOST_PROMPT)?,
            };
            if all.len() as u64 > MOST_PROMPT {
                let most = bytes(MOST_PROMPT);
                bail_usage!("{} has more than {most}\ntry: its parts", file.display());
            }
            let all = String::from_utf8_lossy(&all);
            texts.extend(
                all.lines()
                    .filter(|it| !it.trim().is_empty())
                    .map(str::to_owned),
            );
        }
        match texts.is_empty() {
            true => bail_usage!("there is no text\ntry: --prompt TEXT, or --lines FILE"),
            false => Ok(texts),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let texts = args.texts()?;
    let source = find(&args.model);
    let source = source.with_context(|| format!("cannot load {}", args.model.display()))?;
    let mut loaded = load(source)?;
    let encode = |text: &String| loaded.tokenizer.encode(text, Special::AsText);
    let tokens: std::result::Result<Vec<Vec<u32>>, _> = texts.iter().map(encode).collect();
    let (tokens, begun) = (tokens?, Instant::now());
    let embeddings = loaded.embedder.embed(&tokens)?;
    let report = EmbeddingsReport {
        model: loaded.name,
        tokens: tokens.iter().map(Vec::len).sum(),
        seconds: begun.elapsed().as_secs_f64(),
        embeddings,
    };
    say!("{}", serde_json::to_string(&report)?);
    Ok(ExitStatus::Success.into())
}
