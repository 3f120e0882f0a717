//! `fercuda model random`: a model with the shape of a real one and random weights.

use std::io::BufWriter;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use fercuda_llm::{ModelShape, SHAPES};
use fercuda_modelfile::TensorType;

use crate::out::note;
use crate::output::OutputFile;
use crate::progress::progress_bar;
use crate::status::{ExitStatus, bail_usage};
use crate::terminal::{bytes, plain};

/// Writes a GGUF file with the shape of a real model and random weights.
#[derive(clap::Args)]
#[command(after_help = "\
For measurements without the real weights: times and memory are those of the
model, its text is noise. Its tokens are bytes.

Shapes: tiny, tiny-qwen3moe, tiny-gemma3, tiny-gpt-oss, tiny-llama4,
tiny-phi3, smollm2-135m, qwen3-4b, qwen3-8b, llama3-8b, qwen3-30b-a3b,
gemma3-4b, gpt-oss-20b, phi4-mini.

Exit status: 0, or 2 when OUT cannot be written.

Examples:
  fercuda model random tiny tiny.gguf
  fercuda model random qwen3-4b qwen3-4b.gguf --type Q4_K")]
pub(super) struct ModelRandomArgs {
    /// Name of the shape.
    #[arg(value_parser = parse_shape)]
    shape: &'static ModelShape,
    /// GGUF file to write.
    out: PathBuf,
    /// Type of the matrices.
    #[arg(long, value_name = "TYPE", default_value = "Q8_0")]
    r#type: TensorType,
    /// Seed of the weights.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
}

fn parse_shape(name: &str) -> Result<&'static ModelShape, String> {
    let found = SHAPES.iter().find(|shape| shape.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
        format!("it is no known shape\ntry: one of {}", names.join(", "))
    })
}

pub(super) fn run(args: &ModelRandomArgs) -> Result<ExitCode> {
    if args.out.extension().is_none_or(|it| it != "gguf") {
        let out = plain(&args.out);
        bail_usage!("{out}: no GGUF file\ntry: a name that ends with .gguf");
    }
    let mut file = OutputFile::open(&args.out, args.force, &[])?;
    let mut bar = None;
    let mut all = 0;
    args.shape.write(
        BufWriter::new(&mut file),
        args.r#type,
        args.seed,
        |done, of| {
            all = of;
            bar.get_or_insert_with(|| progress_bar("writing", of, true))
                .set_position(done);
        },
    )?;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    file.finish()?;
    note!("{}: {} of tensors", plain(&args.out), bytes(all));
    Ok(ExitStatus::Success.into())
}
