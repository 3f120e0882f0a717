//! PyTorch's times beside those of `ops bench`: a Python of the user's measures each op when it is
//! asked, by one line of JSON, and answers with one.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::out::note;
use crate::status::bail_usage;

/// What the Python runs.
const PROGRAM: &str = include_str!("torch_bench.py");

/// What is the same for all ops.
#[derive(Serialize)]
pub(super) struct TorchBenchSpec<'a> {
    pub(super) dtype: &'static str,
    pub(super) shape: &'a [u64],
    pub(super) samples: u32,
    pub(super) l2_bytes: u64,
}

/// An op to measure.
#[derive(Serialize)]
pub(super) struct TorchBenchRequest<'a> {
    pub(super) op: &'static str,
    pub(super) shapes: Vec<&'a [u64]>,
    pub(super) necessary_bytes: u64,
    /// Runs of a sample.
    pub(super) runs: u32,
}

#[derive(Deserialize)]
struct TorchBenchAnswer {
    version: Option<String>,
    median_us: Option<f64>,
    error: Option<String>,
}

/// The running Python. It ends when its input does.
pub(super) struct TorchBench {
    child: Child,
    /// None when this is dropped.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    python: PathBuf,
    pub(super) version: String,
}

impl TorchBench {
    /// Starts a Python.
    ///
    /// # Errors
    /// Usage, for one that does not start, or has no PyTorch with a GPU.
    pub(super) fn start(python: &Path, spec: &TorchBenchSpec<'_>) -> Result<Self> {
        let mut command = Command::new(python);
        command.args(["-c", PROGRAM]);
        let started = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = match started {
            Ok(child) => child,
            Err(error) => bail_usage!(
                "{} cannot be started: {error}\ntry: --torch with a Python that has PyTorch",
                python.display()
            ),
        };
        let (requests, answers) = (child.stdin.take(), child.stdout.take());
        let answers = answers.context("a process without its output")?;
        let mut all = Self {
            child,
            requests,
            answers: BufReader::new(answers),
            python: python.to_owned(),
            version: String::new(),
        };
        let answer = all.ask(spec)?;
        match (answer.version, answer.error) {
            (Some(version), _) => all.version = version,
            (None, error) => bail_usage!(
                "{}: {}\ntry: --torch with a Python that has PyTorch for this GPU",
                python.display(),
                error.unwrap_or_else(|| "it gave no version".to_owned())
            ),
        }
        Ok(all)
    }

    /// PyTorch's median, or nothing where it has no such op or fails, which is noted.
    ///
    /// # Errors
    /// The process has ended.
    pub(super) fn measure(&mut self, request: &TorchBenchRequest<'_>) -> Result<Option<f64>> {
        let answer = self.ask(request)?;
        if let Some(error) = answer.error {
            note!("PyTorch's {}: {error}", request.op);
        }
        Ok(answer.median_us)
    }

    fn ask(&mut self, question: &impl Serialize) -> Result<TorchBenchAnswer> {
        let ended = || format!("{} ended before it answered", self.python.display());
        let mut line = serde_json::to_string(question)?;
        line.push('\n');
        // It may have answered and ended already, without PyTorch.
        if let Some(requests) = &mut self.requests {
            let _ = requests.write_all(line.as_bytes());
        }
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        serde_json::from_str(&answer).with_context(ended)
    }
}

impl Drop for TorchBench {
    fn drop(&mut self) {
        drop(self.requests.take());
        // It has nothing more to do than to end.
        let _ = self.child.wait();
    }
}
