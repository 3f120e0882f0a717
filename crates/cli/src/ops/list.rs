//! `fercuda ops list`: the table of ops.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::Result;
use fercuda_jit::TypeClass;
use fercuda_ops::coverage::supporting;
use fercuda_ops::{OpFamily, OpRow, registry};
use fercuda_tensor::Dtype;
use serde::Serialize;

use super::parameters::{dtype_parser, family_parser};
use crate::out::{note, say};
use crate::status::ExitStatus;
use crate::terminal::{Paint, clipped, count};

/// Lists the ops with their signatures, families, types and kernels.
#[derive(clap::Args)]
#[command(after_help = "\
Signatures: operand? may be left out; number=default is set by --set of `ops
run`, axes=, axis= and order= by --axes, keep= by --keep, to= by --to, shape= by
--shape.

Types: floats are f64 f32 f16 bf16 f8e4m3 f8e5m2, integers i8 to i64 and u8 to
u64, numbers both, signed floats and i8 to i64, bits integers and bool.

Examples:
  fercuda ops list --family reduction
  fercuda ops list --dtype bool
  fercuda ops list --json | python3 -m json.tool")]
pub(super) struct OpListArgs {
    /// Only ops of this family.
    #[arg(long, value_parser = family_parser())]
    family: Option<OpFamily>,
    /// Only ops that accept this type.
    #[arg(long, value_name = "TYPE", value_parser = dtype_parser())]
    dtype: Option<Dtype>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct OpListing {
    ops: Vec<ListedOp>,
}

#[derive(Serialize)]
struct ListedOp {
    name: &'static str,
    signature: String,
    family: &'static str,
    doc: &'static str,
    #[serde(skip)]
    class: &'static str,
    types: Vec<&'static str>,
    kernels: Vec<&'static str>,
}

/// A short name of a set of types.
pub(super) fn class_name(class: TypeClass) -> &'static str {
    match class {
        TypeClass::Floats => "floats",
        TypeClass::Integers => "integers",
        TypeClass::Numbers => "numbers",
        TypeClass::Signed => "signed",
        TypeClass::Bits => "bits",
        TypeClass::All => "all",
        TypeClass::NotF64 => "floats but f64",
        TypeClass::WideFloats => "floats of 16 bits or more",
        TypeClass::Bool => "bool",
        TypeClass::Bytes => "u8",
    }
}

fn listed(row: &'static OpRow) -> ListedOp {
    ListedOp {
        name: row.name,
        signature: row.signature(),
        family: row.family.name(),
        doc: row.doc,
        class: class_name(row.types),
        types: row.dtypes().map(Dtype::name).collect(),
        kernels: supporting(row),
    }
}

pub(super) fn run(args: &OpListArgs) -> Result<ExitCode> {
    let rows = registry::rows()
        .filter(|row| args.family.is_none_or(|family| row.family == family))
        .filter(|row| args.dtype.is_none_or(|dtype| row.types.has(dtype)));
    let ops = rows.map(listed).collect::<Vec<ListedOp>>();
    if args.json {
        say!("{}", serde_json::to_string_pretty(&OpListing { ops })?);
        return Ok(ExitStatus::Success.into());
    }
    // A pipe gets whole lines.
    let most = match std::io::stdout().is_terminal() {
        true => SIGNATURE_CHARS,
        false => usize::MAX,
    };
    let widest = ops.iter().map(|op| op.signature.chars().count()).max();
    let width = widest.unwrap_or_default().min(most).max("OP".len());
    let line = |op: &str, family: &str, types: &str, kernels: &str| {
        let line = format!("{op:<width$} {family:<13} {types:<14} {kernels}");
        line.trim_end().to_owned()
    };
    let head = line("OP", "FAMILY", "TYPES", "KERNELS");
    say!("{}", Paint::stdout().strong(&head));
    for op in &ops {
        let signature = clipped(&op.signature, width);
        let kernels = op.kernels.join(", ");
        say!("{}", line(&signature, op.family, op.class, &kernels));
    }
    note!("{}", count(ops.len(), "op"));
    Ok(ExitStatus::Success.into())
}

/// Columns of a terminal that signatures get: 80, less those of the others and of a kernel.
const SIGNATURE_CHARS: usize = 80 - 1 - 13 - 1 - 14 - 1 - "jit.rows".len();
