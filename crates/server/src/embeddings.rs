//! OpenAI's requests for embeddings, and their answers.

use fercuda_tokenizer::ChatValue;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::members::{RequestMembers, tokens_of};
use crate::order::{OrderPrompt, refuse};

/// Most texts of a request.
const TEXTS: usize = 2048;

/// A request, read.
#[derive(Debug)]
pub(crate) struct EmbeddingsRequest {
    pub(crate) model: Option<String>,
    pub(crate) inputs: Vec<OrderPrompt>,
    /// Elements that are wanted; `None` for all.
    dimensions: Option<usize>,
    /// Whether vectors are bytes in base64.
    is_base64: bool,
}

/// The texts of `input`: a text, tokens, or a list of either.
fn read_inputs(input: ChatValue) -> Result<Vec<OrderPrompt>, ApiError> {
    let wrong = || {
        let message = "expected a text, tokens, or a list of texts or of lists of tokens";
        ApiError::of("input", message)
    };
    let prompt = |value: ChatValue| match value {
        ChatValue::Text(text) if text.is_empty() => Err(ApiError::of("input", "a text is empty")),
        ChatValue::Text(text) => Ok(OrderPrompt::Text(text)),
        ChatValue::List(items) if items.is_empty() => {
            Err(ApiError::of("input", "a text has no tokens"))
        }
        ChatValue::List(items) => tokens_of(&items).map(OrderPrompt::Tokens).ok_or_else(wrong),
        _ => Err(wrong()),
    };
    let items = match input {
        ChatValue::List(items) => items,
        text => return Ok(vec![prompt(text)?]),
    };
    match items.first() {
        None => return Err(ApiError::of("input", "there is none")),
        Some(ChatValue::Int(_) | ChatValue::Float(_)) => {
            return Ok(vec![prompt(ChatValue::List(items))?]);
        }
        Some(_) => {}
    }
    if items.len() > TEXTS {
        let message = format!("{} texts, more than {TEXTS}", items.len());
        return Err(ApiError::of("input", message));
    }
    items.into_iter().map(prompt).collect()
}

/// Reads a request for embeddings of a model whose vectors have so many elements.
///
/// # Errors
/// Which member is wrong.
pub(crate) fn read_embeddings(
    body: &[u8],
    elements: Option<u64>,
) -> Result<EmbeddingsRequest, ApiError> {
    let mut body = RequestMembers::of_body(body)?;
    let Some(elements) = elements else {
        let message = "the model generates text, and makes no embeddings; serve a model of the \
                       architecture bert for them";
        return Err(ApiError::of("model", message));
    };
    let Some(input) = body.take("input") else {
        return Err(ApiError::of("input", "it is missing"));
    };
    let is_base64 = match body.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let shown: String = other.chars().take(40).collect();
            let message = format!("{shown:?} is not \"float\" or \"base64\"");
            return Err(ApiError::of("encoding_format", message));
        }
    };
    let dimensions = match body.whole("dimensions")? {
        None => None,
        Some(count) => match usize::try_from(count) {
            Ok(wanted) if wanted > 0 && wanted as u64 <= elements => Some(wanted),
            _ => {
                let message = format!("{count} is not 1 to {elements}, the elements of vectors");
                return Err(ApiError::of("dimensions", message));
            }
        },
    };
    let is_cut = body.take("truncate_prompt_tokens").is_some();
    refuse("truncate_prompt_tokens", is_cut, "texts that are cut are")?;
    Ok(EmbeddingsRequest {
        model: body.text("model")?,
        inputs: read_inputs(input)?,
        dimensions,
        is_base64,
    })
}

impl EmbeddingsRequest {
    /// What an answer shows of vectors.
    pub(crate) fn shape(&self) -> EmbeddingShape {
        EmbeddingShape {
            dimensions: self.dimensions,
            is_base64: self.is_base64,
        }
    }
}

/// How vectors are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmbeddingShape {
    dimensions: Option<usize>,
    is_base64: bool,
}

impl EmbeddingShape {
    /// The answer with these vectors, of so many tokens.
    pub(crate) fn answer(self, vectors: &[Vec<f32>], model: &str, tokens: usize) -> Value {
        let shown = vectors.iter().enumerate().map(|(index, vector)| {
            let vector = self.cut(vector);
            let shown = match self.is_base64 {
                true => {
                    let bytes: Vec<u8> = vector.iter().flat_map(|it| it.to_le_bytes()).collect();
                    base64(&bytes).into()
                }
                false => json!(vector),
            };
            json!({ "object": "embedding", "index": index, "embedding": shown })
        });
        let data: Vec<Value> = shown.collect();
        json!({
            "object": "list", "data": data, "model": model,
            "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
        })
    }

    /// The first elements of a vector, made a vector of the length 1 again.
    fn cut(self, vector: &[f32]) -> Vec<f32> {
        let Some(count) = self.dimensions.filter(|it| *it < vector.len()) else {
            return vector.to_vec();
        };
        let first = &vector[..count];
        let squares = first.iter().map(|it| f64::from(*it) * f64::from(*it));
        let length = squares.sum::<f64>().sqrt();
        match length > 0.0 {
            true => first
                .iter()
                .map(|it| (f64::from(*it) / length) as f32)
                .collect(),
            false => first.to_vec(),
        }
    }
}

/// Bytes as base64 with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let all = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            text.push(match digit <= three.len() {
                true => char::from(DIGITS[(all >> (18 - 6 * digit) & 63) as usize]),
                false => '=',
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn bytes_are_base64_as_rfc_4648_has_it() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[255, 254, 253]), "//79");
    }
}
