//! Long simulations: every kind of randomised work by its full amount, in rounds.
//!
//! Among them are mutations of kept inputs for every reader of untrusted bytes, 1e8 in a round,
//! and where a nightly compiler has the tools the same readers under a fuzzer (`fuzz-` and the
//! name of a target) and tests under Miri (`miri-` and the name of a crate). Where the tools are
//! missing, that is said, and the rest is done. A real model generates all tokens that are known
//! of llama.cpp (`real_model`).
//!
//! Each round runs all kinds with `FERCUDA_BUDGET=soak` and fresh seeds. A kind that fails leaves
//! its seed in `tests/regressions` of its crate, where each later run of its test finds it; a fuzz
//! target leaves its input in `tests/corpora`, for the same reason.
//!
//! Invariant: at least one round is done, however short the time; a failure does not end the
//! round, and makes the chore fail.

mod fuzz;
mod miri;
mod nightly;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::setup::{self, Venv};
use crate::{cargo, clients, real_model, shell};

/// How a kind of work is run.
struct Kind {
    /// The name of its `Work`, and of its folder of recorded failures.
    work: &'static str,
    /// The folder of the crate that keeps them.
    home: &'static str,
    run: SoakRun,
}

/// What cargo runs.
enum SoakRun {
    /// A chore.
    Xtask(&'static [&'static str]),
    /// Tests of a package, by further arguments.
    Test(&'static str, &'static [&'static str]),
    /// The same, optimised.
    ReleaseTest(&'static str, &'static [&'static str]),
}

impl SoakRun {
    fn command(&self) -> Command {
        let (is_release, package, arguments) = match self {
            SoakRun::Xtask(arguments) => {
                let mut command = cargo::command("xtask");
                command.args(*arguments);
                return command;
            }
            SoakRun::Test(package, arguments) => (false, package, arguments),
            SoakRun::ReleaseTest(package, arguments) => (true, package, arguments),
        };
        let mut command = cargo::command("test");
        command
            .args(is_release.then_some("--release"))
            .args(["--package", package])
            .args(*arguments)
            .args(["--", "--show-output"]);
        command
    }
}

static KINDS: [Kind; 23] = [
    Kind {
        work: "pool-simulator",
        home: "crates/pool",
        run: SoakRun::ReleaseTest("fercuda-pool", &["--test", "simulation"]),
    },
    Kind {
        work: "vramfs-files",
        home: "crates/vramfs",
        run: SoakRun::Test("fercuda-vramfs", &["--lib", "file::tests"]),
    },
    Kind {
        work: "vramfs-calls",
        home: "crates/vramfs",
        run: SoakRun::Test("fercuda-vramfs", &["--lib", "fuse::tests"]),
    },
    Kind {
        work: "vram-entries",
        home: "crates/cli",
        run: SoakRun::Test("fercuda-cli", &["--test", "vram", "names::"]),
    },
    Kind {
        work: "fsx",
        home: "xtask",
        run: SoakRun::Xtask(&["suites", "fsx", "stress-ng"]),
    },
    Kind {
        work: "projects",
        home: "xtask",
        run: SoakRun::Xtask(&["projects"]),
    },
    Kind {
        work: "ptx-texts",
        home: "crates/ptx",
        run: SoakRun::ReleaseTest("fercuda-ptx", &["--test", "any_text", "for_a_while"]),
    },
    Kind {
        work: "images",
        home: "crates/softgpu",
        run: SoakRun::ReleaseTest("fercuda-softgpu", &["--test", "fatbin", "images_mutated"]),
    },
    Kind {
        work: "modules",
        home: "crates/softgpu",
        run: SoakRun::ReleaseTest("fercuda-softgpu", &["--test", "fatbin", "modules_mutated"]),
    },
    Kind {
        work: "approximations",
        home: "crates/testkit",
        run: SoakRun::ReleaseTest("fercuda-testkit", &["--test", "approx"]),
    },
    Kind {
        work: "cache-entries",
        home: "crates/cache",
        run: SoakRun::ReleaseTest("fercuda-cache", &["--lib", "mutated_entries"]),
    },
    Kind {
        work: "traces",
        home: "crates/cli",
        run: SoakRun::ReleaseTest("fercuda-cli", &["--bin", "fercuda", "mutated_traces"]),
    },
    Kind {
        work: "pickles",
        home: "crates/cli",
        run: SoakRun::ReleaseTest("fercuda-cli", &["--bin", "fercuda", "mutated_pickles"]),
    },
    Kind {
        work: "snapshots",
        home: "crates/cli",
        run: SoakRun::ReleaseTest("fercuda-cli", &["--bin", "fercuda", "mutated_snapshots"]),
    },
    Kind {
        work: "model-files",
        home: "crates/modelfile",
        run: SoakRun::ReleaseTest(
            "fercuda-modelfile",
            &["--test", "suite", "any_mutated_file"],
        ),
    },
    Kind {
        work: "tokenizers",
        home: "crates/tokenizer",
        run: SoakRun::ReleaseTest(
            "fercuda-tokenizer",
            &["--test", "suite", "any_mutated_vocabulary"],
        ),
    },
    Kind {
        work: "blocks",
        home: "crates/tensor",
        run: SoakRun::ReleaseTest("fercuda-tensor", &["--test", "blocks", "any_bytes"]),
    },
    Kind {
        work: "ledgers",
        home: "crates/ledger",
        run: SoakRun::ReleaseTest("fercuda-ledger", &["--test", "suite", "for_a_while"]),
    },
    Kind {
        work: "plans",
        home: "crates/runtime",
        run: SoakRun::ReleaseTest("fercuda-runtime", &["--test", "mutations", "mutated_plans"]),
    },
    Kind {
        work: "triton-metadata",
        home: "crates/runtime",
        run: SoakRun::ReleaseTest(
            "fercuda-runtime",
            &["--test", "mutations", "mutated_metadata"],
        ),
    },
    Kind {
        work: "expressions",
        home: "crates/jit",
        run: SoakRun::ReleaseTest("fercuda-jit", &["--test", "suite", "mutated_expressions"]),
    },
    Kind {
        work: "op-parity",
        home: "crates/ops",
        run: SoakRun::ReleaseTest("fercuda-ops", &["--test", "suite", "every_op"]),
    },
    Kind {
        work: "op-products",
        home: "crates/ops",
        run: SoakRun::ReleaseTest("fercuda-ops", &["--test", "suite", "products_are"]),
    },
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Hours to go on for; a round that has begun is ended.
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    hours: f64,
    /// Only kinds of work in whose names this is.
    filter: Option<String>,
}

/// Runs rounds until the time is up.
pub(crate) fn run(args: &Args) -> Result<()> {
    let time = Duration::try_from_secs_f64(args.hours * 3600.0)
        .with_context(|| format!("--hours {} is no time", args.hours))?;
    let filter = args.filter.as_deref().unwrap_or_default();
    let mut works: Vec<SoakWork> = all_works();
    works.retain(|work| work.name().contains(filter));
    if works.is_empty() {
        let names: Vec<String> = all_works().iter().map(SoakWork::name).collect();
        bail!(
            "no kind of work is called {filter:?}\ntry: {}",
            names.join(", ")
        );
    }
    works.retain(|work| match work.missing() {
        Some(hint) => {
            println!(
                "{} is passed over: its tools are not here\ntry: {hint}",
                work.name()
            );
            false
        }
        None => true,
    });
    let is_seeded = |work: &SoakWork| matches!(work, SoakWork::Seeded(_));
    let venv = match works.iter().any(is_seeded) {
        true => Some(setup::run(false)?),
        false => None,
    };
    let begun = Instant::now();
    let mut failures = Vec::new();
    for round in 1.. {
        for work in &works {
            let minutes = begun.elapsed().as_secs() / 60;
            let name = work.name();
            shell::step(&format!("round {round}, {minutes} min: {name}"));
            if let Some(left) = work.run(venv.as_ref())? {
                failures.push(format!("round {round}, {name}: {left}"));
            }
        }
        if begun.elapsed() >= time {
            break;
        }
    }
    match failures.as_slice() {
        [] => Ok(()),
        failures => bail!(
            "{} kinds of work failed:\n{}\ntry: give each file a name that says what failed, \
             mend it, and commit both",
            failures.len(),
            failures.join("\n")
        ),
    }
}

/// A kind of work of any sort.
enum SoakWork {
    Seeded(&'static Kind),
    Fuzz(&'static fuzz::FuzzTarget),
    Miri(&'static miri::MiriTests),
    Model,
}

fn all_works() -> Vec<SoakWork> {
    let seeded = KINDS.iter().map(SoakWork::Seeded);
    let fuzz = fuzz::TARGETS.iter().map(SoakWork::Fuzz);
    let miri = miri::TESTS.iter().map(SoakWork::Miri);
    let model = std::iter::once(SoakWork::Model);
    seeded.chain(fuzz).chain(miri).chain(model).collect()
}

impl SoakWork {
    fn name(&self) -> String {
        match self {
            SoakWork::Seeded(kind) => kind.work.to_owned(),
            SoakWork::Fuzz(target) => format!("fuzz-{}", target.name),
            SoakWork::Miri(tests) => format!("miri-{}", tests.name),
            SoakWork::Model => "smollm2".to_owned(),
        }
    }

    /// What to install before it can be run; `None` if it can.
    fn missing(&self) -> Option<&'static str> {
        match self {
            SoakWork::Seeded(_) | SoakWork::Model => None,
            SoakWork::Fuzz(_) => fuzz::missing(),
            SoakWork::Miri(_) => miri::missing(),
        }
    }

    /// Does all of it. Returns what a failure has left.
    fn run(&self, venv: Option<&Venv>) -> Result<Option<String>> {
        match self {
            SoakWork::Seeded(kind) => run_seeded(kind, venv),
            SoakWork::Fuzz(target) => {
                let left = fuzz::run(target)?;
                Ok(left.map(|file| file.display().to_string()))
            }
            SoakWork::Miri(tests) => {
                let passed = miri::run(tests)?;
                Ok((!passed).then(|| "what Miri printed names the line".to_owned()))
            }
            SoakWork::Model => {
                let venv = &setup::run(false)?;
                let program = clients::build_program()?;
                let failed = real_model::test(venv, &program, usize::MAX)?.failed;
                Ok((failed > 0).then(|| format!("{failed} prompts, whose tokens are above")))
            }
        }
    }
}

fn run_seeded(kind: &Kind, venv: Option<&Venv>) -> Result<Option<String>> {
    let mut command = kind.run.command();
    if let Some(venv) = venv {
        setup::environment(&mut command, venv);
    }
    command.env("FERCUDA_BUDGET", "soak");
    let mut lines = Vec::new();
    let succeeded = shell::watch(command, |line| {
        println!("{line}");
        lines.push(line.to_owned());
    })?;
    match succeeded {
        true => Ok(None),
        false => record(kind, &lines).map(Some),
    }
}

/// Writes the seed that failed, and what was printed, to where later runs find it.
fn record(kind: &Kind, lines: &[String]) -> Result<String> {
    let Some(seed) = failed_seed(lines) else {
        return Ok("no seed was printed; nothing is recorded".to_owned());
    };
    let place = PathBuf::from(kind.home)
        .join("tests/regressions")
        .join(kind.work);
    let file = place.join(format!("{seed}.txt"));
    let failed = |line: &&String| {
        ["panicked", "FAILED", "FERCUDA_SEED"]
            .iter()
            .any(|it| line.contains(it))
    };
    let shown: Vec<&str> = lines
        .iter()
        .filter(failed)
        .take(20)
        .map(String::as_str)
        .collect();
    let full = shell::root().join(&file);
    fs::create_dir_all(shell::root().join(&place))
        .and_then(|()| fs::write(&full, format!("{seed}\n{}\n", shown.join("\n"))))
        .with_context(|| format!("cannot write {}", full.display()))?;
    Ok(file.display().to_string())
}

/// The seed beside a failure's message, else the last that was printed.
fn failed_seed(lines: &[String]) -> Option<u64> {
    let of_line = |line: &String| {
        let rest = ["FERCUDA_SEED=", "seed "]
            .iter()
            .find_map(|it| line.split_once(it))?
            .1;
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        rest[..digits].parse().ok()
    };
    let beside = lines
        .iter()
        .filter(|line| line.contains("FERCUDA_SEED=") && line.contains(": "));
    let beside = beside.filter_map(of_line).next_back();
    beside.or_else(|| lines.iter().rev().find_map(of_line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn seed_of_a_failure_is_the_one_in_its_message() {
        let text = "FERCUDA_SEED=1\nFERCUDA_SEED=2: operation 7: too early\nFERCUDA_SEED=3\n";
        assert_eq!(failed_seed(&lines(text)), Some(2));
        assert_eq!(failed_seed(&lines("FERCUDA_SEED=5\npanicked\n")), Some(5));
        assert_eq!(failed_seed(&lines("fsx: FAILED, seed 12\n")), Some(12));
        assert_eq!(failed_seed(&lines("no number\n")), None);
    }

    #[test]
    fn each_kind_is_a_work_of_its_crate() {
        // The suites of other projects have seeds of their own.
        for kind in KINDS.iter().filter(|kind| kind.work != "projects") {
            let source = match (kind.home, kind.work) {
                ("xtask", _) => "xtask/src/suites.rs",
                (_, "vram-entries") => "crates/cli/tests/vram/names.rs",
                (_, "snapshots") => "crates/cli/src/vram/snapshot/verified.rs",
                ("crates/cli", _) => "crates/cli/src/replay/tests.rs",
                ("crates/pool", _) => "crates/pool/tests/simulation.rs",
                ("crates/testkit", _) => "crates/testkit/tests/approx.rs",
                ("crates/ptx", _) => "crates/ptx/tests/any_text.rs",
                ("crates/softgpu", _) => "crates/softgpu/tests/fatbin.rs",
                ("crates/ledger", _) => "crates/ledger/tests/suite/files.rs",
                ("crates/runtime", _) => "crates/runtime/tests/mutations.rs",
                ("crates/jit", _) => "crates/jit/tests/suite/mutations.rs",
                ("crates/ops", _) => "crates/ops/tests/suite/parity.rs",
                ("crates/cache", _) => "crates/cache/src/lib.rs",
                ("crates/modelfile", _) => "crates/modelfile/tests/suite/hostile.rs",
                ("crates/tokenizer", _) => "crates/tokenizer/tests/suite/hostile.rs",
                ("crates/tensor", _) => "crates/tensor/tests/blocks/main.rs",
                (_, "vramfs-files") => "crates/vramfs/src/file/tests.rs",
                _ => "crates/vramfs/src/fuse/tests.rs",
            };
            let text = fs::read_to_string(shell::root().join(source)).unwrap();
            assert!(
                text.contains(&format!("name: \"{}\"", kind.work)),
                "{}",
                kind.work
            );
        }
    }
}
