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

use crate::adapters::{AdapterPool, check_adapter};
use crate::blocks::{BlockPool, PrefixNode};
use crate::choice::{choose, largest_of};
use crate::chosen::{ChosenToken, RowChoice};
use crate::config::ModelConfig;
use crate::decoder::ModelDecoder;
use crate::drafts::{Drafter, NgramDrafter};
use crate::error::{LlmError, refused};
use crate::exchange::StepExchange;
use crate::memory_plan::{cache_positions, check_memory, limits_of};
use crate::recorder::{DeviceTensor, Planner, RecordedOps};
use crate::request::{
    EngineConfig, FinishReason, GenerationEvent, GenerationRequest, RequestId, RunningRequest,
};
use crate::sampler::TokenSampler;
use crate::states::{StatePool, state_pool};
use crate::step_inputs::{StepInputs, StepKey, StepLimits};
use crate::step_parts::{QueuedStep, RequestRows, StepPart};
use crate::tensors::ModelTensors;
use crate::weights::DecoderWeights;

type Result<T> = std::result::Result<T, LlmError>;

/// A model that is loaded, with its requests.
#[derive(Debug)]
pub struct Engine {
    /// A step behind the one whose tokens were taken last: it goes on by what that one chose, and
    /// was queued before the host knew.
    ahead: Option<QueuedStep>,
    pub(crate) can_be_ahead: bool,
    pub(crate) session: Session,
    config: ModelConfig,
    pub(crate) limits: StepLimits,
    /// Most requests that run at once.
    pub(crate) requests: usize,
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
    pub(crate) running: Vec<RunningRequest>,
    pub(crate) waiting: VecDeque<RunningRequest>,
    next: u64,
    computed: u64,
    pub(crate) drafter: Option<Box<dyn Drafter>>,
    /// Tokens that were guessed, and how many of them the model has chosen too.
    guesses: (u64, u64),
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
        let (mut limits, mut context) = limits_of(&model, config, is_software)?;
        if !config.cached.is_float() || config.cached == Dtype::F64 {
            let what = format!("a cache of {}", config.cached);
            return Err(refused(what, "f32, f16, bf16, f8e4m3 or f8e5m2"));
        }
        let tensors = ModelTensors::of(file, &model);
        if let Some(positions) = cache_positions(runtime, &tensors, config, &limits)? {
            let with = EngineConfig {
                cache_tokens: Some(positions),
                ..config.clone()
            };
            (limits, context) = limits_of(&model, &with, is_software)?;
        }
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
            Layout::contiguous(Dtype::F32, &[limits.rows, vocabulary])?,
            Regime::Pool,
        )?;
        let logits = DeviceTensor::of(session.bind(logits_all)?);
        let best = session.alloc(
            Layout::contiguous(Dtype::I64, &[limits.rows])?,
            Regime::Pool,
        )?;
        let values = session.alloc(
            Layout::contiguous(Dtype::F32, &[limits.rows])?,
            Regime::Pool,
        )?;
        let chosen = DeviceTensor::of(session.bind(best)?);
        let of_chosen = DeviceTensor::of(session.bind(values)?);
        let memory = (config.cached, bound, [logits, chosen, of_chosen]);
        let mut decoder = ModelDecoder::new(model.clone(), weights, limits, memory, &session)?;
        decoder.adapters = AdapterPool::reserve(&session, &tensors, &limits)?;
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
            drafter: match limits.drafts {
                0 => None,
                _ => Some(Box::new(NgramDrafter::new())),
            },
            guesses: (0, 0),
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

    /// Blocks of the cache that no request uses and that keep a prefix, and bytes of a block in all
    /// layers.
    pub fn kept_blocks(&self) -> (usize, u64) {
        (self.pool.kept(), self.decoder.block_bytes())
    }

    /// Number of tokens that steps have computed, of all requests.
    pub fn computed_tokens(&self) -> u64 {
        self.computed
    }

    /// Tokens that were guessed of requests, and how many of them the model has chosen too.
    pub fn guessed_tokens(&self) -> (u64, u64) {
        self.guesses
    }

    /// Has the next tokens of requests guessed by that, in place of [`NgramDrafter`].
    ///
    /// # Errors
    /// [`LlmError::Request`] of an engine that was opened without room for guesses
    /// ([`EngineConfig::draft_tokens`]).
    pub fn guess_by(&mut self, drafter: Box<dyn Drafter>) -> Result<()> {
        if self.limits.drafts == 0 {
            let what = "guesses of tokens of an engine without room for them";
            return Err(refused(what, "an engine that is opened with draft_tokens"));
        }
        self.drafter = Some(drafter);
        Ok(())
    }

    /// Queues a request.
    ///
    /// # Errors
    /// [`LlmError::Request`] of one that can never run.
    pub fn add(&mut self, request: GenerationRequest) -> Result<RequestId> {
        self.check_tokens(&request.tokens)?;
        check_adapter(self.decoder.adapters.as_ref(), request.adapter)?;
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
            drafts: Vec::new(),
            draft_limit: self.limits.drafts as usize,
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
                self.guess()?;
                let parts = self.schedule();
                if parts.is_empty() {
                    return Ok(Vec::new());
                }
                self.queue_step(parts)?
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
            self.ahead = Some(self.queue_step(parts)?);
        }
        let guesses = queued.rows.iter().map(|it| it.drafts.len() as u64);
        computed += guesses.sum::<u64>();
        let events = self.take_choices(queued)?;
        self.computed += computed;
        Ok(events)
    }

    pub(crate) fn place_of(&self, id: RequestId) -> Option<usize> {
        self.running.iter().position(|it| it.id == id)
    }

    /// Fills the argument block, and queues its step, and the copy of what it chooses.
    fn queue_step(&mut self, parts: Vec<StepPart>) -> Result<QueuedStep> {
        let known = |it: &StepPart| (self.running[it.request].id, it.count);
        let known = parts.iter().map(known).collect();
        let is_on_host = self.choice_of(&parts) == RowChoice::OnHost;
        let (key, rows) = self.fill_arguments(parts);
        self.queue(key)?;
        let choices = match !rows.is_empty() && !is_on_host {
            true => Some(self.exchange.copy_choices(self.session.stream())?),
            false => None,
        };
        Ok(QueuedStep {
            key,
            parts: known,
            rows,
            choices,
        })
    }

    /// Takes what is chosen of each row of a step, of the requests that are still there.
    fn take_choices(&mut self, step: QueuedStep) -> Result<Vec<GenerationEvent>> {
        let mut events = Vec::new();
        let count = step.rows.iter().map(RequestRows::count).sum();
        if count == 0 {
            return Ok(events);
        }
        if let Some(pending) = step.choices {
            let mut best = self.exchange.choices(pending, count)?.into_iter();
            for rows in step.rows {
                let mut own = best.by_ref().take(rows.count());
                let of_row = |_: &mut RunningRequest| {
                    own.next().map_or(Err(FinishReason::Failed), largest_of)
                };
                self.take_rows(&rows, of_row, &mut events);
                own.for_each(drop);
            }
            return Ok(events);
        }
        let of_rows = self.logits_of(step.key.rows)?;
        // While the device computes.
        let allowed = step.rows.iter().map(|rows| {
            let at = self.place_of(rows.request)?;
            let grammar = self.running[at].grammar.as_mut();
            grammar.map(TokenGrammar::allowed)
        });
        let allowed: Vec<_> = allowed.collect();
        let mut logits: Vec<f32> = self.session.download(of_rows)?;
        let vocabulary = self.decoder.vocabulary() as usize;
        let mut all = logits.chunks_mut(vocabulary);
        for (rows, first) in step.rows.into_iter().zip(allowed) {
            let (mut own, mut first) = (all.by_ref().take(rows.count()), Some(first));
            let of_row = |request: &mut RunningRequest| {
                let allowed = first.take().unwrap_or_else(|| {
                    let grammar = request.grammar.as_mut();
                    grammar.map(TokenGrammar::allowed)
                });
                let logits = own.next().ok_or(FinishReason::Failed)?;
                choose(request, logits, allowed)
            };
            self.take_rows(&rows, of_row, &mut events);
            own.for_each(drop);
        }
        Ok(events)
    }

    /// Takes a request's tokens by its rows, while they are those that were guessed.
    fn take_rows(
        &mut self,
        rows: &RequestRows,
        mut of_row: impl FnMut(&mut RunningRequest) -> std::result::Result<ChosenToken, FinishReason>,
        events: &mut Vec<GenerationEvent>,
    ) {
        let Some(at) = self.place_of(rows.request) else {
            return;
        };
        let request = &mut self.running[at];
        let mut right = 0;
        let has_ended = loop {
            let chosen = of_row(request);
            let event = request.take(chosen, self.context);
            let is_guessed = rows.drafts.get(right) == Some(&event.token);
            let has_ended = event.finished.is_some();
            events.push(event);
            right += usize::from(is_guessed);
            if has_ended || !is_guessed {
                break has_ended;
            }
        };
        self.guesses.0 += rows.drafts.len() as u64;
        self.guesses.1 += right as u64;
        if has_ended {
            self.cancel(rows.request);
            return;
        }
        let states = self.states.as_mut();
        self.running[at].take_drafts((rows.drafts.len(), right), &mut self.pool, states);
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
            request.drafts.clear();
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
}

/// The name of a session for a model of that name, which tools show as the tenant.
pub fn tenant_name(model: &str) -> String {
    model
        .chars()
        .filter(|it| !it.is_control())
        .take(40)
        .collect()
}
