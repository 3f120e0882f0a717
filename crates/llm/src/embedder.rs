//! Engine of an encoder: vectors of texts.

use fercuda_modelfile::ModelFile;
use fercuda_ops::OpDevice;
use fercuda_runtime::{Runtime, Session, SessionConfig};

use crate::encoder::{ENCODER_PLACES, EncoderInputs, EncoderLimits, TextEncoder, encoder_bytes};
use crate::encoder_config::{EmbeddingPooling, EncoderConfig};
use crate::engine::tenant_name;
use crate::error::{LlmError, refused};
use crate::memory_plan::check_free;
use crate::recorder::Planner;

type Result<T> = std::result::Result<T, LlmError>;

/// Most texts of a step.
const TEXTS: u64 = 64;

/// What an embedder is opened with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmbedderConfig {
    /// Name of its session, the tenant in the ledger; empty for one by the model's name.
    pub session: String,
    /// Most tokens of a step, rounded up to a power of two, and at least those of the longest
    /// text; `None` for the device's default.
    pub batch_tokens: Option<u64>,
}

/// A model that makes vectors of texts, loaded.
#[derive(Debug)]
pub struct Embedder {
    session: Session,
    encoder: TextEncoder,
    planner: Planner,
    limits: EncoderLimits,
}

impl Embedder {
    /// Loads a model: its weights go to the device of the runtime, as f32. `progress` gets the
    /// bytes that are there, and those of all.
    ///
    /// # Errors
    /// [`LlmError::File`], [`LlmError::Model`] of what is no encoder or not supported;
    /// [`LlmError::Memory`] of what does not fit, before anything is uploaded.
    pub fn load(
        runtime: &Runtime,
        file: &ModelFile,
        config: &EmbedderConfig,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Self> {
        let model = EncoderConfig::of(file)?;
        let is_software = runtime.device().is_software();
        let is_software = is_software.map_err(fercuda_runtime::Error::from)?;
        let default = if is_software { 256 } else { 8192 };
        let tokens = config.batch_tokens.unwrap_or(default).min(1 << 20);
        let limits = EncoderLimits {
            tokens: tokens.max(model.context).next_power_of_two().max(16),
            texts: TEXTS,
            blocks_each: model.context.div_ceil(ENCODER_PLACES),
        };
        let bytes = encoder_bytes(file, &model, &limits);
        check_free(runtime, bytes, "a smaller model, or fewer tokens of a step")?;
        let name = match (config.session.as_str(), model.name.as_str()) {
            ("", "") => "embedder".to_owned(),
            ("", name) => tenant_name(name),
            (name, _) => name.to_owned(),
        };
        let session = runtime.session(&name, SessionConfig::default())?;
        let encoder = TextEncoder::load(file, model, limits, &session, |done| {
            progress(done.min(bytes), bytes);
        })?;
        let device = OpDevice::new(&runtime.context())?;
        Ok(Self {
            session,
            encoder,
            planner: Planner::new(device),
            limits,
        })
    }

    /// The model's configuration.
    pub fn model(&self) -> &EncoderConfig {
        self.encoder.config()
    }

    /// Number of tokens of the vocabulary; each is below it.
    pub fn vocabulary(&self) -> u64 {
        self.encoder.vocabulary()
    }

    /// Its session, the tenant of its memory.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Compares a text's tokens with what the model can read.
    ///
    /// # Errors
    /// [`LlmError::Request`].
    pub fn check(&self, tokens: &[u32]) -> Result<()> {
        let (count, context) = (tokens.len() as u64, self.model().context);
        if count == 0 {
            return Err(refused("a text without tokens", "one token at least"));
        }
        if count > context {
            let what = format!("a text of {count} tokens in {context} positions");
            return Err(refused(what, "a shorter text, or its parts"));
        }
        let vocabulary = self.vocabulary();
        match tokens.iter().find(|it| u64::from(**it) >= vocabulary) {
            Some(token) => {
                let what = format!("token {token} of a vocabulary of {vocabulary}");
                Err(refused(what, "tokens of this model's tokenizer"))
            }
            None => Ok(()),
        }
    }

    /// Vectors of texts, each of the length 1; texts are the tokens that the model's tokenizer
    /// makes, with those around them.
    ///
    /// # Errors
    /// [`LlmError::Request`] of a text that does not fit, before anything is computed;
    /// [`LlmError::NotNumbers`] of damaged weights; [`LlmError::Op`] and [`LlmError::Runtime`] of
    /// the device.
    pub fn embed(&mut self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        texts.iter().try_for_each(|it| self.check(it))?;
        let mut vectors = Vec::with_capacity(texts.len());
        let mut rest = texts;
        while !rest.is_empty() {
            let mut count = 0;
            let fits = |text: &&Vec<u32>| {
                count += text.len() as u64;
                count <= self.limits.tokens
            };
            let most = rest.len().min(self.limits.texts as usize);
            let taken = rest[..most].iter().take_while(fits).count();
            let (now, later) = rest.split_at(taken);
            vectors.extend(self.step(now)?);
            rest = later;
        }
        Ok(vectors)
    }

    /// Vectors of texts that fit into a step.
    fn step(&mut self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        let all: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
        let count = all.iter().map(|it| it.len() as u64).sum();
        let inputs = EncoderInputs::of(self.limits, &all);
        let session = &self.session;
        let values = self
            .encoder
            .encode(&mut self.planner, session, &inputs, count)?;
        let (hidden, pooling) = (self.model().hidden as usize, self.model().pooling);
        let mut rest = &values[..];
        let mut vectors = Vec::with_capacity(texts.len());
        for text in texts {
            let (own, others) = rest.split_at(text.len() * hidden);
            vectors.push(pooled(own, hidden, pooling)?);
            rest = others;
        }
        Ok(vectors)
    }
}

/// The vector of a text by those of its tokens, made one of the length 1.
fn pooled(tokens: &[f32], hidden: usize, pooling: EmbeddingPooling) -> Result<Vec<f32>> {
    let own = match pooling {
        EmbeddingPooling::Mean => tokens,
        EmbeddingPooling::First => &tokens[..hidden],
        EmbeddingPooling::Last => &tokens[tokens.len() - hidden..],
    };
    let mut sums = vec![0.0_f64; hidden];
    for row in own.chunks(hidden) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += f64::from(*value);
        }
    }
    let length = sums.iter().map(|it| it * it).sum::<f64>().sqrt();
    match length.is_finite() && length > 0.0 {
        true => Ok(sums.iter().map(|it| (it / length) as f32).collect()),
        false => Err(LlmError::NotNumbers),
    }
}
