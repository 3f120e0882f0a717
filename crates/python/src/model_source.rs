//! Files of models as Python objects: what they have, and loading them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Duration;

use fercuda_hub::{DownloadProgress, ModelSource};
use fercuda_llm::{
    AdapterFile, Embedder, EmbedderConfig, EncoderConfig, Engine, EngineConfig, LlmError,
    ModelConfig, ModelDrafter, SHAPES,
};
use fercuda_modelfile::{GgufValue, ModelFile, PartContent, TensorType};
use fercuda_runtime::{Dtype, Runtime};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::alive::{self, SharedPyObject};
use crate::engine_thread::{EngineThread, ModelTexts};
use crate::exceptions::plain;
use crate::inference_errors;
use crate::language_model::{ModelFacts, PyLanguageModel};
use crate::session::PyRuntime;
use crate::text_embedder::PyTextEmbedder;
use crate::text_tokens::PyTokenizer;

/// The longest time for which a signal is not handled.
const SLICE: Duration = Duration::from_millis(50);
/// Lists of metadata with more values are left out: they are vocabularies.
const MOST_VALUES: u64 = 1024;

/// How a model is loaded, by the names in the Python part.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct LoadSettings {
    session: String,
    context: Option<u64>,
    cache_tokens: Option<u64>,
    requests: u64,
    batch_tokens: Option<u64>,
    kv_type: String,
    draft_tokens: u64,
    /// Part of the device's memory up to which the cache is taken.
    gpu_memory: Option<f64>,
    /// Names and paths of adapters.
    lora: Vec<(String, PathBuf)>,
}

/// The files of a model. See the stubs.
#[pyclass(
    frozen,
    weakref,
    name = "ModelFiles",
    module = "fercuda_runtime._fercuda"
)]
pub(crate) struct PyModelFiles {
    name: String,
    file: Arc<ModelFile>,
    texts: Arc<ModelTexts>,
    template: Option<String>,
}

/// Runs work in a thread of its own, and handles signals until it has a result. Interrupted, it
/// goes on, and its result is dropped.
fn run_aside<R: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> R + Send + 'static,
) -> PyResult<R> {
    alive::check_process(py)?;
    let (sender, mut receiver) = channel();
    let thread = Builder::new().name("fercuda load".to_owned());
    let started = thread.spawn(move || {
        if let Err(unsent) = sender.send(work()) {
            alive::end_without_python(unsent);
        }
    });
    started.map_err(|error| plain(py, "FercudaError", format!("no thread: {error}")))?;
    loop {
        let results = &mut receiver;
        match py.detach(move || results.recv_timeout(SLICE)) {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(plain(py, "FercudaError", "loading a model panicked"));
            }
        }
    }
}

/// Calls `progress(what, done, size)`; what it raises is reported as of a `__del__`.
fn report(progress: Option<&SharedPyObject>, what: &str, done: u64, size: u64) {
    let Some(call) = progress.and_then(SharedPyObject::get) else {
        return;
    };
    alive::with_python(|py| {
        if let Err(error) = call.bind(py).call1((what, done, size)) {
            error.write_unraisable(py, Some(call.bind(py)));
        }
    });
}

/// A value of a GGUF file; `None` of a long list.
fn value<'py>(py: Python<'py>, value: &GgufValue<'_>) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(Some(match value {
        GgufValue::Bool(it) => it.into_bound_py_any(py)?,
        GgufValue::String(it) => String::from_utf8_lossy(it).into_bound_py_any(py)?,
        GgufValue::F32(it) => it.into_bound_py_any(py)?,
        GgufValue::F64(it) => it.into_bound_py_any(py)?,
        GgufValue::U8(it) => it.into_bound_py_any(py)?,
        GgufValue::I8(it) => it.into_bound_py_any(py)?,
        GgufValue::U16(it) => it.into_bound_py_any(py)?,
        GgufValue::I16(it) => it.into_bound_py_any(py)?,
        GgufValue::U32(it) => it.into_bound_py_any(py)?,
        GgufValue::I32(it) => it.into_bound_py_any(py)?,
        GgufValue::U64(it) => it.into_bound_py_any(py)?,
        GgufValue::I64(it) => it.into_bound_py_any(py)?,
        GgufValue::Array(all) if all.len() > MOST_VALUES => return Ok(None),
        GgufValue::Array(all) => {
            let mut values = Vec::new();
            for one in all.iter() {
                values.extend(self::value(py, &one)?);
            }
            values.into_bound_py_any(py)?
        }
    }))
}

/// (name, type, shape, bytes, file)
type FileTensorRow = (String, String, Vec<u64>, u64, PathBuf);

#[pymethods]
impl PyModelFiles {
    /// Finds and opens a model by its path, or its name at Hugging Face.
    #[staticmethod]
    #[pyo3(signature = (name, progress=None))]
    fn open(py: Python<'_>, name: PathBuf, progress: Option<Py<PyAny>>) -> PyResult<Self> {
        let progress = progress.map(SharedPyObject::new);
        let found = run_aside(py, move || {
            let mut each = |it: DownloadProgress<'_>| {
                report(progress.as_ref(), it.file, it.done, it.size);
            };
            ModelSource::find(&name, &mut each)
        })?;
        let source = found.map_err(|error| inference_errors::of_source(py, &error))?;
        let (template, chat) = (source.template().map(str::to_owned), source.chat_template());
        Ok(Self {
            template,
            texts: Arc::new(ModelTexts::new(source.tokenizer, chat)),
            name: source.name,
            file: Arc::new(source.file),
        })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn format(&self) -> &'static str {
        match self.file.gguf() {
            Some(_) => "gguf",
            None => "safetensors",
        }
    }

    #[getter]
    fn files(&self) -> Vec<PathBuf> {
        let parts = self.file.parts().iter();
        parts.map(|it| it.path().to_owned()).collect()
    }

    #[getter]
    fn chat_template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    #[getter]
    fn tokenizer(&self) -> PyTokenizer {
        PyTokenizer::new(Arc::clone(&self.texts))
    }

    /// The config.json, as its text.
    #[getter]
    fn config_json(&self) -> Option<String> {
        self.file.config().map(ToString::to_string)
    }

    /// Metadata of the first file, without long lists.
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        let first = self.file.parts().first();
        match first.map(fercuda_modelfile::ModelPart::content) {
            Some(PartContent::Gguf(file)) => {
                for (key, own) in file.metadata() {
                    if let Some(own) = value(py, &own)? {
                        all.set_item(String::from_utf8_lossy(key), own)?;
                    }
                }
            }
            Some(PartContent::Safetensors(file)) => {
                for (key, text) in file.metadata() {
                    all.set_item(key, text)?;
                }
            }
            None => {}
        }
        Ok(all)
    }

    fn tensors(&self) -> Vec<FileTensorRow> {
        let row = |it: fercuda_modelfile::StoredTensor<'_>| {
            let (name, kind, size) = (it.name.into_owned(), it.kind, it.bytes.len() as u64);
            (name, kind.to_string(), it.shape, size, it.file.to_owned())
        };
        self.file.tensors().map(row).collect()
    }

    /// (shape, f32 bytes) of a weight.
    fn read<'py>(
        &self,
        py: Python<'py>,
        name: &str,
    ) -> PyResult<(Vec<u64>, Bound<'py, pyo3::types::PyBytes>)> {
        let read = py.detach(|| {
            let weight = self.file.read_weight(name)?;
            let bytes: Vec<u8> = weight
                .values
                .iter()
                .flat_map(|it| it.to_le_bytes())
                .collect();
            Ok((weight.shape, bytes))
        });
        let read: Result<_, fercuda_modelfile::Error> = read;
        let (shape, bytes) = read.map_err(|error| plain(py, "ModelError", error))?;
        Ok((shape, pyo3::types::PyBytes::new(py, &bytes)))
    }

    /// Whether it makes vectors of texts, and no texts.
    #[getter]
    fn is_encoder(&self) -> bool {
        EncoderConfig::is_encoder(&self.file)
    }

    #[pyo3(signature = (runtime, session, batch_tokens=None, progress=None))]
    fn load_embedder(
        &self,
        py: Python<'_>,
        runtime: &PyRuntime,
        session: String,
        batch_tokens: Option<u64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<PyTextEmbedder> {
        let config = EmbedderConfig {
            session,
            batch_tokens,
        };
        let progress = progress.map(SharedPyObject::new);
        let (runtime, file) = (runtime.shared(), Arc::clone(&self.file));
        let loaded = run_aside(py, move || {
            Embedder::load(&runtime, &file, &config, |done, all| {
                report(progress.as_ref(), "loading", done.min(all), all);
            })
        })?;
        let embedder = loaded.map_err(|error| inference_errors::of_llm(py, &error))?;
        let texts = Arc::clone(&self.texts);
        Ok(PyTextEmbedder::new(embedder, texts, self.name.clone()))
    }

    /// The architecture, its layers and its context, if it is supported.
    fn described(&self, py: Python<'_>) -> PyResult<(String, u64, u64)> {
        if self.is_encoder() {
            let config = EncoderConfig::of(&self.file);
            let config = config.map_err(|error| inference_errors::of_llm(py, &error))?;
            return Ok(("bert".to_owned(), config.layers, config.context));
        }
        let config = ModelConfig::of(&self.file);
        let config = config.map_err(|error| inference_errors::of_llm(py, &error))?;
        Ok((config.architecture, config.layers, config.context))
    }

    #[pyo3(signature = (runtime, settings, drafts=None, progress=None))]
    fn load(
        &self,
        py: Python<'_>,
        runtime: &PyRuntime,
        settings: LoadSettings,
        drafts: Option<&PyModelFiles>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<PyLanguageModel> {
        let cached: Dtype = settings
            .kv_type
            .parse()
            .map_err(|error| plain(py, "DtypeError", format!("kv_type: {error}")))?;
        let config = EngineConfig {
            session: settings.session,
            context: settings.context,
            cache_tokens: settings.cache_tokens,
            requests: settings.requests,
            batch_tokens: settings.batch_tokens,
            draft_tokens: settings.draft_tokens,
            cached,
            adapters: settings.lora.len() as u64,
            ..EngineConfig::default()
        };
        let progress = progress.map(SharedPyObject::new);
        let (runtime, file) = (runtime.shared(), Arc::clone(&self.file));
        if let Some(it) = drafts
            && let Some(token) = self.texts.tokenizer.first_other_token(&it.texts.tokenizer)
        {
            let message = format!(
                "{} cannot guess tokens of {}: token {token} means another text\ntry: a smaller \
                 model of the same family, or draft=\"ngram\"",
                it.name, self.name
            );
            return Err(plain(py, "RequestError", message));
        }
        let drafts = drafts.map(|it| Arc::clone(&it.file));
        let loaded = run_aside(py, move || {
            let of_drafts = EngineConfig {
                session: format!("{} drafts", config.session),
                draft_tokens: 0,
                adapters: 0,
                ..config.clone()
            };
            let config = config.up_to_part(&runtime, settings.gpu_memory)?;
            // First, as the model's cache may be what is left.
            let drafts = match drafts {
                Some(of_guesses) => {
                    let context = ModelConfig::of(&of_guesses)?.context;
                    let own = config.context_of(ModelConfig::of(&file)?.context);
                    let config = EngineConfig {
                        context: Some(context.min(own)),
                        ..of_drafts
                    };
                    let none = (config, &[][..]);
                    Some(load(&runtime, &of_guesses, none, progress.as_ref())?)
                }
                None => None,
            };
            let mut engine = load(&runtime, &file, (config, &settings.lora), progress.as_ref())?;
            if let Some(drafts) = drafts {
                engine.guess_by(Box::new(ModelDrafter::new(drafts)?))?;
            }
            Ok::<_, LlmError>(engine)
        })?;
        let engine = loaded.map_err(|error| inference_errors::of_llm(py, &error))?;
        let names = engine.adapter_names().iter();
        let adapters = names.filter_map(|it| Some((it.clone(), engine.adapter(it)?)));
        let adapters = adapters.collect();
        let facts = ModelFacts {
            name: self.name.clone(),
            architecture: engine.model().architecture.clone(),
            context: engine.context(),
            vocabulary: engine.vocabulary(),
            adapters,
        };
        let session = engine.session().clone();
        let thread = EngineThread::start(engine, Arc::clone(&self.texts));
        let thread =
            thread.map_err(|error| plain(py, "FercudaError", format!("no thread: {error}")))?;
        let texts = Arc::clone(&self.texts);
        Ok(PyLanguageModel::new(thread, texts, session, facts))
    }

    fn __repr__(&self) -> String {
        let (format, count) = (self.format(), self.file.tensor_count());
        format!("<ModelFiles {:?}: {format}, {count} tensors>", self.name)
    }
}

fn load(
    runtime: &Runtime,
    file: &ModelFile,
    (mut config, lora): (EngineConfig, &[(String, PathBuf)]),
    progress: Option<&SharedPyObject>,
) -> Result<Engine, LlmError> {
    // Memory for adapters is reserved before they are loaded.
    let open = |(name, path): &(String, PathBuf)| Ok((name.clone(), AdapterFile::open(path)?));
    let adapters = lora.iter().map(open);
    let adapters: Vec<(String, AdapterFile)> = adapters.collect::<Result<_, LlmError>>()?;
    if let Some(rank) = adapters.iter().map(|(_, it)| it.rank()).max() {
        config.adapter_rank = rank;
    }
    let mut engine = Engine::load(runtime, file, &config, |done, all| {
        report(progress, "loading", done.min(all), all);
    })?;
    for (name, file) in &adapters {
        engine.load_adapter_file(name, file, 1.0)?;
    }
    Ok(engine)
}

/// Writes a model with random weights; see the stubs.
#[pyfunction]
#[pyo3(signature = (path, shape, kind, seed))]
pub(crate) fn write_random_model(
    py: Python<'_>,
    path: PathBuf,
    shape: &str,
    kind: &str,
    seed: u64,
) -> PyResult<()> {
    let Some(shape) = SHAPES.iter().find(|it| it.name == shape) else {
        let names: Vec<&str> = SHAPES.iter().map(|it| it.name).collect();
        let message = format!("no shape {shape:?}\ntry: one of {}", names.join(", "));
        return Err(plain(py, "ConfigError", message));
    };
    let kind: TensorType = kind
        .parse()
        .map_err(|error| plain(py, "DtypeError", format!("type: {error}")))?;
    let written = py.detach(|| {
        let file = std::io::BufWriter::new(std::fs::File::create(&path)?);
        shape.write(file, kind, seed, |_, _| {})
    });
    written.map_err(|error| inference_errors::of_llm(py, &error))
}
