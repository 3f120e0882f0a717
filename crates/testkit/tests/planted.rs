//! Tests that every planted bug is reported in exactly these words, that defects have findings of
//! their kinds alone, and that correct programs have no findings.
//!
//! `FERCUDA_BLESS=1` rewrites the reports.

use std::path::Path;
use std::process::{Command, ExitCode};

use fercuda_testkit::folder;
use libtest_mimic::{Arguments, Failed, Trial};

type Test = fn(&Path) -> Result<(), Failed>;

fn report(command: &str, file: &Path) -> Result<String, Failed> {
    let output = Command::new(env!("CARGO_BIN_EXE_fercuda-filetest"))
        .arg(command)
        .arg(file)
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_SOFT_CHECK", "1")
        .env("FERCUDA_SOFT_WATCHDOG", "5s")
        // Blocks in order, so that of two that race the same one always comes second.
        .env("FERCUDA_SOFT_THREADS", "1")
        .env("FERCUDA_SEED", "1")
        .output()?;
    if !matches!(output.status.code(), Some(0 | 1)) {
        return Err(format!(
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
        .into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn planted(file: &Path) -> Result<(), Failed> {
    let got = report("check", file)?;
    let pinned = file.with_extension("report");
    if got.is_empty() {
        return Err("nothing was found".into());
    }
    if std::env::var_os("FERCUDA_BLESS").is_some() {
        std::fs::write(pinned, got)?;
        return Ok(());
    }
    let want = std::fs::read_to_string(&pinned)
        .map_err(|e| format!("{}: {e}; the report is\n{got}", pinned.display()))?;
    if got == want {
        Ok(())
    } else {
        Err(format!("the report is\n{got}\nbut should be\n{want}").into())
    }
}

fn silent(file: &Path) -> Result<(), Failed> {
    let got = report("check", file)?;
    if got.is_empty() {
        Ok(())
    } else {
        Err(format!("a program that is right is accused:\n{got}").into())
    }
}

fn judged(file: &Path) -> Result<(), Failed> {
    let got = report("judge", file)?;
    if got.is_empty() {
        Ok(())
    } else {
        Err(got.into())
    }
}

fn main() -> ExitCode {
    let mut trials = Vec::new();
    let kinds: [(&str, &str, Test); 4] = [
        ("planted", "is_reported", planted),
        ("defects", "have_findings_of_their_kinds", judged),
        ("programs", "is_not_accused", silent),
        ("corpus", "is_not_accused", silent),
    ];
    for (name, claim, test) in kinds {
        let folder = folder::of_crate(name);
        for file in folder::read(&folder).unwrap_or_else(|e| panic!("{e}")) {
            let path = folder.join(format!("{}.cu", file.name));
            trials.push(Trial::test(
                format!("{name}::{}_{claim}", file.name),
                move || test(&path),
            ));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
