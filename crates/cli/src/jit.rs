//! `fercuda jit`: compiles one expression, shows its intermediate forms, and runs it against a
//! reference.
//!
//! Invariant: no device is used without `--run`. Elsewhere: parsing, the forms and the
//! reference (`fercuda-jit`).

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use fercuda_cuda::{Context, Device, DeviceBuffer, Stream};
use fercuda_jit::reference::{self, Near};
use fercuda_jit::{BoundArg, Canonical, CodeOrigin, Compiler, ExprGraph, Fused, Program, text};
use fercuda_ptx::build::Arch;
use serde::Serialize;

use crate::arrays::compare::{OutputComparison, compared};
use crate::arrays::input::{ArrayInput, bits_of, random_elements, random_seed, scattered};
use crate::arrays::limits::{
    check_device_memory, check_reference, open_checked_device, reach_len, refuse_findings,
};
use crate::input::read_stdin;
use crate::out::{self, alert, note, say, step};
use crate::status::{ExitStatus, UsageError};
use crate::terminal::{Paint, count};

/// Compiles an expression over buffers, shows its IR and PTX, and runs it.
#[derive(clap::Args)]
#[command(after_help = "\
Expressions:
  x * 0.125 + m    + - * / % < <= > >= == != & | ^ << >> ! and brackets as in C;
                   shapes are broadcast; a number takes the type of the other
                   operand
  f16(x)           casts have the names of types: f64 f32 f16 bf16 f8e4m3 f8e5m2
                   i8 i16 i32 i64 u8 u16 u32 u64 bool
  neg abs recip sqrt rsqrt exp ln tanh sigmoid erf floor ceil trunc round not
  isnan relu silu gelu                    of each element
  min(a, b) max(a, b) fma(a, b, c) affine(x, scale, shift) select(c, a, b)
  sum mean prod min max argmin argmax     sum(x), or sum(x, axis=[0, -1],
                   keep=true)
  softmax log_softmax                     softmax(x, axis=-1)
  layer_norm(x, gamma, beta, eps=1e-5)    rms_norm(x, gamma, eps=1e-6)
  reshape(x, [4, 8]) permute(x, [1, 0]) broadcast(x, [2, 8])
  slice(x, axis=0, start=0, end=8, step=2)
  t = x * 2; softmax(t)                   statements; unused names are outputs

Inputs: NAME:TYPE[SHAPE]; if not contiguous, with strides in elements:
m:f32[8,128]@[1,8]

Exit status: 0 success, 1 the device and the reference differ, 2 the expression
could not be compiled or run.

Examples:
  fercuda jit --show all 'softmax(x * 0.125 + m)' --input 'x:f16[8,128]' \\
      --input 'm:f16[128]'
  echo 'x * 2' | fercuda jit - --run --input 'x:f32[1000]'
  fercuda jit --run 'layer_norm(x, g, b)' --input 'x:bf16[64,1024]' \\
      --input 'g:bf16[1024]' --input 'b:bf16[1024]'")]
pub(crate) struct Args {
    /// Expression to compile, or - to read it from standard input; see below.
    expression: String,
    /// Input as NAME:TYPE[SHAPE] (may be repeated); see below.
    #[arg(long = "input", short = 'i', value_name = "SPEC")]
    inputs: Vec<String>,
    /// Show these forms (may be repeated).
    #[arg(long, value_name = "FORM", value_enum)]
    show: Vec<Form>,
    /// Run it on random elements and compare with the reference.
    #[arg(long)]
    run: bool,
    /// Seed of the random elements [default: a random one].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Maximum number of values that the reference may compute on the host, for --run.
    #[arg(long, value_name = "N", default_value_t = 1 << 25)]
    max_values: u64,
    /// Architecture to compile PTX for, without --run.
    #[arg(long, value_name = "sm_NN", default_value = "sm_90", value_parser = arch)]
    arch: Arch,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// An intermediate form of the expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// The graph as written.
    ExprGraph,
    /// The canonical graph: equal for equivalent spellings.
    Canonical,
    /// Fused kernels, and the buffers between them.
    Fused,
    /// The PTX of the kernels.
    Ptx,
    /// All of these forms.
    All,
}

#[derive(Serialize)]
struct JitReport {
    key: String,
    code: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    graph: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    canonical: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fused: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ptx: Option<String>,
    launches: Vec<LaunchedKernel>,
    scratch_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<JitRun>,
}

#[derive(Serialize)]
struct LaunchedKernel {
    kernel: String,
    blocks: u32,
    threads: [u32; 2],
    rows: u64,
}

#[derive(Serialize)]
struct JitRun {
    device: String,
    seed: u64,
    /// Where the code came from: compiler, disk cache or memory cache.
    origin: &'static str,
    compile_ms: f64,
    outputs: Vec<OutputComparison>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut graph = ExprGraph::new();
    for spec in &args.inputs {
        let what = || format!("--input {spec} cannot be used");
        let ArrayInput { name, layout, .. } = input(spec).with_context(what)?;
        graph.input(&name, layout).with_context(what)?;
    }
    text::parse(&mut graph, &expression(&args.expression)?)?;
    let canonical = Canonical::of(&graph)?;
    let program = Program::of_fused(&graph, Fused::of(&canonical, true), args.arch)?;
    let ran = match args.run {
        true => Some(ran(&graph, &program, args)?),
        false => None,
    };
    let shows = |form: Form| args.show.contains(&form) || args.show.contains(&Form::All);
    let none = args.show.is_empty() && !args.run;
    let launches = program.launches.iter().map(|plan| LaunchedKernel {
        kernel: plan.name.clone(),
        blocks: plan.grid,
        threads: plan.block,
        rows: plan.rows,
    });
    let report = JitReport {
        key: canonical.key().to_string(),
        code: program.code.to_string(),
        graph: shows(Form::ExprGraph).then(|| graph.to_string()),
        canonical: shows(Form::Canonical).then(|| canonical.to_string()),
        fused: (shows(Form::Fused) || none).then(|| program.fused().to_string()),
        ptx: match shows(Form::Ptx) {
            true => Some(program.ptx()?),
            false => None,
        },
        launches: launches.collect(),
        scratch_bytes: program.scratch_bytes,
        run: ran,
    };
    let wrong = report.run.iter().flat_map(|ran| &ran.outputs);
    let wrong: u64 = wrong.map(|output| output.wrong).sum();
    match args.json {
        true => say!("{}", serde_json::to_string_pretty(&report)?),
        false => match args.show[..] {
            [one] if one != Form::All && !args.run => print_form(&report),
            _ => print(&report, Paint::stdout()),
        },
    }
    Ok(ExitStatus::of_findings(wrong > 0).into())
}

/// The expression, which `-` says to read from standard input.
fn expression(given: &str) -> Result<String> {
    if given != "-" {
        return Ok(given.to_owned());
    }
    let text = String::from_utf8(read_stdin("an expression", MOST_EXPRESSION_BYTES)?).map_err(
        |error| {
            let at = error.utf8_error().valid_up_to();
            UsageError(format!(
                "the expression on standard input is not UTF-8 at byte {at}"
            ))
        },
    )?;
    Ok(text.trim_end().to_owned())
}

/// Bytes of standard input that are read.
const MOST_EXPRESSION_BYTES: u64 = 1 << 20;

/// An architecture that PTX can be compiled for; the first one with 64-bit addresses in every
/// version of PTX that is in use is 50.
fn arch(text: &str) -> Result<Arch, String> {
    let number = text.strip_prefix("sm_").unwrap_or(text).parse();
    match number {
        Ok(number @ 50..1000) => Ok(Arch::new(number)),
        _ => Err("not an architecture from sm_50 on, such as sm_90".to_owned()),
    }
}

impl JitReport {
    /// The forms that are shown, by name.
    fn forms(&self) -> [(&'static str, &Option<String>); 4] {
        [
            ("graph", &self.graph),
            ("canonical", &self.canonical),
            ("fused", &self.fused),
            ("ptx", &self.ptx),
        ]
    }

    /// The expression's key, and how its kernels are launched.
    fn summary(&self) -> Vec<String> {
        let mut lines = vec![format!("expression {}, code {}", self.key, self.code)];
        for LaunchedKernel {
            kernel,
            blocks,
            threads: [x, y],
            rows,
        } in &self.launches
        {
            let threads = match *y {
                1 => x.to_string(),
                _ => format!("{x} by {y}"),
            };
            let blocks = count(*blocks as usize, "block");
            lines.push(format!(
                "{kernel}: {blocks} of {threads} threads, n = {rows}"
            ));
        }
        if self.scratch_bytes > 0 {
            lines.push(format!(
                "{} bytes of scratch memory between kernels",
                self.scratch_bytes
            ));
        }
        lines
    }
}

/// The one form that was asked for, as other programs read it; the rest goes to stderr.
fn print_form(report: &JitReport) {
    for (_, text) in report.forms() {
        if let Some(text) = text {
            out::write(format_args!("{}\n", text.trim_end_matches('\n')));
        }
    }
    for line in report.summary() {
        note!("{line}");
    }
}

fn print(report: &JitReport, paint: Paint) {
    for (name, text) in report.forms() {
        if let Some(text) = text {
            say!("{}", paint.strong(name));
            out::write(format_args!("{}\n", text.trim_end_matches('\n')));
            say!("");
        }
    }
    for line in report.summary() {
        say!("{line}");
    }
    let Some(ran) = &report.run else {
        return;
    };
    say!("");
    let JitRun {
        device,
        seed,
        origin,
        compile_ms,
        outputs,
    } = ran;
    say!("ran on {device}, --seed {seed}; {origin} in {compile_ms:.2} ms");
    for output in outputs {
        output.print(paint);
    }
}

/// Layout and name of an input, which has no values here.
fn input(spec: &str) -> Result<ArrayInput> {
    if spec.contains('=') {
        bail!(
            "values are not taken: inputs of --run are random, from --seed\n\
             try: --show ptx, and fercuda check with --arg buf:f32[4,8]=@FILE; fercuda ops run; \
             or, in Python, Session.evaluate"
        );
    }
    spec.parse()
}

/// Refuses a run that does not fit the device, or whose reference takes too long or too much of the
/// host's memory. Nothing is allocated before.
fn check_sizes(graph: &ExprGraph, program: &Program, device: Device, most: u64) -> Result<()> {
    let inputs = graph.inputs().map(|(_, layout)| reach_len(layout));
    let outputs = graph.outputs().map(|(_, layout)| layout.bytes());
    let needed = inputs
        .chain(outputs)
        .chain([program.scratch_bytes])
        .fold(0, u64::saturating_add);
    check_device_memory(device, needed, ", or --show without --run")?;
    let values = reference::value_count(graph);
    check_reference(
        values,
        values.saturating_mul(size_of::<Near>() as u64),
        most,
    )
}

/// Runs the graph on random elements and compares the results with the reference.
fn ran(graph: &ExprGraph, program: &Program, args: &Args) -> Result<JitRun> {
    let seed = args.seed.unwrap_or_else(random_seed);
    let (cuda, device) = open_checked_device()?;
    check_sizes(graph, program, device, args.max_values)?;
    let context = Context::primary(device)?;
    let stream = Stream::new(&context)?;
    let compiler = Compiler::new(&context)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut inputs: Vec<Vec<u64>> = graph
        .inputs()
        .map(|(_, layout)| random_elements(&mut random, layout.dtype(), layout.len()))
        .collect();
    let begun = Instant::now();
    let compiled = compiler.compile(graph)?;
    let compile_ms = begun.elapsed().as_secs_f64() * 1e3;
    step!("code {}", origin_name(compiled.origin()));
    let mut bound = Vec::new();
    for ((_, layout), bits) in graph.inputs().zip(&mut inputs) {
        let (bytes, first) = scattered(layout, bits);
        bound.push((DeviceBuffer::from_host(&bytes, &stream)?, first));
    }
    let mut made = Vec::new();
    for (_, layout) in graph.outputs() {
        made.push(DeviceBuffer::<u8>::alloc(
            &context,
            layout.bytes() as usize,
        )?);
    }
    let args: Vec<BoundArg<'_>> = bound
        .iter()
        .map(|(buffer, first)| BoundArg::of(buffer).first_at(*first))
        .collect();
    let outputs: Vec<BoundArg<'_>> = made.iter().map(BoundArg::of).collect();
    compiled.run(&stream, &args, &outputs)?;
    stream.synchronize()?;
    refuse_findings(cuda)?;
    for warning in compiler.take_warnings() {
        alert!("{} {warning}", Paint::stderr().bad("warning:"));
    }
    step!("evaluating the reference");
    let wanted = reference::evaluate(graph, &inputs);
    let mut outputs = Vec::new();
    for (((name, layout), buffer), wanted) in graph.outputs().zip(&made).zip(&wanted) {
        let bytes = buffer.to_vec(&stream)?;
        let got = bits_of(layout.dtype(), &bytes);
        outputs.push(compared(name, layout, &got, wanted));
    }
    Ok(JitRun {
        device: device.to_string(),
        seed,
        origin: origin_name(compiled.origin()),
        compile_ms,
        outputs,
    })
}

fn origin_name(origin: CodeOrigin) -> &'static str {
    match origin {
        CodeOrigin::Compiled => "compiled",
        CodeOrigin::Disk => "found on disk",
        CodeOrigin::Memory => "found in memory",
    }
}
