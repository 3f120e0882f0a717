//! `fercuda model convert` and `quantize`: a model written with other element types.

use std::collections::BTreeMap;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use fercuda_modelfile::{ModelFile, RewritePlan, TensorType};

use crate::out::{note, step};
use crate::output::{OutputFile, is_stream};
use crate::status::{ExitStatus, bail_usage};
use crate::terminal::{bytes, count, plain, plain_text};

/// Converts a model to one GGUF or safetensors file.
#[derive(clap::Args)]
#[command(after_help = "\
The end of OUT says the format: .gguf or .safetensors. Weights that a quantised
checkpoint (AWQ, GPTQ, compressed-tensors, FP8, bitsandbytes) has in several
tensors become one of type F16, or of --type. Names and the order of elements
stay: a GGUF file made of safetensors files has no metadata for llama.cpp.

Exit status: 0, or 2 when the model cannot be read or OUT not be written.

Examples:
  fercuda model convert model-00001-of-00003.gguf whole.gguf
  fercuda model convert ./Qwen3-4B-AWQ plain.safetensors --type BF16
  fercuda model convert model.gguf plain.safetensors --type F32")]
pub(super) struct ModelConvertArgs {
    /// File or folder of the model.
    model: PathBuf,
    /// File to write.
    out: PathBuf,
    /// Make all floats and blocks this type [default: keep each].
    #[arg(long, value_name = "TYPE")]
    r#type: Option<TensorType>,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
}

/// Quantises a model's matrices into blocks, and writes a GGUF file.
#[derive(clap::Args)]
#[command(after_help = "\
Types: Q8_0 Q6_K Q5_K Q4_K Q3_K Q2_K Q5_1 Q5_0 Q4_1 Q4_0 MXFP4 NVFP4 TQ1_0 TQ2_0
Q1_0 Q2_0, BF16, F16. The bytes are those of llama.cpp's reference quantiser
without an importance matrix, for all matrices alike (its --pure). Rows that are
no whole blocks get a type with smaller blocks, or F16; vectors, norms and
routers F32.

Exit status: 0, or 2 when the model cannot be read or OUT not be written.

Examples:
  fercuda model quantize model-f16.gguf model-q8.gguf --type Q8_0")]
pub(super) struct ModelQuantizeArgs {
    /// File or folder of the model.
    model: PathBuf,
    /// GGUF file to write.
    out: PathBuf,
    /// Type of the matrices.
    #[arg(long, value_name = "TYPE")]
    r#type: TensorType,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
}

pub(super) fn convert(args: &ModelConvertArgs) -> Result<ExitCode> {
    let ends_with = |end| args.out.extension().is_some_and(|it| it == end);
    let is_gguf = ends_with("gguf");
    if !is_gguf && !ends_with("safetensors") {
        let out = plain(&args.out);
        bail_usage!("{out}: no known format\ntry: a name that ends with .gguf or .safetensors");
    }
    let model = ModelFile::open(&args.model)?;
    let file = open_output(&model, &args.out, args.force)?;
    let plan = RewritePlan::converted(&model, args.r#type)?;
    write(&model, &plan, file, &args.out, is_gguf)
}

pub(super) fn quantize(args: &ModelQuantizeArgs) -> Result<ExitCode> {
    let model = ModelFile::open(&args.model)?;
    let file = open_output(&model, &args.out, args.force)?;
    let plan = RewritePlan::quantised(&model, args.r#type)?;
    let mut again = BTreeMap::new();
    for tensor in plan.tensors() {
        if let Some(from @ TensorType::Block(_)) = tensor.from
            && from != tensor.to
        {
            *again.entry(from.name()).or_insert(0) += 1;
        }
    }
    for (from, number) in again {
        let tensors = count(number, "tensor");
        note!("{tensors} of {from} are quantised again, which adds the errors of both");
    }
    write(&model, &plan, file, &args.out, true)
}

fn open_output(model: &ModelFile, out: &Path, force: bool) -> Result<OutputFile> {
    let inputs: Vec<&Path> = model.parts().iter().map(|part| part.path()).collect();
    Ok(OutputFile::open(out, force, &inputs)?.by_umask())
}

fn write(
    model: &ModelFile,
    plan: &RewritePlan,
    mut file: OutputFile,
    out: &Path,
    is_gguf: bool,
) -> Result<ExitCode> {
    for tensor in plan.tensors() {
        let from = tensor.from.map_or("several tensors", TensorType::name);
        step!("{}: {from} to {}", plain_text(&tensor.name), tensor.to);
    }
    let mut to = BufWriter::with_capacity(1 << 20, &mut file);
    match is_gguf {
        true => plan.write_gguf(model, &mut to, out, |_| {})?,
        false => plan.write_safetensors(model, &mut to, out, |_| {})?,
    }
    drop(to);
    file.finish()?;
    if !is_stream(out) {
        let tensors = count(plan.tensors().len(), "tensor");
        note!("{}: {tensors}, {}", plain(out), bytes(plan.bytes()));
    }
    Ok(ExitStatus::Success.into())
}
