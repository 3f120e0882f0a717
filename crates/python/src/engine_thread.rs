//! The thread of an engine: requests in, parts of texts out.
//!
//! Invariant: each request that the engine has is in `active` until it has ended or is cancelled,
//! and its stream is ended in both cases; the engine's memory is free when the thread ends.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use fercuda_grammar::{GrammarCompiler, GrammarError, GrammarSource, TokenGrammar};
use fercuda_llm::{Engine, FinishReason, GenerationEvent, GenerationRequest, LlmError, RequestId};
use fercuda_tokenizer::{ChatTemplate, Detokenizer, StopMatcher, Tokenizer, TokenizerError};

use pyo3::types::PyAnyMethods as _;

use crate::alive::{self, SharedPyObject, lock};

/// A model's tokenizer and template.
pub(crate) struct ModelTexts {
    pub(crate) tokenizer: Tokenizer,
    /// Or why it is none.
    pub(crate) template: Result<Option<ChatTemplate>, TokenizerError>,
    /// What compiles grammars, from the first one on.
    grammars: OnceLock<Result<GrammarCompiler, GrammarError>>,
}

impl ModelTexts {
    pub(crate) fn new(
        tokenizer: Tokenizer,
        template: Result<Option<ChatTemplate>, TokenizerError>,
    ) -> ModelTexts {
        ModelTexts {
            tokenizer,
            template,
            grammars: OnceLock::new(),
        }
    }

    /// Compiles a grammar for the tokens.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn compile(&self, source: &GrammarSource) -> Result<TokenGrammar, GrammarError> {
        let compiler = self
            .grammars
            .get_or_init(|| GrammarCompiler::new(&self.tokenizer));
        compiler.as_ref().map_err(Clone::clone)?.compile(source)
    }
}

/// A token that was chosen: its number, the logarithm of its probability, and the most likely ones
/// with theirs.
pub(crate) type ChosenRow = (u32, Option<f32>, Vec<(u32, f32)>);

/// Requests that run, those that wait, free blocks and all; tokens that were guessed, and those of
/// them that were right.
pub(crate) type EngineFigures = (usize, usize, usize, usize, u64, u64);

/// Why a stream has ended.
#[derive(Clone)]
pub(crate) enum StreamEnd {
    /// By a token that ends a generation.
    Token,
    /// By the number of tokens, or the context.
    Length,
    /// By one of the caller's texts.
    Stop(String),
    /// Its caller closed it.
    Closed,
    /// The model was closed.
    Ended,
    /// The engine refused or failed; the error is taken once.
    Failed(Arc<LlmError>),
}

#[derive(Default)]
struct StreamState {
    parts: VecDeque<String>,
    tokens: Vec<ChosenRow>,
    reused_tokens: usize,
    end: Option<StreamEnd>,
    /// Called once when there is something new.
    waker: Option<SharedPyObject>,
}

/// What a request has given so far.
#[derive(Default)]
pub(crate) struct StreamSlot {
    state: Mutex<StreamState>,
    changed: Condvar,
}

impl StreamSlot {
    fn change(&self, change: impl FnOnce(&mut StreamState)) {
        let waker = {
            let mut state = lock(&self.state);
            change(&mut state);
            state.waker.take()
        };
        self.changed.notify_all();
        // Without the lock: a callback may ask for the next part.
        if let Some(waker) = waker {
            alive::with_python(|py| {
                if let Some(call) = waker.get()
                    && let Err(error) = call.bind(py).call0()
                {
                    error.write_unraisable(py, Some(call.bind(py)));
                }
            });
        }
    }

    fn end(&self, end: StreamEnd) {
        if self.known_end().is_none() {
            self.change(|state| {
                state.end.get_or_insert(end);
            });
        }
    }

    /// The next part of the text, if there is one; else the end, if that is known.
    pub(crate) fn take(&self) -> (Option<String>, Option<StreamEnd>) {
        let mut state = lock(&self.state);
        match state.parts.pop_front() {
            Some(part) => (Some(part), None),
            None => (None, state.end.clone()),
        }
    }

    /// Waits until there is a part or an end, or for so long.
    pub(crate) fn wait(&self, time: Duration) {
        let state = lock(&self.state);
        let is_pending = |it: &mut StreamState| it.parts.is_empty() && it.end.is_none();
        drop(self.changed.wait_timeout_while(state, time, is_pending));
    }

    /// Waits until it has ended, or for so long; returns whether it has.
    pub(crate) fn wait_for_end(&self, time: Duration) -> bool {
        let state = lock(&self.state);
        let is_pending = |it: &mut StreamState| it.end.is_none();
        let waited = self.changed.wait_timeout_while(state, time, is_pending);
        waited.map_or_else(
            |it| it.into_inner().0.end.is_some(),
            |it| it.0.end.is_some(),
        )
    }

    /// Has this called when there is a part or an end; false if there is one.
    pub(crate) fn wake(&self, waker: SharedPyObject) -> bool {
        let (is_set, old) = {
            let mut state = lock(&self.state);
            match state.parts.is_empty() && state.end.is_none() {
                true => (true, state.waker.replace(waker)),
                false => (false, Some(waker)),
            }
        };
        // Python objects are dropped without the lock.
        drop(old);
        is_set
    }

    /// Tokens so far, and those of the prompt that the cache had.
    pub(crate) fn tokens(&self) -> (Vec<ChosenRow>, usize) {
        let state = lock(&self.state);
        (state.tokens.clone(), state.reused_tokens)
    }

    pub(crate) fn known_end(&self) -> Option<StreamEnd> {
        lock(&self.state).end.clone()
    }
}

/// What the thread is asked for.
enum EngineCall {
    Add {
        request: Box<GenerationRequest>,
        stops: Vec<String>,
        slot: Arc<StreamSlot>,
    },
    Cancel(Arc<StreamSlot>),
    Figures(Sender<EngineFigures>),
    Stop,
}

/// A request that the engine has.
struct ActiveStream<'t> {
    slot: Arc<StreamSlot>,
    detokenizer: Detokenizer<'t>,
    matcher: StopMatcher,
}

impl Drop for ActiveStream<'_> {
    fn drop(&mut self) {
        // Of one that has ended the end stays.
        self.slot.end(StreamEnd::Ended);
    }
}

impl ActiveStream<'_> {
    /// Takes a token; returns whether the engine has to be stopped for it.
    fn push(&mut self, event: GenerationEvent) -> bool {
        let mut text = String::new();
        let has_token = event.finished.is_none_or(FinishReason::has_token);
        let has_text = has_token && event.finished != Some(FinishReason::End);
        if has_text {
            self.detokenizer.push(event.token, &mut text);
        }
        if event.finished.is_some() {
            self.detokenizer.finish(&mut text);
        }
        let (mut decided, stop) = self.matcher.push(&text);
        let is_stopped = stop.is_some();
        let end = match (stop, event.finished) {
            (Some(stop), _) => Some(StreamEnd::Stop(stop)),
            (None, Some(finished)) => {
                decided.push_str(&self.matcher.finish());
                Some(match finished {
                    FinishReason::End | FinishReason::GrammarEnd => StreamEnd::Token,
                    FinishReason::Length => StreamEnd::Length,
                    FinishReason::Failed => StreamEnd::Failed(Arc::new(LlmError::NotNumbers)),
                    FinishReason::GrammarStuck => {
                        StreamEnd::Failed(Arc::new(LlmError::GrammarStuck))
                    }
                })
            }
            (None, None) => None,
        };
        self.slot.change(|state| {
            state.reused_tokens = event.reused_tokens;
            if has_token {
                let row = (event.token, event.log_probability, event.top);
                state.tokens.push(row);
            }
            if !decided.is_empty() {
                state.parts.push_back(decided);
            }
            if state.end.is_none() {
                state.end = end;
            }
        });
        is_stopped && event.finished.is_none()
    }
}

/// An engine in a thread of its own.
pub(crate) struct EngineThread {
    calls: Sender<EngineCall>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EngineThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, that there is no thread.
    pub(crate) fn start(engine: Engine, texts: Arc<ModelTexts>) -> std::io::Result<EngineThread> {
        let (calls, received) = channel();
        let thread = Builder::new().name("fercuda llm".to_owned());
        let thread = thread.spawn(move || {
            let mut engine = engine;
            run(&mut engine, &texts.tokenizer, &received);
            let session = engine.session().clone();
            // The interpreter's exit frees nothing: the process does.
            alive::end_without_python(engine);
            let closed = session.close();
            // A session that was ended by a reboot is closed already.
            closed.unwrap_or_default();
            alive::end_without_python(session);
        })?;
        Ok(EngineThread {
            calls,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Queues a request; what comes of it goes to the slot. One that can never run ends there.
    pub(crate) fn add(
        &self,
        request: GenerationRequest,
        stops: Vec<String>,
        slot: &Arc<StreamSlot>,
    ) {
        let call = EngineCall::Add {
            request: Box::new(request),
            stops,
            slot: Arc::clone(slot),
        };
        // The thread has ended.
        if self.calls.send(call).is_err() {
            slot.end(StreamEnd::Ended);
        }
    }

    /// Ends a request; its memory is free when its slot has an end.
    pub(crate) fn cancel(&self, slot: &Arc<StreamSlot>) {
        if slot.known_end().is_none()
            && self
                .calls
                .send(EngineCall::Cancel(Arc::clone(slot)))
                .is_err()
        {
            slot.end(StreamEnd::Closed);
        }
    }

    /// How full the engine is; `None` behind the end.
    pub(crate) fn figures(&self) -> Option<EngineFigures> {
        let (to, from) = channel();
        self.calls.send(EngineCall::Figures(to)).ok()?;
        from.recv().ok()
    }

    /// Ends all requests and the thread, and waits for it.
    pub(crate) fn stop(&self) {
        self.calls.send(EngineCall::Stop).unwrap_or_default();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // A panic was printed where it happened.
            thread.join().unwrap_or_default();
        }
    }

    /// Whether the thread has ended, or is about to.
    pub(crate) fn is_stopped(&self) -> bool {
        lock(&self.thread)
            .as_ref()
            .is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Serves calls and steps until it is stopped, or no caller is left.
fn run(engine: &mut Engine, tokenizer: &Tokenizer, calls: &Receiver<EngineCall>) {
    let mut active: HashMap<RequestId, ActiveStream<'_>> = HashMap::new();
    loop {
        let call = match active.is_empty() {
            true => calls.recv().map_err(|_| TryRecvError::Disconnected),
            false => calls.try_recv(),
        };
        match call {
            Ok(EngineCall::Add {
                request,
                stops,
                slot,
            }) => match engine.add(*request) {
                Ok(id) => {
                    let stream = ActiveStream {
                        slot,
                        detokenizer: tokenizer.detokenizer_behind(false),
                        matcher: StopMatcher::new(stops),
                    };
                    active.insert(id, stream);
                }
                Err(error) => slot.end(StreamEnd::Failed(Arc::new(error))),
            },
            Ok(EngineCall::Cancel(slot)) => {
                let found = active.iter().find(|(_, it)| Arc::ptr_eq(&it.slot, &slot));
                let found = found.map(|(id, _)| *id);
                if let Some(id) = found {
                    engine.cancel(id);
                }
                slot.end(StreamEnd::Closed);
                found.and_then(|id| active.remove(&id));
            }
            Ok(EngineCall::Figures(to)) => to.send(figures(engine)).unwrap_or_default(),
            Err(TryRecvError::Empty) => step(engine, &mut active),
            Ok(EngineCall::Stop) | Err(TryRecvError::Disconnected) => break,
        }
    }
    for id in active.keys() {
        engine.cancel(*id);
    }
    drop(active);
    // Calls that came too late.
    for call in calls.try_iter() {
        if let EngineCall::Add { slot, .. } | EngineCall::Cancel(slot) = call {
            slot.end(StreamEnd::Ended);
        }
    }
}

fn figures(engine: &Engine) -> EngineFigures {
    let (running, waiting, free, blocks) = engine.load_figures();
    let (guessed, right) = engine.guessed_tokens();
    (running, waiting, free, blocks, guessed, right)
}

fn step(engine: &mut Engine, active: &mut HashMap<RequestId, ActiveStream<'_>>) {
    let events = match engine.step() {
        Ok(events) => events,
        Err(error) => {
            let error = Arc::new(error);
            for (id, stream) in active.drain() {
                engine.cancel(id);
                stream.slot.end(StreamEnd::Failed(Arc::clone(&error)));
            }
            return;
        }
    };
    for event in events {
        let id = event.request;
        let is_last = event.finished.is_some();
        let Some(stream) = active.get_mut(&id) else {
            continue;
        };
        if stream.push(event) {
            engine.cancel(id);
            active.remove(&id);
        } else if is_last {
            active.remove(&id);
        }
    }
}
