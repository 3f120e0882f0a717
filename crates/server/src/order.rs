//! Order of a generation, whatever the API, and checks of its members.

use std::ops::RangeInclusive;

use fercuda_tokenizer::{ChatRequest, ChatValue};

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
    /// Names of the tools that the model may call.
    pub(crate) tools: Vec<String>,
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
