//! Files of `--json` and `--sarif`.
//!
//! Invariant: they are opened before the check, which would run in vain otherwise.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;

use crate::out::say;
use crate::output::{OutputFile, is_stream};

/// Options for reports in files.
#[derive(clap::Args)]
pub(crate) struct ReportArgs {
    /// Write one JSON object to this file, or to stdout in place of text.
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "-"
    )]
    json: Option<PathBuf>,
    /// Write findings as SARIF 2.1.0; - is stdout, in place of text.
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,
    /// Replace existing files of --json, --sarif and out: arguments.
    #[arg(long)]
    pub(crate) force: bool,
}

/// The opened files.
pub(crate) struct ReportOutputs {
    json: Option<OutputFile>,
    sarif: Option<OutputFile>,
    /// Which of them is standard output.
    stdout: Option<StdoutFormat>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StdoutFormat {
    Json,
    Sarif,
}

impl ReportArgs {
    /// The names of the files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.json, &self.sarif]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }

    /// Opens the files, none of which may be one of `inputs`. All outputs are distinct
    /// ([`crate::output::check_distinct`]).
    ///
    /// # Errors
    /// A usage error: a file exists and `--force` is not given.
    pub(crate) fn open(&self, inputs: &[&Path]) -> Result<ReportOutputs> {
        let (json, sarif) = (self.json.as_deref(), self.sarif.as_deref());
        let is_stdout = |path: Option<&Path>| path.is_some_and(is_stream);
        let open = |path: Option<&Path>| {
            let file = path.filter(|path| !is_stream(path));
            file.map(|path| OutputFile::open(path, self.force, inputs))
                .transpose()
        };
        Ok(ReportOutputs {
            json: open(json)?,
            sarif: open(sarif)?,
            stdout: match (is_stdout(json), is_stdout(sarif)) {
                (true, _) => Some(StdoutFormat::Json),
                (false, true) => Some(StdoutFormat::Sarif),
                (false, false) => None,
            },
        })
    }
}

impl ReportOutputs {
    /// Whether a report on standard output takes the place of text.
    pub(crate) fn replaces_text(&self) -> bool {
        self.stdout.is_some()
    }

    /// Writes the reports.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn write(self, json: &impl Serialize, sarif: impl Fn() -> Value) -> Result<()> {
        match self.stdout {
            Some(StdoutFormat::Json) => say!("{}", serde_json::to_string_pretty(json)?),
            Some(StdoutFormat::Sarif) => say!("{:#}", sarif()),
            None => {}
        }
        if let Some(file) = self.json {
            write(file, &serde_json::to_string_pretty(json)?)?;
        }
        if let Some(file) = self.sarif {
            write(file, &format!("{:#}", sarif()))?;
        }
        Ok(())
    }
}

fn write(mut file: OutputFile, text: &str) -> Result<()> {
    writeln!(file, "{text}").context("cannot write the report")?;
    file.finish()
}
