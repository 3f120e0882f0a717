//! OpenAI's form of answers.

use serde_json::{Map, Value, json};

use crate::answer::{AnswerFormat, ChosenModel};
use crate::answer_event::{AnswerEnd, AnswerReason, AnswerToken};
use crate::api_error::ApiError;
use crate::token_logs::{finite, shown_token};
use crate::tool_syntax::{ToolCall, ToolPart, ToolReader, ToolSyntax, call_id};

/// OpenAI's form of answers.
#[derive(Debug)]
pub(crate) struct OpenaiFormat {
    pub(crate) model: ChosenModel,
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
    /// What takes calls of tools out of the text, if there are tools.
    pub(crate) tools: Option<(ToolSyntax, ToolReader)>,
}

impl OpenaiFormat {
    fn shown(&self, token: u32) -> (String, Vec<u8>) {
        shown_token(&self.model.served.tokenizer, token)
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
            tops.push(Value::Object(self.top_by_text(it)));
        }
        json!({
            "tokens": texts, "token_logprobs": logs, "top_logprobs": tops, "text_offset": offsets,
        })
    }

    /// The likeliest tokens by their texts; one that is no text by its bytes. Of two tokens of one
    /// text the likelier one counts.
    fn top_by_text(&self, of: &AnswerToken) -> Map<String, Value> {
        let mut all: Vec<(u32, f32)> = of.top.clone();
        all.sort_by(|a, b| a.1.total_cmp(&b.1));
        let key = |token: u32| {
            let (text, bytes) = self.shown(token);
            match std::str::from_utf8(&bytes) {
                Ok(_) => text,
                Err(_) => {
                    let bytes = bytes.iter().map(|it| format!("\\x{it:02x}"));
                    format!("bytes:{}", bytes.collect::<String>())
                }
            }
        };
        let entry = |(token, log): (u32, f32)| (key(token), finite(log).into());
        all.into_iter().map(entry).collect()
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

    fn reason(&self, end: &AnswerEnd) -> &'static str {
        match end.reason {
            AnswerReason::Token | AnswerReason::Stop(_) if self.calls() > 0 => "tool_calls",
            AnswerReason::Length => "length",
            AnswerReason::Token | AnswerReason::Stop(_) => "stop",
        }
    }

    /// Number of calls of tools so far.
    fn calls(&self) -> usize {
        self.tools.as_ref().map_or(0, |(_, reader)| reader.calls())
    }

    /// The name of a call, which no two calls share.
    fn call_id(&self, index: usize) -> String {
        let number: String = self
            .id
            .chars()
            .skip_while(|it| *it != '-')
            .skip(1)
            .collect();
        let syntax = self.tools.as_ref().map(|it| it.0);
        call_id(syntax, &number, index)
    }

    fn call_value(&self, index: usize, call: &ToolCall) -> Value {
        let function = json!({ "name": call.name, "arguments": call.arguments });
        json!({ "id": self.call_id(index), "type": "function", "function": function })
    }

    /// Events of these parts; the tokens' probabilities go with the first.
    fn chunks(&self, parts: Vec<ToolPart>, first: usize, mut logprobs: Value) -> String {
        let mut events = String::new();
        let mut index = first;
        for part in parts {
            let mut deltas = Vec::new();
            match part {
                ToolPart::Text(text) => deltas.push(json!({ "content": text })),
                ToolPart::Call(call) => {
                    let mut begin = self.call_value(index, &call);
                    begin["index"] = index.into();
                    begin["function"]["arguments"] = "".into();
                    deltas.push(json!({ "tool_calls": [begin] }));
                    let arguments = json!({ "arguments": call.arguments });
                    let more = json!({ "index": index, "function": arguments });
                    deltas.push(json!({ "tool_calls": [more] }));
                    index += 1;
                }
            }
            for delta in deltas {
                let mut choices = self.choice(None, &logprobs.take(), None);
                choices[0]["delta"] = delta;
                events.push_str(&self.chunk(&choices, &Value::Null));
            }
        }
        if !logprobs.is_null() {
            let choices = self.choice(Some(""), &logprobs, None);
            events.push_str(&self.chunk(&choices, &Value::Null));
        }
        events
    }

    /// An event of a stream with these choices.
    fn chunk(&self, choices: &Value, usage: &Value) -> String {
        let object = match self.is_chat {
            true => "chat.completion.chunk",
            false => "text_completion",
        };
        let mut chunk = json!({
            "id": self.id, "object": object, "created": self.created,
            "model": self.model.name(), "choices": choices,
        });
        if self.includes_usage {
            chunk["usage"] = usage.clone();
        }
        format!("data: {chunk}\n\n")
    }

    /// The message of a whole answer.
    fn message(&self, text: &str) -> Value {
        let mut message = json!({ "role": "assistant", "content": text, "refusal": null });
        let Some((_, reader)) = &self.tools else {
            return message;
        };
        let mut reader = reader.clone();
        let mut parts = reader.push(text);
        parts.extend(reader.finish());
        let (mut said, mut calls) = (String::new(), Vec::new());
        for part in parts {
            match part {
                ToolPart::Text(text) => said.push_str(&text),
                ToolPart::Call(call) => calls.push(self.call_value(calls.len(), &call)),
            }
        }
        if !calls.is_empty() {
            message["content"] = match said.trim().is_empty() {
                true => Value::Null,
                false => said.into(),
            };
            message["tool_calls"] = calls.into();
        }
        message
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
    fn whole(&mut self, text: &str, tokens: &[AnswerToken], end: &AnswerEnd) -> Value {
        let mut choice = json!({ "index": 0, "logprobs": self.logprobs(tokens, 0) });
        let mut reason = self.reason(end);
        let object = match self.is_chat {
            true => {
                let message = self.message(text);
                if message.get("tool_calls").is_some() && reason == "stop" {
                    reason = "tool_calls";
                }
                choice["message"] = message;
                "chat.completion"
            }
            false => {
                choice["text"] = text.into();
                "text_completion"
            }
        };
        choice["finish_reason"] = reason.into();
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model.name(),
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
        if let Some((_, reader)) = &mut self.tools {
            let first = reader.calls();
            let parts = reader.push(text);
            return self.chunks(parts, first, logprobs);
        }
        let choices = self.choice(Some(text), &logprobs, None);
        self.chunk(&choices, &Value::Null)
    }

    fn end(&mut self, end: &AnswerEnd) -> String {
        let mut events = String::new();
        if let Some((_, reader)) = &mut self.tools {
            let first = reader.calls();
            let parts = reader.finish();
            events = self.chunks(parts, first, Value::Null);
        }
        let choices = self.choice(None, &Value::Null, Some(self.reason(end)));
        events.push_str(&self.chunk(&choices, &Value::Null));
        if self.includes_usage {
            events.push_str(&self.chunk(&json!([]), &self.usage(end)));
        }
        events + "data: [DONE]\n\n"
    }

    fn failure(&mut self, error: &ApiError) -> String {
        format!("data: {}\n\ndata: [DONE]\n\n", error.to_openai())
    }
}
