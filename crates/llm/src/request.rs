//! Requests: what is asked for, what is computed of it, and what is reported.
//!
//! Invariant: a request's blocks hold the keys and values of its first `computed` tokens. It writes
//! only to blocks that it took for itself, which are those behind its kept prefix.

use fercuda_grammar::TokenGrammar;
use fercuda_tensor::Dtype;

use crate::blocks::{BlockNumber, BlockPool, PrefixNode};
use crate::decoder::PLACES;
use crate::sampler::{SamplerConfig, TokenSampler};

/// What an engine is opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Name of its session, the tenant in the ledger; empty for one by the model's name.
    pub session: String,
    /// Most tokens of a step, rounded up to a power of two, and at least twice the number of
    /// requests; `None` for the device's default.
    pub batch_tokens: Option<u64>,
    /// Most requests at once.
    pub requests: u64,
    /// Positions of a request; `None` for the model's, at most 8192.
    pub context: Option<u64>,
    /// Positions of the cache, for all requests together; `None` for one request's context.
    pub cache_tokens: Option<u64>,
    /// Type of keys and values in the cache.
    pub cached: Dtype,
    /// Whether steps are replayed as graphs; `None` for the device's default.
    pub graphs: Option<bool>,
    /// Whether blocks of weights become 16-bit floats for steps of many tokens, which tensor cores
    /// multiply faster; `None` for whether the device is a GPU.
    pub wide_products: Option<bool>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            session: String::new(),
            batch_tokens: None,
            requests: 8,
            context: None,
            cache_tokens: None,
            cached: Dtype::F16,
            graphs: None,
            wide_products: None,
        }
    }
}

/// What is to be generated.
#[derive(Clone, Debug)]
pub struct GenerationRequest {
    /// The prompt; one token at least.
    pub tokens: Vec<u32>,
    /// Most tokens that are generated.
    pub max_tokens: usize,
    /// How they are chosen.
    pub sampler: SamplerConfig,
    /// Tokens that end it. They are reported, and not computed further.
    pub end_tokens: Vec<u32>,
    /// Number of most likely tokens that are reported with each, and its own probability; `None`
    /// for neither, which is faster.
    pub top: Option<usize>,
    /// What the generated text follows, from its first token on, if anything.
    pub grammar: Option<TokenGrammar>,
}

/// Number of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(crate) u64);

/// Why a request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// By an end token.
    End,
    /// By its number of tokens, or the context.
    Length,
    /// By logits that are not numbers, or of which none is possible. The event has no token.
    Failed,
    /// By its grammar, behind whose text nothing may follow. The token is of that text.
    GrammarEnd,
    /// By its grammar, which cannot be followed further. The event has no token.
    GrammarStuck,
}

impl FinishReason {
    /// Whether the event of this end has a token.
    pub fn has_token(self) -> bool {
        !matches!(self, FinishReason::Failed | FinishReason::GrammarStuck)
    }
}

/// A token of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationEvent {
    /// The request.
    pub request: RequestId,
    /// The token.
    pub token: u32,
    /// Logarithm of its probability by the model alone, without temperature and penalties, if the
    /// request has asked for it.
    pub log_probability: Option<f32>,
    /// The most likely tokens with theirs, as many as the request has named.
    pub top: Vec<(u32, f32)>,
    /// Tokens of the prompt that were not computed, as the cache had them of another request.
    pub reused_tokens: usize,
    /// Whether it is the last one, and why.
    pub finished: Option<FinishReason>,
}

/// A request with what is computed of it.
#[derive(Debug)]
pub(crate) struct RunningRequest {
    pub(crate) id: RequestId,
    /// The prompt, and what was generated.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt: usize,
    pub(crate) max_tokens: usize,
    pub(crate) end_tokens: Vec<u32>,
    pub(crate) top: Option<usize>,
    pub(crate) sampler: TokenSampler,
    /// At the place behind the last token.
    pub(crate) grammar: Option<TokenGrammar>,
    pub(crate) computed: usize,
    /// Tokens of the prompt that the cache had.
    pub(crate) reused: usize,
    pub(crate) blocks: Vec<BlockNumber>,
    /// The prefix of its full blocks, and how many they are.
    pub(crate) prefix: (PrefixNode, usize),
    /// Its row of the table.
    pub(crate) row: usize,
}

impl RunningRequest {
    /// Takes kept blocks that the tokens begin with. At least one token is left to be computed,
    /// which gives the logits.
    pub(crate) fn find_prefix(&mut self, pool: &mut BlockPool) {
        let whole = (self.tokens.len() - 1) / PLACES as usize;
        for tokens in self.tokens.chunks(PLACES as usize).take(whole) {
            let Some((block, node)) = pool.find(self.prefix.0, tokens) else {
                return;
            };
            self.blocks.push(block);
            self.prefix = (node, self.prefix.1 + 1);
            self.computed += tokens.len();
        }
    }

    /// Keeps the blocks that have become full, for requests that begin as this one.
    pub(crate) fn keep_prefix(&mut self, pool: &mut BlockPool) {
        let places = PLACES as usize;
        let full = self.computed / places;
        for at in self.prefix.1..full {
            let tokens = &self.tokens[at * places..(at + 1) * places];
            let node = pool.keep(self.blocks[at], self.prefix.0, tokens);
            self.prefix = (node, at + 1);
        }
    }
}
