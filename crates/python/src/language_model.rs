//! Loaded models and the texts that they generate, as Python objects.
//!
//! Invariant: a stream that is dropped or closed ends its request, and so frees its blocks.
//! Elsewhere: the engine's thread (`engine_thread`), files of models (`model_source`).

use std::sync::Arc;
use std::time::Duration;

use fercuda_grammar::GrammarSource;
use fercuda_llm::{AdapterId, GenerationRequest, SamplerConfig};
use fercuda_runtime::Session;
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::alive::{self, DetachedDrop, SharedPyObject};
use crate::engine_thread::{
    ChosenRow, EngineFigures, EngineThread, ModelTexts, StreamEnd, StreamSlot,
};
use crate::exceptions::{ExceptionBuilder, plain};
use crate::inference_errors;
use crate::text_tokens::PyTokenizer;

/// The longest time for which a signal is not handled.
const SLICE: Duration = Duration::from_millis(50);

/// How a text is generated, by the names in the Python part.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct GenerationSettings {
    max_tokens: usize,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repeat_penalty: f32,
    frequency_penalty: f32,
    presence_penalty: f32,
    seed: Option<u64>,
    stop: Vec<String>,
    end_tokens: Option<Vec<u32>>,
    logprobs: Option<usize>,
    json_schema: Option<String>,
    regex: Option<String>,
    grammar: Option<String>,
    choice: Option<Vec<String>>,
    lora: Option<String>,
}

impl GenerationSettings {
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let wrong = |name: &str, value: &dyn std::fmt::Display, range: &str| {
            let message = format!("{name} is {value}\ntry: {range}");
            Err(plain(py, "RequestError", message))
        };
        if self.max_tokens == 0 {
            return wrong("max_tokens", &0, "1 at least");
        }
        let within = |value: f32, least: f32, most: f32| (least..=most).contains(&value);
        for (name, value, least, most) in [
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repeat_penalty", self.repeat_penalty, 1e-3, 10.0),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0),
        ] {
            if !within(value, least, most) {
                return wrong(name, &value, &format!("{least} to {most}"));
            }
        }
        if self.stop.iter().any(String::is_empty) {
            return wrong("a text of stop", &"empty", "texts of a character at least");
        }
        Ok(())
    }

    /// The grammar that the text follows, if there is one.
    fn grammar_source(&self, py: Python<'_>) -> PyResult<Option<GrammarSource>> {
        let text = |it: &Option<String>, of: fn(String) -> GrammarSource| it.clone().map(of);
        let all = [
            text(&self.json_schema, GrammarSource::JsonSchema),
            text(&self.regex, GrammarSource::Regex),
            text(&self.grammar, GrammarSource::Lark),
            self.choice.clone().map(GrammarSource::Choice),
        ];
        let mut all = all.into_iter().flatten();
        match (all.next(), all.next()) {
            (_, Some(_)) => {
                let message = "several of json_schema, regex, grammar, choice\ntry: one of them";
                Err(plain(py, "RequestError", message))
            }
            (source, None) => Ok(source),
        }
    }
}

/// A model on a device. See the stubs.
#[pyclass(
    frozen,
    weakref,
    name = "LanguageModel",
    module = "fercuda_runtime._fercuda",
    subclass
)]
pub(crate) struct PyLanguageModel {
    thread: DetachedDrop<Arc<EngineThread>>,
    texts: Arc<ModelTexts>,
    session: DetachedDrop<Session>,
    facts: ModelFacts,
}

/// What is said of a model.
pub(crate) struct ModelFacts {
    pub(crate) name: String,
    pub(crate) architecture: String,
    pub(crate) context: u64,
    pub(crate) vocabulary: u64,
    /// Adapters by their names.
    pub(crate) adapters: Vec<(String, AdapterId)>,
}

impl PyLanguageModel {
    pub(crate) fn new(
        thread: EngineThread,
        texts: Arc<ModelTexts>,
        session: Session,
        facts: ModelFacts,
    ) -> Self {
        Self {
            thread: DetachedDrop::new(Arc::new(thread)),
            texts,
            session: DetachedDrop::new(session),
            facts,
        }
    }

    /// The adapter of that name.
    fn adapter(&self, py: Python<'_>, name: &str) -> PyResult<AdapterId> {
        let all = &self.facts.adapters;
        let found = all.iter().find(|(own, _)| own == name);
        found.map(|(_, id)| *id).ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|(own, _)| own.as_str()).collect();
            let known = match names.is_empty() {
                true => "a model that was loaded with it".to_owned(),
                false => format!("one of {}", names.join(", ")),
            };
            let message = format!("lora: the model has no adapter {name:?}\ntry: {known}");
            plain(py, "RequestError", message)
        })
    }

    fn ended(&self, py: Python<'_>) -> PyErr {
        ended(py, self.session.name())
    }
}

/// The exception of a model that was closed.
fn ended(py: Python<'_>, session: &str) -> PyErr {
    let message = format!("the model {session} was closed\ntry: load it again");
    let made = ExceptionBuilder::new(py, "SessionEndedError", message);
    made.with("session", session)
        .with("epoch", None::<u64>)
        .raise()
}

#[pymethods]
impl PyLanguageModel {
    #[getter]
    fn name(&self) -> &str {
        &self.facts.name
    }

    #[getter]
    fn architecture(&self) -> &str {
        &self.facts.architecture
    }

    #[getter]
    fn context(&self) -> u64 {
        self.facts.context
    }

    #[getter]
    fn vocabulary_size(&self) -> u64 {
        self.facts.vocabulary
    }

    #[getter]
    fn session_name(&self) -> String {
        self.session.name().to_owned()
    }

    #[getter]
    fn held_bytes(&self) -> u64 {
        self.session.held_bytes()
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.thread.is_stopped()
    }

    #[getter]
    fn tokenizer(&self) -> PyTokenizer {
        PyTokenizer::new(Arc::clone(&self.texts))
    }

    /// (running, waiting, free blocks, blocks, guessed tokens, right guesses)
    fn load_figures(&self, py: Python<'_>) -> PyResult<EngineFigures> {
        alive::check_process(py)?;
        let figures = py.detach(|| self.thread.figures());
        figures.ok_or_else(|| self.ended(py))
    }

    fn start(
        &self,
        py: Python<'_>,
        tokens: Vec<u32>,
        settings: GenerationSettings,
    ) -> PyResult<PyTokenStream> {
        alive::check_process(py)?;
        settings.check(py)?;
        if self.thread.is_stopped() {
            return Err(self.ended(py));
        }
        let grammar = match settings.grammar_source(py)? {
            None => None,
            Some(source) => {
                let compiled = py.detach(|| self.texts.compile(&source));
                Some(compiled.map_err(|error| plain(py, "RequestError", error))?)
            }
        };
        let adapter = match &settings.lora {
            None => None,
            Some(name) => Some(self.adapter(py, name)?),
        };
        let tokenizer = &self.texts.tokenizer;
        let ends = || tokenizer.generation_ends().to_vec();
        let request = GenerationRequest {
            tokens,
            max_tokens: settings.max_tokens,
            sampler: SamplerConfig {
                temperature: settings.temperature,
                top_k: settings.top_k,
                top_p: settings.top_p,
                min_p: settings.min_p,
                repeat_penalty: settings.repeat_penalty,
                frequency_penalty: settings.frequency_penalty,
                presence_penalty: settings.presence_penalty,
                seed: settings.seed,
                ..SamplerConfig::default()
            },
            end_tokens: settings.end_tokens.unwrap_or_else(ends),
            top: settings.logprobs,
            grammar,
            adapter,
        };
        let prompt_tokens = request.tokens.len();
        let slot = Arc::new(StreamSlot::default());
        self.thread.add(request, settings.stop, &slot);
        Ok(PyTokenStream {
            thread: DetachedDrop::new(Arc::clone(&self.thread)),
            slot,
            prompt_tokens,
            session: self.session.name().to_owned(),
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        alive::check_process(py)?;
        py.detach(|| self.thread.stop());
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let ModelFacts {
            name,
            architecture,
            context,
            ..
        } = &self.facts;
        let closed = if self.is_closed() { ", closed" } else { "" };
        format!("<LanguageModel {name:?}: {architecture}, {context} positions{closed}>")
    }
}

/// A text that is generated. See the stubs.
#[pyclass(
    frozen,
    weakref,
    name = "TokenStream",
    module = "fercuda_runtime._fercuda"
)]
pub(crate) struct PyTokenStream {
    thread: DetachedDrop<Arc<EngineThread>>,
    slot: Arc<StreamSlot>,
    prompt_tokens: usize,
    session: String,
}

impl PyTokenStream {
    /// The exception of an end: that of an iteration, where a text has ended.
    fn raise(&self, py: Python<'_>, end: &StreamEnd) -> PyErr {
        match end {
            StreamEnd::Failed(error) => inference_errors::of_llm(py, error),
            StreamEnd::Ended => ended(py, &self.session),
            _ => PyStopIteration::new_err(()),
        }
    }
}

#[pymethods]
impl PyTokenStream {
    /// The next part, or `None` if there is none yet.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<String>> {
        alive::check_process(py)?;
        match self.slot.take() {
            (Some(part), _) => Ok(Some(part)),
            (None, Some(end)) => Err(self.raise(py, &end)),
            // Its thread has ended without a word.
            (None, None) if self.thread.is_stopped() => Err(ended(py, &self.session)),
            (None, None) => Ok(None),
        }
    }

    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        alive::check_process(py)?;
        py.detach(|| self.slot.wait(SLICE));
        py.check_signals()
    }

    /// Has a function called once there is a part or an end; false if there is one.
    fn wake(&self, waker: Py<PyAny>) -> bool {
        self.slot.wake(SharedPyObject::new(waker))
    }

    #[getter]
    fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// (token, logprob, [(token, logprob)]) of each token so far; tokens of the prompt that the
    /// cache had.
    fn chosen(&self) -> (Vec<ChosenRow>, usize) {
        self.slot.tokens()
    }

    /// (reason, text that ended it)
    #[getter]
    fn finish(&self) -> Option<(&'static str, Option<String>)> {
        Some(match self.slot.known_end()? {
            StreamEnd::Token => ("end", None),
            StreamEnd::Length => ("length", None),
            StreamEnd::Stop(text) => ("stop", Some(text)),
            StreamEnd::Closed | StreamEnd::Ended => ("closed", None),
            StreamEnd::Failed(_) => ("failed", None),
        })
    }

    /// Ends it without waiting for that.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        alive::check_process(py)?;
        self.thread.cancel(&self.slot);
        Ok(())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.cancel(py)?;
        while !py.detach(|| self.slot.wait_for_end(SLICE)) {
            py.check_signals()?;
            if self.thread.is_stopped() {
                break;
            }
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        let (tokens, _) = self.slot.tokens();
        let state = self.finish().map_or("running", |it| it.0);
        let (session, count) = (&self.session, tokens.len());
        format!("<TokenStream of {session:?}: {count} tokens, {state}>")
    }
}

impl Drop for PyTokenStream {
    fn drop(&mut self) {
        // It does not wait: the engine frees the blocks behind its step.
        self.thread.cancel(&self.slot);
    }
}
