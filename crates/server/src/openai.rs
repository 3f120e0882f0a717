//! OpenAI's chat completions and completions.

use std::sync::Arc;

use fercuda_tokenizer::{ChatRequest, ChatValue};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{AnswerFormat, ServedModel};
use crate::answer_event::{AnswerEnd, AnswerReason, AnswerToken};
use crate::api_error::ApiError;
use crate::order::{
    GenerationOrder, MOST_TOP, OrderPrompt, TextOrTexts, number_within, refuse, stop_texts,
    token_count,
};
use crate::token_engine::TokenSampling;

/// Tokens of a completion, where the request names none.
const COMPLETION_TOKENS: usize = 16;

/// Members that both sorts of request have.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct OpenaiOptions {
    pub(crate) model: Option<String>,
    max_tokens: Option<i64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    seed: Option<i64>,
    stop: Option<TextOrTexts>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    n: Option<i64>,
    logit_bias: Option<Value>,
    pub(crate) stream: Option<bool>,
    stream_options: Option<StreamOptions>,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// A request for a chat completion.
#[derive(Debug, Deserialize)]
pub(crate) struct ChatBody {
    #[serde(flatten)]
    pub(crate) options: OpenaiOptions,
    messages: Vec<ChatMessage>,
    max_completion_tokens: Option<i64>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
    tools: Option<Vec<Value>>,
    functions: Option<Vec<Value>>,
    response_format: Option<Value>,
    modalities: Option<Vec<String>>,
}

/// A request for a completion.
#[derive(Debug, Deserialize)]
pub(crate) struct CompletionBody {
    #[serde(flatten)]
    pub(crate) options: OpenaiOptions,
    prompt: CompletionPrompt,
    logprobs: Option<i64>,
    best_of: Option<i64>,
    echo: Option<bool>,
    suffix: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a prompt: a text, a list of one text, or a list of tokens"
)]
enum CompletionPrompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    Lists(Vec<Vec<u32>>),
}

#[derive(Debug, Deserialize)]
struct ChatMessage {
    role: String,
    content: Option<MessageContent>,
    name: Option<String>,
    tool_calls: Option<Vec<MessageCall>>,
    tool_call_id: Option<String>,
}

/// The content of a message: a text, or parts.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected content: a text, or a list of parts with a type"
)]
pub(crate) enum MessageContent {
    Text(String),
    Parts(Vec<ContentPart>),
}

/// A part of a message.
#[derive(Debug, Deserialize)]
pub(crate) struct ContentPart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

#[derive(Debug, Deserialize)]
struct MessageCall {
    id: Option<String>,
    function: CalledFunction,
}

#[derive(Debug, Deserialize)]
struct CalledFunction {
    name: String,
    arguments: String,
}

impl MessageContent {
    /// Its text; that of several parts in lines.
    ///
    /// # Errors
    /// If a part is no text.
    pub(crate) fn into_text(self) -> Result<String, ApiError> {
        let parts = match self {
            Self::Text(text) => return Ok(text),
            Self::Parts(parts) => parts,
        };
        let texts = parts.into_iter().map(|part| match part {
            ContentPart {
                kind,
                text: Some(text),
            } if kind == "text" => Ok(text),
            ContentPart { kind, .. } => {
                let kind: String = kind.chars().take(40).collect();
                let message = format!("a part of type {kind:?}: only texts are supported");
                Err(ApiError::of("messages", message))
            }
        });
        let texts: Result<Vec<String>, ApiError> = texts.collect();
        Ok(texts?.join("\n"))
    }
}

/// Whether `type` and `role` have plain values everywhere. Templates get these unmarked.
fn has_plain_types(value: &ChatValue) -> bool {
    match value {
        ChatValue::Object(members) => members.iter().all(|(name, it)| match it {
            ChatValue::Text(text) if name == "type" || name == "role" => text
                .chars()
                .all(|it| it.is_ascii_alphanumeric() || "-_. ".contains(it)),
            it => has_plain_types(it),
        }),
        ChatValue::List(items) => items.iter().all(has_plain_types),
        _ => true,
    }
}

impl MessageCall {
    /// As templates expect it: with arguments as an object.
    fn into_value(self) -> Result<ChatValue, ApiError> {
        let arguments = ChatValue::from_json(&self.function.arguments).ok();
        let is_plain = |it: &ChatValue| matches!(it, ChatValue::Object(_)) && has_plain_types(it);
        let Some(arguments) = arguments.filter(is_plain) else {
            let message = "arguments of a call of a tool are no JSON object with plain types";
            return Err(ApiError::of("messages", message));
        };
        let function = ChatValue::object([
            ("name", self.function.name.into()),
            ("arguments", arguments),
        ]);
        Ok(ChatValue::object([
            ("id", self.id.map_or(ChatValue::Null, ChatValue::from)),
            ("type", "function".into()),
            ("function", function),
        ]))
    }
}

impl ChatMessage {
    fn into_value(self) -> Result<ChatValue, ApiError> {
        let role = match self.role.as_str() {
            "system" | "developer" => "system",
            "user" => "user",
            "assistant" => "assistant",
            "tool" => "tool",
            other => {
                let shown: String = other.chars().take(40).collect();
                let roles = "system, developer, user, assistant or tool";
                let message = format!("a role of {shown:?}, not {roles}");
                return Err(ApiError::of("messages", message));
            }
        };
        let calls = self.tool_calls.unwrap_or_default();
        let content = match self.content {
            Some(content) => content.into_text()?,
            None if role == "assistant" && !calls.is_empty() => String::new(),
            None => {
                let message = format!("a message of role {role} has no content");
                return Err(ApiError::of("messages", message));
            }
        };
        let mut members = vec![
            ("role", ChatValue::from(role)),
            ("content", ChatValue::from(content)),
        ];
        let texts = [("name", self.name), ("tool_call_id", self.tool_call_id)];
        for (name, text) in texts {
            members.extend(text.map(|it| (name, ChatValue::from(it))));
        }
        if !calls.is_empty() && role == "assistant" {
            let calls: Result<Vec<ChatValue>, ApiError> =
                calls.into_iter().map(MessageCall::into_value).collect();
            members.push(("tool_calls", calls?.into()));
        }
        Ok(ChatValue::object(members))
    }
}

impl OpenaiOptions {
    /// What is asked for behind this prompt.
    fn order(self, prompt: OrderPrompt, top: Option<usize>) -> Result<GenerationOrder, ApiError> {
        refuse(
            "n",
            self.n.is_some_and(|n| n != 1),
            "other than one choice is",
        )?;
        let is_empty = |it: &Value| it.as_object().is_some_and(|it| it.is_empty());
        let has_bias = self.logit_bias.is_some_and(|it| !is_empty(&it));
        refuse("logit_bias", has_bias, "biases are")?;
        let penalty = |name, value| number_within(name, value, -2.0..=2.0, 0.0);
        Ok(GenerationOrder {
            prompt,
            max_tokens: token_count("max_tokens", self.max_tokens)?,
            sampling: TokenSampling {
                temperature: number_within("temperature", self.temperature, 0.0..=2.0, 1.0)?,
                top_k: 0,
                top_p: number_within("top_p", self.top_p, 0.0..=1.0, 1.0)?,
                frequency_penalty: penalty("frequency_penalty", self.frequency_penalty)?,
                presence_penalty: penalty("presence_penalty", self.presence_penalty)?,
                seed: self.seed.map(i64::cast_unsigned),
            },
            stops: stop_texts("stop", self.stop)?,
            top,
        })
    }

    fn includes_usage(&self) -> bool {
        let options = self.stream_options.as_ref();
        options.and_then(|it| it.include_usage).unwrap_or(false)
    }
}

/// A number of tokens to show beside chosen ones.
fn top_count(name: &'static str, count: i64) -> Result<usize, ApiError> {
    let top = usize::try_from(count).ok().filter(|it| *it <= MOST_TOP);
    top.ok_or_else(|| ApiError::of(name, format!("{count} is not between 0 and {MOST_TOP}")))
}

impl ChatBody {
    /// The order, and whether a stream ends with the usage.
    ///
    /// # Errors
    /// Which member is wrong.
    pub(crate) fn into_order(self) -> Result<(GenerationOrder, bool), ApiError> {
        let is_there = |list: &Option<Vec<Value>>| list.as_ref().is_some_and(|it| !it.is_empty());
        refuse("tools", is_there(&self.tools), "tools are")?;
        refuse("functions", is_there(&self.functions), "functions are")?;
        let is_text = |format: &Value| format["type"] == "text";
        let is_other = self.response_format.is_some_and(|it| !is_text(&it));
        refuse("response_format", is_other, "formats other than text are")?;
        let modalities = self.modalities.unwrap_or_default();
        let is_other = modalities.iter().any(|it| it != "text");
        refuse("modalities", is_other, "modalities other than text are")?;
        let wants_tokens = self.logprobs.unwrap_or(false);
        let top = match (wants_tokens, self.top_logprobs) {
            (true, count) => Some(top_count("top_logprobs", count.unwrap_or(0))?),
            (false, None | Some(0)) => None,
            (false, Some(_)) => {
                return Err(ApiError::of("top_logprobs", "it needs logprobs to be true"));
            }
        };
        if self.messages.is_empty() {
            return Err(ApiError::of("messages", "there is none"));
        }
        let messages: Result<Vec<ChatValue>, ApiError> = self
            .messages
            .into_iter()
            .map(ChatMessage::into_value)
            .collect();
        let prompt = OrderPrompt::Chat(ChatRequest::new(messages?));
        let usage = self.options.includes_usage();
        let most = token_count("max_completion_tokens", self.max_completion_tokens)?;
        let mut order = self.options.order(prompt, top)?;
        order.max_tokens = most.or(order.max_tokens);
        Ok((order, usage))
    }
}

impl CompletionBody {
    /// As of a chat.
    ///
    /// # Errors
    /// Which member is wrong.
    pub(crate) fn into_order(self) -> Result<(GenerationOrder, bool), ApiError> {
        refuse("echo", self.echo.unwrap_or(false), "echoes are")?;
        let has_suffix = self.suffix.is_some_and(|it| !it.is_empty());
        refuse("suffix", has_suffix, "suffixes are")?;
        let is_several = self.best_of.is_some_and(|it| it != 1);
        refuse("best_of", is_several, "other than one choice is")?;
        let several = |count: usize| {
            let message = format!("a list of {count} prompts, not of one");
            ApiError::of("prompt", message)
        };
        let prompt = match self.prompt {
            CompletionPrompt::Text(text) => OrderPrompt::Text(text),
            CompletionPrompt::Texts(texts) => match <[String; 1]>::try_from(texts) {
                Ok([text]) => OrderPrompt::Text(text),
                Err(texts) => return Err(several(texts.len())),
            },
            CompletionPrompt::Tokens(tokens) => OrderPrompt::Tokens(tokens),
            CompletionPrompt::Lists(lists) => match <[Vec<u32>; 1]>::try_from(lists) {
                Ok([tokens]) => OrderPrompt::Tokens(tokens),
                Err(lists) => return Err(several(lists.len())),
            },
        };
        let top = self.logprobs.map(|count| top_count("logprobs", count));
        let top = top.transpose()?;
        let usage = self.options.includes_usage();
        let mut order = self.options.order(prompt, top)?;
        order.max_tokens = order.max_tokens.or(Some(COMPLETION_TOKENS));
        Ok((order, usage))
    }
}

/// OpenAI's form of answers.
#[derive(Debug)]
pub(crate) struct OpenaiFormat {
    pub(crate) model: Arc<ServedModel>,
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) is_chat: bool,
    /// Whether tokens are shown.
    pub(crate) shows_tokens: bool,
    /// Whether a stream ends with the usage.
    pub(crate) includes_usage: bool,
    pub(crate) prompt: usize,
    /// Characters of text so far.
    pub(crate) offset: usize,
}

/// A logarithm as JSON has it, which has no infinity.
fn finite(log: f32) -> f32 {
    if log.is_finite() { log } else { -9999.0 }
}

impl OpenaiFormat {
    /// A token's text, and its bytes.
    fn shown(&self, token: u32) -> (String, Vec<u8>) {
        let bytes = self.model.tokenizer.token_bytes(token);
        (String::from_utf8_lossy(&bytes).into_owned(), bytes)
    }

    fn logprobs(&self, tokens: &[AnswerToken], mut offset: usize) -> Value {
        if !self.shows_tokens {
            return Value::Null;
        }
        let entry = |token: u32, log: f32| {
            let (text, bytes) = self.shown(token);
            json!({ "token": text, "logprob": finite(log), "bytes": bytes })
        };
        if self.is_chat {
            let content = tokens.iter().map(|it| {
                let mut shown = entry(it.token, it.log_probability);
                let top = it.top.iter().map(|(token, log)| entry(*token, *log));
                shown["top_logprobs"] = top.collect();
                shown
            });
            let content: Vec<Value> = content.collect();
            return json!({ "content": content, "refusal": null });
        }
        let (mut texts, mut logs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
        for it in tokens {
            let (text, _) = self.shown(it.token);
            offsets.push(offset);
            offset += text.chars().count();
            texts.push(text);
            logs.push(finite(it.log_probability));
            let top = it.top.iter();
            let top = top.map(|(token, log)| (self.shown(*token).0, finite(*log).into()));
            tops.push(Value::Object(top.collect()));
        }
        json!({
            "tokens": texts, "token_logprobs": logs, "top_logprobs": tops, "text_offset": offsets,
        })
    }

    fn usage(&self, end: &AnswerEnd) -> Value {
        let mut usage = json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": end.generated,
            "total_tokens": self.prompt + end.generated,
        });
        if let Some(cached) = end.cached {
            usage["prompt_tokens_details"] = json!({ "cached_tokens": cached });
        }
        usage
    }

    fn reason(end: &AnswerEnd) -> &'static str {
        match end.reason {
            AnswerReason::Length => "length",
            AnswerReason::Token | AnswerReason::Stop(_) => "stop",
        }
    }

    /// An event of a stream with these choices.
    fn chunk(&self, choices: &Value, usage: &Value) -> String {
        let object = match self.is_chat {
            true => "chat.completion.chunk",
            false => "text_completion",
        };
        let mut chunk = json!({
            "id": self.id, "object": object, "created": self.created,
            "model": self.model.name, "choices": choices,
        });
        if self.includes_usage {
            chunk["usage"] = usage.clone();
        }
        format!("data: {chunk}\n\n")
    }

    fn choice(&self, text: Option<&str>, logprobs: &Value, reason: Option<&str>) -> Value {
        let mut choice = json!({ "index": 0, "logprobs": logprobs, "finish_reason": reason });
        match (self.is_chat, text) {
            (true, Some(text)) => choice["delta"] = json!({ "content": text }),
            (true, None) => choice["delta"] = json!({}),
            (false, text) => choice["text"] = text.unwrap_or("").into(),
        }
        json!([choice])
    }
}

impl AnswerFormat for OpenaiFormat {
    fn whole(&self, text: &str, tokens: &[AnswerToken], end: &AnswerEnd) -> Value {
        let mut choice = json!({
            "index": 0, "logprobs": self.logprobs(tokens, 0), "finish_reason": Self::reason(end),
        });
        let object = match self.is_chat {
            true => {
                let message = json!({ "role": "assistant", "content": text, "refusal": null });
                choice["message"] = message;
                "chat.completion"
            }
            false => {
                choice["text"] = text.into();
                "text_completion"
            }
        };
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model.name,
            "choices": [choice], "usage": self.usage(end),
        })
    }

    fn begin(&mut self) -> String {
        if !self.is_chat {
            return String::new();
        }
        let mut choices = self.choice(Some(""), &Value::Null, None);
        choices[0]["delta"]["role"] = "assistant".into();
        self.chunk(&choices, &Value::Null)
    }

    fn part(&mut self, text: &str, tokens: &[AnswerToken]) -> String {
        let logprobs = self.logprobs(tokens, self.offset);
        self.offset += text.chars().count();
        let choices = self.choice(Some(text), &logprobs, None);
        self.chunk(&choices, &Value::Null)
    }

    fn end(&mut self, end: &AnswerEnd) -> String {
        let choices = self.choice(None, &Value::Null, Some(Self::reason(end)));
        let mut events = self.chunk(&choices, &Value::Null);
        if self.includes_usage {
            events.push_str(&self.chunk(&json!([]), &self.usage(end)));
        }
        events + "data: [DONE]\n\n"
    }

    fn failure(&mut self, error: &ApiError) -> String {
        format!("data: {}\n\ndata: [DONE]\n\n", error.to_openai())
    }
}
