//! The loop in the engine's thread: submissions in, steps, events out.
//!
//! Invariant: each request that was submitted is in `active` until it has ended or is cancelled, so
//! that an empty `active` is an idle engine.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use fercuda_tokenizer::{Detokenizer, StopMatcher, Tokenizer};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

use crate::answer_event::{
    AnswerEnd, AnswerEvent, AnswerReason, AnswerRoute, AnswerSubmission, AnswerToken,
    EmbedSubmission, EngineSubmission, STEP_FAILED,
};
use crate::client_watch::ClientWatch;
use crate::metrics::ServerMetrics;
use crate::token_engine::{EmbedError, GeneratedToken, TokenEngine, TokenFinish};

/// Least time between two looks at the memory of the device.
const BETWEEN_MEMORY: Duration = Duration::from_secs(1);

/// What clients are given where a grammar leads nowhere.
const GRAMMAR_STUCK: &str = "the grammar cannot be followed further: no token of the model fits, \
                             or it needs too many states; try a simpler one";

/// A request that the engine has.
struct ActiveAnswer<'t> {
    tokenizer: &'t Tokenizer,
    /// Control tokens that are text.
    shown: Vec<u32>,
    client: Option<ClientWatch>,
    events: UnboundedSender<AnswerEvent>,
    arrived: Instant,
    last: Instant,
    detokenizer: Detokenizer<'t>,
    matcher: StopMatcher,
    wants_tokens: bool,
    /// Tokens whose text is held back, with the place in the text at which they end.
    held: VecDeque<(usize, AnswerToken)>,
    /// Bytes of text so far, and of those that were sent.
    decoded: usize,
    sent: usize,
    /// Where the last token that was sent ends.
    sent_tokens_to: usize,
    prompt: usize,
    generated: usize,
    _permit: OwnedSemaphorePermit,
}

impl<'t> ActiveAnswer<'t> {
    fn new(
        tokenizer: &'t Tokenizer,
        route: AnswerRoute,
        prompt: usize,
        wants_tokens: bool,
    ) -> ActiveAnswer<'t> {
        ActiveAnswer {
            tokenizer,
            shown: route.shown,
            client: route.client,
            events: route.events,
            arrived: route.arrived,
            last: route.arrived,
            detokenizer: tokenizer.detokenizer_behind(false),
            matcher: StopMatcher::new(route.stops),
            wants_tokens,
            held: VecDeque::new(),
            decoded: 0,
            sent: 0,
            sent_tokens_to: 0,
            prompt,
            generated: 0,
            _permit: route.permit,
        }
    }

    /// Takes a token, and sends what it decides. Returns the end, if this is it.
    fn push<Id>(&mut self, chosen: GeneratedToken<Id>) -> Option<AnswerReason> {
        self.generated += 1;
        let mut text = String::new();
        let is_end_token = chosen.finished == Some(TokenFinish::End);
        if self.shown.contains(&chosen.token) {
            let bytes = self.tokenizer.token_bytes(chosen.token);
            text.push_str(&String::from_utf8_lossy(&bytes));
        } else if !is_end_token {
            self.detokenizer.push(chosen.token, &mut text);
        }
        if chosen.finished.is_some() {
            self.detokenizer.finish(&mut text);
        }
        self.decoded += text.len();
        if self.wants_tokens && !is_end_token {
            let token = AnswerToken {
                token: chosen.token,
                log_probability: chosen.log_probability.unwrap_or(f32::NAN),
                top: chosen.top,
            };
            self.held.push_back((self.decoded, token));
        }
        let (mut decided, stop) = self.matcher.push(&text);
        let end = match (stop, chosen.finished) {
            (Some(stop), _) => Some(AnswerReason::Stop(stop)),
            (None, Some(finish)) => {
                decided.push_str(&self.matcher.finish());
                Some(match finish {
                    TokenFinish::End | TokenFinish::GrammarEnd => AnswerReason::Token,
                    _ => AnswerReason::Length,
                })
            }
            (None, None) => None,
        };
        self.sent += decided.len();
        let tokens = self.decided_tokens(end.as_ref());
        if !decided.is_empty() || !tokens.is_empty() {
            self.send(AnswerEvent::Part(decided, tokens));
        }
        end
    }

    /// The tokens whose text was sent; at an end also those that it cuts.
    fn decided_tokens(&mut self, end: Option<&AnswerReason>) -> Vec<AnswerToken> {
        let mut tokens = Vec::new();
        while let Some((to, _)) = self.held.front() {
            let is_decided = match end {
                Some(AnswerReason::Stop(_)) => self.sent_tokens_to < self.sent,
                Some(_) => true,
                None => *to <= self.sent,
            };
            if !is_decided {
                break;
            }
            self.sent_tokens_to = *to;
            tokens.extend(self.held.pop_front().map(|it| it.1));
        }
        tokens
    }

    /// Sends an event; a receiver that is gone is found by `is_gone`.
    fn send(&self, event: AnswerEvent) {
        self.events.send(event).unwrap_or_default();
    }

    fn is_gone(&self) -> bool {
        self.events.is_closed() || self.client.as_ref().is_some_and(ClientWatch::is_gone)
    }
}

/// An engine with the requests that it has.
pub(crate) struct EngineLoop<'a, E: TokenEngine> {
    engine: &'a mut E,
    tokenizer: &'a Tokenizer,
    metrics: &'a ServerMetrics,
    active: HashMap<E::Id, ActiveAnswer<'a>>,
    /// When the memory was last asked for.
    asked: Instant,
}

impl<'a, E: TokenEngine> EngineLoop<'a, E> {
    pub(crate) fn new(
        engine: &'a mut E,
        tokenizer: &'a Tokenizer,
        metrics: &'a ServerMetrics,
    ) -> EngineLoop<'a, E> {
        metrics.set_load(engine.figures());
        metrics.set_memory(engine.memory());
        EngineLoop {
            asked: Instant::now(),
            engine,
            tokenizer,
            metrics,
            active: HashMap::new(),
        }
    }

    /// Publishes how full the engine is.
    fn publish(&mut self) {
        self.metrics.set_load(self.engine.figures());
        if self.asked.elapsed() >= BETWEEN_MEMORY {
            self.metrics.set_memory(self.engine.memory());
            self.asked = Instant::now();
        }
    }

    /// Runs until no more submissions can come and none is left.
    pub(crate) fn run(&mut self, submissions: &Receiver<EngineSubmission>) {
        loop {
            if self.active.is_empty() {
                self.publish();
                match submissions.recv() {
                    Ok(call) => self.take_call(call),
                    Err(_) => return,
                }
            }
            for call in submissions.try_iter() {
                self.take_call(call);
            }
            self.cancel_gone();
            self.publish();
            if !self.active.is_empty() {
                self.step();
            }
        }
    }

    fn take_call(&mut self, call: EngineSubmission) {
        match call {
            EngineSubmission::Answer(submission) => self.submit(*submission),
            EngineSubmission::Embed(submission) => self.embed(submission),
        }
    }

    /// Computes vectors, if the client is still there.
    fn embed(&mut self, submission: EmbedSubmission) {
        let EmbedSubmission {
            texts,
            arrived,
            reply,
            client,
            permit,
        } = submission;
        let metrics = self.metrics;
        if reply.is_closed() || client.is_some_and(|it| it.is_gone()) {
            metrics.aborted.fetch_add(1, Relaxed);
            return;
        }
        let vectors = self.engine.embed(&texts);
        let ended = match &vectors {
            Ok(_) => {
                let tokens = texts.iter().map(|it| it.len() as u64).sum();
                metrics.prompt_tokens.fetch_add(tokens, Relaxed);
                metrics.whole.observe(arrived.elapsed());
                metrics.set_failed(false);
                Some(&metrics.stopped)
            }
            Err(EmbedError::Failed(_)) => {
                metrics.set_failed(true);
                Some(&metrics.failed)
            }
            Err(EmbedError::Refused(_)) => None,
        };
        if let Some(ended) = ended {
            ended.fetch_add(1, Relaxed);
        }
        // Before the answer, so that a client that has it finds a place.
        drop(permit);
        // A client that has gone gets none.
        reply.send(vectors).unwrap_or_default();
    }

    fn submit(&mut self, submission: AnswerSubmission) {
        let AnswerSubmission { request, route } = submission;
        let is_gone = || route.client.as_ref().is_some_and(ClientWatch::is_gone);
        if route.events.is_closed() || is_gone() {
            self.metrics.aborted.fetch_add(1, Relaxed);
            return;
        }
        let (prompt, wants_tokens) = (request.tokens.len(), request.top.is_some());
        match self.engine.submit(request) {
            Ok(id) => {
                let answer = ActiveAnswer::new(self.tokenizer, route, prompt, wants_tokens);
                answer.send(AnswerEvent::Accepted);
                self.active.insert(id, answer);
            }
            Err(reason) => {
                let refused = AnswerEvent::Refused(reason);
                route.events.send(refused).unwrap_or_default();
            }
        }
    }

    /// Cancels requests whose receiver is gone.
    fn cancel_gone(&mut self) {
        let (engine, metrics) = (&mut *self.engine, self.metrics);
        self.active.retain(|id, answer| {
            let is_gone = answer.is_gone();
            if is_gone {
                engine.cancel(*id);
                metrics.aborted.fetch_add(1, Relaxed);
            }
            !is_gone
        });
    }

    fn step(&mut self) {
        match self.engine.step() {
            Ok(chosen) => {
                self.metrics.set_failed(false);
                for token in chosen {
                    self.take(token);
                }
            }
            Err(_) => {
                self.metrics.set_failed(true);
                for (id, answer) in self.active.drain() {
                    self.engine.cancel(id);
                    self.metrics.failed.fetch_add(1, Relaxed);
                    answer.send(AnswerEvent::Failed(STEP_FAILED));
                }
            }
        }
    }

    /// Passes a token on to its request.
    fn take(&mut self, chosen: GeneratedToken<E::Id>) {
        let (id, cached) = (chosen.request, chosen.cached_tokens);
        let failure = match chosen.finished {
            Some(TokenFinish::Failed) => Some("the model computes what are no numbers"),
            Some(TokenFinish::GrammarStuck) => Some(GRAMMAR_STUCK),
            _ => None,
        };
        if let Some(reason) = failure {
            if let Some(answer) = self.active.remove(&id) {
                self.metrics.failed.fetch_add(1, Relaxed);
                answer.send(AnswerEvent::Failed(reason));
            }
            return;
        }
        let Some(answer) = self.active.get_mut(&id) else {
            return;
        };
        let (now, metrics) = (Instant::now(), self.metrics);
        if answer.generated == 0 {
            metrics.first_token.observe(now - answer.arrived);
            let prompt = answer.prompt as u64;
            metrics.prompt_tokens.fetch_add(prompt, Relaxed);
            let cached = cached.unwrap_or(0) as u64;
            metrics.cached_tokens.fetch_add(cached, Relaxed);
        } else {
            metrics.between_tokens.observe(now - answer.last);
        }
        metrics.generated_tokens.fetch_add(1, Relaxed);
        answer.last = now;
        let is_finished = chosen.finished.is_some();
        let Some(reason) = answer.push(chosen) else {
            return;
        };
        if !is_finished {
            self.engine.cancel(id);
        }
        metrics.whole.observe(now - answer.arrived);
        let ended = match reason {
            AnswerReason::Length => &metrics.cut,
            _ => &metrics.stopped,
        };
        ended.fetch_add(1, Relaxed);
        let generated = answer.generated;
        let end = AnswerEnd {
            reason,
            generated,
            cached,
        };
        // Without its permit, so that a client that has read the end finds a place.
        if let Some(answer) = self.active.remove(&id) {
            let events = answer.events.clone();
            drop(answer);
            events.send(AnswerEvent::End(end)).unwrap_or_default();
        }
    }
}
