//! `fercuda ops`: the registry of operations on arrays, a run of one against its reference, and
//! their times.
//!
//! Invariant: what is said of an op comes from its row of the registry. Elsewhere: the registry,
//! plans and references (`fercuda-ops`).

mod bench;
mod list;
mod parameters;
mod plan;
mod run;
mod show;
mod torch;
mod tune;
mod values;

use std::process::ExitCode;

use anyhow::Result;

/// Lists operations on arrays, shows one, runs one against its reference, times them or its
/// kernels.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: OpsCommand,
}

#[derive(clap::Subcommand)]
enum OpsCommand {
    List(list::OpListArgs),
    Show(show::OpShowArgs),
    Run(Box<run::OpRunArgs>),
    Bench(bench::OpBenchArgs),
    Tune(tune::OpTuneArgs),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        OpsCommand::List(args) => list::run(args),
        OpsCommand::Show(args) => show::run(args),
        OpsCommand::Run(args) => run::run(args),
        OpsCommand::Bench(args) => bench::run(args),
        OpsCommand::Tune(args) => tune::run(args),
    }
}
