//! Steps over the tokens of all requests.
//!
//! Invariant: a request runs or waits, once. Elsewhere: what is kept of each (`request`).

use std::collections::{HashMap, VecDeque};
use std::path::Path;

use fercuda_grammar::TokenGrammar;
use fercuda_modelfile::ModelFile;
use fercuda_ops::OpDevice;
use fercuda_runtime::{
    BufferId, GraphBudget, GraphKey, Graphs, RecordOptions, Regime, Runtime, Session, SessionConfig,
};
use fercuda_tensor::{Dtype, Layout};

use crate::blocks::{BlockPool, PrefixNode};
use crate::choice::{ChosenToken, choose};
use crate::config::ModelConfig;
use crate::decoder::ModelDecoder;
use crate::error::{LlmError, refused};
use crate::exchange::{PendingChoices, StepExchange};
use crate::memory_plan::{check_memory, limits};
use crate::recorder::{DeviceTensor, Planner, RecordedOps};
use crate::request::{
    EngineConfig, FinishReason, GenerationEvent, GenerationRequest, RequestId, RunningRequest,
};
use crate::sampler::TokenSampler;
use crate::states::{StatePool, state_pool};
use crate::step_inputs::{PLACES, StepInputs, StepKey, StepLimits, TokenRun, padded};
use crate::tensors::ModelTensors;
use crate::weights::DecoderWeights;

type Result<T> = std::result::Result<T, LlmError>;

/// Tokens of one request in a step.
struct StepPart {
    /// Number of the request among those that run.
    request: usize,
    count: usize,
    /// Whether it is the only one that its request has left.
    is_single: bool,
}

/// A step that is queued.
#[derive(Debug)]
struct QueuedStep {
    key: StepKey,
    /// Its requests, and how many tokens of each it computes.
    parts: Vec<(RequestId, usize)>,
    /// Requests of its rows of logits.
    rows: Vec<RequestId>,
    /// The most likely tokens, where these are what is chosen of all rows.
    choices: Option<PendingChoices>,
}

/// A model that is loaded, with its requests.
#[derive(Debug)]
pub struct Engine {
    /// A step behind the one whose tokens were taken last: it goes on by what that one chose, and
    /// was queued before the host knew.
    ahead: Option<QueuedStep>,
    can_be_ahead: bool,
    pub(crate) session: Session,
    config: ModelConfig,
    pub(crate) limits: StepLimits,
    /// Most requests that run at once.
    requests: usize,
    pub(crate) context: u64,
    pub(crate) decoder: ModelDecoder,
    pub(crate) planner: Planner,
    pub(crate) steps: HashMap<StepKey, RecordedOps>,
    graphs: Option<Graphs<GraphKey>>,
    /// Steps that have run, and whether they can be captured.
    captured: HashMap<StepKey, bool>,
    workspace: Option<DeviceTensor>,
    pub(crate) inputs: StepInputs,
    pub(crate) exchange: StepExchange,
    /// Logits of the first rows, by their number.
    logits: HashMap<u64, BufferId>,
    logits_all: BufferId,
    pub(crate) pool: BlockPool,
    /// Slots of states, where layers have some.
    pub(crate) states: Option<StatePool>,
    running: Vec<RunningRequest>,
    waiting: VecDeque<RunningRequest>,
    next: u64,
    computed: u64,
}

impl Engine {
    /// Loads a model: its weights go to the device of the runtime. `progress` gets the bytes that
    /// are there, and those of all.
    ///
    /// # Errors
    /// [`LlmError::File`], [`LlmError::Model`] of what is not supported; [`LlmError::Memory`] of
    /// what does not fit, before anything is uploaded; [`LlmError::Request`] of limits.
    pub fn open(
        runtime: &Runtime,
        path: &Path,
        config: &EngineConfig,
        progress: impl FnMut(u64, u64),
    ) -> Result<Self> {
        let file = ModelFile::open(path)?;
        Self::load(runtime, &file, config, progress)
    }

    /// As [`Engine::open`], of a file that is open.
    ///
    /// # Errors
    /// As there.
    pub fn load(
        runtime: &Runtime,
        file: &ModelFile,
        config: &EngineConfig,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Self> {
        let model = ModelConfig::of(file)?;
        let is_software = runtime
            .device()
            .is_software()
            .map_err(fercuda_runtime::Error::from)?;
        let (limits, context) = limits(&model, config, is_software)?;
        if !config.cached.is_float() || config.cached == Dtype::F64 {
            let what = format!("a cache of {}", config.cached);
            return Err(refused(what, "f32, f16, bf16, f8e4m3 or f8e5m2"));
        }
        let tensors = ModelTensors::of(file, &model);
        let vocabulary = tensors.first_extent("token_embd.weight")?;
        let all = check_memory(runtime, &tensors, &limits, config.cached)?;
        let name = match (config.session.as_str(), model.name.as_str()) {
            ("", "") => "llm".to_owned(),
            ("", name) => tenant_name(name),
            (name, _) => name.to_owned(),
        };
        let session = runtime.session(&name, SessionConfig::default())?;
        let weights =
            DecoderWeights::load(tensors, context, &session, |bytes| progress(bytes, all))?;
        let arguments = session.alloc(ModelDecoder::argument_layout(&limits)?, Regime::Pool)?;
        let bound = DeviceTensor::of(session.bind(arguments)?);
        let logits_all = session.alloc(
            Layout::contiguous(Dtype::F32, &[limits.requests, vocabulary])?,
            Regime::Pool,
        )?;
        let logits = DeviceTensor::of(session.bind(logits_all)?);
        let best = session.alloc(
            Layout::contiguous(Dtype::I64, &[limits.requests])?,
            Regime::Pool,
        )?;
        let values = session.alloc(
            Layout::contiguous(Dtype::F32, &[limits.requests])?,
            Regime::Pool,
        )?;
        let chosen = DeviceTensor::of(session.bind(best)?);
        let of_chosen = DeviceTensor::of(session.bind(values)?);
        let memory = (config.cached, bound, [logits, chosen, of_chosen]);
        let mut decoder = ModelDecoder::new(model.clone(), weights, limits, memory, &session)?;
        decoder.reserve_adapters(&session, &tensors)?;
        let device = OpDevice::new(&runtime.context())?;
        let has_graphs = match config.graphs {
            Some(has_graphs) => has_graphs,
            // There a launch costs no more than one of a graph.
            None => !is_software,
        };
        let graphs = match has_graphs {
            true => Some(session.graphs(GraphBudget::default())?),
            false => None,
        };
        let inputs = StepInputs::new(limits);
        let exchange = StepExchange::new(&session, &inputs, [arguments, best, values])?;
        Ok(Self {
            ahead: None,
            can_be_ahead: true,
            graphs,
            captured: HashMap::new(),
            session,
            config: model,
            context,
            decoder,
            planner: Planner::new(device),
            steps: HashMap::new(),
            workspace: None,
            inputs,
            exchange,
            logits: HashMap::new(),
            logits_all,
            pool: BlockPool::new(limits.blocks as u32),
            states: state_pool(&limits),
            running: Vec::new(),
            waiting: VecDeque::new(),
            next: 0,
            computed: 0,
            limits,
            requests: config.requests.min(limits.requests) as usize,
        })
    }

    /// The model's configuration.
    pub fn model(&self) -> &ModelConfig {
        &self.config
    }

    /// Positions that a request may have.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// Number of tokens of the vocabulary; each is below it.
    pub fn vocabulary(&self) -> u64 {
        self.decoder.vocabulary()
    }

    /// Its session, the tenant of its memory.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Requests that run, those that wait, and blocks of the cache: those that no request uses, and
    /// all.
    pub fn load_figures(&self) -> (usize, usize, usize, usize) {
        let (free, all) = (self.pool.free(), self.pool.count());
        (self.running.len(), self.waiting.len(), free, all)
    }

    /// Number of tokens that steps have computed, of all requests.
    pub fn computed_tokens(&self) -> u64 {
        self.computed
    }

    /// Queues a request.
    ///
    /// # Errors
    /// [`LlmError::Request`] of one that can never run.
    pub fn add(&mut self, request: GenerationRequest) -> Result<RequestId> {
        self.check_tokens(&request.tokens)?;
        self.decoder.check_adapter(request.adapter)?;
        let id = RequestId(self.next);
        self.next += 1;
        self.waiting.push_back(RunningRequest {
            id,
            prompt: request.tokens.len(),
            tokens: request.tokens,
            max_tokens: request.max_tokens.max(1),
            end_tokens: request.end_tokens,
            top: request.top,
            sampler: TokenSampler::new(request.sampler),
            grammar: request.grammar,
            computed: 0,
            reused: 0,
            blocks: Vec::new(),
            prefix: (PrefixNode::beginning(request.adapter.map(|it| it.0)), 0),
            adapter: request.adapter,
            row: 0,
            states: None,
        });
        Ok(id)
    }

    pub(crate) fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        let count = tokens.len() as u64;
        if count == 0 {
            return Err(refused("a prompt without tokens", "one token at least"));
        }
        if count > self.context {
            let what = format!("a prompt of {count} tokens in {} positions", self.context);
            return Err(refused(what, "a shorter prompt, or a larger context"));
        }
        let vocabulary = self.decoder.vocabulary();
        match tokens.iter().find(|it| u64::from(**it) >= vocabulary) {
            Some(token) => {
                let what = format!("token {token} of a vocabulary of {vocabulary}");
                Err(refused(what, "tokens of this model's tokenizer"))
            }
            None => Ok(()),
        }
    }

    /// Takes a request back; returns whether it was there.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let before = self.running.len() + self.waiting.len();
        self.waiting.retain(|it| it.id != id);
        if let Some(at) = self.running.iter().position(|it| it.id == id) {
            let mut ended = self.running.remove(at);
            ended.give_back(&mut self.pool, self.states.as_mut());
        }
        before > self.running.len() + self.waiting.len()
    }

    /// Whether a step is queued that goes on by tokens which are not known yet.
    pub fn is_ahead(&self) -> bool {
        self.ahead.is_some()
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Computes some tokens of the requests that run, and returns those that were chosen. Where the
    /// most likely tokens are chosen, the step behind is queued before this one's are known; of a
    /// request that they end, it is in vain.
    ///
    /// # Errors
    /// [`LlmError::Op`] and [`LlmError::Runtime`] of the device.
    pub fn step(&mut self) -> Result<Vec<GenerationEvent>> {
        let events = self.next_step();
        if events.is_err() {
            self.forget_computed();
        }
        events
    }

    fn next_step(&mut self) -> Result<Vec<GenerationEvent>> {
        let mut ahead = self.ahead.take();
        let is_there =
            |it: &QueuedStep| it.parts.iter().any(|(id, _)| self.place_of(*id).is_some());
        if let Some(vain) = ahead.take_if(|it| !is_there(it)) {
            vain.choices
                .into_iter()
                .for_each(|it| self.exchange.abandon(it));
        }
        let queued = match ahead {
            Some(queued) => queued,
            None => {
                self.admit();
                let parts = self.schedule();
                if parts.is_empty() {
                    return Ok(Vec::new());
                }
                self.queue_step(&parts, false)?
            }
        };
        let mut computed = 0;
        for (id, count) in &queued.parts {
            if let Some(at) = self.place_of(*id) {
                computed += *count as u64;
                let states = self.states.as_mut();
                self.running[at].keep_prefix(*count, &mut self.pool, states);
            }
        }
        if let Some(parts) = self.parts_ahead(&queued) {
            self.ahead = Some(self.queue_step(&parts, true)?);
        }
        let chosen = self.chosen(&queued.rows, queued.key, queued.choices)?;
        self.computed += computed;
        Ok(self.report(chosen))
    }

    fn place_of(&self, id: RequestId) -> Option<usize> {
        self.running.iter().position(|it| it.id == id)
    }

    /// Fills the argument block, and queues its step, and the copy of what it chooses.
    fn queue_step(&mut self, parts: &[StepPart], continues: bool) -> Result<QueuedStep> {
        let (key, rows) = self.fill_arguments(parts, continues);
        self.queue(key)?;
        // The largest of each row is known on the device.
        let is_largest = |at: &usize| self.running[*at].takes_largest();
        let choices = match !rows.is_empty() && rows.iter().all(is_largest) {
            true => Some(self.exchange.copy_choices(self.session.stream())?),
            false => None,
        };
        let id = |at: usize| self.running[at].id;
        Ok(QueuedStep {
            key,
            parts: parts.iter().map(|it| (id(it.request), it.count)).collect(),
            rows: rows.into_iter().map(id).collect(),
            choices,
        })
    }

    /// The parts of a step that goes on by what that one chooses, whatever this is: there is one if
    /// all requests that run are in that step, each with a row and the most likely token, none ends
    /// by its length, and none waits that could run.
    fn parts_ahead(&mut self, queued: &QueuedStep) -> Option<Vec<StepPart>> {
        let is_alone = self.waiting.is_empty() || self.running.len() == self.requests;
        if queued.choices.is_none()
            || !self.can_be_ahead
            || queued.key.runs > 0
            || queued.rows.len() != self.running.len()
            || !is_alone
        {
            return None;
        }
        let rows = queued.rows.iter().map(|id| self.place_of(*id));
        let rows = rows.collect::<Option<Vec<usize>>>()?;
        let places = PLACES as usize;
        let goes_on = |at: &usize| {
            let request = &self.running[*at];
            let known = request.tokens.len() + 1;
            // A state that is kept in vain would be instead of one that is of use.
            let is_kept = self.states.is_some() && known.is_multiple_of(places);
            known - request.prompt < request.max_tokens
                && known as u64 <= self.context
                && request.computed + 1 == known
                && !is_kept
        };
        let lacks = |at: &usize| {
            let request = &self.running[*at];
            request.blocks.len() * places <= request.computed
        };
        let lacking: Vec<usize> = rows.iter().copied().filter(lacks).collect();
        if !rows.iter().all(goes_on) || lacking.len() > self.pool.free() {
            return None;
        }
        // Without room for such a step, the others are as good.
        let key = StepKey {
            continues: true,
            ..queued.key
        };
        if self.prepare(key).is_err() {
            self.can_be_ahead = false;
            return None;
        }
        for at in lacking {
            let block = self.pool.take()?;
            self.running[at].blocks.push(block);
        }
        let part = |request| StepPart {
            request,
            count: 1,
            is_single: true,
        };
        Some(rows.into_iter().map(part).collect())
    }

    /// What is chosen of each row of a step, or why none is, of the requests that are still there.
    fn chosen(
        &mut self,
        rows: &[RequestId],
        key: StepKey,
        choices: Option<PendingChoices>,
    ) -> Result<Vec<(usize, std::result::Result<ChosenToken, FinishReason>)>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let places: Vec<Option<usize>> = rows.iter().map(|id| self.place_of(*id)).collect();
        if let Some(pending) = choices {
            let best = self.exchange.choices(pending, rows.len())?;
            let chosen = places.into_iter().zip(best);
            let chosen = chosen.filter_map(|(at, (token, value))| {
                let is_possible = !value.is_nan() && value != f32::NEG_INFINITY;
                let chosen = ChosenToken {
                    token,
                    log_probability: None,
                    top: Vec::new(),
                };
                Some((
                    at?,
                    is_possible.then_some(chosen).ok_or(FinishReason::Failed),
                ))
            });
            return Ok(chosen.collect());
        }
        let of_rows = self.logits_of(key.rows)?;
        // While the device computes.
        let allowed = places.iter().map(|at| {
            let grammar = self.running[(*at)?].grammar.as_mut();
            grammar.map(TokenGrammar::allowed)
        });
        let allowed: Vec<_> = allowed.collect();
        let mut logits: Vec<f32> = self.session.download(of_rows)?;
        let vocabulary = self.decoder.vocabulary() as usize;
        let rows = places
            .iter()
            .zip(logits.chunks_mut(vocabulary))
            .zip(allowed);
        let chosen = rows.filter_map(|((at, logits), allowed)| {
            let at = (*at)?;
            Some((at, choose(&mut self.running[at], logits, allowed)))
        });
        Ok(chosen.collect())
    }

    /// Has all that runs computed again, and forgets what is kept: a step has failed, and earlier
    /// ones that were behind it may have too.
    fn forget_computed(&mut self) {
        self.ahead = None;
        self.inputs.forget_uploaded();
        self.pool = BlockPool::new(self.limits.blocks as u32);
        self.states = state_pool(&self.limits);
        for request in &mut self.running {
            request.blocks.clear();
            (request.computed, request.prefix) = (0, (request.beginning(), 0));
            request.begin_again(self.states.as_mut());
        }
    }

    /// Generates for one request; `each` gets the tokens, and says whether to go on.
    ///
    /// # Errors
    /// As [`Engine::add`] and [`Engine::step`]; [`LlmError::NotNumbers`] of damaged weights.
    pub fn generate(
        &mut self,
        request: GenerationRequest,
        mut each: impl FnMut(&GenerationEvent) -> bool,
    ) -> Result<Option<FinishReason>> {
        let id = self.add(request)?;
        loop {
            for event in self.step()? {
                if event.request != id {
                    continue;
                }
                match event.finished {
                    Some(FinishReason::Failed) => return Err(LlmError::NotNumbers),
                    Some(FinishReason::GrammarStuck) => return Err(LlmError::GrammarStuck),
                    _ => {}
                }
                let goes_on = each(&event);
                if event.finished.is_some() {
                    return Ok(event.finished);
                }
                if !goes_on {
                    self.cancel(id);
                    return Ok(None);
                }
            }
        }
    }

    /// Lets waiting requests run, while there are rows and a block for each.
    fn admit(&mut self) {
        while self.running.len() < self.requests && self.pool.free() > 0 {
            let Some(mut request) = self.waiting.pop_front() else {
                return;
            };
            let is_free = |row: &usize| self.running.iter().all(|it| it.row != *row);
            // There are as many rows as requests may run.
            request.row = (0..).find(is_free).unwrap_or_default();
            if !request.find_prefix(&mut self.pool, self.states.as_mut()) {
                self.waiting.push_front(request);
                return;
            }
            if request.tokens.len() == request.prompt {
                request.reused = request.computed;
            }
            self.running.push(request);
        }
    }

    /// Chooses how many tokens of each request are computed, and takes blocks for them: first of
    /// those that generate, then of prompts, in the order in which they came.
    fn schedule(&mut self) -> Vec<StepPart> {
        let left = self.limits.tokens as usize;
        let pending = |it: &RunningRequest| it.tokens.len() - it.computed;
        let of_singles = self.running.iter().filter(|it| pending(it) == 1).count();
        let padding = padded(of_singles) as usize - of_singles;
        let mut left = left.saturating_sub(padding);
        let mut order: Vec<RequestId> = Vec::new();
        for generates in [true, false] {
            let those = self
                .running
                .iter()
                .filter(|it| (pending(it) == 1) == generates);
            let mut those: Vec<RequestId> = those.map(|it| it.id).collect();
            those.sort_unstable();
            order.extend(those);
        }
        let mut counts: Vec<(RequestId, usize)> = Vec::new();
        for id in order {
            let Some(at) = self.running.iter().position(|it| it.id == id) else {
                continue;
            };
            let pending = self.running[at].tokens.len() - self.running[at].computed;
            let count = self.running[at].part_of(pending.min(left));
            if count == 0 {
                break;
            }
            if self.take_blocks(id, count, &mut counts) {
                counts.push((id, count));
                left -= count;
            }
        }
        let place = |id: RequestId| self.running.iter().position(|it| it.id == id);
        let parts = counts.into_iter().filter_map(|(id, count)| {
            let request = place(id)?;
            Some(StepPart {
                request,
                count,
                is_single: pending(&self.running[request]) == 1,
            })
        });
        parts.collect()
    }

    /// Takes blocks for so many more tokens of a request. Where none is free, the request that came
    /// last gives its own back, and is computed again later.
    fn take_blocks(
        &mut self,
        id: RequestId,
        count: usize,
        counts: &mut Vec<(RequestId, usize)>,
    ) -> bool {
        loop {
            let Some(at) = self.running.iter().position(|it| it.id == id) else {
                return false;
            };
            let request = &mut self.running[at];
            let wanted = (request.computed + count).div_ceil(PLACES as usize);
            while request.blocks.len() < wanted {
                let Some(block) = self.pool.take() else {
                    break;
                };
                request.blocks.push(block);
            }
            if request.blocks.len() >= wanted {
                return true;
            }
            let last = self.running.iter().map(|it| it.id).max().unwrap_or(id);
            counts.retain(|(other, _)| *other != last);
            if let Some(at) = self.running.iter().position(|it| it.id == last) {
                let mut evicted = self.running.remove(at);
                evicted.give_back(&mut self.pool, self.states.as_mut());
                self.waiting.push_front(evicted);
            }
        }
    }

    /// Fills the argument block; returns the step that it is for, and the requests whose logits are
    /// computed. A step that continues has of each request the token that is being chosen.
    fn fill_arguments(&mut self, parts: &[StepPart], continues: bool) -> (StepKey, Vec<usize>) {
        let of_singles = parts.iter().filter(|it| it.is_single).count();
        let singles = padded(of_singles);
        let of_runs: usize = parts.iter().map(|it| it.count).sum::<usize>() - of_singles;
        let block = &mut self.inputs;
        block.clear();
        let (mut at, mut rows, mut runs) = (0, Vec::new(), Vec::new());
        // Those that generate come first.
        for (number, part) in parts.iter().enumerate() {
            if number == of_singles {
                // Rows of padding are of no run.
                runs.extend((at..singles as usize).map(|first| TokenRun {
                    first,
                    ..TokenRun::default()
                }));
                at = singles as usize;
            }
            let request = &mut self.running[part.request];
            let known = request.tokens.len() + usize::from(continues);
            let states = self.states.as_mut();
            runs.extend(states.and_then(|it| request.run((at, part.count), known, it)));
            block.set_blocks(request.row, &request.blocks);
            for position in request.computed..request.computed + part.count {
                // A step that continues reads it on the device.
                let token = request.tokens.get(position).copied().unwrap_or_default();
                block.set_token(at, token, position, request.row);
                block.set_place(at, position, &request.blocks);
                block.set_adapter(at, request.adapter.map(|it| it.0));
                at += 1;
            }
            if request.computed + part.count == known {
                block.set_row(rows.len(), at as i32 - 1);
                rows.push(part.request);
            }
        }
        let key = StepKey {
            singles,
            runs: padded(of_runs).min(self.limits.tokens - singles),
            rows: (rows.len().max(1) as u64).next_power_of_two(),
            continues,
            has_adapters: self.inputs.has_adapters,
        };
        self.inputs.set_runs(&runs, key);
        (key, rows)
    }

    /// Queues a step with its arguments.
    pub(crate) fn queue(&mut self, key: StepKey) -> Result<()> {
        // Refused if the session has ended.
        self.session.layout(self.logits_all)?;
        let stream = self.session.stream();
        self.exchange.upload(&mut self.inputs, stream)?;
        self.prepare(key)?;
        self.run(key)
    }

    pub(crate) fn prepare(&mut self, key: StepKey) -> Result<()> {
        if self.steps.contains_key(&key) {
            return Ok(());
        }
        let mut step = self.decoder.prepare(&mut self.planner, key)?;
        let bytes = step.workspace_bytes();
        let held = self.workspace.as_ref().map_or(0, |it| it.layout().bytes());
        if bytes > held {
            self.workspace = Some(DeviceTensor::reserve(&self.session, Dtype::U8, &[bytes])?);
        }
        if let Some(workspace) = &self.workspace {
            step.use_workspace(workspace.clone());
        }
        self.steps.insert(key, step);
        Ok(())
    }

    /// Queues a prepared step. Where there are graphs, its first run is without one, as libraries
    /// prepare then; the second one is captured, unless it cannot be, and replayed from then on.
    fn run(&mut self, key: StepKey) -> Result<()> {
        let Some(step) = self.steps.get(&key) else {
            return Ok(());
        };
        let stream = self.session.stream();
        let (Some(graphs), Some(is_captured)) = (&self.graphs, self.captured.get(&key).copied())
        else {
            self.captured.insert(key, true);
            return step.run(stream);
        };
        let graph = key.graph();
        if !is_captured {
            return step.run(stream);
        }
        if graphs.replay(&graph)? {
            return Ok(());
        }
        let recorded = graphs.record(graph, RecordOptions::default(), |recording| {
            step.run(recording.stream()).map_err(|error| {
                let reason = error.to_string();
                let operation = "capture a step";
                fercuda_cuda::Error::Value { operation, reason }.into()
            })
        });
        if recorded.is_ok() && graphs.replay(&graph)? {
            return Ok(());
        }
        self.captured.insert(key, false);
        step.run(stream)
    }

    pub(crate) fn logits_of(&mut self, rows: u64) -> Result<BufferId> {
        if let Some(known) = self.logits.get(&rows) {
            return Ok(*known);
        }
        let first = |layout: &Layout| Ok(layout.slice(0, 0..rows, 1)?);
        let view = self.session.view(self.logits_all, first)?;
        self.logits.insert(rows, view);
        Ok(view)
    }

    /// Takes the chosen tokens of requests, and ends those that are complete.
    fn report(
        &mut self,
        chosen: Vec<(usize, std::result::Result<ChosenToken, FinishReason>)>,
    ) -> Vec<GenerationEvent> {
        let mut events = Vec::new();
        for (at, chosen) in chosen {
            let request = &mut self.running[at];
            let chosen = match chosen {
                Ok(chosen) => chosen,
                Err(reason) => {
                    events.push(GenerationEvent {
                        request: request.id,
                        log_probability: None,
                        token: 0,
                        top: Vec::new(),
                        reused_tokens: request.reused,
                        finished: Some(reason),
                    });
                    continue;
                }
            };
            let ChosenToken {
                token,
                log_probability,
                top,
            } = chosen;
            request.tokens.push(token);
            let generated = request.tokens.len() - request.prompt;
            let finished = if request.end_tokens.contains(&token) {
                Some(FinishReason::End)
            } else if request.grammar.as_ref().is_some_and(|it| it.has_ended()) {
                Some(FinishReason::GrammarEnd)
            } else if generated >= request.max_tokens || self.context < request.tokens.len() as u64
            {
                Some(FinishReason::Length)
            } else {
                None
            };
            events.push(GenerationEvent {
                request: request.id,
                log_probability,
                token,
                top,
                reused_tokens: request.reused,
                finished,
            });
        }
        for event in &events {
            if event.finished.is_some() {
                self.cancel(event.request);
            }
        }
        events
    }
}

/// The name of a session for a model of that name, which tools show as the tenant.
pub fn tenant_name(model: &str) -> String {
    model
        .chars()
        .filter(|it| !it.is_control())
        .take(40)
        .collect()
}
