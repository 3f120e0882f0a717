//! Runner of the corpus on the device that `FERCUDA_DEVICE` names, with a compiler or from a bundle
//! made
//! beforehand.
//!
//! ```text
//! fercuda-filetest run [NAME...] [--json FILE]      compile, launch, compare with the references
//! fercuda-filetest bundle FOLDER                    PTX, sources, this device's outputs: to be
//! carried elsewhere
//! fercuda-filetest compare FOLDER [--json FILE]     launch a bundle's PTX, compare with references
//! and outputs
//!                                 [--record FILE]   and write down this device's own outputs
//! fercuda-filetest check FILE                       one file's launches or program, and its
//! findings
//! fercuda-filetest judge FILE                       those of its launches and programs whose
//! findings are not of the kinds that its header says
//! fercuda-filetest carry FOLDER                     all files that are checked, with their PTX and
//! a list of launches and programs: to be run elsewhere
//! fercuda-filetest launch FOLDER NUMBER             one of that list, without a check
//! ```
//! Exit status 1 means a mismatch or a finding, 2 that the command could not run.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use fercuda_cuda::{Context, Cuda, Select};
use fercuda_nvrtc::Nvrtc;
use fercuda_testkit::filetest::FileTest;
use fercuda_testkit::raw::{RawError, RawMachine};
use fercuda_testkit::record::{DeviceRecord, RecordComparison};
use fercuda_testkit::runner::{ARCHITECTURES, LaunchOutcome, RunError};
use fercuda_testkit::{folder, planted, record, reference, runner};
use serde::{Deserialize, Serialize};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The folders of files that are run under checks.
const CHECKED: [&str; 4] = ["planted", "defects", "programs", "corpus"];

/// One line of the table.
#[derive(Serialize)]
struct CorpusRow {
    file: String,
    arch: String,
    runs: usize,
    passed: usize,
    took_us: u128,
    /// Largest error in units of what is allowed.
    worst: f64,
    /// Outputs of the same bits as the record's; within bound; different.
    same: usize,
    within_bound: usize,
    different: usize,
    wrong: Vec<String>,
}

#[derive(Serialize)]
struct CorpusReport {
    device: String,
    seed: u64,
    recorded_on: Option<String>,
    rows: Vec<CorpusRow>,
}

/// A launch or a program of a file, in the list that `carry` writes.
#[derive(Serialize, Deserialize)]
struct CarriedLaunch {
    /// The folder of the file, which says what is expected of it.
    folder: String,
    file: String,
    name: String,
    /// The kinds of findings, where the file's header says them, else the beginnings of its report.
    finds: Vec<String>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (words, json) = option(words, "--json");
    let (words, kept) = option(words, "--record");
    let result = match words[..] {
        ["run", ref names @ ..] => run(names, json.as_deref()),
        ["bundle", to] => bundle(Path::new(to)),
        ["compare", from] => compare(Path::new(from), json.as_deref(), kept.as_deref()),
        ["check", file] => check(Path::new(file), planted::report),
        ["judge", file] => check(Path::new(file), planted::misjudged),
        ["carry", to] => carry(Path::new(to)),
        ["launch", from, number] => launch(Path::new(from), number),
        _ => Err("usage: fercuda-filetest run [NAME...] | bundle FOLDER | compare FOLDER | check FILE | judge FILE | carry FOLDER | launch FOLDER NUMBER  [--json FILE]".into()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            drop(writeln!(std::io::stderr(), "{error}"));
            ExitCode::from(2)
        }
    }
}

/// Takes `name` and the word behind it out of `words`.
fn option<'a>(mut words: Vec<&'a str>, name: &str) -> (Vec<&'a str>, Option<PathBuf>) {
    match words.iter().position(|w| *w == name) {
        Some(at) if at + 1 < words.len() => {
            let value = words.drain(at..at + 2).nth(1).map(PathBuf::from);
            (words, value)
        }
        _ => (words, None),
    }
}

fn open() -> Result<(Context, String)> {
    let device = Cuda::from_env()?.device(0)?;
    let name = device.name()?;
    Ok((Context::primary(device)?, name))
}

fn tally(
    file: &FileTest,
    arch: &str,
    result: std::result::Result<&[LaunchOutcome], RunError>,
) -> CorpusRow {
    let mut row = CorpusRow {
        file: file.name.clone(),
        arch: arch.to_string(),
        runs: file.runs.len(),
        passed: 0,
        took_us: 0,
        worst: 0.0,
        same: 0,
        within_bound: 0,
        different: 0,
        wrong: Vec::new(),
    };
    match result {
        Err(error) => row.wrong.push(error.to_string()),
        Ok(outcomes) => {
            for outcome in outcomes {
                row.passed += usize::from(outcome.wrong.is_empty());
                row.took_us += outcome.took.as_micros();
                row.worst = outcome.worst.values().copied().fold(row.worst, f64::max);
                row.wrong.extend(
                    outcome
                        .wrong
                        .iter()
                        .map(|w| format!("{}: {w}", outcome.run)),
                );
            }
        }
    }
    row
}

fn run(names: &[&str], json: Option<&Path>) -> Result<bool> {
    let (context, device) = open()?;
    let nvrtc = Nvrtc::find()?;
    let seed = fercuda_trials::seed();
    let mut rows = Vec::new();
    for file in folder::read(&folder::of_crate("corpus"))?
        .iter()
        .filter(|f| names.is_empty() || names.contains(&f.name.as_str()))
    {
        for arch in ARCHITECTURES {
            let outcomes = runner::compile(&nvrtc, file, arch, &[]).and_then(|ptx| {
                runner::round_trip(&ptx)?;
                Ok(runner::execute(&context, file, &ptx, seed))
            });
            rows.push(tally(
                file,
                arch,
                outcomes
                    .as_deref()
                    .map_err(|e| RunError::Text(e.to_string())),
            ));
        }
    }
    conclude(
        CorpusReport {
            device,
            seed,
            recorded_on: None,
            rows,
        },
        json,
    )
}

fn bundle(to: &Path) -> Result<bool> {
    let (context, device) = open()?;
    let nvrtc = Nvrtc::find()?;
    let mut kept = DeviceRecord {
        seed: fercuda_trials::seed(),
        device: device.clone(),
        outputs: Default::default(),
    };
    let mut rows = Vec::new();
    std::fs::create_dir_all(to.join("corpus"))?;
    std::fs::create_dir_all(to.join("ptx"))?;
    for file in folder::read(&folder::of_crate("corpus"))? {
        std::fs::write(
            to.join("corpus").join(format!("{}.cu", file.name)),
            &file.source,
        )?;
        for arch in ARCHITECTURES {
            let ptx = runner::compile(&nvrtc, &file, arch, &[])?;
            let outcomes = runner::execute(&context, &file, &ptx, kept.seed);
            record::add(&mut kept, &file, arch, &outcomes);
            rows.push(tally(&file, arch, Ok(&outcomes)));
            std::fs::write(
                to.join("ptx").join(format!("{}.{arch}.ptx", file.name)),
                ptx,
            )?;
        }
    }
    std::fs::write(to.join("record.json"), serde_json::to_vec(&kept)?)?;
    let python = std::env::var_os("FERCUDA_PYTHON").unwrap_or_else(|| "python3".into());
    let made = Command::new(&python)
        .arg(folder::of_crate("oracle").join("q4_k.py"))
        .args([&kept.seed.to_string(), "1000"])
        .args([to.join("q4_k.blocks"), to.join("q4_k.values")])
        .status()?;
    if !made.success() {
        return Err(
            "q4_k.py failed\ntry: `cargo xtask setup`, and FERCUDA_PYTHON=build/venv/bin/python"
                .into(),
        );
    }
    conclude(
        CorpusReport {
            device,
            seed: kept.seed,
            recorded_on: None,
            rows,
        },
        None,
    )
}

fn compare(from: &Path, json: Option<&Path>, written: Option<&Path>) -> Result<bool> {
    let (context, device) = open()?;
    let kept: DeviceRecord = serde_json::from_slice(&std::fs::read(from.join("record.json"))?)?;
    let mut ours = DeviceRecord {
        seed: kept.seed,
        device: device.clone(),
        outputs: Default::default(),
    };
    let mut rows = Vec::new();
    for file in folder::read(&from.join("corpus"))? {
        for arch in ARCHITECTURES {
            let ptx = std::fs::read_to_string(
                from.join("ptx").join(format!("{}.{arch}.ptx", file.name)),
            )?;
            let outcomes = runner::execute(&context, &file, &ptx, kept.seed);
            record::add(&mut ours, &file, arch, &outcomes);
            let mut row = tally(&file, arch, Ok(&outcomes));
            for (output, likeness) in record::compare(&kept, &file, arch, &outcomes) {
                match likeness {
                    RecordComparison::Same => row.same += 1,
                    RecordComparison::WithinBound => row.within_bound += 1,
                    RecordComparison::Different(at) => {
                        row.different += 1;
                        let place = at.map_or_else(
                            || "past the bytes that were kept".to_string(),
                            |at| format!("at byte {at}"),
                        );
                        row.wrong
                            .push(format!("{output}: differs from {} {place}", kept.device));
                    }
                    RecordComparison::Unrecorded => {
                        row.wrong.push(format!("{output}: was not recorded"))
                    }
                }
            }
            rows.push(row);
        }
    }
    if let Some(path) = written {
        std::fs::write(path, serde_json::to_vec_pretty(&ours)?)?;
    }
    conclude(
        CorpusReport {
            device,
            seed: kept.seed,
            recorded_on: Some(kept.device),
            rows,
        },
        json,
    )
}

fn conclude(report: CorpusReport, json: Option<&Path>) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{:<18} {:<6} {:>7} {:>10} {:>7} {:>6} {:>6} {:>6}",
        "file", "arch", "passed", "ms", "worst", "same", "bound", "differ"
    )?;
    for row in &report.rows {
        let passed = format!("{}/{}", row.passed, row.runs);
        let ms = row.took_us as f64 / 1000.0;
        writeln!(
            out,
            "{:<18} {:<6} {passed:>7} {ms:>10.2} {:>7.3} {:>6} {:>6} {:>6}",
            row.file, row.arch, row.worst, row.same, row.within_bound, row.different
        )?;
        for wrong in &row.wrong {
            writeln!(out, "    {}", wrong.replace('\n', "\n    "))?;
        }
    }
    let sum = |f: fn(&CorpusRow) -> usize| report.rows.iter().map(f).sum::<usize>();
    writeln!(
        out,
        "{}, seed {}: {} of {} launches right",
        report.device,
        report.seed,
        sum(|r| r.passed),
        sum(|r| r.runs)
    )?;
    if let Some(other) = &report.recorded_on {
        let (same, within, different) = (
            sum(|r| r.same),
            sum(|r| r.within_bound),
            sum(|r| r.different),
        );
        writeln!(
            out,
            "against {other}: {same} outputs of the same bits, {within} within their bound, {different} different"
        )?;
    }
    if let Some(path) = json {
        std::fs::write(path, serde_json::to_vec_pretty(&report)?)?;
    }
    Ok(report.rows.iter().all(|r| r.wrong.is_empty()))
}

fn check(
    file: &Path,
    report: fn(&FileTest, &str) -> std::result::Result<String, RawError>,
) -> Result<bool> {
    let file = folder::read_file(file)?;
    let arch = file.arch.as_deref().unwrap_or("sm_90");
    let ptx = runner::compile(&Nvrtc::find()?, &file, arch, &["--generate-line-info"])?;
    let report = report(&file, &ptx)?;
    write!(std::io::stdout(), "{report}")?;
    Ok(report.is_empty())
}

fn carry(to: &Path) -> Result<bool> {
    let nvrtc = Nvrtc::find()?;
    let mut list = Vec::new();
    for name in CHECKED {
        let folder = to.join(name);
        std::fs::create_dir_all(&folder)?;
        for file in folder::read(&folder::of_crate(name))? {
            let arch = file.arch.as_deref().unwrap_or("sm_90");
            let ptx = runner::compile(&nvrtc, &file, arch, &["--generate-line-info"])?;
            std::fs::write(folder.join(format!("{}.ptx", file.name)), ptx)?;
            std::fs::write(folder.join(format!("{}.cu", file.name)), &file.source)?;
            let report = folder::of_crate(name).join(format!("{}.report", file.name));
            let reported = kinds(&std::fs::read_to_string(report).unwrap_or_default());
            let launches = file.runs.iter().map(|run| (&run.name, &run.finds));
            let programs = file.programs.iter().map(|run| (&run.name, &run.finds));
            for (part, finds) in launches.chain(programs) {
                list.push(CarriedLaunch {
                    folder: name.to_owned(),
                    file: file.name.clone(),
                    name: part.clone(),
                    finds: match finds.is_empty() {
                        true => reported.clone(),
                        false => finds.clone(),
                    },
                });
            }
        }
    }
    std::fs::write(to.join("list.json"), serde_json::to_vec_pretty(&list)?)?;
    writeln!(std::io::stdout(), "{} launches and programs", list.len())?;
    Ok(true)
}

/// The first words of each finding of a report: its other lines are indented.
fn kinds(report: &str) -> Vec<String> {
    let first = report.lines().filter(|line| !line.starts_with(' '));
    let mut kinds: Vec<String> = first
        .filter_map(|line| line.split_once(": "))
        .map(|(kind, _)| kind.to_owned())
        .collect();
    kinds.dedup();
    kinds
}

fn launch(from: &Path, number: &str) -> Result<bool> {
    let list: Vec<CarriedLaunch> = serde_json::from_slice(&std::fs::read(from.join("list.json"))?)?;
    let one = list
        .get(number.parse::<usize>()?)
        .ok_or("the list has no such number")?;
    let folder = from.join(&one.folder);
    let file = folder::read_file(&folder.join(format!("{}.cu", one.file)))?;
    let ptx = std::fs::read_to_string(folder.join(format!("{}.ptx", one.file)))?;
    let machine = RawMachine::new(fercuda_cuda::driver(Select::from_env()?)?, &ptx)?;
    let run = file.runs.iter().find(|run| run.name == one.name);
    let program = file
        .programs
        .iter()
        .find(|program| program.name == one.name);
    match (run, program) {
        (Some(run), _) => machine
            .run(run, &run.case(reference::find(&run.name), 1))
            .map(drop)?,
        (None, Some(program)) => machine.program(&program.steps)?,
        (None, None) => return Err("the file has no such launch".into()),
    }
    machine.end()?;
    Ok(true)
}
