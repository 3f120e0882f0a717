//! `fercuda run`: starts a program with its device memory governed.
//!
//! Invariant: the program gets exactly the arguments, standard streams and terminal that it
//! would have had; its exit status is the command's. Without a report the launcher replaces
//! itself with the program (`exec`). A program that cannot be governed is refused before it
//! starts: a limit that is not enforced is worse than none.
//! Elsewhere: governing (`fercuda-hook`), the meaning of the variables (`fercuda-governor`).

#[expect(unsafe_code, reason = "a signal handler needs a safety argument")]
pub(crate) mod child;
pub(crate) mod frameworks;
mod hf;
mod places;
pub(crate) mod program;
mod report;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::num::NonZeroU64;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};
use fercuda_governor::{GovernorConfig, MemorySize, TenantLimit};
use fercuda_ledger::Folder;

use crate::out::step;
use crate::output::{OutputFile, check_distinct, check_regular, check_writable, is_stream};
use crate::status::{ExitStatus, bail_usage};
use crate::terminal::wrapped;
use crate::variables;
use frameworks::PytorchAllocator;
pub(crate) use places::{DeviceKind, LibraryFolders};

/// Runs a program with all its device memory in one governed pool.
#[derive(Default, clap::Args)]
#[command(after_help = help())]
pub(crate) struct Args {
    /// Limit device memory per device, for the program and each child: 8GiB.
    #[arg(long, value_name = "SIZE")]
    limit: Option<MemorySize>,
    /// Limit one library's memory per device (may be repeated).
    #[arg(long = "tenant", value_name = "NAME=SIZE")]
    tenants: Vec<TenantLimit>,
    /// Does nothing: memory can be shared with other processes anyway. Kept for one release.
    #[arg(long, hide = true)]
    ipc: bool,
    /// Allocator of PyTorch.
    #[arg(long, value_enum, default_value_t, value_name = "ALLOCATOR")]
    pytorch: PytorchAllocator,
    /// Let models of Hugging Face Transformers decode by CUDA graphs and fused kernels.
    #[arg(long)]
    hf: bool,
    /// Driver to run on [default: FERCUDA_DEVICE, or auto].
    #[arg(long, value_enum)]
    device: Option<DeviceKind>,
    /// Log every allocation and free to this file.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print peak memory by device and tenant on stderr at exit.
    #[arg(long)]
    report: bool,
    /// Write the program's ledgers to this file as JSON at exit; - is stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Replace existing files of --trace and --json.
    #[arg(long)]
    force: bool,
    /// Run without the hook and without limits.
    #[arg(long, conflicts_with_all = ["limit", "tenants", "ipc", "pytorch", "device", "trace", "report", "json", "force"])]
    ungoverned: bool,
    /// Program to run, and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    command: Vec<OsString>,
}

/// The text of `--help` after the options.
fn help() -> String {
    let mut settings = String::new();
    for setting in frameworks::SETTINGS {
        let (first, others) = setting.names.split_first().unwrap_or((&"", &[]));
        settings.push_str(&format!("  {first}={}", setting.value));
        for other in others {
            settings.push_str(&format!(" (and {other})"));
        }
        let why = match setting.only_with {
            None => setting.why.to_owned(),
            Some(_) => format!("only with --pytorch async; {}", setting.why),
        };
        for line in wrapped(&why, 72) {
            settings.push_str(&format!("\n      {line}"));
        }
        settings.push('\n');
    }
    format!(
        "\
Every library in the program that allocates device memory, such as PyTorch, JAX,
cuBLAS and Triton, becomes a tenant of one shared pool. Child processes are
governed too. `fercuda top` shows them while they run.

Set for the program, unless it is already set:
{settings}Settings without an option are FERCUDA_* variables, which the
documents list (fercuda --help says where).

PyTorch and CuPy cache memory that they have freed. When an allocation of
another library would fail, they are asked to release it (FERCUDA_RECLAIM=0:
they are not), and the allocation is tried again.

--pytorch async makes PyTorch cache nothing. It then lacks CUDA graph trees
(torch.compile's reduce-overhead), memory history and shared tensors.

--hf puts a folder of the Python package fercuda_runtime first in PYTHONPATH, so
that a program's models generate as docs/guide/transformers.md says. Pythons
that do not read PYTHONPATH (-I, -E) run as without it, and --ungoverned keeps
it.

Memory can be shared with other processes (cudaIpcGetMemHandle) that run under
fercuda as the same user; other processes get an error. If the driver cannot
export mapped memory, FERCUDA_BACKING=slabs allocates what can be shared.

The first process that uses device memory writes the trace FILE, every other
one of the run FILE.PID; each names its file on stderr. --force replaces all of
an earlier run.

With FERCUDA_DISABLE=1 nothing is governed, and options that need it are
refused; --device still selects the device.

Refused before it starts, because the loader would not preload the hook: a
program that is statically linked, set-user-ID, has file capabilities, is 32-bit
or linked with musl; also as the interpreter of a #! line. --ungoverned starts
it anyway.

Exit status: the program's own; if a signal ended it, the same signal ends
fercuda. 127 if the program was not found, 126 if it cannot be executed, 2 if
fercuda refused.

Examples:
  fercuda run -- python train.py
  fercuda run --limit 8GiB --report -- python train.py --epochs 3
  fercuda run --tenant torch=4GiB --tenant jax=2GiB -- python both.py
  fercuda run --hf -- python chat.py              # Transformers by graphs
  fercuda run --trace /tmp/trace.csv -- ./app
  fercuda run --device soft -- ./cuda-program     # no GPU needed"
    )
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let (name, arguments) = args.command.split_first().context("no program is given")?;
    let path = match program::find(name) {
        Ok(path) => path,
        Err(error) => {
            return Ok(refused(&error.program, &error.why, error.status));
        }
    };
    let mut command = Command::new(&path);
    command.arg0(name).args(arguments);
    if args.hf {
        let value = hf::python_path(&path)?;
        step!("PYTHONPATH={}", value.display());
        command.env("PYTHONPATH", value);
    }
    step!("program {}", path.display());
    let (current, _) = GovernorConfig::read(std::env::vars_os());
    if args.ungoverned || current.disabled {
        variables::warn_about_unknown();
        if current.disabled {
            disabled(args, &mut command)?;
        }
        return Ok(replace(&mut command, &path));
    }
    program::examine(&path, &program::GOVERNING).map_err(|error| anyhow!("{error}"))?;
    // Opened before the program starts, which would run in vain otherwise.
    let json = open_outputs(args, &path)?;
    let run = fresh_run();
    let changes = environment(args, run)?;
    check(&changes)?;
    command.envs(&changes);
    if !args.report && json.is_none() {
        return Ok(replace(&mut command, &path));
    }
    // Opened before any process of the run can end and have its ledger swept.
    let folder = Folder::from_env()?;
    let hold = folder.hold(run)?;
    let begun = Instant::now();
    let status = match child::run(&mut command)? {
        Ok(status) => status,
        Err(error) => return Ok(not_started(&path, &error)),
    };
    let report = report::RunReport::of(&folder, run, &path, status, begun.elapsed());
    if args.report {
        report.print();
    }
    let written = json.map_or(Ok(()), |file| write_report(&report, file));
    // Ending by a signal runs no destructors.
    drop(hold);
    let status = child::end_as(status);
    Ok(match written {
        Ok(()) => ExitCode::from(status),
        Err(error) => {
            let printed = crate::errors::report(&error, ExitStatus::Usage);
            // The status of a program that failed is more important.
            if status == 0 {
                printed
            } else {
                ExitCode::from(status)
            }
        }
    })
}

/// Opens the file of `--json` and makes way for that of `--trace`.
fn open_outputs(args: &Args, program: &Path) -> Result<Option<OutputFile>> {
    if let Some(trace) = &args.trace {
        if is_stream(trace) {
            bail_usage!(
                "a trace cannot be written to standard output: each process writes its own\n\
                 try: --trace FILE"
            );
        }
        // The hook creates a file, and never replaces one; nothing but a file is removed for that.
        check_regular(trace, "a trace")?;
        check_writable(trace, args.force, &[program])?;
        let json = args.json.as_deref();
        check_distinct(&[&[trace.as_path()], json.as_slice()].concat())?;
        check_folder(trace)?;
        let earlier = earlier_traces(trace);
        if let Some(file) = earlier.first().filter(|_| !args.force) {
            bail_usage!(
                "{} is a trace of an earlier run, which would be taken for one of this run\n\
                 try: --force, or another name",
                file.display()
            );
        }
        let exists = trace.symlink_metadata().is_ok();
        for file in exists.then_some(trace).into_iter().chain(&earlier) {
            let what = || format!("cannot replace {}", file.display());
            std::fs::remove_file(file).with_context(what)?;
        }
    }
    let json = args.json.as_ref();
    json.map(|file| OutputFile::open(file, args.force, &[program]))
        .transpose()
}

/// The traces FILE.PID of further processes of earlier runs, sorted.
fn earlier_traces(trace: &Path) -> Vec<PathBuf> {
    let folder = trace.parent().filter(|it| *it != Path::new(""));
    let name = trace.file_name().unwrap_or_default().as_encoded_bytes();
    let entries = folder.unwrap_or(Path::new(".")).read_dir();
    let is_of_process = |file: &OsStr| {
        let rest = file.as_encoded_bytes().strip_prefix(name);
        let process = rest.and_then(|rest| rest.strip_prefix(b"."));
        process.is_some_and(|it| !it.is_empty() && it.iter().all(u8::is_ascii_digit))
    };
    // Files of that name that are no traces are not ours.
    let is_trace = |path: &PathBuf| {
        let head = path.symlink_metadata().is_ok_and(|it| it.is_file());
        head && crate::input::read_at_most(path, 64).is_ok_and(|it| it.starts_with(b"Thread,Time,"))
    };
    let entries = entries.into_iter().flatten().flatten();
    let named = entries.filter(|entry| is_of_process(&entry.file_name()));
    let mut found: Vec<PathBuf> = named.map(|entry| entry.path()).filter(is_trace).collect();
    found.sort();
    found
}

fn write_report(report: &report::RunReport, mut file: OutputFile) -> Result<()> {
    let text = serde_json::to_string(report)?;
    writeln!(file, "{text}").context("cannot write the report")?;
    file.finish()
}

/// Fails if no trace can be created in the folder of `file`.
fn check_folder(file: &Path) -> Result<()> {
    let file = std::path::absolute(file).context("cannot resolve the path of the trace")?;
    let folder = file.parent().unwrap_or(Path::new("/"));
    if !folder.is_dir() || file.is_dir() {
        bail!(
            "cannot write a trace to {}: no file can be created there\n\
             try: a file in an existing folder",
            file.display()
        );
    }
    Ok(())
}

/// Sets up a program that is not governed because of `FERCUDA_DISABLE`: only `--device` applies.
fn disabled(args: &Args, command: &mut Command) -> Result<()> {
    for (is_given, option) in [
        (args.limit.is_some(), "--limit"),
        (!args.tenants.is_empty(), "--tenant"),
        (args.pytorch == PytorchAllocator::Async, "--pytorch async"),
        (args.trace.is_some(), "--trace"),
        (args.report, "--report"),
        (args.json.is_some(), "--json"),
    ] {
        if is_given {
            bail_usage!(
                "FERCUDA_DISABLE is set, so nothing is governed and {option} cannot be obeyed\n\
                 try: unset FERCUDA_DISABLE, or leave {option} out"
            );
        }
    }
    let places = LibraryFolders::of_this_program()?;
    if let Some(kind) = args.device
        && let Some(driver) = places.ungoverned_driver(kind)?
    {
        step!("driver {}", driver.display());
        // Programs that open libcuda.so.1 by name get the library of that name that is loaded.
        let runtime = places.cuda_runtime(&driver)?;
        command.env("LD_PRELOAD", preload([driver].into_iter().chain(runtime)));
    }
    Ok(())
}

/// Replaces this process with the program (`exec`). Returns only on failure.
fn replace(command: &mut Command, path: &Path) -> ExitCode {
    not_started(path, &command.exec())
}

/// Reports that the system did not start the program.
pub(crate) fn not_started(path: &Path, error: &io::Error) -> ExitCode {
    let status = match error.kind() {
        io::ErrorKind::NotFound => ExitStatus::NotFound,
        _ => ExitStatus::NotExecutable,
    };
    refused(path, &error.to_string(), status)
}

/// Reports why a program is not started.
pub(crate) fn refused(path: &Path, why: &str, status: ExitStatus) -> ExitCode {
    let error = anyhow!("cannot start {}: {why}", path.display());
    crate::errors::report(&error, status)
}

/// Sets up `command` as a governed program over the given driver, as part of this run.
pub(crate) fn govern(command: &mut Command, kind: DeviceKind, run: NonZeroU64) -> Result<()> {
    let (current, _) = GovernorConfig::read(std::env::vars_os());
    if current.disabled {
        bail!("FERCUDA_DISABLE is set, so nothing would be governed\ntry: unset FERCUDA_DISABLE");
    }
    let args = Args {
        // FERCUDA_DRIVER takes precedence.
        device: std::env::var_os("FERCUDA_DRIVER").is_none().then_some(kind),
        ..Args::default()
    };
    let changes = environment(&args, run)?;
    check(&changes)?;
    command.envs(&changes);
    Ok(())
}

/// A random ID for this run, never 0, and below 2^53: readers of JSON may take it for a double.
pub(crate) fn fresh_run() -> NonZeroU64 {
    NonZeroU64::new(fastrand::u64(1..1 << 53)).unwrap_or(NonZeroU64::MIN)
}

/// Changes to the program's environment.
fn environment(args: &Args, run: NonZeroU64) -> Result<BTreeMap<OsString, OsString>> {
    let places = LibraryFolders::of_this_program()?;
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let mut changes = BTreeMap::new();
    let mut set = |name: &str, value: &OsStr| {
        step!("{name}={}", value.display());
        changes.insert(OsString::from(name), value.to_owned());
    };
    set("FERCUDA_RUN", OsStr::new(&run.to_string()));
    // First, as it is needed whatever the driver: a message about another file would mislead.
    let hook = places.hook()?;
    if let Some(limit) = args.limit {
        set("FERCUDA_LIMIT", OsStr::new(&limit.to_string()));
    }
    if !args.tenants.is_empty() {
        let limits: Vec<String> = args.tenants.iter().map(TenantLimit::to_string).collect();
        set("FERCUDA_TENANT_LIMITS", OsStr::new(&limits.join(",")));
    }
    if let Some(file) = &args.trace {
        let file = std::path::absolute(file).context("cannot resolve the path of the trace")?;
        set("FERCUDA_TRACE", file.as_os_str());
    }
    let kind = match args.device {
        Some(kind) => Some(kind),
        // FERCUDA_DRIVER takes precedence.
        None if is_set("FERCUDA_DRIVER") => None,
        None => Some(DeviceKind::from_env()?),
    };
    let driver = kind.map(|kind| places.driver(kind)).transpose()?.flatten();
    let mut preloaded = vec![hook];
    if let Some(driver) = &driver {
        set("FERCUDA_DRIVER", driver.as_os_str());
        preloaded.extend(places.cuda_runtime(driver)?);
    }
    set("LD_PRELOAD", &preload(preloaded));
    for (name, value) in frameworks::missing(is_set, args.pytorch) {
        changes.insert(name.to_owned(), value.to_owned());
    }
    Ok(changes)
}

/// Libraries in front of what LD_PRELOAD already names, without duplicates.
pub(crate) fn preload(libraries: impl IntoIterator<Item = PathBuf>) -> OsString {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    let ours = libraries
        .into_iter()
        .map(|it| it.into_os_string().into_vec());
    let mut list: Vec<Vec<u8>> = ours.collect();
    let others = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    for other in others.as_bytes().split(|byte| matches!(byte, b':' | b' ')) {
        if !other.is_empty() && !list.iter().any(|it| it == other) {
            list.push(other.to_owned());
        }
    }
    OsString::from_vec(list.join(&b':'))
}

/// Refuses settings that the hook would only warn about.
fn check(changes: &BTreeMap<OsString, OsString>) -> Result<()> {
    let kept = std::env::vars_os().filter(|(name, _)| !changes.contains_key(name));
    let changed = changes
        .iter()
        .map(|(name, value)| (name.clone(), value.clone()));
    let (_, errors) = GovernorConfig::read(kept.chain(changed));
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    if !texts.is_empty() {
        bail!("{}", texts.join("\n"));
    }
    Ok(())
}
