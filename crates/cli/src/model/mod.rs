//! `fercuda model`: what is in a model's files, and models written with other element types.
//!
//! Invariant: names and texts of a file are printed with control characters escaped. Elsewhere:
//! formats (`fercuda-modelfile`).

mod random;
mod rewrite;
mod show;

use std::process::ExitCode;

use anyhow::Result;

/// Shows model files (GGUF, safetensors), converts and quantises them.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ModelCommand,
}

#[derive(clap::Subcommand)]
enum ModelCommand {
    Show(show::ModelShowArgs),
    Convert(rewrite::ModelConvertArgs),
    Quantize(rewrite::ModelQuantizeArgs),
    Random(random::ModelRandomArgs),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        ModelCommand::Show(args) => show::run(args),
        ModelCommand::Convert(args) => rewrite::convert(args),
        ModelCommand::Quantize(args) => rewrite::quantize(args),
        ModelCommand::Random(args) => random::run(args),
    }
}
