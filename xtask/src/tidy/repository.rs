//! Snapshot of the repository that the checks read.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{cargo, shell};

/// What the checks look at: cargo's tables and the text of committed files.
pub(super) struct Repository {
    pub(super) metadata: Value,
    /// Path from the root to text; binary files are left out.
    pub(super) files: BTreeMap<String, String>,
}

impl Repository {
    pub(super) fn read() -> Result<Repository> {
        let root = shell::root();
        // Also files not yet added, so that tidy speaks before the commit.
        let mut list = shell::command("git");
        list.args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]);
        let names = shell::capture(list).context("tidy needs git and a checkout")?;
        let mut files = BTreeMap::new();
        for name in names.split('\0').filter(|name| !name.is_empty()) {
            if let Ok(text) = fs::read_to_string(root.join(name)) {
                files.insert(name.to_owned(), text);
            }
        }
        Ok(Repository {
            metadata: cargo::metadata()?,
            files,
        })
    }

    pub(super) fn text(&self, name: &str) -> &str {
        self.files.get(name).map_or("", String::as_str)
    }

    pub(super) fn packages(&self) -> impl Iterator<Item = &Value> {
        self.metadata["packages"].as_array().into_iter().flatten()
    }

    /// Our own packages: those without a registry.
    pub(super) fn members(&self) -> impl Iterator<Item = &Value> {
        self.packages()
            .filter(|package| package["source"].is_null())
    }
}

/// A package's name in cargo's tables.
pub(super) fn name_of(package: &Value) -> &str {
    package["name"].as_str().unwrap_or_default()
}

/// What a package depends on, tests and build scripts included.
pub(super) fn dependencies_of(package: &Value) -> impl Iterator<Item = &Value> {
    package["dependencies"].as_array().into_iter().flatten()
}
