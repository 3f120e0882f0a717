//! `fercuda serve`: a language model over HTTP.

use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use fercuda_hub::ModelSource;
use fercuda_llm::{
    AdapterId, Embedder, EncoderConfig, Engine, EngineConfig, FinishReason, GenerationRequest,
    LlmError, RequestId, SamplerConfig,
};
use fercuda_runtime::Runtime;
use fercuda_server::{
    EmbedError, EngineLoad, EngineMemory, GeneratedToken, ServedModel, Server, ServerConfig,
    ServerStop, TokenEngine, TokenFinish, TokenRequest,
};
use fercuda_tokenizer::Tokenizer;
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::adapter_args::AdaptersArgs;
use super::draft_args::DraftArgs;
use super::{LoadedModel, ModelArgs, NO_NUMBERS, TemplateArgs};
use crate::out::{alert, note, say};
use crate::progress::progress_bar;
use crate::status::{ExitStatus, bail_usage};

/// Serve a language model over HTTP, with OpenAI's and Anthropic's requests.
#[derive(clap::Args)]
#[command(after_help = "\
The address is written to standard output when the model has computed a token,
and opens a page to chat in a browser. Paths: /v1/chat/completions,
/v1/completions, /v1/responses, /v1/messages, /v1/models, /health, /metrics; of
a model that makes embeddings /v1/embeddings. SIGTERM or Ctrl-C lets running
requests end; a second one does not.

Examples:
  fercuda serve smollm2.gguf
  fercuda serve model.gguf --lora poet=trained/poet --lora lawyer=lawyer.gguf
  fercuda serve model.gguf --port 8000 --parallel 32 --cache-tokens 65536
  fercuda serve model.gguf --host 0.0.0.0 --api-key-file key.txt")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    draft: DraftArgs,
    #[command(flatten)]
    adapters: AdaptersArgs,
    /// Port; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// Address to listen at; 0.0.0.0 for all networks.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// Key that requests have to send; other users of this machine see it in lists of processes.
    #[arg(long, value_name = "KEY", conflicts_with = "api_key_file")]
    api_key: Option<String>,
    /// File with that key.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Name of the model in requests [default: that of its file or folder].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Run at most so many requests at once.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=4096))]
    parallel: u64,
    /// Let at most so many requests wait besides; more get status 429.
    #[arg(long, value_name = "N", default_value_t = 128)]
    queue: usize,
    /// States kept of prompts and answers, of models with states [default: --parallel].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=65536))]
    kept_states: Option<u64>,
    /// End requests that take longer.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86400))]
    time_out: u64,
}

impl Args {
    fn key(&self) -> Result<Option<String>> {
        let key = match (&self.api_key, &self.api_key_file) {
            (Some(key), _) => key.clone(),
            (None, Some(file)) => {
                let about = || format!("cannot read {}", file.display());
                let text = std::fs::read_to_string(file).with_context(about)?;
                text.trim().to_owned()
            }
            (None, None) => return Ok(None),
        };
        if key.is_empty() || !key.chars().all(|it| it.is_ascii_graphic()) {
            bail_usage!("a key of no or of other characters than ASCII's letters, digits, signs");
        }
        Ok(Some(key))
    }
}

/// An engine as servers drive one.
struct ServedEngine {
    engine: Engine,
    runtime: Runtime,
    /// Those of the served model, in its order.
    adapters: Vec<AdapterId>,
}

impl TokenEngine for ServedEngine {
    type Id = RequestId;

    fn submit(&mut self, request: TokenRequest) -> Result<RequestId, String> {
        let sampling = request.sampling;
        let sampler = SamplerConfig {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repeat_penalty: sampling.repetition_penalty,
            frequency_penalty: sampling.frequency_penalty,
            presence_penalty: sampling.presence_penalty,
            seed: sampling.seed,
            ..SamplerConfig::default()
        };
        let request = GenerationRequest {
            tokens: request.tokens,
            max_tokens: request.max_tokens,
            sampler,
            end_tokens: request.end_tokens,
            top: request.top,
            grammar: request.grammar,
            adapter: request
                .adapter
                .and_then(|it| self.adapters.get(it).copied()),
        };
        self.engine.add(request).map_err(|error| error.to_string())
    }

    fn cancel(&mut self, request: RequestId) {
        self.engine.cancel(request);
    }

    fn step(&mut self) -> Result<Vec<GeneratedToken<RequestId>>, String> {
        let events = self.engine.step().map_err(|error| {
            alert!("a step failed: {error}");
            error.to_string()
        })?;
        let chosen = events.into_iter().map(|event| GeneratedToken {
            request: event.request,
            token: event.token,
            log_probability: event.log_probability,
            top: event.top,
            cached_tokens: Some(event.reused_tokens),
            finished: event.finished.map(|it| match it {
                FinishReason::End => TokenFinish::End,
                FinishReason::Length => TokenFinish::Length,
                FinishReason::Failed => TokenFinish::Failed,
                FinishReason::GrammarEnd => TokenFinish::GrammarEnd,
                FinishReason::GrammarStuck => TokenFinish::GrammarStuck,
            }),
        });
        Ok(chosen.collect())
    }

    fn figures(&self) -> EngineLoad {
        let (running, waiting, free_blocks, blocks) = self.engine.load_figures();
        let (guessed, right) = self.engine.guessed_tokens();
        EngineLoad {
            kept_blocks: self.engine.kept_blocks().0,
            guessed_tokens: guessed,
            right_guesses: right,
            running,
            waiting,
            free_blocks,
            blocks,
        }
    }

    fn memory(&self) -> Option<EngineMemory> {
        let memory = self.runtime.memory().ok()?;
        Some(EngineMemory {
            held: self.engine.session().held_bytes(),
            block: self.engine.kept_blocks().1,
            free: memory.free_bytes,
            total: memory.total_bytes,
        })
    }
}

/// An embedder as servers drive one.
struct ServedEmbedder(Embedder);

impl TokenEngine for ServedEmbedder {
    type Id = u64;

    fn submit(&mut self, _: TokenRequest) -> Result<u64, String> {
        Err("the model makes embeddings, and no texts".to_owned())
    }

    fn cancel(&mut self, _: u64) {}

    fn step(&mut self) -> Result<Vec<GeneratedToken<u64>>, String> {
        Ok(Vec::new())
    }

    fn embed(&mut self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, EmbedError> {
        self.0.embed(texts).map_err(|error| match error {
            LlmError::Request { .. } => EmbedError::Refused(error.to_string()),
            error => {
                alert!("texts have no vectors: {error}");
                EmbedError::Failed(error.to_string())
            }
        })
    }

    fn figures(&self) -> EngineLoad {
        EngineLoad::default()
    }
}

/// Serves a model that makes embeddings.
fn serve_embeddings(args: &Args, server: Server, source: ModelSource) -> Result<ExitCode> {
    let mut loaded = args.model.load_embedder(source)?;
    let about = "the model is loaded, but cannot be computed";
    loaded.embedder.embed(&[vec![0]]).context(about)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let config = loaded.embedder.model();
    let model = ServedModel {
        name: args.name.clone().unwrap_or(loaded.name),
        template: None,
        tokenizer: loaded.tokenizer,
        context: config.context,
        created: now.map_or(0, |it| it.as_secs()),
        embedding: Some(config.hidden),
        adapters: Vec::new(),
    };
    stop_by_signals(server.stopper())?;
    say!("{} at http://{}", model.name, server.address());
    server.run(&mut ServedEmbedder(loaded.embedder), model)?;
    Ok(ExitStatus::Success.into())
}

/// Stops the server at the first signal, and its requests at the second.
fn stop_by_signals(stop: ServerStop) -> Result<()> {
    let (mut receiver, sender) = UnixStream::pair()?;
    for number in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(number, sender.try_clone()?)?;
    }
    let name = "fercuda-signals".to_owned();
    std::thread::Builder::new().name(name).spawn(move || {
        let mut byte = [0];
        if receiver.read_exact(&mut byte).is_ok() {
            note!("running requests end; again to cancel them");
            stop.stop();
        }
        if receiver.read_exact(&mut byte).is_ok() {
            stop.stop_now();
        }
    })?;
    Ok(())
}

/// Generates a little: what a step needs is there, or is missed before a client asks.
///
/// # Errors
/// Of the first step, such as of a compiler that is not there.
fn try_steps(engine: &mut Engine, tokenizer: &Tokenizer, adapter: Option<AdapterId>) -> Result<()> {
    let token = tokenizer.bos().or(tokenizer.eos()).unwrap_or(0);
    let request = GenerationRequest {
        tokens: vec![token],
        max_tokens: 2,
        sampler: SamplerConfig::default(),
        end_tokens: Vec::new(),
        top: None,
        grammar: None,
        adapter,
    };
    let about = "the model is loaded, but cannot be computed";
    let finished = engine.generate(request, |_| true).context(about)?;
    if finished == Some(FinishReason::Failed) {
        return Err(anyhow::anyhow!("{NO_NUMBERS}").context(about));
    }
    Ok(())
}

/// Files that the process has open besides connections, at most.
const OWN_FILES: u64 = 64;

/// Lets this process open as many files as it may, and returns how many connections that leaves
/// room for: twice as many again may be in refusal.
fn connection_limit() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where that is not allowed, it stays as it is.
    setrlimit(Resource::Nofile, limit).unwrap_or_default();
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (files.saturating_sub(OWN_FILES) / 3).clamp(4, 4096) as usize
}

/// Loads a model with its adapters: each one's name and number.
fn load(args: &Args, source: ModelSource) -> Result<(LoadedModel, Vec<(String, AdapterId)>)> {
    let name = args.name.as_deref().unwrap_or(&source.name);
    let open = args.adapters.open(name)?;
    let options = open.options(EngineConfig {
        requests: args.parallel,
        kept_states: args.kept_states,
        ..EngineConfig::default()
    });
    let mut loaded = args.draft.load_source(&args.model, source, options)?;
    let adapters = open.load(&mut loaded.engine)?;
    Ok((loaded, open.names().into_iter().zip(adapters).collect()))
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = ServerConfig {
        api_key: args.key()?,
        running: args.parallel as usize,
        queue: args.queue,
        connections: connection_limit(),
        time_out: Duration::from_secs(args.time_out),
        ..ServerConfig::at(SocketAddr::new(args.host, args.port))
    };
    if config.api_key.is_none() && !args.host.is_loopback() {
        alert!(
            "anything that reaches {} can use the model\ntry: --api-key-file",
            args.host
        );
    }
    // Before the model is loaded, which takes long.
    let server = Server::bind(config)?;
    let source = args.model.open()?;
    if EncoderConfig::is_encoder(&source.file) {
        if !args.adapters.is_empty() {
            bail_usage!("--lora: the model makes embeddings\ntry: a model that generates text");
        }
        return serve_embeddings(args, server, source);
    }
    let (mut loaded, adapters) = load(args, source)?;
    let template = match args.template.of(&mut loaded) {
        Ok(Some(template)) => Some(template),
        Ok(None) => {
            alert!("no chats: the model has no chat template\ntry: --chat-template");
            None
        }
        Err(error) => {
            alert!("no chats: {error}");
            None
        }
    };
    try_steps(&mut loaded.engine, &loaded.tokenizer, None)?;
    // Steps with adapters have other kernels.
    if let Some((_, adapter)) = adapters.first() {
        try_steps(&mut loaded.engine, &loaded.tokenizer, Some(*adapter))?;
    }
    if !loaded.runtime.device().is_software()? {
        let mut bar = None;
        loaded.engine.prepare_steps(|done, all| {
            bar.get_or_insert_with(|| progress_bar("compiling", all as u64, false))
                .set_position(done as u64);
        })?;
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let model = ServedModel {
        name: args.name.clone().unwrap_or(loaded.name),
        template,
        tokenizer: loaded.tokenizer,
        context: loaded.engine.context(),
        created: now.map_or(0, |it| it.as_secs()),
        embedding: None,
        adapters: adapters.iter().map(|(name, _)| name.clone()).collect(),
    };
    stop_by_signals(server.stopper())?;
    say!("{} at http://{}", model.name, server.address());
    let mut served = ServedEngine {
        engine: loaded.engine,
        runtime: loaded.runtime,
        adapters: adapters.into_iter().map(|(_, it)| it).collect(),
    };
    server.run(&mut served, model)?;
    Ok(ExitStatus::Success.into())
}
