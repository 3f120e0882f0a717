//! Anthropic's form of answers.

use serde_json::{Value, json};

use crate::answer::{AnswerFormat, ChosenModel};
use crate::answer_event::{AnswerEnd, AnswerReason, AnswerToken};
use crate::api_error::ApiError;
use crate::tool_syntax::{ToolCall, ToolPart, ToolReader, ToolSyntax};

/// Anthropic's form of answers.
#[derive(Debug)]
pub(crate) struct AnthropicFormat {
    pub(crate) model: ChosenModel,
    pub(crate) id: String,
    pub(crate) prompt: usize,
    /// What takes calls of tools out of the text, if there are tools.
    pub(crate) tools: Option<(ToolSyntax, ToolReader)>,
    /// Number of the block of text that is open in a stream, and of the next block.
    pub(crate) open_block: Option<usize>,
    pub(crate) next_block: usize,
}

/// An event of a stream.
fn event(kind: &str, mut data: Value) -> String {
    data["type"] = kind.into();
    format!("event: {kind}\ndata: {data}\n\n")
}

impl AnthropicFormat {
    fn message(&self, content: &Value, reason: &Value, usage: &Value) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model.name(),
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

    fn reason(&self, end: &AnswerEnd) -> Value {
        let (reason, text) = match &end.reason {
            AnswerReason::Length => ("max_tokens", None),
            _ if self.calls() > 0 => ("tool_use", None),
            AnswerReason::Token => ("end_turn", None),
            AnswerReason::Stop(text) => ("stop_sequence", Some(text)),
        };
        json!({ "stop_reason": reason, "stop_sequence": text })
    }

    /// Number of calls of tools so far.
    fn calls(&self) -> usize {
        self.tools.as_ref().map_or(0, |(_, reader)| reader.calls())
    }

    /// The block of a call, with this input.
    fn call_block(&self, index: usize, call: &ToolCall, input: Value) -> Value {
        let number = self.id.trim_start_matches("msg_");
        json!({
            "type": "tool_use", "id": format!("toolu_{number}{index}"), "name": call.name,
            "input": input,
        })
    }

    /// The event that begins a block.
    fn start_block(&mut self, block: &Value) -> (usize, String) {
        let index = self.next_block;
        self.next_block += 1;
        let begin = json!({ "index": index, "content_block": block });
        (index, event("content_block_start", begin))
    }

    /// Ends the block of text, if one is open.
    fn close_block(&mut self) -> String {
        match self.open_block.take() {
            Some(index) => event("content_block_stop", json!({ "index": index })),
            None => String::new(),
        }
    }

    fn text_events(&mut self, text: &str) -> String {
        let mut events = String::new();
        let index = match self.open_block {
            Some(index) => index,
            None => {
                let (index, begin) = self.start_block(&json!({ "type": "text", "text": "" }));
                events.push_str(&begin);
                self.open_block = Some(index);
                index
            }
        };
        let delta = json!({ "type": "text_delta", "text": text });
        events
            + &event(
                "content_block_delta",
                json!({ "index": index, "delta": delta }),
            )
    }

    /// Events of parts of an answer, of which the first call has this number.
    fn part_events(&mut self, parts: Vec<ToolPart>, first: usize) -> String {
        let (mut events, mut number) = (String::new(), first);
        for part in parts {
            match part {
                ToolPart::Text(text) => events.push_str(&self.text_events(&text)),
                ToolPart::Call(call) => {
                    events.push_str(&self.close_block());
                    let block = self.call_block(number, &call, json!({}));
                    let (index, begin) = self.start_block(&block);
                    let delta =
                        json!({ "type": "input_json_delta", "partial_json": call.arguments });
                    let delta = json!({ "index": index, "delta": delta });
                    events.push_str(&begin);
                    events.push_str(&event("content_block_delta", delta));
                    events.push_str(&event("content_block_stop", json!({ "index": index })));
                    number += 1;
                }
            }
        }
        events
    }
}

impl AnswerFormat for AnthropicFormat {
    fn whole(&mut self, text: &str, _: &[AnswerToken], end: &AnswerEnd) -> Value {
        let usage = self.usage(end.generated, end.cached);
        let parts = match &mut self.tools {
            None => vec![ToolPart::Text(text.to_owned())],
            Some((_, reader)) => {
                let mut parts = reader.push(text);
                parts.extend(reader.finish());
                parts
            }
        };
        let (mut blocks, mut said, mut calls) = (Vec::new(), String::new(), 0);
        for part in parts {
            match part {
                ToolPart::Text(text) => said.push_str(&text),
                ToolPart::Call(call) => {
                    let input = serde_json::from_str(&call.arguments).unwrap_or(json!({}));
                    blocks.push(self.call_block(calls, &call, input));
                    calls += 1;
                }
            }
        }
        // Texts between calls are one, as in a stream of them it is before the first.
        if calls == 0 || !said.trim().is_empty() {
            blocks.insert(0, json!({ "type": "text", "text": said }));
        }
        self.message(&blocks.into(), &self.reason(end), &usage)
    }

    fn begin(&mut self) -> String {
        let message = self.message(&json!([]), &Value::Null, &self.usage(0, None));
        let begin = event("message_start", json!({ "message": message }));
        if self.tools.is_some() {
            return begin;
        }
        let (index, block) = self.start_block(&json!({ "type": "text", "text": "" }));
        self.open_block = Some(index);
        begin + &block
    }

    fn part(&mut self, text: &str, _: &[AnswerToken]) -> String {
        let Some((_, reader)) = &mut self.tools else {
            return self.text_events(text);
        };
        let (first, parts) = (reader.calls(), reader.push(text));
        self.part_events(parts, first)
    }

    fn end(&mut self, end: &AnswerEnd) -> String {
        let mut events = String::new();
        if let Some((_, reader)) = &mut self.tools {
            let (first, parts) = (reader.calls(), reader.finish());
            events = self.part_events(parts, first);
        }
        events.push_str(&self.close_block());
        let delta = self.reason(end);
        let usage = self.usage(end.generated, end.cached);
        let last = json!({ "delta": delta, "usage": usage });
        events + &event("message_delta", last) + &event("message_stop", json!({}))
    }

    fn failure(&mut self, error: &ApiError) -> String {
        event("error", error.to_anthropic())
    }
}
