//! Guesses by a smaller model.

use std::collections::HashMap;

use crate::drafts::{DraftRequest, Drafter};
use crate::engine::Engine;
use crate::error::{LlmError, refused};
use crate::request::{GenerationRequest, RequestId};
use crate::sampler::SamplerConfig;

/// Guesses by a smaller model with the same tokens, which is an engine and a tenant of its own.
/// Its cache keeps what it has computed of a text from guess to guess, up to a block.
#[derive(Debug)]
pub struct ModelDrafter {
    engine: Engine,
}

impl ModelDrafter {
    /// One by that model. That both models mean the same texts by their tokens is the caller's to
    /// know: their guesses are of no use otherwise.
    ///
    /// # Errors
    /// [`LlmError::Request`] if requests of the model are there.
    pub fn new(engine: Engine) -> Result<Self, LlmError> {
        if !engine.is_idle() {
            let what = "guesses by a model that has requests";
            return Err(refused(what, "when they have ended"));
        }
        Ok(Self { engine })
    }

    /// The model's engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn add(&mut self, of: &DraftRequest<'_>) -> Option<RequestId> {
        let request = GenerationRequest {
            tokens: of.tokens.to_vec(),
            max_tokens: of.most,
            sampler: SamplerConfig::default(),
            end_tokens: Vec::new(),
            top: None,
            grammar: None,
            adapter: None,
        };
        // A text that is too long for it, or has tokens that it does not know, has no guess.
        self.engine.add(request).ok()
    }
}

impl Drafter for ModelDrafter {
    fn draft(&mut self, requests: &[DraftRequest<'_>]) -> Result<Vec<Vec<u32>>, LlmError> {
        let own: Vec<Option<RequestId>> = requests.iter().map(|it| self.add(it)).collect();
        let mut drafts: HashMap<RequestId, Vec<u32>> = HashMap::new();
        while !self.engine.is_idle() {
            let events = self.engine.step().inspect_err(|_| {
                // None of them is asked for any more.
                for id in own.iter().flatten() {
                    self.engine.cancel(*id);
                }
            });
            for event in events? {
                if event.finished.is_none_or(|it| it.has_token()) {
                    drafts.entry(event.request).or_default().push(event.token);
                }
            }
        }
        let draft = |id: Option<RequestId>| drafts.remove(&id?);
        let all = own.into_iter().map(draft);
        Ok(all.map(Option::unwrap_or_default).collect())
    }
}
