//! `fercuda ops run`: one op on given or random operands, beside its reference in f64.
//!
//! Invariant: nothing is allocated on the device before the operands, parameters and sizes are
//! accepted. Elsewhere: the reference (`fercuda_ops::oracle`).

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use fercuda_cuda::{Context, DeviceBuffer, Stream};
use fercuda_jit::reference::{self, Near};
use fercuda_jit::{BoundArg, Canonical, ExprGraph, Fused, TypeClass};
use fercuda_ops::{OpDescriptor, OpDevice, OpOracle, OpRow, oracle};
use fercuda_tensor::{Dtype, Layout};
use serde::Serialize;
use serde_json::Value;

use super::parameters::{ParameterArgs, find, usage};
use super::plan::{ChosenKernel, PreparedOp, prepare, refusal};
use super::values::{json, rows};
use crate::arrays::compare::{OutputComparison, compared};
use crate::arrays::input::{ArrayInput, bits_of, random_seed, scattered};
use crate::arrays::limits::{
    check_device_memory, check_reference, open_checked_device, reach_len, refuse_findings,
};
use crate::out::{self, alert, say, step};
use crate::status::{ExitStatus, bail_usage};
use crate::terminal::{Paint, count, wrapped};

/// Bytes that the reference keeps of each element's index.
const INDEX_BYTES: u64 = 128;

/// Runs an op on a device, and compares the result with its reference in f64.
#[derive(clap::Args)]
#[command(after_help = "\
Inputs, one for each operand, by its name: NAME:TYPE[SHAPE], with strides in
elements if not contiguous, and with a content if not random:
  x:f16[8,128]               random, from --seed
  x:f16[8,128]@[1,8]         strides; 0 repeats, negative ones go back
  x:f32[4]=1,2.5,-3,nan      numbers, in order
  x:f32[2,2]=0.5             one number for all; or zeros, ones, iota, random:7
  x:f32[1000]=@FILE          bytes of the elements; .txt: numbers

The bound of an error is derived from the op's expression, types and sizes; an
element without one is counted as not comparable, as are integers that the
reference cannot compute in f64. --json has all elements of the result.

Exit status: 0 success, 1 an element is outside its bound, or the device failed,
2 the op could not be run.

Examples:
  fercuda ops run softmax --input 'x:f16[8,128]'
  fercuda ops run add -i 'x:i32[3]=1,2,3' -i 'y:i32[]=10'
  fercuda ops run sum -i 'x:f32[4,8]@[1,4]' --axes -1 --keep --json
  fercuda ops run layer_norm -i 'x:bf16[64,1024]' -i 'gamma:bf16[1024]=ones' \\
      --set eps=1e-6 --kernel jit.rows --show-plan")]
pub(super) struct OpRunArgs {
    /// Name of the op; `fercuda ops list` has all.
    op: String,
    /// Operand as NAME:TYPE[SHAPE], with strides and content; see below.
    #[arg(long = "input", short = 'i', value_name = "SPEC")]
    inputs: Vec<String>,
    #[command(flatten)]
    parameters: ParameterArgs,
    /// Kernel to use, or `measured` for what `fercuda ops tune` kept [default: the first that can].
    #[arg(long, value_name = "ID")]
    kernel: Option<String>,
    /// Seed of random elements [default: a random one].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Show the op's expression and its fused kernels too.
    #[arg(long)]
    show_plan: bool,
    /// Maximum number of values that the reference may compute on the host.
    #[arg(long, value_name = "N", default_value_t = 1 << 25)]
    max_values: u64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct OpRunReport {
    op: &'static str,
    operands: Vec<RunOperand>,
    device: String,
    seed: u64,
    plan: ChosenKernel,
    workspace_bytes: u64,
    /// Time to choose and compile the kernel, or to find it in a cache.
    prepare_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    expression: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fused: Option<String>,
    results: Vec<ResultArray>,
}

#[derive(Serialize)]
struct RunOperand {
    name: String,
    layout: String,
    random: bool,
}

#[derive(Serialize)]
struct ResultArray {
    name: &'static str,
    dtype: &'static str,
    shape: Vec<u64>,
    /// The elements in row-major order.
    values: Vec<Value>,
    #[serde(skip)]
    lines: Vec<String>,
    comparison: OutputComparison,
}

pub(super) fn run(args: &OpRunArgs) -> Result<ExitCode> {
    let row = find(&args.op)?;
    let operands = operands(row, &args.inputs)?;
    let layouts: Vec<Layout> = operands.iter().map(|it| it.layout).collect();
    let ranks = layouts.iter().map(|layout| layout.shape().len());
    let op = args
        .parameters
        .describe(row, ranks.max().unwrap_or_default())?;
    let graph = match row.is_expression() {
        true => Some(op.graph(&layouts).map_err(refusal)?),
        false => None,
    };
    match &graph {
        Some(graph) => check_host(graph, args.max_values)?,
        None => {
            let elements = layouts.iter().map(Layout::len).fold(0, u64::saturating_add);
            let host_bytes = elements.saturating_mul(INDEX_BYTES);
            check_reference(elements, host_bytes, args.max_values)?;
        }
    }
    // An index outside of its axis is reported.
    let op = if row.has_indices() {
        op.checked().map_err(refusal)?
    } else {
        op
    };
    let report = ran(&op, graph.as_ref(), &operands, args)?;
    match args.json {
        true => say!("{}", serde_json::to_string_pretty(&report)?),
        false => print(&report, Paint::stdout()),
    }
    Ok(ExitStatus::of_findings(report.results.iter().any(|it| it.comparison.wrong > 0)).into())
}

/// Refuses a reference that takes too long or too much memory: it keeps indices and values of each
/// element.
fn check_host(graph: &ExprGraph, most: u64) -> Result<()> {
    let values = reference::value_count(graph);
    let of_elements = graph.inputs().chain(graph.outputs());
    let elements = of_elements.map(|(_, layout)| layout.len());
    let elements = elements.fold(0, u64::saturating_add);
    let host_bytes = values
        .saturating_mul(size_of::<Near>() as u64)
        .saturating_add(elements.saturating_mul(INDEX_BYTES));
    check_reference(values, host_bytes, most)
}

/// The given operands in the order of the op.
pub(super) fn operands(row: &OpRow, specs: &[String]) -> Result<Vec<ArrayInput>> {
    let mut given: Vec<Option<ArrayInput>> = row.operands.iter().map(|_| None).collect();
    let mut more = Vec::new();
    for spec in specs {
        let input: Result<ArrayInput> = spec.parse();
        let input = input.with_context(|| format!("--input {spec} cannot be used"));
        let input = input.map_err(usage)?;
        let at = row.operands.iter().position(|name| *name == input.name);
        if row.repeated > 0 && at.is_some_and(|at| at >= row.singles()) {
            let wanted = row.operand(row.singles() + more.len());
            if input.name != wanted {
                bail_usage!(
                    "operand {} is given where {wanted} is next\ntry: {}, one after another",
                    input.name,
                    row.operands[row.singles()..].join(", ")
                );
            }
            more.push(input);
            continue;
        }
        let Some(place) = at.and_then(|at| given.get_mut(at)) else {
            bail_usage!(
                "{} has no operand {:?}\ntry: {}",
                row.name,
                input.name,
                row.operands.join(", ")
            );
        };
        if let Some(before) = place.replace(input) {
            bail_usage!(
                "operand {} is given twice\ntry: one --input for it",
                before.name
            );
        }
    }
    let first: Vec<ArrayInput> = more.drain(..row.repeated.min(more.len())).collect();
    for (place, input) in given[row.singles()..].iter_mut().zip(first) {
        *place = Some(input);
    }
    let firsts = row.operands.len() - row.optional;
    let last = given.iter().rposition(Option::is_some);
    let wanted = firsts.max(last.map_or(0, |last| last + 1));
    let missing = given[..wanted].iter().position(Option::is_none);
    if let Some(at) = missing {
        let name = row.operands[at];
        let like = given.iter().flatten().next();
        let shape = like.map_or(&[8, 128][..], |it| it.layout.shape());
        let shape = match at > 0 && row.has("operands") {
            // A vector along the axis.
            true => &shape[shape.len().saturating_sub(1)..],
            false => shape,
        };
        let dtype = match (row.types_of(name), like) {
            (TypeClass::Bool, _) => Dtype::Bool,
            (TypeClass::Bytes, _) => Dtype::U8,
            (TypeClass::Integers, _) if row.has_own_type(name) => Dtype::I64,
            (_, Some(it)) if row.types.has(it.layout.dtype()) => it.layout.dtype(),
            _ => row.dtypes().nth(1).unwrap_or(Dtype::F32),
        };
        let shape = format!("{shape:?}").replace(' ', "");
        bail_usage!(
            "{} needs operand {name}\ntry: --input '{name}:{dtype}{shape}'",
            row.name
        );
    }
    Ok(given.into_iter().flatten().chain(more).collect())
}

/// Runs the op and compares its result with the reference.
fn ran(
    op: &OpDescriptor,
    graph: Option<&ExprGraph>,
    operands: &[ArrayInput],
    args: &OpRunArgs,
) -> Result<OpRunReport> {
    let seed = args.seed.unwrap_or_else(random_seed);
    let layouts: Vec<Layout> = operands.iter().map(|it| it.layout).collect();
    let (cuda, device) = open_checked_device()?;
    let context = Context::primary(device)?;
    let stream = Stream::new(&context)?;
    let device_of_ops = OpDevice::new(&context).map_err(refusal)?;
    let begun = Instant::now();
    let prepared = prepare(&device_of_ops, op, &layouts, args.kernel.as_deref())?;
    let prepare_ms = begun.elapsed().as_secs_f64() * 1e3;
    step!("kernel {}", prepared.chosen.kernel);
    let needed = layouts
        .iter()
        .map(reach_len)
        .chain(prepared.outputs.iter().map(Layout::bytes))
        .chain([prepared.workspace_bytes])
        .fold(0, u64::saturating_add);
    check_device_memory(device, needed, "")?;
    let mut random = fastrand::Rng::with_seed(seed);
    let elements = operands.iter().map(|it| it.elements(&mut random));
    let mut bits = elements.collect::<Result<Vec<_>>>().map_err(usage)?;
    let got = executed(&context, &stream, &prepared, &layouts, &mut bits)?;
    refuse_findings(cuda)?;
    for warning in device_of_ops.compiler().take_warnings() {
        alert!("{} {warning}", Paint::stderr().bad("warning:"));
    }
    step!("evaluating the reference");
    let mut wanted = oracle::evaluate(op, &layouts, &bits).map_err(refusal)?;
    let is_exact = is_exact_in_f64(op, &layouts, &bits);
    let names = op.row().results.iter();
    let all = names.zip(&prepared.outputs).zip(&got).zip(&mut wanted);
    let results = all.map(|(((name, output), got), wanted)| {
        for (near, got) in wanted.iter_mut().zip(got) {
            if !is_exact && !near.allows(output.dtype(), *got) {
                near.error = f64::INFINITY;
            }
        }
        ResultArray {
            name,
            dtype: output.dtype().name(),
            shape: output.shape().to_vec(),
            values: match args.json {
                true => got.iter().map(|it| json(output.dtype(), *it)).collect(),
                false => Vec::new(),
            },
            lines: rows(output, got),
            comparison: compared("result", output, got, wanted),
        }
    });
    let results = results.collect();
    let (expression, fused) = match graph {
        Some(graph) if args.show_plan => (
            Some(graph.to_string()),
            Some(Fused::of(&Canonical::of(graph)?, true).to_string()),
        ),
        _ => (None, None),
    };
    Ok(OpRunReport {
        op: op.name(),
        operands: operands
            .iter()
            .map(|it| RunOperand {
                name: it.name.clone(),
                layout: it.layout.to_string(),
                random: it.fill.is_none(),
            })
            .collect(),
        device: device.to_string(),
        seed,
        plan: prepared.chosen,
        workspace_bytes: prepared.workspace_bytes,
        prepare_ms,
        expression,
        fused,
        results,
    })
}

/// Copies the operands to the device, runs the plan once, and returns the bits of the results.
/// Where elements of an operand share a place, `bits` become those that the place has.
fn executed(
    context: &Context,
    stream: &Stream,
    prepared: &PreparedOp,
    layouts: &[Layout],
    bits: &mut [Vec<u64>],
) -> Result<Vec<Vec<u64>>> {
    let mut bound = Vec::new();
    for (layout, bits) in layouts.iter().zip(bits) {
        let (bytes, first) = scattered(layout, bits);
        bound.push((DeviceBuffer::from_host(&bytes, stream)?, first));
    }
    let alloc = |bytes: u64| {
        DeviceBuffer::<u8>::alloc(context, usize::try_from(bytes)?).map_err(anyhow::Error::from)
    };
    let outputs = prepared.outputs.iter().map(|output| alloc(output.bytes()));
    let outputs = outputs.collect::<Result<Vec<_>>>()?;
    let workspace = match prepared.workspace_bytes {
        0 => None,
        bytes => Some(alloc(bytes)?),
    };
    let args: Vec<BoundArg<'_>> = bound
        .iter()
        .map(|(buffer, first)| BoundArg::of(buffer).first_at(*first))
        .collect();
    let workspace = workspace.as_ref().map(BoundArg::of);
    let written: Vec<BoundArg<'_>> = outputs.iter().map(BoundArg::of).collect();
    (prepared.queue)(stream, &args, &written, workspace)?;
    stream.synchronize()?;
    let read = prepared.outputs.iter().zip(&outputs);
    read.map(|(layout, output)| Ok(bits_of(layout.dtype(), &output.to_vec(stream)?)))
        .collect()
}

/// Whether f64 has all values of the reference exactly, as far as magnitudes say: ops on integers
/// are sums of products of two elements, or the product of all. Of floats the bound is known.
fn is_exact_in_f64(op: &OpDescriptor, layouts: &[Layout], bits: &[Vec<u64>]) -> bool {
    let values = layouts.iter().zip(bits).flat_map(|(layout, bits)| {
        let dtype = layout.dtype();
        let integers = bits.iter().filter(move |_| !dtype.is_float());
        integers.map(move |bits| dtype.value(*bits).abs())
    });
    let largest = values.fold(1.0, f64::max);
    let folded = match op.row().oracle {
        OpOracle::Fold(_) => layouts.iter().map(Layout::len).max().unwrap_or_default(),
        _ => 1,
    };
    let most = match op.name() {
        "prod" => largest.powf(folded as f64),
        _ => folded as f64 * (largest * largest + largest),
    };
    most < f64::exp2(53.0)
}

fn print(report: &OpRunReport, paint: Paint) {
    say!("{} on {}", paint.strong(report.op), report.device);
    say!("--seed {}", report.seed);
    for RunOperand {
        name,
        layout,
        random,
    } in &report.operands
    {
        let content = match random {
            true => "random",
            false => "as given",
        };
        say!("{name}: {layout}, {content}");
    }
    let ChosenKernel {
        kernel,
        reason,
        launches,
        rejected,
    } = &report.plan;
    let launches = count(*launches, "launch");
    let chosen = format!("kernel {kernel}: {reason}; {launches}");
    for line in wrapped(&chosen, 80) {
        say!("{line}");
    }
    for other in rejected {
        for line in wrapped(&format!("not {}: {}", other.kernel, other.reason), 78) {
            say!("  {line}");
        }
    }
    if report.workspace_bytes > 0 {
        say!("workspace: {} bytes", report.workspace_bytes);
    }
    let forms = [("expression", &report.expression), ("fused", &report.fused)];
    for (name, text) in forms {
        if let Some(text) = text {
            say!("\n{}", paint.strong(name));
            out::write(format_args!("{}\n", text.trim_end_matches('\n')));
        }
    }
    for result in &report.results {
        let name = match report.results.len() {
            1 => "result",
            _ => result.name,
        };
        say!("\n{}", paint.strong(name));
        for line in &result.lines {
            say!("{line}");
        }
        result.comparison.print(paint);
    }
}
