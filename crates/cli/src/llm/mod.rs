//! Language models on the command line: what the commands that run one share.
//!
//! Elsewhere: the engine (`fercuda-llm`), tokenizers and templates (`fercuda-tokenizer`).

mod adapter_args;
pub(crate) mod bench;
pub(crate) mod chat;
mod draft_args;
pub(crate) mod embed;
pub(crate) mod generate;
mod grammar_args;
pub(crate) mod perplexity;
pub(crate) mod serve;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fercuda_governor::MemorySize;
use fercuda_grammar::TokenGrammar;
use fercuda_hub::{DownloadProgress, ModelSource};
use fercuda_llm::{
    AdapterId, Engine, EngineConfig, FinishReason, GenerationRequest, SamplerConfig, tenant_name,
};
use fercuda_runtime::{Runtime, RuntimeConfig};
use fercuda_tensor::Dtype;
use fercuda_tokenizer::{ChatTemplate, Tokenizer, TokenizerError};
use indicatif::ProgressBar;
use signal_hook::consts::SIGINT;

use adapter_args::OpenAdapters;

use crate::input::read_at_most;
use crate::out::{alert, is_quiet, step, write};
use crate::progress::progress_bar;
use crate::status::bail_usage;
use crate::terminal::{bytes, plain_text};

/// Most bytes of a prompt, or of a line of a conversation.
pub(crate) const MOST_PROMPT: u64 = 16 << 20;
/// Most bytes of a file with a chat template.
const MOST_TEMPLATE: u64 = 1 << 20;

/// Types of keys and values in the cache.
pub(crate) const KV_TYPES: [&str; 5] = ["f32", "f16", "bf16", "f8e4m3", "f8e5m2"];

/// Options of the commands that load a model.
#[derive(clap::Args)]
pub(crate) struct ModelArgs {
    /// A GGUF file, a folder with safetensors, or OWNER/NAME[:FILE-OR-TYPE] at Hugging Face.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Positions of a conversation [default: the model's, at most 8192].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    context: Option<u64>,
    /// Positions of the cache, for all requests together [default: one conversation's].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    cache_tokens: Option<u64>,
    /// Size of the cache of keys and values, for all requests together, as 4G.
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["gpu_memory", "cache_tokens"])]
    kv: Option<MemorySize>,
    /// Take the cache up to this part of the device's memory, as 0.9.
    #[arg(long, value_name = "PART", conflicts_with = "cache_tokens", value_parser = parse_part)]
    gpu_memory: Option<f64>,
    /// Type of keys and values in the cache.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = KV_TYPES)]
    kv_type: String,
}

/// Option of the commands that write conversations.
#[derive(clap::Args)]
pub(crate) struct TemplateArgs {
    /// File with a chat template in Jinja, in place of the model's.
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
}

impl TemplateArgs {
    /// The template: the file's, or else the model's, which it is taken from, if it has one.
    pub(crate) fn of(&self, model: &mut LoadedModel) -> Result<Option<ChatTemplate>> {
        let Some(path) = &self.chat_template else {
            return Ok(std::mem::replace(&mut model.template, Ok(None))?);
        };
        let bytes = read_at_most(path, MOST_TEMPLATE)?;
        if bytes.len() as u64 > MOST_TEMPLATE {
            let most = crate::terminal::bytes(MOST_TEMPLATE);
            bail_usage!(
                "{} has more than {most}\ntry: a chat template",
                path.display()
            );
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(ChatTemplate::new(&text, &model.tokenizer)?)),
            Err(_) => bail_usage!(
                "{} is no text of UTF-8\ntry: a chat template",
                path.display()
            ),
        }
    }
}

/// Options of how tokens are chosen.
#[derive(clap::Args)]
pub(crate) struct SamplerArgs {
    /// Divisor of logits; 0 takes the most likely token.
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = parse_number::<0, 100>)]
    temperature: f32,
    /// Keep the K most likely tokens; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,
    /// Keep the most likely tokens that have this probability together.
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = parse_number::<0, 1>)]
    top_p: f32,
    /// Keep tokens with this part of the largest probability.
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = parse_number::<0, 1>)]
    min_p: f32,
    /// Divisor of logits of the last 64 tokens; 1 changes nothing.
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = parse_penalty)]
    repeat_penalty: f32,
    /// Seed of the choices: equal ones give equal texts.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

fn parse_number<const LOW: i32, const HIGH: i32>(text: &str) -> Result<f32, String> {
    let number: Option<f32> = text.parse().ok();
    let range = LOW as f32..=HIGH as f32;
    number
        .filter(|it| range.contains(it))
        .ok_or_else(|| format!("it is not a number from {LOW} to {HIGH}"))
}

/// Percent of a part.
fn parse_part(text: &str) -> Result<f64, String> {
    let part: Option<f64> = text.parse().ok();
    part.filter(|it| *it > 0.0 && *it <= 1.0)
        .ok_or_else(|| "it is not a number above 0, at most 1, as 0.9".to_owned())
}

fn parse_penalty(text: &str) -> Result<f32, String> {
    let number: Option<f32> = text.parse().ok();
    number
        .filter(|it| *it > 0.0 && *it <= 10.0)
        .ok_or_else(|| "it is not a number above 0, at most 10".to_owned())
}

impl SamplerArgs {
    pub(crate) fn config(&self) -> SamplerConfig {
        SamplerConfig {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            seed: self.seed,
            ..SamplerConfig::default()
        }
    }
}

/// A model with its tokenizer, loaded.
pub(crate) struct LoadedModel {
    pub(crate) engine: Engine,
    pub(crate) runtime: Runtime,
    pub(crate) tokenizer: Tokenizer,
    /// Its chat template, if it has one; or why it is none.
    pub(crate) template: Result<Option<ChatTemplate>, TokenizerError>,
    /// Its name, for requests and messages.
    pub(crate) name: String,
    /// The adapter by which it generates, if any.
    pub(crate) adapter: Option<AdapterId>,
}

/// What was generated, and how long it took.
pub(crate) struct Generated {
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    /// `None` where Ctrl-C ended it.
    pub(crate) finished: Option<FinishReason>,
    /// Until the first token.
    pub(crate) first: Duration,
    /// Of all.
    pub(crate) total: Duration,
}

impl Generated {
    /// Tokens a second behind the first one.
    pub(crate) fn rate(&self) -> f64 {
        let others = self.tokens.len().saturating_sub(1) as f64;
        let seconds = self.total.saturating_sub(self.first).as_secs_f64();
        if seconds > 0.0 { others / seconds } else { 0.0 }
    }
}

impl ModelArgs {
    /// Loads the model, with these options where the arguments say nothing; a bar on stderr shows
    /// how far that is.
    pub(crate) fn load_with(&self, options: EngineConfig) -> Result<LoadedModel> {
        self.load_source(self.open()?, options)
    }

    /// Finds the model's files, and opens them.
    pub(crate) fn open(&self) -> Result<ModelSource> {
        let about = || format!("cannot load {}", self.model.display());
        find(&self.model).with_context(about)
    }

    /// As [`ModelArgs::load_with`], of files that are open.
    pub(crate) fn load_source(
        &self,
        source: ModelSource,
        options: EngineConfig,
    ) -> Result<LoadedModel> {
        let runtime = Runtime::open(RuntimeConfig::default())?;
        self.load_in(&runtime, source, options)
    }

    /// As [`ModelArgs::load_source`], onto the device of that runtime.
    pub(crate) fn load_in(
        &self,
        runtime: &Runtime,
        source: ModelSource,
        options: EngineConfig,
    ) -> Result<LoadedModel> {
        let begun = Instant::now();
        let about = || format!("cannot load {}", self.model.display());
        let cached: Dtype = self.kv_type.parse()?;
        let template = source.chat_template();
        let config = EngineConfig {
            session: match options.session.as_str() {
                "" => tenant_name(&source.name),
                own => own.to_owned(),
            },
            context: self.context.or(options.context),
            cache_tokens: self.cache_tokens.or(options.cache_tokens),
            cache_bytes: self.kv.map(MemorySize::get),
            cached,
            ..options
        }
        .up_to_part(runtime, self.gpu_memory)?;
        let mut bar = None;
        let engine = Engine::load(runtime, &source.file, &config, |done, all| {
            bar.get_or_insert_with(|| progress_bar("loading", all, true))
                .set_position(done.min(all));
        });
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        let engine = engine.with_context(about)?;
        let (wanted, context) = (config.context_of(engine.model().context), engine.context());
        if context < wanted {
            alert!(
                "conversations have {context} positions, not {wanted}: the cache has no more for one"
            );
        }
        step!(
            "loaded {} on {} in {:.1?}: {} of device memory",
            self.model.display(),
            runtime.device().name()?,
            begun.elapsed(),
            bytes(engine.session().held_bytes())
        );
        for part in &engine.model().left_out {
            alert!("{}: {part} are left out", self.model.display());
        }
        Ok(LoadedModel {
            engine,
            runtime: runtime.clone(),
            tokenizer: source.tokenizer,
            name: source.name,
            template,
            adapter: None,
        })
    }
}

/// A flag that Ctrl-C sets. A second one, before the first has had effect, ends the program.
pub(crate) fn watch_interrupts() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register_conditional_default(SIGINT, Arc::clone(&interrupted))?;
    signal_hook::flag::register(SIGINT, Arc::clone(&interrupted))?;
    Ok(interrupted)
}

/// Opens a model by what the command line names; bars on stderr show what is downloaded of it.
pub(crate) fn find(name: &Path) -> Result<ModelSource> {
    let mut shown: Option<(String, ProgressBar)> = None;
    let found = ModelSource::find(name, &mut |progress: DownloadProgress<'_>| {
        let is_other = shown.as_ref().is_none_or(|(file, _)| file != progress.file);
        if is_other {
            if let Some((_, bar)) = shown.take() {
                bar.finish_and_clear();
            }
            let bar = progress_bar("downloading", progress.size, true);
            bar.set_message(plain_text(progress.file));
            shown = Some((progress.file.to_owned(), bar));
        }
        if let Some((_, bar)) = &shown {
            bar.set_position(progress.done);
        }
    });
    if let Some((_, bar)) = shown {
        bar.finish_and_clear();
    }
    Ok(found?)
}

impl LoadedModel {
    /// Loads adapters, of which it generates by the first one, if there is one.
    pub(crate) fn adapt(&mut self, adapters: &OpenAdapters) -> Result<()> {
        self.adapter = adapters.load(&mut self.engine)?.first().copied();
        Ok(())
    }

    /// Generates behind these tokens, until the flag is set at most; `show` gets each part of the
    /// text when it is decided.
    pub(crate) fn generate(
        &mut self,
        (tokens, max_tokens): (Vec<u32>, usize),
        (sampler, grammar): (SamplerConfig, Option<TokenGrammar>),
        interrupted: &AtomicBool,
        mut show: impl FnMut(&str),
    ) -> Result<Generated> {
        interrupted.store(false, Ordering::Relaxed);
        let request = GenerationRequest {
            tokens,
            max_tokens,
            sampler,
            end_tokens: self.tokenizer.generation_ends().to_vec(),
            top: None,
            grammar,
            adapter: self.adapter,
        };
        let begun = Instant::now();
        let mut first = Duration::ZERO;
        let (mut all, mut text) = (Vec::new(), String::new());
        let mut detokenizer = self.tokenizer.detokenizer_behind(false);
        let id = self.engine.add(request)?;
        let mut finished = None;
        // A prompt takes many steps, of which none but the last gives a token.
        while finished.is_none() && !interrupted.load(Ordering::Relaxed) {
            let events = match self.engine.step() {
                Ok(events) => events,
                Err(error) => {
                    self.engine.cancel(id);
                    return Err(error.into());
                }
            };
            for event in events.iter().filter(|event| event.request == id) {
                finished = event.finished;
                if finished.is_some_and(|it| !it.has_token()) {
                    continue;
                }
                if all.is_empty() {
                    first = begun.elapsed();
                }
                all.push(event.token);
                let before = text.len();
                if event.finished != Some(FinishReason::End) {
                    detokenizer.push(event.token, &mut text);
                }
                show(&text[before..]);
            }
        }
        self.engine.cancel(id);
        let before = text.len();
        detokenizer.finish(&mut text);
        show(&text[before..]);
        Ok(Generated {
            tokens: all,
            text,
            finished,
            first,
            total: begun.elapsed(),
        })
    }
}

/// What is said of a request that has failed by itself.
pub(crate) const NO_NUMBERS: &str = "the model computes what are no numbers\n\
    try: another file of it, or --kv-type f32";

/// Writes a part of a text to standard output, at once.
pub(crate) fn show(text: &str) {
    write(format_args!("{text}"));
    use std::io::Write as _;
    std::io::stdout().flush().unwrap_or_default();
}

/// Whether notes about speed are wanted.
pub(crate) fn wants_figures() -> bool {
    !is_quiet() && crate::out::is_verbose(1)
}
