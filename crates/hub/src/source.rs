//! A model's files, opened: weights, tokenizer, chat template.

use std::fmt;
use std::path::{Path, PathBuf};

use fercuda_modelfile::{Gguf, ModelFile};
use fercuda_tokenizer::{ChatTemplate, Tokenizer, TokenizerError};
use serde_json::Value;

use crate::download::DownloadProgress;
use crate::error::SourceError;
use crate::hub::{Hub, HubSettings};
use crate::json;
use crate::name::ModelName;

type Result<T> = std::result::Result<T, SourceError>;

/// A model that is open: nothing of it is on a device yet.
pub struct ModelSource {
    /// Its weights and configuration.
    pub file: ModelFile,
    /// Its tokenizer, which knows the tokens that end a generation.
    pub tokenizer: Tokenizer,
    /// A name for messages and for the tenant of its memory.
    pub name: String,
    template: Option<String>,
    /// Texts of tokens that a template may name.
    tokens: Option<Vec<(&'static str, String)>>,
}

impl fmt::Debug for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ModelSource");
        shown.field("name", &self.name).finish_non_exhaustive()
    }
}

/// The last part of a path, without the ending of a file.
fn stem(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = match whole.is_dir() {
        true => whole.file_name(),
        // What a path ends with, not where a link leads.
        false => path.file_stem(),
    };
    name.map_or_else(String::new, |it| it.to_string_lossy().into_owned())
}

/// The text of a token in tokenizer_config.json: a text, or an object with one.
fn token_text(config: &Value, key: &str) -> Option<String> {
    let value = config.get(key)?;
    let text = value.as_str().or_else(|| value.get("content")?.as_str());
    text.map(str::to_owned)
}

/// A template in JSON: a text, or a list of named ones.
fn template_text(value: &Value) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    let all = value.as_array()?;
    let is_default = |it: &&Value| it.get("name").and_then(Value::as_str) == Some("default");
    let found = all.iter().find(is_default).or_else(|| all.first())?;
    Some(found.get("template")?.as_str()?.to_owned())
}

/// Tokens that a configuration says end a generation.
fn end_tokens(config: &Value) -> Vec<u32> {
    let number = |it: &Value| it.as_u64().and_then(|it| u32::try_from(it).ok());
    match config.get("eos_token_id") {
        Some(Value::Array(all)) => all.iter().filter_map(number).collect(),
        Some(one) => number(one).into_iter().collect(),
        None => Vec::new(),
    }
}

impl ModelSource {
    /// Finds a model by what a caller names, fetches it if it is a repository's name, and opens
    /// it. `progress` gets the files that are fetched, as they come.
    ///
    /// # Errors
    /// [`SourceError`].
    pub fn find(
        name: &Path,
        progress: &mut dyn FnMut(DownloadProgress<'_>),
    ) -> Result<ModelSource> {
        let (path, short) = Self::locate(name, progress)?;
        let mut source = Self::open(&path)?;
        if let Some(short) = short {
            source.name = short;
        }
        Ok(source)
    }

    /// The file or folder of a model by what a caller names, fetched if it is a repository's name;
    /// and of one that is, its own name.
    ///
    /// # Errors
    /// [`SourceError::Hub`].
    pub fn locate(
        name: &Path,
        progress: &mut dyn FnMut(DownloadProgress<'_>),
    ) -> Result<(PathBuf, Option<String>)> {
        match ModelName::parse(name) {
            ModelName::Path(path) => Ok((path, None)),
            ModelName::Hub(name) => {
                let hub = Hub::new(HubSettings::from_env()?)?;
                let path = hub.fetch(&name, progress)?;
                Ok((path, Some(name.short().to_owned())))
            }
        }
    }

    /// Opens a file or a folder.
    ///
    /// # Errors
    /// [`SourceError::File`], [`SourceError::Tokenizer`], [`SourceError::Folder`].
    pub fn open(path: &Path) -> Result<ModelSource> {
        let file = ModelFile::open(path)?;
        match file.gguf() {
            Some(gguf) => {
                let (tokenizer, template) = of_gguf(gguf)?;
                Ok(ModelSource {
                    name: stem(path),
                    tokenizer,
                    template,
                    tokens: None,
                    file,
                })
            }
            None => {
                let folder = match path.is_dir() {
                    true => path,
                    false => path.parent().unwrap_or(Path::new("")),
                };
                let (tokenizer, template, tokens) = of_folder(folder)?;
                Ok(ModelSource {
                    name: stem(path),
                    tokenizer,
                    template,
                    tokens: Some(tokens),
                    file,
                })
            }
        }
    }

    /// The text of its chat template, if it has one.
    pub fn template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// Compiles its chat template, if it has one.
    ///
    /// # Errors
    /// [`TokenizerError::Template`].
    pub fn chat_template(&self) -> std::result::Result<Option<ChatTemplate>, TokenizerError> {
        let Some(source) = &self.template else {
            return Ok(None);
        };
        let template = match &self.tokens {
            None => ChatTemplate::new(source, &self.tokenizer),
            Some(tokens) => {
                let control = self.tokenizer.control_texts();
                ChatTemplate::with_tokens(source, tokens.clone(), control)
            }
        };
        template.map(Some)
    }
}

fn of_gguf<B: AsRef<[u8]>>(file: &Gguf<B>) -> Result<(Tokenizer, Option<String>)> {
    let tokenizer = Tokenizer::from_gguf(file)?;
    let template = file.get("tokenizer.chat_template");
    let template = template.and_then(|it| Some(it.as_str()?.to_owned()));
    Ok((tokenizer, template))
}

type FolderParts = (Tokenizer, Option<String>, Vec<(&'static str, String)>);

/// Tokenizer, template and texts of tokens of a checkpoint's folder.
fn of_folder(folder: &Path) -> Result<FolderParts> {
    let Some(json) = json::read(folder, "tokenizer.json")? else {
        return Err(SourceError::Folder {
            what: format!("{} has no tokenizer.json", folder.display()),
            advice: "the model's folder with all its files, or a GGUF file, which has a tokenizer",
        });
    };
    let mut tokenizer = Tokenizer::from_json(&json)?;
    let empty = Value::Null;
    let config = json::value(folder, "tokenizer_config.json")?;
    let config = config.as_ref().unwrap_or(&empty);
    let names = ["bos_token", "eos_token", "pad_token", "unk_token"].into_iter();
    let tokens: Vec<(&'static str, String)> = names
        .filter_map(|name| Some((name, token_text(config, name)?)))
        .collect();
    // What generation_config.json says counts more than the configuration of the model.
    let mut ends = Vec::new();
    for name in ["generation_config.json", "config.json"] {
        if ends.is_empty()
            && let Some(config) = json::value(folder, name)?
        {
            ends = end_tokens(&config);
        }
    }
    // The end of a turn is one too, where the other is the end of a text.
    let eos = tokens.iter().find(|(name, _)| *name == "eos_token");
    let eos = eos.and_then(|(_, text)| tokenizer.token_of_piece(text));
    ends.extend(eos.filter(|it| !ends.contains(it)));
    let vocabulary = tokenizer.vocabulary_size();
    ends.retain(|it| (*it as usize) < vocabulary);
    if !ends.is_empty() {
        tokenizer.set_generation_ends(ends);
    }
    let file = json::read(folder, "chat_template.jinja")?;
    let template = match file {
        Some(bytes) => {
            let text = String::from_utf8(bytes).map_err(|_| SourceError::Folder {
                what: format!("{}: no UTF-8", folder.join("chat_template.jinja").display()),
                advice: "the model's own file of this name",
            })?;
            Some(text)
        }
        None => {
            let own = config.get("chat_template").and_then(template_text);
            let beside = json::value(folder, "chat_template.json")?;
            let beside = beside.as_ref().and_then(|it| it.get("chat_template"));
            own.or_else(|| beside.and_then(template_text))
        }
    };
    Ok((tokenizer, template, tokens))
}
