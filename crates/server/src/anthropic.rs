//! Anthropic's messages.

use std::sync::Arc;

use fercuda_tokenizer::{ChatRequest, ChatValue};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{AnswerFormat, ServedModel};
use crate::answer_event::{AnswerEnd, AnswerReason, AnswerToken};
use crate::api_error::ApiError;
use crate::openai::MessageContent;
use crate::order::{
    GenerationOrder, OrderPrompt, TextOrTexts, number_within, refuse, stop_texts, token_count,
};
use crate::token_engine::TokenSampling;

/// A request for a message.
#[derive(Debug, Deserialize)]
pub(crate) struct MessagesBody {
    pub(crate) model: Option<String>,
    messages: Vec<TurnMessage>,
    system: Option<MessageContent>,
    max_tokens: Option<i64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    stop_sequences: Option<Vec<String>>,
    pub(crate) stream: Option<bool>,
    tools: Option<Vec<Value>>,
    thinking: Option<Value>,
    output_config: Option<Value>,
    output_format: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct TurnMessage {
    role: String,
    content: MessageContent,
}

impl MessagesBody {
    /// The conversation.
    ///
    /// # Errors
    /// Which member is wrong.
    pub(crate) fn take_prompt(&mut self) -> Result<OrderPrompt, ApiError> {
        let tools = self.tools.take().unwrap_or_default();
        refuse("tools", !tools.is_empty(), "tools are")?;
        let mut messages = Vec::new();
        if let Some(system) = self.system.take() {
            messages.push(ChatValue::message("system", &system.into_text()?));
        }
        let turns = std::mem::take(&mut self.messages);
        match turns.last().map(|it| it.role.as_str()) {
            Some("assistant") => {
                let message = "the last one is the assistant's; to go on with it is not supported";
                return Err(ApiError::of("messages", message));
            }
            Some(_) => {}
            None => return Err(ApiError::of("messages", "there is none")),
        }
        for turn in turns {
            let role = match turn.role.as_str() {
                "user" => "user",
                "assistant" => "assistant",
                other => {
                    let shown: String = other.chars().take(40).collect();
                    let message = format!("a role of {shown:?}, not user or assistant");
                    return Err(ApiError::of("messages", message));
                }
            };
            messages.push(ChatValue::message(role, &turn.content.into_text()?));
        }
        Ok(OrderPrompt::Chat(ChatRequest::new(messages)))
    }

    /// The order.
    ///
    /// # Errors
    /// Which member is wrong.
    pub(crate) fn into_order(mut self) -> Result<GenerationOrder, ApiError> {
        // The adaptive one leaves it to the model.
        let is_free = |it: &Value| it["type"] == "disabled" || it["type"] == "adaptive";
        let thinks = self.thinking.take().is_some_and(|it| !is_free(&it));
        refuse("thinking", thinks, "budgets of thinking are")?;
        let config = self.output_config.take().unwrap_or_default();
        let has_format = self.output_format.is_some() || !config["format"].is_null();
        refuse("output_config", has_format, "formats other than text are")?;
        let prompt = self.take_prompt()?;
        let max_tokens = token_count("max_tokens", self.max_tokens)?;
        if max_tokens.is_none() {
            return Err(ApiError::of("max_tokens", "it is missing"));
        }
        let top_k = self.top_k.unwrap_or(0);
        let Ok(top_k) = usize::try_from(top_k) else {
            return Err(ApiError::of("top_k", format!("{top_k} is less than 0")));
        };
        let stops = self.stop_sequences.map(TextOrTexts::Several);
        Ok(GenerationOrder {
            prompt,
            max_tokens,
            sampling: TokenSampling {
                temperature: number_within("temperature", self.temperature, 0.0..=1.0, 1.0)?,
                top_k,
                top_p: number_within("top_p", self.top_p, 0.0..=1.0, 1.0)?,
                ..TokenSampling::default()
            },
            stops: stop_texts("stop_sequences", stops)?,
            top: None,
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
