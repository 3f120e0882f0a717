//! Anthropic's messages.

use std::sync::Arc;

use fercuda_tokenizer::{ChatRequest, ChatValue};
use serde_json::{Value, json};

use crate::answer::{AnswerFormat, ServedModel};
use crate::answer_event::{AnswerEnd, AnswerReason, AnswerToken};
use crate::api_error::ApiError;
use crate::members::RequestMembers;
use crate::openai_request::content_text;
use crate::order::{GenerationOrder, OrderPrompt, number_within, refuse, stop_texts, token_count};
use crate::token_engine::TokenSampling;

/// A request for a message.
#[derive(Debug)]
pub(crate) struct MessagesRequest {
    pub(crate) model: Option<String>,
    body: RequestMembers,
}

impl MessagesRequest {
    /// Reads a body; its members are checked when they are taken.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn read(body: &[u8]) -> Result<MessagesRequest, ApiError> {
        let mut body = RequestMembers::of_body(body)?;
        let model = body.text("model")?;
        Ok(MessagesRequest { model, body })
    }

    /// Whether the answer is sent as it comes.
    ///
    /// # Errors
    /// If that is no truth value.
    pub(crate) fn take_stream(&mut self) -> Result<bool, ApiError> {
        Ok(self.body.truth("stream")?.unwrap_or(false))
    }

    /// The conversation.
    ///
    /// # Errors
    /// Which member is wrong.
    pub(crate) fn take_prompt(&mut self) -> Result<OrderPrompt, ApiError> {
        let body = &mut self.body;
        let tools = body.list("tools")?.unwrap_or_default();
        refuse("tools", !tools.is_empty(), "tools are")?;
        let mut messages = Vec::new();
        if let Some(system) = body.take("system") {
            let text = content_text("system".to_owned(), system)?;
            messages.push(ChatValue::message("system", &text));
        }
        let turns = body.list("messages")?.unwrap_or_default();
        if turns.is_empty() {
            return Err(ApiError::of("messages", "there is none"));
        }
        let mut last = "";
        for (index, turn) in turns.into_iter().enumerate() {
            let mut turn = RequestMembers::of_value(format!("messages[{index}]"), turn)?;
            last = match turn.text("role")?.as_deref() {
                Some("user") => "user",
                Some("assistant") => "assistant",
                other => {
                    let shown: String = other.unwrap_or("nothing").chars().take(40).collect();
                    let message = format!("a role of {shown:?}, not user or assistant");
                    return Err(ApiError::of(turn.place("role"), message));
                }
            };
            let place = turn.place("content");
            let Some(content) = turn.take("content") else {
                return Err(ApiError::of(place, "it is missing"));
            };
            messages.push(ChatValue::message(last, &content_text(place, content)?));
        }
        if last == "assistant" {
            let message = "the last one is the assistant's; to go on with it is not supported";
            return Err(ApiError::of("messages", message));
        }
        Ok(OrderPrompt::Chat(ChatRequest::new(messages)))
    }

    /// The order.
    ///
    /// # Errors
    /// Which member is wrong.
    pub(crate) fn into_order(mut self) -> Result<GenerationOrder, ApiError> {
        // The adaptive one leaves it to the model.
        if let Some(mut thinking) = self.body.object("thinking")? {
            let kind = thinking.text("type")?.unwrap_or_default();
            let is_free = kind == "disabled" || kind == "adaptive";
            refuse("thinking", !is_free, "budgets of thinking are")?;
        }
        let config = self.body.object("output_config")?;
        let has_format = self.body.take("output_format").is_some()
            || config.is_some_and(|mut it| it.take("format").is_some());
        refuse("output_config", has_format, "formats other than text are")?;
        let prompt = self.take_prompt()?;
        let body = &mut self.body;
        let max_tokens = token_count("max_tokens", body.whole("max_tokens")?)?;
        if max_tokens.is_none() {
            return Err(ApiError::of("max_tokens", "it is missing"));
        }
        let top_k = body.whole("top_k")?.unwrap_or(0);
        let Ok(top_k) = usize::try_from(top_k) else {
            return Err(ApiError::of("top_k", format!("{top_k} is less than 0")));
        };
        let mut number =
            |name, range, default| number_within(name, body.number(name)?, range, default);
        let sampling = TokenSampling {
            temperature: number("temperature", 0.0..=1.0, 1.0)?,
            top_k,
            top_p: number("top_p", 0.0..=1.0, 1.0)?,
            ..TokenSampling::default()
        };
        Ok(GenerationOrder {
            prompt,
            max_tokens,
            sampling,
            stops: stop_texts("stop_sequences", body.texts("stop_sequences")?)?,
            end_tokens: Vec::new(),
            ignores_ends: false,
            top: None,
            tools: Vec::new(),
        })
    }
}

/// Anthropic's form of answers.
#[derive(Debug)]
pub(crate) struct AnthropicFormat {
    pub(crate) model: Arc<ServedModel>,
    pub(crate) id: String,
    pub(crate) prompt: usize,
}

/// An event of a stream.
fn event(kind: &str, mut data: Value) -> String {
    data["type"] = kind.into();
    format!("event: {kind}\ndata: {data}\n\n")
}

impl AnthropicFormat {
    fn message(&self, content: &Value, reason: &Value, usage: &Value) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model.name,
            "content": content, "stop_reason": reason["stop_reason"],
            "stop_sequence": reason["stop_sequence"], "usage": usage,
        })
    }

    fn usage(&self, generated: usize, cached: Option<usize>) -> Value {
        let cached = cached.unwrap_or(0);
        json!({
            "input_tokens": self.prompt.saturating_sub(cached),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": generated,
        })
    }

    fn reason(end: &AnswerEnd) -> Value {
        let (reason, text) = match &end.reason {
            AnswerReason::Token => ("end_turn", None),
            AnswerReason::Length => ("max_tokens", None),
            AnswerReason::Stop(text) => ("stop_sequence", Some(text)),
        };
        json!({ "stop_reason": reason, "stop_sequence": text })
    }
}

impl AnswerFormat for AnthropicFormat {
    fn whole(&self, text: &str, _: &[AnswerToken], end: &AnswerEnd) -> Value {
        let content = json!([{ "type": "text", "text": text }]);
        let usage = self.usage(end.generated, end.cached);
        self.message(&content, &Self::reason(end), &usage)
    }

    fn begin(&mut self) -> String {
        let message = self.message(&json!([]), &Value::Null, &self.usage(0, None));
        let block = json!({ "index": 0, "content_block": { "type": "text", "text": "" } });
        event("message_start", json!({ "message": message })) + &event("content_block_start", block)
    }

    fn part(&mut self, text: &str, _: &[AnswerToken]) -> String {
        let delta = json!({ "type": "text_delta", "text": text });
        event("content_block_delta", json!({ "index": 0, "delta": delta }))
    }

    fn end(&mut self, end: &AnswerEnd) -> String {
        let delta = Self::reason(end);
        let usage = self.usage(end.generated, end.cached);
        let events = [
            event("content_block_stop", json!({ "index": 0 })),
            event("message_delta", json!({ "delta": delta, "usage": usage })),
            event("message_stop", json!({})),
        ];
        events.concat()
    }

    fn failure(&mut self, error: &ApiError) -> String {
        event("error", error.to_anthropic())
    }
}
