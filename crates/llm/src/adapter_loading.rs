//! Adapters of an engine, by their names.

use std::path::Path;

use crate::adapter_file::AdapterFile;
use crate::engine::Engine;
use crate::error::{LlmError, refused};
use crate::request::AdapterId;

type Result<T> = std::result::Result<T, LlmError>;

impl Engine {
    /// Loads a LoRA adapter under a name: a folder that PEFT has saved, or a GGUF file. What it
    /// changes is times `scale`. Requests that run go on.
    ///
    /// # Errors
    /// As [`AdapterFile::open`]; [`LlmError::Model`] of an adapter of another model;
    /// [`LlmError::Request`] where there is no room for it, or its name is another's;
    /// [`LlmError::Runtime`] of the device.
    pub fn load_adapter(&mut self, name: &str, path: &Path, scale: f32) -> Result<AdapterId> {
        self.load_adapter_file(name, &AdapterFile::open(path)?, scale)
    }

    /// As [`Engine::load_adapter`], of files that are open.
    ///
    /// # Errors
    /// As there.
    pub fn load_adapter_file(
        &mut self,
        name: &str,
        file: &AdapterFile,
        scale: f32,
    ) -> Result<AdapterId> {
        let config = self.model().clone();
        let Some(pool) = &mut self.decoder.adapters else {
            return Err(refused(
                "the model is opened without room for adapters",
                "EngineConfig::adapters above 0",
            ));
        };
        let number = pool.load(&self.session, &config, name, (file, scale))?;
        Ok(AdapterId(number))
    }

    /// The adapter of that name.
    pub fn adapter(&self, name: &str) -> Option<AdapterId> {
        let at = self.adapter_names().iter().position(|it| it == name)?;
        u32::try_from(at).ok().map(AdapterId)
    }

    /// Names of the adapters that are loaded.
    pub fn adapter_names(&self) -> &[String] {
        let pool = self.decoder.adapters.as_ref();
        pool.map_or(&[], |it| it.names.as_slice())
    }
}
