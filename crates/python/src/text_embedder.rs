//! Loaded models that make vectors of texts, as Python objects.
//!
//! Elsewhere: models that generate texts (`language_model`), files of models (`model_source`).

use std::sync::{Arc, Mutex};

use fercuda_llm::Embedder;
use fercuda_runtime::Session;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::alive::{self, DetachedDrop, lock};
use crate::engine_thread::ModelTexts;
use crate::exceptions::ExceptionBuilder;
use crate::inference_errors;
use crate::text_tokens::PyTokenizer;

/// An encoder on a device. See the stubs.
#[pyclass(
    frozen,
    weakref,
    name = "TextEmbedder",
    module = "fercuda_runtime._fercuda"
)]
pub(crate) struct PyTextEmbedder {
    /// `None` behind its end.
    embedder: DetachedDrop<Mutex<Option<Embedder>>>,
    texts: Arc<ModelTexts>,
    session: DetachedDrop<Session>,
    name: String,
    /// Positions of a text, tokens of the vocabulary, elements of a vector.
    sizes: (u64, u64, u64),
}

impl PyTextEmbedder {
    pub(crate) fn new(embedder: Embedder, texts: Arc<ModelTexts>, name: String) -> Self {
        let model = embedder.model();
        Self {
            sizes: (model.context, embedder.vocabulary(), model.hidden),
            session: DetachedDrop::new(embedder.session().clone()),
            embedder: DetachedDrop::new(Mutex::new(Some(embedder))),
            texts,
            name,
        }
    }
}

#[pymethods]
impl PyTextEmbedder {
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn architecture(&self) -> &'static str {
        "bert"
    }

    #[getter]
    fn context(&self) -> u64 {
        self.sizes.0
    }

    #[getter]
    fn vocabulary_size(&self) -> u64 {
        self.sizes.1
    }

    #[getter]
    fn dimensions(&self) -> u64 {
        self.sizes.2
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
    fn is_closed(&self, py: Python<'_>) -> bool {
        py.detach(|| lock(&self.embedder).is_none())
    }

    #[getter]
    fn tokenizer(&self) -> PyTokenizer {
        PyTokenizer::new(Arc::clone(&self.texts))
    }

    /// Vectors as f32 bytes, one behind the other.
    fn embed<'py>(&self, py: Python<'py>, texts: Vec<Vec<u32>>) -> PyResult<Bound<'py, PyBytes>> {
        alive::check_process(py)?;
        let vectors = py.detach(|| lock(&self.embedder).as_mut().map(|it| it.embed(&texts)));
        let Some(vectors) = vectors else {
            let session = self.session.name();
            let message = format!("the model {session} was closed\ntry: load it again");
            let made = ExceptionBuilder::new(py, "SessionEndedError", message);
            let made = made.with("session", session);
            return Err(made.with("epoch", None::<u64>).raise());
        };
        let vectors = vectors.map_err(|error| inference_errors::of_llm(py, &error))?;
        let bytes: Vec<u8> = vectors
            .iter()
            .flatten()
            .flat_map(|it| it.to_le_bytes())
            .collect();
        Ok(PyBytes::new(py, &bytes))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        alive::check_process(py)?;
        py.detach(|| {
            drop(lock(&self.embedder).take());
            // A session that was ended by a reboot is closed already.
            self.session.close().unwrap_or_default();
        });
        Ok(())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let closed = if self.is_closed(py) { ", closed" } else { "" };
        format!(
            "<TextEmbedder {:?}: bert, {} elements{closed}>",
            self.name, self.sizes.2
        )
    }
}
