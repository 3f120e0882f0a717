//! Requests for Anthropic's messages.
//!
//! Conversations become those of templates, which have OpenAI's shape: results of tools are
//! messages of their own, and calls are members of the assistant's.

use fercuda_grammar::GrammarSource;
use fercuda_tokenizer::{ChatRequest, ChatValue};

use crate::api_error::ApiError;
use crate::grammar_request::{any_arguments, schema_of};
use crate::members::{RequestMembers, wrong_type};
use crate::openai_request::{TOOLS, content_text};
use crate::order::{
    ForcedTool, GenerationOrder, OrderPrompt, ToolOrder, ToolShape, is_plain, number_within,
    refuse, stop_texts, token_count,
};
use crate::token_engine::TokenSampling;

/// A request for a message.
#[derive(Debug)]
pub(crate) struct MessagesRequest {
    pub(crate) model: Option<String>,
    body: RequestMembers,
}

/// What a turn of a conversation has.
#[derive(Default)]
struct TurnParts {
    texts: Vec<String>,
    calls: Vec<ChatValue>,
    /// Messages of tools.
    results: Vec<ChatValue>,
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

    /// The conversation, and the tools that may be called.
    ///
    /// # Errors
    /// Which member is wrong.
    pub(crate) fn take_prompt(&mut self) -> Result<(OrderPrompt, ToolOrder), ApiError> {
        let body = &mut self.body;
        let (tools, order) = read_tools(body)?;
        let mut messages = Vec::new();
        if let Some(system) = body.take("system") {
            let text = content_text("system".to_owned(), system)?;
            messages.push(ChatValue::message("system", &text));
        }
        let turns = body.list("messages")?.unwrap_or_default();
        if turns.is_empty() {
            return Err(ApiError::of("messages", "there is none"));
        }
        // Names of tools by the calls that have them, which some templates show beside results.
        let mut called: Vec<(String, String)> = Vec::new();
        let mut last = "";
        for (index, turn) in turns.into_iter().enumerate() {
            let turn = RequestMembers::of_value(format!("messages[{index}]"), turn)?;
            last = read_turn(turn, &mut called, &mut messages)?;
        }
        if last == "assistant" {
            let message = "the last one is the assistant's; to go on with it is not supported";
            return Err(ApiError::of("messages", message));
        }
        let mut chat = ChatRequest::new(messages);
        chat.tools = Some(tools).filter(|it| !it.is_empty());
        Ok((OrderPrompt::Chat(chat), order))
    }

    /// The schema that the answer follows, if there is one.
    fn take_format(&mut self) -> Result<Option<(&'static str, GrammarSource)>, ApiError> {
        let config = self.body.object("output_config")?;
        let inner = config
            .map(|mut it| it.object("format"))
            .transpose()?
            .flatten();
        let (name, format) = match (inner, self.body.object("output_format")?) {
            (Some(_), Some(_)) => {
                let message = "an answer has one format, and output_config has another";
                return Err(ApiError::of("output_format", message));
            }
            (Some(format), None) => ("output_config", format),
            (None, Some(format)) => ("output_format", format),
            (None, None) => return Ok(None),
        };
        let mut format = format;
        let kind = format.text("type")?.unwrap_or_default();
        refuse(
            name,
            kind != "json_schema",
            "a format other than json_schema is",
        )?;
        let place = format.place("schema");
        match format.take("schema") {
            Some(schema) => Ok(Some((name, schema_of(&place, &schema, None)?))),
            None => Err(ApiError::of(place, "it is missing")),
        }
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
        let grammar = self.take_format()?;
        let (prompt, tools) = self.take_prompt()?;
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
            tools,
            grammar,
        })
    }
}

/// The tools, as templates show them, and which may be called.
fn read_tools(body: &mut RequestMembers) -> Result<(Vec<ChatValue>, ToolOrder), ApiError> {
    let given = body.list("tools")?.unwrap_or_default();
    if given.len() > TOOLS {
        let message = format!("{} tools, more than {TOOLS}", given.len());
        return Err(ApiError::of("tools", message));
    }
    let (mut tools, mut all) = (Vec::new(), Vec::new());
    for (index, tool) in given.into_iter().enumerate() {
        let (value, shape) = read_tool(RequestMembers::of_value(format!("tools[{index}]"), tool)?)?;
        tools.push(value);
        all.push(shape);
    }
    let Some(mut choice) = body.object("tool_choice")? else {
        let order = ToolOrder {
            all,
            ..ToolOrder::default()
        };
        return Ok((tools, order));
    };
    let forced = match choice.text("type")?.as_deref() {
        Some("auto") => None,
        Some("any") => Some(ForcedTool::Any),
        Some("tool") => match choice.text("name")? {
            Some(name) => Some(ForcedTool::Named(name)),
            None => return Err(ApiError::of("tool_choice.name", "it is missing")),
        },
        Some("none") => return Ok((Vec::new(), ToolOrder::default())),
        _ => {
            let message = "its type is not auto, any, tool or none";
            return Err(ApiError::of("tool_choice", message));
        }
    };
    let order = ToolOrder {
        all,
        forced,
        is_single: choice.truth("disable_parallel_tool_use")?.unwrap_or(false),
    };
    order.check_forced()?;
    Ok((tools, order))
}

fn read_tool(mut tool: RequestMembers) -> Result<(ChatValue, ToolShape), ApiError> {
    let kind = tool.text("type")?;
    if let Some(kind) = kind.filter(|it| it != "custom") {
        let shown: String = kind.chars().take(40).collect();
        let message = format!("a tool of type {shown:?}, which a server runs, is not supported");
        return Err(ApiError::of(tool.place("type"), message));
    }
    let Some(name) = tool.text("name")?.filter(|it| !it.is_empty()) else {
        return Err(ApiError::of(tool.place("name"), "it is missing"));
    };
    let place = tool.place("input_schema");
    let schema = match tool.take("input_schema") {
        Some(schema @ ChatValue::Object(_)) if is_plain(&schema) => Some(schema),
        None => None,
        Some(_) => {
            let message = "it is no JSON schema with plain types";
            return Err(ApiError::of(place, message));
        }
    };
    let shape = ToolShape {
        name: name.clone(),
        parameters: schema
            .as_ref()
            .map_or_else(any_arguments, ChatValue::to_json),
    };
    let mut function = vec![("name", ChatValue::from(name))];
    let description = tool.text("description")?;
    function.extend(description.map(|it| ("description", ChatValue::from(it))));
    function.extend(schema.map(|it| ("parameters", it)));
    let value = ChatValue::object([
        ("type", "function".into()),
        ("function", ChatValue::object(function)),
    ]);
    Ok((value, shape))
}

/// Appends the messages of a turn; returns its role.
fn read_turn(
    mut turn: RequestMembers,
    called: &mut Vec<(String, String)>,
    messages: &mut Vec<ChatValue>,
) -> Result<&'static str, ApiError> {
    let role = match turn.text("role")?.as_deref() {
        Some("user") => "user",
        Some("assistant") => "assistant",
        other => {
            let shown: String = other.unwrap_or("nothing").chars().take(40).collect();
            let message = format!("a role of {shown:?}, not user or assistant");
            return Err(ApiError::of(turn.place("role"), message));
        }
    };
    let place = turn.place("content");
    let mut parts = TurnParts::default();
    match turn.take("content") {
        None => return Err(ApiError::of(place, "it is missing")),
        Some(ChatValue::Text(text)) => parts.texts.push(text),
        Some(ChatValue::List(blocks)) => {
            for (index, block) in blocks.into_iter().enumerate() {
                let block = RequestMembers::of_value(format!("{place}[{index}]"), block)?;
                parts.read(block, role, called)?;
            }
        }
        Some(other) => return Err(wrong_type(place, &other, "a text or a list of blocks")),
    }
    let has_results = !parts.results.is_empty();
    messages.append(&mut parts.results);
    let text = parts.texts.join("\n");
    if role == "user" {
        if !has_results || !text.is_empty() {
            messages.push(ChatValue::message(role, &text));
        }
        return Ok(role);
    }
    let mut members = vec![("role", role.into()), ("content", text.into())];
    if !parts.calls.is_empty() {
        members.push(("tool_calls", parts.calls.into()));
    }
    messages.push(ChatValue::object(members));
    Ok(role)
}

impl TurnParts {
    fn read(
        &mut self,
        mut block: RequestMembers,
        role: &str,
        called: &mut Vec<(String, String)>,
    ) -> Result<(), ApiError> {
        let kind = block.text("type")?.unwrap_or_default();
        match (kind.as_str(), role) {
            ("text", _) => match block.text("text")? {
                Some(text) => self.texts.push(text),
                None => return Err(ApiError::of(block.place("text"), "it is missing")),
            },
            ("tool_use", "assistant") => self.calls.push(read_call(block, called)?),
            ("tool_result", "user") => self.results.push(read_result(block, called)?),
            // What a model has thought is not shown again.
            ("thinking" | "redacted_thinking", "assistant") => {}
            _ => {
                let kind: String = kind.chars().take(40).collect();
                let message = format!(
                    "a block of type {kind:?} of role {role}: only text, tool_use and tool_result \
                     are supported"
                );
                return Err(ApiError::of(block.place("type"), message));
            }
        }
        Ok(())
    }
}

/// A call that the model has made, as templates expect it.
fn read_call(
    mut block: RequestMembers,
    called: &mut Vec<(String, String)>,
) -> Result<ChatValue, ApiError> {
    let missing = |place: String| ApiError::of(place, "it is missing");
    let id = block
        .text("id")?
        .ok_or_else(|| missing(block.place("id")))?;
    let name = block
        .text("name")?
        .ok_or_else(|| missing(block.place("name")))?;
    let place = block.place("input");
    let input = match block.take("input") {
        None => ChatValue::Object(Vec::new()),
        Some(input @ ChatValue::Object(_)) if is_plain(&input) => input,
        Some(_) => return Err(ApiError::of(place, "it is no object with plain types")),
    };
    called.push((id.clone(), name.clone()));
    let function = ChatValue::object([("name", name.into()), ("arguments", input)]);
    Ok(ChatValue::object([
        ("id", id.into()),
        ("type", "function".into()),
        ("function", function),
    ]))
}

/// The message of a tool's result.
fn read_result(
    mut block: RequestMembers,
    called: &[(String, String)],
) -> Result<ChatValue, ApiError> {
    let Some(id) = block.text("tool_use_id")? else {
        return Err(ApiError::of(block.place("tool_use_id"), "it is missing"));
    };
    let Some((_, name)) = called.iter().rev().find(|it| it.0 == id) else {
        let shown: String = id.chars().take(100).collect();
        let message = format!("no tool_use before it has the id {shown:?}");
        return Err(ApiError::of(block.place("tool_use_id"), message));
    };
    let place = block.place("content");
    let text = match block.take("content") {
        None => String::new(),
        Some(content) => content_text(place, content)?,
    };
    let text = match block.truth("is_error")?.unwrap_or(false) {
        true => format!("Error: {text}"),
        false => text,
    };
    Ok(ChatValue::object([
        ("role", "tool".into()),
        ("content", text.into()),
        ("tool_call_id", id.into()),
        ("name", name.as_str().into()),
    ]))
}
