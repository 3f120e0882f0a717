//! `fercuda setup`: installs optional parts, which are Python packages, by pip.
//!
//! Invariants: what is run is printed first, and nothing else is run; nothing is asked. Nothing
//! is installed but into the environment that the user has activated or a folder that this
//! command made. NVIDIA's files come from their package index, by the user's command.
//! Elsewhere: packages and versions (`bundles`), places and whose they are (`environment`).

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

use crate::out::say;
use crate::terminal::{self, Paint};
use bundles::{Bundle, Pin, words};
use environment::{Marker, State, Target, Work, python};

/// Lines of pip's that are repeated when it fails.
const LAST_LINES: usize = 6;

/// Installs optional parts: compilers and Python packages, pinned.
#[derive(clap::Args)]
#[command(after_help = "\
Bundles:
  nvrtc  NVIDIA's run-time compiler and CUDA's headers, for CUDA C++
  hf     Hugging Face: transformers, safetensors, tokenizers, huggingface-hub
  gguf   files of quantised models, and what reads them
  jax    JAX with CUDA 12 or 13, as fits the driver
  dev    all that the tests need
Without one, what there is and what is installed is listed.

Into: the Python environment that is active; else one that this command makes:
fercuda/venv in the user's data folder (XDG_DATA_HOME, else ~/.local/share), or
--into. A folder that exists and that this command did not make is refused and
left as it is.

The commands are printed first, to be copied or run; nothing is asked. Versions
are exact; nvrtc, gguf and dev are held to SHA-256 sums too. pip's settings say
where from (PIP_INDEX_URL, PIP_FIND_LINKS, HTTPS_PROXY, pip.conf), not where to
(PIP_TARGET, PIP_USER). What was interrupted goes on when the command is given
again. Delete a folder that it made, and all is gone.

Exit status: 0; 1 if something could not be installed; 2 if nothing was tried.

Examples:
  fercuda setup
  fercuda setup nvrtc --print-only
  fercuda setup nvrtc gguf
  fercuda setup hf --into ~/fercuda-python")]
pub(crate) struct Args {
    /// What to install; none for the list.
    #[arg(value_name = "BUNDLE", hide_possible_values = true)]
    bundles: Vec<Bundle>,
    /// List the bundles, and what is installed of them.
    #[arg(long)]
    list: bool,
    /// Print the commands and run none.
    #[arg(long, conflicts_with = "list")]
    print_only: bool,
    /// Make or use an environment of fercuda's own here.
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// A bundle at a target.
#[derive(Debug, Serialize)]
struct Standing {
    name: &'static str,
    purpose: &'static str,
    /// As pip is told; empty if nothing fits this machine, and then why.
    packages: Vec<String>,
    /// Of them, those that are there in another version or not at all.
    missing: Vec<String>,
    installed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip)]
    pins: Vec<Pin>,
}

#[derive(Debug, Serialize)]
struct Report {
    target: PathBuf,
    /// Whether the target is the user's active environment, not one of ours.
    active: bool,
    exists: bool,
    /// What an earlier run did not finish.
    unfinished: BTreeSet<String>,
    bundles: Vec<Standing>,
    /// What is run, or was.
    commands: Vec<String>,
    done: bool,
}

/// One command.
struct Step {
    /// What is unfinished until it is done: `venv`, or a bundle.
    makes: &'static str,
    program: OsString,
    words: Vec<OsString>,
    /// What it reads.
    input: Option<String>,
    packages: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let target = Target::choose(args.into.as_deref())?;
    let state = target.state()?;
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
    report.commands = steps.iter().map(Step::line).collect();
    if !args.json {
        announce(&report, &target, &state);
    }
    if !args.print_only && !steps.is_empty() {
        if let Err(error) = carry_out(&target, &steps, args.json) {
            return Ok(crate::report(&error, 1));
        }
        report = Report {
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
                "pip ended well, and {} is not in {}\ntry: its own output; then the same again",
                missing.join(", "),
                target.path().display()
            );
            return Ok(crate::report(&error, 1));
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

/// What there is.
fn look(target: &Target, state: &State, wanted: &BTreeSet<Bundle>) -> Result<Report> {
    let driver = || {
        let cuda = Cuda::select(Select::Hardware).ok()?;
        cuda.version().ok()
    };
    // Only for who wants to know: opening a driver takes its time.
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
        Standing {
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
        State::Ours(Marker { unfinished, .. }) => unfinished.clone(),
        State::Absent => BTreeSet::new(),
    };
    Ok(Report {
        target: target.path().to_owned(),
        active: matches!(target, Target::Active(_)),
        exists: matches!(state, State::Ours(_)),
        unfinished,
        bundles: pins.iter().map(standing).collect(),
        commands: Vec::new(),
        done: false,
    })
}

/// What is to be run, in this order.
fn steps(target: &Target, state: &State, report: &Report) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    let is_made = match state {
        State::Absent => false,
        State::Ours(marker) => !marker.unfinished.contains("venv") && target.python().exists(),
    };
    // -I: what lies in the current folder, or where variables say, is not imported.
    if !is_made {
        let words = ["-I", "-m", "venv"].map(OsString::from).into_iter();
        steps.push(Step {
            makes: "venv",
            program: python()?,
            words: words.chain([target.path().into()]).collect(),
            input: None,
            packages: Vec::new(),
        });
    }
    for bundle in report.bundles.iter().filter(|it| !it.installed) {
        // What pip's variables and files may say of where it installs is said here, which comes
        // before them; an empty word is none.
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
        steps.push(Step {
            makes: bundle.name,
            program: target.python().into(),
            words: pip.chain(more.into_iter().map(OsString::from)).collect(),
            input,
            packages: bundle.packages.clone(),
        });
    }
    Ok(steps)
}

impl Step {
    /// As a shell takes it.
    fn line(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.words);
        let mut line = words.map(|it| quoted(it)).collect::<Vec<_>>().join(" ");
        if let Some(input) = &self.input {
            // Writing to a string does not fail.
            write!(line, " <<'END'\n{input}END").ok();
        }
        line
    }
}

/// A word as a shell reads it.
fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:+,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn announce(report: &Report, target: &Target, state: &State) {
    // A comment ends with its line.
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
        (Target::Active(_), ..) => say!("# into the active environment {path}"),
        (_, State::Absent, _) => say!("# into {path}, which is made, with a note what it is"),
        (_, _, Some(what)) => say!("# into {path}, where {what} was interrupted; it goes on"),
        _ => say!("# into {path}, which fercuda setup made"),
    }
    for command in &report.commands {
        say!("{command}");
    }
}

/// Runs the commands, noting in a folder of our own what is unfinished.
fn carry_out(target: &Target, steps: &[Step], is_silent: bool) -> Result<()> {
    // What is installed is code, so it must not be writable by a group either. The mask can only
    // be read by setting it.
    let others = Mode::WGRP | Mode::WOTH;
    let mask = umask(others);
    umask(mask | others);
    let mut work = match target {
        Target::Own(path) => Some(Work::begin(path)?),
        Target::Active(_) => None,
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

impl Step {
    /// Runs it; what it says goes to stderr. If it fails its last lines are the error's.
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
                // One that does not read it says why.
                input.write_all(text.as_bytes()).ok();
            }
            let join = |it: std::thread::ScopedJoinHandle<'_, Option<VecDeque<String>>>| {
                it.join().ok().flatten().unwrap_or_default()
            };
            (join(out), join(err))
        });
        let status = child
            .wait()
            .with_context(|| format!("{program} got lost"))?;
        if status.success() {
            return Ok(());
        }
        let last = if failed.is_empty() { said } else { failed };
        let last: Vec<String> = last.into();
        bail!(
            "{program} ended with {status}, and said last:\n{}\n{}",
            last.join("\n"),
            self.advice(&last.join("\n"))
        )
    }

    /// What to try, by what was said.
    fn advice(&self, said: &str) -> String {
        let says = |words: &[&str]| words.iter().any(|it| said.contains(it));
        if self.makes == "venv" {
            return "try: apt install python3-venv python3-pip (Debian, Ubuntu), or activate an \
                    environment of your own; then the same command again, which goes on"
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
            return "try: the index that NVIDIA and PyPI publish; what was offered is another \
                    file than the tests ran with, and was not installed"
                .to_owned();
        }
        if says(&["No space left"]) {
            return "try: --into a folder with more space; then the same command again".to_owned();
        }
        "try: whether pip reaches its index (HTTPS_PROXY for a proxy, PIP_INDEX_URL for a \
         mirror); then the same command again, which goes on"
            .to_owned()
    }
}

/// Passes lines on to stderr, and keeps the last.
fn pass_on(from: impl Read, is_silent: bool) -> VecDeque<String> {
    let mut last = VecDeque::new();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let line: String = line.chars().filter(|c| !c.is_control()).collect();
        if !is_silent {
            eprintln!("{line}");
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

fn list(report: &Report) {
    let paint = Paint::stdout();
    let path = terminal::path(&terminal::plain(&report.target));
    let whose = match (report.active, report.exists) {
        (true, _) => "the active Python environment",
        (false, true) => "which fercuda setup made",
        (false, false) => "which fercuda setup would make",
    };
    say!("{}", paint.strong(&path));
    say!("  {whose}");
    for unfinished in &report.unfinished {
        say!("  {unfinished} was interrupted; the same command again goes on");
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

/// How what was installed is used.
fn conclude(report: &Report, target: &Target) {
    let names: Vec<&str> = report.bundles.iter().map(|it| it.name).collect();
    let path = target.path();
    say!(
        "installed in {}: {}",
        terminal::plain(path),
        names.join(", ")
    );
    if names.iter().any(|name| ["nvrtc", "dev"].contains(name)) {
        let found = fercuda_nvrtc::find::libraries();
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
    fn a_command_is_the_same_to_a_shell() {
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
        let step = Step {
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
