//! Requests: what is asked for, what is computed of it, and what is reported.
//!
//! Invariant: a request's blocks hold the keys and values of its first `computed` tokens. It writes
//! only to blocks that it took for itself, which are those behind its kept prefix. Where layers
//! have states, the slot that it reads next has the state behind these tokens.

use fercuda_grammar::TokenGrammar;
use fercuda_runtime::Runtime;
use fercuda_tensor::Dtype;

use crate::blocks::{BlockNumber, BlockPool, PrefixNode};
use crate::chosen::{ChosenToken, RowChoice};
use crate::error::LlmError;
use crate::sampler::{SamplerConfig, TokenSampler};
use crate::states::{SlotNumber, StatePool};
use crate::step_inputs::{PLACES, TokenRun};

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
    /// Bytes of the cache, in place of positions.
    pub cache_bytes: Option<u64>,
    /// Bytes of the device's memory up to which the cache is taken, beside what is there already,
    /// the weights and the memory of steps; in place of positions.
    pub memory_limit: Option<u64>,
    /// States that are kept of prefixes, of models whose layers have some; `None` for as many as
    /// requests.
    pub kept_states: Option<u64>,
    /// Most tokens of a request that are guessed and computed in one step, so that several are
    /// chosen in it where guesses are right; 0 for none.
    pub draft_tokens: u64,
    /// Type of keys and values in the cache.
    pub cached: Dtype,
    /// Whether steps are replayed as graphs; `None` for the device's default.
    pub graphs: Option<bool>,
    /// Whether blocks of weights become 16-bit floats for steps of many tokens, which tensor cores
    /// multiply faster; `None` for whether the device is a GPU.
    pub wide_products: Option<bool>,
    /// Whether the vectors of few tokens are multiplied in one launch with their norm, gate and
    /// residual; `None` for whether the device is a GPU.
    pub fused_products: Option<bool>,
    /// Most adapters that are loaded beside the model; their memory is reserved with it.
    pub adapters: u64,
    /// Largest rank of an adapter, rounded up to a multiple of 8.
    pub adapter_rank: u64,
}

/// Most positions of a request, where the caller names none.
const DEFAULT_CONTEXT: u64 = 8192;

impl EngineConfig {
    /// With the cache taken up to a part of that device's memory, as 0.9; without one as it is.
    ///
    /// # Errors
    /// [`LlmError::Runtime`] if the device does not say how much it has.
    pub fn up_to_part(self, runtime: &Runtime, part: Option<f64>) -> Result<Self, LlmError> {
        let Some(part) = part else {
            return Ok(self);
        };
        let all = runtime.memory()?.total_bytes;
        Ok(Self {
            memory_limit: Some((part * all as f64) as u64),
            ..self
        })
    }

    /// Positions of a request, of a model that has so many.
    pub fn context_of(&self, model: u64) -> u64 {
        self.context.unwrap_or(model.min(DEFAULT_CONTEXT))
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            session: String::new(),
            batch_tokens: None,
            requests: 8,
            context: None,
            cache_tokens: None,
            cache_bytes: None,
            memory_limit: None,
            kept_states: None,
            draft_tokens: 0,
            cached: Dtype::F16,
            graphs: None,
            wide_products: None,
            fused_products: None,
            adapters: 0,
            adapter_rank: 64,
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
    /// The adapter by which the model is changed for it, if any.
    pub adapter: Option<AdapterId>,
}

/// Number of an adapter of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterId(pub(crate) u32);

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
    pub(crate) adapter: Option<AdapterId>,
    pub(crate) computed: usize,
    /// Tokens of the prompt that the cache had.
    pub(crate) reused: usize,
    pub(crate) blocks: Vec<BlockNumber>,
    /// The prefix of its full blocks, and how many they are.
    pub(crate) prefix: (PrefixNode, usize),
    /// Its row of the table.
    pub(crate) row: usize,
    /// Its states, while it runs.
    pub(crate) states: Option<RequestStates>,
    /// Guesses of its next tokens, of the next step.
    pub(crate) drafts: Vec<u32>,
    /// Most tokens that are guessed, by how many guesses were right before.
    pub(crate) draft_limit: usize,
}

/// Slots of the states of a request.
#[derive(Debug)]
pub(crate) struct RequestStates {
    own: SlotNumber,
    /// A kept one, held, that its next step reads.
    from: Option<SlotNumber>,
    /// Tokens behind which its blocks are kept without the state: others begin as it does.
    shared: usize,
    /// The prefix of its answer whose state is kept.
    answered: Option<PrefixNode>,
    /// A slot in which its step keeps the state, and behind how many tokens of it.
    keeps: Option<(usize, SlotNumber)>,
    /// A slot for the state behind guesses.
    guessed: Option<SlotNumber>,
}

impl RunningRequest {
    /// What stands before its first block.
    pub(crate) fn beginning(&self) -> PrefixNode {
        PrefixNode::beginning(self.adapter.map(|it| it.0))
    }

    /// How its tokens are chosen.
    pub(crate) fn choice(&self) -> RowChoice {
        let is_plain = self.top.is_none() && self.grammar.is_none() && self.sampler.is_plain();
        match is_plain {
            true if self.sampler.takes_largest() => RowChoice::Largest,
            true => RowChoice::Sampled,
            false => RowChoice::OnHost,
        }
    }

    /// Takes kept blocks that the tokens begin with. At least one token is left to be computed,
    /// which gives the logits. Where layers have states, the blocks are those behind which one is
    /// kept, and a slot is taken; returns whether there was one.
    pub(crate) fn find_prefix(
        &mut self,
        pool: &mut BlockPool,
        states: Option<&mut StatePool>,
    ) -> bool {
        let places = PLACES as usize;
        let whole = (self.tokens.len() - 1) / places;
        let mut nodes = Vec::new();
        for tokens in self.tokens.chunks(places).take(whole) {
            let Some((block, node)) = pool.find(self.prefix.0, tokens) else {
                break;
            };
            self.blocks.push(block);
            nodes.push(node);
            self.prefix = (node, self.prefix.1 + 1);
        }
        let mut used = nodes.len();
        if let Some(states) = states {
            let last = nodes.iter().rposition(|node| states.has(*node));
            used = last.map_or(0, |it| it + 1);
            // Held, it stays while a slot is taken.
            let from = last.and_then(|it| states.find(nodes[it]));
            let Some(own) = states.take() else {
                from.into_iter().for_each(|it| states.release(it));
                pool.give_back(std::mem::take(&mut self.blocks));
                self.prefix = (self.beginning(), 0);
                return false;
            };
            pool.give_back(self.blocks.split_off(used));
            self.prefix = match last {
                Some(at) => (nodes[at], used),
                None => (self.beginning(), 0),
            };
            self.states = Some(RequestStates {
                own,
                from,
                shared: nodes.len() * places,
                answered: None,
                keeps: None,
                guessed: None,
            });
        }
        self.computed = used * places;
        true
    }

    /// Gives its blocks and its slots back, and forgets what is computed.
    pub(crate) fn give_back(&mut self, pool: &mut BlockPool, states: Option<&mut StatePool>) {
        pool.give_back(std::mem::take(&mut self.blocks));
        (self.computed, self.prefix) = (0, (self.beginning(), 0));
        let Some((own, states)) = self.states.take().zip(states) else {
            return;
        };
        states.give_back(own.own);
        own.guessed.into_iter().for_each(|it| states.give_back(it));
        own.from.into_iter().for_each(|it| states.release(it));
        own.keeps
            .into_iter()
            .for_each(|(_, it)| states.give_back(it));
    }

    /// Takes a slot of a pool that is new.
    pub(crate) fn begin_again(&mut self, states: Option<&mut StatePool>) {
        let own = states.and_then(StatePool::take);
        self.states = own.map(|own| RequestStates {
            own,
            from: None,
            shared: 0,
            answered: None,
            keeps: None,
            guessed: None,
        });
    }

    /// Tokens that a step has of so many that it may have: no more than there are to a prefix which
    /// others begin with, as the state behind that is kept.
    pub(crate) fn part_of(&self, count: usize) -> usize {
        let shared = self.states.as_ref().map_or(0, |it| it.shared);
        match shared.checked_sub(self.computed) {
            Some(left) if left > 0 => count.min(left),
            _ => count,
        }
    }

    /// Tokens that are known and not computed.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether it has one token in the next step.
    pub(crate) fn is_single(&self) -> bool {
        self.pending() == 1 && self.drafts.is_empty()
    }

    /// Whether what is left of its known tokens is of its answer, where so many may be guessed.
    pub(crate) fn goes_on(&self, most: usize) -> bool {
        self.tokens.len() > self.prompt && self.pending() <= 1 + most
    }

    /// Tokens of which guesses are of use: at most so many, while it generates, within its length
    /// and the context, and before the end of a block behind which its states are kept.
    pub(crate) fn room_for_drafts(&self, most: usize, context: u64) -> usize {
        if !self.goes_on(most) {
            return 0;
        }
        let (known, places) = (self.tokens.len(), PLACES as usize);
        // One is chosen behind the last guess.
        let left = self.max_tokens.saturating_sub(known - self.prompt + 1);
        let left = left.min((context as usize).saturating_sub(known));
        let of_block = match self.states {
            Some(_) => {
                let boundary = (self.computed / places + 1) * places;
                boundary.saturating_sub(known + 1)
            }
            None => usize::MAX,
        };
        self.draft_limit.min(most).min(left).min(of_block)
    }

    /// Whether guesses that are wrong can be taken back: it has a slot for the state behind them,
    /// where layers have states.
    pub(crate) fn can_go_back(&mut self, states: Option<&mut StatePool>) -> bool {
        let Some((own, states)) = self.states.as_mut().zip(states) else {
            return true;
        };
        own.guessed = own.guessed.or_else(|| states.take());
        own.guessed.is_some()
    }

    /// Takes a token, and says whether it is the last one.
    pub(crate) fn take(
        &mut self,
        chosen: Result<ChosenToken, FinishReason>,
        context: u64,
    ) -> GenerationEvent {
        let (chosen, failed) = match chosen {
            Ok(chosen) => (chosen, None),
            Err(reason) => (ChosenToken::default(), Some(reason)),
        };
        if failed.is_none() {
            self.tokens.push(chosen.token);
        }
        let has_grammar_ended = self.grammar.as_ref().is_some_and(|it| it.has_ended());
        let generated = self.tokens.len() - self.prompt;
        let finished = if failed.is_some() {
            failed
        } else if self.end_tokens.contains(&chosen.token) {
            Some(FinishReason::End)
        } else if has_grammar_ended {
            Some(FinishReason::GrammarEnd)
        } else if generated >= self.max_tokens || self.tokens.len() as u64 > context {
            Some(FinishReason::Length)
        } else {
            None
        };
        GenerationEvent {
            request: self.id,
            log_probability: chosen.log_probability,
            token: chosen.token,
            top: chosen.top,
            reused_tokens: self.reused,
            finished,
        }
    }

    /// Takes the guesses of which the first ones were right as computed. States go on behind all of
    /// them, or none: those behind a part are not there.
    pub(crate) fn take_drafts(
        &mut self,
        (guesses, right): (usize, usize),
        pool: &mut BlockPool,
        states: Option<&mut StatePool>,
    ) {
        if guesses == 0 {
            return;
        }
        // Sizes of steps are powers of two, of which one token is known.
        let tried = match right == guesses {
            true => 2 * guesses,
            false => right,
        };
        self.draft_limit = (tried + 1).next_power_of_two() - 1;
        self.draft_limit = self.draft_limit.max(1);
        if let Some(own) = &mut self.states {
            if right < guesses {
                return;
            }
            if let Some(guessed) = &mut own.guessed {
                std::mem::swap(&mut own.own, guessed);
            }
        }
        self.keep_prefix(right, pool, states);
    }

    /// The run of its next tokens, of so many that are known or being chosen. Where its state is
    /// kept behind one of them, that is at the end of a block: the last one of a prompt before its
    /// end, or one of the answer, for which the one before is given up.
    pub(crate) fn run(
        &mut self,
        (first, count, guesses): (usize, usize, usize),
        known: usize,
        pool: &mut StatePool,
    ) -> Option<TokenRun> {
        let (computed, places) = (self.computed, PLACES as usize);
        let end = computed + count;
        let is_last = end == known;
        let is_of_answer = computed >= self.prompt;
        let own = self.states.as_mut()?;
        if let Some(guessed) = own.guessed.filter(|_| guesses > 0) {
            return Some(TokenRun {
                first,
                count: count + guesses,
                from: Some(own.from.unwrap_or(own.own)),
                to: Some(guessed),
                kept: Some((count, own.own)),
            });
        }
        let boundary = match is_last && (count == 1 || is_of_answer) {
            _ if own.shared == end => end,
            true => end / places * places,
            false => (known - 1) / places * places,
        };
        let mark = boundary.checked_sub(computed);
        if let Some(mark) = mark.filter(|it| (1..=count).contains(it)) {
            let is_answer = boundary > self.prompt;
            let before = own.answered.take().filter(|_| is_answer);
            let slot = before.and_then(|node| pool.take_kept(node));
            own.keeps = slot.or_else(|| pool.take()).map(|slot| (mark, slot));
        }
        let from = match computed {
            0 => None,
            _ => Some(own.from.unwrap_or(own.own)),
        };
        Some(TokenRun {
            first,
            count,
            from,
            to: Some(own.own),
            kept: own.keeps,
        })
    }

    /// Takes so many tokens as computed, and keeps the blocks that have become full, for requests
    /// that begin as this one, and the state behind one of them.
    pub(crate) fn keep_prefix(
        &mut self,
        count: usize,
        pool: &mut BlockPool,
        states: Option<&mut StatePool>,
    ) {
        let places = PLACES as usize;
        let keeps = self.states.as_mut().and_then(|it| it.keeps.take());
        let boundary = keeps.map(|(mark, _)| self.computed + mark);
        self.computed += count;
        let full = self.computed / places;
        let mut kept_node = None;
        for at in self.prefix.1..full {
            let tokens = &self.tokens[at * places..(at + 1) * places];
            let node = pool.keep(self.blocks[at], self.prefix.0, tokens);
            self.prefix = (node, at + 1);
            if boundary == Some((at + 1) * places) {
                kept_node = Some(node);
            }
        }
        let Some((own, states)) = self.states.as_mut().zip(states) else {
            return;
        };
        own.from
            .take()
            .into_iter()
            .for_each(|it| states.release(it));
        match (keeps, kept_node) {
            (Some((_, slot)), Some(node)) => {
                states.keep(slot, node);
                if boundary.is_some_and(|it| it > self.prompt) {
                    own.answered = Some(node);
                }
            }
            (Some((_, slot)), None) => states.give_back(slot),
            _ => {}
        }
    }
}
