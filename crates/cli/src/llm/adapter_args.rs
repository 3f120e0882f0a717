//! LoRA adapters on the command line.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fercuda_llm::{AdapterFile, AdapterId, Engine, EngineConfig};

use crate::out::step;
use crate::status::bail_usage;

/// Options of the commands that use one adapter.
#[derive(clap::Args)]
pub(crate) struct AdapterArgs {
    /// LoRA adapter: a folder that PEFT has saved, or a GGUF file.
    #[arg(long, value_name = "PATH")]
    lora: Option<PathBuf>,
    /// Factor of what the adapter changes.
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.0,
        requires = "lora",
        allow_negative_numbers = true
    )]
    lora_scale: f32,
}

/// Option of the commands that use several.
#[derive(clap::Args)]
pub(crate) struct AdaptersArgs {
    /// LoRA adapter that requests choose by its name as their model; may be repeated.
    #[arg(long, alias = "lora-modules", value_name = "NAME=PATH", value_parser = parse_named)]
    lora: Vec<NamedAdapter>,
}

/// A path, and the name that stands for it.
#[derive(Clone)]
pub(crate) struct NamedAdapter {
    name: String,
    path: PathBuf,
}

fn parse_named(text: &str) -> Result<NamedAdapter, String> {
    let (name, path) = text.split_once('=').unwrap_or_default();
    let is_name = !name.is_empty() && name.chars().all(|it| it.is_ascii_graphic());
    match is_name && !path.is_empty() {
        true => Ok(NamedAdapter {
            name: name.to_owned(),
            path: path.into(),
        }),
        false => Err("it is not NAME=PATH, with a name of letters, digits and signs".to_owned()),
    }
}

/// Adapters whose files are open: the engine reserves memory for them before it loads them.
pub(crate) struct OpenAdapters(Vec<(String, AdapterFile, f32)>);

impl AdapterArgs {
    /// Opens the adapter, if there is one.
    pub(crate) fn open(&self) -> Result<OpenAdapters> {
        let own = self.lora.iter();
        let named = own.map(|path| ("lora".to_owned(), path.as_path(), self.lora_scale));
        OpenAdapters::open(named)
    }
}

impl AdaptersArgs {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.lora.is_empty()
    }

    /// Opens the adapters, and compares their names with each other and the model's.
    pub(crate) fn open(&self, model: &str) -> Result<OpenAdapters> {
        for (at, own) in self.lora.iter().enumerate() {
            let is_same = |it: &NamedAdapter| it.name == own.name;
            if own.name == model || self.lora[..at].iter().any(is_same) {
                bail_usage!("--lora: several models are named {:?}", own.name);
            }
        }
        let all = self.lora.iter();
        OpenAdapters::open(all.map(|it| (it.name.clone(), it.path.as_path(), 1.0)))
    }
}

impl OpenAdapters {
    fn open<'a>(all: impl Iterator<Item = (String, &'a Path, f32)>) -> Result<Self> {
        let open = |(name, path, scale): (String, &Path, f32)| {
            let about = || format!("cannot load {}", path.display());
            Ok((name, AdapterFile::open(path).with_context(about)?, scale))
        };
        all.map(open).collect::<Result<Vec<_>>>().map(Self)
    }

    /// Options of an engine with room for them.
    pub(crate) fn options(&self, options: EngineConfig) -> EngineConfig {
        let ranks = self.0.iter().map(|(_, file, _)| file.rank());
        EngineConfig {
            adapters: self.0.len() as u64,
            adapter_rank: ranks.max().unwrap_or(options.adapter_rank),
            ..options
        }
    }

    /// Loads them, in their order.
    pub(crate) fn load(&self, engine: &mut Engine) -> Result<Vec<AdapterId>> {
        let load = |(name, file, scale): &(String, AdapterFile, f32)| {
            let about = || format!("cannot load {}", file.path().display());
            let loaded = engine.load_adapter_file(name, file, *scale);
            let loaded = loaded.with_context(about)?;
            step!(
                "loaded the adapter {}, of the rank {}",
                file.path().display(),
                file.rank()
            );
            Ok(loaded)
        };
        self.0.iter().map(load).collect()
    }

    /// Their names.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.iter().map(|(name, ..)| name.clone()).collect()
    }
}
