//! `fercuda setup`: installs optional parts, which are Python packages, with pip.
//!
//! Invariants: commands are printed before they run, and nothing else is run; there are no
//! prompts. Packages are installed only into the environment that the user has activated or
//! into a folder that this command made. NVIDIA's files come from the package index, at the
//! user's command.
//! Elsewhere: packages and versions (`bundles`), targets and their owners (`environment`).

mod bundles;
mod environment;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, anyhow, bail};
use fercuda_cuda::{Cuda, Select};
use rustix::fs::Mode;
use rustix::process::umask;
use serde::Serialize;

use crate::out::{alert, is_quiet, say, step};
use crate::status::ExitStatus;
use crate::terminal::{self, Paint};
use bundles::{Bundle, Pin, words};
use environment::{InstallTarget, LockedTarget, Marker, TargetState, python};

/// Lines of pip's output that are repeated in an error.
const LAST_LINES: usize = 6;

/// Installs optional parts: compilers and Python packages, pinned.
#[derive(clap::Args)]
#[command(after_help = "\
Bundles:
  nvrtc  NVIDIA's runtime compiler and CUDA headers, for CUDA C++
  hf     Hugging Face: transformers, safetensors, tokenizers, huggingface-hub
  gguf   quantised model files (GGUF), with a reader for them
  jax    JAX with CUDA 12 or 13, as the driver supports
  dev    everything the tests need
Without a bundle, lists them and what is installed.

Target: the Python environment that is active; else one that this command makes:
fercuda/venv in the user's data folder (XDG_DATA_HOME, else ~/.local/share), or
--into. A folder that exists and that this command did not make is refused and
left as it is.

The commands are printed first, to be copied or run; there are no prompts.
Versions are exact; nvrtc, gguf and dev are also checked by SHA-256. pip's
settings choose the source (PIP_INDEX_URL, PIP_FIND_LINKS, HTTPS_PROXY,
pip.conf), not the target (PIP_TARGET, PIP_USER). After an interruption, the
same command resumes. To uninstall, delete the folder that it created.

Exit status: 0; 1 if something could not be installed; 2 if nothing was tried.

Examples:
  fercuda setup
  fercuda setup nvrtc --print-only
  fercuda setup nvrtc gguf
  fercuda setup hf --into ~/fercuda-python")]
pub(crate) struct Args {
    /// Bundles to install; without one, list them.
    #[arg(value_name = "BUNDLE", hide_possible_values = true)]
    bundles: Vec<Bundle>,
    /// List the bundles, and what is installed of them.
    #[arg(long)]
    list: bool,
    /// Print the commands without running them.
    #[arg(long, conflicts_with = "list")]
    print_only: bool,
    /// Create or use fercuda's own environment in this folder.
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Status of a bundle at a target.
#[derive(Debug, Serialize)]
struct BundleStatus {
    name: &'static str,
    purpose: &'static str,
    /// pip requirements; empty if nothing supports this machine, with the reason below.
    packages: Vec<String>,
    /// The requirements that are missing or installed in another version.
    missing: Vec<String>,
    installed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip)]
    pins: Vec<Pin>,
}

#[derive(Debug, Serialize)]
struct SetupReport {
    target: PathBuf,
    /// Whether the target is the user's active environment.
    active: bool,
    exists: bool,
    /// Parts that an earlier run did not finish.
    unfinished: BTreeSet<String>,
    bundles: Vec<BundleStatus>,
    /// Commands to run, or that were run.
    commands: Vec<String>,
    done: bool,
}

/// One command.
struct SetupCommand {
    /// The part that is unfinished until this is done: `venv`, or a bundle.
    makes: &'static str,
    program: OsString,
    words: Vec<OsString>,
    /// Its stdin.
    input: Option<String>,
    packages: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let target = InstallTarget::choose(args.into.as_deref())?;
    let state = target.state()?;
    step!("target {}", terminal::plain(target.path()));
    let only_lists = args.list || args.bundles.is_empty();
    let wanted: BTreeSet<Bundle> = match args.bundles[..] {
        [] => Bundle::ALL.into(),
        ref some => some.iter().copied().collect(),
    };
    let mut report = look(&target, &state, &wanted)?;
    if only_lists {
        if args.print_only {
            bail!("--print-only needs a bundle\ntry: fercuda setup nvrtc --print-only");
        }
        match args.json {
            true => say!("{}", serde_json::to_string(&report)?),
            false => list(&report),
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(why) = report.bundles.iter().find_map(|it| it.why.clone()) {
        bail!(why);
    }
    let steps = steps(&target, &state, &report)?;
    report.commands = steps.iter().map(SetupCommand::line).collect();
    if !args.json {
        announce(&report, &target, &state);
    }
    if !args.print_only && !steps.is_empty() {
        if let Err(error) = carry_out(&target, &steps, args.json) {
            return Ok(crate::errors::report(&error, ExitStatus::Failure));
        }
        report = SetupReport {
            commands: report.commands,
            ..look(&target, &target.state()?, &wanted)?
        };
        let missing: Vec<&str> = report
            .bundles
            .iter()
            .flat_map(|it| &it.missing)
            .map(String::as_str)
            .collect();
        if !missing.is_empty() {
            let error = anyhow!(
                "pip succeeded, but {} is not in {}\ntry: its own output; then the same command again",
                missing.join(", "),
                target.path().display()
            );
            return Ok(crate::errors::report(&error, ExitStatus::Failure));
        }
    }
    report.done = report.bundles.iter().all(|it| it.installed);
    if args.json {
        say!("{}", serde_json::to_string(&report)?);
    } else if !args.print_only {
        conclude(&report, &target);
    }
    Ok(ExitCode::SUCCESS)
}

/// Status of the target and of the bundles.
fn look(
    target: &InstallTarget,
    state: &TargetState,
    wanted: &BTreeSet<Bundle>,
) -> Result<SetupReport> {
    let driver = || {
        let cuda = Cuda::select(Select::Hardware).ok()?;
        cuda.version().ok()
    };
    // Only if needed: opening a driver takes time.
    let driver = wanted.contains(&Bundle::Jax).then(driver).flatten();
    let pins: Vec<(Bundle, Result<Vec<Pin>>)> =
        wanted.iter().map(|it| (*it, it.pins(driver))).collect();
    let all = pins.iter().flat_map(|(_, pins)| pins.iter().flatten());
    let names: BTreeSet<&str> = all.map(|pin| pin.name.as_str()).collect();
    let names: Vec<&str> = names.into_iter().collect();
    let has: BTreeMap<String, String> = target.versions(&names)?;
    let standing = |(bundle, pins): &(Bundle, Result<Vec<Pin>>)| {
        let why = pins.as_ref().err().map(ToString::to_string);
        let pins: Vec<Pin> = pins.iter().flatten().cloned().collect();
        let missing = pins
            .iter()
            .filter(|pin| has.get(&pin.name) != Some(&pin.version));
        let missing: Vec<String> = missing.map(Pin::requirement).collect();
        BundleStatus {
            name: bundle.name(),
            purpose: bundle.purpose(),
            packages: pins.iter().map(Pin::requirement).collect(),
            installed: missing.is_empty() && why.is_none(),
            missing,
            why,
            pins,
        }
    };
    let unfinished = match state {
        TargetState::Ours(Marker { unfinished, .. }) => unfinished.clone(),
        TargetState::Absent => BTreeSet::new(),
    };
    Ok(SetupReport {
        target: target.path().to_owned(),
        active: matches!(target, InstallTarget::Active(_)),
        exists: matches!(state, TargetState::Ours(_)),
        unfinished,
        bundles: pins.iter().map(standing).collect(),
        commands: Vec::new(),
        done: false,
    })
}

/// The commands to run, in order.
fn steps(
    target: &InstallTarget,
    state: &TargetState,
    report: &SetupReport,
) -> Result<Vec<SetupCommand>> {
    let mut steps = Vec::new();
    let is_made = match state {
        TargetState::Absent => false,
        TargetState::Ours(marker) => {
            !marker.unfinished.contains("venv") && target.python().exists()
        }
    };
    // -I: modules in the current folder or in PYTHONPATH are not imported.
    if !is_made {
        let words = ["-I", "-m", "venv"].map(OsString::from).into_iter();
        steps.push(SetupCommand {
            makes: "venv",
            program: python()?,
            words: words.chain([target.path().into()]).collect(),
            input: None,
            packages: Vec::new(),
        });
    }
    for bundle in report.bundles.iter().filter(|it| !it.installed) {
        // These options override the target in pip's variables and files; an empty value
        // means none.
        let mut prefix = OsString::from("--prefix=");
        prefix.push(target.path());
        let pip = [
            "-I",
            "-m",
            "pip",
            "--python=",
            "install",
            "--disable-pip-version-check",
            "--no-input",
            "--only-binary=:all:",
            "--no-user",
            "--target=",
            "--root=/",
        ];
        let (more, input) = words(&bundle.pins);
        let pip = pip.map(OsString::from).into_iter().chain([prefix]);
        steps.push(SetupCommand {
            makes: bundle.name,
            program: target.python().into(),
            words: pip.chain(more.into_iter().map(OsString::from)).collect(),
            input,
            packages: bundle.packages.clone(),
        });
    }
    Ok(steps)
}

impl SetupCommand {
    /// The command as shell input.
    fn line(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.words);
        let mut line = words.map(|it| quoted(it)).collect::<Vec<_>>().join(" ");
        if let Some(input) = &self.input {
            // Writing to a string cannot fail.
            write!(line, " <<'END'\n{input}END").ok();
        }
        line
    }
}

/// A word, quoted for a shell.
fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:+,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn announce(report: &SetupReport, target: &InstallTarget, state: &TargetState) {
    // A newline would end the comment.
    let path = terminal::plain(target.path());
    for bundle in report.bundles.iter().filter(|it| it.installed) {
        say!("# {} is installed in {path}", bundle.name);
    }
    let is_made = |part: &&String| {
        let mut bundles = report.bundles.iter();
        *part == "venv" || bundles.any(|it| it.name == *part && !it.installed)
    };
    match (target, state, report.unfinished.iter().find(is_made)) {
        _ if report.commands.is_empty() => {}
        (InstallTarget::Active(_), ..) => say!("# into the active environment {path}"),
        (_, TargetState::Absent, _) => say!("# into {path}, which is created, with a marker file"),
        (_, _, Some(what)) => say!("# into {path}, resuming {what}, which was interrupted"),
        _ => say!("# into {path}, created by fercuda setup"),
    }
    for command in &report.commands {
        say!("{command}");
    }
}

/// Runs the commands, and records in a folder of our own what is unfinished.
fn carry_out(target: &InstallTarget, steps: &[SetupCommand], is_silent: bool) -> Result<()> {
    // What is installed is code, so it must not be writable by a group either. The mask can only
    // be read by setting it.
    let others = Mode::WGRP | Mode::WOTH;
    let mask = umask(others);
    umask(mask | others);
    let mut work = match target {
        InstallTarget::Own(path) => Some(LockedTarget::begin(path)?),
        InstallTarget::Active(_) => None,
    };
    for step in steps {
        if let Some(work) = &mut work {
            work.note(step.makes, true)?;
        }
        step.run(is_silent)
            .with_context(|| format!("could not install {}", step.makes))?;
        if let Some(work) = &mut work {
            if step.makes != "venv" {
                let packages = step.packages.clone();
                work.marker.bundles.insert(step.makes.to_owned(), packages);
            }
            work.note(step.makes, false)?;
        }
    }
    Ok(())
}

impl SetupCommand {
    /// Runs it; its output goes to stderr. On failure its last lines are in the error.
    fn run(&self, is_silent: bool) -> Result<()> {
        let program = Path::new(&self.program).display();
        let mut command = Command::new(&self.program);
        command
            .args(&self.words)
            .stdin(match self.input {
                Some(_) => Stdio::piped(),
                None => Stdio::null(),
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let (input, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (said, failed) = std::thread::scope(|scope| {
            let out = scope.spawn(move || out.map(|out| pass_on(out, is_silent)));
            let err = scope.spawn(move || err.map(|err| pass_on(err, is_silent)));
            if let (Some(mut input), Some(text)) = (input, &self.input) {
                // If the child does not read its stdin, its own output says why.
                input.write_all(text.as_bytes()).ok();
            }
            let join = |it: std::thread::ScopedJoinHandle<'_, Option<VecDeque<String>>>| {
                it.join().ok().flatten().unwrap_or_default()
            };
            (join(out), join(err))
        });
        let status = child
            .wait()
            .with_context(|| format!("cannot wait for {program}"))?;
        if status.success() {
            return Ok(());
        }
        let last = if failed.is_empty() { said } else { failed };
        let last: Vec<String> = last.into();
        bail!(
            "{program} failed with {status}; its last lines:\n{}\n{}",
            last.join("\n"),
            self.advice(&last.join("\n"))
        )
    }

    /// A hint for the last lines of output.
    fn advice(&self, said: &str) -> String {
        let says = |words: &[&str]| words.iter().any(|it| said.contains(it));
        if self.makes == "venv" {
            return "try: apt install python3-venv python3-pip (Debian, Ubuntu), or activate an \
                    environment of your own; then the same command again, which resumes"
                .to_owned();
        }
        if says(&["No module named pip"]) {
            let python = quoted(&self.program);
            return format!("try: {python} -I -m ensurepip; then the same command again");
        }
        if says(&["no such option: --python"]) {
            let python = quoted(&self.program);
            return format!(
                "try: {python} -I -m pip install --upgrade pip (22.3 or later); then the same \
                 command again"
            );
        }
        if says(&["DO NOT MATCH THE HASHES", "do not match the hashes"]) {
            return "try: the index of NVIDIA or PyPI; the file offered is not the one that the \
                    tests use, and was not installed"
                .to_owned();
        }
        if says(&["No space left"]) {
            return "try: --into with a folder that has more space; then the same command again"
                .to_owned();
        }
        "try: check that pip reaches its index (HTTPS_PROXY for a proxy, PIP_INDEX_URL for a \
         mirror); then the same command again, which resumes"
            .to_owned()
    }
}

/// Copies lines to stderr, and keeps the last ones.
fn pass_on(from: impl Read, is_silent: bool) -> VecDeque<String> {
    let mut last = VecDeque::new();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let line: String = line.chars().filter(|c| !c.is_control()).collect();
        if !is_silent && !is_quiet() {
            alert!("{line}");
        }
        if !line.trim().is_empty() {
            last.push_back(line);
        }
        if last.len() > LAST_LINES {
            last.pop_front();
        }
    }
    last
}

fn list(report: &SetupReport) {
    let paint = Paint::stdout();
    let path = terminal::path(&terminal::plain(&report.target));
    let ownership = match (report.active, report.exists) {
        (true, _) => "the active Python environment",
        (false, true) => "created by fercuda setup",
        (false, false) => "not created yet",
    };
    say!("{}", paint.strong(&path));
    say!("  {ownership}");
    for unfinished in &report.unfinished {
        say!("  {unfinished} was interrupted; the same command again resumes it");
    }
    for bundle in &report.bundles {
        let mark = match (
            bundle.installed,
            bundle.missing.len() < bundle.packages.len(),
        ) {
            (true, _) => paint.good(" yes"),
            (false, true) => "part".to_owned(),
            (false, false) => paint.faint("  no"),
        };
        say!("{mark} {:<6} {}", bundle.name, bundle.purpose);
        let packages = match &bundle.why {
            Some(why) => why.replace('\n', "; "),
            None => bundle.packages.join(" "),
        };
        for line in terminal::wrapped(&packages, 68) {
            say!("            {}", paint.faint(&line));
        }
    }
    say!("to install: fercuda setup BUNDLE...");
}

/// Prints how to use what was installed.
fn conclude(report: &SetupReport, target: &InstallTarget) {
    let names: Vec<&str> = report.bundles.iter().map(|it| it.name).collect();
    let path = target.path();
    say!(
        "installed in {}: {}",
        terminal::plain(path),
        names.join(", ")
    );
    if names.iter().any(|name| ["nvrtc", "dev"].contains(name)) {
        let found = fercuda_nvrtc::find::libraries(&fercuda_nvrtc::find::NVRTC);
        match found.files.iter().find(|it| it.starts_with(path)) {
            Some(_) => say!("  fercuda finds the compiler there by itself"),
            None => say!(
                "  for fercuda to find the compiler: export FERCUDA_WHEELS={}",
                wheels(path).map_or_else(|| quoted(path.as_os_str()), |it| quoted(it.as_os_str()))
            ),
        }
    }
    if !report.active {
        let activate = quoted(path.join("bin/activate").as_os_str());
        say!("  for its Python: source {activate}");
    }
}

/// The folder of NVIDIA's wheels in an environment.
fn wheels(environment: &Path) -> Option<PathBuf> {
    let pythons = environment.join("lib").read_dir().ok()?;
    let mut folders = pythons
        .flatten()
        .map(|it| it.path().join("site-packages/nvidia"));
    folders.find(|it| it.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_command_means_the_same_to_a_shell() {
        for word in [
            "plain",
            "",
            "two words",
            "it's",
            "$(rm)",
            "a\nb",
            "~/x",
            "*",
        ] {
            let line = format!("printf %s {}", quoted(OsStr::new(word)));
            let output = Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
        let step = SetupCommand {
            makes: "gguf",
            program: "cat".into(),
            words: vec!["/dev/stdin".into()],
            input: Some("a==1 \\\n    --hash=sha256:0\n".to_owned()),
            packages: Vec::new(),
        };
        let output = Command::new("sh")
            .args(["-c", &step.line()])
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            step.input.unwrap()
        );
    }
}
