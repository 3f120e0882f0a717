//! Steps over the tokens of all requests.
//!
//! Invariant: a request runs or waits, once. Elsewhere: what is kept of each (`request`).

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::time::Duration;

use fercuda_grammar::TokenGrammar;
use fercuda_modelfile::ModelFile;
use fercuda_ops::OpDevice;
use fercuda_runtime::{
    BufferId, GraphBudget, GraphKey, Graphs, RecordOptions, Regime, Runtime, Session, SessionConfig,
};
use fercuda_tensor::{Dtype, Layout};

use crate::blocks::{BEGINNING, BlockPool};
use crate::choice::{ChosenToken, choose};
use crate::config::ModelConfig;
use crate::decoder::ModelDecoder;
use crate::error::{LlmError, refused};
use crate::memory_plan::{check_memory, limits};
use crate::recorder::{DeviceTensor, Planner, RecordedOps};
use crate::request::{
    EngineConfig, FinishReason, GenerationEvent, GenerationRequest, RequestId, RunningRequest,
};
use crate::sampler::{TokenSampler, log_sum};
use crate::states::{StatePool, state_pool};
use crate::step_inputs::{PLACES, StepInputs, StepKey, StepLimits, TokenRun, bytes_of, padded};
use crate::tensors::ModelTensors;
use crate::weights::DecoderWeights;

type Result<T> = std::result::Result<T, LlmError>;

/// Position of the tokens of a step that is measured.
const MEASURED_POSITION: u64 = 200;

/// Tokens of one request in a step.
struct StepPart {
    /// Number of the request among those that run.
    request: usize,
    count: usize,
    /// Whether it is the only one that its request has left.
    is_single: bool,
}

/// A model that is loaded, with its requests.
#[derive(Debug)]
pub struct Engine {
    session: Session,
    config: ModelConfig,
    limits: StepLimits,
    /// Most requests that run at once.
    requests: usize,
    context: u64,
    decoder: ModelDecoder,
    planner: Planner,
    steps: HashMap<StepKey, RecordedOps>,
    graphs: Option<Graphs<GraphKey>>,
    /// Steps that have run, and whether they can be captured.
    captured: HashMap<StepKey, bool>,
    workspace: Option<DeviceTensor>,
    arguments: (BufferId, StepInputs),
    /// Logits of the first rows, by their number.
    logits: HashMap<u64, BufferId>,
    logits_all: BufferId,
    /// The most likely token of each row.
    best: BufferId,
    /// Their logits.
    best_values: BufferId,
    pool: BlockPool,
    /// Slots of states, where layers have some.
    states: Option<StatePool>,
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
        let decoder = ModelDecoder::new(model.clone(), weights, limits, memory, &session)?;
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
        Ok(Self {
            graphs,
            captured: HashMap::new(),
            session,
            config: model,
            context,
            decoder,
            planner: Planner::new(device),
            steps: HashMap::new(),
            workspace: None,
            arguments: (arguments, StepInputs::new(limits)),
            logits: HashMap::new(),
            logits_all,
            best,
            best_values: values,
            pool: BlockPool::new(limits.blocks as u32),
            states: state_pool(&limits),
            running: Vec::new(),
            waiting: VecDeque::new(),
            next: 0,
            computed: 0,
            limits,
            requests: usize::try_from(config.requests).unwrap_or(usize::MAX),
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
            prefix: (BEGINNING, 0),
            row: 0,
            states: None,
        });
        Ok(id)
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
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

    /// Logarithms of the probabilities of tokens, each behind all before it: of the second one and
    /// of those that follow. As many are computed at once as requests may run.
    ///
    /// # Errors
    /// [`LlmError::Request`] of tokens that do not fit, or while requests are there; else as
    /// [`Engine::step`].
    pub fn score(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check_tokens(tokens)?;
        if !self.is_idle() {
            let what = "scores while requests run";
            return Err(refused(what, "when they have ended"));
        }
        let wanted = tokens.len().div_ceil(PLACES as usize);
        let blocks: Vec<u32> = std::iter::from_fn(|| self.pool.take())
            .take(wanted)
            .collect();
        // No request has one.
        let slot = self.states.as_mut().and_then(StatePool::take);
        let scores = match blocks.len() == wanted {
            true => self.score_in(tokens, &blocks, slot),
            false => {
                let what = format!("{} tokens in {} blocks", tokens.len(), blocks.len());
                Err(refused(what, "a larger cache"))
            }
        };
        self.pool.give_back(blocks);
        if let Some((states, slot)) = self.states.as_mut().zip(slot) {
            states.give_back(slot);
        }
        scores
    }

    fn score_in(&mut self, tokens: &[u32], blocks: &[u32], slot: Option<u32>) -> Result<Vec<f32>> {
        let vocabulary = self.decoder.vocabulary() as usize;
        let mut scores = Vec::new();
        for first in (0..tokens.len()).step_by(self.limits.requests as usize) {
            let own = &tokens[first..tokens.len().min(first + self.limits.requests as usize)];
            let block = &mut self.arguments.1;
            block.clear();
            block.set_blocks(0, blocks);
            for (at, token) in own.iter().enumerate() {
                block.set_token(at, *token, first + at, 0);
                block.set_place(at, first + at, blocks);
                block.set_row(at, at as i32);
            }
            let rows = (own.len() as u64).next_power_of_two();
            let key = StepKey {
                singles: 0,
                runs: rows,
                rows,
            };
            let run = TokenRun {
                first: 0,
                count: own.len(),
                from: slot.filter(|_| first > 0),
                to: slot,
                kept: None,
            };
            self.arguments.1.set_runs(&[run], key);
            self.queue(key)?;
            let of_rows = self.logits_of(rows)?;
            let logits: Vec<f32> = self.session.download(of_rows)?;
            let followers = tokens[first + 1..].iter();
            for (logits, token) in logits.chunks(vocabulary).take(own.len()).zip(followers) {
                let score = logits[*token as usize] - log_sum(logits);
                if score.is_nan() {
                    return Err(LlmError::NotNumbers);
                }
                scores.push(score);
            }
        }
        Ok(scores)
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

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Computes some tokens of the requests that run, and returns those that were chosen.
    ///
    /// # Errors
    /// [`LlmError::Op`] and [`LlmError::Runtime`] of the device.
    pub fn step(&mut self) -> Result<Vec<GenerationEvent>> {
        self.admit();
        let parts = self.schedule();
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        let (key, rows) = self.fill_arguments(&parts);
        let chosen = match self.compute(key, &rows) {
            Ok(chosen) => chosen,
            Err(error) => {
                self.forget_computed();
                return Err(error);
            }
        };
        for part in &parts {
            let request = &mut self.running[part.request];
            self.computed += part.count as u64;
            request.keep_prefix(part.count, &mut self.pool, self.states.as_mut());
        }
        Ok(self.report(&rows, chosen))
    }

    /// Computes a step, and what is chosen of its rows, or why none is.
    fn compute(
        &mut self,
        key: StepKey,
        rows: &[usize],
    ) -> Result<Vec<std::result::Result<ChosenToken, FinishReason>>> {
        self.queue(key)?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        // The largest of each row is known on the device.
        let is_largest = |at: &usize| {
            let request = &self.running[*at];
            let is_free = request.top.is_none() && request.grammar.is_none();
            is_free && request.sampler.takes_largest()
        };
        if rows.iter().all(is_largest) {
            let best: Vec<i64> = self.session.download(self.best)?;
            let values: Vec<f32> = self.session.download(self.best_values)?;
            let chosen = best.iter().zip(values).take(rows.len());
            let chosen = chosen.map(|(token, value)| {
                let is_possible = !value.is_nan() && value != f32::NEG_INFINITY;
                let chosen = ChosenToken {
                    token: *token as u32,
                    log_probability: None,
                    top: Vec::new(),
                };
                is_possible.then_some(chosen).ok_or(FinishReason::Failed)
            });
            return Ok(chosen.collect());
        }
        let of_rows = self.logits_of(key.rows)?;
        // While the device computes.
        let allowed = rows.iter().map(|at| {
            let grammar = self.running[*at].grammar.as_mut();
            grammar.map(TokenGrammar::allowed)
        });
        let allowed: Vec<_> = allowed.collect();
        let mut logits: Vec<f32> = self.session.download(of_rows)?;
        let vocabulary = self.decoder.vocabulary() as usize;
        let rows = rows.iter().zip(logits.chunks_mut(vocabulary)).zip(allowed);
        let chosen =
            rows.map(|((at, logits), allowed)| choose(&mut self.running[*at], logits, allowed));
        Ok(chosen.collect())
    }

    /// Has all that runs computed again, and forgets what is kept: a step has failed, and earlier
    /// ones that were behind it may have too.
    fn forget_computed(&mut self) {
        self.pool = BlockPool::new(self.limits.blocks as u32);
        self.states = state_pool(&self.limits);
        for request in &mut self.running {
            request.blocks.clear();
            (request.computed, request.prefix) = (0, (BEGINNING, 0));
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
    /// computed.
    fn fill_arguments(&mut self, parts: &[StepPart]) -> (StepKey, Vec<usize>) {
        let of_singles = parts.iter().filter(|it| it.is_single).count();
        let singles = padded(of_singles);
        let of_runs: usize = parts.iter().map(|it| it.count).sum::<usize>() - of_singles;
        let block = &mut self.arguments.1;
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
            let states = self.states.as_mut();
            runs.extend(states.and_then(|it| request.run((at, part.count), it)));
            block.set_blocks(request.row, &request.blocks);
            for position in request.computed..request.computed + part.count {
                let token = request.tokens[position];
                block.set_token(at, token, position, request.row);
                block.set_place(at, position, &request.blocks);
                at += 1;
            }
            if request.computed + part.count == request.tokens.len() {
                block.set_row(rows.len(), at as i32 - 1);
                rows.push(part.request);
            }
        }
        let key = StepKey {
            singles,
            runs: padded(of_runs).min(self.limits.tokens - singles),
            rows: (rows.len().max(1) as u64).next_power_of_two(),
        };
        self.arguments.1.set_runs(&runs, key);
        (key, rows)
    }

    /// Queues a step with its arguments.
    fn queue(&mut self, key: StepKey) -> Result<()> {
        let (id, block) = &self.arguments;
        self.session.upload_bytes(*id, &bytes_of(&block.values))?;
        self.prepare(key)?;
        self.run(key)
    }

    fn prepare(&mut self, key: StepKey) -> Result<()> {
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

    /// Ops of a step of so many tokens, with their kernels and their times on the device, in order.
    /// Nothing may run; what the cache has is lost.
    ///
    /// # Errors
    /// [`LlmError::Op`] and [`LlmError::Runtime`] of the device.
    pub fn op_times(
        &mut self,
        tokens: u64,
        rounds: usize,
    ) -> Result<Vec<(&'static str, &'static str, Duration)>> {
        let all = tokens.clamp(1, self.limits.tokens).next_power_of_two();
        let (singles, runs) = match all {
            1 => (1, 0),
            _ => (0, all),
        };
        let key = StepKey {
            singles,
            runs,
            rows: 1,
        };
        self.prepare(key)?;
        let (id, block) = &mut self.arguments;
        block.clear();
        let position = MEASURED_POSITION.min(self.context - 1) as usize;
        for at in 0..all as usize {
            block.set_token(at, 0, position, 0);
        }
        let run = TokenRun {
            count: all as usize,
            ..TokenRun::default()
        };
        block.set_runs(&[run], key);
        self.session.upload_bytes(*id, &bytes_of(&block.values))?;
        let Some(step) = self.steps.get(&key) else {
            return Ok(Vec::new());
        };
        let times = step.times(self.planner.context(), self.session.stream(), rounds.max(1))?;
        self.pool = BlockPool::new(self.limits.blocks as u32);
        self.states = state_pool(&self.limits);
        Ok(times)
    }

    fn logits_of(&mut self, rows: u64) -> Result<BufferId> {
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
        rows: &[usize],
        chosen: Vec<std::result::Result<ChosenToken, FinishReason>>,
    ) -> Vec<GenerationEvent> {
        let mut events = Vec::new();
        for (request, chosen) in rows.iter().zip(chosen) {
            let request = &mut self.running[*request];
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
            } else if generated >= request.max_tokens || request.tokens.len() as u64 > self.context
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
