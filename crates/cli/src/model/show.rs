//! `fercuda model show`: a model's files, metadata and tensors.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use fercuda_modelfile::{GgufValue, ModelFile, PartContent};
use serde::Serialize;
use serde_json::{Value, json};

use crate::out::{note, say};
use crate::status::ExitStatus;
use crate::terminal::{Paint, bytes, clipped, count, plain_text};

/// Shows a model's files, metadata and tensors: names, types, shapes and sizes.
#[derive(clap::Args)]
#[command(after_help = "\
MODEL is a GGUF file, a safetensors file, an index of several, or a folder of
one of these. Of a split GGUF model it is the first file. Nothing is loaded:
files are mapped and checked.

Exit status: 0, or 2 when the model cannot be read.

Examples:
  fercuda model show model.gguf
  fercuda model show ./Qwen3-4B --tensors '*layers.0.*'
  fercuda model show model.gguf --json | python3 -m json.tool")]
pub(super) struct ModelShowArgs {
    /// File or folder of the model.
    model: PathBuf,
    /// Only tensors with such names; * stands for any text.
    #[arg(long, value_name = "PATTERN")]
    tensors: Option<String>,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ShownModel {
    files: Vec<ShownFile>,
    metadata: Vec<ShownPair>,
    tensors: Vec<ShownTensor>,
}

#[derive(Serialize)]
struct ShownFile {
    path: String,
    format: String,
    bytes: usize,
}

#[derive(Serialize)]
struct ShownPair {
    key: String,
    value: Value,
}

#[derive(Serialize)]
struct ShownTensor {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    shape: Vec<u64>,
    bytes: usize,
    file: String,
    at: u64,
}

pub(super) fn run(args: &ModelShowArgs) -> Result<ExitCode> {
    let model = ModelFile::open(&args.model)?;
    let shown = ShownModel {
        files: files(&model),
        metadata: metadata(&model),
        tensors: tensors(&model, args.tensors.as_deref()),
    };
    match args.json {
        true => say!("{}", serde_json::to_string_pretty(&shown)?),
        false => print(&shown),
    }
    Ok(ExitStatus::Success.into())
}

fn files(model: &ModelFile) -> Vec<ShownFile> {
    let file = |part: &fercuda_modelfile::ModelPart| {
        let (format, bytes) = match part.content() {
            PartContent::Gguf(file) => (format!("GGUF {}", file.version()), file.file().len()),
            PartContent::Safetensors(file) => ("safetensors".to_owned(), file.file().len()),
        };
        ShownFile {
            path: part.path().to_string_lossy().into_owned(),
            format,
            bytes,
        }
    };
    model.parts().iter().map(file).collect()
}

fn metadata(model: &ModelFile) -> Vec<ShownPair> {
    let of_part = |part: &fercuda_modelfile::ModelPart| match part.content() {
        PartContent::Gguf(file) => {
            let pair = |(key, value): (&[u8], GgufValue<'_>)| ShownPair {
                key: String::from_utf8_lossy(key).into_owned(),
                value: value_of(&value),
            };
            file.metadata().map(pair).collect::<Vec<_>>()
        }
        PartContent::Safetensors(file) => {
            let pairs = file.metadata().into_iter();
            let pairs = pairs.map(|(key, value)| ShownPair {
                key: key.into_owned(),
                value: Value::from(value),
            });
            pairs.collect()
        }
    };
    model.parts().iter().take(1).flat_map(of_part).collect()
}

fn value_of(value: &GgufValue<'_>) -> Value {
    match value {
        GgufValue::Bool(it) => json!(it),
        GgufValue::Array(array) => {
            json!({"type": format!("{:?}", array.kind()), "length": array.len()})
        }
        GgufValue::String(text) => json!(String::from_utf8_lossy(text)),
        GgufValue::U64(it) => json!(it),
        GgufValue::I64(it) => json!(it),
        // Others are exact in an f64; what is infinite is a text.
        _ => {
            let text = value.to_string();
            serde_json::from_str(&text).unwrap_or(Value::String(text))
        }
    }
}

/// Whether a name has the form of a pattern: parts in this order, with any text for each `*`.
fn is_like(name: &str, pattern: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return name == pattern;
    };
    let Some(name) = name.strip_prefix(first) else {
        return false;
    };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut left) = name.strip_suffix(last) else {
        return false;
    };
    middle.split('*').all(|part| match left.split_once(part) {
        Some((_, behind)) => {
            left = behind;
            true
        }
        None => false,
    })
}

fn tensors(model: &ModelFile, pattern: Option<&str>) -> Vec<ShownTensor> {
    let tensors = model.tensors();
    let tensors = tensors.filter(|it| pattern.is_none_or(|pattern| is_like(&it.name, pattern)));
    let tensors = tensors.map(|it| ShownTensor {
        kind: it.kind.name(),
        bytes: it.bytes.len(),
        file: it.file.to_string_lossy().into_owned(),
        at: it.at,
        shape: it.shape,
        name: it.name.into_owned(),
    });
    tensors.collect()
}

/// `49152x576`; `1` of a tensor without dimensions.
fn extents(shape: &[u64]) -> String {
    let extents: Vec<String> = shape.iter().map(u64::to_string).collect();
    match extents.is_empty() {
        true => "1".to_owned(),
        false => extents.join("x"),
    }
}

fn print(shown: &ShownModel) {
    let paint = Paint::stdout();
    // A pipe gets whole lines.
    let width = match std::io::stdout().is_terminal() {
        true => 80,
        false => usize::MAX,
    };
    let line = |text: String| clipped(&text, width);
    for file in &shown.files {
        let (path, size) = (plain_text(&file.path), bytes(file.bytes as u64));
        say!("{path}: {}, {size}", file.format);
    }
    if !shown.metadata.is_empty() {
        say!("\n{}", paint.strong("METADATA"));
    }
    let keys = shown.metadata.iter().map(|it| it.key.chars().count());
    let key_width = keys.max().unwrap_or(0).min(40);
    for pair in &shown.metadata {
        let value = match &pair.value {
            Value::String(text) => plain_text(text),
            Value::Object(array) => {
                let kind = array["type"].as_str().unwrap_or_default();
                format!("{} of {kind}", array["length"])
            }
            other => other.to_string(),
        };
        let key = plain_text(&pair.key);
        // Templates of chats have a hundred lines.
        say!(
            "{}",
            line(format!("{key:<key_width$}  {}", clipped(&value, 200)))
        );
    }
    let names = shown.tensors.iter().map(|it| it.name.chars().count());
    let name_width = names.max().unwrap_or(0).clamp(6, 40);
    let head = format!(
        "{:<name_width$}  {:<8} {:<16} {:>9}",
        "TENSOR", "TYPE", "SHAPE", "SIZE"
    );
    say!("\n{}", paint.strong(&head));
    let mut totals = BTreeMap::new();
    for tensor in &shown.tensors {
        let name = plain_text(&tensor.name);
        let name = match width {
            usize::MAX => name,
            _ => clipped(&name, name_width),
        };
        let (shape, size) = (extents(&tensor.shape), bytes(tensor.bytes as u64));
        say!(
            "{name:<name_width$}  {:<8} {shape:<16} {size:>9}",
            tensor.kind
        );
        let total = totals.entry(tensor.kind).or_insert((0, 0));
        *total = (total.0 + 1, total.1 + tensor.bytes as u64);
    }
    let totals = totals.into_iter();
    let totals = totals.map(|(kind, (number, size))| format!("{number} {kind} {}", bytes(size)));
    let totals = totals.collect::<Vec<_>>().join(", ");
    note!("{}: {totals}", count(shown.tensors.len(), "tensor"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_any_text_for_each_star() {
        for (name, pattern, expected) in [
            ("blk.0.up", "blk.0.up", true),
            ("blk.0.up", "blk", false),
            ("blk.0.up", "*", true),
            ("blk.0.up", "blk.*.up", true),
            ("blk.0.up", "*.0.*", true),
            ("blk.0.up", "*up*", true),
            ("blk.0.up", "*0*.*up", true),
            ("blk.0.up", "*up*0*", false),
            ("aa", "a*a", true),
            ("a", "a*a", false),
        ] {
            assert_eq!(is_like(name, pattern), expected, "{name} {pattern}");
        }
    }
}
