//! OpenAI's form of responses, whole and as events.

use std::sync::Arc;

use fercuda_tokenizer::ChatValue;
use serde_json::{Map, Value, json};

use crate::answer::{AnswerFormat, ChosenModel};
use crate::answer_event::{AnswerEnd, AnswerReason, AnswerToken};
use crate::api_error::ApiError;
use crate::response_store::{ResponseStore, StoredResponse};
use crate::responses_request::{add_calls, call_value};
use crate::token_logs::{finite, shown_token};
use crate::tool_syntax::{ToolCall, ToolPart, ToolReader, ToolSyntax, call_id};

/// OpenAI's form of responses.
#[derive(Debug)]
pub(crate) struct ResponsesFormat {
    pub(crate) model: ChosenModel,
    /// Number of the response, which its items' names have too.
    pub(crate) number: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) prompt: usize,
    /// Members of the request that the response shows.
    pub(crate) shown: Map<String, Value>,
    /// Whether tokens are shown.
    pub(crate) shows_tokens: bool,
    /// What takes calls of tools out of the text, if there are tools.
    pub(crate) tools: Option<(ToolSyntax, ToolReader)>,
    /// Where the response is kept, with the messages that it follows.
    pub(crate) store: Option<(Arc<ResponseStore>, Vec<ChatValue>)>,
    pub(crate) output: ResponseOutput,
}

/// Items so far, and the number of events.
#[derive(Debug, Default)]
pub(crate) struct ResponseOutput {
    items: Vec<Value>,
    /// Logarithms of tokens whose text is held back, as it may be a call.
    held: Vec<Value>,
    /// The text of a message that is not complete, with its tokens' logarithms.
    open: Option<(String, Vec<Value>)>,
    /// Calls so far, as templates show them.
    calls: Vec<ChatValue>,
    events: usize,
}

impl ResponsesFormat {
    fn id(&self) -> String {
        format!("resp_{}", self.number)
    }

    /// The response, with the state that it is in.
    fn response(&self, status: &str, end: Option<&AnswerEnd>) -> Value {
        let usage = end.map(|end| {
            json!({
                "input_tokens": self.prompt,
                "input_tokens_details": { "cached_tokens": end.cached.unwrap_or(0) },
                "output_tokens": end.generated,
                "output_tokens_details": { "reasoning_tokens": 0 },
                "total_tokens": self.prompt + end.generated,
            })
        });
        let incomplete = match status {
            "incomplete" => json!({ "reason": "max_output_tokens" }),
            _ => Value::Null,
        };
        let mut response = json!({
            "id": self.id(), "object": "response", "created_at": self.created, "status": status,
            "background": false, "error": null, "incomplete_details": incomplete,
            "model": self.model.name(), "output": self.output.items, "truncation": "disabled",
            "usage": usage,
        });
        for (name, value) in &self.shown {
            response[name] = value.clone();
        }
        response
    }

    /// An event, with its number.
    fn event(&mut self, kind: &str, mut data: Value) -> String {
        data["type"] = kind.into();
        data["sequence_number"] = self.output.events.into();
        self.output.events += 1;
        format!("event: {kind}\ndata: {data}\n\n")
    }

    fn message_item(&self, index: usize, status: &str, text: Option<(&str, &[Value])>) -> Value {
        let content = text.map(|(text, logs)| json!([text_part(text, logs)]));
        json!({
            "id": format!("msg_{}{index}", self.number), "type": "message", "role": "assistant",
            "status": status, "content": content.unwrap_or_else(|| json!([])),
        })
    }

    fn call_item(&self, index: usize, call: &ToolCall, arguments: Option<&str>) -> Value {
        let syntax = self.tools.as_ref().map(|it| it.0);
        json!({
            "id": format!("fc_{}{index}", self.number), "type": "function_call",
            "status": if arguments.is_some() { "completed" } else { "in_progress" },
            "call_id": call_id(syntax, &self.number, self.output.calls.len()),
            "name": call.name, "arguments": arguments.unwrap_or(""),
        })
    }

    /// Logarithms of tokens, if they are shown.
    fn logs(&self, tokens: &[AnswerToken]) -> Vec<Value> {
        if !self.shows_tokens {
            return Vec::new();
        }
        let entry = |token: u32, log: f32| {
            let (text, bytes) = shown_token(&self.model.served.tokenizer, token);
            json!({ "token": text, "logprob": finite(log), "bytes": bytes })
        };
        let shown = tokens.iter().map(|it| {
            let mut shown = entry(it.token, it.log_probability);
            let top = it.top.iter().map(|(token, log)| entry(*token, *log));
            shown["top_logprobs"] = top.collect();
            shown
        });
        shown.collect()
    }

    /// Events of more text of a message, which begins with it if none is open.
    fn text_events(&mut self, text: &str, logs: Vec<Value>) -> String {
        let index = self.output.items.len();
        let mut events = String::new();
        if self.output.open.is_none() {
            self.output.open = Some((String::new(), Vec::new()));
            let item = self.message_item(index, "in_progress", None);
            let id = item["id"].clone();
            let added = json!({ "output_index": index, "item": item });
            events.push_str(&self.event("response.output_item.added", added));
            let part = json!({
                "item_id": id, "output_index": index, "content_index": 0,
                "part": text_part("", &[]),
            });
            events.push_str(&self.event("response.content_part.added", part));
        }
        let delta = json!({
            "item_id": format!("msg_{}{index}", self.number), "output_index": index,
            "content_index": 0, "delta": text, "logprobs": logs,
        });
        if let Some((whole, all)) = &mut self.output.open {
            whole.push_str(text);
            all.extend(logs);
        }
        events + &self.event("response.output_text.delta", delta)
    }

    /// Events of the end of a message, if one is open.
    fn close_events(&mut self, status: &str) -> String {
        let Some((text, logs)) = self.output.open.take() else {
            return String::new();
        };
        let index = self.output.items.len();
        let item = self.message_item(index, status, Some((&text, &logs)));
        let id = &item["id"];
        let done = json!({
            "item_id": id, "output_index": index, "content_index": 0, "text": text,
            "logprobs": logs,
        });
        let part = json!({
            "item_id": id, "output_index": index, "content_index": 0,
            "part": text_part(&text, &logs),
        });
        let last = json!({ "output_index": index, "item": item });
        self.output.items.push(item);
        let mut events = self.event("response.output_text.done", done);
        events.push_str(&self.event("response.content_part.done", part));
        events.push_str(&self.event("response.output_item.done", last));
        events
    }

    fn call_events(&mut self, call: &ToolCall) -> String {
        let index = self.output.items.len();
        let (begun, item) = (
            self.call_item(index, call, None),
            self.call_item(index, call, Some(&call.arguments)),
        );
        let id = item["id"].clone();
        let called = item["call_id"].as_str().unwrap_or_default();
        self.output
            .calls
            .extend(call_value(called, &call.name, &call.arguments));
        let added = json!({ "output_index": index, "item": begun });
        let delta = json!({ "item_id": id, "output_index": index, "delta": call.arguments });
        let done = json!({
            "item_id": id, "output_index": index, "name": call.name, "arguments": call.arguments,
        });
        let last = json!({ "output_index": index, "item": item });
        self.output.items.push(item);
        let mut events = self.event("response.output_item.added", added);
        events.push_str(&self.event("response.function_call_arguments.delta", delta));
        events.push_str(&self.event("response.function_call_arguments.done", done));
        events.push_str(&self.event("response.output_item.done", last));
        events
    }

    /// Events of parts. Logarithms are those of tokens that came with them; of text that is held
    /// back they wait for it, and those of a call are not shown.
    fn part_events(&mut self, parts: Vec<ToolPart>, logs: Vec<Value>) -> String {
        let mut events = String::new();
        self.output.held.extend(logs);
        for part in parts {
            let logs = std::mem::take(&mut self.output.held);
            match part {
                ToolPart::Text(text) => events.push_str(&self.text_events(&text, logs)),
                ToolPart::Call(call) => {
                    events.push_str(&self.close_events("completed"));
                    events.push_str(&self.call_events(&call));
                }
            }
        }
        events
    }

    /// Takes the end: events of what is open, and the response, which is kept if it is to be.
    fn finish(&mut self, end: &AnswerEnd) -> (String, &'static str, Value) {
        let mut events = String::new();
        if let Some((_, reader)) = &mut self.tools {
            let parts = reader.finish();
            events = self.part_events(parts, Vec::new());
        }
        if self.output.items.is_empty() && self.output.open.is_none() {
            // An answer of no text is one, too.
            let logs = std::mem::take(&mut self.output.held);
            events.push_str(&self.text_events("", logs));
        }
        let status = match end.reason {
            AnswerReason::Length => "incomplete",
            _ => "completed",
        };
        events.push_str(&self.close_events(status));
        let response = self.response(status, Some(end));
        if let Some((store, mut messages)) = self.store.take() {
            messages.extend(self.own_messages());
            let id = self.id();
            let response = response.clone();
            store.keep(&id, StoredResponse { response, messages });
        }
        (events, status, response)
    }

    /// The output as a message of templates.
    fn own_messages(&mut self) -> Vec<ChatValue> {
        let texts = self.output.items.iter().filter_map(|it| {
            let part = it["content"].get(0)?;
            part["text"].as_str()
        });
        let text: String = texts.collect();
        let mut messages = vec![ChatValue::message("assistant", &text)];
        let calls = std::mem::take(&mut self.output.calls);
        if !calls.is_empty() {
            add_calls(&mut messages, calls);
        }
        messages
    }
}

fn text_part(text: &str, logs: &[Value]) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logs })
}

impl AnswerFormat for ResponsesFormat {
    fn whole(&mut self, text: &str, tokens: &[AnswerToken], end: &AnswerEnd) -> Value {
        self.part(text, tokens);
        self.finish(end).2
    }

    fn begin(&mut self) -> String {
        let response = json!({ "response": self.response("in_progress", None) });
        let begun = self.event("response.created", response.clone());
        begun + &self.event("response.in_progress", response)
    }

    fn part(&mut self, text: &str, tokens: &[AnswerToken]) -> String {
        let logs = self.logs(tokens);
        let parts = match &mut self.tools {
            Some((_, reader)) => reader.push(text),
            None if text.is_empty() && logs.is_empty() => Vec::new(),
            None => vec![ToolPart::Text(text.to_owned())],
        };
        self.part_events(parts, logs)
    }

    fn end(&mut self, end: &AnswerEnd) -> String {
        let (events, status, response) = self.finish(end);
        let response = json!({ "response": response });
        events + &self.event(&format!("response.{status}"), response)
    }

    fn failure(&mut self, error: &ApiError) -> String {
        let mut response = self.response("failed", None);
        let code = match error.status() {
            400 => "invalid_prompt",
            _ => "server_error",
        };
        response["error"] = json!({ "code": code, "message": error.message });
        self.event("response.failed", json!({ "response": response }))
    }
}
