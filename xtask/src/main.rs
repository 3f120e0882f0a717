//! Project chores, run as `cargo xtask CHORE`.
//!
//! Holds what a contributor and CI both run: set-up, tests, checks of the
//! repository itself, and the bundle for a machine that has a GPU.
//!
//! Invariant: a chore ends with exit status 0 only if everything it names was
//! done and passed. Elsewhere: the order of CI's steps (`.ci/run`).
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "these are programs that talk to a person"
)]

mod bench;
mod benchmarks;
mod book;
mod bundle;
mod cargo;
mod clients;
mod conformance;
mod count;
mod debian;
mod dist;
mod headers;
mod hooklist;
mod installed;
mod packages;
mod profile;
mod projects;
mod python;
mod real_model;
mod record;
mod release;
mod rust_tenants;
mod setup;
mod shell;
mod soak;
mod suites;
mod test;
mod tidy;
mod trial;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Chores of the feRcuda repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Install the pinned wheels of requirements.txt in an environment of their own, build/venv.
    Setup {
        /// Install again even if nothing changed.
        #[arg(long)]
        force: bool,
    },
    /// Set up, then run every test: the workspace's, the published crates' packages, the
    /// foreign clients' and the Python package's.
    Test {
        /// Only tests of this package (may be repeated); `python` alone for those of
        /// the Python package.
        #[arg(long, short)]
        package: Vec<String>,
        /// Passed on to the test programs.
        #[arg(last = true)]
        rest: Vec<String>,
    },
    /// Run .ci/run: format, lints, tidy, tests.
    Ci,
    /// Check the repository itself: crate table, dependencies, licences, wording.
    Tidy,
    /// Pack the crates that crates.io gets into target/package, and check what is in them.
    Packages,
    /// Make include/fercuda of the C interface's sources.
    Headers,
    /// Build fercuda and the libraries it needs, optimised, and put them into a folder.
    Dist {
        /// Gets bin/ and lib/fercuda/; ~/.local will do.
        #[arg(long, default_value = "target/dist")]
        out: PathBuf,
        /// Build the hook as the rest is built: quicker to make, slower to run.
        #[arg(long)]
        no_profile: bool,
    },
    /// Build the tarball and the wheel of a release, reproducibly, for glibc 2.28 and later.
    Release(release::Args),
    /// Pack tests, benches and kernels for a machine with a GPU and no Rust.
    Gpu {
        /// Where the bundle goes; emptied first.
        #[arg(long, default_value = "target/gpu-bundle")]
        out: PathBuf,
        /// Build the hook as the rest is built: quicker to make, slower to run.
        #[arg(long)]
        no_profile: bool,
    },
    /// Run the foreign clients over the drop-in library, alone and under the hook,
    /// and the hook's own list; write docs/conformance.md.
    Conformance {
        /// Print the table without writing the document.
        #[arg(long)]
        dry_run: bool,
    },
    /// Run the whole test suites of other projects over the drop-in library, of which `test`
    /// runs a selection; install what is missing of them into build/.
    Projects {
        /// Only projects whose name contains this.
        filter: Option<String>,
    },
    /// Run pjdfstest, fsx and stress-ng's class filesystem on mounts in device
    /// memory; install what is missing of them into build/.
    Suites(Box<suites::Args>),
    /// Run every kind of randomised work by its full amount, in rounds, and record the
    /// seeds that fail.
    Soak(soak::Args),
    /// Make docs/benchmarks.md of the figures in docs/bench-log.
    Benchmarks,
    /// Lay out the guide and the design documents as a book in target/book, and build it if
    /// mdbook is installed.
    Book,
    /// Run the benchmarks, optimised.
    Bench {
        /// Only benches whose name contains this.
        filter: Option<String>,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().chore {
        Chore::Setup { force } => setup::run(force).map(drop),
        Chore::Test { package, rest } => test::run(&package, &rest),
        Chore::Ci => shell::run(shell::command(".ci/run")),
        Chore::Tidy => tidy::run(),
        Chore::Packages => packages::run(),
        Chore::Headers => headers::run(),
        Chore::Dist { out, no_profile } => dist::run(&out, !no_profile),
        Chore::Release(args) => release::run(&args),
        Chore::Gpu { out, no_profile } => bundle::run(&out, !no_profile),
        Chore::Conformance { dry_run } => conformance::run(dry_run),
        Chore::Projects { filter } => projects::run(filter.as_deref()),
        Chore::Suites(args) => suites::run(&args),
        Chore::Soak(args) => soak::run(&args),
        Chore::Benchmarks => benchmarks::run(),
        Chore::Book => book::run(),
        Chore::Bench { filter } => bench::run(filter.as_deref()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
