//! Tests of every corpus file, for each architecture: round-trips, runs, matches its reference.
//!
//! Runs on the software device, or on `FERCUDA_DEVICE`. `FERCUDA_SEED` repeats a run's inputs.

use std::process::{Command, ExitCode};
use std::sync::{Arc, OnceLock};

use fercuda_cuda::{Context, Cuda, Select};
use fercuda_nvrtc::Nvrtc;
use fercuda_testkit::filetest::FileTest;
use fercuda_testkit::record::{DeviceRecord, RecordComparison};
use fercuda_testkit::{folder, record, runner};
use libtest_mimic::{Arguments, Failed, Trial};

struct Lab {
    context: Context,
    nvrtc: Nvrtc,
    /// Drawn by the first test that needs it: it is printed, and a list of tests is to have no
    /// other lines.
    seed: OnceLock<u64>,
}

impl Lab {
    fn open() -> Result<Lab, Box<dyn std::error::Error>> {
        let select = if std::env::var_os(fercuda_cuda::DEVICE_VARIABLE).is_some() {
            Select::from_env()?
        } else {
            Select::Software
        };
        Ok(Lab {
            context: Context::primary(Cuda::select(select)?.device(0)?)?,
            nvrtc: Nvrtc::find()?,
            seed: OnceLock::new(),
        })
    }
}

fn test(lab: &Lab, file: &FileTest, arch: &str) -> Result<(), Failed> {
    let ptx = runner::compile(&lab.nvrtc, file, arch, &[])?;
    runner::round_trip(&ptx)?;
    let seed = *lab.seed.get_or_init(fercuda_trials::seed);
    let wrong: Vec<String> = runner::execute(&lab.context, file, &ptx, seed)
        .into_iter()
        .flat_map(|o| o.wrong.into_iter().map(move |w| format!("{}: {w}", o.run)))
        .collect();
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("{}\nrepeat with FERCUDA_SEED={seed}", wrong.join("\n")).into())
    }
}

/// The same bits as an H200 gave, from the recorded seed; where a header is `loose`, both are
/// within its bound.
fn like_hardware(lab: &Lab, file: &FileTest) -> Result<(), Failed> {
    const ARCH: &str = "sm_90";
    let recorded = DeviceRecord::of_h200()?;
    let ptx = runner::compile(&lab.nvrtc, file, ARCH, &[])?;
    let outcomes = runner::execute(&lab.context, file, &ptx, recorded.seed);
    let unlike: Vec<String> = record::compare(&recorded, file, ARCH, &outcomes)
        .into_iter()
        .filter(|(_, likeness)| {
            !matches!(
                likeness,
                RecordComparison::Same | RecordComparison::WithinBound
            )
        })
        .map(|(output, likeness)| format!("{output}: {likeness:?}"))
        .collect();
    if unlike.is_empty() {
        Ok(())
    } else {
        Err(unlike.join("\n").into())
    }
}

/// A kernel's printf writes to the process's own output, so it is seen from outside.
fn prints(file: &FileTest) -> Result<(), Failed> {
    let output = Command::new(env!("CARGO_BIN_EXE_fercuda-filetest"))
        .args(["run", &file.name])
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    for line in file.runs.iter().flat_map(|r| &r.prints) {
        let count = text.lines().filter(|l| l == line).count();
        if count != runner::ARCHITECTURES.len() {
            return Err(format!("`{line}` was printed {count} times in\n{text}").into());
        }
    }
    Ok(())
}

/// The engine has one code for checked kernels and one for unchecked; `tests/planted.rs` judges the
/// corpus with checks.
fn without_checks() -> std::io::Result<Option<ExitCode>> {
    const CHECKS: &str = "FERCUDA_SOFT_CHECK";
    if std::env::var_os(CHECKS).is_none_or(|v| v == "0") {
        return Ok(None);
    }
    let mut again = Command::new(std::env::current_exe()?);
    let status = again
        .args(std::env::args_os().skip(1))
        .env(CHECKS, "0")
        .status()?;
    Ok(Some(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }))
}

fn main() -> ExitCode {
    if let Some(code) = without_checks().unwrap_or_else(|e| panic!("{e}")) {
        return code;
    }
    let lab = Arc::new(Lab::open().unwrap_or_else(|e| panic!("{e}")));
    let mut trials = Vec::new();
    for file in folder::read(&folder::of_crate("corpus")).unwrap_or_else(|e| panic!("{e}")) {
        let file = Arc::new(file);
        for arch in runner::ARCHITECTURES {
            let (lab, file) = (lab.clone(), file.clone());
            trials.push(Trial::test(
                format!("{}::{arch}_matches_its_reference", file.name),
                move || test(&lab, &file, arch),
            ));
        }
        let (lab, same) = (lab.clone(), file.clone());
        trials.push(Trial::test(
            format!("{}::gives_the_bits_of_an_h200", file.name),
            move || like_hardware(&lab, &same),
        ));
        if file.runs.iter().any(|r| !r.prints.is_empty()) {
            let file = file.clone();
            trials.push(Trial::test(
                format!("{}::prints_what_it_should", file.name),
                move || prints(&file),
            ));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
