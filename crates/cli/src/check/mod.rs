//! `fercuda check`: one launch of one kernel on the software device, with all checks on.
//!
//! Invariant: no GPU is ever used; every error that is detected before the kernel runs exits
//! with status 2, and no file that was read is replaced. Elsewhere: reading and compiling the file
//! (`source`), the syntax of `--arg` (`spec`), matching it against the kernel (`params`), the
//! launch (`launch`), a whole program (`program`), reports (`outputs`, `sarif`).

mod host_headers;
mod launch;
mod outputs;
mod params;
mod process_report;
mod program;
mod record;
mod refusal;
mod sarif;
mod source;
mod spec;
mod symbols;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use fercuda_softgpu::check::CheckOptions;
use fercuda_softgpu::report::{ExecutionPoint, Fault, Finding, FindingActor};
use serde::Serialize;

use crate::arrays::fill::BufferFill;
use crate::arrays::value::{element_size, show_element};
use crate::out::{self, say};
use crate::output::{OutputFile, check_distinct, is_stream};
use crate::size::parse_u32_bytes;
use crate::status::{ExitStatus, bail_usage};
use crate::terminal::{self, Paint};
use launch::CheckOutcome;
use outputs::{ReportArgs, ReportOutputs};
pub(crate) use program::{LeakStatus, refuse_program};
use record::FindingRecord;
use sarif::SarifInvocation;
use source::CompileArgs;
use spec::{ArgSpec, BufferOutput};

/// Checks a kernel, or a program's kernels, for undefined behaviour.
#[derive(clap::Args)]
#[command(override_usage = "\
fercuda check [OPTIONS] --grid X[,Y[,Z]] --block X[,Y[,Z]] FILE
       fercuda check [OPTIONS] -- PROGRAM [ARGS]...")]
#[command(after_help = "\
Arguments, one --arg for each parameter of the kernel, in order:
  f32:2.5  u32:1024  u64:0xff     a number: u8..u64 i8..i64 (or s8..s64)
                                  f16 bf16 f32 f64 f8e4m3 f8e5m2 bool
  bytes:0a0b0c0d                  anything else passed by value
  buf:f32[1024]=iota              device memory: iota, zeros, ones, a number,
  buf:f32[64*64]=random:SEED      random:SEED, or @FILE (bytes; .txt: numbers)
  buf:f32[3]=1,2.5,-3             numbers, one for each element
  buf:f32[1024]                   uninitialised: reading it is a finding
  out:f32[1024]=zeros             like buf, and printed after the launch
  out:f32[1024]=zeros@y.bin       or written to a file, which must not exist
                                  without --force

Kernels may be named as in C++, as far as needed: scale, ns::scale<float>.

Host code is not compiled: leave it out by #ifndef __CUDACC_RTC__, or check a
whole program by fercuda check -- ./program.

Detected: out of bounds, misaligned, uninitialised read, use after free, races
in shared and global memory, barrier divergence, missing cp.async wait, masks
of warps, scopes of atomics, read-only loads of what is written, faults; of
programs also work in streams that nothing orders, invalid frees, leaks.
Each buffer has a guard on both sides: a quarter of its size, at least 4 KiB,
at most 16 MiB. Not noticed: an access that jumps over it into another buffer.

A PROGRAM runs on the software device as it is, with its own streams, arguments
and children; findings of all its processes are reported on stderr when it ends.
--json and --sarif have a report for other programs; --timeout is for each
kernel, by default none. Not checked: programs that are statically linked or
set-user-ID, and children without the environment that they are given.
--leaks names memory that the program did not free before its context or itself
ended, by the call and where it was made; the status is as without, except with
--leaks=fail.

Exit status: 0 nothing found, 1 something found, 2 the kernel could not be run,
or not to its end, as the software device does not implement an instruction, or
not all of a program was checked; else the program's own status or signal.

Examples:
  fercuda check saxpy.cu --kernel saxpy --grid 4 --block 256 \\
      --arg f32:2.5 --arg buf:f32[1024]=iota --arg out:f32[1024]=zeros \\
      --arg u32:1024
  fercuda check reduce.ptx --grid 8 --block 128 --shared 512 --timeout 5s \\
      --arg buf:f32[1024]=random:7 --arg out:f32[8] --json
  nvcc -ptx -o - k.cu | fercuda check - --grid 1 --block 32 \\
      --arg out:f32[32]
  fercuda check -- ./program --its-own options
  fercuda check --sarif kernels.sarif -- python train.py")]
pub(crate) struct Args {
    /// CUDA C++ (.cu, compiled with NVRTC), PTX (.ptx), or - for either from standard input.
    #[arg(required_unless_present = "command")]
    file: Option<PathBuf>,
    /// Kernel to check, by its C++ or mangled name; optional if the file has only one.
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// Grid size in blocks: X, X,Y or X,Y,Z.
    #[arg(long, value_name = "X[,Y[,Z]]", value_parser = dimensions)]
    #[arg(required_unless_present = "command")]
    grid: Option<[u32; 3]>,
    /// Block size in threads: X, X,Y or X,Y,Z.
    #[arg(long, value_name = "X[,Y[,Z]]", value_parser = dimensions)]
    #[arg(required_unless_present = "command")]
    block: Option<[u32; 3]>,
    /// Dynamic shared memory per block: 48K, 4KiB, 512.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_u32_bytes)]
    shared: u32,
    /// Launch all blocks at once, so that the kernel can synchronise its grid.
    #[arg(long)]
    cooperative: bool,
    /// Kernel argument (once for each parameter); see below.
    #[arg(long = "arg", value_name = "SPEC", allow_hyphen_values = true)]
    args: Vec<String>,
    #[command(flatten)]
    compile: CompileArgs,
    /// Stop a kernel that runs longer: 500ms, 10s, 2m [default: 60s].
    #[arg(long, value_name = "TIME", value_parser = time)]
    timeout: Option<Duration>,
    /// Report races of volatile accesses too, which are none by default.
    #[arg(long)]
    volatile_races: bool,
    /// Report threads that write the same value to one place, in no order.
    #[arg(long)]
    same_value: bool,
    /// Report memory that a program does not free; with =fail, as what was found.
    #[arg(long, value_name = "STATUS", value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "keep", requires = "command")]
    leaks: Option<LeakStatus>,
    #[command(flatten)]
    reports: ReportArgs,
    /// Program to check, and its arguments.
    #[arg(last = true, value_name = "PROGRAM")]
    #[arg(conflicts_with_all = [
        "file", "kernel", "grid", "block", "shared", "cooperative", "args", "arch", "include",
        "define", "std"
    ])]
    command: Vec<OsString>,
}

/// How long a kernel runs without `--timeout`.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Args {
    fn file(&self) -> Result<&Path> {
        self.file.as_deref().context("no file is given")
    }

    /// What is reported besides.
    fn options(&self) -> CheckOptions {
        CheckOptions {
            volatile_races: self.volatile_races,
            same_values: self.same_value,
        }
    }

    /// Sizes of grid and block.
    fn dimensions(&self) -> Result<[[u32; 3]; 2]> {
        let given = self.grid.zip(self.block);
        given
            .map(|(grid, block)| [grid, block])
            .context("a kernel needs --grid and --block")
    }
}

fn dimensions(text: &str) -> Result<[u32; 3], String> {
    let numbers: Option<Vec<u32>> = text.split([',', 'x']).map(|n| n.parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[x]) => Ok([x, 1, 1]),
        Some(&[x, y]) => Ok([x, y, 1]),
        Some(&[x, y, z]) => Ok([x, y, z]),
        _ => Err("one to three numbers are needed: 4, 4,2 or 4,2,1".to_owned()),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let milliseconds = match &text[digits.len()..] {
        "ms" => 1.0,
        "s" | "" => 1e3,
        "m" | "min" => 60e3,
        _ => 0.0,
    };
    match digits.parse::<f64>() {
        Ok(number) if number * milliseconds >= 1.0 && number * milliseconds <= 1e10 => {
            Ok(Duration::from_secs_f64(number * milliseconds / 1e3))
        }
        _ => Err("a time is needed: 500ms, 10s or 2m".to_owned()),
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if !args.command.is_empty() {
        let request = program::ProgramRequest {
            timeout: args.timeout,
            options: args.options(),
            leaks: args.leaks,
        };
        return program::run(&args.command, &request, &args.reports);
    }
    let file = args.file()?;
    refuse_program(&[file.into()])?;
    let [grid, block] = args.dimensions()?;
    let mut specs = Vec::new();
    for text in &args.args {
        specs.push(
            text.parse::<ArgSpec>()
                .with_context(|| format!("--arg {text} cannot be used"))?,
        );
    }
    let read = inputs(file, &specs);
    check_distinct(
        &args
            .reports
            .paths()
            .chain(written(&specs))
            .collect::<Vec<_>>(),
    )?;
    let reports = args.reports.open(&read)?;
    let files = open_outputs(args, &specs, &read)?;
    let ptx = source::ptx_of(file, &args.compile)?;
    let module = fercuda_ptx::parse(&ptx)
        .with_context(|| format!("{} is not valid PTX", source::name_of(file)))?;
    let kernel = params::find(&module, args.kernel.as_deref())?;
    kernel.accept(&specs)?;
    let request = launch::CheckRequest {
        ptx: &ptx,
        kernel: &kernel,
        grid,
        block,
        shared_bytes: args.shared,
        cooperative: args.cooperative,
        timeout: args.timeout.unwrap_or(TIMEOUT),
        options: args.options(),
        specs: &specs,
    };
    let outcome = launch::run(&request)?;
    if !reports.replaces_text() {
        let dims = |d: [u32; 3]| format!("{}x{}x{}", d[0], d[1], d[2]);
        let launch = format!(
            "{}, grid {}, block {}",
            kernel.name,
            dims(grid),
            dims(block)
        );
        print(&launch, &specs, &outcome, Paint::stdout());
    }
    write_reports(reports, &request, file, &outcome)?;
    let mut files = files.into_iter();
    for (spec, bytes) in outputs(&specs, &outcome) {
        if let Some(BufferOutput::File(path)) = &spec.output {
            let mut file = files.next().context("a file for each")?;
            file.write_all(&spec.file_contents(path, bytes))
                .with_context(|| format!("cannot write {}", path.display()))?;
            file.finish()?;
        }
    }
    Ok(outcome.status().into())
}

/// Opens the files of `out:` arguments, in order.
///
/// # Errors
/// A usage error: one is standard output or an input, or exists without `--force`.
fn open_outputs(args: &Args, specs: &[ArgSpec], read: &[&Path]) -> Result<Vec<OutputFile>> {
    let open = |path: &Path| {
        if is_stream(path) {
            bail_usage!("an out: argument is written to -, where the report is\ntry: @FILE");
        }
        OutputFile::open(path, args.reports.force, read)
    };
    written(specs).map(open).collect()
}

/// The files that `out:` arguments name, in order.
fn written(specs: &[ArgSpec]) -> impl Iterator<Item = &Path> {
    buffers(specs).filter_map(|buffer| match &buffer.output {
        Some(BufferOutput::File(path)) => Some(path.as_path()),
        _ => None,
    })
}

/// The arguments that are device memory, in order.
fn buffers(specs: &[ArgSpec]) -> impl Iterator<Item = &spec::BufferSpec> {
    specs.iter().filter_map(|spec| match spec {
        ArgSpec::Buffer(buffer) => Some(buffer),
        _ => None,
    })
}

/// Writes `--json` and `--sarif`.
fn write_reports(
    reports: ReportOutputs,
    request: &launch::CheckRequest<'_>,
    file: &Path,
    outcome: &CheckOutcome,
) -> Result<()> {
    let report = CheckReport::new(file, request, outcome);
    let findings = outcome.findings.iter().map(FindingRecord::from);
    let mut records: Vec<FindingRecord> = findings.collect();
    records.extend(outcome.fault.as_ref().map(FindingRecord::from));
    for record in &mut records {
        record.text = outcome.named(&record.text);
    }
    let is_ptx = file.extension().is_some_and(|it| it == "ptx");
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let program = std::env::current_exe().unwrap_or_default();
    let invocation = SarifInvocation {
        program: &program,
        arguments: &words,
        exit_code: None,
        signal: None,
        ptx: is_ptx.then_some(file),
    };
    let limits: Vec<_> = records.iter().filter(|it| it.is_limit()).collect();
    reports.write(&report, || {
        let findings = records.iter().filter(|it| !it.is_limit());
        sarif::log(&invocation, findings, &limits)
    })
}

/// The files that the check reads.
fn inputs<'a>(file: &'a Path, specs: &'a [ArgSpec]) -> Vec<&'a Path> {
    let filled = buffers(specs).filter_map(|buffer| match &buffer.fill {
        BufferFill::File(path) => Some(path.as_path()),
        _ => None,
    });
    std::iter::once(file).chain(filled).collect()
}

/// The output buffers, with their final contents.
fn outputs<'a>(
    specs: &'a [ArgSpec],
    outcome: &'a CheckOutcome,
) -> impl Iterator<Item = (&'a spec::BufferSpec, &'a [u8])> {
    let wanted = buffers(specs).filter(|buffer| buffer.output.is_some());
    wanted.zip(outcome.outputs.iter().map(Vec::as_slice))
}

/// Elements of an `out:` buffer that are printed.
const SHOWN: usize = 16;

fn print(launch: &str, specs: &[ArgSpec], outcome: &CheckOutcome, paint: Paint) {
    out::write(format_args!("{}", outcome.printed));
    if !outcome.printed.is_empty() && !outcome.printed.ends_with('\n') {
        say!("");
    }
    for finding in &outcome.findings {
        say!(
            "{}",
            emphasised(&outcome.named(&finding.to_string()), paint)
        );
        say!("");
    }
    if let Some(fault) = &outcome.fault {
        let record = FindingRecord::from(fault);
        let mut findings = outcome.findings.iter().map(FindingRecord::from);
        let text = outcome.named(&record.text);
        let text = match findings.any(|finding| record.is_fault_of(&finding)) {
            true => FindingRecord::brief(&text),
            false => text,
        };
        say!("{}", emphasised(&text, paint));
        if let Some(hint) = outcome.hint {
            say!("{hint}");
        }
        say!("");
    }
    match (outcome.findings.len(), &outcome.fault) {
        (0, None) => say!("{} {launch}: no findings", paint.good("ok:")),
        (found, None) => say!(
            "{} {launch}: {}",
            paint.bad("found:"),
            terminal::count(found, "finding")
        ),
        (0, Some(fault)) if launch::is_of_device(fault) => say!(
            "{} {launch}: the software device cannot run the kernel to its end",
            paint.bad("not checked:")
        ),
        (0, Some(_)) => say!(
            "{} {launch}: the kernel faulted or timed out",
            paint.bad("fault:")
        ),
        (found, Some(_)) => say!(
            "{} {launch}: the kernel faulted or timed out, after {}",
            paint.bad("fault:"),
            terminal::count(found, "finding")
        ),
    }
    for (buffer, bytes) in outputs(specs, outcome) {
        match &buffer.output {
            Some(BufferOutput::File(path)) => {
                say!(
                    "out:{}[{}] -> {}",
                    buffer.dtype,
                    buffer.count,
                    path.display()
                );
            }
            _ => {
                let shown: Vec<String> = bytes
                    .chunks(element_size(buffer.dtype))
                    .take(SHOWN)
                    .map(|element| show_element(buffer.dtype, element))
                    .collect();
                let more = if buffer.count > SHOWN { " ..." } else { "" };
                say!(
                    "out:{}[{}] = {}{more}",
                    buffer.dtype,
                    buffer.count,
                    shown.join(" ")
                );
            }
        }
    }
}

/// A report with its first line in the colour of errors.
fn emphasised(report: &str, paint: Paint) -> String {
    match report.split_once('\n') {
        Some((first, rest)) => format!("{}\n{rest}", paint.bad(first)),
        None => paint.bad(report),
    }
}

/// The output of `--json`.
#[derive(Serialize)]
struct CheckReport<'a> {
    file: String,
    /// Demangled.
    kernel: &'a str,
    /// As the PTX spells it.
    symbol: &'a str,
    grid: [u32; 3],
    block: [u32; 3],
    passed: bool,
    findings: Vec<FindingItem>,
    fault: Option<FaultItem>,
    /// The kernel's `printf` output.
    printf: &'a str,
    outputs: Vec<OutputItem>,
}

#[derive(Serialize)]
struct FindingItem {
    kind: String,
    ptx_line: Option<u32>,
    source: Option<String>,
    block: Option<[u32; 3]>,
    thread: Option<[u32; 3]>,
    count: u64,
    /// The report as text.
    text: String,
}

#[derive(Serialize)]
struct FaultItem {
    ptx_line: Option<u32>,
    source: Option<String>,
    block: Option<[u32; 3]>,
    thread: Option<[u32; 3]>,
    text: String,
    /// Whether the software device cannot run the kernel: nothing is said of the kernel then.
    not_implemented: bool,
    hint: Option<&'static str>,
}

#[derive(Serialize)]
struct OutputItem {
    element: String,
    count: usize,
    /// Every element as text, so that no digit is lost.
    values: Vec<String>,
}

impl FindingItem {
    fn new(finding: &Finding, outcome: &CheckOutcome) -> FindingItem {
        let place = match &finding.actor {
            FindingActor::Thread(place, _) => Some(&**place),
            FindingActor::Operation(_) => None,
        };
        FindingItem {
            kind: finding.kind.to_string(),
            ptx_line: place.map(|place| place.ptx_line),
            source: place.and_then(ExecutionPoint::source_name),
            block: place.map(|place| place.block),
            thread: place.map(|place| place.thread),
            count: finding.count,
            text: outcome.named(&finding.to_string()),
        }
    }
}

impl FaultItem {
    fn new(fault: &Fault, outcome: &CheckOutcome) -> FaultItem {
        let place = fault.place.as_ref();
        FaultItem {
            ptx_line: place.map(|place| place.ptx_line),
            source: place.and_then(ExecutionPoint::source_name),
            block: place.map(|place| place.block),
            thread: place.map(|place| place.thread),
            text: outcome.named(&fault.to_string()),
            not_implemented: launch::is_of_device(fault),
            hint: outcome.hint,
        }
    }
}

impl<'a> CheckReport<'a> {
    fn new(
        file: &Path,
        request: &launch::CheckRequest<'a>,
        outcome: &'a CheckOutcome,
    ) -> CheckReport<'a> {
        CheckReport {
            file: source::name_of(file),
            kernel: &request.kernel.name,
            symbol: &request.kernel.symbol,
            grid: request.grid,
            block: request.block,
            passed: outcome.status() == ExitStatus::Success,
            findings: outcome
                .findings
                .iter()
                .map(|finding| FindingItem::new(finding, outcome))
                .collect(),
            fault: outcome
                .fault
                .as_ref()
                .map(|fault| FaultItem::new(fault, outcome)),
            printf: &outcome.printed,
            outputs: outputs(request.specs, outcome)
                .map(|(buffer, bytes)| OutputItem {
                    element: buffer.dtype.to_string(),
                    count: buffer.count,
                    values: bytes
                        .chunks(element_size(buffer.dtype))
                        .map(|element| show_element(buffer.dtype, element))
                        .collect(),
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_and_times_are_read_as_typed() {
        assert_eq!(dimensions("4"), Ok([4, 1, 1]));
        assert_eq!(dimensions("4,2"), Ok([4, 2, 1]));
        assert_eq!(dimensions("4x2x3"), Ok([4, 2, 3]));
        assert!(dimensions("4,,2").is_err());
        assert!(dimensions("1,2,3,4").is_err());
        assert_eq!(time("300ms"), Ok(Duration::from_millis(300)));
        assert_eq!(time("2"), Ok(Duration::from_secs(2)));
        assert_eq!(time("1.5m"), Ok(Duration::from_secs(90)));
        for wrong in ["", "s", "0s", "-1s", "5h", "1e99s", "nans"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
