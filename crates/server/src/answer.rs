//! A request on its way: its place in the queue, its tokens, its events.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use fercuda_grammar::{GrammarSource, lark_text};
use fercuda_tokenizer::{ChatTemplate, Special, Tokenizer};
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Sleep, sleep_until, timeout_at};

use crate::answer_event::{
    AnswerEnd, AnswerEvent, AnswerRoute, AnswerSubmission, AnswerToken, EmbedSubmission,
    EngineSubmission, STEP_FAILED,
};
use crate::api_error::{ApiError, ErrorKind};
use crate::client_watch::ClientWatch;
use crate::grammars::GrammarDesk;
use crate::metrics::ServerMetrics;
use crate::order::{GenerationOrder, OrderPrompt, ToolOrder};
use crate::token_engine::{EmbedError, TokenRequest};
use crate::tool_grammar::CallNotation;
use crate::tool_syntax::{ToolReader, ToolSyntax};

/// The model that is served.
#[derive(Debug)]
pub struct ServedModel {
    /// Its name in requests.
    pub name: String,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template, if it has one.
    pub template: Option<ChatTemplate>,
    /// Positions that a request may have.
    pub context: u64,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// Elements of its vectors, if it makes vectors of texts and no texts.
    pub embedding: Option<u64>,
    /// Names of its adapters in requests, each by its number.
    pub adapters: Vec<String>,
}

/// The model with the adapter that a request has named.
#[derive(Clone, Debug)]
pub(crate) struct ChosenModel {
    pub(crate) served: Arc<ServedModel>,
    pub(crate) adapter: Option<usize>,
}

impl ChosenModel {
    /// Its name in answers.
    pub(crate) fn name(&self) -> &str {
        let adapter = self.adapter.and_then(|it| self.served.adapters.get(it));
        adapter.unwrap_or(&self.served.name)
    }
}

/// How an API writes answers.
pub(crate) trait AnswerFormat: Send + Unpin + 'static {
    /// The whole answer.
    fn whole(&mut self, text: &str, tokens: &[AnswerToken], end: &AnswerEnd) -> Value;
    /// Events at the beginning of a stream.
    fn begin(&mut self) -> String;
    /// Events of a part.
    fn part(&mut self, text: &str, tokens: &[AnswerToken]) -> String;
    /// Events at the end.
    fn end(&mut self, end: &AnswerEnd) -> String;
    /// Events of a stream that fails.
    fn failure(&mut self, error: &ApiError) -> String;
}

/// What requests share: the model, the way to the engine, the queue.
#[derive(Debug)]
pub(crate) struct AnswerDesk {
    pub(crate) model: Arc<ServedModel>,
    pub(crate) metrics: Arc<ServerMetrics>,
    /// Places of requests that run or wait.
    pub(crate) places: Arc<Semaphore>,
    pub(crate) submissions: Sender<EngineSubmission>,
    pub(crate) time_out: Duration,
    pub(crate) grammars: GrammarDesk,
}

/// A request that the engine has accepted. When it is dropped, the request is cancelled.
#[derive(Debug)]
pub(crate) struct RunningAnswer {
    events: UnboundedReceiver<AnswerEvent>,
    deadline: Pin<Box<Sleep>>,
}

impl RunningAnswer {
    /// The next event, or that there is no time for one.
    pub(crate) fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<AnswerEvent> {
        if let Poll::Ready(event) = self.events.poll_recv(context) {
            return Poll::Ready(event.unwrap_or(AnswerEvent::Failed(STEP_FAILED)));
        }
        let is_late = self.deadline.as_mut().poll(context).is_ready();
        match is_late {
            true => Poll::Ready(AnswerEvent::TimedOut),
            false => Poll::Pending,
        }
    }

    async fn event(&mut self) -> AnswerEvent {
        poll_fn(|context| self.poll_event(context)).await
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) async fn collect(
        mut self,
    ) -> Result<(String, Vec<AnswerToken>, AnswerEnd), ApiError> {
        let (mut text, mut tokens) = (String::new(), Vec::new());
        loop {
            match self.event().await {
                AnswerEvent::Accepted => {}
                AnswerEvent::Part(more, of_it) => {
                    text.push_str(&more);
                    tokens.extend(of_it);
                }
                AnswerEvent::End(end) => return Ok((text, tokens, end)),
                other => return Err(failure_of(other)),
            }
        }
    }
}

/// The error that an event is which ends a request early.
pub(crate) fn failure_of(event: AnswerEvent) -> ApiError {
    match event {
        AnswerEvent::Refused(reason) => ApiError::new(ErrorKind::Invalid, reason),
        AnswerEvent::TimedOut => ApiError::new(
            ErrorKind::TimedOut,
            "the request took longer than requests may",
        ),
        AnswerEvent::Failed(reason) => ApiError::new(ErrorKind::Internal, reason),
        _ => ApiError::new(ErrorKind::Internal, "events came out of order"),
    }
}

impl AsRef<Tokenizer> for ServedModel {
    fn as_ref(&self) -> &Tokenizer {
        &self.tokenizer
    }
}

impl ServedModel {
    /// The tokens of a prompt.
    fn encode(&self, prompt: OrderPrompt) -> Result<Vec<u32>, ApiError> {
        let refused = |error: fercuda_tokenizer::TokenizerError| {
            ApiError::new(ErrorKind::Invalid, error.to_string())
        };
        match prompt {
            OrderPrompt::Tokens(tokens) => Ok(tokens),
            OrderPrompt::Text(text) => {
                let tokens = self.tokenizer.encode(&text, Special::AsText);
                let mut tokens = tokens.map_err(refused)?;
                // BOS and EOS stand by themselves.
                let is_short = tokens.len() <= 2 && !text.is_empty();
                if is_short {
                    let own = self.tokenizer.encode_part(&text, Special::AsText);
                    if own.map_err(refused)?.is_empty() {
                        let message = "the model has no tokens for the characters of this text";
                        return Err(ApiError::of("prompt", message));
                    }
                }
                if tokens.is_empty() {
                    // Of an empty prompt a text begins.
                    tokens.extend(self.tokenizer.bos().or(self.tokenizer.eos()));
                }
                Ok(tokens)
            }
            OrderPrompt::Chat(chat) => {
                let Some(template) = &self.template else {
                    let message = "the model has no chat template; try /v1/completions";
                    return Err(ApiError::of("messages", message));
                };
                let prompt = template.render(&chat).map_err(refused)?;
                self.tokenizer.encode_prompt(&prompt).map_err(refused)
            }
        }
    }

    /// How the model writes calls of tools.
    ///
    /// # Errors
    /// If that is not known.
    pub(crate) fn tool_syntax(&self) -> Result<ToolSyntax, ApiError> {
        let source = self.template.as_ref().map(|it| it.source());
        source.and_then(ToolSyntax::of_template).ok_or_else(|| {
            let message = "tools are not supported with the chat template of this model";
            ApiError::of("tools", message)
        })
    }

    /// What takes calls of these tools out of an answer, if there are any.
    ///
    /// # Errors
    /// If it is not known how the model writes calls.
    pub(crate) fn tool_reader(
        &self,
        tools: &ToolOrder,
    ) -> Result<Option<(ToolSyntax, ToolReader)>, ApiError> {
        if tools.all.is_empty() {
            return Ok(None);
        }
        let syntax = self.tool_syntax()?;
        Ok(Some((syntax, ToolReader::new(syntax, tools.names()))))
    }

    /// What an answer follows: its own grammar, or that of calls, with the member that says so.
    ///
    /// # Errors
    /// Of a tool's schema, or of a grammar that cannot be had beside tools.
    fn grammar_of(
        &self,
        order: &mut GenerationOrder,
    ) -> Result<Option<(&'static str, GrammarSource)>, ApiError> {
        order.tools.check_forced()?;
        let own = order.grammar.take();
        let is_forced = order.tools.forced.is_some();
        if order.tools.all.is_empty() || (own.is_none() && !is_forced) {
            return Ok(own);
        }
        let mark = |text: &str| match self.tokenizer.token_of_piece(text) {
            Some(token) if self.tokenizer.is_control(token) => format!("<[{token}]>"),
            _ => lark_text(text),
        };
        let notation = CallNotation {
            syntax: self.tool_syntax()?,
            template: self.template.as_ref().map_or("", |it| it.source()),
            mark: &mark,
        };
        let refused =
            |error: fercuda_grammar::GrammarError| ApiError::of("tools", error.to_string());
        match own {
            Some((member, own)) if !is_forced => {
                let both = notation.of_json_or_calls(&order.tools, &own);
                let both = both.map_err(refused)?.ok_or_else(|| {
                    let message = "beside tools an answer follows a JSON schema or nothing";
                    ApiError::of(member, message)
                })?;
                Ok(Some((member, both)))
            }
            _ => {
                let calls = notation.of_calls(&order.tools).map_err(refused)?;
                Ok(Some(("tools", calls)))
            }
        }
    }

    /// The control tokens of these texts.
    fn control_tokens(&self, texts: &[&str]) -> Vec<u32> {
        let token = |text: &&str| self.tokenizer.token_of_piece(text);
        let tokens = texts.iter().filter_map(token);
        tokens.filter(|it| self.tokenizer.is_control(*it)).collect()
    }

    /// The number of the adapter of that name; none for the model's own, or for no name.
    ///
    /// # Errors
    /// The names that are served, of another one.
    pub(crate) fn adapter_of(&self, name: Option<&str>) -> Result<Option<usize>, ApiError> {
        let Some(name) = name.filter(|it| *it != self.name) else {
            return Ok(None);
        };
        let found = self.adapters.iter().position(|it| it == name);
        found.map(Some).ok_or_else(|| {
            let shown: String = name.chars().take(100).collect();
            let names: Vec<String> = [&self.name]
                .into_iter()
                .chain(&self.adapters)
                .map(|it| format!("{it:?}"))
                .collect();
            let message = format!("no model {shown:?} here, only {}", names.join(", "));
            let not_found = ApiError::new(ErrorKind::NotFound, message);
            ApiError {
                param: Some("model".into()),
                ..not_found
            }
        })
    }
}

impl AnswerDesk {
    /// The model that a request has named.
    ///
    /// # Errors
    /// As of [`ServedModel::adapter_of`].
    pub(crate) fn choose(&self, name: Option<&str>) -> Result<ChosenModel, ApiError> {
        Ok(ChosenModel {
            adapter: self.model.adapter_of(name)?,
            served: Arc::clone(&self.model),
        })
    }

    /// Takes a place in the queue.
    ///
    /// # Errors
    /// If there is none.
    fn place(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            self.metrics.refused.fetch_add(1, Relaxed);
            let message = "the queue is full; try again later";
            ApiError {
                retry_after: Some(self.metrics.seconds_to_retry()),
                ..ApiError::new(ErrorKind::Full, message)
            }
        })
    }

    /// Takes a place in the queue and has the engine make vectors of texts. Returns them, with the
    /// number of their tokens.
    ///
    /// # Errors
    /// If the queue is full, a text is refused, or the engine fails.
    pub(crate) async fn embed(
        &self,
        prompts: Vec<OrderPrompt>,
        client: Option<ClientWatch>,
    ) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
        let (arrived, permit) = (Instant::now(), self.place()?);
        let model = Arc::clone(&self.model);
        let encode = move || {
            let texts = prompts.into_iter().map(|it| model.encode(it));
            (texts.collect::<Result<Vec<Vec<u32>>, ApiError>>(), permit)
        };
        let internal = |_| ApiError::new(ErrorKind::Internal, "the texts could not be encoded");
        let (texts, permit) = tokio::task::spawn_blocking(encode)
            .await
            .map_err(internal)?;
        let texts = texts?;
        let context = self.model.context;
        if let Some((at, text)) = texts
            .iter()
            .enumerate()
            .find(|it| it.1.len() as u64 > context)
        {
            let message = format!(
                "text {at} has {} tokens, the context {context}; try a shorter one, or its parts",
                text.len()
            );
            return Err(ApiError::of("input", message));
        }
        let count = texts.iter().map(Vec::len).sum();
        let (reply, vectors) = oneshot::channel();
        let call = EngineSubmission::Embed(EmbedSubmission {
            texts,
            arrived,
            reply,
            client,
            permit,
        });
        let ended = || ApiError::new(ErrorKind::Unavailable, "the engine has ended");
        self.submissions.send(call).map_err(|_| ended())?;
        let late = || {
            ApiError::new(
                ErrorKind::TimedOut,
                "the request took longer than requests may",
            )
        };
        let vectors = tokio::time::timeout(self.time_out, vectors).await;
        match vectors.map_err(|_| late())?.map_err(|_| ended())? {
            Ok(vectors) => Ok((vectors, count)),
            Err(EmbedError::Refused(what)) => Err(ApiError::of("input", what)),
            Err(EmbedError::Failed(_)) => Err(ApiError::new(ErrorKind::Internal, STEP_FAILED)),
        }
    }

    /// Takes a place in the queue and makes the tokens of a prompt, in a thread for such work. The
    /// place goes along, so that no more of these threads' work waits than there are places, also
    /// of clients that are gone.
    ///
    /// # Errors
    /// If the queue is full, or the prompt cannot be rendered or encoded, or does not fit into the
    /// context.
    pub(crate) async fn encode(
        &self,
        prompt: OrderPrompt,
    ) -> Result<(Vec<u32>, OwnedSemaphorePermit), ApiError> {
        let permit = self.place()?;
        let model = Arc::clone(&self.model);
        let member = prompt.member();
        let encode = move || (model.encode(prompt), permit);
        let encoded = tokio::task::spawn_blocking(encode).await;
        let (tokens, permit) = encoded
            .map_err(|_| ApiError::new(ErrorKind::Internal, "the prompt could not be encoded"))?;
        let tokens = tokens?;
        let (count, context) = (tokens.len() as u64, self.model.context);
        if count > context {
            let message =
                format!("the prompt has {count} tokens, the context {context}; try a shorter one");
            return Err(ApiError {
                kind: ErrorKind::TooLong,
                ..ApiError::of(member, message)
            });
        }
        Ok((tokens, permit))
    }

    /// Takes a place in the queue and hands a request to the engine, with its adapter. Returns its
    /// answer, with the number of its prompt's tokens, when the engine has accepted it.
    ///
    /// # Errors
    /// If the queue is full, the prompt is refused, or the engine has ended.
    pub(crate) async fn submit(
        &self,
        mut order: GenerationOrder,
        adapter: Option<usize>,
        client: Option<ClientWatch>,
    ) -> Result<(RunningAnswer, usize), ApiError> {
        let arrived = Instant::now();
        if self.model.embedding.is_some() {
            let message = "the model makes embeddings, and no texts; try /v1/embeddings";
            return Err(ApiError::new(ErrorKind::Invalid, message));
        }
        order.tools.check_names()?;
        let source = self.model.grammar_of(&mut order)?;
        let shown = match order.tools.all.is_empty() {
            true => Vec::new(),
            false => {
                let texts = self.model.tool_syntax()?.shown_texts();
                self.model.control_tokens(texts)
            }
        };
        let (tokens, permit) = self.encode(order.prompt).await?;
        let (grammar, permit) = match source {
            None => (None, permit),
            Some(source) => {
                let model = Arc::clone(&self.model);
                let compiled = self.grammars.compile(model, source, permit);
                let compiled = timeout_at((arrived + self.time_out).into(), compiled).await;
                let compiled = compiled.map_err(|_| failure_of(AnswerEvent::TimedOut))??;
                (Some(compiled.0), compiled.1)
            }
        };
        let prompt = tokens.len();
        let left = (self.model.context as usize).saturating_sub(prompt);
        let (events, receiver) = unbounded_channel();
        let mut end_tokens = order.end_tokens;
        if !order.ignores_ends {
            let ends = self.model.tokenizer.generation_ends().iter();
            end_tokens.extend(ends.filter(|it| !shown.contains(it)));
        }
        let request = TokenRequest {
            tokens,
            max_tokens: order.max_tokens.unwrap_or(left.max(1)),
            sampling: order.sampling,
            end_tokens,
            top: order.top,
            grammar,
            adapter,
        };
        let route = AnswerRoute {
            stops: order.stops,
            shown,
            arrived,
            events,
            client,
            permit,
        };
        let ended = |_| ApiError::new(ErrorKind::Unavailable, "the engine has ended");
        let submission = AnswerSubmission { request, route };
        let call = EngineSubmission::Answer(Box::new(submission));
        self.submissions.send(call).map_err(ended)?;
        let mut answer = RunningAnswer {
            events: receiver,
            deadline: Box::pin(sleep_until((arrived + self.time_out).into())),
        };
        match answer.event().await {
            AnswerEvent::Accepted => Ok((answer, prompt)),
            other => Err(failure_of(other)),
        }
    }
}
