//! Interface of an engine: tokens in, tokens out, one thread.

use std::fmt::Debug;
use std::hash::Hash;

use fercuda_grammar::TokenGrammar;

/// How tokens of a request are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenSampling {
    /// Divisor of logits; 0 takes the largest.
    pub temperature: f32,
    /// Number of most likely tokens that are kept; 0 for all.
    pub top_k: usize,
    /// Probability of the most likely tokens that are kept.
    pub top_p: f32,
    /// Part of the largest probability that kept tokens have at least.
    pub min_p: f32,
    /// Divisor of positive logits of tokens that stand among the last ones, and factor of negative
    /// ones; 1 for none.
    pub repetition_penalty: f32,
    /// What is taken from a logit for each time that its token stands among the last ones.
    pub frequency_penalty: f32,
    /// What is taken from a logit if its token stands among the last ones.
    pub presence_penalty: f32,
    /// Seed of the choices; `None` for a fresh one.
    pub seed: Option<u64>,
}

impl Default for TokenSampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            seed: None,
        }
    }
}

/// What an engine is to generate.
#[derive(Clone, Debug)]
pub struct TokenRequest {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Most tokens that are generated.
    pub max_tokens: usize,
    /// How they are chosen.
    pub sampling: TokenSampling,
    /// Tokens that end it.
    pub end_tokens: Vec<u32>,
    /// Number of most likely tokens that are reported with each, and its own probability; `None`
    /// for neither.
    pub top: Option<usize>,
    /// What the generated text follows, if anything.
    pub grammar: Option<TokenGrammar>,
    /// Number of the adapter among those of the model that is served, if any.
    pub adapter: Option<usize>,
}

/// Why an engine has ended a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFinish {
    /// By one of its end tokens.
    End,
    /// By its number of tokens, or the context.
    Length,
    /// By a failure of this request alone. There is no token.
    Failed,
    /// By its grammar, behind whose text nothing may follow. The token is of that text.
    GrammarEnd,
    /// By its grammar, which cannot be followed further. There is no token.
    GrammarStuck,
}

/// A token with the logarithm of its probability.
pub type TokenChance = (u32, f32);

/// A token that a step has chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedToken<Id> {
    /// Its request.
    pub request: Id,
    /// The token.
    pub token: u32,
    /// Logarithm of its probability by the model alone, if the request wants it.
    pub log_probability: Option<f32>,
    /// The most likely tokens, as many as the request has named.
    pub top: Vec<TokenChance>,
    /// Tokens of the prompt that were not computed, as they were in the cache; `None` if that is
    /// not known.
    pub cached_tokens: Option<usize>,
    /// Whether it is the last one, and why.
    pub finished: Option<TokenFinish>,
}

/// Why an engine has made no vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmbedError {
    /// It can never make them of these texts, for their author.
    Refused(String),
    /// It has failed.
    Failed(String),
}

/// How full an engine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineLoad {
    /// Requests that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Blocks of the cache that no request uses.
    pub free_blocks: usize,
    /// Blocks of the cache.
    pub blocks: usize,
    /// Those that no request uses, but that keep the beginning of a text.
    pub kept_blocks: usize,
    /// Tokens that were guessed, of all requests so far.
    pub guessed_tokens: u64,
    /// Those of them that were right.
    pub right_guesses: u64,
}

/// Device memory as the engine sees it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineMemory {
    /// What the engine holds.
    pub held: u64,
    /// The part of that for one block of the cache.
    pub block: u64,
    /// What no program has.
    pub free: u64,
    /// All of the device.
    pub total: u64,
}

/// An engine that generates tokens of many requests in steps.
///
/// One thread calls it. A request ends by an event with `finished`, by `cancel`, or by an error of
/// `step`, behind which the caller cancels what was running.
pub trait TokenEngine {
    /// Number of a request.
    type Id: Copy + Debug + Eq + Hash;

    /// Takes a request.
    ///
    /// # Errors
    /// Why it can never run, for its author.
    fn submit(&mut self, request: TokenRequest) -> Result<Self::Id, String>;

    /// Takes a request back, if it is there; its memory is free when this returns.
    fn cancel(&mut self, request: Self::Id);

    /// Computes for the requests that run.
    ///
    /// # Errors
    /// What has failed, of the engine and not of a request.
    fn step(&mut self) -> Result<Vec<GeneratedToken<Self::Id>>, String>;

    /// Vectors of texts, of an engine that makes them; texts are tokens with those around them.
    ///
    /// # Errors
    /// Why there are none.
    fn embed(&mut self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let count = texts.len();
        let what = format!("{count} texts for a model that makes no embeddings");
        Err(EmbedError::Refused(what))
    }

    /// How full it is.
    fn figures(&self) -> EngineLoad;

    /// Memory of its device, if it is known. It is asked for once a second at most.
    fn memory(&self) -> Option<EngineMemory> {
        None
    }
}
