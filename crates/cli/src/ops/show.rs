//! `fercuda ops show`: one row of the registry.

use std::process::ExitCode;

use anyhow::Result;
use fercuda_ops::OpRow;
use fercuda_ops::coverage::kernels_of;
use fercuda_tensor::Dtype;
use serde::Serialize;

use super::parameters::find;
use crate::out::say;
use crate::status::ExitStatus;
use crate::terminal::{Paint, wrapped};

/// Shows an op: operands, numbers, types, expression, kernels.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  fercuda ops show layer_norm
  fercuda ops show softmax --json")]
pub(super) struct OpShowArgs {
    /// Name of the op; `fercuda ops list` has all.
    op: String,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Everything that is known of an op.
#[derive(Serialize)]
struct OpDetails {
    name: &'static str,
    signature: String,
    family: &'static str,
    doc: &'static str,
    operands: Vec<OperandDetails>,
    numbers: Vec<NumberDetails>,
    lists: Vec<ListDetails>,
    choices: Vec<ChoiceDetails>,
    results: &'static [&'static str],
    /// Names of the other parameters.
    parameters: Vec<&'static str>,
    types: Vec<&'static str>,
    expression: &'static str,
    kernels: Vec<KernelDetails>,
}

#[derive(Serialize)]
struct OperandDetails {
    name: &'static str,
    optional: bool,
    /// `bool` for a condition, else the op's types.
    types: String,
}

#[derive(Serialize)]
struct NumberDetails {
    name: &'static str,
    default: f64,
}

#[derive(Serialize)]
struct ListDetails {
    name: &'static str,
    default: &'static [i64],
}

#[derive(Serialize)]
struct ChoiceDetails {
    name: &'static str,
    /// The first is the default.
    values: &'static [&'static str],
}

#[derive(Serialize)]
struct KernelDetails {
    id: &'static str,
    supported: bool,
    /// Why it does not support the op.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    order: &'static str,
    accumulator: &'static str,
    deterministic: bool,
}

/// Parameters other than numbers, each with the option that sets it.
const PARAMETERS: [(&str, &str, &str); 6] = [
    ("axes", "--axes", "axes that it reduces; all without it"),
    (
        "axis",
        "--axes",
        "the axis that it goes along; else the last",
    ),
    ("keep", "--keep", "keep reduced axes, with extent 1"),
    (
        "order",
        "--axes",
        "order of dimensions; reversed without it",
    ),
    ("to", "--to", "type that it converts to"),
    ("shape", "--shape", "shape that it broadcasts to"),
];

pub(super) fn run(args: &OpShowArgs) -> Result<ExitCode> {
    let details = details(find(&args.op)?)?;
    match args.json {
        true => say!("{}", serde_json::to_string_pretty(&details)?),
        false => print(&details, Paint::stdout()),
    }
    Ok(ExitStatus::Success.into())
}

fn details(row: &'static OpRow) -> Result<OpDetails> {
    let firsts = row.operands.len() - row.optional;
    let operands = row.operands.iter().enumerate();
    let kernels = kernels_of(row).into_iter();
    Ok(OpDetails {
        name: row.name,
        signature: row.signature(),
        family: row.family.name(),
        doc: row.doc,
        operands: operands
            .map(|(at, name)| OperandDetails {
                name,
                optional: at >= firsts,
                types: row.types_of(name).to_string(),
            })
            .collect(),
        numbers: row
            .numbers
            .iter()
            .map(|(name, default)| NumberDetails {
                name,
                default: *default,
            })
            .collect(),
        lists: row
            .lists
            .iter()
            .map(|(name, default)| ListDetails { name, default })
            .collect(),
        choices: row
            .choices
            .iter()
            .map(|(name, values)| ChoiceDetails { name, values })
            .collect(),
        results: row.results,
        parameters: PARAMETERS
            .iter()
            .map(|(name, ..)| *name)
            .filter(|name| row.has(name))
            .collect(),
        types: row.dtypes().map(Dtype::name).collect(),
        expression: row.text,
        kernels: kernels
            .map(|(kernel, support)| KernelDetails {
                id: kernel.id,
                supported: support.is_ok(),
                reason: support.err(),
                order: kernel.order,
                accumulator: kernel.accumulator,
                deterministic: kernel.is_deterministic,
            })
            .collect(),
    })
}

/// Prints a name and its text, which may go over several lines.
fn print_entry(name: &str, text: &str) {
    let mut name = name;
    for line in wrapped(text, 64) {
        say!("  {name:<13} {line}");
        name = "";
    }
}

fn print(details: &OpDetails, paint: Paint) {
    say!("{}", paint.strong(&details.signature));
    for line in wrapped(details.doc, 78) {
        say!("  {line}");
    }
    say!("family: {}", details.family);
    say!("types: {}", details.types.join(" "));
    say!("operands:");
    for operand in &details.operands {
        let end = match operand.optional {
            true => "; may be left out",
            false => "",
        };
        print_entry(operand.name, &format!("{}{end}", operand.types));
    }
    if !details.numbers.is_empty() {
        say!("numbers (--set NAME=NUMBER):");
    }
    for number in &details.numbers {
        print_entry(number.name, &format!("{:?} by default", number.default));
    }
    if !details.lists.is_empty() || !details.choices.is_empty() {
        say!("lists and choices (--set NAME=VALUE):");
    }
    for list in &details.lists {
        let text = match list.default {
            [] => "whole numbers; none by default".to_owned(),
            [one] => format!("a whole number; {one} by default"),
            many => format!("whole numbers; {many:?} by default"),
        };
        print_entry(list.name, &text);
    }
    for choice in &details.choices {
        let text = format!("{}; the first by default", choice.values.join(", "));
        print_entry(choice.name, &text);
    }
    if details.results.len() > 1 {
        say!("results: {}", details.results.join(", "));
    }
    if !details.parameters.is_empty() {
        say!("parameters:");
    }
    for (name, option, text) in PARAMETERS {
        if details.parameters.contains(&name) {
            print_entry(option, text);
        }
    }
    if !details.expression.is_empty() {
        say!("expression:");
        say!("  {}", details.expression);
    }
    say!("kernels:");
    for kernel in &details.kernels {
        let text = match &kernel.reason {
            None => format!(
                "order: {}; accumulator: {}; {}",
                kernel.order,
                kernel.accumulator,
                match kernel.deterministic {
                    true => "deterministic",
                    false => "not deterministic",
                }
            ),
            Some(reason) => format!("no: {reason}"),
        };
        print_entry(kernel.id, &text);
    }
}
