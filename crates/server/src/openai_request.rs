//! Requests for OpenAI's chat completions and completions.
//!
//! What would change an answer and is not done here is refused; other unknown members are ignored.

use fercuda_tokenizer::{ChatRequest, ChatValue};

use crate::api_error::ApiError;
use crate::grammar_request::{any_arguments, read_grammar};
use crate::members::{RequestMembers, tokens_of, wrong_type};
use crate::order::{
    ForcedTool, GenerationOrder, MOST_TOP, OrderPrompt, ToolOrder, ToolShape, is_plain,
    number_within, refuse, stop_texts, token_count,
};
use crate::token_engine::TokenSampling;
use crate::tool_syntax::name_of_tool;

/// Tokens of a completion, where the request names none.
const COMPLETION_TOKENS: usize = 16;
/// Most tokens that end an answer.
const END_TOKENS: usize = 64;
/// Most tools of a request.
pub(crate) const TOOLS: usize = 512;

/// A request, read.
#[derive(Debug)]
pub(crate) struct OpenaiRequest {
    pub(crate) model: Option<String>,
    pub(crate) order: GenerationOrder,
    pub(crate) is_stream: bool,
    /// Whether a stream ends with the usage.
    pub(crate) includes_usage: bool,
}

/// A value of a member that asks for nothing.
enum NeutralValue {
    /// Nothing, false, or an empty text, list or object.
    Empty,
    True,
    Number(f64),
}

/// Members of either request that would change an answer, here and in servers that others use,
/// with what asks for nothing.
const UNSUPPORTED: [(&str, NeutralValue, &str); 34] = [
    ("n", NeutralValue::Number(1.0), "other than one choice is"),
    (
        "best_of",
        NeutralValue::Number(1.0),
        "other than one choice is",
    ),
    ("logit_bias", NeutralValue::Empty, "biases are"),
    ("echo", NeutralValue::Empty, "echoes are"),
    ("suffix", NeutralValue::Empty, "suffixes are"),
    ("functions", NeutralValue::Empty, "functions are"),
    ("audio", NeutralValue::Empty, "audio is"),
    ("web_search_options", NeutralValue::Empty, "searches are"),
    (
        "chat_template",
        NeutralValue::Empty,
        "templates of requests are",
    ),
    (
        "add_generation_prompt",
        NeutralValue::True,
        "a prompt without an answer's beginning is",
    ),
    (
        "continue_final_message",
        NeutralValue::Empty,
        "to go on with a message is",
    ),
    (
        "min_tokens",
        NeutralValue::Number(0.0),
        "a least number of tokens is",
    ),
    (
        "length_penalty",
        NeutralValue::Number(1.0),
        "a penalty of length is",
    ),
    ("use_beam_search", NeutralValue::Empty, "beam search is"),
    (
        "include_stop_str_in_output",
        NeutralValue::Empty,
        "texts that stop as output are",
    ),
    (
        "skip_special_tokens",
        NeutralValue::True,
        "control tokens as text are",
    ),
    (
        "bad_words",
        NeutralValue::Empty,
        "words that are not to be said are",
    ),
    (
        "allowed_token_ids",
        NeutralValue::Empty,
        "a choice of tokens is",
    ),
    (
        "logits_processors",
        NeutralValue::Empty,
        "processors of logits are",
    ),
    (
        "prompt_logprobs",
        NeutralValue::Empty,
        "probabilities of a prompt are",
    ),
    (
        "prompt_embeds",
        NeutralValue::Empty,
        "prompts of vectors are",
    ),
    (
        "truncate_prompt_tokens",
        NeutralValue::Empty,
        "prompts that are cut are",
    ),
    (
        "return_token_ids",
        NeutralValue::Empty,
        "numbers of tokens are",
    ),
    (
        "return_tokens_as_token_ids",
        NeutralValue::Empty,
        "numbers of tokens are",
    ),
    ("mirostat", NeutralValue::Number(0.0), "this sampler is"),
    ("typical_p", NeutralValue::Number(1.0), "this sampler is"),
    ("tfs_z", NeutralValue::Number(1.0), "this sampler is"),
    ("top_a", NeutralValue::Number(0.0), "this sampler is"),
    ("top_n_sigma", NeutralValue::Number(-1.0), "this sampler is"),
    (
        "dynatemp_range",
        NeutralValue::Number(0.0),
        "this sampler is",
    ),
    (
        "xtc_probability",
        NeutralValue::Number(0.0),
        "this sampler is",
    ),
    (
        "dry_multiplier",
        NeutralValue::Number(0.0),
        "this sampler is",
    ),
    ("samplers", NeutralValue::Empty, "an order of samplers is"),
    ("cache_salt", NeutralValue::Empty, "a cache of its own is"),
];

impl NeutralValue {
    fn is(&self, value: &ChatValue) -> bool {
        let number = match value {
            ChatValue::Int(it) => Some(*it as f64),
            ChatValue::Float(it) => Some(*it),
            _ => None,
        };
        match self {
            NeutralValue::Number(wanted) => number == Some(*wanted),
            NeutralValue::True => *value == ChatValue::Bool(true),
            NeutralValue::Empty => match value {
                ChatValue::Text(it) => it.is_empty(),
                ChatValue::List(it) => it.is_empty(),
                ChatValue::Object(it) => it.is_empty(),
                value => *value == ChatValue::Bool(false),
            },
        }
    }
}

fn refuse_unsupported(body: &mut RequestMembers) -> Result<(), ApiError> {
    for (name, neutral, what) in &UNSUPPORTED {
        let asks = body.take(name).is_some_and(|value| !neutral.is(&value));
        refuse(name, asks, what)?;
    }
    let modalities = body.texts("modalities")?.unwrap_or_default();
    let is_other = modalities.iter().any(|it| it != "text");
    refuse("modalities", is_other, "modalities other than text are")
}

/// A number of tokens to show beside chosen ones.
///
/// # Errors
/// If it is too large.
pub(crate) fn top_count(name: &'static str, count: i64) -> Result<usize, ApiError> {
    let top = usize::try_from(count).ok().filter(|it| *it <= MOST_TOP);
    top.ok_or_else(|| ApiError::of(name, format!("{count} is not between 0 and {MOST_TOP}")))
}

/// How tokens are chosen.
///
/// # Errors
/// Which member is wrong.
pub(crate) fn sampling(body: &mut RequestMembers) -> Result<TokenSampling, ApiError> {
    let top_k = body.whole("top_k")?.unwrap_or(0);
    // All of them are also written as -1.
    let Ok(top_k) = usize::try_from(if top_k == -1 { 0 } else { top_k }) else {
        return Err(ApiError::of("top_k", format!("{top_k} is less than -1")));
    };
    let mut number = |name, range, default| number_within(name, body.number(name)?, range, default);
    let repetition = match number("repetition_penalty", 0.0..=10.0, 1.0)? {
        penalty if penalty > 0.0 => penalty,
        _ => return Err(ApiError::of("repetition_penalty", "0 is not above 0")),
    };
    Ok(TokenSampling {
        temperature: number("temperature", 0.0..=2.0, 1.0)?,
        top_k,
        top_p: number("top_p", 0.0..=1.0, 1.0)?,
        min_p: number("min_p", 0.0..=1.0, 0.0)?,
        repetition_penalty: repetition,
        frequency_penalty: number("frequency_penalty", -2.0..=2.0, 0.0)?,
        presence_penalty: number("presence_penalty", -2.0..=2.0, 0.0)?,
        seed: body.whole("seed")?.map(i64::cast_unsigned),
    })
}

/// What both sorts of request have. The prompt and the shown tokens are the caller's.
fn read_both(
    mut body: RequestMembers,
    prompt: OrderPrompt,
    top: Option<usize>,
) -> Result<OpenaiRequest, ApiError> {
    refuse_unsupported(&mut body)?;
    let end_tokens = body.tokens("stop_token_ids")?.unwrap_or_default();
    if end_tokens.len() > END_TOKENS {
        let message = format!("{} tokens, more than {END_TOKENS}", end_tokens.len());
        return Err(ApiError::of("stop_token_ids", message));
    }
    let options = body.object("stream_options")?;
    let usage = options
        .map(|mut it| it.truth("include_usage"))
        .transpose()?;
    let order = GenerationOrder {
        prompt,
        max_tokens: token_count("max_tokens", body.whole("max_tokens")?)?,
        sampling: sampling(&mut body)?,
        stops: stop_texts("stop", body.texts("stop")?)?,
        end_tokens,
        ignores_ends: body.truth("ignore_eos")?.unwrap_or(false),
        top,
        tools: ToolOrder::default(),
        grammar: read_grammar(&mut body)?,
    };
    Ok(OpenaiRequest {
        model: body.text("model")?,
        order,
        is_stream: body.truth("stream")?.unwrap_or(false),
        includes_usage: usage.flatten().unwrap_or(false),
    })
}

/// The text of a message's content; that of several parts in lines.
///
/// # Errors
/// If a part is no text.
pub(crate) fn content_text(place: String, content: ChatValue) -> Result<String, ApiError> {
    let parts = match content {
        ChatValue::Text(text) => return Ok(text),
        ChatValue::List(parts) => parts,
        other => return Err(wrong_type(place, &other, "a text or a list of parts")),
    };
    let text = |(index, part): (usize, ChatValue)| {
        let mut part = RequestMembers::of_value(format!("{place}[{index}]"), part)?;
        let kind = part.text("type")?.unwrap_or_default();
        match part.text("text")? {
            Some(text) if kind == "text" => Ok(text),
            _ => {
                let kind: String = kind.chars().take(40).collect();
                let message = format!("a part of type {kind:?}: only texts are supported");
                Err(ApiError::of(place.clone(), message))
            }
        }
    };
    let texts: Result<Vec<String>, ApiError> = parts.into_iter().enumerate().map(text).collect();
    Ok(texts?.join("\n"))
}

/// A call of a tool as templates expect it: with arguments as an object.
fn call_value(mut call: RequestMembers) -> Result<ChatValue, ApiError> {
    let place = call.place("function");
    let Some(mut function) = call.object("function")? else {
        return Err(ApiError::of(place, "it is missing"));
    };
    let Some(name) = function.text("name")? else {
        return Err(ApiError::of(function.place("name"), "it is missing"));
    };
    let place = function.place("arguments");
    let arguments = match function.take("arguments") {
        None => Some(ChatValue::Object(Vec::new())),
        Some(ChatValue::Text(text)) if text.trim().is_empty() => {
            Some(ChatValue::Object(Vec::new()))
        }
        Some(ChatValue::Text(text)) => ChatValue::from_json(&text).ok(),
        Some(other) => Some(other),
    };
    let is_object = |it: &ChatValue| matches!(it, ChatValue::Object(_)) && is_plain(it);
    let Some(arguments) = arguments.filter(is_object) else {
        let message = "it is no JSON object with plain types";
        return Err(ApiError::of(place, message));
    };
    let id = call.text("id")?;
    let function = ChatValue::object([("name", name.into()), ("arguments", arguments)]);
    Ok(ChatValue::object([
        ("id", id.map_or(ChatValue::Null, ChatValue::from)),
        ("type", "function".into()),
        ("function", function),
    ]))
}

/// A message as templates expect it.
fn message_value(place: String, value: ChatValue) -> Result<ChatValue, ApiError> {
    let mut message = RequestMembers::of_value(place, value)?;
    let role = match message.text("role")?.as_deref() {
        Some("system" | "developer") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some("tool") => "tool",
        other => {
            let shown: String = other.unwrap_or("nothing").chars().take(40).collect();
            let roles = "system, developer, user, assistant or tool";
            let what = format!("a role of {shown:?}, not {roles}");
            return Err(ApiError::of(message.place("role"), what));
        }
    };
    let calls = message.list("tool_calls")?.unwrap_or_default();
    let place = message.place("content");
    let content = match message.take("content") {
        Some(content) => content_text(place, content)?,
        None if role == "assistant" && !calls.is_empty() => String::new(),
        None => {
            let what = format!("a message of role {role} has no content");
            return Err(ApiError::of(place, what));
        }
    };
    let mut members = vec![
        ("role", ChatValue::from(role)),
        ("content", ChatValue::from(content)),
    ];
    for name in ["name", "tool_call_id", "reasoning_content"] {
        let text = message.text(name)?;
        members.extend(text.map(|it| (name, ChatValue::from(it))));
    }
    if !calls.is_empty() && role == "assistant" {
        let call = |(index, call): (usize, ChatValue)| {
            let place = message.place(&format!("tool_calls[{index}]"));
            call_value(RequestMembers::of_value(place, call)?)
        };
        let calls: Result<Vec<ChatValue>, ApiError> =
            calls.into_iter().enumerate().map(call).collect();
        members.push(("tool_calls", calls?.into()));
    }
    Ok(ChatValue::object(members))
}

/// The tools that the model may call.
fn read_tools(body: &mut RequestMembers) -> Result<(Vec<ChatValue>, ToolOrder), ApiError> {
    let tools = body.list("tools")?.unwrap_or_default();
    let is_parallel = body.truth("parallel_tool_calls")?;
    let choice = body.take("tool_choice");
    if tools.len() > TOOLS {
        let message = format!("{} tools, more than {TOOLS}", tools.len());
        return Err(ApiError::of("tools", message));
    }
    for (index, tool) in tools.iter().enumerate() {
        if name_of_tool(tool).is_none() || !is_plain(tool) {
            let message = "it is no function with a name, or has types with signs";
            return Err(ApiError::of(format!("tools[{index}]"), message));
        }
    }
    let forced = match choice {
        None => None,
        Some(ChatValue::Text(choice)) if choice == "auto" => None,
        Some(ChatValue::Text(choice)) if choice == "none" => {
            return Ok((Vec::new(), ToolOrder::default()));
        }
        Some(ChatValue::Text(choice)) if choice == "required" => Some(ForcedTool::Any),
        Some(choice) => match name_of_tool(&choice) {
            Some(name) => Some(ForcedTool::Named(name.to_owned())),
            None => {
                let message = "it is not \"auto\", \"none\", \"required\" or a function's name";
                return Err(ApiError::of("tool_choice", message));
            }
        },
    };
    let order = ToolOrder {
        all: tools.iter().filter_map(tool_shape).collect(),
        forced,
        is_single: !is_parallel.unwrap_or(true),
    };
    order.check_forced()?;
    Ok((tools, order))
}

/// A tool's name and the schema of its arguments.
fn tool_shape(tool: &ChatValue) -> Option<ToolShape> {
    let parameters = tool.get("function")?.get("parameters");
    let parameters = parameters.filter(|it| **it != ChatValue::Null);
    Some(ToolShape {
        name: name_of_tool(tool)?.to_owned(),
        parameters: parameters.map_or_else(any_arguments, ChatValue::to_json),
    })
}

/// Variables of the template.
fn read_variables(body: &mut RequestMembers) -> Result<Vec<(String, ChatValue)>, ApiError> {
    /// Variables that a rendering has of its own.
    const OWN: [&str; 6] = [
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
    ];
    let mut variables = Vec::new();
    let effort = body.text("reasoning_effort")?;
    variables.extend(effort.map(|it| ("reasoning_effort".to_owned(), ChatValue::from(it))));
    match body.take("chat_template_kwargs") {
        None => {}
        Some(ChatValue::Object(members)) => {
            for (name, value) in members {
                if OWN.contains(&name.as_str()) || name.starts_with("__") || !is_plain(&value) {
                    let place = format!("chat_template_kwargs.{name}");
                    return Err(ApiError::of(place, "it is no variable of requests"));
                }
                variables.push((name, value));
            }
        }
        Some(other) => {
            let place = "chat_template_kwargs".to_owned();
            return Err(wrong_type(place, &other, "an object"));
        }
    }
    Ok(variables)
}

/// Reads a request for a chat completion.
///
/// # Errors
/// Which member is wrong.
pub(crate) fn read_chat(body: &[u8]) -> Result<OpenaiRequest, ApiError> {
    let mut body = RequestMembers::of_body(body)?;
    let wants_tokens = body.truth("logprobs")?.unwrap_or(false);
    let top = match (wants_tokens, body.whole("top_logprobs")?) {
        (true, count) => Some(top_count("top_logprobs", count.unwrap_or(0))?),
        (false, None | Some(0)) => None,
        (false, Some(_)) => {
            return Err(ApiError::of("top_logprobs", "it needs logprobs to be true"));
        }
    };
    let messages = body.list("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return Err(ApiError::of("messages", "there is none"));
    }
    let messages = messages.into_iter().enumerate();
    let messages: Result<Vec<ChatValue>, ApiError> = messages
        .map(|(index, message)| message_value(format!("messages[{index}]"), message))
        .collect();
    let most = body.whole("max_completion_tokens")?;
    let most = token_count("max_completion_tokens", most)?;
    let (tools, order) = read_tools(&mut body)?;
    let mut chat = ChatRequest::new(messages?);
    chat.variables = read_variables(&mut body)?;
    chat.documents = body.list("documents")?.filter(|it| !it.is_empty());
    if !chat.documents.iter().flatten().all(is_plain) {
        return Err(ApiError::of("documents", "types with signs"));
    }
    chat.tools = Some(tools).filter(|it| !it.is_empty());
    let mut request = read_both(body, OrderPrompt::Chat(chat), top)?;
    request.order.max_tokens = most.or(request.order.max_tokens);
    request.order.tools = order;
    Ok(request)
}

fn prompt_of(prompt: ChatValue) -> Result<OrderPrompt, ApiError> {
    const EXPECTED: &str = "expected a prompt: a text, a list of one text, or a list of tokens";
    let mut items = match prompt {
        ChatValue::Text(text) => return Ok(OrderPrompt::Text(text)),
        ChatValue::List(items) => items,
        _ => return Err(ApiError::of("prompt", EXPECTED)),
    };
    if let Some(tokens) = tokens_of(&items).filter(|it| !it.is_empty()) {
        return Ok(OrderPrompt::Tokens(tokens));
    }
    let is_prompt = |it: &ChatValue| match it {
        ChatValue::Text(_) => true,
        ChatValue::List(items) => tokens_of(items).is_some(),
        _ => false,
    };
    if !items.iter().all(is_prompt) {
        return Err(ApiError::of("prompt", EXPECTED));
    }
    match (items.len(), items.pop()) {
        (1, Some(ChatValue::Text(text))) => Ok(OrderPrompt::Text(text)),
        (1, Some(ChatValue::List(items))) => {
            Ok(OrderPrompt::Tokens(tokens_of(&items).unwrap_or_default()))
        }
        (count, _) => {
            let message = format!("a list of {count} prompts, not of one");
            Err(ApiError::of("prompt", message))
        }
    }
}

/// Reads a request for a completion.
///
/// # Errors
/// Which member is wrong.
pub(crate) fn read_completion(body: &[u8]) -> Result<OpenaiRequest, ApiError> {
    let mut body = RequestMembers::of_body(body)?;
    let Some(prompt) = body.take("prompt") else {
        return Err(ApiError::of("prompt", "it is missing"));
    };
    let prompt = prompt_of(prompt)?;
    let top = body.whole("logprobs")?;
    let top = top.map(|count| top_count("logprobs", count)).transpose()?;
    let mut request = read_both(body, prompt, top)?;
    let most = &mut request.order.max_tokens;
    *most = most.or(Some(COMPLETION_TOKENS));
    Ok(request)
}
