//! The document of programs that run over the drop-in library, docs/conformance.md.
//!
//! Elsewhere: running them (`clients`, `projects`); the hook's list (`hooklist`).

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::clients::{self, Suite};
use crate::count::Count;
use crate::projects::{self, Amount};
use crate::tidy::language::LINE_CHARS;
use crate::{hooklist, record, setup, shell};

/// Counts of sample programs, which `tests/samples/samples.py` wrote.
const SAMPLES: &str = include_str!("../../tests/samples/counts.md");

/// Runs all clients and writes docs/conformance.md.
pub(crate) fn run(dry_run: bool) -> Result<()> {
    let venv = setup::run(false)?;
    let built = clients::build()?;
    let mut suites = clients::run_clients(&venv, &built)?;
    suites.extend(projects::run_all(&venv, built.drop_in(), Amount::Whole)?);
    let list = hooklist::run(&built.suite)?;
    let document = document(&suites, &hooklist::table(&list, record::read()?.as_ref()));
    if dry_run {
        println!("\n{document}");
    } else {
        let path = shell::root().join("docs/conformance.md");
        fs::write(&path, &document).with_context(|| format!("cannot write {}", path.display()))?;
        println!("\nwrote docs/conformance.md");
    }
    let failed: u64 = suites.iter().map(|suite| suite.count.failed).sum();
    if failed > 0 {
        bail!("{failed} tests of foreign clients failed");
    }
    let failed = list.values().filter(|passed| !**passed).count();
    if failed > 0 {
        bail!("{failed} tests of the hook's list failed");
    }
    Ok(())
}

fn document(suites: &[Suite], list: &str) -> String {
    let mut text = String::from(
        "# Conformance\n\n\
         Programs that know nothing of feRcuda, run over its drop-in `libcuda.so.1`\n\
         on a machine without a GPU, and once more with the hook before it, which has to\n\
         have governed them; and the test suites of other projects, whole, over the drop-in library\n\
         alone. This file is written by `cargo xtask conformance`.\n\n\
         `cargo xtask test`, which CI runs, has the first of them whole, and of each suite the\n\
         tests counted under \"in CI\"; `cargo xtask soak projects` and\n\
         `cargo xtask projects NAME` have the suites whole.\n\n\
         | client | version | over | what it exercises | passed | failed | in CI |\n\
         |---|---|---|---|---:|---:|---:|\n",
    );
    let mut total = Count::default();
    let mut total_in_ci = 0;
    for suite in suites {
        let Count { passed, failed, .. } = suite.count;
        let in_ci = suite.selected.unwrap_or(passed + failed);
        // Writing to a String cannot fail.
        let _infallible = writeln!(
            text,
            "| {} | {} | {} | {} | {passed} | {failed} | {in_ci} |",
            suite.name,
            suite.version,
            suite.front.name(),
            suite.about
        );
        total.passed += passed;
        total.failed += failed;
        total_in_ci += in_ci;
    }
    let _infallible = writeln!(
        text,
        "| **all** | | | | **{}** | **{}** | **{total_in_ci}** |",
        total.passed, total.failed
    );
    if total.failed > 0 {
        text.push_str("\n## What does not pass\n\n");
        for suite in suites {
            for failure in &suite.failures {
                let _infallible = writeln!(text, "- {}: `{failure}`", suite.title());
            }
        }
    }
    text.push_str(
        "\n## The hook\n\n\
         What is asked of a library in the driver's place, and the tests of\n\
         `crates/hook/tests/suite` that show it, over the drop-in library; and the cases\n\
         that only a GPU machine can run (`tests/gpu/regime/conformance.py`).\n\n",
    );
    text.push_str(list);
    text.push_str(
        "\nRust programs over cudarc and candle, whose kernels NVIDIA's nvcc compiles, run\n\
         on a GPU bare and governed, with equal lines and a ledger that has their memory\n\
         (`tests/gpu/rust-tenants/compare.py`).\n",
    );
    text.push_str("\n## What is not run\n\n");
    let cudarc = clients::NOT_RUN.map(|(name, why)| ("cudarc", name, why));
    let rows: Vec<_> = cudarc.into_iter().chain(projects::not_run()).collect();
    text.push_str(&not_run_list(&rows));
    text.push_str("\n## Programs of nvcc\n\n");
    text.push_str(SAMPLES);
    text.push_str(
        "\n## What is not here\n\n\
         NVIDIA's own `libcudart`, and all that embeds it (PyTorch, CuPy,\n\
         `cuda.bindings.runtime`), asks the driver for an undocumented table before its\n\
         first call. Only the documented driver API is implemented here, so those\n\
         programs run on a real GPU only.\n",
    );
    wrapped(&text)
}

/// Tests that are not run (client, test, reason), a line for neighbours of one reason.
fn not_run_list(rows: &[(&str, &str, &str)]) -> String {
    let mut text = String::new();
    for group in rows.chunk_by(|a, b| (a.0, a.2) == (b.0, b.2)) {
        let tests: Vec<String> = group.iter().map(|row| format!("`{}`", row.1)).collect();
        let (client, _, why) = group[0];
        // Writing to a String cannot fail.
        let _infallible = writeln!(text, "- {client}: {}: {why}", tests.join(", "));
    }
    text
}

/// A document whose paragraphs and list items have lines as short as `cargo xtask tidy` asks for.
fn wrapped(document: &str) -> String {
    let mut text = String::new();
    for line in document.lines() {
        let indent = if line.starts_with("- ") { "  " } else { "" };
        let mut chars = 0;
        for (n, word) in line.split(' ').enumerate() {
            let more = word.chars().count() + usize::from(n > 0);
            let breaks = n > 0 && !line.starts_with('|') && chars + more > LINE_CHARS;
            match (breaks, n) {
                (true, _) => {
                    text.push('\n');
                    text.push_str(indent);
                    chars = indent.len() + more - 1;
                }
                (false, 0) => chars = more,
                (false, _) => {
                    text.push(' ');
                    chars += more;
                }
            }
            text.push_str(word);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_are_not_run_for_one_reason_share_a_line() {
        let rows = [
            ("a", "x", "slow"),
            ("a", "y", "slow"),
            ("b", "x", "slow"),
            ("b", "z", "old"),
        ];
        let expected = "- a: `x`, `y`: slow\n- b: `x`: slow\n- b: `z`: old\n";
        assert_eq!(not_run_list(&rows), expected);
    }

    #[test]
    fn long_lines_are_wrapped_except_in_tables() {
        let word = "w".repeat(48);
        let table = format!("| {word} | {word} | {word} |");
        let text = format!("{table}\n- a {word} {word} b\n{word} {word} {word}\n\n");
        let lines = format!("{table}\n- a {word}\n  {word} b\n{word} {word}\n{word}\n\n");
        assert_eq!(wrapped(&text), lines);
        assert_eq!(wrapped(&lines), lines);
    }
}
