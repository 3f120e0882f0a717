//! Options of guesses: what guesses the next tokens, and how many.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fercuda_hub::ModelSource;
use fercuda_llm::{EngineConfig, ModelConfig, ModelDrafter, tenant_name};
use fercuda_runtime::{Runtime, RuntimeConfig};
use fercuda_tokenizer::Tokenizer;

use super::{LoadedModel, ModelArgs, find};
use crate::status::bail_usage;

/// Guesses of the text itself, where no number is given: they cost next to nothing.
const OF_TEXT: u64 = 7;
/// Those of a model.
const OF_MODEL: u64 = 3;

/// Positions of a text of which guesses are computed, where the model has more.
const DEFAULT_CONTEXT: u64 = 8192;
/// Texts that the cache of the model that guesses has room for.
const CACHED_TEXTS: u64 = 8;

/// Options of guesses of tokens.
#[derive(clap::Args)]
pub(crate) struct DraftArgs {
    /// Guess next tokens, which one step checks together: ngram, or a smaller MODEL.
    ///
    /// The text stays what it is without. ngram guesses what followed the last three tokens where
    /// they stood before, and suits answers that repeat parts of their prompts.
    #[arg(long, value_name = "ngram|MODEL")]
    draft: Option<PathBuf>,
    /// Guess at most so many tokens in a step [default: 7 of ngram, 3 of a model].
    #[arg(long, value_name = "N", requires = "draft", value_parser = clap::value_parser!(u64).range(1..=63))]
    draft_tokens: Option<u64>,
}

impl DraftArgs {
    /// Whether tokens are guessed.
    pub(crate) fn is_there(&self) -> bool {
        self.draft.is_some()
    }

    /// The model that guesses, if one does.
    fn model(&self) -> Option<&Path> {
        self.draft.as_deref().filter(|it| *it != Path::new("ngram"))
    }

    /// Loads a model, and what guesses its tokens.
    pub(crate) fn load(&self, model: &ModelArgs, options: EngineConfig) -> Result<LoadedModel> {
        self.load_source(model, model.open()?, options)
    }

    /// As [`DraftArgs::load`], of files that are open.
    pub(crate) fn load_source(
        &self,
        model: &ModelArgs,
        source: ModelSource,
        options: EngineConfig,
    ) -> Result<LoadedModel> {
        let count = match (&self.draft, self.model()) {
            (None, _) => 0,
            (Some(_), None) => self.draft_tokens.unwrap_or(OF_TEXT),
            (Some(_), Some(_)) => self.draft_tokens.unwrap_or(OF_MODEL),
        };
        let Some(path) = self.model() else {
            let options = EngineConfig {
                draft_tokens: count,
                ..options
            };
            return model.load_source(source, options);
        };
        let about = || format!("cannot guess by {}", path.display());
        // What does not fit is known before anything is uploaded.
        let drafts = find(path).with_context(about)?;
        check_vocabularies(&source.tokenizer, &drafts.tokenizer).with_context(about)?;
        let context = ModelConfig::of(&drafts.file).with_context(about)?.context;
        let context = context.min(model.context.unwrap_or(DEFAULT_CONTEXT));
        let runtime = Runtime::open(RuntimeConfig::default())?;
        let with = |draft_tokens, cache_tokens| EngineConfig {
            draft_tokens,
            cache_tokens,
            // Guesses are by the model alone.
            adapters: if draft_tokens == 0 {
                0
            } else {
                options.adapters
            },
            ..options.clone()
        };
        // First, as the model's cache may be what is left.
        let of_texts = context.saturating_mul(options.requests.min(CACHED_TEXTS));
        let of_drafts = EngineConfig {
            // Both may have one name.
            session: tenant_name(&format!("drafts: {}", drafts.name)),
            ..with(0, Some(of_texts))
        };
        let drafts = ModelArgs {
            model: path.to_owned(),
            context: Some(context),
            kv_type: model.kv_type.clone(),
            cache_tokens: model.cache_tokens,
            kv: None,
            gpu_memory: None,
        }
        .load_in(&runtime, drafts, of_drafts)?;
        let mut loaded = model.load_in(&runtime, source, with(count, options.cache_tokens))?;
        let drafter = ModelDrafter::new(drafts.engine)?;
        loaded.engine.guess_by(Box::new(drafter))?;
        Ok(loaded)
    }
}

/// Compares what tokens mean in two models.
fn check_vocabularies(of_model: &Tokenizer, of_drafts: &Tokenizer) -> Result<()> {
    match of_model.first_other_token(of_drafts) {
        None => Ok(()),
        Some(token) => bail_usage!(
            "its token {token} is {:?}, and the model's is {:?}\ntry: a smaller model of the same \
             family, whose vocabulary is the same, or --draft ngram",
            String::from_utf8_lossy(&of_drafts.token_bytes(token)),
            String::from_utf8_lossy(&of_model.token_bytes(token)),
        ),
    }
}
