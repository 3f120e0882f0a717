//! Order of a generation, whatever the API, and checks of its members.

use std::ops::RangeInclusive;

use fercuda_grammar::GrammarSource;
use fercuda_tokenizer::{ChatRequest, ChatValue};
use serde_json::Value;

use crate::api_error::ApiError;
use crate::token_engine::TokenSampling;

/// Most texts that end an answer, and most bytes of one.
const STOPS: usize = 16;
const STOP_BYTES: usize = 1024;
/// Most tokens that are shown beside the chosen one.
pub(crate) const MOST_TOP: usize = 20;

/// What an answer follows.
#[derive(Debug)]
pub(crate) enum OrderPrompt {
    Chat(ChatRequest),
    Text(String),
    Tokens(Vec<u32>),
}

impl OrderPrompt {
    /// The member of a body that it is read from, in most APIs.
    pub(crate) fn member(&self) -> &'static str {
        match self {
            Self::Chat(_) => "messages",
            Self::Text(_) | Self::Tokens(_) => "prompt",
        }
    }
}

/// A request, checked.
#[derive(Debug)]
pub(crate) struct GenerationOrder {
    pub(crate) prompt: OrderPrompt,
    /// Most tokens of the answer; `None` for what the context has left.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) sampling: TokenSampling,
    pub(crate) stops: Vec<String>,
    /// Tokens that end the answer besides the model's.
    pub(crate) end_tokens: Vec<u32>,
    /// Whether the model's do not end it.
    pub(crate) ignores_ends: bool,
    /// Number of tokens that are shown beside each chosen one; `None` for no tokens at all.
    pub(crate) top: Option<usize>,
    /// Tools that the model may call.
    pub(crate) tools: ToolOrder,
    /// What the answer follows, if anything, with the member that says so.
    pub(crate) grammar: Option<(&'static str, GrammarSource)>,
}

/// A tool that a model may call.
#[derive(Clone, Debug)]
pub(crate) struct ToolShape {
    pub(crate) name: String,
    /// JSON schema of its arguments.
    pub(crate) parameters: Value,
}

/// Tools of an order.
#[derive(Clone, Debug, Default)]
pub(crate) struct ToolOrder {
    pub(crate) all: Vec<ToolShape>,
    /// Whether one has to be called: any, or the one of this name.
    pub(crate) forced: Option<ForcedTool>,
    /// Whether one call at most is made.
    pub(crate) is_single: bool,
}

impl ToolOrder {
    /// Refuses several tools of one name: a call would be of either.
    ///
    /// # Errors
    /// Which name it is.
    pub(crate) fn check_names(&self) -> Result<(), ApiError> {
        let mut names: Vec<&str> = self.all.iter().map(|it| it.name.as_str()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => {
                let shown: String = pair[0].chars().take(40).collect();
                Err(ApiError::of(
                    "tools",
                    format!("several are named {shown:?}"),
                ))
            }
            None => Ok(()),
        }
    }
}

/// Which tool has to be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ForcedTool {
    Any,
    Named(String),
}

impl ToolOrder {
    /// Names of all.
    pub(crate) fn names(&self) -> Vec<String> {
        self.all.iter().map(|it| it.name.clone()).collect()
    }

    /// Compares what is forced with what there is.
    ///
    /// # Errors
    /// If it is not there.
    pub(crate) fn check_forced(&self) -> Result<(), ApiError> {
        match &self.forced {
            None => Ok(()),
            Some(_) if self.all.is_empty() => Err(ApiError::of(
                "tool_choice",
                "there are no tools to choose from",
            )),
            Some(ForcedTool::Any) => Ok(()),
            Some(ForcedTool::Named(name)) if self.all.iter().any(|it| it.name == *name) => Ok(()),
            Some(ForcedTool::Named(name)) => {
                let shown: String = name.chars().take(100).collect();
                let message = format!("no tool has the name {shown:?}");
                Err(ApiError::of("tool_choice", message))
            }
        }
    }
}

/// A number within a range.
///
/// # Errors
/// Which range it has to be in.
pub(crate) fn number_within(
    name: &'static str,
    number: Option<f64>,
    range: RangeInclusive<f64>,
    default: f32,
) -> Result<f32, ApiError> {
    match number {
        None => Ok(default),
        Some(number) if range.contains(&number) => Ok(number as f32),
        Some(number) => Err(ApiError::of(
            name,
            format!(
                "{number} is not between {} and {}",
                range.start(),
                range.end()
            ),
        )),
    }
}

/// A number of tokens that is at least 1.
///
/// # Errors
/// If it is less.
pub(crate) fn token_count(
    name: &'static str,
    count: Option<i64>,
) -> Result<Option<usize>, ApiError> {
    let Some(count) = count else {
        return Ok(None);
    };
    match usize::try_from(count) {
        Ok(count) if count > 0 => Ok(Some(count)),
        _ => Err(ApiError::of(name, format!("{count} is less than 1"))),
    }
}

/// Texts that end an answer.
///
/// # Errors
/// If they are too many, too long or empty.
pub(crate) fn stop_texts(
    name: &'static str,
    texts: Option<Vec<String>>,
) -> Result<Vec<String>, ApiError> {
    let texts = texts.unwrap_or_default();
    if texts.len() > STOPS {
        let message = format!("{} texts, more than {STOPS}", texts.len());
        return Err(ApiError::of(name, message));
    }
    match texts
        .iter()
        .find(|it| it.is_empty() || it.len() > STOP_BYTES)
    {
        None => Ok(texts),
        Some(text) => {
            let message = format!("a text of {} bytes, not of 1 to {STOP_BYTES}", text.len());
            Err(ApiError::of(name, message))
        }
    }
}

/// Refuses a member that asks for what is not there.
///
/// # Errors
/// If the member is there.
pub(crate) fn refuse(name: &'static str, is_there: bool, what: &str) -> Result<(), ApiError> {
    match is_there {
        true => Err(ApiError::of(name, format!("{what} not supported"))),
        false => Ok(()),
    }
}

/// Whether `type` and `role` have plain values everywhere. Templates get these unmarked.
pub(crate) fn is_plain(value: &ChatValue) -> bool {
    match value {
        ChatValue::Object(members) => members.iter().all(|(name, it)| match it {
            ChatValue::Text(text) if name == "type" || name == "role" => text
                .chars()
                .all(|it| it.is_ascii_alphanumeric() || "-_. ".contains(it)),
            it => is_plain(it),
        }),
        ChatValue::List(items) => items.iter().all(is_plain),
        _ => true,
    }
}
