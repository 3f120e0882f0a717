//! Requests for OpenAI's responses.
//!
//! Items of a conversation become messages of templates, which have the shape of chat completions:
//! calls that follow each other, or an assistant's text, are members of one message.

use fercuda_tokenizer::{ChatRequest, ChatValue};
use serde_json::{Map, Value, json};

use crate::api_error::ApiError;
use crate::grammar_request::{any_arguments, read_named_format};
use crate::members::{RequestMembers, wrong_type};
use crate::openai_request::{TOOLS, sampling, top_count};
use crate::order::{
    ForcedTool, GenerationOrder, OrderPrompt, ToolOrder, ToolShape, is_plain, refuse, token_count,
};

/// A request, read.
#[derive(Debug)]
pub(crate) struct ResponsesRequest {
    pub(crate) model: Option<String>,
    pub(crate) is_stream: bool,
    /// Whether the response is kept for requests that go on with it.
    pub(crate) is_stored: bool,
    pub(crate) previous: Option<String>,
    /// Messages behind those of the previous response.
    pub(crate) messages: Vec<ChatValue>,
    pub(crate) instructions: Option<String>,
    /// Tools as templates show them.
    tools: Vec<ChatValue>,
    effort: Option<String>,
    /// The order, but for its prompt.
    pub(crate) order: GenerationOrder,
    /// Members of the request that are members of the response.
    pub(crate) shown: Map<String, Value>,
}

impl ResponsesRequest {
    /// The order of an answer behind the messages of the previous response.
    pub(crate) fn into_order(self, before: &[ChatValue]) -> GenerationOrder {
        let mut messages = Vec::new();
        let system = self.instructions.as_deref();
        messages.extend(system.map(|it| ChatValue::message("system", it)));
        messages.extend_from_slice(before);
        messages.extend(self.messages);
        let mut chat = ChatRequest::new(messages);
        chat.tools = Some(self.tools).filter(|it| !it.is_empty());
        let effort = self
            .effort
            .map(|it| ("reasoning_effort".to_owned(), it.into()));
        chat.variables.extend(effort);
        GenerationOrder {
            prompt: OrderPrompt::Chat(chat),
            ..self.order
        }
    }
}

/// Refuses what would change an answer and is not there.
fn refuse_unsupported(body: &mut RequestMembers) -> Result<(), ApiError> {
    let runs_behind = body.truth("background")?.unwrap_or(false);
    refuse("background", runs_behind, "responses in the background are")?;
    refuse(
        "conversation",
        body.take("conversation").is_some(),
        "kept conversations are",
    )?;
    refuse("prompt", body.take("prompt").is_some(), "kept prompts are")?;
    // OpenAI's has none, and without it the answer would be another one.
    refuse(
        "stop",
        body.take("stop").is_some(),
        "texts that end a response are",
    )?;
    let truncation = body.text("truncation")?.unwrap_or_default();
    let is_cut = !truncation.is_empty() && truncation != "disabled";
    refuse("truncation", is_cut, "prompts that are cut are")?;
    refuse(
        "max_tool_calls",
        body.whole("max_tool_calls")?.is_some(),
        "tools of the server are",
    )
}

/// Reads a request for a response.
///
/// # Errors
/// Which member is wrong.
pub(crate) fn read_responses(body: &[u8]) -> Result<ResponsesRequest, ApiError> {
    let mut body = RequestMembers::of_body(body)?;
    refuse_unsupported(&mut body)?;
    let mut shown = Map::new();
    let (tools, tool_order) = read_tools(&mut body, &mut shown)?;
    let (grammar, format) = match body.object("text")? {
        Some(mut text) => match text.object("format")? {
            Some(format) => read_named_format("text", format)?,
            None => (None, json!({ "type": "text" })),
        },
        None => (None, json!({ "type": "text" })),
    };
    shown.insert("text".to_owned(), json!({ "format": format }));
    let effort = body
        .object("reasoning")?
        .map(|mut it| it.text("effort"))
        .transpose()?
        .flatten();
    shown.insert(
        "reasoning".to_owned(),
        json!({ "effort": effort, "summary": null }),
    );
    let max_tokens = token_count("max_output_tokens", body.whole("max_output_tokens")?)?;
    shown.insert("max_output_tokens".to_owned(), json!(max_tokens));
    let top = match body.whole("top_logprobs")? {
        None | Some(0) => None,
        Some(count) => Some(top_count("top_logprobs", count)?),
    };
    // What OpenAI's servers would add is not there, and no answer changes for want of it.
    let include = body.texts("include")?.unwrap_or_default();
    let wants_tokens = include
        .iter()
        .any(|it| it == "message.output_text.logprobs");
    let order = GenerationOrder {
        prompt: OrderPrompt::Tokens(Vec::new()),
        max_tokens,
        sampling: sampling(&mut body)?,
        stops: Vec::new(),
        end_tokens: Vec::new(),
        ignores_ends: false,
        top: top.or(wants_tokens.then_some(0)),
        tools: tool_order,
        grammar,
    };
    shown.insert("temperature".to_owned(), json!(order.sampling.temperature));
    shown.insert("top_p".to_owned(), json!(order.sampling.top_p));
    shown.insert(
        "metadata".to_owned(),
        match body.take("metadata") {
            None => json!({}),
            Some(metadata @ ChatValue::Object(_)) => metadata.to_json(),
            Some(other) => return Err(wrong_type("metadata".to_owned(), &other, "an object")),
        },
    );
    shown.insert("user".to_owned(), json!(body.text("user")?));
    let instructions = body.text("instructions")?;
    shown.insert("instructions".to_owned(), json!(instructions));
    let previous = body.text("previous_response_id")?;
    shown.insert("previous_response_id".to_owned(), json!(previous));
    let is_stored = body.truth("store")?.unwrap_or(true);
    shown.insert("store".to_owned(), is_stored.into());
    Ok(ResponsesRequest {
        model: body.text("model")?,
        is_stream: body.truth("stream")?.unwrap_or(false),
        is_stored,
        previous,
        messages: read_input(&mut body)?,
        instructions,
        tools,
        effort,
        order,
        shown,
    })
}

/// The tools, as templates show them, and which may be called.
fn read_tools(
    body: &mut RequestMembers,
    shown: &mut Map<String, Value>,
) -> Result<(Vec<ChatValue>, ToolOrder), ApiError> {
    let given = body.list("tools")?.unwrap_or_default();
    if given.len() > TOOLS {
        let message = format!("{} tools, more than {TOOLS}", given.len());
        return Err(ApiError::of("tools", message));
    }
    let is_parallel = body.truth("parallel_tool_calls")?.unwrap_or(true);
    let choice = body.take("tool_choice").unwrap_or_else(|| "auto".into());
    let all: Value = given.iter().map(ChatValue::to_json).collect();
    shown.insert("tools".to_owned(), all);
    shown.insert("tool_choice".to_owned(), choice.to_json());
    shown.insert("parallel_tool_calls".to_owned(), is_parallel.into());
    let (mut tools, mut all) = (Vec::new(), Vec::new());
    for (index, tool) in given.into_iter().enumerate() {
        let (value, shape) = read_tool(RequestMembers::of_value(format!("tools[{index}]"), tool)?)?;
        tools.push(value);
        all.push(shape);
    }
    let forced = match &choice {
        ChatValue::Text(choice) if choice == "auto" => None,
        ChatValue::Text(choice) if choice == "none" => {
            return Ok((Vec::new(), ToolOrder::default()));
        }
        ChatValue::Text(choice) if choice == "required" => Some(ForcedTool::Any),
        choice => match (choice.get("type"), choice.get("name")) {
            (Some(ChatValue::Text(kind)), Some(ChatValue::Text(name))) if kind == "function" => {
                Some(ForcedTool::Named(name.clone()))
            }
            _ => {
                let message = "it is not \"auto\", \"none\", \"required\" or a function's name";
                return Err(ApiError::of("tool_choice", message));
            }
        },
    };
    let order = ToolOrder {
        all,
        forced,
        is_single: !is_parallel,
    };
    order.check_forced()?;
    Ok((tools, order))
}

fn read_tool(mut tool: RequestMembers) -> Result<(ChatValue, ToolShape), ApiError> {
    let kind = tool.text("type")?.unwrap_or_default();
    if kind != "function" {
        let shown: String = kind.chars().take(40).collect();
        let message = format!("a tool of type {shown:?}, not \"function\", is not supported");
        return Err(ApiError::of(tool.place("type"), message));
    }
    let Some(name) = tool.text("name")?.filter(|it| !it.is_empty()) else {
        return Err(ApiError::of(tool.place("name"), "it is missing"));
    };
    let place = tool.place("parameters");
    let parameters = match tool.take("parameters") {
        None => None,
        Some(schema @ ChatValue::Object(_)) if is_plain(&schema) => Some(schema),
        Some(_) => return Err(ApiError::of(place, "it is no JSON schema with plain types")),
    };
    let shape = ToolShape {
        name: name.clone(),
        parameters: parameters
            .as_ref()
            .map_or_else(any_arguments, ChatValue::to_json),
    };
    let mut function = vec![("name", ChatValue::from(name))];
    let description = tool.text("description")?;
    function.extend(description.map(|it| ("description", ChatValue::from(it))));
    function.extend(parameters.map(|it| ("parameters", it)));
    let value = ChatValue::object([
        ("type", "function".into()),
        ("function", ChatValue::object(function)),
    ]);
    Ok((value, shape))
}

/// The messages of `input`: a text, or items.
fn read_input(body: &mut RequestMembers) -> Result<Vec<ChatValue>, ApiError> {
    let items = match body.take("input") {
        None => return Err(ApiError::of("input", "it is missing")),
        Some(ChatValue::Text(text)) => return Ok(vec![ChatValue::message("user", &text)]),
        Some(ChatValue::List(items)) if items.is_empty() => {
            return Err(ApiError::of("input", "there is none"));
        }
        Some(ChatValue::List(items)) => items,
        Some(other) => return Err(wrong_type("input".to_owned(), &other, "a text or a list")),
    };
    let mut messages = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        let mut item = RequestMembers::of_value(format!("input[{index}]"), item)?;
        match item.text("type")?.as_deref() {
            None | Some("message") => messages.push(read_message(item)?),
            Some("function_call") => {
                let call = read_call(item)?;
                add_calls(&mut messages, vec![call]);
            }
            Some("function_call_output") => messages.push(read_output(item)?),
            // What a model has thought is not shown again.
            Some("reasoning") => {}
            Some(other) => {
                let shown: String = other.chars().take(40).collect();
                let message = format!(
                    "an item of type {shown:?}: only message, function_call and \
                     function_call_output are supported"
                );
                return Err(ApiError::of(item.place("type"), message));
            }
        }
    }
    if messages.is_empty() {
        return Err(ApiError::of("input", "there is no message"));
    }
    Ok(messages)
}

fn read_message(mut item: RequestMembers) -> Result<ChatValue, ApiError> {
    let role = match item.text("role")?.as_deref() {
        Some("system" | "developer") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        other => {
            let shown: String = other.unwrap_or("nothing").chars().take(40).collect();
            let message = format!("a role of {shown:?}, not system, developer, user or assistant");
            return Err(ApiError::of(item.place("role"), message));
        }
    };
    let place = item.place("content");
    match item.take("content") {
        Some(content) => Ok(ChatValue::message(role, &part_texts(&place, content)?)),
        None => Err(ApiError::of(place, "it is missing")),
    }
}

/// The text of a content: of several parts in lines.
fn part_texts(place: &str, content: ChatValue) -> Result<String, ApiError> {
    let parts = match content {
        ChatValue::Text(text) => return Ok(text),
        ChatValue::List(parts) => parts,
        other => {
            return Err(wrong_type(
                place.to_owned(),
                &other,
                "a text or a list of parts",
            ));
        }
    };
    let mut texts = Vec::new();
    for (index, part) in parts.into_iter().enumerate() {
        let mut part = RequestMembers::of_value(format!("{place}[{index}]"), part)?;
        let kind = part.text("type")?.unwrap_or_default();
        let text = match kind.as_str() {
            "input_text" | "output_text" | "text" => part.text("text")?,
            "refusal" => part.text("refusal")?,
            _ => {
                let kind: String = kind.chars().take(40).collect();
                let message = format!("a part of type {kind:?}: only texts are supported");
                return Err(ApiError::of(part.place("type"), message));
            }
        };
        texts.push(text.ok_or_else(|| ApiError::of(part.place("text"), "it is missing"))?);
    }
    Ok(texts.join("\n"))
}

fn read_call(mut item: RequestMembers) -> Result<ChatValue, ApiError> {
    let missing = |place: String| ApiError::of(place, "it is missing");
    let id = item
        .text("call_id")?
        .ok_or_else(|| missing(item.place("call_id")))?;
    let name = item
        .text("name")?
        .ok_or_else(|| missing(item.place("name")))?;
    let place = item.place("arguments");
    let text = item.text("arguments")?.unwrap_or_default();
    call_value(&id, &name, &text).ok_or_else(|| {
        let message = "it is no JSON object with plain types";
        ApiError::of(place, message)
    })
}

/// A call as templates expect it, with arguments that are JSON; `None` if they are no object.
pub(crate) fn call_value(id: &str, name: &str, arguments: &str) -> Option<ChatValue> {
    let arguments = match arguments.trim() {
        "" => ChatValue::Object(Vec::new()),
        text => ChatValue::from_json(text).ok()?,
    };
    if !matches!(arguments, ChatValue::Object(_)) || !is_plain(&arguments) {
        return None;
    }
    let function = ChatValue::object([("name", name.into()), ("arguments", arguments)]);
    Some(ChatValue::object([
        ("id", id.into()),
        ("type", "function".into()),
        ("function", function),
    ]))
}

/// Adds calls to the assistant's last message, or to a new one.
pub(crate) fn add_calls(messages: &mut Vec<ChatValue>, calls: Vec<ChatValue>) {
    if let Some(ChatValue::Object(members)) = messages.last_mut()
        && members.contains(&("role".to_owned(), "assistant".into()))
    {
        match members.iter_mut().find(|it| it.0 == "tool_calls") {
            Some((_, ChatValue::List(known))) => known.extend(calls),
            _ => members.push(("tool_calls".to_owned(), calls.into())),
        }
        return;
    }
    messages.push(ChatValue::object([
        ("role", "assistant".into()),
        ("content", "".into()),
        ("tool_calls", calls.into()),
    ]));
}

fn read_output(mut item: RequestMembers) -> Result<ChatValue, ApiError> {
    let Some(id) = item.text("call_id")? else {
        return Err(ApiError::of(item.place("call_id"), "it is missing"));
    };
    let place = item.place("output");
    let Some(output) = item.take("output") else {
        return Err(ApiError::of(place, "it is missing"));
    };
    Ok(ChatValue::object([
        ("role", "tool".into()),
        ("content", part_texts(&place, output)?.into()),
        ("tool_call_id", id.into()),
    ]))
}
