//! Tokenizers and chat templates as Python objects.

use std::path::PathBuf;
use std::sync::Arc;

use fercuda_hub::ModelSource;
use fercuda_tokenizer::{ChatRequest, ChatValue, Prompt, Special, Tokenizer};
use pyo3::prelude::*;

use crate::engine_thread::ModelTexts;
use crate::exceptions::plain;
use crate::{alive, inference_errors};

/// A tokenizer with its chat template. See the stubs.
#[pyclass(
    frozen,
    weakref,
    name = "Tokenizer",
    module = "fercuda_runtime._fercuda"
)]
pub(crate) struct PyTokenizer {
    texts: Arc<ModelTexts>,
}

fn special(parses: bool) -> Special {
    match parses {
        true => Special::Parsed,
        false => Special::AsText,
    }
}

/// A conversation in JSON, as the Python part writes it.
fn chat_request(
    py: Python<'_>,
    messages: &str,
    tools: Option<&str>,
    variables: &str,
    add_generation_prompt: bool,
) -> PyResult<ChatRequest> {
    let parsed = |text: &str| {
        ChatValue::from_json(text).map_err(|error| {
            let message = format!("the messages are no JSON: {error}\ntry: dicts of texts");
            plain(py, "ChatTemplateError", message)
        })
    };
    let list = |text: &str| match parsed(text)? {
        ChatValue::List(all) => Ok(all),
        _ => Err(plain(
            py,
            "ChatTemplateError",
            "the messages are no list\ntry: a list of dicts",
        )),
    };
    let variables = match parsed(variables)? {
        ChatValue::Object(members) => members,
        _ => Vec::new(),
    };
    Ok(ChatRequest {
        messages: list(messages)?,
        tools: tools.map(list).transpose()?,
        add_generation_prompt,
        variables,
        ..ChatRequest::default()
    })
}

impl PyTokenizer {
    pub(crate) fn new(texts: Arc<ModelTexts>) -> Self {
        Self { texts }
    }

    fn render(&self, py: Python<'_>, request: &ChatRequest) -> PyResult<Prompt> {
        let template = match &self.texts.template {
            Ok(Some(template)) => template,
            Ok(None) => {
                let message = "the model has no chat template\ntry: a text as the prompt, or an \
                               instruction model";
                return Err(plain(py, "ChatTemplateError", message));
            }
            Err(error) => return Err(inference_errors::of_tokenizer(py, error)),
        };
        let rendered = py.detach(|| template.render(request));
        rendered.map_err(|error| inference_errors::of_tokenizer(py, &error))
    }
}

#[pymethods]
impl PyTokenizer {
    /// Of a tokenizer.json alone, or of a model.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        alive::check_process(py)?;
        let is_json = path.extension().is_some_and(|it| it == "json");
        if !is_json {
            let source = py.detach(|| ModelSource::open(&path));
            let source = source.map_err(|error| inference_errors::of_source(py, &error))?;
            let template = source.chat_template();
            let tokenizer = source.tokenizer;
            return Ok(Self::new(Arc::new(ModelTexts::new(tokenizer, template))));
        }
        let about = |error: std::io::Error| {
            let message = format!("cannot read {}: {error}", path.display());
            plain(py, "ModelError", message)
        };
        let size = std::fs::metadata(&path).map_err(about)?.len();
        if size > 256 << 20 {
            let message = format!("{} has {size} bytes, at most 256 MiB", path.display());
            return Err(plain(py, "ModelError", message));
        }
        let bytes = std::fs::read(&path).map_err(about)?;
        let tokenizer = py.detach(|| Tokenizer::from_json(&bytes));
        let tokenizer = tokenizer.map_err(|error| inference_errors::of_tokenizer(py, &error))?;
        Ok(Self::new(Arc::new(ModelTexts::new(tokenizer, Ok(None)))))
    }

    #[getter]
    fn vocabulary_size(&self) -> usize {
        self.texts.tokenizer.vocabulary_size()
    }

    #[getter]
    fn bos(&self) -> Option<u32> {
        self.texts.tokenizer.bos()
    }

    #[getter]
    fn eos(&self) -> Option<u32> {
        self.texts.tokenizer.eos()
    }

    #[getter]
    fn generation_ends(&self) -> Vec<u32> {
        self.texts.tokenizer.generation_ends().to_vec()
    }

    #[getter]
    fn has_chat_template(&self) -> bool {
        matches!(self.texts.template, Ok(Some(_)))
    }

    #[pyo3(signature = (text, *, special=false, framed=true))]
    fn encode(
        &self,
        py: Python<'_>,
        text: &str,
        special: bool,
        framed: bool,
    ) -> PyResult<Vec<u32>> {
        let special = self::special(special);
        let tokenizer = &self.texts.tokenizer;
        let encoded = py.detach(|| match framed {
            true => tokenizer.encode(text, special),
            false => tokenizer.encode_part(text, special),
        });
        encoded.map_err(|error| inference_errors::of_tokenizer(py, &error))
    }

    fn decode(&self, py: Python<'_>, tokens: Vec<u32>) -> String {
        py.detach(|| self.texts.tokenizer.decode(&tokens))
    }

    fn piece(&self, token: u32) -> Option<String> {
        self.texts.tokenizer.piece(token)
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        self.texts.tokenizer.token_bytes(token)
    }

    fn is_control(&self, token: u32) -> bool {
        self.texts.tokenizer.is_control(token)
    }

    fn token_of_piece(&self, piece: &str) -> Option<u32> {
        self.texts.tokenizer.token_of_piece(piece)
    }

    /// (text, tokens) of a conversation in JSON.
    #[pyo3(signature = (messages, tools, variables, add_generation_prompt))]
    fn chat_json(
        &self,
        py: Python<'_>,
        messages: &str,
        tools: Option<&str>,
        variables: &str,
        add_generation_prompt: bool,
    ) -> PyResult<(String, Vec<u32>)> {
        let request = chat_request(py, messages, tools, variables, add_generation_prompt)?;
        let prompt = self.render(py, &request)?;
        let tokens = py.detach(|| self.texts.tokenizer.encode_prompt(&prompt));
        let tokens = tokens.map_err(|error| inference_errors::of_tokenizer(py, &error))?;
        Ok((prompt.text().to_owned(), tokens))
    }

    fn __repr__(&self) -> String {
        format!("<Tokenizer with {} tokens>", self.vocabulary_size())
    }
}
