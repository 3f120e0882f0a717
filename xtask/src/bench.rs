//! The benchmarks, optimised, one after the other.

use anyhow::{Result, bail};

use crate::{cargo, setup, shell};

/// Builds every bench target and runs those whose name contains `filter`.
pub(crate) fn run(filter: Option<&str>) -> Result<()> {
    let venv = setup::run(false)?;
    let made = cargo::artifacts(
        "bench",
        &["--locked", "--workspace", "--benches", "--no-run"],
    )?;
    let mut ran = 0;
    for bench in &made {
        let wanted = bench.kinds.iter().any(|kind| kind == "bench")
            && filter.is_none_or(|filter| bench.target.contains(filter));
        let Some(program) = bench.executable.as_ref().filter(|_| wanted) else {
            continue;
        };
        shell::step(&format!("{}: {}", bench.package, bench.target));
        let mut command = shell::command(program);
        command
            .arg("--bench")
            .current_dir(shell::root().join("crates").join(&bench.package))
            .env("FERCUDA_WHEELS", &venv.wheels);
        shell::run(command)?;
        ran += 1;
    }
    if ran == 0 {
        bail!(
            "no bench matches\ntry one of: {}",
            made.iter()
                .filter(|made| made.kinds.iter().any(|kind| kind == "bench"))
                .map(|made| made.target.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        );
    }
    Ok(())
}
